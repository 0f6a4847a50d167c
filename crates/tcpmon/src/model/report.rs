//! What is reported of a capture and of each connection in it: the JSON of `enkaku monitor
//! report`. Seconds and bytes unless the name says otherwise.

use std::net::SocketAddr;

use serde::Serialize;

use super::commands::{CommandSummary, CommandTimes, Kind};
use super::flow::{Flow, FlowCounts};
use super::timeline::{Shares, Timeline};
use crate::capture::CaptureSummary;
use crate::pdus::{DecodeCounts, Digests, Negotiated};
use crate::verdict::Judgement;

/// A part of the round trip below this share of it means that the capture is at that end.
const AT_END_SHARE: f64 = 0.1;

/// Where a capture was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CapturePoint {
    /// At the initiator.
    Initiator,
    /// At the target.
    Target,
    /// Somewhere on the way (or each direction at its sender, as `enkaku wan --pcap` does).
    Between,
    /// One of the two parts of the round trip was not seen, or both ends are too near.
    Unknown,
}

/// The least round trip, and how the capture divides it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoundTrip {
    /// The whole, microseconds.
    pub rtt_us: Option<f64>,
    /// From the capture to the initiator and back.
    pub initiator_us: Option<f64>,
    /// From the capture to the target and back.
    pub target_us: Option<f64>,
    /// Where the capture was made.
    pub capture_point: CapturePoint,
}

impl RoundTrip {
    pub(crate) fn new(initiator_ns: Option<u64>, target_ns: Option<u64>) -> Self {
        let micros = |ns: u64| ns as f64 / 1e3;
        let (initiator_us, target_us) = (initiator_ns.map(micros), target_ns.map(micros));
        let both = initiator_us.zip(target_us);
        let rtt_us = match (initiator_us, target_us) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(0.0) + other.unwrap_or(0.0)),
        };
        let capture_point = match both {
            // Where both ends are on one machine there is no telling.
            Some((near, far)) if near + far < 200.0 => CapturePoint::Unknown,
            Some((near, far)) if near < AT_END_SHARE * (near + far) => CapturePoint::Initiator,
            Some((near, far)) if far < AT_END_SHARE * (near + far) => CapturePoint::Target,
            Some(_) => CapturePoint::Between,
            None => CapturePoint::Unknown,
        };
        Self { rtt_us, initiator_us, target_us, capture_point }
    }
}

/// One direction of TCP.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowReport {
    /// Counters.
    #[serde(flatten)]
    pub counts: FlowCounts,
    /// Largest payload of a segment.
    pub mss_bytes: u32,
    /// Most data in flight.
    pub in_flight_max_bytes: u64,
    /// Data in flight where it stayed while data waited to be sent.
    pub in_flight_plateau_bytes: u64,
    /// Largest window that the receiver announced.
    pub window_max_bytes: u64,
    /// Its scale was in the capture.
    pub window_scale_known: bool,
    /// The queue that always stood on the way.
    pub queue_us: f64,
    /// How fast trains of data came through: the line.
    pub line_bytes_per_s: Option<f64>,
}

impl FlowReport {
    fn new(flow: &Flow) -> Self {
        Self {
            counts: flow.counts(),
            mss_bytes: flow.mss(),
            in_flight_max_bytes: flow.in_flight_max(),
            in_flight_plateau_bytes: flow.plateau_bytes(),
            window_max_bytes: flow.window_max(),
            window_scale_known: flow.scale_known(),
            queue_us: flow.queue_ns() as f64 / 1e3,
            line_bytes_per_s: flow.line_bytes_per_s(),
        }
    }
}

/// Where the time went, in seconds; the sum is `wall_s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ShareSeconds {
    /// Waiting for memory of the sender's buffer.
    pub send_buffer: f64,
    /// The receiver's window was full.
    pub receive_window: f64,
    /// Losses.
    pub congestion_loss: f64,
    /// The congestion window was full.
    pub congestion_window: f64,
    /// The line was busy.
    pub line_rate: f64,
    /// Waiting for R2Ts.
    pub r2t: f64,
    /// Waiting a round trip for a response or for the first data.
    pub round_trip: f64,
    /// The target worked.
    pub target: f64,
    /// The initiator had nothing under way, or did not send what it could.
    pub application: f64,
    /// Not known.
    pub unattributed: f64,
}

impl From<Shares> for ShareSeconds {
    fn from(shares: Shares) -> Self {
        let seconds = |ns: u64| ns as f64 / 1e9;
        Self {
            send_buffer: seconds(shares.send_buffer_ns),
            receive_window: seconds(shares.receive_window_ns),
            congestion_loss: seconds(shares.congestion_loss_ns),
            congestion_window: seconds(shares.congestion_window_ns),
            line_rate: seconds(shares.line_ns),
            r2t: seconds(shares.r2t_ns),
            round_trip: seconds(shares.round_trip_ns),
            target: seconds(shares.target_ns),
            application: seconds(shares.application_ns),
            unattributed: seconds(shares.unattributed_ns),
        }
    }
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConnectionReport {
    /// Address of the initiator.
    pub initiator: SocketAddr,
    /// Address of the target.
    pub target: SocketAddr,
    /// First to last packet.
    pub seconds: f64,
    /// Keys from the login, as far as captured.
    pub negotiated: Negotiated,
    /// Digests, known or found out.
    pub digests: Digests,
    /// Round trip and capture point.
    pub round_trip: RoundTrip,
    /// First command to last packet of a command, seconds.
    pub wall_s: f64,
    /// Where that time went.
    pub shares_s: ShareSeconds,
    /// Writes.
    pub writes: Option<CommandSummary>,
    /// Reads.
    pub reads: Option<CommandSummary>,
    /// Other commands.
    pub others: u64,
    /// Most commands under way.
    pub outstanding_max: usize,
    /// Commands under way in the mean.
    pub outstanding_mean: f64,
    /// Times of single commands: all, or every second, fourth … of many.
    pub commands: Vec<CommandTimes>,
    /// TCP to the target.
    pub to_target: FlowReport,
    /// TCP to the initiator.
    pub to_initiator: FlowReport,
    /// PDUs to the target.
    pub pdus_to_target: DecodeCounts,
    /// PDUs to the initiator.
    pub pdus_to_initiator: DecodeCounts,
    /// Second copies of packets (captures of several devices), which do not count.
    pub copies: u64,
}

impl ConnectionReport {
    #[allow(clippy::too_many_arguments, reason = "called once, with all that a connection has")]
    pub(crate) fn new(
        (initiator, target): (SocketAddr, SocketAddr),
        (first_ns, last_ns): (u64, u64),
        negotiated: Negotiated,
        digests: Digests,
        round_trip: RoundTrip,
        timeline: &Timeline,
        flows: &[Flow; 2],
        [pdus_to_target, pdus_to_initiator]: [DecodeCounts; 2],
        copies: u64,
    ) -> Self {
        let rtt_ns = (round_trip.rtt_us.unwrap_or(0.0) * 1e3) as u64;
        let mut shares = timeline.shares();
        for flow in flows {
            let blocked = flow.blocked(rtt_ns);
            shares.line_ns += blocked.line_ns;
            shares.congestion_loss_ns += blocked.loss_ns;
            shares.send_buffer_ns += blocked.send_buffer_ns;
            shares.congestion_window_ns += blocked.congestion_window_ns;
        }
        let records = timeline.records();
        Self {
            initiator,
            target,
            seconds: last_ns.saturating_sub(first_ns) as f64 / 1e9,
            negotiated,
            digests,
            round_trip,
            wall_s: timeline.wall_ns() as f64 / 1e9,
            shares_s: shares.into(),
            writes: records.summary(Kind::Write),
            reads: records.summary(Kind::Read),
            others: records.summary(Kind::Other).map_or(0, |summary| summary.commands),
            outstanding_max: timeline.most_outstanding(),
            outstanding_mean: timeline.mean_outstanding(),
            commands: records.kept().to_vec(),
            to_target: FlowReport::new(&flows[0]),
            to_initiator: FlowReport::new(&flows[1]),
            pdus_to_target,
            pdus_to_initiator,
            copies,
        }
    }

    /// Payload of commands, both ways.
    pub fn command_bytes(&self) -> u64 {
        let of = |summary: &Option<CommandSummary>| summary.as_ref().map_or(0, |one| one.bytes);
        of(&self.writes) + of(&self.reads)
    }
}

/// A whole capture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What the capture contained and what was skipped.
    pub capture: CaptureSummary,
    /// iSCSI connections, the one with the most payload first.
    pub connections: Vec<ConnectionReport>,
    /// TCP connections in which no iSCSI was found.
    pub not_iscsi: u64,
    /// Connections that were left out because there were too many at once.
    pub connections_skipped: u64,
    /// Times that a connection's data behind holes were given up, because too much waited in all.
    pub waits_cut: u64,
    /// What limits the transfer; absent where there was none.
    pub verdict: Option<Judgement>,
}
