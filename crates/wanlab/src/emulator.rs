//! The thread that moves the packets, and when it wakes.
//!
//! One thread serves both directions: where data goes one way and acknowledgements the other, both
//! have work at the same moments. Measured on two cores with one TCP transfer, RTT 20 ms: a thread
//! per direction took 1.2 times the processor time at 1 Gbit/s and 1.8 times at 4 Gbit/s, and
//! carried 4.6 to 6.5 of 8 Gbit/s where the single one carries 7.2 to 7.5.

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

/// Where packets come more often than this, the thread rests so long between looking at the
/// devices, as network cards moderate their interrupts: one wake-up then moves several packets.
/// Each way this makes a packet at most so much late, of the 500 µs that the lab allows itself.
const REST: Duration = Duration::from_micros(50);

/// How late timers may fire. The kernel's default of 50 µs would add to every delivery.
const TIMER_SLACK: Duration = Duration::from_micros(10);

/// A processor that has slept for long takes some 100 µs to come back, twice in a round trip. So
/// after a wait above the first time, the thread wakes the second time early and sleeps again.
const LONG_WAIT: Duration = Duration::from_millis(2);
const WAKE_EARLY: Duration = Duration::from_micros(200);

/// A line must keep its time on a busy machine; honoured for root, refused to others, who get
/// what the scheduler gives.
const REALTIME_PRIORITY: libc::c_int = 1;

/// Rounds of work before the thread looks whether it shall stop, on a line that never rests.
const ROUNDS_MAX: usize = 16;

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
        if let Err(error) = sys::set_realtime_priority(REALTIME_PRIORITY) {
            debug!(%error, "emulator runs at normal priority");
        }
        let mut pace = Pace::default();
        loop {
            let moved = self.move_packets()?;
            let now_ns = self.now_ns();
            let next_ns = self.directions.iter().filter_map(Direction::next_delivery_ns).min();
            let wait = next_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)));
            let long = wait.is_none_or(|wait| wait > LONG_WAIT);
            if long || now_ns >= self.publish_at_ns {
                self.publish();
                self.publish_at_ns = now_ns + PUBLISH_INTERVAL_NS;
            }
            if pace.rests(moved) {
                // Only the first descriptor: a packet does not end the rest.
                sys::poll(&mut self.polled[..1], Some(REST))?;
            } else {
                let early = if long { WAKE_EARLY } else { Duration::ZERO };
                sys::poll(&mut self.polled, wait.map(|wait| wait.saturating_sub(early)))?;
                pace.waited(Duration::from_nanos(self.now_ns() - now_ns));
            }
            if self.polled[0].revents != 0 {
                return Ok(());
            }
        }
    }

    /// Moves what there is, and what that brings about at once; how many packets that were.
    fn move_packets(&mut self) -> io::Result<usize> {
        let epoch = self.epoch;
        let mut moved = 0;
        for _ in 0..ROUNDS_MAX {
            let before = moved;
            for direction in &mut self.directions {
                moved += direction.receive(|| now_ns(epoch))?;
            }
            for direction in &mut self.directions {
                moved += direction.deliver(now_ns(epoch));
            }
            if moved == before {
                break;
            }
        }
        Ok(moved)
    }

    fn now_ns(&self) -> u64 {
        now_ns(self.epoch)
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

/// Whether packets come so often that resting saves wake-ups.
#[derive(Debug, Default)]
struct Pace {
    busy: bool,
    rested: bool,
}

impl Pace {
    /// Whether to rest now, after `moved` packets since the last wait: not when the last rest was
    /// in vain.
    fn rests(&mut self, moved: usize) -> bool {
        if self.rested {
            self.busy = moved > 0;
        }
        self.rested = self.busy;
        self.busy
    }

    /// A wait for packets or a delivery that ended sooner than a rest calls for rests.
    fn waited(&mut self, time: Duration) {
        self.busy = time < REST;
    }
}

fn now_ns(epoch: Instant) -> u64 {
    epoch.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_rests_while_that_saves_wake_ups() {
        let mut pace = Pace::default();
        assert!(!pace.rests(1), "a single packet");
        pace.waited(REST * 4);
        assert!(!pace.rests(1), "packets far apart");
        pace.waited(REST / 4);
        assert!(pace.rests(1), "packets close together");
        assert!(pace.rests(3), "a rest that gathered some");
        assert!(!pace.rests(0), "a rest in vain");
        pace.waited(REST / 4);
        assert!(pace.rests(0));
    }
}
