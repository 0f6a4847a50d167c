//! What a server knows besides its catalogue: one folder that nobody else can look into, with a
//! small JSON file for each kind of thing. A file is the old one or the new one at any moment, and
//! those who change one wait for each other.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of one of them: positions of 250 viewers in a thousand videos each.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Where the server is.
const ADDRESS: &str = "address.json";
/// Everybody else's bits of a mode.
const OTHERS: u32 = 0o077;

/// What is wrong with the folder or a file of it.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", place.display())]
pub struct StateError {
    /// File or folder.
    pub place: PathBuf,
    /// What is wrong, and what to do.
    pub problem: String,
}

impl StateError {
    pub(crate) fn new(place: &Path, problem: impl ToString) -> Self {
        Self { place: place.to_owned(), problem: problem.to_string() }
    }
}

/// Why something that is kept in it is not changed, or not told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// Its file.
    #[error(transparent)]
    State(#[from] StateError),
    /// The request itself.
    #[error("{0}")]
    Wrong(String),
}

/// The request is wrong in this way.
pub(crate) fn wrong<T>(what: impl Into<String>) -> Result<T, ChangeError> {
    Err(ChangeError::Wrong(what.into()))
}

/// The folder.
#[derive(Clone, Debug)]
pub struct StateFolder(PathBuf);

impl StateFolder {
    /// The folder of a catalogue where none is named: `films.state` beside `films.toml`.
    pub fn of(catalogue: &Path) -> PathBuf {
        catalogue.with_extension("state")
    }

    /// Makes it if it is not there.
    ///
    /// # Errors
    /// It cannot be made, or others can look into it.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let wrong = |problem: &dyn ToString| StateError::new(path, problem.to_string());
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(wrong(&error));
            }
            _ => {}
        }
        let metadata = std::fs::metadata(path).map_err(|error| wrong(&error))?;
        if !metadata.is_dir() {
            return Err(wrong(&"it is not a folder"));
        }
        if metadata.permissions().mode() & OTHERS != 0 {
            let mode = metadata.permissions().mode() & 0o777;
            return Err(wrong(&format!("others can look into it (mode {mode:03o}): chmod 700 it")));
        }
        Ok(Self(path.to_owned()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Notes where the server is, for who makes links to it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn note_address(&self, url: &str) -> Result<(), StateError> {
        save(&self.file(ADDRESS), &url)
    }

    /// Where a server with this folder is, or was.
    pub fn address(&self) -> Option<String> {
        let address: String = load(&self.file(ADDRESS)).ok()?;
        Some(address).filter(|address| !address.is_empty())
    }

    /// A file of it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// Refuses a file with secrets that others can read or change.
///
/// # Errors
/// That, or it cannot be looked at.
pub(crate) fn check_is_private(path: &Path) -> Result<(), StateError> {
    let metadata = std::fs::metadata(path).map_err(|error| StateError::new(path, error))?;
    if !metadata.is_file() {
        return Err(StateError::new(path, "it is not a file"));
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & OTHERS != 0 {
        let problem = format!("others can read or change it (mode {mode:03o}): chmod 600 it");
        return Err(StateError::new(path, problem));
    }
    Ok(())
}

/// Puts bytes in the place of a file that is its owner's alone.
///
/// # Errors
/// The system's; nothing is left beside it.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let beside = path.with_file_name(name);
    let written = (|| {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    })();
    written.inspect_err(|_| drop(std::fs::remove_file(&beside)))?;
    // Its name has to outlive a power cut, too.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// What is in a file; nothing, if there is none.
///
/// # Errors
/// Others can read it, or it is not what is expected.
pub(crate) fn load<T: DeserializeOwned + Default>(path: &Path) -> Result<T, StateError> {
    if matches!(path.try_exists(), Ok(false)) {
        return Ok(T::default());
    }
    check_is_private(path)?;
    let len = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    if len > FILE_BYTES_MAX {
        let problem = format!("{len} bytes; at most {FILE_BYTES_MAX} are taken");
        return Err(StateError::new(path, problem));
    }
    let bytes = std::fs::read(path).map_err(|error| StateError::new(path, error))?;
    serde_json::from_slice(&bytes).map_err(|error| StateError::new(path, error))
}

/// Writes a file.
///
/// # Errors
/// It cannot be written.
pub(crate) fn save<T: Serialize>(path: &Path, value: &T) -> Result<(), StateError> {
    let text = serde_json::to_vec(value).map_err(|error| StateError::new(path, error))?;
    write_private(path, &text).map_err(|error| StateError::new(path, error))
}

/// Changes what is in a file, while nobody else does. If `change` fails, nothing has changed.
///
/// # Errors
/// It cannot be read or written, or what `change` says.
pub(crate) fn change<T, R, E>(
    path: &Path,
    change: impl FnOnce(&mut T) -> Result<R, E>,
) -> Result<R, E>
where
    T: DeserializeOwned + Serialize + Default,
    E: From<StateError>,
{
    let lock = path.with_extension("lock");
    let wrong = |error: &dyn ToString| StateError::new(&lock, error.to_string());
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let held = options.open(&lock).map_err(|error| wrong(&error))?;
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|error| wrong(&error))?;
    let mut value: T = load(path)?;
    let done = change(&mut value)?;
    save(path, &value)?;
    Ok(done)
}

/// What a file looks like from outside: another one if it was written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp([i128; 4]);

impl Stamp {
    /// None, if it cannot be looked at.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        let time = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        Some(Self([time, metadata.len().into(), metadata.ino().into(), metadata.dev().into()]))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Numbers = BTreeMap<String, u32>;

    #[test]
    fn a_folder_and_its_files_are_their_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = StateFolder::of(&folder.path().join("films.toml"));
        assert_eq!(path, folder.path().join("films.state"));
        let state = StateFolder::open(&path).unwrap();
        StateFolder::open(&path).unwrap();
        let file = state.file("numbers.json");
        assert_eq!(load::<Numbers>(&file).unwrap(), Numbers::new());
        change(&file, |numbers: &mut Numbers| {
            numbers.insert("a".into(), 1);
            Ok::<(), StateError>(())
        })
        .unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&file)), (0o700, 0o600));
        assert_eq!(load::<Numbers>(&file).unwrap()["a"], 1);

        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = load::<Numbers>(&file).unwrap_err().to_string();
        assert!(error.contains("mode 644") && error.ends_with("chmod 600 it"), "{error}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = StateFolder::open(&path).unwrap_err().to_string();
        assert!(error.ends_with("chmod 700 it"), "{error}");
        assert!(StateFolder::open(&file).is_err(), "it is a file");
    }

    #[test]
    fn those_who_change_a_file_wait_for_each_other_and_a_failure_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("numbers.json");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        change(&file, |numbers: &mut Numbers| {
                            *numbers.entry("a".into()).or_default() += 1;
                            Ok::<(), StateError>(())
                        })
                        .unwrap();
                    }
                });
            }
        });
        assert_eq!(load::<Numbers>(&file).unwrap()["a"], 40);
        let failed = change(&file, |numbers: &mut Numbers| {
            numbers.clear();
            Err::<(), _>(StateError::new(Path::new("x"), "no"))
        });
        assert!(failed.is_err());
        assert_eq!(load::<Numbers>(&file).unwrap()["a"], 40);
        std::fs::write(&file, "{\"a\": -1}").unwrap();
        assert!(load::<Numbers>(&file).unwrap_err().to_string().contains("line 1"));
    }
}
