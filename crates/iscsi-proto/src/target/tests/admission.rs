//! Commands that are held back until the shell admits them.

use super::*;

impl Script {
    fn holding() -> Self {
        let mut script = Self::new();
        script.session.set_holding(true);
        script
    }

    /// What the shell is asked, and told to execute or to drop, since the last time.
    fn events(&mut self, conn: ConnId) -> Vec<(&'static str, u32)> {
        let mut events = Vec::new();
        while let Some(event) = self.session.poll_event(conn) {
            match event {
                Event::Admit(admission) => events.push(("admit?", admission.itt.0)),
                Event::Execute(execute) => events.push(("execute", execute.itt.0)),
                Event::Dropped(itt) => events.push(("drop", itt.0)),
                _ => {}
            }
        }
        events
    }

    fn own_events(&mut self) -> Vec<(&'static str, u32)> {
        self.events(self.conn)
    }
}

#[test]
fn a_write_is_asked_for_its_data_only_when_it_is_admitted() {
    let mut script = Script::holding();
    script.pdu(write(1, 100, 4096), &[1; 512]);
    assert_eq!(script.own_events(), [("admit?", 1)]);
    assert!(script.sent(script.conn).is_none(), "no R2T");
    assert_eq!(script.session.buffer_length(Itt(1)), 1024, "what may come unasked");
    // Others are received, and answered, meanwhile.
    script.pdu(ping(8, 101, 1), b"there?");
    assert!(matches!(script.sent(script.conn), Some((Pdu::NopIn(_), _))));
    script.session.admit(Itt(1));
    let (first, second) = (script.r2t(), script.r2t());
    script.pdu(data_out(1, first.ttt, 0, 512, false), &[1; 1024]);
    script.pdu(data_out(1, first.ttt, 1, 1536, true), &[1; 1024]);
    script.pdu(data_out(1, second.ttt, 0, 2560, false), &[1; 1024]);
    script.pdu(data_out(1, second.ttt, 1, 3584, true), &[1; 512]);
    assert_eq!(script.own_events(), [("execute", 1)], "it is asked for once");
}

#[test]
fn what_is_asked_says_where_and_how_much() {
    let mut script = Script::holding();
    let cdb = [0x2a; 16];
    script.pdu(ScsiCommand { cdb, lun: Lun(3 << 48), ..write(1, 100, 512) }, &[1; 512]);
    let both = ScsiCommand { read: true, bidi_read_length: Some(512), ..write(2, 101, 1024) };
    script.pdu(both, &[1; 1024]);
    let asked: Vec<_> = std::iter::from_fn(|| script.session.poll_event(script.conn)).collect();
    let [Event::Admit(one), Event::Admit(two)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((one.lun, one.cdb, one.bytes), (Lun(3 << 48), cdb, 512));
    assert_eq!((two.itt, two.bytes), (Itt(2), 1536));
}

#[test]
fn each_is_executed_when_it_is_admitted() {
    let mut script = Script::holding();
    script.pdu(read(1, 100, 512), &[]);
    script.pdu(write(2, 101, 512), &[1; 512]);
    script.pdu(command(3, 102), &[]);
    assert_eq!(script.own_events(), [("admit?", 1), ("admit?", 2), ("admit?", 3)]);
    script.session.admit(Itt(3));
    script.session.admit(Itt(2));
    script.session.admit(Itt(2));
    assert_eq!(script.own_events(), [("execute", 3), ("execute", 2)]);
    script.session.set_holding(false);
    script.pdu(read(4, 103, 512), &[]);
    assert_eq!(script.own_events(), [("execute", 4)], "nobody asks any more");
    script.session.admit(Itt(1));
    assert_eq!(script.own_events(), [("execute", 1)]);
}

#[test]
fn an_ordered_command_does_not_pass_one_that_is_held() {
    let mut script = Script::holding();
    script.pdu(write(1, 100, 512), &[1; 512]);
    script.pdu(ScsiCommand { attribute: TaskAttribute::ORDERED, ..command(2, 101) }, &[]);
    assert_eq!(script.own_events(), [("admit?", 1)]);
    script.session.admit(Itt(1));
    assert_eq!(script.own_events(), [("execute", 1)]);
    script.session.complete(Itt(1), Completion::default());
    assert_eq!(script.own_events(), [("admit?", 2)]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# For all these functions, the Task Management Function Response MUST be returned as detailed in
//# Section 11.6.
#[test]
fn task_management_ends_what_is_held_at_once() {
    let mut script = Script::holding();
    script.pdu(write(1, 100, 4096), &[]);
    script.pdu(read(2, 101, 512), &[]);
    script.pdu(read(3, 102, 512), &[]);
    assert_eq!(script.own_events().len(), 3);
    script.pdu(abort(9, 103, 1, 100), &[]);
    assert_eq!(script.own_events(), [("drop", 1)]);
    let Some((Pdu::TaskManagementResponse(response), _)) = script.sent(script.conn) else {
        panic!("expected the answer to the abort")
    };
    assert_eq!(response.response, TaskManagementResponseCode::COMPLETE);
    let function = TaskManagementFunction::LOGICAL_UNIT_RESET;
    script.pdu(TaskManagementRequest { function, ..abort(9, 103, u32::MAX, 0) }, &[]);
    assert_eq!(script.own_events(), [("drop", 2), ("drop", 3)]);
    assert!(script.session.is_quiet(), "nothing of it can reach the medium");
    script.session.admit(Itt(2));
    assert!(script.own_events().is_empty());
}

/// Neither the memory for writes nor that for reads, which others wait for.
#[test]
fn what_is_held_has_no_memory() {
    let config =
        SessionConfig { buffered_bytes_max: 4096, read_bytes_max: 512, ..SessionConfig::default() };
    let mut script = Script::with(params(), config);
    script.session.set_holding(true);
    script.pdu(write(1, 100, 4096), &[1; 512]);
    script.pdu(write(2, 101, 4096), &[1; 512]);
    script.pdu(read(3, 102, 512), &[]);
    script.pdu(read(4, 103, 512), &[]);
    script.session.admit(Itt(2));
    assert_eq!((script.r2t().itt, script.r2t().itt), (Itt(2), Itt(2)));
    script.executes(script.conn);
    script.session.admit(Itt(4));
    assert_eq!(script.own_events(), [("execute", 4)]);
}

#[test]
fn a_write_that_fails_is_not_held() {
    let mut script = Script::holding();
    script.pdu(write(1, 100, 512), &[1; 700]);
    assert!(script.own_events().iter().all(|(what, _)| *what != "admit?"));
    assert_eq!(script.response(script.conn).status, 2);
}

#[test]
fn who_takes_over_a_held_command_is_asked_anew() {
    let mut script = Script::at_level(2);
    script.session.set_holding(true);
    script.pdu(write(7, 100, 2048), &[]);
    assert_eq!(script.own_events(), [("admit?", 7)]);
    script.pdu(read(8, 101, 512), &[]);
    let second = script.log_in(2, NOW);
    script.session.handle_connection_lost(script.conn, NOW);
    script.session.admit(Itt(7));
    let logout = LogoutRequest {
        immediate: true,
        reason: LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY,
        itt: Itt(90),
        cid: Cid(1),
        cmd_sn: CmdSn(102),
        exp_stat_sn: StatSn(1),
    };
    script.try_pdu(second, logout, &[]).unwrap();
    for itt in [7, 8] {
        let function = TaskManagementFunction::TASK_REASSIGN;
        let request = TaskManagementRequest { function, ..abort(itt + 2, 102, itt, 0) };
        script.try_pdu(second, request, &[]).unwrap();
    }
    assert_eq!(script.events(second), [("admit?", 7), ("admit?", 8)]);
    script.session.admit(Itt(7));
    script.session.admit(Itt(8));
    let sent = script.all_sent(second);
    assert!(sent.iter().any(|(pdu, _)| matches!(pdu, Pdu::R2t(r2t) if r2t.itt == Itt(7))));
    assert_eq!(script.events(second), [("execute", 8)]);
}
