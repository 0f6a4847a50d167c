//! [`FileReader`]: all bytes of a file as block reads of its extents, many at once.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use block::{BlockError, Buf, Device, Io};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;

use crate::{Error, FileExtent, Result};

/// Zeroes for holes, which nobody has to allocate.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// How much is asked for at once. The defaults are those of `enkaku copy`: 16 MB under way fill
/// 1 Gbit/s at a round trip of 100 ms.
#[derive(Clone, Copy, Debug)]
pub struct ReadConfig {
    /// Bytes of one read, at least 4096.
    pub piece_bytes: u64,
    /// Bytes of each of the reads with which it begins, until `bytes_first` are asked for. Little
    /// ones go over many connections, of which none has to grow before all of it is there.
    pub piece_first: u64,
    /// Most bytes that are asked for and not taken yet.
    pub bytes_max: u64,
    /// How many they are at most to begin with; each byte that is taken allows one more. Little,
    /// for somebody who may look elsewhere at any moment: what is on its way is lost then.
    pub bytes_first: u64,
    /// Most reads that are asked for and not taken yet: for files in thousands of pieces.
    pub reads_max: usize,
}

impl Default for ReadConfig {
    fn default() -> Self {
        let (bytes_max, piece_bytes) = (16 << 20, 256 << 10);
        Self {
            piece_bytes,
            piece_first: piece_bytes,
            bytes_max,
            bytes_first: bytes_max,
            reads_max: 256,
        }
    }
}

/// A file that is open for reading. A clone shares its list of extents.
///
/// It reads what was in its extents when it was opened: whoever shares the disk with a writer asks
/// [`Volume::refresh`](crate::Volume::refresh) whether they still hold.
#[derive(Clone)]
pub struct FileReader {
    device: Device,
    extents: Arc<[FileExtent]>,
    size: u64,
    config: ReadConfig,
}

impl FileReader {
    /// Of extents that are sorted and without gaps, as [`Volume::extents`](crate::Volume::extents)
    /// has them.
    pub fn new(device: Device, extents: Vec<FileExtent>) -> Self {
        let size = extents.last().map_or(0, FileExtent::end);
        Self { device, extents: extents.into(), size, config: ReadConfig::default() }
    }

    /// With another measure of parallelism.
    #[must_use]
    pub fn with_config(mut self, config: ReadConfig) -> Self {
        self.config = config;
        self
    }

    /// Read by way of another device with the same content, as one that counts or holds back.
    #[must_use]
    pub fn through(mut self, change: impl FnOnce(Device) -> Device) -> Self {
        self.device = change(self.device);
        self
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where they are.
    pub fn extents(&self) -> &[FileExtent] {
        &self.extents
    }

    /// There are bytes of it that read as zeroes because they were never written.
    pub fn has_holes(&self) -> bool {
        self.extents.iter().any(|extent| extent.at.is_none())
    }

    /// Reads a range of bytes in order, piece by piece, many of them ahead of the one that is
    /// taken. What is behind the end of the file is left out.
    ///
    /// Nothing is asked for before the first piece is; dropping it ends all.
    pub fn read(&self, range: Range<u64>) -> Reading {
        let extent = self.extents.partition_point(|extent| extent.end() <= range.start);
        Reading {
            begin: range.start,
            position: range.start,
            end: range.end.min(self.size),
            extent,
            reads: FuturesOrdered::new(),
            bytes: 0,
            allowed: self.config.bytes_first.min(self.config.bytes_max),
            file: self.clone(),
        }
    }

    /// Reads all of `len` bytes at `offset`, which are in memory at once.
    ///
    /// # Errors
    /// The file does not have them, or the device fails.
    pub async fn read_at(&self, offset: u64, len: usize) -> Result<Bytes> {
        let end = offset.checked_add(len as u64).filter(|end| *end <= self.size);
        let out = || Error::OutOfRange { offset, len: len as u64, size: self.size };
        let mut reading = self.read(offset..end.ok_or_else(out)?);
        let Some(first) = reading.next().await.transpose()? else { return Ok(Bytes::new()) };
        if first.len() == len {
            return Ok(first);
        }
        let mut all = Vec::with_capacity(len);
        all.extend_from_slice(&first);
        while let Some(piece) = reading.next().await.transpose()? {
            all.extend_from_slice(&piece);
        }
        Ok(all.into())
    }
}

/// Content of a file on its way. Dropping it abandons what is under way; nothing more is asked for.
pub struct Reading {
    file: FileReader,
    begin: u64,
    /// First byte of the file that is not asked for yet, and the end of what is wanted.
    position: u64,
    end: u64,
    /// The extent that has `position`.
    extent: usize,
    reads: FuturesOrdered<Piece>,
    /// Bytes of `reads`, and how many there may be.
    bytes: u64,
    allowed: u64,
}

/// A piece that is under way: the wanted bytes are in whole blocks of the device.
struct Piece {
    read: Io<Buf>,
    /// First byte on the device and the bytes that are wanted from there; `None` is a hole.
    at: Option<u64>,
    skip: usize,
    len: usize,
}

impl Future for Piece {
    type Output = Result<Bytes>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(offset) = self.at else {
            return Poll::Ready(Ok(Bytes::from_static(&ZEROES[..self.len])));
        };
        let (skip, len) = (self.skip, self.len);
        let read = Pin::new(&mut self.read).poll(context);
        read.map(|read| match read {
            Ok(buf) => Ok(buf.freeze().slice(skip..skip + len)),
            Err(source) => Err(Error::Device { what: "content of a file", offset, source }),
        })
    }
}

impl Reading {
    /// The next bytes; none at the end. After an error, nothing more comes.
    pub async fn next(&mut self) -> Option<Result<Bytes>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`next`](Self::next), for what is polled itself.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes>>> {
        self.ask();
        let result = ready!(self.reads.poll_next_unpin(context));
        match &result {
            Some(Ok(bytes)) => {
                let len = bytes.len() as u64;
                self.bytes -= len;
                self.allowed = self.allowed.saturating_add(len).min(self.file.config.bytes_max);
            }
            Some(Err(_)) => {
                self.position = self.end;
                self.reads = FuturesOrdered::new();
            }
            None => {}
        }
        Poll::Ready(result)
    }

    /// Asks for as much as may be under way.
    fn ask(&mut self) {
        while self.position < self.end
            && self.reads.len() < self.file.config.reads_max.max(1)
            && (self.bytes == 0 || self.bytes < self.allowed)
        {
            let Some(extent) = self.file.extents.get(self.extent).copied() else { break };
            let piece = self.piece(extent);
            self.position += piece.len as u64;
            self.bytes += piece.len as u64;
            if self.position == extent.end() {
                self.extent += 1;
            }
            self.reads.push_back(piece);
        }
    }

    /// The piece at `position`, which is in `extent`.
    fn piece(&self, extent: FileExtent) -> Piece {
        let inside = self.position - extent.offset;
        let len = extent.end().min(self.end) - self.position;
        let Some(at) = extent.at else {
            let len = len.min(ZEROES.len() as u64) as usize;
            return Piece { read: Io::err(BlockError::ReadOnly), at: None, skip: 0, len };
        };
        let info = self.file.device.info();
        let block = u64::from(info.block_size);
        let config = &self.file.config;
        let piece_bytes = match self.position - self.begin < config.bytes_first {
            true => config.piece_first.max(4096),
            false => config.piece_bytes.max(4096),
        };
        let at = at + inside;
        // Pieces end at multiples of their size on the device, so that they do not share a block.
        let len = len.min(piece_bytes - at % piece_bytes);
        let from = at - at % block;
        let to = (at + len).next_multiple_of(block);
        let buf = Buf::new((to - from) as usize);
        let read = self.file.device.read(from, buf);
        Piece { read, at: Some(from), skip: (at - from) as usize, len: len as usize }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use block::backend::MemoryDevice;
    use block::layer::{ReadOnlyLayer, Reads};
    use block::{BlockDevice, DeviceInfo, Extent, WriteFlags};
    use tokio::sync::Semaphore;

    use super::*;

    /// Counts reads, and lets each go on when it is allowed to.
    struct Gate {
        inner: Arc<MemoryDevice>,
        counts: Arc<Counts>,
    }

    struct Counts {
        asked: AtomicUsize,
        bytes: AtomicUsize,
        done: AtomicUsize,
        gate: Semaphore,
    }

    impl Reads for Gate {
        fn info(&self) -> DeviceInfo {
            self.inner.info()
        }

        fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
            self.counts.asked.fetch_add(1, Relaxed);
            self.counts.bytes.fetch_add(buf.len(), Relaxed);
            let (inner, counts) = (Arc::clone(&self.inner), Arc::clone(&self.counts));
            Io::later(async move {
                let permit = counts.gate.acquire().await;
                permit.map_err(|_| BlockError::Unreachable("gone".into()))?.forget();
                counts.done.fetch_add(1, Relaxed);
                inner.read(offset, buf).await
            })
        }

        fn extents(&self, _: u64, _: u64) -> Io<Vec<Extent>> {
            Io::err(BlockError::ReadOnly)
        }
    }

    const MIB: usize = 1 << 20;

    /// A device of 16 MiB in blocks of 4 KiB with `permits` reads allowed, and a file of pieces of
    /// 1 to 300,000 bytes and holes between them; returns what is in it as well.
    async fn file(permits: usize) -> (FileReader, Vec<u8>, Arc<Counts>) {
        let content: Vec<u8> = (0..16 * MIB).map(|i| (i / 7 % 251) as u8).collect();
        let inner = MemoryDevice::new(content.len() as u64, 4096).unwrap();
        inner.write(0, content.clone().into(), WriteFlags::NONE).await.unwrap();
        let counts = Arc::new(Counts {
            asked: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            gate: Semaphore::new(permits),
        });
        let (mut extents, mut expected): (Vec<FileExtent>, Vec<u8>) = (Vec::new(), Vec::new());
        let mut at = 15 * MIB;
        for (i, len) in [1, 300_000, 4096, 70_000, 200_001].into_iter().cycle().take(50).enumerate()
        {
            let offset = expected.len() as u64;
            at = (at + 5 * MIB + 333) % (15 * MIB);
            let place = (i % 3 != 2).then_some(at as u64);
            extents.push(FileExtent { offset, len: len as u64, at: place });
            match place {
                Some(_) => expected.extend_from_slice(&content[at..at + len]),
                None => expected.extend(std::iter::repeat_n(0, len)),
            }
        }
        let gate = Gate { inner: Arc::new(inner), counts: Arc::clone(&counts) };
        let device: Device = Arc::new(ReadOnlyLayer::new(gate));
        (FileReader::new(device, extents), expected, counts)
    }

    fn poll_once(reading: &mut Reading) -> Poll<Option<Result<Bytes>>> {
        reading.poll_next(&mut Context::from_waker(std::task::Waker::noop()))
    }

    #[tokio::test]
    async fn any_range_is_what_is_in_the_file() {
        let (file, expected, _) = file(1_000_000).await;
        assert_eq!(file.size(), expected.len() as u64);
        let size = expected.len();
        for (offset, len) in
            [(0, size), (0, 0), (0, 1), (1, 300_000), (299_999, 9000), (size - 1, 1), (size, 0)]
        {
            let read = file.read_at(offset as u64, len).await.unwrap();
            assert_eq!(read, expected[offset..offset + len], "{offset}+{len}");
        }
        for (offset, len) in [(size as u64, 1), (0, size + 1), (u64::MAX, 1)] {
            assert!(matches!(file.read_at(offset, len).await, Err(Error::OutOfRange { .. })));
        }
        let mut behind = file.read(size as u64 + 7..u64::MAX);
        assert!(behind.next().await.is_none());
    }

    #[tokio::test]
    async fn as_much_is_under_way_as_is_allowed_and_no_more() {
        let (file, expected, counts) = file(0).await;
        let bytes_max = MIB as u64;
        let config =
            ReadConfig { bytes_max, reads_max: 7, piece_bytes: 65_536, ..Default::default() };
        let file = file.with_config(config);
        let mut reading = file.read(0..file.size());
        let mut all = Vec::new();
        loop {
            match poll_once(&mut reading) {
                // It waits for its first piece, with others asked for.
                Poll::Pending => {
                    let under_way = counts.asked.load(Relaxed) - counts.done.load(Relaxed);
                    assert!((1..=7).contains(&under_way), "{under_way}");
                    counts.gate.add_permits(1);
                    tokio::task::yield_now().await;
                }
                Poll::Ready(Some(piece)) => all.extend_from_slice(&piece.unwrap()),
                Poll::Ready(None) => break,
            }
        }
        assert_eq!(all, expected);
    }

    #[tokio::test]
    async fn what_is_asked_for_grows_with_what_is_taken() {
        let (file, _, counts) = file(0).await;
        let config = ReadConfig { bytes_first: 65_536, piece_bytes: 16_384, ..Default::default() };
        let file = file.with_config(config);
        let mut reading = file.read(0..file.size());
        let mut most = 0;
        for _ in 0..100 {
            let taken = poll_once(&mut reading).is_ready();
            let under_way = counts.asked.load(Relaxed) - counts.done.load(Relaxed);
            most = most.max(under_way);
            if counts.done.load(Relaxed) == 0 {
                assert!(under_way <= 7, "{under_way} at the start");
            }
            counts.gate.add_permits(1);
            if !taken {
                reading.next().await.unwrap().unwrap();
            }
        }
        assert!(most > 20, "{most} at most");
    }

    #[tokio::test]
    async fn who_stops_reading_stops_all_reads() {
        let (file, _, counts) = file(1).await;
        let mut reading = file.read(0..file.size());
        reading.next().await.unwrap().unwrap();
        let asked = counts.asked.load(Relaxed);
        assert!(asked > 20, "{asked} reads were under way");
        drop(reading);
        counts.gate.add_permits(100_000);
        tokio::task::yield_now().await;
        assert_eq!((counts.asked.load(Relaxed), counts.done.load(Relaxed)), (asked, 1));
    }

    #[tokio::test]
    async fn after_a_failure_nothing_more_comes() {
        let (file, _, counts) = file(2).await;
        counts.gate.close();
        let mut reading = file.read(0..file.size());
        let error = reading.next().await.unwrap().unwrap_err().to_string();
        assert!(error.starts_with("reading content of a file at byte"), "{error}");
        assert!(reading.next().await.is_none());
    }
}
