//! Who may log in to a server with one target.

use iscsi_proto::login::chap::{Algorithm, ChapCredentials, Secret};
use iscsi_proto::login::target::{Admission, Authentication, Authenticator, Grant};
use iscsi_proto::pdu::LoginStatus;

/// Tag of the one portal group. All portals of a server lead to the same sessions.
pub(super) const PORTAL_GROUP: u16 = 1;

/// CHAP user and secrets of a target. Never printed.
#[derive(Clone, Debug)]
pub struct Chap {
    /// Who initiators have to be.
    pub user: ChapCredentials,
    /// How the target proves itself to an initiator that asks.
    pub mutual: Option<ChapCredentials>,
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
    /// Credentials from names and secrets.
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
        Ok(Self { user, mutual })
    }
}

/// The rules of one target.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) target_name: String,
    pub(super) target_alias: Option<String>,
    pub(super) chap: Option<Chap>,
}

impl Authenticator for Access {
    fn admit(&self, _initiator_name: &str, target_name: Option<&str>) -> Admission {
        if target_name.is_some_and(|name| name != self.target_name) {
            return Admission::Refused(LoginStatus::NOT_FOUND);
        }
        // Discovery tells no more than this target's name, which CHAP does not protect: clients
        // that have credentials for the target have none for discovery.
        let authentication = match &self.chap {
            Some(chap) if target_name.is_some() => Authentication::Chap {
                algorithms: Algorithm::ALL.to_vec(),
                mutual: chap.mutual.clone(),
            },
            _ => Authentication::None,
        };
        Admission::Granted(Grant {
            authentication,
            portal_group_tag: PORTAL_GROUP,
            target_alias: self.target_alias.clone(),
        })
    }

    fn secret(&self, _target_name: Option<&str>, user: &str) -> Option<Secret> {
        let chap = self.chap.as_ref()?;
        (chap.user.user == user).then(|| chap.user.secret.clone())
    }
}
