//! Connections that stand in the way of logins: silent ones, and ones that stop half-way. Whoever
//! means well gets in at the first attempt, from the same address, too.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod hostile_common;

use std::time::{Duration, Instant};

use hostile_common::{Arena, Attacker, ends, until};
use iscsi_proto::frame::Framing;
use iscsi_proto::ids::Itt;
use iscsi_proto::pdu::{LoginRequest, LoginStatus, Stage, VERSION};
use iscsi_proto::serial::{CmdSn, StatSn};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// More connections than there are places, of one address or of all.
const CROWD: usize = 300;
/// Of a login that the crowd must not make wait for its own end.
const LONG: Duration = Duration::from_secs(60);

/// The first request of a login that goes no further.
fn hello() -> Vec<u8> {
    let request = LoginRequest {
        transit: false,
        continues: false,
        csg: Stage::SECURITY_NEGOTIATION,
        nsg: Stage(0),
        version_max: VERSION,
        version_min: VERSION,
        isid: hostile_common::isid(),
        tsih: iscsi_proto::ids::Tsih(0),
        itt: Itt(1),
        cid: iscsi_proto::ids::Cid(0),
        cmd_sn: CmdSn(1),
        exp_stat_sn: StatSn(0),
    };
    let text = b"InitiatorName=iqn.2026-11.org.example:crowd\0SessionType=Discovery\0";
    Framing::default().pdu_bytes(&request.encode(text.len() as u32), text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_say_nothing_keep_nobody_out() {
    let arena = Arena::with(|config| config.login_timeout = LONG).await;
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        crowd.push(TcpStream::connect(arena.address).await.unwrap());
    }
    for _ in 0..10 {
        drop(Attacker::enter(arena.address, |_| ()).await.unwrap());
    }
    arena.serves().await;
    // Their time is that for a first PDU, not that for a login.
    let since = Instant::now();
    for stream in &mut crowd {
        assert!(ends(stream).await);
    }
    assert!(since.elapsed() < LONG / 4);
    arena.logged("login failed", "it gave way to others").await;
    arena.settles().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logins_that_stop_half_way_keep_nobody_out() {
    let arena = Arena::with(|config| config.login_timeout = LONG).await;
    let hello = hello();
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        let mut stream = TcpStream::connect(arena.address).await.unwrap();
        stream.write_all(&hello).await.unwrap();
        crowd.push(stream);
    }
    for _ in 0..10 {
        drop(Attacker::enter(arena.address, |_| ()).await.unwrap());
    }
    arena.serves().await;
    drop(crowd);
    arena.settles().await;
}

/// `serve` has no configuration file to set limits in, so its defaults are those of the daemon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_name_opens_no_more_sessions_than_it_may() {
    let arena = Arena::with(|_| ()).await;
    let mut sessions = Vec::new();
    let refused = loop {
        match Attacker::enter(arena.address, |_| ()).await {
            Ok(session) => sessions.push(session),
            Err(status) => break status,
        }
    };
    assert_eq!((sessions.len(), refused), (64, LoginStatus::OUT_OF_RESOURCES));
    drop(arena.connect().await); // another name
    drop(sessions);
    until("all are gone", || arena.server.sessions().len() <= 2).await;
    arena.serves().await;
}
