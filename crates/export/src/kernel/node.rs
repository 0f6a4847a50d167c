//! Nodes of block devices in /dev: whether one is in use, and lasting names of ours.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use super::{KernelError, RETRY, blocking};

/// Takes the device for us alone, unless it is mounted, or claimed by another layer.
///
/// # Errors
/// Of the kind `ResourceBusy`: the device is mounted or claimed.
pub(crate) fn claim(node: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(node)
}

/// Waits until nobody has a device mounted, writes out what programs have written to it without a
/// file system, and ends it by `end`, which is called with nobody but us at it.
pub(crate) async fn end_when_unused(
    node: &Path,
    end: impl Fn() -> Result<(), KernelError> + Clone + Send + 'static,
) -> Result<(), KernelError> {
    let mut said = false;
    loop {
        let (path, end) = (node.to_owned(), end.clone());
        let ended = blocking(move || {
            let shown = path.display();
            let claimed = match claim(&path) {
                Ok(claimed) => claimed,
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Ok(false),
                Err(error) => return Err(KernelError::of(format!("opening {shown}"))(error)),
            };
            claimed.sync_all().map_err(KernelError::of(format!("flushing {shown}")))?;
            end().map(|()| true)
        });
        if ended.await? {
            return Ok(());
        }
        if !std::mem::replace(&mut said, true) {
            let device = node.display();
            tracing::warn!(%device, "in use; detaching when its users are done");
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// A name that does not change with the number of the device. Removed when dropped, if it still
/// leads to that device.
#[derive(Debug)]
pub(crate) struct Link {
    path: PathBuf,
    to: PathBuf,
}

impl Link {
    /// Makes it, in the place of one that leads elsewhere.
    pub(crate) fn new(path: &Path, to: PathBuf) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        match fs::symlink_metadata(path) {
            Ok(there) if !there.is_symlink() => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "it is there, and no link",
                ));
            }
            _ => {}
        }
        // Never without a name in between.
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{}", std::process::id()));
        let _left_by_another = fs::remove_file(&new);
        symlink(&to, &new)?;
        fs::rename(&new, path).inspect_err(|_| drop(fs::remove_file(&new)))?;
        Ok(Self { path: path.to_owned(), to })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if fs::read_link(&self.path).is_ok_and(|to| to == self.to) {
            let removed = fs::remove_file(&self.path);
            if let Err(error) = removed {
                tracing::warn!(%error, link = %self.path.display(), "the link stays");
            }
            if let Some(folder) = self.path.parent() {
                // Only where it is empty.
                let _in_use = fs::remove_dir(folder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_takes_the_place_of_a_link_and_of_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("iqn.2026-11.org.example:a/0");
        let first = Link::new(&path, "/dev/nbd3".into()).unwrap();
        assert_eq!(fs::read_link(first.path()).unwrap(), Path::new("/dev/nbd3"));
        let second = Link::new(&path, "/dev/nbd4".into()).unwrap();
        drop(first); // it leads elsewhere by now
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("/dev/nbd4"));
        drop(second);
        assert!(!path.parent().unwrap().exists());
        let file = folder.path().join("file");
        fs::write(&file, "mine").unwrap();
        let refused = Link::new(&file, "/dev/nbd3".into()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    }
}
