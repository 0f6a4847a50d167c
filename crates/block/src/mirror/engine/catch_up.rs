//! Brings a leg what it lacks: through its [redo log](super::atomic), or in place. In place the
//! leg says first that it is no legal image, and only when nothing is owed and all of it is stable
//! that it is one again.
//!
//! The bits are the cursor: a block is owed until it has been copied and flushed, whatever happens
//! to the leg, this process or the power meanwhile. Each piece holds its range only while it reads
//! it here, and runs as a task of its own, so that nothing else that the leg's task does holds it
//! up.
//!
//! The user comes first: as long as the leg is [far behind](super::nearing), changes are left to
//! the copy, and complete without the line.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::BLOCK_BYTES;
use super::super::config::Mode;
use super::super::leg::LegEvent;
use super::allowance::{Allowance, Allowances, BYTES_FIRST};
use super::atomic;
use super::before;
use super::change;
use super::handshake::{self, Found};
use super::nearing::{Near, Nearing};
use super::piece::{self, Pieces};
use super::sender;
use super::session::Session;
use super::settling::SETTLE_BYTES;
use super::shared::Shared;
use super::signal::{Signal, either, lock};
use super::signs;
use crate::{BlockError, Result};

/// The bits of what was copied are cleared, and written down, after this time, or earlier after
/// [`SETTLE_BYTES`]: a copy that is killed begins again at most so far back.
const SETTLE_EVERY: Duration = Duration::from_secs(10);

/// Bytes of holes under way to begin with, and at most. A target may have to write them all, one
/// command after the other, or may have done at once: that shows.
const HOLES_BYTES_FIRST: u64 = 8 << 20;
const HOLES_BYTES_MAX: u64 = 2 << 30;

/// Commands that share what is allowed of holes, about.
const HOLES_AT_ONCE: u64 = 8;

/// Pieces under way at most: scattered blocks are short, and each piece is a task. 1 Gbit/s over
/// 200 ms are 5,800 blocks.
const PIECES_MAX: u64 = 8192;

/// Makes a leg that was just reached one that takes part, and is [in sync](follows) as soon as what
/// waits for it in the log is within the lag. False: its image must not be written over
/// now, and its state says why.
///
/// # Errors
/// The use of the leg has ended, and its state says why.
pub(crate) async fn bring(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<bool> {
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
) -> Result<bool> {
    let event = if found.first { LegEvent::CopyBegins } else { LegEvent::CatchUpBegins };
    // A leg that nothing was completed without has missed nothing as long as nothing is owed: its
    // image stays a legal one.
    let missed_nothing =
        !shared.legs().is_excluded(leg) && open(shared, leg, session, found, event, true);
    if !missed_nothing {
        if atomic::bring(shared, leg, session, found).await? {
            return Ok(true);
        }
        if !before::ask(shared, leg, session, found).await? {
            return Ok(false);
        }
        signs::first(shared, leg, session, found).await?;
        shared.legs().goes_in_place(leg);
        handshake::say_inconsistent(shared, leg, session, found).await?;
        if !open(shared, leg, session, found, event, false) {
            return Err(BlockError::Unreachable("the leg is not wanted now".to_owned()));
        }
    }
    signs::beside(shared, leg, session, found, copy_all(shared, leg, session)).await?;
    handshake::tell(shared, leg, session, found).await?;
    shared.legs().nears(leg, session);
    Ok(true)
}

/// Copies until the leg has all of an image of one moment, stable.
async fn copy_all(shared: &Arc<Shared>, leg: usize, session: &Arc<Session>) -> Result<()> {
    loop {
        copy_owed(shared, leg, session).await?;
        if shared.books().follow(shared.legs(), leg, session).await? {
            break;
        }
        session.check()?;
    }
    if shared.config().mode == Mode::Async {
        reach_boundary(shared, leg, session).await?;
    }
    change::flush_leg(shared, leg).await
}

/// The leg has everything, but for what is in the log and within the lag, and says so itself.
///
/// # Errors
/// The session has ended, or the local metadata cannot be written.
pub(crate) async fn follows(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
) -> Result<()> {
    shared.legs().in_sync(leg, session);
    session.check()?;
    if shared.legs().take_renewed(leg) {
        shared.books().renewed(leg).await?;
    }
    // After a power cut here only what was under way is copied, not all that was before.
    shared.books().write_bits(leg).await
}

/// Has changes sent to the leg from now on: each at once, or in epochs.
fn open(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &Found,
    event: LegEvent,
    nothing_owed: bool,
) -> bool {
    if shared.config().mode == Mode::Sync {
        return shared.legs().open_route(leg, session, event, nothing_owed);
    }
    let opened = shared.legs().open_log(leg, session, event, nothing_owed, found.stamp());
    if opened {
        sender::start(shared, leg, session, found.layout());
    }
    opened
}

/// What was copied is of many moments. All of them are past when the epoch that is open now is
/// stable there: then the image is that of its end.
async fn reach_boundary(shared: &Arc<Shared>, leg: usize, session: &Arc<Session>) -> Result<()> {
    let last = shared.legs().close_early();
    loop {
        let change = shared.legs().log_changed();
        session.check().and_then(|()| shared.check_usable())?;
        if shared.legs().is_stable(leg, last) {
            return Ok(());
        }
        either(change, session.over()).await;
    }
}

/// What is owed to a leg in sync that gets the log is sent by the log: a copy beside it would bring
/// a part of an epoch whose time has not come.
///
/// # Errors
/// The session has ended, or the local device cannot be read.
pub(crate) async fn log_owed(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
) -> Result<()> {
    let mut pieces = Pieces::new(session.info(), shared);
    while shared.legs().owed(leg) > 0 {
        let change = shared.legs().log_changed();
        session.check().and_then(|()| shared.check_usable())?;
        if shared.legs().wants_batch(leg) {
            return Ok(()); // First that: what the log has waits for it.
        }
        if shared.legs().log_bytes() * 2 > shared.config().lag.bytes {
            either(change, session.over()).await;
            continue;
        }
        match pieces.next(shared, leg, piece::DATA_BYTES).await? {
            Some(piece) => piece::log(shared, leg, piece).await?,
            None => return Ok(()), // What is left is being changed, and looked at again behind that.
        }
    }
    Ok(())
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
    let mut nearing = Nearing::new(shared, leg);
    let mut settle_at = shared.host().now() + SETTLE_EVERY;
    let mut next_at = Duration::ZERO;
    let result = loop {
        let change = window.changed.next();
        let usable = session.check().and_then(|()| shared.check_usable());
        if let Err(error) = usable.and_then(|()| window.check()) {
            break Err(error);
        }
        let owed = shared.legs().owed(leg);
        let (idle, settles) = (window.is_idle(), window.is_settling());
        match nearing.next(owed * BLOCK_BYTES, window.data_bytes(), settles) {
            Near::Far => {}
            Near::Settle => window.settle(shared, leg),
            Near::Reached => {
                shared.legs().is_near(leg, session);
                continue;
            }
            Near::Is if owed == 0 && idle && !settles => break Ok(()),
            Near::Is => {}
        }
        let now = shared.host().now();
        if settles {
            settle_at = now + SETTLE_EVERY; // Counted from the end of that one.
        } else if now >= settle_at || window.take_unsettled(SETTLE_BYTES) {
            window.settle(shared, leg);
            continue;
        }
        if now >= next_at && window.has_room() && owed > 0 {
            let begun = pieces.at_beginning();
            match pieces.next(shared, leg, window.hole_bytes()).await {
                Ok(Some(piece)) => {
                    next_at = shared.pace(leg, next_at.max(now), piece.wire_bytes());
                    window.start(shared, leg, session, piece);
                    continue;
                }
                // What this pass has left behind is for another one: nobody else would wake us.
                Ok(None) if !begun => {
                    nearing.pass_ended(shared.legs().owed(leg) * BLOCK_BYTES);
                    continue;
                }
                Ok(None) => {}
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

/// What was copied so far becomes stable, and is written down.
async fn settle(shared: &Arc<Shared>, leg: usize) -> Result<()> {
    change::flush_leg(shared, leg).await?;
    shared.books().write_bits(leg).await
}

/// The pieces under way.
struct Window {
    state: Mutex<State>,
    changed: Arc<Signal>,
}

struct State {
    pieces: u64,
    settles: bool,
    allowed: Allowances,
    unsettled: u64,
    failure: Option<BlockError>,
}

/// What may be under way of holes.
fn of_holes(timeout: Duration) -> Allowance {
    Allowance::new(HOLES_BYTES_FIRST, (piece::DATA_BYTES, HOLES_BYTES_MAX), timeout)
}

impl Window {
    fn new(shared: &Shared) -> Self {
        let (bytes_max, timeout) =
            (shared.config().resync_window_bytes, shared.config().remote_timeout);
        let data = Allowance::new(BYTES_FIRST, (piece::DATA_BYTES, bytes_max), timeout);
        let allowed = Allowances { data, zeroes: of_holes(timeout) };
        let state = State { pieces: 0, settles: false, allowed, unsettled: 0, failure: None };
        Self { state: Mutex::new(state), changed: Arc::default() }
    }

    fn has_room(&self) -> bool {
        let state = lock(&self.state);
        state.allowed.have_room() && state.pieces < PIECES_MAX
    }

    /// Bytes of the next hole at most.
    fn hole_bytes(&self) -> u64 {
        lock(&self.state).allowed.zeroes.bytes() / HOLES_AT_ONCE
    }

    /// Bytes of data that may be under way.
    fn data_bytes(&self) -> u64 {
        lock(&self.state).allowed.data.bytes()
    }

    fn is_idle(&self) -> bool {
        lock(&self.state).pieces == 0
    }

    fn is_settling(&self) -> bool {
        lock(&self.state).settles
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
        let (hole, bytes, wire_bytes) = (piece.is_hole(), piece.bytes(), piece.wire_bytes());
        let sent = {
            let mut state = lock(&self.state);
            state.pieces += 1;
            state.allowed.of(hole).sent(bytes, shared.host().now())
        };
        let (window, host) = (self.clone(), shared.host().clone());
        let (shared, session) = (shared.clone(), session.clone());
        host.spawn(Box::pin(async move {
            let result = piece::copy(&shared, leg, &session, piece).await;
            let mut state = lock(&window.state);
            state.pieces -= 1;
            state.allowed.of(hole).answered(sent, shared.host().now());
            state.unsettled += wire_bytes;
            if let Err(error) = result {
                state.failure.get_or_insert(error);
            }
            drop(state);
            window.changed.raise();
        }));
    }

    /// Has what was copied so far become stable and written down, beside the copy.
    fn settle(self: &Arc<Self>, shared: &Arc<Shared>, leg: usize) {
        lock(&self.state).settles = true;
        let (window, host, shared) = (self.clone(), shared.host().clone(), shared.clone());
        host.spawn(Box::pin(async move {
            let result = settle(&shared, leg).await;
            let mut state = lock(&window.state);
            state.settles = false;
            if let Err(error) = result {
                state.failure.get_or_insert(error);
            }
            drop(state);
            window.changed.raise();
        }));
    }

    /// Ends when nothing is under way any more.
    async fn drained(&self) {
        loop {
            let change = self.changed.next();
            if self.is_idle() && !self.is_settling() {
                return;
            }
            change.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    /// A hole of so many bytes at a target that takes `command` for each command, and has them all
    /// write so many bytes a second, one after the other. The time for all, and for the slowest.
    fn zeroed(total: u64, command: Duration, bytes_per_s: f64) -> (Duration, Duration) {
        let mut holes = of_holes(TIMEOUT);
        let (mut now, mut busy_until, mut slowest) =
            (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let (mut left, mut under_way) = (total, VecDeque::new());
        while left > 0 || !under_way.is_empty() {
            while left > 0 && holes.has_room() {
                let wanted = (holes.bytes() / HOLES_AT_ONCE).clamp(piece::DATA_BYTES, 32 << 20);
                let bytes = wanted.min(left);
                let writes = Duration::from_secs_f64(bytes as f64 / bytes_per_s);
                busy_until = busy_until.max(now) + writes;
                under_way.push_back((busy_until + command, holes.sent(bytes, now)));
                left -= bytes;
            }
            let (ends, sent) = under_way.pop_front().unwrap();
            now = ends;
            slowest = slowest.max(now - sent.since);
            holes.answered(sent, now);
        }
        (now, slowest)
    }

    #[test]
    fn a_target_that_writes_its_zeroes_is_kept_busy_and_not_lost() {
        for mib_per_s in [20.0, 200.0, 2000.0] {
            let rate = mib_per_s * 1048576.0;
            let total = 20 * rate as u64;
            let (took, slowest) = zeroed(total, Duration::from_millis(1), rate);
            assert!(slowest < TIMEOUT / 4, "{slowest:?} at {mib_per_s} MiB/s");
            assert!(took < Duration::from_secs(21), "{took:?} at {mib_per_s} MiB/s");
        }
    }

    #[test]
    fn a_tebibyte_of_nothing_is_told_to_a_far_target_in_half_a_minute() {
        let (took, _) = zeroed(1 << 40, Duration::from_millis(50), 1e15);
        assert!(took < Duration::from_secs(30), "{took:?}");
    }
}
