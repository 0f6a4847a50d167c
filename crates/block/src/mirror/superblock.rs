//! The blocks that say what a device is: superblocks of the metadata device and of a leg, and the
//! stamp on a leg. Codec only: no I/O.
//!
//! A block is 4 KiB: magic, kind, version, CRC32C of the whole, then fields, little-endian. Of each
//! there are two copies, written in turn, so that a torn one leaves the one before. The copy with
//! sequence number n has the place n mod 2: two good copies never have the same number.

use super::bitmap::BitmapId;
use super::generation::{GenerationId, HISTORY_MAX, Lineage, Past, WallMs};
use super::status::LegState;
use super::{BLOCK_BYTES, LEGS_MAX};

mod committed;
mod raw;
mod verified;

pub use committed::Committed;
pub use verified::Verified;

#[cfg(test)]
pub(super) use raw::places;
pub(super) use raw::{open, seal};

/// Bytes of each of these blocks.
pub const BYTES: usize = BLOCK_BYTES as usize;
/// One of these blocks.
pub type Block = [u8; BYTES];

/// Version of the format. Whatever has a higher one is left alone.
pub const VERSION: u32 = 1;

/// Bytes of a leg's name (a URL or a path) at most: an iSCSI name has 223.
pub const NAME_BYTES_MAX: usize = 512;
/// Bytes of what a unit says it is at most.
pub const IDENTITY_BYTES_MAX: usize = 256;

/// The name of a mirror: 128 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MirrorId(pub u128);

impl std::fmt::Display for MirrorId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}-{:04x}", self.0 >> 96, self.0 >> 80 & 0xffff)
    }
}

/// The name of a leg: 128 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LegId(pub u128);

/// What a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Superblock of a metadata device.
    Local,
    /// Superblock of a leg.
    Remote,
    /// Stamp of a leg.
    Stamp,
    /// Record of the activity ring.
    Activity,
    /// In front of the blocks that differ of a local device that was given back.
    HandOver,
    /// In front of the data of a record of the redo log.
    Redo,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Local => "the superblock of a mirror's metadata",
            Self::Remote => "the superblock of a mirror's leg",
            Self::Stamp => "the stamp of a mirror's leg",
            Self::Activity => "a record of a mirror's activity log",
            Self::HandOver => "the record of a mirror's disk that was given back",
            Self::Redo => "a record of the redo log of a mirror's leg",
        })
    }
}

/// Why a block is not what was looked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockFault {
    /// Nothing was ever written there.
    #[error("the block is all zeroes: there is no metadata of a mirror")]
    Blank,
    /// Somebody else's.
    #[error("the block holds data of another kind (it begins with {found:02x?})")]
    Foreign {
        /// Its first bytes.
        found: [u8; 8],
    },
    /// A mirror's, but something else.
    #[error("found {found}, where {expected} was expected")]
    Kind {
        /// What is there.
        found: Kind,
        /// What was looked for.
        expected: Kind,
    },
    /// Written by a program that knows more.
    #[error(
        "{kind} has version {found}; this program knows versions up to {VERSION} and leaves it \
         alone"
    )]
    Newer {
        /// What it is.
        kind: Kind,
        /// Its version.
        found: u32,
    },
    /// The checksum is wrong: torn by a power cut, or damaged.
    #[error(
        "{kind} is torn or damaged: checksum {found:#010x} stands there, {computed:#010x} would be \
         right"
    )]
    Damaged {
        /// What it is.
        kind: Kind,
        /// The checksum in it.
        found: u32,
        /// The one of its content.
        computed: u32,
    },
    /// The checksum is right and the content is not: a bug, or somebody's hand.
    #[error("{kind} has a right checksum and an impossible {field} ({found})")]
    Impossible {
        /// What it is.
        kind: Kind,
        /// Which field.
        field: &'static str,
        /// What it holds.
        found: u128,
    },
    /// A text does not fit.
    #[error("the {field} of a leg has {found} bytes; {allowed} are possible")]
    TooLong {
        /// Which field.
        field: &'static str,
        /// Bytes it has.
        found: usize,
        /// Bytes it may have.
        allowed: usize,
    },
    /// The two copies are of two mirrors.
    #[error("one copy of {kind} is of mirror {first}, the other of mirror {second}")]
    TwoMirrors {
        /// What it is.
        kind: Kind,
        /// The mirror of the first copy.
        first: MirrorId,
        /// The mirror of the second.
        second: MirrorId,
    },
    /// Neither copy can be used.
    #[error("neither copy can be used: {first}; {second}")]
    Neither {
        /// Why not the first.
        first: Box<BlockFault>,
        /// Why not the second.
        second: Box<BlockFault>,
    },
}

impl BlockFault {
    /// Nothing is there at all: the place may be formatted without asking.
    pub fn is_blank(&self) -> bool {
        match self {
            Self::Blank => true,
            Self::Neither { first, second } => first.is_blank() && second.is_blank(),
            _ => false,
        }
    }
}

/// Which side of the mirror the local device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It is written here, and the legs follow.
    Primary,
    /// The local device has failed while the legs went on.
    Secondary,
    /// The local device is given up for the image of a leg, and gets that: it is no image until
    /// then.
    Restoring,
    /// A leg was promoted, and the local device was given back to it: nothing is written here but
    /// by failing back.
    HandedBack,
}

/// What is known here about a leg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegRecord {
    /// Its name for us; the leg's superblock has it too.
    pub id: LegId,
    /// What the unit said it is when the leg was added; empty if it did not.
    pub identity: String,
    /// Its URL without credentials, or its path.
    pub name: String,
    /// Where it stood last.
    pub state: LegState,
    /// The generation in which it was followed last.
    pub base: GenerationId,
    /// All epochs up to here are known to be stable there.
    pub acked_epoch: u64,
    /// Number of its superblock as we wrote it last: a lower one means it was put back.
    pub superblock_sequence: u64,
    /// Name of the pages of its bitmap. A new one means that everything may differ.
    pub bitmap: BitmapId,
    /// Size of the leg in bytes, from which the place of its metadata follows.
    pub leg_bytes: u64,
    /// Bytes of its redo log.
    pub redo_bytes: u64,
    /// How it compared with the local device.
    pub verified: Verified,
}

impl LegRecord {
    /// It is the former local device of the mirror, to be given back by its site, and was not met
    /// yet: its size is not known.
    pub fn is_awaited(&self) -> bool {
        self.leg_bytes == 0
    }
}

/// Superblock of the metadata device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalSuperblock {
    /// Which mirror.
    pub uuid: MirrorId,
    /// Counts the changes of the superblock; also tells the place of this copy.
    pub sequence: u64,
    /// Bytes of the image.
    pub size: u64,
    /// Which side it is.
    pub role: Role,
    /// The mirror was closed in order. For people: what may differ is decided by the log and the
    /// bitmaps alone.
    pub clean: bool,
    /// Records of the activity ring below this number count no more.
    pub ring_from: u64,
    /// No epoch above this number was ever begun.
    pub epoch_max: u64,
    /// The generations of the image.
    pub lineage: Lineage,
    /// Its legs in their order, which is that of their places; behind the last there are none.
    pub legs: [Option<LegRecord>; LEGS_MAX],
}

/// What the image of a leg is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case", tag = "is", content = "epoch")]
pub enum Consistency {
    /// One that the local device might have had.
    Consistent,
    /// None since this epoch: a copy in place is under way.
    InconsistentSince(u64),
    /// One after a committed batch of the redo log was copied home, which whoever finds it does.
    Applying(Committed),
}

/// Superblock of a leg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSuperblock {
    /// Which mirror.
    pub uuid: MirrorId,
    /// Counts the changes of the superblock; also tells the place of this copy.
    pub sequence: u64,
    /// Which leg of it.
    pub leg: LegId,
    /// The generations of its image.
    pub lineage: Lineage,
    /// Bytes of the image, which is at byte 0.
    pub data_bytes: u64,
    /// Bytes of the redo log.
    pub redo_bytes: u64,
    /// What the image is.
    pub consistency: Consistency,
    /// Who writes to it: the host and process, for people; empty when nobody does.
    pub writer: String,
    /// When the writer last gave a sign of life, by its own clock.
    pub lease: WallMs,
}

/// What a leg has: all epochs up to this one, stable, and none above begun but the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Which mirror.
    pub uuid: MirrorId,
    /// The generation in which the epoch was closed.
    pub generation: GenerationId,
    /// The epoch.
    pub epoch: u64,
    /// When the epoch was closed: the time of the image.
    pub closed: WallMs,
}

/// A block that there are two copies of.
pub trait Record: Sized + PartialEq {
    /// Its kind.
    const KIND: Kind;

    /// The block.
    ///
    /// # Errors
    /// [`BlockFault::TooLong`].
    fn encode(&self) -> Result<Box<Block>, BlockFault>;

    /// What a block says.
    ///
    /// # Errors
    /// [`BlockFault`]: whatever is there instead.
    fn decode(block: &Block) -> Result<Self, BlockFault>;

    /// Number by which copies are told apart, and which tells their place.
    fn sequence(&self) -> u64;

    /// Which mirror.
    fn mirror(&self) -> MirrorId;
}

/// The newer of two copies, given in the order of their places.
///
/// # Errors
/// [`BlockFault::Newer`] if one of them is: the other one is not the present state then. Otherwise
/// one good copy is enough; [`BlockFault::TwoMirrors`], [`BlockFault::Neither`].
pub fn newest<T: Record>(first: &Block, second: &Block) -> Result<T, BlockFault> {
    match (decode_at::<T>(0, first), decode_at::<T>(1, second)) {
        (Err(newer @ BlockFault::Newer { .. }), _) | (_, Err(newer @ BlockFault::Newer { .. })) => {
            Err(newer)
        }
        (Ok(first), Ok(second)) if first.mirror() != second.mirror() => {
            let (first, second) = (first.mirror(), second.mirror());
            Err(BlockFault::TwoMirrors { kind: T::KIND, first, second })
        }
        (Ok(first), Ok(second)) => {
            Ok(if first.sequence() > second.sequence() { first } else { second })
        }
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
        (Err(first), Err(second)) if first == second => Err(first),
        (Err(first), Err(second)) => {
            Err(BlockFault::Neither { first: Box::new(first), second: Box::new(second) })
        }
    }
}

fn decode_at<T: Record>(place: u64, block: &Block) -> Result<T, BlockFault> {
    let record = T::decode(block)?;
    let sequence = record.sequence();
    // The last number of all has no next one, and no mirror gets there.
    if sequence % 2 != place || sequence == u64::MAX {
        let found = sequence.into();
        return Err(BlockFault::Impossible { kind: T::KIND, field: "sequence number", found });
    }
    Ok(record)
}

impl Record for LocalSuperblock {
    const KIND: Kind = Kind::Local;

    fn encode(&self) -> Result<Box<Block>, BlockFault> {
        raw::Local::from_parsed(self).map(|raw| raw::seal(Self::KIND, &raw))
    }

    fn decode(block: &Block) -> Result<Self, BlockFault> {
        raw::open::<raw::Local>(Self::KIND, block)?.parse()
    }

    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn mirror(&self) -> MirrorId {
        self.uuid
    }
}

impl Record for RemoteSuperblock {
    const KIND: Kind = Kind::Remote;

    fn encode(&self) -> Result<Box<Block>, BlockFault> {
        raw::Remote::from_parsed(self).map(|raw| raw::seal(Self::KIND, &raw))
    }

    fn decode(block: &Block) -> Result<Self, BlockFault> {
        raw::open::<raw::Remote>(Self::KIND, block)?.parse()
    }

    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn mirror(&self) -> MirrorId {
        self.uuid
    }
}

impl Record for Stamp {
    const KIND: Kind = Kind::Stamp;

    fn encode(&self) -> Result<Box<Block>, BlockFault> {
        Ok(raw::seal(Self::KIND, &raw::Stamp::from_parsed(self)))
    }

    fn decode(block: &Block) -> Result<Self, BlockFault> {
        Ok(raw::open::<raw::Stamp>(Self::KIND, block)?.parse())
    }

    fn sequence(&self) -> u64 {
        self.epoch
    }

    fn mirror(&self) -> MirrorId {
        self.uuid
    }
}

#[cfg(test)]
mod tests;
