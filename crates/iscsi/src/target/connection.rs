//! One connection of the target in its full-feature phase: the [`Role`] that the driver runs.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use block::Buf;
use futures_util::stream::{FuturesUnordered, StreamExt};
use futures_util::task::AtomicWaker;
use iscsi_proto::connection::{Placement, Transmit};
use iscsi_proto::ids::Itt;
use iscsi_proto::pdu::Header;
use iscsi_proto::target::{Completion, ConnId, Event, Execute, Received, Recovery};
use iscsi_proto::time::Instant;
use scsi::{Cdb, Execution};
use tokio::time::Sleep;
use tracing::{debug, info};

use super::budget::{Charge, covered};
use super::completion::{attribute, finish, noted, task_set_full, unexecuted};
use super::limit::Held;
use super::recovery::await_recovery;
use super::session::{SharedSession, now};
use super::shared::{Managed, Shared};
use super::text;
use super::view::CoreView;
use super::write_buffers::WriteBuffers;
use crate::driver::{CloseReason, Dest, Filled, Role};
use crate::transport::{ANSWERS, Vitals};

/// Longest ping data or text that is not charged. A ping that only asks for a sign of life, and the
/// texts of discovery, never fail for want of memory; how many may wait is limited by number.
const UNCHARGED_LEN_MAX: usize = 512;

/// How long a peer may take to read what is left to say on a connection that is being closed.
const LINGER: Duration = Duration::from_secs(10);

/// Commands that are looked up and checked together, at most. As many as are answered before more
/// is handled (`transport::receiver`): then these answers are sent.
const COMMANDS_AT_ONCE: usize = ANSWERS;

/// Lines of a connection about recoveries that everybody sees; further ones are for debugging.
const RECOVERIES_LOGGED_MAX: u32 = 100;

/// Something that ended outside the driver's loop.
enum Finished {
    Command(Itt, Completion),
    Management(Itt, Managed),
}

type Running = FuturesUnordered<Pin<Box<dyn Future<Output = Finished> + Send>>>;

/// Who is connected.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) peer: SocketAddr,
    /// Where the initiator reached us.
    pub(super) local: Option<SocketAddr>,
}

pub(super) struct TargetConnection {
    server: Arc<Shared>,
    session: Arc<SharedSession>,
    conn: ConnId,
    ends: Ends,
    waker: Arc<AtomicWaker>,
    /// Data of writes that are still being collected.
    buffers: WriteBuffers,
    /// The task whose buffer the receiver is filling.
    filling: Option<Itt>,
    /// Memory for the ping data or text that the receiver is reading.
    scratch: Option<Charge>,
    running: Running,
    /// Commands that wait for a limit.
    held: Held,
    core: CoreView,
    timer: Pin<Box<Sleep>>,
    /// When the timer fires.
    due: Instant,
    /// What the socket had moved when the timer last fired.
    vitals: Vitals,
    close: Option<&'static str>,
    /// Whatever is unsent then is not worth a wait.
    cut: bool,
    /// ErrorRecoveryLevel.
    level: u8,
    /// Lines about recovery in the log so far.
    noted: u32,
}

impl TargetConnection {
    pub(super) fn new(
        server: Arc<Shared>,
        session: Arc<SharedSession>,
        conn: ConnId,
        ends: Ends,
    ) -> Self {
        let waker = session.register(conn);
        let level = session.with(|core| core.params().error_recovery_level);
        let buffers = WriteBuffers::new(Arc::clone(&session.account));
        let core = CoreView::new(Arc::clone(&session), conn);
        Self {
            server,
            session,
            conn,
            ends,
            waker,
            buffers,
            filling: None,
            scratch: None,
            running: FuturesUnordered::new(),
            held: Held::default(),
            core,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
            due: now(),
            vitals: Vitals::default(),
            close: None,
            cut: false,
            level,
            noted: 0,
        }
    }

    /// The connection is over. Commands that execute go on to their end: their effect must not
    /// come later than whoever waits for this session's end believes.
    ///
    /// At error recovery level 2 the tasks themselves stay until another connection takes them
    /// over or their time has passed.
    pub(super) fn finish(self) {
        let Self {
            server, session, conn, ends, mut core, mut running, held, buffers, level, ..
        } = self;
        session.unregister(conn);
        drop(held); // whoever takes over these commands waits anew
        core.settle();
        if level == 2 {
            session.adopt(conn, buffers.into_writes());
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.4.3
        //# TCP connection failure: The target MUST close the connection and, if more than one
        //# connection is available, the target SHOULD send an Asynchronous Message that indicates
        //# that it has dropped the connection.
        session.with(|core| core.handle_connection_lost(conn, now()));
        if level == 2 {
            session.bury_orphans();
            await_recovery(&server, &session, conn, ends.peer);
        }
        let ended = async move {
            while let Some(finished) = running.next().await {
                match finished {
                    Finished::Command(itt, completion) => session.complete_late(itt, completion),
                    Finished::Management(itt, Managed { response, information }) => {
                        session.with(|core| core.query_done(itt, response, information));
                    }
                }
            }
            session.with(|core| core.remove_connection(conn));
            session.settle();
            server.forget(&session);
        };
        // Without a command that waits this is done at once, before the next login looks.
        if let Some(rest) = not_yet(ended) {
            tokio::spawn(rest);
        }
    }

    /// What was kept because more may come with it: looked up and checked with one lock, then
    /// executed one command after the other. What they answer goes to the core with the next lock,
    /// and out with one write.
    fn handle_kept(&mut self) -> Result<(), CloseReason> {
        let handled = if self.core.kept() > 0 { self.core.handle_kept() } else { Ok(()) };
        self.handle_events();
        handled.map_err(|error| CloseReason::Protocol(error.to_string()))
    }

    fn handle_events(&mut self) {
        if !self.core.has_events() {
            return;
        }
        loop {
            let mut events = self.core.take_events();
            let admits = events.iter().any(|event| matches!(event, Event::Admit(_)));
            for event in events.drain(..) {
                self.handle_event(event);
            }
            self.core.return_events(events);
            if !admits {
                return;
            }
            self.core.collect_events(); // what was admitted at once is executed at once
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Execute(execute) => self.execute(execute),
            Event::Admit(admission) => match self.session.wait_for_limit(&admission) {
                Some(wait) => self.held.push(admission.itt, wait),
                None => self.core.with(|core| core.admit(admission.itt)),
            },
            Event::Dropped(itt) => {
                self.held.forget(itt);
                self.buffers.forget(itt);
                if self.filling == Some(itt) {
                    self.filling = None; // its buffer is with the receiver and goes from there
                }
            }
            Event::Text { itt, text } => {
                let answer = text::answer(&self.server, &self.session, self.ends.local, &text);
                let conn = self.conn;
                self.core.with(|core| core.text_reply(conn, itt, answer));
            }
            Event::Management { itt, function, lun } => {
                let server = Arc::clone(&self.server);
                let session = Arc::clone(&self.session);
                self.running.push(Box::pin(async move {
                    Finished::Management(itt, server.manage(&session, function, lun).await)
                }));
            }
            Event::Close { reason, at_once } => {
                self.close = Some(reason);
                self.cut |= at_once;
                self.timer.as_mut().reset(tokio::time::Instant::now() + LINGER);
            }
            Event::Recovery(recovery) => {
                if let Recovery::Reassigned { itt } = recovery {
                    self.take_over(itt);
                }
                self.log(recovery);
            }
            other => debug!(?other, "event without a meaning here"),
        }
    }

    fn execute(&mut self, execute: Execute) {
        let itt = execute.itt;
        let write = self.buffers.collect(itt);
        if let Some(why) = unexecuted(&execute, write.refused, write.data.len()) {
            return self.core.complete(itt, noted(&self.session, execute.lun, &execute.cdb, why));
        }
        self.session.moved(0, write.data.len());
        let data_in_max =
            if execute.read { execute.expected_data_transfer_length as usize } else { 0 };
        let command = scsi::Command::new(
            execute.lun.0,
            Cdb::new(&execute.cdb).with_extended(execute.extended_cdb),
        )
        .with_data_out(write.data)
        .with_data_in_max(data_in_max)
        .with_attribute(attribute(execute.attribute))
        .with_tag(u64::from(itt.0));
        let (lun, needs) = (execute.lun, command.memory());
        let mut charge = write.charge;
        if needs.working > 0 {
            let account = &self.session.account;
            if !charge.get_or_insert_with(|| Charge::none(account)).grow(needs.working) {
                let why = noted(&self.session, lun, &execute.cdb, task_set_full());
                return self.core.complete(itt, why);
            }
        }
        let wanted = needs.data_in;
        let reading = if execute.read { self.session.account.charge(wanted) } else { None };
        if execute.read && reading.is_none() {
            let (server, session) = (Arc::clone(&self.server), Arc::clone(&self.session));
            return self.running.push(Box::pin(async move {
                let reading = session.account.wait(wanted).await;
                let response = session.nexus.execute(command).await;
                charge.into_iter().for_each(Charge::finish);
                let done = finish(&server, &session, lun, response, Some(reading));
                Finished::Command(itt, done)
            }));
        }
        match self.session.nexus.execute(command) {
            Execution::Done(response) => {
                charge.into_iter().for_each(Charge::finish);
                let done = finish(&self.server, &self.session, lun, response, reading);
                self.core.complete(itt, done);
            }
            Execution::Pending(future) => {
                let (server, session) = (Arc::clone(&self.server), Arc::clone(&self.session));
                self.running.push(Box::pin(async move {
                    let response = future.await;
                    charge.into_iter().for_each(Charge::finish);
                    Finished::Command(itt, finish(&server, &session, lun, response, reading))
                }));
            }
        }
    }

    /// Gets the data of a write that came over a connection that was lost. Only a reassignment may:
    /// a task that was aborted meanwhile leaves data behind, and its tag may come again.
    fn take_over(&mut self, itt: Itt) {
        if let Some(write) = self.session.orphan(itt) {
            self.buffers.adopt(itt, write);
        }
    }

    /// Memory for ping data or text of this length, which may wait here until it is answered or, at
    /// error recovery level 1 and up, until the answer is acknowledged.
    fn pay_for_scratch(&mut self, len: usize) -> Result<(), CloseReason> {
        if len > UNCHARGED_LEN_MAX {
            self.scratch = self.session.account.charge(len as u64);
            if self.scratch.is_none() {
                return Err(CloseReason::Local("no memory for ping data or text".into()));
            }
        }
        Ok(())
    }

    /// A peer decides how often something is recovered, not how much is logged.
    fn log(&mut self, recovery: Recovery) {
        self.noted = self.noted.saturating_add(1);
        if self.noted <= RECOVERIES_LOGGED_MAX && self.server.may_log(self.ends.peer) {
            info!(?recovery, "recovered from a loss");
        } else {
            debug!(?recovery, "recovered from a loss");
        }
    }

    fn poll_timer(&mut self, context: &mut Context<'_>) -> Result<(), CloseReason> {
        if self.cut {
            return Err(CloseReason::Local(self.close.unwrap_or("given up").to_owned()));
        }
        let conn = self.conn;
        if (self.level > 0 || self.core.is_draining()) && self.close.is_none() {
            // Other timers than that of silence run only here.
            let due = self.core.with(|core| core.poll_timeout(conn));
            if let Some(due) = due.filter(|due| *due < self.due) {
                self.set_timer(due);
            }
        }
        while self.timer.as_mut().poll(context).is_ready() {
            if self.close.is_some() {
                return Err(CloseReason::TimedOut("last words not taken"));
            }
            let stream = self.session.stream(conn);
            let moves = stream.is_some_and(|stream| self.vitals.have_moved(&*stream));
            let (alive, due) = self.core.with(|core| {
                let now = now();
                if moves {
                    core.note_acknowledged(conn, now);
                }
                (core.handle_timeout(conn, now), core.poll_timeout(conn))
            });
            if !alive {
                return Err(CloseReason::TimedOut("no answer to NOP-In"));
            }
            let Some(due) = due else { return Ok(()) };
            self.set_timer(due);
        }
        Ok(())
    }

    fn set_timer(&mut self, due: Instant) {
        self.due = due;
        self.timer.as_mut().reset(tokio::time::Instant::now() + due.since(now()));
    }
}

impl Role for TargetConnection {
    fn handle_header(&mut self, header: &Header) -> Result<Dest, CloseReason> {
        if self.core.keep_command(header) {
            return Ok(Dest::None);
        }
        if self.level == 2 {
            self.handle_kept()?;
            // Another connection's end may have moved a task to this one, whose R2T is answered
            // already: what was collected before comes first.
            self.core.collect_events();
            self.handle_events();
        }
        let (placement, buffer_length) =
            self.core.handle_header(header).map_err(|e| CloseReason::Protocol(e.to_string()))?;
        Ok(match placement {
            Placement::None => Dest::None,
            Placement::Scratch => {
                self.pay_for_scratch(header.data_segment_length() as usize)?;
                Dest::Scratch
            }
            Placement::Discard => Dest::Discard,
            Placement::Task { itt, offset } => {
                let coming = header.data_segment_length() as usize;
                match self.buffers.fill(itt, buffer_length as usize, coming) {
                    Some(buf) => {
                        self.filling = Some(itt);
                        Dest::Buffer { buf, offset: offset as usize }
                    }
                    None => Dest::Discard,
                }
            }
        })
    }

    fn handle_data(&mut self, filled: Filled, digest_ok: bool) -> Result<(), CloseReason> {
        let received = match filled {
            Filled::None if self.core.kept() < COMMANDS_AT_ONCE => {
                self.handle_events();
                return Ok(());
            }
            Filled::None => return self.handle_kept(),
            Filled::Buffer(buf) => {
                if let Some(itt) = self.filling.take() {
                    self.buffers.put_back(itt, buf);
                }
                Received::Placed
            }
            Filled::Scratch(bytes) => Received::Scratch(covered(bytes, self.scratch.take())),
            Filled::Discarded => Received::Placed,
        };
        self.core.keep_data(received, digest_ok);
        self.handle_events(); // of those before it
        Ok(())
    }

    fn poll_work(&mut self, context: &mut Context<'_>) -> Result<(), CloseReason> {
        self.waker.register(context.waker());
        self.core.begin_round();
        self.handle_events();
        while let Poll::Ready(Some(finished)) = self.running.poll_next_unpin(context) {
            match finished {
                Finished::Command(itt, completion) => self.session.complete_late(itt, completion),
                Finished::Management(itt, Managed { response, information }) => {
                    self.core.with(|core| core.query_done(itt, response, information));
                }
            }
        }
        let mut admitted = false;
        while let Some(itt) = self.held.poll_next(context) {
            self.core.with(|core| core.admit(itt));
            admitted = true;
        }
        if admitted {
            self.core.collect_events();
            self.handle_events();
        }
        self.poll_timer(context)
    }

    fn take_back(&mut self, buf: Buf) {
        if let Some(itt) = self.filling.take() {
            self.buffers.put_back(itt, buf);
        }
    }

    fn poll_transmit(&mut self) -> Option<Transmit> {
        self.core.poll_transmit()
    }

    fn note_progress(&mut self) {
        self.core.note_progress();
    }

    fn note_received(&mut self) -> Result<(), CloseReason> {
        let handled = self.handle_kept();
        self.core.take_answered(); // now they are sent
        self.core.settle();
        handled
    }

    fn take_answered(&mut self) -> usize {
        self.core.take_answered()
    }

    fn wants_input(&self) -> bool {
        !self.core.is_backlogged()
    }

    fn is_finished(&self) -> Option<CloseReason> {
        self.close.map(|reason| match reason {
            "logged out" => CloseReason::LoggedOut,
            reason => CloseReason::Local(reason.to_owned()),
        })
    }
}

/// Polls a future once; hands it back if it has to wait.
fn not_yet(
    future: impl Future<Output = ()> + Send + 'static,
) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
    let mut future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(future);
    let polled = future.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop()));
    polled.is_pending().then_some(future)
}
