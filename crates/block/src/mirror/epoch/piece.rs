//! What an epoch writes: pieces that do not overlap, and what is sent of them.
//!
//! A later write replaces what it overlaps with of an earlier one, which is then never sent
//! (folding): within an epoch a leg may hold any part of it.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::Legs;
use super::range_map::{Cut, RangeMap};

/// What a piece costs beside its data: two entries in B-trees, the handle of its data, and their
/// share of half-full nodes.
pub const PIECE_OVERHEAD_BYTES: u64 = 256;

/// What is left of a write after later ones covered the rest keeps the whole buffer of it in
/// memory, unless it is less than one part in so many: then it is copied out. So a log of writes
/// that cover each other in part takes at most so many times what is counted.
const REMNANT_PARTS: usize = 2;

/// What is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// These bytes.
    Data(Bytes),
    /// So many zeroes, which cost no memory.
    Zero(u64),
}

impl Content {
    /// These bytes, or as many zeroes where they are nothing else.
    pub(crate) fn of(data: Bytes) -> Self {
        if crate::copy::is_zero(&data) { Self::Zero(data.len() as u64) } else { Self::Data(data) }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Data(data) => data.len() as u64,
            Self::Zero(len) => *len,
        }
    }

    /// It has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that are not zeroes by themselves: what it takes of memory, and of a line.
    pub(crate) fn data_bytes(&self) -> u64 {
        match self {
            Self::Data(data) => data.len() as u64,
            Self::Zero(_) => 0,
        }
    }

    fn part(&self, at: u64, len: u64) -> Self {
        match self {
            Self::Data(data) => Self::Data(data.slice(at as usize..(at + len) as usize)),
            Self::Zero(_) => Self::Zero(len),
        }
    }
}

/// Content and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub offset: u64,
    /// What is there.
    pub content: Content,
}

impl Piece {
    /// Its bytes.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.content.len()
    }
}

/// A piece in memory.
#[derive(Clone, Debug)]
pub(super) struct Held {
    content: Content,
    /// Legs that are to have it.
    pub(super) legs: Legs,
    /// Bytes of the buffer that the content is a part of.
    buffer_bytes: usize,
}

impl Cut for Held {
    fn part(&self, at: u64, len: u64) -> Self {
        let mut part = Self { content: self.content.part(at, len), ..*self };
        if let Content::Data(data) = &mut part.content
            && data.len() < part.buffer_bytes / REMNANT_PARTS
        {
            *data = Bytes::copy_from_slice(data);
            part.buffer_bytes = data.len();
        }
        part
    }
}

/// Pieces that do not overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    map: RangeMap<Held>,
    data_bytes: u64,
}

impl Pieces {
    pub(super) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// What they cost in memory.
    pub(super) fn held_bytes(&self) -> u64 {
        self.data_bytes + self.map.len() as u64 * PIECE_OVERHEAD_BYTES
    }

    /// `range` of what was written at `offset` is for `legs`.
    pub(super) fn insert(&mut self, range: Range<u64>, offset: u64, content: &Content, legs: Legs) {
        let buffer_bytes = match content {
            Content::Data(data) => data.len(),
            Content::Zero(_) => 0,
        };
        let whole = Held { content: content.clone(), legs, buffer_bytes };
        let part = whole.part(range.start - offset, range.end - range.start);
        self.put(range, part);
    }

    fn put(&mut self, range: Range<u64>, held: Held) {
        self.data_bytes += held.content.data_bytes();
        for (_, replaced) in self.map.insert(range, held) {
            self.data_bytes -= replaced.content.data_bytes();
        }
    }

    /// Adds the pieces for `leg` of a later epoch.
    pub(super) fn fold(&mut self, later: &Self, leg: usize) {
        for (range, held) in later.for_leg(leg) {
            self.put(range, held.clone());
        }
    }

    /// Those for `leg`.
    pub(super) fn for_leg(&self, leg: usize) -> impl Iterator<Item = (Range<u64>, &Held)> {
        self.map.iter().filter(move |(_, held)| held.legs.contains(leg))
    }

    /// All ranges.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.map.iter().map(|(range, _)| range)
    }

    /// What lies in `range`, in order.
    pub(super) fn parts(&self, range: &Range<u64>) -> impl Iterator<Item = Piece> + use<> {
        let piece = |(range, held): (Range<u64>, Held)| Piece {
            offset: range.start,
            content: held.content,
        };
        self.map.parts(range).into_iter().map(piece)
    }

    /// All of them, in order.
    pub(super) fn into_pieces(self) -> Vec<Piece> {
        let piece = |(range, held): (Range<u64>, &Held)| Piece {
            offset: range.start,
            content: held.content.clone(),
        };
        self.map.iter().map(piece).collect()
    }
}

/// What is sent to a leg between two flushes: it may take effect in any order and in part.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Its last epoch. When the batch is stable at the leg, so is every epoch up to this one.
    pub epoch: u64,
    /// When that epoch was closed: the moment of whose image the leg then has.
    pub closed: std::time::Duration,
    pub(super) pieces: Vec<Piece>,
}

impl Batch {
    /// What it costs in memory.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let data: u64 = self.pieces.iter().map(|piece| piece.content.data_bytes()).sum();
        data + self.pieces.len() as u64 * PIECE_OVERHEAD_BYTES
    }

    /// The writes, made one by one as they are asked for: adjacent data are joined up to
    /// `data_bytes_max`, adjacent zeroes up to `zero_bytes_max`, and what is longer is cut.
    pub fn into_writes(
        self,
        data_bytes_max: u64,
        zero_bytes_max: u64,
    ) -> impl Iterator<Item = Piece> + Send {
        let mut pieces = self.pieces.into_iter().peekable();
        let mut rest: Option<Piece> = None;
        std::iter::from_fn(move || {
            let first = rest.take().or_else(|| pieces.next())?;
            let zero = matches!(first.content, Content::Zero(_));
            let max = if zero { zero_bytes_max } else { data_bytes_max };
            let mut together = vec![first];
            let mut len = together[0].content.len();
            let mut end = together[0].range().end;
            while len < max
                && let Some(next) = pieces.next_if(|next| {
                    next.offset == end && matches!(next.content, Content::Zero(_)) == zero
                })
            {
                len += next.content.len();
                end = next.range().end;
                together.push(next);
            }
            if len > max
                && let Some(last) = together.pop()
            {
                let keep = last.content.len() - (len - max);
                let content = last.content.part(keep, len - max);
                rest = Some(Piece { offset: last.offset + keep, content });
                together.push(Piece { content: last.content.part(0, keep), ..last });
            }
            Some(as_one(together))
        })
    }
}

/// Adjacent pieces of one kind as one. Only what really is more than one piece is copied.
fn as_one(mut pieces: Vec<Piece>) -> Piece {
    if pieces.len() == 1 {
        return pieces.swap_remove(0);
    }
    let offset = pieces[0].offset;
    let len: u64 = pieces.iter().map(|piece| piece.content.len()).sum();
    let mut all = BytesMut::new();
    for piece in &pieces {
        if let Content::Data(data) = &piece.content {
            all.reserve(len as usize - all.len());
            all.extend_from_slice(data);
        }
    }
    let content = if all.is_empty() { Content::Zero(len) } else { Content::Data(all.freeze()) };
    Piece { offset, content }
}
