//! What the leg of a mirror copies within itself: over the line goes what is to be copied, not the
//! data, and of a copy that fails or is cut off nothing lands later.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod late;
mod open_target;
mod own_target;
mod scripted_unit;
mod tgt;

use std::net::SocketAddr;
use std::sync::Arc;

use block::backend::MemoryDevice;
use block::layer::{Fault, FaultLayer, OpKind};
use block::mirror::CopyRun;
use block::{BlockDevice, BlockError, Buf, Bytes, WriteFlags};
use iscsi::initiator::{Config, IsidChoice, RemoteLeg, Url};
use late::Late;
use own_target::{open, serve, soon};
use scripted_unit::start;
use tgt::Tgt;

const IQN: &str = "iqn.2026-11.org.example:copy";
const KIB: u64 = 1024;

fn leg(url: &str, name: &str) -> RemoteLeg {
    let mut config = Config::default().connections(1);
    config.isid = IsidChoice::Named(format!("copy {name} of test {}", std::process::id()));
    RemoteLeg::new(url.parse::<Url>().unwrap(), config)
}

fn own(address: SocketAddr, name: &str) -> RemoteLeg {
    leg(&format!("iscsi://{address}/{IQN}/0"), name)
}

fn run(from: u64, to: u64, len: u64) -> CopyRun {
    CopyRun { from, to, len }
}

async fn bytes(device: &dyn BlockDevice, at: u64, len: u64) -> Vec<u8> {
    device.read(at, Buf::new(len as usize)).await.unwrap().to_vec()
}

fn numbers(len: u64) -> Bytes {
    (0..len).map(|at| (at / 512 * 7) as u8 ^ at as u8).collect::<Vec<_>>().into()
}

/// As many runs as there may be, and as long ones, in blocks of either size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_own_target_copies_what_it_is_told_to() {
    for block_size in [512, 4096] {
        let memory = Arc::new(MemoryDevice::new(64 << 20, block_size).unwrap());
        let leg = own(serve(IQN, memory.clone()), &format!("blocks of {block_size}"));
        let opened = open(&leg).await;
        let inside = opened.inside.unwrap();
        let limits = inside.limits();
        assert!(limits.runs_max >= 128 && limits.at_once >= 16, "{limits:?}");
        assert!(limits.run_bytes_max >= 8 << 20, "{limits:?}");
        let data = numbers(16 << 20);
        memory.write(0, data.clone(), WriteFlags::NONE).await.unwrap();
        let many: Vec<_> = (0..limits.runs_max as u64)
            .map(|n| run(n * 8 * KIB, (32 << 20) - n * 8 * KIB, 4 * KIB))
            .collect();
        soon("many runs", inside.copy(many.clone())).await.unwrap();
        for CopyRun { from, to, len } in many {
            let expected = &data[from as usize..(from + len) as usize];
            assert!(bytes(&*memory, to, len).await == expected, "{from} to {to}");
        }
        soon("a long run", inside.copy(vec![run(KIB * 8, 40 << 20, 8 << 20)])).await.unwrap();
        let expected = &data[8 * KIB as usize..][..8 << 20];
        assert!(bytes(&*memory, 40 << 20, 8 << 20).await == expected);
        soon("nothing", inside.copy(Vec::new())).await.unwrap();
    }
}

/// What would be refused, or be something else on the wire, is not sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_is_refused_here() {
    let memory = Arc::new(MemoryDevice::new(64 << 20, 4096).unwrap());
    let inside = open(&own(serve(IQN, memory), "bounds")).await.inside.unwrap();
    let refused = async |runs: Vec<CopyRun>| soon("a copy", inside.copy(runs)).await.unwrap_err();
    let size = 64 << 20;
    for runs in [vec![run(0, size, 4096)], vec![run(size - 4096, 0, 8192)]] {
        assert!(matches!(refused(runs).await, BlockError::OutOfRange { .. }));
    }
    for runs in [vec![run(512, 8192, 4096)], vec![run(0, 8192, 512)], vec![run(0, 8704, 4096)]] {
        assert!(matches!(refused(runs).await, BlockError::Misaligned { .. }));
    }
    let limits = inside.limits();
    let many = vec![run(0, 8192, 4096); limits.runs_max + 1];
    let long = vec![run(0, 32 << 20, limits.run_bytes_max + 4096)];
    for runs in [many, long] {
        assert!(matches!(refused(runs).await, BlockError::Unsupported(_)));
    }
}

/// The target's storage fails at the second run. The leg goes on: nothing says that it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_fails_says_at_which_segment() {
    let memory = Arc::new(MemoryDevice::new(16 << 20, 512).unwrap());
    let faulty = Arc::new(FaultLayer::new(memory.clone(), 1));
    let error = || BlockError::Medium(std::io::Error::other("a scratch"));
    faulty.inject(Fault::on(OpKind::Write, error).in_range(1 << 20..2 << 20));
    let leg = own(serve(IQN, faulty.clone()), "failing");
    let opened = open(&leg).await;
    let runs = || vec![run(0, 8 << 20, 4096), run(0, 1 << 20, 4096), run(0, 9 << 20, 4096)];
    let inside = opened.inside.unwrap();
    let error = soon("a copy", inside.copy(runs())).await.unwrap_err().to_string();
    assert!(error.contains("of 3 segments, the first to byte 8388608"), "{error}");
    assert!(error.contains("copy aborted (a/0d/01) at segment 1"), "{error}");
    faulty.heal();
    soon("a copy", inside.copy(runs())).await.unwrap();
    soon("a flush", opened.device.flush()).await.unwrap();
}

/// Its storage has a copy's write when the leg is connected anew, which waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_copy_of_before_lands_later() {
    let late = Arc::new(Late::new());
    let leg = own(serve(IQN, late.clone()), "late");
    let opened = open(&leg).await;
    let inside = opened.inside.unwrap();
    late.shut();
    let copies: Vec<_> =
        (0..4).map(|n| inside.copy(vec![run(0, (n + 1) << 20, 2 << 20)])).collect();
    soon("writes at the storage", late.until_pending(4)).await;
    let again = leg.clone();
    let connecting = tokio::spawn(async move { open(&again).await });
    for copy in copies {
        let result = soon("a copy", copy).await;
        assert!(matches!(result, Err(BlockError::Unreachable(_))), "{result:?}");
    }
    assert_eq!(late.pending(), 4);
    late.open();
    let opened = connecting.await.unwrap();
    assert_eq!(late.pending(), 0, "a copy of before can still land");
    let known = late.log().len();
    let data = numbers(4 << 20);
    soon("a write", opened.device.write(1 << 20, data.clone(), WriteFlags::NONE)).await.unwrap();
    soon("a flush", opened.device.flush()).await.unwrap();
    assert!(late.log().len() > known);
    assert!(late.content(5 << 20).await[1 << 20..] == data);
}

/// A target without the commands is a leg as well, and says why it copies nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_know_it_offers_nothing() {
    let (_unit, address) = start().await;
    let opened = open(&leg(&format!("iscsi://{address}/{}/0", scripted_unit::IQN), "none")).await;
    let why = opened.inside.err().unwrap();
    assert!(why.contains("knows no EXTENDED COPY"), "{why}");
}

/// tgt: either way there is an answer, and what it offers works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tgt_copies_or_says_why_not() {
    let Some(tgt) = Tgt::start(16 << 20) else { return };
    let opened = open(&leg(&tgt.url(), "tgt")).await;
    let data = numbers(64 * KIB);
    soon("a write", opened.device.write(0, data.clone(), WriteFlags::NONE)).await.unwrap();
    match opened.inside {
        Ok(inside) => {
            let copied = soon("a copy", inside.copy(vec![run(0, 1 << 20, 64 * KIB)])).await;
            eprintln!("tgt offers {:?}: {copied:?}", inside.limits());
            let there = bytes(&*opened.device, 1 << 20, 64 * KIB).await;
            assert!(copied.is_err() || there == data[..]);
        }
        Err(why) => eprintln!("tgt: {why}"),
    }
    soon("a flush", opened.device.flush()).await.unwrap();
}
