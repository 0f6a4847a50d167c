//! The verdict of a capture: the cause that took most of the time, the numbers that say so, and
//! what its removal would bring.

use std::collections::BTreeMap;

use super::words::{self, Situation};
use super::{Bottleneck, CannotTell, Judgement, Source};
use crate::model::{ConnectionReport, FlowReport, ShareSeconds};

/// A rate this near to that of trains of data is the line's.
const LINE_SHARE: f64 = 0.85;

/// What a capture says in sum.
struct Totals<'a> {
    wall_s: f64,
    shares: ShareSeconds,
    bytes: f64,
    writes: bool,
    /// The connection with the most payload, and its direction with the data.
    main: &'a ConnectionReport,
    flow: &'a FlowReport,
    /// Connections that moved data.
    count: f64,
}

impl<'a> Totals<'a> {
    fn of(connections: &'a [ConnectionReport]) -> Option<Self> {
        let busy: Vec<_> = connections.iter().filter(|one| one.command_bytes() > 0).collect();
        let main = *busy.first()?;
        let mut shares = ShareSeconds::default();
        let (mut wall_s, mut written, mut read) = (0.0, 0.0, 0.0);
        for one in &busy {
            add(&mut shares, &one.shares_s);
            wall_s += one.wall_s;
            for (summary, sum) in [(&one.writes, &mut written), (&one.reads, &mut read)] {
                if let Some(summary) = summary {
                    *sum += summary.bytes as f64;
                }
            }
        }
        let writes = written >= read;
        let flow = if writes { &main.to_target } else { &main.to_initiator };
        let (bytes, count) = (written + read, busy.len() as f64);
        Some(Self { wall_s, shares, bytes, writes, main, flow, count })
    }

    /// Payload per second over all connections.
    fn rate(&self) -> f64 {
        // Seconds were added up over the connections, which ran side by side.
        self.bytes / (self.wall_s / self.count).max(1e-9)
    }

    /// Data of a typical command.
    fn block_bytes(&self) -> f64 {
        let summary = if self.writes { &self.main.writes } else { &self.main.reads };
        summary.as_ref().map_or(0.0, |one| one.bytes_median as f64)
    }

    fn rtt_s(&self) -> f64 {
        self.main.round_trip.rtt_us.unwrap_or(0.0) / 1e6
    }

    /// Share of the captured data segments that were sent again.
    fn loss(&self) -> f64 {
        self.flow.counts.retransmissions as f64 / (self.flow.counts.segments as f64).max(1.0)
    }

    fn line(&self) -> Option<f64> {
        // Trains of one connection among several have the line for themselves only now and then.
        self.flow.line_bytes_per_s.filter(|&line| line >= self.rate())
    }

    /// Throughput if `saved_s` seconds were not spent, at most that of the line.
    fn without(&self, saved_s: f64) -> f64 {
        let rest = ((self.wall_s - saved_s) / self.count).max(0.0);
        let free = self.bytes / rest.max(self.wall_s * 1e-3 / self.count).max(1e-9);
        let line = self.line().unwrap_or(f64::INFINITY);
        // What was waiting time becomes sending time.
        1.0 / (1.0 / free + if line.is_finite() { 1.0 / line } else { 0.0 })
    }
}

fn add(into: &mut ShareSeconds, other: &ShareSeconds) {
    into.send_buffer += other.send_buffer;
    into.receive_window += other.receive_window;
    into.congestion_loss += other.congestion_loss;
    into.congestion_window += other.congestion_window;
    into.line_rate += other.line_rate;
    into.r2t += other.r2t;
    into.round_trip += other.round_trip;
    into.target += other.target;
    into.application += other.application;
    into.unattributed += other.unattributed;
}

/// The verdict; `None` where no command moved data.
pub fn decide(connections: &[ConnectionReport]) -> Option<Judgement> {
    decide_between(connections, &Bottleneck::DIAGNOSED)
}

/// The verdict where all other causes have been excluded by who knows more of them: a capture that
/// began in the midst of a session has no scale of windows, and no PDUs until it finds the first
/// header.
pub fn decide_between(
    connections: &[ConnectionReport],
    causes: &[Bottleneck],
) -> Option<Judgement> {
    let totals = Totals::of(connections)?;
    let cause = cause(&totals, causes);
    let situation = situation(cause, &totals);
    let verdict = words::verdict(cause, evidence(&totals), &situation);
    let frame = (totals.count, totals.rate(), totals.wall_s / totals.count);
    Some(Judgement::new(Source::Capture, verdict, cannot_tell(cause, &totals), frame))
}

/// What this capture does not show.
fn cannot_tell(cause: Bottleneck, totals: &Totals<'_>) -> Vec<CannotTell> {
    let like_a_window = matches!(cause, Bottleneck::SendBuffer | Bottleneck::CongestionWindow);
    if !like_a_window || totals.flow.window_scale_known {
        return Vec::new();
    }
    let port = totals.main.target.port();
    vec![CannotTell {
        cause: Bottleneck::ReceiveWindow,
        why: "The scale of the windows is in the handshake, which is not in this capture.",
        command: format!(
            "begin before the login: enkaku monitor record session.pcapng --port {port}"
        ),
    }]
}

fn cause(totals: &Totals<'_>, causes: &[Bottleneck]) -> Bottleneck {
    let shares = &totals.shares;
    let by_time = [
        (shares.send_buffer, Bottleneck::SendBuffer),
        (shares.receive_window, Bottleneck::ReceiveWindow),
        (shares.congestion_loss, Bottleneck::CongestionLoss),
        (shares.congestion_window, Bottleneck::CongestionWindow),
        (shares.line_rate, Bottleneck::LineRate),
        (shares.r2t, Bottleneck::R2t),
        (shares.round_trip, Bottleneck::QueueDepth),
        (shares.target, Bottleneck::Storage),
        (shares.application, Bottleneck::Application),
    ];
    let possible = by_time.into_iter().filter(|(_, cause)| causes.contains(cause));
    let most = possible.max_by(|one, other| one.0.total_cmp(&other.0));
    let (_, cause) = most.unwrap_or((0.0, Bottleneck::Application));
    // A sender that paces itself at the rate of the line (BBR) leaves no queue behind.
    let at_line = totals.line().is_some_and(|line| totals.rate() >= LINE_SHARE * line);
    if cause == Bottleneck::CongestionWindow && at_line { Bottleneck::LineRate } else { cause }
}

fn evidence(totals: &Totals<'_>) -> BTreeMap<&'static str, f64> {
    let share = |seconds: f64| seconds / totals.wall_s.max(1e-9);
    let shares = &totals.shares;
    let mut evidence = BTreeMap::from([
        ("seconds", totals.wall_s / totals.count),
        ("bytes", totals.bytes),
        ("bytes_per_s", totals.rate()),
        ("connections", totals.count),
        ("outstanding_max", totals.main.outstanding_max as f64),
        ("outstanding_mean", totals.main.outstanding_mean),
        ("block_bytes", totals.block_bytes()),
        ("loss", totals.loss()),
        ("rtt_min_us", totals.rtt_s() * 1e6),
        ("in_flight_bytes_max", totals.flow.in_flight_max_bytes as f64),
        ("window_bytes_max", totals.flow.window_max_bytes as f64),
        ("retransmitted_segments", totals.flow.counts.retransmissions as f64),
        ("queue_us", totals.flow.queue_us),
        ("share_send_buffer", share(shares.send_buffer)),
        ("share_receive_window", share(shares.receive_window)),
        ("share_congestion_loss", share(shares.congestion_loss)),
        ("share_congestion_window", share(shares.congestion_window)),
        ("share_line_rate", share(shares.line_rate)),
        ("share_r2t", share(shares.r2t)),
        ("share_queue_depth", share(shares.round_trip)),
        ("share_storage", share(shares.target)),
        ("share_application", share(shares.application)),
        ("share_unattributed", share(shares.unattributed)),
    ]);
    if let Some(line) = totals.flow.line_bytes_per_s {
        evidence.insert("line_bytes_per_s", line);
    }
    evidence
}

/// The throughput to expect without the cause; `None` where nothing is to be gained or known.
fn expected(cause: Bottleneck, totals: &Totals<'_>) -> Option<f64> {
    let shares = &totals.shares;
    let saved_s = match cause {
        Bottleneck::SendBuffer => shares.send_buffer,
        Bottleneck::ReceiveWindow => shares.receive_window,
        Bottleneck::CongestionLoss => shares.congestion_loss,
        Bottleneck::CongestionWindow => shares.congestion_window,
        Bottleneck::R2t => shares.r2t,
        Bottleneck::QueueDepth => shares.round_trip,
        _ => return None,
    };
    let rate = totals.without(saved_s);
    (rate.is_finite() && rate > totals.rate()).then_some(rate)
}

/// The numbers for the sentences.
fn situation(cause: Bottleneck, totals: &Totals<'_>) -> Situation {
    let share = |seconds: f64| seconds / totals.wall_s.max(1e-9);
    let expected = expected(cause, totals);
    let flow = totals.flow;
    Situation {
        writes: totals.writes,
        connections: totals.count,
        rtt_us: totals.rtt_s() * 1e6,
        bytes_per_s: totals.rate(),
        capacity_bytes_per_s: totals.line().unwrap_or(totals.rate()),
        expected_bytes_per_s: expected,
        in_flight_bytes: if cause == Bottleneck::SendBuffer {
            flow.in_flight_plateau_bytes as f64
        } else {
            flow.in_flight_max_bytes as f64
        },
        window_bytes: flow.window_max_bytes as f64,
        loss: totals.loss(),
        burst_bytes: totals.block_bytes(),
        outstanding: Some(totals.main.outstanding_mean),
        r2ts: totals.main.writes.as_ref().map(|writes| writes.r2ts),
        target_share: share(totals.shares.target),
        application_share: share(totals.shares.application),
        ..Situation::default()
    }
}
