//! Our initiator against a hostile target: logged in and answering probes as it should, then lying
//! about data, tags, lengths and numbers; lying in discovery; lying at login. What comes of it is
//! an error with a reason within the time limits, never a panic, a hang, or data that was not sent.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod open_target;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use block::backend::MemoryDevice;
use block::{BlockDevice, BlockError, Buf, Bytes, WriteFlags};
use iscsi::initiator::{Config, ConnectError, RemoteDisk, Url, discover};
use iscsi_proto::frame::{Framing, Limits, parse_header};
use iscsi_proto::ids::{Itt, Lun, Tsih, Ttt};
use iscsi_proto::login::chap::{CHALLENGE_LEN, ChapCredentials, ChapRandom, Secret};
use iscsi_proto::login::target::{Login, Step, TargetConfig as LoginConfig};
use iscsi_proto::pdu::{
    BHS_LEN, DataIn, DataInStatus, Header, LoginResponse, LoginStatus, LogoutResponse,
    LogoutResponseCode, NopIn, Pdu, R2t, Reject, RejectReason, Residual, ResponseCode, ScsiCommand,
    ScsiResponse, Stage, TextResponse, VERSION, encode_sense,
};
use iscsi_proto::serial::{CmdSn, DataSn, R2tSn, StatSn};
use scsi::{Cdb, Command, LunOptions, Nexus, Target, TargetConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use open_target::Access;

const IQN: &str = "iqn.2026-11.org.example:trap";
/// Limit of every wait: whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// Commands that the initiator may have under way.
const WINDOW: u32 = 64;
/// Bytes of a READ or WRITE of these tests.
const LEN: usize = 8192;

/// What each lie is about, and how it is told.
type Lies<T> = &'static [(&'static str, T)];

/// What a connection gets to hear.
#[derive(Clone, Copy)]
enum Lie {
    /// In answer to a READ or WRITE. The rest is as it should be.
    Transfer(fn(&mut Fake, &ScsiCommand)),
    /// In answer to SendTargets.
    Text(fn(&mut Fake, Itt)),
    /// These bytes as soon as the first login request is there, then nothing more.
    Login(fn() -> Vec<u8>),
    /// A redirection to ourselves.
    Redirect,
    /// The first connection ends with its first READ, all later ones as soon as they are logged in.
    Door(&'static AtomicU32),
}

/// One connection of the target, in full-feature phase.
struct Fake {
    nexus: Nexus,
    stat_sn: StatSn,
    exp_cmd_sn: CmdSn,
    out: Vec<u8>,
    is_over: bool,
}

impl Fake {
    fn send(&mut self, header: &Header, data: &[u8]) {
        self.out.extend(Framing::default().pdu_bytes(header, data));
    }

    fn max_cmd_sn(&self) -> CmdSn {
        self.exp_cmd_sn.plus(WINDOW)
    }

    fn data_in(&self, command: &ScsiCommand, offset: u32) -> DataIn {
        DataIn {
            is_final: false,
            acknowledge: false,
            status: None,
            lun: Lun(0),
            itt: command.itt,
            ttt: Ttt::NONE,
            stat_sn: StatSn(0),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn(),
            data_sn: DataSn(0),
            buffer_offset: offset,
        }
    }

    fn response(&mut self, itt: Itt, status: u8) -> ScsiResponse {
        ScsiResponse {
            response: ResponseCode::COMPLETED,
            status,
            status_qualifier: 0,
            residual: Residual::None,
            bidi_read_residual: Residual::None,
            itt,
            snack_tag: 0,
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn(),
            exp_data_sn: 0,
        }
    }

    fn r2t(&mut self, command: &ScsiCommand, offset: u32, len: u32) {
        let r2t = R2t {
            lun: Lun(0),
            itt: command.itt,
            ttt: Ttt(1),
            stat_sn: self.stat_sn,
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn(),
            r2t_sn: R2tSn(0),
            buffer_offset: offset,
            desired_data_transfer_length: len,
        };
        self.send(&r2t.encode(0), &[]);
    }

    fn text(&mut self, itt: Itt, text: &[u8], continues: bool) {
        let response = TextResponse {
            is_final: !continues,
            continues,
            lun: Lun(0),
            itt,
            ttt: if continues { Ttt(9) } else { Ttt::NONE },
            stat_sn: self.stat_sn.take(),
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.max_cmd_sn(),
        };
        self.send(&response.encode(text.len() as u32), text);
    }

    /// The truth about a command that moves nothing but an answer.
    async fn honest(&mut self, command: &ScsiCommand) {
        let expected = command.expected_data_transfer_length;
        let room = if command.read { expected as usize } else { 0 };
        let request = Command::new(command.lun.0, Cdb::new(&command.cdb)).with_data_in_max(room);
        let answer = self.nexus.execute(request).await;
        if let Some(sense) = answer.sense {
            let sense = encode_sense(&sense.to_bytes());
            let header = self.response(command.itt, 2).encode(sense.len() as u32);
            return self.send(&header, &sense);
        }
        let len = answer.data_in.len() as u32;
        if len > 0 {
            let header = DataIn { is_final: true, ..self.data_in(command, 0) }.encode(len);
            self.send(&header, &answer.data_in);
        }
        let mut response = self.response(command.itt, 0);
        if len < expected {
            response.residual = Residual::Underflow(expected - len);
        }
        self.send(&response.encode(0), &[]);
    }

    async fn answer(&mut self, pdu: Pdu, lie: Lie) {
        match pdu {
            Pdu::ScsiCommand(command) => {
                self.exp_cmd_sn = command.cmd_sn.next();
                // READ and WRITE of 10, 16 bytes.
                let transfers = [0x28, 0x2a, 0x88, 0x8a].contains(&command.cdb[0]);
                match lie {
                    Lie::Door(_) if transfers => self.is_over = true,
                    Lie::Transfer(lie) if transfers => lie(self, &command),
                    _ => self.honest(&command).await,
                }
            }
            Pdu::TextRequest(request) => {
                if !request.immediate {
                    self.exp_cmd_sn = request.cmd_sn.next();
                }
                if let Lie::Text(lie) = lie {
                    lie(self, request.itt);
                }
            }
            Pdu::LogoutRequest(request) => {
                let response = LogoutResponse {
                    response: LogoutResponseCode::CLOSED,
                    itt: request.itt,
                    stat_sn: self.stat_sn.take(),
                    exp_cmd_sn: self.exp_cmd_sn,
                    max_cmd_sn: self.max_cmd_sn(),
                    time2wait: 0,
                    time2retain: 0,
                };
                self.send(&response.encode(0), &[]);
            }
            _ => {}
        }
    }
}

async fn read_pdu(stream: &mut TcpStream) -> Option<(Pdu, Bytes)> {
    let mut header = vec![0; BHS_LEN];
    stream.read_exact(&mut header).await.ok()?;
    let limits = Limits::full_feature(1 << 24);
    let frame = parse_header(&header, Framing::default(), limits).ok()??;
    let mut data = vec![0; frame.data_len + frame.pad_len];
    stream.read_exact(&mut data).await.ok()?;
    data.truncate(frame.data_len);
    Some((Pdu::parse(&frame.header).ok()?, data.into()))
}

/// One connection from its first byte to its last.
async fn serve(mut stream: TcpStream, scsi: Target, address: SocketAddr, lie: Lie) -> Option<()> {
    let moved = matches!(lie, Lie::Redirect).then_some(address);
    let mut login = Login::new(LoginConfig {
        offer: Default::default(),
        authenticator: Arc::new(Access { moved }),
        random: ChapRandom::from_bytes([3; 1 + CHALLENGE_LEN]),
    });
    let outcome = loop {
        let (pdu, text) = read_pdu(&mut stream).await?;
        let Pdu::LoginRequest(request) = pdu else { return None };
        if let Lie::Login(bytes) = lie {
            stream.write_all(&bytes()).await.ok()?;
            let mut sink = [0; 4096];
            while stream.read(&mut sink).await.ok()? > 0 {}
            return None;
        }
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
        stream.write_all(&Framing::default().pdu_bytes(&header, &text)).await.ok()?;
        if let Some(outcome) = outcome {
            break outcome;
        }
    };
    let (stat_sn, exp_cmd_sn) = (outcome.next_stat_sn, outcome.cmd_sn);
    let (nexus, out) = (scsi.nexus("trap"), Vec::new());
    let mut fake = Fake { nexus, stat_sn, exp_cmd_sn, out, is_over: false };
    if let Lie::Door(opened) = lie {
        fake.is_over = opened.fetch_add(1, Ordering::Relaxed) > 0;
    }
    while !fake.is_over {
        let (pdu, _) = read_pdu(&mut stream).await?;
        fake.answer(pdu, lie).await;
        stream.write_all(&std::mem::take(&mut fake.out)).await.ok()?;
    }
    None
}

/// A target that lies to everyone who comes, as often as they come.
async fn trap(lie: Lie) -> Url {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let scsi = Target::new(TargetConfig::new(IQN));
    let disk = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    scsi.add_lun(0, disk, LunOptions::default()).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, scsi.clone(), address, lie));
        }
    });
    format!("iscsi://{address}/{IQN}/0").parse().unwrap()
}

fn impatient() -> Config {
    let mut config = Config::default().replacement_timeout(Duration::from_secs(1));
    config.login_timeout = Duration::from_secs(2);
    config.command_timeout = Duration::from_secs(1);
    config
}

async fn connect(lie: Lie) -> RemoteDisk {
    let connect = RemoteDisk::connect(trap(lie).await, impatient());
    tokio::time::timeout(PATIENCE, connect).await.expect("connecting hangs").unwrap()
}

/// The read or write fails in time, and says why.
async fn fails(what: &str, is_read: bool, lie: fn(&mut Fake, &ScsiCommand)) {
    let disk = connect(Lie::Transfer(lie)).await;
    let result = tokio::time::timeout(PATIENCE, async {
        match is_read {
            true => disk.read(0, Buf::new(LEN)).await.map(drop),
            false => disk.write(0, Bytes::from(vec![1; LEN]), WriteFlags::NONE).await,
        }
    })
    .await;
    let result = result.unwrap_or_else(|_| panic!("{what}: neither done nor failed"));
    let error = result.expect_err(what);
    let reason = matches!(error, BlockError::Medium(_) | BlockError::Unreachable(_));
    assert!(reason, "{what}: {error}");
}

fn good_read(fake: &mut Fake, command: &ScsiCommand, residual: Residual) {
    let len = command.expected_data_transfer_length;
    let status = Some(DataInStatus { status: 0, residual });
    let stat_sn = fake.stat_sn.take();
    let pdu = DataIn { is_final: true, status, stat_sn, ..fake.data_in(command, 0) };
    fake.send(&pdu.encode(len), &vec![0; len as usize]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lies_about_a_read() {
    let lies: Lies<fn(&mut Fake, &ScsiCommand)> = &[
        ("Data-In of another tag", |fake, command| {
            let pdu = DataIn { itt: Itt(0x0bad_0bad), ..fake.data_in(command, 0) };
            fake.send(&pdu.encode(512), &[1; 512]);
        }),
        ("Data-In behind the buffer", |fake, command| {
            let pdu = fake.data_in(command, LEN as u32);
            fake.send(&pdu.encode(512), &[1; 512]);
        }),
        ("Data-In longer than the buffer", |fake, command| {
            let pdu = fake.data_in(command, 0);
            fake.send(&pdu.encode(LEN as u32 + 4), &[1; LEN + 4]);
        }),
        ("Data-In whose end wraps", |fake, command| {
            let pdu = fake.data_in(command, u32::MAX - 3);
            fake.send(&pdu.encode(512), &[1; 512]);
        }),
        ("Data-In with a gap", |fake, command| {
            let pdu = fake.data_in(command, 512);
            fake.send(&pdu.encode(512), &[1; 512]);
        }),
        ("a segment of 16 MiB", |fake, command| {
            let header = fake.data_in(command, 0).encode(0x00ff_ffff);
            fake.out.extend_from_slice(&header.bhs);
        }),
        ("GOOD without data", |fake, command| {
            let response = fake.response(command.itt, 0);
            fake.send(&response.encode(0), &[]);
        }),
        ("GOOD with half of the data", |fake, command| {
            let pdu = DataIn { is_final: true, ..fake.data_in(command, 0) };
            fake.send(&pdu.encode(512), &[1; 512]);
            let mut response = fake.response(command.itt, 0);
            response.residual = Residual::Underflow(LEN as u32 - 512);
            fake.send(&response.encode(0), &[]);
        }),
        ("more missing than was asked for", |fake, command| {
            good_read(fake, command, Residual::Underflow(u32::MAX));
        }),
        ("R2T for a read", |fake, command| fake.r2t(command, 0, 512)),
        ("a StatSN that jumps", |fake, command| {
            fake.stat_sn = fake.stat_sn.plus(1000);
            good_read(fake, command, Residual::None);
        }),
        ("the answer to another command", |fake, _| {
            let response = fake.response(Itt(0x0bad_0bad), 0);
            fake.send(&response.encode(0), &[]);
        }),
        ("sense longer than its segment", |fake, command| {
            let response = fake.response(command.itt, 2);
            fake.send(&response.encode(6), &[255, 255, 0x70, 0, 5, 0]);
        }),
        ("sense of a megabyte", |fake, command| {
            let header = fake.response(command.itt, 2).encode(1 << 20);
            fake.send(&header, &vec![0x70; 1 << 20]);
        }),
        ("a Reject of nothing", |fake, _| {
            let reject = Reject {
                reason: RejectReason::PROTOCOL_ERROR,
                stat_sn: fake.stat_sn.take(),
                exp_cmd_sn: fake.exp_cmd_sn,
                max_cmd_sn: fake.max_cmd_sn(),
                data_sn: 0,
            };
            fake.send(&reject.encode(48), &[0xa5; 48]);
        }),
        ("pings without end", |fake, _| {
            for n in 0..2000 {
                let ping = NopIn {
                    lun: Lun(0),
                    itt: Itt::NONE,
                    ttt: Ttt(n),
                    stat_sn: fake.stat_sn,
                    exp_cmd_sn: fake.exp_cmd_sn,
                    max_cmd_sn: fake.max_cmd_sn(),
                };
                fake.send(&ping.encode(4096), &[0; 4096]);
            }
        }),
        ("text that nobody asked for", |fake, command| fake.text(command.itt, b"A=1\0", false)),
        ("an unknown opcode", |fake, _| fake.out.extend([0x3c; 48])),
        ("noise", |fake, _| {
            fake.out.extend((0..8192u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8))
        }),
        ("silence", |_, _| {}),
    ];
    let failing = lies.iter().map(|(what, lie)| fails(what, true, *lie));
    futures_util::future::join_all(failing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lies_about_a_write() {
    let lies: Lies<fn(&mut Fake, &ScsiCommand)> = &[
        ("Data-In for a write", |fake, command| {
            let pdu = fake.data_in(command, 0);
            fake.send(&pdu.encode(512), &[1; 512]);
        }),
        ("R2T behind the command", |fake, command| fake.r2t(command, LEN as u32, 512)),
        ("R2T longer than the command", |fake, command| fake.r2t(command, 0, 1 << 20)),
        ("R2T whose end wraps", |fake, command| fake.r2t(command, u32::MAX - 3, 512)),
        ("R2T for nothing", |fake, command| fake.r2t(command, 0, 0)),
        ("R2T of another tag", |fake, command| {
            let other = ScsiCommand { itt: Itt(0x0bad_0bad), ..command.clone() };
            fake.r2t(&other, 0, 512);
        }),
        ("more missing than was sent", |fake, command| {
            let mut response = fake.response(command.itt, 0);
            response.residual = Residual::Underflow(u32::MAX);
            fake.send(&response.encode(0), &[]);
        }),
    ];
    let failing = lies.iter().map(|(what, lie)| fails(what, false, *lie));
    futures_util::future::join_all(failing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lies_in_discovery() {
    let lies: Lies<fn(&mut Fake, Itt)> = &[
        ("path in a name", |fake, itt| {
            fake.text(itt, b"TargetName=iqn.2026-11.org.example:../../etc/passwd\0", false);
        }),
        ("shell in a name", |fake, itt| {
            fake.text(itt, b"TargetName=iqn.2026-11.org.example:$(reboot)\0", false);
        }),
        ("shell in an address", |fake, itt| {
            let text = b"TargetName=iqn.2026-11.org.example:a\0TargetAddress=`id`;x:3260,1\0";
            fake.text(itt, text, false);
        }),
        ("path in an address", |fake, itt| {
            let text = b"TargetName=iqn.2026-11.org.example:a\0TargetAddress=../../x:3260,1\0";
            fake.text(itt, text, false);
        }),
        ("no terminator", |fake, itt| {
            fake.text(itt, b"TargetName=iqn.2026-11.org.example:a", false);
        }),
        ("address before any name", |fake, itt| {
            fake.text(itt, b"TargetAddress=127.0.0.1:3260,1\0", false);
        }),
        ("text without end", |fake, itt| fake.text(itt, &[b'a'; 65_536], true)),
        ("another task's text", |fake, _| fake.text(Itt(77), b"", false)),
        ("silence", |_, _| {}),
    ];
    for (what, lie) in lies {
        let portal = trap(Lie::Text(*lie)).await.portal;
        let config = impatient();
        let found = tokio::time::timeout(PATIENCE, discover(&portal, &config)).await;
        let found = found.unwrap_or_else(|_| panic!("{what}: no end"));
        let error = found.expect_err(what);
        let named = matches!(error, ConnectError::Discovery { .. } | ConnectError::TimedOut { .. });
        assert!(named, "{what}: {error}");
    }
}

fn login_response(change: impl FnOnce(&mut LoginResponse), text: &[u8]) -> Vec<u8> {
    let mut response = LoginResponse {
        transit: false,
        continues: false,
        csg: Stage::SECURITY_NEGOTIATION,
        nsg: Stage(0),
        version_max: VERSION,
        version_active: VERSION,
        isid: Default::default(),
        tsih: Tsih(0),
        itt: Itt(0),
        stat_sn: StatSn(0),
        exp_cmd_sn: CmdSn(1),
        max_cmd_sn: CmdSn(1),
        status: LoginStatus::SUCCESS,
    };
    change(&mut response);
    Framing::default().pdu_bytes(&response.encode(text.len() as u32), text)
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.4
//= type=test
//# If the initiator receives any PDU except a Login Response, it MUST immediately terminate the
//# connection.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.12
//= type=test
//# During login, any failure in negotiation MUST be considered a login process failure; the Login
//# Phase, along with the connection, MUST be terminated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lies_at_login() {
    let lies: Lies<fn() -> Vec<u8>> = &[
        ("http", || b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec()),
        ("zeroes", || vec![0; 4096]),
        ("ones", || vec![255; 4096]),
        ("silence", Vec::new),
        ("another session's answer", || login_response(|_| {}, b"")),
        ("longest segment", || {
            let mut bytes = login_response(|_| {}, b"");
            bytes[5..8].fill(255);
            bytes
        }),
        ("text without end", || {
            let one = login_response(|r| r.continues = true, &[b'a'; 8000]);
            one.repeat(100)
        }),
        ("unknown status", || login_response(|r| r.status = LoginStatus(0x7f7f), b"")),
        ("moved to nowhere", || {
            login_response(|r| r.status = LoginStatus::TARGET_MOVED_TEMPORARILY, b"")
        }),
        ("moved to a path", || {
            let text = b"TargetAddress=../../etc/passwd:3260,1\0";
            login_response(|r| r.status = LoginStatus::TARGET_MOVED_PERMANENTLY, text)
        }),
        ("moved to two lines", || {
            let text = b"TargetAddress=127.0.0.1:3260,1\nrm -rf\0";
            login_response(|r| r.status = LoginStatus::TARGET_MOVED_TEMPORARILY, text)
        }),
        ("moved to a shell", || {
            let text = b"TargetAddress=$(id):3260\0";
            login_response(|r| r.status = LoginStatus::TARGET_MOVED_TEMPORARILY, text)
        }),
    ];
    for (what, lie) in lies {
        let url = trap(Lie::Login(*lie)).await;
        let connect = RemoteDisk::connect(url, impatient());
        let result = tokio::time::timeout(PATIENCE, connect).await;
        let error = result.unwrap_or_else(|_| panic!("{what}: no end")).map(drop).expect_err(what);
        assert!(!matches!(error, ConnectError::Probe(_)), "{what}: {error}");
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.5
//= type=test
//# A redirection SHOULD be accepted by an initiator, even without having the target complete a
//# security negotiation if any security negotiation is required, and MUST be accepted by the
//# initiator after the completion of the security negotiation if any security negotiation is
//# required.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirections_in_a_circle_end() {
    let connect = RemoteDisk::connect(trap(Lie::Redirect).await, impatient());
    let error = tokio::time::timeout(PATIENCE, connect).await.unwrap().map(drop).unwrap_err();
    assert!(matches!(error, ConnectError::Redirections { .. }), "{error}");
}

/// A target that is full for long is asked again ever more slowly, and no data is lost by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_set_full_starts_no_storm() {
    const REFUSED: u32 = 64;
    const READS: u32 = 8;
    static SEEN: AtomicU32 = AtomicU32::new(0);
    let disk = connect(Lie::Transfer(|fake, command| {
        if SEEN.fetch_add(1, Ordering::Relaxed) < REFUSED {
            let response = fake.response(command.itt, 0x28);
            return fake.send(&response.encode(0), &[]);
        }
        good_read(fake, command, Residual::None);
    }))
    .await;
    let since = Instant::now();
    let reads = (0..READS).map(|n| disk.read(u64::from(n) * LEN as u64, Buf::new(LEN)));
    let reads = tokio::time::timeout(PATIENCE, futures_util::future::join_all(reads)).await;
    for read in reads.expect("the reads hang") {
        assert!(read.unwrap().iter().all(|byte| *byte == 0));
    }
    assert_eq!(SEEN.load(Ordering::Relaxed), REFUSED + READS, "each refusal is one more attempt");
    // One of them was refused eight times: 4 ms, doubled each time. It cannot take less.
    let pause = Duration::from_millis(4 * (1 << (REFUSED / READS)) / 2);
    assert!(since.elapsed() >= pause, "{:?}", since.elapsed());
}

/// A target that lets us in and throws us out is not stormed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_door_that_is_slammed() {
    static OPENED: AtomicU32 = AtomicU32::new(0);
    // Long enough for the time that the target wants between two sessions (DefaultTime2Wait, 2 s).
    let config = impatient().replacement_timeout(Duration::from_secs(5));
    let disk = RemoteDisk::connect(trap(Lie::Door(&OPENED)).await, config).await.unwrap();
    let read = tokio::time::timeout(PATIENCE, disk.read(0, Buf::new(LEN))).await;
    let error = read.expect("the read hangs").unwrap_err();
    assert!(matches!(error, BlockError::Unreachable(_)), "{error}");
    let opened = OPENED.load(Ordering::Relaxed);
    assert!((2..=64).contains(&opened), "{opened} connections");
}

/// Who asks for a proof is not content with a target that offers none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_proves_nothing() {
    let mut config = impatient();
    let secret = Secret::new("correct horse battery");
    config.chap = Some(ChapCredentials { user: "alice".to_owned(), secret });
    config.set_mutual("disk", "a secret of its own");
    let url = trap(Lie::Text(|_, _| ())).await;
    let connect = tokio::time::timeout(PATIENCE, RemoteDisk::connect(url, config)).await;
    let error = connect.expect("connecting hangs").map(drop).unwrap_err();
    assert!(matches!(error, ConnectError::Login { .. }), "{error}");
}
