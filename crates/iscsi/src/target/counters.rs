//! What happened on a server's connections, counted for the metrics; and [`Observed`], which
//! counts it without the connection knowing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context;

use block::Buf;
use iscsi_proto::connection::Transmit;
use iscsi_proto::pdu::{Header, LogoutReason, Opcode, Pdu, TaskManagementFunction};

use crate::driver::{CloseReason, Dest, Filled, Role};

/// Counters of a whole server. They only grow.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) logins: AtomicU64,
    login_failures: Mutex<BTreeMap<&'static str, u64>>,
    events: Mutex<BTreeMap<&'static str, u64>>,
    rejects: Mutex<BTreeMap<u8, u64>>,
    sense: Mutex<BTreeMap<(String, u16, u8), u64>>,
    pdus_in: AtomicU64,
    pdus_out: AtomicU64,
}

/// A copy of the counters at one moment.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CounterView {
    /// Connections that have reached full-feature phase.
    pub logins: u64,
    /// Logins that failed, by reason.
    pub login_failures: BTreeMap<&'static str, u64>,
    /// Errors and recoveries of connections, by kind.
    pub events: BTreeMap<&'static str, u64>,
    /// Reject PDUs sent, by reason code (RFC 7143 §11.17.1).
    pub rejects: BTreeMap<u8, u64>,
    /// Commands that ended with CHECK CONDITION, by target, logical unit and sense key.
    pub sense: BTreeMap<(String, u16, u8), u64>,
    /// PDUs received in full-feature phase.
    pub pdus_in: u64,
    /// PDUs sent in full-feature phase.
    pub pdus_out: u64,
}

/// Kinds of [`CounterView::events`], so that those that have not happened show as 0.
const EVENTS: [&str; 6] = [
    "header_digest_error",
    "data_digest_error",
    "snack",
    "connection_recovery",
    "task_reassign",
    "protocol_error",
];

fn count<K: Ord>(map: &Mutex<BTreeMap<K, u64>>, key: K) {
    *map.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
}

fn copy<K: Ord + Clone>(map: &Mutex<BTreeMap<K, u64>>) -> BTreeMap<K, u64> {
    map.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Counters {
    pub(super) fn login_failed(&self, reason: &'static str) {
        count(&self.login_failures, reason);
    }

    /// A command ended with sense data. `lun` exists, so that nobody can invent keys.
    pub(super) fn sense(&self, target_name: &str, lun: u16, key: u8) {
        count(&self.sense, (target_name.to_owned(), lun, key));
    }

    fn event(&self, kind: &'static str) {
        count(&self.events, kind);
    }

    pub(super) fn view(&self) -> CounterView {
        let mut events: BTreeMap<_, _> = EVENTS.into_iter().map(|kind| (kind, 0)).collect();
        events.extend(copy(&self.events));
        CounterView {
            logins: self.logins.load(Ordering::Relaxed),
            login_failures: copy(&self.login_failures),
            events,
            rejects: copy(&self.rejects),
            sense: copy(&self.sense),
            pdus_in: self.pdus_in.load(Ordering::Relaxed),
            pdus_out: self.pdus_out.load(Ordering::Relaxed),
        }
    }

    fn received(&self, header: &Header) {
        self.pdus_in.fetch_add(1, Ordering::Relaxed);
        // Only these are worth a closer look; none of them is frequent.
        let rare = [Opcode::SNACK_REQUEST, Opcode::LOGOUT_REQUEST, Opcode::TASK_MANAGEMENT_REQUEST];
        if !rare.contains(&header.opcode()) {
            return;
        }
        match Pdu::parse(header) {
            Ok(Pdu::SnackRequest(_)) => self.event("snack"),
            Ok(Pdu::LogoutRequest(pdu))
                if pdu.reason == LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY =>
            {
                self.event("connection_recovery");
            }
            Ok(Pdu::TaskManagementRequest(pdu))
                if pdu.function == TaskManagementFunction::TASK_REASSIGN =>
            {
                self.event("task_reassign");
            }
            _ => {}
        }
    }

    fn sent(&self, header: &Header) {
        self.pdus_out.fetch_add(1, Ordering::Relaxed);
        if header.opcode() == Opcode::REJECT
            && let Ok(Pdu::Reject(reject)) = Pdu::parse(header)
        {
            count(&self.rejects, reject.reason.0);
        }
    }

    pub(super) fn closed(&self, reason: &CloseReason) {
        use iscsi_proto::frame::FrameError;
        match reason {
            CloseReason::Frame(FrameError::HeaderDigest { .. }) => {
                self.event("header_digest_error")
            }
            CloseReason::Frame(_) | CloseReason::Protocol(_) => self.event("protocol_error"),
            _ => {}
        }
    }
}

/// A connection whose PDUs are counted.
pub(super) struct Observed<R> {
    pub(super) role: R,
    pub(super) counters: Arc<Counters>,
}

impl<R: Role> Role for Observed<R> {
    fn handle_header(&mut self, header: &Header) -> Result<Dest, CloseReason> {
        self.counters.received(header);
        self.role.handle_header(header)
    }

    fn handle_data(&mut self, filled: Filled, digest_ok: bool) -> Result<(), CloseReason> {
        if !digest_ok {
            self.counters.event("data_digest_error");
        }
        self.role.handle_data(filled, digest_ok)
    }

    fn poll_work(&mut self, context: &mut Context<'_>) -> Result<(), CloseReason> {
        self.role.poll_work(context)
    }

    fn poll_transmit(&mut self) -> Option<Transmit> {
        let transmit = self.role.poll_transmit()?;
        self.counters.sent(&transmit.header);
        Some(transmit)
    }

    fn note_received(&mut self) -> Result<(), CloseReason> {
        self.role.note_received()
    }

    fn take_answered(&mut self) -> usize {
        self.role.take_answered()
    }

    fn take_back(&mut self, buf: Buf) {
        self.role.take_back(buf);
    }

    fn note_progress(&mut self) {
        self.role.note_progress();
    }

    fn wants_input(&self) -> bool {
        self.role.wants_input()
    }

    fn is_finished(&self) -> Option<CloseReason> {
        self.role.is_finished()
    }
}
