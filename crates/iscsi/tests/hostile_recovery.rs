//! Error recovery as a weapon: SNACKs, reassignments and lost connections in numbers, and of tasks
//! and connections that belong to others. Beside them a healthy session goes on verifying, and
//! memory stays bounded.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod hostile_common;

use hostile_common::{Arena, Attacker, resident_bytes};
use iscsi_proto::ids::{Cid, Itt, Lun, Ttt};
use iscsi_proto::keys::DigestPreference;
use iscsi_proto::pdu::{
    LoginStatus, LogoutReason, LogoutRequest, LogoutResponseCode, Pdu, RejectReason, SnackKind,
    SnackRequest, TaskManagementFunction, TaskManagementRequest, TaskManagementResponseCode,
};
use iscsi_proto::serial::{CmdSn, StatSn};
use tokio::io::AsyncWriteExt;

/// What an attack may cost in memory, as in `hostile_target`.
const GROWTH_MAX: usize = 96 << 20;
/// How long sessions of these tests are kept, in seconds.
const RETAIN_S: u16 = 2;

fn snack(kind: SnackKind, itt: Itt, beg_run: u32, run_length: u32) -> SnackRequest {
    let ttt_or_snack_tag = Ttt::NONE.0;
    let (lun, exp_stat_sn) = (Lun(0), StatSn(0));
    SnackRequest { kind, lun, itt, ttt_or_snack_tag, exp_stat_sn, beg_run, run_length }
}

fn reassignment(itt: u32, referenced: u32) -> TaskManagementRequest {
    TaskManagementRequest {
        immediate: true,
        function: TaskManagementFunction::TASK_REASSIGN,
        lun: Lun(0),
        itt: Itt(itt),
        referenced_task_tag: Itt(referenced),
        cmd_sn: CmdSn(1),
        exp_stat_sn: StatSn(0),
        ref_cmd_sn: CmdSn(0),
        exp_data_sn: 0,
    }
}

async fn reassign(attacker: &mut Attacker, referenced: u32) -> TaskManagementResponseCode {
    attacker.send(&reassignment(0x600, referenced).encode(0), &[]).await;
    match attacker.read().await {
        Some(Pdu::TaskManagementResponse(response)) => response.response,
        other => panic!("{other:?}"),
    }
}

async fn give_up(attacker: &mut Attacker, cid: u16) -> LogoutResponseCode {
    let logout = LogoutRequest {
        immediate: true,
        reason: LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY,
        itt: Itt(0x601),
        cid: Cid(cid),
        cmd_sn: CmdSn(1),
        exp_stat_sn: StatSn(0),
    };
    attacker.send(&logout.encode(0), &[]).await;
    match attacker.read().await {
        Some(Pdu::LogoutResponse(response)) => response.response,
        other => panic!("{other:?}"),
    }
}

/// Reads the whole answer of a command.
async fn finish_read(attacker: &mut Attacker, itt: u32) {
    loop {
        match attacker.read().await {
            Some(Pdu::DataIn(pdu)) if pdu.itt == Itt(itt) && pdu.status.is_some() => return,
            Some(Pdu::ScsiResponse(pdu)) if pdu.itt == Itt(itt) => return,
            Some(_) => {}
            None => panic!("the connection has ended"),
        }
    }
}

async fn read_unacknowledged(attacker: &mut Attacker, itt: u32, len: u32) {
    for (itt, len) in [(itt + 1000, 512), (itt, len)] {
        // The first one takes the unit attention of a new session.
        let bytes = attacker.bytes_of_read(itt, len);
        attacker.stream.write_all(&bytes).await.unwrap();
        finish_read(attacker, itt).await;
    }
}

/// What is asked for again and again, and never taken, is not queued without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snacks_without_end() {
    let arena = Arena::new().await;
    let before = resident_bytes();
    for (kind, itt) in [
        (SnackKind::DATA_OR_R2T, Itt(1)),
        (SnackKind::STATUS, Itt::NONE),
        (SnackKind::R_DATA, Itt(1)),
    ] {
        let mut attacker = Attacker::recoverable(arena.address, 1, 0).await;
        read_unacknowledged(&mut attacker, 1, 1 << 20).await;
        let mut snack = snack(kind, itt, 0, 0);
        if kind == SnackKind::R_DATA {
            snack.ttt_or_snack_tag = 7;
        }
        // Each of them asks for a megabyte, or what there is.
        let mut sent = 0;
        while sent < 50_000 && attacker.try_send(&snack.encode(0), &[]).await {
            sent += 1;
        }
        let growth = resident_bytes().saturating_sub(before);
        assert!(growth < GROWTH_MAX, "{growth} bytes more than before after {sent} SNACKs");
        arena.serves().await;
    }
    arena.settles().await;
}

/// SNACKs for what was never sent, or on another connection, or in another session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snacks_for_what_is_not_theirs() {
    let arena = Arena::new().await;
    let mut owner = Attacker::recoverable(arena.address, 2, 0).await;
    read_unacknowledged(&mut owner, 1, 65_536).await;
    let sibling = owner.join(arena.address, 2).await.unwrap();
    let stranger = Attacker::recoverable(arena.address, 1, 0).await;
    for (who, mut attacker) in [("another connection", sibling), ("another session", stranger)] {
        for (what, snack) in [
            ("its data", snack(SnackKind::DATA_OR_R2T, Itt(1), 0, 0)),
            ("data never sent", snack(SnackKind::DATA_OR_R2T, Itt(1), 1000, 1)),
            ("data with a wrap", snack(SnackKind::DATA_OR_R2T, Itt(1), u32::MAX, u32::MAX)),
            ("a status to come", snack(SnackKind::STATUS, Itt::NONE, 0x4000_0000, 1)),
            ("an acknowledgement", snack(SnackKind::DATA_ACK, Itt::NONE, 1, 0)),
            ("its data anew", snack(SnackKind::R_DATA, Itt(1), 0, 0)),
        ] {
            attacker.send(&snack.encode(0), &[]).await;
            let (answers, alive) = attacker.ping().await;
            let rejected = answers.iter().any(|pdu| matches!(pdu, Pdu::Reject(_)));
            let data =
                answers.iter().any(|pdu| matches!(pdu, Pdu::DataIn(_) | Pdu::ScsiResponse(_)));
            assert!(rejected && alive && !data, "{what} by {who}: {answers:?}");
        }
    }
    // Its owner gets it, and a later SNACK for more than there is does not.
    owner.send(&snack(SnackKind::DATA_OR_R2T, Itt(1), 0, 1).encode(0), &[]).await;
    assert!(matches!(owner.read().await, Some(Pdu::DataIn(pdu)) if pdu.data_sn.0 == 0));
    owner.send(&snack(SnackKind::DATA_OR_R2T, Itt(1), 0, u32::MAX).encode(0), &[]).await;
    let answer = owner.read().await;
    let refused =
        matches!(&answer, Some(Pdu::Reject(r)) if r.reason == RejectReason::PROTOCOL_ERROR);
    assert!(refused, "{answer:?}");
    arena.serves().await;
}

/// Tasks that are still at work, or another session's, cannot be taken over, nor connections that
/// are not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_may_not_be_taken_over() {
    let arena = Arena::new().await;
    let mut owner = Attacker::recoverable(arena.address, 2, RETAIN_S).await;
    let mut sibling = owner.join(arena.address, 2).await.unwrap();
    owner.write_command(0x42, 512 + 8192, &[0xee; 512]).await;
    assert!(matches!(owner.read().await, Some(Pdu::R2t(_))));
    let mut stranger = Attacker::recoverable(arena.address, 1, RETAIN_S).await;
    let mut simple = Attacker::log_in(arena.address, DigestPreference::Never).await;
    {
        use TaskManagementResponseCode as R;
        assert_eq!(reassign(&mut sibling, 0x42).await, R::TASK_STILL_ALLEGIANT);
        assert_eq!(reassign(&mut owner, 0x42).await, R::TASK_STILL_ALLEGIANT);
        assert_eq!(reassign(&mut stranger, 0x42).await, R::TASK_DOES_NOT_EXIST);
        assert_eq!(reassign(&mut simple, 0x42).await, R::REASSIGNMENT_NOT_SUPPORTED);
    }
    {
        use LogoutResponseCode as R;
        assert_eq!(give_up(&mut sibling, 4711).await, R::CID_NOT_FOUND);
        assert_eq!(give_up(&mut stranger, 2).await, R::CID_NOT_FOUND);
        assert_eq!(give_up(&mut simple, 2).await, R::RECOVERY_NOT_SUPPORTED);
    }
    for attacker in [&mut owner, &mut sibling, &mut stranger, &mut simple] {
        assert!(attacker.ping().await.1, "nobody's connection was closed");
    }
    drop((owner, sibling, stranger, simple));
    arena.settles().await;
    arena.victim_is_untouched().await;
    arena.serves().await;
}

/// A peer that asks for the same task a thousand times, while its old connection ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reassignments_without_end() {
    let arena = Arena::new().await;
    let before = resident_bytes();
    let owner = Attacker::recoverable(arena.address, 2, RETAIN_S).await;
    let mut sibling = owner.join(arena.address, 2).await.unwrap();
    owner.write_command(0x42, 512 + 8192, &[0xee; 512]).await;
    let _ = give_up(&mut sibling, 1).await;
    let mut sent = 0;
    while sent < 20_000 && sibling.try_send(&reassignment(sent, 0x42).encode(0), &[]).await {
        sent += 1;
    }
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{growth} bytes more than before after {sent} requests");
    drop((owner, sibling));
    arena.settles().await;
    arena.victim_is_untouched().await;
    arena.serves().await;
}

/// Connections that are lost by the hundred and wait for a recovery that never comes: there are
/// only so many of a session, sessions end in time, and all memory is given back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connections_do_not_pile_up() {
    // More of one name than the default: it is their data and their end that count here.
    let arena = Arena::with(|config| {
        config.limits.sessions_max = 1024;
        config.limits.sessions_per_initiator_max = 1024;
    })
    .await;
    let before = resident_bytes();
    // One session, each connection with a number of its own.
    let first = Attacker::recoverable(arena.address, 4, RETAIN_S).await;
    let mut lost = 0;
    let refusal = loop {
        match first.join(arena.address, 2 + lost).await {
            Ok(next) => {
                next.reset();
                lost += 1;
            }
            Err(status) => break status,
        }
        assert!(lost < 100, "{lost} lost connections of one session");
        // Else it may still count as alive.
        tokio::task::yield_now().await;
    };
    assert_eq!(refusal, LoginStatus::TOO_MANY_CONNECTIONS);
    first.reset();
    // Many sessions, each with a write that waits for its data.
    for n in 0..300 {
        let attacker = Attacker::recoverable(arena.address, 1, RETAIN_S).await;
        attacker.write_command(n, 1 << 20, &[0xee; 512]).await;
        attacker.reset();
    }
    arena.serves().await;
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{growth} bytes more than before");
    arena.settles().await;
    arena.victim_is_untouched().await;
    arena.serves().await;
}
