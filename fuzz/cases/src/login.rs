//! Login before anything is known of the peer, in both roles.

use std::sync::Arc;

use bytes::Bytes;
use iscsi_proto::frame::{Framer, Framing, Limits};
use iscsi_proto::ids::{Isid, Tsih};
use iscsi_proto::login::LOGIN_PDUS_MAX;
use iscsi_proto::login::chap::{Algorithm, CHALLENGE_LEN, ChapCredentials, ChapRandom, Secret};
use iscsi_proto::login::initiator::{self, InitiatorConfig};
use iscsi_proto::login::target::{
    Admission, Authentication, Authenticator, Grant, Login, Step, TargetConfig,
};
use iscsi_proto::pdu::{LoginStatus, Pdu};
use iscsi_proto::serial::CmdSn;

use crate::reader::Reader;

/// Name of the target of every case.
pub(crate) const TARGET: &str = "iqn.2026-11.org.example:disk";
/// Name of the initiator of every case.
pub(crate) const INITIATOR: &str = "iqn.2026-11.org.example:host";
/// CHAP user and secret of the initiator.
pub(crate) const USER: (&str, &str) = ("host", "a secret of the host");
/// CHAP user and secret of the target.
pub(crate) const MUTUAL: (&str, &str) = ("disk", "a secret of the disk");

/// The same challenge in every run, so that a corpus can hold the right answer to it.
pub(crate) fn random() -> ChapRandom {
    ChapRandom::from_bytes([7; 1 + CHALLENGE_LEN])
}

pub(crate) fn credentials((user, secret): (&str, &str)) -> ChapCredentials {
    ChapCredentials { user: user.to_owned(), secret: Secret::new(secret) }
}

struct Access {
    chap: bool,
}

impl Authenticator for Access {
    fn admit(&self, _initiator: &str, target: Option<&str>) -> Admission {
        if target.is_some_and(|target| target != TARGET) {
            return Admission::Refused(LoginStatus::NOT_FOUND);
        }
        let mutual = Some(credentials(MUTUAL));
        let algorithms = Algorithm::OFFERED.to_vec();
        let authentication = match self.chap {
            true => Authentication::Chap { algorithms, mutual },
            false => Authentication::None,
        };
        let target_alias = Some("a disk".to_owned());
        Admission::Granted(Grant { authentication, portal_group_tag: 1, target_alias })
    }

    fn secret(&self, _target: Option<&str>, user: &str) -> Option<Secret> {
        (user == USER.0).then(|| Secret::new(USER.1))
    }
}

pub(crate) fn target_login(chap: bool) -> Login {
    let authenticator = Arc::new(Access { chap });
    Login::new(TargetConfig { offer: Default::default(), authenticator, random: random() })
}

pub(crate) fn initiator_login(flags: u8) -> initiator::Login {
    let target = (flags & 1 == 0).then(|| TARGET.to_owned());
    let isid = Isid([0x80, 1, 2, 3, 4, 5]);
    let mut config = InitiatorConfig::new(INITIATOR, target, isid, random());
    config.chap = (flags & 2 != 0).then(|| credentials(USER));
    config.mutual = (flags & 4 != 0).then(|| credentials(MUTUAL));
    config.chap = config.chap.or_else(|| config.mutual.as_ref().map(|_| credentials(USER)));
    initiator::Login::new(config).unwrap_or_else(|error| panic!("our own settings: {error}"))
}

/// Everything that comes out of a stream of login PDUs.
fn pdus(data: &[u8]) -> impl Iterator<Item = (Pdu, Bytes)> {
    let mut framer = Framer::new(Framing::default(), Limits::LOGIN);
    framer.push(data);
    std::iter::from_fn(move || {
        let (header, text) = framer.next_pdu().ok()??;
        Some((Pdu::parse(&header).ok()?, text))
    })
}

/// A stream of PDUs to a target: nobody gets in without the proof, no login is endless, no answer
/// exceeds what the peer takes.
pub fn login_target(data: &[u8]) {
    let mut input = Reader(data);
    let chap = input.u8() & 1 != 0;
    let mut login = target_login(chap);
    let mut answers = 0;
    for (pdu, text) in pdus(input.0) {
        let Pdu::LoginRequest(request) = pdu else { return };
        match login.handle(&request, &text) {
            Ok(Step::Send(response, text)) => {
                assert_eq!(response.status, LoginStatus::SUCCESS);
                assert!(text.len() <= 8192, "{}", text.len());
                answers += 1;
                assert!(answers <= LOGIN_PDUS_MAX);
            }
            Ok(Step::Ready(outcome)) => {
                assert!(!chap || outcome.authenticated_as.as_deref() == Some(USER.0));
                assert!(outcome.target_name.as_deref().is_none_or(|name| name == TARGET));
                let _ = login.accept(Tsih(1), CmdSn(0), CmdSn(9));
                assert!(login.handle(&request, &[]).is_err(), "a login after its end");
                return;
            }
            Err(failure) => {
                let (response, _) = login.failure_response(&failure);
                assert_ne!(response.status, LoginStatus::SUCCESS, "{failure}");
                return;
            }
        }
    }
}

/// A stream of PDUs to an initiator: a target that has to prove itself has, no login is endless,
/// nothing but login requests goes out.
pub fn login_initiator(data: &[u8]) {
    let mut input = Reader(data);
    let flags = input.u8();
    let mut login = initiator_login(flags);
    let _ = login.first();
    let mut requests = 1;
    for (pdu, text) in pdus(input.0) {
        let Pdu::LoginResponse(response) = pdu else { return };
        match login.handle(&response, &text) {
            Ok(initiator::Step::Send(_, text)) => {
                assert!(text.len() <= 8192, "{}", text.len());
                requests += 1;
                assert!(requests <= LOGIN_PDUS_MAX);
            }
            Ok(initiator::Step::Established(outcome)) => {
                assert!(flags & 4 == 0 || outcome.authenticated_as.as_deref() == Some(MUTUAL.0));
                // Some targets have no handle for a discovery session.
                assert!(outcome.discovery || outcome.tsih != Tsih(0));
                return;
            }
            Ok(initiator::Step::Redirected { address, .. }) => {
                assert!(!address.host.is_empty());
                return;
            }
            Err(_) => return,
        }
    }
}
