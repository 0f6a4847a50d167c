//! [`Guesses`]: how often somebody may try a password. Each attempt counts until it was right, by
//! address and by name; what was tried is forgiven one by one, and meanwhile the answer is 429.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Attempts that may be wrong in a row.
const FREE: u32 = 8;
/// How long it takes until one of them is forgiven: a name is tried 1,440 times a day at most.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);
/// Who is remembered. Where there are more, those whose attempts are oldest are forgotten.
const REMEMBERED_MAX: usize = 10_000;

/// Who tries, and whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Address(IpAddr),
    Name(String),
}

/// Attempts.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    /// When all attempts of a key are forgiven: an attempt moves it by [`FORGIVEN_AFTER`].
    clean: HashMap<Key, Instant>,
}

/// An attempt that was allowed.
#[derive(Debug)]
pub(super) struct Attempt(Vec<Key>);

impl Guesses {
    /// One attempt at a name from an address. Whoever was let in from there before is not kept out
    /// by what others tried with his name, unless it is an address of everybody.
    ///
    /// # Errors
    /// How long it is too many.
    pub(super) fn attempt(
        &mut self,
        address: IpAddr,
        name: &str,
        is_known: bool,
        now: Instant,
    ) -> Result<Attempt, Duration> {
        let mut keys = Vec::with_capacity(2);
        if let Some(address) = counted(address) {
            keys.push(Key::Address(address));
        }
        if !is_known || keys.is_empty() {
            keys.push(Key::Name(name.to_owned()));
        }
        let most = FORGIVEN_AFTER * FREE;
        let too_long = |key: &Key| {
            let clean = self.clean.get(key)?.checked_duration_since(now)?;
            (clean + FORGIVEN_AFTER).checked_sub(most).filter(|wait| !wait.is_zero())
        };
        if let Some(wait) = keys.iter().filter_map(too_long).max() {
            return Err(wait);
        }
        for key in &keys {
            let clean = self.clean.entry(key.clone()).or_insert(now);
            *clean = (*clean).max(now) + FORGIVEN_AFTER;
        }
        self.forget(now);
        Ok(Attempt(keys))
    }

    /// It was right: it does not count. Others do, so that nobody hides them behind his own.
    pub(super) fn was_right(&mut self, attempt: Attempt) {
        for key in attempt.0 {
            if let Some(clean) = self.clean.get_mut(&key)
                && let Some(before) = clean.checked_sub(FORGIVEN_AFTER)
            {
                *clean = before;
            }
        }
    }

    fn forget(&mut self, now: Instant) {
        if self.clean.len() <= REMEMBERED_MAX {
            return;
        }
        self.clean.retain(|_, clean| *clean > now);
        // Half of them at once, so that it is done seldom.
        if self.clean.len() > REMEMBERED_MAX {
            let mut times: Vec<Instant> = self.clean.values().copied().collect();
            let (_, middle, _) = times.select_nth_unstable(REMEMBERED_MAX / 2);
            let middle = *middle;
            self.clean.retain(|_, clean| *clean > middle);
        }
    }
}

/// Where attempts are counted together: a household has an IPv6 network of 64 bits. What comes
/// from this machine may be a proxy for everybody, and counts by name alone.
fn counted(address: IpAddr) -> Option<IpAddr> {
    match address.to_canonical() {
        address if address.is_loopback() => None,
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            Some(IpAddr::V6(network.into()))
        }
        address => Some(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn an_address_and_a_name_have_so_many_attempts_and_one_more_a_minute() {
        let mut guesses = Guesses::default();
        let now = Instant::now();
        for number in 0..FREE {
            guesses.attempt(ONE, &format!("name {number}"), false, now).unwrap();
        }
        let wait = guesses.attempt(ONE, "another", false, now).unwrap_err();
        assert_eq!(wait, FORGIVEN_AFTER);
        let later = now + FORGIVEN_AFTER;
        guesses.attempt(ONE, "another", false, later).unwrap();
        assert!(guesses.attempt(ONE, "another", false, later).is_err());

        // A name from everywhere.
        for number in 0..FREE as u8 {
            let address = IpAddr::from([198, 51, 100, number]);
            guesses.attempt(address, "anna", false, now).unwrap();
        }
        assert!(guesses.attempt(OTHER, "anna", false, now).is_err());
        guesses.attempt(OTHER, "anna", true, now).expect("who was here before comes in");
        guesses.attempt(OTHER, "ben", false, now).expect("another name is another name");
        let near = IpAddr::from([127, 0, 0, 1]);
        assert!(guesses.attempt(near, "anna", true, now).is_err(), "a proxy's clients are many");
    }

    #[test]
    fn who_is_right_may_come_as_often_as_he_likes_and_hides_no_attempt() {
        let mut guesses = Guesses::default();
        let now = Instant::now();
        for _ in 0..100 {
            let attempt = guesses.attempt(ONE, "anna", false, now).unwrap();
            guesses.was_right(attempt);
        }
        let mut tried = 0;
        while guesses.attempt(ONE, "ben", false, now).is_ok() {
            let attempt = guesses.attempt(ONE, "mine", false, now);
            if let Ok(attempt) = attempt {
                guesses.was_right(attempt);
            }
            tried += 1;
        }
        assert_eq!(tried, FREE);
    }

    #[test]
    fn a_household_is_one_and_this_machine_is_many() {
        assert_eq!(counted("::1".parse().unwrap()), None);
        assert_eq!(counted("::ffff:127.0.0.1".parse().unwrap()), None);
        let one = counted("2001:db8::1".parse().unwrap());
        assert_eq!(one, counted("2001:db8::ffff:1:2:3".parse().unwrap()));
        assert_ne!(one, counted("2001:db8:0:1::1".parse().unwrap()));
    }

    #[test]
    fn memory_has_a_limit() {
        let mut guesses = Guesses::default();
        let now = Instant::now();
        for number in 0..3 * REMEMBERED_MAX as u32 {
            let address = IpAddr::from((0x0a00_0000 + number).to_be_bytes());
            let at = now + Duration::from_millis(number.into());
            let _ = guesses.attempt(address, &number.to_string(), false, at);
            assert!(guesses.clean.len() <= REMEMBERED_MAX + 2);
        }
    }
}
