//! What sysfs and /dev say of the kernel's NBD devices, and the lasting names of ours.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// What a device is named, before its number.
const PREFIX: &str = "nbd";

/// The node of a device.
pub(super) fn node(index: u32) -> PathBuf {
    PathBuf::from(format!("/dev/{PREFIX}{index}"))
}

/// The number in a device's name.
pub(super) fn index_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// Where the kernel's block devices are told of.
fn folder() -> &'static Path {
    Path::new("/sys/block")
}

/// Whom a device that is in use says that it belongs to (kernels from 5.14 on); `None` also where
/// it is not in use.
pub(super) fn identity(index: u32) -> Option<String> {
    let text = fs::read_to_string(folder().join(format!("{PREFIX}{index}/backend"))).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

/// The devices that say whom they belong to, and whom.
pub(super) fn all() -> Vec<(u32, String)> {
    let Ok(entries) = fs::read_dir(folder()) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let indices = names.filter_map(|name| index_of(&name));
    let mut all: Vec<_> = indices.filter_map(|index| Some((index, identity(index)?))).collect();
    all.sort_unstable();
    all
}

/// Its size in bytes, as the kernel knows it.
pub(super) fn size(index: u32) -> io::Result<u64> {
    let text = fs::read_to_string(folder().join(format!("{PREFIX}{index}/size")))?;
    let sectors: u64 = text.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(sectors.saturating_mul(512))
}

/// Sets after how many milliseconds the kernel looks at a request that is not answered.
pub(super) fn set_look_ms(index: u32, ms: u128) -> io::Result<()> {
    fs::write(folder().join(format!("{PREFIX}{index}/queue/io_timeout")), format!("{ms}\n"))
}

/// Takes the device for us alone, unless it is mounted, or claimed by another layer.
///
/// # Errors
/// Of the kind `ResourceBusy`: the device is mounted or claimed.
pub(super) fn claim(index: u32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(node(index))
}

/// A name that does not change with the number of the device. Removed when dropped, if it still
/// leads to that device.
#[derive(Debug)]
pub(super) struct Link {
    path: PathBuf,
    to: PathBuf,
}

impl Link {
    /// Makes it, in the place of one that leads elsewhere.
    pub(super) fn new(path: &Path, index: u32) -> io::Result<Self> {
        let to = node(index);
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

    pub(super) fn path(&self) -> &Path {
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
        let first = Link::new(&path, 3).unwrap();
        assert_eq!(fs::read_link(first.path()).unwrap(), Path::new("/dev/nbd3"));
        let second = Link::new(&path, 4).unwrap();
        drop(first); // it leads elsewhere by now
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("/dev/nbd4"));
        drop(second);
        assert!(!path.parent().unwrap().exists());
        let file = folder.path().join("file");
        fs::write(&file, "mine").unwrap();
        let refused = Link::new(&file, 3).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    }

    #[test]
    fn names_of_devices() {
        assert_eq!(index_of("nbd12"), Some(12));
        for other in ["nbd", "nbd1p1", "sda", "nbd-1"] {
            assert_eq!(index_of(other), None, "{other}");
        }
    }
}
