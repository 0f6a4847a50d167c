//! A connection's sending cut into round trips, and what held it up in each: the line, losses, the
//! send buffer or the congestion window. From outside the last two look much alike; what tells
//! them apart is how the data leave. A full congestion window lets new data out with every
//! acknowledgement; a full send buffer wakes its writer when a third is free (Linux's
//! `sk_stream_write_space`), so data in flight sink by a third and jump back.

use serde::Serialize;

/// Rounds remembered; beyond that neighbours are merged.
const ROUNDS_MAX: usize = 8192;
/// A standing queue of more than this share of the round trip: the line never runs empty.
const QUEUE_SHARE: f64 = 0.08;
/// And of more than this: timers, batching and interrupts are as long.
const QUEUE_NS_MIN: f64 = 500_000.0;
/// So many rounds after a loss the window is still small because of it.
const LOSS_ROUNDS: usize = 12;
/// A round whose data in flight come this near to the largest has reached the plateau.
const PLATEAU_SHARE: f64 = 0.85;
/// A round belongs to the plateau if one of so many around it reached it.
const NEAR_ROUNDS: usize = 2;
/// A plateau is at least so many rounds: growth passes it in fewer.
const PLATEAU_ROUNDS_MIN: usize = 6;
/// Data in flight sink by so much of themselves before a woken writer refills the buffer.
const WAKE_DIP_SHARE: f64 = 0.22;
/// A plateau whose later half is higher by this factor grows. Dips are a sign of their own, and
/// bursts of whole PDUs scatter.
const GROWTH_WITH_DIPS: f64 = 1.2;
const GROWTH_WITHOUT: f64 = 1.04;
/// A plateau this even (quartiles over median) is a limit and no growth.
const EVEN_SHARE: f64 = 0.06;

/// One round trip of sending.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Round {
    pub(crate) bytes_acked: u64,
    pub(crate) in_flight_max: u64,
    /// Least data in flight when new data left after a pause.
    pub(crate) in_flight_low: Option<u64>,
    pub(crate) rtt_min_ns: Option<u64>,
    /// Least time from capture to sender and back.
    pub(crate) sender_min_ns: Option<u64>,
    /// Longest time without data.
    pub(crate) pause_max_ns: u64,
    /// Time in which data were there to be sent and TCP held them back.
    pub(crate) blocked_ns: u64,
    pub(crate) lost: bool,
}

/// The least times between the capture and both ends, there and back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Base {
    pub(crate) receiver_ns: Option<u64>,
    pub(crate) sender_ns: Option<u64>,
}

impl Round {
    /// What waited in queues before and behind the capture, as far as it was measured.
    fn queue_ns(&self, base: Base) -> Option<u64> {
        let over = |now: Option<u64>, least: Option<u64>| Some(now?.saturating_sub(least?));
        let behind = over(self.rtt_min_ns, base.receiver_ns);
        // A queue before the capture feeds it without a pause; else the sender itself was late.
        let before = over(self.sender_min_ns, base.sender_ns);
        let before = before.filter(|&queue| queue >= self.pause_max_ns);
        match (behind, before) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(0) + other.unwrap_or(0)),
        }
    }
}

/// Seconds by what held the data back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Blocked {
    /// The line was busy all the time.
    pub line_ns: u64,
    /// The window was small after losses.
    pub loss_ns: u64,
    /// The send buffer was full.
    pub send_buffer_ns: u64,
    /// The congestion window was full.
    pub congestion_window_ns: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Rounds {
    done: Vec<Round>,
    current: Round,
    /// The current round ends when this is acknowledged.
    until: u64,
    /// How many round trips one entry of `done` stands for.
    stride: usize,
    merging: usize,
}

impl Rounds {
    pub(crate) fn current(&mut self) -> &mut Round {
        &mut self.current
    }

    /// `acked` moves on; `highest` is what was sent.
    pub(crate) fn handle_ack(&mut self, acked: u64, bytes: u64, highest: u64) {
        self.current.bytes_acked += bytes;
        if acked >= self.until {
            self.until = highest.max(acked + 1);
            self.finish();
        }
    }

    fn finish(&mut self) {
        let round = std::mem::take(&mut self.current);
        self.stride = self.stride.max(1);
        match self.done.last_mut() {
            Some(last) if self.merging > 0 => {
                merge(last, round);
                self.merging -= 1;
            }
            _ => {
                self.done.push(round);
                self.merging = self.stride - 1;
            }
        }
        if self.done.len() >= ROUNDS_MAX {
            let pairs = self.done.chunks(2).map(|pair| {
                let mut first = pair[0];
                if let Some(&second) = pair.get(1) {
                    merge(&mut first, second);
                }
                first
            });
            self.done = pairs.collect();
            self.stride *= 2;
        }
    }

    /// All rounds, the unfinished one too.
    fn all(&self) -> impl Iterator<Item = Round> + '_ {
        self.done.iter().copied().chain([self.current])
    }

    /// The queue that always stood on the way, seen from the capture to both sides.
    pub(crate) fn queue_ns(&self, base: Base) -> u64 {
        let blocked = self.all().filter(|round| round.blocked_ns > 0);
        let mut queues: Vec<u64> = blocked.filter_map(|round| round.queue_ns(base)).collect();
        median(&mut queues).unwrap_or(0)
    }

    /// Data in flight on the plateau.
    pub(crate) fn plateau_bytes(&self) -> u64 {
        let mut most: Vec<u64> =
            self.all().filter(|r| r.blocked_ns > 0).map(|r| r.in_flight_max).collect();
        most.sort_unstable();
        most.get(most.len() * 9 / 10).copied().unwrap_or(0)
    }

    /// What held the data back, round by round. `rtt_ns`: the whole round trip; `mss`: to know a
    /// small window.
    pub(crate) fn resolve(&self, base: Base, rtt_ns: u64, mss: u32) -> Blocked {
        let rounds: Vec<Round> = self.all().collect();
        let plateau = self.plateau_bytes();
        let buffer = Self::is_buffer(&rounds, plateau, u64::from(mss));
        let queue_ns = (QUEUE_SHARE * rtt_ns as f64).max(QUEUE_NS_MIN);
        let mut blocked = Blocked::default();
        let mut since_loss = usize::MAX;
        let mut before_loss = 0;
        for (number, round) in rounds.iter().enumerate() {
            since_loss = since_loss.saturating_add(1);
            if round.lost {
                since_loss = 0;
                before_loss = before_loss.max(round.in_flight_max);
            }
            let queued = round.queue_ns(base).is_some_and(|queue| queue as f64 > queue_ns);
            let small = (round.in_flight_max as f64) < 0.95 * before_loss as f64;
            // Bursts of a buffer make full rounds and nearly empty ones by turns.
            let near = number.saturating_sub(NEAR_ROUNDS)..(number + NEAR_ROUNDS + 1);
            let around = rounds.get(near.start..near.end.min(rounds.len())).unwrap_or_default();
            let most = around.iter().map(|one| one.in_flight_max).max().unwrap_or(0);
            let full = most as f64 >= PLATEAU_SHARE * plateau as f64;
            let slot = if queued {
                &mut blocked.line_ns
            } else if since_loss <= LOSS_ROUNDS || (before_loss > 0 && small) {
                &mut blocked.loss_ns
            } else if buffer && full {
                &mut blocked.send_buffer_ns
            } else {
                &mut blocked.congestion_window_ns
            };
            *slot += round.blocked_ns;
        }
        blocked
    }

    /// Is the plateau the send buffer's? A dip before each refill says so, and so does a plateau
    /// that is even and long.
    fn is_buffer(rounds: &[Round], plateau: u64, mss: u64) -> bool {
        let full: Vec<&Round> = rounds
            .iter()
            .filter(|r| r.blocked_ns > 0 && !r.lost)
            .filter(|r| r.in_flight_max as f64 >= PLATEAU_SHARE * plateau as f64)
            .collect();
        if full.len() < PLATEAU_ROUNDS_MIN || plateau < 2 * mss {
            return false;
        }
        let mut dips: Vec<u64> = full
            .iter()
            .filter_map(|r| Some(r.in_flight_max.saturating_sub(r.in_flight_low?)))
            .collect();
        let dip = median(&mut dips).unwrap_or(0) as f64 / plateau as f64;
        let mut most: Vec<u64> = full.iter().map(|r| r.in_flight_max).collect();
        most.sort_unstable();
        let at = |share: f64| most[((most.len() - 1) as f64 * share) as usize] as f64;
        let even = (at(0.75) - at(0.25)) / at(0.5).max(1.0) < EVEN_SHARE;
        // Growth never stays: its late rounds are higher than its early ones.
        let half = full.len() / 2;
        let high = |part: &[&Round]| {
            let mut most: Vec<u64> = part.iter().map(|round| round.in_flight_max).collect();
            most.sort_unstable();
            most.get(most.len() * 3 / 4).copied().unwrap_or(0) as f64
        };
        let growth = high(&full[half..]) / high(&full[..half]).max(1.0);
        (dip >= WAKE_DIP_SHARE && growth < GROWTH_WITH_DIPS) || (even && growth < GROWTH_WITHOUT)
    }
}

fn merge(into: &mut Round, other: Round) {
    into.bytes_acked += other.bytes_acked;
    into.in_flight_max = into.in_flight_max.max(other.in_flight_max);
    into.in_flight_low = least(into.in_flight_low, other.in_flight_low);
    into.rtt_min_ns = least(into.rtt_min_ns, other.rtt_min_ns);
    into.sender_min_ns = least(into.sender_min_ns, other.sender_min_ns);
    into.pause_max_ns = into.pause_max_ns.max(other.pause_max_ns);
    into.blocked_ns += other.blocked_ns;
    into.lost |= other.lost;
}

/// The smaller one of those that are there.
pub(crate) fn least(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

fn median(values: &mut [u64]) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}
