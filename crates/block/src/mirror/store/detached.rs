//! Work that goes on although nobody waits for it any more.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::super::host::Host;

/// Runs `work` as a task; the future of its result is `None` if the task was dropped.
pub(super) fn run<T: Send + 'static>(
    host: &Arc<dyn Host>,
    work: impl Future<Output = T> + Send + 'static,
) -> Outcome<T> {
    let slot = Arc::new(Mutex::new(Slot { value: None, over: false, waker: None }));
    let teller = Teller(slot.clone());
    host.spawn(Box::pin(async move {
        let value = work.await;
        lock(&teller.0).value = Some(value);
    }));
    Outcome(slot)
}

struct Slot<T> {
    value: Option<T>,
    over: bool,
    waker: Option<Waker>,
}

fn lock<T>(slot: &Mutex<Slot<T>>) -> MutexGuard<'_, Slot<T>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In the task: when it ends in whatever way, the other side hears of it.
struct Teller<T>(Arc<Mutex<Slot<T>>>);

impl<T> Drop for Teller<T> {
    fn drop(&mut self) {
        let mut slot = lock(&self.0);
        slot.over = true;
        let waker = slot.waker.take();
        drop(slot);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The result of a task.
pub(super) struct Outcome<T>(Arc<Mutex<Slot<T>>>);

impl<T> Future for Outcome<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = lock(&self.0);
        if slot.over {
            return Poll::Ready(slot.value.take());
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
