//! The moments of a run at which something may be cut: each begin and each answer of an operation
//! of any disk, counted.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::disk::lock;
use super::scenario::Trouble;

/// The count. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Points(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    passed: u64,
    /// Sorted; the first is the next.
    troubles: Vec<(u64, Trouble)>,
    due: Vec<Trouble>,
    verbose: bool,
}

impl Points {
    /// Trouble at these points, counted from 1.
    pub(crate) fn new(mut troubles: Vec<(u64, Trouble)>, verbose: bool) -> Self {
        troubles.sort_by_key(|(point, _)| *point);
        Self(Arc::new(Mutex::new(State { passed: 0, troubles, due: Vec::new(), verbose })))
    }

    /// Such a moment.
    pub(crate) fn pass(&self) {
        let mut state = lock(&self.0);
        state.passed += 1;
        while state.troubles.first().is_some_and(|(point, _)| *point <= state.passed) {
            let (_, trouble) = state.troubles.remove(0);
            state.due.push(trouble);
        }
    }

    /// For the story of a run.
    pub(crate) fn log(&self, now: Duration, what: impl FnOnce() -> String) {
        let (verbose, passed) = {
            let state = lock(&self.0);
            (state.verbose, state.passed)
        };
        if verbose {
            println!("{:>10.3} ms #{passed:<4}   {}", now.as_secs_f64() * 1e3, what());
        }
    }

    /// How many there were.
    pub(crate) fn passed(&self) -> u64 {
        lock(&self.0).passed
    }

    /// What has become due since this was last asked.
    pub(crate) fn take_due(&self) -> Vec<Trouble> {
        std::mem::take(&mut lock(&self.0).due)
    }
}
