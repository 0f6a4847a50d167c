//! The log against what a medium behind a cache can really hold.

use std::collections::BTreeSet;

use super::*;
use crate::backend::MemoryDevice;
use crate::testing;

const SECTOR: u64 = 512;
const SECTORS: u64 = 8;

fn logged() -> (LogLayer, Log) {
    let memory = MemoryDevice::new(SECTORS * SECTOR, 512).unwrap();
    let layer = LogLayer::new(Arc::new(memory));
    let log = layer.log();
    (layer, log)
}

fn sectors(byte: u8, count: u64) -> Bytes {
    vec![byte; (count * SECTOR) as usize].into()
}

/// All images after a cut, by the first byte of each sector.
fn images(log: &Log, after: u64) -> BTreeSet<Vec<u8>> {
    let cut = log.cut(after, SECTOR);
    let choices = cut.choose(10_000, 1);
    assert_eq!(choices.len() as u64, cut.count().unwrap());
    let image = |choice: Choice| {
        let mut image = vec![0; (SECTORS * SECTOR) as usize];
        cut.image(choice, &mut image);
        image.chunks(SECTOR as usize).map(|sector| sector[0]).collect()
    };
    choices.into_iter().map(image).collect()
}

fn image(front: &[u8]) -> Vec<u8> {
    let mut image = front.to_vec();
    image.resize(SECTORS as usize, 0);
    image
}

#[tokio::test]
async fn conforms() {
    testing::conformance(&LogLayer::new(Arc::new(MemoryDevice::new(4 << 20, 512).unwrap()))).await;
}

#[tokio::test]
async fn a_cut_leaves_what_was_flushed_and_any_of_the_rest() {
    let (layer, log) = logged();
    layer.write(0, sectors(1, 2), WriteFlags::NONE).await.unwrap(); // moments 1 and 2
    layer.flush().await.unwrap(); // 3 and 4
    layer.write(SECTOR, sectors(2, 2), WriteFlags::NONE).await.unwrap(); // 5 and 6
    layer.write(0, sectors(3, 1), WriteFlags::FUA).await.unwrap(); // 7 and 8
    layer.zero(0, 2 * SECTOR, ZeroFlags::default()).await.unwrap(); // 9 and 10
    assert_eq!(log.moments(), 10);
    let expect = |after: u64, expected: &[&[u8]]| {
        let expected: BTreeSet<Vec<u8>> = expected.iter().map(|front| image(front)).collect();
        assert_eq!(images(&log, after), expected, "after moment {after}");
    };
    expect(0, &[&[]]);
    expect(1, &[&[], &[1], &[0, 1], &[1, 1]]); // torn
    expect(3, &[&[], &[1], &[0, 1], &[1, 1]]); // the flush is under way
    expect(4, &[&[1, 1]]);
    let torn: [&[u8]; 4] = [&[1, 1], &[1, 2], &[1, 1, 2], &[1, 2, 2]];
    expect(6, &torn);
    expect(7, &[torn, [&[3, 1], &[3, 2], &[3, 1, 2], &[3, 2, 2]]].concat());
    expect(8, &[&[3, 1], &[3, 2], &[3, 1, 2], &[3, 2, 2]]);
    assert_eq!(images(&log, 10).len(), 2 * 3 * 2);
}

#[test]
fn what_overlaps_in_time_has_no_order() {
    let log = Log::default();
    let write = |byte| log.begin(Change::Write(0, sectors(byte, 1)), false);
    let (one, two) = (write(1), write(2));
    log.end(one, true);
    log.end(two, true);
    let flush = log.begin(Change::Flush, false);
    let late = write(3);
    log.end(late, true);
    log.end(flush, true);
    let left: Vec<_> = images(&log, log.moments()).into_iter().map(|image| image[0]).collect();
    assert_eq!(left, [1, 2, 3], "before the log it was 0, which the flush excludes");
    let failed = log.begin(Change::Flush, false);
    log.end(failed, false);
    assert_eq!(images(&log, log.moments()).len(), 3, "a flush that failed covers nothing");
}

/// A medium behind a cache that writes back whenever it likes: what is really left is always among
/// the images, and with enough tries every image is really left.
#[test]
fn a_real_cache_leaves_these_images_and_no_others() {
    for seed in 1..=60u64 {
        let mut seen = BTreeSet::new();
        let mut legal = BTreeSet::new();
        for attempt in 0..400 {
            let (left, images) = one_life(seed, attempt);
            assert!(images.contains(&left), "seed {seed}: {left:?} is not among {images:?}");
            seen.insert(left);
            legal = images;
        }
        assert_eq!(seen, legal, "seed {seed}");
    }
}

/// One seed gives one series of operations; each attempt has other write-backs.
fn one_life(seed: u64, attempt: u64) -> (Vec<u8>, BTreeSet<Vec<u8>>) {
    const HOT: u64 = 3;
    let mut script = Random(seed);
    let mut chance = Random(seed << 32 | attempt);
    let log = Log::default();
    let mut medium = vec![0; HOT as usize];
    // Older first; a cache that keeps no order writes any of them back, and then it is the newest
    // on the medium, so it may only be the last of its sector or one that the cut finds first.
    let mut cache: Vec<Vec<u8>> = vec![Vec::new(); HOT as usize];
    for step in 1..=6u8 {
        let (sector, count) = (script.below(HOT), 1 + script.below(2));
        let range = sector..(sector + count).min(HOT);
        let last = step == 6;
        match script.below(5) {
            0 => {
                let flush = log.begin(Change::Flush, false);
                for (medium, waits) in medium.iter_mut().zip(&mut cache) {
                    if let Some(newest) = waits.last().copied().filter(|_| !last) {
                        (*medium, *waits) = (newest, Vec::new());
                    }
                }
                if !last {
                    log.end(flush, true);
                }
            }
            kind => {
                let (fua, len) = (kind == 1, range.end - range.start);
                let data = sectors(step, len);
                let write = log.begin(Change::Write(range.start * SECTOR, data), fua);
                for sector in range {
                    let sector = sector as usize;
                    match fua && !last {
                        true => (medium[sector], cache[sector]) = (step, Vec::new()),
                        false => cache[sector].push(step),
                    }
                }
                if !last {
                    log.end(write, true);
                }
            }
        }
    }
    // The power goes: each sector holds what it did or any of what the cache had for it.
    for (medium, waits) in medium.iter_mut().zip(&cache) {
        let kept = chance.below(waits.len() as u64 + 1) as usize;
        *medium = waits.get(kept).copied().unwrap_or(*medium);
    }
    medium.resize(SECTORS as usize, 0);
    (medium, images(&log, log.moments()))
}
