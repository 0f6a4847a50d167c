//! Durable writes of blocks: forced where the device can, followed by a flush where it cannot.

use futures_util::future::join_all;

use super::super::BLOCK_BYTES;
use super::Inner;
use crate::range_lock::held;
use crate::{Bytes, Device, Result, WriteFlags};

/// Writes one run of bytes; durable when this ends.
pub(super) async fn write_stable(device: &Device, at: u64, data: Bytes) -> Result<()> {
    let info = device.info();
    let flags = if info.can_fua { WriteFlags::FUA } else { WriteFlags::NONE };
    device.write(at, data, flags).await?;
    // A device that cannot flush is stable at once, or never.
    if !info.can_fua && info.can_flush {
        device.flush().await?;
    }
    Ok(())
}

/// Writes many at once with one flush for all; durable when this ends.
pub(super) async fn write_all_stable(device: &Device, writes: Vec<(u64, Bytes)>) -> Result<()> {
    if writes.is_empty() {
        return Ok(());
    }
    let info = device.info();
    let flags = if info.can_flush { WriteFlags::NONE } else { WriteFlags { fua: info.can_fua } };
    let writes = writes.into_iter().map(|(at, data)| device.write(at, data, flags));
    let writes: Vec<_> = writes.collect();
    join_all(writes).await.into_iter().collect::<Result<()>>()?;
    if info.can_flush {
        device.flush().await?;
    }
    Ok(())
}

impl Inner {
    /// Writes a block; durable when this ends. Nobody else writes there meanwhile.
    pub(super) async fn write_block(&self, at: u64, block: Bytes) -> Result<()> {
        let _block = held(self.blocks.exclusive(at..at + BLOCK_BYTES)).await;
        let bytes = block.len() as u64;
        let written = write_stable(&self.device, at, block).await;
        self.lock().metrics.bytes += bytes;
        written
    }
}
