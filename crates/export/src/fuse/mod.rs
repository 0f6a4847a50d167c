//! FUSE mount: a directory with one file that is the block device.
//!
//! The file behaves like a block device where files and devices differ: its size is fixed, writes
//! past the end fail with ENOSPC, and opening it with O_TRUNC changes nothing. What was written is
//! stable once `fsync` has confirmed it, or [`Mount::unmount`] or [`Mount::wait_unmounted`] have
//! returned; `close` and umount(8) alone confirm nothing.
//!
//! The kernel's write-back cache is off unless it is asked for ([`FuseConfig::kernel_write_back`]):
//! with it, writing past the end fills memory and fails only at
//! `fsync` or `close`. Write-behind without that is a cache under the device, where FLUSH rules are
//! kept.

mod filesystem;
mod killed;
mod sys;
mod volume;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use block::{BlockError, Device};
use fuser::{Config, MountOption, Session, SessionACL};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use self::volume::Volume;
use crate::byte_device::ByteDevice;

/// Longest file name of Linux (NAME_MAX) in bytes.
const NAME_LEN_MAX: usize = 255;

/// Most threads that take requests from the kernel. They only start operations and copy data;
/// more of them than this fight over the kernel's queue.
const THREADS_MAX: usize = 4;

/// What the kernel's side is reached by.
const FUSE_DEVICE: &str = "/dev/fuse";

/// How the mount looks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FuseConfig {
    /// Name of the file that is the device.
    pub file_name: OsString,
    /// Refuse writes, even if the device takes them.
    pub read_only: bool,
    /// Bytes that the kernel reads ahead of a sequential reader of the page cache. FUSE begins at
    /// 128 KiB; the default is made for a gigabit over 30 ms. Takes root, else it stays as it was.
    pub read_ahead_bytes: u64,
    /// Lets many threads write through O_DIRECT at once, which the kernel otherwise does one after
    /// the other (asynchronous I/O, and so a loop device, is parallel either way). The price: one
    /// large O_DIRECT request of one thread is then done in 1 MiB steps, one after the other.
    pub parallel_direct_writes: bool,
    /// Lets the kernel gather writes in its page cache and send them as large requests, many at
    /// once. Small writes then cost no request each. `fsync` writes out what was gathered and then
    /// flushes; but a write past the end, or one that the device refuses, is told by `fsync` or
    /// `close` instead of `write`, and data that could not be written are not tried again.
    pub kernel_write_back: bool,
}

impl Default for FuseConfig {
    fn default() -> Self {
        Self {
            file_name: "volume".into(),
            read_only: false,
            read_ahead_bytes: 4 << 20,
            parallel_direct_writes: false,
            kernel_write_back: false,
        }
    }
}

impl FuseConfig {
    /// Sets the name of the file.
    pub fn file_name(mut self, name: impl Into<OsString>) -> Self {
        self.file_name = name.into();
        self
    }

    /// Refuses writes.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets the kernel's read-ahead.
    pub fn read_ahead_bytes(mut self, bytes: u64) -> Self {
        self.read_ahead_bytes = bytes;
        self
    }

    /// Chooses between many writers with O_DIRECT and one with large requests.
    pub fn parallel_direct_writes(mut self, parallel: bool) -> Self {
        self.parallel_direct_writes = parallel;
        self
    }

    /// Lets the kernel gather writes.
    pub fn kernel_write_back(mut self, write_back: bool) -> Self {
        self.kernel_write_back = write_back;
        self
    }
}

/// Why a device could not be mounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The file name is empty, too long, or has a slash.
    #[error("{0:?} cannot be the name of a file")]
    FileName(OsString),
    /// The kernel has no FUSE for us.
    #[error("there is no FUSE here: {device}: {source} (`modprobe fuse` loads it; or use NBD)")]
    NoFuse {
        /// Its device node.
        device: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The mount point cannot be looked at.
    #[error("mount point {dir}: {source}")]
    MountPoint {
        /// The mount point.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A process that served this mount point was killed and left its mount behind.
    #[error(
        "{0} still has the mount of a process that is gone; remove it with: fusermount3 -u {0}"
    )]
    Dead(PathBuf),
    /// There is nothing to mount on.
    #[error("there is no directory {0} to mount on; make it first")]
    NoMountPoint(PathBuf),
    /// The mount point is not a directory.
    #[error("mount point {0} is not a directory")]
    NotADirectory(PathBuf),
    /// The mount point has files, which the mount would hide.
    #[error("mount point {0} is not empty")]
    NotEmpty(PathBuf),
    /// The kernel or fusermount3 refused.
    #[error("cannot mount on {dir}: {source}")]
    Mount {
        /// The mount point.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a mount did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnmountError {
    /// The file or the directory is in use; the mount goes on.
    #[error("{0} is in use")]
    Busy(PathBuf),
    /// The system refused; the mount goes on.
    #[error("cannot unmount {dir}: {source}")]
    System {
        /// The mount point.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The mount has ended, not by an unmount.
    #[error("the connection to the kernel broke: {0}")]
    Session(String),
    /// The mount has ended, but writes may not be stable.
    #[error("the last flush failed: {0}")]
    Flush(#[source] BlockError),
}

/// A mounted device. Dropping it detaches the mount: users of the file keep it until they close it,
/// as long as the process lives.
pub struct Mount {
    dir: PathBuf,
    file: PathBuf,
    /// st_dev of the mount, to tell it from what others may mount here later.
    dev: Option<u64>,
    device: ByteDevice,
    /// How the session ended; `None` while it lasts.
    ended: watch::Receiver<Option<Result<(), String>>>,
    /// Closed when the session has ended and no operation is under way.
    operations: mpsc::Receiver<()>,
}

/// Mounts `device` as a file in `dir`, which must be an empty directory. Blocks for a moment.
///
/// Operations that have to wait run on `runtime`, which must outlive the mount.
///
/// # Errors
/// [`MountError`].
pub fn mount(
    device: Device,
    dir: &Path,
    config: FuseConfig,
    runtime: Handle,
) -> Result<Mount, MountError> {
    let dir = check_mount_point(dir)?;
    if let Err(source) = std::fs::metadata(FUSE_DEVICE) {
        return Err(MountError::NoFuse { device: FUSE_DEVICE, source });
    }
    if !is_file_name(&config.file_name) {
        return Err(MountError::FileName(config.file_name));
    }
    let file = dir.join(&config.file_name);
    let device = ByteDevice::new(device);
    let (busy, operations) = mpsc::channel(1);
    let read_ahead_bytes = config.read_ahead_bytes;
    let volume = Volume::new(device.clone(), config, runtime, busy);
    let read_only = volume.read_only;
    let failed = |source| MountError::Mount { dir: dir.clone(), source };
    let session = Session::new(volume, &dir, &session_config(read_only)).map_err(failed)?;

    let (end, ended) = watch::channel(None);
    let serve = move || {
        let result = session.run().map_err(|error| error.to_string());
        debug!(?result, "FUSE session ended");
        let _ = end.send(Some(result));
    };
    std::thread::Builder::new().name("fuse-session".into()).spawn(serve).map_err(failed)?;

    // Only now, since the session answers it.
    let dev = std::fs::metadata(&dir).map(|metadata| metadata.dev()).ok();
    if let Some(dev) = dev {
        set_read_ahead(dev, read_ahead_bytes);
    }
    info!(file = %file.display(), "mounted");
    Ok(Mount { dir, file, dev, device, ended, operations })
}

fn session_config(read_only: bool) -> Config {
    let mut config = Config::default();
    config.acl = SessionACL::Owner;
    config.mount_options = vec![
        MountOption::FSName("enkaku".into()),
        MountOption::Subtype("enkaku".into()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
        MountOption::NoExec,
        if read_only { MountOption::RO } else { MountOption::RW },
    ];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    config.n_threads = Some(cores.min(THREADS_MAX));
    // One descriptor per thread, so that they do not share one queue of requests in progress.
    // Takes access to the device node, which a mount by way of fusermount3 can do without.
    config.clone_fd = File::options().read(true).write(true).open(FUSE_DEVICE).is_ok();
    config
}

fn is_file_name(name: &OsString) -> bool {
    let bytes = name.as_encoded_bytes();
    !matches!(bytes, b"" | b"." | b"..")
        && bytes.len() <= NAME_LEN_MAX
        && !bytes.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// The mount point's canonical path, if it is an empty directory.
fn check_mount_point(dir: &Path) -> Result<PathBuf, MountError> {
    let refused = |source: io::Error| match source.raw_os_error() {
        Some(libc::ENOTCONN) => MountError::Dead(dir.to_path_buf()),
        Some(libc::ENOENT) => MountError::NoMountPoint(dir.to_path_buf()),
        _ => MountError::MountPoint { dir: dir.to_path_buf(), source },
    };
    if !std::fs::metadata(dir).map_err(refused)?.is_dir() {
        return Err(MountError::NotADirectory(dir.to_path_buf()));
    }
    if std::fs::read_dir(dir).map_err(refused)?.next().is_some() {
        return Err(MountError::NotEmpty(dir.to_path_buf()));
    }
    dir.canonicalize().map_err(refused)
}

/// Reads ahead further than FUSE can ask for when it is mounted (the kernel caps that at 128 KiB).
fn set_read_ahead(dev: u64, bytes: u64) {
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", libc::major(dev), libc::minor(dev));
    if let Err(error) = std::fs::write(&path, (bytes / 1024).to_string()) {
        debug!(%error, path, "read-ahead stays as it is");
    }
}

impl Mount {
    /// The file that is the device.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Ends the mount and flushes the device.
    ///
    /// # Errors
    /// [`UnmountError::Busy`] or [`UnmountError::System`]: the mount goes on, try again or drop it.
    /// Otherwise it has ended, badly.
    pub async fn unmount(&mut self) -> Result<(), UnmountError> {
        if self.is_mounted() {
            let (dir, dev) = (self.dir.clone(), self.dev);
            // The kernel writes back and closes the file meanwhile, which needs our answers.
            let unmounted = tokio::task::spawn_blocking(move || unmount_ours(&dir, dev, false));
            let result = unmounted.await.unwrap_or_else(|e| Err(io::Error::other(e)));
            if let Err(source) = result
                && self.is_mounted()
            {
                return Err(match source.raw_os_error() {
                    Some(libc::EBUSY) => UnmountError::Busy(self.dir.clone()),
                    _ => UnmountError::System { dir: self.dir.clone(), source },
                });
            }
        }
        self.wait_unmounted().await
    }

    /// Waits until somebody ends the mount (umount, fusermount3 -u), then flushes the device.
    /// Cancelling loses nothing.
    ///
    /// # Errors
    /// [`UnmountError::Session`] and [`UnmountError::Flush`].
    pub async fn wait_unmounted(&mut self) -> Result<(), UnmountError> {
        let session = match self.ended.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or(Ok(())),
            Err(_) => Err("the session panicked".into()),
        };
        // Nothing is ever sent: this ends when the last operation has ended.
        while self.operations.recv().await.is_some() {}
        let flushed = self.device.flush().await;
        session.map_err(UnmountError::Session)?;
        flushed.map_err(UnmountError::Flush)
    }

    /// Makes the mount invisible at once; it ends when its last user closes the file. Await that
    /// with [`wait_unmounted`](Self::wait_unmounted).
    ///
    /// # Errors
    /// What the system said.
    pub fn detach(&self) -> io::Result<()> {
        if self.is_mounted() { unmount_ours(&self.dir, self.dev, true) } else { Ok(()) }
    }

    fn is_mounted(&self) -> bool {
        self.ended.borrow().is_none()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            warn!(%error, dir = %self.dir.display(), "cannot detach the mount");
        }
    }
}

/// Unmounts `dir` unless something else is mounted there by now.
fn unmount_ours(dir: &Path, dev: Option<u64>, detach: bool) -> io::Result<()> {
    let there = std::fs::symlink_metadata(dir).map(|metadata| metadata.dev()).ok();
    if dev.is_some() && there.is_some() && dev != there {
        return Err(io::Error::other("another file system is mounted over it"));
    }
    sys::unmount(dir, detach)
}

/// Held by the file system and by every operation under way; see [`Mount::operations`].
type Busy = mpsc::Sender<()>;
