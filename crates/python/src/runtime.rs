//! The threads that drive connections: one runtime for a process, made with its first volume.
//!
//! A process that was forked has the memory of its parent and none of its threads, so it must not
//! use a volume that was opened before the fork: that is said instead of waiting for ever.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};

/// Threads for all volumes: they move bytes between sockets and buffers, and compute nothing.
const THREADS: usize = 2;
/// How long Ctrl-C may go unnoticed.
const LOOK_AT_SIGNALS: Duration = Duration::from_millis(100);

static RUNTIME: Mutex<Option<Threads>> = Mutex::new(None);

/// The runtime of a process.
#[derive(Clone)]
pub(crate) struct Threads {
    process: u32,
    runtime: Arc<Runtime>,
}

impl Threads {
    /// Those of this process.
    ///
    /// # Errors
    /// The system has no threads.
    pub(crate) fn of_this_process() -> PyResult<Self> {
        let process = std::process::id();
        let mut kept = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(threads) = kept.as_ref().filter(|threads| threads.process == process) {
            return Ok(threads.clone());
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("enkaku")
            .enable_all()
            .build()
            .map_err(|error| PyRuntimeError::new_err(format!("no threads: {error}")))?;
        let threads = Self { process, runtime: Arc::new(runtime) };
        // The parent's threads do not run here: dropping its runtime would wait for them.
        std::mem::forget(kept.replace(threads.clone()));
        Ok(threads)
    }

    /// Refuses a volume of the process that this one was forked from.
    ///
    /// # Errors
    /// `RuntimeError`.
    pub(crate) fn check(&self, volume: &str) -> PyResult<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(format!(
            "{volume}: was opened in process {}, from which this one was forked; open it here",
            self.process
        )))
    }

    /// Something that starts tasks of its own.
    pub(crate) fn within<T>(&self, make: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        make()
    }

    /// Waits, without the interpreter, until it is done or a signal's handler raises.
    ///
    /// # Errors
    /// What the handler raised, as `KeyboardInterrupt`.
    pub(crate) fn wait<T: Send>(
        &self,
        py: Python<'_>,
        future: impl Future<Output = T> + Send,
    ) -> PyResult<T> {
        let mut future = pin!(future);
        loop {
            let turn = || {
                let soon = async { tokio::time::timeout(LOOK_AT_SIGNALS, future.as_mut()).await };
                self.runtime.block_on(soon)
            };
            if let Ok(done) = py.detach(turn) {
                return Ok(done);
            }
            py.check_signals()?;
        }
    }
}
