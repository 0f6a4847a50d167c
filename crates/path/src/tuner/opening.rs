//! How much a path may get while it is new: a little more than it carried, again and again.
//!
//! The slow starts of N connections double together, and the round that overruns the path's queue
//! overruns it by as much as the path holds: all of them lose hundreds of packets, and those whose
//! retransmissions are lost as well creep for many round trips. With a rate that rises by a fifth
//! at most in a round trip, the queue shows before it is full, and the [`super::Pacer`] takes over.

use super::recent::{Interval, Recent};
use super::{Connection, LONG_RTT_S, LOSING_S, Sample, rise_share};

const MIB: f64 = 1048576.0;
/// Under way at least, for each connection and within limits: a window grows only while there is
/// more to send than it holds, and one that is idle for some round trips begins again.
const CONNECTION_BYTES: f64 = MIB;
const FIRST_BYTES: (f64, f64) = (4.0 * MIB, 10.0 * MIB);
/// The rate of two round trips is a round trip old, and one that rises is higher by now.
const LAG: f64 = 1.5;
/// A round trip that is longer by this time, or by this part, may be the queue's beginning: it has
/// to grow until the pacer sees it, but not by more than it holds.
const NEAR_S: f64 = 0.002;
const NEAR_SHARE: f64 = 0.01;
const NEAR_GAIN: f64 = 0.25;
/// So much more than the path holds may be under way: answers come late, behind those of
/// connections that are slower, so it is not what limits.
const WINDOW_GAIN: f64 = 2.0;
/// What is carried is the mean over so many round trips.
const MEAN_SPAN: f64 = 1.95;
/// After so long without such a rise it is something else that limits, for instance slow storage.
const STILL_S: f64 = 1.2;
const STILL_ROUND_TRIPS: f64 = 12.0;
const RISE: f64 = 1.05;
/// More than any window needs: the path is wide open.
const LAST_BYTES: f64 = 256.0 * MIB;

/// What a new path may get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Payload under way, in bytes.
    pub bytes: f64,
    /// Payload in bytes a second. Answers come in bursts, and what they let go would meet the queue
    /// as one.
    pub bytes_per_s: f64,
}

/// The limit on a new path.
#[derive(Clone, Debug, Default)]
pub struct Opening {
    connections: u32,
    /// Others have carried something before.
    is_used: bool,
    best_bytes_per_s: f64,
    recent: Recent,
    /// The last rise, and when it was.
    risen_bytes_per_s: f64,
    risen_s: Option<f64>,
    /// When something was lost last.
    lost_s: Option<f64>,
    /// The line may be near.
    near: bool,
    done: bool,
    /// The rate that the limit ended with, until it is asked for.
    ended_with: Option<f64>,
}

impl Opening {
    /// The limit before anything was measured, for a round trip in seconds; none on a short path.
    pub fn first(&mut self, rtt_s: f64, connections: u32) -> Option<Room> {
        self.connections = self.connections.max(connections);
        (rtt_s >= LONG_RTT_S && !self.done).then(|| self.room(rtt_s))
    }

    /// The limit from now on, where many connections join a path that carried so much, in bytes a
    /// second: their slow starts would overrun it as those of the first do.
    pub fn again(&mut self, bytes_per_s: f64) {
        *self = Self { best_bytes_per_s: bytes_per_s, is_used: true, ..Self::default() };
    }

    /// The rate to go on with where losses and no queue ended it, in bytes a second; once. The
    /// windows that are left allow far more than the losses let through: without a limit, the
    /// commands that waited would overrun the path at once.
    pub fn ended_with(&mut self) -> Option<f64> {
        self.ended_with.take()
    }

    /// Takes a sample and answers the limit; none is no limit, from then on.
    pub fn handle_sample(&mut self, sample: &Sample) -> Option<Room> {
        let rtt_us = sample.typical(|tcp| tcp.min_rtt_us.or(tcp.rtt_us)).unwrap_or(0.0);
        let rtt_s = rtt_us / 1e6;
        if sample.pace.opens_again {
            self.again(sample.bytes_per_s);
        }
        let known = sample.pace.bytes_per_s.is_some() || rtt_s < LONG_RTT_S;
        if self.done || known {
            self.done = true;
            return None;
        }
        self.connections = self.connections.max(sample.connections_open);
        self.learn(sample, rtt_s);
        let rtt_now_s = sample.typical(|tcp| tcp.rtt_us).unwrap_or(rtt_us) / 1e6;
        self.near = rtt_now_s - rtt_s > NEAR_S.max(NEAR_SHARE * rtt_s);
        let still_s = sample.t_s - self.risen_s.unwrap_or(sample.t_s);
        let is_still = still_s > STILL_S.max(STILL_ROUND_TRIPS * rtt_s);
        self.done = is_still || self.best_bytes_per_s * rtt_s > LAST_BYTES;
        let loses = self.lost_s.is_some_and(|lost_s| sample.t_s - lost_s <= LOSING_S);
        self.ended_with = (is_still && loses).then_some(self.best_bytes_per_s);
        (!self.done).then(|| self.room(rtt_s))
    }

    /// What is acknowledged at once when others are waited for is no rate, so two round trips
    /// count.
    fn learn(&mut self, sample: &Sample, rtt_s: f64) {
        if sample.connections.iter().any(Connection::loses) {
            self.lost_s = Some(sample.t_s);
        }
        if sample.bytes_per_s <= 0.0 {
            self.recent.clear();
            self.risen_s = Some(sample.t_s);
            return;
        }
        let interval =
            Interval { t_s: sample.t_s, bytes_per_s: sample.bytes_per_s, rtt_s, full: true };
        self.recent.push(interval, MEAN_SPAN + MEAN_SPAN * rtt_s); // more than the span
        let mean = self.recent.mean(MEAN_SPAN, rtt_s);
        self.best_bytes_per_s = self.best_bytes_per_s.max(mean);
        if mean > RISE * self.risen_bytes_per_s {
            (self.risen_bytes_per_s, self.risen_s) = (mean, Some(sample.t_s));
        }
    }

    fn room(&self, rtt_s: f64) -> Room {
        let each = CONNECTION_BYTES * f64::from(self.connections);
        let first = each.clamp(FIRST_BYTES.0, FIRST_BYTES.1);
        let least = if self.is_used { FIRST_BYTES.0 } else { first };
        let share = LAG * rise_share(self.best_bytes_per_s, rtt_s);
        let gain = 1.0 + if self.near { NEAR_GAIN * share } else { share };
        Room {
            bytes: first.max(WINDOW_GAIN * self.best_bytes_per_s * rtt_s),
            bytes_per_s: (least / rtt_s).max(self.best_bytes_per_s * gain),
        }
    }
}
