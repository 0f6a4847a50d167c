//! Callers that have not said yet whose they are: how many there may be, and what is told of them.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, warn};

use crate::control::Ended;
use crate::tokens::{OPEN_MAX, Refusal};
use crate::wire::Token;

/// Connections that have not said yet whose they are, at once; each has some 100 KiB.
pub(super) const STRANGERS_MAX: usize = 256;

/// Those of one address: all that a home is asked for at once, and as many again for another one
/// behind the same address.
pub(super) const STRANGERS_PER_ADDRESS_MAX: usize = OPEN_MAX * 2;

/// How often strangers are told of in the log.
const COMPLAINT_EVERY: Duration = Duration::from_secs(5);

/// Why a caller was turned away.
#[derive(Debug, thiserror::Error)]
pub(super) enum TurnedAway {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("it did not say what it wants within {} s", super::FIRST_TIMEOUT.as_secs())]
    Silent,
    #[error("it showed no key of a home")]
    Nobody,
    #[error("home {0}: {1} is no way to begin")]
    Unexpected(String, &'static str),
    #[error("home {0}: a message behind its token")]
    Talkative(String),
    #[error("home {0}: token {1}: {2}")]
    Token(String, Token, Refusal),
    #[error("home {0}: {1}")]
    Ended(String, Ended),
    #[error("home {0}: too many homes are connected")]
    Full(String),
}

/// What strangers do is told of now and then: they may do it often.
#[derive(Default)]
pub(super) struct Complaints {
    left_out: u64,
    last_said: Option<Instant>,
}

impl Complaints {
    pub(super) fn note(&mut self, why: String) {
        let now = Instant::now();
        if self.last_said.is_some_and(|said| now - said < COMPLAINT_EVERY) {
            self.left_out += 1;
            debug!(why, "uplink: turned away");
            return;
        }
        self.last_said = Some(now);
        warn!(why, others = std::mem::take(&mut self.left_out), "uplink: turned away");
    }
}

/// Connections that have not said yet whose they are, by address.
#[derive(Clone, Default)]
pub(super) struct Strangers(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// One of them.
pub(super) struct Stranger(Strangers, IpAddr);

impl Strangers {
    pub(super) fn enter(&self, address: IpAddr) -> Option<Stranger> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, own) = (counts.values().sum::<usize>(), counts.get(&address).copied());
        if all >= STRANGERS_MAX || own.unwrap_or(0) >= STRANGERS_PER_ADDRESS_MAX {
            return None;
        }
        *counts.entry(address).or_default() += 1;
        Some(Stranger(self.clone(), address))
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut counts = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_have_few_places() {
        let strangers = Strangers::default();
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let most = STRANGERS_PER_ADDRESS_MAX;
        let first: Vec<Stranger> = (0..most + 5).filter_map(|_| strangers.enter(one)).collect();
        assert_eq!(first.len(), most);
        let second: Vec<Stranger> = (0..most + 5).filter_map(|_| strangers.enter(other)).collect();
        assert_eq!(second.len(), most.min(STRANGERS_MAX - most));
        drop(first);
        assert!(strangers.enter(one).is_some());
        drop(second);
        assert!(strangers.0.lock().unwrap().is_empty());
    }
}
