//! Logout of the session, of this connection or of another one (RFC 7143 §11.14, §11.15).

use super::event::ConnId;
use super::session::Session;
use super::state::{ConnectionEvent, ConnectionState};
use super::task::Phase;
use super::transmit::Reply;
use crate::ids::Itt;
use crate::pdu::{LogoutReason, LogoutRequest, LogoutResponseCode, Pdu};

/// A logout whose response waits until the tasks it ends no longer execute.
#[derive(Debug)]
pub(super) struct PendingLogout {
    conn: ConnId,
    answer: Answer,
    /// Connection whose driver has to end first.
    detaches: Option<ConnId>,
}

/// The response to a logout, and what it closes once it has left.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) itt: Itt,
    pub(super) response: LogoutResponseCode,
    pub(super) closes: Vec<ConnId>,
    /// The tasks of the connection that the answer goes out on will be reassigned.
    pub(super) for_recovery: bool,
}

impl Session {
    pub(super) fn logout(&mut self, conn: ConnId, request: &LogoutRequest) {
        let closes: Vec<ConnId> = match request.reason {
            LogoutReason::CLOSE_SESSION => self.connections.keys().copied().collect(),
            LogoutReason::CLOSE_CONNECTION => match self.find_cid(request.cid) {
                Some(id) => vec![id],
                None => {
                    return self.refuse_logout(conn, request, LogoutResponseCode::CID_NOT_FOUND);
                }
            },
            LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY if self.reassigns() => {
                return self.logout_for_recovery(conn, request);
            }
            _ => {
                let response = LogoutResponseCode::RECOVERY_NOT_SUPPORTED;
                return self.refuse_logout(conn, request, response);
            }
        };
        if request.reason == LogoutReason::CLOSE_SESSION {
            self.mark_closed();
        }
        for id in &closes {
            if let Some(connection) = self.connections.get_mut(id) {
                connection.step(ConnectionEvent::LogoutReceived);
            }
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
            //# When receiving a Logout Request with the reason code "close the connection" or
            //# "close the session", the target MUST terminate all pending commands, whether
            //# acknowledged via the ExpCmdSN or not, on that connection or session, respectively.
            self.abort_connection_tasks(*id);
        }
        let response = LogoutResponseCode::CLOSED;
        let answer = Answer { itt: request.itt, response, closes, for_recovery: false };
        self.pending_logouts.push(PendingLogout { conn, answer, detaches: None });
        self.settle();
    }

    /// Gives up a connection so that its tasks can be reassigned: this one, or one that was lost
    /// or is to be closed here.
    fn logout_for_recovery(&mut self, conn: ConnId, request: &LogoutRequest) {
        let Some(id) = self.find_cid(request.cid) else {
            return self.refuse_logout(conn, request, LogoutResponseCode::CID_NOT_FOUND);
        };
        let for_recovery = id == conn;
        let (closes, response) = (Vec::new(), LogoutResponseCode::CLOSED);
        let answer = Answer { itt: request.itt, response, closes, for_recovery };
        if for_recovery {
            self.suspend(conn);
            if let Some(connection) = self.connections.get_mut(&conn) {
                connection.step(ConnectionEvent::LogoutReceived);
            }
            return self.push_reply(conn, Reply::Logout(answer));
        }
        self.remove_for_recovery(id, "removed for recovery");
        self.pending_logouts.push(PendingLogout { conn, answer, detaches: Some(id) });
        self.settle();
    }

    fn refuse_logout(
        &mut self,
        conn: ConnId,
        request: &LogoutRequest,
        response: LogoutResponseCode,
    ) {
        let answer = Answer { itt: request.itt, response, closes: Vec::new(), for_recovery: false };
        self.push_reply(conn, Reply::Logout(answer));
    }

    /// A new request after the logout of its connection, which no initiator may send (§11.14): it
    /// would be executed after its initiator was told that nothing can be any more.
    pub(super) fn is_behind_logout(&self, conn: ConnId, pdu: &Pdu) -> bool {
        let is_new = matches!(
            pdu,
            Pdu::ScsiCommand(_) | Pdu::TextRequest(_) | Pdu::TaskManagementRequest(_)
        );
        let state = self.connections.get(&conn).map(|connection| connection.state);
        is_new && state == Some(ConnectionState::InLogout)
    }

    /// Is this the tag of a logout that is not answered?
    pub(super) fn is_logging_out(&self, itt: Itt) -> bool {
        self.pending_logouts.iter().any(|pending| pending.answer.itt == itt)
    }

    pub(super) fn settle_logouts(&mut self) {
        let (tasks, connections) = (&self.tasks, &self.connections);
        let attached = |id: &ConnId| {
            connections.get(id).is_some_and(|c| c.recovery.is_some_and(|w| !w.detached))
        };
        let mut ready = Vec::new();
        self.pending_logouts.retain(|pending| {
            let mut running = tasks.values().filter(|task| task.phase == Phase::Running);
            let waits = running.any(|task| pending.answer.closes.contains(&task.conn))
                || pending.detaches.as_ref().is_some_and(attached);
            if !waits {
                ready.push((pending.conn, pending.answer.clone()));
            }
            waits
        });
        for (conn, answer) in ready {
            self.push_reply(conn, Reply::Logout(answer));
        }
    }

    /// The response is on its way: closes what was logged out. The connection that carries the
    /// response closes after it has been written.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.15
    //# After Logout, the TCP connection referred by the CID MUST be closed at both ends (or all
    //# connections must be closed if the logout reason was session close).
    pub(super) fn logout_answered(&mut self, conn: ConnId, answer: &Answer) {
        if answer.for_recovery {
            self.logged_out_for_recovery(conn);
        }
        for id in &answer.closes {
            if let Some(connection) = self.connections.get_mut(id) {
                connection.step(ConnectionEvent::LogoutDone);
            }
            if *id != conn {
                self.close_event(*id, "logged out on another connection");
            } else {
                self.close_event(*id, "logged out");
            }
        }
    }
}
