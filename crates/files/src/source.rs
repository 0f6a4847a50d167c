//! [`Source`]: reads of metadata at any byte of a part of a device, many at once, and kept for the
//! next look. File content takes another way ([`FileReader`](crate::FileReader)).

use std::collections::{BTreeMap, HashMap};
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
    newer: Arc<Mutex<Arc<Overlay>>>,
}

/// Where newer content of a block is than in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Newer {
    /// First byte of it in this part.
    pub(crate) at: u64,
    /// What its first bytes are, where they were kept out of the copy.
    pub(crate) begins_with: Option<[u8; 4]>,
}

/// Blocks of a part of a device that have newer content elsewhere in it.
#[derive(Default)]
struct Overlay {
    block_bytes: u64,
    /// By the blocks' first bytes on the device.
    newer: BTreeMap<u64, Newer>,
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
        Self { device, start, len, kept: Arc::default(), newer: Arc::default() }
    }

    /// A part of this one, with what was read of it.
    pub(crate) fn part(&self, start: u64, len: u64) -> Self {
        let (device, kept) = (self.device.clone(), Arc::clone(&self.kept));
        let (len, newer) = (len.min(self.len.saturating_sub(start)), Arc::clone(&self.newer));
        Self { device, start: self.start.saturating_add(start), len, kept, newer }
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

    /// From now on, blocks with these numbers are read where their newer content is.
    pub(crate) fn overlay(&self, block_bytes: u64, blocks: BTreeMap<u64, Newer>) {
        let first = |block: u64| self.start.checked_add(block.checked_mul(block_bytes)?);
        // A number that leads outside is one that nobody reads.
        let newer = blocks.into_iter().filter_map(|(block, newer)| Some((first(block)?, newer)));
        let overlay = Arc::new(Overlay { block_bytes, newer: newer.collect() });
        let is_new = !overlay.newer.is_empty();
        let mut place = self.newer.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *place, overlay);
        drop(place);
        if is_new || !before.newer.is_empty() {
            self.forget();
        }
    }

    /// Is newer content of a part of these extents elsewhere?
    pub(crate) fn is_overlaid(&self, extents: &[FileExtent]) -> bool {
        let overlay = self.overlaid();
        let places =
            extents.iter().filter_map(|extent| Some((self.start + extent.at?, extent.len)));
        places.into_iter().any(|(at, len)| overlay.within(at, at + len).next().is_some())
    }

    fn overlaid(&self) -> Arc<Overlay> {
        Arc::clone(&self.newer.lock().unwrap_or_else(PoisonError::into_inner))
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

    /// What is at these bytes of the device, which may end before `to`: in their places, or where
    /// it is newer.
    async fn fetch(&self, from: u64, to: u64, what: &'static str) -> Result<Bytes> {
        let bytes = self.fetch_in_place(from, to, what).await?;
        let overlay = self.overlaid();
        let found: Vec<(u64, Newer)> = overlay.within(from, to).collect();
        if found.is_empty() {
            return Ok(bytes);
        }
        let block = overlay.block_bytes;
        let unit = u64::from(self.device.info().block_size);
        let copies = in_parallel(found.iter().map(|(_, newer)| async move {
            let at = self.start + newer.at;
            let (first, end) = (at - at % unit, (at + block).next_multiple_of(unit));
            let read = self.fetch_in_place(first, end, what).await?;
            Ok(cut(&read, at - first, block as usize))
        }))
        .await?;
        let mut bytes = BytesMut::from(&bytes[..]);
        for ((at, newer), copy) in found.into_iter().zip(copies) {
            let mut copy = BytesMut::from(&copy[..]);
            if let (Some(begin), Some(front)) = (newer.begins_with, copy.get_mut(..4)) {
                front.copy_from_slice(&begin);
            }
            // What both have of the block.
            let (begin, end) =
                (at.max(from), (at + copy.len() as u64).min(from + bytes.len() as u64));
            if begin < end {
                let (inside, there) = ((begin - from) as usize, (begin - at) as usize);
                let len = (end - begin) as usize;
                bytes[inside..inside + len].copy_from_slice(&copy[there..there + len]);
            }
        }
        Ok(bytes.freeze())
    }

    async fn fetch_in_place(&self, from: u64, to: u64, what: &'static str) -> Result<Bytes> {
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

impl Overlay {
    /// Blocks with a byte in this range of the device.
    fn within(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, Newer)> {
        let first = (from + 1).saturating_sub(self.block_bytes);
        self.newer.range(first..to.max(first)).map(|(at, newer)| (*at, *newer))
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
    async fn a_block_that_is_newer_elsewhere_is_read_there() {
        let (source, content) = source(1 << 20, 4096, u64::MAX).await;
        let before = source.read(0, 64, "test").await.unwrap();
        let newer = |at, begins_with| Newer { at, begins_with };
        let blocks = [
            (3, newer(500_000, None)),
            (20, newer(600_000, Some(*b"abcd"))),
            (1 << 60, newer(0, None)),
        ];
        source.overlay(1024, blocks.into_iter().collect());
        let mut expected = content[4096..].to_vec();
        for (block, at) in [(3, 500_000), (20, 600_000)] {
            let copy = content[4096 + at..4096 + at + 1024].to_vec();
            expected[block * 1024..(block + 1) * 1024].copy_from_slice(&copy);
        }
        expected[20 * 1024..20 * 1024 + 4].copy_from_slice(b"abcd");
        for (offset, len) in
            [(0, 64), (3071, 2), (3072, 1024), (4095, 2), (20_000, 5000), (0, 400_000)]
        {
            let read = source.read(offset as u64, len, "test").await.unwrap();
            assert_eq!(read, expected[offset..offset + len], "{offset}+{len}");
        }
        let extent = |at, len| [FileExtent { offset: 0, len, at: Some(at) }];
        assert!(source.is_overlaid(&extent(0, 3073)) && source.is_overlaid(&extent(4095, 1)));
        assert!(!source.is_overlaid(&extent(0, 3072)) && !source.is_overlaid(&extent(4096, 9)));
        source.overlay(1024, BTreeMap::new());
        assert_eq!(source.read(0, 64, "test").await.unwrap(), before);
        assert_eq!(source.read(3072, 8, "test").await.unwrap(), content[7168..7176]);
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
