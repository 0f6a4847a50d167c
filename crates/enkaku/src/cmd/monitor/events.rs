//! `--events`: TCP's events beside the samples, counted by connection and kept until they are
//! printed.

use std::collections::VecDeque;
use std::time::Instant;

use serde::Serialize;
use tcpmon::diag::Filter;
use tcpmon::events::{
    Event, EventFilter, Events, Kind, Source, Tally, describe, monotonic_ns, seen,
};
use tcpmon::row::Row;
use tcpmon::sample::Connection;
use tcpmon::watch::Watcher;

/// Events that wait to be printed; nobody reads more lines between two looks.
const PENDING_MAX: usize = 20_000;

/// The events of the chosen connections.
pub(crate) struct LiveEvents {
    events: Events,
    tally: Tally,
    /// On the clock of events.
    begin_ns: u64,
    pending: VecDeque<Event>,
    keep_pending: bool,
    not_printed: u64,
}

/// What is seen of events, in JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EventsState {
    pub(crate) sources: Vec<Source>,
    /// Since the beginning: events that nobody fetched or printed in time.
    pub(crate) lost: u64,
}

/// An event as a line of JSON.
#[derive(Serialize)]
struct Line<'a> {
    /// Since the monitor began.
    at_s: f64,
    #[serde(flatten)]
    event: &'a Event,
}

impl LiveEvents {
    /// Loads the programs. `begin` is the origin of times; with `keep_pending` each event waits for
    /// [`Self::lines`].
    pub(crate) fn open(
        filter: &Filter,
        begin: Instant,
        keep_pending: bool,
    ) -> anyhow::Result<Self> {
        let events = Events::open(&EventFilter { port: filter.port })?;
        let since = u64::try_from(begin.elapsed().as_nanos()).unwrap_or_default();
        Ok(Self {
            events,
            tally: Tally::default(),
            begin_ns: monotonic_ns().saturating_sub(since),
            pending: VecDeque::new(),
            keep_pending,
            not_printed: 0,
        })
    }

    /// Says on stderr what is seen and what is not.
    pub(crate) fn announce(&self) {
        for line in describe(self.events.sources()) {
            eprintln!("enkaku: {line}");
        }
    }

    /// Takes what has happened since the last call.
    pub(crate) fn take(&mut self, watcher: &Watcher) {
        let selection = watcher.selection();
        let Self { events, tally, pending, keep_pending, not_printed, .. } = self;
        events.drain(|event, _| {
            let connection = &event.connection;
            let of_process = selection.pid.is_none() || watcher.watches(connection);
            if !of_process || !selection.filter.wants(connection) {
                return;
            }
            tally.add(&event);
            if !*keep_pending {
                return;
            }
            if pending.len() < PENDING_MAX {
                pending.push_back(event);
            } else {
                *not_printed += 1;
            }
        });
    }

    /// The events that wait, a line of JSON each.
    pub(crate) fn lines(&mut self) -> serde_json::Result<String> {
        let mut lines = String::new();
        for event in self.pending.drain(..) {
            #[allow(clippy::cast_precision_loss, reason = "nanoseconds of a run")]
            let at_s = event.at_ns.saturating_sub(self.begin_ns) as f64 / 1e9;
            lines += &serde_json::to_string(&Line { at_s, event: &event })?;
            lines.push('\n');
        }
        Ok(lines)
    }

    /// Puts the interval's counts into the rows, and forgets connections that are gone.
    pub(crate) fn count(&mut self, rows: &mut [Row]) {
        let seen = self.seen();
        for row in rows.iter_mut() {
            row.events = Some(self.tally.take(row.connection.cookie).named(&seen));
        }
        self.tally.retain(|cookie| rows.iter().any(|row| row.connection.cookie == cookie));
    }

    /// The kinds that can be seen.
    pub(crate) fn seen(&self) -> Vec<Kind> {
        seen(self.events.sources())
    }

    /// Everything that these connections had.
    pub(crate) fn total(
        &self,
        connections: impl Iterator<Item = Connection>,
    ) -> tcpmon::events::Counts {
        let mut total = tcpmon::events::Counts::default();
        for connection in connections {
            total.add(&self.tally.of(connection.cookie));
        }
        total
    }

    /// What is seen, and what was lost.
    pub(crate) fn state(&self) -> EventsState {
        EventsState {
            sources: self.events.sources().to_vec(),
            lost: u64::from(self.events.lost()) + self.not_printed,
        }
    }
}

/// The counts of a row as text, without those that are 0: `3 retransmit, 12 sack`.
pub(super) fn words(row: &Row) -> Option<String> {
    let events = row.events.as_ref()?;
    let said: Vec<String> = events
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    (!said.is_empty()).then(|| said.join(", "))
}
