//! Snapshots of a file by a second file that shares its blocks (reflinks, ioctl_ficlone(2)), where
//! the file system has that: XFS, Btrfs, bcachefs, OCFS2.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::open::{CREATED_MODE, sync_folder};
use super::{FileDevice, sys};

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Nothing is written over.
    #[error("it is there already")]
    Exists,
    /// The blocks cannot be shared.
    #[error("no reflinks (a file system that has them, such as XFS or Btrfs, and the same one)")]
    NoReflinks,
    /// A block device has no blocks to share.
    #[error("what is behind the unit is no regular file")]
    NoFile,
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl FileDevice {
    /// Makes a file of what this one holds at one moment: all writes that are acknowledged before
    /// the call, and of those that come meanwhile each whole or not at all, as far as the file
    /// system's clone is atomic (XFS and Btrfs: it is). It is on stable storage when this returns.
    /// Waits for the disk.
    ///
    /// # Errors
    /// [`SnapshotError`]; nothing is left behind then.
    pub fn snapshot(&self, path: &Path) -> Result<(), SnapshotError> {
        if self.inner.block_device {
            return Err(SnapshotError::NoFile);
        }
        let mut new = OpenOptions::new();
        new.write(true).create_new(true).mode(CREATED_MODE);
        let file = new.open(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => SnapshotError::Exists,
            _ => SnapshotError::Io(error),
        })?;
        let cloned = sys::clone_file(&file, &self.inner.file);
        let kept = cloned.and_then(|()| file.sync_all()).and_then(|()| sync_folder(path));
        kept.map_err(|error| {
            let _best_effort = fs::remove_file(path);
            match error.raw_os_error() {
                Some(libc::EXDEV | libc::EINVAL) => SnapshotError::NoReflinks,
                _ if sys::unsupported(&error) => SnapshotError::NoReflinks,
                _ => SnapshotError::Io(error),
            }
        })
    }
}
