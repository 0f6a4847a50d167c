//! Opening a [`FileDevice`]: what is there, whether it fits, and who else uses it.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{FileDevice, sys};
use crate::{Buf, DeviceInfo};

/// Block size in bytes where neither the user nor the device says one.
const DEFAULT_BLOCK_SIZE: u32 = 512;

/// How long a lock is waited for, and how often it is tried.
const LOCK_PATIENCE: Duration = Duration::from_millis(250);
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// How to open a file. Default: existing, writable, buffered, blocks of 512 bytes.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct FileOptions {
    /// Never write to it.
    pub read_only: bool,
    /// Bypass the page cache (O_DIRECT).
    pub direct: bool,
    /// Block size in bytes: a power of two, 512 to 65536. Default: that of a block device, 512 for
    /// a file.
    pub block_size: Option<u32>,
    /// Make a sparse file of this many bytes if there is none. An existing one is taken as it is.
    pub create: Option<u64>,
    /// Throw away what a regular file holds and give it this many bytes, once it is locked: one
    /// that somebody uses stays as it is.
    pub reset: Option<u64>,
}

impl FileOptions {
    /// With or without the right to write.
    pub fn with_read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// With or without the page cache.
    pub fn with_direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// With this block size.
    pub fn with_block_size(mut self, block_size: u32) -> Self {
        self.block_size = Some(block_size);
        self
    }

    /// With an existing file emptied, and then `size` bytes long.
    pub fn with_reset(mut self, size: u64) -> Self {
        self.reset = Some(size);
        self
    }

    /// With a sparse file of `size` bytes made where there is none.
    pub fn with_create(mut self, size: u64) -> Self {
        self.create = Some(size);
        self
    }
}

/// Why a file was not opened: which one, and what would be allowed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is nothing.
    #[error("{}: no such file", path.display())]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be created where there is no folder for it.
    #[error("{}: there is no folder {} to create it in", path.display(), folder.display())]
    NoFolder {
        /// The file.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
    },
    /// The permissions say no.
    #[error("{}: permission denied (needs {needs})", path.display())]
    Permission {
        /// The file.
        path: PathBuf,
        /// What was wanted.
        needs: &'static str,
    },
    /// Not something that holds blocks.
    #[error("{}: is {found}; a regular file or a block device is needed", path.display())]
    NotStorage {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: &'static str,
    },
    /// There are no blocks in it.
    #[error("{}: is empty; at least one block of {block_size} bytes is needed", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// Block size in bytes.
        block_size: u32,
    },
    /// The size does not fit the block size.
    #[error(
        "{}: size of {size} bytes is not a multiple of the block size {block_size}; \
         {} bytes would be", path.display(), size.next_multiple_of(u64::from(*block_size))
    )]
    SizeMisaligned {
        /// The file.
        path: PathBuf,
        /// Its size, or the size it was to be created with, in bytes.
        size: u64,
        /// Block size in bytes.
        block_size: u32,
    },
    /// The block size cannot be used.
    #[error(
        "{}: a block size of {block_size} cannot be used; a power of two from {min} to 65536 can",
        path.display()
    )]
    BlockSize {
        /// The file.
        path: PathBuf,
        /// Block size in bytes.
        block_size: u32,
        /// Smallest one allowed here.
        min: u32,
    },
    /// Someone else has it.
    #[error("{}: in use by another process (or mounted); close it there first", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// No direct I/O with blocks of this size.
    #[error(
        "{}: direct I/O with blocks of {block_size} bytes is not supported here; \
         try a larger block size or buffered I/O", path.display()
    )]
    Direct {
        /// The file.
        path: PathBuf,
        /// Block size in bytes.
        block_size: u32,
    },
    /// The system refused.
    #[error("{}: {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl FileDevice {
    /// Opens a regular file or a block device, and locks it.
    ///
    /// # Errors
    /// [`OpenError`], which says what to do.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<Self, OpenError> {
        let path = path.as_ref();
        check_block_size(path, options.block_size.unwrap_or(DEFAULT_BLOCK_SIZE), 512)?;
        let metadata = match look_at(path, options)? {
            Some(metadata) => metadata,
            None => match options.create {
                Some(size) => create(path, size, options)?,
                None => return Err(OpenError::NotFound { path: path.into() }),
            },
        };
        let block_device = is_block_device(path, &metadata)?;
        let file = open(path, options, block_device)?;
        if let Some(size) = options.reset.filter(|_| !block_device) {
            file.set_len(0)
                .and_then(|()| file.set_len(size))
                .map_err(|source| failed(path, options, "giving it its size", source))?;
        }
        let info = describe(path, options, &file, block_device.then_some(&metadata))?;
        if options.direct {
            check_direct(path, &file, info.block_size)?;
        }
        Ok(Self::new(file, info, options.direct, block_device))
    }

    /// Finds out whether [`open`](Self::open) would do, by the same steps. Nothing is created, kept
    /// locked or changed, so that a file may be looked at that is being served.
    ///
    /// # Errors
    /// As [`open`](Self::open), except that what is in use is no error.
    pub fn trial(path: impl AsRef<Path>, options: &FileOptions) -> Result<Trial, OpenError> {
        let path = path.as_ref();
        check_block_size(path, options.block_size.unwrap_or(DEFAULT_BLOCK_SIZE), 512)?;
        let metadata = look_at(path, options)?;
        let block_device = match &metadata {
            Some(metadata) => is_block_device(path, metadata)?,
            None => false,
        };
        let (file, in_use) = match (&metadata, options.create) {
            (None, None) => return Err(OpenError::NotFound { path: path.into() }),
            (None, Some(size)) => match unnamed(path, size, options)? {
                Some(file) => (file, false),
                None => {
                    let info = DeviceInfo::new(size, options.block_size.unwrap_or(512));
                    return Ok(Trial { info, in_use: false });
                }
            },
            (Some(_), _) => match open(path, options, block_device) {
                Ok(file) => (file, false),
                Err(OpenError::InUse { .. }) => {
                    let opened = File::open(path);
                    (opened.map_err(|source| failed(path, options, "opening it", source))?, true)
                }
                Err(error) => return Err(error),
            },
        };
        // Whether it has holes is tried out by making one, which a look must not.
        let looking = options.clone().with_read_only(true);
        let device = metadata.as_ref().filter(|_| block_device);
        let mut info = describe(path, &looking, &file, device)?;
        info.read_only = options.read_only;
        if options.direct && !in_use {
            check_direct(path, &file, info.block_size)?;
        }
        Ok(Trial { info, in_use })
    }
}

/// What [`FileDevice::trial`] found.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Size and block sizes; what it can do is not found out.
    pub info: DeviceInfo,
    /// Somebody has it now, and it would not be opened beside them.
    pub in_use: bool,
}

/// What is there, if anything.
fn look_at(path: &Path, options: &FileOptions) -> Result<Option<Metadata>, OpenError> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed(path, options, "looking at it", source)),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file without a name where one is to be made: it shows whether there is the right to and
/// whether the file system has files so large, and leaves nothing behind. `None` where there are
/// no such.
fn unnamed(path: &Path, size: u64, options: &FileOptions) -> Result<Option<File>, OpenError> {
    check_size(path, size, options.block_size.unwrap_or(DEFAULT_BLOCK_SIZE))?;
    let flags = libc::O_TMPFILE | if options.direct { libc::O_DIRECT } else { 0 };
    let opened =
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(folder_of(path));
    let file = match opened {
        Ok(file) => file,
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            return Ok(None);
        }
        Err(source) => return Err(failed(path, options, "creating it", source)),
    };
    file.set_len(size).map_err(|source| failed(path, options, "giving it its size", source))?;
    Ok(Some(file))
}

/// Can files be made in this folder? Leaves nothing behind.
///
/// # Errors
/// The system's.
pub fn check_folder(folder: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(folder) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            Ok(()) // a file system without such files: no way to find out without leaving one
        }
        result => result.map(drop),
    }
}

fn check_block_size(path: &Path, block_size: u32, min: u32) -> Result<(), OpenError> {
    if !block_size.is_power_of_two() || !(min..=65536).contains(&block_size) {
        return Err(OpenError::BlockSize { path: path.into(), block_size, min });
    }
    Ok(())
}

/// Mode of a file that we create: a volume's content is its owner's, whatever the umask says.
pub(super) const CREATED_MODE: u32 = 0o600;

fn create(path: &Path, size: u64, options: &FileOptions) -> Result<Metadata, OpenError> {
    check_size(path, size, options.block_size.unwrap_or(DEFAULT_BLOCK_SIZE))?;
    let mut new = OpenOptions::new();
    new.write(true).create_new(true).mode(CREATED_MODE);
    let file = match new.open(path) {
        Ok(file) => file,
        // Someone was faster: theirs is taken as it is.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return std::fs::metadata(path)
                .map_err(|source| failed(path, options, "looking at it", source));
        }
        Err(source) => return Err(failed(path, options, "creating it", source)),
    };
    // The folder's entry, too: what is written to the file and flushed must not be gone with it.
    let sized = file.set_len(size).and_then(|()| file.sync_all()).and_then(|()| sync_folder(path));
    sized.and_then(|()| file.metadata()).map_err(|source| {
        let _best_effort = std::fs::remove_file(path);
        failed(path, options, "giving it its size", source)
    })
}

/// Makes the entry of a new file stable.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    match File::open(folder_of(path))?.sync_all() {
        // Some file systems have no fsync for folders; what they promise without is theirs to know.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput || sys::unsupported(&error) => {
            Ok(())
        }
        result => result,
    }
}

fn check_size(path: &Path, size: u64, block_size: u32) -> Result<(), OpenError> {
    if size == 0 {
        return Err(OpenError::Empty { path: path.into(), block_size });
    }
    if !size.is_multiple_of(u64::from(block_size)) {
        return Err(OpenError::SizeMisaligned { path: path.into(), size, block_size });
    }
    Ok(())
}

fn is_block_device(path: &Path, metadata: &Metadata) -> Result<bool, OpenError> {
    let kind = metadata.file_type();
    let found = match () {
        () if kind.is_file() => return Ok(false),
        () if kind.is_block_device() => return Ok(true),
        () if kind.is_dir() => "a directory",
        () if kind.is_char_device() => "a character device",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () => "neither",
    };
    Err(OpenError::NotStorage { path: path.into(), found })
}

fn open(path: &Path, options: &FileOptions, block_device: bool) -> Result<File, OpenError> {
    let mut flags = if options.direct { libc::O_DIRECT } else { 0 };
    if block_device && !options.read_only {
        flags |= libc::O_EXCL; // refused while it is mounted or part of something else
    }
    let file = OpenOptions::new()
        .read(true)
        .write(!options.read_only)
        .custom_flags(flags)
        .open(path)
        .map_err(|source| failed(path, options, "opening it", source))?;
    lock(&file, !options.read_only).map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => OpenError::InUse { path: path.into() },
        _ => failed(path, options, "locking it", source),
    })?;
    Ok(file)
}

/// Locks a file that may have been closed a moment ago: its lock lives on until the last thread
/// that served it has ended, or a process that was being started meanwhile has got rid of our
/// files.
fn lock(file: &File, exclusive: bool) -> io::Result<()> {
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match sys::lock(file, exclusive) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                std::thread::sleep(LOCK_RETRY);
            }
            result => return result,
        }
    }
}

/// Size and capabilities. `device` is the metadata of a block device.
fn describe(
    path: &Path,
    options: &FileOptions,
    file: &File,
    device: Option<&Metadata>,
) -> Result<DeviceInfo, OpenError> {
    let failed = |source| failed(path, options, "asking for its size", source);
    let (size, smallest, physical) = match device {
        Some(_) => {
            let (logical, physical) = sys::block_device_block_sizes(file).map_err(failed)?;
            (sys::block_device_size(file).map_err(failed)?, logical, physical)
        }
        None => (file.metadata().map_err(failed)?.len(), DEFAULT_BLOCK_SIZE, 4096),
    };
    let block_size = options.block_size.unwrap_or(smallest);
    check_block_size(path, block_size, smallest.max(512))?;
    check_size(path, size, block_size)?;
    let mut info = DeviceInfo::new(size, block_size);
    if physical.is_power_of_two() {
        info.preferred_block_size = physical.max(block_size);
    }
    info.read_only = options.read_only;
    info.volatile_cache = !options.read_only;
    info.can_fua = !options.read_only;
    info.can_zero = !options.read_only;
    match device {
        // Discard promises nothing about what is read afterwards.
        Some(device) => info.can_trim = !options.read_only && can_discard(device.st_rdev()),
        None => {
            // Behind the end there is nothing to lose: does the file system know holes?
            let can_punch = || sys::punch_hole(file, size, u64::from(block_size)).is_ok();
            info.can_trim = !options.read_only && can_punch();
            info.trim_zeroes = info.can_trim;
            info.can_extents = sys::seek_data(file, 0).is_ok();
        }
    }
    Ok(info)
}

fn can_discard(device: u64) -> bool {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let node = format!("/sys/dev/block/{major}:{minor}");
    // A partition has no queue of its own; its disk, one up, has.
    let limit = ["queue", "../queue"].iter().find_map(|queue| {
        std::fs::read_to_string(format!("{node}/{queue}/discard_max_bytes")).ok()
    });
    limit.is_some_and(|limit| limit.trim() != "0")
}

/// A read of one block tells whether the alignment is enough.
fn check_direct(path: &Path, file: &File, block_size: u32) -> Result<(), OpenError> {
    let mut block = Buf::new(block_size as usize);
    file.read_exact_at(&mut block, 0).map_err(|source| match source.kind() {
        io::ErrorKind::InvalidInput => OpenError::Direct { path: path.into(), block_size },
        _ => OpenError::Io { path: path.into(), action: "reading its first block", source },
    })
}

fn failed(
    path: &Path,
    options: &FileOptions,
    action: &'static str,
    source: io::Error,
) -> OpenError {
    let path = path.to_path_buf();
    match source.kind() {
        io::ErrorKind::NotFound if action == "creating it" => {
            OpenError::NoFolder { folder: folder_of(&path).into(), path }
        }
        io::ErrorKind::PermissionDenied => {
            let needs = if options.read_only { "read" } else { "read and write" };
            OpenError::Permission { path, needs }
        }
        io::ErrorKind::ResourceBusy | io::ErrorKind::ExecutableFileBusy => {
            OpenError::InUse { path }
        }
        io::ErrorKind::InvalidInput if options.direct && action == "opening it" => {
            let block_size = options.block_size.unwrap_or(DEFAULT_BLOCK_SIZE);
            OpenError::Direct { path, block_size }
        }
        _ => OpenError::Io { path, action, source },
    }
}
