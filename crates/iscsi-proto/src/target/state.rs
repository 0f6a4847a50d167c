//! The life of a connection as the target sees it (RFC 7143 §8.1.4), as one table.
//!
//! States before the full-feature phase belong to the login and are not repeated here.

/// State of a connection after login. Names follow §8.1.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// S5: full-feature phase.
    LoggedIn,
    /// S6: a logout was received; its response waits for tasks to end.
    InLogout,
    /// S7: we asked for a logout by an asynchronous message.
    LogoutRequested,
    /// S8: the transport is gone; tasks wait to be reassigned (error recovery level 2).
    CleanupWait,
    /// S1: over.
    Free,
}

/// What can happen to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// T9, T14: logout request received.
    LogoutReceived,
    /// T11: we sent an asynchronous message that asks for logout.
    LogoutAsked,
    /// T13, T18: logout response sent, or the transport closed after it.
    LogoutDone,
    /// T15: the transport failed, at a level that keeps tasks for reassignment.
    FailedRecoverable,
    /// T8: the transport failed, and nothing is kept.
    Failed,
    /// M2, M3: time to reassign ran out, or the tasks were taken over.
    CleanedUp,
}

impl ConnectionState {
    /// Its transport may be used.
    pub const fn is_alive(self) -> bool {
        matches!(self, Self::LoggedIn | Self::InLogout | Self::LogoutRequested)
    }

    /// The next state, or `None` where the event cannot happen.
    pub const fn after(self, event: ConnectionEvent) -> Option<Self> {
        use ConnectionEvent as E;
        use ConnectionState as S;
        Some(match (self, event) {
            (S::LoggedIn | S::LogoutRequested, E::LogoutReceived) => S::InLogout,
            (S::LoggedIn | S::LogoutRequested, E::LogoutAsked) => S::LogoutRequested,
            (S::InLogout, E::LogoutDone) => S::Free,
            (S::LoggedIn | S::InLogout | S::LogoutRequested, E::FailedRecoverable) => {
                S::CleanupWait
            }
            (S::LoggedIn | S::InLogout | S::LogoutRequested, E::Failed) => S::Free,
            (S::CleanupWait, E::CleanedUp) => S::Free,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::ConnectionEvent::*;
    use super::ConnectionState::{self, *};

    #[test]
    fn every_state_against_every_event() {
        let events =
            [LogoutReceived, LogoutAsked, LogoutDone, FailedRecoverable, Failed, CleanedUp];
        let table = |state: ConnectionState| events.map(|event| state.after(event));
        assert_eq!(
            table(LoggedIn),
            [Some(InLogout), Some(LogoutRequested), None, Some(CleanupWait), Some(Free), None]
        );
        assert_eq!(table(InLogout), [None, None, Some(Free), Some(CleanupWait), Some(Free), None]);
        assert_eq!(
            table(LogoutRequested),
            [Some(InLogout), Some(LogoutRequested), None, Some(CleanupWait), Some(Free), None]
        );
        assert_eq!(table(CleanupWait), [None, None, None, None, None, Some(Free)]);
        assert_eq!(table(Free), [None; 6]);
    }
}
