//! The network between the two: connections as TCP gives them, two byte streams in order, cut and
//! delayed at will, of bounded capacity, and ending in any of the ways connections end.
//! It knows no PDU.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use iscsi_proto::time::Instant;

use crate::rng::Rng;

/// A connection, numbered in the order of their making and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link(pub(crate) usize);

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "link {}", self.0)
    }
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Initiator,
    Target,
}

impl Side {
    pub(crate) const fn peer(self) -> Self {
        match self {
            Self::Initiator => Self::Target,
            Self::Target => Self::Initiator,
        }
    }
}

/// What can go wrong with a connection. What can go wrong with a PDU is in `damage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A reset: some of what is under way arrives, then both ends learn of it, at their own time.
    Reset,
    /// From now on nothing arrives any more and nobody is told.
    BlackHole,
    /// The initiator's end closes; all it had sent arrives.
    InitiatorCloses,
    /// The target's end closes; all it had sent arrives.
    TargetCloses,
}

impl Fault {
    pub(crate) const ALL: [Self; 4] =
        [Self::Reset, Self::BlackHole, Self::InitiatorCloses, Self::TargetCloses];

    /// The counter that tells how often it happened.
    pub(crate) const fn counter(self) -> &'static str {
        match self {
            Self::Reset => "fault: reset",
            Self::BlackHole => "fault: black hole",
            Self::InitiatorCloses => "fault: initiator closes",
            Self::TargetCloses => "fault: target closes",
        }
    }
}

/// How a connection behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    /// Least time from end to end.
    pub(crate) latency: Duration,
    /// What chance adds to it at most, per piece.
    pub(crate) jitter: Duration,
    /// Longest piece that arrives at once, in bytes.
    pub(crate) piece_max: usize,
    /// Bytes in one direction that were sent and not yet read.
    pub(crate) capacity: usize,
}

/// What an end reads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    Bytes(Bytes),
    /// The peer has closed, or the connection was reset.
    End,
    /// It was lost on the way.
    Nothing,
}

#[derive(Debug)]
struct Piece {
    due: Instant,
    what: Arrival,
}

#[derive(Debug)]
struct Pipe {
    profile: Profile,
    pieces: VecDeque<Piece>,
    unread: usize,
    last_due: Instant,
    /// The writer may write.
    open: bool,
    /// The writer has found no room and waits for it.
    blocked: bool,
    swallows: bool,
}

/// All connections there ever were.
#[derive(Debug)]
pub(crate) struct Network {
    links: Vec<[Pipe; 2]>,
    rng: Rng,
}

impl Network {
    pub(crate) fn new(rng: Rng) -> Self {
        Self { links: Vec::new(), rng }
    }

    pub(crate) fn connect(&mut self, profile: Profile, now: Instant) -> Link {
        let pipe = || Pipe {
            profile,
            pieces: VecDeque::new(),
            unread: 0,
            last_due: now,
            open: true,
            blocked: false,
            swallows: false,
        };
        self.links.push([pipe(), pipe()]);
        Link(self.links.len() - 1)
    }

    /// Bytes that `from` can write now.
    pub(crate) fn room(&self, link: Link, from: Side) -> usize {
        let pipe = self.pipe(link, from);
        if pipe.open { pipe.profile.capacity.saturating_sub(pipe.unread) } else { 0 }
    }

    /// The writer has more than there is room for: [`Self::consumed`] says when to go on.
    pub(crate) fn block(&mut self, link: Link, from: Side) {
        self.pipe_mut(link, from).blocked = true;
    }

    /// Writes bytes. `each` is told when pieces of them arrive at the other end.
    pub(crate) fn send(
        &mut self,
        link: Link,
        from: Side,
        mut bytes: Bytes,
        now: Instant,
        mut each: impl FnMut(Instant),
    ) {
        while !bytes.is_empty() {
            let max = self.pipe(link, from).profile.piece_max.min(bytes.len());
            let len = self.rng.range(1, max as u64) as usize;
            let piece = bytes.split_to(len);
            self.pipe_mut(link, from).unread += len;
            each(self.push(link, from, Arrival::Bytes(piece), now));
        }
    }

    /// Takes what has arrived at `to`.
    pub(crate) fn receive(&mut self, link: Link, to: Side, now: Instant) -> Arrival {
        let pipe = self.pipe_mut(link, to.peer());
        if pipe.swallows || pipe.pieces.front().is_none_or(|piece| piece.due > now) {
            return Arrival::Nothing;
        }
        pipe.pieces.pop_front().map_or(Arrival::Nothing, |piece| piece.what)
    }

    /// The reader has taken `len` bytes out of its socket buffer. True if a writer that waits can
    /// go on: as with sockets when a third of the buffer is free, not for every byte.
    pub(crate) fn consumed(&mut self, link: Link, to: Side, len: usize) -> bool {
        let pipe = self.pipe_mut(link, to.peer());
        pipe.unread = pipe.unread.saturating_sub(len);
        let free = pipe.profile.capacity.saturating_sub(pipe.unread);
        pipe.blocked && free >= pipe.profile.capacity / 3 && std::mem::take(&mut pipe.blocked)
    }

    /// `side` closes its socket: it hears nothing more, and the peer hears of it after all that
    /// was sent. Returns when.
    pub(crate) fn close(&mut self, link: Link, side: Side, now: Instant) -> Option<Instant> {
        if !self.pipe(link, side).open {
            return None;
        }
        let incoming = self.pipe_mut(link, side.peer());
        incoming.pieces.clear();
        incoming.swallows = true;
        self.pipe_mut(link, side).open = false;
        Some(self.push(link, side, Arrival::End, now))
    }

    /// Breaks a connection. Returns who hears of it, and when.
    pub(crate) fn break_link(
        &mut self,
        link: Link,
        fault: Fault,
        now: Instant,
    ) -> Vec<(Side, Instant)> {
        let ends = [Side::Initiator, Side::Target];
        match fault {
            Fault::BlackHole => {
                for side in ends {
                    let pipe = self.pipe_mut(link, side);
                    pipe.swallows = true;
                    pipe.pieces.clear();
                }
                Vec::new()
            }
            // What has been sent arrives; the other end notices by itself.
            Fault::InitiatorCloses | Fault::TargetCloses => {
                let (closes, hears) = match fault {
                    Fault::InitiatorCloses => (Side::Initiator, Side::Target),
                    _ => (Side::Target, Side::Initiator),
                };
                self.pipe_mut(link, closes).open = false;
                let there = self.push(link, closes, Arrival::End, now);
                vec![(hears, there)]
            }
            Fault::Reset => {
                let mut hear = Vec::new();
                for from in ends {
                    let under_way = self.pipe(link, from).pieces.len() as u64;
                    let kept = self.rng.below(under_way + 1) as usize;
                    let pipe = self.pipe_mut(link, from);
                    pipe.pieces.truncate(kept);
                    pipe.open = false;
                    hear.push((from.peer(), self.push(link, from, Arrival::End, now)));
                }
                hear
            }
        }
    }

    fn push(&mut self, link: Link, from: Side, what: Arrival, now: Instant) -> Instant {
        let jitter = self.pipe(link, from).profile.jitter.as_micros() as u64;
        // Mostly little; now and then all of it.
        let jitter = Duration::from_micros(self.rng.skewed(jitter));
        let pipe = self.pipe_mut(link, from);
        let due = pipe.last_due.max(now + pipe.profile.latency + jitter);
        pipe.last_due = due;
        if !pipe.swallows {
            pipe.pieces.push_back(Piece { due, what });
        }
        due
    }

    fn pipe(&self, link: Link, from: Side) -> &Pipe {
        &self.links[link.0][from as usize]
    }

    fn pipe_mut(&mut self, link: Link, from: Side) -> &mut Pipe {
        &mut self.links[link.0][from as usize]
    }
}
