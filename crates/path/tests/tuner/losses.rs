//! A path that loses packets, whoever uses it: what a connection carries is a matter of its own. In
//! the first seconds it carries more, because nothing has been lost of it yet. Levels as they were
//! seen on the emulated line: cubic at RTT 50 ms, a loss of 1e-3.

use ::path::tuner::{Adaptive, AdaptiveConfig, CongestionControl, Connection, Policy, Sample, Tcp};

use crate::random::Random;

const RTT_S: f64 = 0.05;
const SAMPLE_S: f64 = 0.1;

/// Mbit/s of so many connections when a search comes by, and what they settle at.
fn level(connections: u32, settled: bool) -> f64 {
    match (connections, settled) {
        (4, false) => 155.0,
        (16, false) => 450.0,
        _ => 9.6 * f64::from(connections),
    }
}

fn sample(t_s: f64, open: u32, bytes_per_s: f64) -> Sample {
    let window = bytes_per_s / f64::from(open) * RTT_S;
    let tcp = Tcp {
        rtt_us: Some(RTT_S * 1.01e6),
        min_rtt_us: Some(RTT_S * 1e6),
        cwnd_bytes: Some(window),
        in_flight_bytes: Some(window),
        retransmits: Some(1.0),
        congestion_control: Some(CongestionControl::Cubic),
        ..Tcp::default()
    };
    Sample {
        t_s,
        bytes_per_s,
        connections_open: open,
        connections: vec![Connection { tcp, ..Connection::default() }; open as usize],
        ..Sample::default()
    }
}

/// The numbers that `adaptive` asks for, one after the other; noise of 2 %.
fn numbers(seed: u64) -> Vec<u32> {
    let mut policy = Adaptive::new(AdaptiveConfig::default());
    let (mut random, mut asked) = (Random::new(seed), vec![4]);
    for tick in 1..=120 {
        let noise = 1.0 + 0.04 * (random.uniform() - 0.5);
        let open = asked[asked.len() - 1];
        let carried = noise * level(open, asked.len() > 3) * 1e6 / 8.0;
        let sample = sample(SAMPLE_S * f64::from(tick), open, carried);
        let wanted = policy.handle_sample(&sample).connections;
        if wanted != open {
            asked.push(wanted);
        }
    }
    asked
}

#[test]
fn a_level_from_before_the_first_losses_is_no_reason_to_go_back() {
    for seed in 1..=20 {
        let asked = numbers(seed);
        // The first losses ask for some more, those of the next half second for all.
        assert!(asked.starts_with(&[4, 16, 64]), "seed {seed}: {asked:?}");
        assert!(asked[2..].iter().all(|n| *n > 32), "seed {seed}: {asked:?}");
    }
}

#[test]
fn losses_ask_for_no_more_connections_than_there_are_commands() {
    let most = |commands: Option<usize>| {
        let mut policy = Adaptive::new(AdaptiveConfig::default());
        let (mut open, mut most) = (4, 4);
        for tick in 1..=120 {
            let mut sample = sample(SAMPLE_S * f64::from(tick), open, 7e6);
            // It waits for a flush in every fifth interval.
            sample.commands = commands.map(|all| if tick % 5 == 0 { 0 } else { all });
            open = policy.handle_sample(&sample).connections;
            most = most.max(open);
        }
        most
    };
    assert_eq!(most(None), 64);
    assert_eq!(most(Some(128)), 64);
    // Each search may try a few more than it was told, and finds that they bring nothing.
    assert!(most(Some(16)) <= 32, "{}", most(Some(16)));
}

#[test]
fn a_congestion_control_that_bears_losses_needs_a_few_more_connections_not_all() {
    let numbers = |control, carried| {
        let mut policy = Adaptive::new(AdaptiveConfig::default());
        let mut asked = vec![4];
        for tick in 1..=60 {
            let open = asked[asked.len() - 1];
            // Four segments of some thousands.
            let mut sample = sample(SAMPLE_S * f64::from(tick), open, carried);
            for (index, connection) in sample.connections.iter_mut().enumerate() {
                connection.tcp.congestion_control = control;
                connection.tcp.retransmits = Some(if index < 4 { 1.0 } else { 0.0 });
            }
            let wanted = policy.handle_sample(&sample).connections;
            if wanted != open {
                asked.push(wanted);
            }
        }
        asked
    };
    let most = |control, carried| numbers(control, carried).into_iter().max();
    assert_eq!(most(Some(CongestionControl::Cubic), 58e6), Some(64));
    // Who receives, does not know it, but sees what each connection carries.
    assert_eq!(most(None, 8e6), Some(64));
    for control in [Some(CongestionControl::Bbr), None] {
        let asked = numbers(control, 110e6);
        assert!(asked.iter().any(|n| *n >= 8) && asked.iter().all(|n| *n <= 32), "{asked:?}");
    }
}

#[test]
fn what_few_losses_asked_for_is_mended_when_more_are_counted() {
    let mut policy = Adaptive::new(AdaptiveConfig::default());
    let (mut open, mut asked, mut due) = (4, Vec::new(), 0.0);
    for tick in 1..=60 {
        let share = if tick <= 20 { 3e-4 } else { 5e-4 };
        let carried = 60e6 + 0.8e6 * f64::from(open);
        due += share * carried * SAMPLE_S / 1448.0;
        let mut sample = sample(SAMPLE_S * f64::from(tick), open, carried);
        for connection in &mut sample.connections {
            connection.tcp.retransmits = Some(f64::from(due >= 1.0));
            due -= f64::from(due >= 1.0);
        }
        sample.pace.seeking = true; // nothing else is decided
        let wanted = policy.handle_sample(&sample).connections;
        if wanted != open {
            asked.push((tick, wanted));
            open = wanted;
        }
    }
    let [(_, first), (at, second)] = asked[..] else { panic!("{asked:?}") };
    // Not twice as many, and within a second.
    assert!(first < 40 && second > 45 && at <= 30, "{asked:?}");
}

/// A line that four connections fill; for eight seconds a share of all connections loses something
/// in each sample, and 48 of them carry the most; then nothing is lost any more. The round trips of
/// many are longer by `jitter_s`. The numbers that are asked for from then on, sample by sample,
/// where all that were asked for are open at the next one.
fn asked_after_losses(connections_max: u32, losing: f64, jitter_s: f64, seed: u64) -> Vec<u32> {
    let config = AdaptiveConfig { connections_max, ..AdaptiveConfig::default() };
    let (mut policy, mut random) = (Adaptive::new(config), Random::new(seed));
    let (mut open, mut asked) = (4, Vec::new());
    for tick in 1..=300 {
        let t_s = SAMPLE_S * f64::from(tick);
        let lossy = (8.0..16.0).contains(&t_s);
        let carried = if lossy { level(open.min(48), true) * 1e6 / 8.0 } else { 117e6 };
        let mut sample = sample(t_s, open, carried * (1.0 + 0.02 * (random.uniform() - 0.5)));
        for connection in &mut sample.connections {
            let loses = lossy && random.uniform() < losing;
            connection.tcp.retransmits = Some(if loses { 1.0 } else { 0.0 });
            if open > 16 {
                connection.tcp.rtt_us = Some((RTT_S + jitter_s) * 1e6);
            }
        }
        if !lossy {
            sample.pace.bytes_per_s = Some(118e6);
            sample.pace.binds = true;
        }
        open = policy.handle_sample(&sample).connections;
        if tick > 159 {
            asked.push(open);
        }
    }
    asked
}

#[test]
fn after_the_losses_new_connections_take_the_place_of_those_that_lost() {
    for seed in 1..=20 {
        for jitter_s in [0.0, 0.005] {
            let mut asked = asked_after_losses(64, 0.3, jitter_s, seed);
            let after_three_s = asked[30];
            asked.dedup();
            // Until they have ended; room for them, they, and then as many as before.
            assert_eq!(asked, [64, 60, 64, 4], "jitter {jitter_s} s, seed {seed}");
            assert_eq!(after_three_s, 4, "jitter {jitter_s} s, seed {seed}");
        }
        // Where fewer than are allowed were needed, nothing has to leave first.
        let mut asked = asked_after_losses(512, 0.008, 0.0, seed);
        asked.dedup();
        let joined = matches!(asked[..], [n, more, 4] if more == n + 4 && more < 512);
        assert!(joined, "seed {seed}: {asked:?}");
    }
}

#[test]
fn after_losses_behind_another_flows_queue_nothing_is_taken_up_again() {
    for seed in 1..=20 {
        let asked = asked_after_losses(64, 0.3, 0.02, seed);
        assert!(asked.iter().all(|n| *n > 32), "seed {seed}: {asked:?}");
    }
}

#[test]
fn a_rate_that_sinks_slowly_before_the_losses_are_known_is_not_the_lines() {
    let mut policy = Adaptive::new(AdaptiveConfig::default());
    let (mut open, mut kept) = (4, None);
    for tick in 1..=1400 {
        let t_s = SAMPLE_S * f64::from(tick);
        // From 10 to 110 s the rate that is kept to sinks to 40 MB/s, then losses are seen, too.
        let sunk = 118e6 * (1.0 - 0.0066 * (t_s - 10.0)).clamp(0.34, 1.0);
        let lossy = (110.0..120.0).contains(&t_s);
        let line = if t_s < 120.0 { sunk } else { 118e6 };
        let mut sample = sample(t_s, open, line);
        for (index, connection) in sample.connections.iter_mut().enumerate() {
            connection.tcp.retransmits = Some(if lossy && index % 4 == 0 { 1.0 } else { 0.0 });
        }
        (sample.pace.bytes_per_s, sample.pace.binds) = (Some(line), !lossy);
        let decision = policy.handle_sample(&sample);
        open = decision.connections;
        kept = decision.renewed.or(kept);
    }
    let line = kept.expect("the losses have ended");
    assert!(line.bytes_per_s > 117e6, "{line:?}");
}
