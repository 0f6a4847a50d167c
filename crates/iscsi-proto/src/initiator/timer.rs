//! Timers of a connection: one enum, one table. Reads no clock: it stores points in time and
//! says which comes first.

use crate::time::Instant;

/// Why [`Session::poll_timeout`](super::Session::poll_timeout) wants to be called back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Timer {
    /// Nothing was received for the keepalive interval: send a NOP-Out (§11.18).
    Keepalive,
    /// An answer to our NOP-Out is due, unless data moved meanwhile.
    Ping,
    /// The Logout Response is due.
    Logout,
    /// The target wanted us gone by now (§11.9.1, Parameter3 of "request logout").
    RequestedLogout,
    /// Time2Wait is over: recovery of the connection may begin (§8.2, levels 1 and 2).
    Time2Wait,
    /// Time2Retain is over: the target has forgotten the connection's tasks (§8.2).
    Time2Retain,
    /// PDUs that were asked for again should be here by now (§11.16, levels 1 and 2).
    Repair,
    /// The target should have acknowledged the commands sent by now (§7.2.1, levels 1 and 2).
    Retry,
    /// The answer to a task management function or to text is due (§11.6, §11.11).
    Answer,
}

impl Timer {
    /// Every timer.
    pub const ALL: [Self; 9] = [
        Self::Keepalive,
        Self::Ping,
        Self::Logout,
        Self::RequestedLogout,
        Self::Time2Wait,
        Self::Time2Retain,
        Self::Repair,
        Self::Retry,
        Self::Answer,
    ];
}

/// When each timer of one connection fires.
#[derive(Clone, Debug, Default)]
pub(super) struct TimerTable {
    at: [Option<Instant>; Timer::ALL.len()],
    /// The first of them: it is asked for with every PDU, and changes much less often.
    next: Option<(Instant, Timer)>,
}

impl TimerTable {
    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        self.at[timer as usize] = Some(at);
        self.next = self.first();
    }

    pub(super) fn is_set(&self, timer: Timer) -> bool {
        self.at[timer as usize].is_some()
    }

    pub(super) fn stop(&mut self, timer: Timer) {
        self.at[timer as usize] = None;
        self.next = self.first();
    }

    pub(super) fn stop_all(&mut self) {
        *self = Self::default();
    }

    /// It has fired by then.
    pub(super) fn is_due(&self, timer: Timer, now: Instant) -> bool {
        self.at[timer as usize].is_some_and(|at| at <= now)
    }

    /// The timer that fires first.
    pub(super) fn next(&self) -> Option<(Instant, Timer)> {
        self.next
    }

    fn first(&self) -> Option<(Instant, Timer)> {
        Timer::ALL.iter().filter_map(|t| Some((self.at[*t as usize]?, *t))).min()
    }

    /// Takes a timer that is due.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Timer> {
        let (at, timer) = self.next()?;
        (at <= now).then(|| {
            self.stop(timer);
            timer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn fires_in_order_and_once() {
        let at = |s| Instant(Duration::from_secs(s));
        let mut table = TimerTable::default();
        table.set(Timer::Keepalive, at(5));
        table.set(Timer::Ping, at(3));
        assert_eq!(table.next(), Some((at(3), Timer::Ping)));
        assert_eq!(table.expire(at(2)), None);
        assert_eq!(table.expire(at(9)), Some(Timer::Ping));
        assert_eq!(table.expire(at(9)), Some(Timer::Keepalive));
        assert_eq!(table.expire(at(9)), None);
    }

    #[test]
    fn the_first_is_right_after_every_change() {
        let at = |s| Instant(Duration::from_secs(s));
        let mut table = TimerTable::default();
        assert_eq!(table.next(), None);
        table.set(Timer::Retry, at(4));
        table.set(Timer::Logout, at(4));
        assert_eq!(table.next(), Some((at(4), Timer::Logout)), "equal: in the order of the enum");
        table.set(Timer::Logout, at(8));
        assert_eq!(table.next(), Some((at(4), Timer::Retry)), "the first was put off");
        table.stop(Timer::Retry);
        assert_eq!(table.next(), Some((at(8), Timer::Logout)));
        table.stop_all();
        assert_eq!(table.next(), None);
    }
}
