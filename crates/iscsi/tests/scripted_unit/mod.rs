//! A target of one unit with a volatile write cache, which does what a test has written down:
//! refuses a command, closes the connection in place of an answer, keeps an answer back, loses
//! power. One connection per session; data of writes is asked for with R2T.

#![allow(dead_code)] // not every test file uses all of it

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use iscsi::initiator::{Config, RemoteDisk, Url};
use iscsi_proto::frame::{Framer, Framing, Limits};
use iscsi_proto::ids::{Isid, Itt, Lun, Tsih, Ttt};
use iscsi_proto::keys::Offer;
use iscsi_proto::login::chap::{CHALLENGE_LEN, ChapRandom};
use iscsi_proto::login::target::{Login, Step, TargetConfig as LoginConfig};
use iscsi_proto::pdu::{
    DataIn, Header, LogoutResponse, LogoutResponseCode, NopIn, Pdu, R2t, Residual, ResponseCode,
    ScsiCommand, ScsiResponse, TaskAttribute, encode_sense,
};
use iscsi_proto::serial::{CmdSn, DataSn, R2tSn, StatSn};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::open_target::Access;

pub(crate) const IQN: &str = "iqn.2026-11.org.example:scripted";
/// Limit of every wait: whatever takes longer hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Size of the unit in bytes, and of its blocks.
pub(crate) const SIZE: usize = 1 << 20;
pub(crate) const BLOCK: usize = 512;
const WINDOW: u32 = 64;

/// Operation codes that the script names.
pub(crate) const TEST_UNIT_READY: u8 = 0x00;
pub(crate) const READ: u8 = 0x28;
pub(crate) const MODE_SENSE: u8 = 0x1a;
pub(crate) const WRITE: u8 = 0x2a;
pub(crate) const SYNCHRONIZE_CACHE: u8 = 0x35;
/// The only SERVICE ACTION IN (16) that it knows, and not unless it is thin.
pub(crate) const READ_CAPACITY16: u8 = 0x9e;

/// Sense key, code and qualifier.
pub(crate) type Sense = (u8, u8, u8);
pub(crate) const POWER_ON: Sense = (0x6, 0x29, 0x00);
pub(crate) const WRITE_ERROR: Sense = (0x3, 0x0c, 0x00);

/// What becomes of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    /// It is carried out.
    Do,
    /// CHECK CONDITION. A flush that fails so forgets, as Linux does, what it could not write.
    Fail(Sense),
    /// RESERVATION CONFLICT.
    Conflict,
    /// Another status, without sense data; nothing is done.
    Status(u8),
    /// The connection ends before anything is done.
    Cut,
    /// It is carried out, and the connection ends in place of the answer.
    DoAndCut,
    /// Nothing is done before [`Unit::release`].
    Hold,
    /// The unit loses power and keeps its connections. That is told with the next answer, in one
    /// segment.
    LosePower,
}

/// A write that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Number of the login it came over, from 1.
    pub(crate) login: usize,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    /// Its first byte.
    pub(crate) byte: u8,
}

pub(crate) struct Inner {
    pub(crate) stable: Vec<u8>,
    pub(crate) cached: Vec<u8>,
    dirty: Vec<bool>,
    pub(crate) write_cache: bool,
    /// It says that not everything has to be allocated, and that what is not reads as zeroes.
    pub(crate) thin: bool,
    /// It says that it knows the ORDERED attribute.
    pub(crate) knows_order: bool,
    /// Commands that came with it.
    pub(crate) ordered: Vec<u8>,
    /// What becomes of the next command with this operation code, in this order.
    pub(crate) script: VecDeque<(u8, Act)>,
    /// Told to the next commands, but for INQUIRY.
    pub(crate) attentions: VecDeque<Sense>,
    pub(crate) writes: Vec<Written>,
    pub(crate) flushes: usize,
    pub(crate) isids: Vec<Isid>,
    /// Commands that are held.
    pub(crate) held: usize,
    /// Connections that are open.
    pub(crate) open: usize,
    /// The next connections are closed as soon as they are accepted.
    pub(crate) refuse: usize,
    /// Times that it lost power: a connection from before is dead, whatever it has yet to read.
    power_cuts: usize,
}

/// The unit and everything that can be seen of it.
pub(crate) struct Unit {
    inner: Mutex<Inner>,
    changed: Notify,
    release: Notify,
    hang_up: Notify,
}

impl Unit {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// The unit loses power: its cache is gone, and so are all connections.
    pub(crate) fn lose_power(&self) {
        let mut inner = self.lock();
        inner.forget();
        inner.power_cuts += 1;
        drop(inner);
        self.hang_up();
    }

    /// Ends every connection.
    pub(crate) fn hang_up(&self) {
        self.hang_up.notify_waiters();
    }

    /// What is held is carried out.
    pub(crate) fn release(&self) {
        self.release.notify_waiters();
    }

    /// Adds to the script.
    pub(crate) fn next(&self, acts: &[(u8, Act)]) {
        self.lock().script.extend(acts);
    }

    /// Waits until something is so.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Inner) -> bool) {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if is_so(&self.lock()) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never {what}"));
    }

    fn act(&self, code: u8) -> Act {
        let mut inner = self.lock();
        let place = inner.script.iter().position(|(wanted, _)| *wanted == code);
        place.and_then(|place| inner.script.remove(place)).map_or(Act::Do, |(_, act)| act)
    }
}

struct Connection {
    unit: Arc<Unit>,
    login: usize,
    power_cuts: usize,
    exp_cmd_sn: CmdSn,
    stat_sn: StatSn,
    /// Goes out with what is said next.
    unsaid: Vec<u8>,
}

impl Connection {
    fn window(&self) -> (CmdSn, CmdSn) {
        (self.exp_cmd_sn, self.exp_cmd_sn.plus(WINDOW))
    }

    fn response(&mut self, itt: Itt, status: u8, sense: &[u8], residual: Residual) -> Vec<u8> {
        let (exp_cmd_sn, max_cmd_sn) = self.window();
        let response = ScsiResponse {
            response: ResponseCode::COMPLETED,
            status,
            status_qualifier: 0,
            residual,
            bidi_read_residual: Residual::None,
            itt,
            snack_tag: 0,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn,
            max_cmd_sn,
            exp_data_sn: 0,
        };
        bytes_of(&response.encode(sense.len() as u32), sense)
    }

    fn check_condition(&mut self, itt: Itt, (key, asc, ascq): Sense) -> Vec<u8> {
        let mut sense = [0; 18];
        (sense[0], sense[2], sense[7], sense[12], sense[13]) = (0x70, key, 10, asc, ascq);
        self.response(itt, 2, &encode_sense(&sense), Residual::None)
    }

    fn data(&mut self, command: &ScsiCommand, data: &[u8]) -> Vec<u8> {
        let expected = command.expected_data_transfer_length as usize;
        let data = &data[..data.len().min(expected)];
        let (exp_cmd_sn, max_cmd_sn) = self.window();
        let header = DataIn {
            is_final: true,
            acknowledge: false,
            status: None,
            lun: Lun(0),
            itt: command.itt,
            ttt: Ttt::NONE,
            stat_sn: StatSn(0),
            exp_cmd_sn,
            max_cmd_sn,
            data_sn: DataSn(0),
            buffer_offset: 0,
        };
        let mut out = bytes_of(&header.encode(data.len() as u32), data);
        let residual = match expected - data.len() {
            0 => Residual::None,
            rest => Residual::Underflow(rest as u32),
        };
        out.extend(self.response(command.itt, 0, &[], residual));
        out
    }

    fn r2t(&self, command: &ScsiCommand) -> Vec<u8> {
        let (exp_cmd_sn, max_cmd_sn) = self.window();
        let r2t = R2t {
            lun: Lun(0),
            itt: command.itt,
            ttt: Ttt(7),
            stat_sn: self.stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            r2t_sn: R2tSn(0),
            buffer_offset: 0,
            desired_data_transfer_length: command.expected_data_transfer_length,
        };
        bytes_of(&r2t.encode(0), &[])
    }

    /// The answer to a command whose data is here; `None` from a target without power.
    fn execute(&mut self, command: &ScsiCommand, data: &[u8]) -> Option<Vec<u8>> {
        let cdb = &command.cdb;
        let lba = |at: usize| u32::from_be_bytes(cdb[at..at + 4].try_into().unwrap()) as usize;
        let unit = self.unit.clone();
        let mut inner = unit.lock();
        // A later login under the same name has ended this session and its commands.
        let is_reinstated = inner.isids[self.login..].contains(&inner.isids[self.login - 1]);
        if inner.power_cuts != self.power_cuts || is_reinstated {
            return None;
        }
        let answer = match cdb[0] {
            0x12 if cdb[1] & 1 == 1 && cdb[2] == 0x86 && inner.knows_order => {
                let mut page = vec![0, 0x86, 0, 60, 0, 0x07];
                page.resize(64, 0);
                page
            }
            0x12 if cdb[1] & 1 == 1 => {
                return Some(self.check_condition(command.itt, (0x5, 0x24, 0)));
            }
            0x12 => vec![0, 0, 6, 2, 31, 0, 0, 2]
                .into_iter()
                .chain(*b"ENKAKU  SCRIPTED UNIT   0001")
                .collect(),
            READ_CAPACITY16 if inner.thin => {
                let last = (SIZE / BLOCK - 1) as u64;
                let mut data = [&last.to_be_bytes()[..], &(BLOCK as u32).to_be_bytes()].concat();
                data.extend([0, 0, 0xc0, 0]); // LBPME, LBPRZ
                data.resize(32, 0);
                data
            }
            0x25 => {
                let last = (SIZE / BLOCK - 1) as u32;
                [last.to_be_bytes(), (BLOCK as u32).to_be_bytes()].concat()
            }
            MODE_SENSE => {
                let wce = if inner.write_cache { 4 } else { 0 };
                let mut page = vec![23, 0, 0x10, 0, 0x08, 18, wce];
                page.resize(24, 0);
                page
            }
            READ => {
                let (at, blocks) = (lba(2) * BLOCK, usize::from(cdb[7]) << 8 | usize::from(cdb[8]));
                inner.cached[at..at + blocks * BLOCK].to_vec()
            }
            WRITE => {
                let (at, len) = (lba(2) * BLOCK, data.len());
                inner.cached[at..at + len].copy_from_slice(data);
                let volatile = inner.write_cache && cdb[1] & 8 == 0;
                inner.dirty[at..at + len].fill(volatile);
                if !volatile {
                    inner.stable[at..at + len].copy_from_slice(data);
                }
                let (login, byte) = (self.login, data[0]);
                inner.writes.push(Written { login, offset: at, len, byte });
                Vec::new()
            }
            SYNCHRONIZE_CACHE => {
                inner.flushes += 1;
                inner.flush(true);
                Vec::new()
            }
            TEST_UNIT_READY => Vec::new(),
            _ => return Some(self.check_condition(command.itt, (0x5, 0x20, 0))),
        };
        drop(inner);
        match command.read {
            true => Some(self.data(command, &answer)),
            false => Some(self.response(command.itt, 0, &[], Residual::None)),
        }
    }

    /// What to send, `None` to close the connection.
    async fn command(&mut self, command: &ScsiCommand, data: &[u8]) -> Option<Vec<u8>> {
        let code = command.cdb[0];
        if command.attribute == TaskAttribute::ORDERED {
            self.unit.lock().ordered.push(code);
        }
        let attention = match code {
            0x12 => None,
            _ => self.unit.lock().attentions.pop_front(),
        };
        if let Some(sense) = attention {
            return Some(self.check_condition(command.itt, sense));
        }
        match self.unit.act(code) {
            Act::Do => self.execute(command, data),
            Act::Fail(sense) => {
                if code == SYNCHRONIZE_CACHE {
                    self.unit.lock().flush(false);
                }
                Some(self.check_condition(command.itt, sense))
            }
            Act::Conflict => Some(self.response(command.itt, 0x18, &[], Residual::None)),
            Act::Status(status) => Some(self.response(command.itt, status, &[], Residual::None)),
            Act::Cut => None,
            Act::DoAndCut => {
                self.execute(command, data);
                None
            }
            Act::Hold => {
                let unit = self.unit.clone();
                let released = unit.release.notified();
                tokio::pin!(released);
                released.as_mut().enable();
                unit.lock().held += 1;
                unit.changed.notify_waiters();
                released.await;
                unit.lock().held -= 1;
                self.execute(command, data)
            }
            Act::LosePower => {
                self.unit.lock().forget();
                self.unsaid = self.check_condition(command.itt, POWER_ON);
                Some(Vec::new())
            }
        }
    }
}

impl Inner {
    /// The cache is gone.
    fn forget(&mut self) {
        self.cached = self.stable.clone();
        self.dirty.fill(false);
    }

    fn flush(&mut self, good: bool) {
        for n in 0..SIZE {
            if std::mem::take(&mut self.dirty[n]) && good {
                self.stable[n] = self.cached[n];
            }
        }
    }
}

fn bytes_of(header: &Header, data: &[u8]) -> Vec<u8> {
    Framing::default().pdu_bytes(header, data)
}

async fn next_pdu(stream: &mut TcpStream, framer: &mut Framer) -> Option<(Header, Bytes)> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        if let Some(pdu) = framer.next_pdu().ok()? {
            return Some(pdu);
        }
        match stream.read(&mut buffer).await.ok()? {
            0 => return None,
            len => framer.push(&buffer[..len]),
        }
    }
}

async fn log_in(stream: &mut TcpStream, unit: &Arc<Unit>) -> Option<(Connection, Framer)> {
    let mut offer = Offer::default();
    (offer.session.initial_r2t, offer.session.immediate_data) = (true, false);
    offer.session.default_time2wait = 0;
    offer.session.max_connections = 1;
    let random = ChapRandom::from_bytes([3; 1 + CHALLENGE_LEN]);
    let authenticator = Arc::new(Access { moved: None });
    let mut login = Login::new(LoginConfig { offer, authenticator, random });
    let mut framer = Framer::new(Framing::default(), Limits::LOGIN);
    loop {
        let (header, text) = next_pdu(stream, &mut framer).await?;
        let Ok(Pdu::LoginRequest(request)) = Pdu::parse(&header) else { return None };
        let (outcome, response, text) = match login.handle(&request, &text) {
            Ok(Step::Send(response, text)) => (None, response, text),
            Ok(Step::Ready(outcome)) => {
                let first = outcome.cmd_sn;
                let (response, text) = login.accept(Tsih(1), first, first.plus(WINDOW));
                (Some(outcome), response, text)
            }
            Err(failure) => {
                let (response, text) = login.failure_response(&failure);
                (None, response, text)
            }
        };
        let header = response.encode(text.len() as u32);
        // Before the answer: whoever has it may be through with all else before we go on.
        let logins = {
            let mut inner = unit.lock();
            inner.isids.extend(outcome.is_some().then_some(request.isid));
            inner.isids.len()
        };
        stream.write_all(&bytes_of(&header, &text)).await.ok()?;
        if let Some(outcome) = outcome {
            framer.set(outcome.connection.framing(), Limits::full_feature(1 << 24));
            let inner = unit.lock();
            let connection = Connection {
                unit: unit.clone(),
                login: logins,
                power_cuts: inner.power_cuts,
                exp_cmd_sn: outcome.cmd_sn,
                stat_sn: outcome.next_stat_sn,
                unsaid: Vec::new(),
            };
            return Some((connection, framer));
        }
    }
}

async fn serve(stream: &mut TcpStream, unit: &Arc<Unit>) -> Option<()> {
    let (mut connection, mut framer) = log_in(stream, unit).await?;
    let mut writing: Option<(ScsiCommand, Vec<u8>)> = None;
    let mut queued = VecDeque::new();
    loop {
        // One command after the other: those that come while data is awaited wait here.
        let command = match (&writing, queued.pop_front()) {
            (None, Some(command)) => Some(command),
            (_, back) => {
                if let Some(back) = back {
                    queued.push_front(back);
                }
                None
            }
        };
        let pdu = match command {
            Some(command) => (Pdu::ScsiCommand(command), Bytes::new()),
            None => {
                let (header, data) = next_pdu(stream, &mut framer).await?;
                let pdu = Pdu::parse(&header).ok()?;
                if let Pdu::ScsiCommand(command) = &pdu {
                    connection.exp_cmd_sn = connection.exp_cmd_sn.next();
                    queued.push_back(command.clone());
                    continue;
                }
                (pdu, data)
            }
        };
        let (exp_cmd_sn, max_cmd_sn) = connection.window();
        let out = match pdu.0 {
            Pdu::ScsiCommand(command) if command.write => {
                let r2t = connection.r2t(&command);
                writing = Some((command, Vec::new()));
                r2t
            }
            Pdu::ScsiCommand(command) => connection.command(&command, &[]).await?,
            Pdu::DataOut(out) => {
                let (_, data) = writing.as_mut()?;
                data.extend(&pdu.1);
                match out.is_final {
                    true => {
                        let (command, data) = writing.take()?;
                        connection.command(&command, &data).await?
                    }
                    false => Vec::new(),
                }
            }
            Pdu::NopOut(nop) if nop.itt != Itt::NONE => {
                let (lun, itt, ttt) = (Lun(0), nop.itt, Ttt::NONE);
                let stat_sn = connection.stat_sn.take();
                let pong = NopIn { lun, itt, ttt, stat_sn, exp_cmd_sn, max_cmd_sn };
                bytes_of(&pong.encode(0), &[])
            }
            Pdu::LogoutRequest(request) => {
                let response = LogoutResponse {
                    response: LogoutResponseCode::CLOSED,
                    itt: request.itt,
                    stat_sn: connection.stat_sn.take(),
                    exp_cmd_sn,
                    max_cmd_sn,
                    time2wait: 0,
                    time2retain: 0,
                };
                bytes_of(&response.encode(0), &[])
            }
            _ => Vec::new(),
        };
        if !out.is_empty() {
            let unsaid = std::mem::take(&mut connection.unsaid);
            stream.write_all(&[unsaid, out].concat()).await.ok()?;
        }
        unit.changed.notify_waiters();
    }
}

/// Starts the target. Its cache is volatile.
pub(crate) async fn start() -> (Arc<Unit>, SocketAddr) {
    let unit = Arc::new(Unit {
        inner: Mutex::new(Inner {
            stable: vec![0; SIZE],
            cached: vec![0; SIZE],
            dirty: vec![false; SIZE],
            write_cache: true,
            thin: false,
            knows_order: false,
            ordered: Vec::new(),
            script: VecDeque::new(),
            attentions: VecDeque::new(),
            writes: Vec::new(),
            flushes: 0,
            isids: Vec::new(),
            held: 0,
            open: 0,
            refuse: 0,
            power_cuts: 0,
        }),
        changed: Notify::new(),
        release: Notify::new(),
        hang_up: Notify::new(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = unit.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let unit = served.clone();
            if unit.lock().refuse > 0 {
                unit.lock().refuse -= 1;
                continue;
            }
            unit.lock().open += 1;
            tokio::spawn(async move {
                let hang_up = unit.hang_up.notified();
                tokio::select! {
                    _ = serve(&mut stream, &unit) => {}
                    () = hang_up => {}
                }
                drop(stream);
                unit.lock().open -= 1;
                unit.changed.notify_waiters();
            });
        }
    });
    (unit, address)
}

/// A disk on that target.
pub(crate) async fn connect(address: SocketAddr, config: Config) -> RemoteDisk {
    let url: Url = format!("iscsi://{address}/{IQN}/0").parse().unwrap();
    let connect = RemoteDisk::connect(url, config.connections(1));
    tokio::time::timeout(PATIENCE, connect).await.expect("connecting hangs").unwrap()
}
