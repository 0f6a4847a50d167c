//! ext2, ext3 and ext4, read-only (Linux: Documentation/filesystems/ext4, "Data Structures and
//! Algorithms").
//!
//! Our own reader, since files are to become extents over an asynchronous device: `ext4-view` reads
//! block by block, one after the other, and tells no extents. Checksums of metadata are looked at,
//! which also finds what was read while somebody else wrote it. The journal is not replayed, but
//! what is in it is read there ([`journal`]).

mod folder;
mod groups;
mod inline;
mod inode;
mod journal;
mod map;
mod superblock;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use crate::entry::Node;
use crate::extents::Builder;
use crate::limits::{FOLDER_BYTES_MAX, FOLDER_ENTRIES_MAX, LINK_BYTES_MAX};
use crate::source::{Source, in_parallel};
use crate::{Entry, EntryKind, Error, FileExtent, FileSystem, Identity, Mounted, Name, Result};

pub(crate) use inode::Inode;
use journal::{Found, Journal};
use superblock::Superblock;
pub(crate) use superblock::probe;

/// Inode of the root folder.
const ROOT: u32 = 2;

/// A file system that is open.
pub(crate) struct Ext {
    source: Source,
    superblock: Superblock,
    journal: Mutex<Recovery>,
}

/// What is known of the journal.
#[derive(Default)]
struct Recovery {
    journal: Journal,
    /// Why what is in it is not known, although it is newer.
    missing: Option<String>,
}

impl Ext {
    pub(crate) async fn open(source: Source) -> Result<Self> {
        let superblock = Superblock::read(&source).await?;
        Ok(Self { source, superblock, journal: Mutex::default() })
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
        if self.superblock.needs_journal() {
            warnings.push(match self.missing() {
                None => {
                    "it was not unmounted: what is newer in its journal is read there".to_owned()
                }
                Some(why) => {
                    format!("it was not unmounted: what is only in its journal is missing ({why})")
                }
            });
        }
        if self.superblock.has_errors() {
            warnings.push("its last user has found errors; fsck it".to_owned());
        }
        warnings
    }

    fn missing(&self) -> Option<String> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).missing.clone()
    }

    /// As the superblock says it now.
    pub(crate) async fn mounted(&self) -> Result<Mounted> {
        let superblock = Superblock::read(&self.source).await?;
        Ok(match (superblock.is_open(), superblock.needs_journal()) {
            (true, _) => Mounted::Unordered,
            (false, true) if self.missing().is_some() => Mounted::Unordered,
            (false, true) => Mounted::Journaled,
            (false, false) => Mounted::No,
        })
    }

    /// Another number as soon as the superblock was written. Looks at the journal first, so that
    /// all that is read then is what was committed last.
    pub(crate) async fn version(&self) -> Result<u64> {
        let block_bytes = self.superblock.block_bytes;
        self.source.overlay(block_bytes, BTreeMap::new());
        let superblock = Superblock::read(&self.source).await?;
        if !superblock.needs_journal() {
            *self.journal.lock().unwrap_or_else(PoisonError::into_inner) = Recovery::default();
            return Ok(superblock.version);
        }
        // Taken out meanwhile: nobody else looks, since whoever refreshes is alone.
        let mut journal = {
            let mut recovery = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut recovery.journal)
        };
        let missing = match self.look(&mut journal, superblock.journal_inode).await? {
            Found::Blocks(blocks) => {
                self.source.overlay(block_bytes, blocks);
                None
            }
            Found::Unreadable(why) => Some(why),
        };
        *self.journal.lock().unwrap_or_else(PoisonError::into_inner) =
            Recovery { journal, missing };
        Ok(superblock.version)
    }

    async fn look(&self, journal: &mut Journal, inode: u32) -> Result<Found> {
        if inode == 0 {
            return Ok(Found::Unreadable("it is on another device".into()));
        }
        let extents = self.extents(&self.inode(inode).await?).await?;
        journal.look(&self.source, &extents, self.superblock.block_bytes).await
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

    /// Where a file is, in bytes of the file system.
    pub(crate) async fn file_extents(&self, inode: &Inode) -> Result<Vec<FileExtent>> {
        let extents = self.extents(inode).await?;
        if self.source.is_overlaid(&extents) {
            // Mounted with data=journal.
            return Err(Error::unsupported(inode.place(), "content that is newer in the journal"));
        }
        Ok(extents)
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
