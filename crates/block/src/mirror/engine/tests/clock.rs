//! A host with a name and a time of day of the test's choice.

use std::time::{Duration, SystemTime};

use crate::mirror::host::BoxFuture;
use crate::mirror::{Host, TokioHost};

/// Says what time of day it is.
type WallClock = Box<dyn Fn(&TokioHost) -> SystemTime + Send + Sync>;

/// Everything else is as the tests' clock has it.
pub(super) struct HostWithClock {
    host: TokioHost,
    name: &'static str,
    wall_clock: WallClock,
}

impl HostWithClock {
    pub(super) fn new(
        name: &'static str,
        wall_clock: impl Fn(&TokioHost) -> SystemTime + Send + Sync + 'static,
    ) -> Self {
        Self { host: TokioHost::current(), name, wall_clock: Box::new(wall_clock) }
    }
}

impl Host for HostWithClock {
    fn spawn(&self, task: BoxFuture) {
        self.host.spawn(task);
    }
    fn sleep(&self, duration: Duration) -> BoxFuture {
        self.host.sleep(duration)
    }
    fn now(&self) -> Duration {
        self.host.now()
    }
    fn wall_clock(&self) -> SystemTime {
        (self.wall_clock)(&self.host)
    }
    fn name(&self) -> String {
        self.name.to_owned()
    }
    fn random(&self) -> u128 {
        self.host.random()
    }
}
