//! The store on a device that is slow, has a volatile cache and tears what it writes: after a cut
//! at any moment everything that may differ is told. How many records many writers share.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::super::BLOCK_BYTES;
use super::super::bitmap::blocks_touched;
use super::super::generation::{GenerationId, Lineage};
use super::super::host::BoxFuture;
use super::super::status::LegState;
use super::super::superblock::{LegId, LegRecord, Role, Verified};
use super::format::open_with_capacity;
use super::*;
use crate::backend::memory::MemoryDevice;
use crate::layer::fault::{Fault, FaultLayer};
use crate::layer::log::{Choice, Log, LogLayer};
use crate::layer::{OpKind, Random};
use crate::{BlockDevice, Buf, DeviceInfo, Extent, WriteFlags, ZeroFlags};

/// Enough for a few evictions in the small log of the tests.
const SIZE: u64 = 64 << 20;
const CAPACITY: usize = 16;
const SECTOR: u64 = 512;

struct TestHost;

impl Host for TestHost {
    fn spawn(&self, task: BoxFuture) {
        tokio::spawn(task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture {
        Box::pin(tokio::time::sleep(duration))
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn wall_clock(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn name(&self) -> String {
        "a test".to_owned()
    }

    fn random(&self) -> u128 {
        4
    }
}

fn host() -> Arc<dyn Host> {
    Arc::new(TestHost)
}

/// A device whose operations take a few turns of the executor, with FUA or without.
struct Slow {
    device: Device,
    can_fua: bool,
    turns: u64,
    random: Mutex<Random>,
}

impl Slow {
    fn later<T: Send + Unpin + 'static>(&self, operation: Io<T>) -> Io<T> {
        let turns = self.random.lock().unwrap().below(self.turns) + 1;
        Io::later(async move {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            operation.await
        })
    }
}

impl BlockDevice for Slow {
    fn info(&self) -> DeviceInfo {
        let mut info = self.device.info();
        (info.can_fua, info.volatile_cache) = (self.can_fua, true);
        info
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.device.read(offset, buf)
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        assert!(self.can_fua || !flags.fua);
        self.later(self.device.write(offset, data, flags))
    }

    fn flush(&self) -> Io<()> {
        self.later(self.device.flush())
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.device.trim(offset, len)
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.device.zero(offset, len, flags)
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.device.extents(offset, len)
    }
}

fn leg(number: u128) -> LegRecord {
    LegRecord {
        id: LegId(number),
        identity: String::new(),
        name: format!("leg {number}"),
        state: LegState::InSync,
        base: GenerationId(1),
        acked_epoch: 0,
        superblock_sequence: 0,
        bitmap: BitmapId(100 + number),
        leg_bytes: 1 << 30,
        redo_bytes: 0,
        verified: Verified::default(),
    }
}

fn superblock(size: u64) -> LocalSuperblock {
    LocalSuperblock {
        uuid: MirrorId(42),
        sequence: 2,
        size,
        role: Role::Primary,
        clean: true,
        ring_from: 1,
        epoch_max: 0,
        lineage: Lineage::new(GenerationId(1)),
        legs: [Some(leg(0)), Some(leg(1)), None],
    }
}

async fn formatted(superblock: &LocalSuperblock, bits: InitialBits) -> Device {
    let layout = LocalLayout::new(superblock.size).unwrap();
    let device: Device = Arc::new(MemoryDevice::new(layout.len_bytes(), 512).unwrap());
    format(&device, superblock, bits).await.unwrap();
    device
}

async fn content(device: &Device) -> Vec<u8> {
    let size = device.info().size as usize;
    device.read(0, Buf::new(size)).await.unwrap().to_vec()
}

async fn holding(image: Vec<u8>) -> Device {
    let device = MemoryDevice::new(image.len() as u64, 512).unwrap();
    device.write(0, image.into(), WriteFlags::NONE).await.unwrap();
    Arc::new(device)
}

async fn opened(device: &Device) -> (LocalSuperblock, Opened) {
    let superblock = read_superblock(device).await.unwrap();
    let opened = open_with_capacity(device.clone(), host(), &superblock, CAPACITY).await.unwrap();
    (superblock, opened)
}

/// Since when a block of a leg may differ, and until when: in moments of the log.
struct Differs {
    leg: usize,
    block: u64,
    since: u64,
    /// The leg is known to have it.
    cleared: Option<u64>,
    /// The local device has it for certain.
    stable: Option<u64>,
    /// The local write has ended.
    written: bool,
}

impl Differs {
    /// A cut after the moment `cut` may leave it different.
    fn at(&self, cut: u64) -> bool {
        let until = self.cleared.zip(self.stable).map(|(cleared, stable)| cleared.max(stable));
        self.since <= cut && until.is_none_or(|until| cut <= until)
    }
}

/// The image of a test: bits of two legs, and the truth about them.
struct TestImage {
    bits: Mutex<Vec<Bitmap>>,
    truth: Mutex<Vec<Differs>>,
    log: Log,
}

impl TestImage {
    fn new(opened: &mut Opened, log: Log) -> Arc<Self> {
        let bits = opened.bitmaps.iter_mut().filter_map(Option::take).collect();
        let image = Self { bits: Mutex::new(bits), truth: Mutex::default(), log };
        let image = Arc::new(image);
        let weak: Weak<Self> = Arc::downgrade(&image);
        opened.store.serve(weak);
        image
    }

    fn begin(&self, blocks: Range<u64>) -> Range<usize> {
        let (mut bits, mut truth) = (self.bits.lock().unwrap(), self.truth.lock().unwrap());
        let (first, since) = (truth.len(), self.log.moments());
        for (leg, bits) in bits.iter_mut().enumerate() {
            bits.set(blocks.clone());
            let differs =
                |block| Differs { leg, block, since, cleared: None, stable: None, written: false };
            truth.extend(blocks.clone().map(differs));
        }
        first..truth.len()
    }

    /// One leg has the blocks, of all writes to them so far.
    fn clear(&self, leg: usize, blocks: Range<u64>) {
        self.bits.lock().unwrap()[leg].clear(blocks.clone());
        let now = self.log.moments();
        for differs in self.truth.lock().unwrap().iter_mut() {
            if differs.leg == leg && blocks.contains(&differs.block) {
                differs.cleared.get_or_insert(now);
            }
        }
    }
}

impl Image for TestImage {
    fn look_at_bits(&self, look: &mut dyn FnMut(usize, BitmapId, &mut Bitmap)) {
        for (leg, bits) in self.bits.lock().unwrap().iter_mut().enumerate() {
            look(leg, BitmapId(100 + leg as u128), bits);
        }
    }

    fn make_stable(&self) -> Io<()> {
        let now = self.log.moments();
        for differs in self.truth.lock().unwrap().iter_mut().filter(|differs| differs.written) {
            differs.stable.get_or_insert(now);
        }
        Io::ok(())
    }
}

/// One life of a store: writers, a leg that is sometimes in sync, superblocks, saves.
struct Life {
    log: Log,
    before: Vec<u8>,
    image: Arc<TestImage>,
    /// Numbers of superblocks: by the moment of the call, and by the moment of the return.
    called: BTreeMap<u64, u64>,
    returned: BTreeMap<u64, u64>,
    metrics: Metrics,
}

async fn live(seed: u64) -> Life {
    let memory = formatted(&superblock(SIZE), InitialBits::NoneDiffers).await;
    let before = content(&memory).await;
    let random = Mutex::new(Random(seed));
    let slow = Slow { device: memory, can_fua: seed.is_multiple_of(2), turns: 6, random };
    let logged = LogLayer::new(Arc::new(slow));
    let log = logged.log();
    let (mut superblock, mut opened) = opened(&(Arc::new(logged) as Device)).await;
    let image = TestImage::new(&mut opened, log.clone());
    let store = opened.store;
    let writers = (0..5).map(|writer| {
        tokio::spawn(write(store.clone(), image.clone(), Random(seed * 100 + writer)))
    });
    let writers: Vec<_> = writers.collect();
    let (mut called, mut returned) = (BTreeMap::from([(0, 2)]), BTreeMap::from([(0, 2)]));
    let mut random = Random(seed + 5);
    for _ in 0..8 {
        for _ in 0..random.below(20) {
            tokio::task::yield_now().await;
        }
        if random.below(2) == 0 {
            superblock.sequence += 1;
            called.insert(log.moments(), superblock.sequence);
            store.commit(&superblock).await.unwrap();
            returned.insert(log.moments(), superblock.sequence);
        } else {
            store.save(Some(random.below(2) as usize)).await.unwrap();
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    if seed.is_multiple_of(3) {
        store.forget().await.unwrap();
    }
    Life { log, before, image, called, returned, metrics: store.metrics() }
}

async fn write(store: MetadataStore, image: Arc<TestImage>, mut random: Random) {
    for _ in 0..12 {
        let offset = random.below(SIZE / BLOCK_BYTES - 2) * BLOCK_BYTES;
        let len = BLOCK_BYTES * (1 + random.below(2));
        let entering = store.enter(offset..offset + len);
        if random.below(8) == 0 {
            tokio::task::yield_now().await;
            continue; // The user has gone away.
        }
        let entered = entering.await.unwrap();
        let blocks = blocks_touched(offset, len);
        let truth = image.begin(blocks.clone());
        for _ in 0..random.below(6) {
            tokio::task::yield_now().await;
        }
        for differs in &mut image.truth.lock().unwrap()[truth] {
            differs.written = true;
        }
        // A leg is in sync, or lost.
        for leg in 0..2 {
            if random.below(3) > leg {
                image.clear(leg as usize, blocks.clone());
            }
        }
        drop(entered);
    }
}

/// Checks what is found after a cut. Returns whether all that is found was needed.
async fn check(life: &Life, cut: u64, choice: Choice, seed: u64) {
    let mut image = life.before.clone();
    life.log.cut(cut, SECTOR).image(choice, &mut image);
    let (superblock, opened) = opened(&holding(image).await).await;
    let which = format!("seed {seed}, cut after {cut}, {choice:?}");
    assert_eq!(opened.doubt, None, "{which}");
    let latest = |numbers: &BTreeMap<u64, u64>| *numbers.range(..=cut).next_back().unwrap().1;
    let allowed = latest(&life.returned)..=latest(&life.called);
    assert!(allowed.contains(&superblock.sequence), "{which}: {} {allowed:?}", superblock.sequence);
    for differs in life.image.truth.lock().unwrap().iter().filter(|differs| differs.at(cut)) {
        let bits = opened.bitmaps[differs.leg].as_ref().unwrap();
        assert!(bits.test(differs.block), "{which}: block {} is not told", differs.block);
    }
}

#[tokio::test]
async fn after_thousands_of_cuts_everything_that_may_differ_is_told() {
    let (mut cuts, mut total) = (0, Metrics::default());
    for seed in 0..40 {
        let life = live(seed).await;
        let moments = life.log.moments();
        let mut random = Random(seed);
        for _ in 0..50 {
            let cut = random.below(moments + 1);
            for choice in [Choice::Oldest, Choice::Newest, Choice::Drawn(random.next())] {
                check(&life, cut, choice, seed).await;
                cuts += 1;
            }
        }
        total.leaves += life.metrics.leaves;
        total.pages += life.metrics.pages;
        total.records += life.metrics.records;
    }
    assert_eq!(cuts, 6000);
    // What the cuts are to hit did happen.
    assert!(total.leaves > 100 && total.pages > 100 && total.records > 500, "{total:?}");
}

#[tokio::test]
async fn after_forgetting_only_the_bits_count() {
    let device = formatted(&superblock(SIZE), InitialBits::NoneDiffers).await;
    let (_, mut first) = opened(&device).await;
    let image = TestImage::new(&mut first, Log::default());
    let entered = first.store.enter(5 << 20..(5 << 20) + 1).await.unwrap();
    image.begin(blocks_touched(5 << 20, 1));
    let error = first.store.forget().await.unwrap_err();
    assert!(error.to_string().contains("changes are under way"), "{error}");
    drop(entered);
    assert_eq!(opened(&device).await.1.active_bytes, 1 << 20);
    first.store.forget().await.unwrap();
    let (_, again) = opened(&device).await;
    assert_eq!(again.active_bytes, 0);
    assert_eq!(again.bitmaps[0].as_ref().unwrap().count(), 1);
}

#[tokio::test]
async fn a_new_mirror_says_that_everything_or_nothing_differs() {
    for (bits, expected) in
        [(InitialBits::AllDiffer, SIZE / BLOCK_BYTES), (InitialBits::NoneDiffers, 0)]
    {
        let device = formatted(&superblock(SIZE), bits).await;
        let (found, opened) = opened(&device).await;
        assert_eq!(found, superblock(SIZE));
        assert_eq!(opened.bitmaps.iter().flatten().count(), 2);
        assert!(opened.bitmaps.iter().flatten().all(|bits| bits.count() == expected));
        assert_eq!((opened.active_bytes, opened.doubt), (0, None));
    }
}

#[tokio::test]
async fn a_log_that_cannot_be_believed_makes_everything_differ_and_is_mended() {
    let device = formatted(&superblock(SIZE), InitialBits::NoneDiffers).await;
    let at = LocalLayout::record(7);
    device.write(at, Bytes::from(vec![9; 512]), WriteFlags::NONE).await.unwrap();
    let (_, doubted) = opened(&device).await;
    assert!(doubted.doubt.unwrap().contains("data of another kind"));
    let (_, again) = opened(&device).await;
    assert_eq!(again.doubt, None);
    for opened in [doubted.bitmaps, again.bitmaps] {
        assert!(opened.iter().flatten().all(|bits| bits.count() == SIZE / BLOCK_BYTES));
    }
}

#[tokio::test]
async fn what_is_no_metadata_device_is_refused_with_its_reason() {
    let device = formatted(&superblock(SIZE), InitialBits::AllDiffer).await;
    let larger = superblock(1 << 40);
    let error = format(&device, &larger, InitialBits::AllDiffer).await.unwrap_err();
    assert!(error.to_string().contains("needs 107655168 there"), "{error}");
    assert!(read_superblock(&device).await.is_ok(), "nothing was written");
    let tiny: Device = Arc::new(MemoryDevice::new(4096, 512).unwrap());
    assert!(matches!(read_superblock(&tiny).await, Err(StoreError::Fault(BlockFault::Blank))));
    let coarse: Device = Arc::new(MemoryDevice::new(1 << 20, 8192).unwrap());
    assert!(matches!(read_superblock(&coarse).await, Err(StoreError::Layout(_))));
}

#[tokio::test]
async fn after_a_failed_write_only_what_is_in_the_log_can_be_entered() {
    let memory = formatted(&superblock(SIZE), InitialBits::NoneDiffers).await;
    let faulty = Arc::new(FaultLayer::new(memory, 1));
    let (_, mut opened) = opened(&(faulty.clone() as Device)).await;
    let _image = TestImage::new(&mut opened, Log::default());
    let store = opened.store;
    drop(store.enter(0..1).await.unwrap());
    let medium = || BlockError::Medium(std::io::Error::other("scratched"));
    faulty.inject(Fault::on(OpKind::Write, medium));
    let error = store.enter(20 << 20..(20 << 20) + 1).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("the mirror's metadata cannot be written"), "{error}");
    drop(store.enter(0..1).await.unwrap());
    assert!(store.enter(30 << 20..(30 << 20) + 1).await.is_err());
    let long = store.enter(0..CHANGE_BYTES_MAX * 2).await.map(drop).unwrap_err();
    assert!(long.to_string().contains("more than 63 MiB"), "{long}");
}

#[tokio::test]
async fn a_superblock_is_written_although_nobody_waits_for_it() {
    let memory = formatted(&superblock(SIZE), InitialBits::NoneDiffers).await;
    let random = Mutex::new(Random(1));
    let slow: Device = Arc::new(Slow { device: memory.clone(), can_fua: true, turns: 9, random });
    let (mut superblock, opened) = opened(&slow).await;
    superblock.sequence += 1;
    {
        let mut commit = Box::pin(opened.store.commit(&superblock));
        let context = &mut Context::from_waker(Waker::noop());
        assert!(commit.as_mut().poll(context).is_pending());
    }
    superblock.sequence += 2; // The place of the one that was given up.
    opened.store.commit(&superblock).await.unwrap();
    assert_eq!(read_superblock(&memory).await.unwrap(), superblock);
}

/// Not a matter of time: how many blocks of metadata a load costs.
async fn load(in_sync: bool) -> Metrics {
    let (size, writers, writes) = (100 << 30, 32, 500);
    let memory = formatted(&superblock(size), InitialBits::NoneDiffers).await;
    let slow = Slow { device: memory, can_fua: true, turns: 1, random: Mutex::new(Random(3)) };
    let device: Device = Arc::new(slow);
    let superblock = read_superblock(&device).await.unwrap();
    let mut opened = open(device, host(), &superblock).await.unwrap();
    let image = TestImage::new(&mut opened, Log::default());
    let writers = (0..writers).map(|writer| {
        let (store, image) = (opened.store.clone(), image.clone());
        tokio::spawn(async move {
            let mut random = Random(writer);
            for _ in 0..writes {
                let offset = random.below(size / BLOCK_BYTES) * BLOCK_BYTES;
                let entered = store.enter(offset..offset + BLOCK_BYTES).await.unwrap();
                let blocks = blocks_touched(offset, BLOCK_BYTES);
                let mut bits = image.bits.lock().unwrap();
                for bits in bits.iter_mut() {
                    bits.set(blocks.clone());
                    if in_sync {
                        bits.clear(blocks.clone());
                    }
                }
                drop(bits);
                drop(entered);
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    opened.store.metrics()
}

#[tokio::test]
async fn random_writers_share_records() {
    let metrics = load(true).await;
    let writes = metrics.entered_at_once + metrics.entered_later;
    println!("in sync: {metrics:?}");
    assert_eq!(writes, 16_000);
    assert!(metrics.records * 16 <= metrics.entered_later, "{metrics:?}");
    assert_eq!(metrics.pages, 0, "legs that have everything need no pages");
    let metrics = load(false).await;
    println!("two legs lost: {metrics:?}");
    // Pages of two legs; those of neighbours are shared.
    assert!(metrics.records * 16 <= metrics.entered_later, "{metrics:?}");
    assert!(metrics.pages <= 2 * writes, "{metrics:?}");
}
