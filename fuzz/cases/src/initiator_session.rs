//! Full-feature phase as the initiator sees it: any PDUs from a target on two connections, mixed
//! with commands, aborts, lost connections and time that passes.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use iscsi_proto::connection::Placement;
use iscsi_proto::ids::{Cid, Itt, Lun, Tsih};
use iscsi_proto::initiator::{
    Command, Config, ConnectionId, Established, Event, Session, TaskOutcome,
};
use iscsi_proto::keys::{ConnectionParams, SessionParams};
use iscsi_proto::pdu::{Header, Opcode, Pdu, TaskAttribute, TaskManagementFunction};
use iscsi_proto::serial::{CmdSn, StatSn};
use iscsi_proto::time::Instant;

use crate::reader::Reader;

/// Longest data segment that is taken: the framer stops what is longer.
const SEGMENT_MAX: u32 = 64 << 10;
/// PDUs that one connection may have to say before anything else happens.
const OUTPUT_MAX: usize = 4096;
/// Longest text that is collected.
const TEXT_MAX: usize = 4096;

/// A command of the case.
struct Sent {
    connection: usize,
    /// Room for data of a read; which bytes were placed.
    read: Vec<bool>,
    /// Data of a write.
    write_len: u32,
    is_read: bool,
}

struct Owner {
    session: Session<u32>,
    ids: Vec<ConnectionId>,
    now: Instant,
    stat_sn: Vec<StatSn>,
    sent: BTreeMap<Itt, Sent>,
    submitted: u32,
    ended: Vec<u32>,
}

/// The invariants: data is placed only in the buffer of a read that was sent on that connection,
/// and what a command says it received is what was placed; Data-Out stays within the command; text
/// stays within its limit; every command ends exactly once.
pub fn initiator_session(data: &[u8]) {
    let mut input = Reader(data);
    let mut owner = Owner::new(input.u8());
    for _ in 0..512 {
        if input.is_empty() {
            break;
        }
        owner.step(&mut input);
    }
    owner.end();
}

fn established(flags: u8, cid: u16) -> Established {
    Established {
        tsih: Tsih(7),
        cid: Cid(cid),
        session: SessionParams {
            max_connections: 2,
            initial_r2t: flags & 1 != 0,
            immediate_data: flags & 2 == 0,
            max_burst_length: 4096,
            first_burst_length: 1024,
            max_outstanding_r2t: if flags & 4 != 0 { 3 } else { 1 },
            ..SessionParams::default()
        },
        connection: ConnectionParams {
            max_recv_data_segment_length: SEGMENT_MAX,
            max_send_data_segment_length: 512,
            ..ConnectionParams::default()
        },
        cmd_sn: CmdSn(u32::MAX - 1),
        exp_cmd_sn: CmdSn(u32::MAX - 1),
        max_cmd_sn: CmdSn(u32::MAX - 1).plus(15),
        exp_stat_sn: StatSn(u32::MAX),
    }
}

impl Owner {
    fn new(flags: u8) -> Self {
        let mut config = Config::default();
        config.text_len_max = TEXT_MAX;
        let now = Instant::default();
        let (mut session, first) = Session::new(config, &established(flags, 1), now);
        let mut ids = vec![first];
        ids.extend(session.add_connection(&established(flags, 2), now));
        let stat_sn = vec![StatSn(u32::MAX); 2];
        let (sent, ended) = (BTreeMap::new(), Vec::new());
        Self { session, ids, now, stat_sn, sent, submitted: 0, ended }
    }

    fn step(&mut self, input: &mut Reader<'_>) {
        let what = input.u8();
        let k = usize::from(what & 1);
        match what >> 1 & 15 {
            0..=7 => self.receive(k, what, input),
            8 => self.submit(Bytes::new(), u32::from(input.u16())),
            9 => self.submit(vec![1; usize::from(input.u16())].into(), 0),
            10 | 11 => self.transmit(k),
            12 => {
                let pick = usize::from(input.u8());
                if let Some(itt) = self.sent.keys().nth(pick).copied() {
                    self.session.abort(itt);
                }
            }
            13 => {
                self.now = self.now + Duration::from_millis(u64::from(input.u16()));
                self.session.handle_timeout(self.now);
            }
            14 => {
                self.session.text(Bytes::from_static(b"SendTargets=All\0"));
                self.session.manage(TaskManagementFunction::LOGICAL_UNIT_RESET, Lun(0));
            }
            _ => self.membership(k, input.u8()),
        }
        self.events();
    }

    fn membership(&mut self, k: usize, how: u8) {
        match how {
            0 => self.session.handle_connection_lost(self.ids[k], self.now),
            1 => drop(self.session.remove_connection(self.ids[k])),
            2 => self.session.close(),
            _ => self.session.ping(self.ids[k]),
        }
    }

    fn submit(&mut self, data_out: Bytes, data_in_len: u32) {
        let attribute = TaskAttribute::SIMPLE;
        let command = Command { lun: Lun(0), cdb: [0; 16], data_out, data_in_len, attribute };
        if self.session.submit(command, self.submitted).is_ok() {
            self.submitted += 1;
        }
    }

    fn transmit(&mut self, k: usize) {
        for count in 0.. {
            assert!(count < OUTPUT_MAX, "it goes on talking");
            let Some(pdu) = self.session.poll_transmit(self.ids[k], self.now) else { break };
            assert_eq!(pdu.header.data_segment_length() as usize, pdu.payload.len());
            assert!(pdu.payload.len() <= 512, "more than the target takes");
            match Pdu::parse(&pdu.header) {
                Ok(Pdu::ScsiCommand(command)) => {
                    let len = command.expected_data_transfer_length;
                    let (read_len, write_len) = if command.read { (len, 0) } else { (0, len) };
                    let read = vec![false; read_len as usize];
                    let sent = Sent { connection: k, read, write_len, is_read: command.read };
                    self.sent.insert(command.itt, sent);
                }
                Ok(Pdu::DataOut(data)) => {
                    let end = data.buffer_offset as usize + pdu.payload.len();
                    let sent = self.sent.get(&data.itt);
                    assert!(sent.is_some_and(|sent| end <= sent.write_len as usize), "{data:?}");
                }
                Ok(_) => {}
                Err(error) => panic!("our own PDU: {error}"),
            }
        }
    }

    fn receive(&mut self, k: usize, what: u8, input: &mut Reader<'_>) {
        let mut header = Header { bhs: input.array(), ahs: Bytes::new() };
        let len = header.data_segment_length();
        if len > SEGMENT_MAX || header.total_ahs_length() > 256 {
            return; // the framer does not let it through
        }
        header.ahs = input.filled(header.total_ahs_length()).into();
        if what & 0x20 != 0
            && let Some(itt) = self.sent.keys().nth(usize::from(header.bhs[19] & 7))
        {
            header.bhs[16..20].copy_from_slice(&itt.0.to_be_bytes());
        }
        if what & 0x40 != 0 {
            header.bhs[24..28].copy_from_slice(&self.stat_sn[k].0.to_be_bytes());
        }
        let (id, now) = (self.ids[k], self.now);
        let Ok(placement) = self.session.handle_header(id, now, &header) else { return };
        if uses_stat_sn(&header) {
            self.stat_sn[k] = self.stat_sn[k].next();
        }
        let mut scratch = Vec::new();
        match placement {
            Placement::None => {
                assert_eq!(len, 0);
                return;
            }
            Placement::Discard => {}
            Placement::Scratch => scratch = input.filled(len as usize),
            Placement::Task { itt, offset } => {
                let (offset, len) = (offset as usize, len as usize);
                let Some(sent) = self.sent.get_mut(&itt) else { panic!("{itt} was never sent") };
                assert_eq!(sent.connection, k, "data on another connection");
                assert!(offset + len <= sent.read.len(), "{offset} + {len} outside the buffer");
                sent.read[offset..offset + len].fill(true);
            }
        }
        let _ = self.session.handle_data(id, now, &scratch, what & 0x80 == 0);
    }

    fn events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::TaskDone { itt, context, outcome, .. } => {
                    self.ended.push(context);
                    let sent = self.sent.remove(&itt);
                    if let (TaskOutcome::Completed { data_in_len, .. }, Some(sent)) =
                        (outcome, sent)
                        && sent.is_read
                    {
                        let placed = sent.read.iter().take_while(|placed| **placed).count();
                        assert_eq!(data_in_len as usize, placed);
                    }
                }
                Event::TaskRequeue { context, .. } => self.ended.push(context),
                Event::TextDone { text, .. } => assert!(text.len() <= TEXT_MAX),
                _ => {}
            }
        }
        let _ = self.session.take_wakes();
        let _ = self.session.poll_timeout();
    }

    fn end(mut self) {
        self.session.abandon();
        self.events();
        assert_eq!(self.session.in_flight(), 0);
        self.ended.sort_unstable();
        assert!(self.ended.iter().copied().eq(0..self.submitted), "{:?}", self.ended);
    }
}

/// PDUs that use up a StatSN (§11.4.8 and others).
fn uses_stat_sn(header: &Header) -> bool {
    match header.opcode() {
        Opcode::R2T => false,
        Opcode::DATA_IN => header.bhs[1] & 1 != 0,
        Opcode::NOP_IN => header.itt() != Itt::NONE,
        _ => true,
    }
}
