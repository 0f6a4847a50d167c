//! [`aside`]: work on a thread of its own, for futures that cannot be shown to be safe to hand from
//! thread to thread (rust-lang/rust#102211), as those of [`files`] and of a login are.

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Runs it, as long as somebody waits for it. `None`: it has panicked.
pub(crate) async fn aside<T, F>(work: impl FnOnce() -> F + Send + 'static) -> Option<T>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    // Dropped with this future, which ends the work.
    let (_here, gone) = oneshot::channel::<()>();
    let runtime = Handle::current();
    let work = move || {
        runtime.block_on(async move {
            tokio::select! {
                done = work() => Some(done),
                _ = gone => None,
            }
        })
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => {
            tracing::error!(%error, "work for a request");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn work_ends_with_whoever_waits_for_it() {
        assert_eq!(aside(async || 7).await, Some(7));
        let held = Arc::new(());
        let of_work = Arc::clone(&held);
        let work = aside(move || async move {
            let _held = of_work;
            std::future::pending::<()>().await;
        });
        assert!(tokio::time::timeout(Duration::from_millis(50), work).await.is_err());
        let end = async {
            while Arc::strong_count(&held) > 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), end).await.unwrap();
    }
}
