//! Command order and the command window (§4.2.2.1).

use super::*;

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# With the exception of the commands marked for immediate delivery, the iSCSI target layer MUST
//# deliver the commands for execution in the order specified by the CmdSN.
#[test]
fn commands_of_two_connections_are_executed_in_cmd_sn_order() {
    let mut script = Script::new();
    let second = script.join(2);
    script.try_pdu(second, command(2, 101), &[]).unwrap();
    assert!(script.executes(second).is_empty());
    script.pdu(command(1, 100), &[]);
    assert_eq!(script.executes(script.conn), [1]);
    let woken: Vec<ConnId> = std::iter::from_fn(|| script.session.poll_wake()).collect();
    assert!(woken.contains(&second), "the other connection has to be told");
    assert_eq!(script.executes(second), [2]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# The target MUST silently ignore any non-immediate command outside of this range or non-immediate
//# duplicates within the range.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# iSCSI initiators and targets MUST support the command numbering scheme.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.8
//= type=test
//# If the Login Request is a leading Login Request, the target MUST use the value presented in the
//# CmdSN as the target value for the ExpCmdSN.
#[test]
fn commands_outside_the_window_and_duplicates_are_ignored() {
    let config = SessionConfig { command_window: 4, ..SessionConfig::default() };
    let mut script = Script::with(params(), config);
    script.pdu(command(1, 104), &[]);
    script.pdu(command(2, 99), &[]);
    script.pdu(command(3, 101), &[]);
    script.pdu(command(4, 101), &[]);
    assert_eq!(script.session.task_count(), 1);
    script.pdu(command(5, 100), &[]);
    assert_eq!(script.executes(script.conn), [5, 3]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.1
//= type=test
//# A target command response or Data-In PDU with status MUST NOT precede the command
//# acknowledgment.
#[test]
fn window_closes_with_unanswered_commands_and_opens_with_the_answer_itself() {
    let config = SessionConfig { command_window: 2, ..SessionConfig::default() };
    let mut script = Script::with(params(), config);
    script.pdu(command(1, 100), &[]);
    script.pdu(command(2, 101), &[]);
    script.pdu(command(3, 102), &[]);
    assert_eq!(script.executes(script.conn), [1, 2], "102 lies outside the window");
    script.session.complete(Itt(1), Completion::default());
    let Some((Pdu::ScsiResponse(response), _)) = script.sent(script.conn) else { panic!() };
    assert_eq!((response.exp_cmd_sn, response.max_cmd_sn), (CmdSn(102), CmdSn(102)));
}

#[test]
fn data_behind_a_gap_is_limited() {
    let mut script = Script::new();
    let ping = |n| NopOut {
        immediate: false,
        lun: Lun(0),
        itt: Itt(n),
        ttt: Ttt::NONE,
        cmd_sn: CmdSn(100 + n),
        exp_stat_sn: StatSn(1),
    };
    let data = vec![0; 1 << 20];
    let conn = script.conn;
    let taken = (1..10).take_while(|n| script.try_pdu(conn, ping(*n), &data).is_ok()).count();
    assert_eq!(taken, 4);
}

/// The header of a write with 512 bytes of immediate data, which are still to come.
fn begin_write(script: &mut Script, command: ScsiCommand) {
    let header = Pdu::from(command).encode(512);
    let placement = script.session.handle_header(script.conn, NOW, &header).unwrap();
    assert!(matches!(placement, Placement::Task { offset: 0, .. }), "{placement:?}");
}

fn end_write(script: &mut Script) {
    script.session.handle_data(script.conn, Received::Placed, true).unwrap();
}

#[test]
fn commands_do_not_wait_for_data_of_those_before_them() {
    let mut script = Script::new();
    let second = script.join(2);
    script.try_pdu(second, command(2, 101), &[]).unwrap();
    begin_write(&mut script, write(1, 100, 512));
    assert_eq!(script.executes(second), [2]);
    assert!(script.executes(script.conn).is_empty(), "its own data is awaited");
    script.session.complete(Itt(2), Completion::default());
    assert_eq!(script.response(second).exp_cmd_sn, CmdSn(102));
    end_write(&mut script);
    assert_eq!(script.executes(script.conn), [1]);
}

#[test]
fn an_ordered_command_whose_data_is_coming_holds_up_those_behind_it() {
    let mut script = Script::new();
    let second = script.join(2);
    let ordered = ScsiCommand { attribute: TaskAttribute::ORDERED, ..write(1, 100, 512) };
    begin_write(&mut script, ordered);
    script.try_pdu(second, command(2, 101), &[]).unwrap();
    assert!(script.executes(second).is_empty());
    end_write(&mut script);
    assert_eq!(script.executes(script.conn), [1]);
    script.session.complete(Itt(1), Completion::default());
    assert_eq!(script.executes(second), [2]);
}

/// What may still be discarded, or come again on another connection, has not been received.
#[test]
fn commands_wait_for_data_that_may_turn_out_damaged_or_be_cut_off() {
    for (level, digest) in [(0, DigestKind::Crc32c), (2, DigestKind::None)] {
        let mut script = Script::at_level(level);
        let first = script.session.connections.get_mut(&script.conn).unwrap();
        first.params.data_digest = digest;
        let second = script.log_in(2, NOW);
        script.try_pdu(second, command(2, 101), &[]).unwrap();
        begin_write(&mut script, write(1, 100, 512));
        assert!(script.executes(second).is_empty());
        end_write(&mut script);
        assert_eq!(script.executes(script.conn), [1]);
        assert_eq!(script.executes(second), [2]);
    }
}

#[test]
fn a_write_that_is_aborted_while_its_data_comes_is_over() {
    let mut script = Script::new();
    begin_write(&mut script, write(1, 100, 512));
    let second = script.join(2);
    script.try_pdu(second, abort(9, 101, 1, 100), &[]).unwrap();
    let answer = script.said(second);
    assert!(matches!(answer, Some((Pdu::TaskManagementResponse(_), _))), "{answer:?}");
    assert_eq!(script.session.task_count(), 0);
    end_write(&mut script);
    assert!(script.executes(script.conn).is_empty());
    script.pdu(command(3, 101), &[]);
    assert_eq!(script.executes(script.conn), [3]);
}

#[test]
fn data_behind_that_of_the_command_is_asked_for_when_that_is_there() {
    let mut script = Script::new();
    begin_write(&mut script, write(1, 100, 4096));
    assert!(script.sent(script.conn).is_none());
    end_write(&mut script);
    assert_eq!(script.r2t().buffer_offset, 512);
}
