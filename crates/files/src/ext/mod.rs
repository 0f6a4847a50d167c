//! ext2, ext3 and ext4, read-only (Linux: Documentation/filesystems/ext4, "Data Structures and
//! Algorithms").
//!
//! Our own reader, since files are to become extents over an asynchronous device: `ext4-view` reads
//! block by block, one after the other, and tells no extents. Checksums of metadata are looked at,
//! which also finds what was read while somebody else wrote it. The journal is not replayed.

mod folder;
mod groups;
mod inline;
mod inode;
mod map;
mod superblock;

use bytes::Bytes;

use crate::entry::Node;
use crate::extents::Builder;
use crate::limits::{FOLDER_BYTES_MAX, FOLDER_ENTRIES_MAX, LINK_BYTES_MAX};
use crate::source::{Source, in_parallel};
use crate::{Entry, EntryKind, Error, FileExtent, FileSystem, Identity, Name, Result};

pub(crate) use inode::Inode;
pub(crate) use superblock::probe;
use superblock::{Incompat, Superblock};

/// Inode of the root folder.
const ROOT: u32 = 2;

/// A file system that is open.
pub(crate) struct Ext {
    source: Source,
    superblock: Superblock,
}

impl Ext {
    pub(crate) async fn open(source: Source) -> Result<Self> {
        let superblock = Superblock::read(&source).await?;
        Ok(Self { source, superblock })
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn identity(&self) -> Identity {
        let superblock = &self.superblock;
        Identity {
            kind: FileSystem::Ext(superblock.generation()),
            id: superblock.uuid_text(),
            label: Some(superblock.label.clone()).filter(|label| !label.as_bytes().is_empty()),
        }
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.superblock.incompat.has(Incompat::RECOVER) {
            warnings.push(
                "it was not unmounted: what is only in its journal, which is not replayed, is \
                 missing"
                    .to_owned(),
            );
        }
        if self.superblock.has_errors() {
            warnings.push("its last user has found errors; fsck it".to_owned());
        }
        warnings
    }

    /// Another number as soon as the superblock was written.
    pub(crate) async fn version(&self) -> Result<u64> {
        Ok(Superblock::read(&self.source).await?.version)
    }

    pub(crate) async fn root(&self) -> Result<Entry> {
        let inode = self.inode(ROOT).await?;
        if inode.kind() != EntryKind::Folder {
            return Err(Error::damaged(inode.place(), "the root is no folder"));
        }
        self.entry(Name::default(), inode).await
    }

    pub(crate) async fn list(&self, folder: &Inode) -> Result<Vec<Entry>> {
        let found = self.folder(folder).await?;
        let mut inodes = self.inodes(found.iter().map(|(_, number)| *number).collect()).await?;
        let mut names: Vec<(Name, Inode)> = Vec::with_capacity(found.len());
        for (name, number) in found {
            // Several names may be of one inode.
            let inode = inodes.get_mut(&number).map(|inode| inode.clone());
            names.push((name, inode.ok_or_else(|| missing(number))?));
        }
        let links = names.iter().filter(|(_, inode)| inode.kind() == EntryKind::Link);
        if links.map(|(_, inode)| inode.size).fold(0, u64::saturating_add) > FOLDER_BYTES_MAX {
            let max = FOLDER_BYTES_MAX;
            return Err(Error::too_much(folder.place(), "bytes of links in a folder", max));
        }
        in_parallel(names.into_iter().map(|(name, inode)| self.entry(name, inode))).await
    }

    pub(crate) async fn find(&self, folder: &Inode, name: &[u8]) -> Result<Option<Entry>> {
        let found = self.folder(folder).await?;
        let Some((name, number)) = found.into_iter().find(|(there, _)| there.as_bytes() == name)
        else {
            return Ok(None);
        };
        let inode = self.inode(number).await?;
        self.entry(name, inode).await.map(Some)
    }

    async fn entry(&self, name: Name, inode: Inode) -> Result<Entry> {
        let kind = inode.kind();
        let target = match kind {
            EntryKind::Link => Some(self.target(&inode).await?),
            _ => None,
        };
        let (size, modified, version) = (inode.size, Some(inode.modified), inode.version);
        Ok(Entry { name, kind, size, modified, target, version, node: Node::Ext(inode) })
    }

    async fn target(&self, inode: &Inode) -> Result<Name> {
        if inode.is_encrypted() {
            return Ok(Name::from("(encrypted)"));
        }
        if inode.size > LINK_BYTES_MAX {
            return Err(Error::too_much(inode.place(), "bytes of a link", LINK_BYTES_MAX));
        }
        if let Some(target) = inode.short_target() {
            return Ok(Name::new(target));
        }
        Ok(Name::new(self.content(inode, "ext4 symbolic link").await?))
    }

    async fn content(&self, inode: &Inode, what: &'static str) -> Result<Bytes> {
        let extents = self.extents(inode).await?;
        self.source.content(&extents, what).await
    }

    /// Names and inodes of a folder, without itself and its parent.
    async fn folder(&self, inode: &Inode) -> Result<Vec<(Name, u32)>> {
        if inode.is_encrypted() {
            return Err(Error::unsupported(inode.place(), "an encrypted folder"));
        }
        if inode.size > FOLDER_BYTES_MAX {
            return Err(Error::too_much(inode.place(), "bytes of a folder", FOLDER_BYTES_MAX));
        }
        let content = self.content(inode, "ext4 folder").await?;
        let mut names = Vec::new();
        let reader = folder::Folder { superblock: &self.superblock, inode };
        if inode.is_inline() {
            reader.inline(&content, &mut names)?;
        } else {
            reader.blocks(&content, &mut names)?;
        }
        if names.len() > FOLDER_ENTRIES_MAX {
            let max = FOLDER_ENTRIES_MAX as u64;
            return Err(Error::too_much(inode.place(), "names in a folder", max));
        }
        Ok(names)
    }

    /// Where a file, folder or link is, in bytes of the file system.
    pub(crate) async fn extents(&self, inode: &Inode) -> Result<Vec<FileExtent>> {
        if inode.is_encrypted() && inode.kind() == EntryKind::File {
            return Err(Error::unsupported(inode.place(), "encrypted content"));
        }
        if inode.is_compressed() {
            return Err(Error::unsupported(inode.place(), "compressed content"));
        }
        let limit = self.superblock.bytes.min(self.source.len());
        let mut builder = Builder::new(inode.size, limit, inode.place());
        if inode.is_inline() {
            inline::extents(inode, &mut builder)?;
        } else {
            let map = map::Map { source: &self.source, superblock: &self.superblock, inode };
            map.extents(&mut builder).await?;
        }
        builder.finish()
    }
}

fn missing(number: u32) -> Error {
    Error::damaged(format_args!("ext4 inode {number}"), "it cannot be found")
}
