//! [`MemoryDevice`]: a sparse device in memory. Content is gone with the process.
//!
//! Storage is allocated in chunks when first written, so a device of a terabyte costs what is
//! written to it. Every chunk has its own lock: operations on different chunks never meet, and
//! every operation finishes at once, without a thread or a future.

use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;

use crate::{BlockDevice, BlockError, Buf, DeviceInfo, Extent, Io, Result, WriteFlags, ZeroFlags};

/// Unit of allocation and locking in bytes: large enough that sequential I/O runs at the speed of
/// memcpy, small enough that scattered 4 KiB writes waste little and seldom meet at a lock.
const CHUNK_BYTES: usize = 64 << 10;

/// Chunks per group. A group is the unit in which the table itself grows (32 MiB of device).
const GROUP_CHUNKS: usize = 512;

/// Largest device in bytes (the top level of the table then takes 512 MiB of zero pages).
pub const SIZE_BYTES_MAX: u64 = 1 << 50;

/// Why there cannot be such a device: what was asked for, and what would be allowed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// There would be no blocks in it.
    #[error("0 bytes are no disk; at least one block of {block_size} bytes is needed")]
    Empty {
        /// Block size in bytes.
        block_size: u32,
    },
    /// The size does not fit the block size.
    #[error(
        "{size} bytes are not a multiple of the block size {block_size}; {} bytes would be",
        size.next_multiple_of(u64::from(*block_size))
    )]
    Misaligned {
        /// Size in bytes.
        size: u64,
        /// Block size in bytes.
        block_size: u32,
    },
    /// More than the table of chunks is made for.
    #[error("{size} bytes are too many; at most {SIZE_BYTES_MAX} are possible")]
    TooLarge {
        /// Size in bytes.
        size: u64,
    },
    /// No such block size.
    #[error("a block size of {block_size} cannot be used; a power of two from 512 to 65536 can")]
    BlockSize {
        /// Block size in bytes.
        block_size: u32,
    },
    /// More than there is, once it is written to.
    #[error(
        "memory disks of {size} bytes in all are more than the {physical} bytes of this machine: \
         written full, they would have the kernel end the process"
    )]
    Overcommitted {
        /// Bytes of all memory disks.
        size: u64,
        /// Bytes of physical memory.
        physical: u64,
    },
}

/// Checks that memory disks of `size` bytes in all fit into the memory of this machine, were they
/// written full. They take memory when they are written to, so nothing else ever says no.
///
/// # Errors
/// [`MemoryError::Overcommitted`].
pub fn check_fits_machine(size: u64) -> std::result::Result<(), MemoryError> {
    match physical_bytes() {
        Some(physical) if size > physical => Err(MemoryError::Overcommitted { size, physical }),
        _ => Ok(()),
    }
}

/// Physical memory in bytes, if the system says it.
fn physical_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// A chunk without memory reads as zeroes.
type Chunk = RwLock<Option<Box<[u8]>>>;
type Group = Box<[Chunk]>;

/// A sparse device in memory.
pub struct MemoryDevice {
    info: DeviceInfo,
    groups: Box<[OnceLock<Group>]>,
}

impl MemoryDevice {
    /// A device of `size` bytes, all zeroes.
    ///
    /// # Errors
    /// [`BlockError::Unsupported`] when `block_size` is not a power of two from 512 to 65536;
    /// [`BlockError::Misaligned`] when `size` is not a multiple of it;
    /// [`BlockError::OutOfRange`] when `size` is above [`SIZE_BYTES_MAX`].
    pub fn new(size: u64, block_size: u32) -> Result<Self> {
        if !block_size.is_power_of_two() || !(512..=65536).contains(&block_size) {
            return Err(BlockError::Unsupported("this block size"));
        }
        if size > SIZE_BYTES_MAX {
            return Err(BlockError::OutOfRange { offset: 0, len: size, size: SIZE_BYTES_MAX });
        }
        let mut info = DeviceInfo::new(size, block_size);
        info.check(0, size)?;
        // Memory reads and writes any block at the same price; only the file systems on top, not
        // this device, would gain from a larger unit.
        info.preferred_block_size = block_size;
        info.can_fua = true;
        info.volatile_cache = false;
        info.can_trim = true;
        info.trim_zeroes = true;
        info.can_zero = true;
        info.can_extents = true;
        let groups = size.div_ceil((GROUP_CHUNKS * CHUNK_BYTES) as u64);
        Ok(Self { info, groups: (0..groups).map(|_| OnceLock::new()).collect() })
    }

    /// As [`new`](Self::new), for a size that a user chose.
    ///
    /// # Errors
    /// [`MemoryError`] says what would be allowed.
    pub fn open(size: u64, block_size: u32) -> std::result::Result<Self, MemoryError> {
        match Self::new(size, block_size) {
            Ok(_) if size == 0 => Err(MemoryError::Empty { block_size }),
            Ok(device) => Ok(device),
            Err(BlockError::Misaligned { .. }) => Err(MemoryError::Misaligned { size, block_size }),
            Err(BlockError::OutOfRange { .. }) => Err(MemoryError::TooLarge { size }),
            Err(_) => Err(MemoryError::BlockSize { block_size }),
        }
    }

    /// Bytes of memory allocated for content.
    pub fn allocated_bytes(&self) -> u64 {
        let chunks = self.groups.iter().filter_map(OnceLock::get).flatten();
        chunks.filter(|chunk| read_lock(chunk).is_some()).count() as u64 * CHUNK_BYTES as u64
    }

    /// The chunk if its group exists; without one it is a hole.
    fn existing_chunk(&self, index: usize) -> Option<&Chunk> {
        self.groups[index / GROUP_CHUNKS].get().map(|group| &group[index % GROUP_CHUNKS])
    }

    fn chunk(&self, index: usize) -> &Chunk {
        let group = self.groups[index / GROUP_CHUNKS]
            .get_or_init(|| (0..GROUP_CHUNKS).map(|_| RwLock::new(None)).collect());
        &group[index % GROUP_CHUNKS]
    }

    fn fill(&self, offset: u64, buf: &mut [u8]) {
        let mut rest = buf;
        for part in parts(offset, rest.len() as u64) {
            let (target, tail) = rest.split_at_mut(part.len);
            rest = tail;
            let guard = self.existing_chunk(part.chunk).map(read_lock);
            match guard.as_deref() {
                Some(Some(data)) => target.copy_from_slice(&data[part.start..][..part.len]),
                _ => target.fill(0),
            }
        }
    }

    fn store(&self, offset: u64, data: &[u8]) {
        let mut rest = data;
        for part in parts(offset, data.len() as u64) {
            let (source, tail) = rest.split_at(part.len);
            rest = tail;
            let mut guard = write_lock(self.chunk(part.chunk));
            match guard.as_mut() {
                Some(chunk) => chunk[part.start..][..part.len].copy_from_slice(source),
                // A whole chunk is copied, not zeroed first.
                None if part.len == CHUNK_BYTES => *guard = Some(Box::from(source)),
                None => {
                    let mut chunk = vec![0; CHUNK_BYTES].into_boxed_slice();
                    chunk[part.start..][..part.len].copy_from_slice(source);
                    *guard = Some(chunk);
                }
            }
        }
    }

    /// Frees whole chunks and clears parts of chunks.
    fn clear(&self, offset: u64, len: u64) {
        for part in parts(offset, len) {
            let Some(chunk) = self.existing_chunk(part.chunk) else { continue };
            let mut guard = write_lock(chunk);
            if part.len == CHUNK_BYTES {
                *guard = None;
            } else if let Some(data) = guard.as_mut() {
                data[part.start..][..part.len].fill(0);
            }
        }
    }

    fn map(&self, offset: u64, len: u64) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let index = (at / CHUNK_BYTES as u64) as usize;
            // An absent group is one hole: a terabyte is looked through in 32768 steps.
            let (hole, unit) = match self.existing_chunk(index) {
                None => (true, (GROUP_CHUNKS * CHUNK_BYTES) as u64),
                Some(chunk) => (read_lock(chunk).is_none(), CHUNK_BYTES as u64),
            };
            let next = (at / unit + 1).saturating_mul(unit).min(end);
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.len += next - at,
                _ => extents.push(Extent { offset: at, len: next - at, hole }),
            }
            at = next;
        }
        extents
    }
}

/// The piece of an operation that lies in one chunk.
struct Part {
    chunk: usize,
    start: usize,
    len: usize,
}

fn parts(offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let start = (at % CHUNK_BYTES as u64) as usize;
        let len = (end - at).min((CHUNK_BYTES - start) as u64) as usize;
        let chunk = (at / CHUNK_BYTES as u64) as usize;
        at += len as u64;
        (len > 0).then_some(Part { chunk, start, len })
    })
}

// A panic while a chunk is locked can only leave a torn write behind, which a device may do.
fn read_lock(chunk: &Chunk) -> RwLockReadGuard<'_, Option<Box<[u8]>>> {
    chunk.read().unwrap_or_else(PoisonError::into_inner)
}

fn write_lock(chunk: &Chunk) -> RwLockWriteGuard<'_, Option<Box<[u8]>>> {
    chunk.write().unwrap_or_else(PoisonError::into_inner)
}

impl BlockDevice for MemoryDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Buf> {
        Io::done(self.info.check(offset, buf.len() as u64).map(|()| {
            self.fill(offset, &mut buf);
            buf
        }))
    }

    fn write(&self, offset: u64, data: Bytes, _flags: WriteFlags) -> Io<()> {
        let checked = self.info.check_write(offset, data.len() as u64);
        Io::done(checked.map(|()| self.store(offset, &data)))
    }

    fn flush(&self) -> Io<()> {
        Io::ok(())
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        Io::done(self.info.check_write(offset, len).map(|()| self.clear(offset, len)))
    }

    fn zero(&self, offset: u64, len: u64, _flags: ZeroFlags) -> Io<()> {
        // Memory is not reserved ahead, so keeping chunks allocated would promise nothing.
        self.trim(offset, len)
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        Io::done(self.info.check(offset, len).map(|()| self.map(offset, len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[tokio::test]
    async fn conforms() {
        for block_size in [512, 4096, 65536] {
            let device = MemoryDevice::new(4 << 20, block_size).unwrap();
            testing::conformance(&device).await;
        }
    }

    #[test]
    fn equals_the_model() {
        testing::random_operations(|| MemoryDevice::new(1 << 20, 512).unwrap());
    }

    #[tokio::test]
    async fn a_huge_device_costs_what_is_written() {
        let size = 1u64 << 40;
        let device = MemoryDevice::new(size, 512).unwrap();
        let data = Bytes::from(vec![7; 4096]);
        for offset in [0, size / 2, size - 4096] {
            device.write(offset, data.clone(), WriteFlags::NONE).await.unwrap();
        }
        assert_eq!(device.allocated_bytes(), 3 * CHUNK_BYTES as u64);
        let extents = device.extents(0, size).await.unwrap();
        assert_eq!(extents.iter().map(|e| e.len).sum::<u64>(), size);
        assert_eq!(extents.iter().filter(|e| !e.hole).count(), 3);
        device.trim(0, size).await.unwrap();
        assert_eq!(device.allocated_bytes(), 0);
    }

    #[test]
    fn refuses_impossible_shapes() {
        assert!(MemoryDevice::new(4096, 500).is_err());
        assert!(MemoryDevice::new(4096, 131_072).is_err());
        assert!(matches!(MemoryDevice::new(1000, 512), Err(BlockError::Misaligned { .. })));
        assert!(matches!(
            MemoryDevice::new(SIZE_BYTES_MAX + 512, 512),
            Err(BlockError::OutOfRange { .. })
        ));
    }

    #[test]
    fn a_user_is_told_what_would_be_allowed() {
        let said = |size, block_size| match MemoryDevice::open(size, block_size) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        assert_eq!(said(4096, 512), "");
        assert!(said(0, 512).contains("at least one block of 512"));
        assert!(said(1000, 512).contains("1024 bytes would be"));
        assert!(said(4096, 1000).contains("a power of two from 512"));
        assert!(said(u64::MAX, 512).contains("at most"));
        assert!(check_fits_machine(0).is_ok());
        let error = check_fits_machine(u64::MAX).unwrap_err().to_string();
        assert!(error.contains("of this machine"), "{error}");
    }

    #[test]
    fn threads_do_not_disturb_each_other() {
        let device = std::sync::Arc::new(MemoryDevice::new(8 << 20, 512).unwrap());
        let threads: Vec<_> = (0..4u8)
            .map(|thread| {
                let device = device.clone();
                std::thread::spawn(move || {
                    let data = Bytes::from(vec![thread + 1; 4096]);
                    // Interleaved pages, so that all threads share every chunk.
                    for page in (u64::from(thread)..2048).step_by(4) {
                        let write = device.write(page * 4096, data.clone(), WriteFlags::NONE);
                        assert!(matches!(write.try_ready(), Ok(Ok(()))));
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        for page in 0..2048u64 {
            let Ok(Ok(buf)) = device.read(page * 4096, Buf::new(4096)).try_ready() else {
                panic!("page {page} not read");
            };
            assert!(buf.iter().all(|b| u64::from(*b) == page % 4 + 1), "page {page}");
        }
    }
}
