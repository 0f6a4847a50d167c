//! [`Lobby`]: places of logins under way, and who has to give one up when all are taken.
//!
//! Anybody who reaches a portal can open connections and say nothing, or stop half-way. So a new
//! connection is let in, and one that stands there goes: first the oldest that had its chance to
//! speak and has not; then, of the network that holds the most places, the oldest of its silent
//! ones or of those that negotiate, whichever are more. So a host that floods a portal drives out
//! its own flood, silent or speaking. An initiator that means well speaks at once and is through in
//! a few round trips; it loses its place only if its network opens half as many connections in that
//! time as it may hold.
//!
//! One that has proved who it is keeps its place to the end of the time for a login. One that has
//! reached its session needs none: sessions have limits of their own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use iscsi_proto::time::Instant;
use tokio::sync::oneshot;

use super::network::network;

/// Time within which a peer that means well has said something: its first PDU is sent with the end
/// of the TCP handshake, and a lost packet comes again after a second.
const SPEAKS_WITHIN: Duration = Duration::from_secs(1);

/// Logins under way. The limits come with each attempt, as they may change.
#[derive(Default)]
pub(super) struct Lobby {
    guests: Mutex<Guests>,
}

#[derive(Default)]
struct Guests {
    next_ticket: u64,
    /// In order of arrival.
    by_ticket: BTreeMap<u64, Guest>,
    by_network: HashMap<IpAddr, usize>,
}

struct Guest {
    network: IpAddr,
    since: Instant,
    progress: Progress,
    show_out: oneshot::Sender<()>,
}

impl Guest {
    fn is_silent(&self) -> bool {
        self.progress == Progress::Silent
    }
}

/// How far a login has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// Not one whole PDU has come.
    Silent,
    /// It negotiates, and may be anybody.
    Speaking,
    /// It has proved who it is.
    Proved,
}

/// The place of one login; free again when dropped.
pub(super) struct Place {
    lobby: Arc<Lobby>,
    ticket: u64,
}

/// Tells a login to go.
pub(super) struct ShownOut(oneshot::Receiver<()>);

impl ShownOut {
    /// Completes when the place is needed for another; never if it was left before.
    pub(super) async fn wait(self) {
        if self.0.await.is_err() {
            std::future::pending().await
        }
    }
}

impl Lobby {
    /// A place among at most `all_max`, and `network_max` of the peer's network. Another login may
    /// have to go for it; `None` where all have proved who they are.
    pub(super) fn enter(
        self: &Arc<Self>,
        peer: IpAddr,
        now: Instant,
        all_max: usize,
        network_max: usize,
    ) -> Option<(Place, ShownOut)> {
        let network = network(peer);
        let mut guests = self.lock();
        if guests.by_network.get(&network).is_some_and(|count| *count >= network_max) {
            guests.show_out(Some(network), now)?;
        }
        if guests.by_ticket.len() >= all_max {
            guests.show_out(None, now)?;
        }
        let ticket = guests.next_ticket;
        guests.next_ticket += 1;
        *guests.by_network.entry(network).or_default() += 1;
        let (show_out, shown_out) = oneshot::channel();
        let guest = Guest { network, since: now, progress: Progress::Silent, show_out };
        guests.by_ticket.insert(ticket, guest);
        Some((Place { lobby: Arc::clone(self), ticket }, ShownOut(shown_out)))
    }

    fn lock(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guests {
    /// Makes room, of one network or of any.
    fn show_out(&mut self, network: Option<IpAddr>, now: Instant) -> Option<()> {
        let ticket = self.least_deserving(network, now)?;
        // Whoever has gone meanwhile does not listen, and needs the place no more.
        let _gone = self.remove(ticket)?.show_out.send(());
        Some(())
    }

    fn least_deserving(&self, network: Option<IpAddr>, now: Instant) -> Option<u64> {
        let is_concerned = |guest: &Guest| {
            guest.progress < Progress::Proved && network.is_none_or(|one| one == guest.network)
        };
        let concerned = || self.by_ticket.iter().filter(|(_, guest)| is_concerned(guest));
        let had_its_chance =
            |guest: &Guest| guest.is_silent() && now.since(guest.since) >= SPEAKS_WITHIN;
        if let Some((ticket, _)) = concerned().find(|(_, guest)| had_its_chance(guest)) {
            return Some(*ticket);
        }
        // The first of several that are alike, which is the oldest.
        let (_, crowd) = concerned().min_by_key(|(_, guest)| Reverse(self.places(guest)))?;
        let of_it = || concerned().filter(|(_, guest)| guest.network == crowd.network);
        let (silent, speaking): (Vec<_>, Vec<_>) =
            of_it().partition(|(_, guest)| guest.is_silent());
        let more = if silent.len() >= speaking.len() { silent } else { speaking };
        more.first().map(|(ticket, _)| **ticket) // the oldest
    }

    /// Places that a guest's network holds.
    fn places(&self, guest: &Guest) -> usize {
        self.by_network.get(&guest.network).copied().unwrap_or(0)
    }

    fn remove(&mut self, ticket: u64) -> Option<Guest> {
        let guest = self.by_ticket.remove(&ticket)?;
        if let Some(count) = self.by_network.get_mut(&guest.network) {
            *count -= 1;
            if *count == 0 {
                self.by_network.remove(&guest.network);
            }
        }
        Some(guest)
    }
}

impl Place {
    /// The login has come so far.
    pub(super) fn note(&self, progress: Progress) {
        if let Some(guest) = self.lobby.lock().by_ticket.get_mut(&self.ticket) {
            guest.progress = guest.progress.max(progress);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lobby.lock().remove(self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Login {
        place: Place,
        shown_out: ShownOut,
    }

    impl Login {
        fn must_go(&mut self) -> bool {
            self.shown_out.0.try_recv().is_ok()
        }
    }

    #[derive(Default)]
    struct Door {
        lobby: Arc<Lobby>,
        now_ms: u64,
    }

    impl Door {
        /// With four places, three of one network.
        fn enter(&self, peer: &str, progress: Progress) -> Option<Login> {
            let now = Instant(Duration::from_millis(self.now_ms));
            let (place, shown_out) = self.lobby.enter(peer.parse().unwrap(), now, 4, 3)?;
            place.note(progress);
            Some(Login { place, shown_out })
        }
    }

    use Progress::{Proved, Silent, Speaking};

    #[test]
    fn the_oldest_that_had_its_chance_goes_first() {
        let mut door = Door::default();
        let mut first = door.enter("10.0.0.1", Speaking).unwrap();
        let mut second = door.enter("10.0.0.2", Silent).unwrap();
        let mut third = door.enter("10.0.0.3", Silent).unwrap();
        let mut fourth = door.enter("10.0.0.3", Silent).unwrap();
        door.now_ms = 1000;
        let _fifth = door.enter("10.0.0.4", Silent).unwrap();
        assert!(second.must_go() && !first.must_go() && !third.must_go() && !fourth.must_go());
        drop(second); // its place was given away: nobody else's is free now
        assert_eq!(door.lobby.lock().by_ticket.len(), 4);
    }

    #[test]
    fn a_flood_drives_out_itself() {
        let door = Door::default();
        let mut honest = door.enter("10.0.0.1", Silent).unwrap();
        // One /64 with as many addresses as one likes.
        let mut flood: Vec<Login> = Vec::new();
        for n in 1..100 {
            let progress = if n % 2 == 0 { Speaking } else { Silent };
            flood.push(door.enter(&format!("2001:db8::{n:x}"), progress).unwrap());
        }
        let gone = flood.iter_mut().filter_map(|login| login.must_go().then_some(())).count();
        assert_eq!((gone, honest.must_go()), (96, false));
        // Several of them, all talking: the network with the most places gives one.
        let mut other = door.enter("10.0.0.2", Silent).unwrap();
        let _more = door.enter("10.0.0.3", Silent).unwrap();
        assert!(!honest.must_go() && !other.must_go());
    }

    #[test]
    fn one_that_has_just_come_is_not_driven_out_by_those_that_speak_half_way() {
        let door = Door::default();
        let crowd = |door: &Door| door.enter("10.0.0.1", Speaking).unwrap();
        let mut first = crowd(&door);
        let _second = crowd(&door);
        let mut honest = door.enter("10.0.0.1", Silent).unwrap();
        let _next = crowd(&door);
        assert!(first.must_go() && !honest.must_go());
    }

    #[test]
    fn of_networks_with_as_many_places_the_oldest_login_goes() {
        let door = Door::default();
        let enter = |n: u32| door.enter(&format!("10.0.{n}.1"), Speaking).unwrap();
        let mut all: Vec<_> = (0..5).map(enter).collect();
        assert!(all[0].must_go() && !all[1..].iter_mut().any(Login::must_go));
    }

    #[test]
    fn one_that_speaks_is_not_driven_out_by_the_silent() {
        let door = Door::default();
        let mut honest = door.enter("10.0.0.1", Speaking).unwrap();
        let _crowd: Vec<_> = (0..50).map(|_| door.enter("10.0.0.1", Silent).unwrap()).collect();
        assert!(!honest.must_go());
    }

    #[test]
    fn whoever_has_proved_itself_stays() {
        let mut door = Door::default();
        let mut known: Vec<_> = (0..3).map(|_| door.enter("10.0.0.1", Proved).unwrap()).collect();
        door.now_ms = 5000;
        assert!(door.enter("10.0.0.1", Silent).is_none(), "all places of the network are kept");
        let mut speaking = door.enter("10.0.0.2", Speaking).unwrap();
        let mut next = door.enter("10.0.0.3", Proved).unwrap();
        assert!(speaking.must_go() && !next.must_go());
        assert!(door.enter("10.0.0.4", Silent).is_none());
        assert!(!known.iter_mut().any(Login::must_go));
        next.place.note(Silent);
        assert!(door.enter("10.0.0.4", Silent).is_none(), "progress is not lost");
        drop(known);
        assert!(door.enter("10.0.0.4", Silent).is_some());
        drop((speaking, next));
        assert!(door.lobby.lock().by_network.is_empty());
    }
}
