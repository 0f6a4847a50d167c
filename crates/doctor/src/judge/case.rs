//! One direction of one session, and the laws of [`path::law`] about it: whatever is calculated of
//! windows, losses and lines is asked there.

use path::CongestionControl;
use path::law::PathPlan;

use super::{Cause, Change, Evidence, Finding, Goal, Place, Wanted};
use crate::facts::disk::Load;
use crate::facts::{Disk, Facts, Initiator, Role, Session, Transfer};

/// A buffer that limits nothing.
const ENDLESS_BYTES: f64 = 1e15;
/// A line that limits nothing.
const ENDLESS_BITS_PER_S: f64 = 1e15;

/// What permits some rate and no more.
pub(super) struct Ceiling {
    pub(super) cause: Cause,
    pub(super) title: String,
    /// What it permits now, in bytes per second.
    pub(super) now: f64,
    pub(super) formula: String,
    pub(super) evidence: Vec<Evidence>,
    pub(super) changes: Vec<Change>,
    pub(super) wanted: Option<Wanted>,
    /// What it permits after the change; absent where no formula says.
    pub(super) after: Option<f64>,
    /// The kernel's counters name it.
    pub(super) measured: bool,
}

impl Ceiling {
    pub(super) fn finding(self, expected: Option<f64>, then: Option<String>) -> Finding {
        Finding {
            cause: self.cause,
            measured: self.measured,
            title: self.title,
            limit_bytes_per_s: Some(self.now),
            formula: Some(self.formula),
            evidence: self.evidence,
            changes: self.changes,
            wanted: self.wanted,
            expected_bytes_per_s: expected,
            then,
        }
    }
}

/// A direction of a session.
pub(super) struct Case<'a> {
    pub(super) facts: &'a Facts,
    pub(super) session: &'a Session,
    pub(super) writes: bool,
    pub(super) rtt_s: f64,
    pub(super) goal: &'a Goal,
    pub(super) connections: f64,
}

impl<'a> Case<'a> {
    pub(super) fn new(
        facts: &'a Facts,
        session: &'a Session,
        writes: bool,
        rtt_s: f64,
        goal: &'a Goal,
    ) -> Self {
        let connections = f64::from(session.connections());
        Self { facts, session, writes, rtt_s, goal, connections }
    }

    /// What moved in this direction.
    pub(super) fn transfer(&self) -> Option<&'a Transfer> {
        self.session.transfer.as_ref().filter(|transfer| transfer.writes == self.writes)
    }

    /// The disk that had most to do, else the first.
    pub(super) fn disk(&self) -> Option<&'a Disk> {
        let busy = |disk: &&Disk| disk.load.map_or(0.0, |load| load.in_flight);
        let busiest = self.session.disks.iter().max_by(|a, b| busy(a).total_cmp(&busy(b)));
        busiest.filter(|disk| busy(disk) > 0.0).or_else(|| self.session.disks.first())
    }

    /// What went through that disk in this direction.
    pub(super) fn load(&self) -> Option<Load> {
        self.disk()?.load.filter(|load| load.request_bytes(self.writes) > 0.0)
    }

    /// The data leave this host.
    pub(super) fn sends(&self) -> bool {
        self.writes == (self.session.role == Role::Initiator)
    }

    /// Where the data leave, and where they arrive.
    pub(super) fn sender(&self) -> Place {
        match (self.sends(), self.writes) {
            (true, _) => Place::Here,
            (false, true) => Place::AtInitiator,
            (false, false) => Place::AtTarget,
        }
    }

    pub(super) fn receiver(&self) -> Place {
        match (self.sends(), self.writes) {
            (false, _) => Place::Here,
            (true, true) => Place::AtTarget,
            (true, false) => Place::AtInitiator,
        }
    }

    /// Where the settings of the initiator are.
    pub(super) fn initiator(&self) -> Place {
        match self.session.role {
            Role::Initiator => Place::Here,
            Role::Target => Place::AtInitiator,
        }
    }

    pub(super) fn is_open_iscsi(&self) -> bool {
        self.session.initiator == Initiator::OpenIscsi
    }

    /// Bandwidth × delay of the goal.
    pub(super) fn product(&self) -> f64 {
        self.goal.bytes_per_s * self.rtt_s
    }

    /// How many of so many bytes fill the path, and one more for each connection, which waits when
    /// the last one ends.
    pub(super) fn depth(&self, bytes: f64) -> f64 {
        (self.product() / bytes.max(1.0)).ceil() + self.connections
    }

    /// So many bytes in every round trip.
    pub(super) fn each_round_trip(&self, bytes: f64) -> f64 {
        bytes / self.rtt_s
    }

    /// The path as the plan has it, without limits of hosts.
    pub(super) fn plan(&self, loss: f64) -> PathPlan {
        PathPlan {
            rtt_s: self.rtt_s,
            loss,
            streams: Some(self.session.connections()),
            ..line(self.goal.bits_per_s)
        }
    }

    /// What the line itself gives this number of connections.
    pub(super) fn line(&self) -> f64 {
        self.plan(0.0).outcome(CongestionControl::Bbr).session_bytes_per_s
    }
}

/// A line and nothing else.
pub(super) fn line(bits_per_s: f64) -> PathPlan {
    PathPlan {
        bits_per_s,
        rtt_s: 1.0,
        loss: 0.0,
        queue_packets: None,
        wmem_bytes: ENDLESS_BYTES,
        rmem_bytes: ENDLESS_BYTES,
        streams: Some(1),
    }
}

/// How much a send buffer lets be in flight.
pub(super) fn in_flight_of_send_buffer(bytes: f64) -> f64 {
    let plan = PathPlan { wmem_bytes: bytes, ..line(ENDLESS_BITS_PER_S) };
    plan.outcome(CongestionControl::Bbr).one_bytes_per_s * plan.rtt_s
}

/// How much of a receive buffer is announced.
pub(super) fn window_of_receive_buffer(bytes: f64) -> f64 {
    let plan = PathPlan { rmem_bytes: bytes, ..line(ENDLESS_BITS_PER_S) };
    plan.outcome(CongestionControl::Bbr).one_bytes_per_s * plan.rtt_s
}

/// A number that says so.
pub(super) fn evidence(name: impl Into<String>, value: impl Into<String>) -> Evidence {
    Evidence { name: name.into(), value: value.into() }
}

/// The next power of two: settings are round numbers, and the rest is headroom.
pub(super) fn round_up(bytes: f64) -> f64 {
    2_f64.powf(bytes.max(1.0).log2().ceil())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_buffers_let_through_is_what_the_plan_says() {
        // docs/plan.md: 67 % of tcp_wmem and half of tcp_rmem are window.
        assert!((in_flight_of_send_buffer(1e6) / 0.67e6 - 1.0).abs() < 1e-3);
        assert!((window_of_receive_buffer(1e6) / 0.5e6 - 1.0).abs() < 1e-3);
        assert_eq!(round_up(5e6), 8_388_608.0);
        assert_eq!(round_up(4096.0), 4096.0);
    }
}
