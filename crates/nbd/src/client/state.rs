//! What a disk knows: its requests, its connections, and what is acknowledged and unflushed.
//!
//! Decides which request is sent when, over which connection, and what an answer means. Knows no
//! socket: what is to be sent goes into the queue of a connection. The rules of durability are in
//! the crate of that name.

use std::collections::{BTreeMap, BTreeSet};

use block::{Buf, Bytes, DeviceInfo};
use durability::{Admission, Durability, Effect, Ended, Ticket, Writers};
use tokio::sync::{mpsc, oneshot};

use super::Config;
use super::handshake::Agreed;
use super::op::{ATTEMPTS_MAX, Failure, Op, Origin, Output, Request, Way, is_refusal};
use super::reply::{Answer, ServerError, Whole};
use crate::wire::{ErrorCode, REQUEST_HEADER_LEN};

/// What the task that writes to a socket gets.
pub(super) enum Outgoing {
    /// A request.
    Request([u8; REQUEST_HEADER_LEN], Bytes),
    /// Nothing more: shut down in an orderly way.
    Disconnect,
}

/// One connection that is up.
pub(super) struct Link {
    pub(super) queue: mpsc::UnboundedSender<Outgoing>,
    /// About so many bytes are under way over it.
    pub(super) under_way: u64,
}

/// Whether requests of users go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No connection, or what is kept is being written again: requests wait.
    Down,
    /// Requests go.
    Up,
    /// The server has been gone for too long: requests fail, until it is back.
    Unreachable(String),
    /// For good.
    Closed,
}

/// Everything behind the lock of a disk.
pub(super) struct State {
    pub(super) phase: Phase,
    /// Counts the sets of connections, so that what is left of an older one is known as such.
    pub(super) generation: u64,
    pub(super) links: Vec<Link>,
    pub(super) agreed: Agreed,
    pub(super) info: DeviceInfo,
    requests: BTreeMap<u64, Request>,
    /// Those that are not sent yet, oldest first.
    waiting: BTreeSet<u64>,
    held: BTreeSet<u64>,
    next_cookie: u64,
    pub(super) durability: Durability<Failure>,
    /// Something was written that no flush can cover, because the server knows none.
    pub(super) wrote_unflushable: bool,
    /// A request of a user has been answered since the connections came up.
    pub(super) progress: bool,
}

/// A reply that is being received.
pub(super) struct Receiving {
    pub(super) answer: Answer,
    pub(super) buf: Option<Buf>,
}

/// What the answer to a request made necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    GoOn,
    /// The server shuts down; what it refused is asked again when it is back.
    Reconnect,
}

impl State {
    pub(super) fn new(agreed: Agreed, info: DeviceInfo, config: &Config) -> Self {
        let writers = if config.shared { Writers::Several } else { Writers::One };
        Self {
            phase: Phase::Down,
            generation: 0,
            links: Vec::new(),
            agreed,
            info,
            requests: BTreeMap::new(),
            waiting: BTreeSet::new(),
            held: BTreeSet::new(),
            next_cookie: 1,
            durability: Durability::new(config.unflushed_len_max, writers),
            wrote_unflushable: false,
            progress: false,
        }
    }

    /// Asks for something. The receiver hears of it in any case, unless the request is lost with
    /// what it was asked for (`Origin::Replay`).
    pub(super) fn ask(
        &mut self,
        op: Op,
        buf: Option<Buf>,
        origin: Origin,
    ) -> oneshot::Receiver<Result<Output, Failure>> {
        let (done, receiver) = oneshot::channel();
        let refused = match &self.phase {
            Phase::Closed => Some(Failure::Unreachable("the disk was closed".into())),
            Phase::Unreachable(why) if origin == Origin::User => {
                Some(Failure::Unreachable(why.clone()))
            }
            _ => None,
        };
        if let Some(failure) = refused {
            let _ = done.send(Err(failure)); // who asked has the receiver
            return receiver;
        }
        let ticket = self.durability.ask();
        self.insert(op, buf, origin, ticket, done);
        if origin == Origin::Replay || self.phase == Phase::Up {
            self.pump();
        }
        receiver
    }

    fn insert(
        &mut self,
        op: Op,
        buf: Option<Buf>,
        origin: Origin,
        ticket: Ticket,
        done: oneshot::Sender<Result<Output, Failure>>,
    ) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let (effect, answer) = (op.effect(), Answer::new(op.asked()));
        let way = Way::Waiting;
        let attempts = 0;
        let request = Request { op, effect, ticket, origin, way, answer, buf, attempts, done };
        self.requests.insert(cookie, request);
        self.waiting.insert(cookie);
    }

    /// Sends what may be sent.
    pub(super) fn pump(&mut self) {
        self.flush_for_room();
        let mut from = 0;
        while let Some(cookie) = self.waiting.range(from..).next().copied() {
            from = cookie + 1;
            self.try_send(cookie);
        }
    }

    /// A flush of our own where there is need of one.
    fn flush_for_room(&mut self) {
        if self.phase != Phase::Up {
            return;
        }
        let is_write = |cookie| {
            self.requests.get(cookie).is_some_and(|r| matches!(r.effect, Effect::Volatile(..)))
        };
        let writes_wait = self.waiting.iter().any(is_write);
        if self.durability.wants_own_flush(writes_wait) {
            let ticket = self.durability.own_flush_sent();
            let (done, _) = oneshot::channel();
            self.insert(Op::Flush, None, Origin::OwnFlush, ticket, done);
        }
    }

    fn try_send(&mut self, cookie: u64) {
        let Some(request) = self.requests.get_mut(&cookie) else { return };
        let replay = request.origin == Origin::Replay;
        if !replay
            && (self.phase != Phase::Up
                || self.durability.admit(&request.effect) == Admission::Wait)
        {
            return;
        }
        // A caller that has gone wants nothing sent.
        if request.origin == Origin::User && request.done.is_closed() {
            self.remove(cookie);
            return;
        }
        let links = self.links.iter().enumerate();
        let Some((index, _)) = links.min_by_key(|(_, link)| link.under_way) else { return };
        if !replay {
            self.durability.sent(&request.effect, &mut request.ticket);
        }
        request.way = Way::Sent(index);
        request.attempts += 1;
        let header = request.op.header(cookie).to_bytes();
        let link = &mut self.links[index];
        link.under_way += request.op.weight();
        // A writer that has gone has ended the connection: it is lost in a moment.
        let _ = link.queue.send(Outgoing::Request(header, request.op.payload()));
        self.waiting.remove(&cookie);
    }

    fn remove(&mut self, cookie: u64) -> Option<Request> {
        self.waiting.remove(&cookie);
        self.held.remove(&cookie);
        self.requests.remove(&cookie)
    }

    /// A reply to this request begins, or goes on, on this connection.
    pub(super) fn receive(&mut self, link: usize, cookie: u64) -> Option<Receiving> {
        let request = self.requests.get_mut(&cookie)?;
        if request.way != Way::Sent(link) {
            return None;
        }
        let buf = match request.op {
            Op::Read { len, .. } => {
                Some(request.buf.take().unwrap_or_else(|| Buf::new(len as usize)))
            }
            _ => None,
        };
        Some(Receiving { answer: request.answer.clone(), buf })
    }

    /// A part of the reply has been received.
    pub(super) fn received(&mut self, cookie: u64, receiving: Receiving) {
        if let Some(request) = self.requests.get_mut(&cookie) {
            request.answer = receiving.answer;
            request.buf = receiving.buf;
        }
    }

    /// The reply is whole.
    pub(super) fn answered(
        &mut self,
        cookie: u64,
        buf: Option<Buf>,
        result: Result<Whole, ServerError>,
    ) -> After {
        let Some(request) = self.requests.get_mut(&cookie) else { return After::GoOn };
        if let Way::Sent(link) = request.way
            && let Some(link) = self.links.get_mut(link)
        {
            link.under_way = link.under_way.saturating_sub(request.op.weight());
        }
        let output = match (result, buf) {
            (Err(error), _) if error.code == ErrorCode::ESHUTDOWN => return After::Reconnect,
            (Err(error), _) => return self.refused(cookie, &error),
            (Ok(Whole::Extents(extents)), _) => Output::Extents(extents),
            (Ok(Whole::Done), Some(buf)) => Output::Data(buf),
            (Ok(Whole::Done), None) => Output::Done,
        };
        match request.origin {
            Origin::Replay => {
                if let Some(request) = self.remove(cookie) {
                    let _ = request.done.send(Ok(output)); // or the supervisor has begun anew
                }
            }
            Origin::OwnFlush => {
                if let Some(request) = self.remove(cookie) {
                    self.durability.own_flush_done(request.ticket);
                }
                self.ask_held_again();
            }
            Origin::User => {
                self.progress = true;
                self.finish(cookie, output);
                if !self.held.is_empty() {
                    self.ask_held_again();
                }
            }
        }
        self.pump();
        After::GoOn
    }

    /// A request of a user went well, as far as the server is concerned.
    fn finish(&mut self, cookie: u64, output: Output) {
        let Some(request) = self.requests.get_mut(&cookie) else { return };
        if matches!(request.effect, Effect::Volatile(..)) {
            self.wrote_unflushable |= self.durability.cache() == durability::Cache::Unflushable;
        }
        match self.durability.done(&request.effect, &mut request.ticket) {
            Ended::Good => {
                if let Some(request) = self.remove(cookie) {
                    let _ = request.done.send(Ok(output)); // or nobody waits any more
                }
            }
            Ended::Failed(failure) => {
                if let Some(request) = self.remove(cookie)
                    && request.done.send(Err(failure.clone())).is_err()
                {
                    self.durability.not_told(failure);
                }
            }
            Ended::Held => {
                request.way = Way::Held;
                self.held.insert(cookie);
            }
            Ended::Again => {
                request.start_again();
                self.held.remove(&cookie);
                self.waiting.insert(cookie);
            }
        }
    }

    /// Something has ended that others may have been held for.
    fn ask_held_again(&mut self) {
        for cookie in self.held.clone() {
            self.finish(cookie, Output::Done); // only what changes something is held
        }
    }

    /// The server refuses a request.
    fn refused(&mut self, cookie: u64, error: &ServerError) -> After {
        let Some(mut request) = self.remove(cookie) else { return After::GoOn };
        let failure = request.op.failure(error);
        let ticket = &mut request.ticket;
        match request.origin {
            Origin::Replay => {}
            Origin::OwnFlush => {
                if self.durability.own_flush_failed(ticket, failure.clone()) {
                    self.fail_waiting_writes(&failure);
                }
            }
            Origin::User => {
                self.progress = true;
                match is_refusal(&failure) {
                    true => self.durability.undone(ticket),
                    false => self.durability.failed(&request.effect, ticket, failure.clone()),
                }
            }
        }
        // Who asked may have gone: a failed flush is told to the next then.
        let unheard = request.done.send(Err(failure.clone())).is_err();
        if unheard && request.origin == Origin::User && request.effect == Effect::Flushed {
            self.durability.not_told(failure);
        }
        self.ask_held_again();
        self.pump();
        After::GoOn
    }

    /// There is no room for them, and there will be none.
    fn fail_waiting_writes(&mut self, failure: &Failure) {
        for cookie in self.waiting.clone() {
            let waits = self
                .requests
                .get(&cookie)
                .is_some_and(|request| self.durability.admit(&request.effect) == Admission::Wait);
            if waits && let Some(request) = self.remove(cookie) {
                let _ = request.done.send(Err(failure.clone())); // or nobody waits any more
            }
        }
    }

    /// All connections are gone. What was under way is sent again once there are others, and what
    /// was written again is over.
    pub(super) fn lost(&mut self, why: &str) {
        self.generation += 1;
        self.links.clear();
        if self.phase == Phase::Up {
            self.phase = Phase::Down;
        }
        self.durability.lost();
        self.held.clear();
        let cookies: Vec<u64> = self.requests.keys().copied().collect();
        for cookie in cookies {
            let Some(request) = self.requests.get_mut(&cookie) else { continue };
            let was_sent = request.way != Way::Waiting;
            request.start_again();
            self.waiting.insert(cookie);
            let gone = request.origin != Origin::User || request.done.is_closed();
            let tried = was_sent && request.attempts >= ATTEMPTS_MAX;
            if (gone || tried)
                && let Some(request) = self.remove(cookie)
                && request.origin == Origin::User
            {
                let why = format!(
                    "the connection was lost {ATTEMPTS_MAX} times with this request under way: {why}"
                );
                let _ = request.done.send(Err(Failure::Unreachable(why)));
            }
        }
    }

    /// What waits fails, as does everything that is asked for from now on.
    pub(super) fn give_up(&mut self, phase: Phase, why: &str) {
        self.phase = phase;
        for (_, request) in std::mem::take(&mut self.requests) {
            let _ = request.done.send(Err(Failure::Unreachable(why.to_owned())));
        }
        self.waiting.clear();
        self.held.clear();
    }

    /// Requests that have no answer yet.
    pub(super) fn requests_len(&self) -> usize {
        self.requests.len()
    }

    /// A flush of a server that knows none: it can only tell what was not told.
    pub(super) fn flush_in_name(&mut self) -> Result<(), Failure> {
        let mut ticket = self.durability.ask();
        match self.durability.done(&Effect::Flushed, &mut ticket) {
            Ended::Failed(failure) => Err(failure),
            _ => Ok(()),
        }
    }
}
