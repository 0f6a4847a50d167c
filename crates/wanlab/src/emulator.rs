//! The thread that moves the packets, and when it wakes.
//!
//! It knows devices, lines that start at a device or a switch and end at the other, and nothing of
//! what they are called. A switch looks up the destination address and takes no time.
//!
//! One thread serves all directions: where data goes one way and acknowledgements the other, both
//! have work at the same moments. Measured on two cores with one TCP transfer, RTT 20 ms: a thread
//! per direction took 1.2 times the processor time at 1 Gbit/s and 1.8 times at 4 Gbit/s, and
//! carried 4.6 to 6.5 of 8 Gbit/s where the single one carries 7.2 to 7.5.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing::{debug, error};

use crate::capture::Recorder;
use crate::config::DirectionConfig;
use crate::counters::Counters;
use crate::direction::{BATCH, Direction};
use crate::gso::destination;
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
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Totals {
    /// Of each line.
    pub(crate) lines: Vec<Counters>,
    /// Packets that a device would not take, because it was down for example; they count as
    /// carried by their line.
    pub(crate) undeliverable: u64,
    /// Packets for an address that a switch does not know; they count as carried as well.
    pub(crate) unroutable: u64,
    /// Processor time of the emulator, which includes the receiving half of the kernel's TCP.
    pub(crate) cpu_s: f64,
}

/// Where the packets of a line come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A device, by its number. Of several lines, the first one gets the packets.
    Device(usize),
    /// A switch, from the ends of other lines.
    Switch,
}

/// Where they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sink {
    /// A device, by its number.
    Device(usize),
    /// A switch, by its number.
    Switch(usize),
}

/// One line of the plan.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) source: Source,
    pub(crate) sink: Sink,
    pub(crate) config: DirectionConfig,
}

/// Which line leads from a switch to an address.
pub(crate) type Switch = HashMap<IpAddr, usize>;

/// What the emulator is to be.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) devices: Vec<Tun>,
    pub(crate) lines: Vec<Line>,
    pub(crate) switches: Vec<Switch>,
    pub(crate) recorder: Option<Recorder>,
}

/// The running emulator; stops when dropped.
#[derive(Debug)]
pub(crate) struct Emulator {
    shared: Arc<Shared>,
    /// A byte announces changes; closed to stop the thread.
    control: Option<OwnedFd>,
    /// Ends when the thread ends.
    alive: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

/// Between the thread and its owner.
#[derive(Debug, Default)]
struct Shared {
    totals: Mutex<Totals>,
    /// The lines as they shall be from now on.
    change: Mutex<Option<Vec<DirectionConfig>>>,
}

impl Emulator {
    pub(crate) fn start(plan: Plan) -> io::Result<Self> {
        let (controlled, control) = sys::pipe()?;
        let (alive, ended) = sys::pipe()?;
        let shared = Arc::new(Shared::default());
        let mut polled = vec![sys::readable(controlled.as_raw_fd())];
        polled.extend(plan.devices.iter().map(|tun| sys::readable(tun.as_fd().as_raw_fd())));
        let line = |(number, line): (usize, &Line)| Direction::new(number, &line.config);
        let mut worker = Worker {
            directions: plan.lines.iter().enumerate().map(line).collect(),
            ends: plan.lines.iter().map(|line| (line.source, line.sink)).collect(),
            devices: plan.devices,
            switches: plan.switches,
            recorder: plan.recorder,
            undeliverable: 0,
            unroutable: 0,
            polled,
            epoch: Instant::now(),
            shared: Arc::clone(&shared),
            publish_at_ns: 0,
        };
        worker.publish();
        let thread = thread::Builder::new().name("wanlab-emulator".into()).spawn(move || {
            // Lives as long as the loop.
            let _ended = ended;
            if let Err(error) = worker.work(&controlled) {
                error!(%error, "the emulated link has failed");
            }
            worker.finish();
        })?;
        Ok(Self { shared, control: Some(control), alive, thread: Some(thread) })
    }

    /// Makes the lines others from now on, in the order of the plan.
    pub(crate) fn set(&self, lines: Vec<DirectionConfig>) -> io::Result<()> {
        *self.shared.change.lock().unwrap_or_else(PoisonError::into_inner) = Some(lines);
        match &self.control {
            Some(control) => sys::write(control.as_fd(), &[1]).map(drop),
            None => Ok(()),
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        self.shared.totals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Can be read when the emulator has stopped, which it does by itself only after an error.
    pub(crate) fn ended(&self) -> BorrowedFd<'_> {
        self.alive.as_fd()
    }

    /// Ends the thread and returns the last counters.
    pub(crate) fn stop(&mut self) -> Totals {
        self.control = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            error!("the emulator's thread has panicked");
        }
        self.totals()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread owns.
struct Worker {
    directions: Vec<Direction>,
    ends: Vec<(Source, Sink)>,
    devices: Vec<Tun>,
    switches: Vec<Switch>,
    recorder: Option<Recorder>,
    undeliverable: u64,
    unroutable: u64,
    /// The end of the control pipe, then the devices.
    polled: Vec<libc::pollfd>,
    epoch: Instant,
    shared: Arc<Shared>,
    publish_at_ns: u64,
}

impl Worker {
    fn work(&mut self, control: &OwnedFd) -> io::Result<()> {
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
                if sys::read(control.as_fd(), &mut [0])? == Some(0) {
                    return Ok(());
                }
                self.change();
            }
        }
    }

    /// Takes the newest settings; of several that came at once, earlier ones are gone.
    fn change(&mut self) {
        let change = self.shared.change.lock().unwrap_or_else(PoisonError::into_inner).take();
        let now_ns = self.now_ns();
        for (direction, config) in self.directions.iter_mut().zip(change.iter().flatten()) {
            direction.set(now_ns, config);
        }
    }

    /// Moves what there is, and what that brings about at once; how many packets that were.
    fn move_packets(&mut self) -> io::Result<usize> {
        let epoch = self.epoch;
        let mut moved = 0;
        for _ in 0..ROUNDS_MAX {
            let before = moved;
            for (direction, (source, _)) in self.directions.iter_mut().zip(&self.ends) {
                if let Source::Device(device) = *source {
                    let from = &self.devices[device];
                    moved += direction.receive(
                        |to| from.receive(to),
                        || now_ns(epoch),
                        &mut self.recorder,
                    )?;
                }
            }
            for line in 0..self.directions.len() {
                moved += match self.ends[line].1 {
                    Sink::Device(device) => self.deliver(line, device),
                    Sink::Switch(switch) => self.forward(line, switch),
                };
            }
            if moved == before {
                break;
            }
        }
        Ok(moved)
    }

    /// Hands what is due to a device, up to a batch; how many packets that were.
    fn deliver(&mut self, line: usize, device: usize) -> usize {
        let now_ns = self.now_ns();
        self.directions[line].advance(now_ns);
        let (direction, to) = (&mut self.directions[line], &self.devices[device]);
        for delivered in 0..BATCH {
            let Some(packet) = direction.due(now_ns) else {
                return delivered;
            };
            if let Err(error) = to.send(packet) {
                self.undeliverable += 1;
                debug!(%error, bytes = packet.len(), "packet not taken");
            }
            direction.pop();
        }
        BATCH
    }

    /// Hands what is due to the lines behind a switch, up to a batch; how many packets that were.
    fn forward(&mut self, line: usize, switch: usize) -> usize {
        let now_ns = self.now_ns();
        self.directions[line].advance(now_ns);
        for forwarded in 0..BATCH {
            let Some(packet) = self.directions[line].due(now_ns) else {
                return forwarded;
            };
            let next = destination(packet).and_then(|to| self.switches[switch].get(&to));
            match next.map(|&next| self.directions.get_disjoint_mut([line, next])) {
                Some(Ok([from, to])) => {
                    if let Some(packet) = from.due(now_ns) {
                        to.take(now_ns, packet, &mut self.recorder);
                    }
                }
                _ => self.unroutable += 1,
            }
            self.directions[line].pop();
        }
        BATCH
    }

    fn now_ns(&self) -> u64 {
        now_ns(self.epoch)
    }

    fn publish(&mut self) {
        let now_ns = self.now_ns();
        let mut totals = self.shared.totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.lines.resize_with(self.directions.len(), Counters::default);
        for (published, direction) in totals.lines.iter_mut().zip(&mut self.directions) {
            direction.note_queue(now_ns);
            // Most lines of a large star rest.
            if published != direction.counters() {
                published.clone_from(direction.counters());
            }
        }
        totals.undeliverable = self.undeliverable;
        totals.unroutable = self.unroutable;
        totals.cpu_s = sys::thread_cpu_time().as_secs_f64();
        drop(totals);
        if let Some(recorder) = &mut self.recorder {
            recorder.flush();
        }
    }

    fn finish(&mut self) {
        self.publish();
        let now_ns = self.now_ns();
        if let Some(recorder) = &mut self.recorder {
            let counters: Vec<&Counters> =
                self.directions.iter().map(Direction::counters).collect();
            recorder.finish(now_ns, &counters);
        }
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
