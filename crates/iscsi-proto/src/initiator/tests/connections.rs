//! Several connections: allegiance, one CmdSN series, joining, leaving under load, failing.

use super::super::*;
use super::peer::{Peer, at, established, session_params};
use crate::pdu::{
    AsyncEvent, LogoutResponse, LogoutResponseCode, Pdu, TaskManagementFunction,
    TaskManagementResponse, TaskManagementResponseCode,
};

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# Command numbering starts with the first Login Request on the first connection of a session (the
//# leading login on the leading connection), and the CmdSN MUST be incremented by 1 in a Serial
//# Number Arithmetic sense, as defined in [RFC1982], for every non-immediate command issued
//# afterwards.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# On any connection, the iSCSI initiator MUST send the commands in increasing order of CmdSN,
//# except for commands that are retransmitted due to digest error recovery and connection recovery.
#[test]
fn commands_spread_over_connections_in_one_cmd_sn_series() {
    let mut peer = Peer::new(4);
    (0..8).for_each(|n| {
        peer.read(4096, n);
    });
    let mut numbers = Vec::new();
    for k in 0..4 {
        let sent = peer.drain_commands(k);
        assert_eq!(sent.len(), 2);
        numbers.extend(sent.iter().map(|c| c.cmd_sn.since(CmdSn(u32::MAX - 2))));
    }
    assert_eq!(numbers, (0..8).collect::<Vec<_>>());
}

/// Whoever can send gets what was submitted first, so that the target carries it out first.
#[test]
fn commands_are_numbered_as_submitted_where_an_order_is_kept() {
    let mut peer = Peer::new(3);
    peer.session.keep_order();
    let asked: Vec<Itt> = (0..9).map(|n| peer.read(4096, n)).collect();
    peer.session.remove_connection(peer.ids[0]).unwrap();
    let mut sent = Vec::new();
    for k in [2, 2, 1, 2, 1, 1, 1, 2, 1] {
        let transmit = peer.session.poll_transmit(peer.ids[k], at(0)).unwrap();
        let Ok(Pdu::ScsiCommand(command)) = Pdu::parse(&transmit.header) else { panic!() };
        sent.push((command.itt, command.cmd_sn.since(CmdSn(u32::MAX - 2))));
    }
    assert_eq!(sent, asked.into_iter().zip(0..).collect::<Vec<_>>());
    for k in 1..3 {
        assert!(peer.session.poll_transmit(peer.ids[k], at(0)).is_none());
    }
}

#[test]
fn a_response_on_another_connection_breaks_allegiance() {
    let mut peer = Peer::new(2);
    let itt = peer.read(512, 1);
    peer.drain(0);
    let header = peer.response(1, itt, 0).encode(0);
    let error = peer.give(1, &header, &[]).unwrap_err();
    assert!(matches!(
        error,
        ConnectionError::Protocol { violation: Violation::Allegiance, cid: Cid(2), .. }
    ));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.4.3
//= type=test
//# After being selected, the same TSIH value MUST be used whenever the initiator or target refers
//# to the session and a TSIH is required.
#[test]
fn joining_needs_the_same_session_and_a_new_cid() {
    let mut peer = Peer::new(1);
    let other = Established { tsih: Tsih(8), ..established(2, session_params()) };
    assert!(matches!(
        peer.session.add_connection(&other, at(0)),
        Err(MembershipError::OtherSession { .. })
    ));
    let twice = established(1, session_params());
    assert_eq!(peer.session.add_connection(&twice, at(0)), Err(MembershipError::Duplicate(Cid(1))));
    for cid in 2..=8 {
        peer.session.add_connection(&established(cid, session_params()), at(0)).unwrap();
    }
    let ninth = established(9, session_params());
    assert_eq!(peer.session.add_connection(&ninth, at(0)), Err(MembershipError::TooMany(8)));
}

fn logout_response(peer: &mut Peer, k: usize, itt: Itt) {
    let response = LogoutResponse {
        response: LogoutResponseCode::CLOSED,
        itt,
        stat_sn: peer.stat_sn[k].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
        time2wait: 0,
        time2retain: 0,
    };
    peer.give(k, &response.encode(0), &[]).unwrap();
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
//= type=test
//# After receiving the Logout Response and attempting to receive the FIN (if still possible), the
//# initiator MUST completely close the logging-out connection.
#[test]
fn a_connection_leaves_under_load_without_losing_a_command() {
    let mut peer = Peer::new(2);
    let on_second: Vec<Itt> = (0..6).map(|n| peer.read(512, n)).skip(1).step_by(2).collect();
    // One command of the second connection is sent, two wait.
    let id = peer.ids[1];
    peer.session.poll_transmit(id, at(0)).unwrap();
    peer.session.remove_connection(id).unwrap();
    assert!(matches!(peer.session.remove_connection(id), Err(MembershipError::Unknown)));
    assert!(matches!(peer.session.remove_connection(peer.ids[0]), Err(MembershipError::Last)));
    assert!(peer.drain(1).is_empty());
    assert_eq!(peer.drain_commands(0).len(), 5);
    // New commands avoid it.
    peer.read(512, 6);
    assert_eq!(peer.drain_commands(0).len(), 1);
    let last = peer.last_data_in(1, on_second[0], 0, 0).encode(512);
    peer.give(1, &last, &[]).unwrap();
    assert_eq!(peer.done(), [1]);
    let out = peer.drain(1);
    let [(Pdu::LogoutRequest(logout), _)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((logout.reason, logout.cid), (LogoutReason::CLOSE_CONNECTION, Cid(2)));
    logout_response(&mut peer, 1, logout.itt);
    assert_eq!(peer.session.is_closing(id), Some(Ok(())));
    peer.session.handle_connection_lost(id, at(1));
    assert_eq!(peer.session.connections().count(), 1);
    assert!(peer.session.is_open());
    assert_eq!(peer.session.in_flight(), 6);
    // Its CID may be used again.
    let again = peer.session.add_connection(&established(2, session_params()), at(1));
    assert_eq!(again, Ok(id));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.5
//= type=test
//# The initiator session state MUST be FAILED (Section 8.3) when the initiator attempts a session
//# reinstatement.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.14
//= type=test
//# On connection failure, the initiator and target MUST do one of the following:
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.14
//= type=test
//# Either side may choose to escalate to session recovery (via the initiator dropping all the
//# connections or via an Async Message that announces the similar intent from a target), and the
//# other side MUST give it precedence.
#[test]
fn one_lost_connection_ends_the_session_and_gives_everything_back_in_order() {
    let mut peer = Peer::new(3);
    (0..6).for_each(|n| {
        peer.read(512, n);
    });
    peer.drain(0);
    peer.drain(1);
    peer.session.handle_connection_lost(peer.ids[1], at(9));
    let mut requeued = Vec::new();
    let mut ended = 0;
    for event in peer.events() {
        match event {
            Event::TaskRequeue { context, sent, .. } => requeued.push((context, sent)),
            Event::SessionEnded { error: Some(_) } => ended += 1,
            Event::ConnectionFailed { connection, .. } => assert_eq!(connection, peer.ids[1]),
            other => panic!("{other:?}"),
        }
    }
    let sent = |n| n % 3 != 2;
    assert_eq!(requeued, (0..6).map(|n| (n, sent(n))).collect::<Vec<_>>());
    assert_eq!(ended, 1);
    for k in [0, 2] {
        assert!(matches!(
            peer.session.is_closing(peer.ids[k]),
            Some(Err(ConnectionError::SessionFailed))
        ));
        assert!(peer.drain(k).is_empty());
        peer.session.handle_connection_lost(peer.ids[k], at(10));
    }
    assert!(peer.events().is_empty());
    let late = peer.session.submit(super::peer::command(Bytes::new(), 512), 9);
    assert!(matches!(late, Err((SubmitError::NoConnection, _, 9))));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.14.2
//= type=test
//# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.15
//= type=test
//# After Logout, the TCP connection referred by the CID MUST be closed at both ends (or all
//# connections must be closed if the logout reason was session close).
#[test]
fn closing_waits_for_commands_then_logs_out_once() {
    let mut peer = Peer::new(2);
    let itt = peer.read(512, 1);
    peer.drain(0);
    peer.session.close();
    assert!(peer.drain(0).is_empty());
    assert!(peer.session.submit(super::peer::command(Bytes::new(), 512), 2).is_err());
    let last = peer.last_data_in(0, itt, 0, 0).encode(512);
    peer.give(0, &last, &[]).unwrap();
    peer.session.close();
    let out = peer.drain(0);
    let [(Pdu::LogoutRequest(logout), _)] = &out[..] else { panic!("{out:?}") };
    assert_eq!(logout.reason, LogoutReason::CLOSE_SESSION);
    logout_response(&mut peer, 0, logout.itt);
    let ended = |e: &Event<u32>| matches!(e, Event::SessionEnded { error: None });
    assert_eq!(peer.events().iter().filter(|e| ended(e)).count(), 1);
    assert!(peer.ids.iter().all(|id| peer.session.is_closing(*id) == Some(Ok(()))));
}

fn request_logout(peer: &mut Peer, k: usize, seconds: u16) {
    let message = peer.async_message(k, AsyncEvent::LOGOUT_REQUEST, [0, 0, seconds]);
    peer.give(k, &message.encode(0), &[]).unwrap();
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.9.1
//= type=test
//# The initiator MUST honor this request by issuing a Logout as early as possible but no later than
//# Parameter3 seconds.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.9.1
//= type=test
//# The initiator MUST send a Logout with a reason code of "close the connection" OR "close the
//# session" to close all the connections.
#[test]
fn a_requested_logout_of_the_only_connection_ends_the_session_in_order() {
    let mut peer = Peer::new(1);
    let itt = peer.read(512, 1);
    peer.drain(0);
    peer.read(512, 2);
    request_logout(&mut peer, 0, 10);
    let requeued = |e: &Event<u32>| matches!(e, Event::TaskRequeue { context: 2, sent: false, .. });
    assert_eq!(peer.events().iter().filter(|e| requeued(e)).count(), 1);
    let last = peer.last_data_in(0, itt, 0, 0).encode(512);
    peer.give(0, &last, &[]).unwrap();
    let out = peer.drain(0);
    let [(Pdu::LogoutRequest(logout), _)] = &out[..] else { panic!("{out:?}") };
    logout_response(&mut peer, 0, logout.itt);
    assert!(peer.events().iter().any(|e| matches!(
        e,
        Event::SessionEnded { error: Some(ConnectionError::LogoutRequested { .. }) }
    )));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.9.1
//= type=test
//# The initiator MUST honor this request by issuing a Logout as early as possible but no later than
//# Parameter3 seconds.
#[test]
fn a_requested_logout_has_a_deadline() {
    let mut peer = Peer::new(2);
    peer.read(512, 1);
    peer.drain(0);
    request_logout(&mut peer, 0, 3);
    assert_eq!(peer.session.poll_timeout().unwrap().2, Timer::RequestedLogout);
    peer.session.handle_timeout(at(3000));
    let closing = peer.session.is_closing(peer.ids[0]);
    assert!(matches!(closing, Some(Err(ConnectionError::LogoutRequested { .. }))));
}

#[test]
fn a_target_that_closes_instead_of_answering_the_logout_loses_nothing() {
    let mut peer = Peer::new(2);
    peer.session.remove_connection(peer.ids[1]).unwrap();
    assert_eq!(peer.drain(1).len(), 1);
    peer.session.handle_connection_lost(peer.ids[1], at(1));
    let events = peer.events();
    assert!(matches!(events[..], [Event::LoggedOut { .. }]), "{events:?}");
    assert!(peer.session.is_open());
}

#[test]
fn a_target_that_closes_the_others_before_its_logout_response_is_read_loses_nothing() {
    let mut peer = Peer::new(2);
    peer.session.close();
    let out = peer.drain(0);
    let [(Pdu::LogoutRequest(logout), _)] = &out[..] else { panic!("{out:?}") };
    peer.session.handle_connection_lost(peer.ids[1], at(1));
    assert!(matches!(peer.events()[..], [Event::LoggedOut { .. }]));
    logout_response(&mut peer, 0, logout.itt);
    let events = peer.events();
    assert!(matches!(events[..], [Event::LoggedOut { .. }, Event::SessionEnded { error: None }]));
}

fn management_response(peer: &mut Peer, k: usize, itt: Itt) {
    let response = crate::pdu::TaskManagementResponse {
        response: crate::pdu::TaskManagementResponseCode::COMPLETE,
        information: [0; 3],
        itt,
        stat_sn: peer.stat_sn[k].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
    };
    peer.give(k, &response.encode(0), &[]).unwrap();
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# Task management requests must act on all the commands from the same session having a CmdSN lower
//# than the task management CmdSN.
#[test]
fn a_reset_does_not_end_a_command_that_was_sent_after_it() {
    let mut peer = Peer::new(1);
    peer.read(512, 1);
    let reset = peer.session.manage(TaskManagementFunction::LOGICAL_UNIT_RESET, Lun(0)).unwrap();
    // The function overtakes the command, which then has the higher CmdSN.
    let out = peer.drain(0);
    assert!(matches!(out[..], [(Pdu::TaskManagementRequest(_), _), (Pdu::ScsiCommand(_), _)]));
    management_response(&mut peer, 0, reset);
    assert!(peer.done().is_empty(), "the target executes it");
    assert_eq!(peer.session.in_flight(), 1);
}

#[test]
fn an_abort_of_a_command_that_ends_first_is_not_sent() {
    let mut peer = Peer::new(1);
    let itt = peer.read(512, 1);
    peer.drain(0);
    let abort = peer.session.abort(itt).unwrap();
    let last = peer.last_data_in(0, itt, 0, 0).encode(512);
    peer.give(0, &last, &[]).unwrap();
    assert!(peer.drain(0).is_empty());
    assert!(peer.events().iter().any(|e| matches!(
        e,
        Event::TaskManagementDone { itt, .. } if *itt == abort
    )));
}

#[test]
fn a_logout_waits_for_the_answer_to_a_function() {
    let mut peer = Peer::new(1);
    let reset = peer.session.manage(TaskManagementFunction::LOGICAL_UNIT_RESET, Lun(0)).unwrap();
    peer.session.close();
    assert!(matches!(peer.drain(0)[..], [(Pdu::TaskManagementRequest(_), _)]));
    management_response(&mut peer, 0, reset);
    assert!(matches!(peer.drain(0)[..], [(Pdu::LogoutRequest(_), _)]));
}

#[test]
fn a_session_closes_although_a_connection_is_just_leaving() {
    let mut peer = Peer::new(2);
    peer.session.remove_connection(peer.ids[1]).unwrap();
    let out = peer.drain(1);
    let [(Pdu::LogoutRequest(logout), _)] = &out[..] else { panic!("{out:?}") };
    peer.session.close();
    assert!(peer.drain(0).is_empty(), "one logout at a time");
    logout_response(&mut peer, 1, logout.itt);
    assert!(matches!(peer.drain(0)[..], [(Pdu::LogoutRequest(_), _)]));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
//= type=test
//# If the Logout Request is intended to close the session, new iSCSI requests MUST NOT be sent on
//# any of the connections participating in the session.
#[test]
fn a_connection_that_waits_for_an_answer_does_not_log_out_beside_its_session() {
    let mut peer = Peer::new(2);
    peer.read(512, 1);
    assert_eq!(peer.drain_commands(0).len(), 1);
    peer.session.connection_mut(peer.ids[0]).unwrap().draining = true;
    let function = TaskManagementFunction::LOGICAL_UNIT_RESET;
    let itt = peer.session.manage(function, Lun(0)).unwrap();
    peer.session.connection_mut(peer.ids[0]).unwrap().draining = false;
    peer.drain(1);
    peer.session.remove_connection(peer.ids[1]).unwrap();
    peer.session.close();
    assert!(peer.drain(0).is_empty() && peer.drain(1).is_empty());
    let response = TaskManagementResponse {
        response: TaskManagementResponseCode::COMPLETE,
        information: [0; 3],
        itt,
        stat_sn: peer.stat_sn[1].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
    };
    peer.give(1, &response.encode(0), &[]).unwrap(); // ends the read, too
    let out: Vec<_> = (0..2).flat_map(|k| peer.drain(k)).collect();
    let [(Pdu::LogoutRequest(_), _)] = &out[..] else { panic!("one logout at a time: {out:?}") };
}

#[test]
fn a_dead_peer_is_noticed_although_nothing_can_be_sent() {
    let mut peer = Peer::new(1);
    peer.read(512, 1);
    peer.drain(0);
    // The socket's buffer is full: nobody asks for the NOP-Out.
    for _ in 0..2 {
        let (at, ..) = peer.session.poll_timeout().expect("a timer is always armed");
        peer.session.handle_timeout(at);
    }
    let closing = peer.session.is_closing(peer.ids[0]);
    assert!(matches!(closing, Some(Err(ConnectionError::PingTimeout { .. }))));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
//= type=test
//# After sending the Logout Request PDU, an initiator MUST NOT send any new iSCSI requests on the
//# closing connection.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
//= type=test
//# If the Logout Request is intended to close the session, new iSCSI requests MUST NOT be sent on
//# any of the connections participating in the session.
#[test]
fn no_ping_follows_a_logout() {
    let mut peer = Peer::new(1);
    peer.session.close();
    assert_eq!(peer.drain(0).len(), 1);
    peer.session.ping(peer.ids[0]);
    assert!(peer.drain(0).is_empty());
}

/// Commands of 64 KiB on one connection, and another that joins: what was not sent yet is shared.
#[test]
fn a_connection_that_joins_takes_commands_that_wait_elsewhere() {
    let mut peer = Peer::new(1);
    for n in 0..6 {
        peer.read(65_536, n);
    }
    peer.session.poll_transmit(peer.ids[0], at(0)).unwrap();
    peer.rejoin(2);
    let taken = peer.drain_commands(1);
    assert_eq!(taken.len(), 3, "six were one too many, three are as many as the other has");
    assert_eq!(peer.drain_commands(0).len(), 2);
    assert_eq!(taken[0].cmd_sn, CmdSn(u32::MAX - 1), "numbers are given when commands are sent");
    assert_eq!(peer.session.load(peer.ids[1]).unwrap().in_flight, 3);
}

#[test]
fn a_slow_connection_takes_nothing_that_would_be_done_earlier_where_it_waits() {
    let mut peer = Peer::new(2);
    peer.session.set_slowness(peer.ids[1], 8.0);
    for n in 0..6 {
        peer.read(65_536, n);
    }
    assert!(peer.drain(1).is_empty());
    peer.session.set_slowness(peer.ids[1], 4.0);
    assert_eq!(peer.drain_commands(1).len(), 1, "the sixth would wait for five others");
    assert_eq!(peer.drain_commands(0).len(), 5);
}
