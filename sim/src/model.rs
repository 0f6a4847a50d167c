//! What a correct unit may answer. Every block is a register; the model keeps, for each write, when
//! it could take effect, and judges each read by that.
//!
//! A write may take effect at any time between its submission and its end, and more than once,
//! because after the loss of a session it is issued again. After its end it must not: the answer
//! (or the answer to the function that aborted it) was the promise. A read may return a write `w`
//! of which all this is true:
//!
//! * `w` was submitted before the read ended;
//! * no write that was acknowledged before the read began started after `w` had ended;
//! * no earlier read that ended before this one began has seen another write after `w` had ended.
//!
//! The last rule is what notices a late duplicate: two concurrent writes may end in either order,
//! but once somebody has looked, it is decided.

use std::collections::BTreeSet;

use crate::workload::{BLOCKS, Extent, OpId, UNITS};

/// Time as the application sees it: the order of its own actions.
type Moment = u64;

const NEVER: Moment = Moment::MAX;

#[derive(Clone, Copy, Debug)]
struct Version {
    op: OpId,
    begun: Moment,
    /// It takes no effect from here on.
    ended: Moment,
    /// Reads that begin later cannot see it.
    hidden: Moment,
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading(Moment);

/// The model of all units.
#[derive(Debug)]
pub(crate) struct Model {
    moment: Moment,
    blocks: Vec<Vec<Version>>,
    /// Writes that are over.
    ended: BTreeSet<OpId>,
}

impl Model {
    pub(crate) fn new() -> Self {
        let initial = Version { op: OpId(0), begun: 0, ended: 0, hidden: NEVER };
        Self {
            moment: 0,
            blocks: vec![vec![initial]; UNITS as usize * BLOCKS as usize],
            ended: BTreeSet::new(),
        }
    }

    fn tick(&mut self) -> Moment {
        self.moment += 1;
        self.moment
    }

    fn versions(&mut self, unit: u64, block: u32) -> &mut Vec<Version> {
        &mut self.blocks[unit as usize * BLOCKS as usize + block as usize]
    }

    /// The application submits a write.
    pub(crate) fn begin_write(&mut self, op: OpId, unit: u64, extent: Extent) {
        let begun = self.tick();
        for block in extent.blocks() {
            let version = Version { op, begun, ended: NEVER, hidden: NEVER };
            self.versions(unit, block).push(version);
        }
    }

    /// The application learns the end of a write. Unless it was acknowledged, it may have taken
    /// effect or not.
    pub(crate) fn end_write(&mut self, op: OpId, unit: u64, extent: Extent, acknowledged: bool) {
        let now = self.tick();
        self.ended.insert(op);
        for block in extent.blocks() {
            let versions = self.versions(unit, block);
            let Some(this) = versions.iter_mut().find(|version| version.op == op) else { continue };
            this.ended = now;
            let begun = this.begun;
            if acknowledged {
                hide(versions, op, begun, now);
            }
        }
    }

    /// A write reaches the medium.
    pub(crate) fn take_effect(&mut self, op: OpId) -> Result<(), String> {
        match self.ended.contains(&op) {
            false => Ok(()),
            true => Err(format!("{op} reaches the medium although its end was told before")),
        }
    }

    pub(crate) fn begin_read(&mut self) -> Reading {
        Reading(self.tick())
    }

    /// A read is over; `seen` tells who wrote each block.
    pub(crate) fn end_read(
        &mut self,
        reading: Reading,
        unit: u64,
        extent: Extent,
        seen: &[OpId],
    ) -> Result<(), String> {
        let now = self.tick();
        for (block, op) in extent.blocks().zip(seen) {
            let versions = self.versions(unit, block);
            let allowed =
                versions.iter().any(|version| version.op == *op && version.hidden >= reading.0);
            if !allowed {
                return Err(format!(
                    "read of unit {unit} block {block} begun at {} returned {op}; allowed: {}",
                    reading.0,
                    describe(versions, reading.0)
                ));
            }
            hide(versions, *op, reading.0, now);
        }
        Ok(())
    }
}

/// `op` was in place at some time between `since` and `now`: whatever ended before that is history.
fn hide(versions: &mut [Version], op: OpId, since: Moment, now: Moment) {
    for version in versions.iter_mut().filter(|version| version.op != op) {
        if version.ended < since {
            version.hidden = version.hidden.min(now);
        }
    }
}

fn describe(versions: &[Version], at: Moment) -> String {
    let allowed = versions.iter().filter(|version| version.hidden >= at);
    let list: Vec<String> = allowed
        .map(|version| match version.ended {
            NEVER => format!("{} ({}…)", version.op, version.begun),
            ended => format!("{} ({}–{ended})", version.op, version.begun),
        })
        .collect();
    list.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Extent = Extent { first: 0, count: 1 };

    fn read(model: &mut Model, seen: u32) -> Result<(), String> {
        let reading = model.begin_read();
        model.end_read(reading, 0, ONE, &[OpId(seen)])
    }

    fn write(model: &mut Model, op: u32) {
        model.begin_write(OpId(op), 0, ONE);
        model.end_write(OpId(op), 0, ONE, true);
    }

    #[test]
    fn the_last_acknowledged_write_is_what_a_read_returns() {
        let mut model = Model::new();
        read(&mut model, 0).unwrap();
        write(&mut model, 1);
        read(&mut model, 1).unwrap();
        assert!(read(&mut model, 0).is_err(), "older than the last acknowledged one");
        assert!(read(&mut model, 2).is_err(), "never written");
    }

    #[test]
    fn an_outstanding_write_may_be_seen_or_not_until_it_is_acknowledged() {
        let mut model = Model::new();
        model.begin_write(OpId(1), 0, ONE);
        read(&mut model, 0).unwrap();
        read(&mut model, 1).unwrap();
        model.end_write(OpId(1), 0, ONE, true);
        assert!(read(&mut model, 0).is_err());
    }

    #[test]
    fn an_aborted_write_took_effect_or_did_not_but_somebody_looking_decides_it() {
        let mut model = Model::new();
        model.begin_write(OpId(1), 0, ONE);
        model.end_write(OpId(1), 0, ONE, false);
        let mut other =
            Model { moment: model.moment, blocks: model.blocks.clone(), ended: BTreeSet::new() };
        read(&mut model, 1).unwrap();
        assert!(read(&mut model, 0).is_err());
        read(&mut other, 0).unwrap();
        assert!(read(&mut other, 1).is_err(), "it came after it was said to be over");
    }

    #[test]
    fn a_stale_copy_that_lands_after_a_newer_write_is_noticed() {
        let mut model = Model::new();
        // Op 1 is issued twice, acknowledged once; then op 2 is written; then the first copy of
        // op 1 comes out of a queue.
        write(&mut model, 1);
        write(&mut model, 2);
        assert!(read(&mut model, 1).is_err());
    }

    #[test]
    fn concurrent_writes_end_in_either_order_but_not_in_both() {
        let mut model = Model::new();
        for op in [1, 2] {
            model.begin_write(OpId(op), 0, ONE);
        }
        for op in [1, 2] {
            model.end_write(OpId(op), 0, ONE, true);
        }
        read(&mut model, 1).unwrap();
        assert!(read(&mut model, 2).is_err());
    }

    #[test]
    fn a_read_that_overlaps_a_write_may_return_either() {
        let mut model = Model::new();
        let reading = model.begin_read();
        write(&mut model, 1);
        model.end_read(reading, 0, ONE, &[OpId(0)]).unwrap();
        read(&mut model, 1).unwrap();
    }
}
