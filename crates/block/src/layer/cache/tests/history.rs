//! What clients have done to each block, and so what a read may return and a power cut may leave.
//! Time is a counter: two operations are ordered if one ended before the other began.

use std::ops::Range;

/// End of what is still under way.
const OPEN: u64 = u64::MAX;

/// A change of a block.
struct Change {
    /// 0 for zeroes.
    version: u64,
    start: u64,
    end: u64,
    /// It has ended well; else it may have had an effect, or none.
    done: bool,
    fua: bool,
}

/// A block was read.
#[derive(Clone, Copy, Default)]
struct Sight {
    version: u64,
    start: u64,
    end: u64,
}

/// All of it.
pub(super) struct History {
    now: u64,
    last_version: u64,
    blocks: Vec<Vec<Change>>,
    /// The read of each block that began last, of those that have ended.
    sights: Vec<Sight>,
    /// Begin of the latest flush that ended well.
    flushed: u64,
    /// Deferred errors that a flush has reported.
    reported: u64,
}

impl History {
    pub(super) fn new(blocks: u64) -> Self {
        let sights = vec![Sight::default(); blocks as usize];
        let blocks = (0..blocks).map(|_| Vec::new()).collect();
        Self { now: 1, last_version: 0, blocks, sights, flushed: 0, reported: 0 }
    }

    /// The time, which is another one at each call.
    pub(super) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// A version that nobody has used.
    pub(super) fn version(&mut self) -> u64 {
        self.last_version += 1;
        self.last_version
    }

    /// A change begins; what it is called at its end.
    pub(super) fn begin(&mut self, range: &Range<u64>, version: u64, fua: bool) -> u64 {
        let start = self.tick();
        for block in range.clone() {
            let change = Change { version, start, end: OPEN, done: false, fua };
            self.blocks[block as usize].push(change);
        }
        start
    }

    pub(super) fn end(&mut self, range: &Range<u64>, start: u64, done: bool) {
        let end = self.tick();
        for block in range.clone() {
            let changes = self.blocks[block as usize].iter_mut();
            for change in changes.filter(|change| change.start == start) {
                (change.end, change.done) = (end, done);
            }
        }
    }

    /// A flush that began at `start`, when so many errors had been deferred, has ended; now there
    /// are `errors`.
    pub(super) fn flushed(
        &mut self,
        start: u64,
        errors_before: u64,
        errors: u64,
        done: bool,
    ) -> Result<(), String> {
        if done && errors_before > self.reported {
            return Err("a flush ended well, but an error had not been reported".into());
        }
        if done {
            self.flushed = self.flushed.max(start);
        } else {
            self.reported = self.reported.max(errors);
        }
        Ok(())
    }

    /// Checks what a read that began at `start` has returned. It cannot go back behind an earlier
    /// read: what ended before that, and was not what it saw, has been overwritten.
    pub(super) fn check_read(
        &mut self,
        block: u64,
        version: u64,
        start: u64,
    ) -> Result<(), String> {
        let before = |change: &Change| change.done && change.end < start;
        self.check(block, version, before).map_err(|why| format!("read of {why}"))?;
        let now = self.tick();
        let sight = &mut self.sights[block as usize];
        let mut known = self.blocks[block as usize].iter().filter(|c| c.version == version);
        if sight.end < start && sight.version != version && !known.any(|c| c.end > sight.start) {
            return Err(format!(
                "read of block {block}: version {version} after {} was read",
                sight.version
            ));
        }
        if start > sight.start {
            *sight = Sight { version, start, end: now };
        }
        Ok(())
    }

    /// Checks what is left after a power cut.
    pub(super) fn check_left(&self, block: u64, version: u64) -> Result<(), String> {
        let stable = |change: &Change| change.done && (change.fua || change.end < self.flushed);
        self.check(block, version, stable).map_err(|why| format!("left in {why}"))
    }

    /// A version may be seen unless something that must be seen came wholly after it.
    fn check(
        &self,
        block: u64,
        version: u64,
        must_be_seen: impl Fn(&Change) -> bool,
    ) -> Result<(), String> {
        let changes = &self.blocks[block as usize];
        let latest = changes.iter().filter(|c| must_be_seen(c)).map(|c| c.start).max();
        let latest = latest.unwrap_or(0);
        // Before all there were zeroes.
        let initial = version == 0 && latest == 0;
        let known = changes.iter().filter(|change| change.version == version);
        if initial || known.into_iter().any(|change| change.end > latest) {
            return Ok(());
        }
        let there = changes.iter().map(|c| (c.version, c.start, c.end, c.done)).collect::<Vec<_>>();
        Err(format!(
            "block {block}: version {version}, but what came at {latest} is newer: {there:?}"
        ))
    }
}
