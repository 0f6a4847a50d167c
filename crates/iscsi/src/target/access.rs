//! Who may log in to which target, and what they have to prove.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use iscsi_proto::ids::Lun;
use iscsi_proto::keys::SessionParams;
use iscsi_proto::login::chap::{Algorithm, ChapCredentials, Secret};
use iscsi_proto::login::target::{Admission, Authentication, Authenticator, Grant, Joining};
use iscsi_proto::names::TargetAddress;
use iscsi_proto::pdu::LoginStatus;
use iscsi_proto::target::Rights;
use scsi::WriteProtection;

use super::catalog::Catalog;
use super::limit::Limit;
use super::shared::Shared;

/// Tag of the portal group of what is no target: a discovery session, or a pretext. All portals of
/// a target are one group, whose tag is the target's.
const PORTAL_GROUP: u16 = 1;

/// CHAP user and secrets of a target. Never printed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Chap {
    /// Who initiators have to be.
    pub user: ChapCredentials,
    /// How the target proves itself to an initiator that asks.
    pub mutual: Option<ChapCredentials>,
    /// Algorithms allowed.
    pub algorithms: Vec<Algorithm>,
}

/// Why credentials are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChapConfigError {
    /// Too short to withstand guessing.
    #[error("a secret of {len} bytes is too short (RFC 7143 §9.2.1 asks for at least {min})")]
    Short {
        /// Bytes given.
        len: usize,
        /// Bytes wanted.
        min: usize,
    },
    /// One secret for both directions allows reflection.
    #[error("the secrets of initiator and target are the same")]
    Same,
}

impl Chap {
    /// Credentials from names and secrets, with any algorithm.
    ///
    /// # Errors
    /// [`ChapConfigError`] for secrets that would not protect anything.
    pub fn new(
        user: &str,
        secret: &str,
        mutual: Option<(&str, &str)>,
    ) -> Result<Self, ChapConfigError> {
        let credentials = |user: &str, secret: &str| {
            let (len, min) = (secret.len(), Secret::LEN_RECOMMENDED);
            let secret = Secret::new(secret);
            if secret.is_short() {
                return Err(ChapConfigError::Short { len, min });
            }
            Ok(ChapCredentials { user: user.to_owned(), secret })
        };
        let user = credentials(user, secret)?;
        let mutual = mutual.map(|(user, secret)| credentials(user, secret)).transpose()?;
        if mutual.as_ref().is_some_and(|mutual| mutual.secret.is_same(&user.secret)) {
            return Err(ChapConfigError::Same);
        }
        Ok(Self { user, mutual, algorithms: Algorithm::ALL.to_vec() })
    }

    /// With these algorithms only.
    pub fn with_algorithms(mut self, algorithms: Vec<Algorithm>) -> Self {
        self.algorithms = algorithms;
        self
    }

    /// Whoever has proved to be `other`'s user has proved to be this one's, too.
    fn is_proved_by(&self, other: &Self) -> bool {
        self.user.user == other.user.user && self.user.secret.is_same(&other.user.secret)
    }

    fn authentication(&self) -> Authentication {
        Authentication::Chap { algorithms: self.algorithms.clone(), mutual: self.mutual.clone() }
    }
}

/// What an initiator has to prove, and what it may do then.
#[derive(Clone, Debug, Default)]
pub struct AccessRule {
    /// Who it has to be; nobody in particular without.
    pub chap: Option<Chap>,
    /// Logical units that it may only read.
    pub write_protection: WriteProtection,
    /// How fast it may go, over all its sessions with the target.
    pub limit: Limit,
}

/// The rules of one target.
#[derive(Clone, Debug, Default)]
pub struct AccessRules {
    /// For initiators without a rule of their own; without it they are refused.
    pub anyone: Option<AccessRule>,
    /// By initiator name, in lower case.
    pub initiators: BTreeMap<String, AccessRule>,
}

impl AccessRules {
    /// Whoever comes, if they can prove what they have to.
    pub fn anyone(chap: Option<Chap>) -> Self {
        let rule = AccessRule { chap, ..AccessRule::default() };
        Self { anyone: Some(rule), initiators: BTreeMap::new() }
    }

    /// The rule for an initiator; `None`: it may not log in.
    pub fn rule(&self, initiator_name: &str) -> Option<&AccessRule> {
        self.initiators.get(initiator_name).or(self.anyone.as_ref())
    }
}

/// What the session's initiator may do to the tasks of others: as much as to the units themselves.
pub(super) struct NexusRights(pub(super) scsi::Rights);

impl Rights for NexusRights {
    fn may_reset(&self, lun: Option<Lun>) -> bool {
        self.0.may_reset(lun.map(|lun| lun.0))
    }
}

/// What a session was let in by.
#[derive(Clone, Debug, Default)]
pub(super) struct Proof(pub(super) Option<Chap>);

impl Catalog {
    /// Credentials that somebody has to prove here, if there are any. Always the same ones, so that
    /// what is asked for in their name does not vary.
    fn some_chap(&self) -> Option<&Chap> {
        let mut rules = self
            .targets
            .values()
            .flat_map(|target| target.access.initiators.values().chain(&target.access.anyone));
        self.discovery.as_ref().or_else(|| rules.find_map(|rule| rule.chap.as_ref()))
    }

    /// Why a session with a target may not go on under these rules, or not begin.
    pub(super) fn forbids(
        &self,
        initiator_name: &str,
        target_name: &str,
        proof: &Proof,
    ) -> Result<&AccessRule, &'static str> {
        let target = self.targets.get(target_name).ok_or("the target is gone")?;
        let rule = target.access.rule(initiator_name).ok_or("the initiator is not admitted")?;
        let proved = match (&rule.chap, &proof.0) {
            (None, _) => true,
            (Some(now), Some(then)) => now.is_proved_by(then),
            (Some(_), None) => false,
        };
        if proved { Ok(rule) } else { Err("other credentials are needed now") }
    }
}

/// The rules as one connection meets them, on the portal it came to.
pub(super) struct Gatekeeper {
    shared: Arc<Shared>,
    catalog: Arc<Catalog>,
    portal: Arc<str>,
    /// What this login has to prove, once that is known.
    demanded: Mutex<Option<Chap>>,
    /// Why it cannot get in, whatever it proves: it is not told before it has failed to.
    hidden: Mutex<Option<LoginStatus>>,
}

impl Gatekeeper {
    pub(super) fn new(shared: Arc<Shared>, catalog: Arc<Catalog>, portal: Arc<str>) -> Self {
        Self { shared, catalog, portal, demanded: Mutex::default(), hidden: Mutex::default() }
    }

    /// What a login that has succeeded has proved.
    pub(super) fn proof(&self) -> Proof {
        Proof(self.demanded.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Why a login that was asked for a proof could not have got in.
    pub(super) fn hidden(&self) -> Option<LoginStatus> {
        *self.hidden.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where anything here demands authentication, a login that may not get in is asked for it as
    /// any other, and fails: who cannot prove anything learns no names, neither of targets nor of
    /// initiators that are admitted.
    fn refuse(&self, status: LoginStatus) -> Admission {
        let Some(pretext) = self.catalog.some_chap() else {
            return Admission::Refused(status);
        };
        *self.hidden.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
        let authentication =
            Authentication::Chap { algorithms: pretext.algorithms.clone(), mutual: None };
        Admission::Granted(Grant {
            authentication,
            portal_group_tag: PORTAL_GROUP,
            target_alias: None,
        })
    }

    fn demand(&self, initiator_name: &str, target_name: &str) -> Result<Grant, LoginStatus> {
        let target = self.catalog.targets.get(target_name);
        let target =
            target.filter(|target| target.is_on(&self.portal)).ok_or(LoginStatus::NOT_FOUND)?;
        let rule = target.access.rule(initiator_name).ok_or(LoginStatus::AUTHORIZATION_FAILURE)?;
        let group = target.scsi.config().portal_group_tag;
        Ok(self.grant(rule.chap.as_ref(), group, target.alias.clone()))
    }

    /// Where logins at this portal are sent, if they are.
    fn redirect(&self) -> Option<TargetAddress> {
        self.shared.lock_portals().get(&*self.portal)?.spec.redirect.clone()
    }

    fn grant(
        &self,
        chap: Option<&Chap>,
        portal_group_tag: u16,
        target_alias: Option<String>,
    ) -> Grant {
        *self.demanded.lock().unwrap_or_else(PoisonError::into_inner) = chap.cloned();
        let authentication = chap.map_or(Authentication::None, Chap::authentication);
        Grant { authentication, portal_group_tag, target_alias }
    }
}

impl Authenticator for Gatekeeper {
    fn admit(&self, initiator_name: &str, target_name: Option<&str>) -> Admission {
        let granted = match target_name {
            Some(target_name) => self.demand(initiator_name, target_name),
            None => Ok(self.grant(self.catalog.discovery.as_ref(), PORTAL_GROUP, None)),
        };
        match granted {
            // Who may not log in is not told where others may.
            Ok(grant) => match target_name.and_then(|_| self.redirect()) {
                Some(address) => Admission::Moved { address, permanent: false },
                None => Admission::Granted(grant),
            },
            Err(status) => self.refuse(status),
        }
    }

    /// Of the one user that this initiator has to be: another's will not do.
    fn secret(&self, _target_name: Option<&str>, user: &str) -> Option<Secret> {
        let demanded = self.demanded.lock().unwrap_or_else(PoisonError::into_inner);
        let chap = demanded.as_ref()?;
        (chap.user.user == user).then(|| chap.user.secret.clone())
    }

    fn joins(&self, joining: &Joining<'_>) -> Option<SessionParams> {
        let session = self.shared.lock().live.get(&joining.tsih).cloned()?;
        let about = &session.about;
        let is_meant = session.initiator_name == joining.initiator_name
            && about.target_name.as_deref() == joining.target_name
            && about.isid == joining.isid;
        is_meant.then(|| session.with(|core| *core.params()))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use iscsi_proto::ids::{Cid, Isid, Itt, Tsih};
    use iscsi_proto::login::chap::{CHALLENGE_LEN, ChapRandom};
    use iscsi_proto::login::target::{Login, Step, TargetConfig};
    use iscsi_proto::pdu::{LoginRequest, LoginResponse, Stage, VERSION};
    use iscsi_proto::serial::{CmdSn, StatSn};

    use super::super::catalog::{Limits, TargetSpec, default_offer};
    use super::*;

    const DISK: &str = "iqn.2026-11.org.example:disk";
    const ALICE: &str = "iqn.2026-11.org.example:alice";

    /// One target, for one initiator only.
    fn catalog(chap: Option<Chap>) -> Catalog {
        let scsi = scsi::Target::new(scsi::TargetConfig::new(DISK));
        let mut target = TargetSpec::new(DISK, scsi).unwrap();
        target.alias = Some("the treasury".into());
        let rule = AccessRule { chap, ..AccessRule::default() };
        target.access = AccessRules { anyone: None, initiators: [(ALICE.into(), rule)].into() };
        Catalog::new(Limits::default()).with_target(target)
    }

    /// Everything that a login is answered that cannot prove anything.
    fn answers(
        catalog: Catalog,
        initiator: &str,
        target: &str,
    ) -> (Vec<(LoginResponse, Bytes)>, Option<LoginStatus>) {
        let shared = Arc::new(Shared::new(catalog));
        let catalog = shared.catalog();
        let gatekeeper = Arc::new(Gatekeeper::new(shared, catalog, "default".into()));
        let mut login = Login::new(TargetConfig {
            offer: default_offer(),
            authenticator: Arc::clone(&gatekeeper) as _,
            random: ChapRandom::from_bytes([7; 1 + CHALLENGE_LEN]),
        });
        let request = LoginRequest {
            transit: false,
            continues: false,
            csg: Stage::SECURITY_NEGOTIATION,
            nsg: Stage(0),
            version_max: VERSION,
            version_min: VERSION,
            isid: Isid::random(1, 1),
            tsih: Tsih(0),
            itt: Itt(1),
            cid: Cid(0),
            cmd_sn: CmdSn(1),
            exp_stat_sn: StatSn(0),
        };
        let first =
            format!("InitiatorName={initiator}\0TargetName={target}\0AuthMethod=CHAP,None\0");
        let proof = format!("CHAP_N=alice\0CHAP_R=0x{}\0", "5a".repeat(32));
        let mut said = Vec::new();
        for text in [first.as_str(), "CHAP_A=7,5\0", &proof] {
            match login.handle(&request, text.as_bytes()) {
                Ok(Step::Send(response, text)) => said.push((response, text)),
                Ok(step) => panic!("{step:?}"),
                Err(failure) => {
                    said.push(login.failure_response(&failure));
                    break;
                }
            }
        }
        (said, gatekeeper.hidden())
    }

    /// Whoever has nothing to prove with cannot find out which targets there are, nor who may use
    /// them: every byte is the same.
    #[test]
    fn names_cannot_be_told_apart_before_authentication() {
        let guarded = || catalog(Some(Chap::new("alice", "a long enough secret", None).unwrap()));
        let (known, hidden) = answers(guarded(), ALICE, DISK);
        assert_eq!((known.len(), hidden), (3, None), "{known:?}");
        assert_eq!(known[2].0.status, LoginStatus::AUTHENTICATION_FAILURE);
        let bob = "iqn.2026-11.org.example:bob";
        let nothing = "iqn.2026-11.org.example:nothing";
        for (initiator, target, why) in [
            (ALICE, nothing, LoginStatus::NOT_FOUND),
            (bob, DISK, LoginStatus::AUTHORIZATION_FAILURE),
            (bob, nothing, LoginStatus::NOT_FOUND),
        ] {
            let (said, hidden) = answers(guarded(), initiator, target);
            assert_eq!(said, known, "{initiator} to {target}");
            assert_eq!(hidden, Some(why), "the log says why");
        }
        // Where nobody has to prove anything there is nothing to hide behind.
        let (said, _) = answers(catalog(None), bob, DISK);
        assert_eq!(said[0].0.status, LoginStatus::AUTHORIZATION_FAILURE);
        let (said, _) = answers(catalog(None), ALICE, nothing);
        assert_eq!(said[0].0.status, LoginStatus::NOT_FOUND);
    }
}
