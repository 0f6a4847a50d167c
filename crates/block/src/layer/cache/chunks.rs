//! What was read ahead, by aligned chunk: being loaded or there. Bookkeeping only.
//!
//! Bounded: room is made by dropping what its stream has passed, then what was used longest ago;
//! a chunk that is being loaded keeps its room, even if it was dropped meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use tokio::sync::watch;

use super::credit::Credit;

/// What became of a load.
#[derive(Clone, Debug)]
pub(super) enum Loaded {
    /// Under way.
    NotYet,
    /// The chunk's content.
    Content(Bytes),
    /// It failed; whoever needs the data asks the device and gets its answer.
    Failed,
}

#[derive(Debug)]
struct Chunk {
    id: u64,
    len: u64,
    used_bytes: u64,
    /// The read that had it asked for. What that one takes of it proves nothing.
    asked_by: u64,
    /// Another one has taken of it.
    pays: bool,
    loaded: bool,
    /// Place in `order`.
    rank: Rank,
    content: watch::Receiver<Loaded>,
}

/// What goes first: passed before the rest, then the least recently used.
type Rank = (bool, u64);

/// A load to be done.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) chunk: u64,
    pub(super) id: u64,
    pub(super) range: Range<u64>,
    pub(super) content: watch::Sender<Loaded>,
}

/// The chunks.
#[derive(Debug)]
pub(super) struct Chunks {
    chunk_bytes: u64,
    bytes_max: u64,
    bytes: u64,
    chunks: BTreeMap<u64, Chunk>,
    /// Loaded ones in the order in which they may go.
    order: BTreeSet<(Rank, u64)>,
    clock: u64,
    reads: u64,
    used_bytes: u64,
    wasted_bytes: u64,
    credit: Credit,
}

impl Chunks {
    pub(super) fn new(chunk_bytes: u64, bytes_max: u64) -> Self {
        Self {
            chunk_bytes,
            bytes_max,
            bytes: 0,
            chunks: BTreeMap::new(),
            order: BTreeSet::new(),
            clock: 0,
            reads: 0,
            used_bytes: 0,
            wasted_bytes: 0,
            credit: Credit::new(bytes_max),
        }
    }

    /// Bytes held or being loaded.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes read ahead that were read, and those that were dropped unread.
    pub(super) fn used_and_wasted(&self) -> (u64, u64) {
        (self.used_bytes, self.wasted_bytes)
    }

    /// What is reserved and found from now on is for another read.
    pub(super) fn begin_read(&mut self) {
        self.reads += 1;
    }

    /// Makes room for a chunk of a device of `size` bytes and counts it as being loaded. `Ok(None)`
    /// if it is there already, `Err` if there is no room, or too much was read ahead in vain.
    pub(super) fn reserve(&mut self, chunk: u64, size: u64) -> Result<Option<Load>, ()> {
        let start = chunk * self.chunk_bytes;
        let len = self.chunk_bytes.min(size.saturating_sub(start));
        if len == 0 || self.chunks.contains_key(&chunk) {
            return Ok(None);
        }
        if !self.credit.take(len) {
            return Err(());
        }
        while self.bytes + len > self.bytes_max {
            let Some((_, oldest)) = self.order.first().copied() else {
                self.credit.repay(len);
                return Err(());
            };
            self.remove(oldest);
        }
        self.clock += 1;
        let (content, receiver) = watch::channel(Loaded::NotYet);
        let id = self.clock;
        let rank = (true, id);
        let entry = Chunk {
            id,
            len,
            used_bytes: 0,
            asked_by: self.reads,
            pays: false,
            loaded: false,
            rank,
            content: receiver,
        };
        self.chunks.insert(chunk, entry);
        self.bytes += len;
        Ok(Some(Load { chunk, id, range: start..start + len, content }))
    }

    /// A load has ended. What it brought is for those who wait; it is kept if it is still wanted.
    pub(super) fn loaded(&mut self, load: Load, content: Option<Bytes>) {
        let current = self.chunks.get_mut(&load.chunk).filter(|entry| entry.id == load.id);
        match (current, &content) {
            (Some(entry), Some(_)) => {
                entry.loaded = true;
                self.order.insert((entry.rank, load.chunk));
            }
            (Some(_), None) => {
                self.chunks.remove(&load.chunk);
                self.bytes -= load.range.end - load.range.start;
            }
            (None, _) => self.bytes -= load.range.end - load.range.start,
        }
        load.content.send_replace(content.map_or(Loaded::Failed, Loaded::Content));
    }

    /// A part of `range` that one chunk has or will have: from its start.
    pub(super) fn find(
        &mut self,
        range: &Range<u64>,
    ) -> Option<(watch::Receiver<Loaded>, Range<usize>)> {
        let chunk = range.start / self.chunk_bytes;
        let start = chunk * self.chunk_bytes;
        self.clock += 1;
        let entry = self.chunks.get_mut(&chunk)?;
        let end = range.end.min(start + entry.len);
        if end <= range.start {
            return None;
        }
        if !entry.pays && entry.asked_by != self.reads {
            entry.pays = true;
            self.credit.used(entry.len);
        }
        let fresh = (end - range.start).min(entry.len - entry.used_bytes);
        entry.used_bytes += fresh;
        self.used_bytes += fresh;
        let passed = entry.used_bytes == entry.len;
        let rank = (!passed, self.clock);
        if entry.loaded {
            self.order.remove(&(entry.rank, chunk));
            self.order.insert((rank, chunk));
        }
        entry.rank = rank;
        Some((entry.content.clone(), (range.start - start) as usize..(end - start) as usize))
    }

    /// `bytes` of a read are in no chunk, and are asked of the device.
    pub(super) fn demanded(&mut self, bytes: u64) {
        self.credit.demanded(bytes);
    }

    /// The chunk with this byte has arrived.
    pub(super) fn is_loaded(&self, at: u64) -> bool {
        self.chunks.get(&(at / self.chunk_bytes)).is_some_and(|entry| entry.loaded)
    }

    /// Where the chunk with this byte ends.
    pub(super) fn end_of_chunk(&self, at: u64) -> u64 {
        (at / self.chunk_bytes + 1) * self.chunk_bytes
    }

    /// `range` changes: what is known of it is no longer true.
    pub(super) fn invalidate(&mut self, range: &Range<u64>) {
        if self.chunks.is_empty() || range.is_empty() {
            return;
        }
        let span = range.start / self.chunk_bytes..range.end.div_ceil(self.chunk_bytes);
        let stale: Vec<u64> = self.chunks.range(span).map(|(chunk, _)| *chunk).collect();
        stale.into_iter().for_each(|chunk| self.remove(chunk));
    }

    fn remove(&mut self, chunk: u64) {
        let Some(entry) = self.chunks.remove(&chunk) else { return };
        self.wasted_bytes += entry.len - entry.used_bytes;
        if entry.loaded {
            self.order.remove(&(entry.rank, chunk));
            self.bytes -= entry.len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 64 << 10;
    const SIZE: u64 = 10 * CHUNK + 512;

    fn content(load: &Load) -> Option<Bytes> {
        Some(Bytes::from(vec![load.chunk as u8; (load.range.end - load.range.start) as usize]))
    }

    fn load(chunks: &mut Chunks, chunk: u64) -> bool {
        match chunks.reserve(chunk, SIZE) {
            Ok(Some(load)) => {
                let content = content(&load);
                chunks.loaded(load, content);
                true
            }
            _ => false,
        }
    }

    #[test]
    fn the_passed_go_first_then_the_oldest() {
        let mut chunks = Chunks::new(CHUNK, 3 * CHUNK);
        assert!((0..3).all(|chunk| load(&mut chunks, chunk)));
        chunks.begin_read();
        chunks.find(&(CHUNK..2 * CHUNK)).unwrap(); // the second: wholly read
        assert!(load(&mut chunks, 3));
        let there = |chunks: &Chunks| chunks.chunks.keys().copied().collect::<Vec<_>>();
        assert_eq!(there(&chunks), [0, 2, 3]);
        chunks.find(&(0..512)).unwrap();
        assert!(load(&mut chunks, 4));
        assert_eq!(there(&chunks), [0, 3, 4]);
        assert_eq!(chunks.used_and_wasted(), (CHUNK + 512, CHUNK));
        assert_eq!(chunks.bytes(), 3 * CHUNK);
    }

    #[test]
    fn loads_under_way_keep_their_room_also_when_invalidated() {
        let mut chunks = Chunks::new(CHUNK, 2 * CHUNK);
        let first = chunks.reserve(0, SIZE).unwrap().unwrap();
        let second = chunks.reserve(1, SIZE).unwrap().unwrap();
        assert!(chunks.reserve(2, SIZE).is_err());
        chunks.invalidate(&(0..1));
        assert!(chunks.reserve(0, SIZE).is_err());
        let found = content(&first);
        chunks.loaded(first, found);
        assert!(chunks.find(&(0..512)).is_none(), "stale content was kept");
        chunks.loaded(second, None);
        assert_eq!((chunks.bytes(), chunks.chunks.len()), (0, 0));
    }

    #[test]
    fn the_last_chunk_ends_with_the_device() {
        let mut chunks = Chunks::new(CHUNK, 4 * CHUNK);
        assert!(load(&mut chunks, 10) && !load(&mut chunks, 11));
        assert_eq!(chunks.bytes(), 512);
        let (_, part) = chunks.find(&(10 * CHUNK..10 * CHUNK + 512)).unwrap();
        assert_eq!(part, 0..512);
    }
}
