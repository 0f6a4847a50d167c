//! Tasks, pauses and randomness of a run: one thread, a clock that jumps, and chance that decides
//! which of the tasks that could go on does. The [`Host`] of the product's engine.
//!
//! Whatever is to happen at a moment without a task waiting for it (an operation takes effect at a
//! device) is a call among the same timers.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};

use block::mirror::Host;
use block::mirror::host::BoxFuture;

use crate::rng::Rng;

/// Sites with a host of their own.
const SITES: usize = 2;

/// All tasks and timers of a run. Clones share them.
#[derive(Clone)]
pub(crate) struct Executor(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    ready: Arc<Ready>,
}

struct State {
    now: Duration,
    next: u64,
    /// Of which site, and the task: `None` while it is polled.
    tasks: BTreeMap<u64, (usize, Option<BoxFuture>)>,
    events: BTreeMap<(Duration, u64), Event>,
    rng: Rng,
    /// Of the host at each site: tasks of an earlier start are gone, and it can begin no more of
    /// them.
    boots: [u64; SITES],
}

enum Event {
    Wake(Waker),
    Call(Box<dyn FnOnce() + Send>),
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A task went on, or a timer ended.
    Done,
    /// Nothing can happen any more.
    Idle,
}

/// Tasks that could go on.
#[derive(Default)]
struct Ready(Mutex<Vec<u64>>);

impl Ready {
    fn add(&self, task: u64) {
        let mut ready = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !ready.contains(&task) {
            ready.push(task);
        }
    }

    /// Any of them.
    fn take(&self, rng: &mut Rng) -> Option<u64> {
        let mut ready = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = ready.len() as u64;
        (count > 0).then(|| ready.swap_remove(rng.below(count) as usize))
    }
}

struct TaskWaker {
    task: u64,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.add(self.task);
    }
}

impl Executor {
    pub(crate) fn new(rng: Rng) -> Self {
        let state = State {
            now: Duration::ZERO,
            next: 1,
            tasks: BTreeMap::new(),
            events: BTreeMap::new(),
            rng,
            boots: [0; SITES],
        };
        Self(Arc::new(Inner { state: Mutex::new(state), ready: Arc::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Duration {
        self.lock().now
    }

    /// Time, tasks and chance for one start of the host.
    pub(crate) fn host(&self) -> Arc<SimHost> {
        self.host_of(0)
    }

    /// As [`host`](Self::host), for the host at a site.
    pub(crate) fn host_of(&self, site: usize) -> Arc<SimHost> {
        let mut state = self.lock();
        let (boot, rng) = (state.boots[site], Mutex::new(state.rng.fork()));
        Arc::new(SimHost { executor: self.clone(), site, boot, rng })
    }

    /// Does `call` after `delay`, whatever becomes of the tasks.
    pub(crate) fn after(&self, delay: Duration, call: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        let due = state.now + delay;
        state.add(due, Event::Call(Box::new(call)));
    }

    /// Lets one task go on, or if none can, ends the next timer.
    pub(crate) fn step(&self) -> Step {
        let mut state = self.lock();
        if let Some(task) = self.0.ready.take(&mut state.rng) {
            // A task that has ended may have been woken once more.
            let Some(future) = state.tasks.get_mut(&task).and_then(|(_, task)| task.take()) else {
                return Step::Done;
            };
            drop(state);
            self.poll(task, future);
            return Step::Done;
        }
        let Some(((due, _), event)) = state.events.pop_first() else { return Step::Idle };
        state.now = due;
        drop(state);
        match event {
            Event::Wake(waker) => waker.wake(),
            Event::Call(call) => call(),
        }
        Step::Done
    }

    fn poll(&self, task: u64, mut future: BoxFuture) {
        let waker = Arc::new(TaskWaker { task, ready: self.0.ready.clone() }).into();
        let pending = future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        let mut state = self.lock();
        match (pending, state.tasks.get_mut(&task)) {
            (true, Some((_, place))) => *place = Some(future),
            (_, place) => {
                let known = place.is_some();
                if known {
                    state.tasks.remove(&task);
                }
                // What a future does when it is dropped may come back here.
                drop(state);
                drop(future);
            }
        }
    }

    /// The host's process ends: all tasks, and what they hold, are gone.
    pub(crate) fn end_tasks(&self) {
        self.end_tasks_of(0);
    }

    /// As [`end_tasks`](Self::end_tasks), of the host at a site.
    pub(crate) fn end_tasks_of(&self, site: usize) {
        self.lock().boots[site] += 1;
        loop {
            let mut state = self.lock();
            let tasks = std::mem::take(&mut state.tasks).into_iter();
            let (ends, stay): (BTreeMap<_, _>, _) = tasks.partition(|(_, (at, _))| *at == site);
            state.tasks = stay;
            drop(state);
            if ends.is_empty() {
                return;
            }
            drop(ends);
        }
    }

    fn spawn(&self, (site, boot): (usize, u64), future: BoxFuture) {
        let mut state = self.lock();
        if state.boots[site] != boot {
            drop(state);
            return drop(future);
        }
        let task = state.next;
        state.next += 1;
        state.tasks.insert(task, (site, Some(future)));
        drop(state);
        self.0.ready.add(task);
    }
}

impl State {
    fn add(&mut self, due: Duration, event: Event) -> (Duration, u64) {
        let key = (due, self.next);
        self.next += 1;
        self.events.insert(key, event);
        key
    }
}

/// The host of the engine, from one start to the next.
pub(crate) struct SimHost {
    executor: Executor,
    site: usize,
    boot: u64,
    rng: Mutex<Rng>,
}

impl Host for SimHost {
    fn spawn(&self, task: BoxFuture) {
        self.executor.spawn((self.site, self.boot), task);
    }

    fn sleep(&self, duration: Duration) -> BoxFuture {
        let due = self.now().saturating_add(duration);
        Box::pin(Sleep { executor: self.executor.clone(), due, timer: None })
    }

    fn now(&self) -> Duration {
        self.executor.now()
    }

    fn wall_clock(&self) -> SystemTime {
        /// A Tuesday in 2026, so that dates in messages look like dates.
        const BEGIN: Duration = Duration::from_secs(1_780_000_000);
        SystemTime::UNIX_EPOCH + BEGIN + self.now()
    }

    fn name(&self) -> String {
        format!("host {}, start {}", self.site, self.boot)
    }

    fn random(&self) -> u128 {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        u128::from(rng.next()) << 64 | u128::from(rng.next())
    }
}

struct Sleep {
    executor: Executor,
    due: Duration,
    timer: Option<(Duration, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let executor = self.executor.clone();
        let mut state = executor.lock();
        if let Some(timer) = self.timer.take() {
            state.events.remove(&timer);
        }
        if state.now >= self.due {
            return Poll::Ready(());
        }
        self.timer = Some(state.add(self.due, Event::Wake(context.waker().clone())));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            let event = self.executor.lock().events.remove(&timer);
            drop(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(seed: u64) -> Vec<(u64, Duration)> {
        let executor = Executor::new(Rng::new(seed));
        let host = executor.host();
        let seen = Arc::new(Mutex::new(Vec::new()));
        for task in 0..4 {
            let (host, seen) = (host.clone(), seen.clone());
            let ended = host.clone();
            host.spawn(Box::pin(async move {
                for pause in 0..3 {
                    ended.sleep(Duration::from_secs(pause)).await;
                    seen.lock().unwrap().push((task, ended.now()));
                }
            }));
        }
        while executor.step() == Step::Done {}
        let seen = seen.lock().unwrap();
        seen.clone()
    }

    #[test]
    fn a_seed_is_one_order_and_another_seed_another() {
        assert_eq!(order(1), order(1));
        let orders: Vec<_> = (0..20).map(order).collect();
        assert!(orders.iter().any(|other| *other != orders[0]));
        assert!(
            orders.iter().all(|order| order.iter().filter(|(_, at)| at.is_zero()).count() == 4)
        );
        assert!(orders.iter().all(|order| order[11].1 == Duration::from_secs(3)));
    }

    #[test]
    fn nothing_goes_on_after_the_end_of_the_host() {
        let executor = Executor::new(Rng::new(1));
        let host = executor.host();
        let reached = Arc::new(Mutex::new(0));
        let (inside, counted) = (host.clone(), reached.clone());
        host.spawn(Box::pin(async move {
            inside.sleep(Duration::from_secs(1)).await;
            *counted.lock().unwrap() += 1;
        }));
        executor.step();
        executor.end_tasks();
        let counted = reached.clone();
        host.spawn(Box::pin(async move { *counted.lock().unwrap() += 1 }));
        while executor.step() == Step::Done {}
        assert_eq!(*reached.lock().unwrap(), 0);
    }
}
