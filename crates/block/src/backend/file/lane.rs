//! [`Lane`]: the part of tokio's blocking pool that one file may use.
//!
//! The pool is shared by all files of the process. A disk that hangs would otherwise fill it with
//! its flushes, one thread each, and stop the files on healthy disks.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::{BlockError, Io, Result};

/// Operations of one file that wait for its disk at once: as many as a fast disk has use for. The
/// runtime of `enkaku` has threads for dozens of files that hang with all of them.
const WIDTH: usize = 64;

/// Places for one file's operations.
pub(super) struct Lane(Arc<Semaphore>);

impl Default for Lane {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(WIDTH)))
    }
}

impl Lane {
    /// Does `work` in the pool: begins at once if a place is free, else when its turn has come, in
    /// order of the first polls.
    pub(super) fn run<T: Send + Unpin + 'static>(
        &self,
        runtime: &Handle,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Io<T> {
        let spawn = |runtime: &Handle, place| {
            runtime.spawn_blocking(move || {
                let result = work();
                drop(place);
                result
            })
        };
        match Arc::clone(&self.0).try_acquire_owned() {
            Ok(place) => {
                let task = spawn(runtime, place);
                Io::later(outcome(task))
            }
            Err(_full) => {
                let (places, runtime) = (Arc::clone(&self.0), runtime.clone());
                Io::later(async move {
                    // Never closed, so that this cannot fail; a place is not worth a panic if it
                    // does.
                    let Ok(place) = places.acquire_owned().await else { return Err(ended()) };
                    outcome(spawn(&runtime, place)).await
                })
            }
        }
    }
}

async fn outcome<T>(task: JoinHandle<Result<T>>) -> Result<T> {
    task.await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(ended()),
    })
}

fn ended() -> BlockError {
    BlockError::Unreachable("shutting down".into())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A disk that hangs, with more operations than the whole pool has threads, and another file.
    #[test]
    fn a_file_that_hangs_leaves_threads_to_others() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(WIDTH + 1)
            .build()
            .unwrap();
        let (hung, healthy) = (Lane::default(), Lane::default());
        let (comes_back, waits) = mpsc::channel::<()>();
        let waits = Arc::new(std::sync::Mutex::new(waits));
        let handle = runtime.handle();
        let hanging: Vec<_> = (0..3 * WIDTH)
            .map(|n| {
                let waits = waits.clone();
                hung.run(handle, move || {
                    let _ended = waits.lock().unwrap().recv();
                    Ok(n)
                })
            })
            .collect();
        runtime.block_on(async {
            let hanging = tokio::spawn(async {
                let mut done = Vec::new();
                for io in hanging {
                    done.push(io.await.unwrap());
                }
                done
            });
            assert_eq!(healthy.run(handle, || Ok(7)).await.unwrap(), 7);
            drop(comes_back);
            assert_eq!(hanging.await.unwrap(), (0..3 * WIDTH).collect::<Vec<_>>());
        });
    }
}
