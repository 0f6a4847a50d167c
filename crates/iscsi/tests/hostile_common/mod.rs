//! A target under attack with a healthy session beside it, and a peer that says whatever it is told
//! to: plain PDUs over a real socket, logged in by the codec's own login.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

#[path = "../kept_log/mod.rs"]
mod kept_log;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use block::backend::MemoryDevice;
use block::{BlockDevice, Buf, Bytes, Device, WriteFlags};
use iscsi::initiator::{Config, RemoteDisk};
use iscsi::target::{
    AccessRules, BoundPortal, Catalog, Chap, PortalSpec, Server, ServerConfig, TargetSpec,
};
use iscsi_proto::frame::{FrameError, Framer, Framing, Limits};
use iscsi_proto::ids::{Cid, Isid, Itt, Lun, Ttt};
use iscsi_proto::keys::DigestPreference;
use iscsi_proto::login::Outcome;
use iscsi_proto::login::chap::{CHALLENGE_LEN, ChapRandom};
use iscsi_proto::login::initiator::{InitiatorConfig, Login, LoginError, Step};
use iscsi_proto::pdu::{
    Header, LoginStatus, NopOut, Pdu, ScsiCommand, TaskAttribute, TaskManagementFunction,
    TaskManagementRequest,
};
use iscsi_proto::serial::{CmdSn, StatSn};
use scsi::{LunOptions, Target, TargetConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{MutexGuard, watch};
use tokio::task::JoinHandle;

use kept_log::keep_log;
pub use kept_log::{PATIENCE, until};

/// Name of the target.
pub const IQN: &str = "iqn.2026-11.org.example:fortress";
/// The target's limit for a login; more than the two seconds that it waits for the first PDU.
pub const LOGIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Without a byte taken for this long, the other side has stopped reading.
const STUCK: Duration = Duration::from_millis(700);
/// Disk length; the first half is the healthy session's, the second half must stay zero.
const DISK_LEN: u64 = 16 << 20;
/// More than the healthy session has under way.
const MEMORY_OF_THE_HEALTHY: u64 = 1 << 20;
/// Attackers write here.
pub const VICTIM_LBA: u64 = 12 << 11;

/// One test at a time: they measure the memory of the process.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
static SEQUENCE: AtomicU32 = AtomicU32::new(1);

/// An ISID of its own for each session.
pub fn isid() -> Isid {
    Isid::random(SEQUENCE.fetch_add(1, Ordering::Relaxed), 1)
}

/// VmRSS.
pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Connections that the target at this port has not closed yet.
fn connections(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let ours = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().unwrap_or_default();
        let state = fields.nth(1).unwrap_or_default();
        let is_open = state != "0A" && fields.nth(5) != Some("0");
        is_open && local.ends_with(&format!(":{port:04X}"))
    };
    table.lines().filter(ours).count()
}

/// A target, and a healthy session that writes and verifies all the time.
pub struct Arena {
    pub address: SocketAddr,
    rounds: watch::Receiver<u64>,
    healthy: RemoteDisk,
    worker: JoinHandle<()>,
    pub server: Server,
    _turn: MutexGuard<'static, ()>,
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.worker.abort();
    }
}

impl Arena {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// Initiators have to prove themselves.
    pub async fn guarded(chap: Option<Chap>) -> Self {
        Self::with(|config| config.chap = chap).await
    }

    /// A target with other limits.
    pub async fn with(change: impl FnOnce(&mut ServerConfig)) -> Self {
        Self::on(Arc::new(MemoryDevice::new(DISK_LEN, 512).unwrap()), change).await
    }

    /// A target with another disk, of the same length, and other limits.
    pub async fn on(device: Device, change: impl FnOnce(&mut ServerConfig)) -> Self {
        Self::ruled(device, change, |_| {}).await
    }

    /// A target with rules for some initiators.
    pub async fn with_rules(rules: impl FnOnce(&mut AccessRules)) -> Self {
        let device = Arc::new(MemoryDevice::new(DISK_LEN, 512).unwrap());
        Self::ruled(device, |_| {}, rules).await
    }

    async fn ruled(
        device: Device,
        change: impl FnOnce(&mut ServerConfig),
        rules: impl FnOnce(&mut AccessRules),
    ) -> Self {
        let turn = TURN.lock().await;
        keep_log();
        let scsi = Target::new(TargetConfig::new(IQN));
        scsi.add_lun(0, device, LunOptions::default()).unwrap();
        let mut config = ServerConfig::new(IQN).unwrap();
        config.login_timeout = LOGIN_TIMEOUT;
        change(&mut config);
        let credentials = config.chap.as_ref().map(|chap| chap.user.clone());
        let mut target = TargetSpec::new(IQN, scsi).unwrap();
        (target.offer, target.session) = (config.offer, config.session);
        target.access = AccessRules::anyone(config.chap);
        rules(&mut target.access);
        let mut limits = config.limits;
        limits.login_timeout = config.login_timeout;
        let server = Server::new(Catalog::new(limits).with_target(target));
        let portal = BoundPortal::bind(PortalSpec::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let address = portal.local_addr();
        server.open(portal);
        let mut initiator = Config::default();
        initiator.chap = credentials;
        let healthy = connect(address, initiator).await;
        let (count, rounds) = watch::channel(0);
        let worker = tokio::spawn(work(healthy.clone(), count));
        let arena = Self { address, rounds, healthy, worker, server, _turn: turn };
        arena.serves().await;
        arena
    }

    /// Another healthy session.
    pub async fn connect(&self) -> RemoteDisk {
        connect(self.address, Config::default()).await
    }

    /// The healthy session verifies a whole round that began after this call, and never lost its
    /// connection.
    pub async fn serves(&self) {
        let mut rounds = self.rounds.clone();
        let wanted = *rounds.borrow() + 2;
        let round = tokio::time::timeout(PATIENCE, rounds.wait_for(|round| *round >= wanted));
        assert!(round.await.is_ok_and(|round| round.is_ok()), "the healthy session stands still");
        assert_eq!(self.healthy.incarnations(), 1, "the healthy session was interrupted");
    }

    /// Everything the attackers opened is closed again.
    pub async fn settles(&self) {
        // Only the healthy session's is left, and no memory of the others.
        until("connections are closed", || connections(self.address.port()) == 1).await;
        until("sessions have ended", || self.server.sessions().len() == 1).await;
        until("memory is given back", || self.server.memory().0 < MEMORY_OF_THE_HEALTHY).await;
    }

    /// No attacker wrote anything.
    pub async fn victim_is_untouched(&self) {
        let buf = self.healthy.read(VICTIM_LBA * 512, Buf::new(1 << 20)).await.unwrap();
        assert!(buf.iter().all(|byte| *byte == 0));
    }

    /// Lines of the log with all of these.
    pub fn lines(words: &[&str]) -> usize {
        kept_log::lines(words)
    }

    /// The log has a line with both of these.
    pub async fn logged(&self, peer: &str, reason: &str) {
        kept_log::logged(&[peer, reason]).await;
    }
}

async fn connect(address: SocketAddr, config: Config) -> RemoteDisk {
    let url = format!("iscsi://{address}/{IQN}/0").parse().unwrap();
    tokio::time::timeout(PATIENCE, RemoteDisk::connect(url, config)).await.unwrap().unwrap()
}

/// Writes a new pattern and reads it back, for ever.
async fn work(disk: RemoteDisk, rounds: watch::Sender<u64>) {
    for round in 1.. {
        for chunk in 0..4u64 {
            let (at, len) = (chunk << 20, 4096 << (chunk * 2));
            let data: Bytes = (0..len as u64 / 8)
                .flat_map(|word| (word ^ (round << 32) ^ chunk).to_le_bytes())
                .collect::<Vec<_>>()
                .into();
            disk.write(at, data.clone(), WriteFlags::NONE).await.unwrap();
            let back = disk.read(at, Buf::new(len)).await.unwrap();
            assert!(back[..] == data[..], "round {round}, chunk {chunk}");
        }
        rounds.send_replace(round);
    }
}

/// The other side closes, in order or not, within the time allowed; what it still says is dropped.
pub async fn ends(stream: &mut TcpStream) -> bool {
    let mut sink = vec![0; 65_536];
    let end = async { while !matches!(stream.read(&mut sink).await, Ok(0) | Err(_)) {} };
    tokio::time::timeout(PATIENCE, end).await.is_ok()
}

/// One PDU; `None` when the connection has ended.
pub async fn read(stream: &mut TcpStream, framing: Framing) -> Option<(Pdu, Bytes)> {
    let read = async {
        let mut framer = Framer::new(framing, Limits::full_feature(1 << 24));
        let mut byte = [0];
        loop {
            // Byte by byte: nothing of the next PDU may be taken.
            stream.read_exact(&mut byte).await.ok()?;
            framer.push(&byte);
            if let Some((header, data)) = framer.next_pdu().unwrap() {
                return Some((Pdu::parse(&header).unwrap(), data));
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("neither a PDU nor the end")
}

/// A peer that is logged in.
pub struct Attacker {
    pub stream: TcpStream,
    pub peer: SocketAddr,
    framing: Framing,
    framer: Framer,
    cmd_sn: AtomicU32,
    isid: Isid,
    outcome: Outcome,
}

impl Attacker {
    pub async fn log_in(address: SocketAddr, digests: DigestPreference) -> Self {
        let change = |config: &mut InitiatorConfig| {
            config.offer.header_digest = digests;
            config.offer.data_digest = digests;
        };
        Self::enter(address, change).await.unwrap()
    }

    /// A session that recovers connections, of so many at once, and is kept for `retain_s`.
    pub async fn recoverable(address: SocketAddr, connections: u16, retain_s: u16) -> Self {
        let change = |config: &mut InitiatorConfig| {
            let session = &mut config.offer.session;
            session.error_recovery_level = 2;
            session.max_connections = connections;
            session.default_time2wait = 0;
            session.default_time2retain = retain_s;
            session.data_sequence_in_order = false;
        };
        Self::enter(address, change).await.unwrap()
    }

    /// One more connection of the same session, or the same again.
    pub async fn join(&self, address: SocketAddr, cid: u16) -> Result<Self, LoginStatus> {
        let change = |config: &mut InitiatorConfig| {
            config.isid = self.isid;
            config.cid = Cid(cid);
            config.tsih = self.outcome.tsih;
            config.cmd_sn = self.cmd_sn();
            config.joining = Some(self.outcome.session);
        };
        Self::enter(address, change).await
    }

    pub async fn enter(
        address: SocketAddr,
        change: impl FnOnce(&mut InitiatorConfig),
    ) -> Result<Self, LoginStatus> {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let peer = stream.local_addr().unwrap();
        let random = ChapRandom::from_bytes([1; 1 + CHALLENGE_LEN]);
        let name = "iqn.2026-11.org.example:attacker";
        let mut config = InitiatorConfig::new(name, Some(IQN.to_owned()), isid(), random);
        config.offer.header_digest = DigestPreference::Never;
        config.offer.data_digest = DigestPreference::Never;
        // Every write is answered by an R2T for what did not come with the command.
        config.offer.session.initial_r2t = true;
        config.offer.session.first_burst_length = 512;
        change(&mut config);
        let isid = config.isid;
        let mut login = Login::new(config).unwrap();
        let (mut request, mut text) = login.first();
        let outcome = loop {
            let header = request.encode(text.len() as u32);
            stream.write_all(&Framing::default().pdu_bytes(&header, &text)).await.unwrap();
            let (pdu, data) = read(&mut stream, Framing::default()).await.unwrap();
            let Pdu::LoginResponse(response) = pdu else { panic!("{pdu:?}") };
            match login.handle(&response, &data) {
                Ok(Step::Send(next, next_text)) => (request, text) = (next, next_text),
                Ok(Step::Established(outcome)) => break *outcome,
                Err(LoginError::Refused { status }) => return Err(status),
                other => panic!("{other:?}"),
            }
        };
        let framing = outcome.connection.framing();
        let framer = Framer::new(framing, Limits::full_feature(1 << 24));
        let cmd_sn = AtomicU32::new(outcome.cmd_sn.0);
        Ok(Self { stream, peer, framing, framer, cmd_sn, isid, outcome })
    }

    /// Its number in the session.
    pub fn cid(&self) -> Cid {
        self.outcome.cid
    }

    /// CmdSN of the next command.
    pub fn cmd_sn(&self) -> CmdSn {
        CmdSn(self.cmd_sn.load(Ordering::Relaxed))
    }

    /// Sends a PDU; false if the target takes no more.
    pub async fn try_send(&mut self, header: &Header, data: &[u8]) -> bool {
        let bytes = self.framing.pdu_bytes(header, data);
        self.try_send_bytes(&bytes).await
    }

    /// Sends PDUs; false if the target takes no more.
    pub async fn try_send_bytes(&mut self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        while !rest.is_empty() {
            match tokio::time::timeout(STUCK, self.stream.write(rest)).await {
                Ok(Ok(sent)) if sent > 0 => rest = &rest[sent..],
                _ => return false,
            }
        }
        true
    }

    pub async fn send(&mut self, header: &Header, data: &[u8]) {
        // The target may have closed already, which the reader finds out.
        let _ = self.stream.write_all(&self.framing.pdu_bytes(header, data)).await;
    }

    /// The next PDU; `None` at the end of the connection.
    pub async fn read(&mut self) -> Option<Pdu> {
        self.read_with_data().await.map(|(pdu, _)| pdu)
    }

    /// The next PDU with its data segment; `None` at the end of the connection.
    pub async fn read_with_data(&mut self) -> Option<(Pdu, Bytes)> {
        let limit = tokio::time::Instant::now() + PATIENCE;
        let mut buffer = [0; 16_384];
        loop {
            match self.framer.next_pdu() {
                Ok(Some((header, data))) => return Some((Pdu::parse(&header).unwrap(), data)),
                Ok(None) | Err(FrameError::DataDigest { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            let read = tokio::time::timeout_at(limit, self.stream.read(&mut buffer)).await;
            match read.expect("neither a PDU nor the end") {
                Ok(0) | Err(_) => return None,
                Ok(len) => self.framer.push(&buffer[..len]),
            }
        }
    }

    /// What the target says until it answers a ping, and whether it does.
    pub async fn ping(&mut self) -> (Vec<Pdu>, bool) {
        let itt = Itt(0xabcd_0000);
        let cmd_sn = self.cmd_sn();
        let exp_stat_sn = StatSn(0);
        let ping =
            NopOut { immediate: true, lun: Lun(0), itt, ttt: Ttt::NONE, cmd_sn, exp_stat_sn };
        self.send(&ping.encode(0), &[]).await;
        let mut answers = Vec::new();
        while let Some(pdu) = self.read().await {
            if matches!(&pdu, Pdu::NopIn(nop) if nop.itt == itt) {
                return (answers, true);
            }
            answers.push(pdu);
        }
        (answers, false)
    }

    /// An immediate function for unit 0 that names no task.
    pub fn function(&self, itt: u32, function: TaskManagementFunction) -> TaskManagementRequest {
        TaskManagementRequest {
            immediate: true,
            function,
            lun: Lun(0),
            itt: Itt(itt),
            referenced_task_tag: Itt::NONE,
            cmd_sn: self.cmd_sn(),
            exp_stat_sn: StatSn(0),
            ref_cmd_sn: CmdSn(0),
            exp_data_sn: 0,
        }
    }

    /// The status of a command of six bytes that moves no data; what the unit has to tell first is
    /// heard.
    pub async fn status_of(&mut self, itt: u32, opcode: u8) -> u8 {
        const CHECK_CONDITION: u8 = 2;
        let mut status = CHECK_CONDITION;
        for itt in itt..itt + 4 {
            let bytes = self.bytes_of_command(itt, opcode, 0, 0, &[]);
            self.stream.write_all(&bytes).await.unwrap();
            let answer = self.read().await;
            let Some(Pdu::ScsiResponse(response)) = answer else { panic!("{answer:?}") };
            status = response.status;
            if status != CHECK_CONDITION {
                break;
            }
        }
        status
    }

    /// READ (10) from the start of the disk.
    pub fn bytes_of_read(&self, itt: u32, length: u32) -> Vec<u8> {
        self.bytes_of_command(itt, 0x28, 0, length, &[])
    }

    /// WRITE (10) to where nothing may ever be written, with immediate data.
    pub fn bytes_of_write(&self, itt: u32, length: u32, immediate: &[u8]) -> Vec<u8> {
        self.bytes_of_command(itt, 0x2a, VICTIM_LBA as u32, length, immediate)
    }

    pub fn bytes_of_command(
        &self,
        itt: u32,
        opcode: u8,
        lba: u32,
        length: u32,
        immediate: &[u8],
    ) -> Vec<u8> {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        cdb[7..9].copy_from_slice(&((length / 512) as u16).to_be_bytes());
        let command = ScsiCommand {
            immediate: false,
            is_final: true,
            read: opcode == 0x28,
            write: opcode == 0x2a,
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            lun: Lun(0),
            itt: Itt(itt),
            expected_data_transfer_length: length,
            cmd_sn: CmdSn(self.cmd_sn.fetch_add(1, Ordering::Relaxed)),
            exp_stat_sn: StatSn(0),
            cdb,
            extended_cdb: Bytes::new(),
            bidi_read_length: None,
        };
        self.framing.pdu_bytes(&command.encode(immediate.len() as u32), immediate)
    }

    pub async fn write_command(&self, itt: u32, length: u32, immediate: &[u8]) {
        let bytes = self.bytes_of_write(itt, length, immediate);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            self.stream.writable().await.unwrap();
            match self.stream.try_write(rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// A write, if the connection still takes one.
    pub fn try_write_command(&self, itt: u32, length: u32, immediate: &[u8]) {
        let _ = self.stream.try_write(&self.bytes_of_write(itt, length, immediate));
    }

    /// Drops the connection with a reset.
    pub fn reset(self) {
        socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}
