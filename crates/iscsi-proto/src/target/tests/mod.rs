//! The target core against a scripted initiator: every PDU by hand, no socket, no clock.

use bytes::Bytes;

use super::*;
use crate::connection::{Placement, Transmit};
use crate::ids::{Cid, Isid, Itt, Lun, Tsih, Ttt};
use crate::keys::{ConnectionParams, DigestKind, SessionParams};
use crate::login::Outcome;
use crate::pdu::*;
use crate::serial::{CmdSn, DataSn, StatSn};
use crate::time::Instant;

mod acknowledge;
mod admission;
mod anything;
mod connections;
mod data_in;
mod data_out;
mod management;
mod multi_task;
mod order;
mod orphans;
mod reassign;
mod receipt;
mod recovery_r2t;
mod requirements;
mod snack;
mod timers;

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
        chap: None,
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

    /// A session at an error recovery level, sequences in any order.
    fn at_level(level: u8) -> Self {
        Self::at_level_with(level, SessionConfig::default())
    }

    fn at_level_with(error_recovery_level: u8, config: SessionConfig) -> Self {
        let data_sequence_in_order = false;
        let params = SessionParams { error_recovery_level, data_sequence_in_order, ..params() };
        Self::with(params, config)
    }

    /// Another login of this session.
    fn log_in(&mut self, cid: u16, now: Instant) -> ConnId {
        let outcome = outcome(cid, *self.session.params());
        self.session.add_connection(&outcome, StatSn(1), now)
    }

    /// A PDU whose data digest is wrong; from here on the connection has digests.
    fn damaged(&mut self, pdu: impl Into<Pdu>, data: &[u8]) {
        if let Some(connection) = self.session.connections.get_mut(&self.conn) {
            connection.params.data_digest = DigestKind::Crc32c;
        }
        let header = pdu.into().encode(u32::try_from(data.len()).unwrap());
        let placement = self.session.handle_header(self.conn, NOW, &header).unwrap();
        let received = match placement {
            Placement::Scratch => Received::Scratch(Bytes::copy_from_slice(data)),
            _ => Received::Placed,
        };
        self.session.handle_data(self.conn, received, false).unwrap();
    }

    /// The next PDU is a reject: its reason and DataSN.
    fn rejected(&mut self) -> (RejectReason, u32) {
        match self.sent(self.conn) {
            Some((Pdu::Reject(reject), _)) => (reject.reason, reject.data_sn),
            other => panic!("expected a reject, got {other:?}"),
        }
    }

    /// Everything that can be sent.
    fn all_sent(&mut self, conn: ConnId) -> Vec<(Pdu, Bytes)> {
        std::iter::from_fn(|| self.sent(conn)).collect()
    }

    /// The next PDU that says more than how large the command window is (§11.4.11).
    fn said(&mut self, conn: ConnId) -> Option<(Pdu, Bytes)> {
        std::iter::from_fn(|| self.sent(conn)).find(|(pdu, _)| {
            !matches!(pdu, Pdu::NopIn(nop) if nop.itt == Itt::NONE && nop.ttt == Ttt::NONE)
        })
    }

    fn response(&mut self, conn: ConnId) -> ScsiResponse {
        match self.said(conn) {
            Some((Pdu::ScsiResponse(response), _)) => response,
            other => panic!("expected a response, got {other:?}"),
        }
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
        priority: 0,
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

fn ping(itt: u32, cmd_sn: u32, exp_stat_sn: u32) -> NopOut {
    NopOut {
        immediate: true,
        lun: Lun(0),
        itt: Itt(itt),
        ttt: Ttt::NONE,
        cmd_sn: CmdSn(cmd_sn),
        exp_stat_sn: StatSn(exp_stat_sn),
    }
}

fn snack(kind: SnackKind, itt: u32, beg_run: u32, run_length: u32) -> SnackRequest {
    SnackRequest {
        kind,
        lun: Lun(0),
        itt: Itt(itt),
        ttt_or_snack_tag: u32::MAX,
        exp_stat_sn: StatSn(1),
        beg_run,
        run_length,
    }
}

/// Bytes that tell where they belong.
fn pattern(len: usize) -> Bytes {
    (0..len).map(|n| (n % 251) as u8).collect::<Vec<u8>>().into()
}

fn good(data_in: &[u8]) -> Completion {
    Completion {
        data_in: Bytes::copy_from_slice(data_in),
        wanted_length: data_in.len() as u64,
        ..Completion::default()
    }
}

impl Session {
    /// Answered tasks that are kept.
    pub(super) fn retained_count(&self) -> usize {
        self.answered.len()
    }

    /// Runs that wait to be sent again.
    pub(super) fn run_count(&self, conn: ConnId) -> usize {
        self.connections.get(&conn).map_or(0, |c| c.runs.len())
    }

    /// As if the initiator had declared another MaxRecvDataSegmentLength.
    pub(super) fn set_segment_max(&mut self, conn: ConnId, segment_max: u32) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.params.max_send_data_segment_length = segment_max;
        }
    }
}
