//! What happened to one connection in a few seconds of samples: rates, means, and where the time
//! went.
//!
//! The kernel says exactly how long a sender waited for the other end's window and for room in its
//! send buffer. Everything else of the time is divided by what moved between one sample and the
//! next, and by how long nothing did: an answer cannot come before one round trip is over, so
//! waiting up to that is the path's, and what is longer is somebody's thinking.

use path::limit::{FULL, is_queued};

use crate::sample::Sample;

/// A wait for an answer longer than this many round trips is not the path's alone.
const PATIENCE_RTT: f64 = 1.3;
/// The kernel lets the application write again when a third of the send buffer is free
/// (`sk_stream_is_writeable`).
const WRITABLE: f64 = 2.0 / 3.0;
/// What comes within this part of a round trip was sent in one: the next window's begins later.
const ROUND: f64 = 0.9;
/// A buffer of this part of the maximum is at it.
const NEARLY: f64 = 0.9;
/// Part of the bytes sent that only acknowledgements can have caused.
const UNASKED: f64 = 0.3;

/// Where the time went, as shares of it; they add up to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// The application waited for room in the send buffer, nothing else was there to send.
    pub send_buffer: f64,
    /// The other end's window was full.
    pub receive_window: f64,
    /// Data waited for the congestion window or for pacing.
    pub network: f64,
    /// Payload came in and nothing of the above held.
    pub receiving: f64,
    /// Everything had been sent, and the answer could not be there yet.
    pub path: f64,
    /// An answer from the other end was due.
    pub peer: f64,
    /// Everything was answered, and nothing was sent.
    pub own: f64,
}

impl Shares {
    fn each(&mut self) -> [&mut f64; 7] {
        [
            &mut self.send_buffer,
            &mut self.receive_window,
            &mut self.network,
            &mut self.receiving,
            &mut self.path,
            &mut self.peer,
            &mut self.own,
        ]
    }

    /// Adds another connection's, with a weight.
    pub(super) fn add(&mut self, mut other: Self, weight: f64) {
        for (own, other) in self.each().into_iter().zip(other.each()) {
            *own += *other * weight;
        }
    }
}

/// One connection over the time of its samples. Means are over time, in bytes and microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Time from the first sample to the last.
    pub seconds: f64,
    /// Payload sent, repetitions included.
    pub sent_bytes: f64,
    /// Payload received.
    pub received_bytes: f64,
    /// Where the time went.
    pub shares: Shares,
    /// Smallest round-trip time that is known.
    pub base_rtt_us: f64,
    /// Round-trip time.
    pub rtt_us: f64,
    /// Payload of a full segment.
    pub mss_bytes: f64,
    /// Congestion window.
    pub cwnd_bytes: f64,
    /// Sent, neither acknowledged nor lost.
    pub in_flight_bytes: f64,
    /// The most that was in flight.
    pub in_flight_bytes_max: f64,
    /// Written and not yet sent.
    pub not_sent_bytes: f64,
    /// Window that the other end announces.
    pub send_window_bytes: f64,
    /// Limit of the send buffer.
    pub send_buffer_bytes: f64,
    /// Window announced to the other end.
    pub receive_window_bytes: f64,
    /// Segments sent again.
    pub retrans_segments: f64,
    /// Segments with payload sent.
    pub segments_out: f64,
    /// Segments with payload received.
    pub segments_in: f64,
    /// Segments received before earlier ones.
    pub out_of_order_segments: f64,
    /// Share of the time in which a queue stood on the path.
    pub queue_share: f64,
    /// Share of the time in which the application limited the rate that the kernel measures.
    pub app_limited_share: f64,
    /// The fastest that data were seen to arrive; at least so much is possible.
    pub peak_bytes_per_s: f64,
    /// Payload between one answer and the next.
    pub burst_bytes: f64,
    /// Share of the round trips in which data came that brought all that the announced window
    /// allows.
    pub full_rounds_share: f64,
    /// BBR is in use.
    pub bbr: bool,
}

impl Facts {
    /// The facts of samples in the order of time; `None` if there are less than two.
    ///
    /// `send_buffer_max` is the largest buffer that the kernel gives by itself (`tcp_wmem`).
    pub fn of(samples: &[Sample], send_buffer_max: Option<u64>) -> Option<Self> {
        let (first, last) = (samples.first()?, samples.last()?);
        let seconds = micros(last.at_us.checked_sub(first.at_us)?) / 1e6;
        if seconds <= 0.0 {
            return None;
        }
        let base_rtt_us = samples.iter().filter_map(|s| s.tcp.base_rtt_us()).min().unwrap_or(0);
        let mut facts = Self {
            seconds,
            base_rtt_us: f64::from(base_rtt_us),
            mss_bytes: f64::from(last.tcp.mss_bytes),
            bbr: last.congestion_control == "bbr",
            retrans_segments: difference(last, first, |s| {
                Some(u64::from(s.tcp.total_retrans_segments))
            }),
            segments_out: difference(last, first, |s| s.tcp.data_segments_out.map(u64::from)),
            segments_in: difference(last, first, |s| s.tcp.data_segments_in.map(u64::from)),
            out_of_order_segments: difference(last, first, |s| {
                s.tcp.received_out_of_order_segments.map(u64::from)
            }),
            ..Self::default()
        };
        let mut clock = Clock::new(facts.base_rtt_us, first.at_us);
        for pair in samples.windows(2) {
            facts.step(&mut clock, &pair[0], &pair[1]);
        }
        facts.finish(clock, send_buffer_max);
        Some(facts)
    }

    fn step(&mut self, clock: &mut Clock, before: &Sample, now: &Sample) {
        let slot = Slot::new(before, now);
        clock.divide(&slot, before, now);
        clock.rounds.note(&slot, now, self.base_rtt_us);
        self.sent_bytes += slot.sent;
        self.received_bytes += slot.received;
        let tcp = &now.tcp;
        let of = |bytes: Option<u32>| f64::from(bytes.unwrap_or_default());
        let rtt_us = f64::from(tcp.rtt_us);
        let in_flight = micros(tcp.in_flight_bytes());
        self.rtt_us += rtt_us * slot.us;
        self.cwnd_bytes += micros(tcp.cwnd_bytes()) * slot.us;
        self.in_flight_bytes += in_flight * slot.us;
        self.in_flight_bytes_max = self.in_flight_bytes_max.max(in_flight);
        self.not_sent_bytes += of(tcp.not_sent_bytes) * slot.us;
        self.send_window_bytes += of(tcp.send_window_bytes) * slot.us;
        self.receive_window_bytes += of(tcp.receive_window_bytes) * slot.us;
        self.send_buffer_bytes +=
            now.memory.map_or(0.0, |memory| f64::from(memory.send_buffer_bytes)) * slot.us;
        if is_queued(rtt_us, self.base_rtt_us) {
            self.queue_share += slot.us;
        }
        if tcp.app_limited {
            self.app_limited_share += slot.us;
        }
        let delivered = micros(tcp.delivery_rate_bytes_per_s.unwrap_or_default());
        // A rate over less than a tick of the kernel's clock is noise; over a round trip it is one.
        let received = if slot.us >= 4000.0 { slot.received / slot.us * 1e6 } else { 0.0 };
        self.peak_bytes_per_s = self.peak_bytes_per_s.max(delivered).max(received);
    }

    fn finish(&mut self, clock: Clock, send_buffer_max: Option<u64>) {
        let us = self.seconds * 1e6;
        for mean in [
            &mut self.rtt_us,
            &mut self.cwnd_bytes,
            &mut self.in_flight_bytes,
            &mut self.not_sent_bytes,
            &mut self.send_window_bytes,
            &mut self.receive_window_bytes,
            &mut self.send_buffer_bytes,
            &mut self.queue_share,
            &mut self.app_limited_share,
        ] {
            *mean /= us;
        }
        let at_maximum =
            send_buffer_max.is_some_and(|max| self.send_buffer_bytes >= micros(max) * NEARLY);
        let by_acks_alone = clock.sent_unasked >= self.sent_bytes * UNASKED;
        self.full_rounds_share = clock.rounds.full / clock.rounds.count.max(1.0);
        self.shares = clock.shares;
        self.shares.own += clock.pause;
        // A buffer that can still grow was filled by somebody who had no more to write, unless what
        // empties it is followed by more without anybody having asked (S0's finding).
        if at_maximum || by_acks_alone {
            self.shares.send_buffer += clock.full_buffer;
        } else {
            self.shares.path += clock.full_buffer;
        }
        let total: f64 = self.shares.each().iter().map(|share| **share).sum();
        self.shares.each().into_iter().for_each(|share| *share /= total.max(1.0));
        let (payload, answers) = if self.sends() {
            (self.sent_bytes, self.segments_in)
        } else {
            (self.received_bytes, self.segments_out)
        };
        self.burst_bytes = payload / answers.max(1.0);
        self.peak_bytes_per_s = self.peak_bytes_per_s.max(self.bytes_per_s());
    }

    fn each(&mut self) -> [&mut f64; 22] {
        [
            &mut self.seconds,
            &mut self.sent_bytes,
            &mut self.received_bytes,
            &mut self.base_rtt_us,
            &mut self.rtt_us,
            &mut self.mss_bytes,
            &mut self.cwnd_bytes,
            &mut self.in_flight_bytes,
            &mut self.in_flight_bytes_max,
            &mut self.not_sent_bytes,
            &mut self.send_window_bytes,
            &mut self.send_buffer_bytes,
            &mut self.receive_window_bytes,
            &mut self.retrans_segments,
            &mut self.segments_out,
            &mut self.segments_in,
            &mut self.out_of_order_segments,
            &mut self.queue_share,
            &mut self.app_limited_share,
            &mut self.peak_bytes_per_s,
            &mut self.burst_bytes,
            &mut self.full_rounds_share,
        ]
    }

    /// Adds another connection's, with a weight.
    pub(super) fn add(&mut self, mut other: Self, weight: f64) {
        self.shares.add(other.shares, weight);
        self.bbr |= other.bbr;
        for (own, other) in self.each().into_iter().zip(other.each()) {
            *own += *other * weight;
        }
    }

    /// Whether this end is the one that the payload leaves from.
    pub fn sends(&self) -> bool {
        self.sent_bytes >= self.received_bytes
    }

    /// Payload in the direction that carries more of it.
    pub fn bytes_per_s(&self) -> f64 {
        self.sent_bytes.max(self.received_bytes) / self.seconds
    }
}

/// What changed from one sample to the next.
struct Slot {
    us: f64,
    sent: f64,
    received: f64,
    rwnd_us: f64,
    sndbuf_us: f64,
    busy_us: f64,
    answers: f64,
}

impl Slot {
    fn new(before: &Sample, now: &Sample) -> Self {
        let us = micros(now.at_us.saturating_sub(before.at_us));
        let difference = |of: fn(&Sample) -> Option<u64>| difference(now, before, of);
        let sent = difference(|s| s.tcp.sent_bytes.or(s.tcp.acked_bytes));
        let received = difference(|s| s.tcp.received_bytes);
        let segments = if sent >= received {
            difference(|s| s.tcp.data_segments_in.map(u64::from))
        } else {
            difference(|s| s.tcp.data_segments_out.map(u64::from))
        };
        Self {
            us,
            sent,
            received,
            rwnd_us: difference(|s| s.tcp.rwnd_limited_us).min(us),
            sndbuf_us: difference(|s| s.tcp.sndbuf_limited_us).min(us),
            busy_us: difference(|s| s.tcp.busy_us).min(us),
            answers: segments,
        }
    }
}

/// Divides the time, and remembers what moved last.
struct Clock {
    base_rtt_us: f64,
    last_sent_us: u64,
    /// What moved last came in, and nothing has gone out since.
    turn_is_ours: bool,
    /// Silence since then, whose it is to be decided by what ends it.
    pause: f64,
    /// Something came in in the last slot.
    heard: bool,
    /// Bytes that went out although nothing had just come in but acknowledgements.
    sent_unasked: f64,
    /// Time with a full send buffer that the kernel did not count.
    full_buffer: f64,
    rounds: Rounds,
    shares: Shares,
}

/// Round trips in which data came, each from the first of them on.
#[derive(Default)]
struct Rounds {
    count: f64,
    /// Of these, such as brought a whole window.
    full: f64,
    until_us: f64,
    bytes: f64,
    is_full: bool,
}

impl Rounds {
    fn note(&mut self, slot: &Slot, now: &Sample, rtt_us: f64) {
        // A slot that is longer than a round trip has more than one of them.
        if slot.received <= 0.0 || slot.us > rtt_us {
            return;
        }
        if micros(now.at_us) >= self.until_us {
            (self.until_us, self.bytes) = (micros(now.at_us) + ROUND * rtt_us, 0.0);
            (self.count, self.is_full) = (self.count + 1.0, false);
        }
        self.bytes += slot.received;
        let window = f64::from(now.tcp.receive_window_bytes.unwrap_or_default());
        if !self.is_full && window > 0.0 && self.bytes >= FULL * window {
            (self.full, self.is_full) = (self.full + 1.0, true);
        }
    }
}

impl Clock {
    fn new(base_rtt_us: f64, begin_us: u64) -> Self {
        Self {
            base_rtt_us,
            last_sent_us: begin_us,
            turn_is_ours: false,
            pause: 0.0,
            heard: false,
            sent_unasked: 0.0,
            full_buffer: 0.0,
            rounds: Rounds::default(),
            shares: Shares::default(),
        }
    }

    fn divide(&mut self, slot: &Slot, before: &Sample, now: &Sample) {
        let shares = &mut self.shares;
        shares.send_buffer += slot.sndbuf_us;
        shares.receive_window += slot.rwnd_us.min(slot.us - slot.sndbuf_us);
        let rest = (slot.us - slot.sndbuf_us - slot.rwnd_us).max(0.0);
        let waits = |s: &Sample| s.tcp.not_sent_bytes.unwrap_or_default() > 0;
        let bulk = f64::from(now.tcp.receive_mss_bytes.max(1000));
        if waits(now) || waits(before) {
            shares.network += rest;
        } else if send_buffer_full(now) && send_buffer_full(before) {
            self.full_buffer += rest;
        } else if slot.sent > 0.0 || slot.received > 0.0 {
            if slot.us > self.base_rtt_us && slot.answers > 0.0 {
                self.divide_exchanges(slot, rest);
            } else if slot.received >= bulk && slot.received > slot.sent {
                self.shares.receiving += rest;
            } else {
                self.shares.path += rest;
            }
        } else if self.turn_is_ours {
            self.pause += rest;
        } else if micros(now.at_us - self.last_sent_us) <= self.base_rtt_us * PATIENCE_RTT {
            shares.path += rest;
        } else {
            shares.peer += rest;
        }
        self.note(slot, now.at_us);
    }

    /// What moved decides what the silence before it was: if it was ended by the other end alone,
    /// we had nothing to say, and it was the other end that paused.
    fn note(&mut self, slot: &Slot, at_us: u64) {
        if slot.received > 0.0 {
            self.shares.receiving += std::mem::take(&mut self.pause);
            self.turn_is_ours = true;
        }
        if slot.sent > 0.0 {
            self.shares.own += std::mem::take(&mut self.pause);
            self.last_sent_us = at_us;
            self.turn_is_ours = false;
            if slot.received == 0.0 && !self.heard {
                self.sent_unasked += slot.sent;
            }
        }
        self.heard = slot.received > 0.0;
    }

    /// More than one question and answer between two samples: each took a round trip, the rest of
    /// the time in which something was unacknowledged was the other end's, and what is left was
    /// ours.
    fn divide_exchanges(&mut self, slot: &Slot, rest: f64) {
        let path = (slot.answers * self.base_rtt_us).min(rest);
        let peer = (slot.busy_us - path).clamp(0.0, rest - path);
        self.shares.path += path;
        self.shares.peer += peer;
        self.shares.own += rest - path - peer;
    }
}

/// Everything in the buffer has been sent, and there is no room for more until it is acknowledged.
/// The kernel's own count of that time begins only where a write is cut short after its last
/// segment was pushed, which an event loop's writes rarely are.
fn send_buffer_full(sample: &Sample) -> bool {
    sample.memory.is_some_and(|memory| {
        f64::from(memory.send_queued_bytes) >= f64::from(memory.send_buffer_bytes) * WRITABLE
    })
}

fn difference(now: &Sample, before: &Sample, of: impl Fn(&Sample) -> Option<u64>) -> f64 {
    match (of(now), of(before)) {
        (Some(now), Some(before)) => micros(now.saturating_sub(before)),
        _ => 0.0,
    }
}

/// Counters far below 2^53.
#[allow(clippy::cast_precision_loss, reason = "bytes and microseconds of a few seconds")]
pub(super) fn micros(count: u64) -> f64 {
    count as f64
}
