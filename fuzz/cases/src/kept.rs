//! What is kept on disks and read back: a mirror's metadata, at both ends, and the state file of a
//! copy of changes. A good image is damaged as the input says; with its checksums made right again
//! it may say anything, without them the damage has to be noticed.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use block::backend::MemoryDevice;
use block::incremental::format::{Header, Page};
use block::incremental::hash::Hash;
use block::incremental::{NewState, Pair, Phase, Salt, State, file_bytes};
use block::mirror::bitmap::{Bitmap, BitmapId, PAGE_BYTES, SECTOR_BYTES};
use block::mirror::generation::{GenerationId, Lineage, WallMs};
use block::mirror::host::BoxFuture;
use block::mirror::layout::{LegLayout, LocalLayout, TAIL_BYTES};
use block::mirror::store;
use block::mirror::superblock::{
    BYTES, Consistency, LegId, LegRecord, LocalSuperblock, MirrorId, Record, RemoteSuperblock,
    Role, Stamp, Verified,
};
use block::mirror::{
    Host, Inspection, LEGS_MAX, LegState, OpenLeg, PromoteOptions, activity, inspect, promote,
};
use block::{Buf, Device, WriteFlags};

use crate::reader::Reader;

/// Bytes of the mirror's image.
const SIZE: u64 = 8 << 20;
/// Blocks that may differ in the good image.
const DIRTY: std::ops::Range<u64> = 300..320;
/// Extents in which a write is under way in the good image.
const ACTIVE: [u32; 2] = [3, 7];
/// Damage in one input at most.
const PATCHES_MAX: usize = 16;

/// Memory never waits.
fn finish<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..10_000 {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
    }
    panic!("waits for something");
}

/// Time passes by sleeping alone, and there are no tasks.
#[derive(Default)]
struct Nobody {
    slept_ms: AtomicU64,
}

impl Host for Nobody {
    fn spawn(&self, _: BoxFuture) {}

    fn sleep(&self, time: Duration) -> BoxFuture {
        self.slept_ms.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
        Box::pin(std::future::ready(()))
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.slept_ms.load(Ordering::Relaxed))
    }

    fn wall_clock(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1 << 30)
    }

    fn name(&self) -> String {
        "nobody".to_owned()
    }

    fn random(&self) -> u128 {
        4711
    }
}

/// Damages an image; whether checksums are to be made right again.
pub(crate) fn damage(input: &mut Reader<'_>, image: &mut [u8]) -> bool {
    let seal = input.u8() & 1 == 1;
    for _ in 0..PATCHES_MAX {
        if input.is_empty() {
            break;
        }
        let at = input.array::<3>();
        let at = u32::from_be_bytes([0, at[0], at[1], at[2]]) as usize % image.len();
        let len = usize::from(input.u8()).min(image.len() - at);
        let bytes = input.take(len);
        image[at..at + bytes.len()].copy_from_slice(bytes);
    }
    seal
}

pub(crate) fn put_crc(block: &mut [u8], at: usize) {
    block[at..at + 4].fill(0);
    let crc = crc32c::crc32c(block);
    block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn device(size: u64) -> Option<Device> {
    MemoryDevice::new(size, 512).ok().map(|device| Arc::new(device) as Device)
}

fn write(device: &Device, at: u64, data: &[u8]) {
    let data = Buf::copy_from(data).freeze();
    assert!(finish(device.write(at, data, WriteFlags::NONE)).is_ok());
}

fn lineage() -> Lineage {
    let at = WallMs(1000);
    Lineage::new(GenerationId(7)).advanced(GenerationId(8), at).advanced(GenerationId(9), at)
}

/// The end of a leg.
pub fn mirror_leg(data: &[u8]) {
    let mut input = Reader(data);
    let size = (1 << 20) + TAIL_BYTES;
    let (Some(device), Ok(layout)) = (device(size), LegLayout::new(size, 0)) else { return };
    let mut image = good_tail(&layout);
    if damage(&mut input, &mut image) {
        image.chunks_mut(BYTES).for_each(|block| put_crc(block, 16));
    }
    let tail = layout.superblock(0);
    write(&device, tail, &image);
    let found = finish(inspect(&device));
    if let Ok(Inspection::Leg(leg)) = &found {
        assert!(!leg.mirror.is_empty() && leg.history.len() <= 8);
    }
    // Forced, since an image that is none is refused before anything else.
    let leg = OpenLeg { identity: "u".into(), ..OpenLeg::of(device.clone()) };
    let promoted = finish(promote(
        leg,
        &Nobody::default(),
        PromoteOptions { force: true, ..PromoteOptions::default() },
    ));
    let after = finish(inspect(&device));
    match promoted {
        // What could not be promoted is as it was.
        Err(_) => assert!(same(&found, &after), "{found:?} became {after:?}"),
        Ok(promoted) => {
            let Ok(Inspection::Leg(leg)) = after else { panic!("promoted: {after:?}") };
            assert_eq!(
                (leg.generation, leg.consistency),
                (promoted.generation, Consistency::Consistent)
            );
            assert!(matches!(found, Ok(Inspection::Leg(_))));
        }
    }
}

fn same<E: std::fmt::Display>(a: &Result<Inspection, E>, b: &Result<Inspection, E>) -> bool {
    match (a, b) {
        (Ok(a), Ok(b)) => a == b,
        (Err(a), Err(b)) => a.to_string() == b.to_string(),
        _ => false,
    }
}

fn good_tail(layout: &LegLayout) -> Vec<u8> {
    let mut image = vec![0; TAIL_BYTES as usize];
    let tail = layout.superblock(0);
    for sequence in [6, 7] {
        let superblock = RemoteSuperblock {
            uuid: MirrorId(1),
            sequence,
            leg: LegId(2),
            lineage: lineage(),
            data_bytes: 1 << 20,
            redo_bytes: 0,
            consistency: Consistency::InconsistentSince(3),
            writer: "host 1".into(),
            lease: WallMs(2000),
        };
        let stamp = Stamp {
            uuid: MirrorId(1),
            generation: GenerationId(9),
            epoch: sequence,
            closed: WallMs(1999),
        };
        let blocks = [
            (layout.superblock(sequence), superblock.encode()),
            (layout.stamp(sequence), stamp.encode()),
        ];
        for (at, block) in blocks {
            let at = (at - tail) as usize;
            let block = block.unwrap_or_else(|error| panic!("{error}"));
            image[at..at + BYTES].copy_from_slice(&block[..]);
        }
    }
    image
}

/// A metadata device.
pub fn mirror_metadata(data: &[u8]) {
    let mut input = Reader(data);
    let Ok(layout) = LocalLayout::new(SIZE) else { return };
    let Some(device) = device(layout.len_bytes()) else { return };
    let mut image = good_metadata(&layout);
    let sealed = damage(&mut input, &mut image);
    if sealed {
        let (blocks, pages) = image.split_at_mut(LocalLayout::ring().end as usize);
        // An empty place of the ring stays one.
        let used = blocks.chunks_mut(BYTES).filter(|block| block.iter().any(|byte| *byte != 0));
        used.for_each(|block| put_crc(block, 16));
        for sector in pages.chunks_mut(SECTOR_BYTES) {
            let crc = crc32c::crc32c(&sector[4..]);
            sector[..4].copy_from_slice(&crc.to_le_bytes());
        }
    }
    write(&device, 0, &image);
    let _ = finish(inspect(&device));
    let Ok(superblock) = finish(store::read_superblock(&device)) else { return };
    let Ok(again) = superblock.encode().and_then(|block| LocalSuperblock::decode(&block)) else {
        panic!("what was read cannot be written: {superblock:?}");
    };
    assert_eq!(again, superblock);
    let Ok(opened) = finish(store::open(device.clone(), Arc::new(Nobody::default()), &superblock))
    else {
        return;
    };
    for (leg, bitmap) in superblock.legs.iter().zip(&opened.bitmaps) {
        assert_eq!(leg.is_some(), bitmap.is_some());
    }
    if sealed {
        return;
    }
    // Whatever is damaged, nothing that may differ is forgotten.
    let Some(bitmap) = &opened.bitmaps[0] else { panic!("the leg is gone") };
    assert!(bitmap.all(DIRTY), "bits are lost");
    for extent in ACTIVE {
        let first = u64::from(extent) * 256;
        assert!(bitmap.all(first..first + 256), "extent {extent} is lost");
    }
}

fn good_metadata(layout: &LocalLayout) -> Vec<u8> {
    let mut image = vec![0; layout.len_bytes() as usize];
    let mut put = |at: u64, block: &[u8]| {
        image[at as usize..at as usize + block.len()].copy_from_slice(block);
    };
    let leg = LegRecord {
        id: LegId(2),
        identity: "unit 7".into(),
        name: "iscsi://far/iqn.2026-11.org.example:vm1/0".into(),
        state: LegState::InSync,
        base: GenerationId(9),
        acked_epoch: 5,
        superblock_sequence: 7,
        bitmap: BitmapId(3),
        leg_bytes: SIZE + TAIL_BYTES,
        redo_bytes: 0,
        verified: Verified::default(),
    };
    for sequence in [4, 5] {
        let mut legs = [const { None }; LEGS_MAX];
        legs[0] = Some(leg.clone());
        let superblock = LocalSuperblock {
            uuid: MirrorId(1),
            sequence,
            size: SIZE,
            role: Role::Primary,
            clean: false,
            ring_from: 1,
            epoch_max: 6,
            lineage: lineage(),
            legs,
        };
        let block = superblock.encode().unwrap_or_else(|error| panic!("{error}"));
        put(LocalLayout::superblock(sequence), &block[..]);
    }
    for sequence in 1..4 {
        put(LocalLayout::record(sequence), &activity::encode(MirrorId(1), sequence, &ACTIVE)[..]);
    }
    let mut bitmap = Bitmap::new(layout.blocks());
    bitmap.set(DIRTY);
    for number in 0..layout.pages() {
        let mut page = [0; PAGE_BYTES];
        bitmap.take_page(number, BitmapId(3), &mut page);
        put(layout.page(0, number), &page);
    }
    image
}

/// The state file of `copy --changed-since`.
pub fn copy_state(data: &[u8]) {
    const LENGTH: u64 = 300 * 4096 - 512;
    const SALT: Salt = Salt([5; 16]);
    let mut input = Reader(data);
    let size = file_bytes(LENGTH, 4096);
    let Some(device) = device(size) else { return };
    let pair = Pair { source: "a".into(), destination: "b".into(), identity: "c".into() };
    let phase = Phase::UnderWay;
    let new = NewState { salt: SALT, length: LENGTH, block_bytes: 4096, phase, pair };
    let made = finish(State::create(device.clone(), new)).map(|state| state.header().clone());
    let Ok(good) = made else { panic!("no state file was made") };
    let mut image = match finish(device.read(0, Buf::new(size as usize))) {
        Ok(image) => image.to_vec(),
        Err(error) => panic!("{error}"),
    };
    let mut page = Page::unknown();
    page.0[7] = Hash([1; 16]);
    image[8192..12288].copy_from_slice(&page.encode(SALT, 0)[..]);
    let sealed = damage(&mut input, &mut image);
    if sealed {
        let crc_at = |at: usize| if at < 2 { 12 } else { 4 };
        image.chunks_mut(4096).enumerate().for_each(|(at, block)| put_crc(block, crc_at(at)));
    }
    write(&device, 0, &image);
    let opened = finish(State::open(device)).map(|state| state.header().clone());
    if let Ok(header) = &opened {
        assert_eq!(Header::parse(&header.encode()).as_ref(), Ok(header));
        assert!(sealed || header.pair == good.pair, "damage was believed");
        assert!(file_bytes(header.length, header.block_bytes) <= size);
    }
    for (number, block) in image[8192..].as_chunks::<4096>().0.iter().enumerate() {
        let Ok(read) = Page::parse(block, SALT, number as u64) else { continue };
        assert!(sealed || read == if number == 0 { page.clone() } else { Page::unknown() });
    }
}

/// Inputs to begin with: no damage, a torn block, a field of each.
pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let patch = |seal: u8, at: u32, bytes: &[u8]| {
        [&[seal][..], &at.to_be_bytes()[1..], &[bytes.len() as u8], bytes].concat()
    };
    vec![
        ("good", vec![0]),
        ("torn", patch(0, 512, &[0; 255])),
        ("second_torn", patch(0, 4096 + 512, &[0; 255])),
        ("sequence_at_the_end", patch(1, 64, &[0xff; 8])),
        ("size_at_the_end", patch(1, 56, &[0xff; 8])),
        ("long_text", patch(1, 328, &[0xff; 4])),
        ("long_history", patch(1, 128, &[0xff; 4])),
        ("newer", patch(0, 12, &[2])),
        ("ring", patch(0, 8192 + 4096 + 100, &[1])),
        ("page", patch(0, 270_336 + 300, &[0; 64])),
    ]
}
