//! exFAT, read-only (Microsoft, "exFAT file system specification", 1.00).
//!
//! Our own reader for the reason that stands in `fat`; the table of clusters is the same.

mod boot;
mod folder;

use bytes::Bytes;

use crate::entry::Node as EntryNode;
use crate::extents::Builder;
use crate::fat::{Chain, Width};
use crate::limits::FOLDER_BYTES_MAX;
use crate::source::Source;
use crate::{Entry, EntryKind, Error, FileExtent, FileSystem, Identity, Mounted, Name, Result};

use boot::Boot;

/// A file or folder: where it is.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// 0 where nothing is stored.
    pub(crate) cluster: u32,
    /// Bytes, of which the first `written` are stored; the others read as zeroes.
    pub(crate) size: u64,
    pub(crate) written: u64,
    /// In one piece: the table says nothing about it (§ 6.3.4.2, NoFatChain).
    pub(crate) is_contiguous: bool,
    pub(crate) is_root: bool,
}

/// A file system that is open.
pub(crate) struct ExFat {
    source: Source,
    boot: Boot,
    label: Option<Name>,
}

impl ExFat {
    pub(crate) async fn open(source: Source) -> Result<Self> {
        let boot = Boot::read(&source).await?;
        let mut exfat = Self { source, boot, label: None };
        let root = exfat.content(&exfat.root_node()).await?;
        exfat.label = folder::label(&root);
        Ok(exfat)
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn identity(&self) -> Identity {
        let [a, b, c, d] = self.boot.serial.to_be_bytes();
        Identity {
            kind: FileSystem::ExFat,
            id: format!("{a:02X}{b:02X}-{c:02X}{d:02X}"),
            label: self.label.clone(),
        }
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.boot.warnings()
    }

    /// As it says of itself now.
    pub(crate) async fn mounted(&self) -> Result<Mounted> {
        let is_dirty = Boot::read(&self.source).await?.is_dirty();
        Ok(if is_dirty { Mounted::Unordered } else { Mounted::No })
    }

    /// exFAT has no counter. What can be looked at cheaply: the boot sector and the root folder.
    pub(crate) async fn version(&self) -> Result<u64> {
        let boot = Boot::read(&self.source).await?;
        let root = self.content(&self.root_node()).await?;
        Ok(boot.version ^ u64::from(crc32fast::hash(&root)) << 32)
    }

    fn root_node(&self) -> Node {
        let cluster = self.boot.root;
        Node { cluster, size: 0, written: 0, is_contiguous: false, is_root: true }
    }

    pub(crate) fn root(&self) -> Entry {
        let node = EntryNode::ExFat(self.root_node());
        let (kind, name) = (EntryKind::Folder, Name::default());
        Entry { name, kind, size: 0, modified: None, target: None, version: 0, node }
    }

    pub(crate) async fn list(&self, folder: &Node) -> Result<Vec<Entry>> {
        folder::entries(&self.content(folder).await?)
    }

    /// Whatever the case of letters.
    pub(crate) async fn find(&self, folder: &Node, name: &[u8]) -> Result<Option<Entry>> {
        let name = Name::new(name).folded();
        let entries = self.list(folder).await?;
        Ok(entries.into_iter().find(|entry| entry.name.folded() == name))
    }

    async fn content(&self, folder: &Node) -> Result<Bytes> {
        let place = format!("exFAT folder at cluster {}", folder.cluster);
        let max = FOLDER_BYTES_MAX;
        if folder.size > max {
            return Err(Error::too_much(place, "bytes of a folder", max));
        }
        if !folder.is_root {
            let extents = self.extents(folder).await?;
            return self.source.content(&extents, "exFAT folder").await;
        }
        // The root has no size: it is as long as its chain.
        let mut map = Builder::new(max + 1, self.source.len(), place.clone());
        self.chain().follow(folder.cluster, &mut map, &place).await?;
        if map.is_complete() {
            return Err(Error::too_much(place, "bytes of a folder", max));
        }
        let mut extents = map.finish()?;
        extents.pop_if(|last| last.at.is_none());
        self.source.content(&extents, "exFAT folder").await
    }

    /// Where a file or folder is, in bytes of the file system.
    pub(crate) async fn extents(&self, node: &Node) -> Result<Vec<FileExtent>> {
        let place = format!("exFAT file at cluster {}", node.cluster);
        let mut map = Builder::new(node.written, self.source.len(), place.clone());
        if node.written > 0 && node.is_contiguous {
            let last = node.written.div_ceil(self.boot.cluster_bytes) + u64::from(node.cluster);
            if node.cluster < 2 || last > u64::from(self.boot.clusters) + 2 {
                let problem = format!("it goes up to cluster {last}");
                return Err(Error::damaged(place, problem));
            }
            map.push(0, node.written, Some(self.boot.cluster_at(node.cluster)))?;
        } else if node.written > 0 {
            self.chain().follow(node.cluster, &mut map, &place).await?;
        }
        if !map.is_complete() {
            let problem = format!("its chain ends after {} of {} bytes", map.end(), node.written);
            return Err(Error::damaged(place, problem));
        }
        let mut extents = map.finish()?;
        if node.size > node.written {
            let len = node.size - node.written;
            extents.push(FileExtent { offset: node.written, len, at: None });
        }
        Ok(extents)
    }

    fn chain(&self) -> Chain<'_> {
        Chain {
            source: &self.source,
            table: self.boot.table,
            width: Width::ExFat,
            clusters: self.boot.clusters,
            heap: self.boot.heap,
            cluster_bytes: self.boot.cluster_bytes,
        }
    }
}
