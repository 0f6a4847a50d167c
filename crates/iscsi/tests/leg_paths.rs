//! The leg of a mirror when one of its connections is lost: with task reassignment its commands go
//! on, without it the disk is dead. The storage behind our own target sees each write once, either
//! way.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod late;
mod wires;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use block::mirror::LegSource;
use block::{BlockError, Buf, Bytes, Device, Io, WriteFlags};
use iscsi::initiator::{Config, IsidChoice, RemoteLeg, Url};
use iscsi::target::{Server, ServerConfig};
use late::{Event, Late};
use scsi::{LunOptions, Target, TargetConfig};
use wires::Wires;

const IQN: &str = "iqn.2026-11.org.example:paths";
const PATIENCE: Duration = Duration::from_secs(30);
const LEN: usize = 4096;
const WRITES: usize = 32;

fn serve(device: Arc<Late>) -> SocketAddr {
    let target = Target::new(TargetConfig::new(IQN));
    target.add_lun(0, device, LunOptions::default()).unwrap();
    let mut config = ServerConfig::new(IQN).unwrap();
    config.offer.session.error_recovery_level = 2;
    config.offer.session.default_time2wait = 0;
    let server = Server::bind(config, target, &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = server.local_addrs()[0];
    tokio::spawn(server.run(std::future::pending()));
    address
}

fn leg(address: SocketAddr, level: u8) -> RemoteLeg {
    let url: Url = format!("iscsi://{address}/{IQN}/0").parse().unwrap();
    let mut config = Config::default().connections(2).error_recovery_level(level);
    config.isid = IsidChoice::Named(format!("paths {level} of test {}", std::process::id()));
    RemoteLeg::new(url, config)
}

async fn soon<T>(what: &str, operation: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(PATIENCE, operation).await;
    ended.unwrap_or_else(|_| panic!("{what} hangs"))
}

fn write(device: &Device, place: usize) -> Io<()> {
    let data = Bytes::from(vec![place as u8 + 1; LEN]);
    device.write((place * LEN) as u64, data, WriteFlags::NONE)
}

/// How often the storage has seen each write.
fn seen(late: &Late) -> Vec<usize> {
    let mut counts = BTreeMap::new();
    for event in late.log() {
        if let Event::Came(at) = event {
            *counts.entry(at).or_insert(0) += 1;
        }
    }
    counts.into_values().collect()
}

/// One of two connections is cut with writes under way over both; what becomes of them.
async fn with_a_connection_cut(
    level: u8,
) -> (Arc<Late>, RemoteLeg, Device, Vec<block::Result<()>>) {
    let late = Arc::new(Late::new());
    let wires = Wires::to(serve(late.clone())).await;
    let leg = leg(wires.address(), level);
    let device = soon("connecting", leg.connect()).await.unwrap().device;
    let disk = leg.disk().unwrap();
    assert_eq!(disk.session_params().error_recovery_level, level);
    disk.gathered().await;
    assert_eq!(disk.connections_open(), 2);
    late.shut();
    let writes: Vec<Io<()>> = (0..WRITES).map(|place| write(&device, place)).collect();
    soon("writes at the storage", late.until_pending(WRITES as u32)).await;
    // Both carry some: a command goes to the connection with less to do.
    wires.cut_first();
    late.open();
    let results = soon("the writes", futures_util::future::join_all(writes)).await;
    (late, leg, device, results)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_reassignment_commands_of_a_lost_connection_go_on() {
    let (late, leg, device, results) = with_a_connection_cut(2).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(seen(&late), [1; WRITES]);
    for place in 0..WRITES {
        let buf = soon("a read", device.read((place * LEN) as u64, Buf::new(LEN))).await.unwrap();
        assert!(buf.iter().all(|byte| *byte == place as u8 + 1));
    }
    assert_eq!(leg.disk().unwrap().incarnations(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_it_the_disk_is_dead() {
    for level in [0, 1] {
        let (late, leg, device, results) = with_a_connection_cut(level).await;
        let is_lost =
            |result: &block::Result<()>| matches!(result, Err(BlockError::Unreachable(_)));
        // What was answered before the end was seen was carried out.
        assert!(results.iter().all(|result| result.is_ok() || is_lost(result)), "{results:?}");
        assert!(is_lost(&soon("a write", write(&device, 0)).await));
        let next = soon("connecting", leg.connect()).await.unwrap().device;
        assert_eq!(late.pending(), 0);
        assert!(is_lost(&soon("a write", write(&device, 0)).await));
        soon("a write", write(&next, WRITES)).await.unwrap();
        assert_eq!(seen(&late), [1; WRITES + 1]);
    }
}
