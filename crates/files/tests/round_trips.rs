//! How long it takes to get to a file: in round trips, since that is what a long path costs. Disks
//! are those that stock tools have made for the fuzz cases.

#![allow(clippy::unwrap_used)] // helpers of tests fail as tests do

use std::sync::Arc;
use std::time::Duration;

use block::backend::MemoryDevice;
use block::layer::{Delay, DelayLayer, Delays};
use block::{BlockDevice, Device, WriteFlags};
use files::{EntryKind, Table};
use tokio::time::Instant;

const ROUND_TRIP: Duration = Duration::from_millis(100);

/// A disk from the corpus: `u32` sectors, then `u24` sector, `u16` bytes, the bytes.
async fn disk(input: &[u8]) -> Device {
    let number =
        |bytes: &[u8]| bytes.iter().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
    let device = MemoryDevice::new(number(&input[..4]) as u64 * 512, 512).unwrap();
    let mut rest = &input[4..];
    while !rest.is_empty() {
        let (offset, len) = (number(&rest[..3]) as u64 * 512, number(&rest[3..5]));
        let mut sector = rest[5..5 + len].to_vec();
        sector.resize(512, 0);
        device.write(offset, sector.into(), WriteFlags::NONE).await.unwrap();
        rest = &rest[5 + len..];
    }
    Arc::new(device)
}

/// Round trips until the path is found and until its first bytes are there, from a disk of which
/// nothing is known.
async fn round_trips(input: &[u8], path: &str, expected: &[u8]) -> [u64; 2] {
    let delays = Delays::all(Delay::Fixed(ROUND_TRIP));
    let device = Arc::new(DelayLayer::new(disk(input).await, delays, 1));
    let start = Instant::now();
    let took = || (start.elapsed().as_millis() / ROUND_TRIP.as_millis()) as u64;
    let table = Table::read(device).await.unwrap();
    let partition = table.readable().next().unwrap();
    let volume = table.open(partition).await.unwrap();
    let entry = volume.find(path).await.unwrap();
    assert_eq!(entry.kind, EntryKind::File);
    let found = took();
    let file = volume.open_file(&entry).await.unwrap();
    assert_eq!(file.read_at(0, expected.len()).await.unwrap(), expected);
    [found, took()]
}

macro_rules! corpus {
    ($name:literal) => {
        include_bytes!(concat!("../../../fuzz/corpus/files/", $name))
    };
}

#[tokio::test(start_paused = true)]
async fn a_file_is_a_few_round_trips_away() {
    let path = "/folder/ein langer Name ü.mkv";
    let content = [b'x'; 700];
    let small: [(&str, &[u8], [u64; 2]); 5] = [
        ("ext4", corpus!("ext4"), [3, 4]),
        ("ext2", corpus!("ext2"), [3, 4]),
        ("fat12", corpus!("fat12"), [3, 4]),
        ("fat32", corpus!("fat32"), [3, 4]),
        ("exfat", corpus!("exfat"), [3, 4]),
    ];
    for (name, input, [found_max, read_max]) in small {
        let [found, read] = round_trips(input, path, &content).await;
        println!("{name}: found after {found}, read after {read}");
        assert!(found <= found_max && read <= read_max, "{name}: {found}, {read}");
    }
}
