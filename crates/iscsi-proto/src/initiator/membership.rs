//! Who belongs to a session: connections joining, leaving under load, and the orderly end of all
//! (RFC 7143 §6.3, §11.14). Ends for cause are in `recover`.

use super::receive::Receiving;
use super::status::StatusNumbers;
use super::task::{Kind, Task};
use super::timer::TimerTable;
use super::transmit::Queues;
use super::{
    CONNECTIONS_MAX, Candidate, Connection, ConnectionId, Established, Input, LogoutReason,
    MembershipError, Phase, Session, State, Timer,
};
use crate::ids::{Cid, Itt};
use crate::serial::StatSn;
use crate::time::Instant;

impl<T> Session<T> {
    /// Adds a connection that logged in with this session's TSIH (§6.3.1). The CID of one that
    /// failed reinstates it (§6.3.4): tasks of that one move over here or elsewhere.
    ///
    /// # Errors
    /// [`MembershipError`]; the caller closes the transport.
    pub fn add_connection(
        &mut self,
        joining: &Established,
        now: Instant,
    ) -> Result<ConnectionId, MembershipError> {
        // A session that lost its connections while it closes needs one to end in order.
        let wanted = self.phase == Phase::LoggedIn || self.reinstatement().is_some();
        if !wanted {
            return Err(MembershipError::Ended);
        }
        //= https://www.rfc-editor.org/rfc/rfc7143#section-4.4.3
        //# After being selected, the same TSIH value MUST be used whenever the initiator or target
        //# refers to the session and a TSIH is required.
        if joining.tsih != self.tsih {
            let (got, expected) = (joining.tsih, self.tsih);
            return Err(MembershipError::OtherSession { got, expected });
        }
        let limit = CONNECTIONS_MAX.min(usize::from(self.params.max_connections).max(1));
        let members = self.connections.iter().flatten().filter(|c| c.failed.is_none());
        if members.clone().any(|c| c.cid == joining.cid) {
            return Err(MembershipError::Duplicate(joining.cid));
        }
        let free = self.connections.iter().position(Option::is_none);
        let free = free.unwrap_or(self.connections.len());
        if members.count() >= limit || free >= CONNECTIONS_MAX {
            return Err(MembershipError::TooMany(limit));
        }
        self.now = now;
        self.note_window(joining.exp_cmd_sn, joining.max_cmd_sn);
        let id = self.attach(free, joining, now);
        self.reinstated(joining.cid);
        Ok(id)
    }

    pub(super) fn attach(
        &mut self,
        index: usize,
        login: &Established,
        now: Instant,
    ) -> ConnectionId {
        let mut connection = Connection {
            cid: login.cid,
            params: login.connection,
            state: State::LoggedIn,
            draining: false,
            closing: None,
            status: StatusNumbers::new(login.exp_stat_sn),
            arriving: None,
            arriving_window: None,
            data_follows: false,
            in_flight: 0,
            outstanding_bytes: 0,
            slowness: 1.0,
            queues: Queues::default(),
            receiving: Receiving::Nothing,
            timers: TimerTable::default(),
            pinging: false,
            requested_logout: false,
            received_at: now,
            transmitted_at: now,
            repair_attempts: 0,
            oldest_unacknowledged: None,
            probing: None,
            failed: None,
        };
        connection.timers.set(Timer::Keepalive, now + self.config.keepalive_interval);
        if index == self.connections.len() {
            self.connections.push(None);
        }
        self.connections[index] = Some(connection);
        ConnectionId(index as u8) // below CONNECTIONS_MAX
    }

    /// Takes a connection out of the session under load: it gets no more commands, those it has
    /// not started move to others, the rest finish, then it logs out (§11.14, reason 1).
    ///
    /// # Errors
    /// [`MembershipError::Unknown`] or [`MembershipError::Last`].
    pub fn remove_connection(&mut self, id: ConnectionId) -> Result<(), MembershipError> {
        let leaves = |c: &Connection| c.takes_commands();
        if !self.connection(id).is_some_and(leaves) {
            return Err(MembershipError::Unknown);
        }
        if self.connections.iter().flatten().filter(|c| leaves(c)).count() == 1 {
            return Err(MembershipError::Last);
        }
        let Some(c) = self.connection_mut(id) else { return Err(MembershipError::Unknown) };
        c.draining = true;
        let unsent = std::mem::take(&mut c.queues.commands);
        for itt in unsent {
            self.move_task(itt);
        }
        self.logout_if_drained(id);
        Ok(())
    }

    /// Binds a command that was never sent to another connection.
    pub(super) fn move_task(&mut self, itt: Itt) {
        let Some(to) = self.dispatch() else { return };
        self.bind(itt, to);
        let place = self.place_in_order(itt, to);
        if let Some(c) = self.connection_mut(to) {
            c.queues.commands.insert(place, itt);
        }
        self.wake(to);
    }

    /// From now on commands are numbered in the order in which they were submitted, over whichever
    /// connection each goes: a target delivers them in the order of their numbers (§4.2.2.1).
    pub fn keep_order(&mut self) {
        self.in_order = true;
    }

    /// Where a command that was never sent stands in the queue of a connection.
    fn place_in_order(&self, itt: Itt, to: ConnectionId) -> usize {
        let Some(c) = self.connection(to) else { return 0 };
        let order = |itt| self.tasks.get(itt).map_or(0, |task| task.order);
        match self.in_order {
            true => c.queues.commands.partition_point(|other| order(*other) < order(itt)),
            false => c.queues.commands.len(),
        }
    }

    /// A connection that can send gets the command that was submitted first of all that wait.
    /// `None`: there is none, or it takes none.
    pub(super) fn take_oldest(&mut self, to: ConnectionId) -> Option<()> {
        self.connection(to).filter(|c| c.takes_commands())?;
        let first = |(candidate, c): (Candidate, &Connection)| {
            let itt = *c.queues.commands.front()?;
            // One that was aborted goes from the queue here as well as there.
            Some((self.tasks.get(itt).map_or(0, |task| task.order), candidate.id, itt))
        };
        let (_, from, itt) = self.taking().filter_map(first).min()?;
        if from != to {
            self.connection_mut(from)?.queues.commands.pop_front();
            self.bind(itt, to);
            self.connection_mut(to)?.queues.commands.push_front(itt);
        }
        Some(())
    }

    /// A connection has nothing to send: it gets a command that waits on the one that would be done
    /// last, if that command would be done earlier here. `None`: there is none.
    ///
    /// What was expected when a command was submitted does not stay true: connections join, windows
    /// fall with losses. Until its first PDU is sent a command is bound to nobody.
    pub(super) fn take_from_another(&mut self, to: ConnectionId) -> Option<()> {
        let own = self.connection(to).filter(|c| c.takes_commands())?.candidate(to);
        let waiting = |(candidate, c): (Candidate, &Connection)| {
            Some((candidate, *c.queues.commands.front()?))
        };
        let others = self.taking().filter_map(waiting);
        let last = |(a, _): &(Candidate, Itt), (b, _): &(Candidate, Itt)| {
            a.completion(0).total_cmp(&b.completion(0))
        };
        let (busiest, itt) = others.max_by(last)?;
        let cost = match self.tasks.get(itt).map(|task| &task.kind) {
            Some(Kind::Command(task)) => task.command.cost(),
            _ => 0, // aborted: it goes from the queue here as well as there
        };
        if own.completion(cost) >= busiest.completion(0) {
            return None;
        }
        self.connection_mut(busiest.id)?.queues.commands.pop_front();
        self.bind(itt, to);
        self.connection_mut(to)?.queues.commands.push_back(itt);
        Some(())
    }

    /// Gives a command a new allegiance (§4.2.3.1).
    pub(super) fn bind(&mut self, itt: Itt, to: ConnectionId) {
        let Some(Task { connection, kind: Kind::Command(task), .. }) = self.tasks.get_mut(itt)
        else {
            return; // aborted meanwhile
        };
        let (from, cost) = (std::mem::replace(connection, to), task.command.cost());
        if let Some(c) = self.connection_mut(from) {
            c.in_flight -= 1;
            c.outstanding_bytes -= cost;
        }
        if let Some(c) = self.connection_mut(to) {
            c.in_flight += 1;
            c.outstanding_bytes += cost;
        }
    }

    /// Takes no more commands, lets all finish, then closes the session (§11.14, reason 0).
    pub fn close(&mut self) {
        if self.phase == Phase::LoggedIn {
            self.phase = Phase::Closing;
            self.close_if_idle();
        }
    }

    pub(super) fn logout_if_drained(&mut self, id: ConnectionId) {
        let drained = |c: &Connection| c.draining && c.in_flight == 0 && c.state.is_open();
        // The logout of the session closes it, too.
        if !self.connection(id).is_some_and(|c| drained(c) && !c.state.is_leaving())
            || self.awaits_answer(|connection| connection == id)
            || self.is_logging_out()
        {
            return;
        }
        let others = self.connections().any(|(other, _, s)| other != id && s.is_open());
        //= https://www.rfc-editor.org/rfc/rfc7143#section-11.9.1
        //# The initiator MUST send a Logout with a reason code of "close the connection" OR "close
        //# the session" to close all the connections.
        let reason = match others {
            true => LogoutReason::CLOSE_CONNECTION,
            false => LogoutReason::CLOSE_SESSION,
        };
        self.queue_logout(id, reason);
    }

    pub(super) fn close_if_idle(&mut self) {
        if self.phase != Phase::Closing || self.in_flight() > 0 || self.awaits_answer(|_| true) {
            return;
        }
        let first = self.connections().find(|(_, _, state)| state.is_open());
        let Some((first, ..)) = first else { return };
        if !self.connections().any(|(_, _, state)| state == State::InLogout) {
            self.queue_logout(first, LogoutReason::CLOSE_SESSION);
        }
    }

    /// A task management function or text exchange is under way on one of these connections: a
    /// logout would lose its answer.
    fn awaits_answer(&self, on: impl Fn(ConnectionId) -> bool) -> bool {
        self.tasks.iter().any(|(_, task)| {
            on(task.connection) && matches!(task.kind, Kind::Management(_) | Kind::Text(_))
        })
    }

    /// A function or exchange is over: goes on with a logout that waited for it.
    pub(super) fn answered(&mut self, id: ConnectionId) {
        self.logout_if_drained(id);
        self.close_if_idle();
    }

    fn queue_logout(&mut self, id: ConnectionId, reason: LogoutReason) {
        if self.add_request(id, Kind::Logout { reason, of: id }).is_none() {
            return;
        }
        if reason == LogoutReason::CLOSE_SESSION {
            self.phase = Phase::Closing; // nobody joins it any more
        }
        if let Some(c) = self.connection_mut(id) {
            c.advance(Input::LogoutSent);
        }
    }

    /// CID and ExpStatSN that a Logout names: those of the connection it closes.
    pub(super) fn logout_of(&self, itt: Itt) -> Option<(Cid, StatSn)> {
        let Kind::Logout { of, .. } = self.tasks.get(itt)?.kind else { return None };
        self.connection(of).map(|c| (c.cid, c.status.expected()))
    }

    /// A logout of this connection or of the session is under way.
    pub(super) fn is_leaving(&self, id: ConnectionId) -> bool {
        let ends = self.phase == Phase::Closing && self.is_logging_out();
        ends || self.connection(id).is_some_and(|c| c.state.is_leaving())
    }
}
