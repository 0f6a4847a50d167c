//! What both ends of the simulation share: clock, chance, network, observer, model, counters.

use std::collections::VecDeque;

use bytes::Bytes;
use iscsi_proto::connection::Transmit;
use iscsi_proto::ids::Itt;
use iscsi_proto::target::ConnId;
use iscsi_proto::time::Instant;

use crate::clock::Clock;
use crate::coverage::Coverage;
use crate::cuts::Cuts;
use crate::damage::{self, Damage, Fate};
use crate::model::Model;
use crate::net::{Arrival, Fault, Link, Network, Side};
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::scenario::Scenario;
use crate::stream::Stream;
use crate::wire_check::{SessionKey, WireCheck};

/// What can happen next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Bytes, or the end of the stream, are there for an end of a connection.
    Arrive(Link, Side),
    InitiatorTimer,
    TargetTimer(Link),
    /// The target gets round to a connection that was woken.
    TargetWakes(Link),
    /// The target looks whether it still has to keep the tasks of a lost connection.
    TargetRetains(SessionKey, ConnId),
    /// The target's limits let a command go on.
    TargetAdmits(SessionKey, ConnId, Itt),
    /// A command ends at the medium.
    Storage(u64),
    /// A connection breaks.
    Fault,
    /// A certain connection breaks.
    Cut(Link, Fault),
    /// The application wants another number of connections.
    Membership,
    /// The application aborts something.
    Management,
    /// The application closes its session and opens another.
    Restart,
    /// The initiator logs in (again).
    Dial,
    /// The initiator logs in again with a connection of a session that has lost them all.
    Reinstate,
    /// A login has taken too long.
    LoginTimeout(Link, Side),
    /// The target closes a connection, once what it has to say is said.
    TargetCloses(Link, Instant),
}

/// What has to be done before time goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Todo {
    /// An end can write again.
    Writable(Link, Side),
    /// The target may read on where it had held back.
    TargetInput(Link),
}

/// The shared part of the world.
#[derive(Debug)]
pub(crate) struct Env {
    pub(crate) clock: Clock<Event>,
    pub(crate) rng: Rng,
    pub(crate) net: Network,
    pub(crate) wire: WireCheck,
    pub(crate) model: Model,
    pub(crate) coverage: Coverage,
    pub(crate) damage: Damage,
    pub(crate) cuts: Cuts,
    pub(crate) scenario: Scenario,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) verbose: bool,
    pub(crate) todo: VecDeque<Todo>,
    /// When an operation ended last: nothing may wait for ever.
    pub(crate) progress: Instant,
    /// Over all PDUs and their times: equal for equal runs.
    pub(crate) digest: u64,
}

impl Env {
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn log(&self, what: impl FnOnce() -> String) {
        if self.verbose {
            println!("{:>12.6} {}", self.now().0.as_secs_f64(), what());
        }
    }

    /// Turns a PDU into bytes, shows it to the observer and queues it.
    pub(crate) fn transmit(
        &mut self,
        link: Link,
        from: Side,
        stream: &mut Stream,
        transmit: &Transmit,
    ) -> Result<(), String> {
        let mut bytes = match self.sabotage.filter(|sabotage| sabotage.is_about_recovery()) {
            Some(sabotage) => {
                let (mut header, payload) = (transmit.header.clone(), transmit.payload.clone());
                let occasion = self.wire.occasion(link, &header);
                sabotage.distort(&mut header, occasion);
                stream.encode(&Transmit { header, payload })
            }
            None => stream.encode(transmit),
        };
        if let Some(sabotage) = self.sabotage {
            sabotage.damage(&mut bytes);
        }
        let now = self.now();
        self.mix(now.0.as_nanos() as u64);
        self.mix(u64::from(crc32c::crc32c(&bytes)));
        let framing = stream.framing();
        let fate = self.damage.fate(&bytes, framing, self.wire.survives_loss(link));
        let pdu = self.wire.sent(link, from, &bytes, fate, now, &mut self.coverage)?;
        self.log(|| format!("{link} {from:?}: {pdu:?} + {} bytes", transmit.payload.len()));
        if fate != Fate::Arrives {
            self.coverage.hit(damage::counter(fate, from, &bytes));
            self.log(|| format!("{link} {from:?}: {fate:?}"));
            self.damage.inflict(fate, &mut bytes, framing);
        }
        if fate != Fate::Lost {
            stream.queue(&bytes);
        }
        if let Some((fault, delay)) = self.cuts.due(&pdu, &mut self.rng) {
            self.clock.after(delay, Event::Cut(link, fault));
        }
        Ok(())
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
        let now = self.now();
        let arrival = self.net.receive(link, to, now);
        if let (Arrival::Bytes(bytes), Side::Initiator) = (&arrival, to) {
            self.wire.delivered(link, bytes.len());
        }
        arrival
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
