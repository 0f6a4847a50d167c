//! Ends of connections and sessions, and the timers that bring them about (RFC 7143 §7, §8). What a
//! failed connection means for its session at level 2 is in `failover`.

use super::event::{ConnectionError, Event};
use super::task::{Kind, Task};
use super::{Connection, ConnectionId, Input, LogoutReason, Phase, Session, Timer};
use crate::time::Instant;

impl<T> Session<T> {
    /// The transport is gone, or its driver gives it up. Call exactly once per connection, last:
    /// `id` may name another connection afterwards.
    pub fn handle_connection_lost(&mut self, id: ConnectionId, now: Instant) {
        self.now = now;
        let Some(connection) = self.connection(id) else { return };
        let cid = connection.cid();
        if connection.closing.is_none() {
            let idle = connection.in_flight == 0;
            if idle && (connection.state.is_leaving() || self.is_logging_out()) {
                // Everything was answered, and the target closed instead of answering the logout,
                // or before its answer on another connection was read: nothing is in doubt.
                self.leave_without_response(id);
            } else {
                self.fail(id, ConnectionError::TransportLost { cid });
            }
        }
        self.retried.retain(|retried| retried.connection != id);
        if let Some(failed) = self.connection_mut(id).and_then(|c| c.failed.as_mut()) {
            failed.gone = true; // its tasks still name it
            self.fail_over();
        } else if let Some(slot) = self.connections.get_mut(id.index()) {
            *slot = None;
        }
    }

    /// The logout that closes the whole session is under way.
    pub(super) fn is_logging_out(&self) -> bool {
        self.tasks.iter().any(|(_, task)| {
            matches!(task.kind, Kind::Logout { reason: LogoutReason::CLOSE_SESSION, .. })
        })
    }

    fn leave_without_response(&mut self, id: ConnectionId) {
        let logout = self.tasks.iter().find_map(|(itt, task)| match task.kind {
            Kind::Logout { reason, of } if of == id => Some((itt, reason)),
            _ => None,
        });
        if let Some(connection) = self.connection_mut(id) {
            connection.advance(Input::SessionClosed);
            connection.closing = Some(Ok(()));
        }
        let reason = match logout {
            Some((itt, reason)) => {
                self.tasks.remove(itt);
                reason
            }
            None => LogoutReason::CLOSE_CONNECTION, // the session's own logout goes on
        };
        self.events.push_back(Event::LoggedOut { connection: id, reason });
        let open = self.connections().any(|(_, _, state)| state.is_open());
        if reason == LogoutReason::CLOSE_SESSION || !open {
            self.end(None);
        }
        self.close_if_idle();
    }

    /// Ends a connection for cause, and with it, unless its tasks can go on elsewhere, the session.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.5
    //# Implementations MUST support error recovery level "0", while the rest are OPTIONAL to
    //# implement.
    pub(super) fn fail(&mut self, id: ConnectionId, error: ConnectionError) {
        let Some(connection) = self.connection_mut(id).filter(|c| c.closing.is_none()) else {
            return;
        };
        //= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.4.3
        //# TCP connection failure: The initiator MUST close the connection.
        connection.closing = Some(Err(error.clone()));
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.4
        //# The initiator connection state MUST be CLEANUP_WAIT (Section 8.1.3) when the initiator
        //# attempts a connection reinstatement.
        connection.advance(Input::TransportLost);
        self.wake(id);
        self.events.push_back(Event::ConnectionFailed { connection: id, error: error.clone() });
        if self.can_fail_over(&error) {
            self.start_failover(id);
        } else {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-7.14
            //# On connection failure, the initiator and target MUST do one of the following:
            self.end(Some(error));
        }
    }

    /// Closes every connection and gives back every unfinished command, oldest first.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-7.14
    //# Either side may choose to escalate to session recovery (via the initiator dropping all the
    //# connections or via an Async Message that announces the similar intent from a target), and
    //# the other side MUST give it precedence.
    pub(super) fn end(&mut self, error: Option<ConnectionError>) {
        if self.is_ended() {
            return;
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-6.3.5
        //# The initiator session state MUST be FAILED (Section 8.3) when the initiator attempts a
        //# session reinstatement.
        self.phase = Phase::Ended;
        let clean = error.is_none();
        for (index, connection) in self.connections.iter_mut().enumerate() {
            let Some(connection) = connection else { continue };
            let how = if clean { Ok(()) } else { Err(ConnectionError::SessionFailed) };
            connection.closing.get_or_insert(how);
            connection.end();
            connection.failed = None;
            self.wakes |= 1 << index;
        }
        let mut tags: Vec<_> = self.tasks.iter().map(|(itt, task)| (task.order, itt)).collect();
        tags.sort_unstable();
        for (_, itt) in tags {
            self.give_back(itt);
        }
        self.events.push_back(Event::SessionEnded { error });
    }

    pub(super) fn give_back(&mut self, itt: crate::ids::Itt) {
        let Some(task) = self.tasks.remove(itt) else { return };
        let sent = task.is_sent();
        let Task { connection, kind: Kind::Command(task), .. } = task else { return };
        if let Some(c) = self.connection_mut(connection) {
            c.in_flight -= 1;
            c.outstanding_bytes -= task.command.cost();
        }
        let (command, context) = (task.command, task.context);
        self.events.push_back(Event::TaskRequeue { command, context, sent });
    }

    /// Asynchronous message "target requests logout": leaves before `seconds` are over (§11.9.1).
    //= https://www.rfc-editor.org/rfc/rfc7143#section-11.9.1
    //# The initiator MUST honor this request by issuing a Logout as early as possible but no later
    //# than Parameter3 seconds.
    pub(super) fn leave_as_requested(&mut self, id: ConnectionId, now: Instant, seconds: u16) {
        let Some(connection) = self.connection_mut(id) else { return };
        let was_leaving = connection.state.is_leaving();
        connection.advance(Input::LogoutRequested);
        if was_leaving || connection.requested_logout {
            return;
        }
        connection.requested_logout = true;
        connection.draining = true;
        let deadline = now + std::time::Duration::from_secs(seconds.max(1).into());
        connection.timers.set(Timer::RequestedLogout, deadline);
        let unsent = std::mem::take(&mut connection.queues.commands);
        let alone = self.connections.iter().flatten().all(|c| !c.takes_commands());
        for itt in unsent {
            if alone {
                self.give_back(itt);
            } else {
                self.move_task(itt);
            }
        }
        self.logout_if_drained(id);
    }

    /// When [`Self::handle_timeout`] wants to be called, for which connection, and why.
    pub fn poll_timeout(&self) -> Option<(Instant, ConnectionId, Timer)> {
        let connections = self.connections.iter().enumerate();
        connections
            .filter_map(|(index, connection)| {
                let (at, timer) = connection.as_ref()?.timers.next()?;
                Some((at, ConnectionId(index as u8), timer))
            })
            .min()
    }

    /// Acts on every timer that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        for index in 0..self.connections.len() {
            let id = ConnectionId(index as u8);
            while let Some(timer) = self.connection_mut(id).and_then(|c| c.timers.expire(now)) {
                self.expired(id, timer, now);
            }
        }
    }

    fn expired(&mut self, id: ConnectionId, timer: Timer, now: Instant) {
        let config = self.config;
        let Some(connection) = self.connection_mut(id) else { return };
        let cid = connection.cid();
        match timer {
            // Lazily re-armed: traffic does not touch the timer, it only moves `received_at`.
            Timer::Keepalive => {
                let due = connection.received_at + config.keepalive_interval;
                if due > now {
                    connection.timers.set(Timer::Keepalive, due);
                } else {
                    // The clock runs from here, not from when the transport takes the NOP-Out:
                    // into a full socket to a dead peer it never goes.
                    connection.timers.set(Timer::Ping, now + config.ping_timeout);
                    self.ping(id);
                }
            }
            // A NOP-Out behind megabytes of data answers late on a healthy link: as long as
            // either direction moves, the peer is not dead.
            Timer::Ping => {
                let moved = connection.received_at.max(connection.transmitted_at);
                let due = moved + config.ping_timeout;
                if due > now {
                    connection.timers.set(Timer::Ping, due);
                    self.ping_again(id, now);
                } else {
                    let silence = now.since(connection.received_at);
                    self.fail(id, ConnectionError::PingTimeout { cid, silence });
                }
            }
            Timer::Logout if connection.failed.is_some() => self.failover_expired(id),
            Timer::Logout => {
                connection.advance(Input::LogoutFailed);
                self.fail(id, ConnectionError::Logout { cid, response: None });
            }
            Timer::RequestedLogout => self.fail(id, ConnectionError::LogoutRequested { cid }),
            Timer::Time2Wait => self.fail_over(),
            Timer::Time2Retain => self.failover_expired(id),
            Timer::Repair => self.repair_expired(id, now),
            Timer::Retry => self.retry_expired(id, now),
            Timer::Answer => self.answer_expired(id, now),
        }
    }
}

impl Connection {
    /// The session is over, and with it everything this connection waited for.
    fn end(&mut self) {
        let input = match self.state {
            super::State::CleanupWait => Input::CleanedUp,
            _ => Input::SessionClosed,
        };
        if self.state != super::State::Free {
            self.advance(input);
        }
        self.queues = Default::default();
        self.receiving = Default::default();
        self.timers.stop_all();
    }
}
