//! How much peers can make the log grow: whoever comes and goes a thousand times a second is named,
//! with the reason, often enough to be found, and then only counted (in the metrics, too); many of
//! them together are, likewise. It limits what is said about peers, not what the server says about
//! itself.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use iscsi_proto::time::Instant;
use tracing::warn;

use super::network::network;

/// Lines about one peer in one [`WINDOW`]: a host that logs in to a hundred targets when it boots
/// is shown in full.
const LINES_MAX: u32 = 256;

/// Lines about all peers in one window: four such hosts. With what is said about lines left out it
/// is less than [`LINES_WRITTEN_MAX`], about 250 KB.
const LINES_ALL_MAX: u32 = 1024;

/// Lines about one peer once half of those for all are written: what remains is for peers of whom
/// nothing is known yet.
const LINES_PRESSED_MAX: u32 = 16;

/// Most lines in one window, with those that say that others were left out.
#[cfg(test)]
const LINES_WRITTEN_MAX: u32 = 1200;

/// After this time a peer may be written about anew.
const WINDOW: Duration = Duration::from_secs(60);

/// Peers that are told apart. Further ones share one count.
const PEERS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct LogLimit {
    state: Mutex<State>,
}

struct State {
    all: Window,
    peers: HashMap<IpAddr, Window>,
}

impl Default for State {
    fn default() -> Self {
        Self { all: Window::new(Instant(Duration::ZERO)), peers: HashMap::new() }
    }
}

struct Window {
    begins: Instant,
    lines: u32,
    left_out: u32,
}

impl Window {
    fn new(begins: Instant) -> Self {
        Self { begins, lines: 0, left_out: 0 }
    }

    /// Begins anew when its time is over; how many lines the last one had left out.
    fn turn(&mut self, now: Instant) -> u32 {
        if now.since(self.begins) < WINDOW {
            return 0;
        }
        std::mem::replace(self, Self::new(now)).left_out
    }

    /// Counts a line that may be written, or one that may not; true when it is the first of those.
    fn count(&mut self, max: u32) -> Verdict {
        if self.lines < max {
            self.lines += 1;
            return Verdict::Written;
        }
        self.left_out = self.left_out.saturating_add(1);
        if self.left_out == 1 { Verdict::FirstLeftOut } else { Verdict::LeftOut }
    }

    fn seconds_left(&self, now: Instant) -> u64 {
        (WINDOW - now.since(self.begins).min(WINDOW)).as_secs()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Written,
    FirstLeftOut,
    LeftOut,
}

impl LogLimit {
    /// May a line about this peer be written now? The last one before it may not, and the first
    /// one after, say how many are left out.
    pub(super) fn admits(&self, peer: IpAddr, now: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { all, peers } = &mut *state;
        let left_out = all.turn(now);
        if left_out > 0 {
            warn!(left_out, "lines about peers were left out");
        }
        if all.lines >= LINES_ALL_MAX {
            // Of whom, is not counted: that would be work and memory for whoever floods us.
            if all.count(LINES_ALL_MAX) == Verdict::FirstLeftOut {
                let seconds = all.seconds_left(now);
                warn!(seconds, "too many lines about peers: leaving out all of the next ones");
            }
            return false;
        }
        let mut network = network(peer);
        if peers.len() >= PEERS_MAX && !peers.contains_key(&network) {
            peers.retain(|_, window| now.since(window.begins) < WINDOW);
            if peers.len() >= PEERS_MAX {
                network = Ipv4Addr::UNSPECIFIED.into();
            }
        }
        let window = peers.entry(network).or_insert_with(|| Window::new(now));
        let left_out = window.turn(now);
        if left_out > 0 {
            warn!(%network, left_out, "lines about this peer were left out");
        }
        let pressed = all.lines >= LINES_ALL_MAX / 2;
        let verdict = window.count(if pressed { LINES_PRESSED_MAX } else { LINES_MAX });
        match verdict {
            Verdict::Written => {
                all.count(LINES_ALL_MAX);
            }
            Verdict::FirstLeftOut => {
                let seconds = window.seconds_left(now);
                warn!(%network, seconds, "too many lines about this peer: leaving out the next ones");
            }
            Verdict::LeftOut => {}
        }
        verdict == Verdict::Written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    fn at(seconds: u64) -> Instant {
        Instant(Duration::from_secs(seconds))
    }

    #[test]
    fn a_noisy_peer_is_silenced_for_a_while_and_no_other() {
        let limit = LogLimit::default();
        let [noisy, other]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|a| a.parse().unwrap());
        let admitted = (0..10_000).filter(|_| limit.admits(noisy, at(5))).count();
        assert_eq!(admitted, LINES_MAX as usize);
        assert!(limit.admits(other, at(5)));
        assert!(!limit.admits(noisy, at(64)));
        assert!(limit.admits(noisy, at(65)));
    }

    #[test]
    fn many_noisy_peers_leave_room_for_others_and_then_fill_a_bounded_log() {
        let limit = LogLimit::default();
        let peer = |n: u32| IpAddr::from(Ipv4Addr::from_bits(n + 1));
        let mut lines = 0;
        for n in 0..4 {
            lines += (0..10_000).filter(|_| limit.admits(peer(n), at(5))).count() as u32;
        }
        assert_eq!(lines, LINES_ALL_MAX / 2 + 2 * LINES_PRESSED_MAX, "two in full, two in brief");
        assert!(limit.admits(peer(9), at(5)), "somebody new is heard of");
        for n in 100..5000 {
            lines += u32::from(limit.admits(peer(n), at(6)));
        }
        assert_eq!(lines + 1, LINES_ALL_MAX);
        // Each that was left out is told of twice at most, and so is the whole.
        let told = limit.state.lock().unwrap().peers.values().filter(|w| w.left_out > 0).count();
        assert!(lines + 2 * told as u32 + 2 < LINES_WRITTEN_MAX);
        assert!(!limit.admits(peer(9), at(59)));
        assert!(limit.admits(peer(9), at(65)));
    }

    #[test]
    fn whoever_has_many_addresses_cannot_fill_memory() {
        let limit = LogLimit::default();
        let mut admitted = 0;
        // A line from each, in as many windows as it takes.
        for n in 0..3 * PEERS_MAX as u32 {
            let now = at(u64::from(n) / 1000);
            admitted += u32::from(limit.admits(Ipv4Addr::from_bits(n + 1).into(), now));
        }
        assert!(limit.state.lock().unwrap().peers.len() <= PEERS_MAX + 1);
        assert_eq!(admitted, LINES_ALL_MAX);
        assert!(limit.admits(Ipv4Addr::from_bits(u32::MAX).into(), at(60)), "room again");
        let one_network = |n: u128| Ipv6Addr::from_bits((0x2001_0db8 << 96) + n).into();
        let admitted = (0..1000).filter(|n| limit.admits(one_network(*n), at(60))).count();
        assert_eq!(admitted, LINES_MAX as usize);
    }
}
