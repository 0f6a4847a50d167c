//! A file or block device of this machine as a disk that is only read.

use std::io;
use std::path::Path;
use std::sync::Arc;

use block::Device;
use block::backend::{FileDevice, FileOptions, PaddedFile};

use super::Usage;

/// Block size in which files are cut.
const BLOCK_BYTES: u32 = 512;

/// Opens it; a file that ends inside a block reads as if it were filled with zeroes.
pub(crate) fn open(path: &Path) -> anyhow::Result<Device> {
    let unreadable = |error: io::Error| Usage::error(format!("{}: {error}", path.display()));
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if metadata.is_file() && !metadata.len().is_multiple_of(u64::from(BLOCK_BYTES)) {
        return Ok(Arc::new(PaddedFile::open(path, BLOCK_BYTES).map_err(unreadable)?));
    }
    let options = FileOptions::default().with_read_only(true);
    let file = FileDevice::open(path, &options).map_err(|e| Usage::error(e.to_string()))?;
    Ok(Arc::new(file))
}
