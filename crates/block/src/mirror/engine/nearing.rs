//! [`Nearing`]: from when on changes are sent to a leg that is being brought what it lacks. Pure.
//!
//! Far from its end a copy is a queue, and whatever is sent behind it waits for all of it; so
//! changes are left to the copy, and the user waits for the local device alone. That ends when what
//! is owed is about what is under way at once, or when passes do not get through: what is changed
//! meanwhile is more than half of what was owed, so that without the user waiting it would never
//! end. A flush there comes first, since it has all that was copied to write, and then the user
//! would wait for it.

use super::shared::Shared;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Near {
    /// Go on copying.
    Far,
    /// Have what was copied made stable, and go on copying beside it.
    Settle,
    /// Have changes sent there from now on.
    Reached,
    /// They are sent.
    Is,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Far,
    Settling,
    Near,
}

/// How near to its end a copy is.
#[derive(Clone, Debug)]
pub(crate) struct Nearing {
    stage: Stage,
    /// Bytes owed when the pass before ended.
    before: u64,
    diverges: bool,
}

impl Nearing {
    /// At the beginning of a copy.
    pub(crate) fn new(shared: &Shared, leg: usize) -> Self {
        Self::beginning(shared.legs().is_far_behind(leg))
    }

    fn beginning(far: bool) -> Self {
        let stage = if far { Stage::Far } else { Stage::Near };
        Self { stage, before: u64::MAX, diverges: false }
    }

    /// All that was owed was looked at once more; `owed` bytes are now.
    pub(crate) fn pass_ended(&mut self, owed: u64) {
        self.diverges |= owed > self.before / 2;
        self.before = owed;
    }

    /// `owed` bytes are owed, and at most `under_way` bytes are sent at once; `settles`: a flush
    /// has not ended.
    pub(crate) fn next(&mut self, owed: u64, under_way: u64, settles: bool) -> Near {
        match self.stage {
            Stage::Far if owed > under_way && !self.diverges => Near::Far,
            // One that is under way already does not cover the last part.
            Stage::Far if settles => Near::Far,
            Stage::Far => {
                self.stage = Stage::Settling;
                Near::Settle
            }
            Stage::Settling if settles => Near::Far,
            Stage::Settling => {
                self.stage = Stage::Near;
                Near::Reached
            }
            Stage::Near => Near::Is,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 16 << 20;

    #[test]
    fn a_copy_is_near_when_the_rest_is_under_way_and_the_most_is_stable() {
        let mut nearing = Nearing::beginning(true);
        assert_eq!(nearing.next(1 << 30, WINDOW, false), Near::Far);
        assert_eq!(nearing.next(WINDOW, WINDOW, true), Near::Far, "that flush is older");
        assert_eq!(nearing.next(WINDOW, WINDOW, false), Near::Settle);
        assert_eq!(nearing.next(WINDOW, WINDOW, true), Near::Far);
        assert_eq!(nearing.next(2 * WINDOW, WINDOW, false), Near::Reached);
        assert_eq!(nearing.next(1 << 30, WINDOW, false), Near::Is);
    }

    #[test]
    fn passes_that_leave_as_much_as_they_found_make_the_user_wait() {
        let mut nearing = Nearing::beginning(true);
        nearing.pass_ended(1 << 30);
        nearing.pass_ended(1 << 28);
        assert_eq!(nearing.next(1 << 28, WINDOW, false), Near::Far);
        nearing.pass_ended(200 << 20);
        assert_eq!(nearing.next(200 << 20, WINDOW, false), Near::Settle);
    }

    #[test]
    fn one_that_changes_are_sent_to_already_stays_so() {
        assert_eq!(Nearing::beginning(false).next(1 << 30, WINDOW, false), Near::Is);
    }
}
