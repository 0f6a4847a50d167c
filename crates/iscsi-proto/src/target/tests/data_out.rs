//! Writes: immediate, unsolicited and solicited data, their faults and their memory (§11.7, §11.8).

use super::*;

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.6.1.2
//= type=test
//# The use of Autosense ([SAM2]) is REQUIRED by iSCSI.
//= https://www.rfc-editor.org/rfc/rfc7143#section-10.2
//= type=test
//# "Autosense" refers to the automatic return of sense data to the initiator in cases where a
//# command did not complete successfully. iSCSI initiators and targets MUST support and use
//# Autosense.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.7
//= type=test
//# iSCSI targets MUST support and enable Autosense.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.7
//= type=test
//# If Status is CHECK CONDITION (0x02), then the data segment MUST contain sense data for the
//# failed command.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.3
//= type=test
//# If the command is completed with an error, then the response and sense data MUST be sent in a
//# SCSI Response PDU (i.e., MUST NOT be sent in a SCSI data packet).
#[test]
fn an_error_after_no_data_comes_with_sense() {
    let mut script = Script::new();
    script.pdu(read(7, 100, 512), &[]);
    script.executes(script.conn);
    let completion =
        Completion { status: 2, sense: Bytes::from_static(&[0x70; 18]), ..Completion::default() };
    script.session.complete(Itt(7), completion);
    let Some((Pdu::ScsiResponse(response), data)) = script.sent(script.conn) else {
        panic!("expected a response")
    };
    assert_eq!((response.status, response.residual), (2, Residual::Underflow(512)));
    assert_eq!(parse_sense(&data).len(), 18);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.8
//= type=test
//# If DataSequenceInOrder is Yes, then consecutive R2Ts MUST refer to continuous non-overlapping
//# ranges, except for Recovery-R2Ts.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.8.4
//= type=test
//# The Desired Data Transfer Length MUST NOT be 0 and MUST NOT exceed MaxBurstLength.
#[test]
fn a_write_collects_immediate_unsolicited_and_solicited_data() {
    let mut script = Script::new();
    let announced = ScsiCommand { is_final: false, ..write(9, 100, 6000) };
    assert_eq!(script.pdu(announced, &[1; 500]), Placement::Task { itt: Itt(9), offset: 0 });
    assert!(script.sent(script.conn).is_none(), "no R2T before unsolicited data has ended");
    let placement = script.pdu(data_out(9, Ttt::NONE, 0, 500, true), &[1; 524]);
    assert_eq!(placement, Placement::Task { itt: Itt(9), offset: 500 });
    let (first, second) = (script.r2t(), script.r2t());
    assert_eq!((first.buffer_offset, first.desired_data_transfer_length), (1024, 2048));
    assert_eq!((second.buffer_offset, second.desired_data_transfer_length), (3072, 2048));
    assert_eq!((first.r2t_sn.0, second.r2t_sn.0), (0, 1));
    assert!(script.sent(script.conn).is_none(), "two R2Ts outstanding are agreed");
    script.pdu(data_out(9, first.ttt, 0, 1024, false), &[1; 1024]);
    script.pdu(data_out(9, first.ttt, 1, 2048, true), &[1; 1024]);
    let third = script.r2t();
    assert_eq!((third.buffer_offset, third.desired_data_transfer_length), (5120, 880));
    script.pdu(data_out(9, second.ttt, 0, 3072, true), &[1; 2048]);
    assert!(script.executes(script.conn).is_empty());
    script.pdu(data_out(9, third.ttt, 0, 5120, true), &[1; 880]);
    assert_eq!(script.executes(script.conn), [9]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.9
//= type=test
//# The target MUST address these implied digest errors as described in Section 7.8.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.2
//= type=test
//# If a SCSI device error is detected while data from the initiator is still expected (the command
//# PDU did not contain all the data and the target has not received a data PDU with the Final bit
//# set), the target MUST wait until it receives a data PDU with the F bit set in the last expected
//# sequence before sending the Response PDU.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.17.1
//= type=test
//# If the error is detected while data from the initiator is still expected (i.e., the command PDU
//# did not contain all the data and the target has not received a Data-Out PDU with the Final bit
//# set to 1 for the unsolicited data, if any, and all outstanding R2Ts, if any), the target MUST
//# wait until it receives the last expected Data-Out PDUs with the F bit set to 1 before sending
//# the Response PDU.
#[test]
fn faulty_data_out_fails_its_command_and_nothing_else() {
    type Case = (&'static str, u8, fn(Ttt) -> (DataOut, usize));
    let cases: [Case; 5] = [
        ("gap in DataSN", 0x47, |ttt| (data_out(1, ttt, 1, 0, false), 512)),
        ("gap in offset", 0x47, |ttt| (data_out(1, ttt, 0, 512, false), 512)),
        ("beyond the burst", 0x0c, |ttt| (data_out(1, ttt, 0, 0, true), 2049)),
        ("final too early", 0x0c, |ttt| (data_out(1, ttt, 0, 0, true), 512)),
        ("unsolicited", 0x0c, |_| (data_out(1, Ttt::NONE, 0, 0, true), 512)),
    ];
    for (name, additional_sense, case) in cases {
        let mut script = Script::new();
        script.pdu(write(1, 100, 4096), &[]);
        let (first, second) = (script.r2t().ttt, script.r2t().ttt);
        let (pdu, len) = case(first);
        let open = pdu.ttt != first || !pdu.is_final;
        assert_eq!(script.pdu(pdu, &vec![0; len]), Placement::Discard, "{name}");
        // What was asked for still comes, and is thrown away.
        for ttt in [second].into_iter().chain(open.then_some(first)) {
            assert!(script.sent(script.conn).is_none(), "{name}: the initiator is not done");
            let rest = data_out(1, ttt, 9, 0, true);
            assert_eq!(script.pdu(rest, &[0; 512]), Placement::Discard, "{name}");
        }
        assert_eq!(fault_sense(&mut script), additional_sense, "{name}");
        assert!(script.executes(script.conn).is_empty(), "{name}: it must not be executed");
        script.pdu(command(2, 101), &[]);
        assert_eq!(script.executes(script.conn), [2], "{name}: the session goes on");
    }
}

/// The additional sense code of the answer to a command that failed in transfer.
fn fault_sense(script: &mut Script) -> u8 {
    let Some((Pdu::ScsiResponse(response), data)) = script.sent(script.conn) else {
        panic!("expected a response")
    };
    assert_eq!(response.status, 2);
    let sense = parse_sense(&data);
    assert_eq!(sense[2], 0x0b, "ABORTED COMMAND");
    sense[12]
}

#[test]
fn a_transfer_tag_of_nobody_closes_the_connection() {
    let mut script = Script::new();
    script.pdu(write(1, 100, 4096), &[]);
    let foreign = data_out(1, Ttt(77), 0, 0, false);
    assert!(script.try_pdu(script.conn, foreign, &[0; 512]).is_err());
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.3
//= type=test
//# Targets MUST NOT implicitly terminate an active task by sending a Reject PDU for any PDU
//# exchanged during the life of the task.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# When a target receives any iSCSI PDU with a payload digest error, it MUST answer with a Reject
//# PDU with a reason code of Data-Digest-Error and discard the PDU.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# If the discarded PDU is a solicited or unsolicited iSCSI data PDU (for immediate data in a
//# command PDU, the non-data PDU rule below applies), the target MUST do one of the following:
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.17.1
//= type=test
//# In all the cases in which a pre-instantiated SCSI task is terminated because of the reject, the
//# target MUST issue a proper SCSI command response with CHECK CONDITION as described in Section
//# 11.4.3.
#[test]
fn a_wrong_data_digest_is_rejected_and_fails_the_command() {
    let mut script = Script::new();
    script.pdu(write(1, 100, 512), &[]);
    let ttt = script.r2t().ttt;
    let header = Pdu::from(data_out(1, ttt, 0, 0, true)).encode(512);
    script.session.handle_header(script.conn, NOW, &header).unwrap();
    script.session.handle_data(script.conn, Received::Placed, false).unwrap();
    match script.sent(script.conn) {
        Some((Pdu::Reject(reject), data)) => {
            assert_eq!(reject.reason, RejectReason::DATA_DIGEST_ERROR);
            assert_eq!(&data[..], &header.bhs[..]);
        }
        other => panic!("expected a reject, got {other:?}"),
    }
    assert_eq!(fault_sense(&mut script), 0x47);
}

#[test]
fn data_out_on_a_foreign_connection_is_refused() {
    let mut script = Script::new();
    let second = script.join(2);
    script.pdu(write(1, 100, 2048), &[]);
    let ttt = script.r2t().ttt;
    assert!(script.try_pdu(second, data_out(1, ttt, 0, 0, true), &[0; 2048]).is_err());
}

#[test]
fn immediate_data_beyond_what_was_agreed_fails_the_command() {
    for (command, len) in
        [(write(1, 100, 4096), 1025), (write(1, 100, 512), 513), (read(1, 100, 512), 4)]
    {
        let mut script = Script::new();
        assert_eq!(script.pdu(command, &vec![0; len]), Placement::Discard);
        assert_eq!(fault_sense(&mut script), 0x0c);
    }
}

#[test]
fn solicited_memory_is_bounded_and_handed_on() {
    let config = SessionConfig { buffered_bytes_max: 4096, ..SessionConfig::default() };
    let mut script = Script::with(params(), config);
    for n in 0..3 {
        script.pdu(write(n, 100 + n, 4096), &[]);
    }
    let (a, b) = (script.r2t(), script.r2t());
    assert!(script.sent(script.conn).is_none(), "the budget is used up");
    assert_eq!((a.itt, b.itt), (Itt(0), Itt(0)));
    script.pdu(data_out(0, a.ttt, 0, 0, true), &[0; 2048]);
    script.pdu(data_out(0, b.ttt, 0, 2048, true), &[0; 2048]);
    assert_eq!(script.executes(script.conn), [0]);
    assert!(script.sent(script.conn).is_none(), "an executing write still holds its memory");
    script.session.complete(Itt(0), Completion::default());
    assert_eq!(script.r2t().itt, Itt(1), "the next write gets what has become free");
}

#[test]
fn a_write_gets_its_whole_buffer_only_with_memory_promised() {
    let config = SessionConfig { buffered_bytes_max: 8192, ..SessionConfig::default() };
    let mut script = Script::with(params(), config);
    for n in 0..4 {
        script.pdu(write(n, 100 + n, 4096), &[0; 512]);
    }
    let lengths: Vec<u32> = (0..4).map(|n| script.session.buffer_length(Itt(n))).collect();
    assert_eq!(lengths, [4096, 4096, 1024, 1024], "two fit; the others have their first burst");
}

#[test]
fn a_write_whose_turn_it_is_does_not_wait_for_memory_held_by_later_ones() {
    let config = SessionConfig { buffered_bytes_max: 4096, ..SessionConfig::default() };
    let mut script = Script::with(params(), config);
    let second = script.join(2);
    script.try_pdu(second, write(2, 101, 4096), &[]).unwrap();
    script.pdu(write(1, 100, 4096), &[]);
    assert_eq!(script.r2t().itt, Itt(1));
}
