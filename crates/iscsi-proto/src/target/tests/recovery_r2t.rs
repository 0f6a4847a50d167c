//! Lost and damaged data of writes at error recovery level 1 (RFC 7143 §7.8, §7.9, §13.18, §13.19),
//! and how level 0 ends such a command.

use super::*;

fn ranges(r2ts: &[R2t]) -> Vec<(u32, u32)> {
    r2ts.iter().map(|r2t| (r2t.buffer_offset, r2t.desired_data_transfer_length)).collect()
}

fn r2ts(script: &mut Script) -> Vec<R2t> {
    let sent = script.all_sent(script.conn);
    sent.into_iter()
        .map(|(pdu, _)| match pdu {
            Pdu::R2t(r2t) => r2t,
            other => panic!("expected R2Ts, got {other:?}"),
        })
        .collect()
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.3
//= type=test
//# When a data PDU is rejected and its DataSN can be ascertained, a target MUST advance the
//# ExpDataSN for the current data burst if a recovery R2T is being generated.
#[test]
fn a_damaged_piece_of_a_burst_is_asked_for_again() {
    let mut script = Script::at_level(1);
    script.pdu(write(1, 100, 2048), &[]);
    let r2t = script.r2t();
    script.pdu(data_out(1, r2t.ttt, 0, 0, false), &[1; 512]);
    script.damaged(data_out(1, r2t.ttt, 1, 512, false), &[1; 512]);
    assert_eq!(script.rejected().0, RejectReason::DATA_DIGEST_ERROR);
    let same = data_out(1, r2t.ttt, 1, 512, false);
    assert_eq!(script.pdu(same, &[1; 512]), Placement::Discard, "its number is used up");
    script.pdu(data_out(1, r2t.ttt, 2, 1024, true), &[1; 1024]);
    let again = script.r2t();
    assert_eq!((again.buffer_offset, again.desired_data_transfer_length), (512, 512));
    assert_eq!(again.r2t_sn.0, 1, "the numbers of R2Ts go on");
    assert_ne!(again.ttt, r2t.ttt);
    assert!(script.executes(script.conn).is_empty());
    script.pdu(data_out(1, again.ttt, 0, 512, true), &[1; 512]);
    assert_eq!(script.executes(script.conn), [1]);
}

#[test]
fn the_log_is_told_of_a_recovery_r2t() {
    let mut script = Script::at_level(1);
    script.pdu(write(1, 100, 512), &[]);
    let r2t = script.r2t();
    script.damaged(data_out(1, r2t.ttt, 0, 0, true), &[1; 512]);
    let event = script.session.poll_event(script.conn);
    let expected = Recovery::RecoveryR2t { itt: Itt(1), offset: 0, len: 512 };
    assert!(matches!(event, Some(Event::Recovery(recovery)) if recovery == expected));
}

#[test]
fn damaged_unsolicited_data_is_asked_for_before_the_rest() {
    let mut script = Script::at_level(1);
    let announced = ScsiCommand { is_final: false, ..write(1, 100, 4096) };
    script.pdu(announced, &[1; 256]);
    script.damaged(data_out(1, Ttt::NONE, 0, 256, false), &[1; 256]);
    assert_eq!(script.rejected().0, RejectReason::DATA_DIGEST_ERROR);
    script.pdu(data_out(1, Ttt::NONE, 1, 512, true), &[1; 512]);
    assert_eq!(ranges(&r2ts(&mut script)), [(256, 256), (1024, 2048)]);
}

#[test]
fn a_gap_in_data_sn_is_asked_for_again() {
    let mut script = Script::at_level(1);
    script.pdu(write(1, 100, 2048), &[]);
    let r2t = script.r2t();
    let placement = script.pdu(data_out(1, r2t.ttt, 1, 512, false), &[1; 512]);
    assert_eq!(placement, Placement::Task { itt: Itt(1), offset: 512 });
    script.pdu(data_out(1, r2t.ttt, 3, 1536, true), &[1; 512]);
    assert_eq!(ranges(&r2ts(&mut script)), [(0, 512), (1024, 512)]);
}

#[test]
fn sequences_in_order_are_asked_for_one_at_a_time() {
    let params = SessionParams { error_recovery_level: 1, ..params() };
    let mut script = Script::with(params, SessionConfig::default());
    script.pdu(write(1, 100, 6144), &[]);
    let first = r2ts(&mut script);
    assert_eq!(ranges(&first), [(0, 2048)], "whatever MaxOutstandingR2T says");
    script.pdu(data_out(1, first[0].ttt, 0, 0, false), &[1; 1024]);
    script.damaged(data_out(1, first[0].ttt, 1, 1024, true), &[1; 1024]);
    script.rejected();
    let again = r2ts(&mut script);
    assert_eq!(ranges(&again), [(1024, 1024)], "before the next");
    script.pdu(data_out(1, again[0].ttt, 0, 1024, true), &[1; 1024]);
    assert_eq!(ranges(&r2ts(&mut script)), [(2048, 2048)]);
}

#[test]
fn repeated_and_late_data_is_ignored() {
    let mut script = Script::at_level(1);
    script.pdu(write(1, 100, 1024), &[]);
    let r2t = script.r2t();
    let first = data_out(1, r2t.ttt, 0, 0, false);
    script.pdu(first.clone(), &[1; 512]);
    assert_eq!(script.pdu(first.clone(), &[2; 512]), Placement::Discard);
    script.pdu(data_out(1, r2t.ttt, 1, 512, true), &[1; 512]);
    assert_eq!(script.executes(script.conn), [1]);
    assert_eq!(script.pdu(first, &[2; 512]), Placement::Discard, "it executes already");
    assert!(script.sent(script.conn).is_none());
}

#[test]
fn a_path_that_damages_everything_ends_the_command() {
    let mut script = Script::at_level(1);
    script.pdu(write(1, 100, 512), &[]);
    for _ in 0..9 {
        let ttt = script.r2t().ttt;
        script.damaged(data_out(1, ttt, 0, 0, true), &[1; 512]);
        script.rejected();
    }
    let response = script.response(script.conn);
    assert_eq!(response.status, 2);
    assert_eq!(response.exp_data_sn, 0, "no Data-In was sent");
}

#[test]
fn the_end_of_such_a_command_waits_for_its_other_sequences() {
    let mut script = Script::at_level(1);
    script.pdu(write(1, 100, 4096), &[]);
    let (mut hit, other) = (script.r2t(), script.r2t());
    for _ in 0..8 {
        script.damaged(data_out(1, hit.ttt, 0, 0, true), &[1; 2048]);
        script.rejected();
        hit = script.r2t();
    }
    script.damaged(data_out(1, hit.ttt, 0, 0, true), &[1; 2048]);
    script.rejected();
    assert!(script.sent(script.conn).is_none(), "the other one is under way");
    script.pdu(data_out(1, other.ttt, 0, 2048, true), &[1; 2048]);
    assert_eq!(script.response(script.conn).status, 2);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.3
//= type=test
//# The CmdSN of the rejected command PDU (if it is a non-immediate command) MUST NOT be considered
//# received by the target (i.e., a command sequence gap must be assumed for the CmdSN), even though
//# the CmdSN of the rejected command PDU may be reliably ascertained.
#[test]
fn a_command_with_damaged_immediate_data_never_came() {
    let mut script = Script::at_level(1);
    script.damaged(write(1, 100, 512), &[1; 512]);
    assert_eq!(script.rejected().0, RejectReason::DATA_DIGEST_ERROR);
    assert!(matches!(script.session.poll_event(script.conn), Some(Event::Dropped(Itt(1)))));
    assert_eq!(script.session.task_count(), 0);
    script.pdu(command(2, 101), &[]);
    assert!(script.executes(script.conn).is_empty(), "its place is kept");
    script.pdu(write(1, 100, 512), &[1; 512]);
    assert_eq!(script.executes(script.conn), [1, 2]);
}

#[test]
fn a_damaged_ping_never_came() {
    let mut script = Script::at_level(1);
    let numbered = NopOut { immediate: false, ..ping(1, 100, 1) };
    script.damaged(numbered.clone(), b"data");
    assert_eq!(script.rejected().0, RejectReason::DATA_DIGEST_ERROR);
    script.pdu(numbered, b"data");
    assert!(
        matches!(script.sent(script.conn), Some((Pdu::NopIn(_), data)) if &data[..] == b"data")
    );
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# If the target chooses to implement this option, it MUST wait to receive all the data (signaled
//# by a data PDU with the Final bit set for all outstanding R2Ts) before sending the SCSI Response
//# PDU.
#[test]
fn level_0_answers_damage_when_all_data_has_come() {
    let mut script = Script::new();
    script.pdu(write(1, 100, 4096), &[]);
    let (first, second) = (script.r2t(), script.r2t());
    script.damaged(data_out(1, first.ttt, 0, 0, false), &[1; 1024]);
    assert_eq!(script.rejected().0, RejectReason::DATA_DIGEST_ERROR);
    script.pdu(data_out(1, second.ttt, 0, 2048, true), &[1; 2048]);
    assert!(script.sent(script.conn).is_none(), "the first burst is not over");
    script.pdu(data_out(1, first.ttt, 1, 1024, true), &[1; 1024]);
    let Some((Pdu::ScsiResponse(response), data)) = script.sent(script.conn) else { panic!() };
    assert_eq!(response.status, 2);
    assert_eq!((parse_sense(&data)[12], parse_sense(&data)[13]), (0x47, 0x05));
    assert!(script.executes(script.conn).is_empty());
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# When a target receives any iSCSI PDU with a payload digest error, it MUST answer with a Reject
//# PDU with a reason code of Data-Digest-Error and discard the PDU.
#[test]
fn level_0_rejects_a_damaged_request_and_closes_its_connection() {
    let announced = ScsiCommand { is_final: false, ..write(1, 100, 1024) };
    for (damaged, data) in [(Pdu::from(announced), [0; 512]), (ping(1, 100, 1).into(), [0; 512])] {
        let mut script = Script::new();
        script.damaged(damaged, &data);
        assert_eq!(script.rejected().0, RejectReason::DATA_DIGEST_ERROR);
        let closes = std::iter::from_fn(|| script.session.poll_event(script.conn))
            .any(|event| matches!(event, Event::Close { at_once: false, .. }));
        assert!(closes);
        script.session.handle_connection_lost(script.conn, NOW);
        assert!(script.session.is_closed());
        assert!(script.executes(script.conn).is_empty());
        assert_eq!(script.session.task_count(), 0);
    }
}

#[test]
fn pdus_of_a_sequence_come_in_any_order_if_agreed() {
    for error_recovery_level in [0, 1] {
        let params = SessionParams {
            error_recovery_level,
            data_pdu_in_order: false,
            data_sequence_in_order: false,
            ..params()
        };
        let mut script = Script::with(params, SessionConfig::default());
        let announced = ScsiCommand { is_final: false, ..write(1, 100, 5120) };
        script.pdu(announced, &[]);
        script.pdu(data_out(1, Ttt::NONE, 0, 512, false), &[1; 512]);
        script.pdu(data_out(1, Ttt::NONE, 1, 0, true), &[1; 512]);
        let (first, second) = (script.r2t(), script.r2t());
        // The later sequence first.
        script.pdu(data_out(1, second.ttt, 0, 4096, false), &[1; 1024]);
        script.pdu(data_out(1, second.ttt, 1, 3072, true), &[1; 1024]);
        script.pdu(data_out(1, first.ttt, 0, 2048, false), &[1; 1024]);
        assert!(script.executes(script.conn).is_empty());
        script.pdu(data_out(1, first.ttt, 1, 1024, true), &[1; 1024]);
        assert_eq!(script.executes(script.conn), [1], "level {error_recovery_level}");
    }
}
