//! Attacks on the way in, over real sockets: authentication that is skipped, replayed, reflected or
//! too long, stages that cannot follow each other, and logins that race. The dialogues themselves
//! are tested pair by pair in `iscsi-proto`; here the server has to end the connection, name the
//! peer, and keep a healthy session going.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod hostile_common;

use std::collections::{BTreeMap, BTreeSet};

use hostile_common::{Arena, Attacker, IQN, ends};
use iscsi::initiator::{Config, Portal, discover};
use iscsi::target::Chap;
use iscsi_proto::frame::Framing;
use iscsi_proto::ids::{Cid, Itt, Tsih};
use iscsi_proto::login::chap::{Algorithm, Secret};
use iscsi_proto::pdu::{
    LoginRequest, LoginResponse, LoginStatus, LogoutReason, LogoutRequest, Pdu, Stage, VERSION,
};
use iscsi_proto::serial::{CmdSn, StatSn};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const SECRET: &str = "correct horse battery";
const NAMES: &str = "InitiatorName=iqn.2026-11.org.example:evil\0";

/// A login that is spoken by hand.
struct Dialogue {
    stream: TcpStream,
    peer: String,
    request: LoginRequest,
}

impl Dialogue {
    async fn begin(arena: &Arena) -> Self {
        let stream = TcpStream::connect(arena.address).await.unwrap();
        let peer = format!("peer={}", stream.local_addr().unwrap());
        let request = LoginRequest {
            transit: false,
            continues: false,
            csg: Stage::SECURITY_NEGOTIATION,
            nsg: Stage::SECURITY_NEGOTIATION,
            version_max: VERSION,
            version_min: VERSION,
            isid: hostile_common::isid(),
            tsih: Tsih(0),
            itt: Itt(1),
            cid: Cid(1),
            cmd_sn: CmdSn(1),
            exp_stat_sn: StatSn(0),
        };
        Self { stream, peer, request }
    }

    /// One request in this stage, towards `next` if there is one; what it is answered.
    async fn say(
        &mut self,
        csg: Stage,
        next: Option<Stage>,
        text: &str,
    ) -> Option<(LoginResponse, BTreeMap<String, String>)> {
        (self.request.csg, self.request.transit) = (csg, next.is_some());
        self.request.nsg = next.unwrap_or(Stage(0));
        let header = self.request.encode(text.len() as u32);
        let bytes = Framing::default().pdu_bytes(&header, text.as_bytes());
        let _ = self.stream.write_all(&bytes).await; // it may have closed already
        match hostile_common::read(&mut self.stream, Framing::default()).await? {
            (Pdu::LoginResponse(response), data) => {
                let text = String::from_utf8(data.to_vec()).unwrap();
                let pairs = text.split_terminator('\0').map(|pair| pair.split_once('=').unwrap());
                Some((response, pairs.map(|(key, value)| (key.into(), value.into())).collect()))
            }
            other => panic!("{other:?}"),
        }
    }

    /// Up to the target's challenge.
    async fn challenge(&mut self) -> (u8, Vec<u8>) {
        let stage = Stage::SECURITY_NEGOTIATION;
        let first = format!("{NAMES}TargetName={IQN}\0AuthMethod=CHAP\0");
        let (_, keys) = self.say(stage, None, &first).await.unwrap();
        assert_eq!(keys["AuthMethod"], "CHAP");
        let (_, keys) = self.say(stage, None, "CHAP_A=7\0").await.unwrap();
        let hex = keys["CHAP_C"].strip_prefix("0x").unwrap();
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (keys["CHAP_I"].parse().unwrap(), (0..hex.len()).step_by(2).map(byte).collect())
    }

    async fn prove(&mut self, text: &str) -> Option<(LoginResponse, BTreeMap<String, String>)> {
        let next = Some(Stage::LOGIN_OPERATIONAL_NEGOTIATION);
        self.say(Stage::SECURITY_NEGOTIATION, next, text).await
    }

    /// The answer was a refusal that tells nothing, the end of the connection, and a line in the
    /// log.
    async fn ends_refused(
        mut self,
        what: &str,
        answer: Option<(LoginResponse, BTreeMap<String, String>)>,
        arena: &Arena,
    ) {
        if let Some((response, keys)) = answer {
            assert_ne!(response.status, LoginStatus::SUCCESS, "{what}");
            // No proof, no challenge: at most that the method is rejected (§6.2.1).
            assert!(keys.values().all(|value| value == "Reject"), "{what}: {keys:?}");
        }
        assert!(ends(&mut self.stream).await, "{what} is still connected");
        arena.logged(&self.peer, "login failed").await;
    }
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}

fn proof(identifier: u8, secret: &str, challenge: &[u8]) -> String {
    hex(&Algorithm::Sha256.respond(identifier, &Secret::new(secret), challenge))
}

async fn fortress() -> Arena {
    let mutual = Some(("disk", "a secret of its own"));
    Arena::guarded(Some(Chap::new("alice", SECRET, mutual).unwrap())).await
}

/// Values that fit no buffer, and values that are none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chap_values_that_are_too_long_or_none() {
    let arena = fortress().await;
    let long_hex = format!("0x{}", "ab".repeat(3500));
    let long_base64 = format!("0b{}", "QUJD".repeat(1800));
    let good_length = hex(&[7; 32]);
    for (response, more) in [
        (long_hex.as_str(), ""),
        (long_base64.as_str(), ""),
        ("0x", ""),
        ("0b", ""),
        ("0xabc", ""),
        ("0b====", ""),
        ("5", ""),
        ("", ""),
        (good_length.as_str(), ""),
        (good_length.as_str(), &format!("CHAP_I=256\0CHAP_C={}\0", hex(&[1; 16]))),
        (good_length.as_str(), &format!("CHAP_I=1\0CHAP_C={}\0", hex(&[1; 2000]))),
    ] {
        let mut dialogue = Dialogue::begin(&arena).await;
        dialogue.challenge().await;
        let text = format!("CHAP_N=alice\0CHAP_R={response}\0{more}");
        let answer = dialogue.prove(&text).await;
        let shown: String = text.chars().take(60).collect();
        dialogue.ends_refused(&shown, answer, &arena).await;
    }
    arena.serves().await;
}

/// A response that was right once, or that the target made itself, opens nothing; nor does the
/// target ever ask the same twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chap_replayed_and_reflected() {
    let arena = fortress().await;
    let mut first = Dialogue::begin(&arena).await;
    let (identifier, challenge) = first.challenge().await;
    let right = proof(identifier, SECRET, &challenge);
    let answer = first.prove(&format!("CHAP_N=alice\0CHAP_R={right}\0")).await.unwrap();
    assert_eq!(answer.0.status, LoginStatus::SUCCESS, "the dialogue of this test is right");

    let mut seen = BTreeSet::from([challenge.clone()]);
    for n in 0..32 {
        let mut dialogue = Dialogue::begin(&arena).await;
        let (identifier, fresh) = dialogue.challenge().await;
        assert!(seen.insert(fresh.clone()), "a challenge came twice");
        let (what, text) = match n % 4 {
            0 => ("a replay", format!("CHAP_N=alice\0CHAP_R={right}\0")),
            1 => {
                // As if it were the target: its own question back to it, for it to answer.
                let back = format!("CHAP_I={identifier}\0CHAP_C={}\0", hex(&fresh));
                ("a reflection", format!("CHAP_N=alice\0CHAP_R={right}\0{back}"))
            }
            2 => {
                let right = proof(identifier, SECRET, &fresh);
                let back = format!("CHAP_I={identifier}\0CHAP_C={}\0", hex(&fresh));
                ("a reflection by one who knows", format!("CHAP_N=alice\0CHAP_R={right}\0{back}"))
            }
            _ => {
                let wrong = proof(identifier, "a secret of its own", &fresh);
                ("the target's own secret", format!("CHAP_N=disk\0CHAP_R={wrong}\0"))
            }
        };
        let answer = dialogue.prove(&text).await;
        dialogue.ends_refused(what, answer, &arena).await;
    }
    arena.serves().await;
}

/// Nobody gets past authentication by not taking part in it, and stages follow each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stages_that_are_skipped() {
    let arena = fortress().await;
    let (security, operational, full) = (
        Stage::SECURITY_NEGOTIATION,
        Stage::LOGIN_OPERATIONAL_NEGOTIATION,
        Stage::FULL_FEATURE_PHASE,
    );
    let named = format!("{NAMES}TargetName={IQN}\0");
    for (what, csg, next, more) in [
        ("no security stage", operational, Some(full), ""),
        ("security to the end at once", security, Some(full), ""),
        ("no method", security, Some(full), "AuthMethod=None\0"),
        ("a method nobody has", security, None, "AuthMethod=KRB5\0"),
        ("full-feature phase", full, None, ""),
        ("from the end to the beginning", full, Some(security), ""),
        ("a stage that is reserved", Stage(2), Some(full), ""),
        ("backwards", operational, Some(security), ""),
        ("nowhere", operational, Some(operational), ""),
        ("to a reserved stage", security, Some(Stage(2)), "AuthMethod=CHAP\0"),
    ] {
        let mut dialogue = Dialogue::begin(&arena).await;
        let answer = dialogue.say(csg, next, &format!("{named}{more}")).await;
        dialogue.ends_refused(what, answer, &arena).await;
    }
    // A user that proved itself, and then begins anew as another.
    let mut dialogue = Dialogue::begin(&arena).await;
    let (identifier, challenge) = dialogue.challenge().await;
    let right = proof(identifier, SECRET, &challenge);
    dialogue.prove(&format!("CHAP_N=alice\0CHAP_R={right}\0")).await.unwrap();
    let answer = dialogue.say(security, Some(full), &format!("{NAMES}AuthMethod=None\0")).await;
    dialogue.ends_refused("a second beginning", answer, &arena).await;
    arena.serves().await;
}

/// Discovery logins by the dozen at once, all under one name, some of them dropped half-way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_logins_that_race() {
    let arena = Arena::new().await;
    let portal = Portal { host: arena.address.ip().to_string(), port: arena.address.port() };
    let isid = hostile_common::isid();
    let config = Config::default();
    let address = arena.address;
    // Together below what one host may have under way (`Limits::logins_per_peer_max`): beyond it
    // the oldest gives way unanswered, which is another test's business.
    let asking = (0..24).map(|_| discover(&portal, &config));
    let racing = (0..32).map(|n| async move {
        // The same session over and over: each login ends the one before.
        let entered = Attacker::enter(address, |config| {
            config.target_name = None;
            config.isid = isid;
        })
        .await;
        match entered {
            Ok(attacker) if n % 2 == 0 => attacker.reset(),
            Ok(_) | Err(LoginStatus::SESSION_DOES_NOT_EXIST) => {}
            Err(status) => panic!("{status:?}"),
        }
    });
    let (found, _) = futures_util::future::join(
        futures_util::future::join_all(asking),
        futures_util::future::join_all(racing),
    )
    .await;
    for records in found {
        let names: Vec<_> = records.unwrap().into_iter().map(|record| record.name).collect();
        assert_eq!(names, [IQN]);
    }
    arena.settles().await;
    arena.serves().await;
}

/// Logins of one session that race for its place, each with a write under way: the last one has it,
/// and nothing of the others is written or left. One that was overtaken before it was in is told
/// that its session does not exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reinstatements_that_race() {
    let arena = Arena::new().await;
    let isid = hostile_common::isid();
    let address = arena.address;
    let racing = (0..48).map(|n| async move {
        let attacker = match Attacker::enter(address, |config| config.isid = isid).await {
            Ok(attacker) => attacker,
            Err(LoginStatus::SESSION_DOES_NOT_EXIST) => return None,
            Err(status) => panic!("{status:?}"),
        };
        attacker.try_write_command(n, 1 << 20, &[0xee; 512]);
        Some(attacker)
    });
    let crowd = futures_util::future::join_all(racing).await;
    assert!(crowd.iter().any(Option::is_some), "nobody was admitted");
    drop(crowd);
    arena.settles().await;
    arena.victim_is_untouched().await;
    arena.serves().await;
}

/// What comes behind a logout, or after the connection was closed, is not executed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn use_after_logout() {
    let arena = Arena::new().await;
    for reason in [LogoutReason::CLOSE_CONNECTION, LogoutReason::CLOSE_SESSION] {
        let mut attacker = Attacker::enter(arena.address, |_| ()).await.unwrap();
        let logout = LogoutRequest {
            immediate: false,
            reason,
            itt: Itt(1),
            cid: attacker.cid(),
            cmd_sn: attacker.cmd_sn(),
            exp_stat_sn: StatSn(0),
        };
        let mut bytes = Framing::default().pdu_bytes(&logout.encode(0), &[]);
        attacker.bytes_of_read(9, 512); // takes the number that the logout has
        for itt in 2..100 {
            bytes.extend(attacker.bytes_of_write(itt, 512, &[0xee; 512]));
        }
        attacker.stream.write_all(&bytes).await.unwrap();
        let mut answers = Vec::new();
        while let Some(pdu) = attacker.read().await {
            answers.push(pdu);
        }
        let out_of_place = |pdu: &Pdu| matches!(pdu, Pdu::ScsiResponse(_) | Pdu::R2t(_));
        assert!(!answers.iter().any(out_of_place), "{answers:?}");
        assert!(answers.iter().any(|pdu| matches!(pdu, Pdu::LogoutResponse(_))), "{answers:?}");
        arena.logged(&format!("peer={}", attacker.peer), "connection ended").await;
    }
    arena.settles().await;
    arena.victim_is_untouched().await;
    arena.serves().await;
}

/// Whoever comes thousands of times is named, and does not fill the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_not_flooded() {
    let arena = Arena::new().await;
    let failures = || arena.server.counters().login_failures.values().sum::<u64>();
    let before = Arena::lines(&["peer=127.0.0.1"]);
    for _ in 0..600 {
        let mut stream = TcpStream::connect(arena.address).await.unwrap();
        let _ = stream.write_all(&[0; 48]).await;
        assert!(ends(&mut stream).await);
    }
    hostile_common::until("every failure is counted", || failures() >= 600).await;
    let lines = Arena::lines(&["peer=127.0.0.1"]) - before;
    assert!((100..=300).contains(&lines), "{lines} lines");
    assert!(Arena::lines(&["too many lines about this peer", "127.0.0.1"]) > 0);
    arena.serves().await;
}
