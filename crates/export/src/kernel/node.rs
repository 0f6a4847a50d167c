//! Nodes of block devices in /dev: their numbers, whether one is in use, and lasting names of ours.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use super::{KernelError, RETRY, blocking};

/// Bytes of a sector in sysfs, whatever the device's blocks are.
pub(crate) const SECTOR: u64 = 512;

/// A driver's devices, which are named by this and a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind(pub(crate) &'static str);

impl Kind {
    /// The node of a device.
    pub(crate) fn node(self, index: u32) -> PathBuf {
        PathBuf::from(format!("/dev/{}{index}", self.0))
    }

    /// The number of the device that has this node.
    pub(crate) fn index_at(self, node: &Path) -> Option<u32> {
        self.index_of(node.file_name()?.to_str()?)
    }

    /// The number in a device's name.
    fn index_of(self, name: &str) -> Option<u32> {
        name.strip_prefix(self.0)?.parse().ok()
    }

    /// The numbers of all that there are, in order.
    pub(crate) fn indices(self) -> Vec<u32> {
        let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut indices: Vec<u32> = names.filter_map(|name| self.index_of(&name)).collect();
        indices.sort_unstable();
        indices
    }

    /// What sysfs says of a device under a name.
    pub(crate) fn attribute(self, index: u32, name: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/{}{index}/{name}", self.0))
    }

    /// The size of a device in bytes, as the kernel knows it.
    pub(crate) fn size(self, index: u32) -> io::Result<u64> {
        let text = fs::read_to_string(self.attribute(index, "size"))?;
        let sectors: u64 = text.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(sectors.saturating_mul(SECTOR))
    }
}

/// Where a device is, and how it came to be there.
#[derive(Debug)]
pub struct Place {
    node: PathBuf,
    link: Option<Link>,
    taken_over: bool,
}

impl Place {
    /// With a lasting name, if that can be: without one there is a device all the same.
    pub(crate) fn new(node: PathBuf, link: &Path, taken_over: bool) -> Self {
        let made = Link::new(link, node.clone())
            .inspect_err(|error| tracing::warn!(%error, link = %link.display(), "no such link"));
        Self { node, link: made.ok(), taken_over }
    }

    /// The device's node.
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// The device's lasting name.
    pub fn link(&self) -> Option<&Path> {
        self.link.as_ref().map(Link::path)
    }

    /// A predecessor has left the device.
    pub fn is_taken_over(&self) -> bool {
        self.taken_over
    }
}

/// Takes the device for us alone, unless it is mounted, or claimed by another layer.
///
/// # Errors
/// One of the kind `ResourceBusy` says that the device is mounted or claimed.
fn claim(node: &Path) -> io::Result<File> {
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
struct Link {
    path: PathBuf,
    to: PathBuf,
}

impl Link {
    /// Makes it, in the place of one that leads elsewhere.
    fn new(path: &Path, to: PathBuf) -> io::Result<Self> {
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

    fn path(&self) -> &Path {
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

    #[test]
    fn names_of_devices() {
        let nbd = Kind("nbd");
        assert_eq!(nbd.index_of("nbd12"), Some(12));
        for other in ["nbd", "nbd1p1", "sda", "nbd-1"] {
            assert_eq!(nbd.index_of(other), None, "{other}");
        }
    }
}
