//! The near end: the product's rules of what is durable (`iscsi_proto::initiator::durability`), and
//! the least of a driver around them. It knows what its users asked for and were told.

use bytes::Bytes;
use iscsi_proto::initiator::durability::{
    Admission, Cache, Content, Durability, Effect, Ended, Refusal, Step, Ticket, Writers,
};
use scsi::{Command, Nexus, Response, Status};

use super::Random;
use super::mistakes::Mistake;
use super::oracle::{Oracle, SECTOR, SECTORS, filled};
use super::server::{self, Server, finish};

/// What a user asks for: first sector and count.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Write {
        range: (u64, u64),
        fua: bool,
    },
    Zero {
        range: (u64, u64),
    },
    Trim {
        range: (u64, u64),
    },
    Flush,
    /// The initiator's own, to make room.
    OwnFlush,
}

/// An operation without an answer.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub number: u32,
    pub kind: Kind,
    ticket: Ticket,
}

#[derive(Clone)]
pub struct Client {
    pub core: Durability<&'static str>,
    pub oracle: Oracle,
    pub waiting: Vec<Op>,
    /// Ended with GOOD, which counts when others have ended, too.
    held: Vec<Op>,
    /// A user was told that acknowledged data were lost.
    pub told_loss: bool,
    mistake: Option<Mistake>,
    next: u32,
}

impl Client {
    pub fn new(limit: u64, writers: Writers, mistake: Option<Mistake>) -> Self {
        let core = Durability::new(limit, writers);
        Self {
            core,
            oracle: Oracle::default(),
            waiting: Vec::new(),
            held: Vec::new(),
            told_loss: false,
            mistake,
            next: 1,
        }
    }

    pub fn mistake(&self) -> Option<Mistake> {
        self.mistake
    }

    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// A new operation, if there is one that may be sent now.
    pub fn ask(&mut self, random: &mut Random) -> Option<(u32, Command)> {
        let sector = random.below(SECTORS);
        let range = (sector, (1 + random.below(4)).min(SECTORS - sector));
        let number = self.next;
        let kind = match random.below(12) {
            0..7 => Kind::Write { range, fua: random.below(4) == 0 },
            7 | 8 => Kind::Zero { range },
            9 => Kind::Trim { range },
            _ => Kind::Flush,
        };
        let op = Op { number, kind, ticket: self.core.ask() };
        let waits = self.core.admit(&effect(&op)) == Admission::Wait;
        let (kind, ticket) = match self.core.wants_own_flush(waits) {
            true => (Kind::OwnFlush, self.core.own_flush_sent()),
            false if waits => return None,
            false => (kind, op.ticket),
        };
        self.next += 1;
        match kind {
            Kind::Write { range, .. } => self.oracle.begin(number, range, number, true),
            Kind::Zero { range } => self.oracle.begin(number, range, 0, true),
            Kind::Trim { range } => self.oracle.begin(number, range, 0, false),
            Kind::Flush | Kind::OwnFlush => {}
        }
        let mut op = Op { number, kind, ticket };
        self.core.sent(&effect(&op), &mut op.ticket);
        if matches!(kind, Kind::Flush) && self.is(Mistake::FlushNotSent) {
            let _told = self.core.done(&Effect::Flushed, &mut op.ticket);
            return None;
        }
        if matches!(kind, Kind::Flush) && self.is(Mistake::FlushCoversAtOnce) {
            self.core.undone(&mut op.ticket);
            let _early = self.core.done(&Effect::Flushed, &mut op.ticket);
        }
        self.waiting.push(op);
        Some((number, command(&op)))
    }

    /// An answer.
    pub fn answered(&mut self, number: u32, response: &Response) {
        let Some(at) = self.waiting.iter().position(|op| op.number == number) else { return };
        let mut op = self.waiting.remove(at);
        assert_eq!(response.status, Status::GOOD, "{op:?}: {response:?}");
        if self.is(Mistake::FlushCoversLater) {
            self.core.sent(&effect(&op), &mut op.ticket);
        }
        match op.kind {
            Kind::OwnFlush => self.core.own_flush_done(op.ticket),
            _ => self.settle(op),
        }
        for op in std::mem::take(&mut self.held) {
            self.settle(op);
        }
    }

    /// GOOD has come, and perhaps counts.
    fn settle(&mut self, mut op: Op) {
        let effect = match (op.kind, effect(&op)) {
            (Kind::Write { fua: true, .. }, _) if self.is(Mistake::FuaCoversAll) => Effect::Flushed,
            (Kind::Write { fua: true, .. }, _) if self.is(Mistake::FuaKeepsOlder) => Effect::None,
            (Kind::Zero { .. }, _) if self.is(Mistake::ZeroesNotKept) => Effect::None,
            (_, effect) => effect,
        };
        match self.core.done(&effect, &mut op.ticket) {
            Ended::Good => self.oracle.acknowledge(op.number),
            Ended::Failed(_) => self.told_loss = true,
            Ended::Held => self.held.push(op),
            Ended::Again => self.waiting.push(op),
        }
    }

    /// The session is lost and set up again, over connections of which some are lost, too. Gives
    /// the new session, with all that waited for an answer sent again, or given up.
    pub fn recover(&mut self, server: &Server, random: &mut Random) -> Nexus {
        self.core.lost();
        self.waiting.append(&mut self.held);
        for _ in 0..random.below(3) {
            let nexus = server.log_in();
            // It is lost before it asks, with the answer under way, with the answer read, or also
            // acknowledged.
            let asks = random.below(4);
            let told = asks > 0 && server.ask(&nexus, asks == 3) == Some(true);
            if told && asks >= 2 {
                self.power_on(true);
            }
        }
        let nexus = server.log_in();
        while let Some(power_on) = server.ask(&nexus, true) {
            if power_on {
                self.power_on(false);
            }
        }
        if self.is(Mistake::ReplayLate) {
            self.send_again(&nexus, random);
        }
        let mut step = self.core.begin(Cache::Volatile, |_| "lost");
        loop {
            step = match step {
                Step::Write(pieces) => {
                    let refusal = self.write_again(&nexus, pieces);
                    self.core.written(refusal)
                }
                Step::Flush => {
                    if !self.is(Mistake::ReplayUnflushed) {
                        good(&finish(nexus.execute(server::flush())));
                    }
                    self.core.stable(None)
                }
                Step::Open => break,
            };
        }
        self.send_again(&nexus, random);
        nexus
    }

    fn power_on(&mut self, lost_with_connection: bool) {
        if !(lost_with_connection && self.is(Mistake::PowerOnForgotten)) {
            self.core.power_on();
        }
    }

    fn write_again(
        &self,
        nexus: &Nexus,
        mut pieces: Vec<(u64, Content)>,
    ) -> Option<Refusal<&'static str>> {
        if self.is(Mistake::ReplayShort) {
            pieces.pop();
        }
        if self.is(Mistake::ReplaySkipped) {
            pieces.clear();
        }
        for (offset, content) in pieces {
            let command = match content {
                Content::Data(data) => server::write(offset / SECTOR, data, false),
                Content::Zeroes(len) => server::zero(offset / SECTOR, len / SECTOR),
            };
            good(&finish(nexus.execute(command)));
        }
        None
    }

    /// Commands without an answer are sent again, unless their users have given them up.
    fn send_again(&mut self, nexus: &Nexus, random: &mut Random) {
        for mut op in std::mem::take(&mut self.waiting) {
            if matches!(op.kind, Kind::OwnFlush) || random.below(4) == 0 {
                continue;
            }
            self.core.sent(&effect(&op), &mut op.ticket);
            self.waiting.push(op);
            let response = finish(nexus.execute(command(&op)));
            self.answered(op.number, &response);
        }
    }

    /// A flush of the user, alone. True when it was told to have gone well.
    pub fn flush(&mut self, nexus: &Nexus) -> bool {
        let mut ticket = self.core.ask();
        self.core.sent(&Effect::Flushed, &mut ticket);
        if !self.is(Mistake::FlushNotSent) {
            good(&finish(nexus.execute(server::flush())));
        }
        self.core.done(&Effect::Flushed, &mut ticket) == Ended::Good
    }
}

fn good(response: &Response) {
    assert_eq!(response.status, Status::GOOD, "{response:?}");
}

fn bytes((sector, count): (u64, u64)) -> (u64, u64) {
    (sector * SECTOR, count * SECTOR)
}

fn effect(op: &Op) -> Effect {
    match op.kind {
        Kind::Write { range, fua: true } => Effect::Stable(bytes(range).0, bytes(range).1),
        Kind::Write { range, fua: false } => {
            let data = Bytes::from(filled(op.number, range.1));
            Effect::Volatile(bytes(range).0, Content::Data(data))
        }
        Kind::Zero { range } => Effect::Volatile(bytes(range).0, Content::Zeroes(bytes(range).1)),
        Kind::Trim { range } => Effect::Undefined(bytes(range).0, bytes(range).1),
        Kind::Flush | Kind::OwnFlush => Effect::Flushed,
    }
}

fn command(op: &Op) -> Command {
    match op.kind {
        Kind::Write { range, fua } => {
            server::write(range.0, filled(op.number, range.1).into(), fua)
        }
        Kind::Zero { range } => server::zero(range.0, range.1),
        Kind::Trim { range } => server::unmap(range.0, range.1),
        Kind::Flush | Kind::OwnFlush => server::flush(),
    }
}
