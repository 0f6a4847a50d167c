//! A power-on is told until the initiator is known to have been told: a connection may be lost
//! before the answer is read, or before it is even asked for (SAM-5 §5.14, RFC 7143 §4.2.2.2).

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod holding;
mod hostile_common;

use std::net::SocketAddr;
use std::sync::Arc;

use holding::{Holding, serve};
use hostile_common::{Attacker, isid};
use iscsi_proto::ids::{Isid, Itt, Lun};
use iscsi_proto::pdu::{Pdu, ScsiCommand, TaskAttribute};
use iscsi_proto::serial::StatSn;

const POWER_ON: [u8; 2] = [0x29, 0x00];
const NEXUS_LOSS: [u8; 2] = [0x29, 0x07];

/// TEST UNIT READY, or with 3 REQUEST SENSE.
fn command(peer: &Attacker, itt: u32, opcode: u8, exp_stat_sn: StatSn) -> ScsiCommand {
    let mut cdb = [0; 16];
    (cdb[0], cdb[4]) = (opcode, if opcode == 0 { 0 } else { 18 });
    ScsiCommand {
        immediate: true, // CmdSN stays where it is
        is_final: true,
        read: opcode != 0,
        write: false,
        attribute: TaskAttribute::SIMPLE,
        priority: 0,
        lun: Lun(0),
        itt: Itt(itt),
        expected_data_transfer_length: cdb[4].into(),
        cmd_sn: peer.cmd_sn(),
        exp_stat_sn,
        cdb,
        extended_cdb: Default::default(),
        bidi_read_length: None,
    }
}

/// What the unit says: additional sense, none with GOOD, and the StatSN of the answer.
async fn ask(
    peer: &mut Attacker,
    itt: u32,
    opcode: u8,
    exp_stat_sn: StatSn,
) -> (Option<[u8; 2]>, StatSn) {
    let request = command(peer, itt, opcode, exp_stat_sn);
    peer.send(&request.encode(0), &[]).await;
    match peer.read_with_data().await.unwrap() {
        (Pdu::ScsiResponse(response), data) => {
            // Two bytes of length come before the sense data (RFC 7143 §11.4.7).
            let told = data.get(14..16).map(|told| [told[0], told[1]]);
            (told, response.stat_sn)
        }
        (Pdu::DataIn(data_in), data) => (Some([data[12], data[13]]), data_in.stat_sn),
        other => panic!("{other:?}"),
    }
}

async fn log_in(address: SocketAddr, isid: Isid) -> Attacker {
    Attacker::enter(address, |config| config.isid = isid).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_on_is_told_again_until_its_answer_is_acknowledged() {
    const TEST_UNIT_READY: u8 = 0x00;
    const REQUEST_SENSE: u8 = 0x03;
    let (address, serving) = serve(Arc::new(Holding::new().0));
    let (own, other) = (isid(), isid());
    log_in(address, own).await.reset(); // it has asked for nothing
    for opcode in [TEST_UNIT_READY, REQUEST_SENSE, TEST_UNIT_READY] {
        // The answer is read, but the target cannot know that.
        let mut peer = log_in(address, own).await;
        let (told, stat_sn) = ask(&mut peer, 1, opcode, StatSn(0)).await;
        assert_eq!(told, Some(POWER_ON), "opcode {opcode}");
        // Said twice, it is no more acknowledged: this number is that of the answer itself.
        assert_eq!(ask(&mut peer, 2, TEST_UNIT_READY, stat_sn).await.0, None);
        peer.reset();
    }
    let mut peer = log_in(address, own).await;
    let (told, stat_sn) = ask(&mut peer, 1, TEST_UNIT_READY, StatSn(0)).await;
    assert_eq!(told, Some(POWER_ON));
    // The next command acknowledges it.
    assert_eq!(ask(&mut peer, 2, TEST_UNIT_READY, StatSn(stat_sn.0 + 1)).await.0, None);
    // Reinstated, with the connection that is still there, and after a reset.
    let mut peer = log_in(address, own).await;
    assert_eq!(ask(&mut peer, 1, TEST_UNIT_READY, StatSn(0)).await.0, Some(NEXUS_LOSS));
    peer.reset();
    let mut peer = log_in(address, own).await;
    assert_eq!(ask(&mut peer, 1, TEST_UNIT_READY, StatSn(0)).await.0, Some(NEXUS_LOSS));
    // Another port has not been told.
    let mut peer = log_in(address, other).await;
    assert_eq!(ask(&mut peer, 1, TEST_UNIT_READY, StatSn(0)).await.0, Some(POWER_ON));
    serving.abort();
}
