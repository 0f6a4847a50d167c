//! [`Shares`]: links with which anybody watches one video until they expire or are taken back. What
//! is in a link is authenticated (HMAC-SHA-256, RFC 2104) with a key that is in a file of its own,
//! so that the list of all links is not a list of links that work.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::state::{ChangeError, StateError, StateFolder, change, load, wrong};
use crate::text::{hex, unix_now};

/// Links that are valid at once.
const SHARES_MAX: usize = 1000;
/// How long one may be valid.
const LIFE_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// How long it is remembered that one was valid.
const REMEMBERED_S: u64 = 30 * 24 * 3600;
const ID_BYTES: usize = 8;
const MAC_BYTES: usize = 16;
const KEY_BYTES: usize = 32;

/// A link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Identifier of the video.
    pub video: String,
    /// Until when it is valid, in seconds since 1970.
    pub until: u64,
}

/// All of them by their names, which are no secret.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct List(BTreeMap<String, Share>);

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct Key(String);

/// The links of a server.
#[derive(Clone, Debug)]
pub struct Shares {
    list: PathBuf,
    key: PathBuf,
}

/// What a link is for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Linked {
    /// This video.
    Video(String),
    /// A video until some time ago.
    Expired,
}

impl Shares {
    /// Those of a server with this folder.
    pub fn new(state: &StateFolder) -> Self {
        Self { list: state.file("shares.json"), key: state.file("shares.key.json") }
    }

    /// The file of the list.
    pub(super) fn file(&self) -> &PathBuf {
        &self.list
    }

    /// Makes a link; returns its name and what is in its address.
    ///
    /// # Errors
    /// The time is too long, there are too many, or the files cannot be written.
    pub fn add(&self, video: &str, time: Duration) -> Result<(String, String), ChangeError> {
        if time > LIFE_MAX || time < Duration::from_secs(1) {
            return wrong("a link is valid for a second at least and for 366 days at most");
        }
        let mut id = [0; ID_BYTES];
        let drawn = getrandom::fill(&mut id);
        drawn.or_else(|error| wrong(format!("there are no random numbers: {error}")))?;
        let now = unix_now();
        let share = Share { video: video.to_owned(), until: now + time.as_secs() };
        let token = self.token(&id, &share)?;
        let id = hex(&id);
        change(&self.list, |list: &mut List| {
            list.0.retain(|_, share| share.until + REMEMBERED_S > now);
            if list.0.values().filter(|share| share.until > now).count() >= SHARES_MAX {
                return wrong(format!("there are {SHARES_MAX} links, which is the most"));
            }
            list.0.insert(id.clone(), share);
            Ok(())
        })?;
        Ok((id, token))
    }

    /// Takes a link back.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn remove(&self, id: &str) -> Result<(), ChangeError> {
        change(&self.list, |list: &mut List| match list.0.remove(id) {
            Some(_) => Ok(()),
            None => wrong(format!("there is no link {id:?}")),
        })
    }

    /// Those that are valid.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn list(&self) -> Result<Vec<(String, Share)>, ChangeError> {
        let list: List = load(&self.list)?;
        let now = unix_now();
        Ok(list.0.into_iter().filter(|(_, share)| share.until > now).collect())
    }

    pub(super) fn load(&self) -> Result<Known, StateError> {
        let list: List = load(&self.list)?;
        let key: Key = load(&self.key)?;
        Ok(Known { list, key: key.0 })
    }

    fn token(&self, id: &[u8; ID_BYTES], share: &Share) -> Result<String, ChangeError> {
        let mut key: Key = load(&self.key)?;
        if key.0.is_empty() {
            key = change(&self.key, first_key)?;
        }
        let mac = mac(&key.0, id, share).finalize().into_bytes();
        Ok(URL_SAFE_NO_PAD.encode([&id[..], &mac[..MAC_BYTES]].concat()))
    }
}

/// The key that is there, or that is from now on: somebody else may have been quicker.
fn first_key(key: &mut Key) -> Result<Key, ChangeError> {
    if key.0.is_empty() {
        let mut bytes = [0; KEY_BYTES];
        let drawn = getrandom::fill(&mut bytes);
        drawn.or_else(|error| wrong(format!("there are no random numbers: {error}")))?;
        key.0 = hex(&bytes);
    }
    Ok(key.clone())
}

/// Links as they were when somebody looked.
#[derive(Clone, Default)]
pub(super) struct Known {
    list: List,
    key: String,
}

impl Known {
    /// What a link is for, if it was made here and not taken back.
    pub(super) fn find(&self, token: &str, now: u64) -> Option<Linked> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
        let (id, sent) = bytes.split_first_chunk::<ID_BYTES>()?;
        let share = self.list.0.get(&hex(id))?;
        if sent.len() != MAC_BYTES || self.key.is_empty() {
            return None;
        }
        // In constant time.
        mac(&self.key, id, share).verify_truncated_left(sent).ok()?;
        Some(match share.until > now {
            true => Linked::Video(share.video.clone()),
            false => Linked::Expired,
        })
    }
}

fn mac(key: &str, id: &[u8; ID_BYTES], share: &Share) -> Hmac<Sha256> {
    // A key of any length is taken, and that of the texts is fixed but for the last one's.
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key.as_bytes())
        .unwrap_or_else(|_| <Hmac<Sha256> as KeyInit>::new(&Default::default()));
    mac.update(id);
    mac.update(&share.until.to_be_bytes());
    mac.update(share.video.as_bytes());
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_for_its_video_until_it_expires_or_is_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::open(&folder.path().join("state")).unwrap();
        let shares = Shares::new(&state);
        let (id, token) = shares.add("0123456789abcdef", Duration::from_secs(3600)).unwrap();
        assert_eq!(token.len(), 32);
        let (other, _) = shares.add("ffffffffffffffff", Duration::from_secs(60)).unwrap();
        let now = unix_now();
        let known = shares.load().unwrap();
        let video = Some(Linked::Video("0123456789abcdef".into()));
        assert_eq!(known.find(&token, now), video);
        assert_eq!(known.find(&token, now + 3601), Some(Linked::Expired));
        assert_eq!(shares.list().unwrap().len(), 2);

        // Every bit of it counts, and it cannot be turned into another one's.
        let bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(known.find(&URL_SAFE_NO_PAD.encode(changed), now), None, "bit {bit}");
        }
        for token in ["", "x", "%00", &token[..16], &format!("{token}AAAA")] {
            assert_eq!(known.find(token, now), None, "{token}");
        }
        let mut longer = known.clone();
        longer.list.0.get_mut(&id).unwrap().until += 3600;
        assert_eq!(longer.find(&token, now), None, "its end is authenticated");

        shares.remove(&id).unwrap();
        assert_eq!(shares.load().unwrap().find(&token, now), None);
        assert!(shares.remove(&id).unwrap_err().to_string().contains("no link"));
        assert_eq!(shares.list().unwrap()[0].0, other);
        let text = std::fs::read_to_string(shares.file()).unwrap();
        assert!(!text.contains(&token), "{text}");
    }

    #[test]
    fn the_key_is_written_once() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::open(&folder.path().join("state")).unwrap();
        let shares = Shares::new(&state);
        let (_, first) = shares.add("0123456789abcdef", Duration::from_secs(60)).unwrap();
        let written = crate::state::Stamp::of(&shares.key);
        let (_, second) = shares.add("ffffffffffffffff", Duration::from_secs(60)).unwrap();
        assert_eq!(crate::state::Stamp::of(&shares.key), written);
        let known = shares.load().unwrap();
        assert!([first, second].iter().all(|token| known.find(token, unix_now()).is_some()));
    }

    #[test]
    fn times_have_limits() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::open(&folder.path().join("state")).unwrap();
        let shares = Shares::new(&state);
        for time in [Duration::ZERO, LIFE_MAX + Duration::from_secs(1)] {
            assert!(shares.add("a", time).unwrap_err().to_string().contains("366 days"));
        }
    }
}
