//! The target's end: lets connections log in, runs its session cores against the medium, and ends
//! what has ended. It does what the server in `crates/iscsi` does, in the same order.

mod admission;
mod receive;
mod sessions;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use iscsi_proto::connection::{Placement, Transmit};
use iscsi_proto::ids::{Itt, Tsih};
use iscsi_proto::login::Outcome;
use iscsi_proto::login::target::Login;
use iscsi_proto::pdu::{LoginResponse, LoginStatus, TaskManagementResponseCode};
use iscsi_proto::target::{
    Attach, ConnId, Event as CoreEvent, Execute, Orphans, Recovery, Registry, Session,
};
use iscsi_proto::time::Instant;

use crate::env::{Env, Event, Todo};
use crate::net::{Link, Side};
use crate::sabotage::Sabotage;
use crate::storage::Storage;
use crate::stream::Stream;
use crate::wire_check::{Promises, SessionKey};

/// Time for the last words of a connection that nobody reads.
const LINGER: std::time::Duration = std::time::Duration::from_secs(30);

/// Time for a login.
pub(crate) const LOGIN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(15);

/// A connection as the target has it.
pub(crate) struct TargetLink {
    pub(crate) stream: Stream,
    pub(crate) stage: Stage,
    placement: Placement,
    /// Bytes taken from the network that the sender has not been told of, while input is held
    /// back.
    owed: usize,
    closing: bool,
    timer: Option<Instant>,
}

pub(crate) enum Stage {
    Login(Box<Login>),
    /// Login is done; the session it reinstates is not quiet yet.
    Waiting,
    Member(SessionKey, ConnId),
    Over,
}

/// A session.
pub(crate) struct TargetSession {
    pub(crate) core: Session,
    tsih: Tsih,
    links: BTreeMap<ConnId, Link>,
    /// Data of writes that each connection's driver is collecting.
    buffers: BTreeMap<(ConnId, Itt), Vec<u8>>,
    /// Data of writes whose connection was lost.
    orphans: Orphans<Vec<u8>>,
    /// Commands of each connection that execute.
    running: BTreeMap<ConnId, u32>,
    /// Its successor's login was answered: nothing may happen in it any more.
    superseded: bool,
    /// Commands that limits hold back.
    unadmitted: BTreeSet<Itt>,
    /// Sabotage: a command held back.
    held: Option<(ConnId, Execute, Vec<u8>)>,
}

/// A login that waits for older sessions of its initiator to be quiet.
struct Waiting {
    link: Link,
    session: SessionKey,
    login: Box<Login>,
    outcome: Box<Outcome>,
    older: Vec<SessionKey>,
}

/// The target.
pub(crate) struct Server {
    pub(crate) registry: Registry,
    pub(crate) sessions: BTreeMap<SessionKey, TargetSession>,
    pub(crate) links: BTreeMap<Link, TargetLink>,
    live: BTreeMap<Tsih, SessionKey>,
    waiting: Vec<Waiting>,
    pub(crate) storage: Storage,
    next_session: u32,
}

impl TargetSession {
    /// The driver of `conn` has ended: at level 2 others may go on with its writes.
    fn leave_buffers(&mut self, conn: ConnId) {
        let of_conn = (conn, Itt(0))..=(conn, Itt(u32::MAX));
        let tags: Vec<Itt> = self.buffers.range(of_conn).map(|((_, itt), _)| *itt).collect();
        let mut left = Vec::new();
        for itt in tags {
            left.extend(self.buffers.remove(&(conn, itt)).map(|data| (itt, data)));
        }
        if self.core.params().error_recovery_level == 2 {
            self.orphans.adopt(&self.core, conn, left);
        }
    }

    /// A task is over.
    fn forget(&mut self, conn: ConnId, itt: Itt) {
        self.buffers.remove(&(conn, itt));
        self.unadmitted.remove(&itt);
    }

    /// A task goes on over `conn`.
    fn fetch_buffer(&mut self, conn: ConnId, itt: Itt) {
        if let Some(data) = self.orphans.take(itt) {
            self.buffers.insert((conn, itt), data);
        }
    }
}

/// The counter of what the core made up for.
fn recovery_counter(recovery: &Recovery) -> &'static str {
    match recovery {
        Recovery::RecoveryR2t { .. } => "target: recovery R2T",
        Recovery::R2tAgain { .. } => "target: R2T again",
        Recovery::DataAgain { .. } => "target: Data-In again",
        Recovery::DataRecut { .. } => "target: Data-In cut anew",
        Recovery::StatusAgain { .. } => "target: status again",
        Recovery::Reassigned { .. } => "target: task reassigned",
        _ => "target: other recovery",
    }
}

type Outcomes = Result<(), String>;

impl Server {
    pub(crate) fn new() -> Self {
        Self {
            registry: Registry::new(16),
            sessions: BTreeMap::new(),
            links: BTreeMap::new(),
            live: BTreeMap::new(),
            waiting: Vec::new(),
            storage: Storage::new(),
            next_session: 0,
        }
    }

    /// A connection comes in.
    pub(crate) fn accept(&mut self, env: &mut Env, link: Link) {
        let login = crate::logins::target(env);
        let target_link = TargetLink {
            stream: Stream::new(),
            stage: Stage::Login(Box::new(login)),
            placement: Placement::None,
            owed: 0,
            closing: false,
            timer: None,
        };
        self.links.insert(link, target_link);
        env.clock.after(LOGIN_TIMEOUT, Event::LoginTimeout(link, Side::Target));
    }

    /// A connection can take more.
    pub(crate) fn writable(&mut self, env: &mut Env, link: Link) -> Outcomes {
        let Some(target_link) = self.links.get_mut(&link) else { return Ok(()) };
        match target_link.stage {
            Stage::Member(key, conn) => self.drain(env, key, Some(conn)),
            _ => {
                env.flush(link, Side::Target, &mut target_link.stream);
                Ok(())
            }
        }
    }

    /// Sends what a connection has to say. Answers that leave make room for input.
    fn pump(&mut self, env: &mut Env, link: Link) -> Outcomes {
        let Some(target_link) = self.links.get_mut(&link) else { return Ok(()) };
        let mut said = false;
        while env.flush(link, Side::Target, &mut target_link.stream) {
            let Stage::Member(key, conn) = target_link.stage else { return Ok(()) };
            let Some(session) = self.sessions.get_mut(&key) else { return Ok(()) };
            let Some(transmit) = session.core.poll_transmit(conn) else { break };
            session.check_sends(&transmit)?;
            env.transmit(link, Side::Target, &mut target_link.stream, &transmit)?;
            said = true;
        }
        if said && target_link.owed > 0 {
            env.todo.push_back(Todo::TargetInput(link));
        }
        self.arm(env, link);
        Ok(())
    }

    /// Handles events of a session: those of `first` and of all connections it woke.
    pub(crate) fn drain(
        &mut self,
        env: &mut Env,
        key: SessionKey,
        first: Option<ConnId>,
    ) -> Outcomes {
        let mut turn: Vec<ConnId> = first.into_iter().collect();
        loop {
            let Some(session) = self.sessions.get_mut(&key) else { return Ok(()) };
            while let Some(conn) = session.core.poll_wake() {
                if !turn.contains(&conn) {
                    turn.push(conn);
                }
            }
            if turn.is_empty() {
                break;
            }
            let at =
                if env.scenario.shuffled { env.rng.below(turn.len() as u64) as usize } else { 0 };
            let conn = turn.remove(at);
            let Some(link) = session.links.get(&conn).copied() else { continue };
            if env.scenario.shuffled && Some(conn) != first && env.rng.percent(20) {
                // The thread that serves this connection is busy elsewhere.
                let delay = std::time::Duration::from_micros(env.rng.skewed(2000));
                env.clock.after(delay, Event::TargetWakes(link));
                continue;
            }
            while let Some(event) =
                self.sessions.get_mut(&key).and_then(|session| session.core.poll_event(conn))
            {
                self.handle_event(env, key, conn, link, event)?;
            }
            self.pump(env, link)?;
        }
        self.look_at_waiting(env)?;
        self.reap(env, key)
    }

    fn handle_event(
        &mut self,
        env: &mut Env,
        key: SessionKey,
        conn: ConnId,
        link: Link,
        event: CoreEvent,
    ) -> Outcomes {
        let Some(target_link) = self.links.get_mut(&link) else { return Ok(()) };
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(()) };
        match event {
            CoreEvent::Admit(admission) => session.asked(env, key, conn, &admission),
            CoreEvent::Execute(execute) => {
                session.check_executes(execute.itt)?;
                let data = session.buffers.remove(&(conn, execute.itt)).unwrap_or_default();
                let wanted = execute.expected_data_transfer_length as usize;
                if execute.write && !execute.too_long && data.len() != wanted {
                    return Err(format!("{execute:?} with {} bytes of data", data.len()));
                }
                if env.sabotage == Some(Sabotage::ReorderExecution) && session.held.is_none() {
                    session.held = Some((conn, execute, data));
                    return Ok(());
                }
                self.execute(env, key, conn, &execute, &data)?;
                let held = self.sessions.get_mut(&key).and_then(|session| session.held.take());
                match held {
                    Some((conn, execute, data)) => self.execute(env, key, conn, &execute, &data),
                    None => Ok(()),
                }
            }
            CoreEvent::Dropped(itt) => {
                session.forget(conn, itt);
                env.coverage.hit("target: task dropped");
                Ok(())
            }
            CoreEvent::Management { itt, .. } => {
                session.core.management_done(itt, TaskManagementResponseCode::COMPLETE);
                Ok(())
            }
            CoreEvent::Text { itt, text } => {
                // Any answer will do, as long as it needs several PDUs now and then.
                let answer = text.repeat(1 + env.rng.skewed(300) as usize);
                session.core.text_reply(conn, itt, Bytes::from(answer));
                Ok(())
            }
            // It was given up: others wait for its tasks.
            CoreEvent::Close { at_once: true, .. } => {
                env.coverage.hit("target: connection cut for recovery");
                let now = env.clock.now();
                env.clock.at(now, Event::TargetCloses(link, now));
                Ok(())
            }
            CoreEvent::Recovery(recovery) => {
                if let Recovery::Reassigned { itt } = recovery {
                    session.fetch_buffer(conn, itt);
                }
                env.coverage.hit(recovery_counter(&recovery));
                Ok(())
            }
            CoreEvent::Close { .. } => {
                if !std::mem::replace(&mut target_link.closing, true) {
                    // A driver reads on for a while before it notices.
                    let delay = std::time::Duration::from_micros(env.rng.skewed(200_000));
                    env.clock.after(delay, Event::TargetCloses(link, env.clock.now() + LINGER));
                }
                Ok(())
            }
            other => Err(format!("target: unknown event {other:?}")),
        }
    }

    fn execute(
        &mut self,
        env: &mut Env,
        key: SessionKey,
        conn: ConnId,
        execute: &Execute,
        data: &[u8],
    ) -> Outcomes {
        if self.sessions.get(&key).is_none_or(|session| session.superseded) {
            return Err(format!("{execute:?} in {key:?}, whose successor's login was answered"));
        }
        let ended = self.storage.start(env, key, conn, execute, data)?;
        if let Some(session) = self.sessions.get_mut(&key) {
            *session.running.entry(conn).or_default() += 1;
        }
        match ended {
            Some(id) => self.complete(env, id),
            None => Ok(()),
        }
    }

    fn complete(&mut self, env: &mut Env, id: u64) -> Outcomes {
        let Some((running, completion)) = self.storage.finish(env, id)? else { return Ok(()) };
        let Some(session) = self.sessions.get_mut(&running.session) else {
            return Err(format!("session {:?} was forgotten under {running:?}", running.session));
        };
        if let Some(count) = session.running.get_mut(&running.conn) {
            *count -= 1;
        }
        session.core.complete(running.itt, completion);
        Ok(())
    }

    /// A command ends at the medium, later than it started.
    pub(crate) fn storage_done(&mut self, env: &mut Env, id: u64) -> Outcomes {
        let Some((key, conn)) = self.storage.owner(id) else { return Ok(()) };
        self.complete(env, id)?;
        self.drain(env, key, Some(conn))?;
        self.forget_connection(key, conn);
        self.look_at_waiting(env)?;
        self.reap(env, key)
    }

    /// The transport is gone.
    fn lost(&mut self, env: &mut Env, link: Link) -> Outcomes {
        env.close(link, Side::Target);
        env.wire.gone(link);
        let Some(target_link) = self.links.get_mut(&link) else { return Ok(()) };
        match std::mem::replace(&mut target_link.stage, Stage::Over) {
            Stage::Member(key, conn) => {
                if let Some(session) = self.sessions.get_mut(&key) {
                    session.leave_buffers(conn);
                    session.core.handle_connection_lost(conn, env.clock.now());
                    session.orphans.bury(&session.core);
                }
                self.forget_connection(key, conn);
                self.retain(env, key, conn);
                self.drain(env, key, None)
            }
            // A login that waits keeps its place, for a successor has to wait for the same.
            Stage::Waiting | Stage::Login(_) | Stage::Over => Ok(()),
        }
    }

    /// Plans to look at a lost connection again when its tasks have been kept long enough.
    fn retain(&mut self, env: &mut Env, key: SessionKey, conn: ConnId) {
        let Some(session) = self.sessions.get(&key) else { return };
        if let Some(due) = session.core.poll_timeout(conn) {
            env.coverage.hit("target: tasks kept");
            env.clock.at(due, Event::TargetRetains(key, conn));
        }
    }

    /// A lost connection may have waited for recovery for long enough.
    pub(crate) fn retention_over(
        &mut self,
        env: &mut Env,
        key: SessionKey,
        conn: ConnId,
    ) -> Outcomes {
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(()) };
        let now = env.clock.now();
        if session.core.poll_timeout(conn).is_some_and(|due| due <= now) {
            env.coverage.hit("target: tasks given up");
        }
        session.core.handle_timeout(conn, now);
        session.orphans.bury(&session.core);
        if let Some(due) = session.core.poll_timeout(conn) {
            env.clock.at(due, Event::TargetRetains(key, conn));
        }
        self.drain(env, key, None)
    }

    /// Forgets a connection that has ended and has nothing executing any more.
    fn forget_connection(&mut self, key: SessionKey, conn: ConnId) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        let executing = session.running.get(&conn).is_some_and(|count| *count > 0);
        let link = session.links.get(&conn).and_then(|link| self.links.get(link));
        let over = link.is_none_or(|link| matches!(link.stage, Stage::Over));
        if over && !executing {
            session.core.remove_connection(conn);
            session.links.remove(&conn);
        }
    }

    pub(crate) fn close(&mut self, env: &mut Env, link: Link) -> Outcomes {
        match self.links.get(&link) {
            Some(TargetLink { stage: Stage::Over, .. }) | None => Ok(()),
            Some(_) => self.lost(env, link),
        }
    }

    /// The moment has come to close a connection, unless it has still something to say.
    pub(crate) fn close_when_sent(
        &mut self,
        env: &mut Env,
        link: Link,
        deadline: Instant,
    ) -> Outcomes {
        let sent = self.links.get(&link).is_none_or(|link| link.stream.is_sent());
        if sent || env.now() >= deadline {
            return self.close(env, link);
        }
        let again = std::time::Duration::from_millis(100);
        env.clock.after(again, Event::TargetCloses(link, deadline));
        Ok(())
    }

    pub(crate) fn login_timeout(&mut self, env: &mut Env, link: Link) -> Outcomes {
        match self.links.get(&link).map(|link| &link.stage) {
            Some(Stage::Login(_)) => self.lost(env, link),
            _ => Ok(()), // a login that waits for an older session is the initiator's to give up
        }
    }

    pub(crate) fn timer(&mut self, env: &mut Env, link: Link) -> Outcomes {
        let Some(target_link) = self.links.get_mut(&link) else { return Ok(()) };
        target_link.timer = None;
        let Stage::Member(key, conn) = target_link.stage else { return Ok(()) };
        let Some(session) = self.sessions.get_mut(&key) else { return Ok(()) };
        if !session.core.handle_timeout(conn, env.clock.now()) {
            env.coverage.hit("target: ping timeout");
            return self.lost(env, link);
        }
        self.drain(env, key, Some(conn))
    }

    fn arm(&mut self, env: &mut Env, link: Link) {
        let Some(target_link) = self.links.get_mut(&link) else { return };
        let Stage::Member(key, conn) = target_link.stage else { return };
        let due = self.sessions.get(&key).and_then(|session| session.core.poll_timeout(conn));
        if let Some(due) = due
            && target_link.timer.is_none_or(|armed| due < armed)
        {
            target_link.timer = Some(due);
            env.clock.at(due, Event::TargetTimer(link));
        }
    }

    /// What it was doing, for a report of a failure.
    pub(crate) fn state(&self) -> String {
        let sessions = self.sessions.iter().map(|(key, session)| {
            let links: Vec<_> = session.links.values().map(|link| link.0).collect();
            let (tasks, running) = (session.core.task_count(), &session.running);
            let (closed, quiet) = (session.core.is_closed(), session.core.is_quiet());
            format!(
                "{key:?}: links {links:?}, {tasks} tasks, executing {running:?}, closed {closed}, \
                 quiet {quiet}"
            )
        });
        sessions.collect::<Vec<_>>().join("; ")
    }
}
