//! The life of a leg: its states, what may happen to it, and the one table of what follows.
//! Decides nothing about data and does nothing by itself.

use super::status::LegState;

/// What happens to a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LegEvent {
    /// It was reached, and has no image yet: the first copy begins.
    CopyBegins,
    /// It was reached, and what may differ is sent, which may be nothing.
    CatchUpBegins,
    /// Nothing differs any more, and the leg says so itself.
    CaughtUp,
    /// It does not answer, or an operation failed that may go well another time.
    Lost,
    /// Somebody else holds it, or has written to it under a generation of their own.
    TakenOver,
    /// Both sides have written since they parted.
    Parted,
    /// It is not a leg of this mirror.
    Foreign,
    /// It cannot be used as it is.
    Failed,
    /// A person stops it.
    Pause,
    /// A person has it tried again.
    Resume,
}

impl LegEvent {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 10] = [
        Self::CopyBegins,
        Self::CatchUpBegins,
        Self::CaughtUp,
        Self::Lost,
        Self::TakenOver,
        Self::Parted,
        Self::Foreign,
        Self::Failed,
        Self::Pause,
        Self::Resume,
    ];
}

impl LegState {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 10] = [
        Self::Connecting,
        Self::Copying,
        Self::InSync,
        Self::Lost,
        Self::CatchingUp,
        Self::Paused,
        Self::Fenced,
        Self::Diverged,
        Self::Unrelated,
        Self::Failed,
    ];

    /// The state that `event` leads to, `None` where it cannot happen or means nothing.
    pub fn next(self, event: LegEvent) -> Option<Self> {
        use LegEvent as E;
        let next = match (self, event) {
            (Self::Connecting | Self::Lost, E::CopyBegins) => Self::Copying,
            (Self::Connecting | Self::Lost, E::CatchUpBegins) => Self::CatchingUp,
            (Self::Copying | Self::CatchingUp, E::CaughtUp) => Self::InSync,
            (from, E::Parted) if from.is_tried() => Self::Diverged,
            // Also of a leg in use: another unit may be put in its place at any time.
            (from, E::Foreign) if from.is_tried() => Self::Unrelated,
            (from, E::Lost) if from.is_tried() => Self::Lost,
            (from, E::TakenOver) if from.is_tried() => Self::Fenced,
            (from, E::Failed) if from.is_tried() => Self::Failed,
            (from, E::Pause) if from != Self::Paused => Self::Paused,
            (from, E::Resume) if !from.is_tried() => Self::Connecting,
            _ => return None,
        };
        Some(next)
    }

    /// The mirror uses the leg or tries to; in the other states it waits for a person.
    pub fn is_tried(self) -> bool {
        match self {
            Self::Connecting | Self::Copying | Self::InSync | Self::Lost | Self::CatchingUp => true,
            Self::Paused | Self::Fenced | Self::Diverged | Self::Unrelated | Self::Failed => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole table, one line a state: what follows each event that means something.
    const TABLE: &str = "\
Connecting: CopyBegins→Copying CatchUpBegins→CatchingUp Lost→Lost TakenOver→Fenced \
Parted→Diverged Foreign→Unrelated Failed→Failed Pause→Paused
Copying: CaughtUp→InSync Lost→Lost TakenOver→Fenced \
Parted→Diverged Foreign→Unrelated Failed→Failed Pause→Paused
InSync: Lost→Lost TakenOver→Fenced Parted→Diverged Foreign→Unrelated Failed→Failed Pause→Paused
Lost: CopyBegins→Copying CatchUpBegins→CatchingUp Lost→Lost TakenOver→Fenced \
Parted→Diverged Foreign→Unrelated Failed→Failed Pause→Paused
CatchingUp: CaughtUp→InSync Lost→Lost TakenOver→Fenced \
Parted→Diverged Foreign→Unrelated Failed→Failed Pause→Paused
Paused: Resume→Connecting
Fenced: Pause→Paused Resume→Connecting
Diverged: Pause→Paused Resume→Connecting
Unrelated: Pause→Paused Resume→Connecting
Failed: Pause→Paused Resume→Connecting
";

    #[test]
    fn the_table_is_this_one() {
        let line = |state: LegState| {
            let step = |event| state.next(event).map(|next| format!(" {event:?}→{next:?}"));
            let steps: String = LegEvent::ALL.into_iter().filter_map(step).collect();
            format!("{state:?}:{steps}\n")
        };
        let table: String = LegState::ALL.into_iter().map(line).collect();
        assert_eq!(table, TABLE);
    }

    #[test]
    fn in_sync_is_reached_by_a_copy_alone() {
        for (from, event) in pairs() {
            let reached = from.next(event) == Some(LegState::InSync);
            let copied = matches!(from, LegState::Copying | LegState::CatchingUp);
            assert!(!reached || (copied && event == LegEvent::CaughtUp), "{from:?} {event:?}");
        }
    }

    #[test]
    fn what_a_person_has_to_decide_no_event_of_the_leg_ends() {
        for (from, event) in pairs().filter(|(from, _)| !from.is_tried()) {
            let by_person = matches!(event, LegEvent::Pause | LegEvent::Resume);
            assert!(from.next(event).is_none() || by_person, "{from:?} {event:?}");
        }
    }

    fn pairs() -> impl Iterator<Item = (LegState, LegEvent)> {
        let all = LegState::ALL.into_iter();
        all.flat_map(|from| LegEvent::ALL.into_iter().map(move |event| (from, event)))
    }
}
