//! Trials of fewer connections while a rate is kept to: what the rate's ups and downs are, and what
//! the connections' doing.

use ::path::tuner::{Adaptive, AdaptiveConfig, Connection, Pace, Pacer, Policy, Sample, Tcp};

use crate::path::{GIGABIT, SAMPLE_S};

/// A sample of `n` connections with commands that wait all the time.
fn sample(t_s: f64, n: u32, base_ms: f64, rtt_ms: f64, bytes_per_s: f64) -> Sample {
    let tcp = Tcp { rtt_us: Some(rtt_ms * 1e3), min_rtt_us: Some(base_ms * 1e3), ..Tcp::default() };
    let connections = vec![Connection { tcp, ..Connection::default() }; n as usize];
    let held_share = 1.0;
    Sample { t_s, connections_open: n, bytes_per_s, connections, held_share, ..Sample::default() }
}

/// A pacer that has found a line of 1 Gbit/s with four connections, and the time of its last
/// sample.
fn found(base_ms: f64) -> (Pacer, f64) {
    let (mut pacer, mut t_s, mut pace) = (Pacer::default(), 0.0, Pace::default());
    let mut queue_ms = 0.0;
    for _ in 0..100 {
        t_s += SAMPLE_S;
        let offered = pace.bytes_per_s.unwrap_or(1.1 * GIGABIT);
        queue_ms = f64::clamp(queue_ms + (offered / GIGABIT - 1.0) * SAMPLE_S * 1e3, 0.0, 20.0);
        let carried = if queue_ms > 0.0 { GIGABIT } else { offered.min(GIGABIT) };
        pace = pacer.handle_sample(&sample(t_s, 4, base_ms, base_ms + queue_ms, carried));
    }
    let rate = pace.bytes_per_s.expect("the line was full");
    assert!(!pace.seeking && (rate / GIGABIT - 1.0).abs() < 0.06, "{pace:?}");
    (pacer, t_s)
}

#[test]
fn commands_that_gather_in_sockets_show_no_faster_line() {
    // As seen over 50 ms: three connections, whose buffers limited them to 98 % of the line. The
    // rate went up to 1.2 Gbit/s, and 32 commands waited in the sockets instead of before them.
    let (mut pacer, mut t_s) = found(50.0);
    let most = 0.98 * GIGABIT;
    let mut highest: f64 = 0.0;
    let mut rate = GIGABIT;
    for _ in 0..200 {
        t_s += SAMPLE_S;
        let pace = pacer.handle_sample(&sample(t_s, 3, 50.0, 51.0, rate.min(most)));
        rate = pace.bytes_per_s.expect("no queue of others");
        highest = highest.max(rate);
    }
    assert!(highest < 1.04 * most, "{highest}");
    // Where more is carried with each step, they go on: twice the line within three seconds.
    for _ in 0..30 {
        t_s += SAMPLE_S;
        let pace = pacer.handle_sample(&sample(t_s, 3, 50.0, 50.2, rate.min(2.0 * GIGABIT)));
        rate = pace.bytes_per_s.expect("there is no queue");
    }
    assert!(rate > 1.9 * GIGABIT, "{rate}");
}

#[test]
fn a_rate_that_losses_stay_below_is_none_that_holds() {
    // As seen over 50 ms with a loss of 1e-4: the rate stayed at 96 % of the line's, because what
    // was carried below it went up and down, and held what came up.
    let (mut pacer, mut t_s) = found(50.0);
    let mut rate = GIGABIT;
    for _ in 0..100 {
        t_s += SAMPLE_S;
        let mut sample = sample(t_s, 20, 50.0, 50.3, 0.95 * rate.min(GIGABIT));
        sample.connections[0].tcp.retransmits = Some(1.0);
        rate = pacer.handle_sample(&sample).bytes_per_s.expect("no queue of others");
    }
    assert!(rate > 1.05 * GIGABIT, "{rate}");
}

#[test]
fn what_a_closed_connection_carried_is_missing_but_not_lost() {
    // As seen over 10 ms: of two one was closed, a burst followed, and a line that was held to
    // carry what the other one did in that interval was slow for three seconds.
    let (mut pacer, mut t_s) = found(10.0);
    let mut rate = 0.0;
    for (n, rtt_ms, share) in [(1, 10.9, 0.5), (1, 25.9, 0.98), (1, 10.4, 0.5), (1, 10.4, 0.5)] {
        t_s += SAMPLE_S;
        let pace = pacer.handle_sample(&sample(t_s, n, 10.0, rtt_ms, share * GIGABIT));
        rate = pace.bytes_per_s.expect("the line was known");
    }
    assert!(rate > 0.85 * GIGABIT, "{rate}");
}

/// `adaptive` on a plateau at the line's rate, until it tries fewer: what it tries, and when.
fn trying() -> (Adaptive, u32, f64) {
    let mut adaptive = Adaptive::new(AdaptiveConfig::default());
    let (mut n, mut t_s) = (4, 0.0);
    while n == 4 {
        t_s += SAMPLE_S;
        assert!(t_s < 60.0, "never tries fewer");
        n = decided(&mut adaptive, t_s, n, GIGABIT, 1.0);
    }
    (adaptive, n, t_s)
}

/// What it wants where a share of a rate that binds is carried.
fn decided(adaptive: &mut Adaptive, t_s: f64, n: u32, rate: f64, share: f64) -> u32 {
    let mut sample = sample(t_s, n, 50.0, 51.0, share * rate);
    sample.pace = Pace { bytes_per_s: Some(rate), binds: true, ..Pace::default() };
    adaptive.handle_sample(&sample).connections
}

/// The fewest and the most that are wanted within so many seconds of a trial, with such rates and
/// shares of them.
fn wanted(seconds: f64, rates: impl Fn(f64) -> (f64, f64)) -> (u32, u32) {
    let (mut adaptive, mut n, begun_s) = trying();
    let (mut t_s, mut least, mut most) = (begun_s, n, n);
    while t_s < begun_s + seconds {
        t_s += SAMPLE_S;
        let (rate, share) = rates(t_s - begun_s);
        n = decided(&mut adaptive, t_s, n, rate * GIGABIT, share);
        (least, most) = (least.min(n), most.max(n));
    }
    (least, most)
}

#[test]
fn fewer_that_carry_all_that_the_rate_lets_through_suffice() {
    assert_eq!(trying().1, 3);
    // Then still fewer are tried.
    assert_eq!(wanted(4.0, |_| (1.0, 1.0)), (1, 3));
    // The rate is low when the trial comes: that is not theirs.
    assert_eq!(wanted(4.0, |_| (0.94, 1.0)), (1, 3));
    // It is far too low at first: nothing follows from that, either way.
    let low = |since_s| (if since_s < 2.0 { 0.6 } else { 1.0 }, 1.0);
    assert_eq!((wanted(2.0, low), wanted(4.0, low).1), ((3, 3), 3));
    // Less than it lets through is theirs.
    assert_eq!(wanted(4.0, |_| (1.0, 0.93)), (3, 4));
    assert_eq!(wanted(4.0, |_| (0.94, 0.93)), (3, 4));
}

#[test]
fn windows_that_lag_behind_a_faster_line_get_more_beside_them() {
    // As seen over 20 ms: one connection had filled 300 Mbit/s; at 1 Gbit/s its window grew by a
    // segment or two in each round trip, and took five seconds.
    let lagging = |lags, fills| {
        let mut adaptive = Adaptive::new(AdaptiveConfig::default());
        let (mut n, mut t_s, mut most) = (4, 0.0, 4);
        while t_s < 10.0 {
            t_s += SAMPLE_S;
            let mut sample = sample(t_s, n, 20.0, 20.7, 0.8 * GIGABIT);
            for connection in &mut sample.connections {
                connection.tcp.cwnd_bytes = Some(1e6);
                connection.tcp.in_flight_bytes = Some(if fills { 1e6 } else { 1e5 });
            }
            let late = t_s > 8.0;
            let bytes_per_s = Some(if late { GIGABIT } else { 0.8 * GIGABIT });
            sample.pace = Pace { bytes_per_s, binds: !late, lags: late && lags, ..Pace::default() };
            n = adaptive.handle_sample(&sample).connections;
            most = most.max(n);
        }
        most
    };
    assert_eq!(lagging(true, true), 8);
    // If it is something else that limits, or nothing lags, a line that is missed is worth a
    // quarter.
    assert_eq!((lagging(true, false), lagging(false, true)), (5, 5));
}

#[test]
fn what_reaches_the_rate_of_the_line_gets_no_more_than_a_quarter_beside_it() {
    // As seen when 10 ms became 80: four carried 550 of 942 Mbit/s, six all of it; 24 were opened,
    // and their slow starts overran the queue.
    let mut adaptive = Adaptive::new(AdaptiveConfig::default());
    let (mut n, mut t_s, mut asked) = (4, 0.0, Vec::new());
    while asked.len() < 3 && t_s < 30.0 {
        t_s += SAMPLE_S;
        let late = t_s > 8.0;
        let carried = if late && n == 4 { 0.58 } else { 0.96 } * GIGABIT;
        let mut sample = sample(t_s, n, 80.0, 80.3, carried);
        for connection in &mut sample.connections {
            connection.tcp.cwnd_bytes = Some(1e6);
            connection.tcp.in_flight_bytes = Some(1e6);
        }
        let bytes_per_s = Some(if late { GIGABIT } else { carried });
        sample.pace = Pace { bytes_per_s, binds: !late, lags: late, ..Pace::default() };
        n = adaptive.handle_sample(&sample).connections;
        if asked.last() != Some(&n) {
            asked.push(n);
        }
    }
    assert_eq!(asked, [4, 8, 11]);
}

#[test]
fn a_longer_way_that_is_met_in_its_midst_is_no_queue() {
    // As seen when 10 ms became 80: the first sample showed 32 ms, the round trip of the two
    // together, and what it was compared with from then on was that; the rate stayed at a third for
    // 15 s.
    let (mut pacer, mut t_s) = found(10.0);
    let mut rate = 0.0;
    for rtt_ms in [32.0, 79.0, 80.3].into_iter().chain([80.3; 60]) {
        t_s += SAMPLE_S;
        let before = if rate > 0.0 { f64::min(rate, GIGABIT) } else { 0.6 * GIGABIT };
        let pace = pacer.handle_sample(&sample(t_s, 4, 10.0, rtt_ms, before));
        rate = pace.bytes_per_s.expect("nobody else's queue");
    }
    assert!(rate > 0.9 * GIGABIT, "{rate}");
}
