//! One connection: data phases, the command window, task management, text.

use super::super::*;
use super::peer::{Peer, at};
use crate::connection::Placement;
use crate::pdu::{
    AsyncEvent, NopIn, Pdu, Reject, RejectReason, Residual, TaskManagementResponse,
    TaskManagementResponseCode, TextResponse,
};

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.3.1
//= type=test
//# At least one of the W and F bits MUST be set to 1.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.3.1
//= type=test
//# Either or both of R and W MAY be 1 when the Expected Data Transfer Length and/or the
//# Bidirectional Read Expected Data Transfer Length are 0, but they MUST NOT both be 0 when the
//# Expected Data Transfer Length and/or Bidirectional Read Expected Data Transfer Length are not 0
//# (i.e., when some data transfer is expected, the transfer direction is indicated by the R and/or
//# W bit).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.3.4
//= type=test
//# In this case, the F bit MUST be set to 1.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7
//= type=test
//# Although targets MAY choose to send even non-exception status in separate responses, initiators
//# MUST support non-exception status in Data-In PDUs.
#[test]
fn read_ends_with_the_status_on_its_last_data_in() {
    let mut peer = Peer::new(1);
    let itt = peer.read(10_000, 5);
    let sent = peer.drain_commands(0);
    assert_eq!(sent.len(), 1);
    assert!(sent[0].read && !sent[0].write && sent[0].is_final);
    assert_eq!(sent[0].expected_data_transfer_length, 10_000);
    let first = peer.data_in(0, itt, 0, 0).encode(8192);
    assert_eq!(peer.give(0, &first, &[]), Ok(Placement::Task { itt, offset: 0 }));
    let last = peer.last_data_in(0, itt, 8192, 1).encode(1808);
    assert_eq!(peer.give(0, &last, &[]), Ok(Placement::Task { itt, offset: 8192 }));
    let events = peer.events();
    let [Event::TaskDone { context: 5, outcome, .. }] = &events[..] else {
        panic!("{events:?}");
    };
    let expected = TaskOutcome::Completed {
        status: 0,
        residual: Residual::None,
        data_in_len: 10_000,
        sense: Bytes::new(),
    };
    assert_eq!(*outcome, expected);
    assert_eq!(peer.session.in_flight(), 0);
}

#[test]
fn a_task_is_over_only_when_its_data_is_in_place() {
    let mut peer = Peer::new(1);
    let itt = peer.read(512, 1);
    peer.drain(0);
    let last = peer.last_data_in(0, itt, 0, 0).encode(512);
    peer.session.handle_header(peer.ids[0], at(0), &last).unwrap();
    assert!(peer.done().is_empty());
    peer.session.handle_data(peer.ids[0], at(0), &[], true).unwrap();
    assert_eq!(peer.done(), [1]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
//= type=test
//# All subsequent data MUST be solicited.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
//= type=test
//# If any non-immediate unsolicited data is sent, the total unsolicited data MUST be either
//# FirstBurstLength or all of the data, if the total amount is less than the FirstBurstLength.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
//= type=test
//# An initiator MUST honor an R2T data request for a valid outstanding command (i.e., carrying a
//# valid Initiator Task Tag) and deliver all the requested data, provided the command is supposed
//# to deliver outgoing data and the R2T specifies data within the command bounds.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.1
//= type=test
//# DataSegmentLength MUST NOT exceed MaxRecvDataSegmentLength for the direction it is sent, and the
//# total of all the DataSegmentLength of all PDUs in a sequence MUST NOT exceed MaxBurstLength (or
//# FirstBurstLength for unsolicited data).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.8
//= type=test
//# If an R2T is answered with a single Data-Out PDU, the buffer offset in the data PDU MUST be the
//# same as the one specified by the R2T, and the data length of the data PDU MUST be the same as
//# the Desired Data Transfer Length specified in the R2T.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.8
//= type=test
//# If the R2T is answered with a sequence of data PDUs, the buffer offset and length MUST be within
//# the range of those specified by the R2T, and the last PDU MUST have the F bit set to 1.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.8
//= type=test
//# If DataPDUInOrder is set to Yes, the buffer offsets and lengths for consecutive PDUs MUST form a
//# continuous non-overlapping range, and the PDUs MUST be sent in increasing offset order.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.8
//= type=test
//# Within a task, outstanding R2Ts MUST be fulfilled by the initiator in the order in which they
//# were received.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.12
//= type=test
//# An initiator MUST NOT send solicited PDUs exceeding MaxBurstLength nor unsolicited PDUs
//# exceeding FirstBurstLength (or FirstBurstLength-Immediate Data Length if immediate data were
//# sent).
#[test]
fn write_sends_immediate_then_unsolicited_then_what_r2ts_ask_for() {
    let params = SessionParams {
        initial_r2t: false,
        first_burst_length: 20_000,
        max_burst_length: 30_000,
        max_outstanding_r2t: 2,
        ..SessionParams::default()
    };
    let mut peer = Peer::with(params, 1);
    let itt = peer.write(70_000, 1);
    let sent = peer.drain(0);
    let shape: Vec<(u32, usize, bool)> = sent.iter().map(data_shape).collect();
    assert_eq!(shape, [(0, 8192, false), (8192, 8192, false), (16_384, 3616, true)]);
    // Two R2Ts at once; the second ends the data.
    for (sn, offset, len) in [(0, 20_000, 30_000), (1, 50_000, 20_000)] {
        let r2t = peer.r2t(0, itt, sn, offset, len).encode(0);
        assert_eq!(peer.give(0, &r2t, &[]), Ok(Placement::None));
    }
    let sent = peer.drain(0);
    let mut bytes = 0;
    for (pdu, payload) in &sent {
        let Pdu::DataOut(data) = pdu else { panic!("{pdu:?}") };
        assert_eq!(data.buffer_offset as usize, 20_000 + bytes);
        assert!(
            payload
                .iter()
                .enumerate()
                .all(|(i, b)| { usize::from(*b) == (data.buffer_offset as usize + i) % 251 })
        );
        bytes += payload.len();
        let end = data.buffer_offset as usize + payload.len();
        assert_eq!(data.is_final, end == 50_000 || end == 70_000);
    }
    assert_eq!(bytes, 50_000);
    peer.respond(0, itt);
    assert_eq!(peer.done(), [1]);
}

fn data_shape((pdu, payload): &(Pdu, Bytes)) -> (u32, usize, bool) {
    match pdu {
        Pdu::ScsiCommand(command) => (0, payload.len(), command.is_final),
        Pdu::DataOut(data) => (data.buffer_offset, payload.len(), data.is_final),
        other => panic!("{other:?}"),
    }
}

#[test]
fn data_that_was_asked_for_goes_before_new_commands() {
    let mut peer = Peer::new(1);
    let itt = peer.write(20_000, 1);
    peer.drain(0);
    peer.read(512, 2);
    let r2t = peer.r2t(0, itt, 0, 8192, 11_808).encode(0);
    peer.give(0, &r2t, &[]).unwrap();
    let nop = nop_in(&peer, Ttt(9)).encode(4);
    peer.give(0, &nop, b"ping").unwrap();
    let sent = peer.drain(0);
    assert!(matches!(&sent[0].0, Pdu::NopOut(nop) if nop.ttt == Ttt(9) && nop.itt == Itt::NONE));
    assert_eq!(&sent[0].1[..], b"ping");
    assert!(matches!(sent[1].0, Pdu::DataOut(_)) && matches!(sent[2].0, Pdu::DataOut(_)));
    assert!(matches!(sent[3].0, Pdu::ScsiCommand(_)));
    assert_eq!(sent.len(), 4);
}

fn nop_in(peer: &Peer, ttt: Ttt) -> NopIn {
    NopIn {
        lun: Lun(0),
        itt: Itt::NONE,
        ttt,
        stat_sn: peer.stat_sn[0],
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# iSCSI initiators and targets MUST support the command numbering scheme.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# If the PDU MaxCmdSN is less than the PDU ExpCmdSN - 1 (in a Serial Number Arithmetic sense),
//# they are both ignored.
#[test]
fn the_command_window_holds_commands_back_and_opens_again() {
    let mut peer = Peer::new(1);
    let all: Vec<Itt> = (0..40).map(|n| peer.read(512, n)).collect();
    assert_eq!(peer.drain_commands(0).len(), 32);
    assert_eq!(peer.session.window(), 0);
    peer.session.take_wakes();
    let last = peer.last_data_in(0, all[0], 0, 0).encode(512);
    peer.give(0, &last, &[]).unwrap();
    assert_eq!(peer.session.take_wakes().count(), 1);
    assert_eq!(peer.drain_commands(0).len(), 8); // 32 more than ExpCmdSN, which has them all
    // A window that runs backwards is ignored.
    peer.exp_cmd_sn = peer.exp_cmd_sn.plus(100);
    let window = peer.session.window();
    let stale = NopIn { max_cmd_sn: CmdSn(u32::MAX - 9), ..nop_in(&peer, Ttt::NONE) };
    peer.give(0, &stale.encode(0), &[]).unwrap();
    assert_eq!(peer.session.window(), window);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-10.2
//= type=test
//# "Autosense" refers to the automatic return of sense data to the initiator in cases where a
//# command did not complete successfully. iSCSI initiators and targets MUST support and use
//# Autosense.
#[test]
fn check_condition_brings_its_sense() {
    let mut peer = Peer::new(1);
    let itt = peer.write(512, 1);
    peer.drain(0);
    let data = crate::pdu::encode_sense(&[0x70, 0, 6, 0]);
    let response = peer.response(0, itt, 2).encode(data.len() as u32);
    assert_eq!(peer.give(0, &response, &data), Ok(Placement::Scratch));
    let events = peer.events();
    assert!(matches!(&events[..], [Event::TaskDone {
        outcome: TaskOutcome::Completed { status: 2, sense, .. }, ..
    }] if sense[..] == [0x70, 0, 6, 0]));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.11
//= type=test
//# On a ULP timeout for a command (that carried a CmdSN of n), if the iSCSI initiator intends to
//# continue the session it MUST abort the command by using either an appropriate Task Management
//# Function Request for the specific command or a "close the connection" logout.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# According to [SAM2], for all the tasks covered by the task management response (i.e., with a
//# CmdSN lower than the task management command CmdSN), except for the task management response to
//# a TASK REASSIGN, additional responses MUST NOT be delivered to the SCSI layer after the task
//# management response.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# If an ABORT TASK is issued for a task created by an immediate command, then the RefCmdSN MUST be
//# that of the task management request itself (i.e., the CmdSN and RefCmdSN are equal); otherwise,
//# the RefCmdSN MUST be set to the CmdSN of the task to be aborted (lower than the CmdSN).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.5
//= type=test
//# For an ABORT TASK of a task created by a non-immediate command, the RefCmdSN MUST be set to the
//# CmdSN of the task identified by the Referenced Task Tag field.
#[test]
fn abort_ends_an_unsent_command_at_once_and_a_sent_one_by_task_management() {
    let mut peer = Peer::new(1);
    let sent = peer.read(512, 1);
    peer.drain(0);
    let unsent = peer.read(512, 2);
    assert_eq!(peer.session.abort(unsent), None);
    assert_eq!(peer.done(), [2]);
    let tmf = peer.session.abort(sent).unwrap();
    let out = peer.drain(0);
    let [(Pdu::TaskManagementRequest(request), _)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((request.referenced_task_tag, request.ref_cmd_sn), (sent, CmdSn(u32::MAX - 2)));
    assert!(request.immediate);
    answer_management(&mut peer, tmf, TaskManagementResponseCode::COMPLETE);
    assert_eq!(peer.done(), [1]);
    // What was still under way for it is discarded, not taken for an attack.
    let late = peer.data_in(0, sent, 0, 0).encode(512);
    assert_eq!(peer.give(0, &late, &[]), Ok(Placement::Discard));
}

fn answer_management(peer: &mut Peer, itt: Itt, response: TaskManagementResponseCode) {
    let pdu = TaskManagementResponse {
        response,
        information: [0; 3],
        itt,
        stat_sn: peer.stat_sn[0].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
    };
    peer.give(0, &pdu.encode(0), &[]).unwrap();
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
//= type=test
//# The initiator MUST thus conclude all affected tasks as part of this step in either case and MUST
//# discard any TMF Response received after the affected tasks are concluded.
#[test]
fn a_logical_unit_reset_ends_what_was_sent_to_that_unit_before_it() {
    let mut peer = Peer::new(1);
    peer.read(512, 1);
    peer.read(512, 2);
    peer.drain(0);
    let function = TaskManagementFunction::LOGICAL_UNIT_RESET;
    let tmf = peer.session.manage(function, Lun(0)).unwrap();
    peer.read(512, 3);
    peer.drain(0);
    answer_management(&mut peer, tmf, TaskManagementResponseCode::COMPLETE);
    assert_eq!(peer.done(), [1, 2]);
    assert_eq!(peer.session.in_flight(), 1);
}

#[test]
fn a_rejected_command_ends_alone() {
    let mut peer = Peer::new(1);
    let itt = peer.read(512, 1);
    let id = peer.ids[0];
    let header = peer.session.poll_transmit(id, at(0)).unwrap().header;
    let reject = Reject {
        reason: RejectReason::INVALID_PDU_FIELD,
        stat_sn: peer.stat_sn[0].take(),
        exp_cmd_sn: CmdSn(u32::MAX - 1),
        max_cmd_sn: CmdSn(10),
        data_sn: 0,
    };
    peer.give(0, &reject.encode(48), &header.bhs).unwrap();
    let events = peer.events();
    assert!(matches!(&events[..], [Event::TaskDone {
        itt: tag, outcome: TaskOutcome::Rejected(RejectReason::INVALID_PDU_FIELD), ..
    }] if *tag == itt));
}

#[test]
fn text_is_collected_over_several_responses() {
    let mut peer = Peer::new(1);
    let request = Bytes::from_static(b"SendTargets=All\0");
    let itt = peer.session.text(request.clone()).unwrap();
    let out = peer.drain(0);
    assert!(matches!(&out[..], [(Pdu::TextRequest(text), data)]
        if text.is_final && text.ttt == Ttt::NONE && *data == request));
    for (is_final, ttt, data) in
        [(false, Ttt(3), b"TargetName=a\0"), (true, Ttt::NONE, b"TargetName=b\0")]
    {
        let response = TextResponse {
            is_final,
            continues: false,
            lun: Lun(0),
            itt,
            ttt,
            stat_sn: peer.stat_sn[0].take(),
            exp_cmd_sn: peer.exp_cmd_sn,
            max_cmd_sn: peer.max_cmd_sn(),
        };
        peer.give(0, &response.encode(data.len() as u32), data).unwrap();
        let out = peer.drain(0);
        assert_eq!(out.len(), usize::from(!is_final));
    }
    let events = peer.events();
    assert!(matches!(&events[..], [Event::TextDone { text, .. }]
        if text[..] == b"TargetName=a\0TargetName=b\0"[..]));
}

#[test]
fn keepalive_pings_a_silent_link_and_gives_up_a_dead_one() {
    let mut peer = Peer::new(1);
    let (due, _, why) = peer.session.poll_timeout().unwrap();
    assert_eq!((due, why), (at(5000), Timer::Keepalive));
    peer.session.handle_timeout(due);
    peer.now = due;
    let out = peer.drain(0);
    assert!(matches!(&out[..], [(Pdu::NopOut(nop), _)] if nop.ttt == Ttt::NONE));
    // Data that moves proves life, however late the answer to the ping.
    let itt = peer.read(1 << 20, 1);
    peer.drain(0);
    peer.now = at(14_000);
    let data = peer.data_in(0, itt, 0, 0).encode(8192);
    peer.give(0, &data, &[]).unwrap();
    peer.session.handle_timeout(at(15_000));
    assert!(peer.session.is_closing(peer.ids[0]).is_none());
    assert_eq!(peer.session.poll_timeout().unwrap().0, at(24_000));
    peer.session.handle_timeout(at(24_000));
    let closing = peer.session.is_closing(peer.ids[0]);
    assert!(matches!(closing, Some(Err(ConnectionError::PingTimeout { .. }))), "{closing:?}");
}

#[test]
fn an_answered_ping_tells_the_round_trip() {
    let mut peer = Peer::new(1);
    peer.session.ping(peer.ids[0]);
    let out = peer.drain(0);
    let Pdu::NopOut(nop) = &out[0].0 else { panic!("{out:?}") };
    peer.now = at(30);
    let answer =
        NopIn { itt: nop.itt, stat_sn: peer.stat_sn[0].take(), ..nop_in(&peer, Ttt::NONE) };
    peer.give(0, &answer.encode(0), &[]).unwrap();
    let events = peer.events();
    assert!(matches!(events[..], [Event::Pong { rtt, .. }] if rtt.as_millis() == 30));
    assert_eq!(peer.session.poll_timeout().unwrap().0, at(5030));
}

#[test]
fn scsi_events_are_passed_on() {
    let mut peer = Peer::new(1);
    let data = crate::pdu::encode_sense(&[0x70, 0, 6]);
    let message = peer.async_message(0, AsyncEvent::SCSI_EVENT, [0; 3]);
    peer.give(0, &message.encode(data.len() as u32), &data).unwrap();
    let events = peer.events();
    assert!(matches!(&events[..], [Event::Async { data, .. }] if data[..] == [0x70, 0, 6]));
}
