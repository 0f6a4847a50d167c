//! What the mirror needs of its surroundings: time, tasks, randomness. Given from outside, so that
//! a simulation can own all three.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

/// A task or a pause.
pub type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Time, tasks and randomness.
pub trait Host: Send + Sync + 'static {
    /// Runs `task` beside the caller until it ends.
    fn spawn(&self, task: BoxFuture);

    /// Ends after `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture;

    /// Monotonic time since a moment of the host's choice.
    fn now(&self) -> Duration;

    /// The time of day, for people: nothing is decided by it.
    fn wall_clock(&self) -> SystemTime;

    /// This host and process as people know them, for those who ask who writes to a leg. Not empty:
    /// that stands for a leg that nobody writes to.
    fn name(&self) -> String;

    /// 128 bits that nobody else draws: the name of a generation.
    fn random(&self) -> u128;
}

/// The real world, by way of tokio.
pub struct TokioHost {
    runtime: tokio::runtime::Handle,
    start: tokio::time::Instant,
}

impl TokioHost {
    /// The runtime of the caller.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn current() -> Self {
        Self { runtime: tokio::runtime::Handle::current(), start: tokio::time::Instant::now() }
    }
}

impl Host for TokioHost {
    fn spawn(&self, task: BoxFuture) {
        drop(self.runtime.spawn(task));
    }

    fn sleep(&self, duration: Duration) -> BoxFuture {
        Box::pin(tokio::time::sleep(duration))
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall_clock(&self) -> SystemTime {
        SystemTime::now()
    }

    fn name(&self) -> String {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{}, process {}", name.trim(), std::process::id())
    }

    fn random(&self) -> u128 {
        let mut bytes = [0; 16];
        match getrandom::fill(&mut bytes) {
            Ok(()) => u128::from_le_bytes(bytes),
            // A kernel without a source of randomness does not boot; a generation without a name of
            // its own could hide that both sides have written.
            Err(error) => panic!("no randomness from the system: {error}"),
        }
    }
}
