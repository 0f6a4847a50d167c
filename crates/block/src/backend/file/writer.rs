//! [`Writer`]: the one thread that does a file's buffered writes where the file system cannot do
//! them without waiting (ext4 has no RWF_NOWAIT for them).
//!
//! One thread, because such writes take the inode's lock exclusively: more threads would only wait
//! for each other. With several writes queued, one wake-up serves them all.

use std::sync::mpsc;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::Inner;
use crate::{BlockError, Io, Result};

/// Queue to the thread, which starts with the first write and ends with the device.
#[derive(Default)]
pub(super) struct Writer {
    queue: OnceLock<Option<mpsc::Sender<Job>>>,
}

struct Job {
    offset: u64,
    data: Bytes,
    done: oneshot::Sender<Result<()>>,
}

impl Writer {
    /// Queues a write. Gives `data` back where there is no thread.
    pub(super) fn write(
        &self,
        inner: &Arc<Inner>,
        offset: u64,
        data: Bytes,
    ) -> std::result::Result<Io<()>, Bytes> {
        let Some(queue) = self.queue.get_or_init(|| start(inner.clone())) else {
            return Err(data);
        };
        let (done, outcome) = oneshot::channel();
        match queue.send(Job { offset, data, done }) {
            Ok(()) => Ok(Io::later(async move {
                outcome.await.unwrap_or_else(|_| Err(BlockError::Unreachable("no writer".into())))
            })),
            Err(mpsc::SendError(job)) => Err(job.data),
        }
    }
}

fn start(inner: Arc<Inner>) -> Option<mpsc::Sender<Job>> {
    let (queue, jobs) = mpsc::channel::<Job>();
    let run = move || {
        while let Ok(Job { offset, data, done }) = jobs.recv() {
            let result = inner.write_all(&data, offset, false);
            drop(data); // back to its pool before the next command wants a buffer
            let _abandoned = done.send(result);
        }
    };
    match std::thread::Builder::new().name("block-writer".into()).spawn(run) {
        Ok(_runs_until_the_queue_closes) => Some(queue),
        Err(error) => {
            tracing::warn!(%error, "no thread for writes: using the blocking pool");
            None
        }
    }
}
