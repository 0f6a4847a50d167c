//! The mirror's engine over a leg behind sockets, whose wires are cut again and again under a load
//! of writes, zeroes and flushes: nothing fails for the user, and in the end both sides are the
//! same.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod late;
mod wires;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use block::backend::MemoryDevice;
use block::mirror::{
    Config as MirrorConfig, CreateOptions, LegState, Mirror, Mode, OnLoss, Parts, TokioHost,
};
use block::{BlockDevice, Buf, Bytes, Device, WriteFlags, ZeroFlags};
use iscsi::initiator::{Config, IsidChoice, RemoteLeg, Url};
use iscsi::target::{Server, ServerConfig};
use late::Late;
use scsi::{LunOptions, Target, TargetConfig};
use wires::Wires;

const IQN: &str = "iqn.2026-11.org.example:mirrored";
const PATIENCE: Duration = Duration::from_secs(60);
const SIZE: usize = 8 << 20;
const BLOCK: usize = 4096;
const WRITERS: usize = 4;
/// Operations of each writer.
const OPERATIONS: usize = 600;
/// The wires are cut after so many operations of all writers.
const CUT_EVERY: usize = 160;

fn serve(device: Arc<Late>) -> SocketAddr {
    let target = Target::new(TargetConfig::new(IQN));
    target.add_lun(0, device, LunOptions::default()).unwrap();
    let mut config = ServerConfig::new(IQN).unwrap();
    config.offer.session.default_time2wait = 0;
    let server = Server::bind(config, target, &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = server.local_addrs()[0];
    tokio::spawn(server.run(std::future::pending()));
    address
}

fn memory() -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(SIZE as u64, 512).unwrap())
}

async fn soon<T>(what: &str, operation: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(PATIENCE, operation).await;
    ended.unwrap_or_else(|_| panic!("{what} hangs"))
}

async fn until_in_sync(mirror: &Mirror) {
    loop {
        let changed = mirror.changed();
        if mirror.status().legs[0].state == LegState::InSync {
            return;
        }
        changed.await;
    }
}

/// A sequence that looks random, from Knuth's multiplier.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

/// Writes wherever others write, too.
async fn load(device: Device, writer: usize, done: Arc<AtomicUsize>) {
    let mut state = writer as u64 + 1;
    for n in 0..OPERATIONS {
        let blocks = 1 + next(&mut state) % 8;
        let at = (next(&mut state) % (SIZE / BLOCK - blocks) * BLOCK) as u64;
        let len = blocks * BLOCK;
        let operation = match next(&mut state) % 16 {
            0 => device.flush(),
            1 => device.zero(at, len as u64, ZeroFlags::new(false, true)),
            kind => {
                let word = (writer << 32 | n) as u64;
                let data: Vec<u8> = word.to_le_bytes().repeat(len / 8);
                let flags = if kind == 2 { WriteFlags::FUA } else { WriteFlags::NONE };
                device.write(at, Bytes::from(data), flags)
            }
        };
        soon("an operation", operation).await.unwrap();
        done.fetch_add(1, Ordering::AcqRel);
    }
}

async fn cut_under_load(connections: u16) {
    let far = Arc::new(Late::new());
    let wires = Wires::to(serve(far.clone())).await;
    let url: Url = format!("iscsi://{}/{IQN}/0", wires.address()).parse().unwrap();
    let mut config = Config::default().connections(connections);
    let name = format!("mirrored {connections} of test {}", std::process::id());
    config.isid = IsidChoice::Named(name);
    let local = memory();
    let parts = Parts {
        local: local.clone(),
        metadata: memory(),
        legs: vec![Arc::new(RemoteLeg::new(url, config))],
        host: Arc::new(TokioHost::current()),
    };
    let config = MirrorConfig {
        mode: Mode::Sync,
        on_loss: OnLoss::Continue,
        retry: (Duration::from_millis(5), Duration::from_millis(100)),
        ..MirrorConfig::default()
    };
    soon("creating", Mirror::create(&parts, &config, CreateOptions::default())).await.unwrap();
    let mirror = soon("opening", Mirror::open(parts, config)).await.unwrap();
    soon("the first copy", until_in_sync(&mirror)).await;

    let (made, done) = (wires.made(), Arc::<AtomicUsize>::default());
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(load(mirror.device(), writer, done.clone())))
        .collect();
    let mut cuts = 0;
    while done.load(Ordering::Acquire) < WRITERS * OPERATIONS {
        if done.load(Ordering::Acquire) >= (cuts + 1) * CUT_EVERY {
            wires.cut();
            cuts += 1;
        }
        tokio::task::yield_now().await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    soon("being in sync", until_in_sync(&mirror)).await;
    assert!(wires.made() > made, "the leg was never lost");
    soon("a flush", mirror.device().flush()).await.unwrap();
    assert_eq!(far.pending(), 0);
    let near = local.read(0, Buf::new(SIZE)).await.unwrap();
    let there = far.content(SIZE).await;
    let differs = near.chunks(BLOCK).zip(there.chunks(BLOCK)).position(|(one, other)| one != other);
    assert_eq!(differs, None, "a block differs");
    soon("closing", mirror.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leg_that_is_cut_under_load_is_the_same_in_the_end() {
    cut_under_load(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leg_of_several_connections_is_as_well() {
    cut_under_load(3).await;
}
