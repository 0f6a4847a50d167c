//! What the path controller tells, as JSON for `bench`, `copy` and `attach`, and as lines for a
//! terminal. Only translates.

use std::fmt;
use std::time::Duration;

use iscsi::initiator::{PathChange, PathConnection, PathReport};
use serde::Serialize;

/// A disk's path: the object `path` of the reports (docs/connections.md).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Path {
    policy: &'static str,
    phase: &'static str,
    why: String,
    connections_wanted: u32,
    connections_open: u32,
    connections_opening: u32,
    /// Why there are no more, or null.
    ceiling: Option<String>,
    bytes_per_s: f64,
    limit: &'static str,
    max_bytes_per_s: Option<f64>,
    line_bytes_per_s: Option<f64>,
    /// What became of what was remembered, or null.
    memory: Option<&'static str>,
    connections: Vec<Connection>,
    changes: Vec<Change>,
}

#[derive(Clone, Debug, Serialize)]
struct Connection {
    id: u32,
    session: usize,
    cid: u16,
    age_s: f64,
    bytes_per_s: f64,
    rtt_us: f64,
    min_rtt_us: Option<f64>,
    cwnd_bytes: u64,
    unacked_bytes: u64,
    retransmits: u64,
    congestion_control: String,
    send_buffer_bytes: Option<usize>,
    receive_buffer_bytes: Option<usize>,
    commands: u32,
    outstanding_bytes: u64,
    limit: &'static str,
}

#[derive(Clone, Debug, Serialize)]
struct Change {
    t_s: f64,
    wanted: u32,
    open: u32,
    bytes_per_s: f64,
    why: String,
}

impl Path {
    pub(crate) fn of(report: &PathReport) -> Self {
        Self {
            policy: report.policy,
            phase: report.phase,
            why: report.why.clone(),
            connections_wanted: report.connections_wanted,
            connections_open: report.connections_open,
            connections_opening: report.connections_opening,
            ceiling: report.ceiling.clone(),
            bytes_per_s: report.bytes_per_s,
            limit: report.limit.as_str(),
            max_bytes_per_s: report.max_rate,
            line_bytes_per_s: report.line_rate,
            memory: report.memory,
            connections: report.connections.iter().map(connection).collect(),
            changes: report.changes.iter().map(change).collect(),
        }
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn connection(report: &PathConnection) -> Connection {
    Connection {
        id: report.id,
        session: report.session,
        cid: report.cid.0,
        age_s: report.age.as_secs_f64(),
        bytes_per_s: report.bytes_per_s,
        rtt_us: micros(report.rtt),
        min_rtt_us: report.min_rtt.map(micros),
        cwnd_bytes: report.congestion_window,
        unacked_bytes: report.unacked,
        retransmits: report.retransmits,
        congestion_control: report.congestion_control.clone(),
        send_buffer_bytes: report.send_buffer,
        receive_buffer_bytes: report.receive_buffer,
        commands: report.in_flight,
        outstanding_bytes: report.outstanding_bytes,
        limit: report.limit.as_str(),
    }
}

fn change(report: &PathChange) -> Change {
    Change {
        t_s: report.at.as_secs_f64(),
        wanted: report.wanted,
        open: report.open,
        bytes_per_s: report.bytes_per_s,
        why: report.why.clone(),
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, why, limit, .. } = self;
        write!(f, "path: {policy}: {why}; limited by {}", limit.replace('_', " "))?;
        if let Some(memory) = self.memory {
            write!(f, "; memory of this path: {memory}")?;
        }
        if let Some(ceiling) = &self.ceiling {
            write!(f, "; no more connections: {ceiling}")?;
        }
        for Change { t_s, wanted, open, bytes_per_s, why } in &self.changes {
            let mb_per_s = bytes_per_s / 1e6;
            write!(f, "\n{t_s:8.2} s {open:3} open, {wanted:3} wanted {mb_per_s:8.1} MB/s: {why}")?;
        }
        Ok(())
    }
}
