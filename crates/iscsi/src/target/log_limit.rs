//! How much one peer can make the log grow: whoever comes and goes a thousand times a second is
//! named, with the reason, often enough to be found, and then only counted (in the metrics, too).
//! It limits what is said about peers, not what the server says about itself.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use iscsi_proto::time::Instant;
use tracing::warn;

/// Lines about one peer in one [`WINDOW`]: a host that logs in to a hundred targets when it boots
/// is shown in full.
const LINES_MAX: u32 = 256;

/// After this time a peer may be written about anew.
const WINDOW: Duration = Duration::from_secs(60);

/// Peers that are told apart. Further ones share one count.
const PEERS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct LogLimit {
    peers: Mutex<HashMap<IpAddr, Window>>,
}

struct Window {
    begins: Instant,
    lines: u32,
}

impl LogLimit {
    /// May a line about this peer be written now? The last one before it may not, and the first
    /// one after, say how many are left out.
    pub(super) fn admits(&self, peer: IpAddr, now: Instant) -> bool {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut network = network(peer);
        if peers.len() >= PEERS_MAX && !peers.contains_key(&network) {
            peers.retain(|_, window| now.since(window.begins) < WINDOW);
            if peers.len() >= PEERS_MAX {
                network = Ipv4Addr::UNSPECIFIED.into();
            }
        }
        let window = peers.entry(network).or_insert(Window { begins: now, lines: 0 });
        if now.since(window.begins) >= WINDOW {
            let left_out = window.lines.saturating_sub(LINES_MAX);
            *window = Window { begins: now, lines: 0 };
            if left_out > 0 {
                warn!(%network, left_out, "lines about this peer were left out");
            }
        }
        window.lines = window.lines.saturating_add(1);
        if window.lines == LINES_MAX + 1 {
            let seconds = (WINDOW - now.since(window.begins)).as_secs();
            warn!(%network, seconds, "too many lines about this peer: leaving out the next ones");
        }
        window.lines <= LINES_MAX
    }
}

/// What one peer can take its addresses from: an IPv4 address, or an IPv6 network of 64 bits.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn whoever_has_many_addresses_cannot_fill_memory() {
        let limit = LogLimit::default();
        let mut admitted = 0;
        for n in 0..3 * PEERS_MAX as u32 {
            admitted += usize::from(limit.admits(Ipv4Addr::from_bits(n + 1).into(), at(0)));
        }
        assert!(limit.peers.lock().unwrap().len() <= PEERS_MAX + 1);
        assert_eq!(admitted, PEERS_MAX + LINES_MAX as usize);
        assert!(limit.admits(Ipv4Addr::from_bits(u32::MAX).into(), at(60)), "room again");
        let one_network = |n: u128| Ipv6Addr::from_bits((0x2001_0db8 << 96) + n).into();
        let admitted = (0..1000).filter(|n| limit.admits(one_network(*n), at(60))).count();
        assert_eq!(admitted, LINES_MAX as usize);
    }
}
