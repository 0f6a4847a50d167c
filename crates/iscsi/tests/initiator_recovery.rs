//! Our initiator against a target that is honest but unlucky: it damages Data-In and cuts
//! connections in the middle of transfers, and knows its part of error recovery (SNACK, logout for
//! recovery, reinstatement, TASK REASSIGN). What is read and written is compared byte by byte, and
//! the session is still the first one. Redirection, too.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod open_target;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::backend::MemoryDevice;
use block::{BlockDevice, Buf, Bytes, WriteFlags};
use iscsi::initiator::{Config, RemoteDisk, Url, discover};
use iscsi_proto::frame::{Framer, Framing, Limits};
use iscsi_proto::ids::{Cid, Itt, Lun, Tsih, Ttt};
use iscsi_proto::keys::{DigestPreference, Offer};
use iscsi_proto::login::chap::{CHALLENGE_LEN, ChapRandom};
use iscsi_proto::login::target::{Login, Step, TargetConfig as LoginConfig};
use iscsi_proto::pdu::{
    DataIn, Header, LogoutReason, LogoutResponse, LogoutResponseCode, NopIn, Pdu, R2t, Residual,
    ResponseCode, ScsiCommand, ScsiResponse, SnackKind, TaskManagementFunction,
    TaskManagementResponse, TaskManagementResponseCode, TextResponse, encode_sense,
};
use iscsi_proto::serial::{CmdSn, DataSn, R2tSn, StatSn};
use scsi::{Cdb, Command, LunOptions, Nexus, Target, TargetConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use open_target::Access;

const IQN: &str = "iqn.2026-11.org.example:unlucky";
/// Limit of every wait: whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);
const WINDOW: u32 = 64;
/// Bytes of a Data-In.
const SEGMENT: u32 = 4096;
/// Bytes of a READ or WRITE of these tests.
const LEN: usize = 160 << 10;

/// What goes wrong, counted over all connections.
#[derive(Clone, Copy, Debug, Default)]
struct Bad {
    /// Every n-th Data-In has a wrong digest.
    damage_every: usize,
    /// The connection ends before the n-th Data-In, and so on after each further n.
    cut_every: usize,
    /// At most so many cuts.
    cuts_max: usize,
    /// The connection ends when the first Data-Out has come.
    cut_write: bool,
    /// Every connection ends when a READ has come.
    cut_reads: bool,
}

/// A command whose status is not acknowledged.
struct Kept {
    command: ScsiCommand,
    /// What a READ returns, or what has come of a WRITE.
    data: Vec<u8>,
    cid: Cid,
    r2ts: u32,
    /// Its status is on the way.
    answered: bool,
}

/// The one session.
struct Session {
    nexus: Arc<Nexus>,
    exp_cmd_sn: CmdSn,
    received: BTreeSet<u32>,
    tasks: HashMap<Itt, Kept>,
    removed: Vec<Cid>,
    bad: Bad,
    data_ins: usize,
    cuts: usize,
    logins: usize,
    snacks: usize,
    reassigned: usize,
}

type Shared = Arc<Mutex<Session>>;

impl Session {
    /// What came on a connection that is lost, behind a hole in CmdSN, has not come: it is sent
    /// again. Not so what was answered: the initiator is done with it.
    fn forget_unacknowledged(&mut self, cid: Cid) {
        let expected = self.exp_cmd_sn;
        let received = &mut self.received;
        self.tasks.retain(|_, kept| {
            let cmd_sn = kept.command.cmd_sn;
            let lost = kept.cid == cid && !kept.answered && !cmd_sn.is_before(expected);
            if lost {
                received.remove(&cmd_sn.0);
            }
            !lost
        });
    }
}

struct Connection {
    shared: Shared,
    cid: Cid,
    framing: Framing,
    stat_sn: StatSn,
    out: Vec<u8>,
    /// The wire is cut behind what is in `out`.
    cut: bool,
}

impl Connection {
    fn send(&mut self, header: &Header, data: &[u8]) {
        self.out.extend(self.framing.pdu_bytes(header, data));
    }

    fn window(&self) -> (CmdSn, CmdSn) {
        let exp_cmd_sn = self.shared.lock().unwrap().exp_cmd_sn;
        (exp_cmd_sn, exp_cmd_sn.plus(WINDOW))
    }

    fn respond(&mut self, itt: Itt, status: u8, sense: &[u8], residual: Residual, sent: u32) {
        if let Some(task) = self.shared.lock().unwrap().tasks.get_mut(&itt) {
            task.answered = true;
        }
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
            exp_data_sn: sent,
        };
        self.send(&response.encode(sense.len() as u32), sense);
    }

    /// Data-In from `first` on, at most `count` of them; true if the wire was not cut.
    fn data_in(&mut self, itt: Itt, first: u32, count: u32) -> bool {
        let data = self.shared.lock().unwrap().tasks[&itt].data.clone();
        let pieces: Vec<&[u8]> = data.chunks(SEGMENT as usize).collect();
        for (number, piece) in pieces.iter().enumerate().skip(first as usize).take(count as usize) {
            let (exp_cmd_sn, max_cmd_sn) = self.window();
            let header = DataIn {
                is_final: number + 1 == pieces.len(),
                acknowledge: false,
                status: None,
                lun: Lun(0),
                itt,
                ttt: Ttt::NONE,
                stat_sn: StatSn(0),
                exp_cmd_sn,
                max_cmd_sn,
                data_sn: DataSn(number as u32),
                buffer_offset: number as u32 * SEGMENT,
            };
            let mut bytes = self.framing.pdu_bytes(&header.encode(piece.len() as u32), piece);
            let mut session = self.shared.lock().unwrap();
            session.data_ins += 1;
            let (n, bad) = (session.data_ins, session.bad);
            if bad.cut_every > 0 && n % bad.cut_every == 0 && session.cuts < bad.cuts_max {
                session.cuts += 1;
                self.cut = true;
                bytes.truncate(bytes.len() / 2); // in the middle of a PDU
                self.out.extend(bytes);
                return false;
            }
            if bad.damage_every > 0 && n % bad.damage_every == 0 && self.framing.data_digest {
                bytes[60] ^= 0x40; // in the data
            }
            drop(session);
            self.out.extend(bytes);
        }
        true
    }

    fn ask_for_data(&mut self, itt: Itt) {
        let (exp_cmd_sn, max_cmd_sn) = self.window();
        let mut session = self.shared.lock().unwrap();
        let task = session.tasks.get_mut(&itt).unwrap();
        task.data.clear();
        let r2t = R2t {
            lun: Lun(0),
            itt,
            ttt: Ttt(7),
            stat_sn: self.stat_sn,
            exp_cmd_sn,
            max_cmd_sn,
            r2t_sn: R2tSn(task.r2ts),
            buffer_offset: 0,
            desired_data_transfer_length: task.command.expected_data_transfer_length,
        };
        task.r2ts += 1;
        drop(session);
        self.send(&r2t.encode(0), &[]);
    }

    async fn execute(&mut self, command: &ScsiCommand, data_out: Bytes) -> (u8, Vec<u8>, Vec<u8>) {
        let expected = command.expected_data_transfer_length;
        let room = if command.read { expected as usize } else { 0 };
        let mut request = Command::new(command.lun.0, Cdb::new(&command.cdb));
        request = request.with_data_in_max(room);
        if command.write {
            request = request.with_data_out(data_out);
        }
        let nexus = self.shared.lock().unwrap().nexus.clone();
        let answer = nexus.execute(request).await;
        let sense = answer.sense.map(|sense| encode_sense(&sense.to_bytes()).to_vec());
        match sense {
            Some(sense) => (2, sense, Vec::new()),
            None => (0, Vec::new(), answer.data_in.to_vec()),
        }
    }

    async fn command(&mut self, command: ScsiCommand) {
        let itt = command.itt;
        {
            let mut session = self.shared.lock().unwrap();
            if !session.received.insert(command.cmd_sn.0) {
                return; // a retry of what has come
            }
            while session.received.contains(&session.exp_cmd_sn.0) {
                session.exp_cmd_sn = session.exp_cmd_sn.next();
            }
        }
        if [0x28, 0x88].contains(&command.cdb[0]) && self.shared.lock().unwrap().bad.cut_reads {
            self.cut = true;
            return;
        }
        let expected = command.expected_data_transfer_length;
        let kept =
            |data| Kept { command: command.clone(), data, cid: self.cid, r2ts: 0, answered: false };
        if command.write {
            let kept = kept(Vec::new());
            self.shared.lock().unwrap().tasks.insert(itt, kept);
            return self.ask_for_data(itt);
        }
        let cid = self.cid;
        let (status, sense, data) = self.execute(&command, Bytes::new()).await;
        let len = data.len() as u32;
        let kept = Kept { command: command.clone(), data, cid, r2ts: 0, answered: false };
        self.shared.lock().unwrap().tasks.insert(itt, kept);
        let residual = match len < expected && status == 0 {
            true => Residual::Underflow(expected - len),
            false => Residual::None,
        };
        if self.data_in(itt, 0, u32::MAX) {
            self.respond(itt, status, &sense, residual, len.div_ceil(SEGMENT));
        }
    }

    async fn answer(&mut self, pdu: Pdu, data: Bytes) {
        match pdu {
            Pdu::ScsiCommand(command) => self.command(command).await,
            Pdu::DataOut(pdu) => {
                let (command, all) = {
                    let mut session = self.shared.lock().unwrap();
                    if std::mem::take(&mut session.bad.cut_write) {
                        self.cut = true;
                        return;
                    }
                    let task = session.tasks.get_mut(&pdu.itt).unwrap();
                    assert_eq!(pdu.buffer_offset as usize, task.data.len());
                    task.data.extend(&data);
                    (task.command.clone(), task.data.clone())
                };
                if pdu.is_final {
                    let (status, sense, _) = self.execute(&command, all.into()).await;
                    self.respond(pdu.itt, status, &sense, Residual::None, 0);
                }
            }
            Pdu::SnackRequest(snack) => {
                self.shared.lock().unwrap().snacks += 1;
                assert_eq!(snack.kind, SnackKind::DATA_OR_R2T);
                self.data_in(snack.itt, snack.beg_run, snack.run_length);
            }
            Pdu::NopOut(nop) if nop.itt != Itt::NONE => {
                let (exp_cmd_sn, max_cmd_sn) = self.window();
                let (lun, itt, ttt) = (Lun(0), nop.itt, Ttt::NONE);
                let stat_sn = self.stat_sn.take();
                let pong = NopIn { lun, itt, ttt, stat_sn, exp_cmd_sn, max_cmd_sn };
                self.send(&pong.encode(0), &[]);
            }
            Pdu::LogoutRequest(request) => {
                if request.reason == LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY {
                    self.shared.lock().unwrap().removed.push(request.cid);
                }
                let (exp_cmd_sn, max_cmd_sn) = self.window();
                let response = LogoutResponse {
                    response: LogoutResponseCode::CLOSED,
                    itt: request.itt,
                    stat_sn: self.stat_sn.take(),
                    exp_cmd_sn,
                    max_cmd_sn,
                    time2wait: 0,
                    time2retain: 20,
                };
                self.send(&response.encode(0), &[]);
            }
            Pdu::TaskManagementRequest(request) => {
                assert_eq!(request.function, TaskManagementFunction::TASK_REASSIGN);
                self.reassign(request.itt, request.referenced_task_tag, request.exp_data_sn);
            }
            Pdu::TextRequest(request) => {
                let text = format!("TargetName={IQN}\0");
                let (exp_cmd_sn, max_cmd_sn) = self.window();
                let response = TextResponse {
                    is_final: true,
                    continues: false,
                    lun: Lun(0),
                    itt: request.itt,
                    ttt: Ttt::NONE,
                    stat_sn: self.stat_sn.take(),
                    exp_cmd_sn,
                    max_cmd_sn,
                };
                self.send(&response.encode(text.len() as u32), text.as_bytes());
            }
            _ => {}
        }
    }

    fn reassign(&mut self, itt: Itt, task: Itt, exp_data_sn: u32) {
        let known = {
            let mut session = self.shared.lock().unwrap();
            session.reassigned += 1;
            let removed = session.removed.clone();
            let cid = self.cid;
            session.tasks.get_mut(&task).map(|kept| {
                assert!(removed.contains(&kept.cid), "still allegiant");
                kept.cid = cid;
                kept.command.write
            })
        };
        let (exp_cmd_sn, max_cmd_sn) = self.window();
        let response = TaskManagementResponse {
            information: [0; 3],
            response: match known {
                Some(_) => TaskManagementResponseCode::COMPLETE,
                None => TaskManagementResponseCode::TASK_DOES_NOT_EXIST,
            },
            itt,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn,
            max_cmd_sn,
        };
        self.send(&response.encode(0), &[]);
        match known {
            Some(true) => self.ask_for_data(task),
            Some(false) => {
                let len = self.shared.lock().unwrap().tasks[&task].data.len() as u32;
                if self.data_in(task, exp_data_sn, u32::MAX) {
                    self.respond(task, 0, &[], Residual::None, len.div_ceil(SEGMENT));
                }
            }
            None => {}
        }
    }
}

async fn log_in(
    stream: &mut TcpStream,
    shared: &Shared,
    moved: Option<SocketAddr>,
) -> Option<(Connection, Framer)> {
    let mut offer = Offer { data_digest: DigestPreference::Prefer, ..Offer::default() };
    offer.session.error_recovery_level = 2;
    offer.session.default_time2wait = 0;
    offer.session.max_connections = 4;
    (offer.session.initial_r2t, offer.session.immediate_data) = (true, false);
    let random = ChapRandom::from_bytes([3; 1 + CHALLENGE_LEN]);
    let authenticator = Arc::new(Access { moved });
    let mut login = Login::new(LoginConfig { offer, authenticator, random });
    let mut framer = Framer::new(Framing::default(), Limits::LOGIN);
    loop {
        let (header, text) = next_pdu(stream, &mut framer).await?;
        let Ok(Pdu::LoginRequest(request)) = Pdu::parse(&header) else { return None };
        let (outcome, response, text) = match login.handle(&request, &text) {
            Ok(Step::Send(response, text)) => (None, response, text),
            Ok(Step::Ready(outcome)) => {
                let mut session = shared.lock().unwrap();
                if outcome.tsih == Tsih(0) {
                    session.exp_cmd_sn = outcome.cmd_sn;
                    session.received.clear();
                }
                session.logins += usize::from(!outcome.discovery);
                session.removed.push(outcome.cid); // implicitly, if there was one
                let first = session.exp_cmd_sn;
                let (response, text) = login.accept(Tsih(1), first, first.plus(WINDOW));
                (Some(outcome), response, text)
            }
            Err(failure) => {
                let (response, text) = login.failure_response(&failure);
                (None, response, text)
            }
        };
        let header = response.encode(text.len() as u32);
        stream.write_all(&Framing::default().pdu_bytes(&header, &text)).await.ok()?;
        if let Some(outcome) = outcome {
            let framing = outcome.connection.framing();
            framer.set(framing, Limits::full_feature(1 << 24));
            let (cid, stat_sn) = (outcome.cid, outcome.next_stat_sn);
            let (out, cut, shared) = (Vec::new(), false, shared.clone());
            return Some((Connection { shared, cid, framing, stat_sn, out, cut }, framer));
        }
    }
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

async fn serve(mut stream: TcpStream, shared: Shared, moved: Option<SocketAddr>) -> Option<()> {
    let (mut connection, mut framer) = log_in(&mut stream, &shared, moved).await?;
    loop {
        let (header, data) = next_pdu(&mut stream, &mut framer).await?;
        connection.answer(Pdu::parse(&header).ok()?, data).await;
        stream.write_all(&std::mem::take(&mut connection.out)).await.ok()?;
        if connection.cut {
            connection.shared.lock().unwrap().forget_unacknowledged(connection.cid);
            return None;
        }
    }
}

async fn listen(shared: &Shared, moved: Option<SocketAddr>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shared = shared.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, shared.clone(), moved));
        }
    });
    address
}

fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 23) as u8).collect()
}

struct Arena {
    shared: Shared,
    disk: RemoteDisk,
    device: Arc<MemoryDevice>,
}

fn session(device: &Arc<MemoryDevice>) -> Shared {
    let scsi = Target::new(TargetConfig::new(IQN));
    scsi.add_lun(0, device.clone(), LunOptions::default()).unwrap();
    Arc::new(Mutex::new(Session {
        nexus: Arc::new(scsi.nexus("recovery")),
        exp_cmd_sn: CmdSn(1),
        received: BTreeSet::new(),
        tasks: HashMap::new(),
        removed: Vec::new(),
        bad: Bad::default(),
        data_ins: 0,
        cuts: 0,
        logins: 0,
        snacks: 0,
        reassigned: 0,
    }))
}

async fn arena(level: u8, connections: u16, bad: Bad) -> Arena {
    let device = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    device.write(0, content(1 << 20).into(), WriteFlags::NONE).await.unwrap();
    let shared = session(&device);
    let address = listen(&shared, None).await;
    let url: Url = format!("iscsi://{address}/{IQN}/0").parse().unwrap();
    let config = Config::default()
        .connections(connections)
        .digests(DigestPreference::Never, DigestPreference::Prefer)
        .error_recovery_level(level);
    let connect = tokio::time::timeout(PATIENCE, RemoteDisk::connect(url, config));
    let disk = connect.await.expect("connecting hangs").unwrap();
    assert_eq!(disk.session_params().error_recovery_level, level);
    {
        let mut session = shared.lock().unwrap();
        session.bad = bad;
        session.data_ins = 0;
    }
    Arena { shared, disk, device }
}

impl Arena {
    /// Reads all of the disk, several pieces at once, and compares.
    async fn reads_well(&self) {
        let expected = content(1 << 20);
        let reads = (0..6).map(|n| {
            let (disk, offset) = (self.disk.clone(), n * LEN);
            async move { (offset, disk.read(offset as u64, Buf::new(LEN)).await.unwrap()) }
        });
        let all = futures_util::future::join_all(reads);
        for (offset, read) in tokio::time::timeout(PATIENCE, all).await.expect("reading hangs") {
            assert!(read[..] == expected[offset..offset + LEN], "wrong content at {offset}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_data_is_asked_for_again() {
    let arena = arena(1, 1, Bad { damage_every: 7, ..Bad::default() }).await;
    arena.reads_well().await;
    assert!(arena.shared.lock().unwrap().snacks >= 30, "one for each seventh of 240");
    assert_eq!((arena.disk.incarnations(), arena.shared.lock().unwrap().logins), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connections_reads_go_on_over_the_other() {
    let bad = Bad { cut_every: 50, cuts_max: 3, damage_every: 11, ..Bad::default() };
    let arena = arena(2, 2, bad).await;
    arena.reads_well().await;
    assert_eq!(arena.shared.lock().unwrap().cuts, 3);
    assert_eq!(arena.disk.incarnations(), 1);
    let both = async {
        while arena.disk.connection_count() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, both).await.expect("the lost connection is not replaced");
    assert!(arena.shared.lock().unwrap().logins >= 5);
    arena.reads_well().await;
    arena.disk.close().await.unwrap();
}

/// And not once more with another CID, for which there is no place any more: then one of both would
/// be opened in vain for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_is_opened_again_once() {
    let arena = arena(2, 2, Bad { cut_every: 50, cuts_max: 1, ..Bad::default() }).await;
    arena.reads_well().await;
    let both = async {
        while arena.disk.connection_count() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, both).await.expect("the lost connection is not replaced");
    for _ in 0..30 {
        arena.reads_well().await;
    }
    assert_eq!(arena.shared.lock().unwrap().logins, 3);
    arena.disk.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_connection_is_reinstated_in_mid_read() {
    let arena = arena(2, 1, Bad { cut_every: 30, cuts_max: 4, ..Bad::default() }).await;
    arena.reads_well().await;
    assert_eq!(arena.disk.incarnations(), 1);
    let session = arena.shared.lock().unwrap();
    assert_eq!((session.cuts, session.logins), (4, 5));
    assert!(session.reassigned >= 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connections_write_is_asked_for_anew() {
    for connections in [1, 2] {
        let bad = Bad { cut_write: true, ..Bad::default() };
        let arena = arena(2, connections, bad).await;
        let data: Vec<u8> = content(LEN).into_iter().map(|byte| !byte).collect();
        let write = arena.disk.write(512, data.clone().into(), WriteFlags::NONE);
        tokio::time::timeout(PATIENCE, write).await.expect("writing hangs").unwrap();
        let there = arena.device.read(512, Buf::new(LEN)).await.unwrap();
        assert!(there[..] == data[..], "{connections} connections: wrong content");
        assert_eq!(arena.disk.incarnations(), 1, "{connections} connections");
        assert!(arena.shared.lock().unwrap().reassigned >= 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn below_level_2_a_cut_connection_means_a_new_session_and_the_same_content() {
    for level in 0..=1 {
        let bad = Bad { cut_every: 100, cuts_max: 1, ..Bad::default() };
        let arena = arena(level, 2, bad).await;
        arena.reads_well().await;
        assert_eq!(arena.disk.incarnations(), 2);
        assert_eq!(arena.shared.lock().unwrap().reassigned, 0);
    }
}

/// A target that takes every login, answers every probe and breaks with the first READ is not
/// called again and again without a pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_breaks_every_session_is_left_alone_for_longer_and_longer() {
    for level in [0, 2] {
        let device = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
        let shared = session(&device);
        let address = listen(&shared, None).await;
        let url: Url = format!("iscsi://{address}/{IQN}/0").parse().unwrap();
        let config = Config::default()
            .error_recovery_level(level)
            .replacement_timeout(Duration::from_secs(1));
        let disk = RemoteDisk::connect(url, config).await.unwrap();
        shared.lock().unwrap().bad = Bad { cut_reads: true, ..Bad::default() };
        if level == 2 {
            // The task is never given up by the core; the caller's patience ends.
            let read = disk.read(0, Buf::new(4096));
            assert!(tokio::time::timeout(Duration::from_secs(2), read).await.is_err());
        } else {
            let read = tokio::time::timeout(PATIENCE, disk.read(0, Buf::new(4096))).await;
            assert!(read.expect("reading hangs").is_err());
        }
        let logins = shared.lock().unwrap().logins;
        assert!((2..16).contains(&logins), "level {level}: {logins} logins");
    }
}

/// A portal that sends everybody elsewhere: the disk and the discovery go there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirections_are_followed() {
    let device = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    let shared = session(&device);
    let there = listen(&shared, None).await;
    let here = listen(&shared, Some(there)).await;
    let url: Url = format!("iscsi://{here}/{IQN}/0").parse().unwrap();
    let disk = RemoteDisk::connect(url.clone(), Config::default().connections(2)).await.unwrap();
    assert_eq!(disk.connection_count(), 2);
    let sessions = disk.sessions();
    assert!(sessions[0].connections.iter().all(|c| c.peer == Some(there)));
    let found = discover(&url.portal, &Config::default()).await.unwrap();
    assert_eq!(found.iter().map(|target| target.name.as_str()).collect::<Vec<_>>(), [IQN]);
}
