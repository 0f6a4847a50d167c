//! Looks at the sockets of connections whose silence is about to be judged, and tells their session
//! which of them still move bytes. System calls, so the disk's lock is not held meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use iscsi_proto::initiator::ConnectionId;
use iscsi_proto::time::Instant;
use tokio::net::TcpStream;

use super::shared::Shared;
use super::state::State;
use crate::transport::Vitals;

/// A connection that has been silent for a while.
pub(super) struct Suspect {
    member: usize,
    id: ConnectionId,
    serial: u32,
    stream: Arc<TcpStream>,
}

impl State {
    /// Connections whose silence [`Self::expire`] judges at this time.
    fn suspects(&self, now: Instant) -> Vec<Suspect> {
        let mut suspects = Vec::new();
        for (index, member) in self.members.iter().enumerate() {
            for id in member.session.suspects(now) {
                let serial = member.opened[id.index()].serial;
                let Some(stream) = member.streams[id.index()].upgrade() else { continue };
                suspects.push(Suspect { member: index, id, serial, stream });
            }
        }
        suspects
    }

    /// A connection's socket moves bytes, unless another one has taken its place since.
    fn note_alive(&mut self, suspect: &Suspect, now: Instant) {
        let Some(member) = self.members.get_mut(suspect.member) else { return };
        if member.opened[suspect.id.index()].serial == suspect.serial {
            member.session.note_acknowledged(suspect.id, now);
        }
    }
}

/// What was seen of the connections of one disk, by their serial numbers.
#[derive(Debug, Default)]
pub(super) struct Pulse(BTreeMap<u32, Vitals>);

impl Pulse {
    /// Looks at those that are suspected now.
    pub(super) fn feel(&mut self, shared: &Shared, now: Instant) {
        let suspects = shared.lock().suspects(now);
        if suspects.is_empty() {
            return;
        }
        let moved = |one: &Suspect| self.0.entry(one.serial).or_default().have_moved(&*one.stream);
        let alive: Vec<Suspect> = suspects.into_iter().filter(moved).collect();
        let mut state = shared.lock();
        alive.iter().for_each(|suspect| state.note_alive(suspect, now));
        let is_open = |serial: &u32| {
            let opened = state.members.iter().flat_map(|member| &member.opened);
            opened.into_iter().any(|opened| opened.serial == *serial)
        };
        self.0.retain(|serial, _| is_open(serial));
    }
}
