//! Which samples tell what the line carries. Behind a queue, what is carried is what the line
//! carries, but only where the sender could have filled it. An application that pauses (for a
//! flush, or until its one command is answered) carries less than the line would, and that says
//! nothing of the line. The rule is that of BBR for delivery-rate samples that are marked as
//! application-limited (draft-cheng-iccrg-delivery-rate-estimation, `is_app_limited`): such a
//! sample may raise what the line is believed to carry, and never lowers it. A window that is not
//! used is no evidence either way (RFC 7661).
//!
//! Below it stands a floor, for whatever evidence may be wrong.

use super::super::Sample;
use super::Pacer;
use super::constants::*;
use crate::limit::Bottleneck;

/// What a sample says of the sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Share of the interval in which commands waited for the rate.
    held_share: f64,
    /// Payload that was under way all the time, as far as the samples around an interval tell.
    under_way: Option<f64>,
    /// At the end of the interval.
    outstanding: Option<f64>,
    limit: Bottleneck,
}

impl Default for Demand {
    fn default() -> Self {
        Self { held_share: 0.0, under_way: None, outstanding: None, limit: Bottleneck::Unknown }
    }
}

impl Demand {
    pub(super) fn after(self, sample: &Sample, limit: Bottleneck) -> Self {
        let outstanding = sample.outstanding_bytes;
        let under_way = outstanding.map(|now| self.outstanding.map_or(now, |old| old.min(now)));
        Self { held_share: sample.held_share, under_way, outstanding, limit }
    }
}

impl Pacer {
    /// The sender used a rate all the time, or had enough under way to use it (Little's law).
    pub(super) fn fills(&self, bytes_per_s: f64) -> bool {
        self.demand.held_share >= ALWAYS_SHARE || self.has_enough(bytes_per_s)
    }

    /// There was enough under way for a rate. Where that is not known, it is the kernel that says
    /// whether the application limits.
    pub(super) fn has_enough(&self, bytes_per_s: f64) -> bool {
        let Demand { under_way, limit, .. } = self.demand;
        match under_way {
            Some(bytes) => bytes >= ENOUGH_SHARE * bytes_per_s * self.base_s,
            None => limit != Bottleneck::Application,
        }
    }

    /// No rate is lower than this one, in bytes a second. The smallest windows that TCP has (RFC
    /// 5681 §3.1) send as much, so that a lower rate could spare the line nothing; and whatever
    /// waits for one command, a ping as well, waits no longer than some seconds.
    pub(super) fn floor(&self) -> f64 {
        let windows = match self.base_s.is_finite() && self.base_s > 0.0 {
            true => f64::from(self.open) * WINDOW_MIN_SEGMENTS * SEGMENT_BYTES / self.base_s,
            false => 0.0,
        };
        windows.max(LARGE_COMMAND_BYTES / LARGE_COMMAND_S)
    }
}

/// What one socket may send of a rate, in bytes a second; the round trip in seconds. `sending` is
/// the number of sockets that use the rate now ([`sending`]), and not that of all: sockets with
/// nothing to send take no part. One that begins to send has its part before it does, for all
/// sockets get the same.
pub fn part(bytes_per_s: f64, sending: f64, rtt_s: f64) -> f64 {
    part_with(PART_HEADROOM, bytes_per_s, sending, rtt_s)
}

/// The same in the background, where what waited in sockets is not to come as a burst: small queues
/// lose that.
pub fn part_in_background(bytes_per_s: f64, sending: f64, rtt_s: f64) -> f64 {
    part_with(PART_HEADROOM_BACKGROUND, bytes_per_s, sending, rtt_s)
}

fn part_with(headroom: f64, bytes_per_s: f64, sending: f64, rtt_s: f64) -> f64 {
    let all = headroom * bytes_per_s;
    let window = WINDOW_MIN_SEGMENTS * SEGMENT_BYTES / rtt_s.max(1e-6);
    let least = window.max(LARGE_COMMAND_BYTES / LARGE_COMMAND_S);
    // A user may want less than that of all sockets together.
    (all / sending.max(1.0)).max(least.min(all))
}

/// How many sockets share the rate, from the payload in bytes that each has under way: those with
/// little are soon done, and leave the rate to those with much (Kish's effective number: n that
/// have the same count as n, one that has nearly all counts as one).
pub fn sending(under_way: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, squares) = under_way
        .into_iter()
        .fold((0.0, 0.0), |(sum, squares), one| (sum + one, squares + one * one));
    if squares > 0.0 { sum * sum / squares } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(held_share: f64, outstanding_bytes: Option<f64>) -> Sample {
        Sample { held_share, outstanding_bytes, ..Sample::default() }
    }

    fn pacer(demand: Demand) -> Pacer {
        Pacer { base_s: 0.02, open: 64, demand, ..Pacer::default() }
    }

    #[test]
    fn only_a_sender_that_could_have_filled_a_rate_tells_of_it() {
        let demand = |samples: &[Sample]| {
            let all = samples.iter();
            all.fold(Demand::default(), |demand, one| demand.after(one, Bottleneck::Unknown))
        };
        // 40 MB/s over 20 ms: 800 kB.
        let full = sample(0.0, Some(1e6));
        let pause = sample(0.0, Some(0.0));
        let fills = |samples: &[Sample]| pacer(demand(samples)).fills(40e6);
        assert!(fills(&[full.clone(), full.clone()]));
        assert!(!fills(&[pause.clone(), full.clone()]), "the interval began with a pause");
        assert!(!fills(&[full.clone(), pause.clone()]), "it ended with one");
        assert!(!fills(&[full.clone(), sample(0.5, Some(3e5))]));
        // Commands that wait for the rate are not under way.
        assert!(fills(&[full, sample(1.0, Some(3e5))]));
        // The kernel decides where nothing else is known.
        for (limit, expected) in
            [(Bottleneck::Application, false), (Bottleneck::CongestionWindow, true)]
        {
            let demand = Demand::default().after(&sample(0.0, None), limit);
            assert_eq!(pacer(demand).fills(40e6), expected);
        }
    }

    #[test]
    fn the_floor_is_what_the_smallest_windows_send_and_a_command_a_second() {
        let floor = |open, base_s| Pacer { open, base_s, ..Pacer::default() }.floor();
        assert_eq!(floor(64, 0.02), 64.0 * 2.0 * 1448.0 / 0.02);
        assert_eq!(floor(1, 0.3), 1048576.0);
        assert_eq!(floor(8, f64::INFINITY), 1048576.0, "the round trip is not known yet");
    }

    #[test]
    fn the_rate_is_divided_over_the_sockets_that_send() {
        assert_eq!(part(40e6, 16.0, 0.02), 1.25 * 40e6 / 16.0);
        assert_eq!(part(40e6, 0.0, 0.02), part(40e6, 1.0, 0.02), "the next one has all of it");
        // However many share how little: no command takes for ever.
        assert_eq!(part(4e6, 64.0, 0.02), 1048576.0);
        assert_eq!(part(4e6, 64.0, 0.001), 2.0 * 1448.0 / 0.001);
        assert_eq!(part(1e5, 64.0, 0.02), 1.25e5, "as a user wants it");
    }

    #[test]
    fn sockets_count_by_what_they_have_to_send() {
        assert_eq!(sending([]), 0.0);
        assert_eq!(sending([0.0; 64]), 0.0);
        assert_eq!(sending([131072.0; 16]), 16.0);
        let mut mixed = vec![4096.0; 13];
        mixed.extend([131072.0; 3]);
        assert!((3.0..5.0).contains(&sending(mixed)));
    }
}
