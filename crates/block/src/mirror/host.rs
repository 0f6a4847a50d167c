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

    /// 128 bits that nobody else draws: the name of a generation.
    fn random(&self) -> u128;
}
