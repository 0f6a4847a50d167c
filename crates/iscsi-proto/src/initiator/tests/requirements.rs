//! Single sentences of RFC 7143 that no other test of the initiator checks.

use super::super::*;
use super::peer::{Peer, session_params};
use crate::connection::Placement;
use crate::pdu::{AsyncEvent, DataIn, NopIn, Pdu, ResponseCode, ScsiResponse, TextResponse};

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# Commands meant for immediate delivery are marked with an immediate delivery flag; they MUST also
//# carry the current CmdSN.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# The CmdSN MUST NOT advance after a command marked for immediate delivery is sent.
//= https://www.rfc-editor.org/rfc/rfc7143#section-10.6
//= type=test
//# All commands that change the state of the device (e.g., SPACE commands for sequential access
//# devices and EXCHANGE MEDIUM commands for medium changer devices) MUST be issued as non-immediate
//# commands for deterministic and ordered delivery to iSCSI targets.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.2
//= type=test
//# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.4
//= type=test
//# For all the other functions, this field MUST be set to the reserved value 0xffffffff.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.18.1
//= type=test
//# The NOP-Out MUST have the Initiator Task Tag set to a valid value only if a response in the form
//# of a NOP-In is requested (i.e., the NOP-Out is used as a ping request).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.18.2
//= type=test
//# Otherwise, the Target Transfer Tag MUST be set to 0xffffffff.
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

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
//= type=test
//# MUST continue to respond to each TTT received for the affected tasks.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# For ABORT TASK SET and CLEAR TASK SET, the issuing initiator MUST continue to respond to all
//# valid Target Transfer Tags (received via R2T, Text Response, NOP-In, or SCSI Data-In PDUs)
//# related to the affected task set, even after issuing the task management request.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
//= type=test
//# After sending the Logout Request PDU, an initiator MUST NOT send any new iSCSI requests on the
//# closing connection.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
//= type=test
//# If the Logout Request is intended to close the session, new iSCSI requests MUST NOT be sent on
//# any of the connections participating in the session.
#[test]
fn nothing_new_is_sent_once_the_session_logs_out() {
    let mut peer = Peer::new(2);
    peer.session.close();
    assert!(matches!(peer.drain(0)[..], [(Pdu::LogoutRequest(_), _)]));
    let reset = TaskManagementFunction::LOGICAL_UNIT_RESET;
    assert_eq!(peer.session.manage(reset, Lun(0)), None);
    assert_eq!(peer.session.text(Bytes::from_static(b"SendTargets=All\0")), None);
    negotiation_request(&mut peer, 0);
    peer.session.ping(peer.ids[1]);
    assert!(peer.drain(0).is_empty() && peer.drain(1).is_empty());
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

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.1
//= type=test
//# If an initiator issues a write command, the initiator MUST send the data, if any, for that
//# command over the same TCP connection that was used to deliver the SCSI command.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
//= type=test
//# In addition, iSCSI initiators and targets MUST enforce some ordering rules.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
//= type=test
//# When unsolicited data is used, the order of the unsolicited data on each connection MUST match
//# the order in which the commands on that connection are sent.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.2
//= type=test
//# Command and unsolicited data PDUs may be interleaved on a single connection as long as the
//# ordering requirements of each are maintained (e.g., command N + 1 MAY be sent before the
//# unsolicited Data-Out PDUs for command N, but the unsolicited Data-Out PDUs for command N MUST
//# precede the unsolicited Data-Out PDUs of command N + 1).
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

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# If the connection is still active (i.e., it is not undergoing an implicit or explicit logout),
//# an ABORT TASK MUST be issued on the same connection to which the task to be aborted is allegiant
//# at the time the task management request is issued.
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

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
//= type=test
//# The initiator MUST ignore the A bit set to 1 for sessions with ErrorRecoveryLevel=0.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.7
//= type=test
//# The sending of 0-length data segments should be avoided, but initiators and targets MUST be able
//# to properly receive 0-length data segments.
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

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.3
//= type=test
//# A non-zero response field indicates a failure to execute the command, in which case the Status
//# and Flag fields are undefined and MUST be ignored on reception.
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

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.18
//= type=test
//# Upon receipt of a NOP-In with the Target Transfer Tag set to a valid value (not the reserved
//# value 0xffffffff), the initiator MUST respond with a NOP-Out.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.18
//= type=test
//# In this case, the NOP-Out Target Transfer Tag MUST contain a copy of the NOP-In Target Transfer
//# Tag.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.18.1
//= type=test
//# Otherwise, the Initiator Task Tag MUST be set to 0xffffffff.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.18.1
//= type=test
//# If the Initiator Task Tag contains 0xffffffff, the I bit MUST be set to 1, and the CmdSN is not
//# advanced after this PDU is sent.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.18.2
//= type=test
//# The NOP-Out MUST only have the Target Transfer Tag set if it is issued in response to a NOP-In
//# with a valid Target Transfer Tag.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.18.2
//= type=test
//# When the Target Transfer Tag is set to a value other than 0xffffffff, the LUN field MUST also be
//# copied from the NOP-In.
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

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# An initiator receiving a Text or Login Response with the C bit set to 1 MUST answer with a Text
//# or Login Request with no data segment (DataSegmentLength 0).
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.4
//= type=test
//# The initiator MUST indicate its intent to finish the negotiation by setting the F bit to 1; the
//# target sets the F bit to 1 on the last response.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.3
//= type=test
//# If the command is sent as part of a sequence of Text Requests and responses, the Initiator Task
//# Tag MUST be the same for all the requests within the sequence (similar to linked SCSI commands).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.3
//= type=test
//# The I bit for all requests in a sequence also MUST be the same.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.4
//= type=test
//# The initiator MUST ignore the Target Transfer Tag in the Text Response when the F bit is set to
//# 1.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.5
//= type=test
//# The data lengths of a Text Request MUST NOT exceed the iSCSI target MaxRecvDataSegmentLength (a
//# parameter that is negotiated per connection and per direction).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.4
//= type=test
//# The initiator MUST copy the Target Transfer Tag and LUN in its next request to indicate that it
//# wants the rest of the data.
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
    let message = peer.async_message(k, AsyncEvent::NEGOTIATION_REQUEST, [0, 0, 3]);
    peer.give(k, &message.encode(0), &[]).unwrap();
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# There MUST NOT be more than one outstanding Text Request, or Text Response PDU on an iSCSI
//# connection.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.9.1
//= type=test
//# The initiator MUST honor this request by issuing a Text Request (that can be empty) on the same
//# connection as early as possible, but no later than Parameter3 seconds, unless a Text Request is
//# already pending on the connection, or by issuing a Logout Request.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.10
//= type=test
//# An initiator MUST NOT have more than one outstanding Text Request on a connection at any given
//# time.
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
