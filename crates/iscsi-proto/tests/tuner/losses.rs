//! A path that loses packets, whoever uses it: what a connection carries is a matter of its own. In the
//! first seconds it carries more, because nothing has been lost of it yet. Levels as they were seen
//! on the emulated line: cubic at RTT 50 ms, a loss of 1e-3.

use iscsi_proto::tuner::{
    Adaptive, AdaptiveConfig, CongestionControl, Connection, Policy, Sample, Tcp,
};

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
