//! What keeps a session slow: every setting, window and loss permits some rate by a law of the
//! path; the lowest of these ceilings is the first cause, and lifting it gives what the next one
//! permits.
//!
//! What was measured goes before what was calculated: a cause that the kernel's counters name is
//! the first, and a ceiling that the transfer was seen above is no ceiling.

mod block;
mod case;
mod chain;
mod commands;
mod measured;
mod notes;
#[cfg(test)]
mod tests;
mod windows;

use serde::Serialize;

use self::case::Case;
use crate::facts::{Facts, Session};

/// Rate that is planned for where nothing is known of the line.
const ASSUMED_BITS_PER_S: f64 = 1e9;

/// Why a session is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// The kernel reads too little ahead of somebody who reads in order.
    ReadAhead,
    /// Too few commands fit into the queue of the disk.
    QueueDepth,
    /// Too few commands fit into the session.
    CommandsMax,
    /// Requests are cut too short.
    RequestSize,
    /// Too little is asked for at a time.
    Depth,
    /// Writes wait for R2Ts.
    R2t,
    /// The receiver's buffer.
    ReceiveWindow,
    /// The sender's buffer.
    SendBuffer,
    /// Windows that are not scaled.
    WindowScaling,
    /// Losses, and a congestion control that takes each for a full line.
    CongestionLoss,
    /// A congestion window that is still growing, or was closed by idleness.
    CongestionWindow,
    /// The network device is slower than the line.
    Device,
    /// What TCP takes for the line is less than somebody said of it.
    SlowerLine,
    /// The target's medium.
    Storage,
    /// The application does not ask.
    Application,
    /// Digests, which one processor sums.
    Digests,
    /// An acknowledgement that is held back.
    DelayedAck,
    /// Large packets do not get through.
    MtuBlackHole,
    /// One direction at a time.
    HalfDuplex,
    /// Packets that the host itself throws away or finds damaged.
    Drops,
    /// Offloads that are off.
    Offloads,
    /// Selective acknowledgements are off.
    Sack,
    /// The session is not up.
    State,
}

/// Reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Data come from the target.
    Reads,
    /// Data go to the target.
    Writes,
}

impl Direction {
    /// As a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Writes => "writes",
        }
    }
}

/// Where the rate comes from that everything is sized for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GoalFrom {
    /// Somebody said what the line carries.
    Said,
    /// A network device's speed; the path may be slower.
    Device(String),
    /// Nothing is known.
    Assumed,
}

/// What everything is sized for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goal {
    /// Rate of the line with all headers.
    pub bits_per_s: f64,
    /// Payload of it.
    pub bytes_per_s: f64,
    /// Who says so.
    pub from: GoalFrom,
}

/// A number that says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Its name, as the system has it.
    pub name: String,
    /// Its value with its unit.
    pub value: String,
}

/// Where a command is to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// On this host.
    Here,
    /// On the initiator's.
    AtInitiator,
    /// On the target's.
    AtTarget,
}

/// When a command takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// At once.
    Now,
    /// At once, and until the disk goes away: the one that comes with the next login has defaults.
    Disk,
    /// With the next login, or the next connection.
    NextLogin,
    /// It is the login itself, which interrupts the disk.
    Login,
    /// An option of the program that asks.
    Option,
}

/// A command to paste.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Where.
    pub place: Place,
    /// From when on it counts.
    pub step: Step,
    /// The command; names in it are quoted for a shell.
    pub command: String,
}

/// The setting that is wanted, as a number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wanted {
    /// What.
    pub name: &'static str,
    /// How much; the unit ends the name.
    pub value: f64,
}

/// One cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Which.
    pub cause: Cause,
    /// The counters name it, it is not only calculated.
    pub measured: bool,
    /// A sentence.
    pub title: String,
    /// What it permits; absent where no formula says.
    pub limit_bytes_per_s: Option<f64>,
    /// The law, with its numbers.
    pub formula: Option<String>,
    /// What says so.
    pub evidence: Vec<Evidence>,
    /// What to do.
    pub changes: Vec<Change>,
    /// What it is to become.
    pub wanted: Option<Wanted>,
    /// With this and all before it changed; absent where no formula says, or nothing is gained.
    pub expected_bytes_per_s: Option<f64>,
    /// What limits then.
    pub then: Option<String>,
}

/// One direction of a session.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// Which.
    pub direction: Direction,
    /// What was measured in it.
    pub bytes_per_s: Option<f64>,
    /// First, second, third cause.
    pub findings: Vec<Finding>,
    /// With all of them gone; the line's rate where there are none.
    pub expected_bytes_per_s: Option<f64>,
    /// What `enkaku diagnose` said of it, as long as it is not about a finding.
    pub remark: Option<String>,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// Round trip without queues.
    pub rtt_s: Option<f64>,
    /// What everything is sized for.
    pub goal: Goal,
    /// The direction in which something moved; both where nothing did.
    pub parts: Vec<Part>,
    /// What is not as it should be and has no formula.
    pub notes: Vec<Finding>,
}

impl Diagnosis {
    /// Nothing is to be changed, and that does not hang on what TCP takes for the line.
    pub fn is_certainly_healthy(&self) -> bool {
        let hangs = self.goal.from != GoalFrom::Said;
        self.rtt_s.is_some()
            && self.is_healthy()
            && !(hangs && self.parts.iter().any(|part| part.remark.is_some()))
    }

    /// Nothing is to be changed.
    pub fn is_healthy(&self) -> bool {
        self.notes.is_empty() && self.parts.iter().all(|part| part.findings.is_empty())
    }
}

/// A diagnosis for each session, in their order.
pub fn judge(facts: &Facts) -> Vec<Diagnosis> {
    facts.sessions.iter().map(|session| diagnosis(facts, session)).collect()
}

fn diagnosis(facts: &Facts, session: &Session) -> Diagnosis {
    let goal = goal(facts, session);
    let rtt_s = session.rtt_s();
    let directions: &[bool] = match &session.transfer {
        Some(transfer) if transfer.writes => &[true],
        Some(_) => &[false],
        None => &[false, true],
    };
    let parts = rtt_s.map_or_else(Vec::new, |rtt_s| {
        let case = |writes| Case::new(facts, session, writes, rtt_s, &goal);
        directions.iter().map(|writes| chain::part(&case(*writes))).collect()
    });
    let mut notes = notes::notes(facts, session);
    notes.retain(|note| {
        parts.iter().all(|part| part.findings.iter().all(|one| one.cause != note.cause))
    });
    Diagnosis { rtt_s, goal, parts, notes }
}

fn goal(facts: &Facts, session: &Session) -> Goal {
    let device = session.device.as_deref().and_then(|name| facts.host.device(name));
    let speed = device.and_then(|nic| Some((nic.mbit_per_s? as f64 * 1e6, nic.name.clone())));
    let (bits_per_s, from) = match (facts.line_bits_per_s, speed) {
        (Some(said), _) => (said, GoalFrom::Said),
        (None, Some((speed, name))) => (speed, GoalFrom::Device(name)),
        (None, None) => (ASSUMED_BITS_PER_S, GoalFrom::Assumed),
    };
    Goal { bits_per_s, bytes_per_s: case::line(bits_per_s).limit_bytes_per_s(), from }
}
