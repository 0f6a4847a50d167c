//! Single sentences of RFC 7143 that no other test of the target checks.

use super::*;

/// Sends a command on `conn` and lets it be executed.
fn execute(script: &mut Script, conn: ConnId, command: ScsiCommand) {
    let itt = command.itt.0;
    script.try_pdu(conn, command, &[]).unwrap();
    assert_eq!(script.executes(conn), [itt]);
}

fn function(function: TaskManagementFunction, itt: u32, cmd_sn: u32) -> TaskManagementRequest {
    TaskManagementRequest { function, ..abort(itt, cmd_sn, Itt::NONE.0, 0) }
}

fn management_response(script: &mut Script) -> TaskManagementResponseCode {
    match script.said(script.conn) {
        Some((Pdu::TaskManagementResponse(response), data)) => {
            assert!(data.is_empty());
            response.response
        }
        other => panic!("expected a task management response, got {other:?}"),
    }
}

fn scsi_response(script: &mut Script) -> ScsiResponse {
    match script.sent(script.conn) {
        Some((Pdu::ScsiResponse(response), _)) => response,
        other => panic!("expected a SCSI response, got {other:?}"),
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.1
//= type=test
//# For any iSCSI request issued over a TCP connection, the corresponding response and/or other
//# related PDU(s) MUST be sent over the same connection.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.1
//= type=test
//# Thus, if an initiator issues a read command, the target MUST send the requested data, if any,
//# followed by the status, to the initiator over the same TCP connection that was used to deliver
//# the SCSI command.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.1
//= type=test
//# The target MUST return Ready To Transfer (R2T), if any, and the status over the same TCP
//# connection that was used to deliver the SCSI command.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.2
//= type=test
//# The target MUST NOT set to 1 the A bit for sessions with ErrorRecoveryLevel=0.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.8.1
//= type=test
//# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.8.5
//= type=test
//# There is no protocol rule about the Target Transfer Tag except that the value 0xffffffff is
//# reserved and MUST NOT be sent by a target in an R2T.
#[test]
fn everything_of_a_command_stays_on_its_connection() {
    let mut script = Script::new();
    let second = script.join(2);
    script.try_pdu(second, write(1, 100, 2048), &[]).unwrap();
    assert!(script.sent(script.conn).is_none());
    let Some((Pdu::R2t(r2t), data)) = script.sent(second) else { panic!("expected an R2T") };
    assert!(data.is_empty() && r2t.ttt != Ttt::NONE);
    script.try_pdu(second, data_out(1, r2t.ttt, 0, 0, true), &[0; 2048]).unwrap();
    assert_eq!(script.executes(second), [1]);
    execute(&mut script, second, read(2, 101, 512));
    script.session.complete(Itt(1), Completion { wanted_length: 2048, ..Completion::default() });
    script.session.complete(Itt(2), good(&[7; 512]));
    assert!(script.sent(script.conn).is_none());
    assert!(matches!(script.sent(second), Some((Pdu::ScsiResponse(_), _))));
    match script.sent(second) {
        Some((Pdu::DataIn(pdu), data)) => {
            assert!(!pdu.acknowledge && pdu.status.is_some());
            assert_eq!(&data[..], [7; 512]);
        }
        other => panic!("expected data, got {other:?}"),
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# An iSCSI target MUST be able to handle at least one immediate task management command and one
//# immediate non-task-management iSCSI command per connection at any time.
#[test]
fn immediate_requests_are_taken_while_the_window_is_full() {
    let config = SessionConfig { command_window: 1, ..SessionConfig::default() };
    let mut script = Script::with(params(), config);
    script.pdu(write(1, 100, 2048), &[]);
    script.r2t();
    script.pdu(command(2, 101), &[]);
    assert_eq!(script.session.task_count(), 1, "the window is full");
    let immediate = ScsiCommand { immediate: true, ..command(3, 101) };
    script.pdu(immediate, &[]);
    assert_eq!(script.executes(script.conn), [3]);
    script.pdu(abort(4, 101, 1, 100), &[]);
    assert_eq!(management_response(&mut script), TaskManagementResponseCode::COMPLETE);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# Testing for the execution state (represented by identifying the Initiator Task Tag) MUST precede
//# any other action at the target.
#[test]
fn a_tag_in_use_is_found_before_anything_else_is_done() {
    let mut script = Script::new();
    let conn = script.conn;
    execute(&mut script, conn, command(1, 100));
    script.pdu(command(1, 100), &[]);
    assert!(script.sent(script.conn).is_none(), "a retry of what is executing");
    script.pdu(command(1, 101), &[]);
    match script.sent(script.conn) {
        Some((Pdu::Reject(reject), _)) => assert_eq!(reject.reason, RejectReason::TASK_IN_PROGRESS),
        other => panic!("expected a reject, got {other:?}"),
    }
    assert!(script.executes(conn).is_empty());
    assert_eq!(script.session.task_count(), 1);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
//= type=test
//# MUST propagate the TMF Request to, and receive the response from, the target SCSI layer.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# For the LOGICAL UNIT RESET function, the target MUST behave as dictated by the Logical Unit
//# Reset function in [SAM2].
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.6.2
//= type=test
//# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
#[test]
fn a_reset_is_handed_to_the_scsi_layer_and_answered_when_that_has() {
    let mut script = Script::new();
    script.pdu(write(1, 100, 2048), &[]);
    let ttt = script.r2t().ttt;
    script.pdu(function(TaskManagementFunction::LOGICAL_UNIT_RESET, 2, 101), &[]);
    assert_eq!(script.session.task_count(), 1, "its transfer tag is still valid");
    script.pdu(data_out(1, ttt, 0, 0, true), &[0; 2048]);
    assert_eq!(script.session.task_count(), 0);
    assert!(script.said(script.conn).is_none());
    let asked = std::iter::from_fn(|| script.session.poll_event(script.conn));
    let asked: Vec<Event> = asked.collect();
    let reset = TaskManagementFunction::LOGICAL_UNIT_RESET;
    assert!(asked.iter().any(
        |e| matches!(e, Event::Management { itt: Itt(2), function, .. } if *function == reset)
    ));
    script.session.management_done(Itt(2), TaskManagementResponseCode::COMPLETE);
    assert_eq!(management_response(&mut script), TaskManagementResponseCode::COMPLETE);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# Additionally, the target MUST treat the TARGET COLD RESET function as a power-on event, thus
//# terminating all of its TCP connections to all initiators (all sessions are terminated).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.6.1
//= type=test
//# For the TARGET COLD RESET function, the target MUST then close all of its TCP connections to all
//# initiators (terminates all sessions).
#[test]
fn a_cold_reset_closes_every_connection_behind_its_answer() {
    let mut script = Script::new();
    let second = script.join(2);
    let cold = TaskManagementFunction::TARGET_COLD_RESET;
    script.pdu(function(cold, 2, 100), &[]);
    script.session.management_done(Itt(2), TaskManagementResponseCode::COMPLETE);
    assert!(!script.session.is_closed());
    assert_eq!(management_response(&mut script), TaskManagementResponseCode::COMPLETE);
    assert!(script.session.is_closed());
    for conn in [script.conn, second] {
        let events = std::iter::from_fn(|| script.session.poll_event(conn));
        assert!(events.into_iter().any(|event| matches!(event, Event::Close { .. })));
    }
    // A warm reset leaves them alone.
    let mut script = Script::new();
    script.pdu(function(TaskManagementFunction::TARGET_WARM_RESET, 2, 100), &[]);
    script.session.management_done(Itt(2), TaskManagementResponseCode::COMPLETE);
    assert_eq!(management_response(&mut script), TaskManagementResponseCode::COMPLETE);
    assert!(!script.session.is_closed());
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# At the target, an ABORT TASK function MUST NOT be executed on a task management request; such a
//# request MUST result in a task management response of "Function rejected".
#[test]
fn a_function_cannot_be_aborted() {
    let mut script = Script::new();
    let conn = script.conn;
    execute(&mut script, conn, write(1, 100, 0));
    script.pdu(abort(2, 101, 1, 100), &[]);
    script.pdu(abort(3, 101, 2, 101), &[]);
    assert_eq!(management_response(&mut script), TaskManagementResponseCode::REJECTED);
    // Nor one that waits for commands before it.
    script.pdu(function(TaskManagementFunction::ABORT_TASK_SET, 4, 105), &[]);
    script.pdu(abort(5, 101, 4, 105), &[]);
    assert_eq!(management_response(&mut script), TaskManagementResponseCode::REJECTED);
    script.session.complete(Itt(1), Completion::default());
    assert_eq!(management_response(&mut script), TaskManagementResponseCode::COMPLETE);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.11
//= type=test
//# If the abort request is received and the target can determine (based on the Referenced Task Tag)
//# that the command was received and executed, and also that the response was sent prior to the
//# abort, then the target MUST respond with the response code "Task Does Not Exist".
#[test]
fn an_abort_of_what_was_answered_says_that_there_is_no_task() {
    let mut script = Script::new();
    let conn = script.conn;
    execute(&mut script, conn, command(1, 100));
    script.session.complete(Itt(1), Completion::default());
    scsi_response(&mut script);
    script.pdu(abort(2, 101, 1, 100), &[]);
    assert_eq!(management_response(&mut script), TaskManagementResponseCode::TASK_DOES_NOT_EXIST);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.2
//= type=test
//# If SPDTL > EDTL for a task, iSCSI Overflow MUST be signaled in the SCSI Response PDU as
//# specified in Section 11.4.5.1.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.2
//= type=test
//# The Residual Count MUST be set to the numerical value of (SPDTL - EDTL).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.2
//= type=test
//# If SPDTL < EDTL for a task, iSCSI Underflow MUST be signaled in the SCSI Response PDU as
//# specified in Section 11.4.5.1.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.2
//= type=test
//# The Residual Count MUST be set to the numerical value of (EDTL - SPDTL).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.3
//= type=test
//# If all of the LU inventory data presented to the iSCSI layer -- i.e., the data remaining after
//# any SCSI truncation -- is transferred to the initiator by the iSCSI layer, an iSCSI Residual
//# Overflow has not occurred and the iSCSI (O) bit MUST NOT be set in the SCSI Response or final
//# SCSI Data-Out PDU.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.3
//= type=test
//# However, if the iSCSI EDTL is larger than the ALLOCATION LENGTH in this scenario, note that the
//# iSCSI Underflow MUST be signaled in the SCSI Response PDU.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.5.3
//= type=test
//# An iSCSI Underflow MUST also be signaled when the iSCSI EDTL is equal to the ALLOCATION LENGTH
//# but the LU inventory data presented to the iSCSI layer is smaller than the ALLOCATION LENGTH.
#[test]
fn residuals_tell_what_was_wanted_against_what_was_expected() {
    for (expected, wanted, sent, residual) in [
        (512, 600, 600, Residual::Overflow(88)),
        (512, 512, 512, Residual::None),
        (512, 100, 100, Residual::Underflow(412)),
    ] {
        let mut script = Script::new();
        let conn = script.conn;
        execute(&mut script, conn, read(1, 100, expected));
        let data_in = Bytes::from(vec![0; sent]);
        let completion = Completion { data_in, wanted_length: wanted, ..Completion::default() };
        script.session.complete(Itt(1), completion);
        match script.sent(conn) {
            Some((Pdu::DataIn(pdu), data)) => {
                assert_eq!(data.len(), sent.min(expected as usize));
                assert_eq!(pdu.status.map(|status| status.residual), Some(residual));
            }
            other => panic!("expected data, got {other:?}"),
        }
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.8
//= type=test
//# This field MUST be 0 if the response code is not Command Completed at Target or the target sent
//# no Data-In PDUs for the command.
#[test]
fn exp_data_sn_counts_data_in_only() {
    let mut script = Script::new();
    script.pdu(write(1, 100, 2048), &[]);
    let ttt = script.r2t().ttt;
    script.pdu(data_out(1, ttt, 0, 0, true), &[0; 2048]);
    script.session.complete(Itt(1), Completion { wanted_length: 2048, ..Completion::default() });
    assert_eq!(scsi_response(&mut script).exp_data_sn, 0);
    let conn = script.conn;
    script.executes(conn);
    execute(&mut script, conn, read(2, 101, 4096));
    let sense = Bytes::from_static(&[0x70; 18]);
    let data_in = Bytes::from(vec![0; 2048]);
    let completion =
        Completion { status: 2, sense, data_in, wanted_length: 4096, ..Completion::default() };
    script.session.complete(Itt(2), completion);
    for _ in 0..2 {
        assert!(matches!(script.sent(conn), Some((Pdu::DataIn(pdu), _)) if pdu.status.is_none()));
    }
    assert_eq!(scsi_response(&mut script).exp_data_sn, 2);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.3
//= type=test
//# For bidirectional commands, the status MUST be sent in a SCSI Response PDU.
#[test]
fn status_of_a_bidirectional_command_comes_in_a_response_of_its_own() {
    let mut script = Script::new();
    let both = ScsiCommand { read: true, bidi_read_length: Some(512), ..write(1, 100, 4) };
    script.pdu(both, &[1; 4]);
    assert_eq!(script.executes(script.conn), [1]);
    let data_in = Bytes::from(vec![0; 512]);
    script.session.complete(Itt(1), Completion { data_in, wanted_length: 4, ..Default::default() });
    let conn = script.conn;
    assert!(matches!(script.sent(conn), Some((Pdu::DataIn(pdu), _)) if pdu.status.is_none()));
    assert_eq!(scsi_response(&mut script).status, 0);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.3
//= type=test
//# As the Initiator Task Tag is used to identify a task during its execution, the iSCSI initiator
//# and target MUST verify that all other fields used in task-related PDUs have values that are
//# consistent with the values used at the task instantiation, based on the Initiator Task Tag
//# (e.g., the LUN used in an R2T PDU MUST be the same as the one used in the SCSI Command PDU used
//# to instantiate the task).
#[test]
fn data_for_another_unit_than_the_commands_is_refused() {
    let mut script = Script::new();
    script.pdu(write(1, 100, 1024), &[]);
    let ttt = script.r2t().ttt;
    let elsewhere = DataOut { lun: Lun(1 << 48), ..data_out(1, ttt, 0, 0, true) };
    assert!(script.try_pdu(script.conn, elsewhere, &[0; 1024]).is_err());
    assert!(script.executes(script.conn).is_empty());
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.7
//= type=test
//# The sending of 0-length data segments should be avoided, but initiators and targets MUST be able
//# to properly receive 0-length data segments.
#[test]
fn empty_data_out_segments_are_received() {
    let mut script = Script::new();
    script.pdu(write(1, 100, 1024), &[]);
    let ttt = script.r2t().ttt;
    assert_eq!(script.pdu(data_out(1, ttt, 0, 0, false), &[]), Placement::None);
    script.pdu(data_out(1, ttt, 1, 0, true), &[0; 1024]);
    assert_eq!(script.executes(script.conn), [1]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-13.11
//= type=test
//# If ImmediateData is set to No and InitialR2T is set to Yes, then the initiator MUST NOT send
//# unsolicited data and the target MUST reject unsolicited data with the corresponding response
//# code.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.17.1
//= type=test
//# If the error is detected while data from the initiator is still expected (i.e., the command PDU
//# did not contain all the data and the target has not received a Data-Out PDU with the Final bit
//# set to 1 for the unsolicited data, if any, and all outstanding R2Ts, if any), the target MUST
//# wait until it receives the last expected Data-Out PDUs with the F bit set to 1 before sending
//# the Response PDU.
#[test]
fn without_immediate_data_and_unsolicited_data_neither_is_taken() {
    let params = SessionParams { initial_r2t: true, immediate_data: false, ..params() };
    for (is_final, data) in [(true, &[0; 4][..]), (false, &[])] {
        let mut script = Script::with(params, SessionConfig::default());
        script.pdu(ScsiCommand { is_final, ..write(1, 100, 512) }, data);
        if !is_final {
            assert!(script.sent(script.conn).is_none(), "it has announced more");
            let placement = script.pdu(data_out(1, Ttt::NONE, 0, 0, true), &[1; 512]);
            assert_eq!(placement, Placement::Discard);
        }
        assert_eq!(scsi_response(&mut script).status, 2);
        assert!(script.executes(script.conn).is_empty());
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
//= type=test
//# When a target does not support allegiance reassignment, it MUST respond with a task management
//# response code of "Task allegiance reassignment not supported".
#[test]
fn reassignment_is_not_supported_at_level_0() {
    let mut script = Script::new();
    script.pdu(function(TaskManagementFunction::TASK_REASSIGN, 2, 100), &[]);
    let code = management_response(&mut script);
    assert_eq!(code, TaskManagementResponseCode::REASSIGNMENT_NOT_SUPPORTED);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.18.1
//= type=test
//# When a target receives the NOP-Out with a valid Initiator Task Tag, it MUST respond with a
//# NOP-In Response (see Section 4.6.3.6).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.19
//= type=test
//# When a target receives the NOP-Out with a valid Initiator Task Tag (not the reserved value
//# 0xffffffff), it MUST respond with a NOP-In with the same Initiator Task Tag that was provided in
//# the NOP-Out request.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.19
//= type=test
//# It MUST also duplicate up to the first MaxRecvDataSegmentLength bytes of the initiator-provided
//# Ping Data.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.19
//= type=test
//# For such a response, the Target Transfer Tag MUST be 0xffffffff.
#[test]
fn a_ping_is_answered_with_its_tag_and_data() {
    let mut script = Script::new();
    let ping = NopOut {
        immediate: true,
        lun: Lun(5),
        itt: Itt(9),
        ttt: Ttt::NONE,
        cmd_sn: CmdSn(100),
        exp_stat_sn: StatSn(1),
    };
    let data: Vec<u8> = (0..2000).map(|i| i as u8).collect();
    script.pdu(ping.clone(), &data);
    match script.sent(script.conn) {
        Some((Pdu::NopIn(pong), echoed)) => {
            assert_eq!((pong.itt, pong.ttt), (Itt(9), Ttt::NONE));
            assert_eq!(&echoed[..], &data[..1024], "as much as the initiator takes");
        }
        other => panic!("expected a NOP-In, got {other:?}"),
    }
    script.pdu(NopOut { itt: Itt::NONE, ..ping }, &[]);
    assert!(script.sent(script.conn).is_none(), "no answer was asked for");
}

fn text_request(ttt: Ttt, is_final: bool, continues: bool) -> TextRequest {
    let (lun, itt) = (Lun(3), Itt(9));
    let (cmd_sn, exp_stat_sn) = (CmdSn(100), StatSn(1));
    TextRequest { immediate: true, is_final, continues, lun, itt, ttt, cmd_sn, exp_stat_sn }
}

fn text_response(script: &mut Script) -> (TextResponse, Bytes) {
    match script.sent(script.conn) {
        Some((Pdu::TextResponse(response), text)) => (response, text),
        other => panic!("expected a text response, got {other:?}"),
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# A target receiving a Text or Login Request with the C bit set to 1 MUST answer with a Text or
//# Login Response with no data segment (DataSegmentLength 0).
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.4
//= type=test
//# Whenever the target responds with the F bit set to 0, it MUST set the Target Transfer Tag to a
//# value other than the default 0xffffffff.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.4
//= type=test
//# It MUST do so whenever it sets the F bit to 0 in the response.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.10.4
//= type=test
//# If the Target Transfer Tag is not 0xffffffff, the LUN field MUST be sent by the target in the
//# Text Response.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.1
//= type=test
//# A Text Response with the F bit set to 1 MUST have a Target Transfer Tag field set to the
//# reserved value 0xffffffff.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.1
//= type=test
//# A Text Response with the F bit set to 0 MUST have a Target Transfer Tag field set to a value
//# other than the reserved value 0xffffffff.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.4
//= type=test
//# When a target has more work to do (e.g., cannot transfer all the remaining text data in a single
//# Text Response or has to continue the negotiation) and has enough resources to proceed, it MUST
//# set the Target Transfer Tag to a value other than the reserved value 0xffffffff.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.4
//= type=test
//# Otherwise, the Target Transfer Tag MUST be set to 0xffffffff.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.11.6
//= type=test
//# The data lengths of a Text Response MUST NOT exceed the iSCSI initiator MaxRecvDataSegmentLength
//# (a parameter that is negotiated per connection and per direction).
#[test]
fn text_that_goes_on_has_a_tag_and_text_that_ends_has_none() {
    let mut script = Script::new();
    let conn = script.conn;
    // Half of the request: it is answered by nothing but the tag.
    script.pdu(text_request(Ttt::NONE, false, true), b"SendTargets=");
    let (response, text) = text_response(&mut script);
    assert!(!response.is_final && !response.continues && text.is_empty());
    assert!(response.ttt != Ttt::NONE && response.lun == Lun(3));
    script.pdu(text_request(response.ttt, true, false), b"All\0");
    match script.session.poll_event(conn) {
        Some(Event::Text { itt: Itt(9), text }) => assert_eq!(&text[..], b"SendTargets=All\0"),
        other => panic!("expected text, got {other:?}"),
    }
    // An answer of three PDUs.
    let answer: Bytes = (0..2500).map(|i| i as u8).collect();
    script.session.text_reply(conn, Itt(9), answer.clone());
    let mut whole = Vec::new();
    for piece in 0..3 {
        let (response, text) = text_response(&mut script);
        assert!(text.len() <= 1024);
        whole.extend_from_slice(&text);
        let ends = piece == 2;
        assert_eq!((response.is_final, response.continues), (ends, !ends));
        assert_eq!(response.ttt == Ttt::NONE, ends);
        if !ends {
            assert_eq!(response.lun, Lun(3));
            script.pdu(text_request(response.ttt, true, false), &[]);
        }
    }
    assert_eq!(whole, answer);
}
