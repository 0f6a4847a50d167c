//! The advice: one or two sentences on a cause with the numbers of the transfer. One wording for
//! all sources; what a source does not know is absent from its [`Situation`] and from the sentence.

use std::collections::BTreeMap;

use super::{Bottleneck, Verdict};

/// Memory that a byte in flight takes in a buffer: headers and room that stays empty.
const BUFFER_PER_BYTE: f64 = 2.0;
/// A queue is to hold so many times what the path holds: one in flight, one waiting.
const QUEUE_PER_BYTE: f64 = 2.0;
/// Fewer bytes per second than this more is no promise.
pub(super) const WORTH: f64 = 1.1;

/// What the sentences need to know of a transfer. Bytes and microseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Situation {
    /// The payload leaves the initiator.
    pub(super) writes: bool,
    pub(super) connections: f64,
    pub(super) rtt_us: f64,
    pub(super) bytes_per_s: f64,
    /// What the path can carry as far as is known: said, or seen for a moment.
    pub(super) capacity_bytes_per_s: f64,
    /// After the change.
    pub(super) expected_bytes_per_s: Option<f64>,
    pub(super) in_flight_bytes: f64,
    pub(super) send_buffer_bytes: Option<f64>,
    /// What the receiver announces.
    pub(super) window_bytes: f64,
    pub(super) cwnd_bytes: Option<f64>,
    /// Share of the segments that were sent again.
    pub(super) loss: f64,
    /// Payload of a round trip, or of a command where those are seen.
    pub(super) burst_bytes: f64,
    /// Commands under way in the mean.
    pub(super) outstanding: Option<f64>,
    /// R2Ts of a write.
    pub(super) r2ts: Option<f64>,
    /// Share of the time that was the target's, and the application's.
    pub(super) target_share: f64,
    pub(super) application_share: f64,
    /// The initiator is Enkaku's.
    pub(super) own_initiator: bool,
    /// The user could have said what the line carries.
    pub(super) line_can_be_said: bool,
}

impl Situation {
    fn sender(&self) -> &'static str {
        if self.writes { "the initiator" } else { "the target" }
    }

    fn receiver(&self) -> &'static str {
        if self.writes { "the target" } else { "the initiator" }
    }

    /// What the path holds: bandwidth × delay.
    fn product(&self) -> f64 {
        self.capacity_bytes_per_s * self.rtt_us / 1e6
    }

    /// For each connection.
    fn buffer_wanted(&self) -> f64 {
        self.product() / self.connections.max(1.0) * BUFFER_PER_BYTE
    }

    fn depth_wanted(&self) -> f64 {
        let queue = QUEUE_PER_BYTE * self.product();
        (queue / self.burst_bytes.max(1.0)).ceil().clamp(2.0, 10_000.0)
    }
}

/// The verdict on a cause: its evidence with what is wanted instead, and the sentences.
pub(super) fn verdict(
    cause: Bottleneck,
    mut evidence: BTreeMap<&'static str, f64>,
    now: &Situation,
) -> Verdict {
    evidence.extend(wanted(cause, now));
    evidence.retain(|_, value| value.is_finite());
    let expected_bytes_per_s = now.expected_bytes_per_s;
    Verdict { cause, evidence, advice: text(cause, now), expected_bytes_per_s }
}

/// The number that the advice asks for, for the evidence.
fn wanted(cause: Bottleneck, now: &Situation) -> Option<(&'static str, f64)> {
    match cause {
        Bottleneck::SendBuffer => Some(("send_buffer_wanted_bytes", now.buffer_wanted())),
        Bottleneck::ReceiveWindow => Some(("receive_window_wanted_bytes", now.buffer_wanted())),
        Bottleneck::QueueDepth => Some(("outstanding_wanted", now.depth_wanted())),
        _ => None,
    }
}

/// What limits the transfer, what to change, and what to expect of it.
fn text(cause: Bottleneck, now: &Situation) -> String {
    let mut text = change(cause, now);
    if let Some(expected) = now.expected_bytes_per_s {
        text += &format!(" Expect about {} instead of {}.", rate(expected), rate(now.bytes_per_s));
    }
    let tuned = matches!(
        cause,
        Bottleneck::SendBuffer
            | Bottleneck::ReceiveWindow
            | Bottleneck::CongestionLoss
            | Bottleneck::CongestionWindow
    );
    if tuned && now.own_initiator {
        text += " enkaku's initiator does this by itself with --connections auto.";
    }
    text
}

fn change(cause: Bottleneck, now: &Situation) -> String {
    let sender = now.sender();
    match cause {
        Bottleneck::SendBuffer => format!(
            "The send buffer of {sender}{} lets {} be in flight at RTT {}. {}",
            now.send_buffer_bytes.map_or(String::new(), |bytes| format!(" ({})", size(bytes))),
            size(now.in_flight_bytes),
            time(now.rtt_us),
            larger("net.ipv4.tcp_wmem", now.in_flight_bytes, now),
        ),
        Bottleneck::ReceiveWindow => format!(
            "The receive window of {} is {} at RTT {}. {}",
            now.receiver(),
            size(now.window_bytes),
            time(now.rtt_us),
            larger("net.ipv4.tcp_rmem", now.window_bytes, now),
        ),
        Bottleneck::CongestionLoss => format!(
            "Losses ({:.1e} of the segments) keep the congestion window of {sender}{}. Use BBR there \
             (net.ipv4.tcp_congestion_control = bbr), or more connections, which share the losses; \
             and look for what loses them.",
            now.loss,
            now.cwnd_bytes.map_or(" small".to_owned(), |bytes| format!(" at {}", size(bytes))),
        ),
        Bottleneck::CongestionWindow => format!(
            "The congestion window of {sender} is full at {} without losses: it is still growing, or \
             was closed by idleness (net.ipv4.tcp_slow_start_after_idle = 0), or more connections \
             start with more.",
            size(now.cwnd_bytes.unwrap_or(now.in_flight_bytes)),
        ),
        Bottleneck::R2t => format!(
            "Each write waits for {} a round trip of {} each. Negotiate InitialR2T=No, \
             ImmediateData=Yes, FirstBurstLength and MaxBurstLength of at least the size of a write \
             ({}), and MaxOutstandingR2T above 1.",
            now.r2ts.map_or("R2Ts,".to_owned(), |count| format!("{count:.1} R2Ts,")),
            time(now.rtt_us),
            size(now.burst_bytes),
        ),
        Bottleneck::QueueDepth => queue_depth(now),
        Bottleneck::Storage => format!(
            "The target's storage takes the time ({:.0} % of it): the network waits. A faster \
             medium, a cache at the target, or more commands at a time if it can serve them \
             together.",
            100.0 * now.target_share,
        ),
        Bottleneck::LineRate => format!(
            "The line is full at {}: nothing in TCP or iSCSI can make this faster. More of the \
             line, or less to carry.",
            rate(now.bytes_per_s)
        ),
        Bottleneck::Application => format!(
            "The initiator's application asks for no more: the session is silent for {:.0} % of \
             the time. Look at what it does between its requests.",
            100.0 * now.application_share,
        ),
        _ => format!("The session is limited by {cause}."),
    }
}

/// How much larger a window of each connection must be, or how many more connections there must be.
fn larger(sysctl: &str, window: f64, now: &Situation) -> String {
    let product = now.product();
    if product / now.connections.max(1.0) < window * WORTH {
        // Only what comes through the window has been seen of the line.
        let hint = if now.line_can_be_said { "; --line-rate lets this say how far" } else { "" };
        return format!(
            "Raise the maximum of {sysctl} there to rate × RTT × {BUFFER_PER_BYTE:.0}, or use more \
             connections{hint}."
        );
    }
    format!(
        "The path needs {} ({} × RTT): raise the maximum of {sysctl} there to {}, or use {:.0} \
         connections.",
        size(product),
        rate(now.capacity_bytes_per_s),
        size(now.buffer_wanted()),
        (product / window.max(1.0)).ceil().max(now.connections + 1.0),
    )
}

fn queue_depth(now: &Situation) -> String {
    let hint = if now.writes {
        " For writes also InitialR2T=No, ImmediateData=Yes and larger FirstBurstLength and \
         MaxBurstLength, so that no data wait for an R2T."
    } else {
        ""
    };
    let what = match now.outstanding {
        Some(count) => format!(
            "{count:.1} commands of {} are under way, and each takes a round trip of {}",
            size(now.burst_bytes),
            time(now.rtt_us),
        ),
        None => format!(
            "Each round trip of {} carries one burst of {}",
            time(now.rtt_us),
            size(now.burst_bytes),
        ),
    };
    format!(
        "{what}. Keep more commands outstanding, or larger ones: read-ahead and write-behind, a \
         queue depth of {:.0} of this size.{hint}",
        now.depth_wanted(),
    )
}

fn rate(bytes_per_s: f64) -> String {
    let bits = bytes_per_s * 8.0;
    if bits >= 1e9 {
        format!("{:.2} Gbit/s", bits / 1e9)
    } else if bits >= 1e7 {
        format!("{:.0} Mbit/s", bits / 1e6)
    } else {
        format!("{:.1} Mbit/s", bits / 1e6)
    }
}

fn size(bytes: f64) -> String {
    if bytes >= 1e6 { format!("{:.1} MB", bytes / 1e6) } else { format!("{:.0} kB", bytes / 1e3) }
}

fn time(us: f64) -> String {
    match us {
        us if us >= 10_000.0 => format!("{:.0} ms", us / 1000.0),
        us if us >= 1000.0 => format!("{:.1} ms", us / 1000.0),
        us => format!("{us:.0} µs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Situation {
        Situation {
            writes: true,
            connections: 2.0,
            rtt_us: 40_000.0,
            bytes_per_s: 5e6,
            capacity_bytes_per_s: 25e6,
            expected_bytes_per_s: Some(20e6),
            in_flight_bytes: 100e3,
            window_bytes: 200e3,
            burst_bytes: 65_536.0,
            ..Situation::default()
        }
    }

    #[test]
    fn every_cause_has_sentences_with_whatever_is_known() {
        for cause in Bottleneck::DIAGNOSED {
            for now in [Situation::default(), some()] {
                let text = text(cause, &now);
                assert!(text.ends_with('.') && !text.contains("NaN"), "{text}");
                let promises = text.contains("Expect about 160 Mbit/s instead of 40 Mbit/s.");
                assert_eq!(promises, now.expected_bytes_per_s.is_some(), "{text}");
            }
        }
    }

    #[test]
    fn buffers_are_asked_for_that_hold_the_path_twice() {
        // 25 MB/s × 40 ms is 1 MB, half of it for each of two connections.
        let now = some();
        let buffer = text(Bottleneck::SendBuffer, &now);
        assert!(buffer.contains("The path needs 1.0 MB"), "{buffer}");
        assert!(buffer.contains("there to 1.0 MB, or use 10 connections"), "{buffer}");
        assert_eq!(wanted(Bottleneck::SendBuffer, &now), Some(("send_buffer_wanted_bytes", 1e6)));
        assert_eq!(wanted(Bottleneck::QueueDepth, &now), Some(("outstanding_wanted", 31.0)));
        assert_eq!(wanted(Bottleneck::Storage, &now), None);
        // What was seen came through the window: of the line no more is known.
        let unknown = Situation { capacity_bytes_per_s: 5e6, line_can_be_said: true, ..now };
        let vague = text(Bottleneck::SendBuffer, &unknown);
        assert!(vague.contains("rate × RTT × 2") && vague.contains("--line-rate"), "{vague}");
    }
}
