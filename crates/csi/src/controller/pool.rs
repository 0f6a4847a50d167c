//! The folder that volumes and snapshots are files in. Their names say all that is to be known of
//! them: whose they are, and what they were made of.
//!
//! `csi-a.img` is a volume, `csi-b@snap-x.img` one that was made of a snapshot (or of a volume),
//! `snap-x@csi-a.snap` a snapshot of a volume. What is being made begins with a dot.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::ids::{SNAPSHOT, VOLUME, is_id};

/// Modes of files of volumes: for the daemon's user alone.
const MODE: u32 = 0o600;

/// The folder.
#[derive(Debug)]
pub(super) struct Pool {
    folder: PathBuf,
    /// Files can share their blocks: there are snapshots, and volumes made of others.
    pub(super) has_reflinks: bool,
}

/// A file that keeps what a volume held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) id: String,
    /// The volume.
    pub(super) source: String,
    pub(super) size: u64,
    pub(super) made: SystemTime,
    pub(super) file: PathBuf,
}

/// The snapshot or volume that a volume's file was made of.
pub(super) fn source_of(file: &Path) -> Option<String> {
    let stem = file.file_name()?.to_str()?.strip_suffix(".img")?;
    let (_, source) = stem.split_once('@')?;
    (is_id(VOLUME, source) || is_id(SNAPSHOT, source)).then(|| source.to_owned())
}

impl Pool {
    /// Finds out what the file system can do.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        let folder = folder.canonicalize()?;
        if folder.to_str().is_none() {
            return Err(io::Error::other("is not UTF-8, which its name has to be"));
        }
        let mut pool = Self { folder, has_reflinks: false };
        pool.has_reflinks = pool.try_reflink()?;
        Ok(pool)
    }

    fn try_reflink(&self) -> io::Result<bool> {
        let pid = std::process::id();
        let paths = ["a", "b"].map(|end| self.folder.join(format!(".reflink-{pid}-{end}")));
        let tried = new_file(&paths[0]).and_then(|of| {
            let copy = new_file(&paths[1])?;
            Ok(rustix::fs::ioctl_ficlone(&copy, &of).is_ok())
        });
        paths.iter().for_each(|path| drop(fs::remove_file(path)));
        tried
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.folder.display())
    }

    /// Where the file of a volume belongs.
    pub(super) fn volume(&self, id: &str, source: Option<&str>) -> String {
        match source {
            Some(source) => self.path(&format!("{id}@{source}.img")),
            None => self.path(&format!("{id}.img")),
        }
    }

    /// Where the file of a snapshot belongs.
    pub(super) fn snapshot(&self, id: &str, source: &str) -> String {
        self.path(&format!("{id}@{source}.snap"))
    }

    /// Where a file is made before it belongs to anything. One that was left is removed.
    pub(super) fn unfinished(&self, id: &str) -> io::Result<String> {
        let path = self.path(&format!(".{id}.new"));
        remove_if_there(path.as_ref())?;
        Ok(path)
    }

    /// Gives what is made its name, for good.
    pub(super) fn finish(&self, unfinished: &str, name: &str) -> io::Result<()> {
        fs::rename(unfinished, name)?;
        self.sync()
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.folder)?.map(|entry| Ok(entry?.file_name()));
        let names = names.collect::<io::Result<Vec<_>>>()?;
        Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    /// The files of a volume that may be there, also where no unit is.
    fn of_volume(&self, id: &str) -> io::Result<Vec<PathBuf>> {
        let mut names = self.names()?;
        names.retain(|name| {
            let rest = name.strip_prefix(id).and_then(|rest| rest.strip_suffix(".img"));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('@'))
        });
        Ok(names.iter().map(|name| self.folder.join(name)).collect())
    }

    /// Before a volume is made: what an earlier attempt left must not become its content.
    ///
    /// # Errors
    /// A file that holds something, and is not `wanted`: it may be what somebody misses.
    pub(super) fn make_way(&self, id: &str, wanted: &str) -> io::Result<()> {
        for file in self.of_volume(id)? {
            let is_blank = fs::metadata(&file)?.blocks() == 0;
            let is_a_copy = source_of(&file).is_some() && file == Path::new(wanted);
            if is_blank {
                fs::remove_file(&file)?;
            } else if !is_a_copy {
                return Err(io::Error::other(format!(
                    "{} holds something, and no unit serves it: remove or rename it",
                    file.display()
                )));
            }
        }
        Ok(())
    }

    /// Removes the files of a volume.
    pub(super) fn remove_volume(&self, id: &str) -> io::Result<()> {
        let files = self.of_volume(id)?;
        let unfinished = self.folder.join(format!(".{id}.new"));
        files.iter().chain([&unfinished]).try_for_each(|file| remove_if_there(file))?;
        self.sync()
    }

    /// All snapshots, by their ids.
    pub(super) fn snapshots(&self) -> io::Result<Vec<Snapshot>> {
        let mut all = Vec::new();
        for name in self.names()? {
            let ids = name.strip_suffix(".snap").and_then(|name| name.split_once('@'));
            let Some((id, source)) = ids else { continue };
            if !is_id(SNAPSHOT, id) || !is_id(VOLUME, source) {
                continue;
            }
            let file = self.folder.join(&name);
            let Ok(metadata) = fs::metadata(&file) else { continue }; // it went just now
            let (id, source) = (id.to_owned(), source.to_owned());
            let (size, made) = (metadata.len(), metadata.modified()?);
            all.push(Snapshot { id, source, size, made, file });
        }
        all.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }

    /// Removes a snapshot, whatever it was made of.
    pub(super) fn remove_snapshot(&self, id: &str) -> io::Result<()> {
        let found = self.snapshots()?.into_iter().filter(|one| one.id == id);
        found.map(|one| one.file).try_for_each(|file| remove_if_there(&file))?;
        self.sync()
    }

    /// A file that shares its blocks with that of a snapshot.
    pub(super) fn copy(&self, of: &Path, to: &str) -> io::Result<()> {
        let of = File::open(of)?;
        let copy = new_file(to.as_ref())?;
        rustix::fs::ioctl_ficlone(&copy, &of)?;
        copy.sync_all()
    }

    /// Makes a file at least so large.
    pub(super) fn grow(&self, file: &str, size: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(file)?;
        if file.metadata()?.len() < size {
            file.set_len(size)?;
            file.sync_all()?;
        }
        Ok(())
    }

    /// What is free, in bytes.
    pub(super) fn available(&self) -> io::Result<u64> {
        let free = rustix::fs::statvfs(&self.folder)?;
        Ok(free.f_bavail.saturating_mul(free.f_frsize))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(MODE).open(path)
}

fn remove_if_there(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_file_was_made_of() {
        for (name, source) in [
            ("/p/csi-a.img", None),
            ("/p/csi-b@snap-x.img", Some("snap-x")),
            ("/p/csi-b@csi-a.img", Some("csi-a")),
            ("/p/csi-b@../x.img", None),
            ("/p/csi-b@.img", None),
        ] {
            assert_eq!(source_of(name.as_ref()).as_deref(), source, "{name}");
        }
    }

    #[test]
    fn what_holds_something_stays() {
        let folder = tempfile::tempdir().unwrap();
        let pool = Pool::open(folder.path()).unwrap();
        assert!(pool.names().unwrap().is_empty(), "the trial leaves nothing");
        let (blank, copy) = (pool.volume("csi-a", None), pool.volume("csi-a", Some("snap-x")));
        // The file of another volume, whose name begins as this one's does.
        fs::write(pool.volume("csi-ab", None), "other").unwrap();
        new_file(blank.as_ref()).unwrap().set_len(1 << 20).unwrap();
        pool.make_way("csi-a", &blank).unwrap();
        assert!(!Path::new(&blank).exists(), "an earlier attempt left it");
        fs::write(&blank, "precious").unwrap();
        let refused = pool.make_way("csi-a", &blank).unwrap_err();
        assert!(refused.to_string().contains(&blank), "{refused}");
        fs::remove_file(&blank).unwrap();
        fs::write(&copy, "a copy, whole").unwrap();
        pool.make_way("csi-a", &copy).unwrap();
        assert!(Path::new(&copy).exists());
        assert!(pool.make_way("csi-a", &blank).is_err(), "of something else");
        pool.remove_volume("csi-a").unwrap();
        assert_eq!(pool.names().unwrap(), ["csi-ab.img"]);
    }

    #[test]
    fn snapshots_are_read_from_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let pool = Pool::open(folder.path()).unwrap();
        for name in ["snap-b@csi-a.snap", "snap-a@csi-a.snap", ".snap-c.new", "x@y.snap", "snap-d"]
        {
            fs::write(folder.path().join(name), "12345").unwrap();
        }
        let found = pool.snapshots().unwrap();
        let ids: Vec<_> = found.iter().map(|one| (one.id.as_str(), one.source.as_str())).collect();
        assert_eq!(ids, [("snap-a", "csi-a"), ("snap-b", "csi-a")]);
        assert_eq!(found[0].size, 5);
        pool.remove_snapshot("snap-a").unwrap();
        pool.remove_snapshot("snap-a").unwrap();
        assert_eq!(pool.snapshots().unwrap().len(), 1);
    }
}
