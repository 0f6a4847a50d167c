//! [`Accounts`]: who may watch, and who owns what is watched. Passwords are kept as argon2id's
//! hashes (RFC 9106; 19 MiB and two passes, the least that OWASP's cheat sheet recommends).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::state::{ChangeError, StateError, StateFolder, change, load, wrong};
use crate::text::hex;

/// Accounts of a server. Each may have sessions and positions.
const USERS_MAX: usize = 250;
/// Characters of a name.
const NAME_CHARS_MAX: usize = 64;
/// Characters of a password at least: NIST SP 800-63B, §5.1.1.1.
const PASSWORD_CHARS_MIN: usize = 8;
/// Bytes of a password at most: what is hashed for a stranger.
pub(crate) const PASSWORD_BYTES_MAX: usize = 1024;

/// A hash of no password, for names that nobody has: it takes as long.
const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$c29tZXdoZXJlZWxzZSE$\
                      AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Watch.
    Viewer,
    /// See who watches as well, give out links, and take storage away.
    Owner,
}

impl Role {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Owner => "owner",
        }
    }
}

/// What is kept of an account.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct User {
    role: Role,
    /// PHC string.
    password: String,
}

/// What is in the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Users {
    users: BTreeMap<String, User>,
}

/// The file of all accounts.
#[derive(Clone, Debug)]
pub struct Accounts {
    file: PathBuf,
}

impl Accounts {
    /// Those of a server with this folder.
    pub fn new(state: &StateFolder) -> Self {
        Self { file: state.file("accounts.json") }
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Names and roles, by name.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn list(&self) -> Result<Vec<(String, Role)>, ChangeError> {
        let users: Users = load(&self.file)?;
        Ok(users.users.into_iter().map(|(name, user)| (name, user.role)).collect())
    }

    /// Adds one.
    ///
    /// # Errors
    /// The name is there already, or name or password are none.
    pub fn add(&self, name: &str, role: Role, password: &str) -> Result<(), ChangeError> {
        let name = checked_name(name)?;
        let password = hash(password)?;
        change(&self.file, |users: &mut Users| {
            if users.users.contains_key(&name) {
                return wrong(format!("there is {name:?} already; passwd gives a new password"));
            }
            if users.users.len() >= USERS_MAX {
                return wrong(format!("there are {USERS_MAX} accounts, which is the most"));
            }
            users.users.insert(name, User { role, password });
            Ok(())
        })
    }

    /// Gives a new password, which ends all sessions of the old one.
    ///
    /// # Errors
    /// There is nobody of this name, or the password is none.
    pub fn set_password(&self, name: &str, password: &str) -> Result<(), ChangeError> {
        let name = checked_name(name)?;
        let password = hash(password)?;
        change(&self.file, |users: &mut Users| match users.users.get_mut(&name) {
            Some(user) => {
                user.password = password;
                Ok(())
            }
            None => nobody(users, &name),
        })
    }

    /// Removes one, and ends all sessions.
    ///
    /// # Errors
    /// There is nobody of this name.
    pub fn remove(&self, name: &str) -> Result<(), ChangeError> {
        let name = checked_name(name)?;
        change(&self.file, |users: &mut Users| match users.users.remove(&name) {
            Some(_) => Ok(()),
            None => nobody(users, &name),
        })
    }

    /// All of them, to ask often.
    pub(super) fn load(&self) -> Result<Known, StateError> {
        load(&self.file).map(Known)
    }
}

fn nobody(users: &Users, name: &str) -> Result<(), ChangeError> {
    let names: Vec<&str> = users.users.keys().map(String::as_str).take(10).collect();
    match &names[..] {
        [] => wrong(format!("there is no {name:?}: there are no accounts")),
        names => wrong(format!("there is no {name:?}; there are {}", names.join(", "))),
    }
}

/// Accounts as they were when somebody looked.
#[derive(Clone, Debug, Default)]
pub(super) struct Known(Users);

impl Known {
    pub(super) fn is_empty(&self) -> bool {
        self.0.users.is_empty()
    }

    pub(super) fn role(&self, name: &str) -> Option<Role> {
        self.0.users.get(name).map(|user| user.role)
    }

    /// Another text for another password: sessions are those of one.
    pub(super) fn stamp(&self, name: &str) -> Option<String> {
        self.0.users.get(name).map(|user| stamp(&user.password))
    }

    /// What a password for this name is compared with.
    pub(super) fn expected(&self, name: &str) -> Expected {
        Expected(self.0.users.get(name).map(|user| user.password.clone()))
    }
}

/// The hash of one account's password; nobody has a name without one.
pub(super) struct Expected(Option<String>);

impl Expected {
    /// The stamp of the password, if it is this one. Takes as long for a name that nobody has.
    pub(super) fn stamp_if(&self, password: &str) -> Option<String> {
        let hash = match PasswordHash::new(self.0.as_deref().unwrap_or(NOBODY)) {
            Ok(hash) => hash,
            Err(error) => {
                tracing::error!(%error, "what is kept of an account is no argon2 hash");
                return None;
            }
        };
        let is_it = Argon2::default().verify_password(password.as_bytes(), &hash).is_ok();
        self.0.as_deref().filter(|_| is_it).map(stamp)
    }
}

fn stamp(password: &str) -> String {
    hex(&Sha256::digest(password.as_bytes())[..8])
}

/// A name as it is kept: who writes Anna is anna.
pub(super) fn folded(name: &str) -> String {
    name.trim().to_ascii_lowercase()
}

fn checked_name(name: &str) -> Result<String, ChangeError> {
    let folded = folded(name);
    let is_name = (1..=NAME_CHARS_MAX).contains(&folded.len())
        && folded.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte));
    match is_name {
        true => Ok(folded),
        false => wrong(format!(
            "{name:?} is no name: up to {NAME_CHARS_MAX} letters a-z, digits and . _ - @ are \
             allowed"
        )),
    }
}

fn hash(password: &str) -> Result<String, ChangeError> {
    if password.chars().count() < PASSWORD_CHARS_MIN {
        return wrong(format!("a password has at least {PASSWORD_CHARS_MIN} characters"));
    }
    if password.len() > PASSWORD_BYTES_MAX {
        return wrong(format!("a password has at most {PASSWORD_BYTES_MAX} bytes"));
    }
    let hash: PasswordHash = match Argon2::default().hash_password(password.as_bytes()) {
        Ok(hash) => hash,
        Err(error) => return wrong(format!("the password cannot be hashed: {error}")),
    };
    Ok(hash.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> (tempfile::TempDir, Accounts) {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::open(&folder.path().join("state")).unwrap();
        (folder, Accounts::new(&state))
    }

    #[test]
    fn accounts_are_added_changed_and_removed() {
        let (_folder, accounts) = accounts();
        assert!(accounts.list().unwrap().is_empty());
        accounts.add("Anna", Role::Owner, "correct horse").unwrap();
        accounts.add("ben", Role::Viewer, "battery staple").unwrap();
        let expected = [("anna".to_owned(), Role::Owner), ("ben".to_owned(), Role::Viewer)];
        assert_eq!(accounts.list().unwrap(), expected);
        let text = std::fs::read_to_string(accounts.file()).unwrap();
        assert!(text.contains("$argon2id$v=19$m=19456,t=2,p=1$"), "{text}");
        assert!(!text.contains("horse"), "{text}");

        let known = accounts.load().unwrap();
        let stamp_if = |known: &Known, name, password| known.expected(name).stamp_if(password);
        let before = known.stamp("anna").unwrap();
        assert_eq!(stamp_if(&known, "anna", "correct horse").as_ref(), Some(&before));
        assert_eq!(stamp_if(&known, "anna", "battery staple"), None);
        assert_eq!(stamp_if(&known, "nobody", "battery staple"), None);
        accounts.set_password("ANNA", "another one").unwrap();
        let known = accounts.load().unwrap();
        assert!(stamp_if(&known, "anna", "another one").is_some());
        assert_ne!(known.stamp("anna").unwrap(), before);
        accounts.remove("anna").unwrap();
        assert_eq!(accounts.load().unwrap().role("anna"), None);
    }

    #[test]
    fn what_is_wrong_is_told_with_what_is_allowed() {
        let (_folder, accounts) = accounts();
        let said = |done: Result<(), ChangeError>| done.unwrap_err().to_string();
        assert!(said(accounts.add("a b", Role::Viewer, "12345678")).contains("letters a-z"));
        assert!(said(accounts.add("", Role::Viewer, "12345678")).contains("is no name"));
        assert!(said(accounts.add("a", Role::Viewer, "1234567")).contains("at least 8"));
        let long = "x".repeat(PASSWORD_BYTES_MAX + 1);
        assert!(said(accounts.add("a", Role::Viewer, &long)).contains("at most 1024"));
        assert!(said(accounts.remove("a")).ends_with("there are no accounts"));
        accounts.add("ben", Role::Viewer, "12345678").unwrap();
        assert!(said(accounts.add("Ben", Role::Viewer, "12345678")).contains("already"));
        assert!(said(accounts.set_password("anna", "12345678")).ends_with("there are ben"));
    }

    #[test]
    fn for_a_name_that_nobody_has_a_password_is_hashed_as_well() {
        // Otherwise the time of an answer would tell which names there are.
        let hash = PasswordHash::new(NOBODY).unwrap();
        assert_eq!(hash.params.to_string(), "m=19456,t=2,p=1");
        assert!(Argon2::default().verify_password(b"x", &hash).is_err());
        assert!(hash.salt.is_some() && hash.hash.is_some());
    }
}
