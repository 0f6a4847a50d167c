//! What error recovery levels mean for negotiation and login (RFC 7143 §6.3.4, §7.1.4, §7.1.5,
//! §13.19).

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::time::Duration;

use bytes::Bytes;
use iscsi_proto::ids::{Cid, Isid, Lun, Tsih};
use iscsi_proto::initiator::{Command, Config, Established, Session, State};
use iscsi_proto::keys::text::{TextWriter, parse};
use iscsi_proto::keys::{ConnectionParams, Negotiation, Offer, Role, SessionParams};
use iscsi_proto::login::chap::{CHALLENGE_LEN, ChapRandom};
use iscsi_proto::login::initiator::{InitiatorConfig, Login, LoginError, Step};
use iscsi_proto::pdu::{LoginResponse, LoginStatus, Stage, TaskAttribute};
use iscsi_proto::serial::{CmdSn, StatSn};
use iscsi_proto::time::Instant;

const OPERATIONAL: Stage = Stage::LOGIN_OPERATIONAL_NEGOTIATION;

fn offer(level: u8, data_sequence_in_order: bool) -> Offer {
    let mut offer = Offer::default();
    (offer.session.error_recovery_level, offer.session.max_outstanding_r2t) = (level, 16);
    offer.session.data_sequence_in_order = data_sequence_in_order;
    offer
}

/// Both ends of a negotiation about these offers, initiator first, and the texts that made it.
fn negotiate(ours: Offer, theirs: Offer) -> ([SessionParams; 2], [String; 2]) {
    let mut initiator = Negotiation::new(Role::Initiator, ours, None);
    let mut target = Negotiation::new(Role::Target, theirs, None);
    let mut out = TextWriter::default();
    initiator.write_offers(&mut out);
    let offered = String::from_utf8(out.finish().to_vec()).unwrap();
    let mut out = TextWriter::default();
    target.handle(&parse(offered.as_bytes()).unwrap(), OPERATIONAL, &mut out).unwrap();
    let answered = String::from_utf8(out.finish().to_vec()).unwrap();
    let mut out = TextWriter::default();
    initiator.handle(&parse(answered.as_bytes()).unwrap(), OPERATIONAL, &mut out).unwrap();
    let agreed = [initiator.finish().unwrap().0, target.finish().unwrap().0];
    (agreed, [offered, answered])
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-13.19
//= type=test
//# For this reason, if ErrorRecoveryLevel is not 0 and DataSequenceInOrder is set to Yes, then
//# MaxOutstandingR2T MUST be set to 1.
#[test]
fn where_data_is_recovered_in_order_one_r2t_is_outstanding() {
    for ours in 0..=2 {
        for theirs in 0..=2 {
            for in_order in [false, true] {
                let (agreed, _) = negotiate(offer(ours, in_order), offer(theirs, in_order));
                let level = ours.min(theirs);
                let r2ts = if level > 0 && in_order { 1 } else { 16 };
                for (params, who) in agreed.iter().zip(["initiator", "target"]) {
                    let got = (params.error_recovery_level, params.max_outstanding_r2t);
                    assert_eq!(got, (level, r2ts), "{who}: {ours}, {theirs}, {in_order}");
                }
            }
        }
    }
}

/// What a level has to do is checked beside the sessions of both roles.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.5
//= type=test
//# When a defined value of ErrorRecoveryLevel is proposed by an originator in a text negotiation,
//# the originator MUST support the functionality defined for the proposed value and, additionally,
//# functionality corresponding to any defined value numerically less than the proposed value.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.5
//= type=test
//# When a defined value of ErrorRecoveryLevel is returned by a responder in a text negotiation, the
//# responder MUST support the functionality corresponding to the ErrorRecoveryLevel it is
//# accepting.
#[test]
fn no_level_is_proposed_or_returned_that_is_not_offered() {
    for ours in 0..=2u8 {
        for theirs in 0..=2u8 {
            let (_, [offered, answered]) = negotiate(offer(ours, false), offer(theirs, false));
            let says = |text: &str, level: u8| {
                text.split('\0').any(|pair| pair == format!("ErrorRecoveryLevel={level}"))
            };
            assert!(says(&offered, ours), "{offered}");
            assert!(says(&answered, ours.min(theirs)), "{answered}");
        }
    }
}

fn config() -> InitiatorConfig {
    let target = Some("iqn.2026-11.org.example:disk".to_owned());
    let random = ChapRandom { identifier: 1, challenge: [1; CHALLENGE_LEN] };
    InitiatorConfig::new("iqn.2026-11.org.example:host", target, Isid::random(1, 1), random)
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.4
//= type=test
//# Thus, the TSIH in the Login Request PDU MUST be non-zero, and the CID does not change during a
//# connection reinstatement.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.4
//= type=test
//# The initiator connection state MUST be CLEANUP_WAIT (Section 8.1.3) when the initiator attempts
//# a connection reinstatement.
#[test]
fn a_connection_is_reinstated_under_its_cid_and_the_sessions_tsih() {
    let params = SessionParams {
        error_recovery_level: 2,
        default_time2retain: 20,
        ..SessionParams::default()
    };
    let now = Instant(Duration::ZERO);
    let established = Established {
        tsih: Tsih(7),
        cid: Cid(3),
        session: params,
        connection: ConnectionParams::default(),
        cmd_sn: CmdSn(1),
        exp_cmd_sn: CmdSn(1),
        max_cmd_sn: CmdSn(32),
        exp_stat_sn: StatSn(5),
    };
    let (mut session, id) = Session::new(Config::default(), &established, now);
    let attribute = TaskAttribute::SIMPLE;
    let (lun, cdb, data_out, data_in_len) = (Lun(0), [0; 16], Bytes::new(), 512);
    let command = Command { lun, cdb, data_out, data_in_len, attribute };
    session.submit(command, ()).unwrap();
    session.poll_transmit(id, now).unwrap();
    session.handle_connection_lost(id, now);
    let wanted = session.reinstatement().unwrap();
    let states: Vec<State> = session.connections().map(|(.., state)| state).collect();
    assert_eq!(states, [State::CleanupWait]);
    // The login that this asks for, first request to last.
    let joins = InitiatorConfig {
        tsih: session.tsih(),
        cid: wanted.cid,
        joining: Some(*session.params()),
        cmd_sn: session.next_cmd_sn(),
        exp_stat_sn: wanted.exp_stat_sn,
        ..config()
    };
    let mut login = Login::new(joins.clone()).unwrap();
    let (first, _) = login.first();
    let to_operational = LoginResponse { transit: true, nsg: OPERATIONAL, ..answer(&first) };
    let step = login.handle(&to_operational, b"AuthMethod=None\0").unwrap();
    let Step::Send(second, _) = step else { panic!("{step:?}") };
    for request in [first, second] {
        assert_eq!((request.tsih, request.cid), (Tsih(7), Cid(3)));
        assert_eq!(request.cmd_sn, session.next_cmd_sn());
    }
    // Without the TSIH it would be another session.
    let error = Login::new(InitiatorConfig { tsih: Tsih(0), ..joins }).unwrap_err();
    assert!(matches!(error, LoginError::Config(_)), "{error}");
}

/// A response that agrees to nothing yet.
fn answer(request: &iscsi_proto::pdu::LoginRequest) -> LoginResponse {
    LoginResponse {
        transit: false,
        continues: false,
        csg: request.csg,
        nsg: Stage(0),
        version_max: 0,
        version_active: 0,
        isid: request.isid,
        tsih: request.tsih,
        itt: request.itt,
        stat_sn: request.exp_stat_sn,
        exp_cmd_sn: request.cmd_sn,
        max_cmd_sn: request.cmd_sn,
        status: LoginStatus::SUCCESS,
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.4
//= type=test
//# The use of within-connection and within-command recovery classes MUST NOT be attempted before
//# the connection is in the Full Feature Phase.
#[test]
fn a_login_that_goes_wrong_is_over_and_asks_for_nothing_again() {
    let mut login = Login::new(InitiatorConfig { offer: offer(2, false), ..config() }).unwrap();
    let (request, _) = login.first();
    let right = answer(&request);
    let wrong = LoginResponse { isid: Isid::random(2, 2), ..right.clone() };
    let error = login.handle(&wrong, b"").unwrap_err();
    assert_eq!(error, LoginError::Mismatch { field: "ISID" });
    assert_eq!(login.handle(&right, b"").unwrap_err(), LoginError::OutOfPlace);
}
