//! Logout of the session, of this connection or of another one (RFC 7143 §11.14, §11.15).

use super::session::{ConnId, Session};
use super::state::ConnectionEvent;
use super::task::Phase;
use super::transmit::Reply;
use crate::ids::Itt;
use crate::pdu::{LogoutReason, LogoutRequest, LogoutResponseCode};

/// A logout whose response waits until the tasks it ends no longer execute.
#[derive(Debug)]
pub(super) struct PendingLogout {
    conn: ConnId,
    answer: Answer,
}

/// The response to a logout, and what it closes once it has left.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) itt: Itt,
    pub(super) response: LogoutResponseCode,
    pub(super) closes: Vec<ConnId>,
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
        let answer = Answer { itt: request.itt, response, closes };
        self.pending_logouts.push(PendingLogout { conn, answer });
        self.settle();
    }

    fn refuse_logout(
        &mut self,
        conn: ConnId,
        request: &LogoutRequest,
        response: LogoutResponseCode,
    ) {
        let answer = Answer { itt: request.itt, response, closes: Vec::new() };
        self.push_reply(conn, Reply::Logout(answer));
    }

    pub(super) fn settle_logouts(&mut self) {
        let tasks = &self.tasks;
        let mut ready = Vec::new();
        self.pending_logouts.retain(|pending| {
            let mut running = tasks.values().filter(|task| task.phase == Phase::Running);
            let waits = running.any(|task| pending.answer.closes.contains(&task.conn));
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
