//! Our initiator against a target that others wrote: tgt. Each test has its own tgtd.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod tgt;

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use block::{BlockDevice, BlockError, Buf, Bytes, WriteFlags, ZeroFlags};
use iscsi::initiator::{Config, ConnectError, RemoteDisk, Url, discover};
use iscsi_proto::keys::DigestPreference;
use tgt::{IQN, Tgt};

const SIZE: u64 = 64 << 20;

async fn connect(tgt: &Tgt, connections: u16) -> RemoteDisk {
    connect_with(tgt, Config::default().connections(connections)).await
}

async fn connect_with(tgt: &Tgt, config: Config) -> RemoteDisk {
    let url: Url = tgt.url().parse().unwrap();
    RemoteDisk::connect(url, config).await.unwrap()
}

/// Content that tells its place and its generation.
fn pattern(offset: u64, len: usize, generation: u64) -> Bytes {
    let words = (0..len as u64 / 8).map(|i| (offset + i * 8) ^ (generation << 48));
    words.flat_map(u64::to_le_bytes).collect::<Vec<_>>().into()
}

async fn read(disk: &RemoteDisk, offset: u64, len: usize) -> Buf {
    disk.read(offset, Buf::new(len)).await.unwrap()
}

async fn round_trip(connections: u16, config: Config) {
    let Some(tgt) = Tgt::start(SIZE) else { return };
    if config.offer.data_digest == DigestPreference::Require {
        tgt.require("HeaderDigest", "CRC32C");
        tgt.require("DataDigest", "CRC32C");
    }
    let disk = connect_with(&tgt, config.connections(connections)).await;
    assert_eq!(disk.info().size, SIZE);
    assert_eq!(disk.info().block_size, 512);
    assert_eq!(disk.connection_count(), usize::from(connections));
    // From less than a block of the page to more than one command, all at once.
    let lens = [512, 4096, 65_536, 262_144, 1 << 20, 3 << 20];
    let mut at = 0;
    let mut writes = Vec::new();
    for (n, len) in lens.iter().cycle().take(30).enumerate() {
        if at + *len as u64 <= SIZE {
            writes.push((at, *len, n as u64));
            at += *len as u64;
        }
    }
    let all =
        writes.iter().map(|(at, len, n)| disk.write(*at, pattern(*at, *len, *n), WriteFlags::NONE));
    for result in futures_util::future::join_all(all).await {
        result.unwrap();
    }
    disk.flush().await.unwrap();
    let file = std::fs::File::open(tgt.disk()).unwrap();
    for (at, len, n) in &writes {
        let expected = pattern(*at, *len, *n);
        assert!(read(&disk, *at, *len).await[..] == expected, "read at {at}");
        let mut content = vec![0; *len];
        file.read_exact_at(&mut content, *at).unwrap();
        assert!(content == expected, "file at {at}");
    }
    disk.close().await.unwrap();
    assert!(matches!(disk.read(0, Buf::new(512)).await, Err(BlockError::Unreachable(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_writes_and_reads() {
    round_trip(1, Config::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_connections_write_and_read() {
    round_trip(4, Config::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn digests_are_agreed_and_right() {
    let digests = DigestPreference::Require;
    round_trip(2, Config::default().digests(digests, digests)).await;
}

#[tokio::test]
async fn discovery_finds_the_target() {
    let Some(tgt) = Tgt::start(SIZE) else { return };
    let found = discover(&tgt.portal().parse().unwrap(), &Config::default()).await.unwrap();
    let record = found.iter().find(|record| record.name == IQN).unwrap();
    assert!(record.portals.iter().any(|portal| portal.host == "127.0.0.1"));
}

#[tokio::test]
async fn chap_lets_in_who_knows_the_secret_and_nobody_else() {
    let Some(tgt) = Tgt::start_with(SIZE, Some(("alice", "wonderland-1865"))) else { return };
    let disk = connect(&tgt, 1).await;
    assert!(read(&disk, 0, 512).await.iter().all(|b| *b == 0));
    for login in ["alice%wonderland-1866@", "bob%wonderland-1865@", ""] {
        let url = format!("iscsi://{login}{}/{IQN}/1", tgt.portal());
        let refused = RemoteDisk::connect(url.parse().unwrap(), Config::default()).await;
        assert!(matches!(refused, Err(ConnectError::Login { .. })), "{login}: {refused:?}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_named() {
    let Some(tgt) = Tgt::start(SIZE) else { return };
    let error = |url: String| async move {
        let result = RemoteDisk::connect(url.parse().unwrap(), Config::default()).await;
        result.unwrap_err().to_string()
    };
    let lun = error(format!("iscsi://{}/{IQN}/9", tgt.portal())).await;
    assert!(lun.contains("LUN 9"), "{lun}");
    let target = error(format!("iscsi://{}/{IQN}-other/1", tgt.portal())).await;
    assert!(target.contains("login"), "{target}");
    let port = error(format!("iscsi://127.0.0.1:1/{IQN}/1")).await;
    assert!(port.contains("127.0.0.1:1"), "{port}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_are_checked_zeroes_written_and_extents_cover() {
    let Some(tgt) = Tgt::start(SIZE) else { return };
    let disk = connect(&tgt, 1).await;
    let beyond = disk.read(SIZE, Buf::new(512)).await;
    assert!(matches!(beyond, Err(BlockError::OutOfRange { .. })));
    let uneven = disk.write(100, Bytes::from(vec![0; 512]), WriteFlags::NONE).await;
    assert!(matches!(uneven, Err(BlockError::Misaligned { .. })));
    let len = 5 << 20;
    disk.write(0, pattern(0, len, 1), WriteFlags::FUA).await.unwrap();
    disk.zero(4096, 3 << 20, ZeroFlags::new(true, false)).await.unwrap();
    let now = read(&disk, 0, len).await;
    let expected = pattern(0, len, 1);
    assert!(now[..4096] == expected[..4096]);
    assert!(now[4096..4096 + (3 << 20)].iter().all(|b| *b == 0));
    assert!(now[4096 + (3 << 20)..] == expected[4096 + (3 << 20)..]);
    disk.trim(0, 1 << 20).await.unwrap();
    let extents = disk.extents(0, SIZE).await.unwrap();
    assert_eq!(extents.iter().map(|e| e.len).sum::<u64>(), SIZE);
    assert_eq!(extents[0].offset, 0);
}

/// Writers go on while tgtd is killed and started again, several times.
async fn survives(connections: u16) {
    let Some(mut tgt) = Tgt::start(SIZE) else { return };
    let disk = Arc::new(connect(&tgt, connections).await);
    const WRITERS: u64 = 8;
    const LEN: usize = 65_536;
    let written = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..WRITERS)
        .map(|w| {
            let (disk, written, stop) = (disk.clone(), written.clone(), stop.clone());
            tokio::spawn(async move {
                let base = w * (SIZE / WRITERS);
                let slots = SIZE / WRITERS / LEN as u64;
                let mut generation = 0;
                while stop.load(Ordering::Relaxed) == 0 || generation < slots {
                    let at = base + generation % slots * LEN as u64;
                    let data = pattern(at, LEN, generation);
                    disk.write(at, data, WriteFlags::NONE).await.unwrap();
                    // What was acknowledged is what is read, whatever happened in between.
                    let back = disk.read(at, Buf::new(LEN)).await.unwrap();
                    assert!(back[..] == pattern(at, LEN, generation), "writer {w} at {at}");
                    generation += 1;
                    written.fetch_add(1, Ordering::Relaxed);
                }
                generation
            })
        })
        .collect();
    for round in 1..=3 {
        let before = written.load(Ordering::Relaxed);
        while written.load(Ordering::Relaxed) < before + 50 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tgt.kill();
        tokio::task::block_in_place(|| tgt.run());
        let killed = written.load(Ordering::Relaxed);
        while written.load(Ordering::Relaxed) == killed {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(disk.incarnations() > round);
    }
    stop.store(1, Ordering::Relaxed);
    let mut last = Vec::new();
    for writer in writers {
        last.push(writer.await.unwrap());
    }
    disk.flush().await.unwrap();
    let file = std::fs::File::open(tgt.disk()).unwrap();
    for (w, count) in (0..WRITERS).zip(last) {
        let slots = SIZE / WRITERS / LEN as u64;
        for generation in count - slots..count {
            let at = w * (SIZE / WRITERS) + generation % slots * LEN as u64;
            let mut content = vec![0; LEN];
            file.read_exact_at(&mut content, at).unwrap();
            assert!(content == pattern(at, LEN, generation), "writer {w} at {at}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn io_survives_restarts_of_the_target_with_one_connection() {
    survives(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn io_survives_restarts_of_the_target_with_four_connections() {
    survives(4).await;
}

/// The target's machine loses power: what was acknowledged but not flushed is gone from its
/// disk, and must be there again after the next flush.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unflushed_writes_survive_the_loss_of_the_targets_cache() {
    let Some(mut tgt) = Tgt::start(SIZE) else { return };
    let disk = connect(&tgt, 1).await;
    if !disk.info().volatile_cache {
        eprintln!("SKIPPED: this tgt reports no volatile cache");
        return;
    }
    let len = 1 << 20;
    disk.write(0, pattern(0, len, 1), WriteFlags::NONE).await.unwrap();
    disk.flush().await.unwrap();
    disk.write(4096, pattern(4096, len, 2), WriteFlags::NONE).await.unwrap();
    disk.write(8192, pattern(8192, 4096, 3), WriteFlags::NONE).await.unwrap();
    tgt.kill();
    // The page cache of that machine is lost: the file is as it was at the flush.
    let file = std::fs::OpenOptions::new().write(true).open(tgt.disk()).unwrap();
    file.write_all_at(&vec![0; len + 4096], 0).unwrap();
    file.write_all_at(&pattern(0, len, 1), 0).unwrap();
    tokio::task::block_in_place(|| tgt.run());
    disk.flush().await.unwrap();
    let mut content = vec![0; len + 4096];
    std::fs::File::open(tgt.disk()).unwrap().read_exact_at(&mut content, 0).unwrap();
    let mut expected = pattern(0, len, 1).to_vec();
    expected.resize(len + 4096, 0);
    expected[4096..].copy_from_slice(&pattern(4096, len, 2));
    expected[8192..12_288].copy_from_slice(&pattern(8192, 4096, 3));
    assert!(content == expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn io_fails_only_after_the_replacement_timeout_and_works_again_after_it() {
    let Some(mut tgt) = Tgt::start(SIZE) else { return };
    let timeout = Duration::from_secs(4);
    let disk = connect_with(&tgt, Config::default().replacement_timeout(timeout)).await;
    tgt.kill();
    let begun = std::time::Instant::now();
    let result = disk.read(0, Buf::new(4096)).await;
    assert!(matches!(result, Err(BlockError::Unreachable(_))), "{result:?}");
    assert!(begun.elapsed() + Duration::from_millis(200) > timeout, "{:?}", begun.elapsed());
    tokio::task::block_in_place(|| tgt.run());
    let begun = std::time::Instant::now();
    while disk.read(0, Buf::new(4096)).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
