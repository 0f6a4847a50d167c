//! [`Source`]: reads of metadata at any byte of a part of a device, many at once, and kept for the
//! next look. File content takes another way ([`FileReader`](crate::FileReader)).

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{Buf, Device};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream;

use crate::limits::{METADATA_BYTES_MAX, METADATA_READS_MAX};
use crate::{Error, FileExtent, Result};

/// Unit of what is kept, in bytes: holds 64 inodes or 4096 entries of a FAT32. On a long path it
/// costs no more time than a sector.
const PAGE_BYTES: u64 = 16 << 10;

/// Bytes of one read of a folder or a table that is longer.
pub(crate) const PIECE_BYTES: u64 = 256 << 10;

/// What was read of a page, and when it was last asked for.
type Page = (Bytes, u64);

/// A part of a device.
pub(crate) struct Source {
    device: Device,
    /// First byte and length on the device.
    start: u64,
    len: u64,
    /// By the numbers of the device's pages; shared by all parts.
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    pages: HashMap<u64, Page>,
    turn: u64,
}

impl Source {
    /// The part of `len` bytes at `start`; what the device does not have of it is left out.
    pub(crate) fn new(device: Device, start: u64, len: u64) -> Self {
        let len = len.min(device.info().size.saturating_sub(start));
        Self { device, start, len, kept: Arc::default() }
    }

    /// A part of this one, with what was read of it.
    pub(crate) fn part(&self, start: u64, len: u64) -> Self {
        let (device, kept) = (self.device.clone(), Arc::clone(&self.kept));
        let len = len.min(self.len.saturating_sub(start));
        Self { device, start: self.start.saturating_add(start), len, kept }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// First byte on the device.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Forgets what was read, since it may have changed.
    pub(crate) fn forget(&self) {
        self.kept().pages.clear();
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `len` bytes at `offset`; `what` is for errors.
    ///
    /// # Errors
    /// They are not there, or the device fails.
    pub(crate) async fn read(&self, offset: u64, len: usize, what: &'static str) -> Result<Bytes> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            let problem =
                format!("bytes {offset}+{len} are outside the {} bytes that there are", self.len);
            return Err(Error::damaged(what, problem));
        }
        if len == 0 {
            return Ok(Bytes::new());
        }
        let (first, end) = (self.start + offset, self.start + offset + len as u64);
        let page = PAGE_BYTES.max(u64::from(self.device.info().block_size));
        let (from, to) = (first / page, end.div_ceil(page));
        if (to - from) * page > PIECE_BYTES {
            // Once is enough for what is long.
            let all = self.fetch(from * page, to * page, what).await?;
            return Ok(cut(&all, first - from * page, len));
        }
        if let Some(bytes) = self.kept_bytes(from, to, page, first, len) {
            return Ok(bytes);
        }
        let all = self.fetch(from * page, to * page, what).await?;
        self.keep(&all, from, to, page);
        Ok(cut(&all, first - from * page, len))
    }

    /// From the device, which may end before `to`.
    async fn fetch(&self, from: u64, to: u64, what: &'static str) -> Result<Bytes> {
        let to = to.min(self.device.info().size);
        let buf = Buf::new(usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX));
        let read = self.device.read(from, buf).await;
        read.map(Buf::freeze).map_err(|source| Error::Device { what, offset: from, source })
    }

    fn kept_bytes(&self, from: u64, to: u64, page: u64, first: u64, len: usize) -> Option<Bytes> {
        let mut kept = self.kept();
        kept.turn += 1;
        let turn = kept.turn;
        let mut all = BytesMut::new();
        for number in from..to {
            let (bytes, used) = kept.pages.get_mut(&number)?;
            *used = turn;
            if to - from == 1 {
                return Some(cut(bytes, first - from * page, len));
            }
            all.extend_from_slice(bytes);
        }
        Some(cut(&all.freeze(), first - from * page, len))
    }

    fn keep(&self, all: &Bytes, from: u64, to: u64, page: u64) {
        let mut kept = self.kept();
        let turn = kept.turn;
        let most = METADATA_BYTES_MAX / usize::try_from(page).unwrap_or(METADATA_BYTES_MAX);
        for number in from..to {
            let at = (number - from) * page;
            let there = (all.len() as u64).saturating_sub(at).min(page);
            let bytes = Bytes::copy_from_slice(&cut(all, at, there as usize));
            kept.pages.insert(number, (bytes, turn));
        }
        if kept.pages.len() > most {
            // Half at once, so that it is not looked for at every read.
            let mut turns: Vec<u64> = kept.pages.values().map(|(_, used)| *used).collect();
            let (_, middle, _) = turns.select_nth_unstable(most / 2);
            let middle = *middle;
            kept.pages.retain(|_, (_, used)| *used > middle);
        }
    }

    /// All of these ranges, in their order, many at once.
    pub(crate) async fn read_all(
        &self,
        ranges: impl IntoIterator<Item = (u64, usize)>,
        what: &'static str,
    ) -> Result<Vec<Bytes>> {
        let reads = ranges.into_iter().map(|(offset, len)| self.read(offset, len, what));
        in_parallel(reads).await
    }

    /// The content of extents that lie in this part, together; holes are zeroes. The caller has
    /// limited the sum of the lengths.
    pub(crate) async fn content(
        &self,
        extents: &[FileExtent],
        what: &'static str,
    ) -> Result<Bytes> {
        let pieces = extents.iter().flat_map(|extent| {
            (0..extent.len.div_ceil(PIECE_BYTES)).map(move |n| {
                let from = n * PIECE_BYTES;
                let len = (extent.len - from).min(PIECE_BYTES) as usize;
                (extent.at.map(|at| at + from), len)
            })
        });
        let reads = pieces.map(|(at, len)| async move {
            match at {
                Some(at) => self.read(at, len, what).await,
                None => Ok(Bytes::from(vec![0; len])),
            }
        });
        let mut pieces = in_parallel(reads).await?;
        if pieces.len() == 1 {
            return Ok(pieces.remove(0));
        }
        Ok(pieces.concat().into())
    }
}

/// Futures in their order, many at once.
pub(crate) async fn in_parallel<T>(
    futures: impl IntoIterator<Item = impl Future<Output = Result<T>>>,
) -> Result<Vec<T>> {
    let mut results = stream::iter(futures).buffered(METADATA_READS_MAX);
    let mut all = Vec::new();
    while let Some(result) = results.next().await {
        all.push(result?);
    }
    Ok(all)
}

/// `len` bytes at `at`, or what there is of them.
fn cut(bytes: &Bytes, at: u64, len: usize) -> Bytes {
    let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
    bytes.slice(from..(from + len).min(bytes.len()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::backend::MemoryDevice;
    use block::{BlockDevice, WriteFlags};

    use super::*;

    async fn source(size: u64, start: u64, len: u64) -> (Source, Vec<u8>) {
        let content: Vec<u8> = (0..size).map(|i| (i / 3) as u8).collect();
        let device = MemoryDevice::new(size, 512).unwrap();
        device.write(0, content.clone().into(), WriteFlags::NONE).await.unwrap();
        (Source::new(Arc::new(device), start, len), content)
    }

    #[tokio::test]
    async fn any_byte_can_be_read_the_first_and_the_second_time() {
        let (source, content) = source(1 << 20, 1000, u64::MAX).await;
        assert_eq!(source.len(), (1 << 20) - 1000);
        for _ in 0..2 {
            for (offset, len) in [(0, 1), (15_383, 2), (15_384, 0), (70_000, 400_000)] {
                let read = source.read(offset, len, "test").await.unwrap();
                let at = 1000 + offset as usize;
                assert_eq!(read, content[at..at + len], "{offset}+{len}");
            }
        }
        let last = source.len();
        assert_eq!(source.read(last - 1, 1, "test").await.unwrap().len(), 1);
        for (offset, len) in [(last, 1), (last - 1, 2), (u64::MAX, 1)] {
            let error = source.read(offset, len, "end").await.unwrap_err();
            assert!(error.to_string().starts_with("end: bytes"), "{error}");
        }
    }

    #[tokio::test]
    async fn what_is_kept_has_a_limit_and_can_be_forgotten() {
        let (source, _) = source(32 << 20, 0, u64::MAX).await;
        for page in 0..2048 {
            source.read(page * PAGE_BYTES, 4, "test").await.unwrap();
            let bytes = source.kept().pages.len() as u64 * PAGE_BYTES;
            assert!(bytes <= METADATA_BYTES_MAX as u64);
        }
        assert!(source.kept().pages.contains_key(&2047));
        source.forget();
        assert!(source.kept().pages.is_empty());
    }

    #[tokio::test]
    async fn content_is_that_of_the_extents_in_their_order() {
        let (source, content) = source(1 << 20, 512, u64::MAX).await;
        let extent = |offset, len, at| FileExtent { offset, len, at };
        let all = [
            extent(0, 300_000, Some(600_000)),
            extent(300_000, 10, None),
            extent(300_010, 5, Some(1)),
        ];
        let read = source.content(&all, "test").await.unwrap();
        let expected = [&content[600_512..900_512], &[0; 10], &content[513..518]].concat();
        assert_eq!(read, expected);
    }
}
