//! A reset waits for commands of other sessions that execute, those that end without waiting for
//! anything included.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod holding;
mod hostile_common;

use std::sync::Arc;

use block::{BlockDevice, Buf};
use holding::{HELD, Holding, serve};
use hostile_common::{Attacker, IQN, until};
use iscsi::initiator::{Config, RemoteDisk};
use iscsi_proto::keys::DigestPreference;
use iscsi_proto::pdu::{Pdu, TaskManagementFunction, TaskManagementResponseCode};

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn a_reset_is_answered_when_a_command_that_never_waited_has_ended() {
    let (device, let_go) = Holding::new();
    let device = Arc::new(device);
    let (address, serving) = serve(device.clone());

    let url = format!("iscsi://{address}/{IQN}/0").parse().unwrap();
    let disk = RemoteDisk::connect(url, Config::default()).await.unwrap();
    let reader = tokio::spawn(async move { disk.read(HELD, Buf::new(512)).await.map(drop) });
    until("the read executes", || device.is_held()).await;

    let mut attacker = Attacker::log_in(address, DigestPreference::Never).await;
    let reset = attacker.function(1, TaskManagementFunction::LOGICAL_UNIT_RESET);
    attacker.send(&reset.encode(0), &[]).await;
    // When the second ping is answered, the reset has begun to wait.
    for _ in 0..2 {
        let (before, alive) = attacker.ping().await;
        assert!(alive && before.is_empty(), "the read still executes: {before:?}");
    }
    let_go.send(()).unwrap();
    let answer = attacker.read().await;
    let Some(Pdu::TaskManagementResponse(response)) = answer else { panic!("{answer:?}") };
    assert_eq!(response.response, TaskManagementResponseCode::COMPLETE);
    drop(let_go); // should the initiator read again, it fails at once
    reader.abort();
    serving.abort();
}
