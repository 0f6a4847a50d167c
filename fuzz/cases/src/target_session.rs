//! Full-feature phase as the target sees it: any PDUs on the connections of one session at any
//! error recovery level, mixed with commands that end, connections that are lost, replaced and
//! joined, and time that passes.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use iscsi_proto::connection::Placement;
use iscsi_proto::frame::Limits;
use iscsi_proto::ids::{Cid, Isid, Itt, Tsih};
use iscsi_proto::keys::{ConnectionParams, SessionParams};
use iscsi_proto::login::Outcome;
use iscsi_proto::pdu::{AsyncEvent, Header, Opcode, Pdu, R2t, TaskManagementResponseCode};
use iscsi_proto::serial::{CmdSn, StatSn};
use iscsi_proto::target::{
    Completion, ConnId, Event, Execute, Received, Recovery, Session, SessionConfig,
};
use iscsi_proto::time::Instant;

use crate::drivers::{Driver, Drivers};
use crate::reader::Reader;

/// Commands that fit the window: small, so that inputs of a few hundred bytes get to its edge.
const WINDOW: u32 = 8;
/// Immediate commands that are taken.
const IMMEDIATE_MAX: u32 = 4;
/// Longest write that gets a buffer.
const WRITE_LENGTH_MAX: u32 = 64 << 10;
/// Longest data segment.
const SEGMENT_MAX: u32 = 16 << 10;
/// Answers per PDU that nobody fetches: one, or one for each task that it ends.
const REPLIES_MAX: usize = 5000;
/// Unacknowledged answers before SCSI responses are held back.
const UNACKNOWLEDGED_MAX: usize = 16;
/// Connections that one input may open.
const CONNECTIONS_MAX: usize = 64;
/// R2Ts that are remembered, for Data-Out that answers one.
const R2TS_KEPT: usize = 4;

/// What the first bytes of an input agree on.
#[derive(Clone, Copy)]
struct Agreed {
    flags: u8,
    /// Drawn only if the highest bit of `flags` says so: the lower bits mean what they always did.
    more: u8,
}

/// The session and what a shell keeps for it.
struct Shell {
    session: Session,
    agreed: Agreed,
    now: Instant,
    drivers: Drivers,
    /// Every connection there ever was.
    conns: Vec<ConnId>,
    /// With the connection whose driver waits for the command.
    running: VecDeque<(ConnId, Itt)>,
    managing: VecDeque<Itt>,
    texts: VecDeque<(ConnId, Itt)>,
    r2ts: VecDeque<R2t>,
    /// A PDU of another connection is halfway in.
    nested: bool,
}

/// The invariants: data stays within the buffer of its task; a command is executed once, and a
/// write only when every byte of its buffer was received intact (what else is in a buffer is
/// somebody else's data); tasks, answers and the window stay within their limits, tasks of lost
/// connections have a time to end; in the end nothing is left.
pub fn target_session(data: &[u8]) {
    let mut input = Reader(data);
    let flags = input.u8();
    let more = if flags & 0x80 != 0 { input.u8() } else { 0 };
    let mut shell = Shell::new(Agreed { flags, more });
    for _ in 0..512 {
        if input.is_empty() {
            break;
        }
        let what = input.u8();
        shell.step(what, &mut input);
        shell.check();
    }
    shell.end();
}

impl Agreed {
    fn level(self) -> u8 {
        (self.flags >> 5 & 3).min(2)
    }

    fn outcome(self, cid: u16) -> Outcome {
        let Self { flags, more } = self;
        Outcome {
            initiator_name: crate::login::INITIATOR.to_owned(),
            target_name: Some(crate::login::TARGET.to_owned()),
            discovery: flags & 8 != 0,
            isid: Isid::default(),
            tsih: Tsih(1),
            cid: Cid(cid),
            session: SessionParams {
                max_connections: 2,
                initial_r2t: flags & 1 != 0,
                immediate_data: flags & 2 == 0,
                max_burst_length: if flags & 4 != 0 { 4096 } else { 512 },
                first_burst_length: 512,
                max_outstanding_r2t: if flags & 16 != 0 { 3 } else { 1 },
                error_recovery_level: self.level(),
                data_pdu_in_order: more & 1 == 0,
                data_sequence_in_order: more & 2 == 0,
                default_time2retain: if more & 4 != 0 { 0 } else { 20 },
                ..SessionParams::default()
            },
            connection: ConnectionParams {
                max_recv_data_segment_length: SEGMENT_MAX,
                max_send_data_segment_length: 512,
                ..ConnectionParams::default()
            },
            authenticated_as: None,
            chap: None,
            // Just before the wrap.
            cmd_sn: CmdSn(u32::MAX - 1),
            next_stat_sn: StatSn(u32::MAX - 1),
            exp_cmd_sn: CmdSn(u32::MAX - 1),
            max_cmd_sn: CmdSn(u32::MAX - 1),
            peer_alias: None,
            portal_group_tag: Some(1),
            protocol_level: 1,
        }
    }
}

impl Shell {
    fn new(agreed: Agreed) -> Self {
        let mut config = SessionConfig::default();
        config.command_window = WINDOW;
        config.immediate_commands_max = IMMEDIATE_MAX;
        config.write_length_max = WRITE_LENGTH_MAX;
        config.buffered_bytes_max = u64::from(WRITE_LENGTH_MAX);
        config.unacknowledged_max = UNACKNOWLEDGED_MAX;
        config.text_length_max = 1024;
        if agreed.more & 8 != 0 {
            config.read_bytes_max = 4096;
        }
        let mut shell = Self {
            session: Session::new(config, &agreed.outcome(1)),
            agreed,
            now: Instant::default(),
            drivers: Drivers::default(),
            conns: Vec::new(),
            running: VecDeque::new(),
            managing: VecDeque::new(),
            texts: VecDeque::new(),
            r2ts: VecDeque::new(),
            nested: false,
        };
        (1..=2).for_each(|cid| shell.join(cid));
        shell
    }

    fn step(&mut self, what: u8, input: &mut Reader<'_>) {
        let cid = 1 + u16::from(what & 1);
        let conn = self.drivers.of_cid(cid);
        match (what >> 1 & 15, conn) {
            (0..=9, Some(conn)) => self.receive(conn, what, input),
            (10, _) => self.complete(input.u8()),
            (11, Some(conn)) => self.fetch(conn, usize::from(input.u8())),
            (12, _) => self.manage(input.u8()),
            (13, _) => self.pass(conn, input.u8()),
            (14, _) => self.answer_text(input),
            (15, _) => self.membership(cid, input.u8()),
            _ => {}
        }
        self.events();
    }

    fn membership(&mut self, cid: u16, how: u8) {
        match (how, self.drivers.of_cid(cid)) {
            (0, Some(conn)) => self.lose(conn),
            (1 | 2, _) => self.join(cid),
            (3, _) => {
                let Some(conn) = self.add_connection(cid) else { return };
                self.session.handle_login_lost(conn);
            }
            (4, Some(conn)) => {
                self.session.send_async(conn, AsyncEvent::LOGOUT_REQUEST, [0, 0, 10]);
            }
            (5, _) => {
                if let Some(conn) = self.drivers.replaced().filter(|_| !self.nested) {
                    self.lose(conn);
                }
            }
            (6, Some(conn)) => self.session.note_progress(conn, self.now),
            (0 | 4 | 6, None) => {}
            _ => self.session.abort_all(None),
        }
    }

    fn join(&mut self, cid: u16) {
        if let Some(conn) = self.add_connection(cid) {
            self.drivers.begin(conn, cid);
        }
    }

    fn add_connection(&mut self, cid: u16) -> Option<ConnId> {
        if self.conns.len() >= CONNECTIONS_MAX || !self.session.admits(Cid(cid)) {
            return None;
        }
        let outcome = self.agreed.outcome(cid);
        let conn = self.session.add_connection(&outcome, outcome.next_stat_sn, self.now);
        self.conns.push(conn);
        Some(conn)
    }

    /// The driver of a connection ends, as that of the daemon does.
    fn lose(&mut self, conn: ConnId) {
        self.drivers.end(&self.session, conn, self.agreed.level() == 2);
        self.session.handle_connection_lost(conn, self.now);
        let due = self.session.poll_timeout(conn);
        assert_eq!(self.session.is_recoverable(conn), due.is_some(), "no end of its tasks");
    }

    fn pass(&mut self, conn: Option<ConnId>, seconds: u8) {
        self.now = self.now + Duration::from_secs(u64::from(seconds));
        if let Some(conn) = conn
            && !self.session.handle_timeout(conn, self.now)
        {
            self.lose(conn);
        }
        self.pass_for_lost();
    }

    fn pass_for_lost(&mut self) {
        for conn in self.conns.clone() {
            if self.drivers.get(conn).is_none() {
                assert!(self.session.handle_timeout(conn, self.now));
                let due = self.session.poll_timeout(conn);
                assert!(due.is_none_or(|due| due > self.now), "{conn:?} asks for time for ever");
            }
        }
    }

    fn receive(&mut self, conn: ConnId, what: u8, input: &mut Reader<'_>) {
        let mut header = Header { bhs: input.array(), ahs: Bytes::new() };
        let limits = Limits::full_feature(SEGMENT_MAX);
        let ahs_len = header.total_ahs_length();
        let data_len = header.data_segment_length();
        if ahs_len > usize::from(limits.ahs_length_max) || data_len > SEGMENT_MAX {
            return; // the framer does not let it through
        }
        header.ahs = input.filled(ahs_len).into();
        if what & 0x20 != 0 {
            self.fit(&mut header);
        }
        let Ok(placement) = self.session.handle_header(conn, self.now, &header) else {
            return self.lose(conn);
        };
        self.events(); // as if another connection's driver had run meanwhile
        let (intact, interrupted) = (what & 0x40 == 0, what & 0x80 != 0 && !self.nested);
        let place = self.begin_placing(conn, placement, data_len);
        let interruption = if interrupted { input.u8() } else { 0 };
        if interrupted && interruption == 0xff {
            self.drivers.filled(conn, place, false);
            return self.lose(conn);
        }
        if interrupted {
            self.nested = true;
            let other = u8::from(self.drivers.get(conn).is_some_and(|driver| driver.cid == 1));
            self.step(interruption & 0x7e | other, input);
            self.nested = false;
        }
        self.drivers.filled(conn, place, intact);
        let received = match placement {
            Placement::Scratch => Received::Scratch(input.filled(data_len as usize).into()),
            _ => Received::Placed,
        };
        if self.session.handle_data(conn, received, intact).is_err() {
            self.lose(conn);
        }
    }

    /// Makes a PDU one that is expected: a CmdSN in turn or a few beyond, data that an R2T asks
    /// for.
    fn fit(&mut self, header: &mut Header) {
        if header.opcode() != Opcode::DATA_OUT {
            let (exp_cmd_sn, _) = self.session.command_window();
            let cmd_sn = exp_cmd_sn.plus(u32::from(header.bhs[27] & 3));
            header.bhs[24..28].copy_from_slice(&cmd_sn.0.to_be_bytes());
        } else if let Some(r2t) = self.r2ts.get(usize::from(header.bhs[23]) % R2TS_KEPT) {
            let ahead = u32::from(u16::from_be_bytes([header.bhs[42] & 0x0f, header.bhs[43]]));
            let offset = r2t.buffer_offset.wrapping_add(ahead);
            header.bhs[16..20].copy_from_slice(&r2t.itt.0.to_be_bytes());
            header.bhs[20..24].copy_from_slice(&r2t.ttt.0.to_be_bytes());
            header.bhs[40..44].copy_from_slice(&offset.to_be_bytes());
        }
    }

    /// Finds the room for a data segment: what the driver does between header and data.
    fn begin_placing(&mut self, conn: ConnId, placement: Placement, len: u32) -> (usize, usize) {
        match placement {
            Placement::Task { itt, offset } => {
                let (offset, len) = (offset as usize, len as usize);
                let room = self.session.buffer_length(itt) as usize;
                assert!(room <= WRITE_LENGTH_MAX as usize);
                assert!(offset + len <= room, "{offset} + {len} > {room}");
                self.drivers.fill(conn, itt, room);
                (offset, offset + len)
            }
            Placement::None => {
                assert_eq!(len, 0);
                (0, 0)
            }
            Placement::Scratch | Placement::Discard => (0, 0),
        }
    }

    fn events(&mut self) {
        for conn in self.drivers.all() {
            while let Some(event) = self.session.poll_event(conn) {
                match event {
                    Event::Execute(execute) => self.execute(conn, &execute),
                    Event::Dropped(itt) => self.drivers.dropped(conn, itt),
                    Event::Text { itt, text } => {
                        assert!(text.len() <= 1024);
                        self.texts.push_back((conn, itt));
                    }
                    Event::Management { itt, .. } => self.managing.push_back(itt),
                    Event::Recovery(Recovery::Reassigned { itt }) => self.drivers.adopt(conn, itt),
                    _ => {}
                }
            }
        }
        while self.session.poll_wake().is_some() {}
        while self.session.poll_abort().is_some() {}
        self.drivers.orphans.bury(&self.session);
        // Drivers that are gone, and whose last command has ended.
        for conn in self.conns.clone() {
            let busy = self.running.iter().any(|(of, _)| *of == conn);
            if !busy && self.drivers.get(conn).is_none() {
                self.session.remove_connection(conn);
            }
        }
    }

    fn execute(&mut self, conn: ConnId, execute: &Execute) {
        let itt = execute.itt;
        assert!(self.running.iter().all(|(_, other)| *other != itt), "{itt} is executed twice");
        let buffer = self.drivers.collect(conn, itt);
        if execute.write && !execute.too_long {
            let wanted = execute.expected_data_transfer_length as usize;
            assert_eq!(buffer.len(), wanted, "{execute:?}");
            assert!(buffer.iter().all(|filled| *filled), "a hole in the data: {execute:?}");
        }
        self.running.push_back((conn, itt));
    }

    fn complete(&mut self, how: u8) {
        let Some((_, itt)) = self.running.pop_front() else { return };
        let status = if how & 1 == 0 { 0 } else { 2 };
        let data_in = Bytes::from(vec![0; usize::from(how) * 16]);
        let sense = Bytes::from(vec![0; usize::from(how & 1) * 18]);
        let wanted_length = data_in.len() as u64;
        self.session.complete(
            itt,
            Completion { status, sense, data_in, wanted_length, ..Completion::default() },
        );
    }

    fn manage(&mut self, how: u8) {
        if let Some(itt) = self.managing.pop_front() {
            self.session.management_done(itt, TaskManagementResponseCode(how));
        }
    }

    fn answer_text(&mut self, input: &mut Reader<'_>) {
        if let Some((conn, itt)) = self.texts.pop_front() {
            let len = usize::from(input.u16() & 0xfff);
            self.session.text_reply(conn, itt, Bytes::from(vec![b'x'; len]));
        }
    }

    fn fetch(&mut self, conn: ConnId, count: usize) {
        for _ in 0..=count {
            let Some(pdu) = self.session.poll_transmit(conn) else { return };
            assert_eq!(pdu.header.data_segment_length() as usize, pdu.payload.len());
            assert!(pdu.payload.len() <= 512, "more than the initiator takes");
            match Pdu::parse(&pdu.header) {
                Ok(Pdu::R2t(r2t)) => {
                    assert!(r2t.desired_data_transfer_length > 0);
                    self.r2ts.push_front(r2t);
                    self.r2ts.truncate(R2TS_KEPT);
                }
                Ok(_) => {}
                Err(error) => panic!("{error}: {:?}", pdu.header),
            }
        }
    }

    fn check(&mut self) {
        let tasks = self.session.task_count();
        let under_way = 2 * (WINDOW + IMMEDIATE_MAX) as usize;
        // Answered tasks, which may have to be answered again, come on top.
        let retained = if self.agreed.level() == 0 { 0 } else { UNACKNOWLEDGED_MAX };
        for conn in &self.conns {
            let tasks = self.session.tasks_of(*conn);
            assert!(tasks <= under_way + retained, "{tasks} tasks of {conn:?}");
            assert!(self.session.reply_backlog(*conn) <= REPLIES_MAX);
        }
        if self.agreed.level() == 0 {
            assert!(tasks <= under_way, "{tasks} tasks");
        }
        let writes: Vec<Itt> = self.drivers.iter().flat_map(Driver::writes).collect();
        assert!(writes.len() <= tasks, "{} buffers, {tasks} tasks", writes.len());
        let memory: usize =
            writes.iter().map(|itt| self.session.buffer_length(*itt) as usize).sum();
        let unsolicited = tasks * 512;
        // One write may go beyond the limit, so that those before it in CmdSN order can end.
        let solicited = 2 * WRITE_LENGTH_MAX as usize;
        assert!(memory <= solicited + unsolicited, "{memory} bytes for {tasks} writes");
        assert!(self.texts.len() <= 512);
        let (exp_cmd_sn, max_cmd_sn) = self.session.command_window();
        assert!((-1..WINDOW as i32).contains(&max_cmd_sn.since(exp_cmd_sn)));
        assert!(self.session.connection_count() <= 3);
    }

    /// Every connection is lost, what runs completes, and the time for recovery passes: no task, no
    /// buffer and no timer may be left. Half of the inputs close the session before that.
    fn end(mut self) {
        if self.now.0.as_secs().is_multiple_of(2) {
            self.session.close("the end");
        }
        for conn in self.drivers.all() {
            self.lose(conn);
        }
        self.events();
        self.now = self.now + Duration::from_secs(22); // Time2Wait and Time2Retain
        self.pass_for_lost();
        self.events();
        while !self.running.is_empty() {
            self.complete(0);
            self.events();
        }
        assert!(self.session.is_quiet());
        assert!(!self.session.awaits_recovery());
        assert_eq!(self.session.task_count(), 0);
        assert_eq!(self.session.connection_count(), 0);
        assert!(self.drivers.orphans.is_empty());
        for conn in &self.conns {
            assert_eq!(self.session.tasks_of(*conn), 0, "answered tasks of {conn:?}");
            assert_eq!(self.session.poll_timeout(*conn), None);
        }
    }
}
