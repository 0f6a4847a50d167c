//! What a status means for a command of the initiator. Mirrors `initiator/sense.rs` of
//! `crates/iscsi`, as far as the simulated target has such answers.

use std::time::Duration;

/// Sense key, additional sense code and qualifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sense {
    key: u8,
    asc: u8,
    ascq: u8,
}

impl Sense {
    /// Fixed format is all the target has.
    fn parse(data: &[u8]) -> Self {
        let at = |i: usize| data.get(i).copied().unwrap_or(0);
        Self { key: at(2) & 0x0f, asc: at(12), ascq: at(13) }
    }

    pub(crate) const fn is_power_on(self) -> bool {
        self.key == 0x6 && self.asc == 0x29 && self.ascq <= 0x04
    }

    pub(crate) const fn is_nexus_loss(self) -> bool {
        self.key == 0x6 && self.asc == 0x29 && self.ascq == 0x07
    }

    pub(crate) const fn is_changed(self) -> bool {
        self.key == 0x6 && matches!(self.asc, 0x2a | 0x3f)
    }
}

/// What to do about a command that ended.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Done,
    /// A unit attention came first.
    Again(Sense),
    Later(Duration),
    /// Reserved for somebody else.
    Conflict,
    Failed(String),
}

/// Pause before a command that the target would not take goes out again.
const PAUSE: Duration = Duration::from_millis(50);

/// Times that an aborted command is sent again before it counts as failed.
const ABORTED_ATTEMPTS_MAX: u32 = 5;

pub(crate) fn judge(status: u8, sense: &[u8], attempts: u32) -> Verdict {
    let sense = Sense::parse(sense);
    match (status, sense.key) {
        (0, _) => Verdict::Done,
        (0x08 | 0x28, _) | (0x02, 0x2) => Verdict::Later(PAUSE),
        (0x18, _) => Verdict::Conflict,
        (0x02, 0x6) => Verdict::Again(sense),
        (0x40, _) | (0x02, 0xb) if attempts < ABORTED_ATTEMPTS_MAX => Verdict::Later(PAUSE),
        _ => Verdict::Failed(format!("status {status:#x}, {sense:x?}")),
    }
}
