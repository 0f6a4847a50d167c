//! Copies one device to another, pipelined and skipping holes, and compares two devices.
//!
//! It keeps `depth` transfers under way in ascending order, so that a path with a long round trip
//! stays full and a sequential medium stays sequential.

use tokio::task::JoinSet;

use crate::{BlockError, Buf, Device, Extent, WriteFlags, ZeroFlags};

/// How far ahead the map of holes is asked for, in bytes.
pub(crate) const MAP_WINDOW: u64 = 1 << 30;

/// How to copy.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Bytes to copy from the start of the source; a multiple of both block sizes.
    pub length: u64,
    /// Bytes per transfer, a multiple of both block sizes.
    pub transfer_size: u32,
    /// Transfers under way at once.
    pub depth: usize,
    /// The destination reads as zeroes now: holes need no work.
    pub destination_is_zero: bool,
}

impl CopyOptions {
    /// Everything of a source of `length` bytes, 64 transfers of 256 KiB at once: 16 MiB under
    /// way, which fills 1 Gbit/s up to a round trip of 130 ms.
    pub fn new(length: u64) -> Self {
        Self { length, transfer_size: 256 << 10, depth: 64, destination_is_zero: false }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Bytes of the source, holes included.
    pub bytes: u64,
    /// Of these, bytes that were zero and sent as a command or not at all.
    pub zero_bytes: u64,
}

/// A step forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many more bytes are copied.
    Copied(u64),
    /// So many more bytes were compared.
    Verified(u64),
}

/// Why a copy failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// Reading the source.
    #[error("reading the source at byte {offset}: {source}")]
    Read {
        /// First byte of the transfer.
        offset: u64,
        /// What happened.
        source: BlockError,
    },
    /// Writing the destination.
    #[error("writing the destination at byte {offset}: {source}")]
    Write {
        /// First byte of the transfer.
        offset: u64,
        /// What happened.
        source: BlockError,
    },
    /// Reading the destination again.
    #[error("reading the destination at byte {offset}: {source}")]
    ReadBack {
        /// First byte of the transfer.
        offset: u64,
        /// What happened.
        source: BlockError,
    },
    /// Making the destination's data stable.
    #[error("flushing the destination: {0}")]
    Flush(#[source] BlockError),
    /// The two sides differ after the copy.
    #[error("source and destination differ at byte {offset}")]
    Differs {
        /// First byte that differs.
        offset: u64,
    },
    /// A transfer panicked: our bug.
    #[error("a transfer was lost: {0}")]
    Lost(#[from] tokio::task::JoinError),
}

/// Copies `options.length` bytes from the start of `source` to the start of `destination` and
/// flushes them. `progress` is called after each transfer.
///
/// # Errors
/// The first thing that went wrong; what was copied until then stays in the destination.
pub async fn copy(
    source: &Device,
    destination: &Device,
    options: &CopyOptions,
    mut progress: impl FnMut(Progress),
) -> Result<CopyReport, CopyError> {
    let mut report = CopyReport::default();
    let mut transfers = JoinSet::new();
    let mut pieces = Pieces::new(source, options);
    while let Some(piece) = pieces.next().await? {
        if transfers.len() >= options.depth.max(1) {
            settle(transfers.join_next().await, &mut report, &mut progress)?;
        }
        transfers.spawn(transfer(source.clone(), destination.clone(), piece, options.clone()));
    }
    while let Some(done) = transfers.join_next().await {
        settle(Some(done), &mut report, &mut progress)?;
    }
    destination.flush().await.map_err(CopyError::Flush)?;
    Ok(report)
}

type Done = Result<Result<Moved, CopyError>, tokio::task::JoinError>;

/// One transfer's share of the report.
struct Moved {
    bytes: u64,
    zero: bool,
}

fn settle(
    done: Option<Done>,
    report: &mut CopyReport,
    progress: &mut impl FnMut(Progress),
) -> Result<(), CopyError> {
    let Some(done) = done else { return Ok(()) };
    let moved = done??;
    report.bytes += moved.bytes;
    if moved.zero {
        report.zero_bytes += moved.bytes;
    }
    progress(Progress::Copied(moved.bytes));
    Ok(())
}

async fn transfer(
    source: Device,
    destination: Device,
    piece: Extent,
    options: CopyOptions,
) -> Result<Moved, CopyError> {
    let Extent { offset, len, hole } = piece;
    if hole {
        zero(&destination, offset, len, &options).await?;
        return Ok(Moved { bytes: len, zero: true });
    }
    // A piece of data is at most one transfer long, which is a u32.
    let buf = Buf::new(usize::try_from(len).unwrap_or(usize::MAX));
    let buf =
        source.read(offset, buf).await.map_err(|source| CopyError::Read { offset, source })?;
    if is_zero(&buf) && destination.info().can_zero {
        zero(&destination, offset, len, &options).await?;
        return Ok(Moved { bytes: len, zero: true });
    }
    destination
        .write(offset, buf.freeze(), WriteFlags::NONE)
        .await
        .map_err(|source| CopyError::Write { offset, source })?;
    Ok(Moved { bytes: len, zero: false })
}

async fn zero(
    destination: &Device,
    offset: u64,
    len: u64,
    options: &CopyOptions,
) -> Result<(), CopyError> {
    if options.destination_is_zero {
        return Ok(());
    }
    write_zeroes(destination, offset, len, options.transfer_size).await
}

/// Makes a range of the destination read as zeroes, as a hole where it can have them.
pub(crate) async fn write_zeroes(
    destination: &Device,
    offset: u64,
    len: u64,
    transfer_size: u32,
) -> Result<(), CopyError> {
    let fail = |source| CopyError::Write { offset, source };
    if destination.info().can_zero {
        return destination.zero(offset, len, ZeroFlags::new(false, true)).await.map_err(fail);
    }
    let mut at = offset;
    while at < offset + len {
        let step = u64::from(transfer_size).min(offset + len - at);
        let zeroes = Buf::zeroed(usize::try_from(step).unwrap_or(usize::MAX));
        destination.write(at, zeroes.freeze(), WriteFlags::NONE).await.map_err(fail)?;
        at += step;
    }
    Ok(())
}

/// Compares without a branch per byte; the compiler makes wide loads of it.
pub(crate) fn is_zero(data: &[u8]) -> bool {
    data.chunks(4096).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

/// The source cut into transfers and holes.
struct Pieces<'a> {
    source: &'a Device,
    options: &'a CopyOptions,
    next: u64,
    map: std::vec::IntoIter<Extent>,
    rest: Option<Extent>,
}

impl<'a> Pieces<'a> {
    fn new(source: &'a Device, options: &'a CopyOptions) -> Self {
        Self { source, options, next: 0, map: Vec::new().into_iter(), rest: None }
    }

    async fn next(&mut self) -> Result<Option<Extent>, CopyError> {
        loop {
            if let Some(extent) = self.rest.take().or_else(|| self.map.next()) {
                let step = if extent.hole {
                    extent.len
                } else {
                    extent.len.min(u64::from(self.options.transfer_size))
                };
                if step < extent.len {
                    let offset = extent.offset + step;
                    self.rest = Some(Extent { offset, len: extent.len - step, ..extent });
                }
                return Ok(Some(Extent { len: step, ..extent }));
            }
            let offset = self.next;
            let len = MAP_WINDOW.min(self.options.length - offset);
            if len == 0 {
                return Ok(None);
            }
            let map = if self.source.info().can_extents {
                let map = self.source.extents(offset, len).await;
                map.map_err(|source| CopyError::Read { offset, source })?
            } else {
                vec![Extent { offset, len, hole: false }]
            };
            self.next += len;
            self.map = map.into_iter();
        }
    }
}

/// Reads `options.length` bytes of both devices and compares them.
///
/// # Errors
/// [`CopyError::Differs`], or what went wrong while reading.
pub async fn verify(
    source: &Device,
    destination: &Device,
    options: &CopyOptions,
    mut progress: impl FnMut(Progress),
) -> Result<(), CopyError> {
    let mut reads = JoinSet::new();
    let mut offset = 0;
    while offset < options.length || !reads.is_empty() {
        if offset < options.length && reads.len() < options.depth.max(1) {
            let len = u64::from(options.transfer_size).min(options.length - offset);
            reads.spawn(compare(source.clone(), destination.clone(), offset, len));
            offset += len;
            continue;
        }
        if let Some(done) = reads.join_next().await {
            progress(Progress::Verified(done??));
        }
    }
    Ok(())
}

async fn compare(
    source: Device,
    destination: Device,
    offset: u64,
    len: u64,
) -> Result<u64, CopyError> {
    let size = usize::try_from(len).unwrap_or(usize::MAX);
    let theirs = destination.read(offset, Buf::new(size));
    let ours = source.read(offset, Buf::new(size));
    let theirs = theirs.await.map_err(|source| CopyError::ReadBack { offset, source })?;
    let ours = ours.await.map_err(|source| CopyError::Read { offset, source })?;
    match ours.iter().zip(theirs.iter()).position(|(a, b)| a != b) {
        None => Ok(len),
        Some(at) => Err(CopyError::Differs { offset: offset + at as u64 }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::backend::MemoryDevice;

    const SIZE: u64 = 4 << 20;

    fn device(size: u64) -> Device {
        Arc::new(MemoryDevice::new(size, 512).unwrap())
    }

    async fn write(device: &Device, offset: u64, byte: u8, len: usize) {
        let mut buf = Buf::new(len);
        buf.fill(byte);
        device.write(offset, buf.freeze(), WriteFlags::NONE).await.unwrap();
    }

    async fn content(device: &Device) -> Buf {
        let len = usize::try_from(device.info().size).unwrap();
        device.read(0, Buf::new(len)).await.unwrap()
    }

    #[tokio::test]
    async fn data_holes_and_stale_content_come_out_equal() {
        let (source, destination) = (device(SIZE), device(SIZE));
        write(&source, 300 << 10, 5, 700 << 10).await;
        write(&source, SIZE - 512, 6, 512).await;
        write(&destination, 0, 9, SIZE as usize).await;
        let options = CopyOptions { depth: 3, ..CopyOptions::new(SIZE) };
        let (mut copied, mut verified) = (0, 0);
        let mut step = |step| match step {
            Progress::Copied(n) => copied += n,
            Progress::Verified(n) => verified += n,
        };
        let report = copy(&source, &destination, &options, &mut step).await.unwrap();
        verify(&source, &destination, &options, &mut step).await.unwrap();
        assert_eq!((copied, verified, report.bytes), (SIZE, SIZE, SIZE));
        assert!(report.zero_bytes > SIZE / 2, "{report:?}");
        assert!(content(&source).await[..] == content(&destination).await[..]);
    }

    #[tokio::test]
    async fn verify_names_the_first_byte_that_differs() {
        let (source, destination) = (device(SIZE), device(SIZE));
        write(&source, 0, 5, SIZE as usize).await;
        write(&destination, 0, 5, SIZE as usize).await;
        write(&destination, 1 << 20, 6, 512).await;
        let options = CopyOptions::new(SIZE);
        let error = verify(&source, &destination, &options, |_| ()).await.unwrap_err();
        assert!(matches!(error, CopyError::Differs { offset: 1_048_576 }), "{error}");
    }

    #[tokio::test]
    async fn a_destination_that_is_too_small_is_an_error() {
        let (source, destination) = (device(SIZE), device(SIZE / 2));
        write(&source, 0, 5, SIZE as usize).await;
        let error = copy(&source, &destination, &CopyOptions::new(SIZE), |_| ()).await.unwrap_err();
        assert!(matches!(error, CopyError::Write { .. }), "{error}");
    }
}
