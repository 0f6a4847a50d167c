//! The initiator's end: keeps a session up, with as many connections as it likes at the moment, and
//! drives the initiator core. What the application does with the session is in [`ops`].

mod logins;
pub(crate) mod ops;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use iscsi_proto::connection::Placement;
use iscsi_proto::frame::FrameError;
use iscsi_proto::ids::Itt;
use iscsi_proto::initiator::{
    ConnectionError, ConnectionId, Event as CoreEvent, Recovery, Session, Violation,
};
use iscsi_proto::login::initiator::Login;
use iscsi_proto::pdu::{AsyncEvent, RejectReason};
use iscsi_proto::time::Instant;

use self::ops::{Op, TaskManagement};
use crate::env::{Env, Event};
use crate::net::{Arrival, Link, Side};
use crate::stream::Stream;
use crate::wire_check::SessionKey;
use crate::workload::OpId;

type Verdict = Result<(), String>;

/// A connection as the initiator has it.
struct HostLink {
    stream: Stream,
    stage: Stage,
    placement: Placement,
    /// The operation that the data segment under way belongs to.
    filling: Option<OpId>,
}

enum Stage {
    Login(Box<Login>),
    Member(ConnectionId),
    Over,
}

/// The initiator and its application.
pub(crate) struct Host {
    core: Option<Session<OpId>>,
    /// The session as the observer knows it.
    session: SessionKey,
    links: BTreeMap<Link, HostLink>,
    members: BTreeMap<ConnectionId, Link>,
    /// Sessions established so far: a login that began in an older one comes too late.
    generation: u32,
    /// Connections whose login is under way, and in which generation it began.
    joining: BTreeMap<Link, u32>,
    next_cid: u16,
    /// A login that continues the session is planned.
    reinstating: bool,
    timer: Option<Instant>,
    ops: Vec<Op>,
    generated: u32,
    waiting: VecDeque<OpId>,
    outstanding: BTreeMap<OpId, Itt>,
    management: BTreeMap<Itt, TaskManagement>,
    texts: BTreeSet<Itt>,
    wanted: u16,
    closing: bool,
    /// Everything is done and the last session is over.
    pub(crate) finished: bool,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self {
            core: None,
            session: SessionKey(0),
            links: BTreeMap::new(),
            members: BTreeMap::new(),
            generation: 0,
            joining: BTreeMap::new(),
            next_cid: 1,
            reinstating: false,
            timer: None,
            ops: Vec::new(),
            generated: 0,
            waiting: VecDeque::new(),
            outstanding: BTreeMap::new(),
            management: BTreeMap::new(),
            texts: BTreeSet::new(),
            wanted: 1,
            closing: false,
            finished: false,
        }
    }

    /// Bytes, or an end, are there.
    pub(crate) fn arrive(&mut self, env: &mut Env, link: Link) -> Verdict {
        let Some(host_link) = self.links.get_mut(&link) else { return Ok(()) };
        if matches!(host_link.stage, Stage::Over) {
            return Ok(());
        }
        match env.receive(link, Side::Initiator) {
            Arrival::Nothing => return Ok(()),
            Arrival::End => {
                self.close_link(env, link);
                return self.drain(env);
            }
            Arrival::Bytes(bytes) => {
                host_link.stream.push(&bytes);
                env.consumed(link, Side::Initiator, bytes.len());
                if host_link.stream.needs_more() {
                    if let (Stage::Member(id), Some(core)) = (&host_link.stage, &mut self.core) {
                        core.note_progress(*id, env.clock.now());
                    }
                    return Ok(());
                }
            }
        }
        if matches!(host_link.stage, Stage::Login(_)) {
            self.process_login(env, link)?;
        }
        while self.process(env, link)? {
            self.drain(env)?;
        }
        self.drain(env)
    }

    /// Handles a PDU, or as much of it as there is. True if it was all there.
    fn process(&mut self, env: &mut Env, link: Link) -> Result<bool, String> {
        let Some(host_link) = self.links.get_mut(&link) else { return Ok(false) };
        let Stage::Member(id) = host_link.stage else { return Ok(false) };
        let Some(core) = &mut self.core else { return Ok(false) };
        let now = env.clock.now();
        let header = match host_link.stream.next_header() {
            Ok(header) => header,
            // The length of the PDU is unknown, and with it where the next one begins (§7.8).
            Err(FrameError::HeaderDigest { .. }) if env.wire.is_damaged(link, Side::Target) => {
                env.coverage.hit("initiator: header digest error");
                self.close_link(env, link);
                return Ok(false);
            }
            Err(error) => return Err(format!("initiator {link}: {error}")),
        };
        if let Some(header) = header {
            host_link.placement = core
                .handle_header(id, now, &header)
                .map_err(|error| format!("initiator {link}: {error}"))?;
            host_link.filling = match host_link.placement {
                Placement::Task { itt, .. } => core.context_mut(itt).copied(),
                _ => None,
            };
        } else {
            core.note_progress(id, now);
        }
        let Some((data, digest_ok)) = host_link.stream.next_data() else { return Ok(false) };
        if host_link.placement == Placement::None {
            return Ok(true);
        }
        if let (Placement::Task { offset, .. }, Some(op)) = (host_link.placement, host_link.filling)
        {
            let (op, offset) = (&mut self.ops[op.0 as usize], offset as usize);
            // Aborted between header and data: the buffer is the application's again.
            if op.ending.is_none() {
                let place = op.buffer.get_mut(offset..offset + data.len());
                place.ok_or("data beyond the command's buffer")?.copy_from_slice(&data);
            }
        }
        if !digest_ok {
            env.coverage.hit("initiator: data digest error");
            if !env.wire.is_damaged(link, Side::Target) {
                return Err(format!("initiator {link}: data digest error that nobody caused"));
            }
        }
        let scratch = if host_link.placement == Placement::Scratch { &data[..] } else { &[] };
        match core.handle_data(id, now, scratch, digest_ok) {
            // Another connection has failed between header and data.
            Err(_) if core.is_closing(id).is_some() => Ok(false),
            Err(ConnectionError::DataDigest { .. }) if !digest_ok => Ok(false),
            result => result.map(|()| true).map_err(|error| format!("initiator {link}: {error}")),
        }
    }

    /// Does what the core wants: events, connections with something to send, closing, timers.
    fn drain(&mut self, env: &mut Env) -> Verdict {
        loop {
            while let Some(event) = self.core.as_mut().and_then(Session::poll_event) {
                self.handle_event(env, event)?;
            }
            let Some(core) = &mut self.core else { return Ok(()) };
            let woken: Vec<ConnectionId> = core.take_wakes().collect();
            if woken.is_empty() {
                break;
            }
            for id in woken {
                let Some(link) = self.members.get(&id).copied() else { continue };
                self.pump(env, link)?;
            }
        }
        self.plan_reinstatement(env);
        self.arm(env);
        Ok(())
    }

    /// Sends what a connection has to say, or closes it.
    pub(crate) fn pump(&mut self, env: &mut Env, link: Link) -> Verdict {
        let Some(host_link) = self.links.get_mut(&link) else { return Ok(()) };
        if matches!(host_link.stage, Stage::Login(_)) {
            env.flush(link, Side::Initiator, &mut host_link.stream);
        }
        let Stage::Member(id) = host_link.stage else { return Ok(()) };
        let Some(core) = &mut self.core else { return Ok(()) };
        if core.is_closing(id).is_some() {
            self.close_link(env, link);
            return Ok(());
        }
        while env.flush(link, Side::Initiator, &mut host_link.stream) {
            let Some(transmit) = core.poll_transmit(id, env.clock.now()) else { break };
            env.transmit(link, Side::Initiator, &mut host_link.stream, &transmit)?;
        }
        Ok(())
    }

    /// A connection can take more.
    pub(crate) fn writable(&mut self, env: &mut Env, link: Link) -> Verdict {
        self.pump(env, link)?;
        self.drain(env)
    }

    /// Closes a connection on our side, and lets the core know.
    pub(super) fn close_link(&mut self, env: &mut Env, link: Link) {
        let Some(host_link) = self.links.get_mut(&link) else { return };
        match std::mem::replace(&mut host_link.stage, Stage::Over) {
            Stage::Over => return,
            Stage::Login(_) => {
                env.coverage.hit("login lost");
                let leading = self.joining.remove(&link).is_none();
                if leading {
                    redial(env);
                }
            }
            Stage::Member(id) => {
                self.members.remove(&id);
                if let Some(core) = &mut self.core {
                    let failed = !matches!(core.is_closing(id), Some(Ok(())));
                    core.handle_connection_lost(id, env.clock.now());
                    // What sits in the socket still goes out, or does not.
                    if failed && env.rng.coin() {
                        host_link.stream.discard_unsent();
                    }
                }
            }
        }
        env.flush(link, Side::Initiator, &mut host_link.stream);
        env.close(link, Side::Initiator);
    }

    fn handle_event(&mut self, env: &mut Env, event: CoreEvent<OpId>) -> Verdict {
        env.log(|| format!("initiator event: {event:?}"));
        match event {
            CoreEvent::TaskDone { itt, context, outcome, .. } => {
                self.op_done(env, itt, context, &outcome)
            }
            CoreEvent::TaskRequeue { context, sent, .. } => {
                if sent {
                    env.coverage.hit("command issued again");
                }
                self.outstanding.remove(&context);
                self.waiting.push_back(context);
                // While the session goes on, nothing else may remind us of it.
                self.submit(env)
            }
            CoreEvent::TaskManagementDone { itt, response, .. } => {
                self.management_done(env, itt, response)
            }
            CoreEvent::TextDone { itt, .. } => {
                env.coverage.hit("text exchange");
                match self.texts.remove(&itt) {
                    true => self.submit(env),
                    false => Err(format!("answer to a text request that nobody made: {itt}")),
                }
            }
            CoreEvent::TextLost { itt } => {
                env.coverage.hit("text exchange lost");
                match self.texts.remove(&itt) {
                    true => self.submit(env),
                    false => Err(format!("text that nobody asked for is lost: {itt}")),
                }
            }
            CoreEvent::Pong { .. } => {
                env.coverage.hit("pong");
                Ok(())
            }
            CoreEvent::LoggedOut { .. } => {
                env.coverage.hit("connection logged out");
                Ok(())
            }
            CoreEvent::ConnectionFailed { error, .. } => connection_failed(env, error),
            CoreEvent::Recovery { what, .. } => {
                env.progress = env.now();
                env.coverage.hit(recovery_counter(&what));
                Ok(())
            }
            CoreEvent::SessionEnded { error: Some(ConnectionError::RecoveryTimeout { .. }) } => {
                env.coverage.hit("session recovery as the last resort");
                self.session_ended(env, false)
            }
            CoreEvent::SessionEnded { error } => self.session_ended(env, error.is_none()),
            CoreEvent::Async { event: AsyncEvent::TASK_TERMINATION, .. } => {
                env.coverage.hit("tasks terminated");
                Ok(())
            }
            other => Err(format!("initiator: unexpected event {other:?}")),
        }
    }

    fn session_ended(&mut self, env: &mut Env, clean: bool) -> Verdict {
        env.coverage.hit(if clean { "session closed" } else { "session failed" });
        for link in self.members.values().copied().collect::<Vec<_>>() {
            self.close_link(env, link);
        }
        for link in self.joining.keys().copied().collect::<Vec<_>>() {
            self.close_link(env, link);
        }
        // The session's end is the end of its functions too; their tasks were given back.
        self.management.clear();
        self.texts.clear();
        self.closing = false;
        self.timer = None;
        while let Some(event) = self.core.as_mut().and_then(Session::poll_event) {
            match event {
                CoreEvent::SessionEnded { .. } => return Err("a session ended twice".into()),
                event => self.handle_event(env, event)?,
            }
        }
        self.core = None;
        if let Some((op, itt)) = self.outstanding.first_key_value() {
            return Err(format!("{op} ({itt}) was not given back at the end of its session"));
        }
        if self.all_done(env) {
            self.finished = true;
        } else {
            redial(env);
        }
        Ok(())
    }

    pub(crate) fn timer(&mut self, env: &mut Env) -> Verdict {
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

    pub(crate) fn is_open(&self, link: Link) -> bool {
        self.links.get(&link).is_some_and(|link| !matches!(link.stage, Stage::Over))
    }

    /// A live connection, for something to go wrong with.
    pub(crate) fn any_link(&self, env: &mut Env) -> Option<Link> {
        let open = self.links.iter().filter(|(_, link)| !matches!(link.stage, Stage::Over));
        let links: Vec<Link> = open.map(|(link, _)| *link).collect();
        (!links.is_empty()).then(|| env.rng.pick(&links))
    }

    /// What it was doing, for a report of a failure.
    pub(crate) fn state(&self) -> String {
        let links: Vec<_> = self.members.values().map(|link| link.0).collect();
        format!(
            "initiator: {} of {} operations done; outstanding {:?}; waiting {:?}; functions {:?}; \
             members {links:?}; window {:?}",
            self.ops.iter().filter(|op| op.ending.is_some()).count(),
            self.ops.len(),
            self.outstanding,
            self.waiting,
            self.management,
            self.core.as_ref().map(Session::window),
        )
    }
}

/// The counter of what error recovery did.
fn recovery_counter(what: &Recovery) -> &'static str {
    match what {
        Recovery::DataSnack { .. } => "initiator: data SNACK",
        Recovery::R2tSnack { .. } => "initiator: R2T SNACK",
        Recovery::StatusSnack { .. } => "initiator: status SNACK",
        Recovery::R2tAgain { .. } => "initiator: recovery R2T",
        Recovery::CommandRetry { .. } => "initiator: command sent again",
        Recovery::Started { .. } => "connection recovery started",
        Recovery::Finished { .. } => "connection recovery finished",
        _ => "initiator: other recovery",
    }
}

/// Logs in again, after a while.
fn redial(env: &mut Env) {
    let delay = std::time::Duration::from_micros(env.rng.skewed(3_000_000));
    env.clock.after(delay, Event::Dial);
}

/// Why a connection may fail here; anything else is a mistake of one of the ends.
fn connection_failed(env: &mut Env, error: ConnectionError) -> Verdict {
    use ConnectionError as E;
    match error {
        E::NotRepaired { .. } => env.coverage.hit("connection ended unrepaired"),
        // It gives up where it cannot send again what the target could not read.
        E::Protocol { violation: Violation::Rejected(reason), cid, .. }
            if reason == RejectReason::DATA_DIGEST_ERROR =>
        {
            env.log(|| format!("initiator: gives up {cid}"));
            env.coverage.hit("connection ended by a Reject");
        }
        E::DataDigest { .. } => env.coverage.hit("connection ended by a data digest"),
        E::NotAnswered { .. } => env.coverage.hit("connection ended by a missing answer"),
        E::TransportLost { .. } => env.coverage.hit("connection lost"),
        E::PingTimeout { .. } => env.coverage.hit("initiator: ping timeout"),
        E::Logout { response: None, .. } => env.coverage.hit("logout timeout"),
        error => return Err(format!("initiator: {error}")),
    }
    Ok(())
}
