//! [`TaskSet`]: which commands of a logical unit may run, by their task attributes (SAM-5 §8).
//!
//! SIMPLE commands run in any order. An ORDERED one runs when all older ones have ended, and holds
//! back the newer. A HEAD OF QUEUE one runs at once and holds back whatever has not begun. One set
//! for all nexuses (TST 000b of the Control mode page).
//!
//! While there are only SIMPLE commands, they are a number that is counted up and down, no more:
//! the lock is for the rare case. What a failed command means to those behind it: `contingent`.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::TaskAttribute;

/// Set in [`TaskSet::outside`] while the queue holds a command that is not SIMPLE.
const QUEUED: u64 = 1 << 63;

/// The commands of a logical unit that have arrived and not ended.
#[derive(Default)]
pub(crate) struct TaskSet {
    /// SIMPLE commands that run without being in the queue, and [`QUEUED`]. They are older than
    /// all that is not SIMPLE in the queue.
    outside: AtomicU64,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    next_ticket: u64,
    /// In order of arrival.
    entries: Vec<Entry>,
}

struct Entry {
    ticket: u64,
    attribute: TaskAttribute,
    /// Enabled in the words of SAM-5, else dormant.
    enabled: bool,
    waker: Option<Waker>,
}

/// A command in the set, until dropped.
pub(crate) struct Member {
    set: Arc<TaskSet>,
    /// Its place in the queue; without one it is outside.
    ticket: Option<u64>,
}

/// A dormant command. Dropped, it leaves the set.
pub(crate) struct Dormant(Option<Member>);

impl TaskSet {
    /// A command arrives: it may run now, or once the future is ready.
    pub(crate) fn enter(self: &Arc<Self>, attribute: TaskAttribute) -> Result<Member, Dormant> {
        if attribute == TaskAttribute::Simple {
            if self.outside.fetch_add(1, Ordering::AcqRel) & QUEUED == 0 {
                return Ok(Member { set: self.clone(), ticket: None });
            }
            self.leave_outside();
        }
        let mut queue = self.lock();
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.entries.push(Entry { ticket, attribute, enabled: false, waker: None });
        // Another one may be found free, too: whoever counted down has not come to look yet.
        let wakers = self.look(&mut queue);
        let enabled = queue.entries.last().is_some_and(|entry| entry.enabled);
        drop(queue);
        wakers.into_iter().for_each(Waker::wake);
        let member = Member { set: self.clone(), ticket: Some(ticket) };
        if enabled { Ok(member) } else { Err(Dormant(Some(member))) }
    }

    fn leave_outside(&self) {
        if self.outside.fetch_sub(1, Ordering::AcqRel) & QUEUED != 0 {
            let wakers = self.look(&mut self.lock());
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    fn leave_queue(&self, ticket: u64) {
        let mut queue = self.lock();
        queue.entries.retain(|entry| entry.ticket != ticket);
        let wakers = self.look(&mut queue);
        drop(queue);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Enables what may run now (SAM-5 §8.8), and keeps [`QUEUED`] right.
    fn look(&self, queue: &mut Queue) -> Vec<Waker> {
        let is = |attribute| move |entry: &Entry| entry.attribute == attribute;
        let simple_only = queue.entries.iter().all(is(TaskAttribute::Simple));
        let outside = match simple_only {
            true => self.outside.fetch_and(!QUEUED, Ordering::AcqRel),
            false => self.outside.fetch_or(QUEUED, Ordering::AcqRel),
        } & !QUEUED;
        let head = queue.entries.iter().any(is(TaskAttribute::HeadOfQueue));
        let mut older_ordered = false;
        let mut wakers = Vec::new();
        for (older, entry) in queue.entries.iter_mut().enumerate() {
            entry.enabled |= match entry.attribute {
                TaskAttribute::HeadOfQueue => true,
                TaskAttribute::Ordered => !head && older == 0 && outside == 0,
                TaskAttribute::Simple | TaskAttribute::Aca => !head && !older_ordered,
            };
            if entry.enabled {
                wakers.extend(entry.waker.take());
            }
            older_ordered |= entry.attribute == TaskAttribute::Ordered;
        }
        wakers
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        match self.ticket {
            None => self.set.leave_outside(),
            Some(ticket) => self.set.leave_queue(ticket),
        }
    }
}

impl Future for Dormant {
    type Output = Member;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Member> {
        let Some(member) = &self.0 else {
            panic!("Dormant polled after completion"); // our bug, as for every future
        };
        let mut queue = member.set.lock();
        let entry = queue.entries.iter_mut().find(|entry| Some(entry.ticket) == member.ticket);
        if let Some(entry) = entry.filter(|entry| !entry.enabled) {
            entry.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        drop(queue);
        match self.0.take() {
            Some(member) => Poll::Ready(member),
            None => Poll::Pending, // not reached: it was there above
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::TaskAttribute::{HeadOfQueue, Ordered, Simple};

    /// What a command is to the test: waiting, or running.
    enum Seen {
        Waiting(Dormant),
        Running { _member: Member },
    }

    /// SAM-5 §8.8 read aloud: all commands in order of arrival, nothing clever.
    #[derive(Default)]
    struct Model(Vec<(u32, TaskAttribute, bool)>);

    impl Model {
        fn look(&mut self) {
            let head = self.0.iter().any(|(_, attribute, _)| *attribute == HeadOfQueue);
            for at in 0..self.0.len() {
                let (older, rest) = self.0.split_at_mut(at);
                let (_, attribute, enabled) = &mut rest[0];
                let ordered = older.iter().any(|(_, attribute, _)| *attribute == Ordered);
                *enabled |= match attribute {
                    HeadOfQueue => true,
                    Ordered => !head && older.is_empty(),
                    _ => !head && !ordered,
                };
            }
        }
    }

    /// Polls all that wait; those that may run now do.
    fn poll_all(seen: &mut [(u32, Seen)]) {
        for (_, state) in seen {
            if let Seen::Waiting(dormant) = state {
                let mut context = Context::from_waker(Waker::noop());
                if let Poll::Ready(member) = Pin::new(dormant).poll(&mut context) {
                    *state = Seen::Running { _member: member };
                }
            }
        }
    }

    proptest! {
        /// Arrivals and ends (of running and of waiting ones: aborts) in any order.
        #[test]
        fn as_the_model(steps in prop::collection::vec((0..8u8, any::<prop::sample::Index>()), 1..80)) {
            let set = Arc::<TaskSet>::default();
            let mut model = Model::default();
            let mut seen: Vec<(u32, Seen)> = Vec::new();
            for (number, (step, which)) in (0..).zip(steps) {
                match step {
                    0..5 => {
                        let attribute = [Simple, Simple, Simple, Ordered, HeadOfQueue][usize::from(step)];
                        model.0.push((number, attribute, false));
                        seen.push((number, match set.enter(attribute) {
                            Ok(member) => Seen::Running { _member: member },
                            Err(dormant) => Seen::Waiting(dormant),
                        }));
                    }
                    _ if seen.is_empty() => {}
                    _ => {
                        let (ended, _) = seen.swap_remove(which.index(seen.len()));
                        model.0.retain(|(number, _, _)| *number != ended);
                    }
                }
                model.look();
                poll_all(&mut seen);
                let mut running: Vec<u32> = seen
                    .iter()
                    .filter(|(_, state)| matches!(state, Seen::Running { .. }))
                    .map(|(number, _)| *number)
                    .collect();
                running.sort_unstable();
                let expected: Vec<u32> =
                    model.0.iter().filter(|(_, _, on)| *on).map(|(number, _, _)| *number).collect();
                prop_assert_eq!(running, expected);
            }
            drop(seen);
            prop_assert_eq!(set.outside.load(Ordering::Relaxed), 0);
            prop_assert!(set.lock().entries.is_empty());
        }
    }

    #[test]
    fn whoever_may_run_is_woken() {
        struct Flag(std::sync::atomic::AtomicBool);
        impl std::task::Wake for Flag {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::Release);
            }
        }
        let set = Arc::<TaskSet>::default();
        let simple = set.enter(Simple).ok().unwrap();
        let mut ordered = set.enter(Ordered).err().unwrap();
        let flag = Arc::new(Flag(false.into()));
        let waker = flag.clone().into();
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut ordered).poll(&mut context).is_pending());
        drop(simple);
        assert!(flag.0.load(Ordering::Acquire));
        assert!(Pin::new(&mut ordered).poll(&mut context).is_ready());
    }

    #[test]
    fn threads_keep_the_order() {
        /// Ends of commands seen by the next ORDERED one, which must be all that began before.
        const ROUNDS: usize = 2000;
        let set = Arc::<TaskSet>::default();
        let running = Arc::new(AtomicU64::new(0));
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (set, running) = (set.clone(), running.clone());
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let ordered = (round + worker) % 5 == 0;
                        let attribute = if ordered { Ordered } else { Simple };
                        let member = match set.enter(attribute) {
                            Ok(member) => member,
                            Err(dormant) => wait(dormant),
                        };
                        let others = running.fetch_add(1, Ordering::AcqRel);
                        assert!(!ordered || others == 0, "ORDERED beside {others} others");
                        std::hint::spin_loop();
                        running.fetch_sub(1, Ordering::AcqRel);
                        drop(member);
                    }
                });
            }
        });
        assert_eq!(set.outside.load(Ordering::Relaxed), 0);
    }

    /// Blocks the thread until a dormant command may run.
    fn wait(mut dormant: Dormant) -> Member {
        struct Unpark(std::thread::Thread);
        impl std::task::Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Arc::new(Unpark(std::thread::current())).into();
        let mut context = Context::from_waker(&waker);
        loop {
            match Pin::new(&mut dormant).poll(&mut context) {
                Poll::Ready(member) => return member,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}
