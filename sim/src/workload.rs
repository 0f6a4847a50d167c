//! What the application does: reads, writes, flushes and odd commands, and what its blocks hold.
//! The simulated unit speaks a command block of its own that names the operation, so that whoever
//! executes it can be asked which one it was. Real SCSI lives in `crates/scsi`.

use bytes::Bytes;

use crate::rng::Rng;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 512;

/// Logical units, so that what happens to one can be seen not to touch the other.
pub(crate) const UNITS: u64 = 2;

/// Blocks of a unit: few, so that operations overlap.
pub(crate) const BLOCKS: u32 = 160;

/// An operation of the application, numbered from 1; 0 stands for the initial content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OpId(pub(crate) u32);

impl std::fmt::Display for OpId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "op {}", self.0)
    }
}

/// A range of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Extent {
    pub(crate) fn blocks(self) -> std::ops::Range<u32> {
        self.first..self.first + self.count
    }

    pub(crate) const fn len(self) -> usize {
        self.count as usize * BLOCK
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Read(Extent),
    Write(Extent),
    /// No data either way.
    Flush,
    /// Reads `expected` bytes of something that is `wanted` bytes long: residuals.
    Inquire {
        expected: u32,
        wanted: u32,
    },
}

impl Action {
    const fn code(self) -> u8 {
        match self {
            Self::Read(_) => 0xc0,
            Self::Write(_) => 0xc1,
            Self::Flush => 0xc2,
            Self::Inquire { .. } => 0xc3,
        }
    }

    /// The command block of this action as operation `op`.
    pub(crate) fn cdb(self, op: OpId) -> [u8; 16] {
        let (a, b) = match self {
            Self::Read(extent) | Self::Write(extent) => (extent.first, extent.count),
            Self::Flush => (0, 0),
            Self::Inquire { expected, wanted } => (expected, wanted),
        };
        let mut cdb = [0; 16];
        cdb[0] = self.code();
        cdb[1..5].copy_from_slice(&op.0.to_be_bytes());
        cdb[5..9].copy_from_slice(&a.to_be_bytes());
        cdb[9..13].copy_from_slice(&b.to_be_bytes());
        cdb
    }

    /// Reads a command block.
    pub(crate) fn parse(cdb: &[u8; 16]) -> Option<(OpId, Self)> {
        let be32 = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| cdb[at + i]));
        let (op, a, b) = (OpId(be32(1)), be32(5), be32(9));
        let extent = Extent { first: a, count: b };
        let action = match cdb[0] {
            0xc0 => Self::Read(extent),
            0xc1 => Self::Write(extent),
            0xc2 => Self::Flush,
            0xc3 => Self::Inquire { expected: a, wanted: b },
            _ => return None,
        };
        Some((op, action))
    }

    /// Bytes the application expects to read.
    pub(crate) const fn data_in_len(self) -> u32 {
        match self {
            Self::Read(extent) => extent.len() as u32,
            Self::Inquire { expected, .. } => expected,
            Self::Write(_) | Self::Flush => 0,
        }
    }
}

/// What kind of work an application does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    /// Operations in all.
    pub(crate) operations: u32,
    /// Operations at once.
    pub(crate) depth: u32,
    /// Writes in percent; most of the rest are reads.
    pub(crate) writes: u32,
    /// Longest transfer in blocks.
    pub(crate) blocks_max: u32,
    /// Blocks that most of the work happens on.
    pub(crate) hot_blocks: u32,
}

/// Makes up an operation.
pub(crate) fn generate(mix: &Mix, rng: &mut Rng) -> (u64, Action) {
    let unit = rng.below(UNITS);
    let kind = rng.below(100) as u32; // below 100
    let action = if kind < mix.writes {
        Action::Write(extent(mix, rng))
    } else if kind < 90 {
        Action::Read(extent(mix, rng))
    } else if kind < 96 {
        Action::Flush
    } else {
        let expected = rng.range(1, 3000) as u32; // fits: at most 3000
        let wanted = if rng.coin() { rng.range(0, 4000) as u32 } else { expected };
        Action::Inquire { expected, wanted }
    };
    (unit, action)
}

fn extent(mix: &Mix, rng: &mut Rng) -> Extent {
    let span = if rng.percent(80) { mix.hot_blocks } else { BLOCKS };
    let first = rng.below(u64::from(span)) as u32; // below BLOCKS
    let longest = mix.blocks_max.min(BLOCKS - first);
    let count = rng.skewed(u64::from(longest)).max(1) as u32; // at most BLOCKS
    Extent { first, count }
}

/// Content of a block as operation `op` writes it: each word tells whose and which it is.
pub(crate) fn fill(op: OpId, block: u32, out: &mut Vec<u8>) {
    let word = u64::from(op.0) << 32 | u64::from(block);
    let mut words = [0; BLOCK];
    for (i, chunk) in words.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&word.rotate_left(i as u32 & 7).to_be_bytes());
    }
    out.extend_from_slice(&words);
}

/// Content of an extent written by one operation.
pub(crate) fn content(op: OpId, extent: Extent) -> Bytes {
    let mut out = Vec::with_capacity(extent.len());
    extent.blocks().for_each(|block| fill(op, block, &mut out));
    out.into()
}

/// Who wrote a block as read, `None` if nobody writes such a thing there.
pub(crate) fn author(block: u32, bytes: &[u8]) -> Option<OpId> {
    let op = OpId(u32::from_be_bytes(*bytes.first_chunk()?));
    let mut expected = Vec::with_capacity(BLOCK);
    fill(op, block, &mut expected);
    (expected == bytes).then_some(op)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_block_tells_what_it_was_made_from() {
        let extent = Extent { first: 3, count: 4 };
        let inquire = Action::Inquire { expected: 5, wanted: 6 };
        for action in [Action::Read(extent), Action::Write(extent), Action::Flush, inquire] {
            assert_eq!(Action::parse(&action.cdb(OpId(77))), Some((OpId(77), action)));
        }
        assert_eq!(Action::parse(&[0; 16]), None);
    }

    #[test]
    fn a_block_tells_who_wrote_it_and_whether_it_is_whole() {
        let mut bytes = content(OpId(9), Extent { first: 4, count: 2 }).to_vec();
        assert_eq!(author(5, &bytes[BLOCK..]), Some(OpId(9)));
        assert_eq!(author(4, &bytes[BLOCK..]), None);
        bytes[100] ^= 1;
        assert_eq!(author(4, &bytes[..BLOCK]), None);
    }
}
