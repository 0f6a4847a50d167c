//! Life of an incarnation as far as durability goes: one table. It sends nothing and keeps nothing.

/// How far an incarnation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// There is none, or it is being set up: what is kept may be lost at the target.
    Down,
    /// What is kept is being written again.
    Writing,
    /// What was written again is being flushed.
    Flushing,
    /// Commands of the user go.
    Up,
}

/// What can happen to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Every session is up, and every attention told.
    Begin,
    /// The writes of a portion have ended.
    Written,
    /// The flush after them has ended.
    Flushed,
    /// No portion is left.
    Complete,
    /// The unit says that it was powered on.
    PowerOn,
    /// Its sessions have ended.
    Lost,
}

impl Stage {
    /// Every stage, for tests.
    pub const ALL: [Self; 4] = [Self::Down, Self::Writing, Self::Flushing, Self::Up];

    /// The stage after `input`, `None` where it cannot come or changes nothing.
    pub const fn after(self, input: Input) -> Option<Self> {
        use Input as I;
        use Stage as S;
        Some(match (self, input) {
            (S::Down, I::Begin) => S::Writing,
            (S::Writing, I::Written) => S::Flushing,
            (S::Flushing, I::Flushed) => S::Writing,
            (S::Writing, I::Complete) => S::Up,
            (S::Writing | S::Flushing | S::Up, I::PowerOn | I::Lost) => S::Down,
            _ => return None,
        })
    }
}

impl Input {
    /// Every input, for tests.
    pub const ALL: [Self; 6] =
        [Self::Begin, Self::Written, Self::Flushed, Self::Complete, Self::PowerOn, Self::Lost];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All stage × input results in the order of `Input::ALL`; `-` is "no such transition".
    const TABLE: &str = "\
Down:     Writing - - - - -
Writing:  - Flushing - Up Down Down
Flushing: - - Writing - Down Down
Up:       - - - - Down Down
";

    #[test]
    fn nothing_opens_before_a_portion_is_written_and_flushed() {
        let mut table = String::new();
        for stage in Stage::ALL {
            let results: Vec<String> = Input::ALL
                .iter()
                .map(|input| stage.after(*input).map_or("-".into(), |next| format!("{next:?}")))
                .collect();
            table += &format!("{:<9} {}\n", format!("{stage:?}:"), results.join(" "));
        }
        assert_eq!(table, TABLE);
    }
}
