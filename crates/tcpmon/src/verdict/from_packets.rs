//! The verdict of a capture: the cause that took most of the time, the numbers that say so, and
//! what its removal would bring.

use std::collections::BTreeMap;

use super::{Cause, Verdict};
use crate::model::{ConnectionReport, FlowReport, ShareSeconds};

/// A rate this near to that of trains of data is the line's.
const LINE_SHARE: f64 = 0.85;
/// A buffer should hold so many times bandwidth × delay: one in flight, one waiting.
const BUFFER_DELAYS: f64 = 2.0;

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

    fn sender(&self) -> &'static str {
        if self.writes { "initiator" } else { "target" }
    }

    /// Data of a typical command.
    fn block_bytes(&self) -> f64 {
        let summary = if self.writes { &self.main.writes } else { &self.main.reads };
        summary.as_ref().map_or(0.0, |one| one.bytes_median as f64)
    }

    /// Bandwidth × delay of the line, or of twice the present rate where the line is not known.
    fn delay_bytes(&self) -> f64 {
        self.line().unwrap_or(2.0 * self.rate()) * self.rtt_s()
    }

    fn rtt_s(&self) -> f64 {
        self.main.round_trip.rtt_us.unwrap_or(0.0) / 1e6
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
pub fn decide(connections: &[ConnectionReport]) -> Option<Verdict> {
    let totals = Totals::of(connections)?;
    let cause = cause(&totals);
    let mut evidence = common_evidence(&totals);
    let (advice, expected) = advise(cause, &totals, &mut evidence);
    let expected = expected.filter(|rate| rate.is_finite() && *rate > totals.rate());
    Some(Verdict { cause, evidence, advice, expected_bytes_per_s: expected })
}

fn cause(totals: &Totals<'_>) -> Cause {
    let shares = &totals.shares;
    let by_time = [
        (shares.send_buffer, Cause::SendBuffer),
        (shares.receive_window, Cause::ReceiveWindow),
        (shares.congestion_loss, Cause::CongestionLoss),
        (shares.congestion_window, Cause::CongestionWindow),
        (shares.line_rate, Cause::LineRate),
        (shares.r2t, Cause::R2t),
        (shares.round_trip, Cause::QueueDepth),
        (shares.target, Cause::Storage),
        (shares.application, Cause::Application),
    ];
    let most = by_time.into_iter().max_by(|one, other| one.0.total_cmp(&other.0));
    let (_, cause) = most.unwrap_or((0.0, Cause::Application));
    // A sender that paces itself at the rate of the line (BBR) leaves no queue behind.
    let at_line = totals.line().is_some_and(|line| totals.rate() >= LINE_SHARE * line);
    if cause == Cause::CongestionWindow && at_line { Cause::LineRate } else { cause }
}

fn common_evidence(totals: &Totals<'_>) -> BTreeMap<&'static str, f64> {
    let share = |seconds: f64| seconds / totals.wall_s.max(1e-9);
    let shares = &totals.shares;
    let mut evidence = BTreeMap::from([
        ("wall_s", totals.wall_s),
        ("bytes", totals.bytes),
        ("bytes_per_s", totals.rate()),
        ("connections", totals.count),
        ("outstanding_max", totals.main.outstanding_max as f64),
        ("outstanding_mean", totals.main.outstanding_mean),
        ("block_bytes", totals.block_bytes()),
        ("rtt_us", totals.rtt_s() * 1e6),
        ("in_flight_max_bytes", totals.flow.in_flight_max_bytes as f64),
        ("window_max_bytes", totals.flow.window_max_bytes as f64),
        ("retransmissions", totals.flow.counts.retransmissions as f64),
        ("queue_us", totals.flow.queue_us),
        ("send_buffer_share", share(shares.send_buffer)),
        ("receive_window_share", share(shares.receive_window)),
        ("congestion_loss_share", share(shares.congestion_loss)),
        ("congestion_window_share", share(shares.congestion_window)),
        ("line_rate_share", share(shares.line_rate)),
        ("r2t_share", share(shares.r2t)),
        ("queue_depth_share", share(shares.round_trip)),
        ("storage_share", share(shares.target)),
        ("application_share", share(shares.application)),
        ("unattributed_share", share(shares.unattributed)),
    ]);
    if let Some(line) = totals.flow.line_bytes_per_s {
        evidence.insert("line_bytes_per_s", line);
    }
    evidence
}

/// What to do, and the throughput to expect of it.
fn advise(
    cause: Cause,
    totals: &Totals<'_>,
    evidence: &mut BTreeMap<&'static str, f64>,
) -> (String, Option<f64>) {
    let shares = &totals.shares;
    let percent = |seconds: f64| 100.0 * seconds / totals.wall_s.max(1e-9);
    match cause {
        Cause::SendBuffer => {
            (send_buffer(totals, evidence), Some(totals.without(shares.send_buffer)))
        }
        Cause::ReceiveWindow => {
            (receive_window(totals, evidence), Some(totals.without(shares.receive_window)))
        }
        Cause::CongestionLoss => {
            (losses(totals, evidence), Some(totals.without(shares.congestion_loss)))
        }
        Cause::CongestionWindow => {
            (congestion_window(totals), Some(totals.without(shares.congestion_window)))
        }
        Cause::R2t => (r2t(totals), Some(totals.without(shares.r2t))),
        Cause::QueueDepth => {
            (queue_depth(totals, evidence), Some(totals.without(shares.round_trip)))
        }
        Cause::Storage => {
            let text = format!(
                "the target had all it needed and still took {:.0} % of the time; its medium is \
                 the limit: a faster one, a cache, or more commands under way if it serves several",
                percent(shares.target)
            );
            (text, None)
        }
        Cause::LineRate => {
            let text = format!(
                "the line is full: {:.1} Mbit/s of payload; nothing is to be gained but by a faster \
                 line",
                totals.rate() * 8e-6
            );
            (text, None)
        }
        Cause::Application => {
            let text = format!(
                "the initiator's application had nothing under way, or did not send what it could, \
                 for {:.0} % of the time; neither TCP nor the target is the limit",
                percent(shares.application)
            );
            (text, None)
        }
    }
}

fn send_buffer(totals: &Totals<'_>, evidence: &mut BTreeMap<&'static str, f64>) -> String {
    let bytes = BUFFER_DELAYS * totals.delay_bytes();
    evidence.insert("send_buffer_wanted_bytes", bytes);
    format!(
        "the {}'s send buffer holds {} of data in flight at RTT {:.1} ms; raise it (tcp_wmem, \
         SO_SNDBUF) to {}, or use more connections",
        totals.sender(),
        size(totals.flow.in_flight_plateau_bytes as f64),
        totals.rtt_s() * 1e3,
        size(bytes)
    )
}

fn receive_window(totals: &Totals<'_>, evidence: &mut BTreeMap<&'static str, f64>) -> String {
    let bytes = BUFFER_DELAYS * totals.delay_bytes();
    evidence.insert("receive_window_wanted_bytes", bytes);
    let receiver = if totals.writes { "target" } else { "initiator" };
    format!(
        "the {receiver} announces a window of {} at most, which is full at RTT {:.1} ms; raise its \
         receive buffer (tcp_rmem, SO_RCVBUF) to {}, or use more connections",
        size(totals.flow.window_max_bytes as f64),
        totals.rtt_s() * 1e3,
        size(bytes)
    )
}

fn losses(totals: &Totals<'_>, evidence: &mut BTreeMap<&'static str, f64>) -> String {
    let counts = &totals.flow.counts;
    let share = counts.retransmissions as f64 / (counts.segments as f64).max(1.0);
    evidence.insert("loss_share", share);
    format!(
        "{} of {} captured data segments were sent again ({share:.1e}), so the congestion window \
         of the {} stays small; use a congestion control that bears losses (bbr) there, or more \
         connections",
        counts.retransmissions,
        counts.segments,
        totals.sender()
    )
}

fn congestion_window(totals: &Totals<'_>) -> String {
    format!(
        "the congestion window of the {} is full without losses ({} in flight at most): it is \
         still growing or was reset while idle; keep connections warm \
         (tcp_slow_start_after_idle=0), transfer more at a time, or use more connections",
        totals.sender(),
        size(totals.flow.in_flight_max_bytes as f64)
    )
}

fn r2t(totals: &Totals<'_>) -> String {
    format!(
        "each write waits for {:.1} R2Ts, a round trip of {:.1} ms each; negotiate InitialR2T=No, \
         ImmediateData=Yes, FirstBurstLength and MaxBurstLength of at least the block size ({}) \
         and MaxOutstandingR2T above 1",
        totals.main.writes.as_ref().map_or(0.0, |writes| writes.r2ts),
        totals.rtt_s() * 1e3,
        size(totals.block_bytes())
    )
}

fn queue_depth(totals: &Totals<'_>, evidence: &mut BTreeMap<&'static str, f64>) -> String {
    let commands = BUFFER_DELAYS * totals.delay_bytes() / totals.block_bytes().max(1.0);
    let depth = commands.ceil().max(2.0);
    evidence.insert("outstanding_wanted", depth);
    format!(
        "{:.1} commands of {} are under way, and each takes a round trip of {:.1} ms; keep \
         {depth:.0} under way (queue depth, read-ahead), or use larger blocks",
        totals.main.outstanding_mean,
        size(totals.block_bytes()),
        totals.rtt_s() * 1e3
    )
}

/// 1.5 MiB.
fn size(bytes: f64) -> String {
    match bytes {
        bytes if bytes >= 1_048_576.0 => format!("{:.1} MiB", bytes / 1_048_576.0),
        bytes if bytes >= 1024.0 => format!("{:.0} KiB", bytes / 1024.0),
        bytes => format!("{bytes:.0} B"),
    }
}
