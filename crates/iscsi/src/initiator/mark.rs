//! [`WriteMark`]: has anybody written to a unit that is only read here? Asked for with LOG SENSE
//! (page 19h, SPC-4 §7.3), and whether somebody keeps others from writing, with PERSISTENT RESERVE
//! IN (SPC-4 §6.15), both at once: one round trip and some 100 bytes.
//!
//! Whoever reads and wants to know whether what came is of one state of the unit asks once it is
//! there: a round trip more. Where the unit keeps to the ORDERED attribute the question can be sent
//! right behind the read, and is carried out behind it ([`RemoteDisk::write_mark_behind`]). That is
//! not for all the time: older commands of everybody end first, and newer ones wait for it.

use block::{BlockError, Io, Result};
use iscsi_proto::initiator::Command;
use iscsi_proto::pdu::TaskAttribute;
use iscsi_proto::serial::CmdSn;

use super::cdb::Cdb;
use super::disk::RemoteDisk;
use super::op::{Pending, Reply};
use super::ordered::{Abilities, OWN_VENDOR};
use super::reservation::{Question, ask as ask_reservation, held};
use super::shared::Shared;
use super::state::{command, session_ended};

/// General Statistics and Performance.
const PAGE: u8 = 0x19;
/// Its first parameter, which has the counts.
const STATISTICS: u16 = 0x0001;
/// Bytes asked for: all that the page has in our target, and twice that.
const LEN: u8 = 192;
/// Bytes of READ RESERVATION: a header, and one reservation.
const RESERVATION_LEN: u16 = 24;
/// Times that sessions may be set up anew while the counts are asked for.
const TRIES_MAX: u32 = 4;

/// The state of a unit's content as its target tells it. Two that are the same say that no write
/// began or ended between them, as far as the target counts; one that was asked for later never
/// stands for an earlier state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteMark {
    /// Session set-ups and unit attentions: behind either, counts may have begun anew.
    session: (u64, u64),
    counts: Option<Counts>,
    is_reserved: bool,
}

/// How many commands have written, how many blocks, and the time that they took, which our target
/// adds at the end of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    commands: u64,
    blocks: u64,
    intervals: u64,
}

impl WriteMark {
    /// The unit counts writes. Where it does not, two marks may be the same with writes between
    /// them.
    pub fn is_counted(&self) -> bool {
        self.counts.is_some()
    }

    /// Nobody has written since the unit was powered on.
    pub fn is_untouched(&self) -> bool {
        self.counts.is_some_and(|counts| counts.commands == 0)
    }

    /// Somebody holds a persistent reservation: whoever writes to the unit, it is him.
    pub fn is_reserved(&self) -> bool {
        self.is_reserved
    }
}

impl RemoteDisk {
    /// The unit's mark as of some moment after this was called.
    ///
    /// # Errors
    /// The target does not answer, or refuses.
    pub async fn write_mark(&self) -> Result<WriteMark> {
        let shared = self.shared();
        let mut session = shared.session();
        for _ in 0..TRIES_MAX {
            let answers = shared.ask_mark(TaskAttribute::SIMPLE).answers();
            let (answers, ()) = tokio::join!(answers, self.learn_places());
            let Answers { counts, is_reserved, .. } = answers?;
            // What was counted in one session must not be taken for another's.
            let after = shared.session();
            if session == after {
                return Ok(WriteMark { session, counts, is_reserved });
            }
            session = after;
        }
        Err(BlockError::Unreachable("sessions end as soon as they begin".into()))
    }

    /// The unit's mark as of a moment behind all reads that this disk has begun before this is
    /// called, and its place: it is behind all reads of a lesser one
    /// ([`reads_ended`](Self::reads_ended)). Asked for now, not when the future is polled; `None`
    /// where the unit is not known to keep an order, as it is once
    /// [`write_mark`](Self::write_mark) was asked for.
    ///
    /// # Errors
    /// The target does not answer, or refuses; its session has ended meanwhile.
    pub fn write_mark_behind(&self) -> Option<Io<(WriteMark, u64)>> {
        if !self.keeps_places() {
            return None;
        }
        let disk = self.clone();
        let session = disk.shared().session();
        let questions = disk.shared().ask_mark(TaskAttribute::ORDERED);
        Some(Io::later(async move {
            let Answers { counts, is_reserved, cmd_sn } = questions.answers().await?;
            let cmd_sn = cmd_sn.filter(|_| disk.shared().session() == session);
            let Some(cmd_sn) = cmd_sn else { return Err(session_ended()) };
            let mut state = disk.shared().lock();
            if !state.places.tell() {
                return Err(session_ended()); // another one has begun beside it
            }
            let place = state.places.of(cmd_sn);
            Ok((WriteMark { session, counts, is_reserved }, place))
        }))
    }

    /// The greatest place of a read that has ended by now, 0 if none has; `None` where places tell
    /// nothing.
    pub fn reads_ended(&self) -> Option<u64> {
        self.keeps_places().then(|| self.shared().lock().places.reads_ended())
    }

    /// Numbers tell what was carried out before what: in one session, of which nothing is sent
    /// twice, with a unit that keeps to attributes.
    fn keeps_places(&self) -> bool {
        let state = self.shared().lock();
        let [member] = &state.members[..] else { return false };
        let level = member.session.params().error_recovery_level;
        state.places.tell() && level == 0
    }

    /// Finds out whether the unit keeps to attributes, if that is not known.
    async fn learn_places(&self) {
        let incarnation = {
            let state = self.shared().lock();
            if state.places.are_kept.is_some() {
                return;
            }
            state.incarnation
        };
        // Of another vendor's target it is not known that it looks at a question's attribute.
        let is_own = self.identity().vendor == OWN_VENDOR;
        let mut are_kept = false;
        if is_own {
            let Ok(abilities) = Abilities::of(self).await else { return }; // asked again next time
            are_kept = abilities.orders;
        }
        let mut state = self.shared().lock();
        if state.incarnation == incarnation {
            state.places.are_kept = Some(are_kept);
        }
    }
}

/// LOG SENSE and READ RESERVATION, under way.
struct Questions {
    counts: Pending,
    reservation: Pending,
}

/// What they brought, and the number of the first of them.
struct Answers {
    counts: Option<Counts>,
    is_reserved: bool,
    cmd_sn: Option<CmdSn>,
}

impl Shared {
    fn session(&self) -> (u64, u64) {
        let state = self.lock();
        (state.incarnation, state.attentions)
    }

    fn ask_mark(&self, attribute: TaskAttribute) -> Questions {
        let ask = |cdb, data_in_len| {
            let command = command(self.url.wire_lun(), cdb);
            self.send_short(Command { data_in_len, attribute, ..command })
        };
        let len = RESERVATION_LEN;
        let counts = ask(log_sense(), LEN.into());
        Questions {
            counts,
            reservation: ask(ask_reservation(Question::Reservation, len), len.into()),
        }
    }
}

impl Questions {
    async fn answers(self) -> Result<Answers> {
        let asked = tokio::try_join!(data(self.counts), data(self.reservation))?;
        let ((counts, first), (reservation, second)) = asked;
        let earlier = |a: CmdSn, b: CmdSn| if a.is_before(b) { a } else { b };
        Ok(Answers {
            counts: counts.and_then(|page| parse(&page)),
            is_reserved: reservation.is_some_and(|answer| held(&answer).is_some()),
            cmd_sn: first.zip(second).map(|(a, b)| earlier(a, b)),
        })
    }
}

/// What a command brings that the unit may not know, and the number that it had.
async fn data(pending: Pending) -> Result<(Option<Vec<u8>>, Option<CmdSn>)> {
    match pending.await {
        Ok(Reply { buf, len, cmd_sn, .. }) => {
            let buf = buf.as_deref().unwrap_or(&[]);
            Ok((Some(buf[..len.min(buf.len())].to_vec()), cmd_sn))
        }
        Err(BlockError::Unsupported(_)) => Ok((None, None)),
        Err(error) => Err(error),
    }
}

/// LOG SENSE of cumulative values.
fn log_sense() -> Cdb {
    const CUMULATIVE: u8 = 0x40;
    let mut cdb = [0; 16];
    (cdb[0], cdb[2], cdb[8]) = (0x4d, CUMULATIVE | PAGE, LEN);
    cdb
}

/// The counts of the page, which may end anywhere.
fn parse(page: &[u8]) -> Option<Counts> {
    let be16 = |at: &[u8]| at.get(..2)?.try_into().ok().map(u16::from_be_bytes);
    if page.first()? & 0x3f != PAGE {
        return None;
    }
    let len = usize::from(be16(page.get(2..)?)?);
    let mut rest = page.get(4..)?;
    rest = &rest[..len.min(rest.len())];
    loop {
        let (code, len) = (be16(rest)?, usize::from(*rest.get(3)?));
        let value = rest.get(4..4 + len)?;
        if code == STATISTICS {
            let count =
                |n: usize| value.get(8 * n..8 * n + 8)?.try_into().ok().map(u64::from_be_bytes);
            let (commands, blocks) = (count(1)?, count(2)?);
            // The first of them are what the page is for, the others come later in it.
            return Some(Counts { commands, blocks, intervals: count(5).unwrap_or(0) });
        }
        rest = rest.get(4 + len..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page(parameters: &[(u16, &[u64])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (code, values) in parameters {
            body.extend(code.to_be_bytes());
            body.extend([3, 8 * values.len() as u8]);
            body.extend(values.iter().flat_map(|value| value.to_be_bytes()));
        }
        [&[0x19, 0][..], &(body.len() as u16).to_be_bytes(), &body].concat()
    }

    #[test]
    fn the_counts_of_writes_are_found_wherever_they_stand() {
        let counts = |commands, blocks, intervals| Some(Counts { commands, blocks, intervals });
        let all = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(parse(&page(&[(1, &all)])), counts(2, 3, 6));
        assert_eq!(parse(&page(&[(7, &[9]), (1, &all), (3, &[0])])), counts(2, 3, 6));
        assert_eq!(parse(&page(&[(1, &[1, 2, 3, 4])])), counts(2, 3, 0), "no times");
        assert_eq!(parse(&page(&[(1, &[1, 2])])), None);
        assert_eq!(parse(&page(&[(2, &[1, 2, 3])])), None);
        assert_eq!(parse(&[0x0c, 0, 0, 4, 0, 1, 3, 0]), None, "another page");
        assert_eq!(log_sense()[..10], [0x4d, 0, 0x59, 0, 0, 0, 0, 0, 192, 0]);
    }

    proptest! {
        #[test]
        fn no_page_of_a_target_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&[&[0x19][..], &bytes].concat());
        }
    }
}
