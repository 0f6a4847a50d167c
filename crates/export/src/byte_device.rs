//! [`ByteDevice`]: a block device for clients that do not know blocks.
//!
//! Reads of parts of blocks are widened, writes of parts of blocks become read-modify-write under a
//! lock on those blocks, and wishes the device cannot fulfil (FUA, zeroing) are done by other
//! means. Whole-block operations pass straight through, and a ready [`Io`] stays ready.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use block::range_lock::{RangeGuard, RangeLocks, held};
use block::{
    BlockError, Buf, Bytes, Device, DeviceInfo, Extent, Io, Result, WriteFlags, ZeroFlags,
};

/// Zeroes are written in pieces of this many bytes where the device cannot zero by itself: large
/// enough to be sequential I/O, small enough that one buffer of them is shared by all.
const ZERO_PIECE_BYTES: usize = 1 << 20;

/// Pieces of zeroes under way at once, so that a device 20 ms away zeroes at 800 MB/s.
const ZERO_PIECES_MAX: usize = 16;

static ZEROES: LazyLock<Bytes> = LazyLock::new(|| Buf::zeroed(ZERO_PIECE_BYTES).freeze());

/// A device addressed by byte. Clones share the locks.
#[derive(Clone)]
pub struct ByteDevice {
    device: Device,
    locks: Arc<RangeLocks>,
    block_size: u64,
}

/// What was read: a run of bytes within a buffer of whole blocks.
pub struct ReadData {
    buf: Buf,
    skip: usize,
    len: usize,
}

impl Deref for ReadData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf[self.skip..self.skip + self.len]
    }
}

impl ByteDevice {
    /// `device`, by byte.
    pub fn new(device: Device) -> Self {
        let block_size = u64::from(device.info().block_size);
        Self { device, locks: Arc::default(), block_size }
    }

    /// Size and capabilities of the device.
    pub fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    /// Reads `len` bytes at `offset`; neither has to be a multiple of a block.
    pub fn read(&self, offset: u64, len: usize) -> Io<ReadData> {
        let (start, end) = match self.widen(offset, len as u64) {
            Ok(range) => range,
            Err(error) => return Io::err(error),
        };
        let skip = (offset - start) as usize;
        if start == end {
            return Io::ok(ReadData { buf: Buf::new(0), skip: 0, len: 0 });
        }
        let cut = move |buf| ReadData { buf, skip, len };
        match self.device.read(start, Buf::new((end - start) as usize)).try_ready() {
            Ok(result) => Io::done(result.map(cut)),
            Err(io) => Io::later(async move { io.await.map(cut) }),
        }
    }

    /// All of `data`. With `fua` it is stable when this completes.
    pub fn write(&self, offset: u64, data: Bytes, fua: bool) -> Io<()> {
        let (start, end) = match self.widen_write(offset, data.len() as u64) {
            Ok(range) => range,
            Err(error) => return Io::err(error),
        };
        if start == end {
            return Io::ok(());
        }
        let whole = end - start == data.len() as u64;
        let taken = match whole {
            true => self.locks.shared(start..end),
            false => self.locks.exclusive(start..end),
        };
        let taken = match taken {
            Ok(guard) if whole => {
                let io = self.device.write(offset, data, self.write_flags(fua));
                return self.finish(io, guard, fua);
            }
            taken => taken,
        };
        let this = self.clone();
        Io::later(async move {
            let guard = held(taken).await;
            let data = if whole { data } else { this.merge(start, end, offset, &data).await? };
            let io = this.device.write(start, data, this.write_flags(fua));
            this.finish(io, guard, fua).await
        })
    }

    /// Makes all completed writes stable.
    pub fn flush(&self) -> Io<()> {
        // A device that cannot flush is stable at once or never: either way there is nothing to do.
        if self.info().can_flush { self.device.flush() } else { Io::ok(()) }
    }

    /// Advice: parts of blocks at both ends are left alone.
    pub fn trim(&self, offset: u64, len: u64, fua: bool) -> Io<()> {
        if let Err(error) = self.widen_write(offset, len) {
            return Io::err(error);
        }
        let (start, end) = self.narrow(offset, len);
        if start >= end || !self.info().can_trim {
            return Io::ok(());
        }
        match self.locks.shared(start..end) {
            Ok(guard) => self.flush_after(self.device.trim(start, end - start), guard, fua),
            Err(waiting) => {
                let this = self.clone();
                Io::later(async move {
                    let guard = waiting.await;
                    let io = this.device.trim(start, end - start);
                    this.flush_after(io, guard, fua).await
                })
            }
        }
    }

    /// Zeroes, parts of blocks included. With `may_trim` the range may become a hole.
    pub fn zero(&self, offset: u64, len: u64, fua: bool, may_trim: bool) -> Io<()> {
        let range = match self.widen_write(offset, len) {
            Ok(range) => range,
            Err(error) => return Io::err(error),
        };
        if len == 0 {
            return Io::ok(());
        }
        let whole = range == (offset, offset + len);
        if whole
            && self.info().can_zero
            && let Ok(guard) = self.locks.shared(offset..offset + len)
        {
            let flags = ZeroFlags::new(fua && self.info().can_fua, may_trim);
            let io = self.device.zero(offset, len, flags);
            return self.finish(io, guard, fua);
        }
        let this = self.clone();
        Io::later(async move { this.zero_in_parts(offset, len, fua, may_trim).await })
    }

    /// Sorted, without gaps, covering exactly the range asked for.
    pub fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        let (start, end) = match self.widen(offset, len) {
            Ok(range) => range,
            Err(error) => return Io::err(error),
        };
        if start == end {
            return Io::ok(Vec::new());
        }
        if !self.info().can_extents {
            return Io::ok(vec![Extent { offset, len, hole: false }]);
        }
        let clip = move |extents: Vec<Extent>| clip_extents(extents, offset, len);
        match self.device.extents(start, end - start).try_ready() {
            Ok(result) => Io::done(result.map(clip)),
            Err(io) => Io::later(async move { io.await.map(clip) }),
        }
    }

    /// The whole blocks around a range that lies within the device.
    fn widen(&self, offset: u64, len: u64) -> Result<(u64, u64)> {
        let size = self.info().size;
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok((
                offset - offset % self.block_size,
                end.next_multiple_of(self.block_size).min(size),
            )),
            _ => Err(BlockError::OutOfRange { offset, len, size }),
        }
    }

    fn widen_write(&self, offset: u64, len: u64) -> Result<(u64, u64)> {
        if self.info().read_only {
            return Err(BlockError::ReadOnly);
        }
        let (start, end) = self.widen(offset, len)?;
        Ok(if len == 0 { (start, start) } else { (start, end) })
    }

    /// The whole blocks within a range; none when the first is not below the second.
    fn narrow(&self, offset: u64, len: u64) -> (u64, u64) {
        let end = offset + len;
        (offset.next_multiple_of(self.block_size), end - end % self.block_size)
    }

    fn write_flags(&self, fua: bool) -> WriteFlags {
        if fua && self.info().can_fua { WriteFlags::FUA } else { WriteFlags::NONE }
    }

    /// Keeps the blocks until `io` is done, and flushes where the device has no FUA.
    fn finish(&self, io: Io<()>, guard: RangeGuard, fua: bool) -> Io<()> {
        self.flush_after(io, guard, fua && !self.info().can_fua)
    }

    fn flush_after(&self, io: Io<()>, guard: RangeGuard, flush: bool) -> Io<()> {
        match io.try_ready() {
            Ok(Ok(())) if flush => self.flush(),
            Ok(result) => Io::done(result),
            Err(io) => {
                let this = self.clone();
                Io::later(async move {
                    let result = io.await;
                    drop(guard);
                    result?;
                    if flush { this.flush().await } else { Ok(()) }
                })
            }
        }
    }

    /// The whole blocks `start..end` with `data` at `offset` in them. Their lock is held.
    async fn merge(&self, start: u64, end: u64, offset: u64, data: &[u8]) -> Result<Bytes> {
        let block = self.block_size as usize;
        let mut merged = Buf::new((end - start) as usize);
        let skip = (offset - start) as usize;
        let data_end = skip + data.len();
        let tail = merged.len() - block;
        // Both reads start before either is awaited: they cost one round trip, not two.
        let head_read = (skip > 0).then(|| self.device.read(start, Buf::new(block)));
        let tail_read = (data_end < merged.len() && (skip == 0 || tail > 0))
            .then(|| self.device.read(start + tail as u64, Buf::new(block)));
        if let Some(read) = head_read {
            merged[..block].copy_from_slice(&read.await?);
        }
        if let Some(read) = tail_read {
            merged[tail..].copy_from_slice(&read.await?);
        }
        merged[skip..data_end].copy_from_slice(data);
        Ok(merged.freeze())
    }

    /// Zeroes where the range has parts of blocks, the device cannot zero, or others hold blocks.
    async fn zero_in_parts(&self, offset: u64, len: u64, fua: bool, may_trim: bool) -> Result<()> {
        let end = offset + len;
        let (whole_start, whole_end) = self.narrow(offset, len);
        if whole_start >= whole_end {
            return self.write(offset, ZEROES.slice(..len as usize), fua).await;
        }
        let head = ZEROES.slice(..(whole_start - offset) as usize);
        let tail = ZEROES.slice(..(end - whole_end) as usize);
        self.write(offset, head, false).await?;
        self.write(whole_end, tail, false).await?;
        self.zero_blocks(whole_start, whole_end, may_trim).await?;
        if fua { self.flush().await } else { Ok(()) }
    }

    async fn zero_blocks(&self, start: u64, end: u64, may_trim: bool) -> Result<()> {
        if self.info().can_zero {
            let _guard = held(self.locks.shared(start..end)).await;
            let flags = ZeroFlags::new(false, may_trim);
            return self.device.zero(start, end - start, flags).await;
        }
        let mut under_way = VecDeque::new();
        let mut offset = start;
        while offset < end {
            let piece = (end - offset).min(ZERO_PIECE_BYTES as u64);
            under_way.push_back(self.write(offset, ZEROES.slice(..piece as usize), false));
            offset += piece;
            if under_way.len() == ZERO_PIECES_MAX
                && let Some(first) = under_way.pop_front()
            {
                first.await?;
            }
        }
        for piece in under_way {
            piece.await?;
        }
        Ok(())
    }
}

fn clip_extents(extents: Vec<Extent>, offset: u64, len: u64) -> Vec<Extent> {
    let end = offset + len;
    let clip = |extent: Extent| {
        let start = extent.offset.max(offset);
        let stop = extent.offset.saturating_add(extent.len).min(end);
        (start < stop).then(|| Extent { offset: start, len: stop - start, hole: extent.hole })
    };
    extents.into_iter().filter_map(clip).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::test_device::{TestDevice, pattern};

    const SIZE: u64 = 256 << 10;

    #[derive(Clone, Debug)]
    enum Step {
        Read,
        Write { fua: bool },
        Zero { may_trim: bool },
        Trim,
        Extents,
    }

    fn step() -> impl Strategy<Value = (Step, u64, u64)> {
        let kind = prop_oneof![
            Just(Step::Read),
            any::<bool>().prop_map(|fua| Step::Write { fua }),
            any::<bool>().prop_map(|may_trim| Step::Zero { may_trim }),
            Just(Step::Trim),
            Just(Step::Extents),
        ];
        // Offsets and lengths near multiples of a block, and anything else.
        let near = |max: u64| {
            let block = (0..max / 512, 0u64..3).prop_map(|(n, odd)| (n * 512 + odd).max(1) - 1);
            prop_oneof![block, 0..max]
        };
        (kind, near(SIZE), near(20_000)).prop_map(|(kind, offset, len)| {
            (kind, offset.min(SIZE), len.min(SIZE - offset.min(SIZE)))
        })
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
            .block_on(future)
    }

    proptest! {
        #[test]
        fn any_bytes_behave_like_a_plain_array(
            steps in proptest::collection::vec(step(), 1..40),
            large_blocks: bool, can_zero: bool, can_fua: bool,
        ) {
            let block_size = if large_blocks { 4096 } else { 512 };
            let mut device = TestDevice::new(SIZE, block_size);
            device.info.can_zero = can_zero;
            device.info.can_fua = can_fua;
            device.info.can_trim = can_zero;
            let device = Arc::new(device);
            let bytes = ByteDevice::new(device.clone());
            let mut model = vec![0; SIZE as usize];
            for (kind, offset, len) in steps {
                let range = offset as usize..(offset + len) as usize;
                match kind {
                    Step::Read => {
                        let data = block_on(bytes.read(offset, len as usize)).unwrap();
                        prop_assert!(*data == model[range]);
                    }
                    Step::Write { fua } => {
                        let data = pattern(len as usize, offset + len);
                        let flushes = device.flushes.load(Ordering::Relaxed);
                        block_on(bytes.write(offset, Bytes::from(data.clone()), fua)).unwrap();
                        let flushed = device.flushes.load(Ordering::Relaxed) > flushes;
                        prop_assert_eq!(flushed, fua && !can_fua && len > 0);
                        model[range].copy_from_slice(&data);
                    }
                    Step::Zero { may_trim } => {
                        block_on(bytes.zero(offset, len, false, may_trim)).unwrap();
                        model[range].fill(0);
                    }
                    Step::Trim => {
                        block_on(bytes.trim(offset, len, false)).unwrap();
                        let (start, end) = bytes.narrow(offset, len);
                        if can_zero && start < end {
                            model[start as usize..end as usize].fill(0);
                        }
                    }
                    Step::Extents => {
                        let extents = block_on(bytes.extents(offset, len)).unwrap();
                        let mut at = offset;
                        for extent in extents {
                            prop_assert_eq!(extent.offset, at);
                            let content = &model[at as usize..(at + extent.len) as usize];
                            prop_assert!(!extent.hole || content.iter().all(|b| *b == 0));
                            at += extent.len;
                        }
                        prop_assert_eq!(at, offset + len);
                    }
                }
            }
            prop_assert!(device.peek(0, model.len()) == model);
        }
    }

    #[tokio::test]
    async fn neighbours_in_a_block_lose_nothing_when_written_at_once() {
        let device = TestDevice::new(SIZE, 4096).delayed(Duration::from_millis(1));
        let device = Arc::new(device);
        let bytes = ByteDevice::new(device.clone());
        let content = pattern(SIZE as usize, 3);
        let mut writes = Vec::new();
        let mut offset = 0;
        // Parts of blocks, whole blocks and both in one, next to each other.
        for len in [100, 3996, 4096, 5000, 3192, 8192, 1, 4095].into_iter().cycle() {
            if offset + len > content.len() {
                break;
            }
            let data = Bytes::copy_from_slice(&content[offset..offset + len]);
            writes.push(tokio::spawn(bytes.write(offset as u64, data, false)));
            offset += len;
        }
        for write in writes {
            write.await.unwrap().unwrap();
        }
        assert!(device.peek(0, offset) == content[..offset]);
    }

    #[test]
    fn whole_blocks_of_a_fast_device_are_ready_at_once() {
        let bytes = ByteDevice::new(Arc::new(TestDevice::new(SIZE, 512)));
        assert!(bytes.read(512, 1024).try_ready().is_ok());
        assert!(bytes.write(512, Bytes::from_static(&[1; 512]), true).try_ready().is_ok());
        assert!(bytes.zero(0, 4096, true, true).try_ready().is_ok());
        assert!(bytes.extents(1, 77).try_ready().is_ok());
    }

    #[test]
    fn ranges_outside_and_changes_of_read_only_devices_fail() {
        let mut device = TestDevice::new(SIZE, 512);
        let bytes = ByteDevice::new(Arc::new(TestDevice::new(SIZE, 512)));
        for (offset, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 2)] {
            let read = block_on(bytes.read(offset, len));
            assert!(matches!(read, Err(BlockError::OutOfRange { .. })));
            let zero = block_on(bytes.zero(offset, len as u64, false, true));
            assert!(matches!(zero, Err(BlockError::OutOfRange { .. })));
        }
        device.info.read_only = true;
        let bytes = ByteDevice::new(Arc::new(device));
        let write = block_on(bytes.write(1, Bytes::from_static(b"x"), false));
        assert!(matches!(write, Err(BlockError::ReadOnly)));
    }
}
