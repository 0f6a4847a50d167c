//! Logins of both ends, as the real state machines do them, with or without CHAP.

use std::sync::Arc;

use bytes::Bytes;
use iscsi_proto::ids::{Cid, Isid, Tsih};
use iscsi_proto::initiator::Established;
use iscsi_proto::keys::{Offer, SessionParams};
use iscsi_proto::login::chap::{Algorithm, CHALLENGE_LEN, ChapCredentials, ChapRandom, Secret};
use iscsi_proto::login::target::{Admission, Authentication, Authenticator, Grant, TargetConfig};
use iscsi_proto::login::{Outcome, initiator, target};
use iscsi_proto::pdu::{LoginRequest, LoginResponse, Pdu};
use iscsi_proto::serial::CmdSn;

use crate::env::Env;
use crate::stream::Stream;

const INITIATOR: &str = "iqn.2026-11.example:initiator";
const TARGET: &str = "iqn.2026-11.example:target";
const USER: &str = "simulated";
const SECRET: &[u8] = b"a secret of the simulation";

/// Lets everybody in, with CHAP if the scenario says so.
#[derive(Debug)]
struct Access {
    chap: bool,
}

impl Authenticator for Access {
    fn admit(&self, _: &str, _: Option<&str>) -> Admission {
        let authentication = match self.chap {
            true => Authentication::Chap { algorithms: Algorithm::ALL.to_vec(), mutual: None },
            false => Authentication::None,
        };
        Admission::Granted(Grant { authentication, portal_group_tag: 1, target_alias: None })
    }

    fn secret(&self, _: Option<&str>, user: &str) -> Option<Secret> {
        (user == USER).then(|| Secret::new(SECRET.to_vec()))
    }
}

fn random(env: &mut Env) -> ChapRandom {
    let mut bytes = [0; 1 + CHALLENGE_LEN];
    bytes.iter_mut().for_each(|byte| *byte = env.rng.below(256) as u8); // below 256
    ChapRandom::from_bytes(bytes)
}

/// The target's part of a login.
pub(crate) fn target(env: &mut Env) -> target::Login {
    let mut offer = env.scenario.target_offer;
    if !env.scenario.digests_allowed {
        offer.header_digest = iscsi_proto::keys::DigestPreference::Never;
        offer.data_digest = iscsi_proto::keys::DigestPreference::Never;
    }
    let authenticator = Arc::new(Access { chap: env.scenario.chap });
    target::Login::new(TargetConfig { offer, authenticator, random: random(env) })
}

/// What a connection logs in as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    /// 0 for a new session.
    pub(crate) tsih: Tsih,
    pub(crate) cid: Cid,
    pub(crate) cmd_sn: CmdSn,
    pub(crate) offer: Offer,
    pub(crate) joining: Option<SessionParams>,
}

/// The initiator's part of a login.
pub(crate) fn initiator(env: &mut Env, identity: Identity) -> Result<initiator::Login, String> {
    let random = random(env);
    let isid = Isid::random(0x5eed, 0);
    let mut config =
        initiator::InitiatorConfig::new(INITIATOR, Some(TARGET.to_owned()), isid, random);
    config.tsih = identity.tsih;
    config.cid = identity.cid;
    config.cmd_sn = identity.cmd_sn;
    config.offer = identity.offer;
    config.joining = identity.joining;
    if env.scenario.chap {
        let secret = Secret::new(SECRET.to_vec());
        config.chap = Some(ChapCredentials { user: USER.to_owned(), secret });
    }
    initiator::Login::new(config).map_err(|error| format!("initiator: {error}"))
}

/// What the initiator's session core wants to know of a login.
pub(crate) fn established(outcome: &Outcome) -> Established {
    Established {
        tsih: outcome.tsih,
        cid: outcome.cid,
        session: outcome.session,
        connection: outcome.connection,
        cmd_sn: outcome.cmd_sn,
        exp_cmd_sn: outcome.exp_cmd_sn,
        max_cmd_sn: outcome.max_cmd_sn,
        exp_stat_sn: outcome.next_stat_sn,
    }
}

/// The next Login Request in a stream.
pub(crate) fn next_request(stream: &mut Stream) -> Result<Option<(LoginRequest, Bytes)>, String> {
    match next_pdu(stream)? {
        Some((Pdu::LoginRequest(request), text)) => Ok(Some((request, text))),
        Some((pdu, _)) => Err(format!("not a login request: {pdu:?}")),
        None => Ok(None),
    }
}

/// The next Login Response in a stream.
pub(crate) fn next_response(stream: &mut Stream) -> Result<Option<(LoginResponse, Bytes)>, String> {
    match next_pdu(stream)? {
        Some((Pdu::LoginResponse(response), text)) => Ok(Some((response, text))),
        Some((pdu, _)) => Err(format!("not a login response: {pdu:?}")),
        None => Ok(None),
    }
}

/// A whole PDU of the login phase.
fn next_pdu(stream: &mut Stream) -> Result<Option<(Pdu, Bytes)>, String> {
    stream.next_header().map_err(|error| error.to_string())?;
    let Some((header, data)) = stream.next_whole() else { return Ok(None) };
    let pdu = Pdu::parse(&header).map_err(|error| error.to_string())?;
    Ok(Some((pdu, data)))
}
