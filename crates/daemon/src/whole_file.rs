//! Small files that are the old one or the new one, whatever happens meanwhile.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a file of this mode to the disk; its name may be lost in a power cut
/// ([`sync_folder_of`]).
///
/// # Errors
/// The system's; any part of the text may be in it.
pub(crate) fn write(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Puts a text in the place of a file, by way of another one beside it: after a power cut the file
/// is there whole, or as it was.
///
/// # Errors
/// The system's; nothing is left beside it.
pub(crate) fn replace(path: &Path, beside: &Path, mode: u32, text: &str) -> io::Result<()> {
    let written = write(beside, mode, text).and_then(|()| std::fs::rename(beside, path));
    written.inspect_err(|_| drop(std::fs::remove_file(beside)))?;
    sync_folder_of(path)
}

/// A name has to outlive a power cut, too.
pub(crate) fn sync_folder_of(file: &Path) -> io::Result<()> {
    File::open(folder_of(file))?.sync_all()
}

/// The folder that a file is in.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
