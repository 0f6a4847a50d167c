//! The blocks as they lie on the device: fields in their places, which may hold anything. What
//! they mean is checked when they are parsed.

use zerocopy::byteorder::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::committed::RawCommitted;
use super::verified::RawVerified;
use super::{
    BYTES, BitmapId, Block, BlockFault, Consistency, GenerationId, HISTORY_MAX, IDENTITY_BYTES_MAX,
    Kind, LEGS_MAX, LegId, LegRecord, LegState, Lineage, LocalSuperblock, MirrorId, NAME_BYTES_MAX,
    Past, RemoteSuperblock, Role, VERSION, WallMs,
};

const MAGIC: [u8; 8] = *b"EnkakuMi";

/// Place of the checksum.
const CHECKSUM: std::ops::Range<usize> = 16..20;

/// In front of all blocks.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    kind: U32,
    version: U32,
    checksum: U32,
    reserved: [u8; 12],
}

const HEADER_BYTES: usize = size_of::<Header>();

const KINDS: [(u32, Kind); 6] = [
    (1, Kind::Local),
    (2, Kind::Remote),
    (3, Kind::Stamp),
    (4, Kind::Activity),
    (5, Kind::HandOver),
    (6, Kind::Redo),
];

/// A whole block around `body`.
pub(in crate::mirror) fn seal<T: IntoBytes + Immutable>(kind: Kind, body: &T) -> Box<Block> {
    const { assert!(HEADER_BYTES + size_of::<T>() <= BYTES) };
    let number = KINDS.iter().find(|(_, known)| *known == kind).map_or(0, |(number, _)| *number);
    let header = Header {
        magic: MAGIC,
        kind: number.into(),
        version: VERSION.into(),
        checksum: 0.into(),
        reserved: [0; 12],
    };
    let mut block = Box::new([0; BYTES]);
    block[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    block[HEADER_BYTES..][..size_of::<T>()].copy_from_slice(body.as_bytes());
    let checksum = crc32c::crc32c(&block[..]);
    block[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    block
}

/// The body of a block of this kind.
///
/// The version is looked at before the checksum: a newer format may have another one.
pub(in crate::mirror) fn open<T: FromBytes + Unaligned>(
    expected: Kind,
    block: &Block,
) -> Result<T, BlockFault> {
    if block.iter().all(|byte| *byte == 0) {
        return Err(BlockFault::Blank);
    }
    let foreign = || {
        let mut found = [0; 8];
        found.copy_from_slice(&block[..8]);
        BlockFault::Foreign { found }
    };
    let Ok((header, rest)) = Header::read_from_prefix(block) else { return Err(foreign()) };
    let kind = KINDS.iter().find(|(number, _)| *number == header.kind.get());
    let (true, Some((_, kind))) = (header.magic == MAGIC, kind) else { return Err(foreign()) };
    if header.version.get() > VERSION {
        return Err(BlockFault::Newer { kind: *kind, found: header.version.get() });
    }
    let without = crc32c::crc32c(&block[..CHECKSUM.start]);
    let without = crc32c::crc32c_append(without, &[0; 4]);
    let computed = crc32c::crc32c_append(without, &block[CHECKSUM.end..]);
    if computed != header.checksum.get() {
        let found = header.checksum.get();
        return Err(BlockFault::Damaged { kind: *kind, found, computed });
    }
    if *kind != expected {
        return Err(BlockFault::Kind { found: *kind, expected });
    }
    T::read_from_prefix(rest).map(|(body, _)| body).map_err(|_| foreign())
}

fn impossible(kind: Kind, field: &'static str, found: impl Into<u128>) -> BlockFault {
    BlockFault::Impossible { kind, field, found: found.into() }
}

/// A text with its length.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Text<const N: usize> {
    len: U32,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    fn from_parsed(field: &'static str, text: &str) -> Result<Self, BlockFault> {
        let mut bytes = [0; N];
        let too_long = BlockFault::TooLong { field, found: text.len(), allowed: N };
        bytes.get_mut(..text.len()).ok_or(too_long)?.copy_from_slice(text.as_bytes());
        Ok(Self { len: (text.len() as u32).into(), bytes })
    }

    fn parse(&self, kind: Kind, field: &'static str) -> Result<String, BlockFault> {
        let wrong = || impossible(kind, field, self.len.get());
        let bytes = self.bytes.get(..self.len.get() as usize).ok_or_else(wrong)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| wrong())
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawPast {
    id: U128,
    ended_ms: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawLineage {
    current: U128,
    len: U32,
    reserved: U32,
    history: [RawPast; HISTORY_MAX],
}

impl RawLineage {
    fn from_parsed(lineage: &Lineage) -> Self {
        let none = RawPast { id: 0.into(), ended_ms: 0.into() };
        let mut history = [none; HISTORY_MAX];
        for (raw, past) in history.iter_mut().zip(lineage.history()) {
            *raw = RawPast { id: past.id.0.into(), ended_ms: past.ended.0.into() };
        }
        let len = lineage.history().len().min(HISTORY_MAX) as u32;
        let current = lineage.current().0.into();
        Self { current, len: len.into(), reserved: 0.into(), history }
    }

    fn parse(&self, kind: Kind) -> Result<Lineage, BlockFault> {
        let len = self.len.get();
        let history = self.history.get(..len as usize);
        let history = history.ok_or_else(|| impossible(kind, "length of history", len))?;
        let past = |raw: &RawPast| Past {
            id: GenerationId(raw.id.get()),
            ended: WallMs(raw.ended_ms.get()),
        };
        let history = history.iter().map(past).collect();
        Ok(Lineage::restore(GenerationId(self.current.get()), history))
    }
}

/// Codes of [`LegState`]. A code never changes its meaning.
const LEG_STATES: [(u32, LegState); 10] = [
    (1, LegState::Connecting),
    (2, LegState::Copying),
    (3, LegState::InSync),
    (4, LegState::Lost),
    (5, LegState::CatchingUp),
    (6, LegState::Paused),
    (7, LegState::Fenced),
    (8, LegState::Diverged),
    (9, LegState::Unrelated),
    (10, LegState::Failed),
];

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawLeg {
    /// 1: there is such a leg.
    present: U32,
    state: U32,
    id: U128,
    base: U128,
    bitmap: U128,
    acked_epoch: U64,
    superblock_sequence: U64,
    leg_bytes: U64,
    redo_bytes: U64,
    name: Text<NAME_BYTES_MAX>,
    identity: Text<IDENTITY_BYTES_MAX>,
}

impl RawLeg {
    fn from_parsed(leg: Option<&LegRecord>) -> Result<Self, BlockFault> {
        let Some(leg) = leg else { return Ok(Self::new_zeroed()) };
        let state = LEG_STATES.iter().find(|(_, state)| *state == leg.state);
        Ok(Self {
            present: 1.into(),
            state: state.map_or(0, |(code, _)| *code).into(),
            id: leg.id.0.into(),
            base: leg.base.0.into(),
            bitmap: leg.bitmap.0.into(),
            acked_epoch: leg.acked_epoch.into(),
            superblock_sequence: leg.superblock_sequence.into(),
            leg_bytes: leg.leg_bytes.into(),
            redo_bytes: leg.redo_bytes.into(),
            name: Text::from_parsed("name", &leg.name)?,
            identity: Text::from_parsed("identity", &leg.identity)?,
        })
    }

    fn parse(&self, verified: &RawVerified) -> Result<Option<LegRecord>, BlockFault> {
        match self.present.get() {
            0 => return Ok(None),
            1 => {}
            other => return Err(impossible(Kind::Local, "leg", other)),
        }
        let code = self.state.get();
        let state = LEG_STATES.iter().find(|(known, _)| *known == code);
        let (_, state) = state.ok_or_else(|| impossible(Kind::Local, "state of a leg", code))?;
        Ok(Some(LegRecord {
            id: LegId(self.id.get()),
            identity: self.identity.parse(Kind::Local, "identity of a leg")?,
            name: self.name.parse(Kind::Local, "name of a leg")?,
            state: *state,
            base: GenerationId(self.base.get()),
            acked_epoch: self.acked_epoch.get(),
            superblock_sequence: self.superblock_sequence.get(),
            bitmap: BitmapId(self.bitmap.get()),
            leg_bytes: self.leg_bytes.get(),
            redo_bytes: self.redo_bytes.get(),
            verified: verified.parse(),
        }))
    }
}

/// [`LocalSuperblock`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Local {
    uuid: U128,
    sequence: U64,
    size: U64,
    ring_from: U64,
    epoch_max: U64,
    role: U32,
    clean: U32,
    lineage: RawLineage,
    legs: [RawLeg; LEGS_MAX],
    /// The verifications of each leg. Programs of before this field end their reading in front of
    /// it.
    verified: [RawVerified; LEGS_MAX],
}

impl Local {
    pub(super) fn from_parsed(parsed: &LocalSuperblock) -> Result<Self, BlockFault> {
        let mut legs = [RawLeg::new_zeroed(); LEGS_MAX];
        for (raw, leg) in legs.iter_mut().zip(&parsed.legs) {
            *raw = RawLeg::from_parsed(leg.as_ref())?;
        }
        let mut verified = [RawVerified::new_zeroed(); LEGS_MAX];
        for (raw, leg) in verified.iter_mut().zip(parsed.legs.iter()) {
            if let Some(leg) = leg {
                *raw = RawVerified::from_parsed(&leg.verified);
            }
        }
        let role = match parsed.role {
            Role::Primary => 1,
            Role::Secondary => 2,
            Role::HandedBack => 3,
            Role::Restoring => 4,
        };
        Ok(Self {
            uuid: parsed.uuid.0.into(),
            sequence: parsed.sequence.into(),
            size: parsed.size.into(),
            ring_from: parsed.ring_from.into(),
            epoch_max: parsed.epoch_max.into(),
            role: role.into(),
            clean: u32::from(parsed.clean).into(),
            lineage: RawLineage::from_parsed(&parsed.lineage),
            legs,
            verified,
        })
    }

    pub(super) fn parse(&self) -> Result<LocalSuperblock, BlockFault> {
        let role = match self.role.get() {
            1 => Role::Primary,
            2 => Role::Secondary,
            3 => Role::HandedBack,
            4 => Role::Restoring,
            other => return Err(impossible(Kind::Local, "role", other)),
        };
        let size = self.size.get();
        super::super::layout::LocalLayout::new(size)
            .map_err(|_| impossible(Kind::Local, "size", size))?;
        let leg = |place: usize| self.legs[place].parse(&self.verified[place]);
        Ok(LocalSuperblock {
            uuid: MirrorId(self.uuid.get()),
            sequence: self.sequence.get(),
            size,
            role,
            clean: self.clean.get() != 0,
            ring_from: self.ring_from.get(),
            epoch_max: self.epoch_max.get(),
            lineage: self.lineage.parse(Kind::Local)?,
            legs: [leg(0)?, leg(1)?, leg(2)?],
        })
    }
}

/// [`RemoteSuperblock`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Remote {
    uuid: U128,
    leg: U128,
    sequence: U64,
    data_bytes: U64,
    redo_bytes: U64,
    consistency: U32,
    reserved: U32,
    inconsistent_since: U64,
    lease_ms: U64,
    lineage: RawLineage,
    writer: Text<IDENTITY_BYTES_MAX>,
    committed: RawCommitted,
}

impl Remote {
    pub(super) fn from_parsed(parsed: &RemoteSuperblock) -> Result<Self, BlockFault> {
        let none = RawCommitted::new_zeroed();
        let (consistency, since, committed) = match &parsed.consistency {
            Consistency::Consistent => (1, 0, none),
            Consistency::InconsistentSince(epoch) => (2, *epoch, none),
            Consistency::Applying(committed) => (3, 0, RawCommitted::from_parsed(committed)),
        };
        Ok(Self {
            uuid: parsed.uuid.0.into(),
            leg: parsed.leg.0.into(),
            sequence: parsed.sequence.into(),
            data_bytes: parsed.data_bytes.into(),
            redo_bytes: parsed.redo_bytes.into(),
            consistency: consistency.into(),
            reserved: 0.into(),
            inconsistent_since: since.into(),
            lease_ms: parsed.lease.0.into(),
            lineage: RawLineage::from_parsed(&parsed.lineage),
            writer: Text::from_parsed("writer", &parsed.writer)?,
            committed,
        })
    }

    pub(super) fn parse(&self) -> Result<RemoteSuperblock, BlockFault> {
        let consistency = match self.consistency.get() {
            1 => Consistency::Consistent,
            2 => Consistency::InconsistentSince(self.inconsistent_since.get()),
            3 => {
                let committed = self.committed.parse(self.redo_bytes.get());
                let wrong = |bytes: u64| impossible(Kind::Remote, "length of a batch", bytes);
                Consistency::Applying(committed.map_err(wrong)?)
            }
            other => return Err(impossible(Kind::Remote, "consistency", other)),
        };
        Ok(RemoteSuperblock {
            uuid: MirrorId(self.uuid.get()),
            sequence: self.sequence.get(),
            leg: LegId(self.leg.get()),
            lineage: self.lineage.parse(Kind::Remote)?,
            data_bytes: self.data_bytes.get(),
            redo_bytes: self.redo_bytes.get(),
            consistency,
            writer: self.writer.parse(Kind::Remote, "writer")?,
            lease: WallMs(self.lease_ms.get()),
        })
    }
}

/// [`super::Stamp`].
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Stamp {
    uuid: U128,
    generation: U128,
    epoch: U64,
    closed_ms: U64,
}

impl Stamp {
    pub(super) fn from_parsed(parsed: &super::Stamp) -> Self {
        Self {
            uuid: parsed.uuid.0.into(),
            generation: parsed.generation.0.into(),
            epoch: parsed.epoch.into(),
            closed_ms: parsed.closed.0.into(),
        }
    }

    pub(super) fn parse(&self) -> super::Stamp {
        super::Stamp {
            uuid: MirrorId(self.uuid.get()),
            generation: GenerationId(self.generation.get()),
            epoch: self.epoch.get(),
            closed: WallMs(self.closed_ms.get()),
        }
    }
}

/// For the page that describes the format: each block's or part's heading there, and its fields.
#[cfg(test)]
pub(in crate::mirror) fn places() -> Vec<(&'static str, Vec<crate::mirror::format_doc::Place>)> {
    use crate::mirror::format_doc::places;
    const BEHIND: usize = HEADER_BYTES;
    vec![
        (
            "Every block but bitmap pages begins with",
            places!(Header, 0, magic, kind, version, checksum, reserved),
        ),
        (
            "Leg superblock",
            places!(
                Remote,
                BEHIND,
                uuid,
                leg,
                sequence,
                data_bytes,
                redo_bytes,
                consistency,
                reserved,
                inconsistent_since,
                lease_ms,
                lineage,
                writer,
                committed
            ),
        ),
        ("Committed batch", super::committed::places()),
        (
            "Metadata superblock",
            places!(
                Local, BEHIND, uuid, sequence, size, ring_from, epoch_max, role, clean, lineage,
                legs, verified
            ),
        ),
        (
            "Leg record",
            places!(
                RawLeg,
                0,
                present,
                state,
                id,
                base,
                bitmap,
                acked_epoch,
                superblock_sequence,
                leg_bytes,
                redo_bytes,
                name,
                identity
            ),
        ),
        ("Verified", super::verified::places()),
        ("Lineage", places!(RawLineage, 0, current, len, reserved, history)),
        ("Stamp", places!(Stamp, BEHIND, uuid, generation, epoch, closed_ms)),
    ]
}
