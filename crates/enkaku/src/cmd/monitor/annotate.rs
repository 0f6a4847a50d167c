//! `enkaku monitor report --annotate OUT`: the capture once more, with what we found in it as
//! comments of its packets, for somebody who goes on in Wireshark.
//!
//! Four kinds: what a connection's time went into and the verdict, at its first packet; the times
//! of a command, where it leaves; a retransmission; a receive window that has become full.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::BufWriter;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;
use tcpmon::capture::{Annotated, Segment, read_packets};
use tcpmon::model::{Analysis, CommandTimes, ConnectionReport, Report, SegmentTrace};
use tcpmon::pdus::Direction;

use crate::cmd::Usage;

/// Both ends, the smaller address first: the same for both directions.
type Pair = (SocketAddr, SocketAddr);

fn pair(one: SocketAddr, other: SocketAddr) -> Pair {
    if one < other { (one, other) } else { (other, one) }
}

/// Whether it can be done, before the capture is read the first time.
///
/// # Errors
/// The capture cannot be read twice, or would be written over.
pub(super) fn check(capture: &Path, to: &Path) -> anyhow::Result<()> {
    if capture == Path::new("-") {
        return Err(Usage::error("--annotate reads the capture twice: give a file, and not -"));
    }
    if to.canonicalize().is_ok_and(|to| capture.canonicalize().is_ok_and(|from| from == to)) {
        return Err(Usage::error(format!("--annotate {}: is the capture itself", to.display())));
    }
    Ok(())
}

/// Reads the capture a second time, and writes it with comments; returns how many.
///
/// # Errors
/// The capture cannot be read, or `to` cannot be written.
pub(super) fn write(
    capture: &Path,
    port: Option<u16>,
    report: &Report,
    to: &Path,
) -> anyhow::Result<u64> {
    let open = |path: &Path| {
        File::open(path).with_context(|| Usage(format!("capture {}", path.display())))
    };
    let file = open(capture)?;
    let writing = || format!("writing {}", to.display());
    let mut out = Annotated::new(BufWriter::new(File::create(to).with_context(writing)?))
        .with_context(writing)?;
    let mut comments = Comments::new(report, port);
    let (mut count, mut result) = (0, Ok(()));
    let read = read_packets(file, |packet, segment| {
        let found = segment.map(|segment| comments.of(segment)).unwrap_or_default();
        count += found.len() as u64;
        if result.is_ok() {
            result = out.packet(packet, &found);
        }
    });
    read.with_context(|| Usage(format!("capture {}", capture.display())))?;
    result.and_then(|()| out.finish()).with_context(writing)?;
    Ok(count)
}

/// What is still to be said, and what was.
struct Comments<'a> {
    analysis: Analysis,
    port: Option<u16>,
    origin_ns: Option<u64>,
    /// Connections whose first packet has not been seen, the verdict with the first of them.
    heads: HashMap<Pair, Vec<String>>,
    /// Commands by connection and by when they left, in microseconds.
    commands: HashMap<(Pair, u64), Vec<&'a CommandTimes>>,
    retransmissions: HashMap<(Pair, Direction), u64>,
    full: HashSet<(Pair, Direction)>,
}

impl<'a> Comments<'a> {
    fn new(report: &'a Report, port: Option<u16>) -> Self {
        let (mut heads, mut commands) = (HashMap::new(), HashMap::new());
        for (at, one) in report.connections.iter().enumerate() {
            let ends = pair(one.initiator, one.target);
            let mut head = vec![summary(one)];
            if let Some(found) = report.verdict.as_ref().filter(|_| at == 0) {
                let verdict = &found.verdict;
                head.push(format!("enkaku: {}: {}", verdict.cause.as_str(), verdict.advice));
            }
            heads.entry(ends).or_insert(head);
            for command in &one.commands {
                let key = (ends, micros(command.at_s * 1e6));
                commands.entry(key).or_insert_with(Vec::new).push(command);
            }
        }
        Self {
            analysis: Analysis::new(port),
            port,
            origin_ns: None,
            heads,
            commands,
            retransmissions: HashMap::new(),
            full: HashSet::new(),
        }
    }

    fn of(&mut self, segment: &Segment<'_>) -> Vec<String> {
        let ours = |port| self.port.is_none_or(|wanted| wanted == port);
        if !ours(segment.src.port()) && !ours(segment.dst.port()) {
            return Vec::new();
        }
        let origin_ns = *self.origin_ns.get_or_insert(segment.time_ns);
        let Some(trace) = self.analysis.trace_segment(segment) else { return Vec::new() };
        let ends = pair(segment.src, segment.dst);
        let mut found = self.heads.remove(&ends).unwrap_or_default();
        let at = micros(trace.time_ns.saturating_sub(origin_ns) as f64 / 1e3);
        let left = self.commands.remove(&(ends, at)).unwrap_or_default();
        found.extend(left.into_iter().map(times));
        found.extend(self.retransmitted(ends, &trace));
        found.extend(self.filled(ends, &trace));
        found
    }

    fn retransmitted(&mut self, ends: Pair, trace: &SegmentTrace) -> Option<String> {
        let before = self.retransmissions.entry((ends, trace.direction)).or_default();
        let new = trace.retransmissions > std::mem::replace(before, trace.retransmissions);
        new.then(|| {
            let way = way(trace.direction);
            format!("enkaku: retransmission, the {}. {way}", trace.retransmissions)
        })
    }

    /// Where a window becomes full, and not at every packet while it is.
    fn filled(&mut self, ends: Pair, trace: &SegmentTrace) -> Option<String> {
        let key = (ends, trace.direction);
        let window = trace.window_bytes.filter(|bytes| *bytes > 0)?;
        let full = trace.in_flight_bytes + u64::from(trace.payload_bytes) > window;
        if !full {
            self.full.remove(&key);
            return None;
        }
        (trace.payload_bytes > 0 && self.full.insert(key)).then(|| {
            let (flying, way) = (trace.in_flight_bytes, way(trace.direction));
            format!("enkaku: receive window full {way}: {flying} bytes in flight of {window}")
        })
    }
}

fn micros(us: f64) -> u64 {
    us.round().max(0.0) as u64
}

fn way(direction: Direction) -> &'static str {
    if direction == Direction::ToTarget { "to the target" } else { "to the initiator" }
}

/// What the time of a connection went into, the most first.
fn summary(one: &ConnectionReport) -> String {
    let rtt_ms = one.round_trip.rtt_us.unwrap_or(0.0) / 1e3;
    let mut text = format!(
        "enkaku: {} -> {}: {:.3} s, RTT {rtt_ms:.3} ms, {} bytes of commands; of {:.3} s from the \
         first command on",
        one.initiator,
        one.target,
        one.seconds,
        one.command_bytes(),
        one.wall_s
    );
    let shares = serde_json::to_value(one.shares_s).unwrap_or_default();
    let shares = shares.as_object().into_iter().flatten();
    let mut shares: Vec<(&String, f64)> =
        shares.filter_map(|(name, seconds)| Some((name, seconds.as_f64()?))).collect();
    // What would be shown as 0.0 %.
    shares.retain(|(_, seconds)| *seconds >= 5e-4 * one.wall_s);
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (at, (name, seconds)) in shares.into_iter().enumerate() {
        let comma = if at == 0 { ":" } else { "," };
        let share = 100.0 * seconds / one.wall_s.max(1e-9);
        text.push_str(&format!("{comma} {share:.1} % {name}"));
    }
    text
}

/// The times of a command, those of `monitor report`.
fn times(one: &CommandTimes) -> String {
    let kind = serde_json::to_value(one.kind).unwrap_or_default();
    let kind = kind.as_str().unwrap_or("command");
    let mut text = format!("enkaku: {kind} of {} bytes", one.bytes);
    if one.bytes > 0 {
        text.push_str(&format!(": first data after {:.3} ms", one.before_us / 1e3));
    }
    text.push_str(&format!(", Ta {:.3} ms, Tb {:.3} ms", one.ta_us / 1e3, one.tb_us / 1e3));
    if let Some(tc_us) = one.tc_us {
        text.push_str(&format!(", Tc {:.3} ms", tc_us / 1e3));
    }
    if one.r2ts > 0 {
        let waited = one.r2t_wait_us / 1e3;
        text.push_str(&format!("; {} R2Ts, {waited:.3} ms waiting for them", one.r2ts));
    }
    text
}
