//! Cuts at chosen moments: connections that break around a certain PDU, which chance alone would
//! rarely hit. What the connection was doing when it broke is counted by the observer.

use std::time::Duration;

use iscsi_proto::ids::Tsih;
use iscsi_proto::pdu::{LogoutReason, Pdu, TaskManagementFunction};

use crate::net::Fault;
use crate::rng::Rng;

/// A PDU around which a connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    LoginRequest,
    LoginResponse,
    /// The login of a connection that joins a session, or takes over another's place.
    Joining,
    LogoutRequest,
    LogoutResponse,
    /// Logout of a connection that is gone.
    RecoveryLogout,
    Reassign,
    /// Answers to task management, among them to TASK REASSIGN.
    ManagementResponse,
    Snack,
}

impl Moment {
    /// Moments of sessions at any error recovery level.
    pub(crate) const COMMON: [Self; 5] = [
        Self::LoginRequest,
        Self::LoginResponse,
        Self::Joining,
        Self::LogoutRequest,
        Self::LogoutResponse,
    ];

    /// Moments of recovery.
    pub(crate) const RECOVERY: [Self; 5] = [
        Self::Joining,
        Self::RecoveryLogout,
        Self::Reassign,
        Self::ManagementResponse,
        Self::Snack,
    ];

    fn is(self, pdu: &Pdu) -> bool {
        match (self, pdu) {
            (Self::LoginRequest, Pdu::LoginRequest(_))
            | (Self::LoginResponse, Pdu::LoginResponse(_))
            | (Self::LogoutRequest, Pdu::LogoutRequest(_))
            | (Self::LogoutResponse, Pdu::LogoutResponse(_))
            | (Self::ManagementResponse, Pdu::TaskManagementResponse(_))
            | (Self::Snack, Pdu::SnackRequest(_)) => true,
            (Self::Joining, Pdu::LoginRequest(request)) => request.tsih != Tsih(0),
            (Self::RecoveryLogout, Pdu::LogoutRequest(request)) => {
                request.reason == LogoutReason::REMOVE_CONNECTION_FOR_RECOVERY
            }
            (Self::Reassign, Pdu::TaskManagementRequest(request)) => {
                request.function == TaskManagementFunction::TASK_REASSIGN
            }
            _ => false,
        }
    }
}

/// One cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) moment: Moment,
    /// PDUs of that kind that go unharmed before.
    pub(crate) skipped: u32,
    pub(crate) fault: Fault,
    /// Longest time from the PDU to the cut.
    pub(crate) delay_max: Duration,
}

impl Cut {
    pub(crate) fn new(rng: &mut Rng, moments: &[Moment]) -> Self {
        Self {
            moment: rng.pick(moments),
            skipped: rng.skewed(6) as u32, // at most 6
            fault: rng.pick(&Fault::ALL),
            delay_max: Duration::from_millis(rng.pick(&[0, 1, 40, 300])),
        }
    }
}

/// The cuts that are left.
#[derive(Debug)]
pub(crate) struct Cuts(Vec<Cut>);

impl Cuts {
    pub(crate) fn new(cuts: Vec<Cut>) -> Self {
        Self(cuts)
    }

    /// A PDU is sent: how its connection breaks, and after what time, if it does.
    pub(crate) fn due(&mut self, pdu: &Pdu, rng: &mut Rng) -> Option<(Fault, Duration)> {
        let at = self.0.iter_mut().position(|cut| {
            cut.moment.is(pdu) && {
                let now = cut.skipped == 0;
                cut.skipped = cut.skipped.saturating_sub(1);
                now
            }
        })?;
        let cut = self.0.remove(at);
        let delay = Duration::from_micros(rng.skewed(cut.delay_max.as_micros() as u64));
        Some((cut.fault, delay))
    }
}
