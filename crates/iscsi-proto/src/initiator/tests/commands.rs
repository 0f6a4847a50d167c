//! One connection: data phases, the command window, task management, text.

use super::super::*;
use super::peer::{Peer, at};
use crate::connection::Placement;
use crate::pdu::{
    AsyncEvent, AsyncMessage, NopIn, Pdu, Reject, RejectReason, Residual, TaskManagementResponse,
    TaskManagementResponseCode, TextResponse,
};

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
    let message = AsyncMessage {
        event: AsyncEvent::SCSI_EVENT,
        vendor_code: 0,
        lun: Lun(0),
        stat_sn: peer.stat_sn[0].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
        parameters: [0; 3],
    };
    peer.give(0, &message.encode(data.len() as u32), &data).unwrap();
    let events = peer.events();
    assert!(matches!(&events[..], [Event::Async { data, .. }] if data[..] == [0x70, 0, 6]));
}
