//! The superblock at the end of a leg, read and written.

use super::super::BLOCK_BYTES;
use super::super::layout::LegLayout;
use super::super::superblock::{BYTES, Block, BlockFault, Record, RemoteSuperblock, newest};
use crate::{BlockDevice, BlockError, Buf, Bytes, Result, WriteFlags};

/// What the superblock of a leg says.
///
/// # Errors
/// The device's. What is there instead of a superblock is the inner error.
pub(crate) async fn read(
    device: &dyn BlockDevice,
    layout: &LegLayout,
) -> Result<std::result::Result<RemoteSuperblock, BlockFault>> {
    let both = device.read(layout.superblock(0), Buf::new(2 * BYTES)).await?;
    let block = |number: usize| -> Box<Block> {
        let mut block = Box::new([0; BYTES]);
        block.copy_from_slice(&both[number * BYTES..(number + 1) * BYTES]);
        block
    };
    Ok(newest(&block(0), &block(1)))
}

/// Writes it, and everything that was written before it becomes stable first: what it says of the
/// image must not be there before the image is.
///
/// # Errors
/// The device's.
pub(crate) async fn write(
    device: &dyn BlockDevice,
    layout: &LegLayout,
    superblock: &RemoteSuperblock,
) -> Result<()> {
    let block =
        superblock.encode().map_err(|fault| BlockError::Medium(std::io::Error::other(fault)))?;
    let at = layout.superblock(superblock.sequence);
    let data = Bytes::copy_from_slice(&block[..]);
    device.flush().await?;
    let fua = device.info().can_fua;
    device.write(at, data, WriteFlags { fua }).await?;
    if fua { Ok(()) } else { device.flush().await }
}

/// Both copies are gone.
///
/// # Errors
/// The device's.
pub(crate) async fn erase(device: &dyn BlockDevice, layout: &LegLayout) -> Result<()> {
    let blank = Buf::zeroed(2 * BYTES).freeze();
    device.write(layout.superblock(0), blank, WriteFlags::NONE).await?;
    device.flush().await
}

const _: () = assert!(BYTES as u64 == BLOCK_BYTES);
