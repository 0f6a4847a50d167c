//! [`run`]: something that waits for a disk, as a future. For the rare command that does; devices
//! have threads of their own.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Runs `work` on a thread of its own, which goes on even when the future is dropped. Where no
/// thread can be had, on this one.
pub(crate) fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Running<T> {
    let shared = Arc::new(Mutex::new(Shared::<T> { result: None, waker: None }));
    let work = Arc::new(Mutex::new(Some(work)));
    let perform = {
        let (shared, work) = (shared.clone(), work.clone());
        move || {
            let Some(work) = lock(&work).take() else { return };
            let result = work();
            let waker = {
                let mut shared = lock(&shared);
                shared.result = Some(result);
                shared.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    };
    let spawned = std::thread::Builder::new().name("scsi-state".into()).spawn(perform.clone());
    if let Err(error) = spawned {
        tracing::warn!(%error, "no thread for saving state");
        perform();
    }
    Running(shared)
}

/// Work under way.
pub(crate) struct Running<T>(Arc<Mutex<Shared<T>>>);

struct Shared<T> {
    result: Option<T>,
    waker: Option<Waker>,
}

impl<T> Future for Running<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut shared = lock(&self.0);
        match shared.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                shared.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
