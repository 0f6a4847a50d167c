//! The guest: threads that read, write and flush the mirror's device, and tell the judge what they
//! asked for and what they were told.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::mirror::Host;
use block::{BlockDevice, Buf, Bytes, Device, Io, WriteFlags, ZeroFlags};

use super::content::{Content, SECTOR, SECTOR_BYTES};
use super::disk::{LocalDisk, lock};
use super::executor::SimHost;
use super::judge::{Done, Judge};
use super::leg::Leg;
use super::sabotage::Sabotage;
use super::subject::{Place, Running};
use crate::rng::Rng;

/// Sectors of a block of the mirror.
const BLOCK_SECTORS: u64 = block::mirror::BLOCK_BYTES / SECTOR_BYTES;

/// Time after which a flush that was told complete gets to the mirror, where that is a mistake.
const LATE: Duration = Duration::from_millis(50);

/// What a guest is like.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    /// First blocks of where it writes, in blocks of the mirror; those that follow are free as
    /// well.
    pub(crate) places: Vec<u64>,
    /// It may ask for less than a block of the mirror: sectors of its smallest unit.
    pub(crate) unit_sectors: u64,
    /// Threads.
    pub(crate) threads: u64,
    /// Operations of all of them.
    pub(crate) operations: u64,
    /// Longest pause of a thread, in microseconds.
    pub(crate) pause_us_max: u64,
    /// Percent of the writes that may overlap with one under way.
    pub(crate) overlap: u32,
    /// Operations in a hundred that are flushes, and FUA writes.
    pub(crate) flushes: u32,
    pub(crate) forced: u32,
    /// An operation may fail.
    pub(crate) failures: bool,
}

/// What the threads share.
pub(crate) struct Desk {
    rng: Rng,
    left: u64,
    running: u64,
    busy: Vec<Range<u64>>,
}

/// A guest. A clone for each thread.
#[derive(Clone)]
pub(crate) struct Guest {
    pub(crate) habits: Arc<Habits>,
    pub(crate) judge: Arc<Mutex<Judge>>,
    pub(crate) mirror: Arc<dyn Running>,
    pub(crate) device: Device,
    pub(crate) host: Arc<SimHost>,
    pub(crate) legs: Vec<Leg>,
    pub(crate) disk: LocalDisk,
    pub(crate) sabotage: Option<Sabotage>,
    desk: Arc<Mutex<Desk>>,
    /// Bytes of written data that somebody still holds.
    held: Arc<AtomicU64>,
}

/// Data of a write, counted while anybody holds it.
struct Held {
    data: Vec<u8>,
    count: Arc<AtomicU64>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.count.fetch_sub(self.data.len() as u64, Ordering::Relaxed);
    }
}

enum Action {
    Write { range: Range<u64>, fua: bool },
    Zero { range: Range<u64>, fua: bool },
    Read(Range<u64>),
    Flush,
}

impl Guest {
    pub(crate) fn new(
        habits: Arc<Habits>,
        judge: Arc<Mutex<Judge>>,
        mirror: Arc<dyn Running>,
        place: &Place,
        rng: Rng,
    ) -> Self {
        let desk = Desk { rng, left: habits.operations, running: habits.threads, busy: Vec::new() };
        Self {
            device: mirror.device(),
            habits,
            judge,
            mirror,
            host: place.host.clone(),
            legs: place.legs.clone(),
            disk: place.disk.clone(),
            sabotage: None,
            desk: Arc::new(Mutex::new(desk)),
            held: Arc::default(),
        }
    }

    /// All threads have done their work.
    pub(crate) fn finished(&self) -> bool {
        lock(&self.desk).running == 0
    }

    pub(crate) fn start(&self) {
        for _ in 0..self.habits.threads {
            let guest = self.clone();
            self.host.spawn(Box::pin(async move {
                while let Some(action) = guest.next() {
                    guest.pause().await;
                    guest.act(action).await;
                }
                lock(&guest.desk).running -= 1;
            }));
        }
    }

    async fn pause(&self) {
        let pause = lock(&self.desk).rng.skewed(self.habits.pause_us_max);
        self.host.sleep(Duration::from_micros(pause)).await;
    }

    fn next(&self) -> Option<Action> {
        let mut desk = lock(&self.desk);
        desk.left = desk.left.checked_sub(1)?;
        let kind = desk.rng.below(100) as u32;
        let Habits { flushes, forced, .. } = *self.habits;
        if kind < flushes {
            return Some(Action::Flush);
        }
        let fua = kind < flushes + forced;
        let range = desk.range(&self.habits);
        Some(match desk.rng.below(20) {
            0..=2 if !fua => Action::Read(range),
            3..=4 => Action::Zero { range, fua },
            _ => Action::Write { range, fua },
        })
    }

    async fn act(&self, action: Action) {
        match action {
            Action::Flush => self.flush().await,
            Action::Read(range) => self.read(range).await,
            Action::Write { range, fua } => self.change(range, fua, false).await,
            Action::Zero { range, fua } => self.change(range, fua, true).await,
        }
    }

    async fn change(&self, range: Range<u64>, fua: bool, zero: bool) {
        if !self.reserve(&range) {
            return self.flush().await;
        }
        self.note_meeting(&range);
        let now = self.host.now();
        let write = lock(&self.judge).history.begin_write(range.clone(), zero, now);
        let what = if zero { "zeroes" } else { "write" };
        self.log(|| format!("guest: {what} {write} at {range:?} fua {fua}"));
        let (offset, len) = (range.start * SECTOR_BYTES, (range.end - range.start) * SECTOR_BYTES);
        let kept = [Sabotage::FuaNotPassedOn, Sabotage::ForcedToDiskOnly];
        let kept = fua && self.sabotage.is_some_and(|sabotage| kept.contains(&sabotage));
        let passed = fua && !kept;
        let done = match zero {
            true => self.device.zero(offset, len, ZeroFlags::new(passed, true)),
            false => {
                let flags = if passed { WriteFlags::FUA } else { WriteFlags::NONE };
                self.device.write(offset, self.data(write, &range), flags)
            }
        };
        let mut result = done.await;
        if kept {
            self.made();
            if self.sabotage == Some(Sabotage::ForcedToDiskOnly) && result.is_ok() {
                result = self.disk.flush().await;
            }
        }
        self.told("write", write, &result, |judge, now| {
            judge.history.end_write(write, true, fua, now);
            if fua { Done::Forced } else { Done::Write }
        });
        if result.is_err() {
            lock(&self.judge).history.end_write(write, false, false, self.host.now());
        }
        let mut desk = lock(&self.desk);
        if let Some(at) = desk.busy.iter().position(|busy| *busy == range) {
            desk.busy.swap_remove(at);
        }
    }

    /// Whether a change of the range may begin now.
    fn reserve(&self, range: &Range<u64>) -> bool {
        let mut desk = lock(&self.desk);
        let may = !desk.is_busy(range) || desk.rng.percent(self.habits.overlap);
        if may {
            desk.busy.push(range.clone());
        }
        may
    }

    /// Flushes, and holds the mirror to it.
    pub(crate) async fn flush(&self) {
        let begun = lock(&self.judge).history.begin(self.host.now());
        self.log(|| "guest: flush".into());
        let result = self.ask_to_flush().await;
        self.told("flush", 0, &result, |judge, now| {
            judge.history.end_flush(begun, now);
            Done::Flush
        });
    }

    fn ask_to_flush(&self) -> Io<()> {
        match self.sabotage {
            Some(Sabotage::FlushNotPassedOn) => {
                self.made();
                Io::ok(())
            }
            Some(Sabotage::FlushToDiskOnly) => {
                self.made();
                self.disk.flush()
            }
            Some(Sabotage::FlushPassedOnLate) => {
                self.made();
                let (host, device) = (self.host.clone(), self.device.clone());
                let later = host.sleep(LATE);
                host.spawn(Box::pin(async move {
                    later.await;
                    drop(device.flush().await);
                }));
                self.disk.flush()
            }
            _ => self.device.flush(),
        }
    }

    fn made(&self) {
        lock(&self.judge).hit(super::sabotage::MADE);
    }

    /// Whether a write of the range meets a copy that has not come there yet.
    fn note_meeting(&self, range: &Range<u64>) {
        let here = lock(&self.disk.store);
        let meets = self.legs.iter().enumerate().any(|(number, leg)| {
            let there = lock(leg.store());
            let differs = range.clone().any(|at| here.visible(at) != there.visible(at));
            differs && self.mirror.copies(number)
        });
        if meets {
            lock(&self.judge).hit("copy: a write meets what is not copied yet");
        }
    }

    /// Something has ended. The legs in sync owe from now on what they promised.
    fn told(
        &self,
        what: &'static str,
        write: u32,
        result: &block::Result<()>,
        well: impl FnOnce(&mut Judge, Duration) -> Done,
    ) {
        let now = self.host.now();
        self.log(|| format!("guest: {what} {write} ends: {result:?}"));
        let in_sync: Vec<usize> =
            (0..self.legs.len()).filter(|leg| self.mirror.in_sync(*leg)).collect();
        let mut judge = lock(&self.judge);
        match result {
            Ok(()) => {
                judge.hit(what);
                let done = well(&mut judge, now);
                in_sync.into_iter().for_each(|leg| judge.told(leg, done, now));
            }
            Err(_) if self.habits.failures => judge.hit("guest: told of a failure"),
            Err(error) => judge.fail(format!("a {what} of the guest fails: {error}")),
        }
    }

    async fn read(&self, range: Range<u64>) {
        let begun = lock(&self.judge).history.begin(self.host.now());
        let len = (range.end - range.start) as usize * SECTOR;
        let result = self.device.read(range.start * SECTOR_BYTES, Buf::new(len)).await;
        let now = self.host.now();
        let mut judge = lock(&self.judge);
        match result {
            Ok(buf) => {
                judge.hit("read");
                let pieces = range.zip(buf.chunks_exact(SECTOR));
                let read: Vec<_> = pieces.map(|(at, piece)| (at, Content::of(at, piece))).collect();
                if let Err(wrong) = judge.history.end_read(begun, &read, now) {
                    judge.fail(wrong);
                }
            }
            Err(_) if self.habits.failures => judge.hit("guest: told of a failure"),
            Err(error) => judge.fail(format!("a read of the guest fails: {error}")),
        }
    }

    /// Bytes of the guest's writes that are held in memory.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes of writes that are not answered yet.
    pub(crate) fn busy_bytes(&self) -> u64 {
        let desk = lock(&self.desk);
        desk.busy.iter().map(|range| (range.end - range.start) * SECTOR_BYTES).sum()
    }

    fn data(&self, write: u32, range: &Range<u64>) -> Bytes {
        let mut data = vec![0; (range.end - range.start) as usize * SECTOR];
        let content = Content::Guest(write);
        let pieces = range.clone().zip(data.chunks_exact_mut(SECTOR));
        pieces.for_each(|(at, out)| content.fill(at, out));
        self.held.fetch_add(data.len() as u64, Ordering::Relaxed);
        Bytes::from_owner(Held { data, count: self.held.clone() })
    }

    fn log(&self, what: impl FnOnce() -> String) {
        lock(&self.judge).log(self.host.now(), what);
    }
}

impl Desk {
    fn is_busy(&self, range: &Range<u64>) -> bool {
        self.busy.iter().any(|busy| busy.start < range.end && range.start < busy.end)
    }

    /// A range to work on: one that is free, if one is found soon.
    fn range(&mut self, habits: &Habits) -> Range<u64> {
        const ATTEMPTS: u32 = 4;
        let mut range = 0..0;
        for _ in 0..ATTEMPTS {
            let first = self.rng.pick(&habits.places) * BLOCK_SECTORS;
            let unit = habits.unit_sectors;
            range = match unit < BLOCK_SECTORS && self.rng.percent(30) {
                true => {
                    let at = first + self.rng.below(BLOCK_SECTORS / unit) * unit;
                    at..at + unit
                }
                false => first..first + BLOCK_SECTORS * self.rng.pick(&[1, 1, 1, 2]),
            };
            if !self.is_busy(&range) {
                break;
            }
        }
        range
    }
}
