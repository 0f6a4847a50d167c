//! [`Sources`]: the files that a configuration consists of. The main one, and the drop-ins in a
//! folder beside it (`target.d` of `target.toml`), in the order of their names.
//!
//! What they say together is for `parse` to find out. Who writes drop-ins is `life`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::reader::{Place, Problem};

/// How the name of a drop-in ends.
const DROP_IN_SUFFIX: &str = ".toml";

/// One file.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// All of them, the main one first.
#[derive(Clone, Debug)]
pub(crate) struct Sources(Vec<Source>);

/// Where the drop-ins of a configuration are.
pub(crate) fn drop_in_folder(main: &Path) -> PathBuf {
    main.with_extension("d")
}

impl Sources {
    /// Reads them from disk.
    ///
    /// # Errors
    /// Every file that cannot be read.
    pub(crate) fn read(main: &Path) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut sources = Vec::new();
        let drop_ins = drop_ins(&drop_in_folder(main)).unwrap_or_else(|problem| {
            problems.push(problem);
            Vec::new()
        });
        for path in std::iter::once(main.to_owned()).chain(drop_ins) {
            match fs::read_to_string(&path) {
                Ok(text) => sources.push(Source { path, text }),
                Err(error) => problems.push(unreadable(&path, &error, path == main)),
            }
        }
        if problems.is_empty() { Ok(Self(sources)) } else { Err(problems) }
    }

    /// One file, without drop-ins.
    pub(crate) fn of_text(path: &Path, text: &str) -> Self {
        Self(vec![Source { path: path.to_owned(), text: text.to_owned() }])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Source> {
        self.0.iter()
    }

    /// What a file says.
    pub(crate) fn text_of(&self, path: &Path) -> Option<&str> {
        self.0.iter().find(|source| source.path == path).map(|source| &*source.text)
    }

    /// These files with another text for one drop-in, which may be new; without a text, that
    /// drop-in is gone.
    pub(crate) fn with(mut self, path: &Path, text: Option<&str>) -> Self {
        self.0.retain(|source| source.path != path);
        if let Some(text) = text {
            let source = Source { path: path.to_owned(), text: text.to_owned() };
            let drop_ins = self.0.get(1..).unwrap_or_default();
            let at = drop_ins.partition_point(|other| *other.path < *path);
            self.0.insert((at + 1).min(self.0.len()), source);
        }
        self
    }
}

/// The drop-ins in a folder, sorted. What begins with a dot is not one: a file that is being
/// written is called so.
fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>, Problem> {
    let failed =
        |error: io::Error| Place::of_file(folder, "").problem(format!("cannot be read: {error}"));
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(DROP_IN_SUFFIX) && !name.starts_with('.') {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn unreadable(path: &Path, error: &io::Error, is_main: bool) -> Problem {
    let what = match error.kind() {
        io::ErrorKind::NotFound if is_main => {
            "there is no such file; contrib/target.toml is one to begin with".to_owned()
        }
        _ => format!("cannot be read: {error}"),
    };
    Place::of_file(path, "").problem(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(sources: &Sources) -> Vec<String> {
        let name = |source: &Source| source.path.file_name().unwrap().to_str().unwrap().to_owned();
        sources.iter().map(name).collect()
    }

    #[test]
    fn drop_ins_come_sorted_behind_the_main_file_and_nothing_else_does() {
        let folder = tempfile::tempdir().unwrap();
        let main = folder.path().join("target.toml");
        let missing = Sources::read(&main).unwrap_err();
        assert!(missing[0].what.contains("contrib/target.toml"), "{missing:?}");
        fs::write(&main, "main").unwrap();
        assert_eq!(names(&Sources::read(&main).unwrap()), ["target.toml"]);
        let beside = drop_in_folder(&main);
        assert_eq!(beside, folder.path().join("target.d"));
        fs::create_dir(&beside).unwrap();
        for name in ["b.toml", "a.toml", ".c.toml", "c.toml~", "README", "c.toml.1"] {
            fs::write(beside.join(name), name).unwrap();
        }
        let read = Sources::read(&main).unwrap();
        assert_eq!(names(&read), ["target.toml", "a.toml", "b.toml"]);
        assert_eq!(read.text_of(&beside.join("b.toml")), Some("b.toml"));
        let more = read.clone().with(&beside.join("aa.toml"), Some("new"));
        assert_eq!(names(&more), ["target.toml", "a.toml", "aa.toml", "b.toml"]);
        let other = more.with(&beside.join("b.toml"), Some("other"));
        assert_eq!(other.text_of(&beside.join("b.toml")), Some("other"));
        let less = other.with(&beside.join("a.toml"), None);
        assert_eq!(names(&less), ["target.toml", "aa.toml", "b.toml"]);
    }

    #[test]
    fn a_drop_in_that_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let main = folder.path().join("target.toml");
        fs::write(&main, "").unwrap();
        let beside = drop_in_folder(&main);
        fs::create_dir_all(beside.join("folder.toml")).unwrap();
        fs::write(beside.join("latin1.toml"), b"# \xe4").unwrap();
        let problems = Sources::read(&main).unwrap_err();
        let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("folder.toml: cannot be read"), "{said:?}");
        assert!(said[1].contains("latin1.toml: cannot be read"), "{said:?}");
    }
}
