//! Full-feature phase as the target sees it: any PDUs on two connections of one session, mixed
//! with commands that end, connections that are lost and time that passes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use iscsi_proto::connection::Placement;
use iscsi_proto::frame::Limits;
use iscsi_proto::ids::{Cid, Isid, Itt, Tsih};
use iscsi_proto::keys::{ConnectionParams, SessionParams};
use iscsi_proto::login::Outcome;
use iscsi_proto::pdu::{Header, Opcode, Pdu, TaskManagementResponseCode};
use iscsi_proto::serial::{CmdSn, StatSn};
use iscsi_proto::target::{Completion, ConnId, Event, Received, Session, SessionConfig};
use iscsi_proto::time::Instant;

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

/// The session and what a shell keeps for it.
struct Shell {
    session: Session,
    conns: Vec<ConnId>,
    now: Instant,
    /// Which bytes of each write's buffer were filled.
    buffers: BTreeMap<Itt, Vec<bool>>,
    running: VecDeque<Itt>,
    managing: VecDeque<Itt>,
    texts: VecDeque<(ConnId, Itt)>,
}

/// The invariants: data stays within the buffer of its task; a command is executed once, and a
/// write only when every byte of its buffer was received (a buffer's old content is somebody
/// else's data); tasks, answers and the window stay within their limits; in the end nothing is left.
pub fn target_session(data: &[u8]) {
    let mut input = Reader(data);
    let mut shell = Shell::new(input.u8());
    for _ in 0..512 {
        if input.is_empty() {
            break;
        }
        shell.step(&mut input);
        shell.check();
    }
    shell.end();
}

fn outcome(flags: u8, cid: u16) -> Outcome {
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
            ..SessionParams::default()
        },
        connection: ConnectionParams {
            max_recv_data_segment_length: SEGMENT_MAX,
            max_send_data_segment_length: 512,
            ..ConnectionParams::default()
        },
        authenticated_as: None,
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

impl Shell {
    fn new(flags: u8) -> Self {
        let mut config = SessionConfig::default();
        config.command_window = WINDOW;
        config.immediate_commands_max = IMMEDIATE_MAX;
        config.write_length_max = WRITE_LENGTH_MAX;
        config.buffered_bytes_max = u64::from(WRITE_LENGTH_MAX);
        config.text_length_max = 1024;
        let mut session = Session::new(config, &outcome(flags, 1));
        let now = Instant::default();
        let conns = (1..=2)
            .map(|cid| session.add_connection(&outcome(flags, cid), StatSn(u32::MAX - 1), now))
            .collect();
        Self {
            session,
            conns,
            now,
            buffers: BTreeMap::new(),
            running: VecDeque::new(),
            managing: VecDeque::new(),
            texts: VecDeque::new(),
        }
    }

    fn step(&mut self, input: &mut Reader<'_>) {
        let what = input.u8();
        let conn = self.conns[usize::from(what & 1)];
        match what >> 1 & 15 {
            0..=9 => self.receive(conn, what, input),
            10 => self.complete(input.u8()),
            11 => self.fetch(conn, usize::from(input.u8())),
            12 => self.manage(input.u8()),
            13 => {
                self.now = self.now + Duration::from_secs(u64::from(input.u8()));
                if !self.session.handle_timeout(conn, self.now) {
                    self.session.handle_connection_lost(conn, self.now);
                }
            }
            14 => self.answer_text(input),
            _ if input.u8() == 0 => self.session.handle_connection_lost(conn, self.now),
            _ => self.session.abort_all(None),
        }
        self.events();
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
        if what & 0x20 != 0 && header.opcode() != Opcode::DATA_OUT {
            // A number that is expected, or a few beyond.
            let (exp_cmd_sn, _) = self.session.command_window();
            let cmd_sn = exp_cmd_sn.plus(u32::from(header.bhs[27] & 3));
            header.bhs[24..28].copy_from_slice(&cmd_sn.0.to_be_bytes());
        }
        match self.session.handle_header(conn, self.now, &header) {
            Ok(placement) => {
                self.events(); // as if another connection's driver had run meanwhile
                let received = self.place(placement, data_len, input);
                if self.session.handle_data(conn, received, what & 0x40 == 0).is_err() {
                    self.session.handle_connection_lost(conn, self.now);
                }
            }
            Err(_) => self.session.handle_connection_lost(conn, self.now),
        }
    }

    fn place(&mut self, placement: Placement, len: u32, input: &mut Reader<'_>) -> Received {
        match placement {
            Placement::Task { itt, offset } => {
                let (offset, len) = (offset as usize, len as usize);
                let write_length = self.session.write_length(itt) as usize;
                assert!(write_length <= WRITE_LENGTH_MAX as usize);
                assert!(offset + len <= self.session.buffer_length(itt) as usize);
                let buffer = self.buffers.entry(itt).or_insert_with(|| vec![false; write_length]);
                assert!(offset + len <= buffer.len(), "{offset} + {len} > {}", buffer.len());
                buffer[offset..offset + len].fill(true);
                Received::Placed
            }
            Placement::Scratch => Received::Scratch(input.filled(len as usize).into()),
            Placement::None => {
                assert_eq!(len, 0);
                Received::Placed
            }
            Placement::Discard => Received::Placed,
        }
    }

    fn events(&mut self) {
        for conn in self.conns.clone() {
            while let Some(event) = self.session.poll_event(conn) {
                match event {
                    Event::Execute(execute) => self.execute(&execute),
                    Event::Dropped(itt) => drop(self.buffers.remove(&itt)),
                    Event::Text { itt, text } => {
                        assert!(text.len() <= 1024);
                        self.texts.push_back((conn, itt));
                    }
                    Event::Management { itt, .. } => self.managing.push_back(itt),
                    _ => {}
                }
            }
        }
        while self.session.poll_wake().is_some() {}
    }

    fn execute(&mut self, execute: &iscsi_proto::target::Execute) {
        let itt = execute.itt;
        assert!(!self.running.contains(&itt), "{itt} is executed twice");
        let buffer = self.buffers.remove(&itt).unwrap_or_default();
        if execute.write && !execute.too_long {
            let wanted = self.session.write_length(itt) as usize;
            assert_eq!(buffer.len(), wanted, "{execute:?}");
            assert!(buffer.iter().all(|filled| *filled), "a hole in the data: {execute:?}");
        }
        self.running.push_back(itt);
    }

    fn complete(&mut self, how: u8) {
        let Some(itt) = self.running.pop_front() else { return };
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
            assert!(Pdu::parse(&pdu.header).is_ok(), "{:?}", pdu.header);
        }
    }

    fn check(&mut self) {
        let tasks = self.session.task_count();
        assert!(tasks <= 2 * (WINDOW + IMMEDIATE_MAX) as usize, "{tasks} tasks");
        assert!(self.buffers.len() <= tasks, "{} buffers, {tasks} tasks", self.buffers.len());
        let memory: usize =
            self.buffers.keys().map(|itt| self.session.buffer_length(*itt) as usize).sum();
        let unsolicited = tasks * 512;
        // One write may go beyond the limit, so that those before it in CmdSN order can end.
        let solicited = 2 * WRITE_LENGTH_MAX as usize;
        assert!(memory <= solicited + unsolicited, "{memory} bytes for {tasks} writes");
        assert!(self.texts.len() <= 512);
        let (exp_cmd_sn, max_cmd_sn) = self.session.command_window();
        assert!((-1..WINDOW as i32).contains(&max_cmd_sn.since(exp_cmd_sn)));
        for conn in &self.conns {
            assert!(self.session.reply_backlog(*conn) <= REPLIES_MAX);
        }
    }

    /// Every connection is lost and what runs completes: no task and no buffer may be left.
    fn end(mut self) {
        for conn in self.conns.clone() {
            self.session.handle_connection_lost(conn, self.now);
        }
        self.session.close("the end");
        self.events();
        while !self.running.is_empty() {
            self.complete(0);
            self.events();
        }
        assert!(self.session.is_quiet());
        assert_eq!(self.session.task_count(), 0);
    }
}
