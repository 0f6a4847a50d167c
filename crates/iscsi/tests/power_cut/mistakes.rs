//! Deliberate mistakes in the rules of durability, in the target's storage, the target or the
//! initiator's driver: each has to be found.

use std::sync::Mutex;

use block::{BlockDevice, Buf, Bytes, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

/// What is done wrong, on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Storage: a flush does nothing.
    FlushIgnored,
    /// Storage: every other flush does nothing.
    EveryOtherFlushIgnored,
    /// Storage: a forced write is treated as any other.
    FuaIgnored,
    /// Storage: every seventh write is dropped.
    WriteDropped,
    /// Storage: a write is acknowledged, and done after the next flush.
    WriteAfterFlush,
    /// Storage: zeroing does nothing.
    ZeroIgnored,
    /// Storage: half of a write of several sectors is done.
    WriteHalved,
    /// Target: a power-on counts as told when its answer is made.
    PowerOnToldOnce,
    /// Initiator: a power-on is forgotten with the connection that told it.
    PowerOnForgotten,
    /// Initiator: nothing is written again.
    ReplaySkipped,
    /// Initiator: what is written again is not flushed before it is forgotten.
    ReplayUnflushed,
    /// Initiator: of what is written again the last piece is left out.
    ReplayShort,
    /// Initiator: it is written again after the user's commands, not before.
    ReplayLate,
    /// Initiator: a flush covers what was acknowledged until its answer came.
    FlushCoversLater,
    /// Initiator: a flush covers what it should when it is sent.
    FlushCoversAtOnce,
    /// Initiator: a forced write counts as a flush.
    FuaCoversAll,
    /// Initiator: a forced write leaves what is older to be written again.
    FuaKeepsOlder,
    /// Initiator: zeroes are not kept.
    ZeroesNotKept,
    /// Initiator: a flush is answered without being sent.
    FlushNotSent,
}

impl Mistake {
    /// All kinds.
    pub const ALL: [Self; 19] = [
        Self::FlushIgnored,
        Self::EveryOtherFlushIgnored,
        Self::FuaIgnored,
        Self::WriteDropped,
        Self::WriteAfterFlush,
        Self::ZeroIgnored,
        Self::WriteHalved,
        Self::PowerOnToldOnce,
        Self::PowerOnForgotten,
        Self::ReplaySkipped,
        Self::ReplayUnflushed,
        Self::ReplayShort,
        Self::ReplayLate,
        Self::FlushCoversLater,
        Self::FlushCoversAtOnce,
        Self::FuaCoversAll,
        Self::FuaKeepsOlder,
        Self::ZeroesNotKept,
        Self::FlushNotSent,
    ];
}

/// Storage that lies, if it is told to.
pub struct Liar {
    device: Device,
    mistake: Option<Mistake>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    flushes: u64,
    writes: u64,
    held: Option<(u64, Bytes)>,
}

impl Liar {
    pub fn new(device: Device, mistake: Option<Mistake>) -> Self {
        Self { device, mistake, state: Mutex::default() }
    }

    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }
}

impl BlockDevice for Liar {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.device.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let mut state = self.state.lock().unwrap();
        state.writes += 1;
        if self.is(Mistake::WriteDropped) && state.writes.is_multiple_of(7) {
            return Io::ok(());
        }
        if self.is(Mistake::WriteAfterFlush) && !flags.fua && state.held.is_none() {
            state.held = Some((offset, data));
            return Io::ok(());
        }
        let half = data.len() / 1024 * 512;
        let data = match self.is(Mistake::WriteHalved) && half > 0 {
            true => data.slice(..half),
            false => data,
        };
        let flags = if self.is(Mistake::FuaIgnored) { WriteFlags::NONE } else { flags };
        self.device.write(offset, data, flags)
    }

    fn flush(&self) -> Io<()> {
        let mut state = self.state.lock().unwrap();
        state.flushes += 1;
        let ignored = self.is(Mistake::FlushIgnored)
            || self.is(Mistake::EveryOtherFlushIgnored) && state.flushes.is_multiple_of(2);
        if ignored {
            return Io::ok(());
        }
        let (flush, held) = (self.device.flush(), state.held.take());
        let Some((offset, data)) = held else { return flush };
        let device = self.device.clone();
        Io::later(async move {
            flush.await?;
            device.write(offset, data, WriteFlags::NONE).await
        })
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.device.trim(offset, len)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        match self.is(Mistake::ZeroIgnored) {
            true => Io::ok(()),
            false => self.device.zero(offset, len, flags),
        }
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.device.extents(offset, len)
    }
}
