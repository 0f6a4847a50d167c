//! [`State`]: the state file, on a device of its own. It is locked as long as the device is open
//! (`FileDevice`), so that two runs never share one.

use std::ops::Range;

use super::format::{
    self, BLOCK_BYTES, Block, Fault, Header, NAME_BYTES_MAX, PAGES_AT, Page, Pair, Phase,
    file_bytes, header_at, page_at,
};
use super::hash::Salt;
use super::{BLOCK_SIZES, LENGTH_MAX};
use crate::{BlockError, Buf, Bytes, Device, WriteFlags};

/// Pages that are written at once when a file is made.
const PAGES_AT_ONCE: u64 = 256;

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// It cannot be read or written.
    #[error("the state file: {0}")]
    Device(#[from] BlockError),
    /// Its header says nothing that can be believed.
    #[error("is no state file of a copy that can be used: {0}")]
    Header(Fault),
    /// A part of it is missing.
    #[error("has been cut off: {found} bytes are there, {needed} were")]
    Short {
        /// Bytes that are there.
        found: u64,
        /// Bytes that it had.
        needed: u64,
    },
    /// The source is empty or beyond all measure.
    #[error("a source of {0} bytes cannot be copied by its changes (1 to {LENGTH_MAX} can)")]
    Length(u64),
    /// Blocks cannot have this size.
    #[error(
        "blocks of {0} bytes cannot have hashes; a power of two from {min} to {max} can, that is \
         no smaller than the blocks of both sides",
        min = BLOCK_SIZES.start(), max = BLOCK_SIZES.end()
    )]
    BlockSize(u32),
    /// A name is too long to be kept.
    #[error("the {which} has {len} bytes; {NAME_BYTES_MAX} are possible")]
    Name {
        /// Which one.
        which: &'static str,
        /// Its bytes.
        len: usize,
    },
    /// It belongs to another copy.
    #[error(
        "is of another copy: its {what} is {}, that of this one {}",
        shown(theirs),
        shown(ours)
    )]
    Other {
        /// What differs.
        what: &'static str,
        /// What the file says.
        theirs: String,
        /// What is so now.
        ours: String,
    },
}

fn same(what: &'static str, theirs: &str, ours: &str) -> Result<(), StateError> {
    if theirs == ours {
        return Ok(());
    }
    Err(StateError::Other { what, theirs: theirs.to_owned(), ours: ours.to_owned() })
}

fn shown(name: &str) -> &str {
    if name.is_empty() { "unknown" } else { name }
}

/// What a new state file is for.
#[derive(Clone, Debug)]
pub struct NewState {
    /// What the hashes are made with: random.
    pub salt: Salt,
    /// Bytes of the source.
    pub length: u64,
    /// Bytes of a block that has a hash.
    pub block_bytes: u32,
    /// [`Phase::Preparing`] where the destination is still to be made.
    pub phase: Phase,
    /// From where to where.
    pub pair: Pair,
}

/// A state file in use.
pub struct State {
    device: Device,
    header: Header,
}

impl State {
    /// Makes a state file of a device that has [`file_bytes`]; nothing is known of the destination.
    /// It is stable when this ends, and none before.
    ///
    /// # Errors
    /// A length, size of blocks or name that cannot be; the device's.
    pub async fn create(device: Device, new: NewState) -> Result<Self, StateError> {
        let NewState { salt, length, block_bytes, phase, pair } = new;
        if length == 0 || length > LENGTH_MAX {
            return Err(StateError::Length(length));
        }
        if !block_bytes.is_power_of_two() || !BLOCK_SIZES.contains(&block_bytes) {
            return Err(StateError::BlockSize(block_bytes));
        }
        pair.check().map_err(|(which, len)| StateError::Name { which, len })?;
        let (runs, ended_ms) = (0, 0);
        let header = Header { sequence: 0, salt, length, block_bytes, phase, runs, ended_ms, pair };
        let mut state = Self { device, header };
        state.check_size()?;
        let count = state.pages();
        for first in (0..count).step_by(PAGES_AT_ONCE as usize) {
            let numbers = first..(first + PAGES_AT_ONCE).min(count);
            let pages: Vec<(u64, Page)> = numbers.map(|n| (n, Page::unknown())).collect();
            state.saver().write(&pages).await?;
        }
        state.device.flush().await?;
        // Both copies, so that one may be lost at once.
        state.set(|_| ()).await?;
        state.set(|_| ()).await?;
        Ok(state)
    }

    /// Takes one up again.
    ///
    /// # Errors
    /// It is none, is damaged, cut off, or made by a later program.
    pub async fn open(device: Device) -> Result<Self, StateError> {
        let found = device.info().size;
        if found < PAGES_AT {
            return Err(StateError::Header(Fault::Foreign));
        }
        let both = device.read(0, Buf::new(2 * BLOCK_BYTES)).await?;
        let (blocks, _) = both.as_chunks::<BLOCK_BYTES>();
        let header = Header::newest(&blocks[0], &blocks[1]).map_err(StateError::Header)?;
        let state = Self { device, header };
        state.check_size()?;
        Ok(state)
    }

    fn check_size(&self) -> Result<(), StateError> {
        let found = self.device.info().size;
        let needed = file_bytes(self.header.length, self.header.block_bytes);
        if found < needed { Err(StateError::Short { found, needed }) } else { Ok(()) }
    }

    /// Checks that it is the state of a copy between these, by their names. With `any_source` the
    /// source may have another one: a snapshot.
    ///
    /// # Errors
    /// [`StateError::Other`].
    pub fn check_names(
        &self,
        length: u64,
        pair: &Pair,
        any_source: bool,
    ) -> Result<(), StateError> {
        let known = &self.header.pair;
        let bytes = |count: u64| format!("{count} bytes long");
        same("destination", &known.destination, &pair.destination)?;
        if !any_source {
            same("source", &known.source, &pair.source)?;
        }
        same("source", &bytes(self.header.length), &bytes(length))
    }

    /// Checks that the destination is the one that it was.
    ///
    /// # Errors
    /// [`StateError::Other`].
    pub fn check_identity(&self, pair: &Pair) -> Result<(), StateError> {
        same("destination", &self.header.pair.identity, &pair.identity)
    }

    /// What its header says.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Pages of hashes.
    pub(super) fn pages(&self) -> u64 {
        format::pages(self.header.length, self.header.block_bytes)
    }

    /// Changes the header; stable when this ends.
    ///
    /// # Errors
    /// The device's.
    pub async fn set(&mut self, change: impl FnOnce(&mut Header)) -> Result<(), StateError> {
        change(&mut self.header);
        self.header.sequence += 1;
        let block = Bytes::copy_from_slice(&self.header.encode()[..]);
        let at = header_at(self.header.sequence);
        self.device.write(at, block, WriteFlags::NONE).await?;
        self.device.flush().await?;
        Ok(())
    }

    /// A run begins: the destination will be in between.
    ///
    /// # Errors
    /// The device's.
    pub async fn begin(&mut self) -> Result<(), StateError> {
        if self.header.phase == Phase::UnderWay {
            return Ok(());
        }
        self.set(|header| header.phase = Phase::UnderWay).await
    }

    /// A run has ended well, in milliseconds since 1970.
    ///
    /// # Errors
    /// The device's.
    pub async fn complete(&mut self, now_ms: u64) -> Result<(), StateError> {
        self.set(|header| {
            header.phase = Phase::Complete;
            header.runs += 1;
            header.ended_ms = now_ms;
        })
        .await
    }

    /// Reads pages. Of one that is damaged nothing is known; how many there are is told.
    pub(super) async fn load(&self, numbers: Range<u64>) -> Result<(Vec<Page>, u64), StateError> {
        let bytes = (numbers.end - numbers.start) as usize * BLOCK_BYTES;
        let read = self.device.read(page_at(numbers.start), Buf::new(bytes)).await?;
        let mut damaged = 0;
        let mut page = |(number, block): (u64, &Block)| {
            Page::parse(block, self.header.salt, number).unwrap_or_else(|_| {
                damaged += 1;
                Page::unknown()
            })
        };
        let pages = numbers.zip(read.as_chunks::<BLOCK_BYTES>().0).map(&mut page).collect();
        Ok((pages, damaged))
    }

    /// A handle that writes pages while the state is used.
    pub(super) fn saver(&self) -> Saver {
        Saver { device: self.device.clone(), salt: self.header.salt }
    }
}

/// Writes pages of a state file.
#[derive(Clone)]
pub(super) struct Saver {
    device: Device,
    salt: Salt,
}

impl Saver {
    /// Writes pages, in the order of their numbers; stable when this ends.
    pub(super) async fn save(&self, pages: &[(u64, Page)]) -> Result<(), StateError> {
        self.write(pages).await?;
        self.device.flush().await?;
        Ok(())
    }

    /// Writes pages; they are stable after the next flush.
    async fn write(&self, pages: &[(u64, Page)]) -> Result<(), StateError> {
        let mut rest = pages;
        while let Some((first, _)) = rest.first() {
            // Those that follow each other go together.
            let run = rest.iter().zip(*first..).take_while(|((n, _), want)| n == want).count();
            let (now, later) = rest.split_at(run);
            let mut bytes = Vec::with_capacity(run * BLOCK_BYTES);
            for (number, page) in now {
                bytes.extend_from_slice(&page.encode(self.salt, *number)[..]);
            }
            self.device.write(page_at(*first), bytes.into(), WriteFlags::NONE).await?;
            rest = later;
        }
        Ok(())
    }
}
