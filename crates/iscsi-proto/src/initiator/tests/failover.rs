//! Error recovery level 2: a connection is lost, and its commands go on elsewhere.

use std::time::Duration;

use super::super::*;
use super::peer::{Peer, established};
use crate::connection::Placement;
use crate::pdu::{
    AsyncEvent, DataIn, LogoutRequest, LogoutResponse, LogoutResponseCode, Pdu, Reject,
    RejectReason, SnackKind, TaskManagementFunction, TaskManagementRequest, TaskManagementResponse,
    TaskManagementResponseCode,
};

fn params() -> SessionParams {
    SessionParams {
        error_recovery_level: 2,
        max_connections: 8,
        default_time2wait: 0,
        default_time2retain: 20,
        ..SessionParams::default()
    }
}

fn logout(out: &[(Pdu, Bytes)]) -> LogoutRequest {
    out.iter()
        .find_map(|(pdu, _)| match pdu {
            Pdu::LogoutRequest(request) => Some(request.clone()),
            _ => None,
        })
        .unwrap_or_else(|| panic!("{out:?}"))
}

fn reassignments(out: &[(Pdu, Bytes)]) -> Vec<TaskManagementRequest> {
    out.iter()
        .filter_map(|(pdu, _)| match pdu {
            Pdu::TaskManagementRequest(request) => {
                assert_eq!(request.function, TaskManagementFunction::TASK_REASSIGN);
                Some(request.clone())
            }
            _ => None,
        })
        .collect()
}

fn logged_out(peer: &mut Peer, k: usize, itt: Itt, response: LogoutResponseCode, wait: u16) {
    let response = LogoutResponse {
        response,
        itt,
        stat_sn: peer.stat_sn[k].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
        time2wait: wait,
        time2retain: 20,
    };
    peer.give(k, &response.encode(0), &[]).unwrap();
}

fn managed(peer: &mut Peer, k: usize, itt: Itt, response: TaskManagementResponseCode) {
    let response = TaskManagementResponse {
        response,
        information: [0; 3],
        itt,
        stat_sn: peer.stat_sn[k].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
    };
    peer.give(k, &response.encode(0), &[]).unwrap();
}

fn finished(events: &[Event<u32>]) -> Vec<(u32, u32, u32)> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::Recovery {
                what: Recovery::Finished { reassigned, retried, requeued }, ..
            } => Some((*reassigned, *retried, *requeued)),
            _ => None,
        })
        .collect()
}

/// Two connections; a read with a third of its data and a write in the middle of an R2T on the
/// second one, which is lost then.
fn interrupted() -> (Peer, Itt, Itt) {
    let mut peer = Peer::with(params(), 2);
    let id = peer.ids[0];
    peer.session.connection_mut(id).unwrap().draining = true; // all go to the second one
    let read = peer.read(3000, 1);
    let write = peer.write(40_000, 2);
    peer.session.connection_mut(id).unwrap().draining = false;
    peer.drain(1);
    let data = peer.data_in(1, read, 0, 0).encode(1000);
    assert_eq!(peer.give(1, &data, &[]), Ok(Placement::Task { itt: read, offset: 0 }));
    let r2t = peer.r2t(1, write, 0, 8192, 20_000).encode(0);
    peer.give(1, &r2t, &[]).unwrap();
    let id = peer.ids[1];
    peer.session.poll_transmit(id, peer.now).unwrap();
    peer.session.handle_connection_lost(id, peer.now);
    (peer, read, write)
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.4.3
//= type=test
//# It then MUST either implicitly or explicitly log out the failed connection with the reason code
//# "remove the connection for recovery" and reassign connection allegiance for all commands still
//# in progress associated with the failed connection on one or more connections (some or all of
//# which MAY be newly established connections) using the "TASK REASSIGN" task management function
//# (see Section 11.5.1).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
//= type=test
//# If an initiator intends to start recovery for a failing connection, it MUST use the Logout
//# Request to "clean up" the target end of a failing connection and enable recovery to start, or
//# use the Login Request with a non-zero TSIH and the same CID on a new connection for the same
//# effect.
#[test]
fn tasks_of_a_lost_connection_go_on_over_another() {
    let (mut peer, read, write) = interrupted();
    let request = logout(&peer.drain(0));
    assert_eq!(request.reason, LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY);
    // ExpStatSN is that of the connection that is closed.
    assert_eq!((request.cid, request.exp_stat_sn), (Cid(2), peer.stat_sn[1]));
    assert_eq!(peer.session.recovering().collect::<Vec<_>>(), [Cid(2)]);
    assert_eq!(peer.session.reinstatement(), None);
    logged_out(&mut peer, 0, request.itt, LogoutResponseCode::CLOSED, 0);
    let requests = reassignments(&peer.drain(0));
    let named: Vec<_> =
        requests.iter().map(|r| (r.referenced_task_tag, r.exp_data_sn, r.ref_cmd_sn)).collect();
    assert_eq!(named, [(read, 1, CmdSn(0)), (write, 0, CmdSn(0))]);
    assert!(requests.iter().all(|r| r.immediate));
    for request in &requests {
        managed(&mut peer, 0, request.itt, TaskManagementResponseCode::COMPLETE);
    }
    let events = peer.events();
    assert_eq!(finished(&events), [(2, 0, 0)]);
    assert!(!events.iter().any(|e| matches!(e, Event::TaskManagementDone { .. })));
    // The read goes on behind what is there; the write is asked for anew.
    let data = peer.last_data_in(0, read, 1000, 1).encode(2000);
    assert_eq!(peer.give(0, &data, &[]), Ok(Placement::Task { itt: read, offset: 1000 }));
    let r2t = peer.r2t(0, write, 1, 8192, 31_808).encode(0);
    peer.give(0, &r2t, &[]).unwrap();
    let bytes: usize = peer.drain(0).iter().map(|(_, payload)| payload.len()).sum();
    assert_eq!(bytes, 31_808);
    peer.respond(0, write);
    let ended = peer.done();
    assert_eq!(ended, [1, 2]);
    assert_eq!(peer.session.in_flight(), 0);
    assert_eq!(peer.session.connections().count(), 1);
    let again = peer.session.add_connection(&established(2, params()), peer.now);
    assert_eq!(again, Ok(peer.ids[1]), "its CID and its place are free");
}

#[test]
fn commands_that_never_arrived_are_sent_again_with_their_numbers() {
    let mut peer = Peer::with(params(), 2);
    (0..6).for_each(|n| {
        peer.read(512, n);
    });
    let expected = peer.exp_cmd_sn;
    let lost = peer.drain_commands(1);
    assert_eq!(lost.len(), 3);
    let lives = peer.drain_commands(0);
    // The target got the first one of the lost connection and nothing behind it.
    peer.exp_cmd_sn = lost[1].cmd_sn;
    let id = peer.ids[1];
    peer.session.handle_connection_lost(id, peer.now);
    peer.exp_cmd_sn = expected.next();
    let request = logout(&peer.drain(0));
    logged_out(&mut peer, 0, request.itt, LogoutResponseCode::CLOSED, 0);
    let out = peer.drain(0);
    // Which of them arrived, only the target knows: what waits behind a gap is not acknowledged.
    let requests = reassignments(&out);
    let asked: Vec<Itt> = requests.iter().map(|request| request.referenced_task_tag).collect();
    assert_eq!(asked, lost.iter().map(|c| c.itt).collect::<Vec<_>>());
    assert_eq!(out.len(), 3);
    peer.exp_cmd_sn = lost[1].cmd_sn;
    for (request, response) in requests.iter().zip([
        TaskManagementResponseCode::COMPLETE,
        TaskManagementResponseCode::TASK_DOES_NOT_EXIST,
        TaskManagementResponseCode::TASK_DOES_NOT_EXIST,
    ]) {
        managed(&mut peer, 0, request.itt, response);
    }
    let out = peer.drain(0);
    let again: Vec<_> = out
        .iter()
        .filter_map(|(pdu, _)| match pdu {
            Pdu::ScsiCommand(command) => Some((command.itt, command.cmd_sn)),
            _ => None,
        })
        .collect();
    assert_eq!(again, lost[1..].iter().map(|c| (c.itt, c.cmd_sn)).collect::<Vec<_>>());
    assert_eq!(finished(&peer.events()), [(1, 2, 0)]);
    peer.exp_cmd_sn = expected.next();
    for itt in lost.iter().chain(&lives).map(|c| c.itt).collect::<Vec<_>>() {
        peer.respond(0, itt);
    }
    assert_eq!(peer.done().len(), 6);
}

#[test]
fn a_task_the_target_does_not_know_is_given_back() {
    let (mut peer, ..) = interrupted();
    let request = logout(&peer.drain(0));
    logged_out(&mut peer, 0, request.itt, LogoutResponseCode::CLOSED, 0);
    for request in reassignments(&peer.drain(0)) {
        managed(&mut peer, 0, request.itt, TaskManagementResponseCode::TASK_DOES_NOT_EXIST);
    }
    let events = peer.events();
    let requeued = events.iter().filter(|e| matches!(e, Event::TaskRequeue { sent: true, .. }));
    assert_eq!((requeued.count(), finished(&events)), (2, vec![(0, 0, 2)]));
    assert!(peer.session.is_open());
}

#[test]
fn tasks_of_a_connection_the_target_does_not_know_are_asked_for() {
    let (mut peer, ..) = interrupted();
    let request = logout(&peer.drain(0));
    logged_out(&mut peer, 0, request.itt, LogoutResponseCode::CID_NOT_FOUND, 0);
    // One whose reassignment was interrupted may be bound to another connection: it is asked for.
    for request in reassignments(&peer.drain(0)) {
        managed(&mut peer, 0, request.itt, TaskManagementResponseCode::TASK_DOES_NOT_EXIST);
    }
    assert_eq!(finished(&peer.events()), [(0, 0, 2)]);
    assert!(peer.session.is_open());
}

#[test]
fn what_the_target_does_not_support_ends_the_session() {
    let (mut peer, ..) = interrupted();
    let request = logout(&peer.drain(0));
    logged_out(&mut peer, 0, request.itt, LogoutResponseCode::RECOVERY_NOT_SUPPORTED, 0);
    assert!(peer.events().iter().any(|e| matches!(e, Event::SessionEnded { error: Some(_) })));

    let (mut peer, ..) = interrupted();
    let request = logout(&peer.drain(0));
    logged_out(&mut peer, 0, request.itt, LogoutResponseCode::CLOSED, 0);
    let requests = reassignments(&peer.drain(0));
    let refused = TaskManagementResponseCode::REASSIGNMENT_NOT_SUPPORTED;
    managed(&mut peer, 0, requests[0].itt, refused);
    let events = peer.events();
    let requeued = |e: &&Event<u32>| matches!(e, Event::TaskRequeue { .. });
    assert_eq!(events.iter().filter(requeued).count(), 2);
    assert!(events.iter().any(|e| matches!(
        e,
        Event::SessionEnded { error: Some(ConnectionError::NotReassigned { .. }) }
    )));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.5
//= type=test
//# Recovery attempts for the connection and/or task(s) SHOULD NOT be made before Time2Wait seconds
//# but MUST be completed within Time2Retain seconds after that initial Time2Wait waiting period.
#[test]
fn time2wait_is_kept_and_time2retain_ends_it() {
    let waiting = SessionParams { default_time2wait: 2, ..params() };
    let mut peer = Peer::with(waiting, 2);
    peer.read(512, 1);
    peer.read(512, 2);
    peer.drain(1);
    let id = peer.ids[1];
    peer.session.handle_connection_lost(id, peer.now);
    assert!(reassignments(&peer.drain(0)).is_empty());
    assert_eq!(peer.session.poll_timeout().unwrap().2, Timer::Time2Wait);
    peer.now = peer.now + Duration::from_secs(2);
    peer.session.handle_timeout(peer.now);
    let request = logout(&peer.drain(0));
    logged_out(&mut peer, 0, request.itt, LogoutResponseCode::CLOSED, 3);
    assert!(peer.drain(0).is_empty(), "the target wants us to wait");
    peer.now = peer.now + Duration::from_secs(3);
    peer.session.handle_timeout(peer.now);
    assert_eq!(reassignments(&peer.drain(0)).len(), 1);
    for _ in 0..30 {
        peer.now = peer.now + Duration::from_secs(1);
        let (id, now) = (peer.ids[0], peer.now);
        peer.session.note_progress(id, now);
        peer.session.handle_timeout(now);
    }
    assert!(peer.events().iter().any(|e| matches!(
        e,
        Event::SessionEnded { error: Some(ConnectionError::RecoveryTimeout { cid: Cid(2) }) }
    )));
}

#[test]
fn a_session_without_connections_is_reinstated_with_the_cid_of_a_lost_one() {
    let mut peer = Peer::with(params(), 2);
    let itt: Vec<Itt> = (0..4).map(|n| peer.read(512, n)).collect();
    peer.drain(0);
    peer.drain(1);
    for id in peer.ids.clone() {
        peer.session.handle_connection_lost(id, peer.now);
    }
    let late = peer.session.submit(super::peer::command(Bytes::new(), 512), 9);
    assert!(matches!(late, Err((SubmitError::NoConnection, ..))));
    let wanted = peer.session.reinstatement().unwrap();
    assert_eq!((wanted.cid, wanted.exp_stat_sn), (Cid(1), peer.stat_sn[0]));
    peer.rejoin(1);
    let out = peer.drain(2);
    let request = logout(&out);
    assert_eq!(request.cid, Cid(2), "the other one needs a logout of its own");
    let first = reassignments(&out);
    assert_eq!(first.len(), 2);
    for request in first {
        managed(&mut peer, 2, request.itt, TaskManagementResponseCode::COMPLETE);
    }
    logged_out(&mut peer, 2, request.itt, LogoutResponseCode::CLOSED, 0);
    for request in reassignments(&peer.drain(2)) {
        managed(&mut peer, 2, request.itt, TaskManagementResponseCode::COMPLETE);
    }
    assert_eq!(finished(&peer.events()), [(2, 0, 0), (2, 0, 0)]);
    itt.iter().for_each(|itt| peer.respond(2, *itt));
    assert_eq!(peer.done(), [0, 1, 2, 3]);
    assert_eq!(peer.session.connections().count(), 1);
}

#[test]
fn the_connection_that_recovers_another_may_be_lost_too() {
    let (mut peer, read, write) = interrupted();
    peer.rejoin(3);
    let request = logout(&peer.drain(0));
    logged_out(&mut peer, 0, request.itt, LogoutResponseCode::CLOSED, 0);
    let mut requests = reassignments(&peer.drain(0));
    requests.extend(reassignments(&peer.drain(2)));
    assert_eq!(requests.len(), 2);
    let (id, now) = (peer.ids[0], peer.now);
    peer.session.handle_connection_lost(id, now);
    let mut moved = Vec::new();
    for _ in 0..3 {
        let out = peer.drain(2);
        for request in reassignments(&out) {
            moved.push(request.referenced_task_tag);
            managed(&mut peer, 2, request.itt, TaskManagementResponseCode::COMPLETE);
        }
        if out.iter().any(|(pdu, _)| matches!(pdu, Pdu::LogoutRequest(_))) {
            logged_out(&mut peer, 2, logout(&out).itt, LogoutResponseCode::CLOSED, 0);
        }
    }
    for request in requests.iter().filter(|r| !moved.contains(&r.referenced_task_tag)) {
        managed(&mut peer, 2, request.itt, TaskManagementResponseCode::COMPLETE);
    }
    let data = peer.last_data_in(2, read, 1000, 1).encode(2000);
    peer.give(2, &data, &[]).unwrap();
    peer.respond(2, write);
    assert_eq!(peer.done(), [1, 2]);
    assert_eq!(peer.session.recovering().count(), 0);
}

#[test]
fn a_target_that_breaks_the_protocol_gets_no_second_chance() {
    let mut peer = Peer::with(params(), 2);
    let itt = peer.read(512, 1);
    peer.drain(0);
    let header = peer.data_in(0, itt, 0, 0).encode(513);
    assert!(peer.give(0, &header, &[]).is_err());
    assert!(peer.events().iter().any(|e| matches!(e, Event::SessionEnded { .. })));
}

#[test]
fn a_cid_that_is_lost_again_and_again_is_never_logged_out_under_its_new_holder() {
    let mut peer = Peer::with(params(), 1);
    let itt = peer.read(512, 0);
    peer.drain(0);
    for k in 0..3 {
        peer.session.handle_connection_lost(peer.ids[k], peer.now);
        let wanted = peer.session.reinstatement().unwrap();
        assert_eq!(wanted.cid, Cid(1));
        peer.rejoin(1);
        let out = peer.drain(k + 1);
        assert!(!out.iter().any(|(pdu, _)| matches!(pdu, Pdu::LogoutRequest(_))), "{out:?}");
        assert_eq!(reassignments(&out).iter().map(|r| r.referenced_task_tag).next(), Some(itt));
    }
}

#[test]
fn a_session_that_closes_is_reinstated_to_end_in_order() {
    let mut peer = Peer::with(params(), 1);
    let itt = peer.read(512, 0);
    peer.drain(0);
    peer.session.close();
    peer.session.handle_connection_lost(peer.ids[0], peer.now);
    assert!(peer.session.reinstatement().is_some());
    peer.rejoin(1);
    let out = peer.drain(1);
    managed(&mut peer, 1, reassignments(&out)[0].itt, TaskManagementResponseCode::COMPLETE);
    peer.respond(1, itt);
    assert_eq!(peer.done(), [0]);
    let out = peer.drain(1);
    let [(Pdu::LogoutRequest(request), _)] = &out[..] else { panic!("{out:?}") };
    assert_eq!(request.reason, LogoutReason::CLOSE_SESSION);
}

#[test]
fn a_task_that_goes_on_says_that_it_was_reassigned() {
    let (mut peer, read, write) = interrupted();
    let request = logout(&peer.drain(0));
    logged_out(&mut peer, 0, request.itt, LogoutResponseCode::CLOSED, 0);
    let requests = reassignments(&peer.drain(0));
    assert_eq!(requests.len(), 2);
    // The answers are lost: StatSN shows it, and what comes next is about the tasks.
    let lost = peer.stat_sn[0];
    peer.stat_sn[0] = lost.plus(2);
    let r2t = peer.r2t(0, write, 1, 8192, 8000).encode(0);
    peer.give(0, &r2t, &[]).unwrap();
    peer.respond(0, write);
    assert_eq!(peer.done(), [2]);
    peer.stat_sn[0] = lost;
    for request in requests {
        managed(&mut peer, 0, request.itt, TaskManagementResponseCode::COMPLETE);
    }
    assert!(peer.session.is_open());
    assert_eq!(peer.session.in_flight(), 1);
    let _ = read;
}

#[test]
fn a_task_whose_reassignment_was_interrupted_waits_for_the_logout_of_both_connections() {
    let (mut peer, read, write) = interrupted();
    let request = logout(&peer.drain(0));
    logged_out(&mut peer, 0, request.itt, LogoutResponseCode::CLOSED, 0);
    assert_eq!(reassignments(&peer.drain(0)).len(), 2);
    peer.session.handle_connection_lost(peer.ids[0], peer.now);
    let wanted = peer.session.reinstatement().unwrap();
    assert_eq!(wanted.cid, Cid(1), "the first one is dealt with");
    peer.rejoin(7);
    let out = peer.drain(2);
    assert!(reassignments(&out).is_empty(), "{out:?}");
    let request = logout(&out);
    assert_eq!(request.cid, Cid(1));
    logged_out(&mut peer, 2, request.itt, LogoutResponseCode::CLOSED, 0);
    let asked: Vec<Itt> =
        reassignments(&peer.drain(2)).iter().map(|r| r.referenced_task_tag).collect();
    assert_eq!(asked, [read, write]);
}

#[test]
fn a_logout_that_a_login_made_needless_is_not_sent_again() {
    let (mut peer, ..) = interrupted();
    assert_eq!(logout(&peer.drain(0)).cid, Cid(2));
    // Before it is answered, another connection takes the CID; then the one that sent it is lost.
    peer.rejoin(2);
    assert_eq!(reassignments(&peer.drain(0)).len() + reassignments(&peer.drain(2)).len(), 2);
    peer.session.handle_connection_lost(peer.ids[0], peer.now);
    let out = peer.drain(2);
    let logouts = out.iter().filter_map(|(pdu, _)| match pdu {
        Pdu::LogoutRequest(request) => Some(request.cid),
        _ => None,
    });
    assert_eq!(logouts.collect::<Vec<_>>(), [Cid(1)], "Cid(2) is in use again");
}

#[test]
fn a_command_whose_abort_may_have_filled_its_place_is_aborted_and_not_sent_again() {
    let mut peer = Peer::with(params(), 2);
    let expected = peer.exp_cmd_sn;
    let itt = peer.read(512, 1);
    let k = usize::from(peer.drain_commands(0).is_empty());
    peer.drain(k);
    peer.session.abort(itt).unwrap();
    peer.drain(k);
    peer.exp_cmd_sn = expected; // the target waits for it, as far as is known
    peer.session.handle_connection_lost(peer.ids[k], peer.now);
    let other = 1 - k;
    let request = logout(&peer.drain(other));
    logged_out(&mut peer, other, request.itt, LogoutResponseCode::CLOSED, 0);
    let request = reassignments(&peer.drain(other)).remove(0);
    managed(&mut peer, other, request.itt, TaskManagementResponseCode::TASK_DOES_NOT_EXIST);
    let out = peer.drain(other);
    let [(Pdu::TaskManagementRequest(abort), _)] = &out[..] else { panic!("{out:?}") };
    assert_eq!(abort.function, TaskManagementFunction::ABORT_TASK);
    assert_eq!((abort.referenced_task_tag, abort.ref_cmd_sn), (itt, expected));
    let functions = |events: &[Event<u32>]| {
        events.iter().filter(|e| matches!(e, Event::TaskManagementDone { .. })).count()
    };
    assert_eq!(functions(&peer.events()), 1, "the owner's own was lost");
    managed(&mut peer, other, abort.itt, TaskManagementResponseCode::TASK_DOES_NOT_EXIST);
    let events = peer.events();
    let aborted = |e: &Event<u32>| {
        matches!(e, Event::TaskDone { outcome: TaskOutcome::Aborted, context: 1, .. })
    };
    assert!(events.iter().any(aborted) && functions(&events) == 0, "{events:?}");
}

#[test]
fn commands_that_a_lost_function_may_have_ended_elsewhere_are_aborted_one_by_one() {
    let mut peer = Peer::with(params(), 2);
    let commands = [peer.read(512, 0), peer.read(512, 1)];
    let carried: Vec<Itt> = (0..2).flat_map(|k| peer.drain_commands(k)).map(|c| c.itt).collect();
    assert_eq!(carried, commands, "one on each connection");
    peer.session.manage(TaskManagementFunction::CLEAR_TASK_SET, Lun(0)).unwrap();
    let k = usize::from(peer.drain(0).is_empty());
    peer.drain(k);
    let later = peer.read(512, 2);
    (0..2).for_each(|k| drop(peer.drain(k)));
    peer.session.handle_connection_lost(peer.ids[k], peer.now);
    // The target may keep the function until commands before it have come, and not know yet that
    // its connection is lost: until that is logged out, tasks can still end without an answer.
    let other = 1 - k;
    let request = logout(&peer.drain(other));
    logged_out(&mut peer, other, request.itt, LogoutResponseCode::CLOSED, 0);
    let asked = reassignments(&peer.drain(other));
    let referenced: Vec<Itt> = asked.iter().map(|r| r.referenced_task_tag).collect();
    assert_eq!(referenced, [commands[k], later]);
    for request in asked {
        managed(&mut peer, other, request.itt, TaskManagementResponseCode::COMPLETE);
    }
    let out = peer.drain(other);
    let mut aborts: Vec<Itt> = out
        .iter()
        .filter_map(|(pdu, _)| match pdu {
            Pdu::TaskManagementRequest(r) if r.function == TaskManagementFunction::ABORT_TASK => {
                Some(r.referenced_task_tag)
            }
            _ => None,
        })
        .collect();
    aborts.sort_unstable();
    assert_eq!(aborts, commands, "{later} was sent behind the function");
}

/// They are immediate, and a target may refuse too many of those (§4.2.2.1).
#[test]
fn no_more_commands_are_aborted_at_once_than_a_target_takes() {
    let mut peer = Peer::with(params(), 2);
    peer.session.connection_mut(peer.ids[1]).unwrap().draining = true;
    let commands: Vec<Itt> = (0..32).map(|n| peer.read(512, n)).collect();
    assert_eq!(peer.drain_commands(0).len(), 32);
    peer.session.connection_mut(peer.ids[1]).unwrap().draining = false;
    peer.session.connection_mut(peer.ids[0]).unwrap().draining = true;
    peer.session.manage(TaskManagementFunction::CLEAR_TASK_SET, Lun(0)).unwrap();
    peer.drain(1);
    peer.session.connection_mut(peer.ids[0]).unwrap().draining = false;
    peer.session.handle_connection_lost(peer.ids[1], peer.now);
    let request = logout(&peer.drain(0));
    logged_out(&mut peer, 0, request.itt, LogoutResponseCode::CLOSED, 0);
    let aborts = |peer: &mut Peer| -> Vec<TaskManagementRequest> {
        let out = peer.drain(0).into_iter();
        out.filter_map(|(pdu, _)| match pdu {
            Pdu::TaskManagementRequest(request) => Some(request),
            _ => None,
        })
        .collect()
    };
    let first = aborts(&mut peer);
    assert_eq!(first.len(), 16);
    // One of them is refused for now, the others are answered.
    let reject = Reject {
        reason: RejectReason::IMMEDIATE_COMMAND_REJECT,
        stat_sn: peer.stat_sn[0].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
        data_sn: 0,
    };
    peer.give(0, &reject.encode(48), &first[0].encode(0).bhs).unwrap();
    let mut waiting: Vec<TaskManagementRequest> = first[1..].to_vec();
    let mut ended = 0;
    while let Some(request) = waiting.pop() {
        managed(&mut peer, 0, request.itt, TaskManagementResponseCode::COMPLETE);
        ended += 1;
        waiting.extend(aborts(&mut peer));
        assert!(waiting.len() <= 16);
    }
    assert_eq!(ended, commands.len(), "the one that was refused, too");
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.4
//= type=test
//# The initiator connection state MUST be CLEANUP_WAIT (Section 8.1.3) when the initiator attempts
//# a connection reinstatement.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.4.3
//= type=test
//# TCP connection failure: The initiator MUST close the connection.
#[test]
fn a_lost_connection_is_closed_and_waits_for_cleanup_while_it_is_reinstated() {
    let mut peer = Peer::with(params(), 1);
    peer.read(512, 1);
    peer.drain(0);
    let id = peer.ids[0];
    assert!(peer.session.reinstatement().is_none());
    // The target is silent: nobody but us knows that the connection is lost.
    for _ in 0..100 {
        let Some((due, ..)) = peer.session.poll_timeout() else { break };
        peer.now = due;
        peer.session.handle_timeout(due);
        peer.drain(0);
        if peer.session.is_closing(id).is_some() {
            break;
        }
    }
    assert!(matches!(peer.session.is_closing(id), Some(Err(ConnectionError::PingTimeout { .. }))));
    assert!(peer.session.reinstatement().is_none(), "its transport is not closed");
    peer.session.handle_connection_lost(id, peer.now);
    assert_eq!(peer.session.reinstatement().map(|wanted| wanted.cid), Some(Cid(1)));
    let states: Vec<_> = peer.session.connections().map(|(_, cid, state)| (cid, state)).collect();
    assert_eq!(states, [(Cid(1), State::CleanupWait)]);
}

fn tell_dropped(peer: &mut Peer, k: usize, event: AsyncEvent, parameters: [u16; 3]) {
    let message = peer.async_message(k, event, parameters);
    peer.give(k, &message.encode(0), &[]).unwrap();
}

fn is_dropped(peer: &Peer, k: usize) -> bool {
    matches!(peer.session.is_closing(peer.ids[k]), Some(Err(ConnectionError::Dropped { .. })))
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.4.3
//= type=test
//# The initiator MUST handle it as a TCP connection failure for the connection(s) referred to in
//# the message.
#[test]
fn a_connection_that_the_target_says_it_dropped_is_taken_as_lost() {
    let mut peer = Peer::with(params(), 2);
    for n in 0..4 {
        peer.read(512, n);
    }
    (0..2).for_each(|k| drop(peer.drain(k)));
    tell_dropped(&mut peer, 0, AsyncEvent::CONNECTION_DROP, [9, 0, 0]);
    assert!(!is_dropped(&peer, 0) && !is_dropped(&peer, 1), "no connection has this CID");
    tell_dropped(&mut peer, 0, AsyncEvent::CONNECTION_DROP, [2, 3, 7]);
    assert!(!is_dropped(&peer, 0) && is_dropped(&peer, 1), "the other one");
    peer.session.handle_connection_lost(peer.ids[1], peer.now);
    assert!(peer.drain(0).is_empty(), "the target wants us to wait");
    let lost = peer.now;
    peer.now = lost + Duration::from_secs(3);
    peer.session.handle_timeout(peer.now);
    assert_eq!(logout(&peer.drain(0)).cid, Cid(2));
    let timers = &peer.session.connection(peer.ids[1]).unwrap().timers;
    let due = lost + Duration::from_secs(10);
    assert!(timers.clone().expire(due).is_some(), "its tasks are kept for 7 s");
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.4.3
//= type=test
//# The initiator MUST handle it as a TCP connection failure for the connection(s) referred to in
//# the message.
#[test]
fn all_connections_may_be_dropped_at_once() {
    for level in 0..=2 {
        let params = SessionParams { error_recovery_level: level, ..params() };
        let mut peer = Peer::with(params, 2);
        for n in 0..2 {
            peer.read(512, n);
        }
        (0..2).for_each(|k| drop(peer.drain(k)));
        tell_dropped(&mut peer, 0, AsyncEvent::SESSION_DROP, [0, 0, 20]);
        for id in peer.ids.clone() {
            assert!(matches!(peer.session.is_closing(id), Some(Err(_))), "level {level}");
            peer.session.handle_connection_lost(id, peer.now);
        }
        let events = peer.events();
        let requeued = |e: &&Event<u32>| matches!(e, Event::TaskRequeue { .. });
        let expected = if level == 2 { 0 } else { 2 };
        assert_eq!(events.iter().filter(requeued).count(), expected, "level {level}");
        assert_eq!(peer.session.reinstatement().is_some(), level == 2);
    }
}

/// A read of 4000 bytes on the second connection, of which the first PDU is acknowledged, the
/// second is lost and the third is here; then the connection is lost.
fn read_with_a_hole() -> (Peer, Itt) {
    let mut peer = Peer::with(params(), 2);
    let id = peer.ids[0];
    peer.session.connection_mut(id).unwrap().draining = true; // all go to the second one
    let read = peer.read(4000, 1);
    peer.session.connection_mut(id).unwrap().draining = false;
    peer.drain(1);
    let first = DataIn { acknowledge: true, ttt: Ttt(7), ..peer.data_in(1, read, 0, 0) };
    peer.give(1, &first.encode(1000), &[]).unwrap();
    let out = peer.drain(1);
    assert!(matches!(&out[..], [(Pdu::SnackRequest(ack), _)] if ack.kind == SnackKind::DATA_ACK
        && ack.beg_run == 1));
    let third = peer.data_in(1, read, 2000, 2).encode(1000);
    peer.give(1, &third, &[]).unwrap();
    let id = peer.ids[1];
    peer.session.handle_connection_lost(id, peer.now);
    let request = logout(&peer.drain(0));
    logged_out(&mut peer, 0, request.itt, LogoutResponseCode::CLOSED, 0);
    (peer, read)
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.6
//= type=test
//# The initiator MUST discard any data PDUs from the previous execution that it did not
//# acknowledge, and the target MUST transmit all Data-In PDUs (if any) starting with the data
//# acknowledgment reference number.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.6
//= type=test
//# The value of ExpDataSN MUST be 0 or higher than the DataSN of the last acknowledged Data-In PDU,
//# but not larger than DataSN + 1 of the last Data-IN PDU sent by the target.
#[test]
fn a_read_goes_on_behind_what_came_without_a_hole() {
    let (mut peer, read) = read_with_a_hole();
    let request = reassignments(&peer.drain(0)).remove(0);
    assert_eq!(request.exp_data_sn, 1, "acknowledged, and nothing behind the hole");
    managed(&mut peer, 0, request.itt, TaskManagementResponseCode::COMPLETE);
    for sn in 1..3 {
        let again = peer.data_in(0, read, sn * 1000, sn).encode(1000);
        let placement = Placement::Task { itt: read, offset: sn * 1000 };
        assert_eq!(peer.give(0, &again, &[]), Ok(placement), "{sn} comes again");
    }
    let last = peer.last_data_in(0, read, 3000, 3).encode(1000);
    peer.give(0, &last, &[]).unwrap();
    assert_eq!(peer.done(), [1]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
//= type=test
//# Initiators MUST NOT subsequently request data retransmission through Data SNACK for PDUs
//# numbered less than the ExpDataSN (i.e., prior to the acknowledged sequence number).
#[test]
fn what_a_reassignment_acknowledged_is_not_asked_for_even_if_it_comes_damaged() {
    let (mut peer, read) = read_with_a_hole();
    let request = reassignments(&peer.drain(0)).remove(0);
    managed(&mut peer, 0, request.itt, TaskManagementResponseCode::COMPLETE);
    // A target that starts from the beginning, and whose last PDU has status at once.
    let mut asked = Vec::new();
    for pdu in [peer.data_in(0, read, 0, 0), peer.last_data_in(0, read, 0, 0)] {
        let id = peer.ids[0];
        let header = pdu.encode(1000);
        assert_eq!(peer.session.handle_header(id, peer.now, &header), Ok(Placement::Discard));
        peer.session.handle_data(id, peer.now, &[], false).unwrap();
        asked.extend(peer.drain(0).into_iter().map(|(pdu, _)| match pdu {
            Pdu::SnackRequest(snack) => snack.kind,
            other => panic!("{other:?}"),
        }));
    }
    assert_eq!(asked, [SnackKind::STATUS], "the status it lacks, and no data");
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
//= type=test
//# When an initiator receives duplicate R2TSNs (due to proactive retransmission of R2Ts by the
//# target) or duplicate DataSNs (due to proactive SNACKs by the initiator), it MUST discard the
//# duplicates.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
//= type=test
//# The initiator MUST address these implied digest errors as described in Section 7.8.
#[test]
fn r2ts_are_numbered_as_the_target_likes_only_from_the_reassignment_on() {
    let (mut peer, _, write) = interrupted();
    let request = logout(&peer.drain(0));
    logged_out(&mut peer, 0, request.itt, LogoutResponseCode::CLOSED, 0);
    for request in reassignments(&peer.drain(0)) {
        managed(&mut peer, 0, request.itt, TaskManagementResponseCode::COMPLETE);
    }
    let data = |out: &[(Pdu, Bytes)]| -> usize { out.iter().map(|(_, data)| data.len()).sum() };
    // Numbers 1 to 4 were lost with the old connection.
    let first = peer.r2t(0, write, 5, 8192, 8000).encode(0);
    peer.give(0, &first, &[]).unwrap();
    assert_eq!(data(&peer.drain(0)), 8000);
    peer.give(0, &first, &[]).unwrap();
    assert!(peer.drain(0).is_empty(), "a duplicate is discarded");
    let third = peer.r2t(0, write, 7, 24_192, 8000).encode(0);
    peer.give(0, &third, &[]).unwrap();
    let out = peer.drain(0);
    let Some((Pdu::SnackRequest(snack), _)) = out.first() else { panic!("{out:?}") };
    assert_eq!((snack.kind, snack.beg_run, snack.run_length), (SnackKind::DATA_OR_R2T, 6, 1));
    assert_eq!(data(&out), 8000);
    let second = peer.r2t(0, write, 6, 16_192, 8000).encode(0);
    peer.give(0, &second, &[]).unwrap();
    assert_eq!(data(&peer.drain(0)), 8000);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.5
//= type=test
//# When a defined value of ErrorRecoveryLevel is proposed by an originator in a text negotiation,
//# the originator MUST support the functionality defined for the proposed value and, additionally,
//# functionality corresponding to any defined value numerically less than the proposed value.
#[test]
fn a_level_includes_those_below_it() {
    for level in 0..=2 {
        let params = SessionParams { error_recovery_level: level, ..params() };
        // Level 1: a damaged PDU is asked for.
        let mut peer = Peer::with(params, 1);
        let (id, itt) = (peer.ids[0], peer.read(1000, 1));
        peer.drain(0);
        let header = peer.data_in(0, itt, 0, 0).encode(500);
        peer.session.handle_header(id, peer.now, &header).unwrap();
        let repaired = peer.session.handle_data(id, peer.now, &[], false).is_ok();
        let asked = peer.drain(0).iter().any(|(pdu, _)| matches!(pdu, Pdu::SnackRequest(_)));
        assert_eq!((repaired, asked), (level >= 1, level >= 1), "level {level}");
        // Level 2: a lost connection is recovered.
        let mut peer = Peer::with(params, 1);
        peer.read(1000, 1);
        peer.drain(0);
        peer.session.handle_connection_lost(id, peer.now);
        assert_eq!(peer.session.reinstatement().is_some(), level >= 2, "level {level}");
        // Level 0: the session is recovered, its commands are issued again.
        peer.session.abandon();
        let requeued = |e: &Event<u32>| matches!(e, Event::TaskRequeue { context: 1, .. });
        assert!(peer.events().iter().any(requeued), "level {level}");
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# If an initiator issues a command retry for a command with CmdSN R on a connection when the
//# session CmdSN value is Q, it MUST NOT advance the CmdSN past R + 2**31 - 1 unless
#[test]
fn numbers_do_not_pass_half_their_range_behind_a_command_that_was_sent_again() {
    for later in [false, true] {
        let mut peer = Peer::with(params(), 2);
        let [first, second] = [peer.ids[0], peer.ids[1]];
        peer.session.connection_mut(second).unwrap().draining = true;
        let itt = peer.read(512, 1);
        let retried = peer.drain_commands(0).remove(0).cmd_sn;
        assert!(peer.session.retry(itt));
        assert_eq!(peer.drain_commands(0)[0].cmd_sn, retried);
        if later {
            peer.read(512, 2); // acknowledged, as the first copy is
            assert_eq!(peer.drain_commands(0).len(), 1);
        }
        peer.session.connection_mut(second).unwrap().draining = false;
        peer.session.connection_mut(first).unwrap().draining = true;
        // As if so many commands had gone over the second connection.
        let far = retried.plus(i32::MAX as u32 - 1);
        let session = &mut peer.session;
        (session.cmd_sn, session.exp_cmd_sn) = (far, far);
        session.max_cmd_sn = far.plus(31);
        let [allowed, beyond] = [peer.read(512, 3), peer.read(512, 4)];
        let sent: Vec<Itt> = peer.drain_commands(1).iter().map(|c| c.itt).collect();
        assert_eq!(sent, [allowed, beyond]);
        let given_up = matches!(
            peer.session.is_closing(first),
            Some(Err(ConnectionError::NotRepaired { .. }))
        );
        assert_eq!(given_up, !later, "the copy may be on its way there");
    }
}
