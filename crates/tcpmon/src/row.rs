//! One connection in one interval, as a monitor shows it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::diag::Owner;
use crate::sample::{Connection, Sample};
use crate::verdict::Bottleneck;
use crate::verdict::from_samples::{Known, Role, Watched, judge};

/// One look at a connection, for whoever draws what happens within an interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// When, in seconds since 1970.
    pub at_unix_s: f64,
    /// Congestion window.
    pub cwnd_bytes: u64,
    /// Sent, neither acknowledged nor lost.
    pub in_flight_bytes: u64,
    /// Written and not yet sent.
    pub not_sent_bytes: u32,
    /// Written and not acknowledged.
    pub send_queue_bytes: u32,
    /// Memory that the latter takes, headers included (`sk_wmem_queued`); 0 if the kernel does not
    /// tell.
    pub send_memory_bytes: u32,
    /// Limit of that memory (`sk_sndbuf`); 0 if the kernel does not tell.
    pub send_buffer_bytes: u32,
    /// Smoothed round-trip time.
    pub rtt_us: u32,
}

impl Point {
    /// `epoch_us`: microseconds from 1970 to the zero of the samples' clock.
    fn of(sample: &Sample, epoch_us: u64) -> Self {
        let memory = sample.memory.unwrap_or_default();
        Self {
            at_unix_s: seconds(epoch_us.saturating_add(sample.at_us)),
            cwnd_bytes: sample.tcp.cwnd_bytes(),
            in_flight_bytes: sample.tcp.in_flight_bytes(),
            not_sent_bytes: sample.tcp.not_sent_bytes.unwrap_or_default(),
            send_queue_bytes: sample.send_queue_bytes,
            send_memory_bytes: memory.send_queued_bytes,
            send_buffer_bytes: memory.send_buffer_bytes,
            rtt_us: sample.tcp.rtt_us,
        }
    }
}

/// What a connection did in an interval, and how it stood at its end.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which connection.
    #[serde(flatten)]
    pub connection: Connection,
    /// Its process, where it may be seen.
    pub process: Option<Owner>,
    /// Whether this host listens on its port.
    pub serves: bool,
    /// Its state.
    pub state: &'static str,
    /// Its congestion control.
    pub congestion_control: String,
    /// Payload sent per second, repetitions included.
    pub sent_bytes_per_s: f64,
    /// Payload received per second.
    pub received_bytes_per_s: f64,
    /// Smoothed round-trip time.
    pub rtt_us: u32,
    /// The smallest round-trip time; 0 if none is known.
    pub rtt_min_us: u32,
    /// Congestion window.
    pub cwnd_bytes: u64,
    /// Sent, neither acknowledged nor lost.
    pub in_flight_bytes: u64,
    /// Written and not yet sent.
    pub not_sent_bytes: u32,
    /// Written and not acknowledged.
    pub send_queue_bytes: u32,
    /// Received and not read.
    pub receive_queue_bytes: u32,
    /// Limit of the send buffer, headers included; 0 if the kernel does not tell.
    pub send_buffer_bytes: u32,
    /// The window that the other end announces; 0 if the kernel does not tell.
    pub send_window_bytes: u32,
    /// Rate at which data arrive at the other end, the kernel's latest sample.
    pub delivery_bytes_per_s: u64,
    /// Segments sent again in the interval.
    pub retransmitted_segments: u32,
    /// What limits it; absent while it moves nothing.
    pub cause: Option<Bottleneck>,
    /// What to change, in a sentence or two; absent with the cause.
    pub advice: Option<String>,
    /// Samples that this was made from.
    pub samples: usize,
    /// The samples themselves, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<Vec<Point>>,
    /// Events in the interval by name, where they are watched ([`crate::events::Counts::named`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<BTreeMap<&'static str, u64>>,
}

impl Row {
    /// The row of one connection's samples; `None` without any.
    pub fn of(watched: &Watched, process: Option<Owner>, known: &Known) -> Option<Self> {
        let (first, last) = (watched.samples.first()?, watched.samples.last()?);
        let us = last.at_us.saturating_sub(first.at_us);
        let per_second = |of: fn(&Sample) -> Option<u64>| match (of(last), of(first)) {
            (Some(last), Some(first)) if us > 0 => rate(last.saturating_sub(first), us),
            _ => 0.0,
        };
        let tcp = &last.tcp;
        let verdict = judge(std::slice::from_ref(watched), known).map(|judged| judged.verdict);
        Some(Self {
            connection: last.connection,
            process,
            serves: watched.role == Role::Target,
            state: last.state.as_str(),
            congestion_control: last.congestion_control.clone(),
            sent_bytes_per_s: per_second(|s| s.tcp.sent_bytes.or(s.tcp.acked_bytes)),
            received_bytes_per_s: per_second(|s| s.tcp.received_bytes),
            rtt_us: tcp.rtt_us,
            rtt_min_us: tcp.base_rtt_us().unwrap_or_default(),
            cwnd_bytes: tcp.cwnd_bytes(),
            in_flight_bytes: tcp.in_flight_bytes(),
            not_sent_bytes: tcp.not_sent_bytes.unwrap_or_default(),
            send_queue_bytes: last.send_queue_bytes,
            receive_queue_bytes: last.receive_queue_bytes,
            send_buffer_bytes: last.memory.map_or(0, |memory| memory.send_buffer_bytes),
            send_window_bytes: tcp.send_window_bytes.unwrap_or_default(),
            delivery_bytes_per_s: tcp.delivery_rate_bytes_per_s.unwrap_or_default(),
            retransmitted_segments: tcp
                .total_retrans_segments
                .saturating_sub(first.tcp.total_retrans_segments),
            cause: verdict.as_ref().map(|verdict| verdict.cause),
            advice: verdict.map(|verdict| verdict.advice),
            samples: watched.samples.len(),
            series: None,
            events: None,
        })
    }

    /// With the samples themselves. `epoch_us` is [`crate::watch::Watcher::epoch_us`].
    #[must_use]
    pub fn with_series(mut self, watched: &Watched, epoch_us: u64) -> Self {
        // The first one is the last of the interval before, unless there was none.
        let new = watched.samples.iter().skip(usize::from(watched.samples.len() > 1));
        self.series = Some(new.map(|sample| Point::of(sample, epoch_us)).collect());
        self
    }

    /// Payload in both directions.
    pub fn bytes_per_s(&self) -> f64 {
        self.sent_bytes_per_s + self.received_bytes_per_s
    }
}

#[allow(clippy::cast_precision_loss, reason = "microseconds of a few centuries are below 2^53")]
fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

#[allow(clippy::cast_precision_loss, reason = "bytes and microseconds far below 2^53")]
fn rate(bytes: u64, us: u64) -> f64 {
    bytes as f64 / us as f64 * 1e6
}
