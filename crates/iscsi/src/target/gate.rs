//! Counted places: connections of a server, and logins under way by peer address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Places that are taken, by whom. The limits come with each attempt, as they may change.
#[derive(Default)]
pub(super) struct Gate {
    taken: Mutex<Taken>,
    left: Notify,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_peer: HashMap<IpAddr, usize>,
}

/// A place; free again when dropped.
pub(super) struct Place {
    gate: Arc<Gate>,
    peer: IpAddr,
}

impl Gate {
    /// A place, unless there are `all_max`, or `peer_max` of this peer.
    pub(super) fn enter(
        self: &Arc<Self>,
        peer: IpAddr,
        all_max: usize,
        peer_max: usize,
    ) -> Option<Place> {
        let peer = peer.to_canonical();
        let mut taken = self.lock();
        let of_peer = taken.by_peer.get(&peer).copied().unwrap_or(0);
        if taken.all >= all_max || of_peer >= peer_max {
            return None;
        }
        taken.all += 1;
        taken.by_peer.insert(peer, of_peer + 1);
        Some(Place { gate: Arc::clone(self), peer })
    }

    /// Places taken.
    pub(super) fn count(&self) -> usize {
        self.lock().all
    }

    /// Completes when nobody is in.
    pub(super) async fn empty(&self) {
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            left.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.gate.lock();
        taken.all -= 1;
        if let Some(count) = taken.by_peer.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                taken.by_peer.remove(&self.peer);
            }
        }
        drop(taken);
        self.gate.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_are_limited_overall_and_by_peer() {
        let gate = Arc::new(Gate::default());
        let [a, mapped, b]: [IpAddr; 3] =
            ["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let first = gate.enter(a, 3, 2).unwrap();
        let second = gate.enter(mapped, 3, 2).unwrap();
        assert!(gate.enter(a, 3, 2).is_none(), "the same peer, in either notation");
        let third = gate.enter(b, 3, 2).unwrap();
        assert!(gate.enter(b, 3, 2).is_none(), "all places are taken");
        drop(first);
        assert!(gate.enter(a, 3, 2).is_some());
        drop((second, third));
        gate.empty().await;
        assert!(gate.lock().by_peer.is_empty());
    }
}
