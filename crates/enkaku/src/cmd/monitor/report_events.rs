//! The events of a recording: counted by connection, and drawn over the packets' time.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use tcpmon::capture::{Segment, read_capture};
use tcpmon::events::{Counts, Event, KINDS, Kind, Recorded, Tally, read_events};
use tcpmon::model::Report;
use tcpmon::sample::Connection;

use super::units::{bits, bytes, time};
use crate::cmd::live::bar;
use crate::cmd::{Usage, say};

/// Single events that JSON lists; of more, the first.
const LISTED_MAX: usize = 20_000;
/// Steps of the time axis while a file is read; when they are used up, each becomes twice as long.
const STEPS: usize = 2048;
const STEP_NS: u64 = 1_000_000;
/// Columns of the picture.
const COLUMNS: usize = 64;

/// What a recording says of events, as `report --json` prints it.
#[derive(Serialize)]
pub(super) struct EventsReport {
    /// Events in the file, and events that were lost while it was written.
    events_recorded: u64,
    events_lost: u32,
    /// By connection, as the recording host sees it.
    event_counts: Vec<ConnectionCounts>,
    /// Single events, at most 20,000.
    events: Vec<Listed>,
    #[serde(skip)]
    axis: Axis,
}

#[derive(Serialize)]
struct ConnectionCounts {
    #[serde(flatten)]
    connection: Connection,
    counts: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct Listed {
    /// Since the first packet, as the times of commands.
    at_s: f64,
    #[serde(flatten)]
    event: Event,
}

/// Reads them; `None` if the file has none. Packets are read once more, for the axis.
pub(super) fn read(path: &Path, report: &Report) -> anyhow::Result<Option<EventsReport>> {
    if path == Path::new("-") {
        return Ok(None); // a pipe can be read once only
    }
    let open = || File::open(path).with_context(|| Usage(format!("capture {}", path.display())));
    let nothing = read_events(open()?, |_| {}).unwrap_or_default();
    if !nothing.recorded {
        return Ok(None);
    }
    let mut axis = Axis::default();
    let targets: Vec<_> = report.connections.iter().map(|connection| connection.target).collect();
    let packets = read_capture(open()?, |segment: &Segment<'_>| {
        let row = if targets.contains(&segment.dst) { Row::ToTarget } else { Row::ToInitiator };
        axis.add(segment.time_ns, row, u64::from(segment.payload_len));
    });
    packets.with_context(|| Usage(format!("capture {}", path.display())))?;
    let (mut tally, mut listed) = (Tally::default(), Vec::new());
    let mut connections: BTreeMap<u64, Connection> = BTreeMap::new();
    let origin_ns = axis.origin_ns.unwrap_or_default();
    let recorded = read_events(open()?, |event| {
        tally.add(&event);
        connections.insert(event.connection.cookie, event.connection);
        axis.add_event(&event);
        if listed.len() < LISTED_MAX {
            let at_s = event.at_ns.saturating_sub(origin_ns) as f64 / 1e9;
            listed.push(Listed { at_s, event });
        }
    });
    let Recorded { events, lost, .. } = recorded.context("reading its events")?;
    let event_counts = connections.into_values().map(|connection| {
        let counts = tally.of(connection.cookie);
        ConnectionCounts { connection, counts: without_nothing(&counts) }
    });
    Ok(Some(EventsReport {
        events_recorded: events,
        events_lost: lost,
        event_counts: event_counts.collect(),
        events: listed,
        axis,
    }))
}

/// What was not seen may have been not permitted, so a 0 would say too much.
fn without_nothing(counts: &Counts) -> BTreeMap<&'static str, u64> {
    let mut named = counts.named(&KINDS);
    named.retain(|_, count| *count > 0);
    named
}

impl EventsReport {
    /// For people: counts by connection, then the picture.
    pub(super) fn print(&self) -> anyhow::Result<()> {
        say(format_args!("\n{} events, {} lost", self.events_recorded, self.events_lost))?;
        for one in &self.event_counts {
            let counts: Vec<String> =
                one.counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
            say(format_args!("  {}: {}", one.connection, counts.join(", ")))?;
        }
        for line in self.axis.picture() {
            say(line)?;
        }
        Ok(())
    }
}

/// A line of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    ToTarget,
    ToInitiator,
    Window,
    RoundTrip,
    Event(Kind),
}

impl Row {
    /// Of two values in one column: the sum of what is counted, the larger of what is a state.
    fn join(self, one: u64, other: u64) -> u64 {
        match self {
            Self::Window | Self::RoundTrip => one.max(other),
            _ => one.saturating_add(other),
        }
    }
}

/// Values over time, in steps that grow with the file: constant memory.
#[derive(Default)]
struct Axis {
    origin_ns: Option<u64>,
    /// Length of a step is `STEP_NS << doubled`.
    doubled: u32,
    rows: BTreeMap<Row, Vec<u64>>,
    last_ns: u64,
}

impl Axis {
    fn add(&mut self, at_ns: u64, row: Row, value: u64) {
        let since_ns = at_ns.saturating_sub(*self.origin_ns.get_or_insert(at_ns));
        self.last_ns = self.last_ns.max(since_ns);
        while since_ns / (STEP_NS << self.doubled) >= STEPS as u64 {
            self.halve();
        }
        let step = (since_ns / (STEP_NS << self.doubled)) as usize;
        let values = self.rows.entry(row).or_default();
        if values.len() <= step {
            values.resize(step + 1, 0);
        }
        values[step] = row.join(values[step], value);
    }

    fn add_event(&mut self, event: &Event) {
        if event.event == Kind::Probe {
            let window = u64::from(event.cwnd_segments) * u64::from(event.mss_bytes);
            self.add(event.at_ns, Row::Window, window);
            self.add(event.at_ns, Row::RoundTrip, event.rtt_us.into());
        } else {
            self.add(event.at_ns, Row::Event(event.event), 1);
        }
    }

    fn halve(&mut self) {
        self.doubled += 1;
        for (row, values) in &mut self.rows {
            let joined = values.chunks(2).map(|pair| match pair {
                [one, other] => row.join(*one, *other),
                rest => rest.iter().sum(),
            });
            *values = joined.collect();
        }
    }

    /// A heading and a line for each row, all over the same time.
    fn picture(&self) -> Vec<String> {
        let step_ns = STEP_NS << self.doubled;
        let steps = (self.last_ns / step_ns + 1) as usize;
        let per_column = steps.div_ceil(COLUMNS);
        let column_s = (per_column as u64 * step_ns) as f64 / 1e9;
        let mut lines = vec![format!(
            "time axis: 0 to {:.3} s, {:.0} ms a column",
            self.last_ns as f64 / 1e9,
            column_s * 1e3
        )];
        for (row, values) in &self.rows {
            let columns: Vec<u64> = values
                .chunks(per_column)
                .map(|chunk| chunk.iter().fold(0, |sum, value| row.join(sum, *value)))
                .collect();
            let most = columns.iter().copied().max().unwrap_or(0);
            let total: u64 = columns.iter().sum();
            let (name, says) = match row {
                Row::ToTarget => ("to the target", max_rate(most, column_s)),
                Row::ToInitiator => ("to the initiator", max_rate(most, column_s)),
                Row::Window => ("cwnd", format!("max {}B", bytes(most))),
                Row::RoundTrip => {
                    ("RTT", format!("max {}", time(u32::try_from(most).unwrap_or(u32::MAX))))
                }
                Row::Event(kind) => (kind.as_str(), format!("{total}, max {most} a column")),
            };
            let bars: String = columns.iter().map(|value| bar(*value, most)).collect();
            lines.push(format!("  {name:<17}|{bars:<COLUMNS$}| {says}"));
        }
        lines
    }
}

fn max_rate(most: u64, column_s: f64) -> String {
    format!("max {}bit/s", bits(most as f64 / column_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_and_events_are_drawn_over_the_same_time() {
        let mut axis = Axis::default();
        for ms in 0..640_u64 {
            axis.add(7_000_000_000 + ms * 1_000_000, Row::ToTarget, 1000);
        }
        axis.add(7_000_000_000 + 320_000_000, Row::Event(Kind::Retransmit), 1);
        let lines = axis.picture();
        assert_eq!(lines[0], "time axis: 0 to 0.639 s, 10 ms a column");
        assert!(lines[1].contains("to the target") && lines[1].contains("8.00Mbit/s"), "{lines:?}");
        let place = |line: &str, wanted: char| {
            let (_, bars) = line.split_once('|').unwrap();
            bars.chars().position(|bar| bar == wanted).unwrap()
        };
        assert_eq!(place(&lines[1], '█'), 0);
        assert_eq!(place(&lines[2], '█'), 32);
    }

    #[test]
    fn an_hour_takes_no_more_memory_than_a_second_and_loses_nothing() {
        let mut axis = Axis::default();
        for s in 0..3600_u64 {
            axis.add(s * 1_000_000_000, Row::ToTarget, 10);
            axis.add(s * 1_000_000_000, Row::RoundTrip, s);
        }
        assert!(axis.rows.values().all(|values| values.len() <= STEPS));
        assert_eq!(axis.rows[&Row::ToTarget].iter().sum::<u64>(), 36_000);
        assert_eq!(axis.rows[&Row::RoundTrip].iter().copied().max(), Some(3599));
        let lines = axis.picture();
        assert!(lines.iter().all(|line| line.chars().count() < 120), "{lines:?}");
        assert!(lines[1].matches(['█', '▇']).count() >= 55, "{lines:?}");
    }
}
