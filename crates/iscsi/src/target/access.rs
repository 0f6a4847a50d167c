//! Who may log in to which target, and what they have to prove.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use iscsi_proto::login::chap::{Algorithm, ChapCredentials, Secret};
use iscsi_proto::keys::SessionParams;
use iscsi_proto::login::target::{Admission, Authentication, Authenticator, Grant, Joining};
use iscsi_proto::pdu::LoginStatus;
use scsi::WriteProtection;

use super::catalog::Catalog;
use super::shared::Shared;

/// Tag of the one portal group. All portals of a target lead to the same sessions.
pub(super) const PORTAL_GROUP: u16 = 1;

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

/// What a session was let in by.
#[derive(Clone, Debug, Default)]
pub(super) struct Proof(pub(super) Option<Chap>);

impl Catalog {
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
}

impl Gatekeeper {
    pub(super) fn new(shared: Arc<Shared>, catalog: Arc<Catalog>, portal: Arc<str>) -> Self {
        Self { shared, catalog, portal, demanded: Mutex::new(None) }
    }

    /// What a login that has succeeded has proved.
    pub(super) fn proof(&self) -> Proof {
        Proof(self.demanded.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn demand(&self, initiator_name: &str, target_name: &str) -> Result<Grant, LoginStatus> {
        let target = self.catalog.targets.get(target_name);
        let target =
            target.filter(|target| target.is_on(&self.portal)).ok_or(LoginStatus::NOT_FOUND)?;
        let rule = target.access.rule(initiator_name).ok_or(LoginStatus::AUTHORIZATION_FAILURE)?;
        Ok(self.grant(rule.chap.as_ref(), target.alias.clone()))
    }

    fn grant(&self, chap: Option<&Chap>, target_alias: Option<String>) -> Grant {
        *self.demanded.lock().unwrap_or_else(PoisonError::into_inner) = chap.cloned();
        let authentication = chap.map_or(Authentication::None, Chap::authentication);
        Grant { authentication, portal_group_tag: PORTAL_GROUP, target_alias }
    }
}

impl Authenticator for Gatekeeper {
    fn admit(&self, initiator_name: &str, target_name: Option<&str>) -> Admission {
        let granted = match target_name {
            Some(target_name) => self.demand(initiator_name, target_name),
            None => Ok(self.grant(self.catalog.discovery.as_ref(), None)),
        };
        granted.map_or_else(Admission::Refused, Admission::Granted)
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
