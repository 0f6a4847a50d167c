//! Receipts: whether the initiator has an answer that the shell has to be sure of.
//!
//! A unit attention is told once (SAM-5 §5.14), and a connection may be lost with the answer that
//! tells it. The status counts as received when ExpStatSN passes its StatSN (RFC 7143 §4.2.2.2);
//! when its connection ends before that, or the task is aborted with its answer unsent, the shell
//! learns that it may be lost. Sent again by recovery, it may be both, lost and then received.

use super::event::ConnId;
use super::session::Session;
use super::task::Completion;
use crate::serial::StatSn;

/// What the shell knows an answer by: see [`Completion::receipt`](super::Completion::receipt).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt(pub u64);

/// What became of an answer with a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The initiator has it.
    Acknowledged(Receipt),
    /// It may never have arrived.
    Lost(Receipt),
}

impl Session {
    /// What became of the answers that had a receipt.
    pub fn poll_delivery(&mut self) -> Option<Delivery> {
        self.deliveries.pop_front()
    }

    /// An answer was given its number.
    pub(super) fn expect_receipt(&mut self, conn: ConnId, stat_sn: StatSn, receipt: Receipt) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            connection.receipts.push_back((stat_sn, receipt));
        }
    }

    /// The initiator has everything on `conn` before `exp_stat_sn`.
    pub(super) fn take_receipts(&mut self, conn: ConnId, exp_stat_sn: StatSn) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        while let Some((stat_sn, receipt)) = connection.receipts.front().copied()
            && stat_sn.is_before(exp_stat_sn)
        {
            connection.receipts.pop_front();
            self.deliveries.push_back(Delivery::Acknowledged(receipt));
        }
    }

    /// Nothing comes in or goes out on `conn` any more.
    pub(super) fn lose_receipts(&mut self, conn: ConnId) {
        if let Some(connection) = self.connections.get_mut(&conn) {
            let lost = connection.receipts.drain(..).map(|(_, receipt)| Delivery::Lost(receipt));
            self.deliveries.extend(lost);
        }
    }

    /// This answer will not be sent.
    pub(super) fn lose_answer(&mut self, completion: &Completion) {
        self.deliveries.extend(completion.receipt.map(Delivery::Lost));
    }
}
