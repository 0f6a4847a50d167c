//! Findings as people read them. Words that both forms share are here.

mod curves;
mod html;
mod text;

use serde::Serialize;

pub use self::html::html;
pub use self::text::text;
use crate::facts::{Facts, Initiator, Role, Session};
use crate::judge::{Change, Diagnosis, GoalFrom, Part, Place, Step, judge};
use crate::units::{rate, time};

/// Facts and what follows from them: the one JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was found.
    #[serde(flatten)]
    pub facts: Facts,
    /// A diagnosis for each session, in their order.
    pub diagnoses: Vec<Diagnosis>,
}

impl Report {
    /// Judges.
    pub fn new(facts: Facts) -> Self {
        let diagnoses = judge(&facts);
        Self { facts, diagnoses }
    }

    /// Sessions with what follows for them.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&Session, &Diagnosis)> {
        self.facts.sessions.iter().zip(&self.diagnoses)
    }
}

/// Which session.
fn heading(session: &Session) -> String {
    match &session.target {
        Some(target) => format!("{}: {target}", session.name),
        None => session.name.clone(),
    }
}

/// Who, where, through what.
fn about(session: &Session) -> String {
    let whose = match session.initiator {
        Initiator::OpenIscsi => "open-iscsi",
        Initiator::Enkaku => "enkaku",
        Initiator::Unknown => "an initiator",
    };
    let mut words = match (session.role, session.portal) {
        (Role::Initiator, Some(portal)) => vec![format!("{whose} here, target at {portal}")],
        (Role::Initiator, None) => vec![format!("{whose} here")],
        (Role::Target, Some(portal)) => vec![format!("served here at {portal}")],
        (Role::Target, None) => vec!["served here".to_owned()],
    };
    let through =
        session.device.as_ref().map(|name| format!(" through {name}")).unwrap_or_default();
    words.push(match session.sockets.len() {
        0 => "its connection is not seen".to_owned(),
        1 => format!("1 connection{through}"),
        many => format!("{many} connections{through}"),
    });
    if !session.processes.is_empty() {
        words.push(format!("process {}", session.processes.join(", ")));
    }
    if !session.disks.is_empty() {
        let names: Vec<&str> = session.disks.iter().map(|disk| disk.name.as_str()).collect();
        words.push(format!("disk {}", names.join(", ")));
    }
    words.join("; ")
}

/// What everything is sized for.
fn sized(diagnosis: &Diagnosis) -> String {
    let rtt = match diagnosis.rtt_s {
        Some(rtt_s) => format!("Round trip {}.", time(rtt_s)),
        None => "The round trip is not known: no connection of it is seen, so nothing can be \
                 calculated. Run this in its network namespace (nsenter --target PID --net)."
            .to_owned(),
    };
    let goal = rate(diagnosis.goal.bits_per_s / 8.0);
    let from = match &diagnosis.goal.from {
        GoalFrom::Said => "as you said".to_owned(),
        GoalFrom::Device(name) => {
            format!("the speed of {name}; if the path is slower, --line-rate")
        }
        GoalFrom::Assumed => "nothing is known of the line; --line-rate says it".to_owned(),
    };
    format!("{rtt} Sized for {goal} ({from}).")
}

/// What was measured in a direction, or that nothing was.
fn opening(part: &Part, facts: &Facts) -> String {
    let name = match part.direction.as_str() {
        "reads" => "Reads",
        _ => "Writes",
    };
    match part.bytes_per_s {
        Some(bytes) => format!("{name}: {} in {}.", rate(bytes), time(facts.seconds)),
        None => format!("{name}: none was seen; this is what the settings permit."),
    }
}

/// What is left, in a sentence; `said` is what the line carries.
fn closing(part: &Part, said: bool) -> Option<String> {
    let expected = part.expected_bytes_per_s.map(rate);
    if !part.findings.is_empty() {
        return match (expected, part.findings.len()) {
            (Some(rate), many) if many > 1 => Some(format!("With all of it: {rate} at most.")),
            _ => None,
        };
    }
    Some(match (part.bytes_per_s, &part.remark, expected) {
        (Some(_), Some(remark), _) if said => remark.clone(),
        (Some(_), Some(remark), _) => {
            format!("{remark} If it is known to carry more, --line-rate lets this look further.")
        }
        (None, _, Some(rate)) => format!("Nothing here holds them below {rate}."),
        _ => "Nothing that could be read here holds them back.".to_owned(),
    })
}

/// Where and when a command is to be given, before it.
fn occasion(change: &Change) -> Option<String> {
    let place = match change.place {
        Place::Here => None,
        Place::AtInitiator => Some("at the initiator"),
        Place::AtTarget => Some("at the target"),
    };
    let step = (change.step == Step::Option).then_some("option of the program");
    match (place, step) {
        (None, None) => None,
        (place, step) => Some([place, step].into_iter().flatten().collect::<Vec<_>>().join(", ")),
    }
}

/// The login of a session, which is to be given once, behind everything else.
fn logins(diagnosis: &Diagnosis) -> Vec<&Change> {
    each_once(diagnosis, Step::Login)
}

/// What is to be set a second time behind the login, if there is one: it was lost with the disk.
fn again(diagnosis: &Diagnosis) -> Vec<&Change> {
    if logins(diagnosis).is_empty() { Vec::new() } else { each_once(diagnosis, Step::Disk) }
}

fn each_once(diagnosis: &Diagnosis, step: Step) -> Vec<&Change> {
    let parts = diagnosis.parts.iter().flat_map(|part| &part.findings);
    let changes = parts.chain(&diagnosis.notes).flat_map(|one| &one.changes);
    let mut found: Vec<&Change> = Vec::new();
    for change in changes.filter(|change| change.step == step) {
        if !found.contains(&change) {
            found.push(change);
        }
    }
    found
}

const LOGIN: &str =
    "Then, once, with its file systems unmounted (the disk goes away and comes back):";
const AGAIN: &str = "The disk that comes back has defaults; under the name that it has then:";
