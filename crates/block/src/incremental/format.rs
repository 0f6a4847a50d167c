//! The state file as it lies on its storage: two copies of a header, then pages of hashes. Codec
//! only: no I/O. docs/copy.md has the table of bytes.
//!
//! Everything is in blocks of 4 KiB, each with a CRC32C of its own, little-endian. The header with
//! sequence number n has the place n mod 2, so that a torn one leaves the one before. A page that
//! is torn says nothing about its blocks, which is always safe: what is not known is sent again.

use std::ops::Range;

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::hash::{HASH_BYTES, Hash, Salt};

/// Bytes of a header and of a page.
pub const BLOCK_BYTES: usize = 4096;
/// One of these.
pub type Block = [u8; BLOCK_BYTES];

/// Version of the format. A file with a higher one is left alone.
pub const VERSION: u32 = 1;
/// Hashes in a page.
pub const PAGE_HASHES: u64 = 254;
/// Bytes of a source's or destination's name at most.
pub const NAME_BYTES_MAX: usize = 1022;
/// Where the pages begin, in bytes: behind the two headers.
pub const PAGES_AT: u64 = 2 * BLOCK_BYTES as u64;

const HEADER_MAGIC: [u8; 8] = *b"EnkakuCs";
const PAGE_MAGIC: [u8; 4] = *b"EnCp";
const HEADER_CRC: Range<usize> = 12..16;
const PAGE_CRC: Range<usize> = 4..8;

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The destination is being made: it may still be emptied, nothing is known of it.
    Preparing,
    /// A run has begun and not ended: the destination is in between.
    UnderWay,
    /// The destination holds what the source held in the last run.
    Complete,
}

const PHASES: [(u32, Phase); 3] =
    [(0, Phase::Preparing), (1, Phase::UnderWay), (2, Phase::Complete)];

/// From where to where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The source as its user names it: an absolute path, or a URL without its user.
    pub source: String,
    /// The destination likewise.
    pub destination: String,
    /// What the destination says it is, so that another one under its name is noticed; empty if
    /// it says nothing.
    pub identity: String,
}

impl Pair {
    /// Checks that the names have room in a header.
    ///
    /// # Errors
    /// Which one has not, and its length in bytes.
    pub fn check(&self) -> Result<(), (&'static str, usize)> {
        let names = [
            ("source's name", &self.source),
            ("destination's name", &self.destination),
            ("destination's identity", &self.identity),
        ];
        match names.into_iter().find(|(_, name)| name.len() > NAME_BYTES_MAX) {
            Some((which, name)) => Err((which, name.len())),
            None => Ok(()),
        }
    }
}

/// What the header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The newer of two copies has the higher one.
    pub sequence: u64,
    /// What the hashes are made with; names the file as well, so that no page of another one is
    /// believed.
    pub salt: Salt,
    /// Bytes of the source.
    pub length: u64,
    /// Bytes of a block that has a hash: a power of two.
    pub block_bytes: u32,
    /// How far it has come.
    pub phase: Phase,
    /// Runs that ended well.
    pub runs: u64,
    /// When the last of them ended, in milliseconds since 1970.
    pub ended_ms: u64,
    /// From where to where.
    pub pair: Pair,
}

/// Why a block is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// It was never one.
    #[error("it does not begin as a state file does")]
    Foreign,
    /// A later program made it.
    #[error("its format has version {found}; up to {VERSION} is understood")]
    Newer {
        /// Its version.
        found: u32,
    },
    /// Torn or flipped.
    #[error("its checksum is {found:08x}, its content has {computed:08x}")]
    Damaged {
        /// As written in it.
        found: u32,
        /// As it should be.
        computed: u32,
    },
    /// The checksum is right, a field cannot be.
    #[error("its {field} cannot be {found}")]
    Impossible {
        /// The field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Text {
    len: U16,
    bytes: [u8; NAME_BYTES_MAX],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U32,
    crc: U32,
    sequence: U64,
    salt: [u8; 16],
    length: U64,
    block_bytes: U32,
    phase: U32,
    runs: U64,
    ended_ms: U64,
    reserved: [u8; 952],
    source: Text,
    destination: Text,
    identity: Text,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPage {
    magic: [u8; 4],
    crc: U32,
    number: U64,
    salt: [u8; 16],
    hashes: [[u8; HASH_BYTES]; PAGE_HASHES as usize],
}

const _: () = assert!(size_of::<RawHeader>() == BLOCK_BYTES && size_of::<RawPage>() == BLOCK_BYTES);

/// Bytes of the file for a source of `length` bytes in blocks of `block_bytes`.
pub fn file_bytes(length: u64, block_bytes: u32) -> u64 {
    PAGES_AT + pages(length, block_bytes) * BLOCK_BYTES as u64
}

/// Pages of hashes, the last of them perhaps in part.
pub fn pages(length: u64, block_bytes: u32) -> u64 {
    length.div_ceil(u64::from(block_bytes)).div_ceil(PAGE_HASHES)
}

/// Where a page is, in bytes.
pub fn page_at(number: u64) -> u64 {
    PAGES_AT + number * BLOCK_BYTES as u64
}

/// Where the header with this sequence number is, in bytes.
pub fn header_at(sequence: u64) -> u64 {
    sequence % 2 * BLOCK_BYTES as u64
}

impl Text {
    /// Whoever makes a header has checked the length ([`Pair::check`]).
    fn new(text: &str) -> Self {
        let mut raw = Self::new_zeroed();
        if let Some(place) = raw.bytes.get_mut(..text.len()) {
            place.copy_from_slice(text.as_bytes());
            raw.len = (text.len() as u16).into();
        }
        raw
    }

    fn parse(&self, field: &'static str) -> Result<String, Fault> {
        let impossible = || Fault::Impossible { field, found: self.len.get().into() };
        let bytes = self.bytes.get(..self.len.get().into()).ok_or_else(impossible)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| impossible())
    }
}

impl Header {
    /// As a block.
    pub fn encode(&self) -> Box<Block> {
        let phase = PHASES.iter().find(|(_, phase)| *phase == self.phase).map_or(0, |(n, _)| *n);
        let raw = RawHeader {
            magic: HEADER_MAGIC,
            version: VERSION.into(),
            crc: 0.into(),
            sequence: self.sequence.into(),
            salt: self.salt.0,
            length: self.length.into(),
            block_bytes: self.block_bytes.into(),
            phase: phase.into(),
            runs: self.runs.into(),
            ended_ms: self.ended_ms.into(),
            reserved: [0; 952],
            source: Text::new(&self.pair.source),
            destination: Text::new(&self.pair.destination),
            identity: Text::new(&self.pair.identity),
        };
        seal(raw.as_bytes(), HEADER_CRC)
    }

    /// From a block.
    ///
    /// # Errors
    /// [`Fault`]: it is none, or it is damaged.
    pub fn parse(block: &Block) -> Result<Self, Fault> {
        let raw = RawHeader::ref_from_bytes(block).map_err(|_| Fault::Foreign)?;
        if raw.magic != HEADER_MAGIC {
            return Err(Fault::Foreign);
        }
        // The version comes first: a newer format may have its checksum elsewhere.
        if raw.version.get() > VERSION {
            return Err(Fault::Newer { found: raw.version.get() });
        }
        check(block, HEADER_CRC)?;
        let impossible = |field, found: u64| Fault::Impossible { field, found };
        let phase = PHASES.iter().find(|(number, _)| *number == raw.phase.get());
        let block_bytes = raw.block_bytes.get();
        if !block_bytes.is_power_of_two() || !super::BLOCK_SIZES.contains(&block_bytes) {
            return Err(impossible("block size", block_bytes.into()));
        }
        if raw.length.get() == 0 || raw.length.get() > super::LENGTH_MAX {
            return Err(impossible("length", raw.length.get()));
        }
        Ok(Self {
            sequence: raw.sequence.get(),
            salt: Salt(raw.salt),
            length: raw.length.get(),
            block_bytes,
            phase: phase.ok_or_else(|| impossible("phase", raw.phase.get().into()))?.1,
            runs: raw.runs.get(),
            ended_ms: raw.ended_ms.get(),
            pair: Pair {
                source: raw.source.parse("source's name")?,
                destination: raw.destination.parse("destination's name")?,
                identity: raw.identity.parse("destination's identity")?,
            },
        })
    }

    /// The newer good one of the two copies.
    ///
    /// # Errors
    /// The first one's [`Fault`] where neither is good; of a newer format in any case.
    pub fn newest(first: &Block, second: &Block) -> Result<Self, Fault> {
        match (Self::parse(first), Self::parse(second)) {
            (Err(fault @ Fault::Newer { .. }), _) | (_, Err(fault @ Fault::Newer { .. })) => {
                Err(fault)
            }
            (Ok(a), Ok(b)) => Ok(if a.sequence >= b.sequence { a } else { b }),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            (Err(Fault::Foreign), Err(fault)) | (Err(fault), Err(_)) => Err(fault),
        }
    }
}

/// Hashes of consecutive blocks: what the destination is known to hold in each, if it is known.
#[derive(Clone, PartialEq, Eq)]
pub struct Page(pub Box<[Hash; PAGE_HASHES as usize]>);

impl Page {
    /// Nothing is known.
    pub fn unknown() -> Self {
        Self(Box::new([Hash::UNKNOWN; PAGE_HASHES as usize]))
    }

    /// As a block of the file with this salt.
    pub fn encode(&self, salt: Salt, number: u64) -> Box<Block> {
        let raw = RawPage {
            magic: PAGE_MAGIC,
            crc: 0.into(),
            number: number.into(),
            salt: salt.0,
            hashes: self.0.map(|hash| hash.0),
        };
        seal(raw.as_bytes(), PAGE_CRC)
    }

    /// From a block.
    ///
    /// # Errors
    /// [`Fault`]: it is torn, another file's or of another place.
    pub fn parse(block: &Block, salt: Salt, number: u64) -> Result<Self, Fault> {
        let raw = RawPage::ref_from_bytes(block).map_err(|_| Fault::Foreign)?;
        if raw.magic != PAGE_MAGIC || raw.salt != salt.0 {
            return Err(Fault::Foreign);
        }
        check(block, PAGE_CRC)?;
        if raw.number.get() != number {
            return Err(Fault::Impossible { field: "place", found: raw.number.get() });
        }
        Ok(Self(Box::new(raw.hashes.map(Hash))))
    }
}

fn seal(raw: &[u8], place: Range<usize>) -> Box<Block> {
    let mut block = Box::new([0; BLOCK_BYTES]);
    block.copy_from_slice(raw);
    let crc = crc32c::crc32c(&block[..]);
    block[place].copy_from_slice(&crc.to_le_bytes());
    block
}

fn check(block: &Block, place: Range<usize>) -> Result<(), Fault> {
    let mut found = [0; 4];
    found.copy_from_slice(&block[place.clone()]);
    let found = u32::from_le_bytes(found);
    let before = crc32c::crc32c(&block[..place.start]);
    let blank = crc32c::crc32c_append(before, &[0; 4]);
    let computed = crc32c::crc32c_append(blank, &block[place.end..]);
    if found == computed { Ok(()) } else { Err(Fault::Damaged { found, computed }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(sequence: u64) -> Header {
        Header {
            sequence,
            salt: Salt([7; 16]),
            length: 1 << 30,
            block_bytes: 65536,
            phase: Phase::UnderWay,
            runs: 3,
            ended_ms: 1_764_000_000_000,
            pair: Pair {
                source: "/dev/vg/vm1".into(),
                destination: "iscsi://far/iqn.2026-01.example:vol/0".into(),
                identity: "naa.600".into(),
            },
        }
    }

    #[test]
    fn what_is_written_reads_back_and_every_flipped_bit_is_found() {
        let good = header(4);
        let block = good.encode();
        assert_eq!(Header::parse(&block), Ok(good.clone()));
        let mut page = Page::unknown();
        page.0[0] = Hash([1; 16]);
        page.0[253] = Hash([2; 16]);
        let sealed = page.encode(good.salt, 9);
        assert!(Page::parse(&sealed, good.salt, 9) == Ok(page));
        for at in 0..BLOCK_BYTES {
            let (mut torn, mut page) = (block.clone(), sealed.clone());
            torn[at] ^= 0x10;
            page[at] ^= 0x10;
            assert!(Header::parse(&torn).is_err() && Page::parse(&page, good.salt, 9).is_err());
        }
        assert!(Page::parse(&sealed, good.salt, 8).is_err(), "a page of another place");
        assert!(Page::parse(&sealed, Salt([8; 16]), 9).is_err(), "a page of another file");
    }

    #[test]
    fn the_newer_good_copy_counts_and_a_newer_format_is_left_alone() {
        let (old, new) = (header(4).encode(), header(5).encode());
        let newest = |a: &Block, b: &Block| Header::newest(a, b).map(|header| header.sequence);
        assert_eq!((newest(&old, &new), newest(&new, &old)), (Ok(5), Ok(5)));
        let mut torn = new.clone();
        torn[512..].fill(0);
        assert_eq!((newest(&old, &torn), newest(&torn, &old)), (Ok(4), Ok(4)));
        assert!(matches!(newest(&torn, &torn), Err(Fault::Damaged { .. })));
        let blank = [0; BLOCK_BYTES];
        assert_eq!(newest(&blank, &blank), Err(Fault::Foreign));
        assert!(matches!(newest(&blank, &torn), Err(Fault::Damaged { .. })));
        let mut later = new;
        later[8] = 2;
        assert_eq!(newest(&later, &old), Err(Fault::Newer { found: 2 }));
    }

    proptest! {
        #[test]
        fn any_block_is_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 64)) {
            let mut block = header(1).encode();
            block[16..16 + 64].copy_from_slice(&bytes);
            let crc = {
                block[HEADER_CRC].fill(0);
                crc32c::crc32c(&block[..])
            };
            block[HEADER_CRC].copy_from_slice(&crc.to_le_bytes());
            if let Ok(header) = Header::parse(&block) {
                prop_assert_eq!(Header::parse(&header.encode()), Ok(header));
            }
        }
    }
}
