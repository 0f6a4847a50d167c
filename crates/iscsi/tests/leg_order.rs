//! Barriers between writes to the leg of a mirror: what our own target's storage sees of them, and
//! who is offered them.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod late;
mod own_target;
mod tgt;

use std::sync::Arc;
use std::time::Duration;

use block::layer::{Fault, FaultLayer, OpKind};
use block::{BlockError, Bytes, Io, WriteFlags};
use iscsi::initiator::{Config, IsidChoice, RemoteLeg, Url};
use late::{Event, Late};
use own_target::{open, serve, soon};
use tgt::Tgt;

const IQN: &str = "iqn.2026-11.org.example:order";
/// More than any target takes with a command: the rest is asked for with R2T.
const LONG: usize = 1 << 20;
const SHORT: usize = 4096;

fn leg(url: &str, connections: u16, name: &str) -> RemoteLeg {
    let mut config = Config::default().connections(connections);
    config.isid = IsidChoice::Named(format!("order {name} of test {}", std::process::id()));
    RemoteLeg::new(url.parse::<Url>().unwrap(), config)
}

fn has_flushed(late: &Late) -> bool {
    late.log().contains(&Event::Flushed)
}

/// Everything asked before the barrier has landed when it flushes, also what came with R2T after
/// the barrier's command, and nothing asked behind it has come. Nobody has waited for an answer,
/// and over several connections nothing arrives in the order in which it was asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barrier_parts_what_is_under_way() {
    for connections in [1, 3] {
        barrier_parts(connections).await;
    }
}

async fn barrier_parts(connections: u16) {
    let late = Arc::new(Late::new());
    let address = serve(IQN, late.clone());
    let url = format!("iscsi://{address}/{IQN}/0");
    let leg = leg(&url, connections, &format!("own {connections}"));
    let opened = open(&leg).await;
    let disk = leg.disk().unwrap();
    soon("joining", async {
        while disk.connections_open() < usize::from(connections) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let ordered = opened.ordered.unwrap();
    late.shut();
    let write = |at: u64, len: usize| {
        opened.device.write(at, Bytes::from(vec![at as u8 | 1; len]), WriteFlags::NONE)
    };
    let border = 8 * LONG as u64;
    let mut asked: Vec<Io<()>> = (0..8).map(|n| write(n * LONG as u64, LONG)).collect();
    asked.push(ordered.barrier());
    asked.extend((0..8).map(|n| write(border + n * SHORT as u64, SHORT)));
    soon("writes at the storage", late.until_pending(8)).await;
    // Time for what must not happen.
    let early = async {
        while !has_flushed(&late) {
            tokio::task::yield_now().await;
        }
    };
    let early = tokio::time::timeout(Duration::from_millis(200), early).await;
    assert!(early.is_err(), "flushed before its turn: {:?}", late.log());
    late.open();
    for io in asked {
        soon("what was asked", io).await.unwrap();
    }
    let log = late.log();
    let flushed = log.iter().position(|event| *event == Event::Flushed).unwrap();
    let is_before = |event: &Event| matches!(event, Event::Landed(at) if *at < border);
    let is_behind = |event: &Event| matches!(event, Event::Came(at) if *at >= border);
    assert!(!log[flushed..].iter().any(is_before), "landed after the barrier: {log:?}");
    assert!(!log[..flushed].iter().any(is_behind), "came before the barrier: {log:?}");
    assert_eq!(log.iter().filter(|event| is_behind(event)).count(), 8);
}

/// What is behind a write that fails is not carried out, whether its target had it by then or not,
/// and however many writes and barriers are between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_lands_behind_a_write_that_fails() {
    nothing_lands_behind(SHORT).await;
    nothing_lands_behind(LONG).await;
}

async fn nothing_lands_behind(len: usize) {
    let late = Arc::new(Late::new());
    let faults = Arc::new(FaultLayer::new(late.clone(), 1));
    let address = serve(IQN, faults.clone());
    let leg = leg(&format!("iscsi://{address}/{IQN}/0"), 1, &format!("fails {len}"));
    let opened = open(&leg).await;
    let ordered = opened.ordered.unwrap();
    let write =
        |at: u64, len: usize| opened.device.write(at, Bytes::from(vec![7; len]), WriteFlags::NONE);
    faults.inject(Fault::on(OpKind::Write, || BlockError::NoSpace).in_range(0..1).times(1));
    soon("the first barrier", ordered.barrier()).await.unwrap();
    late.shut();
    let before = write(2 * LONG as u64, len);
    let fails = write(0, len);
    let mut behind = Vec::new();
    for n in 4..8 {
        behind.push(ordered.barrier());
        behind.push(write(n * LONG as u64, len));
    }
    soon("the write before", late.until_pending(1)).await;
    late.open();
    drop(soon("the write before", before).await);
    assert!(soon("the write that fails", fails).await.is_err());
    for io in behind {
        assert!(soon("what is behind", io).await.is_err());
    }
    let came: Vec<u64> = late.log().into_iter().filter_map(came).collect();
    assert_eq!(came, [2 * LONG as u64], "{:?}", late.log());
    // The condition ends with its session.
    let opened = open(&leg).await;
    let ordered = opened.ordered.unwrap();
    let all = [
        opened.device.write(0, Bytes::from(vec![8; LONG]), WriteFlags::NONE),
        ordered.barrier(),
        opened.device.write(4 * LONG as u64, Bytes::from(vec![8; LONG]), WriteFlags::NONE),
    ];
    for io in all {
        soon("what is asked anew", io).await.unwrap();
    }
}

fn came(event: Event) -> Option<u64> {
    if let Event::Came(at) = event { Some(at) } else { None }
}

/// tgt orders commands by the time their data has come, and goes on behind a failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tgt_is_offered_no_order() {
    let Some(tgt) = Tgt::start(64 << 20) else { return };
    let why = open(&leg(&tgt.url(), 1, "tgt")).await.ordered.err().unwrap();
    assert!(why.contains("no NORMACA") || why.contains("no ORDSUP"), "{why}");
}
