//! Task management (§11.5, §11.6).

use super::*;

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# The initiator and target MUST ensure that the SCSI task management functions specified in [SAM2]
//# act in accordance with the [SAM2] specification.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# For all these functions, the Task Management Function Response MUST be returned as detailed in
//# Section 11.6.
#[test]
fn abort_of_an_executing_write_is_answered_only_when_it_has_ended() {
    let mut script = Script::new();
    script.pdu(write(1, 100, 512), &[0; 512]);
    assert_eq!(script.executes(script.conn), [1]);
    script.pdu(abort(2, 101, 1, 100), &[]);
    assert!(script.sent(script.conn).is_none());
    script.session.complete(Itt(1), Completion::default());
    match script.sent(script.conn) {
        Some((Pdu::TaskManagementResponse(response), _)) => {
            assert_eq!(response.response, TaskManagementResponseCode::COMPLETE);
        }
        other => panic!("expected the answer to the abort, got {other:?}"),
    }
    assert!(script.sent(script.conn).is_none(), "the aborted task has no answer");
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.11
//= type=test
//# If the abort request is received and the original command is missing, targets MUST consider the
//# original command with that RefCmdSN as received and issue a task management response with the
//# response code "Function complete".
#[test]
fn abort_of_a_command_that_has_not_arrived_fills_its_place() {
    let mut script = Script::new();
    script.pdu(command(2, 101), &[]);
    script.pdu(abort(3, 102, 1, 100), &[]);
    assert_eq!(script.executes(script.conn), [2]);
    script.pdu(command(1, 100), &[]);
    assert!(script.executes(script.conn).is_empty(), "it came too late");
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.3.3
//= type=test
//# MUST wait (concurrent with the wait in Step a) for all commands of the affected tasks to be
//# received based on the CmdSN ordering.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# Task management requests must act on all the commands from the same session having a CmdSN lower
//# than the task management CmdSN.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# If the task management request is marked for immediate delivery, it must be considered
//# immediately for execution, but the operations involved (all or part of them) may be postponed to
//# allow the target to receive all relevant tasks.
#[test]
fn a_task_set_is_aborted_once_all_commands_before_have_arrived() {
    let mut script = Script::new();
    let second = script.join(2);
    let function = TaskManagementFunction::ABORT_TASK_SET;
    let itt = Itt::NONE.0;
    script.pdu(TaskManagementRequest { function, ..abort(9, 101, itt, 0) }, &[]);
    assert!(
        script.sent(script.conn).is_none(),
        "command 100 is on its way on the other connection"
    );
    script.try_pdu(second, write(1, 100, 3000), &[]).unwrap();
    assert!(matches!(script.sent(script.conn), Some((Pdu::TaskManagementResponse(_), _))));
    assert!(script.executes(second).is_empty());
    assert_eq!(script.session.task_count(), 0);
}

#[test]
fn an_abort_cannot_make_a_command_disappear_that_was_not_sent_yet() {
    let mut script = Script::new();
    script.pdu(abort(9, 100, 7, 100), &[]);
    script.pdu(command(1, 100), &[]);
    assert_eq!(script.executes(script.conn), [1]);
}

#[test]
fn a_command_aborted_while_its_data_comes_in_leaves_no_hole() {
    let mut script = Script::new();
    let header = Pdu::from(write(1, 100, 512)).encode(512);
    script.session.handle_header(script.conn, NOW, &header).unwrap();
    script.session.abort_all(None); // another session has reset the unit
    script.session.handle_data(script.conn, Received::Placed, true).unwrap();
    script.pdu(command(2, 101), &[]);
    assert_eq!(script.executes(script.conn), [2]);
}

#[test]
fn a_tag_used_again_is_not_taken_for_the_aborted_command_before() {
    let mut script = Script::new();
    let second = script.join(2);
    script.pdu(command(1, 101), &[]);
    script.pdu(abort(9, 103, 1, 101), &[]);
    // The same tag again, behind 102, which has not arrived.
    script.pdu(command(1, 103), &[]);
    script.try_pdu(second, command(2, 100), &[]).unwrap();
    assert!(script.executes(script.conn).is_empty(), "102 is missing");
    script.try_pdu(second, command(3, 102), &[]).unwrap();
    assert_eq!(script.executes(script.conn), [1]);
}

#[test]
fn a_tag_used_again_does_not_inherit_the_wait_for_memory() {
    let config = SessionConfig { buffered_bytes_max: 2048, ..SessionConfig::default() };
    let mut script = Script::with(params(), config);
    script.pdu(write(1, 100, 2048), &[]);
    let r2t = script.r2t();
    script.pdu(write(2, 101, 2048), &[]);
    script.pdu(abort(9, 102, 2, 101), &[]);
    assert!(matches!(script.sent(script.conn), Some((Pdu::TaskManagementResponse(_), _))));
    let announced = ScsiCommand { is_final: false, ..write(2, 102, 4096) };
    script.pdu(announced, &[]);
    script.pdu(data_out(1, r2t.ttt, 0, 0, true), &[1; 2048]);
    assert!(script.sent(script.conn).is_none(), "no R2T before unsolicited data has ended");
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-10.7
//= type=test
//# However, the data transfers logically MUST be silently discarded by the target iSCSI layer in
//# all cases.
#[test]
fn late_data_of_an_aborted_write_is_thrown_away() {
    let mut script = Script::new();
    script.pdu(write(1, 100, 3000), &[]);
    let r2t = script.r2t();
    script.pdu(abort(2, 101, 1, 100), &[]);
    let placement = script.pdu(data_out(1, r2t.ttt, 0, 0, false), &[0; 1024]);
    assert_eq!(placement, Placement::Discard);
}
