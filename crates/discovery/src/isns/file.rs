//! One small file that is either the old or the new one, whatever happens meanwhile.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// Largest file that is read: a full directory is well below.
const BYTES_MAX: u64 = 1 << 30;

/// All of it; nothing if there is none.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Puts `bytes` in its place, durably.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(".new");
    let next = path.with_file_name(name);
    let mut file = File::create(&next)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_nothing_else_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        assert_eq!(read(&path).unwrap(), None);
        replace(&path, b"long and old").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some(&b"new"[..]));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
