//! One direction of a connection as its sender sees it: what is in flight, what the receiver
//! announces, what was lost, and for each pause between two data segments what ended it.
//!
//! A capture is seldom made at the sender. An acknowledgement seen somewhere on the way reaches
//! the sender, and what that answers comes by, a little later; so acknowledgements count here only
//! after that time (`sender_ns`, the least round trip between capture and sender). After that the
//! capture is as good as the sender's own, some milliseconds late.

use std::collections::VecDeque;

use serde::Serialize;

use super::line::LineRate;
use super::rounds::{Base, Blocked, Rounds, least};
use crate::capture::Segment;

/// Segments whose acknowledgement is waited for, to measure round trips.
const UNACKED_MAX: usize = 1 << 14;
/// Acknowledgements on their way to the sender.
const ACKS_MAX: usize = 1 << 14;
/// Ticks of the receiver's clock on their way to the sender and back: some seconds of them.
const CLOCKS_MAX: usize = 4096;
/// What is sent so soon after an acknowledgement was let out by it: a share of the round trip, for
/// whoever wakes up on it, within limits.
const RELEASE_SHARE: f64 = 1.0 / 16.0;
const RELEASE_NS: (f64, f64) = (500_000.0, 2_000_000.0);
/// Pauses up to this share of a round trip are pacing or a busy sender, not an idle one.
const PACE_SHARE: f64 = 0.25;
const PACE_NS_MIN: f64 = 2_000_000.0;
/// A hole that is filled so soon was reordering.
const REORDER_NS: u64 = 3_000_000;
/// Windows cannot be scaled by more (RFC 7323 §2.3).
const WINDOW_SCALE_MAX: u8 = 14;

/// Why there was a pause before a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// A loss was being repaired.
    Loss,
    /// The receiver's window was full.
    Window,
    /// An acknowledgement let the data out: something at the sender had held them back.
    Released,
    /// Shortly after the segment before: at a pace.
    Paced,
    /// The sender had nothing to send.
    Idle,
}

impl Pause {
    /// [`Flow::blocked`] names what it was.
    fn is_blocked(self) -> bool {
        matches!(self, Self::Released | Self::Paced)
    }
}

/// How soon after its cause is what an acknowledgement or an answer lets out.
pub(crate) fn release_ns(rtt_ns: u64) -> u64 {
    (RELEASE_SHARE * rtt_ns as f64).clamp(RELEASE_NS.0, RELEASE_NS.1) as u64
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FlowCounts {
    /// Segments with data.
    pub segments: u64,
    /// New payload.
    pub bytes: u64,
    /// Segments that were sent again.
    pub retransmissions: u64,
    /// Segments that came out of order and were no retransmissions.
    pub reordered: u64,
    /// Acknowledgements that repeat the one before.
    pub duplicate_acks: u64,
    /// Acknowledgements with SACK blocks above them.
    pub sacks: u64,
    /// Times the receiver announced that it takes nothing.
    pub zero_windows: u64,
    /// Pauses in which the receiver's window was full.
    pub window_full: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    end: u64,
    time_ns: u64,
    again: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ack {
    time_ns: u64,
    offset: u64,
    window: u64,
    sack_end: Option<u64>,
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    mss: u32,
    highest: Option<u64>,
    /// Acknowledged, as far as the sender knows.
    acked: u64,
    /// Acknowledged, as far as the capture knows.
    acked_here: u64,
    window: Option<u64>,
    window_last: Option<(u64, u64)>,
    window_max: u64,
    scale: Option<u8>,
    unacked: VecDeque<Sent>,
    on_the_way: VecDeque<Ack>,
    last_data_ns: Option<u64>,
    last_ack_ns: Option<u64>,
    window_full: bool,
    repair_until: u64,
    hole_ns: Option<u64>,
    /// Least time from capture to receiver and back.
    receiver_ns: Option<u64>,
    /// Least time from capture to sender and back, by TCP timestamps.
    sender_ns: Option<u64>,
    clocks: VecDeque<(u32, u64)>,
    echo_last: Option<u32>,
    in_flight_max: u64,
    rounds: Rounds,
    line: LineRate,
    counts: FlowCounts,
}

impl Flow {
    pub(crate) fn counts(&self) -> FlowCounts {
        self.counts
    }

    pub(crate) fn receiver_ns(&self) -> Option<u64> {
        self.receiver_ns
    }

    /// A round trip sample from elsewhere (the handshake).
    pub(crate) fn handle_sample(&mut self, ns: u64) {
        self.receiver_ns = least(self.receiver_ns, Some(ns));
    }

    pub(crate) fn set_mss(&mut self, mss: u32) {
        self.mss = self.mss.max(mss);
    }

    /// The receiver's window scale, from its SYN.
    pub(crate) fn set_scale(&mut self, scale: Option<u8>) {
        self.scale = Some(scale.unwrap_or(0).min(WINDOW_SCALE_MAX));
    }

    pub(crate) fn scale_known(&self) -> bool {
        self.scale.is_some()
    }

    pub(crate) fn mss(&self) -> u32 {
        self.mss.max(536)
    }

    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    pub(crate) fn window(&self) -> Option<u64> {
        self.window
    }

    pub(crate) fn window_max(&self) -> u64 {
        self.window_max
    }

    pub(crate) fn in_flight_max(&self) -> u64 {
        self.in_flight_max
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.highest.unwrap_or(0).saturating_sub(self.acked)
    }

    pub(crate) fn line_bytes_per_s(&self) -> Option<f64> {
        self.line.bytes_per_s()
    }

    pub(crate) fn plateau_bytes(&self) -> u64 {
        self.rounds.plateau_bytes()
    }

    pub(crate) fn queue_ns(&self) -> u64 {
        self.rounds.queue_ns(self.base())
    }

    pub(crate) fn blocked(&self, rtt_ns: u64) -> Blocked {
        self.rounds.resolve(self.base(), rtt_ns, self.mss())
    }

    fn base(&self) -> Base {
        Base { receiver_ns: self.receiver_ns, sender_ns: self.sender_ns }
    }

    /// The receiver's clock as an acknowledgement shows it (RFC 7323 §3), to find it again in what
    /// the sender answers: that measures the queue between sender and capture.
    pub(crate) fn handle_clock(&mut self, value: u32, now: u64) {
        if self.clocks.back().is_none_or(|&(last, _)| last != value) {
            if self.clocks.len() == CLOCKS_MAX {
                self.clocks.pop_front();
            }
            self.clocks.push_back((value, now));
        }
    }

    /// The sender answers what it got at `echo` of the receiver's clock. Only the first answer
    /// counts: what is sent later without news from the receiver has waited for something else.
    pub(crate) fn handle_echo(&mut self, echo: u32, now: u64, pause: Pause) {
        if self.echo_last.replace(echo) == Some(echo) || pause == Pause::Idle {
            return;
        }
        let passed = |value: u32| (echo.wrapping_sub(value) as i32) > 0;
        while self.clocks.front().is_some_and(|&(value, _)| passed(value)) {
            self.clocks.pop_front();
        }
        if let Some(&(value, seen)) = self.clocks.front()
            && value == echo
        {
            let sample = now.saturating_sub(seen);
            self.sender_ns = least(self.sender_ns, Some(sample));
            let round = self.rounds.current();
            round.sender_min_ns = least(round.sender_min_ns, Some(sample));
        }
    }

    /// Time in which the sender was held up by something that [`Self::blocked`] will name.
    pub(crate) fn add_blocked(&mut self, ns: u64) {
        self.rounds.current().blocked_ns += ns;
    }

    /// A data segment at `offset`; says why there was a pause before it.
    pub(crate) fn handle_data(
        &mut self,
        segment: &Segment<'_>,
        offset: u64,
        sender_ns: u64,
        rtt_ns: u64,
    ) -> Pause {
        let now = segment.time_ns;
        self.deliver_acks(now, sender_ns);
        let len = u64::from(segment.payload_len);
        let end = offset.saturating_add(len);
        self.counts.segments += 1;
        // Super-packets are longer than any segment on the line.
        if self.mss == 0 && segment.payload_len < 9200 {
            self.mss = segment.payload_len.min(9000);
        }
        let highest = *self.highest.get_or_insert(offset);
        if self.acked == 0 {
            self.acked = offset;
        }
        if end <= highest {
            return self.handle_old(now, offset, end);
        }
        let pause = self.pause(now, rtt_ns);
        let low = self.in_flight();
        if offset > highest {
            self.hole_ns = Some(now);
        }
        self.highest = Some(end);
        self.counts.bytes += end - highest.max(offset.min(highest));
        self.counts.window_full += u64::from(pause == Pause::Window);
        if self.unacked.len() == UNACKED_MAX {
            self.unacked.pop_front();
        }
        self.unacked.push_back(Sent { end, time_ns: now, again: false });
        let in_flight = self.in_flight();
        self.in_flight_max = self.in_flight_max.max(in_flight);
        let gap_ns = now.saturating_sub(self.last_data_ns.unwrap_or(now));
        let round = self.rounds.current();
        round.in_flight_max = round.in_flight_max.max(in_flight);
        round.pause_max_ns = round.pause_max_ns.max(gap_ns);
        // Within a burst nothing was waited for.
        if pause.is_blocked() && gap_ns as f64 > 0.02 * rtt_ns as f64 {
            round.in_flight_low = least(round.in_flight_low, Some(low));
        }
        self.window_full = self.scale.is_some()
            && self
                .window
                .is_some_and(|window| window.saturating_sub(in_flight) < 2 * u64::from(self.mss()));
        self.last_data_ns = Some(now);
        pause
    }

    /// Data that were seen before, or that fill a hole.
    fn handle_old(&mut self, now: u64, offset: u64, end: u64) -> Pause {
        self.last_data_ns = Some(now);
        let fresh = self.hole_ns.is_some_and(|hole| now.saturating_sub(hole) < REORDER_NS);
        if fresh {
            self.counts.reordered += 1;
            return Pause::Paced;
        }
        self.counts.retransmissions += 1;
        self.enter_repair();
        for sent in self.unacked.iter_mut().filter(|sent| sent.end > offset && sent.end <= end) {
            sent.again = true;
        }
        Pause::Loss
    }

    fn enter_repair(&mut self) {
        self.repair_until = self.highest.unwrap_or(0);
        self.rounds.current().lost = true;
    }

    fn pause(&self, now: u64, rtt_ns: u64) -> Pause {
        let since = |at: Option<u64>| at.map_or(u64::MAX, |at| now.saturating_sub(at));
        if self.acked < self.repair_until {
            Pause::Loss
        } else if self.window_full {
            Pause::Window
        } else if since(self.last_ack_ns) <= release_ns(rtt_ns) {
            Pause::Released
        } else if since(self.last_data_ns) <= (PACE_SHARE * rtt_ns as f64).max(PACE_NS_MIN) as u64 {
            Pause::Paced
        } else {
            Pause::Idle
        }
    }

    /// The receiver's side of a segment that goes the other way. `offset` is what it acknowledges.
    pub(crate) fn handle_ack(
        &mut self,
        segment: &Segment<'_>,
        offset: u64,
        sack_end: Option<u64>,
        rtt_ns: u64,
    ) {
        let now = segment.time_ns;
        let window = u64::from(segment.window) << self.scale.unwrap_or(0);
        self.window_max = self.window_max.max(window);
        self.counts.zero_windows += u64::from(window == 0 && !segment.rst);
        self.counts.sacks += u64::from(sack_end.is_some());
        let same = self.window_last == Some((offset, window));
        if same && segment.payload_len == 0 && offset < self.highest.unwrap_or(0) {
            self.counts.duplicate_acks += 1;
        }
        self.window_last = Some((offset, window));
        let mut sample = None;
        while let Some(sent) = self.unacked.front().filter(|sent| sent.end <= offset) {
            // Karn: what was sent twice measures nothing.
            sample = (!sent.again).then(|| now.saturating_sub(sent.time_ns)).or(sample);
            self.unacked.pop_front();
        }
        if let Some(sample) = sample {
            self.receiver_ns = least(self.receiver_ns, Some(sample));
            let round = self.rounds.current();
            round.rtt_min_ns = least(round.rtt_min_ns, Some(sample));
        }
        if offset > self.acked_here {
            self.acked_here = offset;
            self.line.handle_ack(now, offset, (rtt_ns / 4).max(2_000_000));
        }
        if self.on_the_way.len() == ACKS_MAX {
            self.take_ack(0);
        }
        self.on_the_way.push_back(Ack { time_ns: now, offset, window, sack_end });
    }

    /// Acknowledgements that have reached the sender by now.
    pub(crate) fn deliver_acks(&mut self, now: u64, sender_ns: u64) {
        let due = |ack: &Ack| ack.time_ns.saturating_add(sender_ns) <= now;
        while self.on_the_way.front().is_some_and(due) {
            self.take_ack(sender_ns);
        }
    }

    fn take_ack(&mut self, sender_ns: u64) {
        let Some(ack) = self.on_the_way.pop_front() else { return };
        self.window = Some(ack.window);
        self.last_ack_ns = Some(ack.time_ns.saturating_add(sender_ns));
        let highest = self.highest.unwrap_or(0);
        if let Some(end) = ack.sack_end
            && end > ack.offset
            && end > self.repair_until
        {
            self.repair_until = end.min(highest);
            self.rounds.current().lost = true;
        }
        if ack.offset > self.acked {
            let bytes = if self.acked == 0 { 0 } else { ack.offset - self.acked };
            self.acked = ack.offset;
            self.rounds.handle_ack(ack.offset, bytes, highest);
        }
    }
}
