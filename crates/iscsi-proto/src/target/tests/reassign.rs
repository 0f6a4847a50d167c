//! Connections that are lost at error recovery level 2, and their tasks (RFC 7143 §6.3.4, §7.2.2,
//! §11.5.6, §11.14, §13.15, §13.16).

use std::time::Duration;

use TaskManagementResponseCode as R;

use super::*;

/// Time2Wait and Time2Retain of these sessions together.
const KEPT: Duration = Duration::from_secs(22);

pub(super) fn reassign(itt: u32, referenced: u32, exp_data_sn: u32) -> TaskManagementRequest {
    let function = TaskManagementFunction::TASK_REASSIGN;
    TaskManagementRequest { function, exp_data_sn, ..abort(itt, 100, referenced, 0) }
}

fn logout(cid: u16) -> LogoutRequest {
    LogoutRequest {
        immediate: true,
        reason: LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY,
        itt: Itt(90),
        cid: Cid(cid),
        cmd_sn: CmdSn(100),
        exp_stat_sn: StatSn(1),
    }
}

/// Sends TASK REASSIGN; what comes of it.
fn reassigned(script: &mut Script, conn: ConnId, request: TaskManagementRequest) -> R {
    script.try_pdu(conn, request, &[]).unwrap();
    management(script, conn)
}

fn management(script: &mut Script, conn: ConnId) -> R {
    match script.said(conn) {
        Some((Pdu::TaskManagementResponse(response), _)) => response.response,
        other => panic!("expected the answer to a function, got {other:?}"),
    }
}

fn logged_out(script: &mut Script, conn: ConnId) -> LogoutResponse {
    match script.said(conn) {
        Some((Pdu::LogoutResponse(response), _)) => response,
        other => panic!("expected a logout response, got {other:?}"),
    }
}

/// Connection 1 is lost and given up on connection 2.
fn lose(script: &mut Script) -> ConnId {
    let second = script.log_in(2, NOW);
    script.session.handle_connection_lost(script.conn, NOW);
    script.try_pdu(second, logout(1), &[]).unwrap();
    let response = logged_out(script, second);
    assert_eq!(response.response, LogoutResponseCode::CLOSED);
    assert_eq!((response.time2wait, response.time2retain), (2, 20));
    second
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.6
//= type=test
//# The initiator MUST discard any data PDUs from the previous execution that it did not
//# acknowledge, and the target MUST transmit all Data-In PDUs (if any) starting with the data
//# acknowledgment reference number.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.6
//= type=test
//# Any other value MUST be ignored by the target.
#[test]
fn a_read_goes_on_where_its_initiator_stands() {
    for (exp_data_sn, from) in [(0, 0), (1, 1024), (3, 3072), (4, 0), (u32::MAX, 0)] {
        let mut script = Script::at_level(2);
        script.pdu(read(7, 100, 4500), &[]);
        script.executes(script.conn);
        script.session.complete(Itt(7), good(&pattern(4500)));
        for _ in 0..3 {
            script.sent(script.conn).unwrap();
        }
        let second = lose(&mut script);
        assert_eq!(reassigned(&mut script, second, reassign(9, 7, exp_data_sn)), R::COMPLETE);
        let sent = script.all_sent(second);
        let data: Vec<u8> = sent.iter().flat_map(|(_, data)| data.to_vec()).collect();
        assert_eq!(data, pattern(4500)[from..], "from {exp_data_sn}");
        let Some((Pdu::DataIn(first), _)) = sent.first() else { panic!("{sent:?}") };
        let Some((Pdu::DataIn(last), _)) = sent.last() else { panic!("{sent:?}") };
        assert_eq!((first.data_sn.0, first.buffer_offset as usize), (from as u32 / 1024, from));
        assert!(last.status.is_some());
        assert_eq!(last.stat_sn, StatSn(3), "a number of the new connection");
        assert_eq!(script.session.task_count(), 0);
    }
}

#[test]
fn a_read_is_cut_for_the_connection_that_takes_it_over() {
    let mut script = Script::at_level(2);
    script.pdu(read(7, 100, 4096), &[]);
    script.executes(script.conn);
    script.session.complete(Itt(7), good(&pattern(4096)));
    script.sent(script.conn).unwrap();
    let second = lose(&mut script);
    script.session.set_segment_max(second, 512);
    reassigned(&mut script, second, reassign(9, 7, 1));
    let sent = script.all_sent(second);
    assert_eq!(sent.len(), 6);
    let data: Vec<u8> = sent.iter().flat_map(|(_, data)| data.to_vec()).collect();
    assert_eq!(data, pattern(4096)[1024..]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
//= type=test
//# This might possibly involve retransmission of data/R2T/status PDUs as necessary but MUST involve
//# the (re)transmission of the status PDU.
#[test]
fn an_answer_that_was_sent_and_lost_is_sent_again_with_a_new_number() {
    let mut script = Script::at_level(2);
    script.pdu(command(1, 100), &[]);
    script.executes(script.conn);
    let completion =
        Completion { status: 2, sense: Bytes::from_static(&[0x70; 18]), ..Completion::default() };
    script.session.complete(Itt(1), completion);
    script.response(script.conn);
    let second = lose(&mut script);
    assert_eq!(reassigned(&mut script, second, reassign(9, 1, 0)), R::COMPLETE);
    let Some((Pdu::ScsiResponse(response), data)) = script.sent(second) else { panic!() };
    assert_eq!((response.itt, response.status, response.stat_sn), (Itt(1), 2, StatSn(3)));
    assert_eq!(parse_sense(&data).len(), 18);
    script.try_pdu(second, ping(10, 101, 4), &[]).unwrap();
    assert_eq!(script.session.tasks_of(second), 0);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# The iSCSI target MUST ensure that no responses for the tasks covered by a task management
//# function are delivered to the iSCSI initiator after the task management response, except for a
//# task covered by a TASK REASSIGN.
#[test]
fn an_answer_that_was_sent_and_lost_does_not_come_again_behind_a_function() {
    let mut script = Script::at_level(2);
    script.pdu(read(7, 100, 512), &[]);
    script.executes(script.conn);
    script.session.complete(Itt(7), good(&pattern(512)));
    script.all_sent(script.conn);
    let second = lose(&mut script);
    let function = TaskManagementFunction::ABORT_TASK_SET;
    let function = TaskManagementRequest { function, ..abort(8, 101, Itt::NONE.0, 0) };
    script.try_pdu(second, function, &[]).unwrap();
    assert_eq!(management(&mut script, second), R::COMPLETE);
    let response = reassigned(&mut script, second, reassign(9, 7, 0));
    assert_eq!(response, R::TASK_DOES_NOT_EXIST);
    assert!(script.all_sent(second).is_empty());
}

#[test]
fn a_command_that_executes_ends_on_the_connection_that_took_it_over() {
    let mut script = Script::at_level(2);
    script.pdu(write(1, 100, 512), &[1; 512]);
    assert_eq!(script.executes(script.conn), [1]);
    let second = lose(&mut script);
    assert_eq!(reassigned(&mut script, second, reassign(9, 1, 0)), R::COMPLETE);
    assert!(script.sent(second).is_none());
    script.session.complete(Itt(1), Completion::default());
    assert_eq!(script.response(second).status, 0);
}

#[test]
fn a_command_that_ended_between_loss_and_reassignment_is_answered() {
    let mut script = Script::at_level(2);
    script.pdu(write(1, 100, 512), &[1; 512]);
    script.executes(script.conn);
    let second = lose(&mut script);
    script.session.complete(Itt(1), Completion::default());
    assert!(script.sent(second).is_none());
    assert_eq!(reassigned(&mut script, second, reassign(9, 1, 0)), R::COMPLETE);
    assert_eq!(script.response(second).itt, Itt(1));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
//= type=test
//# If allegiance reassignment is supported by the target, the task management response to the
//# reassignment request MUST be issued before the reassignment becomes effective.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# The task management response MUST be issued before the reassignment becomes effective.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.6
//= type=test
//# For TASK REASSIGN, the new connection allegiance MUST ONLY become effective at the target after
//# the target issues the task management response.
#[test]
fn a_write_is_asked_for_what_has_not_arrived() {
    let mut script = Script::at_level(2);
    let announced = ScsiCommand { is_final: false, ..write(1, 100, 6144) };
    script.pdu(announced, &[1; 512]);
    script.pdu(data_out(1, Ttt::NONE, 0, 512, true), &[1; 512]);
    let (first, second_r2t) = (script.r2t(), script.r2t());
    script.pdu(data_out(1, first.ttt, 0, 1024, false), &[1; 1024]);
    script.pdu(data_out(1, second_r2t.ttt, 0, 3072, true), &[1; 2048]);
    let Some((Pdu::R2t(third), _)) = script.sent(script.conn) else { panic!() };
    assert_eq!(third.buffer_offset, 5120);
    let second = lose(&mut script);
    assert_eq!(reassigned(&mut script, second, reassign(9, 1, 0)), R::COMPLETE);
    let mut wanted = Vec::new();
    for (pdu, _) in script.all_sent(second) {
        let Pdu::R2t(r2t) = pdu else { panic!("{pdu:?}") };
        assert!(r2t.r2t_sn.0 > 2, "the numbers go on");
        wanted.push((r2t.buffer_offset, r2t.desired_data_transfer_length, r2t.ttt));
    }
    let ranges: Vec<(u32, u32)> = wanted.iter().map(|(offset, len, _)| (*offset, *len)).collect();
    assert_eq!(ranges, [(2048, 1024), (5120, 1024)]);
    for (offset, len, ttt) in wanted {
        let pdu = data_out(1, ttt, 0, offset, true);
        script.try_pdu(second, pdu, &vec![1; len as usize]).unwrap();
    }
    assert_eq!(script.executes(second), [1]);
}

#[test]
fn a_command_whose_turn_comes_while_it_has_no_connection_waits() {
    let mut script = Script::at_level(2);
    script.pdu(command(1, 101), &[]);
    let second = lose(&mut script);
    script.try_pdu(second, command(2, 100), &[]).unwrap();
    assert_eq!(script.executes(second), [2]);
    reassigned(&mut script, second, reassign(9, 1, 0));
    assert_eq!(script.executes(second), [1]);
}

#[test]
fn a_command_the_shell_had_not_fetched_is_executed_once() {
    let mut script = Script::at_level(2);
    script.pdu(read(1, 100, 512), &[]);
    let second = lose(&mut script);
    assert!(script.session.is_quiet());
    assert!(script.executes(script.conn).is_empty());
    reassigned(&mut script, second, reassign(9, 1, 0));
    assert_eq!(script.executes(second), [1]);
    script.session.complete(Itt(1), good(&[1; 512]));
    assert_eq!(script.all_sent(second).len(), 1);
}

#[test]
fn a_command_that_was_half_received_comes_again() {
    let mut script = Script::at_level(2);
    let header = Pdu::from(write(1, 100, 512)).encode(512);
    script.session.handle_header(script.conn, NOW, &header).unwrap();
    let second = lose(&mut script);
    assert_eq!(script.session.task_count(), 0);
    script.try_pdu(second, write(1, 100, 512), &[1; 512]).unwrap();
    assert_eq!(script.executes(second), [1]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
//= type=test
//# If allegiance reassignment is supported by the target but the task is still allegiant to a
//# different connection, or a successful recovery Logout of the previously allegiant connection was
//# not performed, the target MUST respond with a task management response code of "Task still
//# allegiant".
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# TASK REASSIGN MUST ONLY be received by the target after the connection on which the command was
//# previously executing has been successfully logged out.
#[test]
fn what_cannot_be_reassigned() {
    let mut script = Script::at_level(2);
    let second = script.log_in(2, NOW);
    script.pdu(command(1, 100), &[]);
    script.executes(script.conn);
    let answer = |script: &mut Script, request| reassigned(script, second, request);
    assert_eq!(answer(&mut script, reassign(9, 1, 0)), R::TASK_STILL_ALLEGIANT, "it works");
    script.session.handle_connection_lost(script.conn, NOW);
    assert_eq!(answer(&mut script, reassign(9, 1, 0)), R::TASK_STILL_ALLEGIANT, "no logout");
    script.try_pdu(second, logout(1), &[]).unwrap();
    logged_out(&mut script, second);
    assert_eq!(answer(&mut script, reassign(9, 2, 0)), R::TASK_DOES_NOT_EXIST);
    assert_eq!(answer(&mut script, reassign(9, 1, 0)), R::COMPLETE);
    assert_eq!(answer(&mut script, reassign(9, 1, 0)), R::TASK_STILL_ALLEGIANT, "taken over");

    let mut script = Script::at_level(1);
    script.pdu(command(1, 100), &[]);
    let conn = script.conn;
    assert_eq!(reassigned(&mut script, conn, reassign(9, 1, 0)), R::REASSIGNMENT_NOT_SUPPORTED);
}

#[test]
fn logouts_for_recovery_that_are_refused() {
    let mut script = Script::at_level(2);
    script.pdu(logout(7), &[]);
    let conn = script.conn;
    let response = logged_out(&mut script, conn);
    assert_eq!(response.response, LogoutResponseCode::CID_NOT_FOUND);
    assert_eq!((response.time2wait, response.time2retain), (0, 0));
    let mut script = Script::at_level(1);
    script.pdu(logout(1), &[]);
    let conn = script.conn;
    let response = logged_out(&mut script, conn);
    assert_eq!(response.response, LogoutResponseCode::RECOVERY_NOT_SUPPORTED);
}

#[test]
fn a_connection_that_still_works_is_closed_before_its_tasks_move() {
    let mut script = Script::at_level(2);
    let second = script.log_in(2, NOW);
    script.pdu(write(1, 100, 1024), &[]);
    script.r2t();
    script.try_pdu(second, logout(1), &[]).unwrap();
    assert!(script.sent(second).is_none(), "its driver has not ended");
    assert!(matches!(
        script.session.poll_event(script.conn),
        Some(Event::Close { at_once: true, .. })
    ));
    assert!(script.try_pdu(script.conn, command(2, 101), &[]).is_err());
    script.session.handle_connection_lost(script.conn, NOW);
    assert_eq!(logged_out(&mut script, second).response, LogoutResponseCode::CLOSED);
    assert_eq!(reassigned(&mut script, second, reassign(9, 1, 0)), R::COMPLETE);
    assert!(matches!(script.sent(second), Some((Pdu::R2t(_), _))));
}

#[test]
fn a_login_with_the_same_cid_is_a_logout_for_recovery() {
    let mut script = Script::at_level(2);
    script.pdu(write(1, 100, 1024), &[]);
    script.r2t();
    let new = script.log_in(1, NOW);
    assert!(matches!(
        script.session.poll_event(script.conn),
        Some(Event::Close { at_once: true, .. })
    ));
    assert_eq!(script.session.connection_count(), 1);
    // The old driver has not ended: its buffers may still be in use.
    script.try_pdu(new, reassign(9, 1, 0), &[]).unwrap();
    assert!(script.sent(new).is_none());
    script.session.handle_connection_lost(script.conn, NOW);
    assert_eq!(management(&mut script, new), R::COMPLETE);
    let Some((Pdu::R2t(r2t), _)) = script.sent(new) else { panic!() };
    script.try_pdu(new, data_out(1, r2t.ttt, 0, 0, true), &[1; 1024]).unwrap();
    assert_eq!(script.executes(new), [1]);
    assert!(!script.session.awaits_recovery());
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
//= type=test
//# When receiving a Logout Request with the reason code "remove the connection for recovery", the
//# target MUST discard all requests not yet acknowledged via the ExpCmdSN that were issued on the
//# specified connection and suspend all data/status/R2T transfers on behalf of pending commands on
//# the specified connection.
#[test]
fn a_logout_for_recovery_of_the_own_connection_keeps_its_tasks() {
    let mut script = Script::at_level(2);
    script.pdu(command(1, 100), &[]);
    script.executes(script.conn);
    script.pdu(logout(1), &[]);
    let conn = script.conn;
    assert_eq!(logged_out(&mut script, conn).response, LogoutResponseCode::CLOSED);
    script.session.complete(Itt(1), Completion::default());
    assert!(script.sent(script.conn).is_none());
    script.session.handle_connection_lost(script.conn, NOW);
    assert!(!script.session.is_closed());
    let new = script.log_in(1, NOW);
    assert_eq!(reassigned(&mut script, new, reassign(9, 1, 0)), R::COMPLETE);
    assert_eq!(script.response(new).itt, Itt(1));
}

#[test]
fn other_connections_go_on_while_one_is_lost() {
    let mut script = Script::at_level(2);
    let second = script.log_in(2, NOW);
    script.pdu(command(1, 100), &[]);
    script.session.handle_connection_lost(script.conn, NOW);
    script.session.remove_connection(script.conn);
    assert!(!script.session.is_closed());
    assert_eq!(script.session.task_count(), 1, "its task is kept");
    script.try_pdu(second, command(2, 101), &[]).unwrap();
    assert_eq!(script.executes(second), [2]);
}

#[test]
fn a_task_that_was_aborted_is_gone_only_when_it_has_ended() {
    let mut script = Script::at_level(2);
    script.pdu(command(7, 100), &[]);
    assert_eq!(script.executes(script.conn), [7]);
    script.pdu(abort(8, 101, 7, 100), &[]);
    let second = lose(&mut script);
    script.try_pdu(second, reassign(9, 7, 0), &[]).unwrap();
    assert!(script.sent(second).is_none(), "it may still write");
    script.session.complete(Itt(7), Completion::default());
    assert_eq!(management(&mut script, second), R::TASK_DOES_NOT_EXIST);
    assert!(script.session.is_quiet());
}

#[test]
fn what_was_never_acknowledged_can_come_again_when_its_time_is_over() {
    let mut script = Script::at_level(2);
    let second = script.log_in(2, NOW);
    script.pdu(command(8, 101), &[]); // 100 is missing
    script.session.handle_connection_lost(script.conn, NOW);
    assert!(script.session.handle_timeout(script.conn, NOW + KEPT));
    assert_eq!(script.session.task_count(), 0);
    for (itt, cmd_sn) in [(8, 101), (7, 100)] {
        script.try_pdu(second, command(itt, cmd_sn), &[]).unwrap();
    }
    assert_eq!(script.executes(second), [7, 8]);
}

#[test]
fn tasks_end_when_nobody_comes_in_time() {
    let mut script = Script::at_level(2);
    let second = script.log_in(2, NOW);
    script.pdu(write(1, 100, 2048), &[]);
    script.pdu(command(2, 101), &[]);
    assert_eq!(script.executes(script.conn), [2]);
    let lost = NOW + Duration::from_secs(100);
    script.session.handle_connection_lost(script.conn, lost);
    assert!(script.session.is_recoverable(script.conn));
    assert_eq!(script.session.poll_timeout(script.conn), Some(lost + KEPT));
    assert!(script.session.handle_timeout(script.conn, lost + KEPT));
    assert_eq!(script.session.task_count(), 1, "what executes is awaited");
    assert!(!script.session.is_quiet());
    script.session.complete(Itt(2), Completion::default());
    assert_eq!(script.session.task_count(), 0);
    assert_eq!(reassigned(&mut script, second, reassign(9, 1, 0)), R::TASK_DOES_NOT_EXIST);
    assert!(!script.session.is_closed());
    assert!(!script.session.awaits_recovery());
}

#[test]
fn a_session_without_connections_waits_and_goes_on() {
    let mut script = Script::at_level(2);
    script.pdu(command(1, 100), &[]);
    script.executes(script.conn);
    script.session.handle_connection_lost(script.conn, NOW);
    script.session.complete(Itt(1), Completion::default());
    assert!(!script.session.is_closed());
    assert!(script.session.awaits_recovery());
    assert!(script.session.admits(Cid(1)));
    let new = script.log_in(1, NOW);
    assert_eq!(reassigned(&mut script, new, reassign(9, 1, 0)), R::COMPLETE);
    assert_eq!(script.response(new).itt, Itt(1));
    script.try_pdu(new, command(2, 101), &[]).unwrap();
    assert_eq!(script.executes(new), [2]);
}

#[test]
fn a_session_without_connections_ends_in_time() {
    let mut script = Script::at_level(2);
    script.session.handle_connection_lost(script.conn, NOW);
    script.session.handle_timeout(script.conn, NOW + KEPT);
    assert!(script.session.is_closed());
    assert!(!script.session.awaits_recovery());
    assert_eq!(script.session.poll_timeout(script.conn), None);
}

#[test]
fn without_time_to_retain_nothing_is_kept() {
    let params = SessionParams { error_recovery_level: 2, default_time2retain: 0, ..params() };
    let mut script = Script::with(params, SessionConfig::default());
    let second = script.log_in(2, NOW);
    script.pdu(write(1, 100, 2048), &[]);
    script.session.handle_connection_lost(script.conn, NOW);
    assert_eq!(script.session.task_count(), 0);
    assert!(!script.session.is_closed(), "the other connection goes on");
    script.session.handle_connection_lost(second, NOW);
    assert!(script.session.is_closed());
}

#[test]
fn a_lost_connection_ends_the_session_at_level_1() {
    let mut script = Script::at_level(1);
    script.log_in(2, NOW);
    script.session.handle_connection_lost(script.conn, NOW);
    assert!(script.session.is_closed());
}

#[test]
fn memory_of_a_lost_connection_does_not_hold_up_another() {
    let config = SessionConfig { buffered_bytes_max: 4096, ..SessionConfig::default() };
    let mut script = Script::at_level_with(2, config);
    let second = script.log_in(2, NOW);
    script.pdu(write(1, 100, 4096), &[]);
    script.r2t();
    script.try_pdu(second, write(2, 101, 4096), &[]).unwrap();
    assert!(script.sent(second).is_none());
    script.session.handle_connection_lost(script.conn, NOW);
    assert!(matches!(script.sent(second), Some((Pdu::R2t(_), _))));
}

/// Memory that becomes free when a connection is lost does not go to what was lost with it: that
/// would count as having been asked for its data, and nobody would be asked.
#[test]
fn a_write_that_waited_for_memory_is_asked_for_where_it_goes_on() {
    let config = SessionConfig { buffered_bytes_max: 4096, ..SessionConfig::default() };
    let mut script = Script::at_level_with(2, config);
    script.pdu(write(1, 100, 1024), &[]);
    script.r2t();
    script.pdu(write(2, 101, 4096), &[]);
    assert!(script.sent(script.conn).is_none(), "it waits for memory");
    // Waits for the data that was asked for, and ends the first one when the connection is lost.
    let function = TaskManagementFunction::ABORT_TASK_SET;
    script.pdu(TaskManagementRequest { function, ..abort(9, 101, Itt::NONE.0, 0) }, &[]);
    let second = lose(&mut script);
    assert_eq!(reassigned(&mut script, second, reassign(10, 1, 0)), R::TASK_DOES_NOT_EXIST);
    assert_eq!(reassigned(&mut script, second, reassign(11, 2, 0)), R::COMPLETE);
    assert!(matches!(script.sent(second), Some((Pdu::R2t(r2t), _)) if r2t.itt == Itt(2)));
}

#[test]
fn a_connection_that_a_login_took_the_place_of_is_over() {
    let mut script = Script::at_level(2);
    assert!(!script.session.is_connection_over(script.conn));
    script.log_in(1, NOW);
    assert!(script.session.is_connection_over(script.conn));
    script.try_pdu(script.conn, command(1, 100), &[]).unwrap_err();
    assert_eq!(script.session.task_count(), 0);
}

#[test]
fn a_login_that_was_never_answered_leaves_nothing() {
    let mut script = Script::at_level(2);
    let second = script.log_in(2, NOW);
    script.session.handle_login_lost(second);
    assert!(!script.session.is_closed());
    script.session.handle_login_lost(script.conn);
    assert!(script.session.is_closed());
}

#[test]
fn a_closed_session_recovers_nothing() {
    let mut script = Script::at_level(2);
    script.pdu(command(1, 100), &[]);
    script.session.handle_connection_lost(script.conn, NOW);
    script.session.close("session reinstated");
    assert!(script.session.is_quiet());
    assert_eq!(script.session.task_count(), 0);
    assert!(!script.session.awaits_recovery());
    assert!(!script.session.admits(Cid(1)));
}

#[test]
fn a_logout_acknowledges_answers_of_the_connection_that_it_closes() {
    let mut script = Script::at_level(2);
    let second = script.log_in(2, NOW);
    script.try_pdu(second, ping(5, 100, 1), &[]).unwrap();
    let Some((Pdu::NopIn(first), _)) = script.sent(second) else { panic!() };
    script.session.handle_connection_lost(script.conn, NOW);
    let closes_the_other = LogoutRequest { exp_stat_sn: StatSn(2), ..logout(1) };
    script.try_pdu(second, closes_the_other, &[]).unwrap();
    logged_out(&mut script, second);
    script.try_pdu(second, snack(SnackKind::STATUS, u32::MAX, first.stat_sn.0, 1), &[]).unwrap();
    assert!(matches!(script.sent(second), Some((Pdu::NopIn(again), _)) if again == first));
}

#[test]
fn connections_that_are_lost_one_after_another_are_bounded() {
    let mut script = Script::at_level(2);
    let limit = params().max_connections + 1;
    let mut cid = 1;
    script.session.handle_connection_lost(script.conn, NOW);
    while script.session.admits(Cid(cid + 1)) {
        cid += 1;
        assert!(cid <= limit, "{cid} connections wait for recovery");
        let conn = script.log_in(cid, NOW);
        script.session.handle_connection_lost(conn, NOW);
    }
    assert_eq!(cid, limit);
    assert!((1..=cid).all(|cid| script.session.admits(Cid(cid))), "each may come back");
    let back = script.log_in(1, NOW);
    assert!(script.session.connection_count() == 1 && !script.session.is_recoverable(back));
}

#[test]
fn one_reassignment_of_a_task_waits_and_no_more() {
    let mut script = Script::at_level(2);
    script.pdu(write(1, 100, 1024), &[]);
    script.r2t();
    let new = script.log_in(1, NOW);
    script.try_pdu(new, reassign(9, 1, 0), &[]).unwrap();
    assert!(script.sent(new).is_none());
    for itt in 10..1000 {
        let again = reassigned(&mut script, new, reassign(itt, 1, 0));
        assert_eq!(again, R::TASK_STILL_ALLEGIANT);
    }
    script.session.handle_connection_lost(script.conn, NOW);
    assert_eq!(management(&mut script, new), R::COMPLETE);
}

#[test]
fn a_reassignment_does_not_outlive_the_connection_that_asked_for_it() {
    let mut script = Script::at_level(2);
    let second = script.log_in(2, NOW);
    script.pdu(write(1, 100, 1024), &[]);
    script.r2t();
    let new = script.log_in(1, NOW);
    // The old driver has not ended, so this has to wait; meanwhile the second is lost for good.
    script.try_pdu(second, reassign(9, 1, 0), &[]).unwrap();
    script.session.handle_connection_lost(second, NOW);
    let late = script.session.poll_timeout(second).unwrap();
    script.session.handle_timeout(second, late);
    script.session.handle_connection_lost(script.conn, late);
    assert_eq!(script.session.tasks_of(script.conn), 1, "it waits where it was");
    assert_eq!(reassigned(&mut script, new, reassign(10, 1, 0)), R::COMPLETE);
    assert_eq!(script.session.tasks_of(new), 1);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.2
//= type=test
//# If a SCSI command that involves data input is reassigned, any SNACK Tag it holds for a final
//# response from the original connection is deleted, and the default value of 0 MUST be used
//# instead.
#[test]
fn a_snack_tag_is_forgotten_with_its_connection() {
    let mut script = Script::at_level(2);
    script.pdu(read(7, 100, 4096), &[]);
    script.executes(script.conn);
    script.session.complete(Itt(7), good(&pattern(4096)));
    script.sent(script.conn).unwrap();
    let r_data = snack(SnackKind::R_DATA, 7, 0, 0);
    script.pdu(SnackRequest { ttt_or_snack_tag: 0x77, ..r_data }, &[]);
    script.sent(script.conn).unwrap();
    let second = lose(&mut script);
    assert_eq!(reassigned(&mut script, second, reassign(9, 7, 0)), R::COMPLETE);
    let sent = script.all_sent(second);
    let tags = sent.iter().filter_map(|(pdu, _)| match pdu {
        Pdu::ScsiResponse(response) => Some(response.snack_tag),
        Pdu::DataIn(data) => data.status.map(|_| 0),
        _ => None,
    });
    assert_eq!(tags.collect::<Vec<_>>(), [0], "{sent:?}");
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# At the target, a TASK REASSIGN function request MUST NOT be executed to reassign the connection
//# allegiance of a Task Management Function Request, an active text negotiation task, or a Logout
//# task; such a request MUST result in a task management response of "Function rejected".
#[test]
fn only_commands_are_reassigned() {
    let mut script = Script::at_level(2);
    let second = script.log_in(2, NOW);
    script.pdu(command(1, 100), &[]);
    assert_eq!(script.executes(script.conn), [1]);
    // A function and a logout that wait for the command, and half a text.
    script.pdu(abort(2, 101, 1, 100), &[]);
    let text = TextRequest {
        immediate: true,
        is_final: false,
        continues: true,
        lun: Lun(0),
        itt: Itt(3),
        ttt: Ttt::NONE,
        cmd_sn: CmdSn(101),
        exp_stat_sn: StatSn(1),
    };
    script.pdu(text, b"SendTargets=");
    let closes = LogoutRequest { reason: LogoutReason::CLOSE_CONNECTION, ..logout(1) };
    script.pdu(LogoutRequest { itt: Itt(4), ..closes }, &[]);
    for (itt, what) in [(2, "a function"), (3, "text"), (4, "a logout")] {
        assert_eq!(reassigned(&mut script, second, reassign(9, itt, 0)), R::REJECTED, "{what}");
    }
    assert_eq!(reassigned(&mut script, second, reassign(9, 5, 0)), R::TASK_DOES_NOT_EXIST);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.4
//= type=test
//# Targets MUST support opening a second connection even when they do not support multiple
//# connections in the Full Feature Phase if ErrorRecoveryLevel is 2 and SHOULD support opening a
//# second connection if ErrorRecoveryLevel is less than 2.
#[test]
fn a_second_connection_may_come_to_clean_up_where_one_was_agreed() {
    for (level, admitted) in [(0, false), (1, false), (2, true)] {
        let params = SessionParams { error_recovery_level: level, max_connections: 1, ..params() };
        let mut script = Script::with(params, SessionConfig::default());
        assert_eq!(script.session.admits(Cid(2)), admitted, "level {level}");
        assert!(script.session.admits(Cid(1)), "in place of the one that is there");
        if !admitted {
            continue;
        }
        script.pdu(command(1, 100), &[]);
        script.executes(script.conn);
        let second = lose(&mut script);
        assert_eq!(reassigned(&mut script, second, reassign(9, 1, 0)), R::COMPLETE);
        script.session.complete(Itt(1), Completion::default());
        assert_eq!(script.response(second).itt, Itt(1));
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.5
//= type=test
//# When a defined value of ErrorRecoveryLevel is returned by a responder in a text negotiation, the
//# responder MUST support the functionality corresponding to the ErrorRecoveryLevel it is
//# accepting.
#[test]
fn a_level_includes_those_below_it() {
    for level in 0..=2 {
        let mut script = Script::at_level(level);
        let second = script.log_in(2, NOW);
        script.try_pdu(second, ping(5, 100, 1), &[]).unwrap();
        let Some((Pdu::NopIn(first), _)) = script.sent(second) else { panic!() };
        // Level 1: what was sent is sent again.
        let again = snack(SnackKind::STATUS, u32::MAX, first.stat_sn.0, 1);
        script.try_pdu(second, again, &[]).unwrap();
        let again = matches!(script.sent(second), Some((Pdu::NopIn(again), _)) if again == first);
        assert_eq!(again, level >= 1, "level {level}");
        // Level 2: tasks outlive their connection. Below, the session begins anew.
        script.pdu(command(1, 100), &[]);
        script.session.handle_connection_lost(script.conn, NOW);
        let kept = (script.session.task_count(), script.session.is_closed());
        assert_eq!(kept, if level >= 2 { (1, false) } else { (0, true) }, "level {level}");
    }
}

/// The sense of the answer to a command that was not executed.
fn attention(script: &mut Script, conn: ConnId) -> (u8, u8, u8) {
    assert!(script.executes(conn).is_empty());
    let Some((Pdu::ScsiResponse(response), data)) = script.sent(conn) else { panic!() };
    assert_eq!(response.status, 2);
    let sense = parse_sense(&data);
    (sense[2], sense[12], sense[13])
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.14.5
//= type=test
//# After the tasks are terminated, the target MUST report a Unit Attention condition on the next
//# command processed on any connection for each affected I_T_L nexus with the status of CHECK
//# CONDITION, the ASC/ASCQ value of 47h/7Fh ("SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT"),
//# etc.; see [SPC3].
#[test]
fn the_next_command_is_told_of_tasks_that_ended_with_their_connection() {
    let mut script = Script::at_level(2);
    let second = script.log_in(2, NOW);
    script.pdu(write(1, 100, 2048), &[]);
    let other_unit = ScsiCommand { lun: Lun(1 << 48), ..command(2, 101) };
    script.pdu(other_unit.clone(), &[]);
    script.session.handle_connection_lost(script.conn, NOW);
    assert!(script.session.handle_timeout(script.conn, NOW + KEPT));
    script.all_sent(second); // the window has grown
    let mut inquiry = command(3, 102);
    inquiry.cdb[0] = 0x12;
    script.try_pdu(second, inquiry, &[]).unwrap();
    assert_eq!(script.executes(second), [3], "an INQUIRY neither tells nor waits");
    for (n, lun) in [(0, Lun(0)), (1, Lun(1 << 48))] {
        let command = |itt, cmd_sn| ScsiCommand { lun, ..command(itt, cmd_sn) };
        script.try_pdu(second, command(4, 103 + 2 * n), &[]).unwrap();
        assert_eq!(attention(&mut script, second), (6, 0x47, 0x7f), "{lun:?}");
        script.try_pdu(second, command(5 + n, 104 + 2 * n), &[]).unwrap();
        assert_eq!(script.executes(second), [5 + n], "once");
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.14.5
//= type=test
//# After the tasks are terminated, the target MUST report a Unit Attention condition on the next
//# command processed on any connection for each affected I_T_L nexus with the status of CHECK
//# CONDITION, the ASC/ASCQ value of 47h/7Fh ("SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT"),
//# etc.; see [SPC3].
#[test]
fn units_whose_commands_were_cleared_are_bounded() {
    let config = SessionConfig { command_window: 4096, ..SessionConfig::default() };
    let mut script = Script::at_level_with(0, config);
    for n in 0..3000 {
        let unit = ScsiCommand { lun: Lun(u64::from(n) << 32), ..command(n, 100 + n) };
        script.pdu(unit, &[]);
    }
    let second = script.log_in(2, NOW);
    let close = LogoutRequest { reason: LogoutReason::CLOSE_CONNECTION, ..logout(1) };
    script.try_pdu(second, LogoutRequest { cmd_sn: CmdSn(3100), ..close }, &[]).unwrap();
    assert!(script.session.cleared.len() <= 1024);
    assert!(!script.session.cleared.is_empty());
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# With the exception of the commands marked for immediate delivery, the iSCSI target layer MUST
//# deliver the commands for execution in the order specified by the CmdSN.
#[test]
fn ordered_commands_keep_their_place_while_a_connection_is_lost() {
    // The older one, the newer one, or both.
    for (older, newer) in [(true, false), (false, true), (true, true)] {
        let attribute = |is| if is { TaskAttribute::ORDERED } else { TaskAttribute::SIMPLE };
        let mut script = Script::at_level(2);
        script.pdu(ScsiCommand { attribute: attribute(older), ..command(1, 100) }, &[]);
        let second = lose(&mut script); // before anybody has fetched it
        let later = ScsiCommand { attribute: attribute(newer), ..command(2, 101) };
        script.try_pdu(second, later, &[]).unwrap();
        assert!(script.executes(second).is_empty(), "{older} {newer}: 1 comes first");
        assert_eq!(reassigned(&mut script, second, reassign(9, 1, 0)), R::COMPLETE);
        assert_eq!(script.executes(second), [1]);
        script.session.complete(Itt(1), Completion::default());
        assert_eq!(script.executes(second), [2], "{older} {newer}");
    }
}
