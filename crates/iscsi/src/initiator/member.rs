//! One session of an incarnation, with what its connections' drivers and the log need. Bookkeeping
//! only; [`State`](super::state::State) decides.

use std::sync::Weak;
use std::task::Waker;
use std::time::Duration;

use iscsi_proto::ids::Cid;
use iscsi_proto::initiator::{CONNECTIONS_MAX, ConnectionId, Recovery, Session};
use tokio::net::TcpStream;

use super::op::Task;
use super::rejoin::{Backoff, Home};

/// One session of the incarnation and what wakes its connections' drivers.
pub(super) struct Member {
    pub(super) session: Session<Task>,
    pub(super) wakers: Vec<Option<Waker>>,
    /// Sockets by connection, for reports. Weak: a socket closes when its driver ends, so that the
    /// target sees the end of its connections before the session is reinstated.
    pub(super) streams: Vec<Weak<TcpStream>>,
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

impl Member {
    pub(super) fn new(session: Session<Task>) -> Self {
        let wakers = vec![None; CONNECTIONS_MAX];
        let streams = vec![Weak::new(); CONNECTIONS_MAX];
        let (rejoining, backoff) = (Vec::new(), Backoff::default());
        Self { session, wakers, streams, rtt: None, home: None, rejoining, backoff, repairs: 0 }
    }
}

impl Member {
    /// The wakers of connections that have something to do, but for the one whose driver asks.
    pub(super) fn collect_wakes(&mut self, driver: Option<ConnectionId>, wakers: &mut Vec<Waker>) {
        for id in self.session.take_wakes() {
            if Some(id) != driver {
                // Taken, so that a busy driver is woken once and not for every command.
                wakers.extend(self.wakers[id.index()].take());
            }
        }
    }

    /// Says which way of recovery is taken.
    pub(super) fn note_recovery(&mut self, connection: ConnectionId, cid: Cid, what: &Recovery) {
        let cid = cid.0;
        match what {
            Recovery::Started { tasks } => {
                tracing::info!("connection {cid} lost; recovering {tasks} tasks (TASK REASSIGN)");
                self.streams[connection.index()] = Weak::new();
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
