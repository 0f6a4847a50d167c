//! Barriers between writes to the leg of a mirror: what our own target's storage sees of them, and who
//! is offered them.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod late;
mod tgt;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use block::mirror::{LegSource, OpenLeg};
use block::{Buf, Bytes, Io, WriteFlags};
use iscsi::initiator::{Config, IsidChoice, RemoteLeg, Url};
use iscsi::target::{Server, ServerConfig};
use iscsi_proto::tuner::PolicyConfig;
use late::{Event, Late};
use scsi::{LunOptions, Target, TargetConfig};
use tgt::Tgt;

const IQN: &str = "iqn.2026-11.org.example:order";
const PATIENCE: Duration = Duration::from_secs(30);
/// More than any target takes with a command: the rest is asked for with R2T.
const LONG: usize = 1 << 20;
const SHORT: usize = 4096;

fn serve(device: Arc<Late>) -> SocketAddr {
    let target = Target::new(TargetConfig::new(IQN));
    target.add_lun(0, device, LunOptions::default()).unwrap();
    let config = ServerConfig::new(IQN).unwrap();
    let server = Server::bind(config, target, &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = server.local_addrs()[0];
    tokio::spawn(server.run(std::future::pending()));
    address
}

fn leg(url: &str, connections: u16, name: &str) -> RemoteLeg {
    let mut config = Config::default().connections(connections);
    config.isid = IsidChoice::Named(format!("order {name} of test {}", std::process::id()));
    RemoteLeg::new(url.parse::<Url>().unwrap(), config)
}

async fn soon<T>(what: &str, operation: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(PATIENCE, operation).await;
    ended.unwrap_or_else(|_| panic!("{what} hangs"))
}

async fn open(leg: &RemoteLeg) -> OpenLeg {
    soon("connecting", leg.connect()).await.unwrap()
}

fn has_flushed(late: &Late) -> bool {
    late.log().contains(&Event::Flushed)
}

/// Everything asked before the barrier has landed when it flushes, also what came with R2T after the
/// barrier's command, and nothing asked behind it has come. Nobody has waited for an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barrier_parts_what_is_under_way() {
    let late = Arc::new(Late::new());
    let address = serve(late.clone());
    let opened = open(&leg(&format!("iscsi://{address}/{IQN}/0"), 1, "own")).await;
    let ordered = opened.ordered.unwrap();
    assert_eq!(ordered.write_bytes_max(), 0);
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

/// Over several connections there is no barrier, and with one no connection is added any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_has_one_connection() {
    let late = Arc::new(Late::new());
    let url = format!("iscsi://{}/{IQN}/0", serve(late.clone()));
    assert!(open(&leg(&url, 2, "several")).await.ordered.is_none());
    let leg = leg(&url, 1, "one");
    let opened = open(&leg).await;
    let ordered = opened.ordered.unwrap();
    let disk = leg.disk().unwrap();
    disk.set_policy(PolicyConfig::Fixed(3));
    soon("joining", async {
        while disk.connections_open() < 3 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(soon("a barrier", ordered.barrier()).await.is_err());
    assert!(!has_flushed(&late));
}

/// tgt orders commands by the time their data has come: it is offered what comes with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tgt_is_offered_what_it_can_order() {
    let Some(tgt) = Tgt::start(64 << 20) else { return };
    let opened = open(&leg(&tgt.url(), 1, "tgt")).await;
    let Some(ordered) = opened.ordered else {
        eprintln!("SKIPPED: this tgt does not say that it knows ORDERED");
        return;
    };
    let limit = ordered.write_bytes_max();
    assert!(limit >= 4096 && limit.is_multiple_of(4096), "{limit}");
    let limit = limit as usize;
    let write = |at: usize, byte: u8| {
        opened.device.write(at as u64, Bytes::from(vec![byte; limit]), WriteFlags::NONE)
    };
    let mut asked = Vec::new();
    for round in 1..=20 {
        asked.extend((0..8).map(|n| write(n * limit, round)));
        asked.push(ordered.barrier());
    }
    for io in asked {
        soon("what was asked", io).await.unwrap();
    }
    for n in 0..8 {
        let buf = opened.device.read((n * limit) as u64, Buf::new(limit));
        assert!(soon("a read", buf).await.unwrap().iter().all(|byte| *byte == 20));
    }
}
