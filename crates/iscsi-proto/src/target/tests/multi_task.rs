//! Functions that end many tasks (§4.2.3.3, §4.2.3.4), response fences (§4.2.2.3), and the
//! functions of RFC 7144.

use super::*;
use crate::keys::TaskReporting;
use crate::pdu::TaskManagementFunction as F;
use crate::pdu::TaskManagementResponseCode as R;

fn script(task_reporting: TaskReporting) -> Script {
    let params = SessionParams { task_reporting, protocol_level: 2, ..params() };
    Script::with(params, SessionConfig::default())
}

fn function(function: F, itt: u32, cmd_sn: u32) -> TaskManagementRequest {
    TaskManagementRequest { function, ..abort(itt, cmd_sn, Itt::NONE.0, 0) }
}

fn query(referenced: u32, itt: u32, cmd_sn: u32) -> TaskManagementRequest {
    TaskManagementRequest { function: F::QUERY_TASK, ..abort(itt, cmd_sn, referenced, 100) }
}

fn answer(script: &mut Script, conn: ConnId) -> (R, [u8; 3]) {
    match script.said(conn) {
        Some((Pdu::TaskManagementResponse(pdu), _)) => (pdu.response, pdu.information),
        other => panic!("expected an answer to task management, got {other:?}"),
    }
}

/// What the shell is asked to do.
fn asked(script: &mut Script, conn: ConnId) -> Vec<F> {
    std::iter::from_fn(|| script.session.poll_event(conn))
        .filter_map(|event| match event {
            Event::Management { function, .. } => Some(function),
            _ => None,
        })
        .collect()
}

fn own(script: &mut Script) -> (R, [u8; 3]) {
    answer(script, script.conn)
}

fn own_asked(script: &mut Script) -> Vec<F> {
    asked(script, script.conn)
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
//= type=test
//# MUST wait for responses on currently valid Target Transfer Tags of the affected tasks from the
//# issuing initiator.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# The target for its part MUST wait for responses on all affected Target Transfer Tags before
//# acting on either of these two task management requests.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
//= type=test
//# All iSCSI implementations MUST support the protocol behavior defined in this section as the
//# default behavior.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.23
//= type=test
//# The following table describes the semantics that an iSCSI target MUST support for respective
//# negotiated key values.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.23
//= type=test
//# When TaskReporting is not negotiated to FastAbort, the standard multi-task abort semantics in
//# Section 4.2.3.3 MUST be used.
#[test]
fn a_reset_waits_for_the_data_of_r2ts_that_were_sent() {
    let mut script = script(TaskReporting::ResponseFence);
    script.pdu(write(1, 100, 3000), &[]);
    let r2t = script.r2t();
    script.pdu(function(F::LOGICAL_UNIT_RESET, 9, 101), &[]);
    assert_eq!(own_asked(&mut script), [F::LOGICAL_UNIT_RESET]);
    script.session.management_done(Itt(9), R::COMPLETE);
    // The second R2T was not sent yet: it never is.
    assert!(script.sent(script.conn).is_none());
    let placement = script.pdu(data_out(1, r2t.ttt, 0, 0, false), &[1; 1024]);
    assert_eq!(placement, Placement::Discard);
    assert!(script.sent(script.conn).is_none(), "the sequence goes on");
    script.pdu(data_out(1, r2t.ttt, 1, 1024, true), &[1; 1024]);
    assert_eq!(own(&mut script).0, R::COMPLETE);
    assert_eq!(script.session.task_count(), 0);
    assert!(!script.session.is_draining());
    assert!(script.executes(script.conn).is_empty());
}

#[test]
fn an_initiator_that_sends_no_more_data_has_its_answer_all_the_same() {
    let mut script = script(TaskReporting::Rfc3720);
    script.pdu(write(1, 100, 3000), &[]);
    script.r2t();
    script.pdu(function(F::ABORT_TASK_SET, 9, 101), &[]);
    assert!(script.sent(script.conn).is_none());
    let due = script.session.poll_timeout(script.conn).unwrap();
    assert_eq!(due, NOW + SessionConfig::default().drain_timeout);
    assert!(script.session.handle_timeout(script.conn, due));
    assert_eq!(own(&mut script).0, R::COMPLETE);
    assert_eq!(script.session.task_count(), 0);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-13.23
//= type=test
//# The following table describes the semantics that an iSCSI target MUST support for respective
//# negotiated key values.
#[test]
fn fast_abort_waits_for_no_data_and_tells_the_other_connections() {
    let mut script = script(TaskReporting::FastAbort);
    let second = script.join(2);
    script.pdu(write(1, 100, 3000), &[]);
    let r2t = script.r2t();
    script.try_pdu(second, write(2, 101, 3000), &[]).unwrap();
    let other = ScsiCommand { lun: Lun(1 << 48), ..write(3, 102, 3000) };
    script.try_pdu(second, other, &[]).unwrap();
    script.all_sent(second);
    script.pdu(function(F::LOGICAL_UNIT_RESET, 9, 103), &[]);
    assert!(script.all_sent(second).is_empty(), "the device server first");
    script.session.management_done(Itt(9), R::COMPLETE);
    let told = script.all_sent(second);
    let [(Pdu::AsyncMessage(message), _)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((message.event, message.lun), (AsyncEvent::TASK_TERMINATION, Lun(0)));
    assert_eq!(own(&mut script).0, R::COMPLETE);
    assert!(
        !script.all_sent(script.conn).iter().any(|(pdu, _)| matches!(pdu, Pdu::AsyncMessage(_))),
        "the issuing connection is not told"
    );
    assert_eq!(script.session.task_count(), 1, "that of the other unit");
    // Late data is thrown away.
    let placement = script.pdu(data_out(1, r2t.ttt, 0, 0, false), &[0; 1024]);
    assert_eq!(placement, Placement::Discard);
}

#[test]
fn a_third_party_is_told_only_under_fast_abort() {
    for (reporting, told) in [(TaskReporting::FastAbort, 1), (TaskReporting::ResponseFence, 0)] {
        let mut script = script(reporting);
        script.pdu(write(1, 100, 3000), &[]);
        script.all_sent(script.conn);
        let messages = |script: &mut Script| {
            let sent = script.all_sent(script.conn);
            sent.iter().filter(|(pdu, _)| matches!(pdu, Pdu::AsyncMessage(_))).count()
        };
        script.session.abort_all(Some(Lun(0)));
        assert_eq!(messages(&mut script), told, "{reporting:?}");
        script.session.abort_all(Some(Lun(0)));
        assert_eq!(messages(&mut script), 0, "no task is affected any more");
    }
}

/// A status on each of two connections, unacknowledged, and a function over both.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.3.2
//= type=test
//# Whenever the Response Fence behavior is required for a SCSI response message, the target iSCSI
//# layer MUST ensure that the following conditions are met in delivering the response message to
//# the initiator iSCSI layer:
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.3.2
//= type=test
//# A response with a Response Fence MUST be delivered chronologically after all the "preceding"
//# responses on the I_T_L nexus, if the preceding responses are delivered at all, to the initiator
//# iSCSI layer.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.3.2
//= type=test
//# A response with a Response Fence MUST be delivered chronologically prior to all the "following"
//# responses on the I_T_L nexus.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
//= type=test
//# MUST provide the Response Fence behavior for the TMF Response on the issuing session as
//# specified in Section 4.2.2.3.2.
#[test]
fn the_answer_to_a_function_waits_for_acknowledgements_and_holds_what_follows() {
    let mut script = script(TaskReporting::ResponseFence);
    let (first, second) = (script.conn, script.join(2));
    script.try_pdu(second, command(1, 100), &[]).unwrap();
    script.session.complete(Itt(1), good(b""));
    assert_eq!(script.response(second).itt, Itt(1));
    script.pdu(command(2, 101), &[]);
    script.session.complete(Itt(2), good(b"")); // not sent yet
    script.pdu(command(3, 102), &[]);
    script.pdu(function(F::ABORT_TASK_SET, 9, 101), &[]);
    assert_eq!(script.executes(first), [2, 3]);
    assert!(script.sent(second).is_none());
    assert_eq!(script.response(first).itt, Itt(2), "it precedes the fence");
    assert!(matches!(script.sent(second), Some((Pdu::NopIn(_), _))), "asks to acknowledge");
    assert!(matches!(script.sent(first), Some((Pdu::NopIn(_), _))));
    script.session.complete(Itt(3), good(b""));
    script.try_pdu(first, ping(Itt::NONE.0, 103, 2), &[]).unwrap();
    assert!(script.sent(first).is_none(), "the second connection is missing");
    script.try_pdu(second, ping(Itt::NONE.0, 103, 2), &[]).unwrap();
    assert_eq!(answer(&mut script, first).0, R::COMPLETE);
    assert!(matches!(script.sent(first), Some((Pdu::NopIn(_), _))));
    assert!(script.sent(first).is_none(), "3 is held behind the fence");
    script.try_pdu(first, ping(Itt::NONE.0, 103, 3), &[]).unwrap();
    assert_eq!(script.response(first).itt, Itt(3));
}

#[test]
fn a_fence_does_not_wait_for_a_connection_that_is_lost() {
    let mut params = SessionParams { task_reporting: TaskReporting::FastAbort, ..params() };
    (params.error_recovery_level, params.data_sequence_in_order) = (2, false);
    let mut script = Script::with(params, SessionConfig::default());
    let second = script.join(2);
    script.try_pdu(second, command(1, 100), &[]).unwrap();
    script.session.complete(Itt(1), good(b""));
    script.response(second);
    script.pdu(function(F::ABORT_TASK_SET, 9, 101), &[]);
    assert!(script.sent(script.conn).is_none());
    script.session.handle_connection_lost(second, NOW);
    assert_eq!(own(&mut script).0, R::COMPLETE);
}

/// Answers that precede a fence, one sent and one not, go on on another connection: they still
/// precede it.
#[test]
fn answers_that_another_connection_takes_over_stay_before_the_fence() {
    for sent in [true, false] {
        let mut params = SessionParams { task_reporting: TaskReporting::FastAbort, ..params() };
        (params.error_recovery_level, params.data_sequence_in_order) = (2, false);
        let mut script = Script::with(params, SessionConfig::default());
        let (first, second, third) = (script.conn, script.log_in(2, NOW), script.log_in(3, NOW));
        script.try_pdu(third, command(1, 100), &[]).unwrap();
        script.session.complete(Itt(1), good(b""));
        script.response(third);
        // Of a unit that the function is not about: it would end one that is not sent.
        let other = ScsiCommand { lun: Lun(u64::from(!sent) << 48), ..command(2, 101) };
        script.try_pdu(second, other, &[]).unwrap();
        assert_eq!(script.executes(second), [2]);
        script.session.complete(Itt(2), good(b""));
        if sent {
            script.response(second);
        }
        script.pdu(function(F::ABORT_TASK_SET, 9, 102), &[]);
        script.session.handle_connection_lost(second, NOW);
        let logout = LogoutRequest {
            immediate: true,
            reason: LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY,
            itt: Itt(90),
            cid: Cid(2),
            cmd_sn: CmdSn(102),
            exp_stat_sn: StatSn(1),
        };
        script.pdu(logout, &[]);
        let reassign = function(F::TASK_REASSIGN, 91, 102);
        script.pdu(TaskManagementRequest { referenced_task_tag: Itt(2), ..reassign }, &[]);
        let out = script.all_sent(first);
        let answered = |(pdu, _): &(Pdu, Bytes)| match pdu {
            Pdu::ScsiResponse(response) => Some(response.itt),
            Pdu::TaskManagementResponse(response) => Some(response.itt),
            _ => None,
        };
        let order: Vec<Itt> = out.iter().filter_map(answered).collect();
        assert_eq!(order, [Itt(91), Itt(2)], "{out:?}");
        for conn in [first, third] {
            script.try_pdu(conn, ping(Itt::NONE.0, 102, 4), &[]).unwrap();
            script.try_pdu(conn, ping(Itt::NONE.0, 102, 2), &[]).unwrap();
        }
        let out = script.all_sent(first);
        assert_eq!(out.iter().find_map(answered), Some(Itt(9)), "{out:?}");
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.3.4
//= type=test
//# This section lists the situations in which fenced response behavior is REQUIRED in iSCSI target
//# implementations.
#[test]
fn the_unit_attention_about_a_reset_and_preempt_and_abort_are_fenced() {
    let attention = |itt| {
        let mut sense = vec![0; 18];
        (sense[0], sense[2]) = (0x70, 6);
        (Itt(itt), Completion { status: 2, sense: sense.into(), ..Completion::default() })
    };
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x5f, 5);
    for preempts in [false, true] {
        let mut script = script(TaskReporting::ResponseFence);
        let (first, second) = (script.conn, script.join(2));
        script.try_pdu(second, command(1, 100), &[]).unwrap();
        script.session.complete(Itt(1), good(b""));
        script.response(second);
        if !preempts {
            script.session.abort_all(Some(Lun(0)));
        }
        let fenced = ScsiCommand { cdb: if preempts { cdb } else { [0; 16] }, ..command(2, 101) };
        script.pdu(fenced, &[]);
        script.pdu(command(3, 102), &[]);
        let (itt, completion) = attention(2);
        script.session.complete(itt, completion);
        script.session.complete(Itt(3), good(b""));
        assert!(script.sent(first).is_none(), "1 is not acknowledged");
        script.try_pdu(second, ping(Itt::NONE.0, 103, 2), &[]).unwrap();
        assert_eq!(script.response(first).itt, Itt(2));
        assert!(matches!(script.sent(first), Some((Pdu::NopIn(_), _))));
        assert!(script.sent(first).is_none());
        script.try_pdu(first, ping(Itt::NONE.0, 103, 2), &[]).unwrap();
        assert_eq!(script.response(first).itt, Itt(3));
    }
}

// RFC 7144 §6.3:
// At the target, a QUERY TASK function MUST NOT be executed on a Task
// Management request; such a request MUST result in Task Management
// response of "Function rejected".
#[test]
fn queries_tell_what_is_there_and_end_nothing() {
    let mut script = script(TaskReporting::FastAbort);
    let conn = script.conn;
    script.pdu(write(1, 100, 512), &[0; 512]);
    for (request, expected) in [
        (query(1, 9, 101), R::SUCCEEDED),
        (query(7, 9, 101), R::COMPLETE),
        (TaskManagementRequest { lun: Lun(1), ..query(1, 9, 101) }, R::COMPLETE),
        (function(F::QUERY_TASK_SET, 9, 101), R::SUCCEEDED),
    ] {
        script.pdu(request, &[]);
        assert_eq!(answer(&mut script, conn), (expected, [0; 3]));
    }
    assert_eq!(script.executes(conn), [1]);
    script.pdu(abort(8, 101, 1, 100), &[]); // waits for the command
    script.pdu(query(8, 9, 101), &[]);
    assert_eq!(answer(&mut script, conn).0, R::REJECTED);
    script.pdu(abort(9, 101, 8, 101), &[]);
    assert_eq!(answer(&mut script, conn).0, R::REJECTED);
    script.pdu(function(F::QUERY_TASK_SET, 9, 101), &[]);
    assert_eq!(asked(&mut script, conn), [F::QUERY_TASK_SET], "an aborted task does not count");
    script.session.management_done(Itt(9), R::LUN_DOES_NOT_EXIST);
    assert_eq!(answer(&mut script, conn).0, R::LUN_DOES_NOT_EXIST);
    script.pdu(function(F::QUERY_ASYNCHRONOUS_EVENT, 9, 101), &[]);
    assert_eq!(asked(&mut script, conn), [F::QUERY_ASYNCHRONOUS_EVENT]);
    script.session.query_done(Itt(9), R::SUCCEEDED, [0x16, 0x2a, 9]);
    assert_eq!(answer(&mut script, conn), (R::SUCCEEDED, [0x16, 0x2a, 9]));
}

#[test]
fn a_query_does_not_fill_the_place_of_a_command_that_is_missing() {
    let mut script = script(TaskReporting::FastAbort);
    script.pdu(query(1, 9, 101), &[]);
    assert_eq!(own(&mut script).0, R::COMPLETE);
    script.pdu(command(1, 100), &[]);
    assert_eq!(script.executes(script.conn), [1]);
}

#[test]
fn below_level_2_the_new_functions_are_not_supported_and_fields_are_ignored() {
    let mut script = Script::new();
    for code in 9..=12 {
        script.pdu(function(F(code), 9, 100), &[]);
        assert_eq!(own(&mut script).0, R::NOT_SUPPORTED);
    }
    for level in [1, 2] {
        let params = SessionParams { protocol_level: level, ..params() };
        let mut script = Script::with(params, SessionConfig::default());
        script.pdu(ScsiCommand { priority: 7, ..command(1, 100) }, &[]);
        let Some(Event::Execute(execute)) = script.session.poll_event(script.conn) else {
            panic!()
        };
        assert_eq!(execute.priority, if level == 2 { 7 } else { 0 });
        let full = Completion { status: 0x28, status_qualifier: 3, ..Completion::default() };
        script.session.complete(Itt(1), full);
        let response = script.response(script.conn);
        assert_eq!(response.status_qualifier, if level == 2 { 3 } else { 0 });
    }
}

#[test]
fn a_nexus_reset_is_answered_and_ends_the_session_for_good() {
    let mut params = SessionParams { protocol_level: 2, ..params() };
    (params.error_recovery_level, params.data_sequence_in_order) = (2, false);
    let mut script = Script::with(params, SessionConfig::default());
    let (conn, second) = (script.conn, script.join(2));
    script.try_pdu(second, command(1, 100), &[]).unwrap();
    assert_eq!(script.executes(second), [1]);
    script.pdu(function(F::I_T_NEXUS_RESET, 9, 101), &[]);
    assert_eq!(asked(&mut script, conn), [F::I_T_NEXUS_RESET]);
    script.session.management_done(Itt(9), R::COMPLETE);
    assert!(script.sent(conn).is_none(), "1 executes");
    script.session.complete(Itt(1), good(b""));
    assert_eq!(answer(&mut script, conn).0, R::COMPLETE);
    for conn in [conn, second] {
        let events: Vec<Event> = std::iter::from_fn(|| script.session.poll_event(conn)).collect();
        assert!(events.iter().any(|e| matches!(e, Event::Close { .. })), "{events:?}");
        script.session.handle_connection_lost(conn, NOW);
        assert!(!script.session.is_recoverable(conn));
    }
    assert!(script.session.is_closed() && !script.session.awaits_recovery());
}

#[test]
fn a_reassignment_does_not_look_at_the_unit() {
    let mut script = Script::at_level(2);
    let second = script.log_in(2, NOW);
    script.try_pdu(second, command(1, 100), &[]).unwrap();
    script.session.handle_connection_lost(second, NOW);
    let logout = LogoutRequest {
        immediate: true,
        reason: LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY,
        itt: Itt(8),
        cid: Cid(2),
        cmd_sn: CmdSn(101),
        exp_stat_sn: StatSn(1),
    };
    script.pdu(logout, &[]);
    assert!(matches!(script.sent(script.conn), Some((Pdu::LogoutResponse(_), _))));
    let reassign = TaskManagementRequest { lun: Lun(7), ..query(1, 9, 101) };
    script.pdu(TaskManagementRequest { function: F::TASK_REASSIGN, ..reassign }, &[]);
    assert_eq!(own(&mut script).0, R::COMPLETE);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
//= type=test
//# MUST provide the Response Fence behavior on the first post-TMF Response on third-party sessions
//# as specified in Section 4.2.2.3.3.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.6
//= type=test
//# The UA notification contained in the first SCSI Response PDU on each affected third-party I_T_L
//# nexus after the TMF action thus MUST NOT pass the affected task responses on any of the iSCSI
//# sessions accessing the LU.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.3.4
//= type=test
//# This section lists the situations in which fenced response behavior is REQUIRED in iSCSI target
//# implementations.
#[test]
fn the_first_answer_after_an_abort_by_others_is_fenced_whatever_was_agreed() {
    for reporting in
        [TaskReporting::Rfc3720, TaskReporting::ResponseFence, TaskReporting::FastAbort]
    {
        let mut script = script(reporting);
        let (first, second) = (script.conn, script.join(2));
        script.try_pdu(second, command(1, 100), &[]).unwrap();
        script.session.complete(Itt(1), good(b""));
        script.response(second); // not acknowledged
        script.session.abort_all(Some(Lun(0)));
        script.pdu(command(2, 101), &[]);
        script.executes(first);
        let mut sense = vec![0; 18];
        (sense[0], sense[2], sense[12], sense[13]) = (0x70, 6, 0x2f, 0);
        let attention = Completion { status: 2, sense: sense.into(), ..Completion::default() };
        script.session.complete(Itt(2), attention);
        assert!(script.sent(first).is_none(), "{reporting:?}: it would pass the answer to 1");
        script.try_pdu(second, ping(Itt::NONE.0, 102, 2), &[]).unwrap();
        assert_eq!(script.response(first).itt, Itt(2), "{reporting:?}");
    }
}

/// What the answer to a function has to wait for, one after the other: data that was asked for,
/// commands before it, the device server, and acknowledgements on every connection.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
//= type=test
//# The TMF Response MUST NOT be sent by the target iSCSI layer before the end of Step d) and MAY be
//# sent at the end of Step d) despite these outstanding data transfers until after Step e).
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
//= type=test
//# All iSCSI implementations MUST support the protocol behavior defined in this section as the
//# default behavior.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.6.1
//= type=test
//# The response to ABORT TASK SET and CLEAR TASK SET MUST only be issued by the target after all of
//# the commands affected have been received by the target, the corresponding task management
//# functions have been executed by the SCSI target, and the delivery of all responses delivered
//# until the task management function completion has been confirmed (acknowledged through the
//# ExpStatSN) by the initiator on all connections of this session.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.23
//= type=test
//# When TaskReporting is not negotiated to FastAbort, the standard multi-task abort semantics in
//# Section 4.2.3.3 MUST be used.
#[test]
fn the_answer_to_a_function_comes_behind_all_that_it_is_about() {
    for reporting in [TaskReporting::Rfc3720, TaskReporting::ResponseFence] {
        for clears in [F::ABORT_TASK_SET, F::CLEAR_TASK_SET] {
            let mut script = script(reporting);
            let (first, second) = (script.conn, script.join(2));
            script.try_pdu(second, command(1, 100), &[]).unwrap();
            script.session.complete(Itt(1), good(b""));
            script.response(second); // not acknowledged
            script.pdu(write(2, 101, 2048), &[]);
            let r2t = script.r2t();
            script.pdu(function(clears, 9, 103), &[]);
            let answered = |script: &mut Script| {
                let sent = script.all_sent(first);
                sent.iter().any(|(pdu, _)| matches!(pdu, Pdu::TaskManagementResponse(_)))
            };
            assert!(!answered(&mut script), "102 has not come");
            script.try_pdu(second, command(3, 102), &[]).unwrap();
            assert!(!answered(&mut script), "data was asked for");
            script.pdu(data_out(2, r2t.ttt, 0, 0, true), &[1; 2048]);
            if clears == F::CLEAR_TASK_SET {
                assert!(!answered(&mut script), "the device server has not cleared it");
                assert_eq!(asked(&mut script, first), [clears]);
                script.session.management_done(Itt(9), R::COMPLETE);
            }
            assert!(!answered(&mut script), "1 is not acknowledged");
            script.try_pdu(second, ping(Itt::NONE.0, 103, 2), &[]).unwrap();
            assert!(answered(&mut script), "{reporting:?} {clears:?}");
            assert_eq!(script.session.task_count(), 0);
        }
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# The iSCSI target MUST ensure that no responses for the tasks covered by a task management
//# function are delivered to the iSCSI initiator after the task management response, except for a
//# task covered by a TASK REASSIGN.
#[test]
fn no_response_of_a_task_follows_the_answer_to_the_function_that_ended_it() {
    for reporting in
        [TaskReporting::Rfc3720, TaskReporting::ResponseFence, TaskReporting::FastAbort]
    {
        let mut script = script(reporting);
        let (first, second) = (script.conn, script.join(2));
        // One executes, the data of one is half sent, the answer to one is not.
        script.try_pdu(second, command(1, 100), &[]).unwrap();
        script.try_pdu(second, read(2, 101, 4096), &[]).unwrap();
        script.try_pdu(second, command(3, 102), &[]).unwrap();
        assert_eq!(script.executes(second), [1, 2, 3]);
        script.session.complete(Itt(2), good(&[7; 4096]));
        assert!(matches!(script.sent(second), Some((Pdu::DataIn(_), _))));
        script.session.complete(Itt(3), good(b""));
        script.pdu(function(F::ABORT_TASK_SET, 9, 103), &[]);
        let is_response =
            |(pdu, _): &(Pdu, Bytes)| matches!(pdu, Pdu::ScsiResponse(_) | Pdu::DataIn(_));
        let out = [script.all_sent(first), script.all_sent(second)].concat();
        assert!(!out.iter().any(is_response), "{out:?}");
        script.session.complete(Itt(1), good(b""));
        let mut out = Vec::new();
        for exp_stat_sn in [1, 2, 3] {
            for conn in [first, second] {
                script.try_pdu(conn, ping(Itt::NONE.0, 103, exp_stat_sn), &[]).unwrap();
                out.extend(script.all_sent(conn));
            }
        }
        let answers = |(pdu, _): &&(Pdu, Bytes)| matches!(pdu, Pdu::TaskManagementResponse(_));
        assert_eq!(out.iter().filter(answers).count(), 1, "{reporting:?}: {out:?}");
        assert!(!out.iter().any(is_response), "{reporting:?}: {out:?}");
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.4.11
//= type=test
//# When the MaxCmdSN changes at the target while the target has no pending PDUs to convey this
//# information to the initiator, it MUST generate a NOP-In to carry the new MaxCmdSN.
#[test]
fn places_that_become_free_without_an_answer_are_told_of() {
    let config = SessionConfig { command_window: 2, ..SessionConfig::default() };
    let mut script = Script::with(params(), config);
    let conn = script.conn;
    script.pdu(command(1, 100), &[]);
    script.pdu(command(2, 101), &[]);
    assert_eq!(script.executes(conn), [1, 2]);
    let max = |script: &mut Script| match script.sent(conn) {
        Some((Pdu::NopIn(nop), data)) => {
            assert_eq!((nop.itt, nop.ttt, data.len()), (Itt::NONE, Ttt::NONE, 0));
            nop.max_cmd_sn.0
        }
        other => panic!("expected a NOP-In, got {other:?}"),
    };
    script.session.abort_all(None); // by another session
    assert!(script.sent(conn).is_none(), "both execute still");
    script.session.complete(Itt(1), good(b""));
    assert_eq!(max(&mut script), 102);
    script.session.complete(Itt(2), good(b""));
    assert_eq!(max(&mut script), 103);
    assert!(script.sent(conn).is_none());
    // Where something else goes out, that tells.
    script.pdu(command(3, 102), &[]);
    assert_eq!(script.executes(conn), [3]);
    script.pdu(abort(9, 103, 3, 102), &[]);
    script.session.complete(Itt(3), good(b""));
    assert_eq!(own(&mut script).0, R::COMPLETE);
    assert!(script.sent(conn).is_none());
}

/// It counts as received at its header, and so the function can act at once: what follows the
/// header has no buffer.
#[test]
fn data_of_a_command_that_a_waiting_function_ends_at_its_header_is_thrown_away() {
    for reporting in [TaskReporting::FastAbort, TaskReporting::Rfc3720] {
        let mut script = script(reporting);
        let second = script.join(2);
        script.try_pdu(second, function(F::LOGICAL_UNIT_RESET, 9, 101), &[]).unwrap();
        let placement = script.pdu(write(1, 100, 512), &[1; 512]);
        assert_eq!(placement, Placement::Discard);
        assert_eq!(asked(&mut script, second), [F::LOGICAL_UNIT_RESET]);
        script.session.management_done(Itt(9), R::COMPLETE);
        assert_eq!(answer(&mut script, second).0, R::COMPLETE);
        assert_eq!(script.session.task_count(), 0);
        assert!(script.executes(script.conn).is_empty());
    }
}
