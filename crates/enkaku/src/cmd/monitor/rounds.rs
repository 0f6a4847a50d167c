//! The monitor's heartbeat: samples at the pace of the round trips, a list of rows per interval.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tcpmon::row::Row;
use tcpmon::verdict::from_samples::Known;
use tcpmon::watch::{Selection, Watcher, send_buffer_max_bytes};

use super::events::{EventsState, LiveEvents};
use super::select::usage;

/// New connections are looked for at least this often.
const LOOK_PERIOD: Duration = Duration::from_millis(500);

/// Whoever draws the samples wants at least 100 of them in a second.
const SERIES_PACE_MAX: Duration = Duration::from_millis(5);

/// One interval.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Round {
    /// Since the monitor began, at the end of the interval.
    pub(super) at_s: f64,
    /// Length of the interval.
    pub(super) seconds: f64,
    pub(super) sent_bytes_per_s: f64,
    pub(super) received_bytes_per_s: f64,
    /// The busiest first.
    pub(super) connections: Vec<Row>,
    /// Connections that were too many to be looked at.
    pub(super) left_out: usize,
    /// What cannot be seen, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
    /// What is seen of events, where they are watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) events: Option<EventsState>,
}

/// The latest interval, for whoever asks.
pub(super) type Published = Arc<Mutex<Round>>;

/// Makes rounds.
pub(super) struct Rounds {
    watcher: Watcher,
    interval: Duration,
    begin: Instant,
    looked: Instant,
    round_began: Instant,
    known: Known,
    pub(super) publish: Option<Published>,
    /// Rows carry their samples.
    pub(super) series: bool,
    pub(super) events: Option<LiveEvents>,
}

impl Rounds {
    pub(super) fn new(selection: Selection, interval: Duration) -> anyhow::Result<Self> {
        let watcher = Watcher::new(selection).map_err(usage)?;
        let now = Instant::now();
        Ok(Self {
            watcher,
            interval,
            begin: now,
            looked: now,
            round_began: now,
            known: Known { send_buffer_max_bytes: send_buffer_max_bytes(), ..Known::default() },
            publish: None,
            series: false,
            events: None,
        })
    }

    /// Watches events too. With `each`, every event waits for being printed.
    pub(super) fn watch_events(&mut self, each: bool) -> anyhow::Result<()> {
        let filter = &self.watcher.selection().filter;
        self.events = Some(LiveEvents::open(filter, self.begin, each)?);
        Ok(())
    }

    /// How long the caller may wait before the next [`Self::tick`].
    pub(super) fn wait(&self) -> Duration {
        let left = self.interval.saturating_sub(self.round_began.elapsed());
        let pace = self.watcher.pace();
        let pace = if self.series { pace.min(SERIES_PACE_MAX) } else { pace };
        pace.min(left).max(Duration::from_millis(1))
    }

    /// Samples; the round when its interval is over.
    pub(super) fn tick(&mut self) -> anyhow::Result<Option<Round>> {
        if self.looked.elapsed() >= LOOK_PERIOD.min(self.interval) {
            self.looked = Instant::now();
            self.watcher.look().map_err(usage)?;
        }
        self.watcher.sample()?;
        if let Some(events) = &mut self.events {
            events.take(&self.watcher);
        }
        let elapsed = self.round_began.elapsed();
        if elapsed < self.interval {
            return Ok(None);
        }
        self.round_began = Instant::now();
        let round = self.round(elapsed);
        if let Some(published) = &self.publish {
            *published.lock().unwrap_or_else(PoisonError::into_inner) = round.clone();
        }
        Ok(Some(round))
    }

    fn round(&mut self, elapsed: Duration) -> Round {
        let harvest = self.watcher.harvest();
        let row = |watched| {
            let process = watched_owner(&self.watcher, watched);
            let row = Row::of(watched, process, &self.known)?;
            let epoch_us = self.watcher.epoch_us();
            Some(if self.series { row.with_series(watched, epoch_us) } else { row })
        };
        let mut connections: Vec<Row> = harvest.iter().filter_map(row).collect();
        connections.sort_by(|a, b| {
            b.bytes_per_s().total_cmp(&a.bytes_per_s()).then(a.connection.cmp(&b.connection))
        });
        if let Some(events) = &mut self.events {
            events.count(&mut connections);
        }
        Round {
            at_s: self.begin.elapsed().as_secs_f64(),
            seconds: elapsed.as_secs_f64(),
            sent_bytes_per_s: connections.iter().map(|row| row.sent_bytes_per_s).sum(),
            received_bytes_per_s: connections.iter().map(|row| row.received_bytes_per_s).sum(),
            connections,
            left_out: self.watcher.left_out,
            note: self.watcher.hidden(),
            events: self.events.as_ref().map(LiveEvents::state),
        }
    }
}

fn watched_owner(
    watcher: &Watcher,
    watched: &tcpmon::verdict::from_samples::Watched,
) -> Option<tcpmon::diag::Owner> {
    watched.samples.last().and_then(|sample| watcher.owner(sample)).cloned()
}
