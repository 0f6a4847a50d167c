//! Both logins joined back to back, without a wire: every combination of authentication, texts of
//! several PDUs, and what an attacker would try (RFC 7143 §6.3, §9.2.1, §12.1.3).

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;

use bytes::Bytes;
use iscsi_proto::frame::{Framer, Framing, Limits};
use iscsi_proto::ids::{Cid, Isid, Itt, Tsih};
use iscsi_proto::keys::value::format_binary;
use iscsi_proto::keys::{DigestKind, DigestPreference, Offer, SessionParams, TaskReporting};
use iscsi_proto::login::chap::{
    Algorithm, CHALLENGE_LEN, ChapCredentials, ChapError, ChapRandom, Secret, secret_text,
};
use iscsi_proto::login::initiator::{self, InitiatorConfig, LoginError};
use iscsi_proto::login::target::{
    self, Admission, Authentication, Authenticator, FailureReason, Grant, LoginFailure,
    TargetConfig,
};
use iscsi_proto::login::{LOGIN_PDUS_MAX, Outcome};
use iscsi_proto::pdu::{LoginRequest, LoginResponse, LoginStatus, Pdu, Stage};
use iscsi_proto::serial::{CmdSn, StatSn};
use proptest::prelude::*;

const INITIATOR: &str = "iqn.2026-11.org.example:host";
const TARGET: &str = "iqn.2026-11.org.example:disk";
const MOVED: &str = "iqn.2026-11.org.example:moved";

/// One target, one user, one demand.
struct Site {
    authentication: Authentication,
    user: ChapCredentials,
}

impl Authenticator for Site {
    fn admit(&self, initiator_name: &str, target_name: Option<&str>) -> Admission {
        match target_name {
            _ if initiator_name.ends_with("stranger") => {
                Admission::Refused(LoginStatus::AUTHORIZATION_FAILURE)
            }
            None | Some(TARGET) => Admission::Granted(Grant {
                authentication: self.authentication.clone(),
                portal_group_tag: 7,
                target_alias: Some("a disk".to_owned()),
            }),
            Some(MOVED) => {
                // A redirection leaves the portal group out.
                Admission::Moved {
                    address: "[2001:db8::1]:3261,7".parse().unwrap(),
                    permanent: true,
                }
            }
            Some(_) => Admission::Refused(LoginStatus::NOT_FOUND),
        }
    }

    fn secret(&self, _: Option<&str>, user: &str) -> Option<Secret> {
        (user == self.user.user).then(|| self.user.secret.clone())
    }
}

fn credentials(user: &str, secret: &str) -> ChapCredentials {
    ChapCredentials { user: user.to_owned(), secret: Secret::new(secret) }
}

fn random(seed: u8) -> ChapRandom {
    ChapRandom { identifier: seed, challenge: [seed; CHALLENGE_LEN] }
}

fn target_login(authentication: Authentication) -> target::Login {
    let user = credentials("alice", "secret of alice");
    target::Login::new(TargetConfig {
        offer: Offer::default(),
        authenticator: Arc::new(Site { authentication, user }),
        random: random(1),
    })
}

fn chap(algorithms: &[Algorithm], mutual: Option<ChapCredentials>) -> Authentication {
    Authentication::Chap { algorithms: algorithms.to_vec(), mutual }
}

fn config() -> InitiatorConfig {
    let isid = Isid::random(0x00c0_ffee, 1);
    InitiatorConfig::new(INITIATOR, Some(TARGET.to_owned()), isid, random(2))
}

fn chap_config(secret: &str) -> InitiatorConfig {
    InitiatorConfig { chap: Some(credentials("alice", secret)), ..config() }
}

/// How a joint login ended.
#[derive(Debug)]
enum End {
    /// Outcomes of initiator and target, and the number of requests.
    Established(Box<(Outcome, Outcome, usize)>),
    Redirected(String, bool),
    Target(LoginFailure),
    Initiator(LoginError),
}

impl End {
    fn established(self) -> (Outcome, Outcome, usize) {
        match self {
            Self::Established(end) => *end,
            other => panic!("login failed: {other:?}"),
        }
    }

    fn status(self) -> LoginStatus {
        match self {
            Self::Target(failure) => failure.status,
            other => panic!("the target did not refuse: {other:?}"),
        }
    }
}

/// Runs both logins to their end, through the wire format.
fn pair(config: InitiatorConfig, mut target: target::Login) -> End {
    let mut initiator = match initiator::Login::new(config) {
        Ok(login) => login,
        Err(error) => return End::Initiator(error),
    };
    let (mut request, mut text) = initiator.first();
    let fixed = |r: &LoginRequest| (r.version_min, r.version_max, r.isid, r.tsih, r.cid, r.itt);
    let first = fixed(&request);
    for requests in 1.. {
        let received = over_the_wire_request(&request, &text);
        assert_eq!(fixed(&received), first, "what identifies a login and its version stay");
        assert_eq!((received.version_min, received.version_max), (0, 0));
        let mut attached = None;
        let (response, response_text) = match target.handle(&received, &text) {
            Ok(target::Step::Send(response, text)) => (response, text),
            Ok(target::Step::Ready(outcome)) => {
                let cmd_sn = outcome.cmd_sn;
                attached = Some(outcome);
                target.accept(Tsih(9), cmd_sn, cmd_sn.plus(63))
            }
            Err(failure) => {
                let (response, text) = target.failure_response(&failure);
                return match initiator.handle(&response, &text) {
                    Err(LoginError::Refused { status }) => {
                        assert_eq!(status, failure.status);
                        End::Target(failure)
                    }
                    Ok(initiator::Step::Redirected { address, permanent }) => {
                        End::Redirected(address.to_string(), permanent)
                    }
                    other => panic!("after {failure}: {other:?}"),
                };
            }
        };
        let response = over_the_wire_response(&response, &response_text);
        assert_eq!((response.version_active, response.version_max), (0, 0));
        match initiator.handle(&response, &response_text) {
            Ok(initiator::Step::Send(next, next_text)) => (request, text) = (next, next_text),
            Ok(initiator::Step::Established(ours)) => {
                let theirs = attached.expect("established before the target was ready");
                return End::Established(Box::new((*ours, *theirs, requests)));
            }
            Ok(step) => panic!("{step:?}"),
            Err(error) => return End::Initiator(error),
        }
    }
    unreachable!("both sides limit their PDUs")
}

fn over_the_wire_request(request: &LoginRequest, text: &Bytes) -> LoginRequest {
    match Pdu::parse(&request.encode(text.len() as u32)).unwrap() {
        Pdu::LoginRequest(parsed) => parsed,
        other => panic!("{other:?}"),
    }
}

fn over_the_wire_response(response: &LoginResponse, text: &Bytes) -> LoginResponse {
    match Pdu::parse(&response.encode(text.len() as u32)).unwrap() {
        Pdu::LoginResponse(parsed) => parsed,
        other => panic!("{other:?}"),
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.7.1
//= type=test
//# The initiator MUST present both its iSCSI Initiator Name and the iSCSI Target Name to which it
//# wishes to connect in the first Login Request of a new session or connection.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
//= type=test
//# Targets MUST NOT submit parameters that require an additional initiator Login Request in a Login
//# Response with the T bit set to 1.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.2
//= type=test
//# If the next stage is FullFeaturePhase, the target MUST reply with a Login Response with the TSIH
//# value.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.3
//= type=test
//# The initiator MUST indicate its intent to terminate the negotiation by setting the T bit to 1;
//# the target sets the T bit to 1 on the last response.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.5
//= type=test
//# Therefore, the TSIH in the Login PDU MUST be zero to signal session reinstatement.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.6
//= type=test
//# The reserved value 0 MUST be used on the first connection for a new session.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.10
//= type=test
//# The initiator MUST provide some basic parameters in order to enable the target to determine if
//# the initiator may use the target's resources and the initial text parameters for the security
//# exchange.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.1
//= type=test
//# All Login Responses within the Login Phase MUST carry the same Version-max.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.2
//= type=test
//# All Login Responses within the Login Phase MUST carry the same Version-active.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.8
//= type=test
//# The target MUST provide some basic parameters in order to enable the initiator to determine if
//# it is connected to the correct port and the initial text parameters for the security exchange.
#[test]
fn without_authentication_a_login_is_two_round_trips() {
    let (ours, theirs, requests) = pair(config(), target_login(Authentication::None)).established();
    assert_eq!(requests, 2);
    assert_eq!(ours.session, theirs.session);
    assert_eq!(ours.session, Offer::default().session);
    assert_eq!(ours.connection, theirs.connection);
    assert_eq!(ours.connection.max_send_data_segment_length, 262_144);
    assert_eq!((ours.tsih, theirs.tsih), (Tsih(9), Tsih(0)));
    assert_eq!(theirs.initiator_name, INITIATOR);
    assert_eq!(theirs.target_name.as_deref(), Some(TARGET));
    assert_eq!(ours.portal_group_tag, Some(7));
    assert_eq!(ours.peer_alias.as_deref(), Some("a disk"));
    assert_eq!(ours.next_stat_sn, theirs.next_stat_sn);
    assert_eq!((ours.exp_cmd_sn, ours.max_cmd_sn), (CmdSn(1), CmdSn(64)));
    assert_eq!((ours.authenticated_as, theirs.authenticated_as), (None, None));
}

#[test]
fn names_are_compared_in_lower_case() {
    let config = InitiatorConfig { target_name: Some(TARGET.to_uppercase()), ..config() };
    let (_, theirs, _) = pair(config, target_login(Authentication::None)).established();
    assert_eq!(theirs.target_name.as_deref(), Some(TARGET));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
//= type=test
//# Compliant iSCSI initiators and targets MUST implement the CHAP authentication method [RFC1994]
//# (according to Section 12.1.3, including the target authentication option).
//= https://www.rfc-editor.org/rfc/rfc7143#section-12.1
//= type=test
//# Authentication is OPTIONAL to use but MUST be supported by the target and initiator.
//= https://www.rfc-editor.org/rfc/rfc7143#section-12.1
//= type=test
//# The initiator and target MUST implement CHAP.
//= https://www.rfc-editor.org/rfc/rfc7143#section-12.1
//= type=test
//# However, the initiator MUST make the first step specific to the selected authentication method
//# as soon as it is selected.
//= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
//= type=test
//# For CHAP [RFC1994], the initiator MUST use:
//= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
//= type=test
//# The initiator MUST continue with:
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.4
//= type=test
//# Therefore, both Version-min and Version-max MUST be set to 0x00.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.4.1
//= type=test
//# All Login Requests within the Login Phase MUST carry the same Version-max.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.4.2
//= type=test
//# All Login Requests within the Login Phase MUST carry the same Version-min.
#[test]
fn chap_with_every_algorithm_one_way_and_mutual() {
    for algorithm in Algorithm::ALL {
        for mutual in [None, Some(credentials("disk", "secret of the disk"))] {
            let config = InitiatorConfig {
                algorithms: vec![algorithm],
                mutual: mutual.clone(),
                ..chap_config("secret of alice")
            };
            let target = target_login(chap(&Algorithm::ALL, mutual.clone()));
            let (ours, theirs, requests) = pair(config, target).established();
            assert_eq!(theirs.authenticated_as.as_deref(), Some("alice"));
            assert_eq!(ours.authenticated_as, mutual.map(|credentials| credentials.user));
            assert_eq!(requests, 4);
        }
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
//= type=test
//# The target MUST answer with a Login reject with the "Authentication Failure" status or reply
//# with:
#[test]
fn the_first_algorithm_that_both_allow_is_taken() {
    let chosen = |list, allowed: &[Algorithm]| Algorithm::choose(list, allowed);
    assert_eq!(chosen("8,7,6,5", &Algorithm::ALL), Some(Algorithm::Sha3_256));
    assert_eq!(chosen("5,7", &Algorithm::ALL), Some(Algorithm::Md5));
    assert_eq!(chosen("5,7", &[Algorithm::Sha256]), Some(Algorithm::Sha256));
    assert_eq!(chosen("5", &[Algorithm::Sha256]), None);
    assert_eq!(chosen("", &Algorithm::ALL), None);
    assert_eq!(chosen("x,99999999999999999999,-5,261", &Algorithm::ALL), None);
    let config = InitiatorConfig { algorithms: vec![Algorithm::Md5], ..chap_config("x") };
    let end = pair(config, target_login(chap(&[Algorithm::Sha256], None)));
    assert_eq!(end.status(), LoginStatus::AUTHENTICATION_FAILURE);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.2
//= type=test
//# If the security negotiation fails at the target, then the target MUST send the appropriate Login
//# Response PDU.
//= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
//= type=test
//# If the initiator authentication fails, the target MUST answer with a Login reject with
//# "Authentication Failure" status.
#[test]
fn a_wrong_secret_and_an_unknown_user_look_the_same() {
    for (user, secret) in [("alice", "wrong"), ("mallory", "secret of alice"), ("", "")] {
        let config = InitiatorConfig { chap: Some(credentials(user, secret)), ..config() };
        let end = pair(config, target_login(chap(&Algorithm::ALL, None)));
        assert_eq!(end.status(), LoginStatus::AUTHENTICATION_FAILURE);
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
//= type=test
//# If the target authentication fails, the initiator MUST close the connection:
#[test]
fn a_target_that_cannot_prove_itself_is_refused() {
    for theirs in [credentials("disk", "not its secret"), credentials("other", "its secret")] {
        let config = InitiatorConfig {
            mutual: Some(credentials("disk", "its secret")),
            ..chap_config("secret of alice")
        };
        let end = pair(config, target_login(chap(&Algorithm::ALL, Some(theirs))));
        assert!(matches!(end, End::Initiator(LoginError::Chap(ChapError::Failed { .. }))));
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
//= type=test
//# Otherwise, if the initiator required target authentication, the target MUST either answer with a
//# Login reject with "Authentication Failure" or reply with:
#[test]
fn a_target_without_a_secret_of_its_own_refuses_mutual() {
    let config = InitiatorConfig {
        mutual: Some(credentials("disk", "its secret")),
        ..chap_config("secret of alice")
    };
    let end = pair(config, target_login(chap(&Algorithm::ALL, None)));
    assert_eq!(end.status(), LoginStatus::AUTHENTICATION_FAILURE);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
//= type=test
//# Any CHAP secret used for initiator authentication MUST NOT be configured for authentication of
//# any target, and any CHAP secret used for target authentication MUST NOT be configured for
//# authentication of any initiator.
//= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
//= type=test
//# If the CHAP response received by one end of an iSCSI connection is the same as the CHAP response
//# that the receiving endpoint would have generated for the same CHAP challenge, the response MUST
//# be treated as an authentication failure and cause the connection to close (this ensures that the
//# same CHAP secret is not used for authentication in both directions).
#[test]
fn one_secret_for_both_directions_is_refused_by_both_sides() {
    let same = credentials("disk", "secret of alice");
    let config = InitiatorConfig { mutual: Some(same.clone()), ..chap_config("secret of alice") };
    assert_eq!(initiator::Login::new(config).unwrap_err(), LoginError::Chap(ChapError::SameSecret));
    // An initiator that does not check.
    let config = InitiatorConfig {
        mutual: Some(credentials("disk", "another one")),
        ..chap_config("secret of alice")
    };
    match pair(config, target_login(chap(&Algorithm::ALL, Some(same)))) {
        End::Target(failure) => {
            assert_eq!(failure.reason, FailureReason::Chap(ChapError::SameSecret));
        }
        other => panic!("{other:?}"),
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
//= type=test
//# Originators MUST NOT reuse the CHAP challenge sent by the responder for the other direction of a
//# bidirectional authentication.
//= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
//= type=test
//# Responders MUST check for this condition and close the iSCSI TCP connection if it occurs.
#[test]
fn a_reflected_challenge_is_refused() {
    // The initiator's random source yields what the target sent.
    let config = InitiatorConfig {
        mutual: Some(credentials("disk", "its secret")),
        random: random(1),
        ..chap_config("secret of alice")
    };
    let target = target_login(chap(&Algorithm::ALL, Some(credentials("disk", "its secret"))));
    match pair(config, target) {
        End::Initiator(LoginError::Chap(ChapError::Reflected)) => {}
        other => panic!("{other:?}"),
    }
    // An initiator that reflects on purpose.
    let mut target = target_login(chap(&[Algorithm::Md5], Some(credentials("disk", "its"))));
    let first = format!("InitiatorName={INITIATOR}\0TargetName={TARGET}\0AuthMethod=CHAP\0");
    send(&mut target, security(false), &first).unwrap();
    send(&mut target, security(false), "CHAP_A=5\0").unwrap();
    let proof = Algorithm::Md5.respond(1, &Secret::new("secret of alice"), &[1; CHALLENGE_LEN]);
    let hex = |bytes: &[u8]| format_binary(bytes);
    let answer = format!(
        "CHAP_N=alice\0CHAP_R={}\0CHAP_I=9\0CHAP_C={}\0",
        hex(&proof),
        hex(&[1; CHALLENGE_LEN])
    );
    let failure = send(&mut target, security(true), &answer).unwrap_err();
    assert_eq!(failure.reason, FailureReason::Chap(ChapError::Reflected));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
//= type=test
//# Authentication-related security keys (Section 12) MUST be completely negotiated within the Login
//# Phase.
#[test]
fn who_skips_authentication_is_refused() {
    let end = pair(config(), target_login(chap(&Algorithm::ALL, None)));
    assert_eq!(end.status(), LoginStatus::AUTHENTICATION_FAILURE);
    // Straight to the operational stage.
    let mut target = target_login(chap(&Algorithm::ALL, None));
    let failure = send(&mut target, operational(), &names()).unwrap_err();
    assert_eq!(failure.status, LoginStatus::AUTHENTICATION_FAILURE);
    let names = format!("InitiatorName={INITIATOR}\0TargetName={TARGET}\0");
    // Only None offered; transit without any AuthMethod; transit right after AuthMethod.
    for text in [format!("{names}AuthMethod=None\0"), names.clone()] {
        let mut target = target_login(chap(&Algorithm::ALL, None));
        let failure = send(&mut target, security(true), &text).unwrap_err();
        assert_eq!(failure.status, LoginStatus::AUTHENTICATION_FAILURE, "{text:?}");
    }
    let mut target = target_login(chap(&Algorithm::ALL, None));
    let step = send(&mut target, security(true), &format!("{names}AuthMethod=CHAP,None\0"));
    let (response, text) = sent(step.unwrap());
    assert!(!response.transit);
    assert!(text.contains("AuthMethod=CHAP\0"), "{text}");
    // And with CHAP half way through.
    let (response, _) = sent(send(&mut target, security(true), "CHAP_A=5\0").unwrap());
    assert!(!response.transit);
    let (response, _) = sent(send(&mut target, security(true), "").unwrap());
    assert!(!response.transit);
    let operational = LoginRequest { csg: Stage::LOGIN_OPERATIONAL_NEGOTIATION, ..security(false) };
    assert!(send(&mut target, operational, "").is_err());
}

#[test]
fn a_response_cannot_be_replayed_or_sent_before_its_challenge() {
    let proof = Algorithm::Md5.respond(1, &Secret::new("secret of alice"), &[1; CHALLENGE_LEN]);
    let proof = format_binary(&proof);
    let first = format!("InitiatorName={INITIATOR}\0TargetName={TARGET}\0AuthMethod=CHAP\0");
    let early = format!("{first}CHAP_A=5\0CHAP_N=alice\0CHAP_R={proof}\0");
    let failure =
        send(&mut target_login(chap(&Algorithm::ALL, None)), security(true), &early).unwrap_err();
    assert_eq!(failure.status, LoginStatus::INITIATOR_ERROR);
    // With another challenge the same proof is worth nothing.
    let mut target = target::Login::new(TargetConfig {
        offer: Offer::default(),
        authenticator: Arc::new(Site {
            authentication: chap(&Algorithm::ALL, None),
            user: credentials("alice", "secret of alice"),
        }),
        random: random(3),
    });
    send(&mut target, security(false), &first).unwrap();
    send(&mut target, security(false), "CHAP_A=5\0").unwrap();
    let replayed = format!("CHAP_N=alice\0CHAP_R={proof}\0");
    assert!(send(&mut target, security(true), &replayed).is_err());
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-9.2
//= type=test
//# Whenever an iSCSI target gets a request or response whose keys, or their values, are not
//# according to the step definition, it MUST answer with a Login reject with the "Initiator Error"
//# or "Missing Parameter" status.
//= https://www.rfc-editor.org/rfc/rfc7143#section-9.2
//= type=test
//# These statuses are not intended for cryptographically incorrect values such as the CHAP
//# response, for which the "Authentication Failure" status MUST be specified.
#[test]
fn chap_keys_out_of_step_are_told_from_a_wrong_proof() {
    let first = format!("InitiatorName={INITIATOR}\0TargetName={TARGET}\0AuthMethod=CHAP\0");
    for (answer, status) in [
        ("CHAP_N=alice\0", LoginStatus::MISSING_PARAMETER),
        ("CHAP_R=0x00112233445566778899aabbccddeeff\0", LoginStatus::MISSING_PARAMETER),
        ("CHAP_A=5\0", LoginStatus::INITIATOR_ERROR),
        ("CHAP_N=alice\0CHAP_R=0x00\0", LoginStatus::INITIATOR_ERROR),
        (
            "CHAP_N=alice\0CHAP_R=0x00112233445566778899aabbccddeeff\0",
            LoginStatus::AUTHENTICATION_FAILURE,
        ),
    ] {
        let mut target = target_login(chap(&Algorithm::ALL, None));
        send(&mut target, security(false), &first).unwrap();
        send(&mut target, security(false), "CHAP_A=5\0").unwrap();
        let failure = send(&mut target, security(true), answer).unwrap_err();
        assert_eq!(failure.status, status, "{answer:?}");
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-12.1.3
//= type=test
//# To guarantee interoperability, initiators MUST always offer it as one of the proposed
//# algorithms.
#[test]
fn md5_is_offered_whatever_else_is() {
    let mut initiator = initiator::Login::new(chap_config("secret of alice")).unwrap();
    let (request, _) = initiator.first();
    let response = initiator_response(&request);
    let step = initiator.handle(&response, b"AuthMethod=CHAP\0").unwrap();
    let initiator::Step::Send(_, text) = step else { panic!("{step:?}") };
    let text = String::from_utf8(text.to_vec()).unwrap();
    let offered = text.trim_end_matches('\0').strip_prefix("CHAP_A=").unwrap();
    assert!(offered.split(',').any(|number| number == "5"), "{offered}");
}

/// A response that agrees to nothing yet.
fn initiator_response(request: &LoginRequest) -> LoginResponse {
    assert_eq!((request.version_min, request.version_max), (0, 0));
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
        stat_sn: StatSn(0),
        exp_cmd_sn: CmdSn(1),
        max_cmd_sn: CmdSn(1),
        status: LoginStatus::SUCCESS,
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.1
//= type=test
//# The initiator MUST use the value presented as a response to the first Login Request.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.2
//= type=test
//# The initiator MUST use the value presented as a response to the first Login Request.
#[test]
fn a_version_that_was_not_offered_ends_the_login() {
    let mut initiator = initiator::Login::new(config()).unwrap();
    let (request, _) = initiator.first();
    let response = LoginResponse { version_active: 1, ..initiator_response(&request) };
    let error = initiator.handle(&response, b"").unwrap_err();
    assert_eq!(error, LoginError::Mismatch { field: "Version-active" });
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.6
//= type=test
//# A Login Response with the T bit set to 1 MUST NOT contain key=value pairs that may require
//# additional answers from the initiator within the same stage.
#[test]
fn an_offer_in_the_last_response_ends_the_login() {
    let mut config = config();
    config.offer.session.task_reporting = TaskReporting::Rfc3720; // nothing to be answered
    let mut initiator = initiator::Login::new(config).unwrap();
    let (request, _) = initiator.first();
    let to_operational = LoginResponse {
        transit: true,
        nsg: Stage::LOGIN_OPERATIONAL_NEGOTIATION,
        ..initiator_response(&request)
    };
    let step = initiator.handle(&to_operational, b"AuthMethod=None\0").unwrap();
    let initiator::Step::Send(request, _) = step else { panic!("{step:?}") };
    assert!(request.transit && request.nsg == Stage::FULL_FEATURE_PHASE);
    let last = LoginResponse {
        transit: true,
        nsg: Stage::FULL_FEATURE_PHASE,
        tsih: Tsih(1),
        ..initiator_response(&request)
    };
    let error = initiator.handle(&last, b"TaskReporting=RFC3720\0").unwrap_err();
    assert_eq!(error, LoginError::LateOffer);
}

#[test]
fn chap_values_longer_than_any_buffer_are_refused() {
    let long_hex = format!("0x{}", "ab".repeat(1000));
    let long_base64 = format!("0b{}", "QUJD".repeat(400));
    for response in [&long_hex, &long_base64, "0x", "0b", "0xabc", "0bä", "5", ""] {
        let mut target = target_login(chap(&Algorithm::ALL, None));
        let first = format!("InitiatorName={INITIATOR}\0TargetName={TARGET}\0AuthMethod=CHAP\0");
        send(&mut target, security(false), &first).unwrap();
        send(&mut target, security(false), "CHAP_A=7\0").unwrap();
        let text = format!("CHAP_N=alice\0CHAP_R={response}\0");
        assert!(send(&mut target, security(true), &text).is_err(), "{response}");
    }
}

#[test]
fn credentials_mean_authentication_or_nothing_unless_told_otherwise() {
    let optional = || InitiatorConfig { chap_optional: true, ..chap_config("whatever") };
    let (ours, theirs, requests) =
        pair(optional(), target_login(Authentication::None)).established();
    assert_eq!((ours.authenticated_as, theirs.authenticated_as), (None, None));
    assert_eq!(requests, 3);
    let mutual = InitiatorConfig { mutual: Some(credentials("disk", "its secret")), ..optional() };
    for config in [chap_config("whatever"), mutual] {
        let mut login = initiator::Login::new(config.clone()).unwrap();
        let text = String::from_utf8(login.first().1.to_vec()).unwrap();
        assert!(text.contains("AuthMethod=CHAP\0"), "{text}");
        let end = pair(config, target_login(Authentication::None));
        assert_eq!(end.status(), LoginStatus::AUTHENTICATION_FAILURE);
    }
}

/// An alias would tell that the target is there.
#[test]
fn the_alias_waits_for_the_proof() {
    let user = |config: InitiatorConfig| pair(config, target_login(chap(&Algorithm::ALL, None)));
    let (ours, ..) = user(chap_config("secret of alice")).established();
    assert_eq!(ours.peer_alias.as_deref(), Some("a disk"));
    let mut target = target_login(chap(&Algorithm::ALL, None));
    let text = format!("{}AuthMethod=CHAP\0", names());
    let (_, answer) = sent(send(&mut target, security(false), &text).unwrap());
    assert_eq!(answer, "TargetPortalGroupTag=7\0AuthMethod=CHAP\0");
}

/// Who answers in the target's place and wants no proof is not taken for it.
#[test]
fn a_target_that_chooses_none_is_refused() {
    let config = chap_config("secret of alice");
    let (itt, isid) = (config.itt, config.isid);
    let mut login = initiator::Login::new(config).unwrap();
    login.first();
    let response = LoginResponse {
        transit: false,
        continues: false,
        csg: Stage::SECURITY_NEGOTIATION,
        nsg: Stage(0),
        version_max: 0,
        version_active: 0,
        isid,
        tsih: Tsih(0),
        itt,
        stat_sn: StatSn(0),
        exp_cmd_sn: CmdSn(1),
        max_cmd_sn: CmdSn(1),
        status: LoginStatus::SUCCESS,
    };
    let error = login.handle(&response, b"AuthMethod=None\0").unwrap_err();
    assert_eq!(error, LoginError::AuthMethod { answer: "None".to_owned() });
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
//= type=test
//# There MUST NOT be more than one outstanding Login Request or Login Response on an iSCSI
//# connection.
//= https://www.rfc-editor.org/rfc/rfc7143#section-9.2
//= type=test
//# Whenever an iSCSI initiator gets a response whose keys, or their values, are not according to
//# the step definition, it MUST abort the connection.
#[test]
fn a_target_that_ignores_the_mutual_flag_is_refused() {
    let config = InitiatorConfig {
        mutual: Some(credentials("disk", "its secret")),
        ..chap_config("secret of alice")
    };
    let itt = config.itt;
    let isid = config.isid;
    let mut initiator = initiator::Login::new(config).unwrap();
    initiator.first();
    let response = |transit| LoginResponse {
        transit,
        continues: false,
        csg: Stage::SECURITY_NEGOTIATION,
        nsg: if transit { Stage::LOGIN_OPERATIONAL_NEGOTIATION } else { Stage(0) },
        version_max: 0,
        version_active: 0,
        isid,
        tsih: Tsih(0),
        itt,
        stat_sn: StatSn(0),
        exp_cmd_sn: CmdSn(1),
        max_cmd_sn: CmdSn(1),
        status: LoginStatus::SUCCESS,
    };
    initiator.handle(&response(false), b"AuthMethod=CHAP\0").unwrap();
    initiator.handle(&response(false), b"CHAP_A=5\0CHAP_I=1\0CHAP_C=0x0102\0").unwrap();
    // Transit granted without CHAP_N and CHAP_R (CVE-2024-45751 the other way round).
    let error = initiator.handle(&response(true), b"").unwrap_err();
    assert_eq!(error, LoginError::Chap(ChapError::Missing { key: "CHAP_N" }));
    // And it stays refused.
    assert_eq!(initiator.handle(&response(true), b"").unwrap_err(), LoginError::OutOfPlace);
}

#[test]
fn discovery_needs_no_target_name_and_gets_no_group() {
    let config = InitiatorConfig { target_name: None, ..config() };
    let (ours, theirs, _) = pair(config, target_login(Authentication::None)).established();
    assert!(ours.discovery && theirs.discovery);
    assert_eq!((ours.target_name, theirs.target_name), (None, None));
    assert_eq!(ours.portal_group_tag, None);
    assert_eq!(theirs.session.max_connections, 1);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.5
//= type=test
//# All of the redirection Status-Class responses MUST return one or more text key parameters of the
//# type "TargetAddress", which indicates the target's new address.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.8
//= type=test
//# If the TargetAddress is returned as the result of a redirect status in a Login Response, the
//# comma and portal-group-tag MUST be omitted.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.1
//= type=test
//# During the Login Phase, the iSCSI target MUST return the TargetPortalGroupTag key
//# with the first Login Response PDU with which it is allowed to do so (i.e., the first
//# Login Response issued after the first Login Request with the C bit set to 0) for all
//# session types.
#[test]
fn discovery_may_name_a_target_and_has_to_authenticate_for_it() {
    let text = format!("{}SessionType=Discovery\0", names());
    let mut target = target_login(Authentication::None);
    let (_, answer) = sent(send(&mut target, security(true), &text).unwrap());
    assert!(answer.contains("TargetPortalGroupTag=7\0"), "{answer}");
    let outcome = match send(&mut target, operational(), "").unwrap() {
        target::Step::Ready(outcome) => outcome,
        step => panic!("{step:?}"),
    };
    assert!(outcome.discovery);
    assert_eq!(outcome.target_name.as_deref(), Some(TARGET));
    let other = text.replace(TARGET, "iqn.2026-11.org.example:none");
    let failure = send(&mut target_login(Authentication::None), security(true), &other);
    assert_eq!(failure.unwrap_err().status, LoginStatus::NOT_FOUND);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.2
//= type=test
//# The target MUST reply with the first option in the list it supports and is allowed to
//# use for the specific initiator, unless it does not support any, in which case it MUST
//# answer with "Reject" (see Section 6.2).
#[test]
fn methods_are_chosen_or_rejected() {
    let answer = |authentication, offered: &str| {
        let mut target = target_login(authentication);
        let text = format!("{}AuthMethod={offered}\0", names());
        match send(&mut target, security(false), &text) {
            Ok(step) => sent(step).1,
            Err(failure) => {
                let (response, text) = target.failure_response(&failure);
                assert_eq!(response.status, LoginStatus::AUTHENTICATION_FAILURE);
                String::from_utf8(text.to_vec()).unwrap()
            }
        }
    };
    let demanded = || chap(&Algorithm::ALL, None);
    assert!(answer(demanded(), "KRB5,CHAP,None").ends_with("AuthMethod=CHAP\0"));
    assert!(answer(Authentication::None, "KRB5,CHAP,None").ends_with("AuthMethod=None\0"));
    assert_eq!(answer(demanded(), "KRB5,None"), "AuthMethod=Reject\0");
    assert_eq!(answer(Authentication::None, "KRB5"), "AuthMethod=Reject\0");
}

#[test]
fn admission_decides_by_name() {
    let other = |name: &str| InitiatorConfig { target_name: Some(name.to_owned()), ..config() };
    let end = pair(other("iqn.2026-11.org.example:none"), target_login(Authentication::None));
    assert_eq!(end.status(), LoginStatus::NOT_FOUND);
    let stranger = InitiatorConfig { initiator_name: format!("{INITIATOR}.stranger"), ..config() };
    let end = pair(stranger, target_login(Authentication::None));
    assert_eq!(end.status(), LoginStatus::AUTHORIZATION_FAILURE);
    match pair(other(MOVED), target_login(Authentication::None)) {
        End::Redirected(address, permanent) => {
            assert_eq!((address.as_str(), permanent), ("[2001:db8::1]:3261", true));
        }
        end => panic!("{end:?}"),
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2.1
//= type=test
//# The constant "None" MUST always be used to indicate a missing function.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.1
//= type=test
//# The following table lists cyclic integrity checksums that can be negotiated for the digests and
//# MUST be implemented by every iSCSI initiator and target.
#[test]
fn digests_are_what_both_want() {
    use DigestPreference::{Avoid, Never, Prefer, Require};
    let cases = [
        (Never, Never, Some(DigestKind::None)),
        (Avoid, Avoid, Some(DigestKind::None)),
        (Prefer, Avoid, Some(DigestKind::Crc32c)),
        (Avoid, Require, Some(DigestKind::Crc32c)),
        (Require, Avoid, Some(DigestKind::Crc32c)),
        (Never, Require, None),
        (Require, Never, None),
    ];
    for (ours, theirs, expected) in cases {
        let with = |kind| Offer { header_digest: kind, data_digest: kind, ..Offer::default() };
        let target = target::Login::new(TargetConfig {
            offer: with(theirs),
            authenticator: Arc::new(Site {
                authentication: Authentication::None,
                user: credentials("", ""),
            }),
            random: random(1),
        });
        let config = InitiatorConfig { offer: with(ours), ..config() };
        match (pair(config, target), expected) {
            (End::Established(end), Some(kind)) => {
                assert_eq!(end.0.connection.header_digest, kind, "{ours:?} {theirs:?}");
                assert_eq!(end.1.connection, end.0.connection);
            }
            (End::Target(failure), None) => {
                assert_eq!(failure.status, LoginStatus::INITIATOR_ERROR);
            }
            (end, _) => panic!("{ours:?} {theirs:?}: {end:?}"),
        }
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.6
//= type=test
//# Otherwise, the TSIH sent by the target at the conclusion of the successful login of the first
//# connection for this session MUST be used.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.6
//= type=test
//# All Login Requests within a Login Phase MUST carry the same TSIH.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.7
//= type=test
//# All Login Requests within the Login Phase MUST carry the same CID.
#[test]
fn a_later_connection_negotiates_no_session_keys() {
    let session = SessionParams { max_connections: 4, ..SessionParams::default() };
    let config = InitiatorConfig { tsih: Tsih(9), cid: Cid(1), joining: Some(session), ..config() };
    let (ours, theirs, _) = pair(config, target_login(Authentication::None)).established();
    assert_eq!(ours.session, session);
    assert_eq!((theirs.tsih, theirs.cid), (Tsih(9), Cid(1)));
}

/// An operational request that asks for full-feature phase.
fn operational() -> LoginRequest {
    LoginRequest {
        transit: true,
        continues: false,
        csg: Stage::LOGIN_OPERATIONAL_NEGOTIATION,
        nsg: Stage::FULL_FEATURE_PHASE,
        version_max: 0,
        version_min: 0,
        isid: Isid::random(1, 1),
        tsih: Tsih(0),
        itt: Itt(5),
        cid: Cid(0),
        cmd_sn: CmdSn(10),
        exp_stat_sn: StatSn(77),
    }
}

fn security(transit: bool) -> LoginRequest {
    let nsg = if transit { Stage::LOGIN_OPERATIONAL_NEGOTIATION } else { Stage(0) };
    LoginRequest { transit, csg: Stage::SECURITY_NEGOTIATION, nsg, ..operational() }
}

fn send(
    target: &mut target::Login,
    request: LoginRequest,
    text: &str,
) -> Result<target::Step, LoginFailure> {
    target.handle(&request, text.as_bytes())
}

fn sent(step: target::Step) -> (LoginResponse, String) {
    match step {
        target::Step::Send(response, text) => (response, String::from_utf8(text.to_vec()).unwrap()),
        step => panic!("{step:?}"),
    }
}

fn names() -> String {
    format!("InitiatorName={INITIATOR}\0TargetName={TARGET}\0")
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
//= type=test
//# The initial Login Request of any connection MUST include the InitiatorName key=value pair.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
//= type=test
//# For any connection within a session whose type is not "Discovery", the first Login Request MUST
//# also include the TargetName key=value pair.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
//= type=test
//# If such an attempt is detected by the target, the target MUST respond with a Login reject
//# (initiator error); if detected by the initiator, the initiator MUST drop the connection.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.4
//= type=test
//# The initiator of the TCP connection MUST provide this key to the remote endpoint in the first
//# Login Request if the initiator is not establishing a Discovery session.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.5
//= type=test
//# The initiator of the TCP connection MUST provide this key to the remote endpoint at the first
//# login of the Login Phase for every connection.
#[test]
fn what_the_first_request_lacks_is_named() {
    for (text, status) in [
        (String::new(), LoginStatus::MISSING_PARAMETER),
        (format!("TargetName={TARGET}\0"), LoginStatus::MISSING_PARAMETER),
        (format!("InitiatorName={INITIATOR}\0"), LoginStatus::MISSING_PARAMETER),
        (
            format!("InitiatorName={INITIATOR}\0SessionType=Normal\0"),
            LoginStatus::MISSING_PARAMETER,
        ),
        (format!("{}SessionType=Odd\0", names()), LoginStatus::INITIATOR_ERROR),
        (names().replace(':', "/../"), LoginStatus::INITIATOR_ERROR),
        (names().replace(':', "$(reboot)"), LoginStatus::INITIATOR_ERROR),
        (names().trim_end_matches('\0').to_owned(), LoginStatus::INITIATOR_ERROR),
        (names().replace('=', ":"), LoginStatus::INITIATOR_ERROR),
        (format!("{}MaxConnections=4\0MaxConnections=4\0", names()), LoginStatus::INITIATOR_ERROR),
        (format!("{}TargetPortalGroupTag=1\0", names()), LoginStatus::INITIATOR_ERROR),
        (format!("{}SendTargets=All\0", names()), LoginStatus::INITIATOR_ERROR),
        (format!("{}CHAP_A=5\0", names()), LoginStatus::INITIATOR_ERROR),
    ] {
        let mut target = target_login(Authentication::None);
        let failure = send(&mut target, operational(), &text).unwrap_err();
        assert_eq!(failure.status, status, "{text:?}: {failure}");
        let (response, _) = target.failure_response(&failure);
        assert_eq!((response.itt, response.isid), (Itt(5), Isid::random(1, 1)));
        assert!(!response.transit);
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-12
//= type=test
//# Other keys MUST NOT be used.
#[test]
fn operational_keys_wait_for_their_stage() {
    let mut target = target_login(Authentication::None);
    let text = format!("{}AuthMethod=None\0MaxBurstLength=65536\0", names());
    let failure = send(&mut target, security(true), &text).unwrap_err();
    assert_eq!(failure.status, LoginStatus::INITIATOR_ERROR);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
//= type=test
//# The Login Phase MAY include a SecurityNegotiation stage and a LoginOperationalNegotiation stage
//# and MUST include at least one of them, but the included stage MAY be empty except for the
//# mandatory names.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
//= type=test
//# The Login Final-Response that accepts a Login Request can only come as a response to a Login
//# Request with the T bit set to 1, and both the request and response MUST indicate
//# FullFeaturePhase as the next phase via the NSG field.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.4.1
//= type=test
//# The target MUST use the value presented with the first Login Request.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.4.2
//= type=test
//# The target MUST use the value presented with the first Login Request.
#[test]
fn versions_and_stages_that_cannot_be() {
    let first = |request| send(&mut target_login(Authentication::None), request, &names());
    let failure = first(LoginRequest { version_min: 1, version_max: 2, ..operational() });
    assert_eq!(failure.unwrap_err().status, LoginStatus::UNSUPPORTED_VERSION);
    assert!(first(LoginRequest { version_max: 255, ..operational() }).is_ok());
    for csg in 0..4 {
        for nsg in 0..4 {
            for transit in [false, true] {
                let request =
                    LoginRequest { csg: Stage(csg), nsg: Stage(nsg), transit, ..operational() };
                let valid = csg < 2 && (!transit || matches!((csg, nsg), (0, 1) | (0 | 1, 3)));
                assert_eq!(first(request).is_ok(), valid, "CSG {csg} NSG {nsg} T {transit}");
            }
        }
    }
    assert!(first(LoginRequest { continues: true, ..operational() }).is_err());
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
//= type=test
//# There MUST NOT be more than one outstanding Login Request or Login Response on an iSCSI
//# connection.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
//= type=test
//# If both stages are used, the SecurityNegotiation MUST precede the LoginOperationalNegotiation.
//= https://www.rfc-editor.org/rfc/rfc7143#section-6.3
//= type=test
//# The selected NSG MUST NOT exceed the value stated by the initiator.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.9
//= type=test
//# The iSCSI target returns this key to the initiator in the Login Response PDU to the first Login
//# Request PDU that has the C bit set to 0 when TargetName is given by the initiator.
#[test]
fn stages_do_not_go_back() {
    let mut target = target_login(Authentication::None);
    let text = format!("{}AuthMethod=None\0", names());
    let (response, text) = sent(send(&mut target, security(true), &text).unwrap());
    assert!(response.transit);
    assert_eq!(response.nsg, Stage::LOGIN_OPERATIONAL_NEGOTIATION);
    assert!(text.contains("TargetPortalGroupTag=7\0") && text.contains("AuthMethod=None\0"));
    assert!(send(&mut target.clone(), security(true), "").is_err());
    assert!(matches!(send(&mut target, operational(), "").unwrap(), target::Step::Ready(_)));
    // The connection belongs to a session now.
    assert!(send(&mut target, operational(), "").is_err());
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12.7
//= type=test
//# The target MUST use the value presented with the first Login Request.
#[test]
fn what_identifies_a_login_does_not_change() {
    let open = LoginRequest { transit: false, ..operational() };
    for changed in [
        LoginRequest { isid: Isid::random(2, 1), ..open.clone() },
        LoginRequest { tsih: Tsih(3), ..open.clone() },
        LoginRequest { itt: Itt(6), ..open.clone() },
        LoginRequest { cid: Cid(1), ..open.clone() },
    ] {
        let mut target = target_login(Authentication::None);
        send(&mut target, open.clone(), &names()).unwrap();
        let failure = send(&mut target, changed, "").unwrap_err();
        assert!(matches!(failure.reason, FailureReason::Changed { .. }), "{failure}");
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-13.25
//= type=test
//# However, the implementation MUST NOT respond with a "NotUnderstood" value for either of these
//# keys.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.25
//= type=test
//# When an IFMarkInt or OFMarkInt key is received, a compliant iSCSI implementation MUST respond
//# with the constant "Reject" value.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.25
//= type=test
//# The implementation MUST NOT respond with a "NotUnderstood" value for either of these keys.
#[test]
fn keys_are_answered_as_libiscsi_sends_them() {
    let mut target = target_login(Authentication::None);
    let (first, _) = sent(
        send(
            &mut target,
            security(true),
            &format!("{}InitiatorAlias=me\0SessionType=Normal\0AuthMethod=CHAP,None\0", names()),
        )
        .unwrap(),
    );
    assert_eq!(first.stat_sn, StatSn(77));
    // The names come a second time, as they do there.
    let text = format!(
        "{}SessionType=Normal\0HeaderDigest=None,CRC32C\0DataDigest=None\0InitialR2T=No\0\
         ImmediateData=Yes\0MaxBurstLength=262144\0FirstBurstLength=262144\0\
         MaxRecvDataSegmentLength=262144\0DataPDUInOrder=Yes\0DefaultTime2Wait=2\0\
         DefaultTime2Retain=0\0IFMarker=No\0OFMarker=No\0ErrorRecoveryLevel=0\0\
         MaxConnections=1\0MaxOutstandingR2T=1\0DataSequenceInOrder=Yes\0\
         X-com.example.Speed=warp\0OFMarkInt=2048\0iSCSIProtocolLevel=2\0\
         TaskReporting=FastAbort,RFC3720\0",
        names()
    );
    let outcome = match send(&mut target, operational(), &text).unwrap() {
        target::Step::Ready(outcome) => outcome,
        step => panic!("{step:?}"),
    };
    let (response, answer) = target.accept(Tsih(4), CmdSn(10), CmdSn(41));
    let answer = String::from_utf8(answer.to_vec()).unwrap();
    let expected = "HeaderDigest=None\0DataDigest=None\0InitialR2T=No\0ImmediateData=Yes\0\
         MaxBurstLength=262144\0DataPDUInOrder=Yes\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0\
         IFMarker=No\0OFMarker=No\0ErrorRecoveryLevel=0\0MaxConnections=1\0\
         MaxOutstandingR2T=1\0DataSequenceInOrder=Yes\0X-com.example.Speed=NotUnderstood\0\
         OFMarkInt=Reject\0iSCSIProtocolLevel=2\0TaskReporting=FastAbort\0\
         FirstBurstLength=262144\0MaxRecvDataSegmentLength=262144\0";
    assert_eq!(answer, expected);
    assert_eq!((response.tsih, response.max_cmd_sn), (Tsih(4), CmdSn(41)));
    assert_eq!(response.stat_sn, StatSn(78));
    assert_eq!(outcome.next_stat_sn, StatSn(79));
    assert_eq!(outcome.session.first_burst_length, 262_144);
    assert_eq!(outcome.session.default_time2retain, 0);
    assert_eq!(outcome.peer_alias.as_deref(), Some("me"));
    assert_eq!(outcome.cmd_sn, CmdSn(10));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.2
//= type=test
//# A target receiving a Text or Login Request with the C bit set to 1 MUST answer with a Text or
//# Login Response with no data segment (DataSegmentLength 0).
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.13.6
//= type=test
//# If the Status-Class is 0, the T bit MUST NOT be set to 1 if the T bit in the request was set to
//# 0.
#[test]
fn text_may_be_cut_anywhere() {
    let text = format!("{}AuthMethod=CHAP\0", names());
    for cut in 0..text.len() {
        let mut target = target_login(chap(&Algorithm::ALL, None));
        let (head, tail) = text.split_at(cut);
        let partial = LoginRequest { continues: true, ..security(false) };
        let (response, answer) = sent(send(&mut target, partial, head).unwrap());
        assert!(answer.is_empty() && !response.transit && !response.continues);
        let (_, answer) = sent(send(&mut target, security(false), tail).unwrap());
        assert!(answer.contains("AuthMethod=CHAP\0"));
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-6.1
//= type=test
//# Any iSCSI target or initiator MUST support receiving at least 8192 bytes of key=value data in a
//# negotiation sequence.
#[test]
fn text_without_end_ends_the_login() {
    let endless = LoginRequest { continues: true, ..security(false) };
    // By size …
    let mut target = target_login(Authentication::None);
    let page = "A".repeat(8192);
    let failed =
        (0..LOGIN_PDUS_MAX).position(|_| send(&mut target, endless.clone(), &page).is_err());
    assert_eq!(failed, Some(2));
    // … and by count.
    let mut target = target_login(Authentication::None);
    let failed =
        (0..2 * LOGIN_PDUS_MAX).position(|_| send(&mut target, endless.clone(), "A").is_err());
    assert_eq!(failed, Some(LOGIN_PDUS_MAX as usize));
}

#[test]
fn long_answers_are_cut_and_fetched() {
    let mut target = target_login(Authentication::None);
    let unknown: String = (0..500).map(|i| format!("X-com.example.key{i}=1\0")).collect();
    let (head, tail) = unknown.split_at(8000);
    let partial = LoginRequest { continues: true, transit: false, ..operational() };
    send(&mut target, partial, &format!("{}{head}", names())).unwrap();
    let mut step = send(&mut target, operational(), tail).unwrap();
    let mut answer = String::new();
    let mut pieces = 0;
    loop {
        match step {
            target::Step::Send(response, text) => {
                assert!(response.continues && !response.transit && text.len() <= 8192);
                answer += std::str::from_utf8(&text).unwrap();
                pieces += 1;
                step = send(&mut target, operational(), "").unwrap();
            }
            target::Step::Ready(_) => {
                let (response, text) = target.accept(Tsih(1), CmdSn(0), CmdSn(0));
                assert!(response.transit);
                answer += std::str::from_utf8(&text).unwrap();
                break;
            }
        }
    }
    assert!(pieces > 0);
    assert_eq!(answer.matches("=NotUnderstood\0").count(), 500);
}

proptest! {
    /// Whatever comes before login, the target answers or refuses; it never panics, and never
    /// lets anybody in who did not authenticate.
    #[test]
    fn arbitrary_requests_neither_panic_nor_get_in(
        requests in proptest::collection::vec(
            (any::<[u8; 4]>(), proptest::collection::vec(fragment(), 0..6)), 0..12),
    ) {
        let mut target = target_login(chap(&Algorithm::ALL, None));
        for (flags, fragments) in requests {
            let request = LoginRequest {
                transit: flags[0] & 1 != 0,
                continues: flags[0] & 2 != 0,
                csg: Stage(flags[1] & 3),
                nsg: Stage(flags[2] & 3),
                version_min: flags[3] & 1,
                ..operational()
            };
            match target.handle(&request, &fragments.concat()) {
                Ok(step) => prop_assert!(!matches!(step, target::Step::Ready(_))),
                Err(failure) => {
                    prop_assert!(!failure.status.is_success());
                    break;
                }
            }
        }
    }

    /// A correct login as bytes, some of them changed, in pieces: through framer, codec and login.
    #[test]
    fn damaged_logins_neither_panic_nor_get_in_as_another(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        piece in 1usize..200,
    ) {
        let proof = Algorithm::Sha256.respond(1, &Secret::new("secret of alice"), &[1; 32]);
        let texts = [
            (security(false), format!("{}AuthMethod=CHAP\0", names())),
            (security(false), "CHAP_A=7\0".to_owned()),
            (security(true), format!("CHAP_N=alice\0CHAP_R={}\0", format_binary(&proof))),
            (operational(), "MaxBurstLength=65536\0HeaderDigest=CRC32C,None\0".to_owned()),
        ];
        let mut bytes = Vec::new();
        for (request, text) in &texts {
            let header = request.encode(text.len() as u32);
            bytes.extend(Framing::default().pdu_bytes(&header, text.as_bytes()));
        }
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let mut target = target_login(chap(&Algorithm::ALL, None));
        let mut framer = Framer::new(Framing::default(), Limits::LOGIN);
        'login: for piece in bytes.chunks(piece) {
            framer.push(piece);
            loop {
                let pdu = match framer.next_pdu() {
                    Ok(Some((header, text))) => Pdu::parse(&header).map(|pdu| (pdu, text)),
                    Ok(None) => break,
                    Err(_) => break 'login,
                };
                let Ok((Pdu::LoginRequest(request), text)) = pdu else { break 'login };
                match target.handle(&request, &text) {
                    Ok(target::Step::Send(..)) => {}
                    Ok(target::Step::Ready(outcome)) => {
                        prop_assert_eq!(outcome.authenticated_as.as_deref(), Some("alice"));
                        break 'login;
                    }
                    Err(failure) => {
                        let (response, _) = target.failure_response(&failure);
                        prop_assert!(!response.status.is_success());
                        break 'login;
                    }
                }
            }
        }
    }

    /// The same of a target that lies to an initiator: it is never convinced of an identity that
    /// was not proved.
    #[test]
    fn arbitrary_responses_neither_panic_nor_convince(
        responses in proptest::collection::vec(
            (any::<[u8; 4]>(), proptest::collection::vec(fragment(), 0..6)), 0..12),
    ) {
        let config = InitiatorConfig {
            mutual: Some(credentials("disk", "its secret")),
            ..chap_config("secret of alice")
        };
        let (isid, itt) = (config.isid, config.itt);
        let mut initiator = initiator::Login::new(config).unwrap();
        initiator.first();
        for (flags, fragments) in responses {
            let response = LoginResponse {
                transit: flags[0] & 1 != 0,
                continues: flags[0] & 2 != 0,
                csg: Stage(flags[1] & 3),
                nsg: Stage(flags[2] & 3),
                version_max: 0,
                version_active: 0,
                isid,
                tsih: Tsih(1),
                itt,
                stat_sn: StatSn(0),
                exp_cmd_sn: CmdSn(1),
                max_cmd_sn: CmdSn(1),
                status: LoginStatus(u16::from(flags[3] & 3) << 8),
            };
            match initiator.handle(&response, &fragments.concat()) {
                Ok(step) => prop_assert!(!matches!(step, initiator::Step::Established(_))),
                Err(_) => break,
            }
        }
    }
}

/// Pieces that login texts are made of, whole, broken and random.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    let texts = [
        "AuthMethod=CHAP\0",
        "AuthMethod=None\0",
        "AuthMethod=CHAP,None\0",
        "CHAP_A=5\0",
        "CHAP_A=5,6,7,8\0",
        "CHAP_I=1\0CHAP_C=0x0102030405060708\0",
        "CHAP_N=alice\0CHAP_R=0x00112233445566778899aabbccddeeff\0",
        "CHAP_N=disk\0CHAP_R=0b\0",
        "MaxBurstLength=262144\0FirstBurstLength=0xffffffffffffffffff\0",
        "HeaderDigest=CRC32C,None\0",
        "SessionType=Discovery\0",
        "MaxRecvDataSegmentLength=512\0",
        "TargetPortalGroupTag=1\0",
        "X-odd\0",
        "=\0",
    ];
    prop_oneof![
        2 => Just(names().into_bytes()),
        6 => proptest::sample::select(texts.map(|text| text.as_bytes().to_vec()).to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ]
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-9.2.1
//= type=test
//# Implementations MUST support the use of up to 128-bit random CHAP secrets, including the means
//# to generate such secrets and to accept them from an external generation source.
#[test]
fn secrets_of_128_random_bits_are_made_and_taken() {
    let made = secret_text([0xa5; 16]);
    assert_eq!(made, "a5".repeat(16));
    // From elsewhere they may be any 16 bytes.
    for bytes in [made.into_bytes(), (0xf0..=0xff).collect()] {
        let alice = ChapCredentials { user: "alice".to_owned(), secret: Secret::new(bytes) };
        let target = target::Login::new(TargetConfig {
            offer: Offer::default(),
            authenticator: Arc::new(Site {
                authentication: chap(&Algorithm::ALL, None),
                user: alice.clone(),
            }),
            random: random(1),
        });
        let config = InitiatorConfig { chap: Some(alice), ..config() };
        let (_, theirs, _) = pair(config, target).established();
        assert_eq!(theirs.authenticated_as.as_deref(), Some("alice"));
    }
}
