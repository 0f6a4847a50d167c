//! An image of a real cluster, that of the configuration in ENKAKU_CEPH_CONF, as a block device;
//! without it, nothing is tried. It needs `rbd create --size 16M rbd/rust` before. What a target
//! makes of such an image is tried by `tests/test_rbd.py`, which starts a cluster of its own.

#![allow(clippy::unwrap_used)] // a test's way to fail

use std::sync::Arc;

use block::{BlockDevice, BlockError, Buf, Bytes, Compared, WriteFlags, ZeroFlags, testing};
use rbd::url::Url;
use rbd::{Config, Objects, RbdDisk};

/// Images that are there, of 16 MiB in objects of 4 MiB: made by who starts the cluster.
const IMAGE: &str = "rbd/rust";

fn url(image: &str) -> Option<Url> {
    let conf = std::env::var("ENKAKU_CEPH_CONF").ok()?;
    Some(format!("rbd:{image}?conf={conf}").parse().unwrap())
}

fn block(byte: u8) -> Bytes {
    Buf::copy_from(&[byte; 512]).freeze()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_a_block_device_like_any_other() {
    let Some(url) = url(IMAGE) else { return };
    let disk = RbdDisk::open(url.clone(), Config::default()).await.unwrap();
    testing::conformance(&disk).await;
    compares_in_one_step(&disk).await;
    zeroes_become_holes(&disk).await;
    many_more_than_its_places_end(&disk).await;
    let reader = RbdDisk::open(url, Config { read_only: true }).await.unwrap();
    assert!(matches!(reader.write(0, block(1), WriteFlags::NONE).await, Err(BlockError::ReadOnly)));
    reader.close().await.unwrap();
    disk.close().await.unwrap();
    assert!(!disk.is_connected());
    assert!(matches!(disk.read(0, Buf::new(512)).await, Err(BlockError::Unreachable(_))));
}

async fn compares_in_one_step(disk: &RbdDisk) {
    disk.write(4096, block(1), WriteFlags::NONE).await.unwrap();
    let swap = |expected: Bytes, new| disk.compare_and_write(4096, expected, new);
    assert_eq!(swap(block(1), block(2)).await.unwrap(), Compared::Written);
    assert_eq!(swap(block(1), block(3)).await.unwrap(), Compared::Differs { at: 0 });
    let mut almost = vec![2; 512];
    almost[77] = 9;
    let differs = swap(Bytes::from(almost), block(3)).await.unwrap();
    assert_eq!(differs, Compared::Differs { at: 77 });
    assert!(disk.read(4096, Buf::new(512)).await.unwrap().iter().all(|byte| *byte == 2));
    let two = |byte| Buf::copy_from(&[byte; 1024]).freeze();
    let across = disk.compare_and_write((4 << 20) - 512, two(0), two(1)).await;
    assert!(matches!(across, Err(BlockError::Unsupported(_))), "{across:?}");
}

async fn zeroes_become_holes(disk: &RbdDisk) {
    let full = Buf::copy_from(&vec![7; 1 << 20]).freeze();
    for at in (0..16 << 20).step_by(1 << 20) {
        disk.write(at, full.clone(), WriteFlags::NONE).await.unwrap();
    }
    disk.zero(4 << 20, 8 << 20, ZeroFlags::new(false, true)).await.unwrap();
    disk.trim(512, 512).await.unwrap();
    let found = disk.extents(0, 16 << 20).await.unwrap();
    let holes: Vec<(u64, u64)> =
        found.iter().filter(|extent| extent.hole).map(|e| (e.offset, e.len)).collect();
    assert!(holes.contains(&(4 << 20, 8 << 20)), "{found:?}");
    let read = disk.read(0, Buf::new(2048)).await.unwrap();
    assert!(read[512..1024].iter().all(|byte| *byte == 0), "a trim is to the byte");
    assert!(read[..512].iter().chain(&read[1024..]).all(|byte| *byte == 7));
}

async fn many_more_than_its_places_end(disk: &RbdDisk) {
    let writes: Vec<_> =
        (0..2000u64).map(|n| disk.write(n % 64 * 512, block(n as u8), WriteFlags::NONE)).collect();
    for write in writes {
        write.await.unwrap();
    }
    disk.flush().await.unwrap();
    // What nobody waits for ends by itself.
    drop((0..100u64).map(|n| disk.read(n * 512, Buf::new(512))).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_is_replaced_by_one_who_knows_it() {
    let Some(url) = url("rbd/objects") else { return };
    let raced = tokio::task::spawn_blocking(move || {
        let objects = Objects::connect(&url).unwrap();
        let object = objects.object(&format!("test-{}", std::process::id())).unwrap();
        assert_eq!(object.load().unwrap(), None);
        assert_eq!(object.replace(7, b"x").unwrap(), None);
        let first = object.replace(0, b"one").unwrap().unwrap();
        assert_eq!(object.replace(0, b"late").unwrap(), None);
        assert_eq!(object.load().unwrap(), Some((first, b"one".to_vec())));
        let long = vec![b'y'; 100 << 10];
        let second = object.replace(first, &long).unwrap().unwrap();
        assert!(second > first);
        assert_eq!(object.replace(first, b"late").unwrap(), None);
        assert_eq!(object.load().unwrap(), Some((second, long)));
        let counter = Arc::new(objects.object(&format!("count-{}", std::process::id())).unwrap());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..25).for_each(|_| increment(&counter)));
            }
        });
        counter.load().unwrap().unwrap().1.len()
    });
    assert_eq!(raced.await.unwrap(), 100);
}

fn increment(counter: &rbd::Object) {
    loop {
        let found = counter.load().unwrap();
        let (version, len) = found.map_or((0, 0), |(version, content)| (version, content.len()));
        if counter.replace(version, &vec![b'x'; len + 1]).unwrap().is_some() {
            return;
        }
    }
}
