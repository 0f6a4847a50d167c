//! Error recovery of the target server over real sockets: a scripted initiator damages, forgets and
//! cuts, and what it wrote and read has to be right byte for byte (RFC 7143 §7).

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod kept_log;

use std::net::SocketAddr;
use std::sync::Arc;

use block::backend::MemoryDevice;
use bytes::Bytes;
use iscsi::target::{Server, ServerConfig};
use iscsi_proto::frame::{Framer, Framing, Limits};
use iscsi_proto::ids::{Cid, Isid, Itt, Lun, Tsih, Ttt};
use iscsi_proto::keys::{DigestPreference, TaskReporting};
use iscsi_proto::login::Outcome;
use iscsi_proto::login::chap::{CHALLENGE_LEN, ChapRandom};
use iscsi_proto::login::initiator::{InitiatorConfig, Login, LoginError, Step};
use iscsi_proto::pdu::{
    DataOut, LoginStatus, LogoutReason, LogoutRequest, LogoutResponseCode, Pdu, R2t, RejectReason,
    ScsiCommand, SnackKind, SnackRequest, TaskAttribute, TaskManagementFunction,
    TaskManagementRequest, TaskManagementResponse, TaskManagementResponseCode,
};
use iscsi_proto::serial::{CmdSn, DataSn, StatSn};
use scsi::{LunOptions, Target, TargetConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use kept_log::{PATIENCE, keep_log, logged};

const IQN: &str = "iqn.2026-11.org.example:recovery";
/// MaxBurstLength of these sessions.
const BURST: u32 = 65_536;
/// Data per Data-Out.
const SEGMENT: u32 = 8192;

struct Running {
    address: SocketAddr,
    serving: JoinHandle<()>,
    _stop: oneshot::Sender<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn serve() -> Running {
    keep_log();
    let scsi = Target::new(TargetConfig::new(IQN));
    let device = Arc::new(MemoryDevice::new(8 << 20, 512).unwrap());
    scsi.add_lun(0, device, LunOptions::default()).unwrap();
    let config = ServerConfig::new(IQN).unwrap();
    let server = Server::bind(config, scsi, &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = server.local_addrs()[0];
    let (_stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(async { drop(stopped.await) }));
    Running { address, serving, _stop }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let word = |n: u64| (n ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..len as u64 / 8).flat_map(word).collect()
}

/// What a login asks for.
#[derive(Clone, Copy)]
struct Ask {
    isid: Isid,
    level: u8,
    time2retain: u16,
    max_outstanding_r2t: u16,
    task_reporting: TaskReporting,
}

impl Ask {
    /// The initiator's name, another one for each test: they run at once, share the log, and count
    /// their sessions each from one.
    fn name(&self) -> String {
        format!("iqn.2026-11.org.example:scripted-{}", self.isid)
    }
}

/// A connection of a scripted initiator.
struct Client {
    stream: TcpStream,
    framing: Framing,
    framer: Framer,
    outcome: Outcome,
    cmd_sn: u32,
    exp_stat_sn: StatSn,
}

impl Client {
    async fn lead(address: SocketAddr, ask: Ask) -> Self {
        let mut client = Self::log_in(address, ask, Cid(1), None).await.unwrap();
        // The unit attention of a new session goes with the first command.
        let test_unit_ready = client.command(0, 0x00, 0, 0);
        client.send(test_unit_ready, &[]).await;
        assert!(matches!(client.read().await.0, Pdu::ScsiResponse(_)));
        client
    }

    /// A connection for the session of another: a new one, or the same again.
    async fn join(address: SocketAddr, ask: Ask, cid: Cid, of: &Self) -> Result<Self, LoginStatus> {
        Self::log_in(address, ask, cid, Some((of.outcome.clone(), of.cmd_sn))).await
    }

    async fn log_in(
        address: SocketAddr,
        ask: Ask,
        cid: Cid,
        of: Option<(Outcome, u32)>,
    ) -> Result<Self, LoginStatus> {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let random = ChapRandom::from_bytes([1; 1 + CHALLENGE_LEN]);
        let mut config = InitiatorConfig::new(ask.name(), Some(IQN.to_owned()), ask.isid, random);
        config.cid = cid;
        config.offer.data_digest = DigestPreference::Require;
        config.offer.max_recv_data_segment_length = SEGMENT;
        let session = &mut config.offer.session;
        session.error_recovery_level = ask.level;
        session.default_time2wait = 0;
        session.default_time2retain = ask.time2retain;
        session.initial_r2t = true;
        session.first_burst_length = SEGMENT;
        session.max_burst_length = BURST;
        session.task_reporting = ask.task_reporting;
        session.max_outstanding_r2t = ask.max_outstanding_r2t;
        session.data_sequence_in_order = false;
        if let Some((outcome, cmd_sn)) = &of {
            config.tsih = outcome.tsih;
            config.cmd_sn = CmdSn(*cmd_sn);
            config.joining = Some(outcome.session);
        }
        let mut login = Login::new(config).unwrap();
        let (mut request, mut text) = login.first();
        let mut framer = Framer::new(Framing::default(), Limits::LOGIN);
        let outcome = loop {
            let header = request.encode(text.len() as u32);
            stream.write_all(&Framing::default().pdu_bytes(&header, &text)).await.unwrap();
            let (pdu, data) = next(&mut stream, &mut framer).await.unwrap();
            let Pdu::LoginResponse(response) = pdu else { panic!("{pdu:?}") };
            match login.handle(&response, &data) {
                Ok(Step::Send(next, next_text)) => (request, text) = (next, next_text),
                Ok(Step::Established(outcome)) => break *outcome,
                Err(LoginError::Refused { status }) => return Err(status),
                other => panic!("{other:?}"),
            }
        };
        let framing = outcome.connection.framing();
        framer.set(framing, Limits::full_feature(1 << 24));
        if of.is_none() {
            assert_eq!(outcome.session.error_recovery_level, ask.level, "the target grants it");
            assert_ne!(outcome.tsih, Tsih(0));
        }
        let cmd_sn = of.map_or(outcome.cmd_sn.0, |(_, cmd_sn)| cmd_sn);
        let exp_stat_sn = outcome.next_stat_sn;
        Ok(Self { stream, framing, framer, outcome, cmd_sn, exp_stat_sn })
    }

    async fn send(&mut self, pdu: impl Into<Pdu>, data: &[u8]) {
        let header = pdu.into().encode(data.len() as u32);
        self.stream.write_all(&self.framing.pdu_bytes(&header, data)).await.unwrap();
    }

    /// With a byte changed on the way.
    async fn send_damaged(&mut self, pdu: impl Into<Pdu>, data: &[u8]) {
        let header = pdu.into().encode(data.len() as u32);
        let mut bytes = self.framing.pdu_bytes(&header, data);
        bytes[48 + data.len() / 2] ^= 0x10;
        self.stream.write_all(&bytes).await.unwrap();
    }

    async fn read(&mut self) -> (Pdu, Bytes) {
        let (pdu, data) = next(&mut self.stream, &mut self.framer).await.expect("a PDU");
        let stat_sn = match &pdu {
            Pdu::ScsiResponse(pdu) => Some(pdu.stat_sn),
            Pdu::DataIn(pdu) => pdu.status.map(|_| pdu.stat_sn),
            Pdu::TaskManagementResponse(pdu) => Some(pdu.stat_sn),
            Pdu::LogoutResponse(pdu) => Some(pdu.stat_sn),
            Pdu::Reject(pdu) => Some(pdu.stat_sn),
            _ => None,
        };
        if let Some(stat_sn) = stat_sn
            && stat_sn == self.exp_stat_sn
        {
            self.exp_stat_sn = stat_sn.next();
        }
        (pdu, data)
    }

    fn command(&mut self, itt: u32, opcode: u8, lba: u32, len: usize) -> ScsiCommand {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        cdb[2..6].copy_from_slice(&lba.to_be_bytes());
        cdb[7..9].copy_from_slice(&((len / 512) as u16).to_be_bytes());
        let cmd_sn = CmdSn(self.cmd_sn);
        self.cmd_sn += 1;
        ScsiCommand {
            immediate: false,
            is_final: true,
            read: opcode == 0x28,
            write: opcode == 0x2a,
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            lun: Lun(0),
            itt: Itt(itt),
            expected_data_transfer_length: len as u32,
            cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            cdb,
            extended_cdb: Bytes::new(),
            bidi_read_length: None,
        }
    }

    fn data_out(&self, r2t: &R2t, n: u32) -> (DataOut, std::ops::Range<usize>) {
        let len = r2t.desired_data_transfer_length;
        let from = n * SEGMENT;
        let to = (from + SEGMENT).min(len);
        let pdu = DataOut {
            is_final: to == len,
            lun: Lun(0),
            itt: r2t.itt,
            ttt: r2t.ttt,
            exp_stat_sn: self.exp_stat_sn,
            data_sn: DataSn(n),
            buffer_offset: r2t.buffer_offset + from,
        };
        let start = r2t.buffer_offset as usize;
        (pdu, start + from as usize..start + to as usize)
    }

    /// Answers an R2T; the PDUs with these numbers are damaged.
    async fn answer(&mut self, r2t: &R2t, data: &[u8], damaged: &[u32]) {
        for n in 0..r2t.desired_data_transfer_length.div_ceil(SEGMENT) {
            let (pdu, range) = self.data_out(r2t, n);
            if damaged.contains(&n) {
                self.send_damaged(pdu, &data[range]).await;
            } else {
                self.send(pdu, &data[range]).await;
            }
        }
    }

    /// Answers R2Ts until the command is answered; returns what was asked for.
    async fn finish_write(&mut self, itt: u32, data: &[u8]) -> Vec<(u32, u32)> {
        let mut asked = Vec::new();
        loop {
            match self.read().await.0 {
                Pdu::R2t(r2t) => {
                    asked.push((r2t.buffer_offset, r2t.desired_data_transfer_length));
                    self.answer(&r2t, data, &[]).await;
                }
                Pdu::ScsiResponse(response) => {
                    assert_eq!((response.itt, response.status), (Itt(itt), 0));
                    return asked;
                }
                Pdu::Reject(reject) => assert_eq!(reject.reason, RejectReason::DATA_DIGEST_ERROR),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Data-In PDUs from here to the status, as offset and data.
    async fn collect(&mut self, itt: u32) -> Vec<(u32, Bytes)> {
        let mut pieces = Vec::new();
        loop {
            match self.read().await {
                (Pdu::DataIn(pdu), data) => {
                    assert_eq!(pdu.itt, Itt(itt));
                    pieces.push((pdu.buffer_offset, data));
                    if pdu.status.is_some() {
                        return pieces;
                    }
                }
                (Pdu::ScsiResponse(response), _) => {
                    assert_eq!((response.itt, response.status), (Itt(itt), 0));
                    return pieces;
                }
                (other, _) => panic!("{other:?}"),
            }
        }
    }

    async fn read_back(&mut self, itt: u32, lba: u32, len: usize) -> Vec<u8> {
        let read = self.command(itt, 0x28, lba, len);
        self.send(read, &[]).await;
        self.collect(itt).await.into_iter().flat_map(|(_, data)| data.to_vec()).collect()
    }

    /// A function about a unit, or about the task `referenced` there.
    async fn manage(
        &mut self,
        function: TaskManagementFunction,
        referenced: Itt,
        lun: Lun,
    ) -> TaskManagementResponse {
        let request = TaskManagementRequest {
            immediate: true,
            function,
            lun,
            itt: Itt(0x2000),
            referenced_task_tag: referenced,
            cmd_sn: CmdSn(self.cmd_sn),
            exp_stat_sn: self.exp_stat_sn,
            ref_cmd_sn: CmdSn(self.cmd_sn - 1),
            exp_data_sn: 0,
        };
        self.send(request, &[]).await;
        match self.read().await.0 {
            Pdu::TaskManagementResponse(response) => response,
            other => panic!("{other:?}"),
        }
    }

    async fn reassign(&mut self, itt: u32, exp_data_sn: u32) -> TaskManagementResponseCode {
        let request = TaskManagementRequest {
            immediate: true,
            function: TaskManagementFunction::TASK_REASSIGN,
            lun: Lun(0),
            itt: Itt(0x1000 + itt),
            referenced_task_tag: Itt(itt),
            cmd_sn: CmdSn(self.cmd_sn),
            exp_stat_sn: self.exp_stat_sn,
            ref_cmd_sn: CmdSn(0),
            exp_data_sn,
        };
        self.send(request, &[]).await;
        match self.read().await.0 {
            Pdu::TaskManagementResponse(response) => response.response,
            other => panic!("{other:?}"),
        }
    }
}

/// The next PDU; `None` when the connection has ended.
async fn next(stream: &mut TcpStream, framer: &mut Framer) -> Option<(Pdu, Bytes)> {
    let limit = tokio::time::Instant::now() + PATIENCE;
    let mut buffer = [0; 16_384];
    loop {
        if let Some((header, data)) = framer.next_pdu().unwrap() {
            return Some((Pdu::parse(&header).unwrap(), data));
        }
        let read = tokio::time::timeout_at(limit, stream.read(&mut buffer)).await;
        match read.expect("neither a PDU nor the end") {
            Ok(0) | Err(_) => return None,
            Ok(len) => framer.push(&buffer[..len]),
        }
    }
}

fn ask(seed: u32, level: u8) -> Ask {
    let isid = Isid::random(seed, 7);
    let task_reporting = TaskReporting::FastAbort;
    Ask { isid, level, time2retain: 20, max_outstanding_r2t: 4, task_reporting }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_data_of_a_write_is_asked_for_again() {
    let target = serve();
    let mut client = Client::lead(target.address, ask(1, 1)).await;
    let data = pattern(1, 4 * BURST as usize);
    let write = client.command(1, 0x2a, 0, data.len());
    client.send(write, &[]).await;
    let mut rejects = 0;
    let mut asked = Vec::new();
    for damaged in [&[1u32, 2][..], &[7], &[0], &[]] {
        let r2t = loop {
            match client.read().await.0 {
                Pdu::R2t(r2t) if r2t.desired_data_transfer_length == BURST => break r2t,
                Pdu::R2t(r2t) => asked.push(r2t),
                Pdu::Reject(_) => rejects += 1,
                other => panic!("{other:?}"),
            }
        };
        client.answer(&r2t, &data, damaged).await;
    }
    for r2t in std::mem::take(&mut asked) {
        client.answer(&r2t, &data, &[]).await;
    }
    client.finish_write(1, &data).await;
    assert!(rejects <= 4);
    logged(&["RecoveryR2t", "offset: 8192, len: 16384"]).await;
    assert!(client.read_back(2, 0, data.len()).await == data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_with_damaged_immediate_data_is_sent_again() {
    let target = serve();
    let mut client = Client::lead(target.address, ask(2, 1)).await;
    let data = pattern(2, SEGMENT as usize);
    let write = client.command(1, 0x2a, 64, data.len());
    client.send_damaged(write.clone(), &data).await;
    let (Pdu::Reject(reject), quoted) = client.read().await else { panic!() };
    assert_eq!(reject.reason, RejectReason::DATA_DIGEST_ERROR);
    assert_eq!(quoted[16..20], 1u32.to_be_bytes());
    client.send(write, &data).await;
    assert!(client.finish_write(1, &data).await.is_empty());
    assert!(client.read_back(2, 64, data.len()).await == data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_data_in_and_lost_status_are_sent_again() {
    let target = serve();
    let mut client = Client::lead(target.address, ask(3, 1)).await;
    let data = pattern(3, 3 * BURST as usize);
    let write = client.command(1, 0x2a, 0, data.len());
    client.send(write, &[]).await;
    client.finish_write(1, &data).await;

    let (before, len) = (client.exp_stat_sn, data.len());
    let read = client.command(2, 0x28, 0, len);
    client.send(read, &[]).await;
    let sent = client.collect(2).await;
    // As if these had not arrived: the client acknowledges nothing.
    client.exp_stat_sn = before;
    let snack = |kind, itt, beg_run, run_length| SnackRequest {
        kind,
        lun: Lun(0),
        itt,
        ttt_or_snack_tag: Ttt::NONE.0,
        exp_stat_sn: before,
        beg_run,
        run_length,
    };
    client.send(snack(SnackKind::DATA_OR_R2T, Itt(2), 5, 3), &[]).await;
    for lost in &sent[5..8] {
        let (Pdu::DataIn(pdu), data) = client.read().await else { panic!() };
        assert!((pdu.buffer_offset, data) == *lost);
    }
    client.send(snack(SnackKind::STATUS, Itt::NONE, before.0, 1), &[]).await;
    let (Pdu::DataIn(last), _) = client.read().await else { panic!() };
    assert!(last.status.is_some());
    assert_eq!(last.stat_sn, before);
    logged(&["StatusAgain"]).await;
    logged(&["DataAgain", "data_sn: 5, pdus: 3"]).await;
    let whole: Vec<u8> = sent.into_iter().flat_map(|(_, data)| data.to_vec()).collect();
    assert!(whole == data);
}

/// The only connection is cut in the middle of a PDU of a write and of a read's data. The same
/// connection comes back and takes both over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_a_connection_that_was_cut_are_taken_over() {
    let target = serve();
    let ask = Ask { max_outstanding_r2t: 1, ..ask(4, 2) };
    let mut client = Client::lead(target.address, ask).await;
    let old = pattern(40, 8 * BURST as usize);
    let write = client.command(1, 0x2a, 4096, old.len());
    client.send(write, &[]).await;
    client.finish_write(1, &old).await;

    let data = pattern(41, 4 * BURST as usize);
    let write = client.command(2, 0x2a, 0, data.len());
    client.send(write, &[]).await;
    let (Pdu::R2t(first), _) = client.read().await else { panic!() };
    client.answer(&first, &data, &[]).await;
    let (Pdu::R2t(second), _) = client.read().await else { panic!() };
    let (pdu, range) = client.data_out(&second, 0);
    client.send(pdu, &data[range]).await;
    let read = client.command(3, 0x28, 4096, old.len());
    client.send(read, &[]).await;
    let mut front = Vec::new();
    for n in 0..5 {
        let (Pdu::DataIn(pdu), data) = client.read().await else { panic!() };
        assert_eq!(pdu.data_sn, DataSn(n));
        front.extend_from_slice(&data);
    }
    // Half a PDU.
    let (pdu, range) = client.data_out(&second, 1);
    let bytes = client.framing.pdu_bytes(&pdu.encode(SEGMENT), &data[range]);
    client.stream.write_all(&bytes[..4000]).await.unwrap();
    client.stream.shutdown().await.unwrap();
    logged(&["its tasks wait for recovery", "tasks=2", &ask.name()]).await;

    let mut again = Client::join(target.address, ask, Cid(1), &client).await.unwrap();
    assert_eq!(again.reassign(3, 5).await, TaskManagementResponseCode::COMPLETE);
    let rest = again.collect(3).await;
    assert_eq!(rest[0].0 as usize, front.len(), "from where the initiator stands");
    front.extend(rest.into_iter().flat_map(|(_, data)| data.to_vec()));
    assert!(front == old);
    // Whatever memory was given back meanwhile holds something else from here on.
    let other = pattern(42, data.len());
    let write = again.command(5, 0x2a, 8192, other.len());
    again.send(write, &[]).await;
    again.finish_write(5, &other).await;
    assert_eq!(again.reassign(2, 0).await, TaskManagementResponseCode::COMPLETE);
    let asked = again.finish_write(2, &data).await;
    let kept = BURST + SEGMENT;
    assert_eq!(asked[0], (kept, BURST - SEGMENT), "what had arrived is not asked for again");
    logged(&["Reassigned"]).await;
    assert!(again.read_back(4, 0, data.len()).await == data);
    drop(client);
}

/// A write has come whole and waits for the command before it; then its connection is cut. What was
/// there is what it writes when another connection has taken it over, asked for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_was_complete_keeps_its_data() {
    let target = serve();
    let ask = ask(9, 2);
    let mut client = Client::lead(target.address, ask).await;
    let (first, second) = (pattern(90, SEGMENT as usize), pattern(91, SEGMENT as usize));
    let before = client.command(1, 0x2a, 0, first.len());
    let write = client.command(2, 0x2a, 1024, second.len());
    client.send(write, &second).await;
    client.stream.shutdown().await.unwrap();
    logged(&["its tasks wait for recovery", "tasks=1", &ask.name()]).await;

    let mut again = Client::join(target.address, ask, Cid(1), &client).await.unwrap();
    // Its turn has come before it is taken over: it executes at once then.
    again.send(before, &first).await;
    assert!(again.finish_write(1, &first).await.is_empty());
    assert_eq!(again.reassign(2, 0).await, TaskManagementResponseCode::COMPLETE);
    assert!(again.finish_write(2, &second).await.is_empty());
    assert!(again.read_back(3, 0, first.len()).await == first);
    assert!(again.read_back(4, 1024, second.len()).await == second);
    drop(client);
}

/// A connection that seems dead is given up on another one, while the target still holds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_is_given_up_on_another() {
    let target = serve();
    let ask = Ask { max_outstanding_r2t: 1, ..ask(5, 2) };
    let mut client = Client::lead(target.address, ask).await;
    let data = pattern(5, 3 * BURST as usize);
    let write = client.command(1, 0x2a, 0, data.len());
    client.send(write, &[]).await;
    let (Pdu::R2t(first), _) = client.read().await else { panic!() };
    client.answer(&first, &data, &[]).await;
    let (Pdu::R2t(_), _) = client.read().await else { panic!() };
    let mut other = Client::join(target.address, ask, Cid(2), &client).await.unwrap();
    assert_eq!(other.reassign(1, 0).await, TaskManagementResponseCode::TASK_STILL_ALLEGIANT);
    let logout = LogoutRequest {
        immediate: true,
        reason: LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY,
        itt: Itt(90),
        cid: Cid(1),
        cmd_sn: CmdSn(other.cmd_sn),
        exp_stat_sn: other.exp_stat_sn,
    };
    other.send(logout, &[]).await;
    let (Pdu::LogoutResponse(response), _) = other.read().await else { panic!() };
    assert_eq!(response.response, LogoutResponseCode::CLOSED);
    assert_eq!((response.time2wait, response.time2retain), (0, 20));
    assert!(next(&mut client.stream, &mut client.framer).await.is_none(), "it is closed");
    assert_eq!(other.reassign(1, 0).await, TaskManagementResponseCode::COMPLETE);
    assert_eq!(other.finish_write(1, &data).await, [(BURST, BURST), (2 * BURST, BURST)]);
    assert!(other.read_back(2, 0, data.len()).await == data);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_nobody_comes_back_to_ends() {
    let target = serve();
    let ask = Ask { time2retain: 1, ..ask(6, 2) };
    let mut client = Client::lead(target.address, ask).await;
    let write = client.command(1, 0x2a, 0, BURST as usize);
    client.send(write, &[]).await;
    let (Pdu::R2t(_), _) = client.read().await else { panic!() };
    client.stream.shutdown().await.unwrap();
    logged(&["nobody came to recover a connection", "tasks=1", &ask.name()]).await;
    logged(&["session ended", &ask.name()]).await;
    let status = Client::join(target.address, ask, Cid(1), &client).await.err();
    assert_eq!(status, Some(LoginStatus::SESSION_DOES_NOT_EXIST));
}

/// The functions of RFC 7144 from the socket to the logical unit and back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn level_2_functions_reach_the_unit() {
    use TaskManagementFunction as F;
    use TaskManagementResponseCode as R;
    let target = serve();
    let ask = ask(7, 0);
    let mut client = Client::lead(target.address, ask).await;
    assert_eq!(client.outcome.session.protocol_level, 2);
    let (unit, nobody) = (Lun(0), Lun(77 << 48));
    for (function, lun, expected) in [
        (F::QUERY_TASK_SET, unit, R::COMPLETE),
        (F::QUERY_TASK_SET, nobody, R::LUN_DOES_NOT_EXIST),
        (F::QUERY_ASYNCHRONOUS_EVENT, unit, R::COMPLETE),
        (F::QUERY_ASYNCHRONOUS_EVENT, nobody, R::LUN_DOES_NOT_EXIST),
    ] {
        assert_eq!(client.manage(function, Itt::NONE, lun).await.response, expected, "{function}");
    }
    let write = client.command(1, 0x2a, 0, BURST as usize);
    client.send(write, &[]).await;
    let (Pdu::R2t(_), _) = client.read().await else { panic!() };
    assert_eq!(client.manage(F::QUERY_TASK, Itt(1), unit).await.response, R::SUCCEEDED);
    assert_eq!(client.manage(F::QUERY_TASK_SET, Itt::NONE, unit).await.response, R::SUCCEEDED);
    // FastAbort: no data has to come.
    let reset = client.manage(F::LOGICAL_UNIT_RESET, Itt::NONE, unit).await;
    assert_eq!(reset.response, R::COMPLETE);
    assert_eq!(client.manage(F::QUERY_TASK, Itt(1), unit).await.response, R::COMPLETE);
    // BUS DEVICE RESET FUNCTION OCCURRED (SPC-4), which the next command would be told.
    let event = client.manage(F::QUERY_ASYNCHRONOUS_EVENT, Itt::NONE, unit).await;
    assert_eq!((event.response, &event.information[1..]), (R::SUCCEEDED, &[0x29, 0x03][..]));
    let nexus = client.manage(F::I_T_NEXUS_RESET, Itt::NONE, Lun(0)).await;
    assert_eq!(nexus.response, R::COMPLETE);
    assert!(next(&mut client.stream, &mut client.framer).await.is_none(), "it is closed");
    logged(&["session ended", &ask.name()]).await;
}

/// An initiator that knows no FastAbort, and stops sending all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_without_its_data_is_answered_in_the_end() {
    use TaskManagementFunction as F;
    let target = serve();
    let ask = Ask { task_reporting: TaskReporting::Rfc3720, ..ask(8, 0) };
    let mut client = Client::lead(target.address, ask).await;
    let write = client.command(1, 0x2a, 0, BURST as usize);
    client.send(write, &[]).await;
    let (Pdu::R2t(_), _) = client.read().await else { panic!() };
    let reset = client.manage(F::LOGICAL_UNIT_RESET, Itt::NONE, Lun(0)).await;
    assert_eq!(reset.response, TaskManagementResponseCode::COMPLETE);
}
