//! Logins of both ends, as the real state machines do them.

use std::sync::Arc;
use std::time::Duration;

use iscsi_proto::ids::{Cid, Isid, Tsih};
use iscsi_proto::keys::{Offer, SessionParams};
use iscsi_proto::login::chap::{CHALLENGE_LEN, ChapRandom, Secret};
use iscsi_proto::login::target::{Admission, Authentication, Authenticator, Grant, TargetConfig};
use iscsi_proto::login::{Outcome, initiator, target};
use iscsi_proto::serial::CmdSn;

use super::env::Env;

const INITIATOR: &str = "iqn.2026-11.example:initiator";
pub(crate) const TARGET: &str = "iqn.2026-11.example:target";

/// Time for a login.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(15);

/// Lets everybody in.
#[derive(Debug)]
struct Anyone;

impl Authenticator for Anyone {
    fn admit(&self, _: &str, _: Option<&str>) -> Admission {
        let authentication = Authentication::None;
        Admission::Granted(Grant { authentication, portal_group_tag: 1, target_alias: None })
    }

    fn secret(&self, _: Option<&str>, _: &str) -> Option<Secret> {
        None
    }
}

fn random() -> ChapRandom {
    ChapRandom::from_bytes([7; 1 + CHALLENGE_LEN]) // nobody asks for it
}

/// The target's part of a login.
pub(crate) fn target(env: &mut Env) -> target::Login {
    let offer = env.scenario.offer(&mut env.rng);
    let authenticator = Arc::new(Anyone);
    target::Login::new(TargetConfig { offer, authenticator, random: random() })
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
pub(crate) fn initiator(identity: Identity) -> Result<initiator::Login, String> {
    let isid = Isid::random(0x5eed, 0);
    let mut config =
        initiator::InitiatorConfig::new(INITIATOR, Some(TARGET.to_owned()), isid, random());
    config.tsih = identity.tsih;
    config.cid = identity.cid;
    config.cmd_sn = identity.cmd_sn;
    config.offer = identity.offer;
    config.joining = identity.joining;
    initiator::Login::new(config).map_err(|error| format!("initiator: {error}"))
}

/// SCSI port name of the initiator (RFC 7143 §4.4.2).
pub(crate) fn port(outcome: &Outcome) -> String {
    format!("{},i,0x{}", outcome.initiator_name, outcome.isid)
}
