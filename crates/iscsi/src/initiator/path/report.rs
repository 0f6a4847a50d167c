//! What the path controller tells about itself: the number of connections over time with reasons,
//! and each connection's rate and TCP state. Values only.

use std::time::Duration;

use iscsi_proto::ids::Cid;
use iscsi_proto::time::Instant;
use path::{Bottleneck, Sample};

/// Changes remembered. A policy that has settled makes a few an hour; the oldest go first.
const CHANGES_MAX: usize = 256;

/// The path as of the last sample.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PathReport {
    /// When the last sample was taken: time since the disk was opened.
    pub sampled_at: Duration,
    /// What all samples together counted: bytes carried both ways, with iSCSI's headers. What a
    /// connection carried before its first sample and after its last one is not in it.
    pub carried_bytes: f64,
    /// The policy's name.
    pub policy: &'static str,
    /// What it is doing (`path::Phase`), or `down` without a session.
    pub phase: &'static str,
    /// Why, as one sentence.
    pub why: String,
    /// Connections that there should be.
    pub connections_wanted: u32,
    /// Connections that take commands.
    pub connections_open: u32,
    /// Connections that are being opened.
    pub connections_opening: u32,
    /// Why there cannot be more, if that was tried.
    pub ceiling: Option<String>,
    /// Bytes carried by all connections in the last interval, in bytes a second, both ways, with
    /// iSCSI's headers.
    pub bytes_per_s: f64,
    /// What limits the typical connection.
    pub limit: Bottleneck,
    /// The most we take, in bytes a second, if that is limited.
    pub max_rate: Option<f64>,
    /// The pace that is kept to, in bytes a second: what the line was found to carry. None while
    /// the path fills, where nothing is held back, and where so little is asked for at a time that
    /// nothing shows of the line.
    pub line_rate: Option<f64>,
    /// What became of what was remembered of this path: `unvalidated`, `validating`, `safe
    /// retreat`, `confirmed` or `given up`; none if nothing was.
    pub memory: Option<&'static str>,
    /// Each connection.
    pub connections: Vec<PathConnection>,
    /// How the number came about, oldest first.
    pub changes: Vec<PathChange>,
}

/// A connection as of the last sample.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PathConnection {
    /// Its number since the disk was opened.
    pub id: u32,
    /// The session it belongs to, counted from 0.
    pub session: usize,
    /// Connection ID.
    pub cid: Cid,
    /// Time since login.
    pub age: Duration,
    /// Bytes a second, both ways.
    pub bytes_per_s: f64,
    /// Smoothed round trip.
    pub rtt: Duration,
    /// Shortest round trip.
    pub min_rtt: Option<Duration>,
    /// Congestion window of what we send, in bytes.
    pub congestion_window: u64,
    /// Sent and not acknowledged, in bytes.
    pub unacked: u64,
    /// Segments that we sent again since the connection was opened.
    pub retransmits: u64,
    /// Of these, in the last interval.
    pub retransmits_new: u64,
    /// Congestion control of what we send.
    pub congestion_control: String,
    /// SO_SNDBUF as the kernel counts it.
    pub send_buffer: Option<usize>,
    /// SO_RCVBUF as the kernel counts it.
    pub receive_buffer: Option<usize>,
    /// Unfinished commands.
    pub in_flight: u32,
    /// Their payload in bytes.
    pub outstanding_bytes: u64,
    /// What limits it.
    pub limit: Bottleneck,
}

/// The number of connections was changed, or has changed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PathChange {
    /// Time since the disk was opened.
    pub at: Duration,
    /// Connections that there should be from here on.
    pub wanted: u32,
    /// Connections that were open.
    pub open: u32,
    /// What the old number achieved in the last interval, in bytes a second.
    pub bytes_per_s: f64,
    /// Why.
    pub why: String,
}

impl PathReport {
    /// Notes what is wanted, with the reason that it gives now, if that is a change.
    pub(super) fn note(&mut self, sample: &Sample, now: Instant) {
        let (wanted, open) = (self.connections_wanted, sample.connections_open);
        let why = match self.changes.last() {
            Some(last) if (last.wanted, last.open) == (wanted, open) => return,
            Some(last) if last.wanted == wanted && open > last.open => "connections were opened",
            Some(last) if last.wanted == wanted && open < last.open && open >= wanted => {
                "connections were closed"
            }
            Some(last) if last.wanted == wanted && open < last.open => "connections were lost",
            _ => self.why.as_str(),
        };
        if let Some(last) = self.changes.last_mut().filter(|last| last.why == why) {
            // One line for all that come and go for one reason.
            if last.wanted == wanted {
                (last.open, last.bytes_per_s) = (open, sample.bytes_per_s);
                return;
            }
        }
        let (at, bytes_per_s, why) = (now.0, sample.bytes_per_s, why.to_owned());
        if self.changes.len() == CHANGES_MAX {
            self.changes.remove(0);
        }
        self.changes.push(PathChange { at, wanted, open, bytes_per_s, why });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_kept_each_with_its_reason() {
        let mut report = PathReport::default();
        let note = |report: &mut PathReport, open, wanted, why: &str| {
            let sample = Sample { connections_open: open, ..Sample::default() };
            (report.connections_wanted, report.why) = (wanted, why.to_owned());
            report.note(&sample, Instant::default());
        };
        note(&mut report, 4, 4, "begun");
        note(&mut report, 4, 4, "measuring");
        note(&mut report, 4, 16, "it helped");
        note(&mut report, 9, 16, "measuring");
        note(&mut report, 16, 16, "measuring");
        note(&mut report, 15, 16, "measuring");
        note(&mut report, 15, 8, "fewer do");
        note(&mut report, 8, 8, "measuring");
        let whys: Vec<&str> = report.changes.iter().map(|c| c.why.as_str()).collect();
        let lost = "connections were lost";
        let (opened, closed) = ("connections were opened", "connections were closed");
        assert_eq!(whys, ["begun", "it helped", opened, lost, "fewer do", closed]);
        for n in 0..1000 {
            note(&mut report, n, n, "more");
        }
        assert_eq!(report.changes.len(), CHANGES_MAX);
    }
}
