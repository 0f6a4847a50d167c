//! The initiator: both of its real cores, the session and the decisions about durability of
//! `iscsi_proto::initiator`, and the thin shell around them.
//!
//! The shell **mirrors** `crates/iscsi/src/initiator/{probe,supervisor,shared,state}.rs`: what
//! those do with sockets, locks and tokio is done here with events. It sends what the decisions ask
//! for and decides nothing itself; a change there that matters here has to be made here too.
//!
//! Not here: several sessions (`group.rs`), the pacer, and the number of connections as a matter of
//! speed.

mod logins;
mod ops;
mod setup;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use iscsi_proto::connection::Placement;
use iscsi_proto::initiator::durability::{Durability, Effect, Ticket, Writers};
use iscsi_proto::initiator::{Command, ConnectionId, Event as CoreEvent, Session, TaskOutcome};
use iscsi_proto::login::initiator::Login;
use iscsi_proto::time::Instant;

use self::ops::App;
use self::setup::SetUp;
use super::env::{Env, Event, Stage};
use super::sense::{Verdict, judge};
use crate::net::{Arrival, Link, Side};
use crate::stream::Stream;

/// How long a command may have no answer.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// How often unanswered commands are looked for.
const WATCH_EVERY: Duration = Duration::from_secs(4);

/// What the decisions are told of a failure.
type Failure = String;

type Outcomes = Result<(), String>;

/// A connection as the initiator has it.
struct ShellLink {
    stream: Stream,
    stage: LinkStage,
    placement: Placement,
    /// The task that the data segment under way belongs to.
    filling: Option<u64>,
}

enum LinkStage {
    Login(Box<Login>),
    Member(ConnectionId),
    Over,
}

/// Who sent a command.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    /// The application's: survives the session, is retried.
    User(u32),
    /// Between login and the first command of the application; ends with the session.
    SetUp,
    /// A flush of our own.
    Own,
    /// The unit is asked for its cache again.
    Refresh,
    /// Sabotage: nobody waits for it.
    Stray,
}

/// A command on its way.
#[derive(Clone, Debug)]
struct Task {
    origin: Origin,
    command: Command,
    effect: Effect,
    ticket: Ticket,
    /// Where Data-In goes.
    buffer: Vec<u8>,
    attempts: u32,
    submitted_at: Instant,
}

/// The initiator and its application.
pub(crate) struct Shell {
    core: Option<Session<u64>>,
    keeper: Durability<Failure>,
    links: BTreeMap<Link, ShellLink>,
    members: BTreeMap<ConnectionId, Link>,
    /// Connections whose login is under way.
    joining: BTreeSet<Link>,
    join_planned: bool,
    setup: SetUp,
    timer: Option<Instant>,
    tasks: BTreeMap<u64, Task>,
    next_task: u64,
    outstanding: BTreeSet<u64>,
    /// Ended with GOOD, which counts when others have ended, too.
    held: Vec<u64>,
    waiting: VecDeque<u64>,
    requeued: Vec<u64>,
    pub(super) app: App,
}

impl Shell {
    pub(crate) fn new(env: &Env) -> Self {
        let writers = if env.scenario.shared { Writers::Several } else { Writers::One };
        Self {
            core: None,
            keeper: Durability::new(env.scenario.log_limit, writers),
            links: BTreeMap::new(),
            members: BTreeMap::new(),
            joining: BTreeSet::new(),
            join_planned: false,
            setup: SetUp::default(),
            timer: None,
            tasks: BTreeMap::new(),
            next_task: 0,
            outstanding: BTreeSet::new(),
            held: Vec::new(),
            waiting: VecDeque::new(),
            requeued: Vec::new(),
            app: App::default(),
        }
    }

    /// Bytes, or an end, are there.
    pub(crate) fn arrive(&mut self, env: &mut Env, link: Link) -> Outcomes {
        let Some(shell_link) = self.links.get_mut(&link) else { return Ok(()) };
        if matches!(shell_link.stage, LinkStage::Over) {
            return Ok(());
        }
        match env.receive(link, Side::Initiator) {
            Arrival::Nothing => return Ok(()),
            Arrival::End => {
                self.close_link(env, link);
                return self.drain(env);
            }
            Arrival::Bytes(bytes) => {
                shell_link.stream.push(&bytes);
                env.consumed(link, Side::Initiator, bytes.len());
            }
        }
        if matches!(shell_link.stage, LinkStage::Login(_)) {
            self.process_login(env, link)?;
        }
        while self.process(env, link)? {
            self.drain(env)?;
        }
        self.drain(env)
    }

    /// Handles a PDU, or as much of it as there is. True if it was all there.
    fn process(&mut self, env: &mut Env, link: Link) -> Result<bool, String> {
        let Some(shell_link) = self.links.get_mut(&link) else { return Ok(false) };
        let LinkStage::Member(id) = shell_link.stage else { return Ok(false) };
        let Some(core) = &mut self.core else { return Ok(false) };
        let now = env.clock.now();
        let fails = |error: String| format!("initiator {link}: {error}");
        let header = shell_link.stream.next_header();
        if let Some(header) = header.map_err(|error| fails(error.to_string()))? {
            let placed = core.handle_header(id, now, &header);
            shell_link.placement = placed.map_err(|error| fails(error.to_string()))?;
            shell_link.filling = match shell_link.placement {
                Placement::Task { itt, .. } => core.context_mut(itt).copied(),
                _ => None,
            };
        } else {
            core.note_progress(id, now);
        }
        let Some((data, digest_ok)) = shell_link.stream.next_data() else { return Ok(false) };
        if shell_link.placement == Placement::None {
            return Ok(true);
        }
        if let (Placement::Task { offset, .. }, Some(task)) =
            (shell_link.placement, shell_link.filling.and_then(|id| self.tasks.get_mut(&id)))
        {
            let place = task.buffer.get_mut(offset as usize..offset as usize + data.len());
            place.ok_or("data beyond the command's buffer")?.copy_from_slice(&data);
        }
        let scratch = if shell_link.placement == Placement::Scratch { &data[..] } else { &[] };
        match core.handle_data(id, now, scratch, digest_ok) {
            // Another connection has failed between header and data.
            Err(_) if core.is_closing(id).is_some() => Ok(false),
            result => result.map(|()| true).map_err(|error| fails(error.to_string())),
        }
    }

    /// Does what the core wants: events, connections with something to send, closing, timers.
    fn drain(&mut self, env: &mut Env) -> Outcomes {
        loop {
            while let Some(event) = self.core.as_mut().and_then(Session::poll_event) {
                self.handle_event(env, event)?;
            }
            let Some(core) = &mut self.core else { return Ok(()) };
            // Nothing to replay on yet, and nobody waits: setting up anew is quicker.
            if env.stage != Stage::Up && core.reinstatement().is_some() {
                return self.end(env);
            }
            let woken: Vec<ConnectionId> = core.take_wakes().collect();
            if woken.is_empty() {
                break;
            }
            for id in woken {
                let Some(link) = self.members.get(&id).copied() else { continue };
                self.pump(env, link);
            }
        }
        self.plan_joins(env);
        self.arm(env);
        Ok(())
    }

    /// Sends what a connection has to say, or closes it.
    fn pump(&mut self, env: &mut Env, link: Link) {
        let Some(shell_link) = self.links.get_mut(&link) else { return };
        if matches!(shell_link.stage, LinkStage::Login(_)) {
            env.flush(link, Side::Initiator, &mut shell_link.stream);
        }
        let LinkStage::Member(id) = shell_link.stage else { return };
        let Some(core) = &mut self.core else { return };
        if core.is_closing(id).is_some() {
            return self.close_link(env, link);
        }
        while env.flush(link, Side::Initiator, &mut shell_link.stream) {
            let Some(transmit) = core.poll_transmit(id, env.clock.now()) else { break };
            env.transmit(link, Side::Initiator, &mut shell_link.stream, &transmit);
        }
    }

    /// A connection can take more.
    pub(crate) fn writable(&mut self, env: &mut Env, link: Link) -> Outcomes {
        self.pump(env, link);
        self.drain(env)
    }

    /// Closes a connection on our side, and lets the core know.
    fn close_link(&mut self, env: &mut Env, link: Link) {
        let Some(shell_link) = self.links.get_mut(&link) else { return };
        match std::mem::replace(&mut shell_link.stage, LinkStage::Over) {
            LinkStage::Over => return,
            LinkStage::Login(_) => {
                let joining = self.joining.remove(&link);
                if env.stage == Stage::LoggingIn {
                    env.coverage.hit("login lost");
                    self.setup.failed = true;
                } else if joining && env.stage == Stage::Up {
                    env.coverage.hit("login of another connection lost");
                }
            }
            LinkStage::Member(id) => {
                self.members.remove(&id);
                if let Some(core) = &mut self.core {
                    core.handle_connection_lost(id, env.clock.now());
                }
                // What sits in the socket still goes out, or does not.
                if env.rng.coin() {
                    shell_link.stream.discard_unsent();
                }
            }
        }
        env.flush(link, Side::Initiator, &mut shell_link.stream);
        env.close(link, Side::Initiator);
        if std::mem::take(&mut self.setup.failed) {
            self.abandon(env);
        }
    }

    fn handle_event(&mut self, env: &mut Env, event: CoreEvent<u64>) -> Outcomes {
        match event {
            CoreEvent::TaskDone { context, outcome, .. } => self.task_done(env, context, outcome),
            CoreEvent::TaskRequeue { context, sent, .. } => self.task_back(env, context, sent),
            CoreEvent::SessionEnded { .. } => self.session_ended(env),
            CoreEvent::ConnectionFailed { error, .. } => {
                env.log(|| format!("initiator: {error}"));
                env.coverage.hit("connection failed");
                Ok(())
            }
            CoreEvent::Recovery { .. } => {
                env.progress = env.now();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A command came back without an answer.
    fn task_back(&mut self, env: &mut Env, id: u64, sent: bool) -> Outcomes {
        self.outstanding.remove(&id);
        let Some(task) = self.tasks.get_mut(&id) else { return Ok(()) };
        let ticket = &mut task.ticket;
        let mut is_to_end = false;
        match (&task.origin, sent) {
            (Origin::Own, true) => is_to_end = self.keeper.own_flush_unanswered(ticket),
            (Origin::Own, false) => self.keeper.own_flush_undone(ticket),
            (_, true) => is_to_end = self.keeper.unanswered(ticket),
            (_, false) => self.keeper.undone(ticket),
        }
        match task.origin {
            Origin::User(_) => {
                task.attempts += 1;
                self.requeued.push(id);
                env.coverage.hit("command issued again");
                self.sabotage_lost(env, id)?;
            }
            Origin::Own => {
                self.tasks.remove(&id);
            }
            // The session is over, or its set-up is.
            Origin::SetUp => {
                self.tasks.remove(&id);
                self.abandon(env);
            }
            Origin::Refresh | Origin::Stray => {
                self.tasks.remove(&id);
            }
        }
        self.settle_held(env)?;
        if env.stage == Stage::Up && self.core.as_ref().is_some_and(Session::is_open) {
            if is_to_end {
                env.coverage.hit("flush without an answer ended the session");
                self.abandon(env);
                return Ok(());
            }
            self.requeue();
            self.go_on(env);
        }
        Ok(())
    }

    /// Commands that came back go out first, in their order.
    fn requeue(&mut self) {
        for id in std::mem::take(&mut self.requeued).into_iter().rev() {
            self.waiting.push_front(id);
        }
    }

    fn task_done(&mut self, env: &mut Env, id: u64, outcome: TaskOutcome) -> Outcomes {
        self.outstanding.remove(&id);
        let Some(task) = self.tasks.get(&id) else {
            return Err(format!("answer to a command that nobody waits for: {id}"));
        };
        let verdict = match outcome {
            TaskOutcome::Completed { status, sense, .. } => judge(status, &sense, task.attempts),
            TaskOutcome::Rejected(reason) => Verdict::Failed(format!("rejected: {reason}")),
            // Ended by somebody's reset, or not delivered by the target: as TASK ABORTED.
            _ => judge(0x40, &[], task.attempts),
        };
        env.log(|| format!("initiator: {:?} of {:?}", verdict, task.origin));
        if let Verdict::Again(sense) = &verdict {
            if sense.is_power_on() {
                env.coverage.hit("told of a power-on");
                self.app.told_of_boot = self.app.boot;
                self.setup.told = true;
            } else if sense.is_nexus_loss() {
                env.coverage.hit("told of a nexus loss");
            }
        }
        let over = match task.origin.clone() {
            Origin::User(op) => self.user_done(env, id, op, verdict),
            Origin::SetUp => self.setup_done(env, id, verdict),
            Origin::Own => self.own_flush_over(env, id, verdict),
            Origin::Refresh => self.refreshed(env, id, verdict),
            Origin::Stray => {
                self.tasks.remove(&id);
                Ok(())
            }
        };
        over.and_then(|()| self.settle_held(env))
    }

    /// Acts on a unit attention that came outside of the set-up.
    fn note_attention(&mut self, env: &mut Env, sense: super::sense::Sense) {
        if sense.is_power_on() {
            // The cache may be empty now. A new session probes, and replays what was not flushed.
            if self.keeper.power_on() {
                self.abandon(env);
            }
        } else if sense.is_changed() {
            self.refresh(env);
        }
    }

    /// Ends the incarnation.
    fn abandon(&mut self, env: &mut Env) {
        match &mut self.core {
            Some(core) => core.abandon(),
            None => {
                self.fall_back(env);
                self.redial(env);
            }
        }
    }

    fn end(&mut self, env: &mut Env) -> Outcomes {
        self.abandon(env);
        while let Some(event) = self.core.as_mut().and_then(Session::poll_event) {
            self.handle_event(env, event)?;
        }
        Ok(())
    }

    /// No incarnation any more.
    fn fall_back(&mut self, env: &mut Env) {
        match env.stage {
            Stage::Replaying | Stage::Flushing => {
                env.coverage.hit("replay interrupted");
                self.setup.cut_short = true;
            }
            Stage::Settling | Stage::Asking => env.coverage.hit("set-up interrupted"),
            _ => {}
        }
        env.stage = Stage::Down;
        self.keeper.lost();
    }

    fn session_ended(&mut self, env: &mut Env) -> Outcomes {
        self.fall_back(env);
        env.log(|| "initiator: session ended".into());
        let links = self.members.values().copied().chain(self.joining.iter().copied());
        for link in links.collect::<Vec<_>>() {
            self.close_link(env, link);
        }
        self.timer = None;
        while let Some(event) = self.core.as_mut().and_then(Session::poll_event) {
            if !matches!(event, CoreEvent::SessionEnded { .. }) {
                self.handle_event(env, event)?;
            }
        }
        self.core = None;
        self.settle_held(env)?;
        if let Some(id) = self.outstanding.first().or(self.held.first()) {
            return Err(format!("task {id} was not given back at the end of its session"));
        }
        self.redial(env);
        Ok(())
    }

    pub(crate) fn timer(&mut self, env: &mut Env) -> Outcomes {
        self.timer = None;
        let now = env.now();
        if let Some(core) = &mut self.core {
            core.handle_timeout(now);
        }
        self.drain(env)
    }

    fn arm(&mut self, env: &mut Env) {
        let due = self.core.as_ref().and_then(Session::poll_timeout).map(|(due, ..)| due);
        if let Some(due) = due
            && self.timer.is_none_or(|armed| due < armed)
        {
            self.timer = Some(due);
            env.clock.at(due, Event::InitiatorTimer);
        }
    }

    /// Ends the incarnation if the target owes an answer, or its set-up an end, for too long.
    pub(crate) fn watch(&mut self, env: &mut Env) -> Outcomes {
        env.clock.after(WATCH_EVERY, Event::Watch);
        let now = env.now();
        let Some(core) = &self.core else { return Ok(()) };
        let oldest = core.stalled().map(|(_, since)| now.since(since)).unwrap_or_default();
        let late = !matches!(env.stage, Stage::Up | Stage::Down) && now > self.setup.deadline;
        if oldest > COMMAND_TIMEOUT || late {
            env.coverage.hit("command without an answer");
            self.end(env)?;
        }
        self.drain(env)
    }

    pub(crate) fn is_open(&self, link: Link) -> bool {
        self.links.get(&link).is_some_and(|link| !matches!(link.stage, LinkStage::Over))
    }

    /// Live connections, for something to go wrong with.
    pub(crate) fn open_links(&self) -> Vec<Link> {
        self.links.keys().copied().filter(|link| self.is_open(*link)).collect()
    }

    /// What it was doing, for a report of a failure.
    pub(crate) fn state(&self) -> String {
        format!(
            "initiator: {}; outstanding {:?}; waiting {:?}; {} bytes unflushed; {:?}",
            self.app.state(),
            self.outstanding,
            self.waiting,
            self.keeper.unflushed().cost(),
            self.setup,
        )
    }
}
