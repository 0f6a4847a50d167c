//! One connection as the driver loop sees it: hands headers to the session core under the disk's
//! lock and passes buffers through. Holds no state of the protocol.

use std::sync::Arc;
use std::task::{Context, Waker};

use block::{Buf, Bytes};
use iscsi_proto::connection::{Placement, Transmit};
use iscsi_proto::ids::Itt;
use iscsi_proto::initiator::{ConnectionError, ConnectionId};
use iscsi_proto::pdu::Header;
use iscsi_proto::time::Instant;

use super::member::Member;
use super::op::Task;
use super::shared::Shared;
use super::state::{Batch, State};
use crate::driver::{CloseReason, Dest, Filled, Role};
use crate::transport::Ahead;

pub(super) struct ConnectionRole {
    shared: Arc<Shared>,
    incarnation: u64,
    member: usize,
    id: ConnectionId,
    /// The task whose buffer is with the receiver.
    filling: Option<Itt>,
    moved: bool,
    /// The time of this turn of the driver loop: turns are short, and a clock read per PDU shows.
    now: Instant,
    ahead: Ahead,
    batch: Batch,
    /// A data segment that is in place: the session is told of it with the next header, or with the
    /// last of what was received together.
    placed: Option<Placed>,
    /// The session has been told of something since what it says was last taken.
    told: bool,
}

struct Placed {
    /// The task whose buffer it was.
    itt: Option<Itt>,
    buf: Option<Buf>,
    scratch: Option<Bytes>,
    digest_ok: bool,
}

impl Placed {
    fn tell(
        self,
        member: &mut Member,
        id: ConnectionId,
        now: Instant,
    ) -> Result<(), ConnectionError> {
        if let Some(task) = self.itt.and_then(|itt| member.session.context_mut(itt)) {
            task.buf = self.buf;
        }
        let scratch = self.scratch.as_deref().unwrap_or(&[]);
        member.session.handle_data(id, now, scratch, self.digest_ok)
    }
}

impl ConnectionRole {
    pub(super) fn new(
        shared: Arc<Shared>,
        incarnation: u64,
        member: usize,
        id: ConnectionId,
    ) -> Self {
        let (ahead, batch) = (Ahead::new(), Batch::default());
        let (filling, moved, now) = (None, false, shared.now());
        let (placed, told) = (None, false);
        Self { shared, incarnation, member, id, filling, moved, now, ahead, batch, placed, told }
    }

    /// Runs something on the session. That commands have ended with GOOD is delivered once for all
    /// that was received together ([`Role::note_received`]).
    fn with<R>(
        &mut self,
        act: impl FnOnce(&mut Member, ConnectionId) -> Result<R, ConnectionError>,
    ) -> Result<R, CloseReason> {
        let (place, placed) = (self.place(), self.placed.take());
        let mut state = self.shared.lock();
        let told = tell(&mut state, place, self.now, placed, &mut self.batch);
        let result = told.and_then(|()| step(&mut state, place, &mut self.batch, act));
        drop(state);
        self.told = true;
        self.shared.deliver(&mut self.batch);
        result
    }

    /// Delivers what the session has to say: with one lock, and callers are woken behind it.
    fn deliver(&mut self) -> Result<(), CloseReason> {
        let placed = self.placed.take();
        if !std::mem::take(&mut self.told) && placed.is_none() {
            return Ok(());
        }
        let mut state = self.shared.lock();
        let told = tell(&mut state, self.place(), self.now, placed, &mut self.batch);
        // Otherwise another one has taken what it said, and has its place.
        if state.member(self.incarnation, self.member).is_some() {
            state.collect(self.member, Some(self.id), &mut self.batch);
        }
        drop(state);
        self.shared.deliver(&mut self.batch);
        told
    }

    fn place(&self) -> Place {
        (self.incarnation, self.member, self.id)
    }
}

/// Where a session is found, and which of its connections this is: the incarnation of all sessions,
/// the session's index there.
type Place = (u64, usize, ConnectionId);

/// Tells the session of a segment that is in place.
fn tell(
    state: &mut State,
    place: Place,
    now: Instant,
    placed: Option<Placed>,
    batch: &mut Batch,
) -> Result<(), CloseReason> {
    placed.map_or(Ok(()), |placed| {
        step(state, place, batch, |member, id| placed.tell(member, id, now))
    })
}

/// Runs something on a session, and takes what it has to say if that has to be known before
/// anything else is done: what came behind a unit attention is not worth what it says.
fn step<R>(
    state: &mut State,
    (incarnation, index, id): Place,
    batch: &mut Batch,
    act: impl FnOnce(&mut Member, ConnectionId) -> Result<R, ConnectionError>,
) -> Result<R, CloseReason> {
    let Some(member) = state.member(incarnation, index) else {
        return Err(CloseReason::Local("session was replaced".into()));
    };
    let result = act(member, id);
    if result.is_err() || member.session.is_urgent() {
        state.collect(index, Some(id), batch);
    }
    result.map_err(reason)
}

fn reason(error: ConnectionError) -> CloseReason {
    match error {
        ConnectionError::Protocol { .. } => CloseReason::Protocol(error.to_string()),
        ConnectionError::NotConnected => CloseReason::LoggedOut,
        ConnectionError::PingTimeout { .. } => CloseReason::TimedOut("no sign of life"),
        error => CloseReason::Local(error.to_string()),
    }
}

fn register(slot: &mut Option<Waker>, context: &Context<'_>) {
    match slot {
        Some(waker) if waker.will_wake(context.waker()) => {}
        slot => *slot = Some(context.waker().clone()),
    }
}

impl Role for ConnectionRole {
    // A session's commands are delivered in the order of their numbers (RFC 7143 §4.2.2.1).
    const IS_AWAITED: bool = true;

    fn handle_header(&mut self, header: &Header) -> Result<Dest, CloseReason> {
        let now = self.now;
        let mut filling = None;
        let dest = self.with(|member, id| {
            Ok(match member.session.handle_header(id, now, header)? {
                Placement::None => Dest::None,
                Placement::Task { itt, offset } => {
                    let task: Option<&mut Task> = member.session.context_mut(itt);
                    match task.and_then(|task| task.buf.take()) {
                        Some(buf) => {
                            filling = Some(itt);
                            Dest::Buffer { buf, offset: offset as usize }
                        }
                        None => Dest::Discard,
                    }
                }
                Placement::Scratch => Dest::Scratch,
                Placement::Discard => Dest::Discard,
            })
        })?;
        self.filling = filling;
        Ok(dest)
    }

    fn handle_data(&mut self, filled: Filled, digest_ok: bool) -> Result<(), CloseReason> {
        let (buf, scratch) = match filled {
            Filled::None => return Ok(()),
            Filled::Buffer(buf) => (Some(buf), None),
            Filled::Scratch(bytes) => (None, Some(bytes)),
            Filled::Discarded => (None, None),
        };
        let itt = self.filling.take();
        self.placed = Some(Placed { itt, buf, scratch, digest_ok });
        Ok(())
    }

    fn poll_work(&mut self, context: &mut Context<'_>) -> Result<(), CloseReason> {
        let now = self.shared.now();
        self.now = now;
        let moved = std::mem::take(&mut self.moved);
        let mut state = self.shared.lock();
        let Some(member) = state.member(self.incarnation, self.member) else {
            return Err(CloseReason::Local("session was replaced".into()));
        };
        if moved {
            member.session.note_progress(self.id, now);
        }
        register(&mut member.wakers[self.id.index()], context);
        match member.session.is_closing(self.id) {
            None => Ok(()),
            Some(Ok(())) => Err(CloseReason::LoggedOut),
            Some(Err(error)) => Err(reason(error)),
        }
    }

    fn poll_transmit(&mut self) -> Option<Transmit> {
        if self.ahead.is_empty() {
            let now = self.now;
            let mut state = self.shared.lock();
            let member = state.member(self.incarnation, self.member)?;
            self.ahead.fill(|| member.session.poll_transmit(self.id, now));
        }
        self.ahead.pop()
    }

    fn note_received(&mut self) -> Result<(), CloseReason> {
        self.deliver()
    }

    fn note_progress(&mut self) {
        self.moved = true;
    }

    fn take_back(&mut self, buf: Buf) {
        let Some(itt) = self.filling.take() else { return };
        let mut state = self.shared.lock();
        if let Some(member) = state.member(self.incarnation, self.member)
            && let Some(task) = member.session.context_mut(itt)
        {
            task.buf = Some(buf); // the task may go on over another connection
        }
    }
}

impl Drop for ConnectionRole {
    /// The driver has ended, for whatever reason: the core hears of it exactly once.
    fn drop(&mut self) {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        if let Some(member) = state.member(self.incarnation, self.member) {
            member.session.handle_connection_lost(self.id, now);
            state.collect(self.member, Some(self.id), &mut self.batch);
        }
        drop(state);
        self.shared.deliver(&mut self.batch);
    }
}
