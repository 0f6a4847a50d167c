//! Life of one connection as RFC 7143 §8.1 draws it for the initiator: states, inputs, and one
//! table. It sends nothing and remembers nothing; `Session` acts on the state it returns.
//!
//! Error recovery levels 0 and 1 leave `CleanupWait` at once, because the session ends with the
//! connection; level 2 stays there until its tasks go on elsewhere (§8.2).

/// State of a connection (§8.1.3). S3 (XPT_UP) exists at targets only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// S1: does not exist, or not any more.
    Free,
    /// S2: transport connection asked for.
    TransportWait,
    /// S4: login under way.
    InLogin,
    /// S5: full feature phase.
    LoggedIn,
    /// S6: logout sent, response awaited.
    InLogout,
    /// S7: the target asked for a logout.
    LogoutRequested,
    /// S8: the transport is gone, its tasks wait for what becomes of them.
    CleanupWait,
}

/// What can happen to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Transport connection started (T1).
    Connect,
    /// Transport is up and the first login request goes out (T4).
    TransportUp,
    /// Final login response with status class 0 (T5).
    LoginAccepted,
    /// Asynchronous message "target requests logout" (T11, T12, T14).
    LogoutRequested,
    /// Logout request sent (T9, T10).
    LogoutSent,
    /// Logout response: success (T13).
    LogoutAccepted,
    /// Logout response: failure, or none in time (T17).
    LogoutFailed,
    /// The whole session was closed by way of another connection (T2, T7, T8, T13, T18).
    SessionClosed,
    /// Transport lost, or given up by us (T2, T7, T15, T16, T17).
    TransportLost,
    /// Its tasks are dealt with: logged out by another connection, timed out, or the session was
    /// reinstated (M1–M4 of §8.2).
    CleanedUp,
}

impl State {
    /// Every state, for tests and metrics.
    pub const ALL: [Self; 7] = [
        Self::Free,
        Self::TransportWait,
        Self::InLogin,
        Self::LoggedIn,
        Self::InLogout,
        Self::LogoutRequested,
        Self::CleanupWait,
    ];

    /// The state after `input`, `None` where §8.1.2 has no such transition.
    pub const fn after(self, input: Input) -> Option<Self> {
        use Input as I;
        use State as S;
        Some(match (self, input) {
            (S::Free, I::Connect) => S::TransportWait,
            (S::TransportWait, I::TransportUp) => S::InLogin,
            (S::TransportWait | S::InLogin, I::TransportLost | I::SessionClosed) => S::Free,
            (S::InLogin, I::LoginAccepted) => S::LoggedIn,
            (S::LoggedIn | S::LogoutRequested, I::LogoutSent) => S::InLogout,
            (S::LoggedIn | S::LogoutRequested, I::LogoutRequested) => S::LogoutRequested,
            (S::InLogout, I::LogoutRequested) => S::InLogout,
            (S::InLogout, I::LogoutAccepted) => S::Free,
            (S::InLogout, I::LogoutFailed) => S::CleanupWait,
            (S::LoggedIn | S::InLogout | S::LogoutRequested, I::TransportLost) => S::CleanupWait,
            (S::LoggedIn | S::InLogout | S::LogoutRequested, I::SessionClosed) => S::Free,
            (S::CleanupWait, I::CleanedUp | I::SessionClosed) => S::Free,
            _ => return None,
        })
    }

    /// PDUs of the full feature phase may be received.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::LoggedIn | Self::InLogout | Self::LogoutRequested)
    }
}

impl Input {
    /// Every input, for tests.
    pub const ALL: [Self; 10] = [
        Self::Connect,
        Self::TransportUp,
        Self::LoginAccepted,
        Self::LogoutRequested,
        Self::LogoutSent,
        Self::LogoutAccepted,
        Self::LogoutFailed,
        Self::SessionClosed,
        Self::TransportLost,
        Self::CleanedUp,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All state × input results in the order of `Input::ALL`; `-` is "no such transition".
    const TABLE: &str = "\
Free:            TransportWait - - - - - - - - -
TransportWait:   - InLogin - - - - - Free Free -
InLogin:         - - LoggedIn - - - - Free Free -
LoggedIn:        - - - LogoutRequested InLogout - - Free CleanupWait -
InLogout:        - - - InLogout - Free CleanupWait Free CleanupWait -
LogoutRequested: - - - LogoutRequested InLogout - - Free CleanupWait -
CleanupWait:     - - - - - - - Free - Free
";

    #[test]
    fn every_transition_is_the_one_of_the_rfc() {
        let mut table = String::new();
        for state in State::ALL {
            let results: Vec<String> = Input::ALL
                .iter()
                .map(|input| state.after(*input).map_or("-".into(), |next| format!("{next:?}")))
                .collect();
            table += &format!("{:<16} {}\n", format!("{state:?}:"), results.join(" "));
        }
        assert_eq!(table, TABLE);
    }
}
