//! The verdict from what the kernel counts of each connection, without a look into any packet.
//!
//! It is S0's method for every connection of every stack: first what the kernel itself says a
//! sender waited for (receive window, send buffer), then whether data waited for the congestion
//! window, and if so, whether losses or a full line keep it there; and where TCP had nothing to do,
//! who was slow to ask or to answer. That last question is about iSCSI, which TCP's counters do not
//! show: it is answered by the lengths of the silences, and what they cannot tell apart is said in
//! [`Judgement::cannot_tell`].

mod advice;
mod facts;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use self::facts::{Facts, Shares};
pub use super::Judgement;
use path::limit::{FULL, LOSS_MIN, MOSTLY, Signs};

use super::{Bottleneck, CannotTell, Source, words};
use crate::sample::Sample;

/// Below this share of the busiest connection's bytes, a connection is a spectator.
const SPECTATOR: f64 = 0.05;
/// Less payload in a second than this is no transfer: keep-alives and polling.
const IDLE_BYTES_PER_S: f64 = 2000.0;
/// A stream whose mean is this part of its best 4 ms does not go up and down with a window.
const STEADY: f64 = 0.7;
/// A window limits if this part of the round trips filled it: the last one of each read need not.
const FULL_ROUNDS: f64 = 0.3;
/// This near to a known rate of the line is all of it: headers take the rest.
const LINE_FULL: f64 = 0.88;

/// Which of iSCSI's two roles the sampled host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It asks: RFC 7143's initiator.
    Initiator,
    /// It serves.
    Target,
}

/// One connection's samples, in the order of time.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Its samples.
    pub samples: Vec<Sample>,
    /// Which end of the session it is.
    pub role: Role,
}

impl Watched {
    /// The port that the target listens on; none if there is no sample.
    pub fn target_port(&self) -> Option<u16> {
        let connection = self.samples.last()?.connection;
        Some(match self.role {
            Role::Initiator => connection.remote.port(),
            Role::Target => connection.local.port(),
        })
    }
}

/// What is known besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// Payload that the line can carry, in bytes per second, where somebody said so.
    pub line_bytes_per_s: Option<f64>,
    /// Payload that the network device can carry; the path may carry less.
    pub device_bytes_per_s: Option<f64>,
    /// The largest send buffer that this host's kernel gives by itself: tcp_wmem's maximum.
    pub send_buffer_max_bytes: Option<u64>,
    /// The initiator is Enkaku's, which sizes buffers and connections by itself.
    pub own_initiator: bool,
}

/// The transfer as a whole: the means of its connections.
pub(super) struct Whole {
    pub(super) role: Role,
    pub(super) sends: bool,
    pub(super) connections: f64,
    pub(super) bytes_per_s: f64,
    /// Means over the connections, not sums.
    pub(super) mean: Facts,
    pub(super) line_bytes_per_s: Option<f64>,
    pub(super) device_bytes_per_s: Option<f64>,
    pub(super) own_initiator: bool,
    /// Of the target.
    pub(super) port: u16,
}

impl Whole {
    /// Whether the answers to requests are this host's business.
    pub(super) fn serves(&self) -> bool {
        self.role == Role::Target
    }

    /// Whether the payload leaves the initiator.
    pub(super) fn writes(&self) -> bool {
        self.sends != self.serves()
    }

    /// Shares of the time in which the target was silent, and the initiator.
    pub(super) fn silences(&self) -> (f64, f64) {
        let shares = &self.mean.shares;
        if self.serves() { (shares.own, shares.peer) } else { (shares.peer, shares.own) }
    }

    /// Part of the segments that had to be sent again, or came late where only that is seen.
    pub(super) fn loss(&self) -> f64 {
        let mean = &self.mean;
        if self.sends {
            mean.retrans_segments / mean.segments_out.max(1.0)
        } else {
            // A loss lets about a window of segments arrive out of order.
            let window = (mean.burst_bytes / mean.mss_bytes.max(1.0)).clamp(1.0, 100.0);
            mean.out_of_order_segments / window / mean.segments_in.max(1.0)
        }
    }
}

/// Names what limits the transfer; `None` while nothing is transferred.
pub fn judge(watched: &[Watched], known: &Known) -> Option<Judgement> {
    let whole = whole(watched, known)?;
    let (cause, not_excluded) = cause(&whole);
    let situation = advice::situation(cause, &whole);
    let verdict = words::verdict(cause, evidence(&whole), &situation);
    let cannot_tell = not_excluded.into_iter().map(|cause| cannot_tell(cause, &whole)).collect();
    let frame = (whole.connections, whole.bytes_per_s, whole.mean.seconds);
    Some(Judgement::new(Source::Samples, verdict, cannot_tell, frame))
}

/// Why TCP's counters of this end do not tell, and what does.
fn cannot_tell(cause: Bottleneck, whole: &Whole) -> CannotTell {
    let port = whole.port;
    if cause == Bottleneck::R2t {
        return CannotTell {
            cause,
            why: "R2T waits cannot be told from samples: TCP's counters show no PDUs, and an R2T \
                  answers a burst as a SCSI Response does, with 48 bytes a round trip later.",
            command: format!(
                "enkaku monitor record session.pcapng --port {port} --time 5s; \
                 enkaku diagnose --pcap session.pcapng"
            ),
        };
    }
    let sender = if whole.writes() { "initiator" } else { "target" };
    CannotTell {
        cause,
        why: "This end receives the data: what holds them back at the sender is counted there.",
        command: format!("at the {sender}: enkaku diagnose --port {port}"),
    }
}

fn whole(watched: &[Watched], known: &Known) -> Option<Whole> {
    let mut parts: Vec<(Facts, Role)> = Vec::new();
    for one in without_other_ends(watched) {
        parts.extend(
            Facts::of(&one.samples, known.send_buffer_max_bytes).map(|facts| (facts, one.role)),
        );
    }
    let busiest = parts.iter().map(|(facts, _)| facts.bytes_per_s()).fold(0.0, f64::max);
    if busiest < IDLE_BYTES_PER_S {
        return None;
    }
    parts.retain(|(facts, _)| facts.bytes_per_s() >= busiest * SPECTATOR);
    let role = parts.iter().max_by(|a, b| a.0.bytes_per_s().total_cmp(&b.0.bytes_per_s()))?.1;
    let sent: f64 = parts.iter().map(|(facts, _)| facts.sent_bytes).sum();
    let received: f64 = parts.iter().map(|(facts, _)| facts.received_bytes).sum();
    let count = facts::micros(u64::try_from(parts.len()).unwrap_or(u64::MAX));
    let mut mean = Facts::default();
    for (facts, _) in &parts {
        mean.add(facts.clone(), 1.0 / count);
    }
    Some(Whole {
        role,
        sends: sent >= received,
        connections: count,
        bytes_per_s: parts.iter().map(|(facts, _)| facts.bytes_per_s()).sum(),
        line_bytes_per_s: known.line_bytes_per_s,
        device_bytes_per_s: known.device_bytes_per_s,
        own_initiator: known.own_initiator,
        port: watched
            .iter()
            .filter(|one| one.role == role)
            .find_map(Watched::target_port)
            .unwrap_or(0),
        mean,
    })
}

/// Where both ends are on this host, only the one that the payload leaves: it knows more.
fn without_other_ends(watched: &[Watched]) -> impl Iterator<Item = &Watched> {
    watched.iter().filter(move |one| {
        let Some(last) = one.samples.last() else { return false };
        let other_end = watched.iter().find(|other| {
            other.samples.last().is_some_and(|s| s.connection.is_other_end_of(&last.connection))
        });
        let sends =
            |one: &Watched| Facts::of(&one.samples, None).is_some_and(|facts| facts.sends());
        other_end.is_none() || sends(one)
    })
}

/// The cause, and what has the same signs.
fn cause(whole: &Whole) -> (Bottleneck, Vec<Bottleneck>) {
    let full_line = |rate: f64| whole.bytes_per_s >= rate * LINE_FULL;
    if [whole.line_bytes_per_s, whole.device_bytes_per_s].into_iter().flatten().any(full_line) {
        return (Bottleneck::LineRate, vec![]);
    }
    if whole.sends { cause_at_sender(whole) } else { cause_at_receiver(whole) }
}

fn cause_at_sender(whole: &Whole) -> (Bottleneck, Vec<Bottleneck>) {
    let shares = &whole.mean.shares;
    let signs = signs(whole);
    match signs.counted() {
        Some(counted) => (counted, vec![]),
        // Data wait for the congestion window or for pacing.
        None if shares.network >= shares.path + shares.peer + shares.own => {
            signs.network().map_or_else(|| silence(whole), |cause| (cause, vec![]))
        }
        None => silence(whole),
    }
}

/// What the sending end says, in the terms of those who report on a path of their own.
fn signs(whole: &Whole) -> Signs {
    let (mean, shares) = (&whole.mean, &whole.mean.shares);
    Signs {
        receive_window_share: shares.receive_window,
        send_buffer_share: shares.send_buffer,
        silent: shares.own + shares.peer >= MOSTLY,
        queued: mean.queue_share >= MOSTLY,
        in_flight_bytes: mean.in_flight_bytes,
        not_sent_bytes: mean.not_sent_bytes,
        cwnd_bytes: mean.cwnd_bytes,
        send_window_bytes: mean.send_window_bytes,
        loss: whole.loss(),
        bbr: mean.bbr,
        app_limited: mean.app_limited_share >= MOSTLY,
    }
}

fn cause_at_receiver(whole: &Whole) -> (Bottleneck, Vec<Bottleneck>) {
    let (mean, shares) = (&whole.mean, &whole.mean.shares);
    let round_trip = mean.bytes_per_s() * mean.base_rtt_us / 1e6;
    let streams = shares.receiving >= shares.path + shares.peer + shares.own;
    let is_full = mean.receive_window_bytes > 0.0 && round_trip >= mean.receive_window_bytes * FULL;
    if is_full || streams && mean.full_rounds_share >= FULL_ROUNDS {
        return (Bottleneck::ReceiveWindow, vec![]);
    }
    // A full queue loses as well, but what comes through it comes at one rate.
    let steady = mean.bytes_per_s() >= mean.peak_bytes_per_s * STEADY;
    if streams && !steady && whole.loss() >= LOSS_MIN {
        return (Bottleneck::CongestionLoss, vec![]);
    }
    if streams {
        // Without gaps: the sender paces, or the line does. Its end knows.
        return (Bottleneck::LineRate, vec![Bottleneck::SendBuffer, Bottleneck::CongestionWindow]);
    }
    let (cause, mut others) = silence(whole);
    if cause == Bottleneck::QueueDepth {
        // Bursts a round trip apart: asked for one by one, or cut by the sender's buffer or window.
        others.extend([Bottleneck::SendBuffer, Bottleneck::CongestionWindow]);
    }
    (cause, others)
}

/// TCP had nothing to do: who was silent?
fn silence(whole: &Whole) -> (Bottleneck, Vec<Bottleneck>) {
    let (target, initiator) = whole.silences();
    if whole.mean.shares.path >= target.max(initiator) {
        return (
            Bottleneck::QueueDepth,
            if whole.writes() { vec![Bottleneck::R2t] } else { vec![] },
        );
    }
    if target >= initiator {
        (Bottleneck::Storage, vec![])
    } else {
        (Bottleneck::Application, vec![])
    }
}

fn evidence(whole: &Whole) -> BTreeMap<&'static str, f64> {
    let (mean, shares) = (&whole.mean, &whole.mean.shares);
    let (target, application) = whole.silences();
    let mut evidence = BTreeMap::from([
        ("connections", whole.connections),
        ("seconds", mean.seconds),
        ("bytes_per_s", whole.bytes_per_s),
        ("peak_bytes_per_s", mean.peak_bytes_per_s),
        ("rtt_us", mean.rtt_us),
        ("rtt_min_us", mean.base_rtt_us),
        ("loss", whole.loss()),
        ("burst_bytes", mean.burst_bytes),
        ("share_queue_depth", shares.path),
        ("share_storage", target),
        ("share_application", application),
    ]);
    let direction: &[_] = if whole.sends {
        &[
            ("cwnd_bytes", mean.cwnd_bytes),
            ("in_flight_bytes", mean.in_flight_bytes),
            ("in_flight_bytes_max", mean.in_flight_bytes_max),
            ("not_sent_bytes", mean.not_sent_bytes),
            ("send_window_bytes", mean.send_window_bytes),
            ("send_buffer_bytes", mean.send_buffer_bytes),
            ("retransmitted_segments", mean.retrans_segments * whole.connections),
            ("share_send_buffer", shares.send_buffer),
            ("share_receive_window", shares.receive_window),
            ("share_network", shares.network),
            ("share_queue_on_path", mean.queue_share),
        ]
    } else {
        &[
            ("receive_window_bytes", mean.receive_window_bytes),
            ("out_of_order_segments", mean.out_of_order_segments * whole.connections),
            ("share_receiving", shares.receiving),
            ("share_rounds_of_a_window", mean.full_rounds_share),
        ]
    };
    evidence.extend(direction.iter().copied());
    evidence
}
