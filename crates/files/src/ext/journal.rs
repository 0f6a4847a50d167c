//! The journal of ext3 and ext4 (JBD2; Linux: Documentation/filesystems/ext4/journal.rst), read and
//! not replayed: which blocks have newer content there than in their places. Somebody who has the
//! file system mounted may leave it so for half a minute, and a system that was cut off for ever.
//!
//! What is committed counts, in the order of the commits, unless a later one revokes it. Of a log
//! that goes on while it is looked at, the next look reads only what was added.
//!
//! Not here: journals on another device, fast commits, and commits that are written before what
//! they commit (`journal_async_commit`): [`Found::Unreadable`].

use std::collections::{BTreeMap, HashMap, VecDeque};

use bytes::Bytes;

use crate::field::Fields;
use crate::limits::{JOURNAL_BYTES_MAX, JOURNAL_REVOKES_MAX};
use crate::source::{Newer, Source};
use crate::{Error, FileExtent, Result};

const PLACE: &str = "ext4 journal";
const MAGIC: u32 = 0xc03b_3998;

/// Kinds of blocks.
const DESCRIPTOR: u32 = 1;
const COMMIT: u32 = 2;
const SUPERBLOCK_V1: u32 = 3;
const SUPERBLOCK_V2: u32 = 4;
const REVOKE: u32 = 5;

/// What a reader has to know (`s_feature_incompat`).
const REVOKES: u32 = 0x1;
const BITS_64: u32 = 0x2;
const CHECKSUM_V2: u32 = 0x8;
const CHECKSUM_V3: u32 = 0x10;

/// Flags of a tag: its block began with the magic number, which was taken out; it has no UUID; it
/// is the last of its descriptor.
const ESCAPED: u32 = 1;
const SAME_UUID: u32 = 2;
const LAST: u32 = 8;

/// Bytes of the header of every block, and of the checksum at the end of some.
const HEADER_BYTES: usize = 12;
const TAIL_BYTES: usize = 4;
const UUID_BYTES: usize = 16;

/// Bytes of the log that are read at once, at first and at most.
const PIECE_BYTES_MIN: u64 = 64 << 10;
const PIECE_BYTES_MAX: u64 = 4 << 20;

/// What a journal has.
#[derive(Debug)]
pub(super) enum Found {
    /// Newer content of blocks, by the numbers of the blocks: none, where all is in its place.
    Blocks(BTreeMap<u64, Newer>),
    /// It is of a kind, or a length, that is not read here.
    Unreadable(String),
}

/// A journal, and how far its log was read.
#[derive(Debug, Default)]
pub(super) struct Journal {
    log: Option<Log>,
}

#[derive(Debug)]
struct Log {
    geometry: Geometry,
    /// Committed ones, the oldest first.
    transactions: VecDeque<Transaction>,
    /// Where the next one begins, and its number.
    next: (u32, u32),
    revokes: usize,
}

#[derive(Debug, Default)]
struct Transaction {
    /// Its first block in the log, and its number.
    begin: (u32, u32),
    /// Block of the file system, block of the log, and whether that is escaped.
    blocks: Vec<(u64, u32, bool)>,
    revoked: Vec<u64>,
}

/// What the journal's superblock says of its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Geometry {
    block_bytes: u64,
    first: u32,
    end: u32,
    features: u32,
}

/// The log's blocks, read ahead.
struct Blocks<'a> {
    source: &'a Source,
    extents: &'a [FileExtent],
    geometry: Geometry,
    piece: Bytes,
    /// First block of the piece.
    from: u32,
    piece_bytes: u64,
    read_bytes: u64,
}

fn be32(fields: Fields<'_>, at: usize) -> u32 {
    u32::from_be_bytes(fields.array(at))
}

impl Journal {
    /// Looks at the journal that is in this file: its blocks' places are those of the file system.
    ///
    /// # Errors
    /// The device fails, or the journal contradicts itself.
    pub(super) async fn look(
        &mut self,
        source: &Source,
        extents: &[FileExtent],
        block_bytes: u64,
    ) -> Result<Found> {
        let at = place(extents, 0)?;
        let superblock = source.read(at, 1024, PLACE).await?;
        let (geometry, begin) = match Geometry::parse(Fields(&superblock), extents, block_bytes)? {
            Ok(parsed) => parsed,
            Err(why) => {
                self.log = None;
                return Ok(Found::Unreadable(why));
            }
        };
        let Some(begin) = begin else {
            self.log = None; // all is in its place
            return Ok(Found::Blocks(BTreeMap::new()));
        };
        let log = self.log.take().and_then(|log| log.since(geometry, begin));
        let mut log = log.unwrap_or_else(|| Log {
            geometry,
            transactions: VecDeque::new(),
            next: begin,
            revokes: 0,
        });
        let mut blocks = Blocks {
            source,
            extents,
            geometry,
            piece: Bytes::new(),
            from: 0,
            piece_bytes: PIECE_BYTES_MIN,
            read_bytes: 0,
        };
        if !log.read_on(&mut blocks).await? {
            let why = format!("a log of more than {JOURNAL_BYTES_MAX} bytes");
            return Ok(Found::Unreadable(why));
        }
        let newer = log.newer(extents)?;
        self.log = Some(log);
        Ok(Found::Blocks(newer))
    }
}

impl Geometry {
    /// With where the log begins, if there is one; or why it is not read.
    #[allow(clippy::type_complexity, reason = "told apart by its one caller")]
    fn parse(
        fields: Fields<'_>,
        extents: &[FileExtent],
        block_bytes: u64,
    ) -> Result<std::result::Result<(Self, Option<(u32, u32)>), String>> {
        let kind = be32(fields, 4);
        if be32(fields, 0) != MAGIC || !matches!(kind, SUPERBLOCK_V1 | SUPERBLOCK_V2) {
            return Err(Error::damaged(PLACE, "it has no superblock"));
        }
        let features = if kind == SUPERBLOCK_V2 { be32(fields, 0x28) } else { 0 };
        let unknown = features & !(REVOKES | BITS_64 | CHECKSUM_V2 | CHECKSUM_V3);
        if unknown != 0 {
            return Ok(Err(format!("features {unknown:#x}, which are not read here")));
        }
        let (end, first) = (be32(fields, 0x10), be32(fields, 0x14));
        let (sequence, start) = (be32(fields, 0x18), be32(fields, 0x1c));
        let there = extents.last().map_or(0, |last| last.end() / block_bytes);
        let is_one = u64::from(be32(fields, 0xc)) == block_bytes
            && u64::from(end) <= there
            && (1..end).contains(&first)
            && (start == 0 || (first..end).contains(&start));
        if !is_one {
            let problem = format!(
                "blocks {first} to {end} of {} bytes in a file of {there}, from {start} on",
                be32(fields, 0xc)
            );
            return Err(Error::damaged(PLACE, problem));
        }
        let geometry = Self { block_bytes, first, end, features };
        Ok(Ok((geometry, (start != 0).then_some((start, sequence)))))
    }

    /// The log is a ring.
    fn behind(self, block: u32) -> u32 {
        if block + 1 >= self.end { self.first } else { block + 1 }
    }

    /// Bytes of a block that has a checksum at its end, without it.
    fn body_bytes(self) -> usize {
        let tail = self.features & (CHECKSUM_V2 | CHECKSUM_V3) != 0;
        self.block_bytes as usize - if tail { TAIL_BYTES } else { 0 }
    }

    fn tag_bytes(self) -> usize {
        if self.features & CHECKSUM_V3 != 0 {
            return 16;
        }
        let wide = if self.features & BITS_64 != 0 { 12 } else { 8 };
        wide + if self.features & CHECKSUM_V2 != 0 { 2 } else { 0 }
    }

    /// Blocks that a descriptor tells, in the order in which they follow it; and their flags.
    fn tags(self, descriptor: &[u8]) -> Vec<(u64, u32)> {
        let body = Fields(descriptor).bytes(0, self.body_bytes());
        let (mut at, mut tags) = (HEADER_BYTES, Vec::new());
        while at + self.tag_bytes() <= body.len() {
            let fields = Fields(&body[at..]);
            let flags = match self.features & CHECKSUM_V3 != 0 {
                true => be32(fields, 4),
                false => be32(fields, 4) & 0xffff, // behind a checksum of 16 bits
            };
            let high = if self.features & BITS_64 != 0 { be32(fields, 8) } else { 0 };
            tags.push((u64::from(high) << 32 | u64::from(be32(fields, 0)), flags));
            at += self.tag_bytes() + if flags & SAME_UUID == 0 { UUID_BYTES } else { 0 };
            if flags & LAST != 0 {
                break;
            }
        }
        tags
    }

    fn revoked(self, block: &[u8]) -> Vec<u64> {
        let used = (be32(Fields(block), 12) as usize).min(self.body_bytes());
        let body = block.get(16..used).unwrap_or_default();
        let wide = self.features & BITS_64 != 0;
        let numbers = body.chunks_exact(if wide { 8 } else { 4 });
        let number = |bytes: &[u8]| match wide {
            true => u64::from_be_bytes(Fields(bytes).array(0)),
            false => u64::from(be32(Fields(bytes), 0)),
        };
        numbers.map(number).collect()
    }
}

impl Log {
    /// What of it is still there, if it goes on from where it was read to.
    fn since(mut self, geometry: Geometry, begin: (u32, u32)) -> Option<Self> {
        let is_known = self.geometry == geometry
            && (self.next == begin || self.transactions.iter().any(|one| one.begin == begin));
        if !is_known {
            return None;
        }
        while self.transactions.front().is_some_and(|one| one.begin != begin) {
            let gone = self.transactions.pop_front();
            self.revokes -= gone.map_or(0, |gone| gone.revoked.len());
        }
        Some(self)
    }

    /// Reads what was committed since. False: it is too much.
    async fn read_on(&mut self, blocks: &mut Blocks<'_>) -> Result<bool> {
        let geometry = self.geometry;
        let mut open = Transaction { begin: self.next, ..Transaction::default() };
        let mut at = self.next.0;
        let mut left = geometry.end; // no more than there are
        while left > 0 {
            if blocks.read_bytes > JOURNAL_BYTES_MAX {
                return Ok(false);
            }
            let block = blocks.read(at).await?;
            let fields = Fields(&block);
            if be32(fields, 0) != MAGIC || be32(fields, 8) != open.begin.1 {
                break;
            }
            (at, left) = (geometry.behind(at), left - 1);
            match be32(fields, 4) {
                DESCRIPTOR => {
                    for (block, flags) in geometry.tags(&block) {
                        open.blocks.push((block, at, flags & ESCAPED != 0));
                        (at, left) = (geometry.behind(at), left.saturating_sub(1));
                    }
                }
                REVOKE => open.revoked.extend(geometry.revoked(&block)),
                COMMIT => {
                    self.revokes += open.revoked.len();
                    if self.revokes > JOURNAL_REVOKES_MAX {
                        let most = JOURNAL_REVOKES_MAX as u64;
                        return Err(Error::too_much(PLACE, "revoked blocks", most));
                    }
                    self.next = (at, open.begin.1.wrapping_add(1));
                    let next = Transaction { begin: self.next, ..Transaction::default() };
                    self.transactions.push_back(std::mem::replace(&mut open, next));
                }
                _ => break,
            }
        }
        Ok(true)
    }

    /// The newest content of each block that is not in its place.
    fn newer(&self, extents: &[FileExtent]) -> Result<BTreeMap<u64, Newer>> {
        let mut revoked = HashMap::new();
        for (number, one) in self.transactions.iter().enumerate() {
            revoked.extend(one.revoked.iter().map(|block| (*block, number)));
        }
        let mut newer = BTreeMap::new();
        for (number, one) in self.transactions.iter().enumerate() {
            for (block, at, is_escaped) in &one.blocks {
                if revoked.get(block).is_some_and(|last| *last >= number) {
                    newer.remove(block);
                    continue;
                }
                let at = place(extents, u64::from(*at) * self.geometry.block_bytes)?;
                let magic = is_escaped.then_some(MAGIC.to_be_bytes());
                newer.insert(*block, Newer { at, begins_with: magic });
            }
        }
        Ok(newer)
    }
}

impl Blocks<'_> {
    /// A block of the log.
    async fn read(&mut self, number: u32) -> Result<Bytes> {
        let block = self.geometry.block_bytes;
        let inside = number.checked_sub(self.from).map(|index| u64::from(index) * block);
        if let Some(at) = inside.filter(|at| at + block <= self.piece.len() as u64) {
            return Ok(self.piece.slice(at as usize..(at + block) as usize));
        }
        let offset = u64::from(number) * block;
        let at = place(self.extents, offset)?;
        let extent = self.extents.iter().find(|extent| extent.end() > offset);
        let end = extent.map_or(offset, FileExtent::end).min(u64::from(self.geometry.end) * block);
        let len = self.piece_bytes.max(block).min(end.saturating_sub(offset)) / block * block;
        if len == 0 {
            return Err(Error::damaged(PLACE, format!("block {number} is not in its file")));
        }
        self.piece = self.source.read(at, len as usize, PLACE).await?;
        self.from = number;
        self.read_bytes += len;
        self.piece_bytes = (2 * self.piece_bytes).min(PIECE_BYTES_MAX);
        Ok(self.piece.slice(..block as usize))
    }
}

/// Where a byte of the journal's file is.
fn place(extents: &[FileExtent], offset: u64) -> Result<u64> {
    let index = extents.partition_point(|extent| extent.end() <= offset);
    let extent = extents.get(index);
    let at = extent.and_then(|extent| Some(extent.at? + (offset - extent.offset)));
    at.ok_or_else(|| Error::damaged(PLACE, format!("byte {offset} of its file is nowhere")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::backend::MemoryDevice;
    use block::{BlockDevice, WriteFlags};

    use super::*;

    const BLOCK: u64 = 4096;
    const END: u32 = 16;
    /// Where the journal is: behind the blocks that it is about.
    const AT: u64 = 64 * BLOCK;

    /// A journal of 15 blocks of log that is written by hand.
    struct Hand {
        device: Arc<MemoryDevice>,
        at: u32,
        sequence: u32,
    }

    impl Hand {
        async fn new() -> Self {
            let hand = Self {
                device: Arc::new(MemoryDevice::new(AT + u64::from(END) * BLOCK, 512).unwrap()),
                at: 1,
                sequence: 7,
            };
            hand.begin(1, 7).await;
            hand
        }

        /// The superblock: where the log begins.
        async fn begin(&self, start: u32, sequence: u32) {
            let mut raw = vec![0; BLOCK as usize];
            let words = [MAGIC, SUPERBLOCK_V2, 0, BLOCK as u32, END, 1, sequence, start, 0, 0];
            for (n, word) in words.into_iter().chain([REVOKES | BITS_64 | CHECKSUM_V3]).enumerate()
            {
                raw[4 * n..4 * n + 4].copy_from_slice(&word.to_be_bytes());
            }
            self.put(0, raw).await;
        }

        async fn put(&self, block: u32, bytes: Vec<u8>) {
            let offset = AT + u64::from(block) * BLOCK;
            self.device.write(offset, bytes.into(), WriteFlags::NONE).await.unwrap();
        }

        async fn add(&mut self, kind: u32, body: &[u8]) {
            let header = [MAGIC, kind, self.sequence].map(u32::to_be_bytes).concat();
            let mut raw = [&header[..], body].concat();
            raw.resize(BLOCK as usize, 0);
            self.put(self.at, raw).await;
            self.at = if self.at + 1 == END { 1 } else { self.at + 1 };
        }

        /// A transaction that writes these blocks, each full of a byte, and is committed or not.
        async fn commit(&mut self, blocks: &[(u64, u8)], revoked: &[u64], is_committed: bool) {
            if !revoked.is_empty() {
                let used = 16 + 8 * revoked.len() as u32;
                let numbers = revoked.iter().flat_map(|block| block.to_be_bytes());
                let body: Vec<u8> = used.to_be_bytes().into_iter().chain(numbers).collect();
                self.add(REVOKE, &body).await;
            }
            if !blocks.is_empty() {
                let mut body = Vec::new();
                for (n, (block, _)) in blocks.iter().enumerate() {
                    let last = if n + 1 == blocks.len() { LAST } else { 0 };
                    let same = if n == 0 { 0 } else { SAME_UUID };
                    let words = [*block as u32, last | same, (*block >> 32) as u32, 0];
                    body.extend(words.map(u32::to_be_bytes).concat());
                    body.extend(if n == 0 { vec![0xaa; UUID_BYTES] } else { Vec::new() });
                }
                self.add(DESCRIPTOR, &body).await;
                for (_, byte) in blocks {
                    let content = vec![*byte; BLOCK as usize];
                    self.put(self.at, content).await;
                    self.at = if self.at + 1 == END { 1 } else { self.at + 1 };
                }
            }
            if is_committed {
                self.add(COMMIT, &[]).await;
                self.sequence += 1;
            }
        }

        /// Numbers of blocks, and the byte that the log has for each.
        async fn newer(&self, journal: &mut Journal) -> Vec<(u64, u8)> {
            let source = Source::new(self.device.clone(), 0, u64::MAX);
            let len = u64::from(END) * BLOCK;
            let extents = [FileExtent { offset: 0, len, at: Some(AT) }];
            let found = journal.look(&source, &extents, BLOCK).await.unwrap();
            let Found::Blocks(newer) = found else { panic!("{found:?}") };
            let mut all = Vec::new();
            for (block, newer) in newer {
                all.push((block, source.read(newer.at, 1, "test").await.unwrap()[0]));
            }
            all
        }
    }

    #[tokio::test]
    async fn what_is_committed_counts_until_it_is_revoked() {
        let mut hand = Hand::new().await;
        hand.commit(&[(5, 1), (1 << 33, 2)], &[], true).await;
        hand.commit(&[(5, 3)], &[], true).await;
        assert_eq!(hand.newer(&mut Journal::default()).await, [(5, 3), (1 << 33, 2)]);
        hand.commit(&[(9, 4)], &[1 << 33], true).await;
        hand.commit(&[(5, 9)], &[], false).await;
        assert_eq!(hand.newer(&mut Journal::default()).await, [(5, 3), (9, 4)]);
    }

    #[tokio::test]
    async fn a_log_that_goes_on_round_is_read_on() {
        let mut hand = Hand::new().await;
        let mut journal = Journal::default();
        let mut begins = VecDeque::new();
        for round in 0..30 {
            begins.push_back((hand.at, hand.sequence));
            hand.commit(&[(round, round as u8 + 1), (50, round as u8)], &[], true).await;
            if begins.len() > 3 {
                let gone = begins.pop_front().unwrap(); // is in its place
                hand.begin(begins[0].0, begins[0].1).await;
                assert_ne!(gone, begins[0]);
            }
            let expected = hand.newer(&mut Journal::default()).await;
            assert_eq!(hand.newer(&mut journal).await, expected, "round {round}");
            assert_eq!(expected.len(), begins.len() + 1, "round {round}");
            assert_eq!(expected.last(), Some(&(50, round as u8)));
        }
        hand.begin(0, hand.sequence).await;
        assert_eq!(hand.newer(&mut journal).await, []);
    }

    #[tokio::test]
    async fn what_cannot_be_is_told_and_what_is_not_known_is_left_alone() {
        let hand = Hand::new().await;
        let source = Source::new(hand.device.clone(), 0, u64::MAX);
        let extents = [FileExtent { offset: 0, len: u64::from(END) * BLOCK, at: Some(AT) }];
        let look = async |at: usize, value: u32| {
            hand.begin(1, 7).await;
            let raw = value.to_be_bytes().to_vec();
            let mut block = source.read(AT, BLOCK as usize, "test").await.unwrap().to_vec();
            block[at..at + 4].copy_from_slice(&raw);
            hand.put(0, block).await;
            source.forget();
            let found = Journal::default().look(&source, &extents, BLOCK).await;
            source.forget();
            found
        };
        for (at, value) in [(0, 0), (4, 9), (0xc, 512), (0x10, 17), (0x14, 0), (0x1c, 16)] {
            let error = look(at, value).await.unwrap_err().to_string();
            assert!(error.starts_with("ext4 journal: "), "{at}: {error}");
        }
        for features in [0x4, 0x20, 0x8000_0000] {
            assert!(matches!(look(0x28, features).await, Ok(Found::Unreadable(_))), "{features}");
        }
        let nowhere = [FileExtent { offset: 0, len: u64::from(END) * BLOCK, at: None }];
        assert!(Journal::default().look(&source, &nowhere, BLOCK).await.is_err());
    }
}
