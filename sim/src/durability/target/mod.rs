//! The target: both of its real cores, the session of `iscsi_proto` and the device server of
//! `scsi`, over the simulated storage. It joins them as the server in `crates/iscsi` does, in the
//! same order; what it adds are the quirks of other people's targets, and mistakes on purpose.
//!
//! It can be killed at any moment. What outlives that is the storage, and nothing else.

mod receive;
mod run;
mod sessions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use iscsi_proto::connection::Placement;
use iscsi_proto::ids::{Itt, Tsih};
use iscsi_proto::login::Outcome;
use iscsi_proto::login::target::Login;
use iscsi_proto::pdu::TaskManagementResponseCode;
use iscsi_proto::target::{
    ConnId, Delivery, Event as CoreEvent, Orphans, Recovery, Registry, Session,
};
use iscsi_proto::time::Instant;
use scsi::{LunOptions, TargetConfig};

use self::run::Runs;
use super::env::{Env, Event, SessionKey, Todo};
use super::logins;
use super::sabotage::Sabotage;
use crate::net::{Link, Side};
use crate::stream::Stream;

/// Time for the last words of a connection that nobody reads.
const LINGER: Duration = Duration::from_secs(30);

type Outcomes = Result<(), String>;

/// A connection as the target has it.
struct TargetLink {
    stream: Stream,
    stage: Stage,
    placement: Placement,
    /// Bytes taken from the network that the sender has not been told of, while input is held
    /// back.
    owed: usize,
    closing: bool,
    timer: Option<Instant>,
}

enum Stage {
    Login(Box<Login>),
    /// Login is done; the session it reinstates is not quiet yet.
    Waiting,
    Member(SessionKey, ConnId),
    Over,
}

/// A session.
struct TargetSession {
    core: Session,
    nexus: scsi::Nexus,
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
}

/// A login that waits for older sessions of its initiator to be quiet.
struct Waiting {
    link: Link,
    session: SessionKey,
    login: Box<Login>,
    outcome: Box<Outcome>,
    older: Vec<SessionKey>,
}

/// The target, while it is up.
pub(crate) struct Target {
    scsi: scsi::Target,
    registry: Registry,
    sessions: BTreeMap<SessionKey, TargetSession>,
    links: BTreeMap<Link, TargetLink>,
    live: BTreeMap<Tsih, SessionKey>,
    waiting: Vec<Waiting>,
    runs: Runs,
    /// Ports that have had a nexus.
    ports: BTreeSet<String>,
    /// Sessions of all targets so far.
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
}

impl Target {
    /// Starts over what the storage holds. `sessions` is where the last one stopped counting.
    pub(crate) fn start(env: &Env, write_cache: bool, sessions: u32) -> Result<Self, String> {
        let scsi = scsi::Target::new(TargetConfig::new(logins::TARGET));
        let disk: block::Device = Arc::new(env.disk.clone());
        let device: block::Device = match write_cache {
            true => disk,
            false if env.has(Sabotage::CacheDenied) => Arc::new(run::Denying(disk)),
            false => Arc::new(block::layer::WriteThroughLayer::new(disk)),
        };
        let added = scsi.add_lun(0, device, LunOptions::default());
        added.map_err(|error| format!("target: {error}"))?;
        scsi.set_host(Arc::new(run::Surroundings));
        Ok(Self {
            scsi,
            registry: Registry::new(16),
            sessions: BTreeMap::new(),
            links: BTreeMap::new(),
            live: BTreeMap::new(),
            waiting: Vec::new(),
            runs: Runs::default(),
            ports: BTreeSet::new(),
            next_session: sessions,
        })
    }

    /// Where the next one goes on counting.
    pub(crate) fn sessions(&self) -> u32 {
        self.next_session
    }

    /// A connection comes in.
    pub(crate) fn accept(&mut self, env: &mut Env, link: Link) {
        let target_link = TargetLink {
            stream: Stream::new(),
            stage: Stage::Login(Box::new(logins::target(env))),
            placement: Placement::None,
            owed: 0,
            closing: false,
            timer: None,
        };
        self.links.insert(link, target_link);
        env.clock.after(logins::TIMEOUT, Event::LoginTimeout(link, Side::Target));
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
    fn pump(&mut self, env: &mut Env, link: Link) {
        let Some(target_link) = self.links.get_mut(&link) else { return };
        let mut said = false;
        while env.flush(link, Side::Target, &mut target_link.stream) {
            let Stage::Member(key, conn) = target_link.stage else { return };
            let Some(session) = self.sessions.get_mut(&key) else { return };
            let Some(transmit) = session.core.poll_transmit(conn) else { break };
            env.transmit(link, Side::Target, &mut target_link.stream, &transmit);
            said = true;
        }
        if said && target_link.owed > 0 {
            env.todo.push_back(Todo::TargetInput(link));
        }
        self.arm(env, link);
    }

    /// Handles events of a session: those of `first` and of all connections it woke.
    fn drain(&mut self, env: &mut Env, key: SessionKey, first: Option<ConnId>) -> Outcomes {
        let mut turn: Vec<ConnId> = first.into_iter().collect();
        loop {
            let Some(session) = self.sessions.get_mut(&key) else { return Ok(()) };
            while let Some(conn) = session.core.poll_wake() {
                if !turn.contains(&conn) {
                    turn.push(conn);
                }
            }
            while let Some(itt) = session.core.poll_abort() {
                session.nexus.abort(u64::from(itt.0));
            }
            while let Some(delivery) = session.core.poll_delivery() {
                match delivery {
                    Delivery::Acknowledged(receipt) => {
                        session.nexus.received(scsi::Receipt(receipt.0));
                    }
                    Delivery::Lost(receipt) => {
                        env.coverage.hit("answer that told of a power-on lost");
                        session.nexus.lost(scsi::Receipt(receipt.0));
                    }
                }
            }
            if session.core.is_closed() && session.core.is_quiet() {
                session.nexus.end();
            }
            if turn.is_empty() {
                break;
            }
            let conn = turn.remove(0);
            let Some(link) = session.links.get(&conn).copied() else { continue };
            while let Some(event) =
                self.sessions.get_mut(&key).and_then(|session| session.core.poll_event(conn))
            {
                self.handle_event(env, key, conn, link, event)?;
            }
            self.pump(env, link);
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
            CoreEvent::Execute(execute) => {
                let data = session.buffers.remove(&(conn, execute.itt)).unwrap_or_default();
                self.execute(env, key, conn, execute, data)?;
            }
            CoreEvent::Dropped(itt) => {
                session.buffers.remove(&(conn, itt));
            }
            CoreEvent::Management { itt, .. } => {
                session.core.management_done(itt, TaskManagementResponseCode::COMPLETE);
            }
            CoreEvent::Text { itt, .. } => session.core.text_reply(conn, itt, Bytes::new()),
            // It was given up: others wait for its tasks.
            CoreEvent::Close { at_once: true, .. } => {
                let now = env.now();
                env.clock.at(now, Event::TargetCloses(link, now));
            }
            CoreEvent::Recovery(recovery) => {
                if let Recovery::Reassigned { itt } = recovery {
                    env.coverage.hit("target: task reassigned");
                    if let Some(data) = session.orphans.take(itt) {
                        session.buffers.insert((conn, itt), data);
                    }
                }
            }
            CoreEvent::Close { .. } => {
                if !std::mem::replace(&mut target_link.closing, true) {
                    let now = env.now();
                    env.clock.at(now, Event::TargetCloses(link, now + LINGER));
                }
            }
            other => return Err(format!("target: unknown event {other:?}")),
        }
        Ok(())
    }

    /// The transport is gone.
    fn lost(&mut self, env: &mut Env, link: Link) -> Outcomes {
        env.close(link, Side::Target);
        let Some(target_link) = self.links.get_mut(&link) else { return Ok(()) };
        match std::mem::replace(&mut target_link.stage, Stage::Over) {
            Stage::Member(key, conn) => {
                if let Some(session) = self.sessions.get_mut(&key) {
                    session.leave_buffers(conn);
                    session.core.handle_connection_lost(conn, env.clock.now());
                    session.orphans.bury(&session.core);
                    if let Some(due) = session.core.poll_timeout(conn) {
                        env.clock.at(due, Event::TargetRetains(key, conn));
                    }
                }
                self.forget_connection(key, conn);
                self.drain(env, key, None)
            }
            // A login that waits keeps its place, for a successor has to wait for the same.
            Stage::Waiting | Stage::Login(_) | Stage::Over => Ok(()),
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
        session.core.handle_timeout(conn, env.clock.now());
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

    fn close(&mut self, env: &mut Env, link: Link) -> Outcomes {
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
        env.clock.after(Duration::from_millis(100), Event::TargetCloses(link, deadline));
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
            let (tasks, running) = (session.core.task_count(), &session.running);
            let (closed, quiet) = (session.core.is_closed(), session.core.is_quiet());
            format!("{key:?}: {tasks} tasks, executing {running:?}, closed {closed}, quiet {quiet}")
        });
        sessions.collect::<Vec<_>>().join("; ")
    }
}
