//! A rate against a modelled line: a queue that runs over, and a transfer that stalls when it does.
//! The model's rates are what a long-fat path gave without a pace. Whoever finds the rate is
//! `crate::control`, of the crate whose tests include this file.

use std::collections::VecDeque;

use crate::control::Control;
use crate::path::GIGABIT;
use crate::random::Random;
use crate::{Connection, Sample, Tcp};

const TICK_S: f64 = 0.005;
const SAMPLE_S: f64 = 0.1;
/// The lab's queue: 2,000 packets.
const QUEUE_BYTES: f64 = 3e6;
/// What a session still carries while it repairs losses, and for how many round trips.
const STALLED_SHARE: f64 = 0.15;
const STALLED_ROUND_TRIPS: f64 = 4.0;
/// What is under way at most: 32 commands of 1 MiB.
pub(crate) const DEPTH_BYTES: f64 = 33.5e6;

#[derive(Clone, Copy)]
pub(crate) struct Line {
    pub(crate) bytes_per_s: f64,
    pub(crate) rtt_s: f64,
    /// Another flow, as greedy as TCP.
    pub(crate) shared: bool,
    pub(crate) noise: f64,
    /// The share of the samples whose round trip is longer by [`HICCUP_S`], for no reason of the
    /// line: somebody on the way did not get his processor.
    pub(crate) hiccups: f64,
    /// Or by up to this.
    pub(crate) hiccup_s: Option<f64>,
    /// An application that writes so much at once, and goes on when it is acknowledged.
    pub(crate) block_bytes: Option<f64>,
}

pub(crate) const LINE: Line = Line {
    bytes_per_s: GIGABIT,
    rtt_s: 0.05,
    shared: false,
    noise: 0.03,
    hiccups: 0.0,
    hiccup_s: None,
    block_bytes: None,
};
const HICCUP_S: f64 = 0.006;

/// A transfer over a line that changes, held at the rate the pacer says.
pub(crate) struct Run {
    control: Control,
    begun: bool,
    t_s: f64,
    pub(crate) window_bytes: f64,
    queue_bytes: f64,
    stalled_until_s: f64,
    /// Delivered bytes and round trip of the last ticks; what is seen lies a round trip back.
    ticks: VecDeque<(f64, f64)>,
    random: Random,
    /// Time and rate of each sample, whether there was a rate, and bytes lost so far.
    rates: Vec<(f64, f64, bool)>,
    pub(crate) lost_bytes: f64,
    /// What the other flow keeps under way.
    other_bytes: f64,
    /// What is left of the block to be sent, and to be acknowledged; ticks in which it was held.
    to_send: f64,
    to_acknowledge: f64,
    held_ticks: u32,
}

impl Run {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            control: Control::new(),
            begun: false,
            t_s: 0.0,
            window_bytes: 60_000.0,
            queue_bytes: 0.0,
            stalled_until_s: 0.0,
            ticks: VecDeque::new(),
            random: Random::new(seed),
            rates: Vec::new(),
            lost_bytes: 0.0,
            other_bytes: 0.0,
            to_send: 0.0,
            to_acknowledge: 0.0,
            held_ticks: 0,
        }
    }

    /// One tick: what arrives at the line, what it carries, what is lost.
    fn tick(&mut self, line: Line) -> f64 {
        self.t_s += TICK_S;
        self.window_bytes = (self.window_bytes * (TICK_S / line.rtt_s).exp2()).min(DEPTH_BYTES);
        let window = self.window_bytes.min(self.control.window_bytes());
        let wanted = window / (line.rtt_s + self.queue_bytes / line.bytes_per_s);
        let stalled = self.t_s < self.stalled_until_s;
        let rate = self.control.rate();
        let counts = self.control.counts_what_it_holds() && line.block_bytes.is_none();
        self.held_ticks += u32::from(counts && wanted > rate);
        let offered = wanted.min(rate) * if stalled { STALLED_SHARE } else { 1.0 };
        let offered = self.of_block(line, offered);
        let other = self.other(line);
        let all = offered + other;
        let ours = if other > 0.0 { offered / all } else { 1.0 };
        let arrived = self.queue_bytes + all * TICK_S;
        let carried = arrived.min(line.bytes_per_s * TICK_S);
        let lost = (arrived - carried - QUEUE_BYTES).max(0.0);
        if lost > 0.0 {
            self.other_bytes *= 0.7;
            self.lost_bytes += lost * ours;
            self.stalled_until_s = self.t_s + STALLED_ROUND_TRIPS * line.rtt_s;
        }
        self.queue_bytes = (arrived - carried - lost).max(0.0);
        let rtt_s = line.rtt_s + self.queue_bytes / line.bytes_per_s;
        self.ticks.push_back((carried * ours, rtt_s));
        let back = (line.rtt_s / TICK_S) as usize;
        let acknowledged = self.ticks.iter().rev().nth(back).map_or(0.0, |(carried, _)| *carried);
        self.to_acknowledge -= acknowledged;
        self.to_send += lost * ours;
        lost * ours
    }

    /// What the application has left to send of that.
    fn of_block(&mut self, line: Line, offered: f64) -> f64 {
        let Some(block) = line.block_bytes else { return offered };
        if self.to_acknowledge < 1.0 {
            (self.to_send, self.to_acknowledge) = (block, block);
        }
        let sent = (offered * TICK_S).min(self.to_send);
        self.to_send -= sent;
        // What a socket takes at once, waits for nothing.
        self.held_ticks += u32::from(self.to_send > 0.0 && self.control.rate().is_finite());
        sent / TICK_S
    }

    /// The rate of the other flow: a window that is back from 0.7 in two seconds, as cubic's.
    fn other(&mut self, line: Line) -> f64 {
        if !line.shared {
            return 0.0;
        }
        let most = line.bytes_per_s * line.rtt_s + QUEUE_BYTES;
        self.other_bytes += 0.3 * most * TICK_S / 2.0;
        self.other_bytes / (line.rtt_s + self.queue_bytes / line.bytes_per_s)
    }

    pub(crate) fn to(&mut self, t_s: f64, line: Line, least_rtt_s: f64) {
        if !std::mem::replace(&mut self.begun, true) {
            self.control.begin(least_rtt_s);
        }
        while self.t_s < t_s - SAMPLE_S / 2.0 {
            let lost: f64 = (0..(SAMPLE_S / TICK_S) as u32).map(|_| self.tick(line)).sum();
            let (mut bytes, mut rtt_s) = (0.0, line.rtt_s);
            let back = (line.rtt_s / TICK_S) as usize;
            while self.ticks.len() > back {
                let Some((carried, rtt)) = self.ticks.pop_front() else { break };
                bytes += carried;
                // What is not sent is not acknowledged: the kernel keeps what it saw last.
                rtt_s = if carried > 0.0 { rtt } else { rtt_s };
            }
            let true_rate = bytes / SAMPLE_S;
            if line.hiccups > 0.0 && self.random.uniform() < line.hiccups {
                rtt_s += line.hiccup_s.map_or(HICCUP_S, |most_s| most_s * self.random.uniform());
            }
            let held = self.control.pace().is_some();
            self.rates.push((self.t_s, true_rate, held));
            let held_share = std::mem::take(&mut self.held_ticks) as f64 * TICK_S / SAMPLE_S;
            let tcp = Tcp {
                // Of commands that wait for a rate, few are under way: as if no more were wanted.
                app_limited: Some(held_share > 0.9),
                rtt_us: Some(rtt_s * 1e6),
                min_rtt_us: Some(least_rtt_s * 1e6),
                retransmits: Some(lost / 1448.0),
                ..Tcp::default()
            };
            let bytes_per_s = true_rate * (1.0 + line.noise * self.random.normal()).max(0.0);
            let connection =
                Connection { bytes_per_s: Some(bytes_per_s), tcp, ..Connection::default() };
            let connections = vec![connection];
            let sample = Sample {
                t_s: self.t_s,
                connections_open: 1,
                bytes_per_s,
                held_share,
                connections,
                outstanding_bytes: line.block_bytes.map(|_| self.to_acknowledge.max(0.0)),
                ..Sample::default()
            };
            self.control.take(sample);
        }
    }

    pub(crate) fn mean(&self, from_s: f64, to_s: f64) -> f64 {
        let inside = self.rates.iter().filter(|(t_s, ..)| *t_s > from_s && *t_s <= to_s);
        let (sum, count) = inside.fold((0.0, 0.0), |(sum, n), (_, rate, _)| (sum + rate, n + 1.0));
        sum / count
    }

    /// The share of a time in which there was a rate.
    fn held(&self, from_s: f64) -> f64 {
        let after: Vec<bool> =
            self.rates.iter().filter(|(t_s, ..)| *t_s > from_s).map(|(.., held)| *held).collect();
        after.iter().filter(|held| **held).count() as f64 / after.len() as f64
    }
}

pub(crate) const SEEDS: std::ops::RangeInclusive<u64> = 1..=10;

#[test]
fn a_new_path_is_filled_without_running_over() {
    for (rtt_ms, full_s_max) in [(10.0, 5.0), (20.0, 5.0), (50.0, 5.0), (100.0, 5.0), (200.0, 11.0)]
    {
        for seed in SEEDS {
            let rtt_s = rtt_ms / 1e3;
            let mut run = Run::new(seed);
            run.to(20.0, Line { rtt_s, ..LINE }, rtt_s);
            let case = format!("{rtt_ms} ms, seed {seed}");
            assert!(run.lost_bytes < 0.5e6, "{case}: {:.0} lost", run.lost_bytes);
            let full = run.rates.iter().find(|(_, rate, _)| *rate > 0.9 * GIGABIT);
            let full_s = full.map(|(t_s, ..)| *t_s);
            assert!(full_s.is_some_and(|t_s| t_s < full_s_max), "{case}: full at {full_s:?}");
        }
    }
}

#[test]
fn a_pause_at_the_beginning_does_not_make_the_line_slow() {
    // For a third of a second nearly nothing comes through: a guest that does not run, a link that
    // flaps.
    for rtt_ms in [20.0, 50.0, 100.0] {
        for seed in SEEDS {
            let rtt_s = rtt_ms / 1e3;
            let line = Line { rtt_s, ..LINE };
            let mut run = Run::new(seed);
            run.to(5.0 * rtt_s, line, rtt_s);
            run.to(5.0 * rtt_s + 0.3, Line { bytes_per_s: 2e6, ..line }, rtt_s);
            run.to(20.0, line, rtt_s);
            let full = run.rates.iter().find(|(_, rate, _)| *rate > 0.9 * GIGABIT);
            let full_s = full.map(|(t_s, ..)| *t_s);
            let case = format!("{rtt_ms} ms, seed {seed}");
            assert!(
                full_s.is_some_and(|t_s| t_s < 4.5 + 25.0 * rtt_s),
                "{case}: full at {full_s:?}"
            );
            assert!(run.lost_bytes < 0.5e6, "{case}: {:.0} lost", run.lost_bytes);
        }
    }
}

#[test]
fn a_full_line_is_kept_full_without_running_over() {
    for rtt_ms in [3.0, 10.0, 20.0, 50.0, 100.0, 200.0, 300.0] {
        for noise in [0.0, 0.03] {
            for seed in SEEDS {
                let rtt_s = rtt_ms / 1e3;
                let mut run = Run::new(seed);
                run.to(15.0, Line { rtt_s, noise, ..LINE }, rtt_s);
                let lost_before = run.lost_bytes;
                run.to(60.0, Line { rtt_s, noise, ..LINE }, rtt_s);
                let case = format!("{rtt_ms} ms, noise {noise}, seed {seed}");
                let share = run.mean(15.0, 60.0) / GIGABIT.min(DEPTH_BYTES / rtt_s);
                assert!(share >= 0.96, "{case}: {share:.3}");
                let lost = run.lost_bytes - lost_before;
                assert!(lost < 1e-3 * 45.0 * GIGABIT, "{case}: {lost:.0} lost");
            }
        }
    }
}

#[test]
fn hiccups_are_no_queue() {
    for rtt_s in [0.01, 0.05] {
        for seed in SEEDS {
            let line = Line { rtt_s, hiccups: 0.1, ..LINE };
            let mut run = Run::new(seed);
            run.to(60.0, line, rtt_s);
            let share = run.mean(15.0, 60.0) / GIGABIT;
            assert!(share >= 0.93, "{rtt_s} s, seed {seed}: {share:.3}");
        }
    }
}

/// What is carried, as a share of the line at that time: before, while and after it is slower,
/// where round trips are longer by up to `most_s` in a share of the samples.
fn shares_with_jitter(rtt_s: f64, share: f64, most_s: f64) -> [f64; 3] {
    let mut sums = [0.0; 3];
    for seed in SEEDS {
        let line = Line { rtt_s, hiccups: share, hiccup_s: Some(most_s), ..LINE };
        let slow = Line { bytes_per_s: 0.3 * GIGABIT, ..line };
        let mut run = Run::new(seed);
        for (sum, (line, to_s)) in sums.iter_mut().zip([(line, 20.0), (slow, 35.0), (line, 50.0)]) {
            run.to(to_s, line, rtt_s);
            *sum += run.mean(to_s - 8.0, to_s) / line.bytes_per_s / SEEDS.count() as f64;
        }
    }
    sums
}

#[test]
fn a_host_that_takes_processors_away_all_the_time_makes_no_line_slow() {
    for (rtt_s, share, most_s) in
        [(0.01, 0.5, 0.01), (0.02, 0.3, 0.015), (0.02, 0.5, 0.01), (0.05, 0.5, 0.015)]
    {
        let shares = shares_with_jitter(rtt_s, share, most_s);
        assert!(shares.iter().all(|share| *share > 0.85), "{rtt_s} {share} {most_s}: {shares:.2?}");
    }
}

#[test]
fn without_it_the_same_line_runs_over_again_and_again() {
    let mut run = Run::new(1);
    let line = Line { rtt_s: 0.1, ..LINE };
    // A round trip that is unknown switches it off.
    run.to(5.0, line, 0.0001);
    assert!(run.mean(1.0, 5.0) < 0.75 * GIGABIT && run.held(0.0) == 0.0);
}

#[test]
fn a_line_that_changes_is_found_again_within_five_seconds() {
    for rtt_s in [0.01, 0.02, 0.05] {
        let mut backs = Vec::new();
        for seed in SEEDS {
            let (fast, slow) =
                (Line { rtt_s, ..LINE }, Line { rtt_s, bytes_per_s: 0.3 * GIGABIT, ..LINE });
            let mut run = Run::new(seed);
            run.to(20.0, fast, rtt_s);
            run.to(40.0, slow, rtt_s);
            run.to(60.0, fast, rtt_s);
            let case = format!("{rtt_s} s, seed {seed}");
            let shares = [run.mean(25.0, 40.0) / (0.3 * GIGABIT), run.mean(45.0, 60.0) / GIGABIT];
            assert!(shares.iter().all(|share| *share >= 0.93), "{case}: {shares:.3?}");
            let mut tenths = (0..100).map(|tenth| f64::from(tenth) / 10.0);
            let back = tenths.find(|s| run.mean(40.0 + s, 41.0 + s) >= 0.95 * GIGABIT);
            backs.push(back.unwrap_or(f64::INFINITY));
        }
        backs.sort_by(f64::total_cmp);
        // Of 100 seeds the last takes 4.6 s.
        assert!(backs[5] <= 4.2 && backs[9] <= 5.0, "{rtt_s} s: back after {backs:?}");
    }
}

#[test]
fn another_flow_takes_its_share_and_no_more() {
    for seed in SEEDS {
        let mut run = Run::new(seed);
        run.to(20.0, LINE, LINE.rtt_s);
        run.to(180.0, Line { shared: true, ..LINE }, LINE.rtt_s);
        let share = run.mean(40.0, 180.0) / GIGABIT;
        assert!((0.3..0.8).contains(&share), "seed {seed}: {share:.2}");
    }
}

/// The windows are those of the short way, and the kernel remembers its round trip.
#[test]
fn a_longer_way_is_no_queue() {
    for (short_s, long_s) in [(0.01, 0.08), (0.02, 0.05), (0.05, 0.2)] {
        let mut shares = Vec::new();
        for seed in SEEDS {
            let mut run = Run::new(seed);
            let line = |rtt_s| Line { rtt_s, ..LINE };
            run.to(20.0, line(short_s), short_s);
            run.window_bytes = 1.2 * GIGABIT * short_s;
            run.to(30.0, line(long_s), short_s);
            let case = format!("{short_s} to {long_s} s, seed {seed}");
            let share = run.mean(23.0, 30.0) / GIGABIT.min(DEPTH_BYTES / long_s);
            // One in ten takes some seconds more over the longest way.
            assert!(share >= 0.8 && run.held(20.0) > 0.99, "{case}: {share:.3}");
            shares.push(share);
            run.to(40.0, line(short_s), short_s);
            let share = run.mean(33.0, 40.0) / GIGABIT;
            assert!(share >= 0.95, "{case} and back: {share:.3}");
        }
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        assert!(mean >= 0.93, "{short_s} to {long_s} s: {mean:.3}");
    }
}

#[test]
fn one_command_at_a_time_gets_all_of_the_line() {
    for rtt_s in [0.02, 0.05, 0.1] {
        for seed in SEEDS {
            let line = Line { rtt_s, block_bytes: Some(4e6), ..LINE };
            let mut run = Run::new(seed);
            run.to(40.0, line, rtt_s);
            // A block takes its time on the line and a round trip; the model sees it in steps of a
            // sample.
            let rate = run.control.pace().map_or(1.0, |rate| rate / GIGABIT);
            assert!(rate >= 0.9, "{rtt_s} s, seed {seed}: {rate:.2} of the line");
            let lost = run.lost_bytes;
            assert!(lost < 0.5e6, "{rtt_s} s, seed {seed}: {lost:.0} lost");
        }
    }
}
