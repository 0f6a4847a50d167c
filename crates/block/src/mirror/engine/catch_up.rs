//! Brings a leg what it lacks, in place: the leg says first that it is no legal image, and only
//! when nothing is owed and all of it is stable that it is one again.
//!
//! The bits are the cursor: a block is owed until it has been copied and flushed, whatever happens
//! to the leg, this process or the power meanwhile. Each piece holds its range only around its own
//! I/O, and runs as a task of its own, so that nothing else that the leg's task does holds it up.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::leg::LegEvent;
use super::change;
use super::handshake::{self, Found};
use super::piece::{self, Pieces};
use super::session::Session;
use super::shared::Shared;
use super::signal::{Signal, either, lock};
use crate::{BlockError, Result};

/// The bits of what was copied are cleared, and written down, so often: a copy that is killed
/// begins again at most so far back.
const SETTLE_EVERY: Duration = Duration::from_secs(10);

/// Bytes copied after which that is done earlier: what is answered and not flushed is remembered
/// range by range.
const SETTLE_BYTES: u64 = 256 << 20;

/// Bytes under way to begin with, before it is known what the line carries.
const WINDOW_BYTES_FIRST: u64 = 2 << 20;

/// Pieces under way at most: scattered blocks are short, and each range held has its cost for all
/// others.
const PIECES_MAX: u64 = 2048;

/// A piece that takes more than this part of the time after which a leg is lost makes the window
/// smaller: a slow line is to be filled, not to be given up.
const LATENCY_PER_TIMEOUT: u32 = 16;

/// Makes a leg that was just reached one that takes part.
///
/// # Errors
/// The use of the leg has ended, and its state says why.
pub(crate) async fn bring(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<()> {
    let result = try_bring(shared, leg, session, found).await;
    if let Err(error) = &result {
        shared.leg_failed(leg, session, error);
    }
    result
}

async fn try_bring(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<()> {
    let event = if found.first { LegEvent::CopyBegins } else { LegEvent::CatchUpBegins };
    // A leg that nothing was completed without has missed nothing as long as nothing is owed: its
    // image stays a legal one.
    let missed_nothing =
        !shared.legs().is_excluded(leg) && shared.legs().open_route(leg, session, event, true);
    if !missed_nothing {
        handshake::say_inconsistent(shared, leg, session, found).await?;
        if !shared.legs().open_route(leg, session, event, false) {
            return Err(BlockError::Unreachable("the leg is not wanted now".to_owned()));
        }
    }
    loop {
        copy_owed(shared, leg, session).await?;
        if shared.books().follow(shared.legs(), leg, session).await? {
            break;
        }
        check(session)?;
    }
    change::flush_leg(shared, leg).await?;
    handshake::tell(shared, leg, session, found).await?;
    shared.legs().in_sync(leg, session);
    check(session)?;
    // After a power cut here only what was under way is copied, not all that was before.
    shared.books().write_bits(leg).await
}

fn check(session: &Session) -> Result<()> {
    session.why_ended().map_or(Ok(()), |why| Err(BlockError::Unreachable(why)))
}

/// Copies until nothing is owed.
///
/// # Errors
/// The session has ended, or the local device cannot be read.
pub(crate) async fn copy_owed(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
) -> Result<()> {
    let window = Arc::new(Window::new(shared));
    let mut pieces = Pieces::new(session.info(), shared);
    let mut settle_at = shared.host().now() + SETTLE_EVERY;
    let mut next_at = Duration::ZERO;
    let result = loop {
        let change = window.changed.next();
        let usable = check(session).and_then(|()| shared.check_usable());
        if let Err(error) = usable.and_then(|()| window.check()) {
            break Err(error);
        }
        if shared.legs().owed(leg) == 0 && window.is_idle() {
            break Ok(());
        }
        let now = shared.host().now();
        if now >= settle_at || window.take_unsettled(SETTLE_BYTES) {
            if let Err(error) = settle(shared, leg).await {
                break Err(error);
            }
            settle_at = shared.host().now() + SETTLE_EVERY;
            continue;
        }
        if now >= next_at && window.has_room() && shared.legs().owed(leg) > 0 {
            match pieces.next(shared, leg).await {
                Ok(Some(piece)) => {
                    next_at = next_after(next_at.max(now), piece.bytes(), shared);
                    window.start(shared, leg, session, piece);
                    continue;
                }
                Ok(None) => {} // Again from the beginning at the next look.
                Err(error) => break Err(error),
            }
        }
        let wake_at = if next_at > now { settle_at.min(next_at) } else { settle_at };
        either(either(change, session.over()), shared.host().sleep(wake_at - now)).await;
    };
    window.drained().await;
    shared.legs().wake();
    result
}

/// When the next piece may be sent, by the user's limit of the rate.
fn next_after(now: Duration, bytes: u64, shared: &Shared) -> Duration {
    match shared.config().resync_bytes_per_s {
        Some(rate) if rate > 0 => now + Duration::from_secs_f64(bytes as f64 / rate as f64),
        _ => Duration::ZERO,
    }
}

/// What was copied so far becomes stable, and is written down.
async fn settle(shared: &Arc<Shared>, leg: usize) -> Result<()> {
    change::flush_leg(shared, leg).await?;
    shared.books().write_bits(leg).await
}

/// The pieces under way.
struct Window {
    state: Mutex<State>,
    changed: Arc<Signal>,
    bytes_max: u64,
    latency_max: Duration,
}

struct State {
    pieces: u64,
    bytes: u64,
    /// Bytes under way at most, as the latency allows.
    allowed: u64,
    unsettled: u64,
    failure: Option<BlockError>,
}

impl Window {
    fn new(shared: &Shared) -> Self {
        let bytes_max = shared.config().resync_window_bytes.max(piece::DATA_BYTES);
        let allowed = WINDOW_BYTES_FIRST.min(bytes_max);
        let state = State { pieces: 0, bytes: 0, allowed, unsettled: 0, failure: None };
        let latency_max = shared.config().remote_timeout / LATENCY_PER_TIMEOUT;
        Self { state: Mutex::new(state), changed: Arc::default(), bytes_max, latency_max }
    }

    fn has_room(&self) -> bool {
        let state = lock(&self.state);
        state.bytes < state.allowed && state.pieces < PIECES_MAX
    }

    fn is_idle(&self) -> bool {
        lock(&self.state).pieces == 0
    }

    fn check(&self) -> Result<()> {
        lock(&self.state).failure.take().map_or(Ok(()), Err)
    }

    /// More than so many bytes were copied since the last time that this was said.
    fn take_unsettled(&self, bytes: u64) -> bool {
        let mut state = lock(&self.state);
        let many = state.unsettled >= bytes;
        if many {
            state.unsettled = 0;
        }
        many
    }

    fn start(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        leg: usize,
        session: &Arc<Session>,
        piece: piece::Piece,
    ) {
        let bytes = piece.wire_bytes();
        {
            let mut state = lock(&self.state);
            (state.pieces, state.bytes) = (state.pieces + 1, state.bytes + bytes);
        }
        let (window, host) = (self.clone(), shared.host().clone());
        let (shared, session) = (shared.clone(), session.clone());
        host.spawn(Box::pin(async move {
            let since = shared.host().now();
            let result = piece::copy(&shared, leg, &session, piece).await;
            let took = shared.host().now().saturating_sub(since);
            window.ended(bytes, took, result);
        }));
    }

    fn ended(&self, bytes: u64, took: Duration, result: Result<()>) {
        let mut state = lock(&self.state);
        (state.pieces, state.bytes) = (state.pieces - 1, state.bytes - bytes);
        state.unsettled += bytes;
        state.allowed = if took > self.latency_max {
            // Each of the pieces of one window says so: together they halve it, about.
            state.allowed.saturating_sub(bytes / 2).max(piece::DATA_BYTES)
        } else {
            (state.allowed + bytes / 2).min(self.bytes_max)
        };
        if let Err(error) = result {
            state.failure.get_or_insert(error);
        }
        drop(state);
        self.changed.raise();
    }

    async fn drained(&self) {
        loop {
            let change = self.changed.next();
            if self.is_idle() {
                return;
            }
            change.await;
        }
    }
}
