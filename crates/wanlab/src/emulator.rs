//! The thread that moves the packets, and when it wakes.
//!
//! One thread serves both directions: where data goes one way and acknowledgements the other, both
//! are awake at the same moments, and a second thread would wake for itself.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;
use tracing::{debug, error};

use crate::config::LabConfig;
use crate::direction::Direction;
use crate::link::Counters;
use crate::sys;
use crate::tun::Tun;

/// After work, the thread rests this long before it looks at the devices again, as network cards
/// moderate their interrupts: under load it then moves several packets per wake-up. It makes a
/// packet at most this much late, of the 500 µs that the lab allows itself.
const REST: Duration = Duration::from_micros(50);

/// How late timers may fire. The kernel's default of 50 µs would add to every delivery.
const TIMER_SLACK: Duration = Duration::from_micros(10);

/// A line must keep its time on a busy machine; honoured for root, silently refused to others.
const NICE: libc::c_int = -15;

/// How often the counters that others see are brought up to date.
const PUBLISH_INTERVAL_NS: u64 = 10_000_000;

/// What the emulator has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct EmulatorStats {
    /// What the near end sent.
    pub near_to_far: Counters,
    /// What the far end sent.
    pub far_to_near: Counters,
    /// Packets that a device would not take, because it was down for example; they count as
    /// carried above.
    pub undeliverable: u64,
    /// Processor time of the emulator, which includes the receiving half of the kernel's TCP.
    pub cpu_s: f64,
}

/// The running emulator; stops when dropped.
#[derive(Debug)]
pub(crate) struct Emulator {
    stats: Arc<Mutex<EmulatorStats>>,
    /// Closed to stop the thread.
    stop: Option<OwnedFd>,
    /// Ends when the thread ends.
    alive: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Emulator {
    pub(crate) fn start(near: Tun, far: Tun, config: &LabConfig) -> io::Result<Self> {
        let (near, far) = (Arc::new(near), Arc::new(far));
        let (stopped, stop) = sys::pipe()?;
        let (alive, ended) = sys::pipe()?;
        let stats = Arc::new(Mutex::new(EmulatorStats::default()));
        let mut worker = Worker {
            directions: [
                Direction::new(Arc::clone(&near), Arc::clone(&far), &config.near_to_far),
                Direction::new(Arc::clone(&far), Arc::clone(&near), &config.far_to_near),
            ],
            polled: [sys::readable(stopped.as_raw_fd()), device(&near), device(&far)],
            epoch: Instant::now(),
            stats: Arc::clone(&stats),
            publish_at_ns: 0,
        };
        let thread = thread::Builder::new().name("wanlab-emulator".into()).spawn(move || {
            // Both descriptors live as long as the loop.
            let _open = (stopped, ended);
            if let Err(error) = worker.work() {
                error!(%error, "the emulated link has failed");
            }
            worker.publish();
        })?;
        Ok(Self { stats, stop: Some(stop), alive, thread: Some(thread) })
    }

    pub(crate) fn stats(&self) -> EmulatorStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Can be read when the emulator has stopped, which it does by itself only after an error.
    pub(crate) fn ended(&self) -> BorrowedFd<'_> {
        self.alive.as_fd()
    }

    /// Ends the thread and returns the last counters.
    pub(crate) fn stop(&mut self) -> EmulatorStats {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            error!("the emulator's thread has panicked");
        }
        self.stats()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.stop();
    }
}

fn device(tun: &Tun) -> libc::pollfd {
    sys::readable(tun.as_fd().as_raw_fd())
}

/// What the thread owns.
struct Worker {
    directions: [Direction; 2],
    /// The end of the stop pipe, then the two devices.
    polled: [libc::pollfd; 3],
    epoch: Instant,
    stats: Arc<Mutex<EmulatorStats>>,
    publish_at_ns: u64,
}

impl Worker {
    fn work(&mut self) -> io::Result<()> {
        sys::set_timer_slack(TIMER_SLACK)?;
        if let Err(error) = sys::set_thread_nice(NICE) {
            debug!(%error, "emulator runs at normal priority");
        }
        loop {
            let moved = self.move_packets()?;
            let now_ns = now_ns(self.epoch);
            if now_ns >= self.publish_at_ns {
                self.publish();
                self.publish_at_ns = now_ns + PUBLISH_INTERVAL_NS;
            }
            let next_ns = self.directions.iter().filter_map(Direction::next_delivery_ns).min();
            let wait = next_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)));
            let stopped = if moved > 0 {
                self.wait(1, Some(wait.map_or(REST, |wait| wait.min(REST))))?
            } else {
                // Counters are brought up to date once more before an idle line sleeps.
                self.publish();
                self.wait(3, wait)?
            };
            if stopped {
                return Ok(());
            }
        }
    }

    fn move_packets(&mut self) -> io::Result<usize> {
        let epoch = self.epoch;
        let mut moved = 0;
        for direction in &mut self.directions {
            moved += direction.receive(|| now_ns(epoch))?;
        }
        for direction in &mut self.directions {
            moved += direction.deliver(now_ns(epoch));
        }
        Ok(moved)
    }

    /// Sleeps on the first `count` descriptors; whether the emulator was told to stop.
    fn wait(&mut self, count: usize, timeout: Option<Duration>) -> io::Result<bool> {
        if timeout == Some(Duration::ZERO) {
            return Ok(false);
        }
        sys::poll(&mut self.polled[..count], timeout)?;
        Ok(self.polled[0].revents != 0)
    }

    fn publish(&self) {
        let [near_to_far, far_to_near] = &self.directions;
        let stats = EmulatorStats {
            near_to_far: near_to_far.counters(),
            far_to_near: far_to_near.counters(),
            undeliverable: near_to_far.undeliverable() + far_to_near.undeliverable(),
            cpu_s: sys::thread_cpu_time().as_secs_f64(),
        };
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }
}

fn now_ns(epoch: Instant) -> u64 {
    epoch.elapsed().as_nanos() as u64
}
