//! What a path will allow before anything is sent over it: payload of the line, the share of one
//! TCP connection under each congestion control, and the connections, buffers and depth that fill
//! the line. Closed formulas of the steady state; slow start, competitors and processors are not in
//! them, and [`Warning`]s say where they do not hold.
//!
//! Losses are independent of each other, so the constants are those of random losses, not of one
//! loss every 1/p packets: a window that is spared for longer grows more than one that is hit
//! earlier loses.
//!
//! Sources: Mathis et al. 1997 (reno); RFC 9438 §5.1 (cubic), Poojary and Sharma 2015,
//! arXiv:1510.08496 (cubic under random losses); Cardwell et al. 2016, "BBR" (ACM Queue 14:5) for
//! what loss bbr bears.

use std::fmt;

use crate::count::CONNECTIONS;
use crate::limit::{BBR_LOSS_MAX, Bottleneck};
use crate::model::LOSS_SHARE;
use crate::rate::{STARTUP_GAIN, WINDOW_LEAST_SEGMENTS};
use crate::tcp::{CongestionControl, ERROR_SHARE, SEGMENT_BYTES, SHORT_RTT_S};

/// A packet of [`SEGMENT_BYTES`] of payload on the wire: 14 of Ethernet header, 4 FCS, 8 preamble,
/// 12 gap.
pub(crate) const WIRE_BYTES: f64 = 1538.0;
/// Data of a PDU (MaxRecvDataSegmentLength as we negotiate it). Its header of 48 bytes is 0.02 % of
/// that, and left out.
pub const PDU_BYTES: f64 = 262_144.0;
/// Cubic's law under random losses with C = 0.4, β = 0.7 and fast convergence, as Linux has it:
/// the constant is 1.29 without (the case of Poojary and Sharma), and 1.054 with periodic losses
/// (RFC 9438 §5.1); and the standard deviation of the window over time, relative to its mean. The
/// tests simulate both.
const CUBIC: (f64, f64) = (1.19, 0.50);
/// What remains of a window after a loss: what was known to fit before the last round of slow start
/// (Jacobson 1988, RFC 5681 §3.2), or with cubic more (RFC 9438 §4.6).
const RENO_BETA: f64 = 1.0 / STARTUP_GAIN;
pub(crate) const CUBIC_BETA: f64 = 0.7;
/// bbr drains the path for 200 ms of every 10 s and probes below the rate in between.
const BBR_SHARE: f64 = 0.97;
/// Windows below twice the least cannot use fast retransmit, which needs three segments after the
/// lost one: timeouts again.
const WINDOW_SEGMENTS_MIN: f64 = 2.0 * WINDOW_LEAST_SEGMENTS;
/// Part of tcp_wmem that is payload in flight: the rest is the bookkeeping of its packets.
const SEND_BUFFER_SHARE: f64 = 0.67;
/// Part of tcp_rmem that Linux advertises as window (tcp_adv_win_scale 1).
pub(crate) const RECEIVE_BUFFER_SHARE: f64 = 0.5;
/// Above this rate, one core per connection is.
const RATE_BITS_PER_S_MAX: f64 = 10e9;

/// A path and the hosts' limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathPlan {
    /// Rate of the line, with all headers.
    pub bits_per_s: f64,
    /// Round trip without queues.
    pub rtt_s: f64,
    /// Probability that a packet is lost, independently of the others.
    pub loss: f64,
    /// Packets that the bottleneck queues; bandwidth × delay of them unless known.
    pub queue_packets: Option<f64>,
    /// The most that `tcp_wmem` allows a socket.
    pub wmem_bytes: f64,
    /// The most that `tcp_rmem` allows a socket.
    pub rmem_bytes: f64,
    /// Connections, if they are given; otherwise as many as fill the line.
    pub streams: Option<u32>,
}

/// Where the formulas do not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// Too much loss for the laws of reno and cubic.
    Timeouts,
    /// The window of this connection is too small for fast retransmit.
    SmallWindow,
    /// More loss than bbr bears.
    BbrLoss,
    /// The hosts decide, not the path: a very short round trip.
    ShortRoundTrip,
    /// The hosts decide, not the path: a very fast line.
    FastLine,
    /// More connections than a session may have: the line is not filled.
    TooManyConnections,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timeouts => "loss above 2 %: timeouts decide, reno and cubic get less than this",
            Self::SmallWindow => {
                "a window below 4 segments: timeouts decide, it gets less than this"
            }
            Self::BbrLoss => "loss above 15 %: bbr takes it for a full path and gets far less",
            Self::ShortRoundTrip => "a round trip below 1 ms: hosts decide, not the path",
            Self::FastLine => "a line above 10 Gbit/s: processors decide, not the path",
            Self::TooManyConnections => "no number of connections allowed here fills the line",
        })
    }
}

/// What a congestion control makes of the path.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Which one.
    pub control: CongestionControl,
    /// iSCSI payload of one connection.
    pub one_bytes_per_s: f64,
    /// What holds it up: the line, losses, `tcp_wmem` or `tcp_rmem`.
    pub bound: Bottleneck,
    /// Connections: as given, or the fewest that fill the line.
    pub connections: u32,
    /// iSCSI payload of all of them.
    pub session_bytes_per_s: f64,
    /// What each `tcp_wmem` must allow for its share of the line.
    pub wmem_wanted_bytes: f64,
    /// What each `tcp_rmem` must allow.
    pub rmem_wanted_bytes: f64,
    /// Commands of [`PDU_BYTES`] under way that keep the line filled.
    pub depth: u32,
    /// Socket buffers and commands at the sending end of the data.
    pub sender_memory_bytes: f64,
    /// Socket buffers and commands at the receiving end.
    pub receiver_memory_bytes: f64,
    /// Where this should not be believed.
    pub warnings: Vec<Warning>,
}

impl PathPlan {
    /// iSCSI payload that the line carries: TCP, IP and Ethernet are off.
    pub fn limit_bytes_per_s(&self) -> f64 {
        self.bits_per_s / 8.0 * SEGMENT_BYTES / WIRE_BYTES
    }

    /// Bytes that are on the way when the line is full.
    pub fn delay_product_bytes(&self) -> f64 {
        self.limit_bytes_per_s() * self.rtt_s
    }

    /// What this congestion control makes of it.
    pub fn outcome(&self, control: CongestionControl) -> Outcome {
        let line = self.limit_bytes_per_s();
        let law = Law::of(control, self.rtt_s, self.loss);
        let (window, bound) = self.window(&law);
        let full = line * self.use_of_line(control);
        let free = window / self.rtt_s;
        let deviation = if bound == Bottleneck::CongestionLoss { law.deviation } else { 0.0 };
        let together = |n: u32| full * carried(f64::from(n) * free / full, deviation, n);
        let one_bytes_per_s = together(1);
        let bound = if free < full { bound } else { Bottleneck::LineRate };
        let needed = (1..=CONNECTIONS.1).find(|n| together(*n) >= (1.0 - ERROR_SHARE) * full);
        let connections = self.streams.or(needed).unwrap_or(CONNECTIONS.1).max(1);
        let session_bytes_per_s = together(connections);
        let mut warnings = self.warnings(control, window);
        if self.streams.is_none() && needed.is_none() {
            warnings.push(Warning::TooManyConnections);
        }
        // With losses the share of each is its window; otherwise an equal part of the line.
        let share = self.delay_product_bytes() / f64::from(connections);
        let wmem_wanted_bytes = share / SEND_BUFFER_SHARE;
        let rmem_wanted_bytes = share / RECEIVE_BUFFER_SHARE;
        // One more for each connection: the next command waits there when the last one ends.
        let depth = (session_bytes_per_s * self.rtt_s / PDU_BYTES).ceil() as u32 + connections;
        let commands = f64::from(depth) * PDU_BYTES;
        Outcome {
            control,
            one_bytes_per_s,
            bound,
            connections,
            session_bytes_per_s,
            wmem_wanted_bytes,
            rmem_wanted_bytes,
            depth,
            sender_memory_bytes: f64::from(connections) * wmem_wanted_bytes + commands,
            receiver_memory_bytes: f64::from(connections) * rmem_wanted_bytes + commands,
            warnings,
        }
    }

    /// The mean window of one connection and what bounds it, as if the line had no end.
    fn window(&self, law: &Law) -> (f64, Bottleneck) {
        let buffers = [
            (self.usable(SEND_BUFFER_SHARE * self.wmem_bytes), Bottleneck::SendBuffer),
            (self.usable(RECEIVE_BUFFER_SHARE * self.rmem_bytes), Bottleneck::ReceiveWindow),
        ];
        let law = (law.window_bytes, Bottleneck::CongestionLoss);
        buffers.into_iter().fold(law, |least, other| if other.0 < least.0 { other } else { least })
    }

    /// What can be on the way where a buffer holds so much. A byte stays in it, at either end,
    /// until all bytes before it have come, and where one of them was lost that takes up to a round
    /// trip more.
    fn usable(&self, buffer_bytes: f64) -> f64 {
        let held = |window: f64| window * (1.0 + waiting(window / SEGMENT_BYTES * self.loss));
        // What is held grows with the window and is at most twice as much.
        let (mut low, mut high) = (buffer_bytes / 2.0, buffer_bytes);
        for _ in 0..f64::MANTISSA_DIGITS {
            let middle = (low + high) / 2.0;
            if held(middle) <= buffer_bytes { low = middle } else { high = middle }
        }
        low
    }

    /// The share of the line that windows use which lose at its queue: W rises from β·(B+Q) to
    /// B+Q, and below B the line idles.
    fn use_of_line(&self, control: CongestionControl) -> f64 {
        let beta = match control {
            CongestionControl::Reno => RENO_BETA,
            CongestionControl::Cubic => CUBIC_BETA,
            CongestionControl::Bbr => return BBR_SHARE * (1.0 - self.loss),
        };
        let on_way = self.delay_product_bytes() / SEGMENT_BYTES;
        let top = on_way + self.queue_packets.unwrap_or(on_way);
        let low = beta * top;
        let kept = 1.0 - self.loss;
        if low >= on_way {
            return kept;
        }
        let packets = (top * top - low * low) / 2.0;
        let rounds = (on_way - low) + (top * top - on_way * on_way) / (2.0 * on_way);
        kept * packets / (on_way * rounds)
    }

    fn warnings(&self, control: CongestionControl, window: f64) -> Vec<Warning> {
        let bbr = control == CongestionControl::Bbr;
        let all = [
            (!bbr && self.loss > LOSS_SHARE, Warning::Timeouts),
            (window < WINDOW_SEGMENTS_MIN * SEGMENT_BYTES, Warning::SmallWindow),
            (bbr && self.loss > BBR_LOSS_MAX, Warning::BbrLoss),
            (self.rtt_s < SHORT_RTT_S, Warning::ShortRoundTrip),
            (self.bits_per_s > RATE_BITS_PER_S_MAX, Warning::FastLine),
        ];
        all.into_iter().filter(|(holds, _)| *holds).map(|(_, warning)| warning).collect()
    }
}

/// A window that losses bound: mean over time, and standard deviation relative to it.
pub(crate) struct Law {
    pub(crate) window_bytes: f64,
    deviation: f64,
}

impl Law {
    /// What so many losses leave of the window of this control.
    pub(crate) fn of(control: CongestionControl, rtt_s: f64, loss: f64) -> Self {
        match control {
            CongestionControl::Reno => Self::aimd(1.0, RENO_BETA, loss),
            CongestionControl::Cubic => {
                // The Reno-friendly region (RFC 9438 §4.3) as Linux has it: it grows so always,
                // where the RFC lets it grow by one again at the old window.
                let friendly_alpha = 3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA);
                let friendly = Self::aimd(friendly_alpha, CUBIC_BETA, loss);
                let window_bytes = SEGMENT_BYTES * CUBIC.0 * (rtt_s / loss).powf(0.75);
                if window_bytes <= friendly.window_bytes {
                    return friendly;
                }
                Self { window_bytes, deviation: CUBIC.1 }
            }
            CongestionControl::Bbr => Self { window_bytes: f64::INFINITY, deviation: 0.0 },
        }
    }

    /// A window that grows by `alpha` segments in a round trip and keeps `beta` of itself at a
    /// loss (Ott, Kemperman, Mathis 1996). By the packet its square grows steadily and keeps β²:
    /// in the steady state it is W² = 2α/p · X, where X is a sum of exponential variables with
    /// weights β^2k, whose powers have the mean
    /// E X^s = Γ(1 + s) ∏ (1 − β^2(k+s)) / (1 − β^2k). A round trip has W packets: the
    /// mean over time is 1 / E W⁻¹, and that of its square E W / E W⁻¹.
    fn aimd(alpha: f64, beta: f64, loss: f64) -> Self {
        let product = |s: f64| {
            let factor =
                |k: i32| (1.0 - beta.powf(2.0 * (f64::from(k) + s))) / (1.0 - beta.powi(2 * k));
            (1..=f64::MANTISSA_DIGITS as i32).map(factor).product::<f64>()
        };
        // Γ(1/2) = √π, Γ(3/2) = √π / 2.
        let root_pi = std::f64::consts::PI.sqrt();
        let (inverse, root) = (root_pi * product(-0.5), root_pi / 2.0 * product(0.5));
        Self {
            window_bytes: SEGMENT_BYTES * (2.0 * alpha / loss).sqrt() / inverse,
            deviation: (root * inverse - 1.0).sqrt(),
        }
    }
}

/// How long a packet waits, in round trips, for lost ones before it, with so many losses in a round
/// trip: for a loss of an age `a` below one, which is repaired when it is one round trip old, it is
/// 1 − a, and the age of the latest is exponential.
fn waiting(losses: f64) -> f64 {
    if losses < 1e-6 { losses / 2.0 } else { 1.0 - (1.0 - (-losses).exp()) / losses }
}

/// What part of the line `n` windows use that would be `mean` of it if it had no end, each with
/// this deviation. Below the line a round trip carries a window; beyond it the queue grows, and a
/// round trip takes as many times longer as the windows exceed the line. So it is mean / E[max(1,
/// W)], with the logistic distribution in place of the normal one, because its integral is closed.
fn carried(mean: f64, deviation: f64, n: u32) -> f64 {
    let scale = mean * deviation / f64::from(n).sqrt() * 3.0_f64.sqrt() / std::f64::consts::PI;
    let over = mean - 1.0;
    if scale <= 0.0 || over / scale > 30.0 {
        return mean.min(1.0);
    }
    mean / (1.0 + scale * (over / scale).exp().ln_1p())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [CongestionControl; 3] =
        [CongestionControl::Reno, CongestionControl::Cubic, CongestionControl::Bbr];

    fn path() -> PathPlan {
        PathPlan {
            bits_per_s: 1e9,
            rtt_s: 0.05,
            loss: 1e-4,
            queue_packets: None,
            wmem_bytes: 64e6,
            rmem_bytes: 64e6,
            streams: None,
        }
    }

    #[test]
    fn laws_are_those_of_their_sources() {
        // RFC 9438 table 1: RTT 100 ms; average window of cubic in segments with periodic losses,
        // and reno's.
        let (cubic_random, reno_random) = (CUBIC.0 / 1.054, 1.31 / 1.5_f64.sqrt());
        for (loss, cubic, reno) in [(1e-4, 187.0, 122.0), (1e-6, 5926.0, 1225.0)] {
            let path = PathPlan { loss, rtt_s: 0.1, ..path() };
            let segments =
                |control| Law::of(control, path.rtt_s, path.loss).window_bytes / SEGMENT_BYTES;
            let (c, r) = (segments(CongestionControl::Cubic), segments(CongestionControl::Reno));
            assert!((c / (cubic * cubic_random) - 1.0).abs() < 0.03, "{loss}: {c}");
            assert!((r / (reno * reno_random) - 1.0).abs() < 0.03, "{loss}: {r}");
        }
    }

    #[test]
    fn a_buffer_holds_what_waits_for_lost_packets_too() {
        assert!(waiting(0.0).abs() < 1e-12);
        assert!((waiting(1e-7) - 0.5e-7).abs() < 1e-12);
        assert!((waiting(1.0) - 1.0 / std::f64::consts::E).abs() < 1e-12);
        assert!(waiting(1e3) < 1.0 && waiting(1e3) > 0.99);
        let usable = |loss| PathPlan { loss, ..path() }.usable(1e6);
        assert!((usable(0.0) - 1e6).abs() < 10.0);
        // 691 packets are held, 560 of them on the way; 0.56 losses a round trip: 0.234 of one.
        assert!((usable(1e-3) / 0.810e6 - 1.0).abs() < 0.001, "{}", usable(1e-3));
        assert!(usable(0.5) >= 0.5e6);
    }

    #[test]
    fn windows_that_vary_leave_some_of_the_line_unused() {
        assert!((carried(0.7, 0.0, 1) - 0.7).abs() < 1e-12);
        assert!((carried(1.7, 0.0, 1) - 1.0).abs() < 1e-12);
        // Far from the line it does not matter, at the line it does, and many even out.
        assert!((carried(0.1, 0.4, 1) - 0.1).abs() < 1e-3);
        assert!((carried(5.0, 0.4, 1) - 1.0).abs() < 1e-2);
        let at_line: Vec<f64> = [1, 4, 64].map(|n| carried(1.0, 0.4, n)).into();
        assert!(at_line.is_sorted() && at_line[0] < 0.9 && at_line[2] > 0.97, "{at_line:?}");
    }

    /// Windows by the packet: each is lost with probability `loss`; mean over time, and deviation.
    fn simulated(control: CongestionControl, loss: f64, rtt_s: f64) -> (f64, f64) {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut uniform = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 11) as f64 / (1_u64 << 53) as f64
        };
        let (mut w, mut w_max, mut w_epoch, mut friendly) = (10.0_f64, 10.0_f64, 7.0, 10.0_f64);
        let mut age_s = 0.0;
        let (mut rounds, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for round in 0..400_000 {
            if round >= 20_000 {
                (rounds, sum, squares) = (rounds + 1.0, sum + w, squares + w * w);
            }
            // At most one reduction in a round trip.
            let lost = uniform() > (1.0 - loss).powf(w);
            age_s += rtt_s;
            match control {
                CongestionControl::Reno => w = if lost { w * RENO_BETA } else { w + 1.0 },
                _ if lost => {
                    // Fast convergence (RFC 9438 §4.7), as in Linux.
                    w_max = if w < w_max { w * (1.0 + CUBIC_BETA) / 2.0 } else { w };
                    w *= CUBIC_BETA;
                    (w_epoch, friendly, age_s) = (w, w, 0.0);
                }
                _ => {
                    // RFC 9438 §4.2 and §4.3, the latter as Linux has it.
                    let k = ((w_max - w_epoch) / 0.4).cbrt();
                    let target = 0.4 * (age_s + rtt_s - k).powi(3) + w_max;
                    friendly += 3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA);
                    w = w.max(target.min(1.5 * w)).max(friendly);
                }
            }
        }
        let mean = sum / rounds;
        (mean, (squares / rounds - mean * mean).sqrt() / mean)
    }

    #[test]
    fn constants_are_those_of_the_algorithms_under_random_losses() {
        for control in [CongestionControl::Reno, CongestionControl::Cubic] {
            for (loss, rtt_s) in [(1e-3, 0.02), (1e-4, 0.02), (1e-4, 0.1), (1e-5, 0.1)] {
                let path = PathPlan { loss, rtt_s, ..path() };
                let law = Law::of(control, path.rtt_s, path.loss);
                let (mean, deviation) = simulated(control, loss, rtt_s);
                let error = law.window_bytes / SEGMENT_BYTES / mean - 1.0;
                assert!(error.abs() < 0.05, "{control:?} {loss} {rtt_s}: {mean}, {error}");
                let error = law.deviation - deviation;
                assert!(error.abs() < 0.04, "{control:?} {loss} {rtt_s}: {deviation}, {error}");
            }
        }
    }

    #[test]
    fn nothing_exceeds_the_line_and_more_loss_never_helps() {
        for control in ALL {
            let mut last = f64::INFINITY;
            for loss in [0.0, 1e-7, 1e-5, 1e-3, 1e-2] {
                let outcome = PathPlan { loss, ..path() }.outcome(control);
                assert!(outcome.session_bytes_per_s <= path().limit_bytes_per_s());
                assert!(outcome.one_bytes_per_s <= last, "{control:?} {loss}");
                last = outcome.one_bytes_per_s;
            }
        }
    }

    #[test]
    fn as_many_connections_as_fill_the_line_and_no_more() {
        for control in ALL {
            let outcome = path().outcome(control);
            let with = |n| PathPlan { streams: Some(n), ..path() }.outcome(control);
            let full = with(CONNECTIONS.1).session_bytes_per_s;
            assert!(outcome.session_bytes_per_s >= (1.0 - ERROR_SHARE) * full);
            if outcome.connections > 1 {
                let fewer = with(outcome.connections - 1).session_bytes_per_s;
                assert!(fewer < (1.0 - ERROR_SHARE) * full, "{control:?}");
            }
        }
        let lossy = PathPlan { loss: 1e-2, ..path() }.outcome(CongestionControl::Reno);
        assert_eq!(lossy.connections, CONNECTIONS.1);
        assert_eq!(lossy.warnings, [Warning::TooManyConnections]);
    }

    #[test]
    fn the_smaller_buffer_is_named_and_the_wanted_one_lifts_it() {
        let tight = PathPlan { wmem_bytes: 1e6, loss: 0.0, streams: Some(1), ..path() };
        let bbr = tight.outcome(CongestionControl::Bbr);
        assert_eq!(bbr.bound, Bottleneck::SendBuffer);
        let roomy = PathPlan { wmem_bytes: bbr.wmem_wanted_bytes, ..tight };
        assert_eq!(roomy.outcome(CongestionControl::Bbr).bound, Bottleneck::LineRate);
        let tight = PathPlan { rmem_bytes: 1e6, ..tight };
        assert_eq!(tight.outcome(CongestionControl::Bbr).bound, Bottleneck::ReceiveWindow);
    }

    #[test]
    fn outside_its_validity_it_says_so() {
        let of = |path: PathPlan, control| path.outcome(control).warnings;
        let lossy = PathPlan { loss: 0.05, streams: Some(1), ..path() };
        assert_eq!(of(lossy, CongestionControl::Reno), [Warning::Timeouts]);
        assert!(of(lossy, CongestionControl::Bbr).is_empty());
        let worse = PathPlan { loss: 0.2, ..lossy };
        assert!(of(worse, CongestionControl::Reno).contains(&Warning::SmallWindow));
        assert_eq!(of(worse, CongestionControl::Bbr), [Warning::BbrLoss]);
        let near = PathPlan { rtt_s: 1e-4, bits_per_s: 4e10, loss: 0.0, ..lossy };
        let hosts = [Warning::ShortRoundTrip, Warning::FastLine];
        assert_eq!(of(near, CongestionControl::Cubic), hosts);
    }
}
