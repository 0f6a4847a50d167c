//! Updates whose power is cut at every operation of the state file and the destination: what the
//! file says is true afterwards, and the next update makes both sides equal.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::format::PAGE_HASHES;
use super::hash::Hasher;
use super::*;
use crate::backend::MemoryDevice;
use crate::layer::Random;
use crate::{
    BlockDevice, BlockError, Buf, Bytes, Device, DeviceInfo, Extent, Io, Result, WriteFlags,
    ZeroFlags,
};

const BLOCK: u64 = 4096;
/// A page and a bit, the last block in part.
const LENGTH: u64 = (PAGE_HASHES + 17) * BLOCK - 512;
const PHASE: Phase = Phase::Preparing;
const SALT: Salt = Salt([42; 16]);

/// Operations until the power goes, for all disks together.
#[derive(Clone)]
struct Power(Arc<AtomicU64>);

impl Power {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }

    fn set(&self, operations: u64) {
        self.0.store(operations, Ordering::SeqCst);
    }

    /// False once it is gone.
    fn spend(&self) -> bool {
        let take = |left: u64| (left > 0).then(|| left - 1);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

/// A disk that keeps what was flushed, and of the rest what it likes, by sectors of 512 bytes.
struct Disk {
    power: Power,
    can_zero: bool,
    /// Its flush does nothing.
    lies: AtomicBool,
    content: Mutex<Content>,
}

struct Content {
    stable: Vec<u8>,
    now: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
    random: Random,
}

impl Disk {
    fn new(size: u64, power: &Power, can_zero: bool, seed: u64) -> Arc<Self> {
        let now = vec![0; size as usize];
        let content =
            Content { stable: now.clone(), now, pending: Vec::new(), random: Random(seed) };
        let lies = AtomicBool::new(false);
        Arc::new(Self { power: power.clone(), can_zero, lies, content: Mutex::new(content) })
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The power comes back.
    fn restart(&self) {
        let mut content = self.lock();
        let content = &mut *content;
        for (at, data) in std::mem::take(&mut content.pending) {
            for (sector, bytes) in data.chunks(512).enumerate() {
                if content.random.below(2) == 0 {
                    content.stable[at + sector * 512..][..bytes.len()].copy_from_slice(bytes);
                }
            }
        }
        content.now.clone_from(&content.stable);
    }

    /// Takes a time that is another each time, so that operations overtake each other.
    fn later<T: Send + Unpin + 'static>(&self, result: Result<T>) -> Io<T> {
        let turns = self.lock().random.below(4);
        Io::later(async move {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            result
        })
    }

    fn put(&self, offset: u64, data: &[u8]) -> Io<()> {
        if !self.power.is_on() {
            return self.later(Err(gone()));
        }
        {
            let mut content = self.lock();
            let at = offset as usize;
            content.now[at..][..data.len()].copy_from_slice(data);
            content.pending.push((at, data.to_vec()));
        }
        let well = self.power.spend() && self.power.is_on();
        self.later(if well { Ok(()) } else { Err(gone()) })
    }
}

fn gone() -> BlockError {
    BlockError::Unreachable("no power".into())
}

impl BlockDevice for Disk {
    fn info(&self) -> DeviceInfo {
        let mut info = DeviceInfo::new(self.lock().now.len() as u64, 512);
        info.can_zero = self.can_zero;
        info
    }

    fn read(&self, offset: u64, mut buf: Buf) -> Io<Buf> {
        if !self.power.is_on() {
            return Io::err(gone());
        }
        let len = buf.len();
        buf.copy_from_slice(&self.lock().now[offset as usize..][..len]);
        self.later(Ok(buf))
    }

    fn write(&self, offset: u64, data: Bytes, _: WriteFlags) -> Io<()> {
        self.put(offset, &data)
    }

    fn flush(&self) -> Io<()> {
        if !self.power.spend() || !self.power.is_on() {
            return self.later(Err(gone()));
        }
        if !self.lies.load(Ordering::SeqCst) {
            let mut content = self.lock();
            content.pending.clear();
            content.stable = content.now.clone();
        }
        self.later(Ok(()))
    }

    fn trim(&self, _: u64, _: u64) -> Io<()> {
        Io::ok(())
    }

    fn zero(&self, offset: u64, len: u64, _: ZeroFlags) -> Io<()> {
        self.put(offset, &vec![0; len as usize])
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        Io::ok(vec![Extent { offset, len, hole: false }])
    }
}

struct World {
    power: Power,
    source: Device,
    destination: Arc<Disk>,
    file: Arc<Disk>,
    random: Random,
    options: Options,
}

fn pair() -> Pair {
    Pair { source: "a".into(), destination: "b".into(), identity: "c".into() }
}

impl World {
    async fn new(seed: u64) -> Self {
        let power = Power::new();
        let file = Disk::new(file_bytes(LENGTH, BLOCK as u32), &power, false, seed);
        let destination = Disk::new(LENGTH + 4096, &power, seed.is_multiple_of(2), seed + 1);
        let source: Device = Arc::new(MemoryDevice::new(LENGTH, 512).unwrap());
        let options = Options { transfer_size: 16384, depth: 5, checkpoint_bytes: 40_000 };
        let mut random = Random(seed + 2);
        // What was there before us.
        destination.lock().now[..].fill(0xee);
        destination.flush().await.unwrap();
        let new = NewState {
            salt: SALT,
            length: LENGTH,
            block_bytes: BLOCK as u32,
            phase: PHASE,
            pair: pair(),
        };
        State::create(file.clone(), new).await.unwrap();
        for _ in 0..random.below(8) {
            random.next();
        }
        Self { power, source, destination, file, random, options }
    }

    /// Writes here and there; some of it zeroes, some of it what is there already.
    async fn change(&mut self) {
        for _ in 0..1 + self.random.below(6) {
            let blocks = LENGTH / 512;
            let first = self.random.below(blocks);
            let len = (1 + self.random.below(60)).min(blocks - first);
            let byte = self.random.below(4) as u8;
            let data = vec![byte; (len * 512) as usize];
            self.source.write(first * 512, data.into(), WriteFlags::NONE).await.unwrap();
        }
    }

    async fn update(&self) -> std::result::Result<Updated, IncrementalError> {
        let mut state = State::open(self.file.clone()).await?;
        state.check_names(LENGTH, &pair(), false)?;
        state.check_identity(&pair())?;
        state.begin().await?;
        let destination: Device = self.destination.clone();
        let all = Among::All;
        let done = update(&self.source, &destination, &state, &self.options, all, |_| ()).await?;
        state.complete(1).await?;
        Ok(done)
    }

    fn restart(&self) {
        self.file.restart();
        self.destination.restart();
        self.power.set(u64::MAX);
    }

    async fn source_content(&self) -> Buf {
        self.source.read(0, Buf::new(LENGTH as usize)).await.unwrap()
    }

    fn destination_content(&self) -> Vec<u8> {
        self.destination.lock().now.clone()
    }

    /// How many hashes in the file are those of what the destination holds, and how many are not.
    /// Nothing where the file cannot be read.
    async fn hashes(&self) -> Option<(u64, u64)> {
        let state = State::open(self.file.clone()).await.ok()?;
        let hasher = Hasher::new(SALT, BLOCK as usize, 4096 - 512);
        let content = self.destination_content();
        let (pages, _) = state.load(0..state.pages()).await.unwrap();
        let hashes = pages.iter().flat_map(|page| page.0.iter().copied());
        let (mut good, mut bad) = (0, 0);
        for (block, hash) in content[..LENGTH as usize].chunks(BLOCK as usize).zip(hashes) {
            match hash.is_known() {
                true if hash == hasher.hash(block) => good += 1,
                true => bad += 1,
                false => {}
            }
        }
        Some((good, bad))
    }

    async fn assert_hashes(&self) {
        assert_eq!(self.hashes().await.unwrap().1, 0, "hashes of what is not there");
    }

    async fn assert_equal(&self) {
        let there = self.destination_content();
        assert!(there[..LENGTH as usize] == self.source_content().await[..]);
        assert!(there[LENGTH as usize..].iter().all(|byte| *byte == 0xee), "behind the end");
    }
}

/// What power cuts have shown.
#[derive(Debug, Default)]
struct Shown {
    cuts: u64,
    good: u64,
    bad: u64,
}

/// Runs that are cut after an operation, each after a later one than the run before; the source
/// changes meanwhile. Whoever ends well has made both sides equal.
async fn cut_runs(world: &mut World, shown: &mut Shown) {
    world.change().await;
    let (mut operations, mut ended) = (1, 0);
    while ended < 3 {
        world.power.set(operations);
        let done = world.update().await;
        let is_over = done.is_ok() && world.power.is_on();
        world.restart();
        let (good, bad) = world.hashes().await.unwrap();
        (shown.good, shown.bad) = (shown.good + good, shown.bad + bad);
        if is_over {
            world.assert_equal().await;
            (operations, ended) = (0, ended + 1);
            world.change().await;
        } else {
            shown.cuts += 1;
            if world.random.below(3) == 0 {
                world.change().await;
            }
        }
        operations += 1 + world.random.below(3);
    }
}

#[tokio::test]
async fn power_cuts_at_every_operation_leave_a_file_that_tells_the_truth() {
    let mut shown = Shown::default();
    for seed in 0..8 {
        cut_runs(&mut World::new(seed).await, &mut shown).await;
    }
    assert_eq!(shown.bad, 0, "hashes of what is not there");
    assert!(shown.cuts > 100 && shown.good > 10_000, "too little: {shown:?}");
}

/// The test above would find a strike or a copy that is not flushed: here a flush does nothing.
#[tokio::test]
async fn without_either_flush_the_file_would_lie() {
    for at_destination in [false, true] {
        let mut bad = 0;
        for seed in 0..20 {
            let mut world = World::new(seed).await;
            world.change().await;
            world.update().await.unwrap();
            world.change().await;
            for operations in 1..30 {
                let disk = if at_destination { &world.destination } else { &world.file };
                let disk = disk.clone();
                disk.lies.store(true, Ordering::SeqCst);
                world.power.set(operations);
                drop(world.update().await);
                world.restart();
                disk.lies.store(false, Ordering::SeqCst);
                bad += world.hashes().await.map_or(0, |(_, bad)| bad);
            }
        }
        assert!(bad > 0, "at the destination: {at_destination}");
    }
}

#[tokio::test]
async fn only_what_changed_is_read_back_and_sent() {
    let mut world = World::new(2).await;
    world.change().await;
    let first = world.update().await.unwrap();
    assert_eq!(first.sent_bytes + first.zero_bytes, LENGTH);
    let again = world.update().await.unwrap();
    assert_eq!((again.same_bytes, again.sent_bytes, again.zero_bytes), (LENGTH, 0, 0));
    let data = Bytes::from(vec![9; 512]);
    for block in [3, 4, 260] {
        world.source.write(block * BLOCK, data.clone(), WriteFlags::NONE).await.unwrap();
    }
    let few = world.update().await.unwrap();
    assert_eq!((few.sent_bytes, few.zero_bytes), (3 * BLOCK, 0));
    world.assert_equal().await;
    let state = State::open(world.file.clone()).await.unwrap();
    assert_eq!((state.header().runs, state.header().phase), (3, Phase::Complete));
}

#[tokio::test]
async fn a_destination_that_somebody_changed_is_found_and_sent_again() {
    let mut world = World::new(4).await;
    world.change().await;
    world.update().await.unwrap();
    let destination: Device = world.destination.clone();
    let state = State::open(world.file.clone()).await.unwrap();
    let good = verify(&destination, &state, &world.options, |_| ()).await.unwrap();
    assert_eq!((good.bytes, good.mismatches), (LENGTH, 0));
    for at in [0, 260 * BLOCK, LENGTH - 512] {
        destination.write(at, vec![0x77; 512].into(), WriteFlags::NONE).await.unwrap();
    }
    let bad = verify(&destination, &state, &world.options, |_| ()).await.unwrap();
    let last = (LENGTH - 512) / BLOCK * BLOCK;
    assert_eq!((bad.mismatches, bad.offsets), (3, vec![0, 260 * BLOCK, last]));
    world.assert_hashes().await;
    let (options, source) = (&world.options, &world.source);
    let unknown = Among::Unknown;
    let healed = update(source, &destination, &state, options, unknown, |_| ()).await.unwrap();
    assert_eq!(healed.sent_bytes + healed.zero_bytes, 2 * BLOCK + (LENGTH - last));
    assert!(healed.read_bytes <= 2 * BLOCK + (LENGTH - last), "{healed:?}");
    world.assert_equal().await;
    let good = verify(&destination, &state, &world.options, |_| ()).await.unwrap();
    assert_eq!(good.mismatches, 0);
}

#[tokio::test]
async fn a_destination_that_holds_most_of_it_is_learnt() {
    let mut world = World::new(6).await;
    world.change().await;
    let content = world.source_content().await;
    world.destination.write(0, content.freeze(), WriteFlags::NONE).await.unwrap();
    let destination: Device = world.destination.clone();
    destination.write(5 * BLOCK, vec![0x77; 4096].into(), WriteFlags::NONE).await.unwrap();
    let state = State::open(world.file.clone()).await.unwrap();
    let learnt = learn(&destination, &state, &world.options, |_| ()).await.unwrap();
    assert_eq!(learnt.bytes, LENGTH);
    world.assert_hashes().await;
    let done = world.update().await.unwrap();
    assert_eq!(done.sent_bytes + done.zero_bytes, BLOCK);
    world.assert_equal().await;
}

#[tokio::test]
async fn holes_are_known_without_being_read_and_a_torn_page_is_sent_again() {
    let power = Power::new();
    let length = 3 * PAGE_HASHES * BLOCK;
    let source: Device = Arc::new(MemoryDevice::new(length, 512).unwrap());
    let destination: Device = Arc::new(MemoryDevice::new(length, 512).unwrap());
    let data = Bytes::from(vec![5; 64 << 10]);
    source.write(1 << 20, data, WriteFlags::NONE).await.unwrap();
    let file = Disk::new(file_bytes(length, BLOCK as u32), &power, false, 1);
    let new =
        NewState { salt: SALT, length, block_bytes: BLOCK as u32, phase: PHASE, pair: pair() };
    let state = State::create(file.clone(), new).await.unwrap();
    let options = Options::default();
    let learnt = learn_holes(&destination, &state, &options).await.unwrap();
    assert_eq!(learnt.bytes, length, "a new device is one hole");
    let all = Among::All;
    let done = update(&source, &destination, &state, &options, all, |_| ()).await.unwrap();
    assert_eq!((done.sent_bytes, done.zero_bytes, done.damaged_pages), (64 << 10, 0, 0));
    assert!(done.read_bytes <= 128 << 10, "{done:?}");
    let page_at = 2 * BLOCK as usize;
    file.lock().now[page_at + 100] ^= 1;
    let done = update(&source, &destination, &state, &options, all, |_| ()).await.unwrap();
    assert_eq!(done.damaged_pages, 1);
    assert_eq!(done.sent_bytes + done.zero_bytes, PAGE_HASHES * BLOCK);
    let there = destination.read(0, Buf::new(length as usize)).await.unwrap();
    assert!(there[..] == source.read(0, Buf::new(length as usize)).await.unwrap()[..]);
}

#[tokio::test]
async fn the_state_of_another_copy_is_refused() {
    let mut world = World::new(8).await;
    world.change().await;
    let state = State::open(world.file.clone()).await.unwrap();
    let said = |length, pair: &Pair, any| {
        let checked =
            state.check_names(length, pair, any).and_then(|()| state.check_identity(pair));
        checked.unwrap_err().to_string()
    };
    let other = Pair { identity: "d".into(), ..pair() };
    assert!(said(LENGTH, &other, true).contains("its destination is c, that of this one d"));
    let other = Pair { destination: "e".into(), ..pair() };
    assert!(said(LENGTH, &other, true).contains("its destination is b, that of this one e"));
    let other = Pair { source: "snapshot".into(), ..pair() };
    assert!(said(LENGTH, &other, false).contains("its source is a, that of this one snapshot"));
    assert!(state.check_names(LENGTH, &other, true).is_ok());
    assert!(said(512, &pair(), true).contains("bytes long, that of this one 512 bytes long"));
    let short = MemoryDevice::new(8192, 512).unwrap();
    let head = world.file.read(0, Buf::new(8192)).await.unwrap();
    short.write(0, head.freeze(), WriteFlags::NONE).await.unwrap();
    let error = State::open(Arc::new(short)).await.err().unwrap().to_string();
    assert!(error.contains("cut off: 8192 bytes"), "{error}");
    let foreign = MemoryDevice::new(1 << 20, 512).unwrap();
    let error = State::open(Arc::new(foreign)).await.err().unwrap().to_string();
    assert!(error.contains("no state file"), "{error}");
}
