//! [`Abortable`]: commands that take long enough to be told that nobody wants their answer any more
//! (ABORT TASK and its relatives, SAM-5 §7; a session that ends).
//!
//! An aborted command is not cut off: what it has handed to the device comes back first, then it
//! ends instead of going on. So none of its writes can land after it has ended, and whoever aborted
//! it waits for that end. A command that is over soon does not care and ends by itself.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::{Response, Status};

/// Long commands of one nexus, by the transport's tag. Those that end at once are never in here.
#[derive(Default)]
pub(crate) struct Abortable {
    /// A handful at a time, so a scan beats a tree.
    tasks: Mutex<Vec<(u64, Arc<State>)>>,
}

#[derive(Default)]
struct State {
    aborted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// A command that looks now and then whether it may stop. Leaves the list when dropped.
pub(crate) struct Task {
    owner: Option<(Arc<Abortable>, u64)>,
    state: Arc<State>,
}

/// The answer of an aborted command; the transport throws it away.
pub(crate) fn aborted() -> Response {
    Response::status(Status::TASK_ABORTED)
}

impl Abortable {
    /// Lists a command. Several parts of one command share its state, so that an abort between them
    /// is not lost. One without a tag cannot be named and never learns.
    pub(crate) fn task(self: &Arc<Self>, tag: Option<u64>) -> Task {
        let Some(tag) = tag else { return Task { owner: None, state: Arc::default() } };
        let mut tasks = self.lock();
        let known = tasks.iter().find(|(other, _)| *other == tag);
        let state = known.map_or_else(Arc::default, |(_, state)| state.clone());
        tasks.push((tag, state.clone()));
        Task { owner: Some((self.clone(), tag)), state }
    }

    /// Tells the commands with these tags, or all of them.
    pub(crate) fn abort(&self, tag: Option<u64>) {
        let hit = |(other, _): &&(u64, Arc<State>)| tag.is_none_or(|tag| tag == *other);
        let states: Vec<_> =
            self.lock().iter().filter(hit).map(|(_, state)| state.clone()).collect();
        for state in states {
            state.aborted.store(true, Ordering::Release);
            let waker = lock(&state.waker).take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Arc<State>)>> {
        lock(&self.tasks)
    }
}

impl Task {
    pub(crate) fn is_aborted(&self) -> bool {
        self.state.aborted.load(Ordering::Acquire)
    }

    /// Waits for `future`, or until the command is aborted: then it is dropped. Only for what waits
    /// for its turn; a device's work must not be dropped half done.
    pub(crate) async fn unless_aborted<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        std::future::poll_fn(|context| {
            if self.is_aborted() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            *lock(&self.state.waker) = Some(context.waker().clone());
            // It may have come since the first look, and have found no waker.
            if self.is_aborted() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let Some((owner, tag)) = self.owner.take() else { return };
        let mut tasks = owner.lock();
        if let Some(index) = tasks.iter().position(|(other, _)| *other == tag) {
            tasks.swap_remove(index);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::Context;

    use super::*;

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_wait_ends_for_the_one_that_was_meant() {
        let list = Arc::new(Abortable::default());
        let (one, two) = (list.task(Some(1)), list.task(Some(2)));
        let mut first = pin!(one.unless_aborted(std::future::pending::<()>()));
        let mut second = pin!(two.unless_aborted(std::future::pending::<()>()));
        assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
        list.abort(Some(1));
        assert_eq!(poll(first.as_mut()), Poll::Ready(None));
        assert!(poll(second.as_mut()).is_pending());
        list.abort(None);
        assert_eq!(poll(second.as_mut()), Poll::Ready(None));
    }

    #[test]
    fn parts_of_a_command_share_its_end() {
        let list = Arc::new(Abortable::default());
        let (whole, part) = (list.task(Some(7)), list.task(Some(7)));
        drop(part);
        list.abort(Some(7));
        let later = list.task(Some(7));
        assert!(whole.is_aborted() && later.is_aborted());
        drop((whole, later));
        assert!(list.lock().is_empty());
        assert!(!list.task(Some(7)).is_aborted(), "another command with a used tag");
        assert!(!list.task(None).is_aborted());
    }
}
