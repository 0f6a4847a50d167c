//! Error recovery level 1: damaged and missing PDUs are asked for again, and whatever a target
//! makes of that, memory stays bounded and every command ends once.

use super::super::*;
use super::peer::Peer;
use crate::connection::Placement;
use crate::pdu::{
    AsyncEvent, DataIn, Header, NopIn, Pdu, R2t, Reject, RejectReason, ScsiResponse, SnackKind,
    SnackRequest,
};
use crate::serial::R2tSn;

fn params() -> SessionParams {
    SessionParams { error_recovery_level: 1, max_connections: 8, ..SessionParams::default() }
}

fn reading(len: u32) -> (Peer, Itt) {
    let mut peer = Peer::with(params(), 1);
    let itt = peer.read(len, 1);
    peer.drain(0);
    (peer, itt)
}

/// A PDU whose data segment does not fit its digest.
fn damaged(peer: &mut Peer, k: usize, header: &Header) {
    let id = peer.ids[k];
    let placement = peer.session.handle_header(id, peer.now, header).unwrap();
    assert_ne!(placement, Placement::None);
    peer.session.handle_data(id, peer.now, &[0; 64], false).unwrap();
}

fn snacks(peer: &mut Peer, k: usize) -> Vec<SnackRequest> {
    peer.drain(k)
        .into_iter()
        .map(|(pdu, _)| match pdu {
            Pdu::SnackRequest(snack) => snack,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn recoveries(events: &[Event<u32>]) -> usize {
    events.iter().filter(|e| matches!(e, Event::Recovery { .. })).count()
}

fn rejected(peer: &mut Peer, reason: RejectReason, bad: &Header) {
    let reject = Reject {
        reason,
        stat_sn: peer.stat_sn[0].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
        data_sn: 0,
    };
    peer.give(0, &reject.encode(48), &bad.bhs).unwrap();
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# If the discarded PDU is an iSCSI data PDU, the initiator MUST do one of the following:
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
//= type=test
//# If the initiator wants to recover the missing data for a command, it MUST NOT acknowledge the
//# received responses that start from the StatSN of the relevant command until it has completed
//# receiving all the data PDUs of the command.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
//= type=test
//# When an initiator receives duplicate R2TSNs (due to proactive retransmission of R2Ts by the
//# target) or duplicate DataSNs (due to proactive SNACKs by the initiator), it MUST discard the
//# duplicates.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
//= type=test
//# An initiator also MUST NOT acknowledge the status for the task before those holes are filled.
#[test]
fn a_damaged_data_in_is_asked_for_and_put_in_its_place() {
    let (mut peer, itt) = reading(3000);
    let first = peer.data_in(0, itt, 0, 0).encode(1000);
    peer.give(0, &first, &[]).unwrap();
    let second = peer.data_in(0, itt, 1000, 1).encode(1000);
    damaged(&mut peer, 0, &second);
    let asked = snacks(&mut peer, 0);
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].kind, asked[0].itt), (SnackKind::DATA_OR_R2T, itt));
    assert_eq!((asked[0].beg_run, asked[0].run_length), (1, 1));
    assert_eq!(asked[0].ttt_or_snack_tag, u32::MAX);
    // The status comes before the data: it waits, and is not acknowledged.
    let before = peer.stat_sn[0];
    let last = peer.last_data_in(0, itt, 2000, 2).encode(1000);
    assert_eq!(peer.give(0, &last, &[]), Ok(Placement::Task { itt, offset: 2000 }));
    assert!(peer.done().is_empty());
    let id = peer.ids[0];
    peer.session.ping(id);
    let out = peer.drain(0);
    assert!(matches!(&out[..], [(Pdu::NopOut(nop), _)] if nop.exp_stat_sn == before), "{out:?}");
    assert_eq!(peer.give(0, &second, &[]), Ok(Placement::Task { itt, offset: 1000 }));
    let events = peer.events();
    let [Event::TaskDone { outcome: TaskOutcome::Completed { data_in_len, .. }, .. }] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(*data_in_len, 3000);
    let status = &peer.session.connection(peer.ids[0]).unwrap().status;
    assert_eq!(status.expected(), peer.stat_sn[0]);
    // An answer to a second request comes late and hurts nobody.
    assert_eq!(peer.give(0, &second, &[]), Ok(Placement::Discard));
}

#[test]
fn a_damaged_last_data_in_brings_its_status_again() {
    let (mut peer, itt) = reading(1000);
    let last = peer.last_data_in(0, itt, 0, 0).encode(1000);
    damaged(&mut peer, 0, &last);
    assert_eq!(snacks(&mut peer, 0)[0].kind, SnackKind::DATA_OR_R2T);
    damaged(&mut peer, 0, &last);
    assert_eq!(snacks(&mut peer, 0).len(), 1);
    peer.give(0, &last, &[]).unwrap();
    assert_eq!(peer.done(), [1]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
//= type=test
//# The initiator MUST address these implied digest errors as described in Section 7.8.
#[test]
fn the_responses_exp_data_sn_shows_what_is_missing() {
    let (mut peer, itt) = reading(2000);
    let second = peer.data_in(0, itt, 1000, 1).encode(1000);
    peer.give(0, &second, &[]).unwrap();
    assert_eq!(snacks(&mut peer, 0)[0].beg_run, 0, "the gap is seen at once");
    let first = peer.data_in(0, itt, 0, 0).encode(1000);
    peer.give(0, &first, &[]).unwrap();
    let header = ScsiResponse { exp_data_sn: 4, ..peer.response(0, itt, 0) }.encode(0);
    peer.give(0, &header, &[]).unwrap();
    let asked = snacks(&mut peer, 0);
    assert_eq!((asked[0].beg_run, asked[0].run_length), (2, 2));
    assert!(peer.done().is_empty());
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
//= type=test
//# When an initiator receives an iSCSI status PDU with an out-of-order StatSN that implies missing
//# responses, it MUST address the one or more missing status PDUs as described in Section 7.8.
#[test]
fn a_damaged_response_is_asked_for_and_later_ones_are_taken_but_not_acknowledged() {
    let mut peer = Peer::with(params(), 1);
    let (first, second) = (peer.read(512, 1), peer.read(512, 2));
    peer.drain(0);
    let missing = peer.stat_sn[0];
    let sense = peer.response(0, first, 2).encode(20);
    damaged(&mut peer, 0, &sense);
    let asked = snacks(&mut peer, 0);
    assert_eq!((asked[0].kind, asked[0].itt), (SnackKind::STATUS, Itt::NONE));
    assert_eq!((asked[0].beg_run, asked[0].run_length), (missing.0, 1));
    peer.respond(0, second);
    assert_eq!(peer.done(), [2]);
    let id = peer.ids[0];
    peer.session.ping(id);
    assert!(matches!(&peer.drain(0)[..], [(Pdu::NopOut(nop), _)] if nop.exp_stat_sn == missing));
    peer.give(0, &sense, &[0; 20]).unwrap();
    assert_eq!(peer.done(), [1]);
    let status = &peer.session.connection(peer.ids[0]).unwrap().status;
    assert_eq!(status.expected(), peer.stat_sn[0]);
    assert_eq!(peer.give(0, &sense, &[0; 20]), Ok(Placement::Discard));
}

#[test]
fn an_answer_that_comes_while_its_snack_waits_is_not_asked_for() {
    let mut peer = Peer::with(params(), 1);
    let tags: Vec<Itt> = (0..3).map(|n| peer.read(512, n)).collect();
    peer.drain(0);
    let answers: Vec<_> = tags.iter().map(|itt| peer.response(0, *itt, 2)).collect();
    for n in [2, 0] {
        peer.give(0, &answers[n].encode(0), &[]).unwrap();
    }
    let asked = snacks(&mut peer, 0);
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].beg_run, asked[0].run_length), (answers[1].stat_sn.0, 1));
    peer.give(0, &answers[1].encode(0), &[]).unwrap();
    assert_eq!(peer.done(), [2, 0, 1]);
}

#[test]
fn data_of_a_command_that_has_ended_is_not_asked_for() {
    let (mut peer, itt) = reading(1000);
    let second = peer.data_in(0, itt, 500, 1).encode(500);
    peer.give(0, &second, &[]).unwrap();
    let first = peer.data_in(0, itt, 0, 0).encode(500);
    peer.give(0, &first, &[]).unwrap();
    let response = crate::pdu::ScsiResponse { exp_data_sn: 2, ..peer.response(0, itt, 0) };
    peer.give(0, &response.encode(0), &[]).unwrap();
    assert_eq!(peer.done(), [1]);
    assert!(snacks(&mut peer, 0).is_empty(), "it waited for the transport until now");
}

#[test]
fn the_stat_sn_of_an_unsolicited_nop_in_shows_a_lost_answer() {
    let (mut peer, itt) = reading(512);
    let response = peer.response(0, itt, 0);
    let nop = NopIn {
        lun: Lun(0),
        itt: Itt::NONE,
        ttt: Ttt::NONE,
        stat_sn: peer.stat_sn[0],
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
    };
    peer.give(0, &nop.encode(0), &[]).unwrap();
    assert_eq!(snacks(&mut peer, 0)[0].beg_run, response.stat_sn.0);
    peer.give(0, &response.encode(0), &[]).unwrap();
    assert_eq!(peer.done(), [1]);
}

#[test]
fn what_does_not_come_is_asked_for_again_and_then_given_up() {
    let (mut peer, itt) = reading(1000);
    let last = peer.last_data_in(0, itt, 0, 0).encode(1000);
    damaged(&mut peer, 0, &last);
    assert_eq!(snacks(&mut peer, 0).len(), 1);
    for round in 1..=2 {
        let (due, ..) = peer.session.poll_timeout().unwrap();
        peer.now = due;
        peer.session.handle_timeout(due);
        let asked = peer.drain(0);
        let again = |(pdu, _): &(Pdu, Bytes)| matches!(pdu, Pdu::SnackRequest(s) if s.itt == itt);
        assert!(asked.iter().any(again), "round {round}: {asked:?}");
    }
    for _ in 0..9 {
        peer.now = peer.now + std::time::Duration::from_secs(5);
        peer.session.handle_timeout(peer.now);
        peer.drain(0);
    }
    let ended = |e: &Event<u32>| {
        matches!(e, Event::SessionEnded { error: Some(ConnectionError::NotRepaired { .. }) })
    };
    assert!(peer.events().iter().any(ended));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# The initiator in this case MUST wait for the status to be received and then discard it, so as to
//# internally signal the completion with CHECK CONDITION Status and an iSCSI Condition of "Protocol
//# Service CRC error" (Section 11.4.7.2).
#[test]
fn data_that_is_not_sent_again_makes_the_command_go_out_anew() {
    for status_first in [false, true] {
        let (mut peer, itt) = reading(2000);
        let first = peer.data_in(0, itt, 0, 0).encode(1000);
        damaged(&mut peer, 0, &first);
        let asked = snacks(&mut peer, 0).remove(0).encode(0);
        if status_first {
            let last = peer.last_data_in(0, itt, 1000, 1).encode(1000);
            peer.give(0, &last, &[]).unwrap();
            rejected(&mut peer, RejectReason::SNACK_REJECT, &asked);
        } else {
            rejected(&mut peer, RejectReason::SNACK_REJECT, &asked);
            assert!(!peer.events().iter().any(|e| matches!(e, Event::TaskRequeue { .. })));
            let status = peer.response(0, itt, 2).encode(0);
            peer.give(0, &status, &[]).unwrap();
        }
        let requeued = |e: &Event<u32>| matches!(e, Event::TaskRequeue { context: 1, .. });
        assert_eq!(peer.events().iter().filter(|e| requeued(e)).count(), 1, "{status_first}");
        assert!(peer.session.is_open());
        let status = &peer.session.connection(peer.ids[0]).unwrap().status;
        assert_eq!((status.expected(), peer.session.in_flight()), (peer.stat_sn[0], 0));
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
//= type=test
//# The initiator MUST address these implied digest errors as described in Section 7.8.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
//= type=test
//# When an initiator receives duplicate R2TSNs (due to proactive retransmission of R2Ts by the
//# target) or duplicate DataSNs (due to proactive SNACKs by the initiator), it MUST discard the
//# duplicates.
#[test]
fn a_missing_r2t_is_asked_for_and_recovery_r2ts_are_obeyed() {
    let params = SessionParams { max_outstanding_r2t: 4, ..params() };
    let mut peer = Peer::with(params, 1);
    let itt = peer.write(40_000, 1);
    peer.drain(0);
    let second = peer.r2t(0, itt, 1, 16_192, 8000).encode(0);
    peer.give(0, &second, &[]).unwrap();
    let out = peer.drain(0);
    let [(Pdu::SnackRequest(snack), _), (Pdu::DataOut(data), _)] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((snack.kind, snack.beg_run, snack.run_length), (SnackKind::DATA_OR_R2T, 0, 1));
    assert_eq!((data.buffer_offset, data.data_sn.0), (16_192, 0));
    let first = peer.r2t(0, itt, 0, 8192, 8000).encode(0);
    peer.give(0, &first, &[]).unwrap();
    assert_eq!(peer.drain(0).len(), 1);
    peer.give(0, &first, &[]).unwrap();
    assert!(peer.drain(0).is_empty(), "a duplicate is discarded");
    // Part of the first burst again, under the next number.
    let again = peer.r2t(0, itt, 2, 10_000, 1000).encode(0);
    peer.give(0, &again, &[]).unwrap();
    let out = peer.drain(0);
    let [(Pdu::DataOut(data), payload)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((data.buffer_offset, data.data_sn.0, payload.len()), (10_000, 0, 1000));
    assert_eq!(payload[0], (10_000 % 251) as u8);
}

#[test]
fn a_rejected_data_out_ends_nothing() {
    let mut peer = Peer::with(params(), 1);
    let itt = peer.write(20_000, 1);
    peer.drain(0);
    let r2t = peer.r2t(0, itt, 0, 8192, 8000).encode(0);
    peer.give(0, &r2t, &[]).unwrap();
    let (pdu, payload) = peer.drain(0).remove(0);
    rejected(&mut peer, RejectReason::DATA_DIGEST_ERROR, &pdu.encode(payload.len() as u32));
    assert!(peer.session.is_open() && peer.done().is_empty());
    let again = peer.r2t(0, itt, 1, 8192, 8000).encode(0);
    peer.give(0, &again, &[]).unwrap();
    assert_eq!(peer.drain(0).len(), 1);
    // Lost and sent again, it may be the last word about a command that is long over.
    peer.respond(0, itt);
    assert_eq!(peer.done(), [1]);
    for n in 0..300 {
        peer.read(512, 2 + n);
    }
    rejected(&mut peer, RejectReason::DATA_DIGEST_ERROR, &pdu.encode(payload.len() as u32));
    assert!(peer.session.is_open());
}

#[test]
fn a_command_with_damaged_immediate_data_goes_out_as_it_was() {
    let mut peer = Peer::with(params(), 1);
    let itt = peer.write(4000, 1);
    let (pdu, payload) = peer.drain(0).remove(0);
    peer.exp_cmd_sn = CmdSn(peer.exp_cmd_sn.0.wrapping_sub(1)); // it has not taken it
    rejected(&mut peer, RejectReason::DATA_DIGEST_ERROR, &pdu.encode(4000));
    let out = peer.drain(0);
    let [(Pdu::ScsiCommand(again), data)] = &out[..] else { panic!("{out:?}") };
    let Pdu::ScsiCommand(before) = &pdu else { panic!("{pdu:?}") };
    assert_eq!((again.itt, again.cmd_sn), (itt, before.cmd_sn));
    assert_eq!(data, &payload);
    peer.respond(0, itt);
    assert_eq!(peer.done(), [1]);
    assert_eq!(peer.session.next_cmd_sn(), before.cmd_sn.next());
}

/// The abort's RefCmdSN counts as received (§7.11): sent behind it, the command would be old.
#[test]
fn a_command_that_waits_to_go_out_again_does_not_follow_its_abort() {
    let mut peer = Peer::with(params(), 1);
    let itt = peer.write(4000, 1);
    let (pdu, _) = peer.drain(0).remove(0);
    peer.exp_cmd_sn = CmdSn(peer.exp_cmd_sn.0.wrapping_sub(1)); // it has not taken it
    rejected(&mut peer, RejectReason::DATA_DIGEST_ERROR, &pdu.encode(4000));
    peer.session.abort(itt).unwrap();
    let out = peer.drain(0);
    let [(Pdu::TaskManagementRequest(abort), _)] = &out[..] else { panic!("{out:?}") };
    assert_eq!(abort.referenced_task_tag, itt);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.3
//= type=test
//# Upon receiving the Reject, the initiator MUST plug the CmdSN gap in order to continue to use the
//# session.
#[test]
fn a_refused_command_leaves_no_hole_in_cmd_sn_at_any_level() {
    for level in 0..=2 {
        let params = SessionParams { error_recovery_level: level, ..params() };
        let mut peer = Peer::with(params, 1);
        peer.read(512, 1);
        let (pdu, _) = peer.drain(0).remove(0);
        let Pdu::ScsiCommand(command) = &pdu else { panic!("{pdu:?}") };
        peer.exp_cmd_sn = command.cmd_sn;
        rejected(&mut peer, RejectReason::INVALID_PDU_FIELD, &pdu.encode(0));
        assert_eq!(peer.done(), [1]);
        let out = peer.drain(0);
        let [(Pdu::NopOut(plug), _)] = &out[..] else { panic!("{out:?}") };
        assert_eq!((plug.immediate, plug.cmd_sn), (false, command.cmd_sn));
        assert_ne!(plug.itt, Itt::NONE);
        peer.exp_cmd_sn = command.cmd_sn.next();
        let answer = NopIn {
            lun: Lun(0),
            itt: plug.itt,
            ttt: Ttt::NONE,
            stat_sn: peer.stat_sn[0].take(),
            exp_cmd_sn: peer.exp_cmd_sn,
            max_cmd_sn: peer.max_cmd_sn(),
        };
        peer.give(0, &answer.encode(0), &[]).unwrap();
        assert_eq!(peer.session.tasks.len(), 0);
    }
}

#[test]
fn a_command_that_was_silently_dropped_is_found_out_and_sent_again() {
    let mut peer = Peer::with(params(), 1);
    let itt = peer.read(512, 1);
    let lost = peer.drain_commands(0).remove(0);
    peer.exp_cmd_sn = lost.cmd_sn;
    let mut ping = None;
    for _ in 0..4 {
        let (due, ..) = peer.session.poll_timeout().unwrap();
        peer.now = due;
        peer.session.handle_timeout(due);
        if let Some((Pdu::NopOut(nop), _)) = peer.drain(0).pop() {
            ping = Some(nop);
            if peer.session.connection(peer.ids[0]).unwrap().probing.is_some() {
                break;
            }
            let nop = ping.take().unwrap();
            pong(&mut peer, nop.itt, lost.cmd_sn);
        }
    }
    pong(&mut peer, ping.unwrap().itt, lost.cmd_sn);
    let again = peer.drain_commands(0);
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].itt, again[0].cmd_sn), (itt, lost.cmd_sn));
    peer.respond(0, itt);
    assert_eq!(peer.done(), [1]);
}

fn pong(peer: &mut Peer, itt: Itt, exp_cmd_sn: CmdSn) {
    let pong = NopIn {
        lun: Lun(0),
        itt,
        ttt: Ttt::NONE,
        stat_sn: peer.stat_sn[0].take(),
        exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
    };
    peer.give(0, &pong.encode(0), &[]).unwrap();
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
//= type=test
//# On receiving a Data-In PDU with the A bit set to 1 on a session with ErrorRecoveryLevel greater
//# than 0, if there are no holes in the read data until that Data-In PDU, the initiator MUST issue
//# a SNACK of type DataACK, except when it is able to acknowledge the status for the task
//# immediately via the ExpStatSN on other outbound PDUs if the status for the task is also
//# received.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
//= type=test
//# If the initiator has detected holes in the read data prior to that Data-In PDU, it MUST postpone
//# issuing the SNACK of type DataACK until the holes are filled.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.2
//= type=test
//# If an initiator operates at ErrorRecoveryLevel 1 or higher, it MUST issue a SNACK of type
//# DataACK after receiving a Data-In PDU with the A bit set to 1.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.2
//= type=test
//# However, if the initiator has detected holes in the input sequence, it MUST postpone issuing the
//# SNACK of type DataACK until the holes are filled.
#[test]
fn the_a_bit_is_answered_when_nothing_is_missing() {
    let (mut peer, itt) = reading(4000);
    let asking = |peer: &mut Peer, offset, sn| DataIn {
        acknowledge: true,
        ttt: Ttt(0x77),
        lun: Lun(0),
        ..peer.data_in(0, itt, offset, sn)
    };
    let first = asking(&mut peer, 0, 0).encode(1000);
    peer.give(0, &first, &[]).unwrap();
    let asked = snacks(&mut peer, 0);
    assert_eq!((asked[0].kind, asked[0].itt), (SnackKind::DATA_ACK, Itt::NONE));
    assert_eq!((asked[0].beg_run, asked[0].run_length), (1, 0));
    assert_eq!(asked[0].ttt_or_snack_tag, 0x77);
    let second = peer.data_in(0, itt, 1000, 1).encode(1000);
    damaged(&mut peer, 0, &second);
    let third = asking(&mut peer, 2000, 2).encode(1000);
    peer.give(0, &third, &[]).unwrap();
    let asked = snacks(&mut peer, 0);
    assert_eq!(asked.iter().map(|s| s.kind).collect::<Vec<_>>(), [SnackKind::DATA_OR_R2T]);
    peer.give(0, &second, &[]).unwrap();
    let asked = snacks(&mut peer, 0);
    assert_eq!((asked[0].kind, asked[0].beg_run), (SnackKind::DATA_ACK, 3));
}

#[test]
fn data_may_come_in_any_order_where_that_was_agreed() {
    let loose = SessionParams {
        data_pdu_in_order: false,
        data_sequence_in_order: false,
        max_outstanding_r2t: 4,
        error_recovery_level: 0,
        ..params()
    };
    let mut peer = Peer::with(loose, 1);
    let itt = peer.read(4000, 1);
    let write = peer.write(40_000, 2);
    peer.drain(0);
    for (sn, offset) in [3000, 0, 2000].into_iter().enumerate() {
        let header = peer.data_in(0, itt, offset, sn as u32).encode(1000);
        assert_eq!(peer.give(0, &header, &[]), Ok(Placement::Task { itt, offset }));
    }
    let last = peer.last_data_in(0, itt, 1000, 3).encode(1000);
    peer.give(0, &last, &[]).unwrap();
    let events = peer.events();
    let [Event::TaskDone { outcome: TaskOutcome::Completed { data_in_len, .. }, .. }] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(*data_in_len, 4000);
    for (sn, offset) in [(0, 30_000), (1, 10_000), (2, 20_000)] {
        let r2t = R2t { r2t_sn: R2tSn(sn), ..peer.r2t(0, write, sn, offset, 8000) }.encode(0);
        peer.give(0, &r2t, &[]).unwrap();
    }
    let offsets: Vec<u32> = peer
        .drain(0)
        .iter()
        .map(|(pdu, _)| match pdu {
            Pdu::DataOut(data) => data.buffer_offset,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(offsets, [30_000, 10_000, 20_000]);
}

#[test]
fn floods_of_damage_acknowledgements_and_r2ts_cost_bounded_memory() {
    // Requests are not sent meanwhile: the target does not read.
    let (mut peer, itt) = reading(1 << 30);
    for sn in 0..5000 {
        let header =
            DataIn { acknowledge: true, ttt: Ttt(sn), ..peer.data_in(0, itt, sn, sn) }.encode(1);
        peer.give(0, &header, &[]).unwrap();
    }
    let header = peer.data_in(0, itt, 5000, 5000).encode(1);
    (0..5000).for_each(|_| damaged(&mut peer, 0, &header));
    let waiting = peer.session.connection(peer.ids[0]).unwrap().queues.control.len();
    assert!(waiting <= 256, "{waiting}");
    peer.events();

    let mut peer = Peer::with(params(), 1);
    let itt = peer.write(20_000, 1);
    peer.drain(0);
    let refused = (0..100_000).find(|sn| {
        let r2t = peer.r2t(0, itt, *sn, 8192, 1000).encode(0);
        let result = peer.give(0, &r2t, &[]);
        peer.drain(0);
        assert!(recoveries(&peer.events()) <= 1);
        result.is_err()
    });
    assert!(refused.is_some_and(|sn| sn < 2000), "{refused:?}");

    let (mut peer, _) = reading(512);
    let nop = NopIn {
        lun: Lun(0),
        itt: Itt::NONE,
        ttt: Ttt::NONE,
        stat_sn: peer.stat_sn[0].plus(1 << 20),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
    };
    assert!(peer.give(0, &nop.encode(0), &[]).is_err());
    let (mut peer, itt) = reading(512);
    let lie = ScsiResponse { exp_data_sn: u32::MAX, ..peer.response(0, itt, 0) }.encode(0);
    assert!(peer.give(0, &lie, &[]).is_err());
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
//= type=test
//# Initiators MUST NOT subsequently request data retransmission through Data SNACK for PDUs
//# numbered less than the ExpDataSN (i.e., prior to the acknowledged sequence number).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.2
//= type=test
//# An initiator MUST NOT request retransmission for any data it had already acknowledged.
#[test]
fn what_an_earlier_acknowledgement_covers_by_now_is_not_asked_for() {
    let (mut peer, itt) = reading(4000);
    let asking = |peer: &mut Peer, offset, sn| {
        let pdu = peer.data_in(0, itt, offset, sn);
        DataIn { acknowledge: true, ttt: Ttt(0x77), ..pdu }.encode(1000)
    };
    let second = peer.data_in(0, itt, 1000, 1).encode(1000);
    // Nothing is sent meanwhile. It was asked for twice, and the answer to the first comes.
    let first = asking(&mut peer, 0, 0);
    peer.give(0, &first, &[]).unwrap();
    damaged(&mut peer, 0, &second);
    let third = asking(&mut peer, 2000, 2);
    peer.give(0, &third, &[]).unwrap();
    peer.give(0, &second, &[]).unwrap();
    let asked: Vec<_> = snacks(&mut peer, 0).iter().map(|s| (s.kind, s.beg_run)).collect();
    assert_eq!(asked, [(SnackKind::DATA_ACK, 3)]);
}

#[test]
fn of_a_run_that_has_come_in_part_only_the_rest_is_asked_for() {
    let (mut peer, itt) = reading(4000);
    let last = peer.data_in(0, itt, 3000, 3).encode(1000);
    peer.give(0, &last, &[]).unwrap();
    let first = peer.data_in(0, itt, 0, 0).encode(1000);
    peer.give(0, &first, &[]).unwrap();
    let asked = snacks(&mut peer, 0);
    assert_eq!((asked.len(), asked[0].beg_run, asked[0].run_length), (1, 1, 2));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# If the discarded PDU is a response PDU or an unsolicited PDU (e.g., Async, Reject), the
//# initiator MUST do one of the following:
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# When an initiator discards one of these PDUs due to a payload digest error, the entire PDU,
//# including the header, MUST be discarded.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# Consequently, the initiator MUST treat the exception like a loss of any other solicited response
//# PDU.
#[test]
fn a_damaged_message_has_not_come_nor_has_its_header() {
    let mut peer = Peer::with(params(), 1);
    let (id, window) = (peer.ids[0], peer.session.window());
    peer.window += 10;
    let message = peer.async_message(0, AsyncEvent::SCSI_EVENT, [0; 3]);
    let header = message.encode(20);
    damaged(&mut peer, 0, &header);
    assert_eq!(peer.session.window(), window, "what it says does not count");
    let asked = snacks(&mut peer, 0);
    assert_eq!((asked[0].kind, asked[0].itt), (SnackKind::STATUS, Itt::NONE));
    assert_eq!((asked[0].beg_run, asked[0].run_length), (message.stat_sn.0, 1));
    assert_eq!(asked[0].exp_stat_sn, message.stat_sn, "nor is it acknowledged");
    let told = |events: &[Event<u32>]| events.iter().any(|e| matches!(e, Event::Async { .. }));
    assert!(!told(&peer.events()));
    peer.give(0, &header, &[0; 20]).unwrap();
    assert!(told(&peer.events()));
    assert_eq!(peer.session.window(), window + 10);
    assert_eq!(peer.session.connection(id).unwrap().status.expected(), peer.stat_sn[0]);
}
