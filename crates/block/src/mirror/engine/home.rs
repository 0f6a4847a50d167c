//! A batch that is committed in a leg's redo log is brought to its place by the leg itself, without
//! going over the line again: where its target can, and where that does not take much longer.
//!
//! Not here: the other way, by reading the log and writing what is in it
//! ([`replay`](super::super::redo::replay)), which checks it besides. What the leg copies by itself
//! is not checked against the log's checksums, since it does not come by here; the target has
//! acknowledged it and flushed it a moment before.

use std::sync::Arc;
use std::time::Duration;

use super::super::epoch::{Content, Piece};
use super::super::link::CopyInside;
use super::super::redo::home::{Places, Request, requests};
use super::super::status::{Home, HomeWay};
use super::allowance::{Allowance, BYTES_FIRST};
use super::put::put;
use super::session::Session;
use super::shared::Shared;
use super::under_way::{Answered, UnderWay};
use crate::{BlockError, Result};

/// Least and most that may be under way at once, by what it costs the leg in bytes
/// ([`Request::cost`]).
const COST_BOUNDS: (u64, u64) = (1 << 20, 256 << 20);

/// Zeroes under way at most, each of them a command.
const ZEROES_AT_ONCE: usize = 256;

/// The line is spared at the price of time, up to so many times what sending again takes: others
/// may want the line, and whoever pays for it does.
const TIMES_SLOWER_MAX: u32 = 4;

/// What sending a batch has shown of the line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    /// All of it took so long.
    pub(super) sent: Duration,
    /// The quickest answer.
    pub(super) round: Duration,
    /// Changes wait for the batch.
    pub(super) hurries: bool,
}

impl Line {
    /// A record was answered; the first one was sent so long ago.
    pub(super) fn note(&mut self, answered: &Answered, sent: Option<Duration>) {
        let took = answered.took;
        self.round = if self.sent.is_zero() { took } else { self.round.min(took) };
        self.sent = sent.unwrap_or(took);
    }
}

/// How a batch gets home, for all that is known before one was copied.
pub(super) fn way(session: &Session) -> Home {
    match session.inside() {
        Ok(_) => Home { way: HomeWay::Inside, why: "its target copies (EXTENDED COPY)".to_owned() },
        Err(why) => Home { way: HomeWay::SentAgain, why },
    }
}

/// Has the leg copy what was remembered of a batch. False: it does not, any part may be at its
/// place, and nothing is under way. Nothing is flushed.
///
/// # Errors
/// The leg's, which end its use.
pub(super) async fn copy_inside(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    places: Places,
    line: Line,
) -> Result<bool> {
    let Ok(inside) = session.inside() else { return Ok(false) };
    let (runs, zeroes) = places.into_runs();
    let limits = inside.limits();
    let requests = requests(&runs, limits);
    if !is_worth(requests.len(), limits.at_once, line) {
        let why = format!("its target takes {} commands for the last batch", requests.len());
        shared.legs().note_home(leg, Home { way: HomeWay::SentAgain, why });
        return Ok(false);
    }
    let mut copies = Copies::new(shared, leg, session, inside);
    let asked = async {
        for range in zeroes {
            let content = Content::Zero(range.end - range.start);
            copies.zero(Piece { offset: range.start, content }).await?;
        }
        for request in requests {
            copies.copy(request).await?;
        }
        Ok(())
    };
    let asked = asked.await;
    // What is under way could land on what is written in the other way.
    let ended = copies.all_answered().await;
    match asked.and(ended) {
        Err(error @ (BlockError::Unreachable(_) | BlockError::Fenced)) => Err(error),
        Err(error) => {
            tracing::warn!(leg, %error, "a leg does not copy by itself: its batch is sent again");
            session.refuse_inside(&error.to_string());
            shared.legs().note_home(leg, way(session));
            Ok(false)
        }
        Ok(()) => {
            session.note_allowed_inside(copies.under_way.allowed());
            shared.legs().note_home(leg, way(session));
            Ok(true)
        }
    }
}

/// Whether `requests`, of which `at_once` may be under way, are not much slower than the line, over
/// which the log is read first. Where changes wait for it, not slower at all.
fn is_worth(requests: usize, at_once: usize, line: Line) -> bool {
    let rounds = u32::try_from(requests.div_ceil(at_once.max(1))).unwrap_or(u32::MAX);
    let times = if line.hurries { 1 } else { TIMES_SLOWER_MAX };
    line.round.saturating_mul(rounds) <= (line.sent + line.round).saturating_mul(times)
}

/// What may be under way to a leg that was not asked for a copy yet.
fn allowed_first(timeout: Duration) -> Allowance {
    Allowance::new(BYTES_FIRST, COST_BOUNDS, timeout)
}

/// What the leg was asked for.
struct Copies<'a> {
    shared: &'a Arc<Shared>,
    leg: usize,
    session: &'a Arc<Session>,
    inside: Arc<dyn CopyInside>,
    at_once: usize,
    under_way: UnderWay,
    home_bytes: u64,
}

impl<'a> Copies<'a> {
    fn new(
        shared: &'a Arc<Shared>,
        leg: usize,
        session: &'a Arc<Session>,
        inside: Arc<dyn CopyInside>,
    ) -> Self {
        let at_once = inside.limits().at_once.max(1);
        let allowed = session.allowed_inside();
        let allowed = allowed.unwrap_or_else(|| allowed_first(shared.config().remote_timeout));
        let under_way = UnderWay::new(shared.host(), session, allowed);
        Self { shared, leg, session, inside, at_once, under_way, home_bytes: 0 }
    }

    async fn zero(&mut self, piece: Piece) -> Result<()> {
        self.has_room(ZEROES_AT_ONCE).await?;
        let cost = piece.content.len(); // a target may have to write them all
        let write = self.session.run(|device| put(&**device, piece));
        self.under_way.sent(write, cost, cost);
        Ok(())
    }

    async fn copy(&mut self, request: Request) -> Result<()> {
        self.has_room(self.at_once).await?;
        let bytes = request.runs.iter().map(|run| run.len).sum();
        let copy = self.session.run(|_| self.inside.copy(request.runs));
        self.under_way.sent(copy, request.cost, bytes);
        Ok(())
    }

    /// Waits until fewer than `count` are under way, and no more than the leg is quick with.
    async fn has_room(&mut self, count: usize) -> Result<()> {
        while self.under_way.is_full(count) {
            self.answer().await?;
        }
        Ok(())
    }

    async fn answer(&mut self) -> Result<()> {
        if let Some(Answered { bytes, .. }) = self.under_way.answer().await? {
            self.home_bytes += bytes;
            self.shared.legs().gets_home(self.leg, self.home_bytes);
        }
        Ok(())
    }

    /// Waits for all, also behind one that fails. The first failure is told.
    async fn all_answered(&mut self) -> Result<()> {
        let mut result = Ok(());
        while !self.under_way.is_empty() {
            result = result.and(self.answer().await);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::link::{CopyLimits, CopyRun};
    use super::*;

    #[test]
    fn a_target_of_one_small_copy_at_a_time_is_not_waited_for() {
        let ms = Duration::from_millis;
        let line = Line { sent: ms(8000), round: ms(50), hurries: false };
        assert!(is_worth(262_144 / 128, 16, line), "1 GiB of scattered blocks, at our target");
        assert!(!is_worth(262_144, 1, line), "at Linux'");
        assert!(is_worth(256, 1, line), "1 GiB in rows, at Linux'");
        let small = Line { sent: ms(50), round: ms(50), hurries: true };
        assert!(is_worth(2, 1, small), "as many round trips");
        assert!(!is_worth(3, 1, small) && is_worth(3, 1, Line { hurries: false, ..small }));
        assert!(is_worth(0, 0, Line::default()));
    }

    /// Round trips until so many scattered blocks are home, at a leg whose disk is quick and which
    /// takes 128 pieces in a command.
    fn rounds(blocks: u64, at_once: usize, allowed: &mut Allowance) -> u32 {
        let runs: Vec<_> = (0..blocks)
            .map(|block| CopyRun { from: block << 12, to: block << 14, len: 4096 })
            .collect();
        let limits = CopyLimits { runs_max: 128, run_bytes_max: 8 << 20, at_once };
        let mut left = requests(&runs, limits).into_iter();
        let (round, mut now, mut rounds) = (Duration::from_millis(50), Duration::ZERO, 0);
        let mut under_way = Vec::new();
        loop {
            while allowed.has_room()
                && under_way.len() < at_once
                && let Some(request) = left.next()
            {
                under_way.push(allowed.sent(request.cost, now));
            }
            if under_way.is_empty() {
                return rounds;
            }
            (now, rounds) = (now + round, rounds + 1);
            under_way.drain(..).for_each(|sent| allowed.answered(sent, now));
        }
    }

    /// What an outage of a minute with 2,000 writes a second leaves, and then what is written while
    /// that is caught up with.
    #[test]
    fn scattered_blocks_are_home_within_few_round_trips() {
        let (first, second) = (450 << 8, 70 << 8);
        for (at_once, expected) in [(16, (62, 9)), (64, (23, 3))] {
            let mut allowed = allowed_first(Duration::from_secs(10));
            let seen =
                (rounds(first, at_once, &mut allowed), rounds(second, at_once, &mut allowed));
            assert_eq!(seen, expected, "{at_once} at once");
        }
    }
}
