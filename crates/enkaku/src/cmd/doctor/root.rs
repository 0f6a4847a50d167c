//! The files of a host below its root, or below a folder that looks like one.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::path::PathBuf;

use doctor::facts::files::{NAMES_MAX, TEXT_BYTES_MAX};
use doctor::facts::{Files, Read};

/// Where files are read, and what could not be.
pub(in crate::cmd) struct Root {
    path: PathBuf,
    denied: RefCell<Vec<String>>,
}

impl Root {
    pub(in crate::cmd) fn new(path: Option<PathBuf>) -> Self {
        Self { path: path.unwrap_or_else(|| PathBuf::from("/")), denied: RefCell::default() }
    }

    /// What may not be read, each once.
    pub(super) fn denied(&self) -> Vec<String> {
        let mut denied = self.denied.borrow().clone();
        denied.sort();
        denied.dedup();
        denied
    }
}

impl Files for Root {
    fn read(&self, path: &str) -> Read {
        let read = || {
            let mut bytes = Vec::new();
            let limit = u64::try_from(TEXT_BYTES_MAX).unwrap_or(u64::MAX);
            File::open(self.path.join(path))?.take(limit).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Read::Text(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if std::io::Error::kind(&error) == ErrorKind::PermissionDenied => {
                self.denied.borrow_mut().push(format!("/{path}"));
                Read::Denied
            }
            // Some attributes refuse with other errors while there is nothing to say (the speed of
            // a device that is down).
            Err(_) => Read::Absent,
        }
    }

    fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path.join(path)) else { return Vec::new() };
        let name = |entry: fs::DirEntry| entry.file_name().into_string().ok();
        let mut names: Vec<String> = entries.flatten().take(NAMES_MAX).filter_map(name).collect();
        names.sort();
        names
    }

    fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path.join(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }
}
