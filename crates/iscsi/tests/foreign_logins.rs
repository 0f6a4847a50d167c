//! Logins as initiators speak them that nobody here wrote: keys offered again on a later
//! connection, all keys in discovery, AuthMethod in the operational stage (RFC 7143 §6.2, §12,
//! §13). Each has to get in, join and recover; none of it may let anybody in who may not.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod hostile_common;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use hostile_common::{Arena, IQN, ends};
use iscsi::target::Chap;
use iscsi_proto::frame::Framing;
use iscsi_proto::ids::{Cid, Isid, Itt, Lun, Tsih, Ttt};
use iscsi_proto::login::chap::{Algorithm, Secret};
use iscsi_proto::pdu::{LoginRequest, LoginResponse, LoginStatus, NopOut, Pdu, Stage, VERSION};
use iscsi_proto::serial::{CmdSn, StatSn};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const OPERATIONAL: Stage = Stage::LOGIN_OPERATIONAL_NEGOTIATION;
const NAMES: &str = "InitiatorName=iqn.2026-11.org.example:foreign\0";

/// What iscsi-client-rs and uiscsi offer on every connection, whichever it is.
const ALL_KEYS: &str = "HeaderDigest=None\0DataDigest=None\0MaxConnections=4\0InitialR2T=No\0\
    ImmediateData=Yes\0MaxBurstLength=65536\0FirstBurstLength=16384\0DefaultTime2Wait=1\0\
    DefaultTime2Retain=20\0MaxOutstandingR2T=1\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0\
    ErrorRecoveryLevel=2\0MaxRecvDataSegmentLength=65536\0";
/// Those of them that belong to the session.
const LEADING: [&str; 11] = [
    "MaxConnections",
    "InitialR2T",
    "ImmediateData",
    "MaxBurstLength",
    "FirstBurstLength",
    "DefaultTime2Wait",
    "DefaultTime2Retain",
    "MaxOutstandingR2T",
    "DataPDUInOrder",
    "DataSequenceInOrder",
    "ErrorRecoveryLevel",
];

type Keys = BTreeMap<String, String>;

/// A login that is spoken by hand, and the connection it becomes.
struct Script {
    stream: TcpStream,
    request: LoginRequest,
}

impl Script {
    async fn connect(address: SocketAddr, isid: Isid) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let request = LoginRequest {
            transit: true,
            continues: false,
            csg: OPERATIONAL,
            nsg: Stage::FULL_FEATURE_PHASE,
            version_max: VERSION,
            version_min: VERSION,
            isid,
            tsih: Tsih(0),
            itt: Itt(1),
            cid: Cid(1),
            cmd_sn: CmdSn(1),
            exp_stat_sn: StatSn(0),
        };
        Self { stream, request }
    }

    /// A later connection of a session, or one of its connections again.
    async fn later(address: SocketAddr, session: &LoginResponse, cid: u16) -> Self {
        let mut script = Self::connect(address, session.isid).await;
        (script.request.tsih, script.request.cid) = (session.tsih, Cid(cid));
        script.request.cmd_sn = session.exp_cmd_sn;
        script
    }

    async fn say(&mut self, text: &str) -> (LoginResponse, Keys) {
        let header = self.request.encode(text.len() as u32);
        let bytes = Framing::default().pdu_bytes(&header, text.as_bytes());
        self.stream.write_all(&bytes).await.unwrap();
        match hostile_common::read(&mut self.stream, Framing::default()).await {
            Some((Pdu::LoginResponse(response), data)) => {
                let text = String::from_utf8(data.to_vec()).unwrap();
                let pairs = text.split_terminator('\0').map(|pair| pair.split_once('=').unwrap());
                (response, pairs.map(|(key, value)| (key.into(), value.into())).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    /// The target answers a ping on this connection.
    async fn pings(&mut self) -> bool {
        let ping = NopOut {
            immediate: true,
            lun: Lun(0),
            itt: Itt(77),
            ttt: Ttt::NONE,
            cmd_sn: self.request.cmd_sn,
            exp_stat_sn: StatSn(0),
        };
        let bytes = Framing::default().pdu_bytes(&ping.encode(0), &[]);
        self.stream.write_all(&bytes).await.unwrap();
        let answer = hostile_common::read(&mut self.stream, Framing::default()).await;
        matches!(answer, Some((Pdu::NopIn(nop), _)) if nop.itt == Itt(77))
    }
}

fn named() -> String {
    format!("{NAMES}TargetName={IQN}\0SessionType=Normal\0")
}

/// One that got as far as its full-feature phase.
fn is_in(response: &LoginResponse) -> bool {
    response.status == LoginStatus::SUCCESS
        && response.transit
        && response.nsg == Stage::FULL_FEATURE_PHASE
}

/// iscsi-client-rs without CHAP: one request, in the operational stage, AuthMethod among the keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auth_method_in_the_operational_stage() {
    let arena = Arena::new().await;
    for (offered, answered) in [("None", "None"), ("CHAP,None", "None"), ("CHAP", "Reject")] {
        let mut script = Script::connect(arena.address, hostile_common::isid()).await;
        let text = format!("{}AuthMethod={offered}\0{ALL_KEYS}", named());
        let (response, keys) = script.say(&text).await;
        assert!(is_in(&response), "{offered}: {:?}", response.status);
        assert_eq!(keys["AuthMethod"], answered, "{offered}");
        assert!(script.pings().await, "{offered}");
    }
    arena.serves().await;
}

/// The same where authentication is demanded: it opens nothing, and does no harm to who has proved
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auth_method_in_the_operational_stage_is_no_way_around_chap() {
    const SECRET: &str = "correct horse battery";
    let chap = Chap::new("alice", SECRET, None).unwrap();
    let arena = Arena::guarded(Some(chap)).await;
    let mut script = Script::connect(arena.address, hostile_common::isid()).await;
    let (response, keys) = script.say(&format!("{}AuthMethod=None\0{ALL_KEYS}", named())).await;
    assert_eq!(response.status, LoginStatus::AUTHENTICATION_FAILURE);
    assert!(keys.is_empty(), "{keys:?}");
    assert!(ends(&mut script.stream).await);

    let mut script = Script::connect(arena.address, hostile_common::isid()).await;
    (script.request.csg, script.request.transit) = (Stage::SECURITY_NEGOTIATION, false);
    script.request.nsg = Stage(0);
    script.say(&format!("{}AuthMethod=CHAP\0", named())).await;
    let (_, keys) = script.say("CHAP_A=7\0").await;
    let digits = keys["CHAP_C"].strip_prefix("0x").unwrap();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    let challenge: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
    let identifier = keys["CHAP_I"].parse().unwrap();
    let proof = Algorithm::Sha256.respond(identifier, &Secret::new(SECRET), &challenge);
    let proof: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
    (script.request.transit, script.request.nsg) = (true, OPERATIONAL);
    script.say(&format!("CHAP_N=alice\0CHAP_R=0x{proof}\0")).await;
    (script.request.csg, script.request.nsg) = (OPERATIONAL, Stage::FULL_FEATURE_PHASE);
    let (response, keys) = script.say(&format!("AuthMethod=None\0{ALL_KEYS}")).await;
    assert!(is_in(&response), "{:?}", response.status);
    assert_eq!(keys["AuthMethod"], "Reject");
    assert!(script.pings().await);
    arena.serves().await;
}

/// Both offer everything in discovery, too, and give up where an answer is no value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_with_all_keys() {
    let arena = Arena::new().await;
    let mut script = Script::connect(arena.address, hostile_common::isid()).await;
    let (response, keys) =
        script.say(&format!("{NAMES}SessionType=Discovery\0AuthMethod=None\0{ALL_KEYS}")).await;
    assert!(is_in(&response), "{:?}", response.status);
    for (key, value) in [
        ("AuthMethod", "None"),
        ("MaxConnections", "1"),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "65536"),
        ("FirstBurstLength", "16384"),
        ("MaxOutstandingR2T", "1"),
        ("DataPDUInOrder", "Yes"),
        ("DataSequenceInOrder", "Yes"),
        ("ErrorRecoveryLevel", "0"),
    ] {
        assert_eq!(keys.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert!(script.pings().await);
    arena.serves().await;
}

/// iscsi-client-rs's second connection and uiscsi's replacement of a lost one at level 2: all keys
/// again, the same values or others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_offered_again_on_later_connections() {
    let arena = Arena::new().await;
    let mut leading = Script::connect(arena.address, hostile_common::isid()).await;
    let (session, agreed) = leading.say(&format!("{}{ALL_KEYS}", named())).await;
    assert!(is_in(&session), "{:?}", session.status);
    assert_eq!(agreed["ErrorRecoveryLevel"], "2", "this test is about level 2");
    let others = ALL_KEYS
        .replace("MaxConnections=4", "MaxConnections=2")
        .replace("MaxBurstLength=65536", "MaxBurstLength=8192")
        .replace("InitialR2T=No", "InitialR2T=Yes")
        .replace("ErrorRecoveryLevel=2", "ErrorRecoveryLevel=0");
    assert_ne!(others, ALL_KEYS);

    let mut joined = Vec::new();
    for (cid, text) in [(2, ALL_KEYS), (3, &others)] {
        let mut script = Script::later(arena.address, &session, cid).await;
        let (response, keys) = script.say(&format!("{}{text}", named())).await;
        assert!(is_in(&response), "connection {cid}: {:?}", response.status);
        for key in LEADING {
            assert_eq!(keys.get(key), agreed.get(key), "{key} on connection {cid}");
        }
        assert!(script.pings().await);
        joined.push(script);
    }

    // The first one breaks, and is replaced under its number while the others go on.
    drop(leading.stream);
    let mut again = Script::later(arena.address, &session, 1).await;
    let (response, keys) = again.say(&format!("{}{ALL_KEYS}", named())).await;
    assert!(is_in(&response), "{:?}", response.status);
    assert_eq!(response.tsih, session.tsih);
    for key in LEADING {
        assert_eq!(keys.get(key), agreed.get(key), "{key} on the replacement");
    }
    assert!(again.pings().await);
    for script in &mut joined {
        assert!(script.pings().await, "the session is the old one");
    }
    arena.serves().await;
}

/// Whoever names a session that is not theirs learns nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_tells_its_values_to_nobody_else() {
    let arena = Arena::new().await;
    let mut leading = Script::connect(arena.address, hostile_common::isid()).await;
    let (session, _) = leading.say(&format!("{}{ALL_KEYS}", named())).await;
    let stranger = named().replace(":foreign", ":stranger");
    for (what, name, isid) in [
        ("another name", stranger.as_str(), session.isid),
        ("another ISID", named().as_str(), hostile_common::isid()),
    ] {
        let mut script = Script::later(arena.address, &session, 2).await;
        script.request.isid = isid;
        // A first request that does not ask for the end shows what the keys are answered.
        (script.request.transit, script.request.nsg) = (false, Stage(0));
        let (response, keys) = script.say(&format!("{name}{ALL_KEYS}")).await;
        let said = keys.get("MaxBurstLength").map(String::as_str);
        let refused = response.status != LoginStatus::SUCCESS;
        assert!(refused || said == Some("Irrelevant"), "{what}: {said:?}");
    }
    assert!(leading.pings().await);
    arena.serves().await;
}
