//! The live view's loop: samples, keys, redrawing, and a terminal that is left as it was found,
//! also after a panic (ratatui's hook) and at SIGTERM.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event;
use tcpmon::row::Row;
use tcpmon::sample::Connection;

use super::draw;
use super::rounds::{Round, Rounds};
use super::sessions::{Names, Session};
use crate::cmd::live::{self, KEY_WAIT, Key};

/// What is on the screen.
pub(super) struct View {
    pub(super) about: String,
    pub(super) round: Round,
    pub(super) selected: usize,
    pub(super) curves: HashMap<Connection, Curves>,
    pub(super) names: Names,
    /// Of the round's connections, in their order.
    pub(super) sessions: Vec<Session>,
}

/// The past of a connection, the latest last.
#[derive(Default)]
pub(super) struct Curves {
    pub(super) bits_per_s: VecDeque<u64>,
    pub(super) in_flight_bytes: VecDeque<u64>,
    pub(super) rtt_us: VecDeque<u64>,
    pub(super) retransmitted: VecDeque<u64>,
}

impl Curves {
    fn push(&mut self, row: &Row) {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate is no less than 0 and far below 2^63"
        )]
        let bits = (row.bytes_per_s() * 8.0) as u64;
        let retransmitted = u64::from(row.retransmitted_segments);
        for (curve, value) in [
            (&mut self.bits_per_s, bits),
            (&mut self.in_flight_bytes, row.in_flight_bytes),
            (&mut self.rtt_us, row.rtt_us.into()),
            (&mut self.retransmitted, retransmitted),
        ] {
            live::push(curve, value);
        }
    }
}

impl View {
    pub(super) fn new(about: &str) -> Self {
        Self {
            about: about.to_owned(),
            round: Round::default(),
            selected: 0,
            curves: HashMap::new(),
            names: Names::default(),
            sessions: Vec::new(),
        }
    }

    pub(super) fn show(&mut self, mut round: Round) {
        // Rows stay where they are, so that an eye can follow them; new ones come below, those of a
        // session that is there with it.
        let chosen = self.round.connections.get(self.selected).map(|row| row.connection);
        let order: HashMap<Connection, usize> =
            self.round.connections.iter().map(|row| row.connection).zip(0..).collect();
        round
            .connections
            .sort_by_key(|row| order.get(&row.connection).copied().unwrap_or(usize::MAX));
        self.names.learn(&round.connections);
        self.sessions = self.names.together(&mut round.connections);
        self.curves.retain(|connection, _| {
            round.connections.iter().any(|row| row.connection == *connection)
        });
        for row in &round.connections {
            self.curves.entry(row.connection).or_default().push(row);
        }
        let at = round.connections.iter().position(|row| Some(row.connection) == chosen);
        self.selected = at.unwrap_or(0);
        self.round = round;
    }

    fn step(&mut self, down: bool) {
        let last = self.round.connections.len().saturating_sub(1);
        self.selected =
            if down { (self.selected + 1).min(last) } else { self.selected.saturating_sub(1) };
    }
}

/// Runs until q, a signal or the count.
pub(super) fn run(
    rounds: &mut Rounds,
    count: Option<u64>,
    about: &str,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let outcome = show(&mut terminal, rounds, count, about, stop);
    ratatui::restore();
    outcome
}

fn show(
    terminal: &mut DefaultTerminal,
    rounds: &mut Rounds,
    count: Option<u64>,
    about: &str,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let mut view = View::new(about);
    let mut done = 0;
    terminal.draw(|frame| draw::frame(frame, &view))?;
    while count.is_none_or(|count| done < count) && !stop.load(Ordering::Relaxed) {
        let mut redraw = false;
        if event::poll(rounds.wait().min(KEY_WAIT))? {
            match live::key(&event::read()?) {
                Some(Key::Quit) => break,
                Some(Key::Up) => view.step(false),
                Some(Key::Down) => view.step(true),
                None => {}
            }
            redraw = true;
        }
        if let Some(round) = rounds.tick()? {
            done += 1;
            view.show(round);
            redraw = true;
        }
        if redraw {
            terminal.draw(|frame| draw::frame(frame, &view))?;
        }
    }
    Ok(())
}
