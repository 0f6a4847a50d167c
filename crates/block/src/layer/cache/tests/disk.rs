//! A disk at the far end of a network: its operations take their time, may fail, stall while the
//! connection is lost and are then sent again; without a flush it forgets when power is cut.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::layer::Random;
use crate::{BlockDevice, BlockError, Buf, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

pub(super) const BLOCK: u64 = 512;
pub(super) const BLOCKS: u64 = 2048;

/// Longest time before and after an operation takes effect, each.
const HALF_MS_MAX: u64 = 60;

/// A block holds its version in its first bytes.
pub(super) struct Disk {
    info: DeviceInfo,
    pub(super) state: Arc<Mutex<DiskState>>,
}

pub(super) struct DiskState {
    random: Random,
    pub(super) current: Vec<u64>,
    /// Versions since the last flush, older first; the first one is stable.
    volatile: BTreeMap<u64, Vec<u64>>,
    pub(super) fail_per_cent: u64,
    /// The connection is lost meanwhile.
    pub(super) outage: Option<Range<Instant>>,
    cut: bool,
}

impl DiskState {
    fn put(&mut self, block: u64, version: u64, fua: bool) {
        let before = self.current[block as usize];
        self.volatile.entry(block).or_insert_with(|| vec![before]).push(version);
        self.current[block as usize] = version;
        if fua {
            self.volatile.remove(&block);
        }
    }

    /// What is left after a power cut.
    pub(super) fn cut(&mut self) -> Vec<u64> {
        self.cut = true;
        for (block, versions) in std::mem::take(&mut self.volatile) {
            let kept = self.random.below(versions.len() as u64) as usize;
            self.current[block as usize] = versions[kept];
        }
        self.current.clone()
    }
}

/// What becomes of an operation.
struct Fate {
    before: Duration,
    after: Duration,
    fails: bool,
    /// Of a failing operation: per cent of its blocks that it reaches all the same.
    reaches: u64,
}

impl Disk {
    pub(super) fn new(seed: u64, fail_per_cent: u64) -> Self {
        let mut info = DeviceInfo::new(BLOCKS * BLOCK, 512);
        info.can_fua = true;
        let state = DiskState {
            random: Random(seed),
            current: vec![0; BLOCKS as usize],
            volatile: BTreeMap::new(),
            fail_per_cent,
            outage: None,
            cut: false,
        };
        Self { info, state: Arc::new(Mutex::new(state)) }
    }

    fn fate(&self) -> Fate {
        let mut state = self.state.lock().unwrap();
        let per_cent = state.fail_per_cent;
        Fate {
            before: Duration::from_millis(state.random.below(HALF_MS_MAX)),
            after: Duration::from_millis(state.random.below(HALF_MS_MAX)),
            fails: state.random.below(100) < per_cent,
            reaches: [0, 0, 50, 100][state.random.below(4) as usize],
        }
    }

    /// Waits, takes effect (on a part of it, if it fails), and waits again. If the connection was
    /// lost meanwhile it is sent again, and takes effect again.
    fn operate<T: Send + 'static>(
        &self,
        fate: Fate,
        effect: impl Fn(&mut DiskState, u64) -> T + Send + 'static,
    ) -> Io<T> {
        let state = self.state.clone();
        let apply = move |per_cent: u64| {
            let mut state = state.lock().unwrap();
            (!state.cut).then(|| effect(&mut state, per_cent))
        };
        let state = self.state.clone();
        Io::later(async move {
            tokio::time::sleep(fate.before).await;
            let mut result = apply(if fate.fails { fate.reaches } else { 100 });
            tokio::time::sleep(fate.after).await;
            let outage = state.lock().unwrap().outage.clone();
            if let Some(outage) = outage.filter(|outage| outage.contains(&Instant::now())) {
                tokio::time::sleep_until(outage.end).await;
                result = apply(if fate.fails { fate.reaches } else { 100 });
            }
            result.filter(|_| !fate.fails).ok_or_else(|| BlockError::Unreachable("gone".into()))
        })
    }
}

/// The versions that a run of blocks holds.
pub(super) fn versions(data: &[u8]) -> Vec<u64> {
    let version = |block: &[u8]| u64::from_le_bytes(block[..8].try_into().unwrap());
    data.chunks(BLOCK as usize).map(version).collect()
}

/// A run of blocks of one version.
pub(super) fn blocks(version: u64, count: u64) -> Bytes {
    let mut data = vec![0; (count * BLOCK) as usize];
    data.chunks_mut(BLOCK as usize).for_each(|b| b[..8].copy_from_slice(&version.to_le_bytes()));
    data.into()
}

impl BlockDevice for Disk {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        let (first, len) = ((offset / BLOCK) as usize, buf.len());
        self.operate(self.fate(), move |state, _| {
            let mut buf = Buf::new(len);
            for (index, block) in buf.chunks_mut(BLOCK as usize).enumerate() {
                block.fill(0);
                block[..8].copy_from_slice(&state.current[first + index].to_le_bytes());
            }
            buf
        })
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let first = offset / BLOCK;
        let versions = versions(&data);
        self.operate(self.fate(), move |state, per_cent| {
            let reached = versions.len() * per_cent as usize / 100;
            for (block, version) in (first..).zip(&versions[..reached]) {
                state.put(block, *version, flags.fua && per_cent == 100);
            }
        })
    }

    fn flush(&self) -> Io<()> {
        // Stable is what was complete at the call at least: all of it, here.
        let fate = Fate { fails: false, ..self.fate() };
        self.operate(fate, |state, _| state.volatile.clear())
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.zero(offset, len, ZeroFlags::default())
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.write(offset, blocks(0, len / BLOCK), WriteFlags { fua: flags.fua })
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        Io::ok(vec![Extent { offset, len, hole: false }])
    }
}
