//! Functions that end many tasks, under TaskReporting FastAbort and without (§4.2.3.3, §4.2.3.4),
//! and those of RFC 7144.

use super::super::*;
use super::peer::{Peer, session_params};
use crate::keys::TaskReporting;
use crate::pdu::{
    AsyncEvent, Pdu, TaskManagementFunction as F, TaskManagementResponse,
    TaskManagementResponseCode as R,
};

fn peer(task_reporting: TaskReporting, connections: usize) -> Peer {
    let (protocol_level, max_outstanding_r2t) = (2, 2);
    let params =
        SessionParams { task_reporting, protocol_level, max_outstanding_r2t, ..session_params() };
    Peer::with(params, connections)
}

fn answer(peer: &mut Peer, k: usize, itt: Itt, response: R, information: [u8; 3]) {
    let response = TaskManagementResponse {
        response,
        information,
        itt,
        stat_sn: peer.stat_sn[k].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
    };
    peer.give(k, &response.encode(0), &[]).unwrap();
}

/// A write whose R2T is there, and a reset that was sent behind it.
fn reset(task_reporting: TaskReporting) -> (Peer, Itt, Vec<(Pdu, Bytes)>) {
    let mut peer = peer(task_reporting, 1);
    let write = peer.write(40_000, 1);
    peer.drain(0);
    let r2t = peer.r2t(0, write, 0, 8192, 30_000).encode(0);
    peer.give(0, &r2t, &[]).unwrap();
    let reset = peer.session.manage(F::LOGICAL_UNIT_RESET, Lun(0)).unwrap();
    let sent = peer.drain(0);
    assert!(matches!(sent[0], (Pdu::TaskManagementRequest(_), _)));
    (peer, reset, sent)
}

#[test]
fn under_fast_abort_no_data_follows_the_function() {
    let (mut peer, reset, sent) = reset(TaskReporting::FastAbort);
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert!(!peer.session.has_transmit(peer.ids[0]));
    // Other commands go on.
    peer.session.submit(super::peer::command(Bytes::from(vec![0; 9000]), 0), 2).unwrap();
    assert!(!peer.drain(0).is_empty());
    answer(&mut peer, 0, reset, R::COMPLETE, [0; 3]);
    let events = peer.events();
    let ended = |e: &Event<u32>| {
        matches!(e, Event::TaskDone { context: 1, outcome: TaskOutcome::Aborted, .. })
    };
    assert!(events.iter().any(ended), "{events:?}");
    assert!(peer.drain(0).is_empty());
    assert_eq!(peer.session.in_flight(), 1);
}

#[test]
fn without_fast_abort_every_r2t_is_answered() {
    for reporting in [TaskReporting::Rfc3720, TaskReporting::ResponseFence] {
        let (_, _, sent) = reset(reporting);
        let bytes: usize = sent[1..].iter().map(|(_, data)| data.len()).sum();
        assert_eq!(bytes, 30_000);
    }
}

/// The function was lost, so the target asks for the data again and again; what it has given up is
/// not sent when the data goes on.
#[test]
fn under_fast_abort_recovery_r2ts_take_the_place_of_those_before() {
    let recovers = SessionParams {
        error_recovery_level: 1,
        ..*peer(TaskReporting::FastAbort, 1).session.params()
    };
    let mut peer = Peer::with(recovers, 1);
    let write = peer.write(40_000, 1);
    peer.drain(0);
    let reset = peer.session.manage(F::LOGICAL_UNIT_RESET, Lun(0)).unwrap();
    peer.drain(0);
    for sn in 0..60 {
        let offset = 8192 + sn % 2 * 8192;
        let r2t = peer.r2t(0, write, sn, offset, 8192).encode(0);
        peer.give(0, &r2t, &[]).unwrap();
        assert!(peer.drain(0).is_empty(), "R2T {sn}");
    }
    answer(&mut peer, 0, reset, R::AUTHORIZATION_FAILED, [0; 3]);
    let sent = peer.drain(0);
    let [(Pdu::DataOut(first), _), (Pdu::DataOut(second), _)] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!((first.ttt, first.buffer_offset), (Ttt(0x100 + 58), 8192));
    assert_eq!((second.ttt, second.buffer_offset), (Ttt(0x100 + 59), 16_384));
}

#[test]
fn data_goes_on_if_the_function_was_not_carried_out() {
    let (mut peer, reset, _) = reset(TaskReporting::FastAbort);
    answer(&mut peer, 0, reset, R::AUTHORIZATION_FAILED, [0; 3]);
    let bytes: usize = peer.drain(0).iter().map(|(_, data)| data.len()).sum();
    assert_eq!(bytes, 30_000);
}

// §11.9.1:
// - Acknowledge the StatSN of the Async Message PDU via a
// NOP-Out PDU with ITT=0xffffffff (i.e., non-ping flavor),
// while copying the LUN field from the Async Message to
// NOP-Out.
#[test]
fn a_task_termination_stops_the_data_and_is_acknowledged() {
    let mut peer = peer(TaskReporting::FastAbort, 1);
    let write = peer.write(40_000, 1);
    peer.drain(0);
    let r2t = peer.r2t(0, write, 0, 8192, 30_000).encode(0);
    peer.give(0, &r2t, &[]).unwrap();
    terminate(&mut peer, 0);
    let sent = peer.drain(0);
    let [(Pdu::NopOut(nop), _)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((nop.itt, nop.ttt, nop.lun), (Itt::NONE, Ttt::NONE, Lun(0)));
    assert_eq!(nop.exp_stat_sn, peer.stat_sn[0], "the message is acknowledged");
}

fn terminate(peer: &mut Peer, k: usize) {
    let message = peer.async_message(k, AsyncEvent::TASK_TERMINATION, [0; 3]);
    peer.give(k, &message.encode(0), &[]).unwrap();
}

/// Bytes of data that a connection sends now.
fn data(peer: &mut Peer, k: usize) -> usize {
    let sent = peer.drain(k).into_iter();
    sent.filter(|(pdu, _)| matches!(pdu, Pdu::DataOut(_))).map(|(_, data)| data.len()).sum()
}

/// A reset goes out on one connection, then a write to the unit on another: it lives on, and so
/// must its data, asked for before or after the target tells that tasks of the unit end.
#[test]
fn data_of_a_later_command_goes_on_when_the_function_is_over() {
    let mut peer = peer(TaskReporting::FastAbort, 2);
    let old = peer.write(40_000, 1);
    assert_eq!(data(&mut peer, 0), 0);
    let reset = peer.session.manage(F::LOGICAL_UNIT_RESET, Lun(0)).unwrap();
    peer.drain(1);
    let new = peer.write(40_000, 2);
    peer.drain(1);
    for (k, itt) in [(0, old), (1, new)] {
        let r2t = peer.r2t(k, itt, 0, 8192, 8192).encode(0);
        peer.give(k, &r2t, &[]).unwrap();
        terminate(&mut peer, k);
        assert_eq!(data(&mut peer, k), 0);
    }
    let later = peer.r2t(1, new, 1, 16384, 8192).encode(0);
    peer.give(1, &later, &[]).unwrap();
    assert_eq!(data(&mut peer, 1), 8192, "a tag that came later is not meant");
    answer(&mut peer, 1, reset, R::COMPLETE, [0; 3]);
    assert_eq!(peer.done(), [1]);
    assert!(peer.session.has_transmit(peer.ids[1]));
    assert_eq!(data(&mut peer, 1), 8192);
}

#[test]
fn data_waits_for_every_function_that_is_to_end_its_command() {
    let (mut peer, first, _) = reset(TaskReporting::FastAbort);
    let second = peer.session.manage(F::LOGICAL_UNIT_RESET, Lun(0)).unwrap();
    peer.drain(0);
    answer(&mut peer, 0, first, R::AUTHORIZATION_FAILED, [0; 3]);
    assert_eq!(data(&mut peer, 0), 0);
    answer(&mut peer, 0, second, R::AUTHORIZATION_FAILED, [0; 3]);
    assert_eq!(data(&mut peer, 0), 30_000);
}

// RFC 7144 §6.3:
// These task management function requests MUST NOT be sent unless the
// iSCSIProtocolLevel text key with a value of "2" as defined in Section
// 7.1.1 was negotiated on the session.
#[test]
fn new_functions_are_sent_at_level_2_only() {
    let mut old = Peer::new(1);
    let task = old.read(512, 1);
    old.drain(0);
    for code in 9..=12 {
        assert_eq!(old.session.manage(F(code), Lun(0)), None);
    }
    assert_eq!(old.session.query_task(task), None);
    assert!(old.drain(0).is_empty());

    let mut peer = peer(TaskReporting::Rfc3720, 1);
    let task = peer.read(512, 1);
    assert_eq!(peer.session.query_task(task), None, "it was not sent");
    let command = peer.drain_commands(0).remove(0);
    let query = peer.session.query_task(task).unwrap();
    let event = peer.session.manage(F::QUERY_ASYNCHRONOUS_EVENT, Lun(0)).unwrap();
    let sent = peer.drain(0);
    let [(Pdu::TaskManagementRequest(first), _), (Pdu::TaskManagementRequest(_), _)] = &sent[..]
    else {
        panic!("{sent:?}");
    };
    assert_eq!((first.function, first.referenced_task_tag), (F::QUERY_TASK, task));
    assert_eq!(first.ref_cmd_sn, command.cmd_sn);
    answer(&mut peer, 0, query, R::SUCCEEDED, [0; 3]);
    answer(&mut peer, 0, event, R::SUCCEEDED, [0x16, 0x2a, 9]);
    let events = peer.events();
    let told = |e: &Event<u32>| {
        let Event::TaskManagementDone { itt, response, information } = e else { return false };
        (*itt, *response, *information) == (event, R::SUCCEEDED, [0x16, 0x2a, 9])
    };
    assert!(events.iter().any(told), "{events:?}");
    assert_eq!(peer.session.in_flight(), 1, "a query ends nothing");
    let nexus = peer.session.manage(F::I_T_NEXUS_RESET, Lun(0)).unwrap();
    peer.drain(0);
    answer(&mut peer, 0, nexus, R::COMPLETE, [0; 3]);
    let events = peer.events();
    let over = |e: &Event<u32>| {
        matches!(e, Event::SessionEnded { error: Some(ConnectionError::NexusReset) })
    };
    assert!(events.iter().any(over), "{events:?}");
}
