//! Full-feature phase as the initiator sees it: any PDUs from a target on the connections of a
//! session at any error recovery level, mixed with commands, aborts, connections that are lost and
//! come back, and time that passes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use iscsi_proto::connection::{Placement, Transmit};
use iscsi_proto::ids::{Cid, Itt, Lun, Tsih};
use iscsi_proto::initiator::{
    Command, Config, ConnectionId, Established, Event, Session, TaskOutcome,
};
use iscsi_proto::keys::{ConnectionParams, SessionParams};
use iscsi_proto::pdu::{
    Header, Opcode, Pdu, TaskAttribute, TaskManagementFunction, TaskManagementResponseCode,
};
use iscsi_proto::serial::{CmdSn, StatSn};
use iscsi_proto::time::Instant;

use crate::reader::Reader;

/// Longest data segment that is taken: the framer stops what is longer.
const SEGMENT_MAX: u32 = 64 << 10;
/// PDUs that one connection may have to say before anything else happens.
const OUTPUT_MAX: usize = 4096;
/// Longest text that is collected.
const TEXT_MAX: usize = 4096;
/// Requests whose tag is remembered, for answers that name one.
const REQUESTS_KEPT: usize = 8;
/// Timers in a row that a session without connections may have.
const TIMEOUTS_MAX: usize = 1000;

/// The byte is as the target sent it.
const INTACT: u8 = 1;
/// It was at some time.
const WAS_INTACT: u8 = 2;

/// A command of the case.
struct Sent {
    context: u32,
    /// Connections that carried it or a request to go on with it that was not refused.
    carriers: Vec<u32>,
    /// It has been asked to go on on another connection.
    moved: bool,
    /// Room for data of a read, with what is known of each byte.
    read: Vec<u8>,
    /// Data of a write.
    write_len: u32,
    is_read: bool,
}

/// A connection whose driver runs.
#[derive(Clone, Copy)]
struct Link {
    id: ConnectionId,
    /// No other connection has it, before or after.
    serial: u32,
    stat_sn: StatSn,
}

/// What the first bytes of an input agree on.
#[derive(Clone, Copy)]
struct Agreed {
    flags: u8,
    /// Drawn only if the highest bit of `flags` says so: the lower bits mean what they always did.
    more: u8,
}

struct Owner {
    session: Session<u32>,
    agreed: Agreed,
    links: [Option<Link>; 2],
    serials: u32,
    now: Instant,
    sent: BTreeMap<Itt, Sent>,
    /// Tags of requests other than commands, newest first.
    requests: VecDeque<Itt>,
    /// TASK REASSIGN requests, with the command that they name.
    reassigns: BTreeMap<Itt, Itt>,
    submitted: u32,
    ended: Vec<u32>,
    /// A PDU is halfway in on the other connection.
    nested: bool,
}

/// The invariants: data is placed only in the buffer of a read that was sent on that connection,
/// and what a command says it received was placed there intact; Data-Out stays within the command;
/// text stays within its limit; every command ends exactly once, also if its connection is lost and
/// nobody comes to go on with it.
pub fn initiator_session(data: &[u8]) {
    let mut input = Reader(data);
    let flags = input.u8();
    let more = if flags & 0x80 != 0 { input.u8() } else { 0 };
    let mut owner = Owner::new(Agreed { flags, more });
    for _ in 0..512 {
        if input.is_empty() {
            break;
        }
        let what = input.u8();
        owner.step(what, &mut input);
        owner.check();
    }
    owner.end();
}

impl Agreed {
    fn level(self) -> u8 {
        (self.flags >> 5 & 3).min(2)
    }

    fn established(self, cid: u16, exp_cmd_sn: CmdSn) -> Established {
        let Self { flags, more } = self;
        let mut session = SessionParams {
            max_connections: 2,
            initial_r2t: flags & 1 != 0,
            immediate_data: flags & 2 == 0,
            max_burst_length: 4096,
            first_burst_length: 1024,
            max_outstanding_r2t: if flags & 4 != 0 { 3 } else { 1 },
            error_recovery_level: self.level(),
            data_pdu_in_order: more & 1 == 0,
            data_sequence_in_order: more & 2 == 0,
            default_time2retain: if more & 4 != 0 { 0 } else { 20 },
            ..SessionParams::default()
        };
        if more & 16 != 0 {
            session.default_time2wait = 0;
        }
        Established {
            tsih: Tsih(7),
            cid: Cid(cid),
            session,
            connection: ConnectionParams {
                max_recv_data_segment_length: SEGMENT_MAX,
                max_send_data_segment_length: 512,
                ..ConnectionParams::default()
            },
            cmd_sn: CmdSn(u32::MAX - 1),
            exp_cmd_sn,
            max_cmd_sn: exp_cmd_sn.plus(15),
            exp_stat_sn: StatSn(u32::MAX),
        }
    }
}

impl Owner {
    fn new(agreed: Agreed) -> Self {
        let mut config = Config::default();
        config.text_len_max = TEXT_MAX;
        let now = Instant::default();
        let first = agreed.established(1, CmdSn(u32::MAX - 1));
        let (session, id) = Session::new(config, &first, now);
        let mut owner = Self {
            session,
            agreed,
            links: [Some(Link { id, serial: 0, stat_sn: first.exp_stat_sn }), None],
            serials: 1,
            now,
            sent: BTreeMap::new(),
            requests: VecDeque::new(),
            reassigns: BTreeMap::new(),
            submitted: 0,
            ended: Vec::new(),
            nested: false,
        };
        owner.join(1, 2);
        owner
    }

    fn step(&mut self, what: u8, input: &mut Reader<'_>) {
        let k = usize::from(what & 1);
        match (what >> 1 & 15, self.links[k]) {
            (0..=7, Some(link)) => self.receive(k, link, what, input),
            (8, _) => self.submit(Bytes::new(), u32::from(input.u16())),
            (9, _) => self.submit(vec![1; usize::from(input.u16())].into(), 0),
            (10 | 11, Some(link)) => self.transmit(link),
            (12, _) => {
                let pick = usize::from(input.u8());
                if let Some(itt) = self.sent.keys().nth(pick).copied() {
                    self.session.abort(itt);
                }
            }
            (13, _) => {
                self.now = self.now + Duration::from_millis(u64::from(input.u16()));
                self.pass();
            }
            (14, _) => {
                self.session.text(Bytes::from_static(b"SendTargets=All\0"));
                self.session.manage(TaskManagementFunction::LOGICAL_UNIT_RESET, Lun(0));
            }
            (15, link) => self.membership(k, link, input.u8()),
            _ => {}
        }
        self.events();
    }

    fn membership(&mut self, k: usize, link: Option<Link>, how: u8) {
        let cid = 1 + k as u16;
        match (how, link) {
            (0, Some(_)) => self.lose(k),
            (1, Some(link)) => drop(self.session.remove_connection(link.id)),
            (2, _) => self.session.close(),
            (4, None) => self.join(k, cid),
            // A CID that no connection has had.
            (5, None) => self.join(k, 10 + self.serials as u16),
            (_, Some(link)) => self.session.ping(link.id),
            (_, None) => {}
        }
    }

    fn join(&mut self, k: usize, cid: u16) {
        let k = k.min(self.links.len() - 1);
        let established = self.agreed.established(cid, self.session.exp_cmd_sn());
        if let Ok(id) = self.session.add_connection(&established, self.now) {
            let (serial, stat_sn) = (self.serials, established.exp_stat_sn);
            self.serials += 1;
            self.links[k] = Some(Link { id, serial, stat_sn });
        }
    }

    fn lose(&mut self, k: usize) {
        if let Some(link) = self.links[k].take() {
            self.session.handle_connection_lost(link.id, self.now);
        }
    }

    /// Every timer that is due; one may set another.
    fn pass(&mut self) {
        for count in 0.. {
            assert!(count < 64, "timers that are due for ever");
            self.session.handle_timeout(self.now);
            if self.session.poll_timeout().is_none_or(|(due, ..)| due > self.now) {
                return;
            }
        }
    }

    fn submit(&mut self, data_out: Bytes, data_in_len: u32) {
        let attribute = TaskAttribute::SIMPLE;
        let command = Command { lun: Lun(0), cdb: [0; 16], data_out, data_in_len, attribute };
        if self.session.submit(command, self.submitted).is_ok() {
            self.submitted += 1;
        }
    }

    fn transmit(&mut self, link: Link) {
        for count in 0.. {
            assert!(count < OUTPUT_MAX, "it goes on talking");
            let Some(pdu) = self.session.poll_transmit(link.id, self.now) else { break };
            self.sent(link, &pdu);
        }
    }

    fn sent(&mut self, link: Link, pdu: &Transmit) {
        assert_eq!(pdu.header.data_segment_length() as usize, pdu.payload.len());
        assert!(pdu.payload.len() <= 512, "more than the target takes");
        match Pdu::parse(&pdu.header) {
            Ok(Pdu::ScsiCommand(command)) => {
                let len = command.expected_data_transfer_length;
                let (read_len, write_len) = if command.read { (len, 0) } else { (0, len) };
                let Some(context) = self.session.context_mut(command.itt).copied() else {
                    panic!("{} is no command", command.itt)
                };
                let sent = Sent {
                    context,
                    carriers: vec![link.serial],
                    moved: false,
                    read: vec![0; read_len as usize],
                    write_len,
                    is_read: command.read,
                };
                self.sent.insert(command.itt, sent);
            }
            Ok(Pdu::DataOut(data)) => {
                let end = data.buffer_offset as usize + pdu.payload.len();
                let Some(sent) = self.sent.get(&data.itt) else { panic!("never sent: {data:?}") };
                assert!(end <= sent.write_len as usize, "{data:?}");
                assert!(self.may_carry(link, sent), "on another connection: {data:?}");
            }
            Ok(Pdu::TaskManagementRequest(request)) => {
                self.remember(request.itt);
                if request.function == TaskManagementFunction::TASK_REASSIGN
                    && let Some(sent) = self.sent.get_mut(&request.referenced_task_tag)
                {
                    sent.carriers.push(link.serial);
                    sent.moved = true;
                    self.reassigns.insert(request.itt, request.referenced_task_tag);
                }
            }
            Ok(Pdu::SnackRequest(_)) => assert!(self.agreed.level() > 0, "SNACK at level 0"),
            Ok(_) => self.remember(pdu.header.itt()),
            Err(error) => panic!("our own PDU: {error}"),
        }
    }

    fn remember(&mut self, itt: Itt) {
        if itt != Itt::NONE {
            self.requests.push_front(itt);
            self.requests.truncate(REQUESTS_KEPT);
        }
    }

    fn receive(&mut self, k: usize, link: Link, what: u8, input: &mut Reader<'_>) {
        let mut header = Header { bhs: input.array(), ahs: Bytes::new() };
        let len = header.data_segment_length();
        if len > SEGMENT_MAX || header.total_ahs_length() > 256 {
            return; // the framer does not let it through
        }
        header.ahs = input.filled(header.total_ahs_length()).into();
        if what & 0x20 != 0 {
            self.name(&mut header);
        }
        if what & 0x40 != 0 {
            header.bhs[24..28].copy_from_slice(&link.stat_sn.0.to_be_bytes());
        }
        let Ok(placement) = self.session.handle_header(link.id, self.now, &header) else {
            return;
        };
        if let Ok(Pdu::TaskManagementResponse(response)) = Pdu::parse(&header)
            && let Some(referenced) = self.reassigns.remove(&response.itt)
            && response.response != TaskManagementResponseCode::COMPLETE
            && let Some(sent) = self.sent.get_mut(&referenced)
        {
            sent.carriers.retain(|serial| *serial != link.serial);
        }
        if uses_stat_sn(&header)
            && let Some(link) = &mut self.links[k]
        {
            link.stat_sn = link.stat_sn.next();
        }
        let place = self.begin_placing(link, placement, len);
        let scratch = match placement {
            Placement::None => return,
            Placement::Scratch => input.filled(len as usize),
            _ => Vec::new(),
        };
        let intact = what & 0x80 == 0;
        if self.agreed.more & 8 != 0 && !self.nested {
            match input.u8() {
                0 => {}
                0xff => {
                    self.placed(place, false); // a part of it
                    return self.lose(k);
                }
                interruption => {
                    self.nested = true;
                    self.step(interruption & 0xfe | u8::from(k == 0), input);
                    self.nested = false;
                }
            }
        }
        self.placed(place, intact);
        let _ = self.session.handle_data(link.id, self.now, &scratch, intact);
    }

    /// Makes a PDU name a task that there is.
    fn name(&self, header: &mut Header) {
        let pick = usize::from(header.bhs[19] & 7);
        let itt = match header.opcode() {
            Opcode::TASK_MANAGEMENT_RESPONSE | Opcode::TEXT_RESPONSE | Opcode::LOGOUT_RESPONSE => {
                self.requests.get(pick).copied()
            }
            _ => self.sent.keys().nth(pick).copied(),
        };
        if let Some(itt) = itt {
            header.bhs[16..20].copy_from_slice(&itt.0.to_be_bytes());
        }
    }

    /// May the connection bring data of a command? One that no connection carries any more is
    /// bound to one on which it has still to be sent again.
    fn may_carry(&self, link: Link, sent: &Sent) -> bool {
        let carried = |link: &Link| sent.carriers.contains(&link.serial);
        carried(&link) || !self.links.iter().flatten().any(carried)
    }

    fn begin_placing(
        &self,
        link: Link,
        placement: Placement,
        len: u32,
    ) -> Option<(Itt, u32, usize, usize)> {
        match placement {
            Placement::None => {
                assert_eq!(len, 0);
                None
            }
            Placement::Discard | Placement::Scratch => None,
            Placement::Task { itt, offset } => {
                let (from, to) = (offset as usize, offset as usize + len as usize);
                let Some(sent) = self.sent.get(&itt) else { panic!("{itt} was never sent") };
                assert!(self.may_carry(link, sent), "data on another connection");
                assert!(to <= sent.read.len(), "{from} + {len} outside the buffer");
                Some((itt, sent.context, from, to))
            }
        }
    }

    /// Data lies in a buffer, intact or not; it has replaced what was there before.
    fn placed(&mut self, place: Option<(Itt, u32, usize, usize)>, intact: bool) {
        let Some((itt, context, from, to)) = place else { return };
        if let Some(sent) = self.sent.get_mut(&itt).filter(|sent| sent.context == context) {
            for byte in &mut sent.read[from..to] {
                *byte = if intact { INTACT | WAS_INTACT } else { *byte & WAS_INTACT };
            }
        }
    }

    fn events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::TaskDone { itt, context, outcome, .. } => {
                    self.ended.push(context);
                    let sent = self.sent.remove(&itt);
                    assert!(sent.as_ref().is_none_or(|sent| sent.context == context));
                    if let (TaskOutcome::Completed { data_in_len, .. }, Some(sent)) =
                        (outcome, sent)
                        && sent.is_read
                    {
                        sent.check_received(data_in_len as usize);
                    }
                }
                Event::TaskRequeue { context, .. } => {
                    self.ended.push(context);
                    self.sent.retain(|_, sent| sent.context != context);
                }
                Event::TextDone { text, .. } => assert!(text.len() <= TEXT_MAX),
                _ => {}
            }
        }
        let _ = self.session.take_wakes();
        if self.nested {
            return;
        }
        // Drivers look whether they are to close, and say when they have.
        for k in 0..self.links.len() {
            if self.links[k].is_some_and(|link| self.session.is_closing(link.id).is_some()) {
                self.lose(k);
            }
        }
    }

    fn check(&mut self) {
        self.events();
        let unfinished = self.submitted - self.ended.len() as u32;
        assert_eq!(self.session.in_flight(), unfinished, "a command is lost, or ended twice");
        assert!(self.session.connections().count() <= 64);
    }

    /// Every command ends: because the owner gives up the session, or because time passes in which
    /// no connection comes back.
    fn end(mut self) {
        if self.now.0.as_millis().is_multiple_of(2) {
            self.session.abandon();
        }
        (0..self.links.len()).for_each(|k| self.lose(k));
        for count in 0.. {
            self.events();
            let Some((due, ..)) = self.session.poll_timeout() else { break };
            assert!(count < TIMEOUTS_MAX, "it never gives up");
            self.now = self.now.max(due);
            self.pass();
        }
        assert_eq!(self.session.in_flight(), 0);
        self.ended.sort_unstable();
        assert!(self.ended.iter().copied().eq(0..self.submitted), "{:?}", self.ended);
    }
}

impl Sent {
    fn check_received(&self, data_in_len: usize) {
        let length = |bit: u8| self.read.iter().take_while(|byte| **byte & bit != 0).count();
        if !self.moved {
            assert_eq!(data_in_len, length(INTACT));
        } else {
            // Another connection may bring again what is in place, and less of it may count.
            assert!(data_in_len <= length(WAS_INTACT), "{data_in_len} bytes received");
        }
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
