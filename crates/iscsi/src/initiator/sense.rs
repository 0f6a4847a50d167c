//! What a SCSI status and its sense data mean for a block operation: done, again, or an error
//! (SAM-4 §5.3, SPC-4 §4.5). Decides only; whoever retries does it elsewhere.

use std::io;
use std::time::Duration;

use block::BlockError;

/// Sense key, additional sense code and qualifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sense {
    /// Sense key, 4 bits.
    pub key: u8,
    /// Additional sense code.
    pub asc: u8,
    /// Additional sense code qualifier.
    pub ascq: u8,
}

impl Sense {
    /// Reads fixed (70h, 71h) and descriptor (72h, 73h) format. Missing bytes count as 0.
    pub fn parse(data: &[u8]) -> Self {
        let at = |i: usize| data.get(i).copied().unwrap_or(0);
        match at(0) & 0x7f {
            0x70 | 0x71 => Self { key: at(2) & 0x0f, asc: at(12), ascq: at(13) },
            0x72 | 0x73 => Self { key: at(1) & 0x0f, asc: at(2), ascq: at(3) },
            _ => Self::default(),
        }
    }

    /// The logical unit was powered on or reset: a volatile cache may have lost its content.
    /// 29/07, loss of the I_T nexus, is not among them: the unit itself lived on.
    pub const fn is_power_on(self) -> bool {
        self.key == 0x6 && self.asc == 0x29 && self.ascq <= 0x04
    }

    /// Commands that the unit had were dropped: it was powered on or reset or has lost the nexus
    /// (29h), or another initiator had them cleared (2Fh).
    pub const fn is_dropping(self) -> bool {
        self.key == 0x6 && matches!(self.asc, 0x29 | 0x2f)
    }

    /// ABORTED COMMAND: it was not carried out, or not as a whole.
    pub const fn is_aborted(self) -> bool {
        self.key == 0xb
    }

    /// COPY ABORTED: a copy manager stopped at a segment.
    pub const fn is_copy_aborted(self) -> bool {
        self.key == 0xa
    }

    /// Capacity, mode or identity changed: what was probed is out of date.
    pub const fn is_changed(self) -> bool {
        self.key == 0x6 && matches!(self.asc, 0x2a | 0x3f)
    }
}

impl std::fmt::Display for Sense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const KEYS: [&str; 16] = [
            "no sense",
            "recovered error",
            "not ready",
            "medium error",
            "hardware error",
            "illegal request",
            "unit attention",
            "data protect",
            "blank check",
            "vendor specific",
            "copy aborted",
            "aborted command",
            "reserved",
            "volume overflow",
            "miscompare",
            "completed",
        ];
        let name = KEYS[usize::from(self.key & 0xf)];
        write!(f, "{name} ({:x}/{:02x}/{:02x})", self.key, self.asc, self.ascq)
    }
}

/// The number of the segment that COPY ABORTED is about, from 0: the last two bytes of
/// COMMAND-SPECIFIC INFORMATION (SPC-4 §5.18.3.4), where it is told.
pub fn failed_segment(data: &[u8]) -> Option<u16> {
    let at = |i: usize| data.get(i..i + 2)?.try_into().ok().map(u16::from_be_bytes);
    match data.first()? & 0x7f {
        0x70 | 0x71 => at(10),
        0x72 | 0x73 => {
            let mut rest = data.get(8..)?;
            while let [kind, len, ..] = *rest {
                if kind == 0x01 {
                    return rest.get(10..12)?.try_into().ok().map(u16::from_be_bytes);
                }
                rest = rest.get(2 + usize::from(len)..)?;
            }
            None
        }
        _ => None,
    }
}

/// SCSI status bytes (SAM-4 §5.3.1).
pub mod status {
    /// GOOD.
    pub const GOOD: u8 = 0x00;
    /// CHECK CONDITION.
    pub const CHECK_CONDITION: u8 = 0x02;
    /// CONDITION MET.
    pub const CONDITION_MET: u8 = 0x04;
    /// BUSY.
    pub const BUSY: u8 = 0x08;
    /// RESERVATION CONFLICT.
    pub const RESERVATION_CONFLICT: u8 = 0x18;
    /// TASK SET FULL.
    pub const TASK_SET_FULL: u8 = 0x28;
    /// ACA ACTIVE.
    pub const ACA_ACTIVE: u8 = 0x30;
    /// TASK ABORTED.
    pub const TASK_ABORTED: u8 = 0x40;
}

/// What to do about a command that ended.
#[derive(Debug)]
pub enum Verdict {
    /// It is done.
    Done,
    /// Send it again at once: a unit attention came first.
    Again(Sense),
    /// Send it again after a pause.
    Later(Duration),
    /// As `Later`, and fewer at once from now on.
    Full(Duration),
    /// It failed for good.
    Failed(BlockError),
}

/// First pause before a command that the target was too busy for is sent again; doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(4);
/// Longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Pause while the unit becomes ready.
const NOT_READY_PAUSE: Duration = Duration::from_millis(500);
/// Times an aborted command is sent again before it counts as failed.
const ABORTED_ATTEMPTS_MAX: u32 = 5;

/// The pause before attempt number `attempts` + 1.
pub fn pause(attempts: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << attempts.min(16)).min(PAUSE_MAX)
}

/// Judges a status after `attempts` earlier ones of the same command.
pub fn judge(status: u8, sense: &[u8], attempts: u32) -> Verdict {
    match status {
        status::GOOD | status::CONDITION_MET => Verdict::Done,
        status::CHECK_CONDITION if Sense::parse(sense).is_copy_aborted() => {
            let segment = failed_segment(sense).map(|number| format!(" at segment {number}"));
            let text = format!("{}{}", Sense::parse(sense), segment.unwrap_or_default());
            failed(io::ErrorKind::Other, text)
        }
        status::CHECK_CONDITION => judge_sense(Sense::parse(sense), attempts),
        status::BUSY | status::ACA_ACTIVE => Verdict::Later(pause(attempts)),
        status::TASK_SET_FULL => Verdict::Full(pause(attempts)),
        status::TASK_ABORTED if attempts < ABORTED_ATTEMPTS_MAX => Verdict::Later(pause(attempts)),
        status::RESERVATION_CONFLICT => Verdict::Failed(BlockError::Fenced),
        other => failed(io::ErrorKind::Other, format!("SCSI status {other:#04x}")),
    }
}

/// As [`judge`], of a command that vouches for data: a flush, a forced write. "Logical unit
/// communication failure" under NOT READY is what Linux' target answers when its storage has failed
/// one. Sent again it would end with GOOD, because the kernel tells a failure once.
pub fn judge_stable(status: u8, sense: &[u8], attempts: u32) -> Verdict {
    match has_failed_to_keep(status, sense) {
        true => failed(io::ErrorKind::Other, Sense::parse(sense).to_string()),
        false => judge(status, sense, attempts),
    }
}

/// "Logical unit communication failure" under NOT READY.
fn has_failed_to_keep(status: u8, sense: &[u8]) -> bool {
    let parsed = Sense::parse(sense);
    status == status::CHECK_CONDITION && (parsed.key, parsed.asc) == (NOT_READY, 0x08)
}

/// As [`judge`], of PERSISTENT RESERVE OUT: what it changes has to be kept by the target, and says
/// what is missing where that cannot be.
pub fn judge_reservation(status: u8, sense: &[u8], attempts: u32) -> Verdict {
    match judge_stable(status, sense, attempts) {
        Verdict::Failed(BlockError::Medium(error)) if has_failed_to_keep(status, sense) => {
            failed(io::ErrorKind::Other, format!("{error}; {NO_FOLDER}"))
        }
        verdict => verdict,
    }
}

/// `core_scsi3_update_and_write_aptpl` of Linux 6.12 (drivers/target/target_core_pr.c) opens a file
/// in that folder, and makes no folder. The registration counts nonetheless, until it is started
/// anew (docs/interop.md).
const NO_FOLDER: &str = "Linux' target (LIO) answers a reservation so where the folder is missing in \
     which it keeps them: `mkdir -p /etc/target/pr` on its host";

const NOT_READY: u8 = 0x2;

/// Something happened to the unit that this nexus has not been told yet.
pub(crate) const UNIT_ATTENTION: u8 = 0x6;

fn judge_sense(sense: Sense, attempts: u32) -> Verdict {
    match (sense.key, sense.asc, sense.ascq) {
        (0x0 | 0x1, ..) => Verdict::Done,
        (NOT_READY, 0x3a, _) => failed(io::ErrorKind::NotFound, sense.to_string()), // no medium
        (NOT_READY, ..) => Verdict::Later(NOT_READY_PAUSE),
        (0x5, 0x20, _) => Verdict::Failed(BlockError::Unsupported("this SCSI command")),
        (0x5, 0x21, _) => failed(io::ErrorKind::InvalidInput, sense.to_string()),
        (0x5, 0x24 | 0x26, _) => Verdict::Failed(BlockError::Unsupported("a field of the command")),
        (0x6, ..) => Verdict::Again(sense),
        // SPACE ALLOCATION FAILED WRITE PROTECT: thin provisioning ran out (SBC-3 §4.7.3.6).
        (0x7, 0x27, 0x07) | (0xd, ..) => Verdict::Failed(BlockError::NoSpace),
        (0x7, ..) => Verdict::Failed(BlockError::ReadOnly),
        (0xb, ..) if attempts < ABORTED_ATTEMPTS_MAX => Verdict::Later(pause(attempts)),
        _ => failed(io::ErrorKind::Other, sense.to_string()),
    }
}

fn failed(kind: io::ErrorKind, text: String) -> Verdict {
    Verdict::Failed(BlockError::Medium(io::Error::new(kind, text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(key: u8, asc: u8, ascq: u8) -> Vec<u8> {
        let mut data = vec![0; 18];
        (data[0], data[2], data[12], data[13]) = (0x70, key, asc, ascq);
        data
    }

    #[test]
    fn both_formats_say_the_same() {
        let descriptor = [0x72, 6, 0x29, 1, 0, 0, 0, 0];
        assert_eq!(Sense::parse(&descriptor), Sense::parse(&fixed(6, 0x29, 1)));
        assert!(Sense::parse(&descriptor).is_power_on());
        assert!(!Sense::parse(&fixed(6, 0x29, 7)).is_power_on());
        assert_eq!(Sense::parse(&[]), Sense::default());
        assert_eq!(Sense::parse(&[0x70, 0]), Sense::default());
    }

    #[test]
    fn a_full_disk_is_no_space_and_a_protected_one_is_read_only() {
        let of = |key, asc, ascq| judge(2, &fixed(key, asc, ascq), 0);
        assert!(matches!(of(7, 0x27, 7), Verdict::Failed(BlockError::NoSpace)));
        assert!(matches!(of(7, 0x27, 0), Verdict::Failed(BlockError::ReadOnly)));
        assert!(matches!(of(3, 0x11, 0), Verdict::Failed(BlockError::Medium(_))));
        assert!(matches!(of(6, 0x2a, 9), Verdict::Again(sense) if sense.is_changed()));
        assert!(matches!(of(2, 4, 1), Verdict::Later(_)));
        assert!(matches!(of(5, 0x20, 0), Verdict::Failed(BlockError::Unsupported(_))));
    }

    #[test]
    fn a_copy_that_stopped_says_at_which_segment() {
        let mut sense = fixed(0xa, 0x0d, 0x02);
        sense[11] = 5;
        assert_eq!(failed_segment(&sense), Some(5));
        let Verdict::Failed(error) = judge(2, &sense, 0) else { panic!("not failed") };
        assert!(error.to_string().ends_with("copy aborted (a/0d/02) at segment 5"), "{error}");
        let mut sense = vec![0x72, 0xa, 0x0d, 0x02, 0, 0, 0, 16, 0x00, 0x02, 0, 0];
        sense.extend([0x01, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(failed_segment(&sense), Some(0x102));
        assert_eq!(failed_segment(&sense[..12]), None);
        assert_eq!(failed_segment(&[]), None);
    }

    #[test]
    fn a_target_that_cannot_keep_a_reservation_is_not_waited_for_and_what_it_lacks_is_said() {
        let Verdict::Failed(error) = judge_reservation(2, &fixed(2, 8, 0), 0) else {
            panic!("sent again and again")
        };
        let said = error.to_string();
        assert!(said.contains("2/08/00") && said.contains("mkdir -p /etc/target/pr"), "{said}");
        assert!(matches!(judge_reservation(2, &fixed(2, 4, 1), 0), Verdict::Later(_)));
        assert!(matches!(judge_reservation(0x18, &[], 0), Verdict::Failed(BlockError::Fenced)));
        let no_medium = judge_reservation(2, &fixed(2, 0x3a, 0), 0);
        let Verdict::Failed(error) = no_medium else { panic!("{no_medium:?}") };
        assert!(!error.to_string().contains("mkdir"), "{error}");
    }

    #[test]
    fn what_vouches_for_data_is_not_tried_again_when_the_targets_storage_has_failed_it() {
        let sense = fixed(2, 8, 0);
        assert!(matches!(judge(2, &sense, 0), Verdict::Later(_)));
        assert!(matches!(judge_stable(2, &sense, 0), Verdict::Failed(BlockError::Medium(_))));
        assert!(matches!(judge_stable(2, &fixed(2, 4, 1), 0), Verdict::Later(_)), "becoming ready");
        assert!(matches!(judge_stable(0, &[], 0), Verdict::Done));
    }

    #[test]
    fn pauses_grow_and_end() {
        assert_eq!(pause(0), PAUSE_MIN);
        assert!(pause(3) > pause(2));
        assert_eq!(pause(1000), PAUSE_MAX);
        assert!(matches!(judge(0x28, &[], 0), Verdict::Full(_)));
        assert!(matches!(judge(0x40, &[], ABORTED_ATTEMPTS_MAX), Verdict::Failed(_)));
        assert!(matches!(judge(0x18, &[], 0), Verdict::Failed(BlockError::Fenced)));
    }
}
