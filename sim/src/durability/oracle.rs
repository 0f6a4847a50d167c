//! What a correct disk may hold and say. Knows what the application asked for and was told, and
//! nothing of how it came about.
//!
//! For every sector it keeps the writes that may have left their content there. Three rules:
//!
//! * A read returns what somebody wrote, and nothing older than the last write that was
//!   acknowledged before the read began: cuts, restarts and lost connections are outages, not time
//!   travel.
//! * After a flush that ended well, every write that was acknowledged before the flush began is on
//!   the medium: looked up there, so that no cut has to come at the right moment. After a FUA write
//!   that ended well, that write is.
//! * What a failure swallowed is told once: when a flush fails, or a write with FUA fails for an
//!   earlier failure of the initiator's own flush. From then on the acknowledged, unflushed writes
//!   are *doubtful*: any of them may be missing. Flushing again does not bring them back. One that
//!   is acknowledged later is not: a flush has to have it, or to fail once more.
//!
//! Writes that are under way at the same time have no order. A write that failed may have left any
//! of its sectors behind, but takes no effect any more after it was answered.

use super::disk::{Disk, Run, SECTORS, Value};

/// The order of what the application does and is told.
pub(crate) type Moment = u64;

const NEVER: Moment = Moment::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Under way, or ended with an error, or of a kind that promises nothing: hides no other.
    Possible,
    Acknowledged,
    /// Acknowledged, and the initiator knows of a failure that it has yet to tell: a read may miss
    /// it, a flush may not end well without it.
    Shaken,
    /// Acknowledged, and a failure that was told may have swallowed it.
    Doubtful,
    /// On the medium for good.
    Settled,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    op: u32,
    value: Value,
    begun: Moment,
    ended: Moment,
    standing: Standing,
}

impl Write {
    /// It may be missing from now on, unless it is on the medium.
    fn doubt(&mut self) {
        if matches!(self.standing, Standing::Acknowledged | Standing::Shaken) {
            self.standing = Standing::Doubtful;
        }
    }

    /// `other` cannot be seen any more once this one has been acknowledged.
    fn replaces(&self, other: &Self) -> bool {
        other.ended < self.begun
    }
}

/// What kind of write ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Acknowledged,
    /// With FUA.
    Stable,
    /// Acknowledged, but its content is left open (UNMAP).
    Open,
    Failed,
}

/// The memory of one run.
#[derive(Debug)]
pub(crate) struct Oracle {
    now: Moment,
    /// When the reads under way began: they may see what was replaced since.
    reading: Vec<Moment>,
    sectors: Vec<Vec<Write>>,
}

impl Oracle {
    pub(crate) fn new() -> Self {
        let initial =
            Write { op: 0, value: Value(0), begun: 0, ended: 0, standing: Standing::Settled };
        Self { now: 0, reading: Vec::new(), sectors: vec![vec![initial]; SECTORS as usize] }
    }

    /// Something begins.
    pub(crate) fn begin(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    pub(crate) fn begin_read(&mut self) -> Moment {
        let begun = self.begin();
        self.reading.push(begun);
        begun
    }

    /// A read is over.
    pub(crate) fn end_read(&mut self, begun: Moment) {
        self.reading.retain(|reading| *reading != begun);
    }

    pub(crate) fn begin_write(&mut self, op: u32, run: Run, value: Value) -> Moment {
        let begun = self.begin();
        let standing = Standing::Possible;
        for sector in run.sectors() {
            let write = Write { op, value, begun, ended: NEVER, standing };
            self.sectors[sector as usize].push(write);
        }
        begun
    }

    pub(crate) fn end_write(&mut self, op: u32, run: Run, outcome: Outcome) {
        let ended = self.begin();
        let looked_at = self.looked_at();
        for sector in run.sectors() {
            let writes = &mut self.sectors[sector as usize];
            let Some(at) = writes.iter().position(|write| write.op == op) else { continue };
            writes[at].ended = ended;
            writes[at].standing = match outcome {
                Outcome::Acknowledged => Standing::Acknowledged,
                Outcome::Stable => Standing::Settled,
                Outcome::Open | Outcome::Failed => Standing::Possible,
            };
            match outcome {
                Outcome::Stable => forget_replaced(writes, looked_at),
                // Whatever was there, or came at the same time, may be gone.
                Outcome::Open => writes.iter_mut().for_each(Write::doubt),
                Outcome::Acknowledged | Outcome::Failed => {}
            }
        }
    }

    /// A read that began at `begun` has returned this.
    pub(crate) fn check_read(
        &self,
        begun: Moment,
        run: Run,
        values: &[Value],
    ) -> Result<(), String> {
        let hides = |write: &Write| {
            matches!(write.standing, Standing::Acknowledged | Standing::Settled)
                && write.ended < begun
        };
        run.sectors()
            .zip(values)
            .try_for_each(|(sector, value)| self.check(sector, *value, "a read returns", hides))
    }

    /// A flush that began at `begun` has ended well.
    pub(crate) fn check_flush(&mut self, begun: Moment, disk: &Disk) -> Result<(), String> {
        let looked_at = self.looked_at();
        for writes in &mut self.sectors {
            for write in writes.iter_mut() {
                let kept = matches!(write.standing, Standing::Acknowledged | Standing::Shaken);
                if kept && write.ended < begun {
                    write.standing = Standing::Settled;
                }
            }
            forget_replaced(writes, looked_at);
        }
        self.check_stable(Run::ALL, disk, "after a flush the medium has")
    }

    /// What is settled is on the medium.
    pub(crate) fn check_stable(&self, run: Run, disk: &Disk, when: &str) -> Result<(), String> {
        let hides = |write: &Write| write.standing == Standing::Settled;
        run.sectors().try_for_each(|sector| self.check(sector, disk.stable(sector), when, hides))
    }

    /// The initiator has come to know of a failure, and nobody was told of it yet.
    pub(crate) fn shaken(&mut self) {
        for write in self.sectors.iter_mut().flatten() {
            if write.standing == Standing::Acknowledged {
                write.standing = Standing::Shaken;
            }
        }
    }

    /// The application was told that data may be lost.
    pub(crate) fn told(&mut self) {
        self.sectors.iter_mut().flatten().for_each(Write::doubt);
    }

    /// The beginning of the oldest read under way.
    fn looked_at(&self) -> Moment {
        self.reading.first().copied().unwrap_or(NEVER)
    }

    fn check(
        &self,
        sector: u32,
        value: Value,
        what: &str,
        hides: impl Fn(&Write) -> bool,
    ) -> Result<(), String> {
        let writes = &self.sectors[sector as usize];
        let seen = writes.iter().filter(|write| write.value == value);
        let mut newer = None;
        for seen in seen {
            match writes.iter().find(|write| hides(write) && write.replaces(seen)) {
                None => return Ok(()),
                found => newer = found,
            }
        }
        let reason = match newer {
            Some(newer) => format!("{:?} has replaced it", newer),
            None => "which was never written there, or long ago".to_owned(),
        };
        Err(format!("{what} {value:?} in sector {sector}: {reason}; possible: {writes:?}"))
    }
}

/// What can never be seen again, by no read that began after `looked_at`. Bounds the memory of a
/// sector.
fn forget_replaced(writes: &mut Vec<Write>, looked_at: Moment) {
    let hides = |write: &&Write| write.standing == Standing::Settled && write.ended < looked_at;
    let settled: Vec<Write> = writes.iter().filter(hides).copied().collect();
    writes.retain(|write| !settled.iter().any(|settled| settled.replaces(write)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Run = Run { first: 0, count: 1 };

    fn write(oracle: &mut Oracle, op: u32, outcome: Outcome) {
        oracle.begin_write(op, ONE, Value(op));
        oracle.end_write(op, ONE, outcome);
    }

    fn may_read(oracle: &mut Oracle, value: u32) -> bool {
        let begun = oracle.begin_read();
        oracle.end_read(begun);
        oracle.check_read(begun, ONE, &[Value(value)]).is_ok()
    }

    #[test]
    fn what_was_acknowledged_is_read() {
        let mut oracle = Oracle::new();
        assert!(may_read(&mut oracle, 0) && !may_read(&mut oracle, 1));
        write(&mut oracle, 1, Outcome::Acknowledged);
        assert!(may_read(&mut oracle, 1) && !may_read(&mut oracle, 0));
        write(&mut oracle, 2, Outcome::Failed);
        assert!(may_read(&mut oracle, 1) && may_read(&mut oracle, 2));
        oracle.begin_write(3, ONE, Value(3));
        assert!(may_read(&mut oracle, 3) && may_read(&mut oracle, 1));
    }

    #[test]
    fn writes_at_the_same_time_have_no_order() {
        let mut oracle = Oracle::new();
        oracle.begin_write(1, ONE, Value(1));
        oracle.begin_write(2, ONE, Value(2));
        oracle.end_write(2, ONE, Outcome::Acknowledged);
        oracle.end_write(1, ONE, Outcome::Acknowledged);
        assert!(may_read(&mut oracle, 1) && may_read(&mut oracle, 2) && !may_read(&mut oracle, 0));
    }

    #[test]
    fn a_failure_that_was_told_puts_the_unflushed_in_doubt_and_nothing_else() {
        let mut oracle = Oracle::new();
        write(&mut oracle, 1, Outcome::Stable);
        write(&mut oracle, 2, Outcome::Acknowledged);
        oracle.told();
        assert!(may_read(&mut oracle, 1) && may_read(&mut oracle, 2) && !may_read(&mut oracle, 0));
        write(&mut oracle, 3, Outcome::Acknowledged);
        assert!(may_read(&mut oracle, 3) && !may_read(&mut oracle, 2));
    }

    #[test]
    fn content_left_open_hides_nothing() {
        let mut oracle = Oracle::new();
        write(&mut oracle, 1, Outcome::Acknowledged);
        oracle.begin_write(2, ONE, Value(0));
        oracle.end_write(2, ONE, Outcome::Open);
        assert!(may_read(&mut oracle, 1) && may_read(&mut oracle, 0));
    }
}
