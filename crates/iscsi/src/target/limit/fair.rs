//! [`Queue`]: in which order commands that wait are let through. Each flow (an initiator) gets the
//! same share of what there is, whatever it asks for; within a flow the oldest is first.
//!
//! Start-time fair queueing (Goyal, Vin and Cheng, 1996): a command is tagged with the virtual time
//! at which its flow may begin it, and the least tag goes first. One that is let through advances
//! its flow by what it costs. A flow that was idle begins at the present, so that nobody saves up.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Who asks.
pub(super) type Flow = Arc<str>;

/// Commands that wait, each with what the caller keeps of it.
#[derive(Debug)]
pub(super) struct Queue<T> {
    flows: BTreeMap<Flow, Waiting<T>>,
    /// The tag of what was let through last.
    now: u128,
    next: u64,
    len: usize,
}

#[derive(Debug)]
struct Waiting<T> {
    /// Virtual time at which its oldest command may begin.
    start: u128,
    commands: BTreeMap<u64, T>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { flows: BTreeMap::new(), now: 0, next: 0, len: 0 }
    }
}

impl<T> Queue<T> {
    /// Commands in it.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a command at the end of its flow; the number is for [`remove`](Self::remove).
    pub(super) fn push(&mut self, flow: &Flow, command: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.len += 1;
        let now = self.now;
        let waiting = self
            .flows
            .entry(Arc::clone(flow))
            .or_insert_with(|| Waiting { start: now, commands: BTreeMap::new() });
        if waiting.commands.is_empty() {
            waiting.start = waiting.start.max(now);
        }
        waiting.commands.insert(number, command);
        number
    }

    fn next_flow(&self) -> Option<(&Flow, &Waiting<T>)> {
        let waits = self.flows.iter().filter(|(_, waiting)| !waiting.commands.is_empty());
        // Of equal tags the older command is first.
        waits.min_by_key(|(_, waiting)| (waiting.start, waiting.commands.keys().next().copied()))
    }

    /// Takes the command that is next, which costs its flow so much.
    pub(super) fn pop(&mut self, cost: impl FnOnce(&T) -> u128) -> Option<T> {
        let flow = self.next_flow().map(|(flow, _)| Arc::clone(flow))?;
        let waiting = self.flows.get_mut(&flow)?;
        let (_, command) = waiting.commands.pop_first()?;
        self.now = waiting.start;
        waiting.start = waiting.start.saturating_add(cost(&command));
        self.len -= 1;
        self.forget();
        Some(command)
    }

    /// Takes out a command that waits no longer.
    pub(super) fn remove(&mut self, flow: &Flow, number: u64) -> Option<T> {
        let removed = self.flows.get_mut(flow)?.commands.remove(&number);
        self.len -= usize::from(removed.is_some());
        self.forget();
        removed
    }

    /// Forgets flows that have no advantage to lose: an idle one whose last command is not yet paid
    /// for by the virtual time would come back to a share of others.
    fn forget(&mut self) {
        if self.len == 0 {
            self.flows.clear();
            self.now = 0;
            return;
        }
        let now = self.now;
        self.flows.retain(|_, waiting| !waiting.commands.is_empty() || waiting.start > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows() -> [Flow; 3] {
        ["a", "b", "c"].map(Arc::from)
    }

    fn drain(queue: &mut Queue<(&'static str, u128)>) -> String {
        std::iter::from_fn(|| queue.pop(|(_, cost)| *cost).map(|(name, _)| name)).collect()
    }

    #[test]
    fn a_deep_queue_has_no_more_than_its_share() {
        let [a, b, c] = flows();
        let mut queue = Queue::default();
        for _ in 0..6 {
            queue.push(&a, ("a", 10));
        }
        for _ in 0..2 {
            queue.push(&b, ("b", 10));
        }
        queue.push(&c, ("c", 10));
        assert_eq!(drain(&mut queue), "abcabaaaa");
    }

    #[test]
    fn shares_are_of_the_cost_not_of_commands() {
        let [a, b, _] = flows();
        let mut queue = Queue::default();
        for _ in 0..2 {
            queue.push(&a, ("A", 40));
        }
        for _ in 0..8 {
            queue.push(&b, ("b", 10));
        }
        assert_eq!(drain(&mut queue), "AbbbbAbbbb");
    }

    /// A client with one command at a time, which asks again as soon as it is served.
    #[test]
    fn one_command_at_a_time_gets_half_and_no_more() {
        let [a, b, _] = flows();
        let mut queue = Queue::default();
        for _ in 0..10 {
            queue.push(&a, ("a", 10));
        }
        queue.push(&b, ("b", 10));
        let mut order = String::new();
        for _ in 0..10 {
            let (name, _) = queue.pop(|(_, cost)| *cost).unwrap();
            order += name;
            if name == "b" {
                queue.push(&b, ("b", 10));
            }
        }
        assert_eq!(order, "abababababa"[..10]);
    }

    #[test]
    fn what_is_taken_out_is_gone_and_nothing_is_kept_of_the_idle() {
        let [a, b, _] = flows();
        let mut queue = Queue::default();
        let first = queue.push(&a, ("1", 10));
        queue.push(&a, ("2", 10));
        queue.push(&b, ("3", 10));
        assert!(queue.remove(&a, first).is_some());
        assert!(queue.remove(&a, first).is_none() && queue.remove(&b, first).is_none());
        assert_eq!((queue.len(), drain(&mut queue).as_str()), (2, "23"));
        assert!(queue.is_empty() && queue.flows.is_empty());
    }
}
