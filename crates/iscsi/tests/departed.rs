//! An initiator that leaves and comes back at once, under another ISID, does not meet what its old
//! session held.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod holding;
mod hostile_common;

use std::sync::Arc;
use std::time::Duration;

use holding::{HELD, Holding, serve};
use hostile_common::{Attacker, until};
use iscsi_proto::ids::{Cid, Itt};
use iscsi_proto::keys::DigestPreference;
use iscsi_proto::pdu::{LogoutReason, LogoutRequest, Pdu};
use iscsi_proto::serial::StatSn;
use tokio::io::AsyncWriteExt;

const TEST_UNIT_READY: u8 = 0x00;
const RESERVE_6: u8 = 0x16;
const READ_10: u8 = 0x28;
const GOOD: u8 = 0;
const RESERVATION_CONFLICT: u8 = 0x18;

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn who_hangs_up_and_comes_back_waits_until_that_was_seen() {
    let (device, let_go) = Holding::new();
    let device = Arc::new(device);
    let (address, serving) = serve(device.clone());
    let mut old = Attacker::log_in(address, DigestPreference::Never).await;
    assert_eq!(old.status_of(1, RESERVE_6).await, GOOD);
    let mut other = Attacker::log_in(address, DigestPreference::Never).await;
    assert_eq!(other.status_of(1, TEST_UNIT_READY).await, RESERVATION_CONFLICT);

    // The task of the old connection is busy and sees nothing of its end.
    let read = old.bytes_of_command(9, READ_10, (HELD / 512) as u32, 512, &[]);
    old.stream.write_all(&read).await.unwrap();
    until("the read executes", || device.is_held()).await;
    drop(old);
    let release = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let_go.send(()).unwrap();
    });
    let mut new = Attacker::log_in(address, DigestPreference::Never).await;
    assert_eq!(new.status_of(1, TEST_UNIT_READY).await, GOOD);
    release.await.unwrap();
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answered_logout_leaves_nothing_of_the_session() {
    let (device, _let_go) = Holding::new();
    let (address, serving) = serve(Arc::new(device));
    let mut old =
        Attacker::enter(address, |config| config.offer.session.max_connections = 2).await.unwrap();
    assert_eq!(old.status_of(1, RESERVE_6).await, GOOD);
    // Its second connection takes nothing of what it asked for and keeps the target waiting.
    let mut deaf = old.join(address, 2).await.unwrap();
    for itt in 100..112 {
        let read = deaf.bytes_of_command(itt, READ_10, 0, 8 << 20, &[]);
        deaf.stream.write_all(&read).await.unwrap();
    }
    until("an answer waits", || deaf_has_answers(&deaf)).await;
    let logout = LogoutRequest {
        immediate: true,
        reason: LogoutReason::CLOSE_SESSION,
        itt: Itt(2),
        cid: Cid(1),
        cmd_sn: old.cmd_sn(),
        exp_stat_sn: StatSn(0),
    };
    old.send(&logout.encode(0), &[]).await;
    let answer = old.read().await;
    assert!(matches!(answer, Some(Pdu::LogoutResponse(_))), "{answer:?}");
    let mut new = Attacker::log_in(address, DigestPreference::Never).await;
    assert_eq!(new.status_of(1, TEST_UNIT_READY).await, GOOD);
    serving.abort();
}

/// More than it would take for a greeting: the socket fills.
fn deaf_has_answers(deaf: &Attacker) -> bool {
    let mut answers = [std::mem::MaybeUninit::uninit(); 65_536];
    let peeked = socket2::SockRef::from(&deaf.stream).peek(&mut answers);
    peeked.is_ok_and(|len| len == answers.len())
}
