//! Reads: from the local device, and where that fails from a leg that holds what was written last;
//! then the local device gets it again.

use std::sync::Arc;

use super::super::epoch::{Content, Piece};
use super::shared::Shared;
use crate::range_lock::held;
use crate::{BlockError, Buf, Io, Result, WriteFlags};

/// Reads for the user.
pub(crate) fn read(shared: &Arc<Shared>, offset: u64, buf: Buf) -> Io<Buf> {
    let len = buf.len();
    match shared.local().read(offset, buf).try_ready() {
        Ok(Ok(buf)) => Io::ok(buf),
        Ok(Err(error)) => {
            let shared = shared.clone();
            Io::later(async move { locked_from_leg(&shared, offset, len, error).await })
        }
        Err(io) => {
            let shared = shared.clone();
            Io::later(async move {
                match io.await {
                    Ok(buf) => Ok(buf),
                    Err(error) => locked_from_leg(&shared, offset, len, error).await,
                }
            })
        }
    }
}

/// Reads for a copy, which holds the range.
pub(crate) async fn read_held(shared: &Arc<Shared>, offset: u64, len: usize) -> Result<Buf> {
    match shared.local().read(offset, Buf::new(len)).await {
        Ok(buf) => Ok(buf),
        Err(error) => from_leg(shared, offset, len, error).await,
    }
}

/// Nothing is changed there meanwhile, so that an old content is not written back over a new one.
async fn locked_from_leg(
    shared: &Arc<Shared>,
    offset: u64,
    len: usize,
    error: BlockError,
) -> Result<Buf> {
    let _lock = held(shared.locks().exclusive(offset..offset + len as u64)).await;
    from_leg(shared, offset, len, error).await
}

async fn from_leg(shared: &Arc<Shared>, offset: u64, len: usize, error: BlockError) -> Result<Buf> {
    let bytes = offset..offset + len as u64;
    // Each leg is asked once: one that fails is lost, or has the same hole in it.
    for leg in 0..shared.legs().count() {
        let Some((session, over)) = shared.legs().reader(leg, bytes.clone()) else { continue };
        match session.run(|device| device.read(offset, Buf::new(len))).await {
            Ok(mut buf) => {
                over.iter().for_each(|piece| put_over(&mut buf, offset, piece));
                tracing::warn!(offset, len, leg, %error, "the local device cannot be read");
                return Ok(write_back(shared, offset, buf).await);
            }
            Err(BlockError::Medium(other)) => {
                tracing::warn!(offset, len, leg, error = %other, "neither can be read");
            }
            Err(other) => shared.leg_failed(leg, &session, &other),
        }
    }
    Err(error)
}

/// What is on its way to the leg is newer than what is there.
fn put_over(buf: &mut Buf, offset: u64, piece: &Piece) {
    let start = (piece.offset - offset) as usize;
    match &piece.content {
        Content::Data(data) => buf[start..start + data.len()].copy_from_slice(data),
        Content::Zero(len) => buf[start..start + *len as usize].fill(0),
    }
}

/// Has the local device replace what it cannot read. Whether that goes well makes no difference to
/// the reader.
async fn write_back(shared: &Arc<Shared>, offset: u64, buf: Buf) -> Buf {
    if shared.local().failure().is_some() {
        return buf;
    }
    let data = buf.freeze();
    let written =
        shared.local().change(|device| device.write(offset, data.clone(), WriteFlags::NONE));
    let written = written.await;
    if let Err(error) = written {
        tracing::warn!(offset, %error, "the local device cannot be healed");
    }
    Buf::copy_from(&data)
}
