//! [`Tokens`]: what the server has asked homes for, and what a data connection that comes has to
//! show. A token lets one connection in, of the home that was asked for it, within its time.
//!
//! Used and expired ones are remembered for a while, so that who shows one is told from who guesses
//! in the log: a replay says that somebody has read what only two were to know.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::wire::Token;

/// How long a token is good: TCP's and TLS's handshakes at 300 ms take a second, and what was lost
/// on the way comes again after one or three.
pub const VALID: Duration = Duration::from_secs(10);

/// Connections that one home is asked for at once. A disk has at most as many as its path needs,
/// tens of them; more wait for no answer.
pub const OPEN_MAX: usize = 64;

/// Used and expired tokens that are remembered, of all homes together.
const REMEMBERED_MAX: usize = 4096;

/// A time, as it has passed since a beginning that is the caller's.
pub type Time = Duration;

/// A home has been asked for as much as it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the home is asked for {OPEN_MAX} connections already")]
pub struct Full;

/// Why a token lets nobody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It has let somebody in.
    #[error("it was used before: a replay")]
    Used,
    /// Too late, or nobody waits for it any more.
    #[error("it has expired")]
    Expired,
    /// It was given to another home.
    #[error("it is another home's")]
    Foreign,
    /// It was never given to anybody, or long ago.
    #[error("nobody was given it")]
    Unknown,
}

/// Tokens that are good, and some that were.
#[derive(Debug, Default)]
pub struct Tokens {
    open: BTreeMap<Token, Open>,
    /// Those that are good no more, the oldest first, and why.
    over: BTreeMap<Token, Refusal>,
    order: VecDeque<Token>,
}

#[derive(Debug)]
struct Open {
    home: String,
    until: Time,
}

impl Tokens {
    /// A token for a connection of a home, made of random bytes.
    ///
    /// # Errors
    /// It has been asked for too many.
    pub fn issue(&mut self, now: Time, home: &str, random: [u8; 16]) -> Result<Token, Full> {
        self.expire(now);
        if self.open.values().filter(|open| open.home == home).count() >= OPEN_MAX {
            return Err(Full);
        }
        let token = Token(random);
        self.open.insert(token, Open { home: home.to_owned(), until: now + VALID });
        Ok(token)
    }

    /// A connection of a home shows a token: it is in, and nobody is after it.
    ///
    /// # Errors
    /// Why it is not.
    pub fn redeem(&mut self, now: Time, home: &str, token: Token) -> Result<(), Refusal> {
        self.expire(now);
        match self.open.get(&token) {
            Some(open) if open.home == home => {
                self.end(token, Refusal::Used);
                Ok(())
            }
            Some(_) => Err(Refusal::Foreign),
            None => Err(self.over.get(&token).copied().unwrap_or(Refusal::Unknown)),
        }
    }

    /// Nobody waits for it any more.
    pub fn withdraw(&mut self, token: Token) {
        if self.open.contains_key(&token) {
            self.end(token, Refusal::Expired);
        }
    }

    /// Was it given to this home, and is it good?
    pub fn is_open(&self, home: &str, token: Token) -> bool {
        self.open.get(&token).is_some_and(|open| open.home == home)
    }

    fn expire(&mut self, now: Time) {
        let late = self.open.iter().filter(|(_, open)| open.until <= now);
        let late: Vec<Token> = late.map(|(token, _)| *token).collect();
        late.into_iter().for_each(|token| self.end(token, Refusal::Expired));
    }

    fn end(&mut self, token: Token, how: Refusal) {
        self.open.remove(&token);
        if self.over.insert(token, how).is_none() {
            self.order.push_back(token);
        }
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.over.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    fn random(number: u32) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    #[test]
    fn a_token_lets_one_in_and_a_replay_is_called_one() {
        let mut tokens = Tokens::default();
        let token = tokens.issue(at(0), "attic", random(1)).unwrap();
        assert!(tokens.is_open("attic", token) && !tokens.is_open("shed", token));
        assert_eq!(tokens.redeem(at(1), "shed", token), Err(Refusal::Foreign));
        assert_eq!(tokens.redeem(at(1), "attic", token), Ok(()), "who else tries spoils nothing");
        for now in [1, 2, 3600] {
            assert_eq!(tokens.redeem(at(now), "attic", token), Err(Refusal::Used));
        }
        assert_eq!(tokens.redeem(at(1), "attic", Token(random(2))), Err(Refusal::Unknown));
    }

    #[test]
    fn a_token_ends_with_its_time_and_with_who_waits_for_it() {
        let mut tokens = Tokens::default();
        let late = tokens.issue(at(5), "attic", random(1)).unwrap();
        let in_time = tokens.issue(at(5), "attic", random(2)).unwrap();
        let left = tokens.issue(at(5), "attic", random(3)).unwrap();
        let end = at(5) + VALID;
        assert_eq!(tokens.redeem(end - Duration::from_nanos(1), "attic", in_time), Ok(()));
        tokens.withdraw(left);
        tokens.withdraw(in_time);
        assert_eq!(tokens.redeem(end, "attic", left), Err(Refusal::Expired));
        assert_eq!(tokens.redeem(end, "attic", late), Err(Refusal::Expired));
        assert_eq!(tokens.redeem(end, "attic", in_time), Err(Refusal::Used));
    }

    #[test]
    fn one_home_has_so_many_and_does_not_use_up_those_of_others() {
        let mut tokens = Tokens::default();
        for number in 0..OPEN_MAX as u32 {
            tokens.issue(at(0), "attic", random(number)).unwrap();
        }
        assert_eq!(tokens.issue(at(1), "attic", random(999)), Err(Full));
        assert!(tokens.issue(at(1), "shed", random(1000)).is_ok());
        tokens.redeem(at(1), "attic", Token(random(0))).unwrap();
        assert!(tokens.issue(at(1), "attic", random(1001)).is_ok());
        assert_eq!(tokens.issue(at(1), "attic", random(1002)), Err(Full));
        assert!(tokens.issue(at(11), "attic", random(1003)).is_ok(), "those before have expired");
    }

    #[test]
    fn what_is_remembered_has_an_end() {
        let mut tokens = Tokens::default();
        for number in 0..REMEMBERED_MAX as u32 + 10 {
            let token = tokens.issue(at(0), "attic", random(number)).unwrap();
            tokens.redeem(at(0), "attic", token).unwrap();
        }
        assert_eq!((tokens.over.len(), tokens.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
        assert_eq!(tokens.redeem(at(0), "attic", Token(random(0))), Err(Refusal::Unknown));
        assert_eq!(tokens.redeem(at(0), "attic", Token(random(4000))), Err(Refusal::Used));
    }
}
