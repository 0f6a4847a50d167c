//! One connection's view of its session's core, which it locks as rarely as it can: once for the
//! commands that came together, as far as they bring no data, once for each other PDU that arrives,
//! and once for all that is to be sent. What has come and needs no answer yet, and what commands
//! that ended at once have to say, waits here for the next of these occasions; the clock is read
//! once a round of the driver loop, and the getters answer from that round's beginning. Decides
//! nothing.

use std::sync::Arc;

use iscsi_proto::connection::{Placement, Transmit};
use iscsi_proto::ids::Itt;
use iscsi_proto::pdu::{Header, Opcode};
use iscsi_proto::target::{Completion, ConnId, Event, Received, Session, SessionError};
use iscsi_proto::time::Instant;

use super::session::{SharedSession, now};
use crate::transport::Ahead;

/// Unsent answers at which reading stops. A peer that asks without reading answers is held back
/// by its own full socket.
const REPLY_BACKLOG_MAX: usize = 1024;

/// Bytes of ping data in unsent answers at which reading stops.
const REPLY_DATA_MAX: usize = 1 << 20;

pub(super) struct CoreView {
    session: Arc<SharedSession>,
    conn: ConnId,
    /// The time of this round of the driver loop.
    now: Instant,
    /// Bytes have moved since the last round.
    moved: bool,
    /// Commands that ended at once, of which the core is not told yet.
    ended: Vec<(Itt, Completion)>,
    /// Those among them, since it was asked last, that are answered with data.
    answered: usize,
    events: Vec<Event>,
    /// What has come, of which the core is not told yet.
    kept: Vec<Kept>,
    ahead: Ahead,
    is_draining: bool,
    is_backlogged: bool,
}

/// What the core is told later.
enum Kept {
    /// A command without data.
    Command(Header),
    /// The data of the last header is where it belongs, and whether its digest fits.
    Data(Received, bool),
}

fn tell(
    core: &mut Session,
    conn: ConnId,
    now: Instant,
    kept: &mut Vec<Kept>,
) -> Result<(), SessionError> {
    kept.drain(..).try_for_each(|kept| match kept {
        Kept::Command(header) => {
            core.handle_header(conn, now, &header)?;
            core.handle_data(conn, Received::Placed, true)
        }
        Kept::Data(received, digest_ok) => core.handle_data(conn, received, digest_ok),
    })
}

/// Where a data segment belongs, and how long its task's buffer is.
pub(super) type Place = (Placement, u32);

impl CoreView {
    pub(super) fn new(session: Arc<SharedSession>, conn: ConnId) -> Self {
        Self {
            session,
            conn,
            now: now(),
            moved: false,
            ended: Vec::new(),
            answered: 0,
            events: Vec::new(),
            kept: Vec::new(),
            ahead: Ahead::new(),
            is_draining: false,
            is_backlogged: false,
        }
    }

    /// Runs `f` on the core, which has been told of all that ended before.
    pub(super) fn with<T>(&mut self, f: impl FnOnce(&mut Session) -> T) -> T {
        self.session.with_ended(self.conn, &mut self.ended, f)
    }

    /// A round of the driver loop begins.
    pub(super) fn begin_round(&mut self) {
        self.now = now();
        let (conn, now, moved) = (self.conn, self.now, std::mem::take(&mut self.moved));
        self.is_backlogged = self.step(|core| {
            if moved {
                core.note_progress(conn, now);
            }
            core.reply_backlog(conn) >= REPLY_BACKLOG_MAX
                || core.reply_data_len(conn) >= REPLY_DATA_MAX
        });
    }

    /// As [`with`](Self::with), and takes the events that it left behind.
    fn step<T>(&mut self, f: impl FnOnce(&mut Session) -> T) -> T {
        let conn = self.conn;
        let mut events = std::mem::take(&mut self.events);
        let (result, is_draining) = self.with(|core| {
            let result = f(core);
            while let Some(event) = core.poll_event(conn) {
                events.push(event);
            }
            (result, core.is_draining())
        });
        (self.events, self.is_draining) = (events, is_draining);
        result
    }

    /// Takes what other connections have caused.
    pub(super) fn collect_events(&mut self) {
        self.step(|_| ());
    }

    /// Keeps a header for later, if it is one of a command without data. Where the data of any
    /// other belongs has to be known at once, and it may be about those before it.
    pub(super) fn keep_command(&mut self, header: &Header) -> bool {
        let keeps = header.opcode() == Opcode::SCSI_COMMAND && header.data_segment_length() == 0;
        if keeps {
            self.kept.push(Kept::Command(header.clone()));
        }
        keeps
    }

    /// Keeps for later that the data of the last header is where it belongs.
    pub(super) fn keep_data(&mut self, received: Received, digest_ok: bool) {
        self.kept.push(Kept::Data(received, digest_ok));
    }

    /// How much is kept.
    pub(super) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Tells the core of all that was kept, in its order. What those before a bad one have caused
    /// is there in any case.
    pub(super) fn handle_kept(&mut self) -> Result<(), SessionError> {
        let (conn, now) = (self.conn, self.now);
        let mut kept = std::mem::take(&mut self.kept);
        let result = self.step(|core| tell(core, conn, now, &mut kept));
        self.kept = kept; // the memory is used again
        result
    }

    /// A header has arrived, after what was kept. One without data is handled with it: then its
    /// events are there already.
    pub(super) fn handle_header(&mut self, header: &Header) -> Result<Place, SessionError> {
        let (conn, now) = (self.conn, self.now);
        let has_data = header.data_segment_length() > 0;
        let mut kept = std::mem::take(&mut self.kept);
        let result = self.step(|core| {
            tell(core, conn, now, &mut kept)?;
            let placement = core.handle_header(conn, now, header)?;
            let buffer_length = match placement {
                Placement::Task { itt, .. } => core.buffer_length(itt),
                _ => 0,
            };
            if !has_data && placement == Placement::None {
                core.handle_data(conn, Received::Placed, true)?;
            }
            Ok((placement, buffer_length))
        });
        self.kept = kept;
        result
    }

    /// There is something to be done for the connection.
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// What happened so far and was not taken yet; to be given back with
    /// [`return_events`](Self::return_events), as the memory is used again.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn return_events(&mut self, events: Vec<Event>) {
        if self.events.is_empty() {
            self.events = events;
        }
    }

    /// A command has ended at once.
    pub(super) fn complete(&mut self, itt: Itt, completion: Completion) {
        self.answered += usize::from(!completion.data_in.is_empty());
        self.ended.push((itt, completion));
    }

    /// Commands that were answered with data, since it was asked last.
    pub(super) fn take_answered(&mut self) -> usize {
        std::mem::take(&mut self.answered)
    }

    /// Tells the core of what has ended, if there is any: others may wait for that, however long it
    /// takes until something is sent or comes.
    pub(super) fn settle(&mut self) {
        if !self.ended.is_empty() {
            self.with(|_| ());
        }
    }

    pub(super) fn poll_transmit(&mut self) -> Option<Transmit> {
        let Self { session, conn, ended, ahead, .. } = self;
        if ahead.is_empty() {
            session.with_ended(*conn, ended, |core| ahead.fill(|| core.poll_transmit(*conn)));
        }
        ahead.pop()
    }

    /// Bytes have moved, though perhaps no whole PDU.
    pub(super) const fn note_progress(&mut self) {
        self.moved = true;
    }

    /// So much waits to be sent that nothing more is to be read.
    pub(super) const fn is_backlogged(&self) -> bool {
        self.is_backlogged
    }

    /// Aborted tasks of the session wait for data: there is a time limit.
    pub(super) const fn is_draining(&self) -> bool {
        self.is_draining
    }
}
