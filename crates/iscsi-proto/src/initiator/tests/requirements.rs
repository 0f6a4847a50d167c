//! Single sentences of RFC 7143 that no other test of the initiator checks.

use super::super::*;
use super::peer::{Peer, session_params};
use crate::connection::Placement;
use crate::pdu::{
    AsyncEvent, AsyncMessage, DataIn, NopIn, Pdu, ResponseCode, ScsiResponse, TextResponse,
};

#[test]
fn immediate_requests_carry_the_next_cmd_sn_and_do_not_use_it_up() {
    let mut peer = Peer::new(1);
    let next = peer.session.next_cmd_sn();
    peer.session.ping(peer.ids[0]);
    let reset = TaskManagementFunction::LOGICAL_UNIT_RESET;
    peer.session.manage(reset, Lun(0)).unwrap();
    peer.read(512, 1);
    let out = peer.drain(0);
    let [
        (Pdu::NopOut(ping), _),
        (Pdu::TaskManagementRequest(reset), data),
        (Pdu::ScsiCommand(command), _),
    ] = &out[..]
    else {
        panic!("{out:?}")
    };
    assert!(ping.immediate && reset.immediate && !command.immediate);
    assert_eq!((ping.cmd_sn, reset.cmd_sn, command.cmd_sn), (next, next, next));
    assert_eq!(peer.session.next_cmd_sn(), next.next());
    assert!(ping.itt != Itt::NONE && ping.ttt == Ttt::NONE);
    assert_eq!(reset.referenced_task_tag, Itt::NONE);
    assert!(data.is_empty());
}

#[test]
fn r2ts_are_answered_while_a_reset_is_under_way() {
    let mut peer = Peer::new(1);
    let itt = peer.write(20_000, 1);
    peer.drain(0);
    peer.session.manage(TaskManagementFunction::LOGICAL_UNIT_RESET, Lun(0)).unwrap();
    peer.drain(0);
    let r2t = peer.r2t(0, itt, 0, 8192, 11_808).encode(0);
    peer.give(0, &r2t, &[]).unwrap();
    let out = peer.drain(0);
    assert!(matches!(&out[..], [(Pdu::DataOut(_), _), (Pdu::DataOut(last), _)] if last.is_final));
}

#[test]
fn data_goes_the_way_of_its_command_and_in_its_order() {
    let params =
        SessionParams { initial_r2t: false, first_burst_length: 20_000, ..session_params() };
    let mut peer = Peer::with(params, 2);
    let first = peer.write(16_000, 1); // connection 0
    peer.write(512, 2); // connection 1
    peer.read(512, 3); // connection 1 again
    let second = peer.write(16_000, 4);
    let shape = |out: Vec<(Pdu, Bytes)>| -> Vec<(Itt, bool)> {
        let tag = |(pdu, _): &(Pdu, Bytes)| match pdu {
            Pdu::ScsiCommand(command) => (command.itt, false),
            Pdu::DataOut(data) => (data.itt, true),
            other => panic!("{other:?}"),
        };
        out.iter().map(tag).collect()
    };
    let tags: Vec<_> = [0, 1].map(|k| shape(peer.drain(k))).into_iter().collect();
    for (k, sent) in tags.iter().enumerate() {
        for (position, (itt, is_data)) in sent.iter().enumerate() {
            // Data follows its own command, before the next one.
            assert!(!is_data || sent[position - 1].0 == *itt, "{k}: {sent:?}");
        }
    }
    for itt in [first, second] {
        let on = |k: usize| tags[k].iter().filter(|(tag, _)| *tag == itt).count();
        assert!(on(0) == 0 || on(1) == 0, "on one connection only");
        assert_eq!(on(0) + on(1), 2, "a command and one Data-Out");
    }
}

#[test]
fn an_abort_goes_the_way_of_its_command() {
    let mut peer = Peer::new(2);
    peer.read(512, 1);
    let second = peer.read(512, 2);
    peer.drain(0);
    peer.drain(1);
    peer.session.abort(second).unwrap();
    assert!(peer.drain(0).is_empty());
    let out = peer.drain(1);
    assert!(matches!(&out[..], [(Pdu::TaskManagementRequest(abort), _)]
        if abort.referenced_task_tag == second));
}

#[test]
fn a_request_for_acknowledgement_is_ignored_at_level_0_and_empty_data_is_not_an_error() {
    let mut peer = Peer::new(1);
    let itt = peer.read(512, 1);
    peer.drain(0);
    let asks = DataIn { acknowledge: true, ttt: Ttt(4), ..peer.data_in(0, itt, 0, 0) };
    assert_eq!(peer.give(0, &asks.encode(0), &[]), Ok(Placement::None));
    assert!(peer.drain(0).is_empty());
    let last = peer.last_data_in(0, itt, 0, 1).encode(512);
    peer.give(0, &last, &[]).unwrap();
    assert_eq!(peer.done(), [1]);
}

#[test]
fn status_counts_only_if_the_command_was_completed() {
    let mut peer = Peer::new(1);
    let itt = peer.read(512, 1);
    peer.drain(0);
    let failed = ResponseCode::TARGET_FAILURE;
    let response = ScsiResponse { response: failed, ..peer.response(0, itt, 0) };
    peer.give(0, &response.encode(0), &[]).unwrap();
    let events = peer.events();
    assert!(
        matches!(&events[..], [Event::TaskDone { outcome: TaskOutcome::TargetFailure(code), .. }]
        if *code == failed)
    );
}

#[test]
fn a_ping_of_the_target_is_answered_with_its_tag_and_lun() {
    let mut peer = Peer::new(1);
    let next = peer.session.next_cmd_sn();
    let ping = NopIn {
        lun: Lun(5 << 48),
        itt: Itt::NONE,
        ttt: Ttt(9),
        stat_sn: peer.stat_sn[0],
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
    };
    peer.give(0, &ping.encode(0), &[]).unwrap();
    let out = peer.drain(0);
    let [(Pdu::NopOut(pong), _)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((pong.itt, pong.ttt, pong.lun), (Itt::NONE, Ttt(9), Lun(5 << 48)));
    assert!(pong.immediate);
    assert_eq!(peer.session.next_cmd_sn(), next);
}

fn text_response(peer: &mut Peer, itt: Itt, ttt: Ttt, is_final: bool, continues: bool) {
    let response = TextResponse {
        is_final,
        continues,
        lun: Lun(3 << 48),
        itt,
        ttt,
        stat_sn: peer.stat_sn[0].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
    };
    peer.give(0, &response.encode(4), b"A=1\0").unwrap();
}

#[test]
fn text_goes_on_under_one_tag_with_what_the_target_wants_back() {
    let mut peer = Peer::new(1);
    // Longer than one PDU: 8192 bytes are agreed.
    let itt = peer.session.text(Bytes::from(vec![b'a'; 10_000])).unwrap();
    let mut requests = peer.drain(0);
    text_response(&mut peer, itt, Ttt(4), false, false);
    requests.extend(peer.drain(0));
    text_response(&mut peer, itt, Ttt(5), false, true);
    requests.extend(peer.drain(0));
    let requests: Vec<_> = requests
        .iter()
        .map(|(pdu, data)| match pdu {
            Pdu::TextRequest(request) => {
                assert!(request.itt == itt && request.immediate);
                let flags = (request.is_final, request.continues);
                (flags, request.ttt, request.lun, data.len())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let lun = Lun(3 << 48);
    let expected = [
        ((false, true), Ttt::NONE, Lun(0), 8192),
        ((true, false), Ttt(4), lun, 1808),
        ((true, false), Ttt(5), lun, 0),
    ];
    assert_eq!(requests, expected);
    // A tag that comes with the end means nothing.
    text_response(&mut peer, itt, Ttt(6), true, false);
    assert!(matches!(&peer.events()[..], [Event::TextDone { text, .. }] if text.len() == 12));
    assert!(peer.drain(0).is_empty());
}

fn negotiation_request(peer: &mut Peer, k: usize) {
    let message = AsyncMessage {
        event: AsyncEvent::NEGOTIATION_REQUEST,
        vendor_code: 0,
        lun: Lun(0),
        stat_sn: peer.stat_sn[k].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
        parameters: [0, 0, 3],
    };
    peer.give(k, &message.encode(0), &[]).unwrap();
}

#[test]
fn one_text_exchange_at_a_time_on_a_connection() {
    let mut peer = Peer::new(1);
    assert!(peer.session.text(Bytes::from_static(b"SendTargets=All\0")).is_some());
    assert_eq!(peer.session.text(Bytes::from_static(b"SendTargets=All\0")), None);
    assert_eq!(peer.drain(0).len(), 1);
    negotiation_request(&mut peer, 0);
    assert!(peer.drain(0).is_empty(), "a request is pending there");
    let mut peer = Peer::new(2);
    negotiation_request(&mut peer, 1);
    assert!(peer.drain(0).is_empty());
    let out = peer.drain(1);
    assert!(matches!(&out[..], [(Pdu::TextRequest(text), data)]
        if text.is_final && text.ttt == Ttt::NONE && data.is_empty()));
}
