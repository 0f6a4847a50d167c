//! PDUs that were taken from a session's core and are not handed on yet: many with one lock.

use std::collections::VecDeque;

use iscsi_proto::connection::Transmit;

/// PDUs taken with one lock, and payload bytes after which to stop: enough for one vectored write,
/// little enough that priorities, sequence numbers and windows do not age.
const PDUS_MAX: usize = 32;
const BYTES_MAX: usize = 256 << 10;

/// They are handed on in the order in which they were taken.
pub(crate) struct Ahead(VecDeque<Transmit>);

impl Ahead {
    pub(crate) fn new() -> Self {
        Self(VecDeque::with_capacity(PDUS_MAX))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes as many as there may be, or are.
    pub(crate) fn fill(&mut self, mut take: impl FnMut() -> Option<Transmit>) {
        let mut bytes = 0;
        while self.0.len() < PDUS_MAX && bytes < BYTES_MAX {
            let Some(transmit) = take() else { break };
            bytes += transmit.payload.len();
            self.0.push_back(transmit);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Transmit> {
        self.0.pop_front()
    }
}
