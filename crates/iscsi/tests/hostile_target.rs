//! Hostile peers against the target server, over real sockets. Whatever they do, a healthy session
//! of our own initiator goes on writing and verifying, memory stays bounded, and the log says who
//! it was and why the connection ended. The PDUs themselves are fuzzed elsewhere (`fuzz/`).

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod hostile_common;

use std::time::{Duration, Instant};

use bytes::Bytes;
use hostile_common::{Arena, Attacker, IQN, LOGIN_TIMEOUT, PATIENCE, ends, resident_bytes};
use iscsi_proto::frame::Framing;
use iscsi_proto::ids::{Cid, Itt, Lun, Tsih, Ttt};
use iscsi_proto::keys::DigestPreference;
use iscsi_proto::login::initiator::InitiatorConfig;
use iscsi_proto::pdu::{
    DataOut, Header, LoginRequest, LoginStatus, LogoutReason, LogoutRequest, LogoutResponseCode,
    NopOut, Pdu, RejectReason, SnackKind, SnackRequest, Stage, TaskManagementFunction,
    TaskManagementRequest, TaskManagementResponseCode, TextRequest, VERSION,
};
use iscsi_proto::serial::{CmdSn, DataSn, StatSn};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// What an attack may cost in memory: a few connections' buffers, far from one per PDU.
const GROWTH_MAX: usize = 96 << 20;

fn bhs(opcode: u8, flags: u8, ahs_words: u8, data_len: u32) -> Vec<u8> {
    let mut bhs = vec![0; 48];
    (bhs[0], bhs[1], bhs[4]) = (opcode, flags, ahs_words);
    bhs[5..8].copy_from_slice(&data_len.to_be_bytes()[1..]);
    bhs
}

fn login_request(text_len: u32) -> (LoginRequest, Vec<u8>) {
    let request = LoginRequest {
        transit: true,
        continues: false,
        csg: Stage::LOGIN_OPERATIONAL_NEGOTIATION,
        nsg: Stage::FULL_FEATURE_PHASE,
        version_max: VERSION,
        version_min: VERSION,
        isid: hostile_common::isid(),
        tsih: Tsih(0),
        itt: Itt(1),
        cid: Cid(1),
        cmd_sn: CmdSn(1),
        exp_stat_sn: StatSn(0),
    };
    let header = request.encode(text_len);
    (request, header.bhs.to_vec())
}

/// Bytes of a login request with this text, whatever the text is.
fn login(text: &[u8]) -> Vec<u8> {
    let (_, mut bytes) = login_request(text.len() as u32);
    bytes.extend(text);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn noise(len: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Whoever does not begin with a login request goes, at the latest when the time for a login is
/// over, and is named in the log.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.4
//= type=test
//# A target receiving any PDU except a Login Request before the Login Phase is started MUST
//# immediately terminate the connection on which the PDU was received.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.12
//= type=test
//# During login, any failure in negotiation MUST be considered a login process failure; the Login
//# Phase, along with the connection, MUST be terminated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_shown_out() {
    let arena = Arena::new().await;
    let name = b"InitiatorName=iqn.2026-11.org.example:evil\0";
    let many: Vec<u8> = (0..400).flat_map(|n| format!("X-a{n}=1\0").into_bytes()).collect();
    let strangers: Vec<(&str, Vec<u8>, &str)> = vec![
        ("nothing", Vec::new(), "no login request within 2 s"),
        ("http", b"GET / HTTP/1.1\r\nHost: disk\r\n\r\n".to_vec(), "no login request within 2 s"),
        ("long http", [&b"GET /"[..], &[b'a'; 4000]].concat(), "login failed"),
        ("tls", [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &noise(509)].concat(), "login"),
        ("noise", noise(4096), "login"),
        ("half a header", vec![0x43; 20], "no login request within 2 s"),
        ("ping first", bhs(0x40, 0x80, 0, 0), "not a login request"),
        ("command first", bhs(0x01, 0xc0, 0, 0), "not a login request"),
        ("answer first", bhs(0x23, 0x87, 0, 0), "not a login request"),
        ("longest data", bhs(0x43, 0x87, 0, 0xff_ffff), "16777215 bytes, at most 8192"),
        ("longest AHS", bhs(0x43, 0x87, 255, 0), "AHS of 1020 bytes"),
        ("no terminator", login(b"InitiatorName=iqn.2026-11.org.example:evil"), "login failed"),
        ("no equals sign", login(b"InitiatorName\0"), "login failed"),
        ("no name", login(b"SessionType=Normal\0"), "InitiatorName"),
        ("shell in its name", login(b"InitiatorName=iqn.2026-11.org.x:$(id)\0"), "InitiatorName"),
        ("path as target", login(&[name, &b"TargetName=../../x\0"[..]].concat()), "TargetName"),
        ("many keys", login(&many), "login failed"),
        ("reserved stage", bhs(0x43, 0x8b, 0, 0), "login failed"),
    ];
    for (what, bytes, reason) in strangers {
        let mut stream = TcpStream::connect(arena.address).await.unwrap();
        let peer = stream.local_addr().unwrap();
        let _ = stream.write_all(&bytes).await;
        let since = Instant::now();
        assert!(ends(&mut stream).await, "{what} is still connected");
        assert!(since.elapsed() < LOGIN_TIMEOUT + PATIENCE / 2, "{what}: {:?}", since.elapsed());
        arena.logged(&format!("peer={peer}"), reason).await;
    }
    arena.serves().await;
}

/// Login text that never ends, and a login that never gets on: refused within a few PDUs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_logins_end() {
    let arena = Arena::new().await;
    for text in [&b"X-a=1\0"[..], &[b'A'; 4096], b""] {
        for continues in [true, false] {
            let (mut request, _) = login_request(0);
            (request.transit, request.continues) = (false, continues);
            let mut stream = TcpStream::connect(arena.address).await.unwrap();
            let mut sent = 0;
            let header = request.encode(text.len() as u32);
            let bytes = Framing::default().pdu_bytes(&header, text);
            while sent < 1000 && stream.write_all(&bytes).await.is_ok() {
                sent += 1;
                match hostile_common::read(&mut stream, Framing::default()).await {
                    Some((Pdu::LoginResponse(r), _)) if r.status == LoginStatus::SUCCESS => {}
                    _ => break,
                }
            }
            assert!(sent <= 40, "{sent} login requests were answered");
            assert!(ends(&mut stream).await);
        }
    }
    arena.serves().await;
}

/// What is no login request is not looked at: before the login without a word, during it with one.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.4
//= type=test
//# A target receiving any PDU except a Login Request before the Login Phase is started MUST
//# immediately terminate the connection on which the PDU was received.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.4
//= type=test
//# Once the Login Phase has started, if the target receives any PDU except a Login Request, it MUST
//# send a Login reject (with Status "invalid during login") and then disconnect.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.5
//= type=test
//# If the Status-Class is not 0, the initiator and target MUST close the TCP connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_requests_during_login_are_refused() {
    let arena = Arena::new().await;
    let mut stream = TcpStream::connect(arena.address).await.unwrap();
    stream.write_all(&bhs(0x40, 0x80, 0, 0)).await.unwrap();
    assert_eq!(hostile_common::read(&mut stream, Framing::default()).await, None);
    let mut stream = TcpStream::connect(arena.address).await.unwrap();
    let (mut request, _) = login_request(0);
    request.transit = false;
    let text = format!("InitiatorName=iqn.2026-11.org.example:a\0TargetName={IQN}\0");
    let bytes = Framing::default().pdu_bytes(&request.encode(text.len() as u32), text.as_bytes());
    stream.write_all(&bytes).await.unwrap();
    let answer = hostile_common::read(&mut stream, Framing::default()).await;
    assert!(matches!(answer, Some((Pdu::LoginResponse(r), _)) if r.status.is_success()));
    stream.write_all(&bhs(0x40, 0x80, 0, 0)).await.unwrap();
    let answer = hostile_common::read(&mut stream, Framing::default()).await;
    let Some((Pdu::LoginResponse(response), _)) = answer else { panic!("{answer:?}") };
    assert_eq!(response.status, LoginStatus::INVALID_DURING_LOGIN);
    assert!(ends(&mut stream).await);
    arena.serves().await;
}

/// Text of the full-feature phase: the target of this session and nothing else; what was agreed at
/// login stays.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# If used as specified, these keys MUST NOT be answered with NotUnderstood.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.12
//= type=test
//# The operational parameters of the session or the connection MUST continue to be the values
//# agreed upon during an earlier successful negotiation (i.e., any partial results of this
//# unsuccessful negotiation MUST NOT take effect and MUST be discarded).
//= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
//= type=test
//# A target MUST support the SendTargets command on operational sessions; these will only return
//# path information about the target to which the session is connected and do not need to return
//# information about other target names that may be defined in the responding system.
//= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
//= type=test
//# This MUST be supported on operational sessions and MUST NOT return targets other than the one to
//# which the session is logged in.
//= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
//= type=test
//# This value MUST be supported on a Discovery session and MUST NOT be supported on an operational
//# session.
//= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
//= type=test
//# This value MUST be supported on Discovery sessions.
//= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
//= type=test
//# A Discovery session MUST be capable of returning addresses for those targets that would have
//# been returned had value=All been designated.
//= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
//= type=test
//# A SendTargets response MUST NOT contain target names if there are no targets for the requesting
//# initiator to access.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_of_a_normal_session() {
    let arena = Arena::new().await;
    let mut attacker = Attacker::log_in(arena.address, DigestPreference::Never).await;
    let record = format!("TargetName={IQN}\0TargetAddress={},1\0", arena.address);
    for (n, (question, answer)) in [
        ("SendTargets=\0", record.as_str()),
        (&format!("SendTargets={IQN}\0"), &record),
        ("SendTargets=All\0", "SendTargets=Reject\0"),
        ("SendTargets=iqn.2026-11.org.example:other\0", ""),
        ("MaxRecvDataSegmentLength=512\0", "MaxRecvDataSegmentLength=Reject\0"),
        ("MaxBurstLength=512\0", "MaxBurstLength=Reject\0"),
        ("InitiatorAlias=me\0X-com.example.a=1\0", "X-com.example.a=NotUnderstood\0"),
    ]
    .into_iter()
    .enumerate()
    {
        let request = TextRequest {
            immediate: true,
            is_final: true,
            continues: false,
            lun: Lun(0),
            itt: Itt(n as u32),
            ttt: Ttt::NONE,
            cmd_sn: attacker.cmd_sn(),
            exp_stat_sn: StatSn(0),
        };
        attacker.send(&request.encode(question.len() as u32), question.as_bytes()).await;
        let Some((Pdu::TextResponse(response), text)) = attacker.read_with_data().await else {
            panic!("{question:?} is not answered")
        };
        assert_eq!((response.itt, response.is_final), (Itt(n as u32), true));
        assert_eq!(String::from_utf8_lossy(&text), *answer, "{question:?}");
    }
    arena.serves().await;
}

/// TARGET COLD RESET ends the session that asked for it and every other one.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
//= type=test
//# Additionally, the target MUST treat the TARGET COLD RESET function as a power-on event, thus
//# terminating all of its TCP connections to all initiators (all sessions are terminated).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.6.1
//= type=test
//# For the TARGET COLD RESET function, the target MUST then close all of its TCP connections to all
//# initiators (terminates all sessions).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_reset_ends_every_session() {
    let arena = Arena::new().await;
    let mut other = Attacker::log_in(arena.address, DigestPreference::Never).await;
    let mut attacker = Attacker::log_in(arena.address, DigestPreference::Never).await;
    let reset = attacker.function(1, TaskManagementFunction::TARGET_COLD_RESET);
    attacker.send(&reset.encode(0), &[]).await;
    let answer = attacker.read().await;
    let Some(Pdu::TaskManagementResponse(response)) = answer else { panic!("{answer:?}") };
    assert_eq!(response.response, TaskManagementResponseCode::COMPLETE);
    assert!(ends(&mut attacker.stream).await && ends(&mut other.stream).await);
}

/// A crowd that connects and says nothing neither keeps a login out nor stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_logins_are_cut_on_time() {
    let arena = Arena::new().await;
    let since = Instant::now();
    let mut crowd = Vec::new();
    for n in 0..150usize {
        let mut stream = TcpStream::connect(arena.address).await.unwrap();
        stream.write_all(&login(b"InitiatorName=x\0")[..n % 60]).await.unwrap();
        crowd.push(stream);
    }
    let disk = arena.connect().await;
    assert!(since.elapsed() < LOGIN_TIMEOUT, "the login waited for the crowd");
    for mut stream in crowd {
        assert!(ends(&mut stream).await);
    }
    assert!(since.elapsed() < LOGIN_TIMEOUT + PATIENCE);
    disk.close().await.unwrap();
    arena.serves().await;
}

/// A thousand connections opened and dropped, in order and by reset, at every point of a login:
/// no connection is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_come_and_go() {
    let arena = Arena::new().await;
    let before = resident_bytes();
    let hello = login(b"InitiatorName=iqn.2026-11.org.example:evil\0SessionType=Discovery\0");
    for n in 0..1000usize {
        let mut stream = TcpStream::connect(arena.address).await.unwrap();
        let _ = stream.write_all(&hello[..(n * 7) % hello.len()]).await;
        if n % 2 == 0 {
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
    }
    for n in 0..100u32 {
        let attacker = Attacker::log_in(arena.address, DigestPreference::Never).await;
        attacker.write_command(n, 1 << 20, &[1; 512]).await;
        attacker.reset();
    }
    arena.settles().await;
    arena.serves().await;
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{growth} bytes more than before");
}

/// What a PDU out of place has to lead to.
enum Verdict {
    /// A Reject with this reason; the session goes on.
    Rejected(RejectReason),
    /// Not a word; the session goes on.
    Ignored,
    /// The connection ends.
    Closed,
}

/// PDUs that belong to nobody, or somewhere else, or nowhere.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.4
//= type=test
//# Login Requests and Responses MUST be used exclusively during login.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.4
//= type=test
//# On any connection, the Login Phase MUST immediately follow TCP connection establishment, and a
//# subsequent Login Phase MUST NOT occur before tearing down the connection.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.7
//= type=test
//# When a target or an initiator receives an iSCSI PDU with a format error, it MUST immediately
//# terminate all transport connections in the session with either a connection close or a
//# connection reset, and escalate the format error to session recovery (see Section 7.1.4.4).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.1.2
//= type=test
//# Initiators MUST NOT use target Opcodes, and targets MUST NOT use initiator Opcodes.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.17.1
//= type=test
//# Deprecated; MUST NOT be used
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.17.1
//= type=test
//# Reason code 0x0b ("Negotiation Reset") as defined in Section 10.17.1 of [RFC3720] is deprecated
//# and MUST NOT be used by implementations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pdus_out_of_place() {
    let arena = Arena::new().await;
    let (lun, itt, exp_stat_sn) = (Lun(0), Itt(0x77), StatSn(0));
    let data_out = |ttt, buffer_offset| DataOut {
        is_final: true,
        lun,
        itt,
        ttt,
        exp_stat_sn,
        data_sn: DataSn(0),
        buffer_offset,
    };
    let snack = SnackRequest {
        kind: SnackKind::DATA_OR_R2T,
        lun,
        itt,
        ttt_or_snack_tag: u32::MAX,
        exp_stat_sn,
        beg_run: 0,
        run_length: 0,
    };
    let far = NopOut {
        immediate: false,
        lun,
        itt,
        ttt: Ttt::NONE,
        cmd_sn: CmdSn(0x4000_0000),
        exp_stat_sn,
    };
    let raw =
        |opcode: u8| Header { bhs: bhs(opcode, 0x80, 0, 0).try_into().unwrap(), ahs: Bytes::new() };
    let mut bad_ahs = Header { bhs: bhs(0x01, 0x80, 1, 0).try_into().unwrap(), ahs: Bytes::new() };
    bad_ahs.bhs[24..28].copy_from_slice(&1u32.to_be_bytes());
    bad_ahs.ahs = Bytes::from_static(&[0, 99, 77, 0]);
    let attacks: Vec<(&str, Header, &[u8], Verdict)> = vec![
        ("Data-Out of no task", data_out(Ttt::NONE, 0).encode(512), &[0; 512], Verdict::Ignored),
        ("Data-Out for no R2T", data_out(Ttt(9), 0).encode(512), &[0; 512], Verdict::Ignored),
        ("SNACK for nothing", snack.encode(0), &[], Verdict::Rejected(RejectReason::SNACK_REJECT)),
        ("CmdSN far ahead", far.encode(0), &[], Verdict::Ignored),
        (
            "CmdSN far behind",
            NopOut { cmd_sn: CmdSn(0xf000_0000), ..far }.encode(0),
            &[],
            Verdict::Ignored,
        ),
        ("unknown opcode", raw(0x1c), &[], Verdict::Rejected(RejectReason::COMMAND_NOT_SUPPORTED)),
        ("answer of a target", raw(0x21), &[], Verdict::Rejected(RejectReason::PROTOCOL_ERROR)),
        ("AHS beyond its end", bad_ahs, &[], Verdict::Closed),
        ("second login", login_request(0).0.encode(0), &[], Verdict::Closed),
        (
            "too long a segment",
            Header { bhs: bhs(0x40, 0x80, 0, 0xff_ffff).try_into().unwrap(), ahs: Bytes::new() },
            &[],
            Verdict::Closed,
        ),
    ];
    for (what, header, data, verdict) in attacks {
        let mut attacker = Attacker::log_in(arena.address, DigestPreference::Never).await;
        attacker.send(&header, data).await;
        let (answers, alive) = attacker.ping().await;
        let rejects: Vec<RejectReason> = answers.iter().filter_map(reject_reason).collect();
        match verdict {
            Verdict::Rejected(reason) => {
                assert_eq!((rejects, alive), (vec![reason], true), "{what}")
            }
            // A Reject is allowed, too.
            Verdict::Ignored => assert!(alive && rejects.len() <= 1, "{what}: {answers:?}"),
            Verdict::Closed => {
                assert!(!alive, "{what}: {answers:?}");
                arena.logged(&format!("peer={}", attacker.peer), "connection ended").await;
            }
        }
    }
    arena.serves().await;
}

fn reject_reason(pdu: &Pdu) -> Option<RejectReason> {
    match pdu {
        Pdu::Reject(reject) => Some(reject.reason),
        _ => None,
    }
}

/// Tasks, connections and data of others are out of reach.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_belongs_to_another_session() {
    let arena = Arena::new().await;
    let mut attacker = Attacker::log_in(arena.address, DigestPreference::Never).await;
    let (cmd_sn, exp_stat_sn) = (CmdSn(1), StatSn(0));
    for tag in 0..64 {
        let abort = TaskManagementRequest {
            immediate: true,
            function: TaskManagementFunction::ABORT_TASK,
            lun: Lun(0),
            itt: Itt(0x500 + tag),
            referenced_task_tag: Itt(tag),
            cmd_sn,
            exp_stat_sn,
            ref_cmd_sn: CmdSn(1),
            exp_data_sn: 0,
        };
        attacker.send(&abort.encode(0), &[]).await;
        let answer = attacker.read().await;
        let Some(Pdu::TaskManagementResponse(response)) = answer else { panic!("{answer:?}") };
        assert_ne!(response.response, TaskManagementResponseCode::LUN_DOES_NOT_EXIST);
    }
    let logout = LogoutRequest {
        immediate: true,
        reason: LogoutReason::CLOSE_CONNECTION,
        itt: Itt(0x600),
        cid: Cid(4711),
        cmd_sn,
        exp_stat_sn,
    };
    attacker.send(&logout.encode(0), &[]).await;
    let answer = attacker.read().await;
    let Some(Pdu::LogoutResponse(response)) = answer else { panic!("{answer:?}") };
    assert_eq!(response.response, LogoutResponseCode::CID_NOT_FOUND);
    assert!(attacker.ping().await.1);
    arena.serves().await;
}

/// More data than announced, at the wrong place, or damaged: the command fails, nothing is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_out_of_bounds() {
    let arena = Arena::new().await;
    // (segment length, offset, DataSN, final) as the answer to an R2T for 8192 bytes at 512.
    for (len, offset, data_sn, is_final) in [
        (8192, 1024, 0, true),
        (8192, 0, 0, true),
        (16384, 512, 0, true),
        (4096, 512, 3, true),
        (512, 512, 0, true),
        (512, 0xffff_fe00, 0, true),
        (0, 512, 0, true),
    ] {
        let mut attacker = Attacker::log_in(arena.address, DigestPreference::Never).await;
        attacker.write_command(0x42, 512 + 8192, &[0xee; 512]).await;
        let answer = attacker.read().await;
        let Some(Pdu::R2t(r2t)) = answer else { panic!("{answer:?}") };
        assert_eq!((r2t.buffer_offset, r2t.desired_data_transfer_length), (512, 8192));
        let data = DataOut {
            is_final,
            lun: Lun(0),
            itt: Itt(0x42),
            ttt: r2t.ttt,
            exp_stat_sn: StatSn(0),
            data_sn: DataSn(data_sn),
            buffer_offset: offset,
        };
        attacker.send(&data.encode(len), &vec![0xee; len as usize]).await;
        let (answers, _) = attacker.ping().await;
        let good = |pdu: &Pdu| matches!(pdu, Pdu::ScsiResponse(r) if r.status == 0);
        assert!(!answers.iter().any(good), "{len} at {offset}: {answers:?}");
    }
    arena.victim_is_untouched().await;
    arena.serves().await;
}

/// A wrong header digest ends the connection; a wrong data digest with a command, too, unless it
/// can be recovered from.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.3
//= type=test
//# Targets MUST NOT implicitly terminate an active task by sending a Reject PDU for any PDU
//# exchanged during the life of the task.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# When a target receives any iSCSI PDU with a payload digest error, it MUST answer with a Reject
//# PDU with a reason code of Data-Digest-Error and discard the PDU.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# If the discarded PDU is a solicited or unsolicited iSCSI data PDU (for immediate data in a
//# command PDU, the non-data PDU rule below applies), the target MUST do one of the following:
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# When a target or an initiator receives any iSCSI PDU with a header digest error, it MUST either
//# discard the header and all data up to the beginning of a later PDU or close the connection.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.1
//= type=test
//# When the initiator and target agree on a digest, this digest MUST be used for every PDU in the
//# Full Feature Phase.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_digests() {
    let arena = Arena::new().await;
    for at in [0, 20, 47, 48, 51] {
        let mut attacker = Attacker::log_in(arena.address, DigestPreference::Require).await;
        let mut bytes = attacker.bytes_of_write(1, 512, &[0xee; 512]);
        bytes[at] ^= 0x10;
        attacker.stream.write_all(&bytes).await.unwrap();
        assert!(!attacker.ping().await.1, "byte {at} of a header was believed");
        arena.logged(&format!("peer={}", attacker.peer), "header digest").await;
    }
    for level in [0, 1] {
        let change = |config: &mut InitiatorConfig| {
            config.offer.header_digest = DigestPreference::Require;
            config.offer.data_digest = DigestPreference::Require;
            config.offer.session.error_recovery_level = level;
        };
        let mut attacker = Attacker::enter(arena.address, change).await.unwrap();
        let mut bytes = attacker.bytes_of_write(1, 512, &[0xee; 512]);
        bytes[60] ^= 0x10;
        attacker.stream.write_all(&bytes).await.unwrap();
        let (answers, alive) = attacker.ping().await;
        if level == 0 {
            // The command counts as not received, and nobody could send it again (§7.3).
            assert!(!alive, "{answers:?}");
            arena.logged(&format!("peer={}", attacker.peer), "digest").await;
        } else {
            let rejected = |pdu| reject_reason(pdu) == Some(RejectReason::DATA_DIGEST_ERROR);
            assert!(alive && answers.iter().any(rejected), "{answers:?}");
        }
    }
    arena.victim_is_untouched().await;
    arena.serves().await;
}

/// Text of the full-feature phase that never ends costs no more than its limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_text() {
    let arena = Arena::new().await;
    let before = resident_bytes();
    let mut attacker = Attacker::log_in(arena.address, DigestPreference::Never).await;
    let mut ttt = Ttt::NONE;
    let mut answered = 0;
    for n in 0..10_000u32 {
        let request = TextRequest {
            immediate: true,
            is_final: false,
            continues: true,
            lun: Lun(0),
            itt: Itt(5),
            ttt,
            cmd_sn: CmdSn(1),
            exp_stat_sn: StatSn(n),
        };
        if !attacker.try_send(&request.encode(8192), &[b'A'; 8192]).await {
            break;
        }
        match attacker.read().await {
            Some(Pdu::TextResponse(response)) => ttt = response.ttt,
            _ => break,
        }
        answered += 1;
    }
    assert!(answered <= 16, "{answered} pieces of 8 KiB were collected");
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{growth} bytes more than before");
    arena.serves().await;
}

/// A peer that asks and never reads is held back by its own socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_reads() {
    let arena = Arena::new().await;
    let before = resident_bytes();
    let mut attackers = Vec::new();
    for n in 0..2 {
        let mut attacker = Attacker::log_in(arena.address, DigestPreference::Never).await;
        let ping = NopOut {
            immediate: true,
            lun: Lun(0),
            itt: Itt(7),
            ttt: Ttt::NONE,
            cmd_sn: CmdSn(1),
            exp_stat_sn: StatSn(0),
        };
        let payload = vec![0x55; if n == 0 { 200_000 } else { 0 }];
        let mut sent = 0;
        // Until the socket takes no more: the target does not read any more.
        while sent < 1 << 30
            && attacker.try_send(&ping.encode(payload.len() as u32), &payload).await
        {
            sent += 48 + payload.len();
        }
        assert!(sent < 1 << 30, "a gigabyte was taken without an answer being read");
        attackers.push(attacker);
        let growth = resident_bytes().saturating_sub(before);
        assert!(growth < GROWTH_MAX, "{growth} bytes more than before, after {sent} bytes");
    }
    arena.serves().await;
}

/// Writes that announce the most and deliver next to nothing get no memory for what never comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_of_data_cost_no_memory() {
    let arena = Arena::new().await;
    let before = resident_bytes();
    let mut attackers = Vec::new();
    for _ in 0..2 {
        let attacker = Attacker::log_in(arena.address, DigestPreference::Never).await;
        for n in 0..128 {
            attacker.write_command(n, 32 << 20, &[0xee; 512]).await;
        }
        attackers.push(attacker);
    }
    for attacker in &mut attackers {
        assert!(attacker.ping().await.1);
    }
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{growth} bytes more than before");
    arena.serves().await;
    drop(attackers);
    arena.settles().await;
}

/// Pings that wait for a command that never comes: the connection ends before they fill memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_behind_a_gap() {
    let arena = Arena::new().await;
    let before = resident_bytes();
    let mut attacker = Attacker::log_in(arena.address, DigestPreference::Never).await;
    let payload = vec![0x55; 200_000];
    for n in 1..500 {
        let ping = NopOut {
            immediate: false,
            lun: Lun(0),
            itt: Itt(n),
            ttt: Ttt::NONE,
            cmd_sn: attacker.cmd_sn().plus(n), // the first one is left out
            exp_stat_sn: StatSn(0),
        };
        if !attacker.try_send(&ping.encode(200_000), &payload).await {
            break;
        }
    }
    assert!(!attacker.ping().await.1, "{} bytes more", resident_bytes().saturating_sub(before));
    arena.logged(&format!("peer={}", attacker.peer), "a command that is missing").await;
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{growth} bytes more than before");
    arena.serves().await;
}

/// Reads of the greatest length by a peer that takes no answer: they wait, and hold no memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_that_nobody_takes() {
    let arena = Arena::new().await;
    let before = resident_bytes();
    let mut attacker = Attacker::log_in(arena.address, DigestPreference::Never).await;
    for n in 0..256 {
        let bytes = attacker.bytes_of_read(n, 8 << 20);
        attacker.stream.write_all(&bytes).await.unwrap();
    }
    // Behind them all, and answered by the session that reads what it asked for.
    arena.serves().await;
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{growth} bytes more than before");
    attacker.reset();
    arena.settles().await;
}

/// Many sessions of one initiator fill buffers and never finish: together they get no more than
/// their shares and half of the common memory. What they cannot have is answered TASK SET FULL, and
/// the healthy session goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_limited_over_all_sessions() {
    const SESSIONS: usize = 8;
    const WRITES: u32 = 6;
    const LEN: u32 = 4 << 20;
    const CHUNK: u32 = 128 << 10;
    const TASK_SET_FULL: u8 = 0x28;
    // Shares of 4 MiB, and 64 MiB for all, of which 32 for one initiator.
    let arena = Arena::with(|config| {
        config.limits.memory_bytes_max = 128 << 20;
        config.limits.sessions_max = 16;
    })
    .await;
    let before = resident_bytes();
    let (mut attackers, mut waiting) = (Vec::new(), Vec::new());
    for _ in 0..SESSIONS {
        let mut attacker = Attacker::log_in(arena.address, DigestPreference::Never).await;
        for itt in 0..WRITES {
            attacker.write_command(itt, LEN, &[]).await;
            let answer = attacker.read().await;
            let Some(Pdu::R2t(r2t)) = answer else { panic!("{answer:?}") };
            assert_eq!(r2t.desired_data_transfer_length, LEN);
            // All but the last chunk.
            for number in 0..LEN / CHUNK - 1 {
                let data = data_out(itt, r2t.ttt, number, false, CHUNK);
                attacker.send(&data.encode(CHUNK), &[0xee; CHUNK as usize]).await;
            }
            waiting.push((waiting.len() / WRITES as usize, itt, r2t.ttt));
        }
        let (_, alive) = attacker.ping().await;
        assert!(alive);
        attackers.push(attacker);
    }
    arena.serves().await;
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{growth} bytes");
    let mut refused = 0;
    for (index, itt, ttt) in waiting {
        let attacker = &mut attackers[index];
        let data = data_out(itt, ttt, LEN / CHUNK - 1, true, CHUNK);
        attacker.send(&data.encode(CHUNK), &[0xee; CHUNK as usize]).await;
        let answer = attacker.read().await;
        let Some(Pdu::ScsiResponse(response)) = answer else { panic!("{answer:?}") };
        refused += u32::from(response.status == TASK_SET_FULL);
    }
    // 8 shares of one write each, and 8 more in the common half.
    assert_eq!(refused, SESSIONS as u32 * WRITES - 16);
    drop(attackers);
    arena.settles().await;
    arena.serves().await;
}

fn data_out(itt: u32, ttt: Ttt, number: u32, is_final: bool, chunk: u32) -> DataOut {
    DataOut {
        is_final,
        lun: Lun(0),
        itt: Itt(itt),
        ttt,
        exp_stat_sn: StatSn(0),
        data_sn: DataSn(number),
        buffer_offset: number * chunk,
    }
}
