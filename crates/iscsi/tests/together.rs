//! Commands that come with one segment are looked up as one: each is answered once, in its order,
//! however the segment is cut and whatever comes between them.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod hostile_common;

use hostile_common::{Arena, Attacker, VICTIM_LBA};
use iscsi_proto::frame::Framing;
use iscsi_proto::ids::{Itt, Lun, Ttt};
use iscsi_proto::keys::DigestPreference;
use iscsi_proto::pdu::{NopOut, Pdu, TaskManagementFunction, TaskManagementResponseCode as Code};
use iscsi_proto::serial::StatSn;
use tokio::io::AsyncWriteExt;

const BLOCK: u32 = 512;
const READ_10: u8 = 0x28;
const GOOD: u8 = 0;
/// More than are looked up at once, twice, and some.
const COMMANDS: u32 = 40;
/// This one of them is a write.
const WRITES: u32 = 21;

/// Logged in, with the unit attentions of a new nexus heard.
async fn log_in(arena: &Arena) -> Attacker {
    let mut peer = Attacker::log_in(arena.address, DigestPreference::Never).await;
    assert_eq!(peer.status_of(0x9000, 0).await, GOOD);
    peer
}

/// Reads of one block, a write of it, and reads again.
fn commands(peer: &Attacker, first_itt: u32, data: &[u8]) -> Vec<u8> {
    let one = |n| match n == WRITES {
        true => peer.bytes_of_write(first_itt + n, BLOCK, data),
        false => peer.bytes_of_command(first_itt + n, READ_10, VICTIM_LBA as u32, BLOCK, &[]),
    };
    (0..COMMANDS).flat_map(one).collect()
}

/// The memory disk ends each command at once, so that they are carried out one after the other.
async fn hear(peer: &mut Attacker, first_itt: u32, before: u8, after: u8) {
    for n in 0..COMMANDS {
        let (pdu, data) = peer.read_with_data().await.expect("an answer");
        match pdu {
            Pdu::ScsiResponse(response) => {
                assert_eq!((response.itt, response.status), (Itt(first_itt + WRITES), GOOD));
                assert_eq!(n, WRITES);
            }
            Pdu::DataIn(answer) => {
                assert_eq!(answer.itt, Itt(first_itt + n));
                assert!(answer.status.is_some_and(|status| status.status == GOOD));
                let expected = if n < WRITES { before } else { after };
                assert_eq!(data[..], [expected; BLOCK as usize], "command {n}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_is_answered_once_and_in_order_however_they_are_cut() {
    let arena = Arena::new().await;
    let mut peer = log_in(&arena).await;
    let mut content = 0;
    for (round, piece) in [usize::MAX, 1000, 48 * 3 + 7, 31].into_iter().enumerate() {
        let (first_itt, next) = (round as u32 * 0x1000, round as u8 + 1);
        let bytes = commands(&peer, first_itt, &[next; BLOCK as usize]);
        for piece in bytes.chunks(piece.min(bytes.len())) {
            peer.stream.write_all(piece).await.unwrap();
        }
        hear(&mut peer, first_itt, content, next).await;
        content = next;
    }
    arena.serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_between_them_is_about_those_before_it() {
    let arena = Arena::new().await;
    let mut peer = log_in(&arena).await;
    let read = |peer: &Attacker, itt| peer.bytes_of_read(itt, BLOCK);
    let mut bytes: Vec<u8> = [1, 2].into_iter().flat_map(|itt| read(&peer, itt)).collect();
    let (immediate, ttt, exp_stat_sn) = (true, Ttt::NONE, StatSn(0));
    let (lun, cmd_sn) = (Lun(0), peer.cmd_sn());
    let ping = NopOut { immediate, lun, itt: Itt(3), ttt, cmd_sn, exp_stat_sn };
    bytes.extend(Framing::default().pdu_bytes(&ping.encode(0), &[]));
    bytes.extend(read(&peer, 4));
    let mut abort = peer.function(5, TaskManagementFunction::ABORT_TASK);
    (abort.referenced_task_tag, abort.ref_cmd_sn) = (Itt(4), peer.cmd_sn().plus(u32::MAX));
    bytes.extend(Framing::default().pdu_bytes(&abort.encode(0), &[]));
    bytes.extend(read(&peer, 6));
    peer.stream.write_all(&bytes).await.unwrap();

    let mut answered = Vec::new();
    let mut aborted = None;
    let mut pinged = false;
    // The last command is answered last: answers of commands do not overtake each other.
    while answered.last() != Some(&Itt(6)) || aborted.is_none() || !pinged {
        match peer.read().await.expect("an answer") {
            Pdu::DataIn(answer) => answered.push(answer.itt),
            Pdu::NopIn(answer) => pinged |= answer.itt == Itt(3),
            Pdu::TaskManagementResponse(answer) => aborted = Some(answer.response),
            other => panic!("{other:?}"),
        }
    }
    // Either it was too late, or there is no answer (RFC 7143 §11.6.1).
    match aborted {
        Some(Code::TASK_DOES_NOT_EXIST) => assert_eq!(answered, [1, 2, 4, 6].map(Itt)),
        Some(Code::COMPLETE) => assert_eq!(answered, [1, 2, 6].map(Itt)),
        other => panic!("{other:?}"),
    }
    arena.serves().await;
}
