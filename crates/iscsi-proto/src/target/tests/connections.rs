//! Connections: logout, loss, silence, what they reject (§6.3, §11.14, §11.17).

use super::*;

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
//= type=test
//# When receiving a Logout Request with the reason code "close the connection" or "close the
//# session", the target MUST terminate all pending commands, whether acknowledged via the ExpCmdSN
//# or not, on that connection or session, respectively.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.15
//= type=test
//# After Logout, the TCP connection referred by the CID MUST be closed at both ends (or all
//# connections must be closed if the logout reason was session close).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.15.2
//= type=test
//# For this PDU, TotalAHSLength and DataSegmentLength MUST be 0.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.14.5
//= type=test
//# After the tasks are terminated, the target MUST report a Unit Attention condition on the next
//# command processed on any connection for each affected I_T_L nexus with the status of CHECK
//# CONDITION, the ASC/ASCQ value of 47h/7Fh ("SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT"),
//# etc.; see [SPC3].
#[test]
fn logout_of_the_connection_waits_for_its_writes_and_leaves_others_alone() {
    let mut script = Script::new();
    let second = script.join(2);
    script.try_pdu(second, write(1, 100, 512), &[0; 512]).unwrap();
    assert_eq!(script.executes(second), [1]);
    let logout = LogoutRequest {
        immediate: false,
        reason: LogoutReason::CLOSE_CONNECTION,
        itt: Itt(2),
        cid: Cid(2),
        cmd_sn: CmdSn(101),
        exp_stat_sn: StatSn(1),
    };
    script.try_pdu(second, logout, &[]).unwrap();
    assert!(script.sent(second).is_none());
    script.session.complete(Itt(1), Completion::default());
    assert!(matches!(script.sent(second), Some((Pdu::LogoutResponse(_), _))));
    assert!(matches!(script.session.poll_event(second), Some(Event::Close { .. })));
    script.session.handle_connection_lost(second, NOW);
    assert!(!script.session.is_closed());
    script.pdu(command(3, 102), &[]);
    assert_eq!(script.response(script.conn).status, 2, "it tells of the write");
    script.pdu(command(4, 103), &[]);
    assert_eq!(script.executes(script.conn), [4]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.4.3
//= type=test
//# TCP connection failure: The target MUST close the connection and, if more than one connection is
//# available, the target SHOULD send an Asynchronous Message that indicates that it has dropped the
//# connection.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.5
//= type=test
//# Implementations MUST support error recovery level "0", while the rest are OPTIONAL to implement.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.14
//= type=test
//# On connection failure, the initiator and target MUST do one of the following:
#[test]
fn what_comes_behind_a_logout_is_not_executed() {
    for reason in [LogoutReason::CLOSE_CONNECTION, LogoutReason::CLOSE_SESSION] {
        let mut script = Script::new();
        let (itt, cid, cmd_sn, exp_stat_sn) = (Itt(1), Cid(1), CmdSn(100), StatSn(1));
        let logout = LogoutRequest { immediate: false, reason, itt, cid, cmd_sn, exp_stat_sn };
        script.pdu(logout, &[]);
        script.pdu(write(2, 101, 512), &[0; 512]);
        script.pdu(command(3, 102), &[]);
        assert!(script.executes(script.conn).is_empty());
        assert_eq!(script.session.task_count(), 0);
        assert!(matches!(script.sent(script.conn), Some((Pdu::LogoutResponse(_), _))));
        assert!(script.sent(script.conn).is_none());
    }
}

#[test]
fn a_lost_connection_ends_the_session_at_level_0() {
    let mut script = Script::new();
    let second = script.join(2);
    script.session.handle_connection_lost(second, NOW);
    assert!(script.session.is_closed());
    assert!(matches!(script.session.poll_event(script.conn), Some(Event::Close { .. })));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.14
//= type=test
//# On a connection failure, a target MUST terminate and/or discard all of the active immediate
//# commands, regardless of which of the above options is used (i.e., immediate commands are not
//# recoverable across connection failures).
#[test]
fn a_command_that_the_shell_has_not_fetched_is_taken_back() {
    let mut script = Script::new();
    script.pdu(command(1, 100), &[]);
    script.session.handle_connection_lost(script.conn, NOW);
    script.session.remove_connection(script.conn);
    assert!(script.session.is_quiet(), "nobody is left to complete it");
}

#[test]
fn nothing_is_taken_from_a_connection_that_is_about_to_be_closed() {
    let mut script = Script::new();
    script.session.close("session reinstated");
    assert!(script.session.is_quiet());
    assert!(script.try_pdu(script.conn, command(1, 100), &[]).is_err());
    assert!(script.executes(script.conn).is_empty());
    assert_eq!(script.session.task_count(), 0);
}

#[test]
fn a_connection_with_a_known_cid_replaces_the_old_one() {
    let mut script = Script::new();
    let old = script.join(2);
    script.try_pdu(old, write(1, 100, 2048), &[]).unwrap();
    let new = script.join(2);
    assert!(matches!(script.session.poll_event(old), Some(Event::Dropped(Itt(1)))));
    assert!(matches!(script.session.poll_event(old), Some(Event::Close { .. })));
    assert_eq!(script.session.connection_count(), 2);
    let other_unit = ScsiCommand { lun: Lun(1 << 48), ..command(2, 101) };
    script.try_pdu(new, other_unit, &[]).unwrap();
    assert_eq!(script.executes(new), [2]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.19
//= type=test
//# Otherwise, when a target sends a NOP-In that is not a response to a NOP-Out received from the
//# initiator, the Initiator Task Tag MUST be set to 0xffffffff, and the data segment MUST NOT
//# contain any data (DataSegmentLength MUST be 0).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.19.3
//= type=test
//# A LUN MUST be set to a correct value when the Target Transfer Tag is valid (not the reserved
//# value 0xffffffff).
#[test]
fn silence_is_answered_with_a_ping_and_then_with_the_end() {
    let mut script = Script::new();
    let conn = script.conn;
    let asked = script.session.poll_timeout(conn).unwrap();
    assert!(script.session.handle_timeout(conn, asked));
    let Some((Pdu::NopIn(ping), _)) = script.sent(conn) else { panic!("expected a NOP-In") };
    assert_eq!(ping.itt, Itt::NONE);
    assert_ne!(ping.ttt, Ttt::NONE);
    let given_up = script.session.poll_timeout(conn).unwrap();
    assert!(!script.session.handle_timeout(conn, given_up));
}

#[test]
fn moving_data_keeps_a_slow_connection_alive() {
    let mut script = Script::new();
    let conn = script.conn;
    let asked = script.session.poll_timeout(conn).unwrap();
    assert!(script.session.handle_timeout(conn, asked));
    let given_up = script.session.poll_timeout(conn).unwrap();
    script.session.note_progress(conn, given_up);
    assert!(script.session.handle_timeout(conn, given_up), "bytes have moved");
}

#[test]
fn what_the_peers_tcp_acknowledges_keeps_a_connection_alive_and_spares_it_no_question() {
    let mut script = Script::new();
    let conn = script.conn;
    let asked = script.session.poll_timeout(conn).unwrap();
    script.session.note_acknowledged(conn, asked);
    assert!(script.session.handle_timeout(conn, asked));
    assert!(matches!(script.sent(conn), Some((Pdu::NopIn(_), _))), "it is asked");
    for _ in 0..10 {
        let given_up = script.session.poll_timeout(conn).unwrap();
        script.session.note_acknowledged(conn, given_up);
        assert!(script.session.handle_timeout(conn, given_up), "bytes are acknowledged");
    }
    let given_up = script.session.poll_timeout(conn).unwrap();
    assert!(!script.session.handle_timeout(conn, given_up), "nothing moves");
}

#[test]
fn unknown_opcodes_are_rejected_with_their_header() {
    let mut script = Script::new();
    let mut header = Pdu::from(command(1, 100)).encode(0);
    header.bhs[0] = 0x1e;
    let conn = script.conn;
    assert_eq!(script.session.handle_header(conn, NOW, &header).unwrap(), Placement::None);
    match script.sent(conn) {
        Some((Pdu::Reject(reject), data)) => {
            assert_eq!(reject.reason, RejectReason::COMMAND_NOT_SUPPORTED);
            assert_eq!(&data[..], &header.bhs[..]);
        }
        other => panic!("expected a reject, got {other:?}"),
    }
}

/// A command whose AHS ends behind its end, and data whose fields contradict their task's.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.7
//= type=test
//# When a target or an initiator receives an iSCSI PDU with a format error, it MUST immediately
//# terminate all transport connections in the session with either a connection close or a
//# connection reset, and escalate the format error to session recovery (see Section 7.1.4.4).
#[test]
fn a_format_error_ends_every_connection_of_the_session() {
    type Case = (&'static str, fn(&mut Script) -> Header);
    let cases: [Case; 3] = [
        ("AHS", |_| {
            let mut header = Pdu::from(command(1, 100)).encode(0);
            header.bhs[4] = 1;
            header.ahs = Bytes::from_static(&[0, 99, 77, 0]);
            header
        }),
        ("LUN", |script| {
            script.pdu(write(1, 100, 1024), &[]);
            let ttt = script.r2t().ttt;
            Pdu::from(DataOut { lun: Lun(1 << 48), ..data_out(1, ttt, 0, 0, true) }).encode(1024)
        }),
        ("connection", |script| {
            let third = script.log_in(3, NOW);
            script.try_pdu(third, write(1, 100, 1024), &[]).unwrap();
            let Some((Pdu::R2t(r2t), _)) = script.sent(third) else { panic!() };
            Pdu::from(data_out(1, r2t.ttt, 0, 0, true)).encode(1024)
        }),
    ];
    for (what, case) in cases {
        for level in 0..=2 {
            let mut script = Script::at_level(level);
            let (conn, second) = (script.conn, script.log_in(2, NOW));
            let header = case(&mut script);
            assert!(script.session.handle_header(conn, NOW, &header).is_err(), "{what}");
            assert!(script.session.is_closed(), "{what}, level {level}");
            for conn in [conn, second] {
                let mut events = std::iter::from_fn(|| script.session.poll_event(conn));
                let closes = events.any(|event| matches!(event, Event::Close { .. }));
                assert!(closes, "{what}, level {level}");
                script.session.handle_connection_lost(conn, NOW);
            }
            assert!(!script.session.awaits_recovery(), "{what}: nothing of it is recovered");
        }
    }
}
