//! Waiting without a runtime: a [`Signal`] that many wait for, an [`answer`] that one waits for,
//! and [`either`] of two futures.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Something that changes now and then.
#[derive(Default)]
pub(crate) struct Signal {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    version: u64,
    next_waiter: u64,
    waiting: BTreeMap<u64, Waker>,
}

impl Signal {
    /// It has changed: all who wait go on.
    pub(crate) fn raise(&self) {
        let mut inner = lock(&self.inner);
        inner.version += 1;
        let waiting = std::mem::take(&mut inner.waiting);
        drop(inner);
        waiting.into_values().for_each(Waker::wake);
    }

    /// Ends at the first change after this call, not after it is first polled. Take it before
    /// looking at what may have changed.
    pub(crate) fn next(self: &Arc<Self>) -> Change {
        let mut inner = lock(&self.inner);
        inner.next_waiter += 1;
        let (seen, waiter) = (inner.version, inner.next_waiter);
        Change { signal: self.clone(), seen, waiter }
    }
}

/// The next change of a [`Signal`].
pub(crate) struct Change {
    signal: Arc<Signal>,
    seen: u64,
    waiter: u64,
}

impl Future for Change {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = lock(&self.signal.inner);
        if inner.version != self.seen {
            return Poll::Ready(());
        }
        inner.waiting.insert(self.waiter, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        lock(&self.signal.inner).waiting.remove(&self.waiter);
    }
}

/// A place for one value, and the future of it.
pub(crate) fn answer<T>() -> (Teller<T>, Answer<T>) {
    let slot = Arc::new(Mutex::new(Slot { value: None, told: false, waker: None }));
    (Teller(slot.clone()), Answer(slot))
}

struct Slot<T> {
    value: Option<T>,
    told: bool,
    waker: Option<Waker>,
}

impl<T> Slot<T> {
    fn end(slot: &Mutex<Self>, value: Option<T>) {
        let mut slot = lock(slot);
        if slot.told {
            return;
        }
        (slot.value, slot.told) = (value, true);
        let waker = slot.waker.take();
        drop(slot);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Gives the value. Dropped without, the [`Answer`] is `None`.
pub(crate) struct Teller<T>(Arc<Mutex<Slot<T>>>);

impl<T> Teller<T> {
    pub(crate) fn tell(self, value: T) {
        Slot::end(&self.0, Some(value));
    }
}

impl<T> Drop for Teller<T> {
    fn drop(&mut self) {
        Slot::end(&self.0, None);
    }
}

/// The value, or `None` if it will never be told.
pub(crate) struct Answer<T>(Arc<Mutex<Slot<T>>>);

impl<T> Future for Answer<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = lock(&self.0);
        if slot.told {
            return Poll::Ready(slot.value.take());
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// The first of two to end; the other one is dropped where it is.
pub(crate) enum Either<A, B> {
    /// This one.
    Left(A),
    /// That one.
    Right(B),
}

/// Waits for either; the left one wins where both are ready.
pub(crate) async fn either<A: Future, B: Future>(a: A, b: B) -> Either<A::Output, B::Output> {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    std::future::poll_fn(|context| {
        if let Poll::Ready(value) = a.as_mut().poll(context) {
            return Poll::Ready(Either::Left(value));
        }
        b.as_mut().poll(context).map(Either::Right)
    })
    .await
}

/// Data is never left half changed behind these locks, so a panic elsewhere does not spoil it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_change_between_the_look_and_the_wait_is_not_missed() {
        let signal = Arc::<Signal>::default();
        let mut change = signal.next();
        signal.raise();
        assert!(poll(&mut change).is_ready());
        assert!(poll(&mut signal.next()).is_pending());
    }

    #[test]
    fn who_gives_up_waiting_leaves_nothing_behind() {
        let signal = Arc::<Signal>::default();
        let mut change = signal.next();
        assert!(poll(&mut change).is_pending());
        drop(change);
        assert!(lock(&signal.inner).waiting.is_empty());
    }

    #[test]
    fn an_answer_is_told_once_or_never() {
        let (teller, mut told) = answer();
        assert!(poll(&mut told).is_pending());
        teller.tell(7);
        assert_eq!(poll(&mut told), Poll::Ready(Some(7)));
        let (teller, mut never) = answer::<u8>();
        drop(teller);
        assert_eq!(poll(&mut never), Poll::Ready(None));
    }
}
