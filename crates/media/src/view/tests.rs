//! A model of an owner who edits a FAT volume while others list it and are sent its files, by seed:
//! with a tool that writes in any order, quickly, or mounted, with sectors that are written when it
//! suits a cache. No byte that is handed on is another file's, or of half an edit. Viewers of the
//! same version share what came; some begin with what is believed, and with questions right behind
//! their reads.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use block::backend::MemoryDevice;
use block::layer::{ReadOnlyLayer, Reads};
use block::{BlockDevice, Buf, Device, DeviceInfo, Extent, Io, WriteFlags};
use files::{ReadConfig, Table};

use super::*;
use crate::escort::escorted;
use crate::writers::{Answer, AnswerBehind, Asked, Told};

const SECTOR: usize = 512;
/// One cluster is a sector; so many make it a FAT16.
const CLUSTERS: usize = 4200;
const TABLE: usize = 1;
const TABLE_SECTORS: usize = 17;
const ROOT: usize = TABLE + TABLE_SECTORS;
const ROOT_SECTORS: usize = 1;
const HEAP: usize = ROOT + ROOT_SECTORS;
/// Clusters that are given out: few, so that they soon have another owner.
const USED: usize = 96;
const NAMES: [&str; 5] = ["A.MP4", "B.MP4", "C.MP4", "D.MP4", "E.MP4"];

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % below
    }

    async fn pause(&mut self, below_us: u64) {
        tokio::time::sleep(Duration::from_micros(self.roll(below_us))).await;
    }
}

/// What the target counts.
#[derive(Clone, Default)]
struct Counts {
    begun_and_ended: Arc<AtomicU64>,
    questions: Arc<AtomicU64>,
    reads: Arc<AtomicU64>,
    latency: Arc<std::sync::Mutex<Latency>>,
    order: Arc<std::sync::Mutex<Order>>,
    /// Answers behind reads count for what was read later, too, as a mistake would have it.
    is_credulous: Arc<AtomicBool>,
}

/// Commands as the target carries them out.
#[derive(Default)]
struct Order {
    next: u64,
    /// Reads that are not carried out.
    under_way: BTreeSet<u64>,
    /// The last of those that have ended.
    read: u64,
}

/// Of a line that is never the same.
struct Latency(Dice);

impl Default for Latency {
    fn default() -> Self {
        Self(Dice(1))
    }
}

impl Counts {
    fn latency(&self) -> Duration {
        let mut latency = self.latency.lock().unwrap();
        Duration::from_micros(latency.0.roll(20_000))
    }
}

impl Asked for Counts {
    fn ask(&self) -> Answer<'_> {
        self.questions.fetch_add(1, SeqCst);
        Box::pin(async move {
            tokio::time::sleep(self.latency()).await;
            let moment = self.begun_and_ended.load(SeqCst);
            tokio::time::sleep(self.latency()).await;
            Ok(Some(Told { moment, is_reserved: false, is_untouched: moment == 0 }))
        })
    }

    fn ask_behind(&self) -> Option<AnswerBehind> {
        let (counts, number) = (self.clone(), self.begin());
        Some(Box::pin(async move {
            tokio::time::sleep(counts.latency()).await;
            let is_first = || counts.order().under_way.first().is_none_or(|read| *read > number);
            while !is_first() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let moment = counts.begun_and_ended.load(SeqCst);
            tokio::time::sleep(counts.latency()).await;
            let told = Told { moment, is_reserved: false, is_untouched: moment == 0 };
            let is_credulous = counts.is_credulous.load(SeqCst);
            Ok((told, if is_credulous { u64::MAX } else { number }))
        }))
    }

    fn reads_ended(&self) -> Option<u64> {
        Some(self.order().read)
    }
}

impl Counts {
    fn order(&self) -> std::sync::MutexGuard<'_, Order> {
        self.order.lock().unwrap()
    }

    /// One more command, and its number.
    fn begin(&self) -> u64 {
        let mut order = self.order();
        order.next += 1;
        order.next
    }
}

/// A read at the target; dropped when it is carried out, or when nobody wants it any more.
struct CarriedOut(Counts, u64);

impl Drop for CarriedOut {
    fn drop(&mut self) {
        self.0.order().under_way.remove(&self.1);
    }
}

/// The volume as a reader far away sees it.
struct Far {
    memory: Arc<MemoryDevice>,
    counts: Counts,
}

impl Reads for Far {
    fn info(&self) -> DeviceInfo {
        self.memory.info()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Buf> {
        let (memory, counts) = (Arc::clone(&self.memory), self.counts.clone());
        let number = counts.begin();
        counts.order().under_way.insert(number);
        let carried_out = CarriedOut(counts.clone(), number);
        // It goes on although its reader looks elsewhere.
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move {
            counts.reads.fetch_add(1, SeqCst);
            tokio::time::sleep(counts.latency()).await;
            // A long read meets several states of the medium.
            for at in (0..buf.len()).step_by(4096) {
                let len = (buf.len() - at).min(4096);
                let piece = memory.read(offset + at as u64, Buf::new(len)).await?;
                buf[at..at + len].copy_from_slice(&piece);
                tokio::task::yield_now().await;
            }
            drop(carried_out);
            tokio::time::sleep(counts.latency()).await;
            let mut order = counts.order();
            order.read = order.read.max(number);
            Ok(buf)
        });
        Io::later(async move { task.join_next().await.unwrap().unwrap() })
    }

    fn extents(&self, _: u64, _: u64) -> Io<Vec<Extent>> {
        Io::err(block::BlockError::ReadOnly)
    }
}

/// A file that exists: its content is its number and where a word stands.
#[derive(Clone)]
struct File {
    number: u32,
    clusters: Vec<usize>,
    size: usize,
}

fn word(number: u32, index: usize) -> [u8; 8] {
    (u64::from(number) << 32 | index as u64).to_le_bytes()
}

/// What there ever was: folders, and files by their numbers.
#[derive(Default)]
struct History {
    listed: BTreeSet<Vec<(String, u64)>>,
    files: BTreeMap<u32, (String, u64)>,
}

/// What the owner means the disk to be, and what is on it of that.
struct Owner {
    memory: Arc<MemoryDevice>,
    counts: Counts,
    dice: Dice,
    files: BTreeMap<&'static str, File>,
    next: u32,
    /// Sectors that are to be written.
    dirty: BTreeMap<usize, Vec<u8>>,
    /// What was ever listed: names and sizes.
    history: Rc<RefCell<History>>,
    is_mounted: bool,
}

impl Owner {
    fn boot(&self) -> Vec<u8> {
        let mut raw = vec![0; SECTOR];
        raw[..3].copy_from_slice(&[0xeb, 0x3c, 0x90]);
        raw[0x0b..0x11].copy_from_slice(&[0, 2, 1, 1, 0, 1]);
        raw[0x11..0x13].copy_from_slice(&16u16.to_le_bytes());
        raw[0x13..0x15].copy_from_slice(&((HEAP + CLUSTERS) as u16).to_le_bytes());
        raw[0x15] = 0xf8;
        raw[0x16..0x18].copy_from_slice(&(TABLE_SECTORS as u16).to_le_bytes());
        raw[0x25] = u8::from(self.is_mounted);
        raw[0x26] = 0x29;
        raw[0x27..0x2b].copy_from_slice(&[1, 2, 3, 4]);
        raw[0x2b..0x36].copy_from_slice(b"FILMS      ");
        raw[510..].copy_from_slice(&[0x55, 0xaa]);
        raw
    }

    /// Table and root folder as they are to be.
    fn describe(&mut self) {
        let mut table = vec![0u8; TABLE_SECTORS * SECTOR];
        let mut put = |at: usize, value: u16| {
            table[2 * at..2 * at + 2].copy_from_slice(&value.to_le_bytes());
        };
        put(0, 0xfff8);
        put(1, 0xffff);
        let mut root = vec![0u8; ROOT_SECTORS * SECTOR];
        for (n, (name, file)) in self.files.iter().enumerate() {
            for pair in file.clusters.windows(2) {
                put(pair[0], pair[1] as u16);
            }
            put(file.clusters[file.clusters.len() - 1], 0xffff);
            let entry = &mut root[32 * n..32 * n + 32];
            entry[..11].copy_from_slice(format!("{}       MP4", &name[..1]).as_bytes());
            entry[11] = 0x20;
            // Two seconds are one step of its times, so the number goes into the date, too.
            entry[22..24].copy_from_slice(&(file.number as u16 % 29).to_le_bytes());
            entry[24..26].copy_from_slice(&(0x21 + file.number as u16 % 5000).to_le_bytes());
            entry[26..28].copy_from_slice(&(file.clusters[0] as u16).to_le_bytes());
            entry[28..].copy_from_slice(&(file.size as u32).to_le_bytes());
        }
        self.put_sectors(TABLE, &table);
        self.put_sectors(ROOT, &root);
    }

    fn put_sectors(&mut self, first: usize, bytes: &[u8]) {
        for (n, sector) in bytes.chunks(SECTOR).enumerate() {
            self.dirty.insert(first + n, sector.to_vec());
        }
    }

    /// A file is removed, made, or takes the place of another one; one is changed where it is.
    fn edit(&mut self) {
        let name = NAMES[self.dice.roll(5) as usize];
        let before = self.files.remove(name);
        let action = self.dice.roll(4);
        if action > 0 {
            let taken: BTreeSet<usize> =
                self.files.values().flat_map(|file| file.clusters.iter().copied()).collect();
            let mut free: Vec<usize> = (2..2 + USED).filter(|one| !taken.contains(one)).collect();
            let count = (1 + self.dice.roll(30) as usize).min(free.len());
            let mut clusters = Vec::new();
            for _ in 0..count {
                clusters.push(free.swap_remove(self.dice.roll(free.len() as u64) as usize));
            }
            let mut size = (count * SECTOR).saturating_sub(self.dice.roll(500) as usize);
            if let Some(before) = before.filter(|_| action == 1) {
                (clusters, size) = (before.clusters, before.size); // changed where it is
            }
            if !clusters.is_empty() {
                let number = self.next;
                self.next += 1;
                for (n, cluster) in clusters.iter().enumerate() {
                    let words = (0..SECTOR / 8).flat_map(|w| word(number, n * SECTOR / 8 + w));
                    self.dirty.insert(HEAP + cluster - 2, words.collect());
                }
                self.files.insert(name, File { number, clusters, size });
            }
        }
        self.describe();
        let described = |(name, file): (&&str, &File)| ((*name).to_owned(), file.size as u64);
        let mut history = self.history.borrow_mut();
        history.listed.insert(self.files.iter().map(described).collect());
        let numbered = self.files.iter().map(|(name, file)| (file.number, described((name, file))));
        history.files.extend(numbered);
    }

    /// Some of what is to be written, in any order, one command for sectors that are neighbours.
    async fn write(&mut self, part: usize) {
        for _ in 0..part {
            let sectors: Vec<usize> = self.dirty.keys().copied().collect();
            if sectors.is_empty() {
                return;
            }
            let first = sectors[self.dice.roll(sectors.len() as u64) as usize];
            self.counts.begun_and_ended.fetch_add(1, SeqCst);
            for sector in first..first + 1 + self.dice.roll(8) as usize {
                let Some(bytes) = self.dirty.remove(&sector) else { break };
                self.dice.pause(3000).await;
                let offset = (sector * SECTOR) as u64;
                self.memory.write(offset, bytes.into(), WriteFlags::NONE).await.unwrap();
            }
            self.counts.begun_and_ended.fetch_add(1, SeqCst);
            self.dice.pause(10_000).await;
        }
    }

    async fn with_a_tool(&mut self) {
        for _ in 0..1 + self.dice.roll(3) {
            self.edit();
            while !self.dirty.is_empty() {
                self.write(3).await;
            }
        }
    }

    async fn mounted(&mut self) {
        self.is_mounted = true;
        let boot = self.boot();
        self.put_sectors(0, &boot);
        self.write(usize::MAX).await;
        for round in 1..2 + self.dice.roll(6) {
            self.edit();
            // What is not written now is written within half a minute.
            let part = if round % 3 == 0 { usize::MAX } else { self.dice.roll(12) as usize };
            self.write(part).await;
            self.dice.pause(9_000_000).await;
        }
        self.write(usize::MAX).await;
        self.is_mounted = false;
        let boot = self.boot();
        self.put_sectors(0, &boot);
        self.write(usize::MAX).await;
    }

    async fn live(mut self) {
        for _ in 0..3 {
            self.dice.pause(4_000_000).await;
            match self.dice.roll(2) {
                0 => self.with_a_tool().await,
                _ => self.mounted().await,
            }
            // Sometimes long enough that all is believed again.
            let below = [2_000_000, 60_000_000][self.dice.roll(2) as usize];
            self.dice.pause(below).await;
        }
    }
}

/// What the viewers saw, so that a test that sees nothing is none.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    whole: u64,
    ended: u64,
    refused: u64,
    went_on: u64,
    /// Was begun with what was believed.
    believed: u64,
    /// Answers to questions behind reads that made another one needless.
    escorted: u64,
    listed: u64,
    torn: u64,
}

struct Viewer {
    view: Rc<View>,
    dice: Dice,
    seen: Rc<RefCell<Seen>>,
    history: Rc<RefCell<History>>,
    seed: u64,
    mistake: Option<Mistake>,
}

/// What a viewer does that is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// Hands bytes on without asking.
    Careless,
    /// Takes an answer for one behind reads that it is not behind.
    Credulous,
}

impl Viewer {
    async fn live(mut self) {
        for _ in 0..25 {
            self.dice.pause(6_000_000).await;
            match self.dice.roll(4) {
                0 => self.list().await,
                _ => {
                    let name = NAMES[self.dice.roll(5) as usize];
                    self.watch(name).await;
                }
            }
        }
    }

    async fn list(&mut self) {
        match self.view.list(b"/").await {
            Ok(entries) => {
                let mut names: Vec<(String, u64)> =
                    entries.iter().map(|entry| (entry.name.to_string(), entry.size)).collect();
                names.sort();
                let is_one = self.history.borrow().listed.contains(&names);
                assert!(is_one, "seed {}: {names:?} was never there", self.seed);
                self.seen.borrow_mut().listed += 1;
            }
            Err(Trouble::Edited) => self.seen.borrow_mut().refused += 1,
            Err(trouble) => panic!("seed {}: {trouble:?}", self.seed),
        }
    }

    async fn watch(&mut self, name: &str) {
        let believed = match self.dice.roll(2) {
            0 => self.view.believed(name).await,
            _ => None,
        };
        let found = match believed {
            Some(found) => {
                self.seen.borrow_mut().believed += 1;
                found
            }
            None => match self.view.file(name).await {
                Ok(found) => found,
                Err(Trouble::Edited) => return self.seen.borrow_mut().refused += 1,
                Err(Trouble::Files(files::Error::NotFound { .. })) => return,
                Err(trouble) => panic!("seed {}: {trouble:?}", self.seed),
            },
        };
        let escort = Arc::default();
        let mut sending = found.sending(name, &escort);
        let config = ReadConfig { bytes_max: 4096, bytes_first: 2048, ..ReadConfig::default() };
        // With what came to other viewers of this version, as the server reads.
        let version = format!("{} {}", found.file.size(), found.entry.version);
        let recent = self.view.recent();
        let is_escorted = self.dice.roll(2) == 0;
        let share = |far| match is_escorted {
            true => {
                let questions = Questions::new(&self.view.marks, &escort, 512);
                let far = escorted(far, &questions);
                recent.shared(far, &version, questions)
            }
            false => {
                let questions = Questions::new(&self.view.marks, &Arc::default(), 512);
                recent.shared(far, &version, questions)
            }
        };
        let file = found.file.with_config(config).through(share);
        let mut reading = file.read(0..file.size());
        let (mut at, mut number) = (0, None);
        loop {
            let mut held = Vec::new();
            for _ in 0..1 + self.dice.roll(4) {
                if let Some(piece) = reading.next().await {
                    held.extend_from_slice(&piece.unwrap());
                }
            }
            if held.is_empty() {
                assert_eq!(at as u64, file.size(), "seed {}", self.seed);
                return self.seen.borrow_mut().whole += 1;
            }
            let moment = sending.moment;
            let is_careless = self.mistake == Some(Mistake::Careless);
            let is_told = is_escorted && self.view.marks.look_behind(&escort).await.is_some();
            self.seen.borrow_mut().escorted += u64::from(is_told);
            if !is_careless && !self.view.is_still_at(&sending).await.unwrap() {
                match self.view.look_again(&mut sending).await {
                    Ok(()) => self.seen.borrow_mut().went_on += u64::from(sending.moment != moment),
                    Err(Trouble::Edited) => return self.seen.borrow_mut().ended += 1,
                    Err(trouble) => panic!("seed {}: {trouble:?}", self.seed),
                }
            }
            if let Err(what) = self.check(name, file.size(), at, &held, &mut number) {
                assert!(self.mistake.is_some(), "seed {}: {what}", self.seed);
                return self.seen.borrow_mut().torn += 1;
            }
            at += held.len();
            // A player that has enough takes its time.
            self.dice.pause(2_000_000).await;
        }
    }

    /// That these bytes, from `at` on, are of one file that had this name and size.
    fn check(
        &self,
        name: &str,
        size: u64,
        at: usize,
        held: &[u8],
        number: &mut Option<u32>,
    ) -> Result<(), String> {
        for (n, byte) in held.iter().enumerate() {
            let index = at + n;
            if index % 8 == 4 && index + 4 <= at + held.len() {
                let told = u32::from_le_bytes(held[n..n + 4].try_into().unwrap());
                let is_it =
                    self.history.borrow().files.get(&told) == Some(&(name.to_owned(), size));
                if *number.get_or_insert(told) != told || !is_it {
                    return Err(format!("another file, {told}, at {index} of {name}"));
                }
            }
            let torn = number.is_some_and(|number| *byte != word(number, index / 8)[index % 8]);
            if torn {
                return Err(format!("torn at {index} of {name}"));
            }
        }
        Ok(())
    }
}

/// An owner with four files, what was there of him, and the volume as others see it.
async fn world(seed: u64) -> (Owner, View) {
    let memory =
        Arc::new(MemoryDevice::new(((HEAP + CLUSTERS) * SECTOR) as u64, SECTOR as u32).unwrap());
    let counts = Counts::default();
    counts.latency.lock().unwrap().0 = Dice(seed ^ 0x51ee);
    let mut owner = Owner {
        memory: Arc::clone(&memory),
        counts: counts.clone(),
        dice: Dice(seed),
        files: BTreeMap::new(),
        next: 1,
        dirty: BTreeMap::new(),
        history: Rc::default(),
        is_mounted: false,
    };
    let boot = owner.boot();
    owner.put_sectors(0, &boot);
    (0..4).for_each(|_| owner.edit());
    owner.write(usize::MAX).await;
    counts.begun_and_ended.store(0, SeqCst);
    let device: Device = Arc::new(ReadOnlyLayer::new(Far { memory, counts: counts.clone() }));
    let marks = Marks::new(Some(Box::new(counts)));
    let before = marks.fresh().await.unwrap();
    let table = Table::read(device).await.unwrap();
    let files = table.open(&table.partitions()[0]).await.unwrap();
    (owner, View::new(files, marks, before))
}

async fn run(seed: u64, mistake: Option<Mistake>) -> Seen {
    let (owner, view) = world(seed).await;
    owner.counts.is_credulous.store(mistake == Some(Mistake::Credulous), SeqCst);
    let (view, history) = (Rc::new(view), Rc::clone(&owner.history));
    let seen = Rc::new(RefCell::new(Seen::default()));
    let viewers = (1..3).map(|number| Viewer {
        view: Rc::clone(&view),
        dice: Dice(seed.wrapping_mul(31) + number),
        seen: Rc::clone(&seen),
        history: Rc::clone(&history),
        seed,
        mistake,
    });
    let local = tokio::task::LocalSet::new();
    let all: Vec<_> = viewers.map(|viewer| local.spawn_local(viewer.live())).collect();
    let edits = local.spawn_local(owner.live());
    local
        .run_until(async {
            for viewer in all {
                viewer.await.unwrap();
            }
            edits.abort();
        })
        .await;
    *seen.borrow()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_read_anew_as_long_as_nobody_writes() {
    let (mut owner, view) = world(1).await;
    let name = *owner.files.keys().next().unwrap();
    let found = view.file(name).await.unwrap();
    let (questions, reads) = (Arc::clone(&owner.counts.questions), Arc::clone(&owner.counts.reads));
    let since =
        |before: (u64, u64)| (questions.load(SeqCst) - before.0, reads.load(SeqCst) - before.1);
    let now = || since((0, 0));
    let before = now();
    view.file(name).await.unwrap();
    assert_eq!(since(before), (1, 0), "a seek: one question, and nothing of the file system");
    let mut sending = found.sending(name, &Arc::default());
    let before = now();
    assert!(view.is_still_at(&sending).await.unwrap());
    assert_eq!(since(before), (1, 0), "a lot of bytes: one question");
    // Somebody writes something else: table and folder are read once for all who are there.
    owner.dirty.insert(HEAP + USED + 7, vec![1; SECTOR]);
    owner.write(1).await;
    assert!(!view.is_still_at(&sending).await.unwrap());
    tokio::time::sleep(QUIET).await;
    let before = now();
    view.look_again(&mut sending).await.unwrap();
    let (questions, reads) = since(before);
    assert!(questions <= 3 && reads <= 2, "{questions} questions, {reads} reads");
    let before = now();
    view.file(name).await.unwrap();
    assert_eq!(since(before), (1, 0));
    assert!(view.edited_since().is_none());
}

fn histories(seeds: std::ops::Range<u64>, mistake: Option<Mistake>) -> Seen {
    let mut sum = Seen::default();
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let seen = runtime.block_on(run(seed, mistake));
        sum.whole += seen.whole;
        sum.ended += seen.ended;
        sum.refused += seen.refused;
        sum.went_on += seen.went_on;
        sum.believed += seen.believed;
        sum.escorted += seen.escorted;
        sum.listed += seen.listed;
        sum.torn += seen.torn;
    }
    println!("{sum:?}");
    sum
}

/// So many, or `ENKAKU_HISTORIES`.
fn no_byte_is_another_files(histories_min: u64) {
    let wanted = std::env::var("ENKAKU_HISTORIES").ok().map(|text| text.parse().unwrap());
    let count = wanted.unwrap_or(0).max(histories_min);
    let sum = histories(0..count, None);
    let least = sum.whole.min(sum.ended).min(sum.refused).min(sum.went_on).min(sum.listed);
    let least = least.min(sum.believed).min(sum.escorted);
    assert!(least >= 3 * count / 10, "hardly anything was tried: {sum:?}");
}

#[test]
fn no_byte_of_a_stream_is_another_files_in_a_thousand_histories() {
    no_byte_is_another_files(1000);
}

#[test]
fn who_does_not_ask_again_sends_bytes_of_other_files() {
    let sum = histories(0..100, Some(Mistake::Careless));
    assert!(sum.torn >= 10, "the owner is in nobody's way: {sum:?}");
}

#[test]
fn an_answer_that_is_not_behind_what_was_read_says_nothing_of_it() {
    let sum = histories(0..5000, Some(Mistake::Credulous));
    assert!(sum.torn >= 3, "the owner is in nobody's way: {sum:?}");
}
