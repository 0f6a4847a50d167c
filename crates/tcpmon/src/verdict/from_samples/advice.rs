//! What to change, and what to expect of it, with the numbers of this path.

use super::Whole;
use crate::verdict::Cause;

/// Memory that a byte in flight takes in a send buffer: headers and room that stays empty.
const BUFFER_PER_BYTE: f64 = 2.0;
/// Fewer bytes per second than this more is no promise.
const WORTH: f64 = 1.1;
/// The share of a line that a tuned transfer reaches.
const REACHED: f64 = 0.95;

/// Throughput after the change.
pub(super) fn expected(cause: Cause, whole: &Whole) -> Option<f64> {
    let mean = &whole.mean;
    let possible = match cause {
        Cause::LineRate | Cause::Application => return None,
        // Without the silences, the rest of the time carries the same bytes.
        Cause::Storage => {
            let silent = if whole.serves() { mean.shares.own } else { mean.shares.peer };
            whole.bytes_per_s / (1.0 - silent).max(0.05)
        }
        // What comes between two losses says little of the line.
        Cause::CongestionLoss => whole.line_bytes_per_s? * REACHED,
        _ => capacity(whole) * REACHED,
    };
    let limit = whole.line_bytes_per_s.unwrap_or(f64::INFINITY);
    let possible = possible.min(limit);
    (possible > whole.bytes_per_s * WORTH).then_some(possible)
}

/// What the path can carry as far as is known: said, or seen for a moment.
fn capacity(whole: &Whole) -> f64 {
    let seen = whole.mean.peak_bytes_per_s.max(whole.bytes_per_s);
    whole.line_bytes_per_s.unwrap_or(seen)
}

/// One or two sentences.
pub(super) fn text(cause: Cause, whole: &Whole) -> String {
    let mut text = change(cause, whole);
    if let Some(expected) = expected(cause, whole) {
        text +=
            &format!(" Expect about {} instead of {}.", rate(expected), rate(whole.bytes_per_s));
    }
    let tuned = matches!(
        cause,
        Cause::SendBuffer | Cause::ReceiveWindow | Cause::CongestionLoss | Cause::CongestionWindow
    );
    if tuned && whole.own_initiator {
        text += " enkaku's initiator does this by itself with --connections auto.";
    }
    text
}

fn change(cause: Cause, whole: &Whole) -> String {
    let mean = &whole.mean;
    let here = if whole.serves() { "the target" } else { "the initiator" };
    let there = if whole.serves() { "the initiator" } else { "the target" };
    let (sender, receiver) = if whole.sends { (here, there) } else { (there, here) };
    match cause {
        Cause::SendBuffer => format!(
            "The send buffer of {sender} ({}) lets {} be in flight at RTT {}. {}",
            size(mean.send_buffer_bytes),
            size(mean.in_flight_bytes_max),
            time(mean.base_rtt_us),
            larger("net.ipv4.tcp_wmem", mean.in_flight_bytes_max, whole),
        ),
        Cause::ReceiveWindow => {
            let window =
                if whole.sends { mean.send_window_bytes } else { mean.receive_window_bytes };
            format!(
                "The receive window of {receiver} is {} at RTT {}. {}",
                size(window),
                time(mean.base_rtt_us),
                larger("net.ipv4.tcp_rmem", window, whole),
            )
        }
        Cause::CongestionLoss => {
            let at = if whole.sends {
                format!(" at {}", size(mean.cwnd_bytes))
            } else {
                " small".into()
            };
            format!(
                "Losses ({:.1e} of the segments) keep the congestion window of {sender}{at}. Use \
                 BBR there (net.ipv4.tcp_congestion_control = bbr), or more connections, which share \
                 the losses; and look for what loses them.",
                whole.loss(),
            )
        }
        Cause::CongestionWindow => format!(
            "The congestion window of {sender} is full at {} without losses: it is still growing, \
             or was closed by idleness (net.ipv4.tcp_slow_start_after_idle = 0), or more connections \
             start with more.",
            size(mean.cwnd_bytes),
        ),
        Cause::R2t | Cause::QueueDepth => queue_depth(whole),
        Cause::Storage => format!(
            "The target's storage takes the time ({:.0} % of it): the network waits. A faster \
             medium, a cache at the target, or more commands at a time if it can serve them \
             together.",
            100.0 * if whole.serves() { mean.shares.own } else { mean.shares.peer },
        ),
        Cause::LineRate => format!(
            "The line is full at {}: nothing in TCP or iSCSI can make this faster. More of the \
             line, or less to carry.",
            rate(whole.bytes_per_s)
        ),
        Cause::Application => format!(
            "The initiator's application asks for no more: the session is silent for {:.0} % of \
             the time. Look at what it does between its requests.",
            100.0 * if whole.serves() { mean.shares.peer } else { mean.shares.own },
        ),
    }
}

/// How much larger a window of each connection must be, or how many more connections there must be.
fn larger(sysctl: &str, window: f64, whole: &Whole) -> String {
    let product = product(whole);
    let each = product / whole.connections;
    if each < window * WORTH {
        // Only what comes through the window has been seen of the line.
        return format!(
            "Raise the maximum of {sysctl} there to rate × RTT × {BUFFER_PER_BYTE:.0}, or use more \
             connections; --line-rate lets this say how far."
        );
    }
    format!(
        "The path needs {} ({} × RTT): raise the maximum of {sysctl} there to {}, or use {:.0} \
         connections.",
        size(product),
        rate(capacity(whole)),
        size(each * BUFFER_PER_BYTE),
        (product / window.max(1.0)).ceil().max(whole.connections + 1.0),
    )
}

/// What the path holds: bandwidth × delay.
fn product(whole: &Whole) -> f64 {
    capacity(whole) * whole.mean.base_rtt_us / 1e6
}

fn queue_depth(whole: &Whole) -> String {
    let product = product(whole);
    let burst = whole.mean.burst_bytes * whole.connections;
    let deep = (product / burst.max(1.0)).ceil().clamp(2.0, 10_000.0);
    let writes = whole.sends != whole.serves();
    let hint = if writes {
        " For writes also InitialR2T=No, ImmediateData=Yes and larger FirstBurstLength and \
         MaxBurstLength, so that no data wait for an R2T."
    } else {
        ""
    };
    format!(
        "Each round trip of {} carries one burst of {}. Keep more commands outstanding, or larger \
         ones: read-ahead and write-behind, a queue depth of {deep:.0} of this size.{hint}",
        time(whole.mean.base_rtt_us),
        size(burst),
    )
}

fn rate(bytes_per_s: f64) -> String {
    let bits = bytes_per_s * 8.0;
    if bits >= 1e9 {
        format!("{:.2} Gbit/s", bits / 1e9)
    } else {
        format!("{:.0} Mbit/s", bits / 1e6)
    }
}

fn size(bytes: f64) -> String {
    if bytes >= 1e6 { format!("{:.1} MB", bytes / 1e6) } else { format!("{:.0} kB", bytes / 1e3) }
}

fn time(us: f64) -> String {
    if us >= 1000.0 { format!("{:.0} ms", us / 1000.0) } else { format!("{us:.0} µs") }
}
