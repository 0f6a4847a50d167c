//! What passes between the engine and a leg: data, flushes, superblocks and stamps, told apart by
//! nothing but their places. It is counted here what a simulation has to meet, and done wrong on
//! the way what an engine might do wrong by itself ([`Wrong`]).
//!
//! Not here: links and disks ([`super::leg`], [`super::disk`]), which know nothing of what a mirror
//! means by a write.

mod redo;
mod wrong;

use std::sync::{Arc, Mutex};

use block::mirror::layout::LegLayout;
use block::mirror::superblock::{BYTES, Block, Consistency, Record, RemoteSuperblock, Stamp};
use block::mirror::{BLOCK_BYTES, Mode, OrderedWrites};
use block::{BlockDevice, Buf, Bytes, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

pub use self::wrong::Wrong;
use self::wrong::{Ask, Flushing};
use super::disk::lock;
use super::scenario::DATA_BYTES;
use crate::coverage::Coverage;

/// What passes to and from one leg, over all of its sessions. Clones share it.
#[derive(Clone)]
pub(crate) struct Line(Arc<Mutex<State>>);

/// A change of the data.
#[derive(Clone)]
enum Change {
    Write(u64, Bytes),
    Zero(u64, u64),
}

/// What a write is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Data,
    Superblock,
    Stamp,
    Redo,
    Other,
}

struct State {
    layout: LegLayout,
    mode: Mode,
    seen: Coverage,
    session: u64,
    /// The session began while there was data behind the last stamp.
    inherited: bool,
    /// The leg was told in this session that it is no legal image, and not yet that it is one.
    copies: bool,
    /// The last stamp that was sent.
    stamp: Option<Stamp>,
    /// Changes of the data that were sent since a flush was asked for.
    step: u64,
    /// Changes that were flushed, and no stamp has come since.
    unstamped: u64,
    /// Changes of this session.
    changes: u64,
    /// Flushes of this session behind changes of it: its steps so far.
    flushes: u64,
    wrong: Option<Wrong>,
    /// How often it was done.
    made: u64,
    /// The changes of the present step and of the one before, where they are done again.
    kept: [Vec<Change>; 2],
    batch: redo::Batch,
}

impl Line {
    /// To a leg with this layout, of a mirror of this mode.
    pub(crate) fn new(layout: LegLayout, mode: Mode) -> Self {
        Self(Arc::new(Mutex::new(State {
            layout,
            mode,
            seen: Coverage::default(),
            session: 0,
            inherited: false,
            copies: false,
            stamp: None,
            step: 0,
            unstamped: 0,
            changes: 0,
            flushes: 0,
            wrong: None,
            made: 0,
            kept: Default::default(),
            batch: redo::Batch::default(),
        })))
    }

    /// This is done wrong from now on.
    pub(crate) fn set_wrong(&self, wrong: Option<Wrong>) {
        lock(&self.0).wrong = wrong;
    }

    /// How often something was done wrong.
    pub(crate) fn made(&self) -> u64 {
        lock(&self.0).made
    }

    /// What has passed.
    pub(crate) fn seen(&self) -> Coverage {
        lock(&self.0).seen.clone()
    }

    /// A session begins: its device, as the engine gets it.
    pub(crate) fn begin(&self, session: u64, device: Device) -> Device {
        lock(&self.0).begin(session);
        Arc::new(Passing { line: self.clone(), session, device })
    }

    /// Its barriers, as the engine gets them.
    pub(crate) fn barriers(
        &self,
        session: u64,
        ordered: Arc<dyn OrderedWrites>,
    ) -> Arc<dyn OrderedWrites> {
        Arc::new(Barriers { line: self.clone(), session, ordered })
    }
}

/// Barriers of a session, as the engine asks for them.
struct Barriers {
    line: Line,
    session: u64,
    ordered: Arc<dyn OrderedWrites>,
}

impl OrderedWrites for Barriers {
    fn barrier(&self) -> Io<()> {
        let mut state = lock(&self.line.0);
        if state.session == self.session {
            if state.step > 0 {
                state.seen.hit("log: a step ends with a barrier");
            }
            state.flushes();
        }
        drop(state);
        self.ordered.barrier()
    }
}

impl State {
    fn begin(&mut self, session: u64) {
        self.session = session;
        self.unstamped += std::mem::take(&mut self.step);
        self.inherited = self.unstamped > 0;
        (self.copies, self.changes, self.flushes) = (false, 0, 0);
        self.kept = Default::default();
        self.batch.begin();
    }

    fn of(&self, offset: u64) -> Of {
        let both = |first: u64| first..first + 2 * BLOCK_BYTES;
        match offset {
            _ if offset < DATA_BYTES => Of::Data,
            _ if offset < self.layout.image_bytes_max() => Of::Redo,
            _ if both(self.layout.superblock(0)).contains(&offset) => Of::Superblock,
            _ if both(self.layout.stamp(0)).contains(&offset) => Of::Stamp,
            _ => Of::Other,
        }
    }

    /// A change of the data is about to be sent.
    fn changes(&mut self) {
        if self.changes == 0 && !self.copies && self.mode == Mode::Async {
            self.seen.hit(match self.inherited {
                true => "log: taken up behind a stamp",
                false => "log: taken up, empty",
            });
        }
        self.changes += 1;
        self.step += 1;
    }

    fn superblock(&mut self, superblock: &RemoteSuperblock) {
        if matches!(superblock.consistency, Consistency::Applying(_)) {
            return; // the image is what it was, or will be
        }
        let consistent = superblock.consistency == Consistency::Consistent;
        if !consistent && !self.copies {
            if self.inherited && self.mode == Mode::Async {
                self.seen.hit("log: given up with writes in it");
            }
            (self.step, self.unstamped, self.inherited) = (0, 0, false);
        }
        self.copies = !consistent;
    }

    fn stamped(&mut self, stamp: Stamp) {
        self.seen.hit(match self.step {
            0 => "log: a stamp goes alone",
            _ => "log: a stamp goes with the next step",
        });
        if self.unstamped > 0 {
            self.seen.hit("log: a stamp of written data");
        }
        self.stamp = Some(stamp);
        self.unstamped = 0;
    }

    fn flushes(&mut self) {
        self.flushes += u64::from(self.changes > 0);
        self.unstamped += std::mem::take(&mut self.step);
        let now = std::mem::take(&mut self.kept[0]);
        if !now.is_empty() {
            self.kept[1] = now;
        }
    }

    /// What is asked of the leg instead of a write behind its image.
    fn wrongs_metadata(&mut self, of: Of, data: &[u8]) -> Ask {
        match of {
            Of::Redo if self.record() => Ask::Nothing,
            Of::Superblock => {
                let superblock = block_of(data).map(RemoteSuperblock::decode);
                let Some(Ok(superblock)) = superblock else { return Ask::AsItIs };
                self.superblock_of_batch(&superblock.consistency)
            }
            _ => Ask::AsItIs,
        }
    }

    /// A write to the metadata of the leg is about to be sent.
    fn told(&mut self, of: Of, data: &[u8]) {
        let Some(block) = block_of(data) else { return };
        match of {
            Of::Superblock => {
                if let Ok(superblock) = RemoteSuperblock::decode(block) {
                    self.superblock(&superblock);
                }
            }
            Of::Stamp => {
                if let Ok(stamp) = Stamp::decode(block) {
                    self.stamped(stamp);
                }
            }
            Of::Data | Of::Redo | Of::Other => {}
        }
    }
}

fn block_of(data: &[u8]) -> Option<&Block> {
    <&Block>::try_from(data).ok()
}

/// The device of a session, as the engine gets it.
struct Passing {
    line: Line,
    session: u64,
    device: Device,
}

impl Passing {
    /// What the present session asks is looked at; of an earlier one nothing counts any more.
    fn look<T>(&self, look: impl FnOnce(&mut State) -> T) -> Option<T> {
        let mut state = lock(&self.line.0);
        (state.session == self.session).then(|| look(&mut state))
    }

    fn change(&self, change: Change) -> Io<()> {
        let ask = self.look(|state| {
            let ask = state.wrongs_change(&change);
            state.changes();
            ask
        });
        match ask.unwrap_or(Ask::AsItIs) {
            Ask::AsItIs => apply(&self.device, &change),
            Ask::Nothing => Io::ok(()),
            Ask::AndTellAtOnce => {
                drop(apply(&self.device, &change));
                Io::ok(())
            }
            Ask::WithStamp(stamp) => {
                self.forge(&stamp);
                apply(&self.device, &change)
            }
        }
    }

    /// Writes a stamp that the engine has not asked for.
    fn forge(&self, stamp: &Stamp) {
        let Ok(block) = stamp.encode() else { return };
        let Some(at) = self.look(|state| state.layout.stamp(stamp.epoch)) else { return };
        let fua = self.device.info().can_fua;
        let flags = if fua { WriteFlags::FUA } else { WriteFlags::NONE };
        drop(self.device.write(at, Bytes::copy_from_slice(&block[..]), flags));
    }
}

fn apply(device: &Device, change: &Change) -> Io<()> {
    match change {
        Change::Write(offset, data) => device.write(*offset, data.clone(), WriteFlags::NONE),
        Change::Zero(offset, len) => device.zero(*offset, *len, ZeroFlags::new(false, true)),
    }
}

impl BlockDevice for Passing {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        let read = self.device.read(offset, buf);
        let forged = self.look(|state| state.wrongs_read(offset)).flatten();
        match forged.map(|(at, stamp)| (at - offset, stamp.encode())) {
            Some((at, Ok(block))) => Io::later(async move {
                let mut buf = read.await?;
                let at = at as usize; // within two blocks
                if let Some(place) = buf.get_mut(at..at + BYTES) {
                    place.copy_from_slice(&block[..]);
                }
                Ok(buf)
            }),
            _ => read,
        }
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let of = self.look(|state| state.of(offset)).unwrap_or(Of::Other);
        if of == Of::Data && !flags.fua {
            return self.change(Change::Write(offset, data));
        }
        let ask = self.look(|state| state.wrongs_metadata(of, &data)).unwrap_or(Ask::AsItIs);
        let forged = self.look(|state| {
            if of == Of::Data {
                state.changes();
            }
            state.told(of, &data);
            state.wrongs_stamp(of)
        });
        let write = match ask {
            Ask::Nothing => Io::ok(()),
            Ask::AndTellAtOnce => {
                drop(self.device.write(offset, data, flags));
                Io::ok(())
            }
            Ask::AsItIs | Ask::WithStamp(_) => self.device.write(offset, data, flags),
        };
        if let Some(stamp) = forged.flatten() {
            self.forge(&stamp);
        }
        write
    }

    fn flush(&self) -> Io<()> {
        let flushing = self.look(|state| {
            let flushing = state.wrongs_flush();
            state.flushes();
            flushing
        });
        match flushing.unwrap_or(Flushing::AsItIs) {
            Flushing::AsItIs => self.device.flush(),
            Flushing::Nothing => Io::ok(()),
            Flushing::AndTellAtOnce => {
                drop(self.device.flush());
                Io::ok(())
            }
            Flushing::Behind(changes) => {
                let device = self.device.clone();
                Io::later(async move {
                    for change in &changes {
                        apply(&device, change).await?;
                    }
                    device.flush().await
                })
            }
        }
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.device.trim(offset, len)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        match flags.fua {
            false => self.change(Change::Zero(offset, len)),
            true => {
                self.look(State::changes);
                self.device.zero(offset, len, flags)
            }
        }
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.device.extents(offset, len)
    }
}
