//! A reset waits for commands of other sessions that execute, those that end without waiting for
//! anything included.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod holding;
mod hostile_common;

use std::sync::Arc;

use block::{BlockDevice, Buf};
use holding::{HELD, Holding};
use hostile_common::{Attacker, IQN, until};
use iscsi::initiator::{Config, RemoteDisk};
use iscsi::target::{Server, ServerConfig};
use iscsi_proto::keys::DigestPreference;
use iscsi_proto::pdu::{Pdu, TaskManagementFunction, TaskManagementResponseCode};
use scsi::{LunOptions, Target, TargetConfig};
use tokio::sync::oneshot;

#[tokio::test(flavor = "multi_thread", worker_threads = 6)]
async fn a_reset_is_answered_when_a_command_that_never_waited_has_ended() {
    let (device, let_go) = Holding::new();
    let device = Arc::new(device);
    let scsi = Target::new(TargetConfig::new(IQN));
    scsi.add_lun(0, device.clone(), LunOptions::default()).unwrap();
    let config = ServerConfig::new(IQN).unwrap();
    let server = Server::bind(config, scsi, &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = server.local_addrs()[0];
    let (_stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(async { drop(stopped.await) }));

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
