//! How much a path loses, whoever uses it, and how many connections that takes: each step of a
//! search on such a path costs a slow start and its losses, so the number is computed and tried at
//! once.

use std::collections::VecDeque;

use super::super::{CongestionControl, Connection, Sample};
use super::constants::*;
use crate::law::{PathPlan, SEGMENT_BYTES};

/// Segments of an interval.
#[derive(Clone, Copy, Debug)]
struct Counted {
    t_s: f64,
    segments: f64,
    lost: f64,
}

/// The last intervals and their segments; older ones count less.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    segments: f64,
    lost: f64,
    intervals: f64,
    /// Intervals in which something was lost.
    losing: f64,
}

impl Total {
    fn with(self, segments: f64, lost: f64, interval_s: f64) -> Self {
        let kept = (-interval_s / LOSSY_MEMORY_S).exp();
        Self {
            segments: kept * self.segments + segments,
            lost: kept * self.lost + lost,
            intervals: kept * self.intervals + 1.0,
            losing: kept * self.losing + f64::from(lost > 0.0),
        }
    }

    /// The share that is lost, but for one standard error; 0 of too few to tell.
    fn share(self) -> f64 {
        let known = self.lost >= LOSSY_LOST_MIN && self.segments > self.lost;
        if known { (self.lost - self.lost.sqrt()) / self.segments } else { 0.0 }
    }

    fn share_of_intervals(self) -> f64 {
        self.losing / self.intervals
    }
}

/// The time since the last loss, and what was due to be lost in it.
#[derive(Clone, Copy, Debug, Default)]
struct Spared {
    segments: f64,
    intervals: f64,
    /// Per segment and per interval, when the last one was lost.
    due: f64,
    due_intervals: f64,
}

impl Spared {
    /// Losses would have been seen by now. A queue that ran over makes many due, but in few
    /// intervals.
    fn is_end_of_losses(self) -> bool {
        self.segments * self.due > LOSSY_DUE_MAX
            && self.intervals * self.due_intervals > LOSSY_DUE_INTERVALS_MAX
    }
}

/// Segments sent and lost while no queue could have lost them; older ones count less.
#[derive(Clone, Debug)]
pub(super) struct Lossy {
    segments: f64,
    lost: f64,
    /// The latest of them. The round trip shows a queue some time after it has begun to lose, at
    /// the end that receives above all: that one sends little to measure it by.
    latest: VecDeque<Counted>,
    /// When a queue was last seen. What it loses is sent again a few round trips later.
    crowded_s: f64,
    /// The first of the samples in a row whose round trip is that much longer.
    long_s: Option<f64>,
    /// The most that was carried; long ago counts less.
    most_bytes_per_s: f64,
    /// Since when their share is known.
    known_s: Option<f64>,
    /// All segments, for whatever reason they were lost.
    all: Total,
    spared: Spared,
}

impl Default for Lossy {
    fn default() -> Self {
        Self {
            segments: 0.0,
            lost: 0.0,
            latest: VecDeque::new(),
            crowded_s: f64::NEG_INFINITY,
            long_s: None,
            most_bytes_per_s: 0.0,
            known_s: None,
            all: Total::default(),
            spared: Spared::default(),
        }
    }
}

impl Lossy {
    /// Takes an interval; true if the losses that were known have ended.
    pub(super) fn handle_sample(&mut self, sample: &Sample, interval_s: f64) -> bool {
        let rtt_us = sample.typical(|tcp| tcp.rtt_us);
        let Some((rtt_us, least_us)) = rtt_us.zip(sample.least_rtt_us()) else { return false };
        let (rtt_s, least_s) = (rtt_us / 1e6, least_us / 1e6);
        let retransmits = |c: &Connection| c.tcp.retransmits.filter(|count| count.is_finite());
        let lost: f64 = sample.connections.iter().filter_map(retransmits).sum();
        let segments = sample.bytes_per_s * interval_s / SEGMENT_BYTES;
        let many = lost > LOSSY_LOST_MIN.max(LOSSY_SHARE_MAX * segments) || all_at_once(sample);
        let queue = self.is_queue(rtt_s - least_s, least_s, sample, interval_s);
        if many || queue {
            self.crowded_s = sample.t_s;
            self.forget_latest();
        }
        let clear_s = LOSSY_CLEAR_S.max(LOSSY_CLEAR_ROUND_TRIPS * rtt_s);
        if sample.t_s - self.crowded_s >= clear_s {
            let kept = (-interval_s / LOSSY_MEMORY_S).exp();
            self.segments = kept * self.segments + segments;
            self.lost = kept * self.lost + lost;
            self.latest.retain(|one| sample.t_s - one.t_s < clear_s);
            self.latest.push_back(Counted { t_s: sample.t_s, segments, lost });
        }
        self.all = self.all.with(segments, lost, interval_s);
        if lost > 0.0 {
            let (due, due_intervals) = (self.all.share(), self.all.share_of_intervals());
            self.spared = Spared { due, due_intervals, ..Spared::default() };
        } else {
            self.spared.segments += segments;
            self.spared.intervals += 1.0;
        }
        let ended = self.spared.is_end_of_losses();
        if ended {
            (self.segments, self.lost, self.spared) = (0.0, 0.0, Spared::default());
            self.latest.clear();
        }
        let known = self.lost >= LOSSY_LOST_MIN && self.segments > self.lost;
        self.known_s = known.then(|| self.known_s.unwrap_or(sample.t_s));
        ended
    }

    /// Does a round trip that is longer by `queue_s` show a queue that may lose?
    fn is_queue(&mut self, queue_s: f64, least_s: f64, sample: &Sample, interval_s: f64) -> bool {
        let kept = (-interval_s / LOSSY_MOST_MEMORY_S).exp();
        self.most_bytes_per_s = (kept * self.most_bytes_per_s).max(sample.bytes_per_s);
        // Far below what it carried before, the line has a queue only if it has become a slower
        // one, and then that queue stays. What comes and goes is a machine that got no processor.
        let far_below = sample.bytes_per_s < LOSSY_BELOW_SHARE * self.most_bytes_per_s;
        let (room_s, stands_s) = match far_below {
            true => (LOSSY_QUEUE_BYTES / sample.bytes_per_s, LOSSY_STANDS_S),
            false => (0.0, 0.0),
        };
        let crowded = queue_s > LOSSY_QUEUE_S.max(LOSSY_QUEUE_SHARE * least_s).max(room_s);
        let since_s = self.long_s.unwrap_or(sample.t_s);
        self.long_s = crowded.then_some(since_s);
        crowded && sample.t_s - since_s >= stands_s
    }

    /// There was a queue already when these were counted.
    fn forget_latest(&mut self) {
        for Counted { segments, lost, .. } in self.latest.drain(..) {
            self.segments = (self.segments - segments).max(0.0);
            self.lost = (self.lost - lost).max(0.0);
        }
    }

    /// There are losses that are no queue's.
    pub(super) fn is_known(&self) -> bool {
        self.known_s.is_some()
    }

    /// The share of segments that is lost at least, but for one standard error of their count: few
    /// losses ask for few connections, and for more of them when they go on.
    fn share(&self) -> f64 {
        (self.lost - self.lost.sqrt()) / self.segments
    }

    /// Connections that fill a gigabit, or what was carried if that is more, with these losses;
    /// none if there are too few to tell, or a congestion control that bears them will be there in
    /// a moment.
    pub(super) fn connections(
        &self,
        sample: &Sample,
        available: &[CongestionControl],
    ) -> Option<u32> {
        let for_s = sample.t_s - self.known_s?;
        let control = congestion_control(sample);
        let may_change = available.iter().any(|one| control.is_some_and(|control| *one > control))
            && for_s < LOSSY_CHANGE_S;
        if may_change {
            return None;
        }
        let bytes_per_s = GUESS_BYTES_PER_S.max(sample.bytes_per_s);
        let (rtt_s, loss) = (sample.least_rtt_us()? / 1e6, self.share());
        let path = PathPlan {
            bits_per_s: 8.0 * bytes_per_s,
            rtt_s,
            loss,
            queue_packets: None,
            wmem_bytes: f64::INFINITY,
            rmem_bytes: f64::INFINITY,
            streams: None,
        };
        let cubic = path.outcome(CongestionControl::Cubic);
        // What the other end sends with, is seen by how it bears the losses.
        let one = sample.bytes_per_s / f64::from(sample.connections_open.max(1));
        let bears = control.is_none() && one > LOSSY_BORNE * cubic.one_bytes_per_s;
        if bears || control == Some(CongestionControl::Bbr) {
            // It keeps its rate, but a round trip long a connection repairs what it has lost.
            let lost = bytes_per_s / SEGMENT_BYTES * loss * rtt_s;
            return Some((lost / REPAIRING_SHARE).ceil() as u32);
        }
        Some(control.map_or(cubic.connections, |control| path.outcome(control).connections))
    }
}

/// With what this end sends; unknown where it receives.
pub(super) fn congestion_control(sample: &Sample) -> Option<CongestionControl> {
    let known = |c: &Connection| c.tcp.congestion_control;
    sample.connections.iter().find_map(known).or(sample.tcp.congestion_control)
}

/// The end that receives sees one loss of a connection, however many there are; if every connection
/// has one at the same time, a queue has run over. One that carries far less than those, because
/// its window has just begun to grow, had little in that queue.
fn all_at_once(sample: &Sample) -> bool {
    let has = |c: &&Connection| c.tcp.congestion_control.is_none() && c.loses();
    let rate = |c: &Connection| c.bytes_per_s.unwrap_or(0.0);
    let (lost, spared): (Vec<_>, Vec<_>) = sample.connections.iter().partition(has);
    let mean = lost.iter().map(|c| rate(c)).sum::<f64>() / lost.len().max(1) as f64;
    let all = spared.iter().all(|c| rate(c) < LOSSY_YOUNG_SHARE * mean);
    lost.len() >= LOSSY_ALL_MIN && all
}

#[cfg(test)]
mod tests {
    use super::super::super::Tcp;
    use super::*;

    /// A tenth of a second at 100 MB/s over 20 ms with a queue of `queue_us`, and the losses of
    /// each connection.
    fn handle(lossy: &mut Lossy, tenths: u32, lost: &[f64], queue_us: f64) {
        handle_at(lossy, tenths, lost, queue_us, 100e6);
    }

    fn handle_at(
        lossy: &mut Lossy,
        tenths: u32,
        lost: &[f64],
        queue_us: f64,
        bytes_per_s: f64,
    ) -> bool {
        let connection = |lost: &f64| {
            let tcp = Tcp {
                rtt_us: Some(20_000.0 + queue_us),
                min_rtt_us: Some(20_000.0),
                retransmits: Some(*lost),
                ..Tcp::default()
            };
            Connection { tcp, ..Connection::default() }
        };
        let sample = Sample {
            t_s: f64::from(tenths) / 10.0,
            connections_open: lost.len() as u32,
            bytes_per_s,
            connections: lost.iter().map(connection).collect(),
            ..Sample::default()
        };
        lossy.handle_sample(&sample, 0.1)
    }

    /// Intervals after the last loss until the losses have ended, of `lost` in each of three
    /// seconds.
    fn intervals_to_the_end(mut lost: impl FnMut(u32) -> f64) -> usize {
        let mut lossy = Lossy::default();
        for tenths in 0..30 {
            assert!(
                !handle_at(&mut lossy, tenths, &[lost(tenths), 0.0], 0.0, 100e6),
                "at {tenths}"
            );
        }
        let mut more = (30..90).map(|tenths| handle_at(&mut lossy, tenths, &[0.0; 2], 0.0, 100e6));
        1 + more.position(|ended| ended).unwrap()
    }

    #[test]
    fn a_queue_that_ran_over_does_not_end_the_rare_losses_of_a_path() {
        // 6,900 segments an interval, of which one in a thousand is lost.
        assert_eq!(intervals_to_the_end(|_| 7.0), 5);
        // One in ten thousand: 12 are due after 2 s.
        let rare = |tenths: u32| f64::from(!tenths.is_multiple_of(3));
        assert!(intervals_to_the_end(rare) > 15);
        // With an overrun queue they are due after two intervals, and nothing was lost in so many
        // by chance.
        let overrun = |tenths| if tenths == 29 { 100.0 } else { rare(tenths) };
        let intervals = intervals_to_the_end(overrun);
        assert!((6..=10).contains(&intervals), "{intervals}");
    }

    #[test]
    fn losses_before_a_queue_shows_are_the_queues() {
        let mut lossy = Lossy::default();
        handle(&mut lossy, 1, &[0.0], 0.0);
        handle(&mut lossy, 2, &[4.0], 0.0);
        assert!(lossy.is_known());
        handle(&mut lossy, 3, &[0.0], 0.0);
        handle(&mut lossy, 4, &[0.0], 15_000.0);
        assert!(!lossy.is_known());
        // Those of long before are not.
        for tenths in 20..30 {
            handle(&mut lossy, tenths, &[2.0], 0.0);
        }
        handle(&mut lossy, 30, &[0.0], 15_000.0);
        assert!(lossy.is_known());
    }

    #[test]
    fn losses_of_all_connections_at_once_are_a_queues() {
        let mut lossy = Lossy::default();
        handle(&mut lossy, 1, &[1.0; 4], 0.0);
        for tenths in 2..12 {
            handle(&mut lossy, tenths, &[0.0; 4], 0.0);
        }
        assert!(!lossy.is_known());
        handle(&mut lossy, 12, &[1.0, 1.0, 0.0, 0.0], 0.0);
        handle(&mut lossy, 13, &[0.0, 0.0, 1.0, 1.0], 0.0);
        assert!(lossy.is_known());
    }

    #[test]
    fn connections_that_have_just_begun_are_spared_by_a_queue_and_do_not_make_it_the_paths_losses()
    {
        let all_at_once = |lost: &[f64], rates: &[f64]| {
            let connections = lost.iter().zip(rates).map(|(lost, rate)| Connection {
                bytes_per_s: Some(*rate),
                tcp: Tcp { retransmits: Some(*lost), ..Tcp::default() },
                ..Connection::default()
            });
            all_at_once(&Sample { connections: connections.collect(), ..Sample::default() })
        };
        let lost = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0];
        assert!(all_at_once(&lost, &[2e7, 3e7, 2e7, 2e7, 1e6, 4e5]));
        assert!(!all_at_once(&lost, &[2e7, 3e7, 2e7, 2e7, 2e7, 4e5]), "one of them was not spared");
        assert!(!all_at_once(&[1.0, 0.0, 0.0], &[2e7, 1e6, 1e6]), "one is chance");
    }

    /// Known after 100 MB/s for a second, then three at another rate, with a loss in each tenth and
    /// queues?
    fn is_known_after(queues_us: &[f64], bytes_per_s: f64) -> bool {
        let mut lossy = Lossy::default();
        for tenths in 0..10 {
            handle(&mut lossy, tenths, &[0.0; 4], 0.0);
        }
        for (tenths, queue_us) in (10..40).zip(queues_us.iter().cycle()) {
            handle_at(&mut lossy, tenths, &[1.0, 0.0, 0.0, 0.0], *queue_us, bytes_per_s);
        }
        lossy.is_known()
    }

    #[test]
    fn a_machine_that_gets_no_processor_is_no_queue_of_a_line_that_carried_far_more() {
        assert!(is_known_after(&[20_000.0, 0.0, 0.0, 6_000.0, 8_000.0], 10e6));
        // Near what the line carries, it may be one.
        assert!(!is_known_after(&[20_000.0, 0.0, 0.0, 6_000.0, 8_000.0], 80e6));
    }

    #[test]
    fn the_losses_of_a_line_that_became_slower_are_its_queues() {
        assert!(!is_known_after(&[80_000.0], 35e6));
        assert!(!is_known_after(&[20_000.0], 10e6));
    }
}
