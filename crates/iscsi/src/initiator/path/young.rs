//! A path that is new, or that other connections than before are to fill: how much it may get
//! ([`Opening`]), and how its connections share the work until their windows are what they will be.

use std::collections::HashSet;

use path::tuner::{Bottleneck, CongestionControl, Decision, Opening, Room, Sample, Why};

use super::meter::Measured;

/// So many times as many connections change a path.
const JOINED_FACTOR: u32 = 2;

#[derive(Debug, Default)]
pub(super) struct Young {
    opening: Opening,
    /// It was opened before.
    again: bool,
    /// The last congestion control that was asked for.
    control: Option<CongestionControl>,
    /// Connections that have lost something, by their serial numbers.
    unlucky: HashSet<u32>,
}

impl Young {
    /// What may be under way before anything was measured.
    pub(super) fn first(&mut self, rtt_s: f64, open: u32) -> Option<Room> {
        self.opening.first(rtt_s, open)
    }

    /// Takes a sample; what may be under way while the path is young.
    ///
    /// All windows of a new path grow together: one that began a little later is not to be left
    /// behind, for it would hold up the commands of all. But one that has lost something grows no
    /// more, and with the same work as the rest it would hold them up for seconds.
    pub(super) fn handle(&mut self, measured: &mut Measured) -> Option<Room> {
        let Some(room) = self.opening.handle_sample(&measured.sample) else {
            self.unlucky.clear();
            return None;
        };
        let lost = measured.sample.connections.iter().filter(|c| c.loses());
        self.unlucky.extend(lost.map(|c| c.id.0));
        for (.., serial, slowness) in &mut measured.slowness {
            if !self.again && !self.unlucky.contains(serial) {
                *slowness = 1.0;
            }
        }
        Some(room)
    }

    /// The rate to go on with ([`Opening::ended_with`]).
    pub(super) fn ended_with(&mut self) -> Option<f64> {
        self.opening.ended_with()
    }

    /// Losses are answered by far more connections, or by another congestion control: what was
    /// found out about the path says little about those. True then, once.
    pub(super) fn is_again(&mut self, sample: &Sample, decision: &Decision) -> bool {
        let many = decision.connections >= JOINED_FACTOR * sample.connections_open.max(1)
            && decision.why == Why::Limited(Bottleneck::CongestionLoss);
        // Where it is refused, it is asked for again and again.
        let other = decision.congestion_control.filter(|control| Some(*control) != self.control);
        if !many && other.is_none() {
            return false;
        }
        self.control = other.or(self.control);
        self.again = true;
        self.opening.again(sample.bytes_per_s);
        true
    }
}

#[cfg(test)]
mod tests {
    use path::tuner::{Connection, ConnectionId, Tcp};

    use super::*;

    /// Two connections at 50 ms, the second eight times as slow.
    fn measured(t_s: f64, lost: f64) -> Measured {
        let connection = |serial, retransmits| Connection {
            id: ConnectionId(serial),
            tcp: Tcp { min_rtt_us: Some(5e4), rtt_us: Some(5e4), retransmits, ..Tcp::default() },
            ..Connection::default()
        };
        let sample = Sample {
            t_s,
            bytes_per_s: 1e6,
            connections_open: 2,
            connections: vec![connection(1, Some(0.0)), connection(2, Some(lost))],
            ..Sample::default()
        };
        let id = crate::initiator::state::a_connection();
        let slowness = vec![(0, id, 1, 2.0), (0, id, 2, 8.0)];
        Measured { sample, reads: false, connections: Vec::new(), slowness }
    }

    fn slowness(measured: &Measured) -> Vec<f64> {
        measured.slowness.iter().map(|(.., slowness)| *slowness).collect()
    }

    #[test]
    fn on_a_new_path_only_who_lost_something_counts_as_slow() {
        let mut young = Young::default();
        let [mut clean, mut lossy, mut later] =
            [measured(0.1, 0.0), measured(0.2, 1.0), measured(0.3, 0.0)];
        assert!(young.handle(&mut clean).is_some());
        assert_eq!(slowness(&clean), [1.0, 1.0]);
        young.handle(&mut lossy);
        young.handle(&mut later);
        assert_eq!((slowness(&lossy), slowness(&later)), (vec![1.0, 8.0], vec![1.0, 8.0]));
    }

    #[test]
    fn connections_that_losses_ask_for_do_not_overrun_a_path_that_is_not_new_any_more() {
        let mut young = Young::default();
        let mut t_s = 0.0;
        while young.handle(&mut measured(t_s, 1.0)).is_some() {
            t_s += 0.1;
            assert!(t_s < 60.0, "it opens for ever");
        }
        let sample = measured(t_s, 1.0).sample;
        let fixed = path::tuner::Fixed::new(64);
        let mut decision = path::tuner::Policy::handle_sample(&mut { fixed }, &sample);
        assert!(!young.is_again(&sample, &decision), "for another reason");
        decision.why = Why::Limited(Bottleneck::CongestionLoss);
        assert!(young.is_again(&sample, &decision));
        let mut next = measured(t_s + 0.1, 0.0);
        assert!(young.handle(&mut next).is_some_and(|room| room.bytes_per_s < 1e8));
        // These windows are of different ages.
        assert_eq!(slowness(&next), [2.0, 8.0]);
        decision.why = Why::Measuring;
        decision.congestion_control = Some(CongestionControl::Bbr);
        assert!(young.is_again(&sample, &decision));
        assert!(!young.is_again(&sample, &decision), "it was refused, and is asked for again");
    }
}
