//! What is mounted where: `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use tonic::Status;

use super::programs::{QUICK, succeed};

/// One line of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// What of the file system is seen there: `/` is all of it.
    root: PathBuf,
    pub(super) place: PathBuf,
    pub(super) read_only: bool,
    /// The type of the file system: ext4, xfs, devtmpfs.
    pub(super) kind: String,
    source: PathBuf,
}

impl Mount {
    /// It is the file system on a device, or the device itself (as a file of /dev).
    pub(super) fn is_of(&self, device: &Path) -> bool {
        self.source == device
            || self.is_node()
                && device.strip_prefix("/dev").ok() == self.root.strip_prefix("/").ok()
    }

    /// It is a device as a file.
    pub(super) fn is_node(&self) -> bool {
        matches!(self.kind.as_str(), "devtmpfs" | "tmpfs") && self.root != Path::new("/")
    }
}

/// All mounts, in the order in which they were made.
pub(super) fn mounts() -> Result<Vec<Mount>, Status> {
    let text = fs::read("/proc/self/mountinfo");
    let text = text.map_err(|error| Status::internal(format!("/proc/self/mountinfo: {error}")))?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// What is mounted at a place; the last one hides the others.
pub(super) fn mount_at(place: &Path) -> Result<Option<Mount>, Status> {
    // The folder that it is in may be reached by a link; the place itself is not followed: it may
    // belong to a file server that is gone.
    let parent = place.parent().and_then(|parent| parent.canonicalize().ok());
    let place = match (parent, place.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => place.to_owned(),
    };
    Ok(mounts()?.into_iter().rfind(|mount| mount.place == place))
}

/// Unmounts all that is mounted at a place.
pub(super) async fn unmount(place: &Path) -> Result<(), Status> {
    while mount_at(place)?.is_some() {
        succeed("umount", &[place], QUICK).await?;
    }
    Ok(())
}

fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let root = path(fields.nth(3)?);
    let place = path(fields.next()?);
    let read_only = fields.next()?.split(|byte| *byte == b',').any(|option| option == b"ro");
    // Fields that are there or not end with a dash.
    fields.find(|field| *field == b"-")?;
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = path(fields.next()?);
    Some(Mount { root, place, read_only, kind, source })
}

/// A path in which blanks, tabs, newlines and backslashes are written as `\040`.
fn path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let line =
            br"36 35 98:0 / /mnt/a\040b\134 rw,noatime master:1 shared:2 - ext4 /dev/loop3 rw,x=y";
        let one = parse(line).unwrap();
        assert_eq!(one.place, Path::new(r"/mnt/a b\"));
        assert!(!one.read_only && one.is_of("/dev/loop3".as_ref()) && !one.is_node());
        assert!(!one.is_of("/dev/loop".as_ref()));
        let node = parse(b"40 35 0:5 /loop3 /pods/x ro,nosuid - devtmpfs udev rw").unwrap();
        assert!(node.read_only && node.is_node() && node.is_of("/dev/loop3".as_ref()));
        assert!(!node.is_of("/dev/loop33".as_ref()));
        // All of /dev somewhere is no device.
        assert!(!parse(b"40 35 0:5 / /x/dev rw - devtmpfs udev rw").unwrap().is_node());
        assert!(parse(b"").is_none() && parse(b"1 2 3:4 / /x rw ext4").is_none());
    }

    #[test]
    fn there_is_something_at_the_root() {
        assert!(mounts().unwrap().iter().any(|mount| mount.place == Path::new("/")));
        assert_eq!(mount_at("/nowhere/at/all".as_ref()).unwrap(), None);
    }
}
