//! SNACK of every kind (RFC 7143 §11.16).

use super::*;

/// A read of 4500 bytes that was sent whole: five Data-In PDUs, the last with status.
fn sent_read(script: &mut Script) -> Vec<(Pdu, Bytes)> {
    script.pdu(read(7, 100, 4500), &[]);
    script.executes(script.conn);
    script.session.complete(Itt(7), good(&pattern(4500)));
    let sent = script.all_sent(script.conn);
    assert_eq!(sent.len(), 5);
    sent
}

/// What may differ in a PDU that is sent again.
fn replica((pdu, data): (Pdu, Bytes)) -> (Pdu, Bytes) {
    let pdu = match pdu {
        Pdu::DataIn(pdu) => DataIn { exp_cmd_sn: CmdSn(0), max_cmd_sn: CmdSn(0), ..pdu }.into(),
        Pdu::ScsiResponse(pdu) => {
            ScsiResponse { exp_cmd_sn: CmdSn(0), max_cmd_sn: CmdSn(0), ..pdu }.into()
        }
        other => other,
    };
    (pdu, data)
}

fn replicas(pdus: Vec<(Pdu, Bytes)>) -> Vec<(Pdu, Bytes)> {
    pdus.into_iter().map(replica).collect()
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# In response to the SNACK, the target MUST either resend the data PDU or reject the SNACK with a
//# Reject PDU with a reason code of "SNACK reject", in which case:
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.16
//= type=test
//# The numbered Data-In PDUs requested by a Data SNACK MUST be delivered as exact replicas of the
//# ones that the target transmitted originally, except for the fields ExpCmdSN and MaxCmdSN, which
//# MUST carry the current values; and except for resegmentation (see Section 11.16.3).
#[test]
fn data_in_is_sent_again_exactly_as_it_was() {
    let mut script = Script::at_level(1);
    let sent = replicas(sent_read(&mut script));
    for (beg_run, run_length, range) in
        [(0, 0, 0..5), (1, 2, 1..3), (3, 0, 3..5), (4, 1, 4..5), (0, 5, 0..5)]
    {
        script.pdu(snack(SnackKind::DATA_OR_R2T, 7, beg_run, run_length), &[]);
        let again = replicas(script.all_sent(script.conn));
        assert_eq!(again, sent[range], "{beg_run}+{run_length}");
    }
}

#[test]
fn data_in_under_way_is_sent_again_before_it_goes_on() {
    let mut script = Script::at_level(1);
    script.pdu(read(7, 100, 4500), &[]);
    script.executes(script.conn);
    script.session.complete(Itt(7), good(&pattern(4500)));
    let first = replica(script.sent(script.conn).unwrap());
    script.pdu(snack(SnackKind::DATA_OR_R2T, 7, 0, 1), &[]);
    assert_eq!(replica(script.sent(script.conn).unwrap()), first);
    assert_eq!(script.all_sent(script.conn).len(), 4);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.16
//= type=test
//# Any SNACK that requests a numbered response, data, or R2T that was not sent by the target or was
//# already acknowledged by the initiator MUST be rejected with a reason code of "Protocol Error".
#[test]
fn what_was_not_sent_or_is_acknowledged_is_refused() {
    let mut script = Script::at_level(1);
    sent_read(&mut script);
    let refused = (RejectReason::PROTOCOL_ERROR, 5);
    for (beg_run, run_length) in [(5, 0), (4, 2), (0, 6), (u32::MAX, 1), (0, u32::MAX)] {
        script.pdu(snack(SnackKind::DATA_OR_R2T, 7, beg_run, run_length), &[]);
        assert_eq!(script.rejected(), refused, "{beg_run}+{run_length}");
    }
    script.pdu(snack(SnackKind::DATA_OR_R2T, 8, 0, 0), &[]);
    assert_eq!(script.rejected().0, RejectReason::PROTOCOL_ERROR, "no such task");
    // StatSN 1 was the read's, 2 to 7 were the rejects'.
    script.pdu(ping(9, 101, 8), &[]);
    script.sent(script.conn);
    script.pdu(snack(SnackKind::DATA_OR_R2T, 7, 0, 0), &[]);
    assert_eq!(script.rejected().0, RejectReason::PROTOCOL_ERROR, "the status is acknowledged");
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
//= type=test
//# The target should use the A bit moderately; it MAY only set the A bit to 1 once every
//# MaxBurstLength bytes, or on the last Data-In PDU that concludes the entire requested read data
//# transfer for the task from the target's perspective, and it MUST NOT do so more frequently.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.4
//= type=test
//# On incoming data, the Target Transfer Tag and LUN MUST be provided by the target if the A bit is
//# set to 1; otherwise, they are reserved.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.4
//= type=test
//# If the Target Transfer Tag is provided, then the LUN field MUST hold a valid value and be
//# consistent with whatever was specified with the command; otherwise, the LUN field is reserved.
#[test]
fn a_data_ack_ends_what_may_be_asked_for() {
    let mut script = Script::at_level(1);
    let sent = sent_read(&mut script);
    let asked: Vec<(u32, Ttt)> = sent
        .iter()
        .filter_map(|(pdu, _)| match pdu {
            Pdu::DataIn(pdu) if pdu.acknowledge => Some((pdu.data_sn.0, pdu.ttt)),
            _ => None,
        })
        .collect();
    assert_eq!(asked.iter().map(|(sn, _)| *sn).collect::<Vec<_>>(), [1, 3], "once a burst");
    let ack = |beg_run| SnackRequest {
        ttt_or_snack_tag: asked[0].1.0,
        ..snack(SnackKind::DATA_ACK, Itt::NONE.0, beg_run, 0)
    };
    script.pdu(ack(2), &[]);
    assert!(script.sent(script.conn).is_none());
    script.pdu(snack(SnackKind::DATA_OR_R2T, 7, 1, 1), &[]);
    assert_eq!(script.rejected(), (RejectReason::PROTOCOL_ERROR, 5));
    script.pdu(snack(SnackKind::DATA_OR_R2T, 7, 2, 1), &[]);
    assert_eq!(script.all_sent(script.conn).len(), 1);
    for beg_run in [1, 6] {
        script.pdu(ack(beg_run), &[]);
        assert_eq!(script.rejected().0, RejectReason::INVALID_DATA_ACK, "{beg_run}");
    }
    script.pdu(SnackRequest { ttt_or_snack_tag: 4711, ..ack(2) }, &[]);
    assert_eq!(script.rejected().0, RejectReason::INVALID_DATA_ACK);
}

#[test]
fn no_data_in_asks_for_acknowledgement_at_level_0() {
    let mut script = Script::new();
    for (pdu, _) in sent_read(&mut script) {
        assert!(matches!(pdu, Pdu::DataIn(pdu) if !pdu.acknowledge && pdu.ttt == Ttt::NONE));
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.3
//= type=test
//# A target that has received a R-Data SNACK MUST return a SCSI Response that contains a copy of
//# the SNACK Tag field from the R-Data SNACK in the SCSI Response SNACK Tag field as its last or
//# only Response.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.16.5
//= type=test
//# This value MUST be copied by the iSCSI target in the last or only SCSI Response PDU it issues
//# for the command.
#[test]
fn r_data_is_cut_anew_from_what_is_acknowledged_and_ends_with_a_response() {
    let mut script = Script::at_level(1);
    let sent = sent_read(&mut script);
    let Pdu::DataIn(last) = &sent[4].0 else { panic!() };
    let Pdu::DataIn(asking) = &sent[1].0 else { panic!() };
    let ttt_or_snack_tag = asking.ttt.0;
    let ack = snack(SnackKind::DATA_ACK, Itt::NONE.0, 2, 0);
    script.pdu(SnackRequest { ttt_or_snack_tag, ..ack }, &[]);
    script.session.set_segment_max(script.conn, 600);
    let r_data = snack(SnackKind::R_DATA, 7, 0, 0);
    script.pdu(SnackRequest { ttt_or_snack_tag: 0x77, ..r_data.clone() }, &[]);
    let again = script.all_sent(script.conn);
    let data: Vec<u8> = again.iter().flat_map(|(_, data)| data.to_vec()).collect();
    assert_eq!(data, pattern(4500)[2048..]);
    let numbers: Vec<(u32, u32)> = again
        .iter()
        .filter_map(|(pdu, _)| match pdu {
            Pdu::DataIn(pdu) => Some((pdu.data_sn.0, pdu.buffer_offset)),
            _ => None,
        })
        .collect();
    assert_eq!(numbers, [(2, 2048), (3, 2648), (4, 3248), (5, 3848), (6, 4096)]);
    let Some((Pdu::ScsiResponse(response), _)) = again.last() else { panic!("{again:?}") };
    assert_eq!((response.snack_tag, response.exp_data_sn), (0x77, 7));
    assert_eq!(response.stat_sn, last.stat_sn, "one status, one number");
    // A lost response comes with what is known last.
    script.pdu(snack(SnackKind::STATUS, Itt::NONE.0, response.stat_sn.0, 1), &[]);
    assert_eq!(script.response(script.conn).snack_tag, 0x77);
    for tag in [0, u32::MAX] {
        script.pdu(SnackRequest { ttt_or_snack_tag: tag, ..r_data.clone() }, &[]);
        assert_eq!(script.rejected().0, RejectReason::INVALID_PDU_FIELD);
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.9
//= type=test
//# In the case of responses sent due to a retransmission request, the StatSN MUST be the same as
//# the first time the PDU was sent, unless the connection has since been restarted.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.16
//= type=test
//# The numbered response(s) or R2T(s) requested by a SNACK MUST be delivered as exact replicas of
//# the ones that the target transmitted originally, except for the fields ExpCmdSN, MaxCmdSN, and
//# ExpDataSN, which MUST carry the current values.
#[test]
fn answers_of_every_kind_are_sent_again_by_number() {
    let mut script = Script::at_level(1);
    let mut sent = sent_read(&mut script).split_off(4); // StatSN 1
    script.pdu(ping(9, 101, 1), b"ping"); // 2
    script.pdu(abort(10, 101, 55, 55), &[]); // 3
    script.pdu(command(11, 101), &[]); // 4
    script.executes(script.conn);
    let completion =
        Completion { status: 2, sense: Bytes::from_static(&[0x70; 18]), ..Completion::default() };
    script.session.complete(Itt(11), completion);
    sent.extend(script.all_sent(script.conn));
    assert_eq!(sent.len(), 4);
    for (beg_run, run_length, range) in [(0, 0, 0..4), (1, 0, 0..4), (2, 2, 1..3), (4, 1, 3..4)] {
        script.pdu(snack(SnackKind::STATUS, Itt::NONE.0, beg_run, run_length), &[]);
        let again = script.all_sent(script.conn);
        assert_eq!(again.len(), range.len());
        for (again, first) in again.iter().zip(&sent[range]) {
            assert_eq!(again.1, first.1, "the payload");
            assert_eq!(format!("{:?}", again.0).len(), format!("{:?}", first.0).len());
            assert_eq!(stat_sn(&again.0), stat_sn(&first.0));
        }
    }
    for (beg_run, run_length) in [(50, 1), (1, 100), (u32::MAX, 1), (0, 1)] {
        script.pdu(snack(SnackKind::STATUS, Itt::NONE.0, beg_run, run_length), &[]);
        assert_eq!(script.rejected().0, RejectReason::PROTOCOL_ERROR, "{beg_run}+{run_length}");
    }
    script.pdu(ping(12, 102, 4), &[]);
    script.sent(script.conn);
    script.pdu(snack(SnackKind::STATUS, Itt::NONE.0, 3, 1), &[]);
    assert_eq!(script.rejected().0, RejectReason::PROTOCOL_ERROR, "acknowledged");
}

fn stat_sn(pdu: &Pdu) -> StatSn {
    match pdu {
        Pdu::DataIn(pdu) => pdu.stat_sn,
        Pdu::NopIn(pdu) => pdu.stat_sn,
        Pdu::TaskManagementResponse(pdu) => pdu.stat_sn,
        Pdu::ScsiResponse(pdu) => pdu.stat_sn,
        other => panic!("{other:?}"),
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.16
//= type=test
//# R2T(s)requested by SNACK MUST also carry the current value of the StatSN.
#[test]
fn an_outstanding_r2t_is_sent_again() {
    let mut script = Script::at_level(1);
    script.pdu(write(1, 100, 4096), &[]);
    let (first, second) = (script.r2t(), script.r2t());
    script.pdu(snack(SnackKind::DATA_OR_R2T, 1, 1, 1), &[]);
    assert_eq!(script.r2t(), second);
    script.pdu(snack(SnackKind::DATA_OR_R2T, 1, 0, 0), &[]);
    assert_eq!((script.r2t(), script.r2t()), (first.clone(), second));
    script.pdu(data_out(1, first.ttt, 0, 0, true), &[1; 2048]);
    script.pdu(snack(SnackKind::DATA_OR_R2T, 1, 0, 1), &[]);
    assert_eq!(script.rejected(), (RejectReason::PROTOCOL_ERROR, 2), "it was answered");
    script.pdu(snack(SnackKind::DATA_OR_R2T, 1, 2, 0), &[]);
    assert_eq!(script.rejected(), (RejectReason::PROTOCOL_ERROR, 2), "it was not sent");
}

#[test]
fn an_r2t_that_another_one_replaced_is_not_sent_again_and_not_refused() {
    let mut script = Script::at_level(1);
    script.pdu(write(1, 100, 4096), &[]);
    let (first, second) = (script.r2t(), script.r2t());
    let late = NOW + SessionConfig::default().data_timeout * 2;
    assert!(script.session.handle_timeout(script.conn, late));
    let again = (script.r2t(), script.r2t());
    assert_eq!(again.0.buffer_offset, first.buffer_offset);
    assert_eq!(again.1.buffer_offset, second.buffer_offset);
    script.all_sent(script.conn);
    script.pdu(snack(SnackKind::DATA_OR_R2T, 1, 1, 1), &[]);
    assert!(script.sent(script.conn).is_none());
    script.pdu(snack(SnackKind::DATA_OR_R2T, 1, 3, 1), &[]);
    assert_eq!(script.r2t(), again.1);
    script.pdu(snack(SnackKind::DATA_OR_R2T, 1, 1, 4), &[]);
    assert_eq!(script.rejected(), (RejectReason::PROTOCOL_ERROR, 4), "beyond what was sent");
}

#[test]
fn a_thousand_snacks_in_a_row_queue_no_more_than_a_few_runs() {
    let mut script = Script::at_level(1);
    sent_read(&mut script);
    for n in 0..1000u32 {
        let (beg_run, run_length) = (n % 5, 1 + n / 5 % 5);
        script.pdu(snack(SnackKind::DATA_OR_R2T, 7, beg_run, run_length), &[]);
        script.pdu(snack(SnackKind::STATUS, Itt::NONE.0, 0, 0), &[]);
    }
    assert!(script.session.run_count(script.conn) <= 64);
}

/// Begin and end of such a run look fine in serial arithmetic, each for itself: the target would
/// search for billions of answers.
#[test]
fn a_run_over_more_than_half_of_all_numbers_is_refused() {
    let mut script = Script::at_level(1);
    sent_read(&mut script);
    for (beg_run, run_length) in [(0x7000_0000, 0x7000_0000), (2, 0x9000_0000), (0x7fff_ffff, 0)] {
        for (kind, itt) in [(SnackKind::STATUS, Itt::NONE.0), (SnackKind::DATA_OR_R2T, 7)] {
            script.pdu(snack(kind, itt, beg_run, run_length), &[]);
            let reason = script.rejected().0;
            assert_eq!(reason, RejectReason::PROTOCOL_ERROR, "{kind} {beg_run}+{run_length}");
        }
    }
    assert_eq!(script.session.run_count(script.conn), 0);
}

#[test]
fn level_0_knows_no_snack() {
    let mut script = Script::new();
    script.pdu(snack(SnackKind::STATUS, Itt::NONE.0, 0, 0), &[]);
    assert_eq!(script.rejected().0, RejectReason::SNACK_REJECT);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# If the status has not already been sent for the command, the target MUST terminate the command
//# with a CHECK CONDITION Status and an iSCSI Condition of "SNACK rejected" (Section 11.4.7.2).
#[test]
fn a_read_whose_data_is_not_sent_again_ends_with_an_error() {
    let mut script = Script::at_level(1);
    script.pdu(read(7, 100, 200 << 10), &[]);
    script.executes(script.conn);
    script.session.complete(Itt(7), good(&pattern(200 << 10)));
    for _ in 0..150 {
        script.sent(script.conn).unwrap();
    }
    // More runs than may wait.
    for n in 0..64 {
        script.pdu(snack(SnackKind::DATA_OR_R2T, 7, 2 * n, 1), &[]);
    }
    script.pdu(snack(SnackKind::DATA_OR_R2T, 7, 149, 1), &[]);
    let sent = script.all_sent(script.conn);
    let Some((Pdu::Reject(reject), _)) = sent.first() else { panic!("{sent:?}") };
    assert_eq!(reject.reason, RejectReason::SNACK_REJECT);
    let Some((Pdu::ScsiResponse(response), data)) = sent.last() else { panic!("{sent:?}") };
    assert_eq!((response.status, response.exp_data_sn), (2, 150));
    assert_eq!(response.residual, Residual::Underflow(50 << 10));
    let sense = parse_sense(data);
    assert_eq!((sense[2], sense[12], sense[13]), (0x0b, 0x11, 0x13), "SNACK rejected");
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# If the status has not already been sent for the command, the target MUST terminate the command
//# with a CHECK CONDITION Status and an iSCSI Condition of "SNACK rejected" (Section 11.4.7.2).
#[test]
fn a_read_whose_status_was_sent_keeps_it() {
    let mut script = Script::at_level(1);
    script.pdu(read(7, 100, 150 << 10), &[]);
    script.executes(script.conn);
    script.session.complete(Itt(7), good(&pattern(150 << 10)));
    script.all_sent(script.conn);
    for n in 0..65 {
        script.pdu(snack(SnackKind::DATA_OR_R2T, 7, 2 * n, 1), &[]);
    }
    assert_eq!(script.rejected().0, RejectReason::SNACK_REJECT);
    let sent = script.all_sent(script.conn);
    assert_eq!(sent.len(), 64, "what was asked for before");
    assert!(sent.iter().all(|(pdu, _)| matches!(pdu, Pdu::DataIn(_))), "and no other status");
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.16
//= type=test
//# If the implementation supports ErrorRecoveryLevel greater than zero, it MUST support all SNACK
//# types.
#[test]
fn every_type_of_snack_is_served_above_level_0_and_no_other() {
    for level in [1, 2] {
        let mut script = Script::at_level(level);
        let sent = sent_read(&mut script);
        let asking = sent.iter().find_map(|(pdu, _)| match pdu {
            Pdu::DataIn(pdu) if pdu.acknowledge => Some(pdu.ttt.0),
            _ => None,
        });
        script.pdu(snack(SnackKind::DATA_OR_R2T, 7, 0, 1), &[]);
        assert!(matches!(script.sent(script.conn), Some((Pdu::DataIn(_), _))));
        script.pdu(snack(SnackKind::STATUS, Itt::NONE.0, 1, 1), &[]);
        let status = |(pdu, _): (Pdu, Bytes)| matches!(pdu, Pdu::DataIn(p) if p.status.is_some());
        assert!(script.sent(script.conn).is_some_and(status));
        let ttt_or_snack_tag = asking.unwrap();
        let ack = snack(SnackKind::DATA_ACK, Itt::NONE.0, 2, 0);
        script.pdu(SnackRequest { ttt_or_snack_tag, ..ack }, &[]);
        assert!(script.sent(script.conn).is_none());
        let r_data = snack(SnackKind::R_DATA, 7, 0, 0);
        script.pdu(SnackRequest { ttt_or_snack_tag: 0x77, ..r_data }, &[]);
        assert_eq!(script.all_sent(script.conn).len(), 4, "three of five, and a response");
        script.pdu(write(8, 101, 2048), &[]);
        let r2t = script.r2t();
        script.pdu(snack(SnackKind::DATA_OR_R2T, 8, 0, 1), &[]);
        assert_eq!(script.r2t(), r2t);
        script.pdu(snack(SnackKind(4), 7, 0, 0), &[]);
        assert_eq!(script.rejected().0, RejectReason::INVALID_PDU_FIELD);
    }
}

/// After an acknowledgement in the middle of a sequence the bytes are counted from there.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
//= type=test
//# The target should use the A bit moderately; it MAY only set the A bit to 1 once every
//# MaxBurstLength bytes, or on the last Data-In PDU that concludes the entire requested read data
//# transfer for the task from the target's perspective, and it MUST NOT do so more frequently.
#[test]
fn data_that_is_cut_anew_asks_for_acknowledgement_no_more_often() {
    let mut script = Script::at_level(1);
    script.pdu(read(7, 100, 10 << 10), &[]);
    script.executes(script.conn);
    script.session.complete(Itt(7), good(&pattern(10 << 10)));
    let sent = script.all_sent(script.conn);
    let Some((Pdu::DataIn(asking), _)) = sent.get(1) else { panic!("{sent:?}") };
    let ttt_or_snack_tag = asking.ttt.0;
    let ack = snack(SnackKind::DATA_ACK, Itt::NONE.0, 3, 0);
    script.pdu(SnackRequest { ttt_or_snack_tag, ..ack }, &[]);
    script.session.set_segment_max(script.conn, 600);
    let r_data = snack(SnackKind::R_DATA, 7, 0, 0);
    script.pdu(SnackRequest { ttt_or_snack_tag: 0x77, ..r_data }, &[]);
    let (mut bytes, mut asked) = (0, Vec::new());
    for (pdu, data) in script.all_sent(script.conn) {
        bytes += data.len();
        if matches!(pdu, Pdu::DataIn(pdu) if pdu.acknowledge) {
            asked.push(std::mem::take(&mut bytes));
        }
    }
    assert_eq!(asked, [2048; 3], "MaxBurstLength lies between two of them");
}
