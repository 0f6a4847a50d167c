//! One session of an incarnation, with what its connections' drivers and the log need. Bookkeeping
//! only; [`State`](super::state::State) decides.

use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use iscsi_proto::ids::{Cid, Isid};
use iscsi_proto::initiator::{CONNECTIONS_MAX, ConnectionId, Recovery, Session};
use iscsi_proto::pdu::AsyncEvent;
use iscsi_proto::time::Instant;
use tokio::net::TcpStream;

use super::op::Task;
use super::rejoin::{Backoff, Home};

/// One session of the incarnation and what wakes its connections' drivers.
pub(super) struct Member {
    pub(super) session: Session<Task>,
    /// Of its ISID.
    pub(super) qualifier: u16,
    pub(super) wakers: Vec<Option<Waker>>,
    /// Sockets by connection, for reports. Weak: a socket closes when its driver ends, so that the
    /// target sees the end of a connection before anything takes its place.
    pub(super) streams: Vec<Weak<TcpStream>>,
    /// What the path controller calls a connection, and since when there is one.
    pub(super) opened: Vec<Opened>,
    /// What part it has in the user's I/O.
    pub(super) part: Part,
    /// Last round-trip time of a NOP.
    pub(super) rtt: Option<Duration>,
    /// Where its connections lead, to open them again; `None` if they are not.
    pub(super) home: Option<Home>,
    /// CIDs that are being opened again.
    pub(super) rejoining: Vec<Cid>,
    /// Pauses between attempts to do so.
    pub(super) backoff: Backoff,
    /// Damaged or missing PDUs that were asked for again.
    repairs: u64,
}

/// Drivers to be woken. One, as for nearly every command, is kept without an allocation.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakers {
    fn extend(&mut self, waker: Option<Waker>) {
        match (&self.first, waker) {
            (None, waker) => self.first = waker,
            (Some(_), waker) => self.more.extend(waker),
        }
    }

    /// There are none. `more` has some only behind the first one.
    pub(super) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Wakes them all; it is empty then.
    pub(super) fn wake(&mut self) {
        for waker in self.first.take().into_iter().chain(self.more.drain(..)) {
            waker.wake();
        }
    }
}

/// A connection as the path controller tells it from those before it in the same place.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Opened {
    pub(super) serial: u32,
    pub(super) at: Instant,
}

/// What part a session has in the user's I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It carries commands.
    Full,
    /// It was added while others carry commands, and its unit has not said that it is ready.
    Joining,
    /// It takes no more commands, and logs out when the last has ended.
    Leaving,
    /// It has ended, and nobody misses it: its place can be taken.
    Gone,
}

impl Member {
    pub(super) fn new(session: Session<Task>, isid: Isid) -> Self {
        let wakers = vec![None; CONNECTIONS_MAX];
        let streams = (0..CONNECTIONS_MAX).map(|_| Weak::new()).collect();
        Self {
            session,
            qualifier: isid.qualifier(),
            wakers,
            streams,
            opened: vec![Opened::default(); CONNECTIONS_MAX],
            part: Part::Full,
            rtt: None,
            home: None,
            rejoining: Vec::new(),
            backoff: Backoff::default(),
            repairs: 0,
        }
    }

    /// It carries commands of the user.
    pub(super) fn is_usable(&self) -> bool {
        self.part == Part::Full && self.session.is_open()
    }

    /// The session has ended, with a failure or with the whole disk, or well. True if the others
    /// end with it: not if it was not in use, or was done.
    pub(super) fn is_missed(&mut self, badly: bool) -> bool {
        match std::mem::replace(&mut self.part, Part::Gone) {
            Part::Full => true,
            Part::Leaving => badly,
            Part::Joining | Part::Gone => false,
        }
    }

    /// Notes the socket of a connection.
    pub(super) fn attach(&mut self, id: ConnectionId, stream: &Arc<TcpStream>, opened: Opened) {
        self.streams[id.index()] = Arc::downgrade(stream);
        self.opened[id.index()] = opened;
    }

    /// Connections that take commands, with their CID.
    pub(super) fn active(&self) -> impl Iterator<Item = (ConnectionId, Cid)> {
        let usable = self.part == Part::Full;
        let all = self.session.connections().map(|(id, cid, _)| (id, cid));
        all.filter(move |(id, _)| usable && self.session.takes_commands(*id))
    }
}

impl Member {
    /// The wakers of connections that have something to do, but for the one whose driver asks.
    pub(super) fn collect_wakes(&mut self, driver: Option<ConnectionId>, wakers: &mut Wakers) {
        for id in self.session.take_wakes() {
            if Some(id) != driver {
                // Taken, so that a busy driver is woken once and not for every command.
                wakers.extend(self.wakers[id.index()].take());
            }
        }
    }

    /// Says which way of recovery is taken.
    pub(super) fn note_recovery(&mut self, cid: Cid, what: &Recovery) {
        let cid = cid.0;
        match what {
            Recovery::Started { tasks } => {
                tracing::info!("connection {cid} lost; recovering {tasks} tasks (TASK REASSIGN)");
            }
            Recovery::Finished { reassigned, retried, requeued } => tracing::info!(
                "connection {cid} recovered: {reassigned} tasks reassigned, {retried} sent again, \
                 {requeued} re-issued"
            ),
            what => {
                self.repairs += 1;
                // A line that damages everything must not fill the log.
                let (repairs, what) = (self.repairs, repair_name(what));
                if repairs.is_power_of_two() {
                    tracing::info!("connection {cid}: {what} ({repairs} repairs so far)");
                } else {
                    tracing::debug!("connection {cid}: {what}");
                }
            }
        }
    }
}

/// Asynchronous messages of the target, over all its sessions (RFC 7143 §11.9). It may send as many
/// as it likes, and must not fill the log with them: the first is told, then every doubling.
#[derive(Debug, Default)]
pub(super) struct AsyncMessages(u64);

impl AsyncMessages {
    /// Logs one. True: so that a user sees it.
    pub(super) fn note(&mut self, event: &AsyncEvent) -> bool {
        self.0 += 1;
        let count = self.0;
        let is_told = count.is_power_of_two();
        if is_told {
            tracing::info!(%event, "asynchronous message ({count} so far)");
        } else {
            tracing::debug!(%event, "asynchronous message");
        }
        is_told
    }
}

const fn repair_name(what: &Recovery) -> &'static str {
    match what {
        Recovery::DataSnack { .. } => "data SNACK",
        Recovery::R2tSnack { .. } => "R2T SNACK",
        Recovery::StatusSnack { .. } => "status SNACK",
        Recovery::R2tAgain { .. } => "recovery R2T",
        Recovery::CommandRetry { .. } => "command retry",
        _ => "recovery",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asynchronous_messages_do_not_fill_the_log() {
        let mut messages = AsyncMessages::default();
        let told = (0..100_000).filter(|_| messages.note(&AsyncEvent::SCSI_EVENT)).count();
        assert_eq!(told, 17);
    }
}
