//! A line with a DropTail queue, packet by packet: what is sent at a time is acknowledged at
//! another, or never. Packets keep their order. Lines can police, lose, and delay by more at some
//! times.

use std::collections::VecDeque;

use crate::random::Random;

/// Each value of the jitter holds for this time, in seconds: with a new one for each packet and
/// order kept, all would wait for the slowest.
const JITTER_HOLDS_S: f64 = 0.02;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    /// Payload.
    pub(crate) bytes_per_s: f64,
    pub(crate) rtt_s: f64,
    pub(crate) queue_packets: usize,
    /// Probability that a packet is lost after it took its time on the line.
    pub(crate) loss: f64,
    /// Losses in bursts (Gilbert 1960): the probability that a packet begins one, and that it ends
    /// before the next.
    pub(crate) bursts: Option<(f64, f64)>,
    /// Each way is longer by up to this: the way there alone, or the way back as well.
    pub(crate) jitter_s: f64,
    pub(crate) jitter_back: bool,
    /// A token bucket that drops what exceeds a rate and a burst, in bytes.
    pub(crate) policer: Option<(f64, f64)>,
}

impl Default for Line {
    fn default() -> Self {
        let (bytes_per_s, rtt_s, queue_packets) = (117e6, 0.05, 2000);
        Self {
            bytes_per_s,
            rtt_s,
            queue_packets,
            loss: 0.0,
            bursts: None,
            jitter_s: 0.0,
            jitter_back: false,
            policer: None,
        }
    }
}

/// The line at work.
pub(crate) struct Link {
    pub(crate) line: Line,
    pub(crate) packet_bytes: f64,
    departures: VecDeque<f64>,
    free_at_s: f64,
    last_ack_s: f64,
    /// What each way is longer by now, and until when.
    jitters_s: [(f64, f64); 2],
    in_burst: bool,
    tokens: f64,
    tokens_at_s: f64,
    random: Random,
    pub(crate) dropped: u64,
}

impl Link {
    pub(crate) fn new(line: Line, packet_bytes: f64, seed: u64) -> Self {
        Self {
            line,
            packet_bytes,
            departures: VecDeque::new(),
            free_at_s: 0.0,
            last_ack_s: 0.0,
            jitters_s: [(0.0, 0.0); 2],
            in_burst: false,
            tokens: line.policer.map_or(0.0, |(_, burst)| burst),
            tokens_at_s: 0.0,
            random: Random::new(seed),
            dropped: 0,
        }
    }

    /// A packet goes at this time; when its acknowledgement is there, if it is not lost.
    pub(crate) fn send(&mut self, now_s: f64) -> Option<f64> {
        while self.departures.front().is_some_and(|at_s| *at_s <= now_s) {
            self.departures.pop_front();
        }
        if self.departures.len() >= self.line.queue_packets || !self.has_token(now_s) {
            self.dropped += 1;
            return None;
        }
        let begins_s = self.free_at_s.max(now_s);
        self.free_at_s = begins_s + self.packet_bytes / self.line.bytes_per_s;
        self.departures.push_back(self.free_at_s);
        if self.is_lost() {
            return None;
        }
        let ack_s = self.free_at_s + self.line.rtt_s + self.jitter_s(now_s);
        self.last_ack_s = self.last_ack_s.max(ack_s);
        Some(self.last_ack_s)
    }

    fn is_lost(&mut self) -> bool {
        if let Some((begins, ends)) = self.line.bursts {
            let changes = if self.in_burst { ends } else { begins };
            self.in_burst ^= self.random.uniform() < changes;
        }
        self.in_burst || self.line.loss > 0.0 && self.random.uniform() < self.line.loss
    }

    /// What jitter adds to the round trip now.
    fn jitter_s(&mut self, now_s: f64) -> f64 {
        let ways =
            if self.line.jitter_s <= 0.0 { 0 } else { 1 + usize::from(self.line.jitter_back) };
        let mut sum_s = 0.0;
        for (value_s, until_s) in &mut self.jitters_s[..ways] {
            if now_s >= *until_s {
                let uniform = self.random.uniform();
                (*value_s, *until_s) = (self.line.jitter_s * uniform, now_s + JITTER_HOLDS_S);
            }
            sum_s += *value_s;
        }
        sum_s
    }

    /// What waits, as time.
    pub(crate) fn queue_s(&self, now_s: f64) -> f64 {
        (self.free_at_s - now_s).max(0.0)
    }

    fn has_token(&mut self, now_s: f64) -> bool {
        let Some((bytes_per_s, burst)) = self.line.policer else {
            return true;
        };
        self.tokens = (self.tokens + (now_s - self.tokens_at_s) * bytes_per_s).min(burst);
        self.tokens_at_s = now_s;
        let has = self.tokens >= self.packet_bytes;
        self.tokens -= if has { self.packet_bytes } else { 0.0 };
        has
    }
}
