//! What both ends share: clock, chance, network, storage, oracle, counters, and what will break.

use std::collections::VecDeque;

use bytes::Bytes;
use iscsi_proto::connection::Transmit;
use iscsi_proto::pdu::{Header, Opcode, Pdu};
use iscsi_proto::target::ConnId;
use iscsi_proto::time::Instant;

use super::disk::Disk;
use super::oracle::Oracle;
use super::sabotage::Sabotage;
use super::scenario::Scenario;
use super::trouble::{Breakage, Moment, Troubles};
use crate::clock::Clock;
use crate::coverage::Coverage;
use crate::net::{Arrival, Link, Network, Side};
use crate::rng::Rng;
use crate::stream::Stream;

/// A session of the target, numbered over all its restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionKey(pub(crate) u32);

/// What can happen next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Bytes, or the end of the stream, are there for an end of a connection.
    Arrive(Link, Side),
    InitiatorTimer,
    /// The initiator looks for commands that have no answer for too long.
    Watch,
    TargetTimer(Link),
    /// The target looks whether it still has to keep the tasks of a lost connection.
    TargetRetains(SessionKey, ConnId),
    /// The target closes a connection, once what it has to say is said.
    TargetCloses(Link, Instant),
    /// An operation of the storage ends.
    Disk(u64),
    WriteBack,
    /// Space runs out, or is there again.
    Space(bool),
    Break(Option<Link>, Breakage),
    PowerOn,
    /// Another initiator changes WCE.
    ModeSelect,
    /// Somebody looks after a target that refuses to flush.
    Operator,
    Dial,
    /// The initiator opens a connection that is missing.
    Join,
    LoginTimeout(Link, Side),
    /// A command that the unit was too busy for goes out again.
    Retry(u64),
    /// The application goes on after a pause.
    GoOn,
}

/// What has to be done before time goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Todo {
    Writable(Link, Side),
    /// The target may read on where it had held back.
    TargetInput(Link),
}

/// How far the initiator's incarnation has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Down,
    LoggingIn,
    /// Logged in with all connections; unit attentions are being told.
    Settling,
    Replaying,
    /// What was written again is being flushed.
    Flushing,
    /// The unit is asked what it is.
    Asking,
    Up,
}

/// The shared part of the world.
pub(crate) struct Env {
    pub(crate) clock: Clock<Event>,
    pub(crate) rng: Rng,
    pub(crate) net: Network,
    pub(crate) disk: Disk,
    pub(crate) oracle: Oracle,
    pub(crate) coverage: Coverage,
    pub(crate) scenario: Scenario,
    pub(crate) troubles: Troubles,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) verbose: bool,
    pub(crate) todo: VecDeque<Todo>,
    pub(crate) stage: Stage,
    /// Starts of the target so far.
    pub(crate) boot: u32,
    /// The target is there.
    pub(crate) powered: bool,
    /// The application has what it wanted: nothing more goes wrong.
    pub(crate) calm: bool,
    /// When an operation ended last: nothing may wait for ever.
    pub(crate) progress: Instant,
    /// Over all PDUs and their times: equal for equal runs.
    pub(crate) digest: u64,
}

impl Env {
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn has(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    pub(crate) fn log(&self, what: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>12.6} {}", self.now().0.as_secs_f64(), what());
        }
    }

    /// Something is about to happen that something else may break.
    pub(crate) fn moment(&mut self, moment: Moment, link: Option<Link>) {
        if self.calm {
            return;
        }
        if let Some((breakage, delay)) = self.troubles.due(moment, &mut self.rng) {
            self.log(|| format!("at {moment:?}: {breakage:?} in {delay:?}"));
            self.clock.after(delay, Event::Break(link, breakage));
        }
    }

    /// Turns a PDU into bytes and queues it.
    pub(crate) fn transmit(
        &mut self,
        link: Link,
        from: Side,
        stream: &mut Stream,
        transmit: &Transmit,
    ) {
        let bytes = stream.encode(transmit);
        let now = self.now();
        self.mix(now.0.as_nanos() as u64);
        self.mix(u64::from(crc32c::crc32c(&bytes)));
        stream.queue(&bytes);
        self.log(|| story(link, from, transmit));
        self.moment(Moment::Pdu, Some(link));
        match self.stage {
            Stage::LoggingIn => self.moment(Moment::Login, Some(link)),
            Stage::Settling | Stage::Asking => self.moment(Moment::SetUp, Some(link)),
            Stage::Replaying | Stage::Flushing => {
                self.moment(Moment::SetUp, Some(link));
                self.moment(Moment::Replay, Some(link));
            }
            Stage::Down | Stage::Up => {}
        }
        if from == Side::Target && transmit.header.opcode() == Opcode::SCSI_RESPONSE {
            self.moment(Moment::Answer, Some(link));
        }
    }

    fn mix(&mut self, value: u64) {
        self.digest = (self.digest ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    /// Moves queued bytes into the network. True if there is room for more.
    pub(crate) fn flush(&mut self, link: Link, from: Side, stream: &mut Stream) -> bool {
        let bytes = stream.take(self.net.room(link, from));
        if !bytes.is_empty() {
            self.send(link, from, bytes);
        }
        let more = stream.is_sent() && self.net.room(link, from) > 0;
        if !more {
            self.net.block(link, from);
        }
        more
    }

    fn send(&mut self, link: Link, from: Side, bytes: Bytes) {
        let now = self.now();
        // A direction of a connection keeps the order of its bytes.
        let lane = 2 * link.0 + from as usize;
        let Self { net, clock, .. } = self;
        net.send(link, from, bytes, now, |due| {
            clock.in_lane(lane, due, Event::Arrive(link, from.peer()));
        });
    }

    pub(crate) fn receive(&mut self, link: Link, to: Side) -> Arrival {
        self.net.receive(link, to, self.clock.now())
    }

    /// An end has taken bytes out of its socket buffer, so the other can write.
    pub(crate) fn consumed(&mut self, link: Link, by: Side, len: usize) {
        if len > 0 && self.net.consumed(link, by, len) {
            self.todo.push_back(Todo::Writable(link, by.peer()));
        }
    }

    /// Closes an end of a connection.
    pub(crate) fn close(&mut self, link: Link, side: Side) {
        let now = self.now();
        if let Some(due) = self.net.close(link, side, now) {
            self.clock.at(due, Event::Arrive(link, side.peer()));
        }
    }
}

/// A PDU as a failing seed tells it.
fn story(link: Link, from: Side, transmit: &Transmit) -> String {
    let header: &Header = &transmit.header;
    let what = match Pdu::parse(header) {
        Ok(pdu) => format!("{pdu:?}"),
        Err(error) => format!("unreadable: {error}"),
    };
    format!("{link} {from:?}: {what} + {} bytes", transmit.payload.len())
}
