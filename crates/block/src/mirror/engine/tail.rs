//! The superblock and the stamp at the end of a leg, read and written.

use super::super::BLOCK_BYTES;
use super::super::layout::LegLayout;
use super::super::superblock::{
    BYTES, Block, BlockFault, MirrorId, Record, RemoteSuperblock, Stamp, newest,
};
use crate::{BlockDevice, BlockError, Buf, Bytes, Io, Result, WriteFlags};

/// What the superblock of a leg says.
///
/// # Errors
/// The device's. What is there instead of a superblock is the inner error.
pub(crate) async fn read(
    device: &dyn BlockDevice,
    layout: &LegLayout,
) -> Result<std::result::Result<RemoteSuperblock, BlockFault>> {
    read_both(device, layout.superblock(0)).await
}

/// The last epoch that was stable there, as its stamp says; `None` if it has no stamp of this
/// mirror that can be read.
///
/// # Errors
/// The device's.
pub(crate) async fn read_stamp(
    device: &dyn BlockDevice,
    layout: &LegLayout,
    mirror: MirrorId,
) -> Result<Option<Stamp>> {
    match read_both::<Stamp>(device, layout.stamp(0)).await? {
        Ok(stamp) => Ok(Some(stamp).filter(|stamp| stamp.uuid == mirror)),
        Err(fault) if fault.is_blank() => Ok(None),
        Err(fault) => {
            tracing::warn!(%fault, "the stamp of a leg cannot be used");
            Ok(None)
        }
    }
}

async fn read_both<T: Record>(
    device: &dyn BlockDevice,
    at: u64,
) -> Result<std::result::Result<T, BlockFault>> {
    let both = device.read(at, Buf::new(2 * BYTES)).await?;
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
    device.flush().await?;
    write_stable(device, at, &block).await
}

/// Writes a stamp. What it tells of was flushed before.
///
/// # Errors
/// The device's.
pub(crate) async fn write_stamp(
    device: &dyn BlockDevice,
    layout: &LegLayout,
    stamp: &Stamp,
) -> Result<()> {
    let block = stamp.encode().map_err(|fault| BlockError::Medium(std::io::Error::other(fault)))?;
    write_stable(device, layout.stamp(stamp.epoch), &block).await
}

/// Asks for a stamp to be written, at once and not forced: it is stable with the next barrier.
pub(crate) fn begin_stamp(device: &dyn BlockDevice, layout: &LegLayout, stamp: &Stamp) -> Io<()> {
    match stamp.encode() {
        Ok(block) => {
            let data = Bytes::copy_from_slice(&block[..]);
            device.write(layout.stamp(stamp.epoch), data, WriteFlags::NONE)
        }
        Err(fault) => Io::err(BlockError::Medium(std::io::Error::other(fault))),
    }
}

async fn write_stable(device: &dyn BlockDevice, at: u64, block: &Block) -> Result<()> {
    let data = Bytes::copy_from_slice(&block[..]);
    let fua = device.info().can_fua;
    device.write(at, data, WriteFlags { fua }).await?;
    if fua { Ok(()) } else { device.flush().await }
}

/// The leg has no stamp any more.
///
/// # Errors
/// The device's.
pub(crate) async fn erase_stamp(device: &dyn BlockDevice, layout: &LegLayout) -> Result<()> {
    let blank = Buf::zeroed(2 * BYTES).freeze();
    device.write(layout.stamp(0), blank, WriteFlags::NONE).await?;
    device.flush().await
}

/// Both copies of either are gone.
///
/// # Errors
/// The device's.
pub(crate) async fn erase(device: &dyn BlockDevice, layout: &LegLayout) -> Result<()> {
    let blank = Buf::zeroed(2 * BYTES).freeze();
    device.write(layout.superblock(0), blank.clone(), WriteFlags::NONE).await?;
    device.write(layout.stamp(0), blank, WriteFlags::NONE).await?;
    device.flush().await
}

const _: () = assert!(BYTES as u64 == BLOCK_BYTES);
