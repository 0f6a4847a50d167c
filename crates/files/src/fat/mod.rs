//! FAT12, FAT16 and FAT32 with long names (VFAT), read-only (Microsoft, "FAT: General Overview of
//! On-Disk Format", 1.03).
//!
//! Our own reader: the crates that are kept up tell extents only in a version that is not finished
//! (`hadris-fat` 3.0), and read a chain of clusters link by link.

mod boot;
mod chain;
mod charset;
mod folder;

use crate::entry::Node as EntryNode;
use crate::extents::Builder;
use crate::source::Source;
use crate::{Entry, EntryKind, Error, FileExtent, FileSystem, Identity, Mounted, Name, Result};

pub(crate) use boot::probe;
use boot::{Boot, Root};
pub(crate) use chain::{Chain, Width};

/// Most bytes of a folder: 65536 entries of 32 bytes (§ "Directory structure").
const FOLDER_BYTES_MAX: u64 = 2 << 20;

/// A file or folder: where its chain begins.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// 0 for an empty file, and for the root where it stands in front of the clusters.
    pub(crate) cluster: u32,
    pub(crate) size: u64,
    pub(crate) is_root: bool,
}

/// A file system that is open.
pub(crate) struct Fat {
    source: Source,
    boot: Boot,
    label: Option<Name>,
    is_dirty: bool,
}

impl Fat {
    pub(crate) async fn open(source: Source) -> Result<Self> {
        let boot = Boot::read(&source).await?;
        let is_dirty = boot.is_dirty(&source).await?;
        let mut fat = Self { source, boot, label: None, is_dirty };
        fat.label = fat.label().await?;
        Ok(fat)
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn identity(&self) -> Identity {
        let [a, b, c, d] = self.boot.serial.to_be_bytes();
        Identity {
            kind: FileSystem::Fat(self.boot.width.bits()),
            id: format!("{a:02X}{b:02X}-{c:02X}{d:02X}"),
            label: self.label.clone(),
        }
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        let dirty = "it was not unmounted, or its last user has met errors; fsck it";
        self.is_dirty.then(|| dirty.to_owned()).into_iter().collect()
    }

    /// As it says of itself now.
    pub(crate) async fn mounted(&self) -> Result<Mounted> {
        let is_dirty = self.boot.is_dirty(&self.source).await?;
        Ok(if is_dirty { Mounted::Unordered } else { Mounted::No })
    }

    /// FAT has no counter. What can be looked at cheaply: the boot sector, what it says of free
    /// clusters, and the root folder.
    pub(crate) async fn version(&self) -> Result<u64> {
        let boot = Boot::read(&self.source).await?;
        let mut numbers = u64::from(boot.serial) ^ boot.free_clusters(&self.source).await?;
        numbers ^= u64::from(boot.is_dirty(&self.source).await?) << 32;
        let root = self.content(&Node { cluster: 0, size: 0, is_root: true }).await?;
        Ok(numbers ^ u64::from(crc32fast::hash(&root)) << 24)
    }

    pub(crate) fn root(&self) -> Entry {
        let node = EntryNode::Fat(Node { cluster: 0, size: 0, is_root: true });
        let (kind, name) = (EntryKind::Folder, Name::default());
        Entry { name, kind, size: 0, modified: None, target: None, version: 0, node }
    }

    /// The label in the root folder: the one in the boot sector is not kept up to date.
    async fn label(&self) -> Result<Option<Name>> {
        let root = self.content(&Node { cluster: 0, size: 0, is_root: true }).await?;
        Ok(folder::label(&root).or_else(|| self.boot.label.clone()))
    }

    pub(crate) async fn list(&self, folder: &Node) -> Result<Vec<Entry>> {
        let content = self.content(folder).await?;
        Ok(folder::entries(&content)?.into_iter().map(|found| found.entry).collect())
    }

    /// By the long name or the short one, whatever the case of letters.
    pub(crate) async fn find(&self, folder: &Node, name: &[u8]) -> Result<Option<Entry>> {
        let content = self.content(folder).await?;
        let name = Name::new(name).folded();
        let is_it = |found: &folder::Found| {
            found.entry.name.folded() == name || found.short.folded() == name
        };
        Ok(folder::entries(&content)?.into_iter().find(is_it).map(|found| found.entry))
    }

    async fn content(&self, folder: &Node) -> Result<bytes::Bytes> {
        let extents = match self.boot.root {
            Root::Fixed { offset, len } if folder.is_root => {
                vec![FileExtent { offset: 0, len, at: Some(offset) }]
            }
            Root::Chain(cluster) if folder.is_root => self.folder_chain(cluster).await?,
            _ => self.folder_chain(folder.cluster).await?,
        };
        self.source.content(&extents, "FAT folder").await
    }

    /// A folder has no size: it is as long as its chain.
    async fn folder_chain(&self, cluster: u32) -> Result<Vec<FileExtent>> {
        let place = format!("FAT folder at cluster {cluster}");
        let max = FOLDER_BYTES_MAX.max(self.boot.cluster_bytes);
        let mut map = Builder::new(max + 1, self.source.len(), place.clone());
        self.chain().follow(cluster, &mut map, &place).await?;
        if map.is_complete() {
            return Err(Error::too_much(place, "bytes of a folder", max));
        }
        let mut extents = map.finish()?;
        // The hole behind it is the rest of the size that it might have had.
        extents.pop_if(|last| last.at.is_none());
        Ok(extents)
    }

    /// Where a file is, in bytes of the file system.
    pub(crate) async fn extents(&self, node: &Node) -> Result<Vec<FileExtent>> {
        let place = format!("FAT file at cluster {}", node.cluster);
        let mut map = Builder::new(node.size, self.source.len(), place.clone());
        if node.size == 0 {
            return map.finish();
        }
        self.chain().follow(node.cluster, &mut map, &place).await?;
        if !map.is_complete() {
            let problem = format!("its chain ends after {} of {} bytes", map.end(), node.size);
            return Err(Error::damaged(place, problem));
        }
        map.finish()
    }

    fn chain(&self) -> Chain<'_> {
        Chain {
            source: &self.source,
            table: self.boot.table,
            width: self.boot.width,
            clusters: self.boot.clusters,
            heap: self.boot.heap,
            cluster_bytes: self.boot.cluster_bytes,
        }
    }
}
