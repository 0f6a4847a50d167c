//! [`Sessions`]: browsers that somebody has logged in with. The browser has 256 random bits, the
//! server their hash: who reads its files can pretend to be nobody.

use std::collections::HashMap;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::text::hex;

/// How long a session lasts.
pub(super) const LIFE_S: u64 = 30 * 24 * 3600;
/// Sessions of one name; one more ends the oldest.
const OF_ONE_MAX: usize = 32;
/// Random bytes of a session.
const TOKEN_BYTES: usize = 32;

/// A browser that is logged in.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Session {
    pub(super) name: String,
    /// Tells the password with which it was begun from a later one.
    stamp: String,
    /// Where it began.
    address: IpAddr,
    /// Seconds since 1970.
    until: u64,
}

/// All of them, by the hash of what the browser has.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Sessions(HashMap<String, Session>);

impl Sessions {
    /// Begins one; returns what the browser is to have.
    ///
    /// # Errors
    /// There are no random numbers.
    pub(super) fn begin(
        &mut self,
        name: &str,
        stamp: &str,
        address: IpAddr,
        now: u64,
    ) -> Result<String, getrandom::Error> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes)?;
        let token = URL_SAFE_NO_PAD.encode(bytes);
        self.0.retain(|_, session| session.until > now);
        let of_one = self.0.iter().filter(|(_, session)| session.name == name);
        let mut of_one: Vec<(u64, String)> =
            of_one.map(|(key, session)| (session.until, key.clone())).collect();
        of_one.sort();
        let too_many = (of_one.len() + 1).saturating_sub(OF_ONE_MAX);
        for (_, oldest) in of_one.drain(..too_many) {
            self.0.remove(&oldest);
        }
        let (name, stamp) = (name.to_owned(), stamp.to_owned());
        let session = Session { name, stamp, address, until: now + LIFE_S };
        self.0.insert(key(&token), session);
        Ok(token)
    }

    /// Whose session it is, if it has one of the password that there is now.
    pub(super) fn find(
        &self,
        token: &str,
        stamp: impl Fn(&str) -> Option<String>,
        now: u64,
    ) -> Option<&str> {
        let session = self.0.get(&key(token))?;
        let is_valid = session.until > now && stamp(&session.name).as_ref() == Some(&session.stamp);
        is_valid.then_some(&session.name)
    }

    /// Was this one let in from there?
    pub(super) fn knows(&self, name: &str, address: IpAddr, now: u64) -> bool {
        self.0.values().any(|session| {
            session.name == name && session.address == address && session.until > now
        })
    }

    /// Ends one; tells whether there was one.
    pub(super) fn end(&mut self, token: &str) -> bool {
        self.0.remove(&key(token)).is_some()
    }
}

fn key(token: &str) -> String {
    hex(&Sha256::digest(token.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn begin(sessions: &mut Sessions, name: &str, now: u64) -> String {
        sessions.begin(name, "1", NEAR, now).unwrap()
    }

    #[test]
    fn a_session_has_its_name_its_time_and_its_password() {
        let mut sessions = Sessions::default();
        let token = begin(&mut sessions, "anna", 1000);
        assert_eq!(token.len(), 43);
        let stamp = |now: &'static str| move |_: &str| Some(now.to_owned());
        assert_eq!(sessions.find(&token, stamp("1"), 1000), Some("anna"));
        assert_eq!(sessions.find(&token, stamp("1"), 1000 + LIFE_S), None, "its time is over");
        assert_eq!(sessions.find(&token, stamp("2"), 1000), None, "there is a new password");
        assert_eq!(sessions.find(&token, |_| None, 1000), None, "there is no anna");
        assert_eq!(sessions.find("", stamp("1"), 1000), None);
        assert!(sessions.knows("anna", NEAR, 1000) && !sessions.knows("ben", NEAR, 1000));
        let kept = serde_json::to_string(&sessions).unwrap();
        assert!(!kept.contains(&token), "{kept}");
        let mut again: Sessions = serde_json::from_str(&kept).unwrap();
        assert_eq!(again.find(&token, stamp("1"), 1000), Some("anna"));
        assert!(again.end(&token) && !again.end(&token));
    }

    #[test]
    fn one_too_many_ends_the_oldest_of_its_name() {
        let mut sessions = Sessions::default();
        let stamp = |_: &str| Some("1".to_owned());
        let other = begin(&mut sessions, "ben", 1);
        let tokens: Vec<String> =
            (0..OF_ONE_MAX as u64 + 3).map(|n| begin(&mut sessions, "anna", 10 + n)).collect();
        let valid = |token: &String| sessions.find(token, stamp, 100).is_some();
        assert_eq!(tokens.iter().filter(|token| valid(token)).count(), OF_ONE_MAX);
        assert!(!valid(&tokens[2]) && valid(&tokens[3]) && valid(&other));
        begin(&mut sessions, "ben", 1000 + LIFE_S);
        assert_eq!(sessions.0.len(), 1, "what is over is forgotten");
    }
}
