//! What a session has to tell its owner, and whether it may be told later, with more of it.

use std::collections::VecDeque;

use super::Session;
use super::event::{Event, TaskOutcome};

/// In the order in which it happened.
#[derive(Debug)]
pub(super) struct Events<T> {
    queue: VecDeque<Event<T>>,
    /// Those among them that are more than a command's GOOD.
    urgent: usize,
}

impl<T> Events<T> {
    pub(super) const fn new() -> Self {
        Self { queue: VecDeque::new(), urgent: 0 }
    }

    pub(super) fn push_back(&mut self, event: Event<T>) {
        self.urgent += usize::from(!is_good(&event));
        self.queue.push_back(event);
    }

    pub(super) fn pop_front(&mut self) -> Option<Event<T>> {
        let event = self.queue.pop_front()?;
        self.urgent -= usize::from(!is_good(&event));
        Some(event)
    }
}

fn is_good<T>(event: &Event<T>) -> bool {
    matches!(event, Event::TaskDone { outcome: TaskOutcome::Completed { status: 0, .. }, .. })
}

impl<T> Session<T> {
    /// Does [`Self::poll_event`] have more to say than that commands have ended with GOOD? Only
    /// that may be taken later, after more has been received. Anything else may decide what comes
    /// behind it is worth: GOOD of a flush says nothing of what was lost at a power-on before.
    pub const fn is_urgent(&self) -> bool {
        self.events.urgent > 0
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ids::{Itt, Lun};
    use crate::initiator::Command;
    use crate::pdu::{Residual, TaskAttribute};

    fn ended(status: u8) -> Event<()> {
        let command = Command {
            lun: Lun(0),
            cdb: [0; 16],
            data_out: Bytes::new(),
            data_in_len: 0,
            attribute: TaskAttribute::SIMPLE,
        };
        let (residual, sense) = (Residual::None, Bytes::new());
        let outcome = TaskOutcome::Completed { status, residual, data_in_len: 0, sense };
        Event::TaskDone { itt: Itt(1), command, context: (), outcome, cmd_sn: None }
    }

    #[test]
    fn good_may_wait_and_anything_else_may_not() {
        const CHECK_CONDITION: u8 = 2;
        let mut events = Events::new();
        events.push_back(ended(0));
        assert_eq!(events.urgent, 0);
        events.push_back(ended(CHECK_CONDITION));
        events.push_back(Event::SessionEnded { error: None });
        events.push_back(ended(0));
        let mut left = Vec::new();
        while events.pop_front().is_some() {
            left.push(events.urgent);
        }
        assert_eq!(left, [2, 1, 0, 0]);
    }
}
