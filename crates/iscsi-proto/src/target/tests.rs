//! The target core against a scripted initiator: every PDU by hand, no socket, no clock.

use bytes::Bytes;

use super::*;
use crate::connection::{Placement, Transmit};
use crate::ids::{Cid, Isid, Itt, Lun, Tsih, Ttt};
use crate::keys::{ConnectionParams, SessionParams};
use crate::login::Outcome;
use crate::pdu::*;
use crate::serial::{CmdSn, DataSn, StatSn};
use crate::time::Instant;

const NOW: Instant = Instant(std::time::Duration::ZERO);

fn outcome(cid: u16, session: SessionParams) -> Outcome {
    let connection =
        ConnectionParams { max_send_data_segment_length: 1024, ..ConnectionParams::default() };
    Outcome {
        initiator_name: "iqn.2026-11.test:initiator".into(),
        target_name: Some("iqn.2026-11.test:target".into()),
        isid: Isid::random(1, 0),
        tsih: Tsih(0),
        cid: Cid(cid),
        session,
        connection,
        cmd_sn: CmdSn(100),
        discovery: false,
        authenticated_as: None,
        next_stat_sn: StatSn(1),
        exp_cmd_sn: CmdSn(100),
        max_cmd_sn: CmdSn(100),
        peer_alias: None,
        portal_group_tag: None,
        protocol_level: 1,
    }
}

fn params() -> SessionParams {
    SessionParams {
        max_connections: 4,
        initial_r2t: false,
        immediate_data: true,
        first_burst_length: 1024,
        max_burst_length: 2048,
        max_outstanding_r2t: 2,
        ..SessionParams::default()
    }
}

struct Script {
    session: Session,
    conn: ConnId,
}

impl Script {
    fn new() -> Self {
        Self::with(params(), SessionConfig::default())
    }

    fn with(params: SessionParams, config: SessionConfig) -> Self {
        let outcome = outcome(1, params);
        let mut session = Session::new(config, &outcome);
        let conn = session.add_connection(&outcome, StatSn(1), NOW);
        Self { session, conn }
    }

    fn join(&mut self, cid: u16) -> ConnId {
        self.session.add_connection(&outcome(cid, params()), StatSn(1), NOW)
    }

    fn try_pdu(
        &mut self,
        conn: ConnId,
        pdu: impl Into<Pdu>,
        data: &[u8],
    ) -> Result<Placement, SessionError> {
        let header = pdu.into().encode(u32::try_from(data.len()).unwrap());
        let placement = self.session.handle_header(conn, NOW, &header)?;
        let received = match placement {
            Placement::Scratch => Received::Scratch(Bytes::copy_from_slice(data)),
            _ => Received::Placed,
        };
        self.session.handle_data(conn, received, true)?;
        Ok(placement)
    }

    fn pdu(&mut self, pdu: impl Into<Pdu>, data: &[u8]) -> Placement {
        self.try_pdu(self.conn, pdu, data).expect("the PDU is allowed")
    }

    fn sent(&mut self, conn: ConnId) -> Option<(Pdu, Bytes)> {
        let Transmit { header, payload } = self.session.poll_transmit(conn)?;
        assert_eq!(header.data_segment_length() as usize, payload.len());
        Some((Pdu::parse(&header).unwrap(), payload))
    }

    fn executes(&mut self, conn: ConnId) -> Vec<u32> {
        let mut itts = Vec::new();
        while let Some(event) = self.session.poll_event(conn) {
            if let Event::Execute(execute) = event {
                itts.push(execute.itt.0);
            }
        }
        itts
    }

    fn r2t(&mut self) -> R2t {
        match self.sent(self.conn) {
            Some((Pdu::R2t(r2t), _)) => r2t,
            other => panic!("expected an R2T, got {other:?}"),
        }
    }
}

fn command(itt: u32, cmd_sn: u32) -> ScsiCommand {
    ScsiCommand {
        immediate: false,
        is_final: true,
        read: false,
        write: false,
        attribute: TaskAttribute::SIMPLE,
        lun: Lun(0),
        itt: Itt(itt),
        expected_data_transfer_length: 0,
        cmd_sn: CmdSn(cmd_sn),
        exp_stat_sn: StatSn(1),
        cdb: [0; 16],
        extended_cdb: Bytes::new(),
        bidi_read_length: None,
    }
}

fn read(itt: u32, cmd_sn: u32, len: u32) -> ScsiCommand {
    ScsiCommand { read: true, expected_data_transfer_length: len, ..command(itt, cmd_sn) }
}

fn write(itt: u32, cmd_sn: u32, len: u32) -> ScsiCommand {
    ScsiCommand { write: true, expected_data_transfer_length: len, ..command(itt, cmd_sn) }
}

fn data_out(itt: u32, ttt: Ttt, data_sn: u32, offset: u32, is_final: bool) -> DataOut {
    DataOut {
        is_final,
        lun: Lun(0),
        itt: Itt(itt),
        ttt,
        exp_stat_sn: StatSn(1),
        data_sn: DataSn(data_sn),
        buffer_offset: offset,
    }
}

fn abort(itt: u32, cmd_sn: u32, referenced: u32, ref_cmd_sn: u32) -> TaskManagementRequest {
    TaskManagementRequest {
        immediate: true,
        function: TaskManagementFunction::ABORT_TASK,
        lun: Lun(0),
        itt: Itt(itt),
        referenced_task_tag: Itt(referenced),
        cmd_sn: CmdSn(cmd_sn),
        exp_stat_sn: StatSn(1),
        ref_cmd_sn: CmdSn(ref_cmd_sn),
        exp_data_sn: 0,
    }
}

fn good(data_in: &[u8]) -> Completion {
    Completion {
        data_in: Bytes::copy_from_slice(data_in),
        wanted_length: data_in.len() as u64,
        ..Completion::default()
    }
}

#[test]
fn a_read_is_cut_into_segments_and_bursts_with_status_on_the_last() {
    let mut script = Script::new();
    script.pdu(read(7, 100, 5000), &[]);
    assert_eq!(script.executes(script.conn), [7]);
    script.session.complete(Itt(7), good(&[3; 4500]));
    let mut seen = Vec::new();
    while let Some((Pdu::DataIn(pdu), data)) = script.sent(script.conn) {
        seen.push((
            pdu.buffer_offset,
            data.len(),
            pdu.is_final,
            pdu.data_sn.0,
            pdu.status.is_some(),
        ));
        if let Some(status) = pdu.status {
            assert_eq!(status.residual, Residual::Underflow(500));
            assert_eq!(pdu.stat_sn, StatSn(1));
        }
    }
    let expected = [
        (0, 1024, false, 0, false),
        (1024, 1024, true, 1, false),
        (2048, 1024, false, 2, false),
        (3072, 1024, true, 3, false),
        (4096, 404, true, 4, true),
    ];
    assert_eq!(seen, expected);
    assert_eq!(script.session.task_count(), 0);
}

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

#[test]
fn abort_of_a_command_that_has_not_arrived_fills_its_place() {
    let mut script = Script::new();
    script.pdu(command(2, 101), &[]);
    script.pdu(abort(3, 102, 1, 100), &[]);
    assert_eq!(script.executes(script.conn), [2]);
    script.pdu(command(1, 100), &[]);
    assert!(script.executes(script.conn).is_empty(), "it came too late");
}

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

#[test]
fn late_data_of_an_aborted_write_is_thrown_away() {
    let mut script = Script::new();
    script.pdu(write(1, 100, 3000), &[]);
    let r2t = script.r2t();
    script.pdu(abort(2, 101, 1, 100), &[]);
    let placement = script.pdu(data_out(1, r2t.ttt, 0, 0, false), &[0; 1024]);
    assert_eq!(placement, Placement::Discard);
}

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
        let (pdu, len) = case(script.r2t().ttt);
        script.r2t();
        assert_eq!(script.pdu(pdu, &vec![0; len]), Placement::Discard, "{name}");
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

#[test]
fn a_wrong_data_digest_is_rejected_and_fails_the_command() {
    let mut script = Script::new();
    let header = Pdu::from(write(1, 100, 512)).encode(512);
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
fn reads_wait_until_those_before_them_are_sent() {
    let config = SessionConfig { read_bytes_max: 4096, ..SessionConfig::default() };
    let mut script = Script::with(params(), config);
    for n in 0..3 {
        script.pdu(read(n, 100 + n, 4096), &[]);
    }
    script.pdu(command(3, 103), &[]);
    assert_eq!(script.executes(script.conn), [0, 3], "only what brings data waits");
    let data_in = Bytes::from(vec![0; 4096]);
    let completion = Completion { data_in, wanted_length: 4096, ..Completion::default() };
    script.session.complete(Itt(0), completion);
    assert!(script.executes(script.conn).is_empty(), "its data is still here");
    while script.sent(script.conn).is_some() {}
    assert_eq!(script.executes(script.conn), [1]);
    script.pdu(abort(9, 104, 2, 102), &[]);
    script.session.complete(Itt(1), Completion::default());
    assert!(script.executes(script.conn).is_empty(), "the last one was aborted");
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

#[test]
fn a_write_whose_turn_it_is_does_not_wait_for_memory_held_by_later_ones() {
    let config = SessionConfig { buffered_bytes_max: 4096, ..SessionConfig::default() };
    let mut script = Script::with(params(), config);
    let second = script.join(2);
    script.try_pdu(second, write(2, 101, 4096), &[]).unwrap();
    script.pdu(write(1, 100, 4096), &[]);
    assert_eq!(script.r2t().itt, Itt(1));
}

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
    script.session.handle_connection_lost(second);
    assert!(!script.session.is_closed());
    script.pdu(command(3, 102), &[]);
    assert_eq!(script.executes(script.conn), [3]);
}

#[test]
fn a_lost_connection_ends_the_session_at_level_0() {
    let mut script = Script::new();
    let second = script.join(2);
    script.session.handle_connection_lost(second);
    assert!(script.session.is_closed());
    assert!(matches!(script.session.poll_event(script.conn), Some(Event::Close { .. })));
}

#[test]
fn a_command_that_the_shell_has_not_fetched_is_taken_back() {
    let mut script = Script::new();
    script.pdu(command(1, 100), &[]);
    script.session.handle_connection_lost(script.conn);
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
    script.try_pdu(new, command(2, 101), &[]).unwrap();
    assert_eq!(script.executes(new), [2]);
}

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
