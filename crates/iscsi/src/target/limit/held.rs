//! [`Held`]: commands of one connection that wait for a limit. Dropping it, or forgetting a
//! command, takes it out of the queue that it waits in.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::{AbortHandle, Abortable, abortable};
use futures_util::stream::{FuturesUnordered, StreamExt};
use iscsi_proto::ids::Itt;

/// Completes when a command may go on.
pub(in super::super) type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

type Numbered = Pin<Box<dyn Future<Output = Itt> + Send>>;

/// Commands that wait, by their tags.
#[derive(Default)]
pub(in super::super) struct Held {
    waits: FuturesUnordered<Abortable<Numbered>>,
    handles: HashMap<Itt, AbortHandle>,
}

impl Held {
    /// A command waits.
    pub(in super::super) fn push(&mut self, itt: Itt, wait: Wait) {
        let numbered: Numbered = Box::pin(async move {
            wait.await;
            itt
        });
        let (wait, handle) = abortable(numbered);
        self.waits.push(wait);
        if let Some(old) = self.handles.insert(itt, handle) {
            old.abort();
        }
    }

    /// A command is over.
    pub(in super::super) fn forget(&mut self, itt: Itt) {
        if let Some(handle) = self.handles.remove(&itt) {
            handle.abort();
        }
    }

    /// A command that may go on now, if there is one.
    pub(in super::super) fn poll_next(&mut self, context: &mut Context<'_>) -> Option<Itt> {
        while let Poll::Ready(Some(ended)) = self.waits.poll_next_unpin(context) {
            let Ok(itt) = ended else { continue }; // forgotten
            self.handles.remove(&itt);
            return Some(itt);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tag_that_comes_again_is_another_command() {
        let mut held = Held::default();
        let (old, old_waits) = tokio::sync::oneshot::channel::<()>();
        held.push(Itt(1), Box::pin(async move { drop(old_waits.await) }));
        held.forget(Itt(1));
        let (new, new_waits) = tokio::sync::oneshot::channel::<()>();
        held.push(Itt(1), Box::pin(async move { drop(new_waits.await) }));
        held.push(Itt(2), Box::pin(std::future::ready(())));
        let next = std::future::poll_fn(|context| Poll::Ready(held.poll_next(context))).await;
        assert_eq!(next, Some(Itt(2)));
        assert!(old.is_closed(), "what was forgotten waits for nothing");
        let next = std::future::poll_fn(|context| Poll::Ready(held.poll_next(context))).await;
        assert_eq!(next, None);
        new.send(()).unwrap();
        let next = std::future::poll_fn(|context| Poll::Ready(held.poll_next(context))).await;
        assert_eq!(next, Some(Itt(1)));
        assert!(held.handles.is_empty());
    }
}
