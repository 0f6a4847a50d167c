//! A file of any length as a read-only device: what is missing of its last block reads as zeroes.
//!
//! For copying a file into a volume. It takes no lock and notices no growth.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use crate::{BlockDevice, BlockError, Buf, DeviceInfo, Extent, Io, Result, WriteFlags, ZeroFlags};

/// A regular file, padded to whole blocks.
pub struct PaddedFile {
    file: Arc<File>,
    length: u64,
    info: DeviceInfo,
}

impl PaddedFile {
    /// Opens the regular file at `path`.
    ///
    /// # Errors
    /// The system's, when it cannot be opened for reading.
    pub fn open(path: impl AsRef<Path>, block_size: u32) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let size = length.next_multiple_of(u64::from(block_size));
        let info = DeviceInfo { read_only: true, ..DeviceInfo::new(size, block_size) };
        Ok(Self { file: Arc::new(file), length, info })
    }
}

/// Reads what the file has from `offset` on; the rest of `buf` becomes zero.
fn read(file: &File, length: u64, offset: u64, buf: &mut [u8]) -> Result<()> {
    let there = length.saturating_sub(offset).min(buf.len() as u64);
    let there = usize::try_from(there).unwrap_or(usize::MAX);
    file.read_exact_at(&mut buf[..there], offset)?;
    buf[there..].fill(0);
    Ok(())
}

impl BlockDevice for PaddedFile {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Buf> {
        if let Err(error) = self.info.check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        let (file, length) = (Arc::clone(&self.file), self.length);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Io::done(read(&file, length, offset, &mut buf).map(|()| buf));
        };
        let task = runtime.spawn_blocking(move || {
            read(&file, length, offset, &mut buf)?;
            Ok(buf)
        });
        Io::later(async move {
            task.await.unwrap_or_else(|error| Err(BlockError::Unreachable(error.to_string())))
        })
    }

    fn write(&self, _offset: u64, _data: Bytes, _flags: WriteFlags) -> Io<()> {
        Io::err(BlockError::ReadOnly)
    }

    fn flush(&self) -> Io<()> {
        Io::ok(())
    }

    fn trim(&self, _offset: u64, _len: u64) -> Io<()> {
        Io::err(BlockError::ReadOnly)
    }

    fn zero(&self, _offset: u64, _len: u64, _flags: ZeroFlags) -> Io<()> {
        Io::err(BlockError::ReadOnly)
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        Io::done(self.info.check(offset, len).map(|()| {
            if len == 0 { Vec::new() } else { vec![Extent { offset, len, hole: false }] }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_tail_reads_as_zeroes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("odd");
        std::fs::write(&path, [7; 1000]).unwrap();
        let file = PaddedFile::open(&path, 512).unwrap();
        assert_eq!(file.info().size, 1024);
        let mut buf = Buf::new(1024);
        buf.fill(9);
        let buf = file.read(0, buf).await.unwrap();
        assert!(buf[..1000].iter().all(|byte| *byte == 7));
        assert!(buf[1000..].iter().all(|byte| *byte == 0));
    }
}
