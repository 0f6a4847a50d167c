//! [`Volume`]: an open file system, whichever it is: paths, folders, files.

use std::fmt;

use crate::entry::Node;
use crate::exfat::ExFat;
use crate::ext::Ext;
use crate::fat::Fat;
use crate::limits::PATH_BYTES_MAX;
use crate::source::Source;
use crate::{Entry, EntryKind, Error, FileExtent, FileReader, Name, Result};

/// The file systems that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext2, ext3 or ext4, by what it uses.
    Ext(u8),
    /// FAT12, FAT16 or FAT32.
    Fat(u8),
    /// exFAT.
    ExFat,
}

impl FileSystem {
    /// All of them, for errors.
    pub const NAMES: &str = "ext2, ext3, ext4, FAT and exFAT";

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext(2) => "ext2",
            Self::Ext(3) => "ext3",
            Self::Ext(_) => "ext4",
            Self::Fat(12) => "FAT12",
            Self::Fat(16) => "FAT16",
            Self::Fat(_) => "FAT32",
            Self::ExFat => "exFAT",
        }
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a file system is mounted to be written to, or was and has not been unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// It is not.
    No,
    /// It is, and what is committed is read in its journal. No block is another file's before it is
    /// committed that it was freed.
    Journaled,
    /// It is, and what is written may come in any order: content of a new file before it is there
    /// that the old one is gone.
    Unordered,
}

/// Which file system it is: the same wherever its disk is plugged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its kind.
    pub kind: FileSystem,
    /// Its UUID, or serial number, as `blkid` writes it.
    pub id: String,
    /// Its label, if it has one.
    pub label: Option<Name>,
}

/// A file system that is open for reading.
///
/// What was read of its structures is kept for a while, so it is a picture of one moment: somebody
/// else who writes is seen after [`refresh`](Self::refresh).
pub struct Volume {
    kind: Kind,
    version: u64,
}

enum Kind {
    Ext(Ext),
    Fat(Fat),
    ExFat(ExFat),
}

impl Volume {
    pub(crate) async fn open(source: Source, kind: FileSystem) -> Result<Self> {
        let kind = match kind {
            FileSystem::Ext(_) => Kind::Ext(Ext::open(source).await?),
            FileSystem::Fat(_) => Kind::Fat(Fat::open(source).await?),
            FileSystem::ExFat => Kind::ExFat(ExFat::open(source).await?),
        };
        let mut volume = Self { kind, version: 0 };
        volume.version = volume.current_version().await?;
        Ok(volume)
    }

    fn source(&self) -> &Source {
        match &self.kind {
            Kind::Ext(ext) => ext.source(),
            Kind::Fat(fat) => fat.source(),
            Kind::ExFat(exfat) => exfat.source(),
        }
    }

    /// Which one it is.
    pub fn identity(&self) -> Identity {
        match &self.kind {
            Kind::Ext(ext) => ext.identity(),
            Kind::Fat(fat) => fat.identity(),
            Kind::ExFat(exfat) => exfat.identity(),
        }
    }

    /// What its user should know: it was not unmounted, or its last user has found errors.
    pub fn warnings(&self) -> Vec<String> {
        match &self.kind {
            Kind::Ext(ext) => ext.warnings(),
            Kind::Fat(fat) => fat.warnings(),
            Kind::ExFat(exfat) => exfat.warnings(),
        }
    }

    async fn current_version(&self) -> Result<u64> {
        match &self.kind {
            Kind::Ext(ext) => ext.version().await,
            Kind::Fat(fat) => fat.version().await,
            Kind::ExFat(exfat) => exfat.version().await,
        }
    }

    /// Whether somebody has mounted it to write to it, as it says itself. Costs a read where it was
    /// not looked at since the last [`refresh`](Self::refresh).
    ///
    /// # Errors
    /// The device fails, or the file system is damaged, or gone.
    pub async fn mounted(&self) -> Result<Mounted> {
        match &self.kind {
            Kind::Ext(ext) => ext.mounted().await,
            Kind::Fat(fat) => fat.mounted().await,
            Kind::ExFat(exfat) => exfat.mounted().await,
        }
    }

    /// Forgets what was kept, and says whether the file system looks as it did when it was opened,
    /// or at the last call: a hint, in one or two reads. ext4 counts (times of mounting and
    /// writing, bytes written), but notes it late; FAT and exFAT have only the root folder and what
    /// is free to be compared. What is to be relied on is [`find`](Self::find) after it: another
    /// [`Entry::version`] is another file.
    ///
    /// # Errors
    /// The device fails, or the file system is damaged, or gone.
    pub async fn refresh(&mut self) -> Result<bool> {
        self.source().forget();
        let version = self.current_version().await?;
        let is_same = std::mem::replace(&mut self.version, version) == version;
        Ok(is_same)
    }

    /// The root folder.
    ///
    /// # Errors
    /// It cannot be read.
    pub async fn root(&self) -> Result<Entry> {
        match &self.kind {
            Kind::Ext(ext) => ext.root().await,
            Kind::Fat(fat) => Ok(fat.root()),
            Kind::ExFat(exfat) => Ok(exfat.root()),
        }
    }

    /// What a path leads to, from the root; `/` may begin and end it, `.` and `..` are taken out
    /// first. Links on the way are errors, since they are not followed; one at the end is found.
    ///
    /// # Errors
    /// There is nothing, or the way is damaged.
    pub async fn find(&self, path: impl AsRef<[u8]>) -> Result<Entry> {
        let mut entry = self.root().await?;
        let mut at = Name::from("/");
        for part in parts(path.as_ref())? {
            Self::check_folder(&entry, &at)?;
            at = if at.as_bytes() == b"/" { Name::from("/").join(part) } else { at.join(part) };
            let found = match (&self.kind, &entry.node) {
                (Kind::Ext(ext), Node::Ext(node)) => ext.find(node, part).await?,
                (Kind::Fat(fat), Node::Fat(node)) => fat.find(node, part).await?,
                (Kind::ExFat(exfat), Node::ExFat(node)) => exfat.find(node, part).await?,
                _ => None,
            };
            entry = found.ok_or_else(|| Error::NotFound { path: at.clone() })?;
        }
        Ok(entry)
    }

    /// What is in a folder, in the order of the disk.
    ///
    /// # Errors
    /// It is no folder, is damaged, or has more than is taken.
    pub async fn list(&self, folder: &Entry) -> Result<Vec<Entry>> {
        Self::check_folder(folder, &folder.name)?;
        match (&self.kind, &folder.node) {
            (Kind::Ext(ext), Node::Ext(node)) => ext.list(node).await,
            (Kind::Fat(fat), Node::Fat(node)) => fat.list(node).await,
            (Kind::ExFat(exfat), Node::ExFat(node)) => exfat.list(node).await,
            _ => Err(foreign(folder)),
        }
    }

    /// Where the bytes of a file are on the device: sorted, without gaps, all of it.
    ///
    /// # Errors
    /// It is no file, or the map of it is damaged.
    pub async fn extents(&self, file: &Entry) -> Result<Vec<FileExtent>> {
        if file.kind != EntryKind::File {
            let (path, kind) = (file.name.clone(), file.kind.name());
            return Err(Error::NotAFile { path, kind });
        }
        let mut extents = match (&self.kind, &file.node) {
            (Kind::Ext(ext), Node::Ext(node)) => ext.file_extents(node).await?,
            (Kind::Fat(fat), Node::Fat(node)) => fat.extents(node).await?,
            (Kind::ExFat(exfat), Node::ExFat(node)) => exfat.extents(node).await?,
            _ => return Err(foreign(file)),
        };
        let start = self.source().start();
        extents.iter_mut().filter_map(|extent| extent.at.as_mut()).for_each(|at| *at += start);
        Ok(extents)
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As for [`extents`](Self::extents).
    pub async fn open_file(&self, file: &Entry) -> Result<FileReader> {
        let extents = self.extents(file).await?;
        Ok(FileReader::new(self.source().device().clone(), extents))
    }

    fn check_folder(entry: &Entry, path: &Name) -> Result<()> {
        match (&entry.kind, &entry.target) {
            (EntryKind::Folder, _) => Ok(()),
            (_, Some(target)) => Err(Error::Link { path: path.clone(), target: target.clone() }),
            _ => Err(Error::NotAFolder { path: path.clone() }),
        }
    }
}

/// An entry of another file system.
fn foreign(entry: &Entry) -> Error {
    let problem = "it is of another file system".to_owned();
    Error::Path { path: entry.name.clone(), problem }
}

/// The names of a path.
fn parts(path: &[u8]) -> Result<Vec<&[u8]>> {
    let wrong = |problem: &str| {
        Err(Error::Path { path: Name::new(&path[..path.len().min(64)]), problem: problem.into() })
    };
    if path.len() > PATH_BYTES_MAX {
        return wrong("at most 4096 bytes are allowed");
    }
    if path.contains(&0) {
        return wrong("a name has no byte 0");
    }
    let mut parts = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_path_is_names_without_detours() {
        let parts = |path: &str| {
            let parts = super::parts(path.as_bytes()).unwrap();
            String::from_utf8(parts.join(&b'|')).unwrap()
        };
        assert_eq!(parts("/a//b/./c/"), "a|b|c");
        assert_eq!(parts("../../a/../b"), "b");
        assert_eq!(parts("/"), "");
        assert!(super::parts(b"a\0b").is_err());
        assert!(super::parts(&[b'a'; 5000]).is_err());
    }
}
