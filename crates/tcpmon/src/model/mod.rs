//! From packets to where the time went: connections, commands, TCP, and the shares of the clock.
//!
//! Everything is bounded: connections, commands under way, bytes that wait behind a hole, records;
//! each for a connection and for all of them. What did not fit is counted.

mod commands;
mod connection;
mod flow;
mod line;
mod report;
mod rounds;
mod timeline;

use std::collections::{HashMap, VecDeque};
use std::io::Read;
use std::net::SocketAddr;

pub use commands::{CommandSummary, CommandTimes, Kind};
pub use connection::SegmentTrace;
pub use flow::FlowCounts;
pub use report::{CapturePoint, ConnectionReport, FlowReport, Report, RoundTrip, ShareSeconds};
pub use rounds::Blocked;
pub use timeline::Shares;

use crate::capture::{CaptureError, CaptureSummary, Segment, read_capture};
use crate::verdict::from_packets;
use connection::Connection;

/// Connections followed at once; of each, up to 16 MiB may wait behind a hole.
const CONNECTIONS_MAX: usize = 256;
/// Reports of connections that ended; MC/S sessions have some tens.
const REPORTS_MAX: usize = 1024;
/// What may wait in all connections together: some that lose much at a time, or one that is
/// hostile.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Times of single commands in all reports of connections that ended; 6 MB.
const RECORDS_MAX: usize = 1 << 16;
/// Connections that ended are remembered, so that a segment that comes late is none of a new one:
/// so many, for as long as their ports are seldom used again (RFC 9293 §3.4.2).
const ENDED_MAX: usize = 64;
const LATE_NS_MAX: u64 = 60_000_000_000;
/// iSCSI's ports (RFC 7143 §4.2.7.1 and the system port).
const ISCSI_PORTS: [u16; 2] = [3260, 860];

/// Reads packets and keeps what was found out.
#[derive(Debug, Default)]
pub struct Analysis {
    port: Option<u16>,
    origin_ns: Option<u64>,
    connections: HashMap<(SocketAddr, SocketAddr), Connection>,
    done: Vec<ConnectionReport>,
    /// Has just ended; its last segment may still be asked about.
    over: Option<(SocketAddr, SocketAddr)>,
    /// And when.
    ended: VecDeque<((SocketAddr, SocketAddr), u64)>,
    not_iscsi: u64,
    skipped: u64,
    waiting_bytes: usize,
    waits_cut: u64,
    /// Times of single commands in `done`.
    records: usize,
}

impl Analysis {
    /// `port`: only connections to or from it; any that speaks iSCSI if `None`.
    pub fn new(port: Option<u16>) -> Self {
        Self { port, ..Self::default() }
    }

    /// Takes the next segment.
    pub fn handle_segment(&mut self, segment: &Segment<'_>) {
        self.take(segment);
    }

    /// Takes the next segment and tells what is known when it has passed.
    pub fn trace_segment(&mut self, segment: &Segment<'_>) -> Option<SegmentTrace> {
        let pair = self.take(segment)?;
        self.connections.get_mut(&pair).map(|connection| connection.trace(segment))
    }

    fn take(&mut self, segment: &Segment<'_>) -> Option<(SocketAddr, SocketAddr)> {
        let wanted = |port| self.port.is_none_or(|wanted| wanted == port);
        if !wanted(segment.src.port()) && !wanted(segment.dst.port()) {
            return None;
        }
        if let Some(over) = self.over.take() {
            self.end(over);
        }
        let origin_ns = *self.origin_ns.get_or_insert(segment.time_ns);
        let pair = ordered(segment.src, segment.dst);
        let opens = segment.syn && segment.ack.is_none();
        if opens
            && let Some(before) = self.connections.get(&pair)
            && before.pdus > 0
        {
            // The same ports again: another connection.
            self.close(pair);
        }
        if !self.connections.contains_key(&pair) {
            let late = !segment.syn && self.is_late(pair, segment.time_ns);
            if late || segment.rst || (segment.payload_len == 0 && !segment.syn && segment.fin) {
                return None;
            }
            if self.connections.len() >= CONNECTIONS_MAX && !self.evict() {
                self.skipped += u64::from(opens);
                return None;
            }
            let (initiator, target) = self.roles(segment);
            let connection = Connection::new(initiator, target, segment.time_ns, origin_ns);
            self.connections.insert(pair, connection);
        }
        self.handle(pair, segment);
        Some(pair)
    }

    fn handle(&mut self, pair: (SocketAddr, SocketAddr), segment: &Segment<'_>) {
        let Some(connection) = self.connections.get_mut(&pair) else { return };
        self.waiting_bytes = self.waiting_bytes.saturating_sub(connection.waiting_bytes());
        connection.handle_segment(segment);
        if self.waiting_bytes + connection.waiting_bytes() > WAITING_BYTES_MAX {
            connection.shed();
            self.waits_cut += 1;
        }
        self.waiting_bytes += connection.waiting_bytes();
        if connection.is_over() {
            self.over = Some(pair);
        }
    }

    fn is_late(&self, pair: (SocketAddr, SocketAddr), now: u64) -> bool {
        let near = |at: u64| now.saturating_sub(at) <= LATE_NS_MAX;
        self.ended.iter().any(|&(ended, at)| ended == pair && near(at))
    }

    /// What a connection has gathered is needed no longer, only its report.
    fn end(&mut self, pair: (SocketAddr, SocketAddr)) {
        let at = self.connections.get(&pair).map_or(0, |connection| connection.last_ns);
        self.close(pair);
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back((pair, at));
    }

    /// Who is the initiator: who opens; else the port tells; else who has the higher port.
    fn roles(&self, segment: &Segment<'_>) -> (SocketAddr, SocketAddr) {
        let (src, dst) = (segment.src, segment.dst);
        let is_target = |end: SocketAddr| {
            self.port.map_or(ISCSI_PORTS.contains(&end.port()), |port| end.port() == port)
        };
        let src_is_target = if segment.syn {
            segment.ack.is_some()
        } else if is_target(src) != is_target(dst) {
            is_target(src)
        } else {
            src.port() < dst.port()
        };
        if src_is_target { (dst, src) } else { (src, dst) }
    }

    /// Makes room: the connection that was quiet for longest ends.
    fn evict(&mut self) -> bool {
        let oldest = self
            .connections
            .iter()
            .min_by_key(|(pair, connection)| (connection.pdus > 0, connection.last_ns, **pair));
        let Some(pair) = oldest.map(|(pair, _)| *pair) else { return false };
        self.close(pair);
        true
    }

    fn close(&mut self, pair: (SocketAddr, SocketAddr)) {
        let Some(connection) = self.connections.remove(&pair) else { return };
        self.waiting_bytes = self.waiting_bytes.saturating_sub(connection.waiting_bytes());
        if connection.pdus == 0 {
            self.not_iscsi += 1;
        } else if self.done.len() >= REPORTS_MAX {
            self.skipped += 1;
        } else {
            let report = connection.report();
            self.records += report.commands.len();
            self.done.push(report);
            while self.records > RECORDS_MAX {
                self.thin_records();
            }
        }
    }

    /// Keeps every second of the single commands, also of connections that ended long ago.
    fn thin_records(&mut self) {
        for report in &mut self.done {
            let mut number = 0;
            report.commands.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            report.commands.shrink_to_fit();
        }
        self.records = self.done.iter().map(|report| report.commands.len()).sum();
    }

    /// The end of the capture.
    pub fn report(mut self, capture: CaptureSummary) -> Report {
        let mut pairs: Vec<_> = self.connections.keys().copied().collect();
        pairs.sort_unstable();
        for pair in pairs {
            self.close(pair);
        }
        let mut connections = self.done;
        connections.sort_by_key(|one| std::cmp::Reverse(one.command_bytes()));
        let verdict = from_packets::decide(&connections);
        Report {
            capture,
            connections,
            not_iscsi: self.not_iscsi,
            connections_skipped: self.skipped,
            waits_cut: self.waits_cut,
            verdict,
        }
    }
}

/// Analyses a capture file.
///
/// # Errors
/// [`CaptureError`] if it is none; damage within it is told in the report.
pub fn analyse(input: impl Read + Send, port: Option<u16>) -> Result<Report, CaptureError> {
    let mut analysis = Analysis::new(port);
    let summary = read_capture(input, |segment| analysis.handle_segment(segment))?;
    Ok(analysis.report(summary))
}

fn ordered(one: SocketAddr, other: SocketAddr) -> (SocketAddr, SocketAddr) {
    if one <= other { (one, other) } else { (other, one) }
}
