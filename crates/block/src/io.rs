//! [`Io`]: the outcome of a block operation, ready at once or later.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::{BlockError, Result};

/// The outcome of a block operation. Await it, or take it at once with [`Io::try_ready`].
///
/// `Ready` holds the common case (memory, page cache) without an allocation.
#[must_use = "an operation may not have finished until its Io is awaited"]
pub enum Io<T> {
    /// Finished. `None` once taken.
    Ready(Option<Result<T>>),
    /// Finishes when polled to completion.
    Later(Pin<Box<dyn Future<Output = Result<T>> + Send>>),
}

impl<T> Io<T> {
    /// Finished well.
    pub fn ok(value: T) -> Self {
        Self::Ready(Some(Ok(value)))
    }

    /// Finished badly.
    pub fn err(error: impl Into<BlockError>) -> Self {
        Self::Ready(Some(Err(error.into())))
    }

    /// Finished, either way.
    pub fn done(result: Result<T>) -> Self {
        Self::Ready(Some(result))
    }

    /// Goes on as `future`.
    pub fn later(future: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        Self::Later(Box::pin(future))
    }

    /// The result if it is there already, else the operation itself to be awaited.
    ///
    /// # Errors
    /// `Err(self)` when the operation is still under way.
    pub fn try_ready(self) -> std::result::Result<Result<T>, Self> {
        match self {
            Self::Ready(Some(result)) => Ok(result),
            other => Err(other),
        }
    }
}

impl<T: Unpin> Future for Io<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Ready(result) => match result.take() {
                Some(result) => Poll::Ready(result),
                None => panic!("Io polled after completion"), // our bug, as for every future
            },
            Self::Later(future) => future.as_mut().poll(context),
        }
    }
}
