//! Logins as real peers conduct them, from captures: open-iscsi 2.1.8 and libiscsi 1.19 against our
//! target, our initiator against tgt 1.0.85 and LIO (Linux 6.12). Their quirks stay covered without
//! them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;

use iscsi_proto::ids::{Cid, Isid, Itt, Tsih};
use iscsi_proto::keys::{DigestKind, DigestPreference, Offer, SessionParams};
use iscsi_proto::login::Outcome;
use iscsi_proto::login::chap::{CHALLENGE_LEN, ChapRandom, Secret};
use iscsi_proto::login::initiator::{self, InitiatorConfig};
use iscsi_proto::login::target::{self, Admission, Authenticator, Grant, TargetConfig};
use iscsi_proto::pdu::{LoginRequest, LoginResponse, LoginStatus, Stage};
use iscsi_proto::serial::{CmdSn, StatSn};

const SECURITY: Stage = Stage::SECURITY_NEGOTIATION;
const OPERATIONAL: Stage = Stage::LOGIN_OPERATIONAL_NEGOTIATION;
const FULL_FEATURE: Stage = Stage::FULL_FEATURE_PHASE;

fn random() -> ChapRandom {
    ChapRandom { identifier: 9, challenge: [9; CHALLENGE_LEN] }
}

fn config() -> InitiatorConfig {
    let name = "iqn.2026-11.org.example:me";
    let target = Some("iqn.2026-11.test:open".to_owned());
    InitiatorConfig::new(name, target, Isid::random(77, 1), random())
}

/// A target's response from `csg`; with `nsg` it agrees to go on.
fn response(tsih: u16, csg: Stage, nsg: Option<Stage>) -> LoginResponse {
    LoginResponse {
        transit: nsg.is_some(),
        continues: false,
        csg,
        nsg: nsg.unwrap_or(Stage(0)),
        version_max: 0,
        version_active: 0,
        isid: config().isid,
        tsih: Tsih(tsih),
        itt: config().itt,
        stat_sn: StatSn(1),
        exp_cmd_sn: CmdSn(1),
        max_cmd_sn: CmdSn(64),
        status: LoginStatus::SUCCESS,
    }
}

/// Plays a target's responses; returns what the initiator sent last and how it ended.
fn play(config: InitiatorConfig, responses: &[(LoginResponse, &str)]) -> (String, Outcome) {
    let mut login = initiator::Login::new(config).unwrap();
    let (_, mut last) = login.first();
    for (response, text) in responses {
        match login.handle(response, text.as_bytes()).unwrap() {
            initiator::Step::Send(_, text) => last = text,
            initiator::Step::Established(outcome) => {
                return (String::from_utf8(last.to_vec()).unwrap(), *outcome);
            }
            step => panic!("{step:?}"),
        }
    }
    panic!("not established after {} responses", responses.len())
}

#[test]
fn lio_leading_connection() {
    let (_, outcome) = play(
        config(),
        &[
            (
                response(0, SECURITY, Some(OPERATIONAL)),
                "AuthMethod=None\0TargetAlias=LIO Target\0TargetPortalGroupTag=1\0",
            ),
            // It leaves DataPDUInOrder and DataSequenceInOrder unanswered: the defaults hold.
            (
                response(1, OPERATIONAL, Some(FULL_FEATURE)),
                "HeaderDigest=None\0DataDigest=None\0MaxConnections=8\0InitialR2T=Yes\0\
                 ImmediateData=Yes\0MaxRecvDataSegmentLength=262144\0MaxBurstLength=262144\0\
                 FirstBurstLength=65536\0DefaultTime2Wait=2\0DefaultTime2Retain=20\0\
                 MaxOutstandingR2T=1\0ErrorRecoveryLevel=0\0",
            ),
        ],
    );
    assert_eq!(outcome.session, SessionParams { max_connections: 8, ..SessionParams::default() });
    assert_eq!(outcome.connection.max_send_data_segment_length, 262_144);
    assert_eq!(outcome.peer_alias.as_deref(), Some("LIO Target"));
    assert_eq!(outcome.tsih, Tsih(1));
}

#[test]
fn lio_later_connection_does_not_understand_the_session_type() {
    let session = SessionParams { max_connections: 8, ..SessionParams::default() };
    let later = InitiatorConfig { tsih: Tsih(1), cid: Cid(1), joining: Some(session), ..config() };
    let (_, outcome) = play(
        later,
        &[
            (
                response(1, SECURITY, Some(OPERATIONAL)),
                "AuthMethod=None\0TargetPortalGroupTag=1\0SessionType=NotUnderstood\0",
            ),
            (
                response(1, OPERATIONAL, Some(FULL_FEATURE)),
                "HeaderDigest=None\0DataDigest=None\0MaxRecvDataSegmentLength=262144\0",
            ),
        ],
    );
    assert_eq!((outcome.session, outcome.cid), (session, Cid(1)));
}

#[test]
fn tgt_later_connection_offers_the_sessions_keys_again() {
    let session = SessionParams {
        max_connections: 8,
        initial_r2t: false,
        max_outstanding_r2t: 8,
        first_burst_length: 131_072,
        ..SessionParams::default()
    };
    let offer = Offer { header_digest: DigestPreference::Prefer, ..Offer::default() };
    let later = InitiatorConfig {
        offer,
        tsih: Tsih(0x700),
        cid: Cid(1),
        joining: Some(session),
        ..config()
    };
    let (last, outcome) = play(
        later,
        &[
            (
                response(0x700, SECURITY, Some(OPERATIONAL)),
                "TargetPortalGroupTag=1\0AuthMethod=None\0",
            ),
            // It withholds its transit until it has its answers.
            (
                response(0x700, OPERATIONAL, None),
                "HeaderDigest=CRC32C\0DataDigest=None\0MaxRecvDataSegmentLength=131072\0\
                 InitialR2T=No\0MaxOutstandingR2T=8\0FirstBurstLength=131072\0\
                 MaxConnections=8\0",
            ),
            (response(0x700, OPERATIONAL, Some(FULL_FEATURE)), ""),
        ],
    );
    assert_eq!(
        last,
        "InitialR2T=No\0MaxOutstandingR2T=8\0MaxConnections=8\0FirstBurstLength=131072\0"
    );
    assert_eq!(outcome.session, session);
    assert_eq!(outcome.connection.header_digest, DigestKind::Crc32c);
    assert_eq!(outcome.connection.max_send_data_segment_length, 131_072);
}

#[test]
fn tgt_by_default_declares_no_segment_length() {
    let (_, outcome) = play(
        config(),
        &[
            (response(0, SECURITY, Some(OPERATIONAL)), "TargetPortalGroupTag=1\0AuthMethod=None\0"),
            (
                response(0x700, OPERATIONAL, Some(FULL_FEATURE)),
                "HeaderDigest=None\0DataDigest=None\0MaxConnections=1\0InitialR2T=Yes\0\
                 ImmediateData=Yes\0MaxBurstLength=262144\0FirstBurstLength=65536\0\
                 DefaultTime2Wait=2\0DefaultTime2Retain=20\0MaxOutstandingR2T=1\0\
                 DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0ErrorRecoveryLevel=0\0",
            ),
        ],
    );
    assert_eq!(outcome.session, SessionParams::default());
    // What was not declared is 8192; what we declared counts all the same.
    assert_eq!(outcome.connection.max_send_data_segment_length, 8192);
    assert_eq!(outcome.connection.max_recv_data_segment_length, 262_144);
}

struct Anyone;

impl Authenticator for Anyone {
    fn admit(&self, _: &str, _: Option<&str>) -> Admission {
        Admission::Granted(Grant { portal_group_tag: 1, ..Grant::default() })
    }

    fn secret(&self, _: Option<&str>, _: &str) -> Option<Secret> {
        None
    }
}

/// Logs in with one request of the operational stage, as libiscsi, QEMU and open-iscsi do without
/// CHAP; returns the target's answer.
fn log_in(text: &str) -> (String, Outcome) {
    let mut login = target::Login::new(TargetConfig {
        offer: Offer::default(),
        authenticator: Arc::new(Anyone),
        random: random(),
    });
    let request = LoginRequest {
        transit: true,
        continues: false,
        csg: OPERATIONAL,
        nsg: FULL_FEATURE,
        version_max: 0,
        version_min: 0,
        isid: Isid::random(5, 0),
        tsih: Tsih(0),
        itt: Itt(0),
        cid: Cid(0),
        cmd_sn: CmdSn(1),
        exp_stat_sn: StatSn(0),
    };
    let outcome = match login.handle(&request, text.as_bytes()).unwrap() {
        target::Step::Ready(outcome) => *outcome,
        step => panic!("{step:?}"),
    };
    let (_, text) = login.accept(Tsih(1), CmdSn(1), CmdSn(64));
    (String::from_utf8(text.to_vec()).unwrap(), outcome)
}

#[test]
fn open_iscsi_discovery() {
    let (answer, outcome) = log_in(
        "InitiatorName=iqn.2026-11.test:guest\0InitiatorAlias=(none)\0SessionType=Discovery\0\
         HeaderDigest=None\0DataDigest=None\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0\
         IFMarker=No\0OFMarker=No\0ErrorRecoveryLevel=0\0MaxRecvDataSegmentLength=32768\0",
    );
    assert_eq!(
        answer,
        "HeaderDigest=None\0DataDigest=None\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0\
         IFMarker=No\0OFMarker=No\0ErrorRecoveryLevel=0\0MaxRecvDataSegmentLength=262144\0"
    );
    assert!(outcome.discovery);
    assert_eq!(outcome.peer_alias.as_deref(), Some("(none)"));
    assert_eq!(outcome.connection.max_send_data_segment_length, 32768);
}

#[test]
fn open_iscsi_session() {
    let (answer, outcome) = log_in(
        "InitiatorName=iqn.2026-11.test:guest\0InitiatorAlias=(none)\0\
         TargetName=iqn.2026-11.org.example:disk\0SessionType=Normal\0HeaderDigest=None\0\
         DataDigest=None\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0IFMarker=No\0\
         OFMarker=No\0ErrorRecoveryLevel=0\0InitialR2T=No\0ImmediateData=Yes\0\
         MaxBurstLength=16776192\0FirstBurstLength=262144\0MaxOutstandingR2T=1\0\
         MaxConnections=1\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0\
         MaxRecvDataSegmentLength=262144\0",
    );
    assert!(answer.contains("TargetPortalGroupTag=1\0"), "{answer}");
    assert!(answer.ends_with("MaxRecvDataSegmentLength=262144\0"), "{answer}");
    assert!(!outcome.session.initial_r2t);
    assert_eq!(outcome.session.max_burst_length, Offer::default().session.max_burst_length);
    assert_eq!(outcome.session.first_burst_length, 262_144);
}

#[test]
fn libiscsi_discovery_offers_keys_that_are_irrelevant() {
    let (answer, _) = log_in(
        "InitiatorName=iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-ls\0\
         SessionType=Discovery\0HeaderDigest=None\0DataDigest=None\0InitialR2T=No\0\
         ImmediateData=Yes\0MaxBurstLength=262144\0FirstBurstLength=262144\0\
         DefaultTime2Wait=2\0DefaultTime2Retain=0\0MaxOutstandingR2T=1\0\
         ErrorRecoveryLevel=0\0IFMarker=No\0OFMarker=No\0MaxConnections=1\0\
         MaxRecvDataSegmentLength=262144\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0",
    );
    assert!(!answer.contains("Irrelevant"), "{answer}");
    assert!(answer.contains("MaxConnections=1\0"), "{answer}");
}
