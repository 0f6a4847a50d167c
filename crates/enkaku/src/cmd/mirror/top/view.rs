//! What is on the screen: the mirrors as they were seen last, and the past of each leg. Pure: time
//! is an argument.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use daemon::mirror::report::{LegReport, Report};

use crate::cmd::live::push;

/// What was found of a mirror.
pub(super) enum Seen {
    Running(Box<Report>),
    /// Nobody answers at its socket.
    Stopped(String),
    /// Somebody does not answer as he should: its name, and how.
    Silent(String, String),
}

impl Seen {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Running(report) => &report.name,
            Self::Stopped(name) | Self::Silent(name, _) => name,
        }
    }

    pub(super) fn report(&self) -> Option<&Report> {
        match self {
            Self::Running(report) => Some(report),
            _ => None,
        }
    }
}

/// The past of a leg, the latest last.
#[derive(Default)]
pub(super) struct Curves {
    /// Sent to the leg, in bytes a second.
    pub(super) sent: VecDeque<u64>,
    /// Written by the mirror's user, in bytes a second.
    pub(super) written: VecDeque<u64>,
    pub(super) lag_ms: VecDeque<u64>,
    /// On its way or to be copied.
    pub(super) behind_bytes: VecDeque<u64>,
    last: Option<Counters>,
}

/// The counters that rates are made of, and the process that they are of.
#[derive(Clone, Copy)]
struct Counters {
    at: Instant,
    pid: u32,
    sent: u64,
    written: u64,
}

impl Curves {
    fn note(&mut self, report: &Report, leg: &LegReport, at: Instant) {
        let now =
            Counters { at, pid: report.pid, sent: leg.sent_bytes, written: report.written_bytes };
        // A process that was started anew counts from nothing.
        let before = self.last.replace(now).filter(|before| before.pid == now.pid);
        if let Some(before) = before {
            let seconds = at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
            let rate = |now: u64, before: u64| (now.saturating_sub(before) as f64 / seconds) as u64;
            push(&mut self.sent, rate(now.sent, before.sent));
            push(&mut self.written, rate(now.written, before.written));
        }
        push(&mut self.lag_ms, (leg.lag_s * 1000.0) as u64);
        push(&mut self.behind_bytes, leg.lag_bytes.saturating_add(leg.dirty_bytes));
    }

    /// Sent to the leg in the last interval, in bytes a second, once known.
    pub(super) fn rate(&self) -> Option<u64> {
        self.sent.back().copied()
    }
}

/// A leg, by its mirror's name and its number.
pub(super) type Place = (String, usize);

/// All of it.
pub(super) struct View {
    pub(super) seen: Vec<Seen>,
    pub(super) curves: HashMap<Place, Curves>,
    chosen: Option<Place>,
    pub(super) looks: u64,
}

impl View {
    pub(super) fn new() -> Self {
        Self { seen: Vec::new(), curves: HashMap::new(), chosen: None, looks: 0 }
    }

    /// Takes what was seen at a moment.
    pub(super) fn show(&mut self, seen: Vec<Seen>, at: Instant) {
        self.looks += 1;
        for report in seen.iter().filter_map(Seen::report) {
            for leg in &report.legs {
                let place = (report.name.clone(), leg.number);
                self.curves.entry(place).or_default().note(report, leg, at);
            }
        }
        // Of a mirror that is gone, the past goes as well; one that is silent may come back.
        self.curves.retain(|(name, _), _| seen.iter().any(|seen| seen.name() == name));
        self.seen = seen;
    }

    /// Every leg, in the order of the screen.
    pub(super) fn legs(&self) -> impl Iterator<Item = (&Report, &LegReport)> {
        let reports = self.seen.iter().filter_map(Seen::report);
        reports.flat_map(|report| report.legs.iter().map(move |leg| (report, leg)))
    }

    pub(super) fn curves_of(&self, report: &Report, leg: &LegReport) -> Option<&Curves> {
        self.curves.get(&(report.name.clone(), leg.number))
    }

    /// The leg that is chosen, else the first.
    pub(super) fn chosen(&self) -> Option<(&Report, &LegReport)> {
        let is = |(report, leg): &(&Report, &LegReport)| {
            self.chosen.as_ref().is_some_and(|(name, n)| *name == report.name && *n == leg.number)
        };
        self.legs().find(is).or_else(|| self.legs().next())
    }

    /// Chooses the next leg, or the one before.
    pub(super) fn step(&mut self, down: bool) {
        let places: Vec<Place> =
            self.legs().map(|(report, leg)| (report.name.clone(), leg.number)).collect();
        let chosen = self.chosen().map(|(report, leg)| (report.name.clone(), leg.number));
        let at = places.iter().position(|place| Some(place) == chosen.as_ref()).unwrap_or(0);
        let at =
            if down { (at + 1).min(places.len().saturating_sub(1)) } else { at.saturating_sub(1) };
        self.chosen = places.into_iter().nth(at);
    }
}
