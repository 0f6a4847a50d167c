//! [`Entry`]: a file, folder or link as its folder tells it.

use crate::{Name, Timestamp, exfat, ext, fat};

/// What a folder has under a name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// Its name; empty for the root.
    pub name: Name,
    /// What it is.
    pub kind: EntryKind,
    /// Bytes of a file or of a link's target; of a folder, what it takes, where that is known.
    pub size: u64,
    /// When its content was last changed.
    pub modified: Option<Timestamp>,
    /// Where a symbolic link points to. It is named and never followed.
    pub target: Option<Name>,
    /// Another number as soon as size, times or place of the file are others: a look at it tells
    /// whether what was found before still holds. Content that was overwritten in place shows only
    /// where the writer's system has noted the time, which may be later.
    pub version: u64,
    pub(crate) node: Node,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A file with content.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A device, pipe or socket: has no content here.
    Special,
}

impl EntryKind {
    /// As words.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "a file",
            Self::Folder => "a folder",
            Self::Link => "a symbolic link",
            Self::Special => "a device, pipe or socket",
        }
    }
}

/// Where a file system goes on from an entry.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    Ext(ext::Inode),
    Fat(fat::Node),
    ExFat(exfat::Node),
}
