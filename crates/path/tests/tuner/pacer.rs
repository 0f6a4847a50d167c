//! The pacer and the opening of a path against samples as they were seen, and as the modelled line
//! asks them for a rate (`control`).

use ::path::tuner::{Opening, Pace, Pacer};

use crate::{Connection, Sample, Tcp};

/// What `t_s`, the round trip in milliseconds and the rate of a sample make of a path whose least
/// round trip is 50.2 ms.
fn seen(t_s: f64, rtt_ms: f64, bytes_per_s: f64) -> Sample {
    let tcp = Tcp { rtt_us: Some(rtt_ms * 1e3), min_rtt_us: Some(50.2e3), ..Tcp::default() };
    let connections = vec![Connection { tcp, ..Connection::default() }];
    Sample { t_s, connections_open: 1, bytes_per_s, connections, ..Sample::default() }
}

#[test]
fn bursts_of_windows_that_grow_are_no_queue() {
    // As seen over 1 Gbit/s; the rate began at 69, 48 and 65 MB/s, and took three seconds from
    // there.
    for samples in [
        vec![(0.4, 50.7, 31e6), (0.5, 52.0, 43e6), (0.6, 52.0, 60e6), (0.7, 55.0, 78e6)],
        vec![(0.3, 50.5, 30e6), (0.4, 51.5, 43e6), (0.5, 51.2, 40e6), (0.6, 55.3, 56e6)],
        vec![(0.3, 50.7, 25e6), (0.4, 54.4, 62e6), (0.5, 55.0, 68e6), (0.6, 51.5, 72e6)],
    ] {
        let mut pacer = Pacer::default();
        pacer.handle_sample(&seen(0.1, 50.5, 2e6));
        for (t_s, rtt_ms, bytes_per_s) in samples {
            let pace = pacer.handle_sample(&seen(t_s, rtt_ms, bytes_per_s));
            assert_eq!(pace, Pace::default(), "{t_s} s");
        }
    }
    // Behind a long queue, or where the rate does not rise, it is the line that is full.
    for (rtt_ms, bytes_per_s) in [(60.0, 85e6), (56.0, 79e6)] {
        let mut pacer = Pacer::default();
        for (t_s, bytes_per_s) in [(0.1, 2e6), (0.8, 78e6)] {
            assert_eq!(pacer.handle_sample(&seen(t_s, 50.5, bytes_per_s)), Pace::default());
        }
        let pace = pacer.handle_sample(&seen(0.9, rtt_ms, bytes_per_s));
        assert!(pace.bytes_per_s.is_some(), "{rtt_ms} ms");
    }
}

/// The rate that the opening of a path ends with which carries 100 MB/s and then 95, and loses so
/// many segments in each sample.
fn opening_ends_with(lost: f64) -> Option<f64> {
    let mut opening = Opening::default();
    opening.first(0.0502, 4);
    for tenth in 1..100 {
        let rate = if tenth < 10 { 10e6 * f64::from(tenth + 1) } else { 95e6 };
        let mut sample = seen(f64::from(tenth) / 10.0, 50.3, rate);
        sample.connections[0].tcp.retransmits = Some(lost);
        if opening.handle_sample(&sample).is_none() {
            let ended_with = opening.ended_with();
            assert_eq!(opening.ended_with(), None, "told once");
            return ended_with;
        }
        assert_eq!(opening.ended_with(), None, "it has not ended");
    }
    panic!("it opens for ever");
}

#[test]
fn a_path_that_losses_hold_goes_on_with_the_rate_that_it_carried() {
    assert_eq!(opening_ends_with(0.0), None);
    let rate = opening_ends_with(3.0).unwrap();
    assert!((95e6..=100e6).contains(&rate), "{rate}");
    let begin = || {
        let mut pacer = Pacer::default();
        pacer.handle_sample(&seen(0.1, 50.3, 95e6));
        assert_eq!(pacer.begin_with(rate).bytes_per_s, Some(rate));
        pacer
    };
    let after_two_s = |carried: f64| {
        let mut pacer = begin();
        let paces =
            (2..20).map(|tenth| pacer.handle_sample(&seen(f64::from(tenth) / 10.0, 50.3, carried)));
        paces.last().and_then(|pace| pace.bytes_per_s).unwrap()
    };
    // What losses keep below it does not raise it; what uses all of it does.
    assert_eq!(after_two_s(0.8 * rate), rate);
    assert!(after_two_s(rate) > 1.02 * rate);
    // A rate that a queue told before is the better one.
    let mut pacer = begin();
    assert_eq!(pacer.begin_with(2.0 * rate).bytes_per_s, Some(rate));
}

#[test]
fn a_late_segment_at_the_beginning_is_no_queue() {
    // As seen with RTT 50 ms: few segments so far, and one of them took its time.
    let mut pacer = Pacer::default();
    for (t_s, rtt_ms, bytes_per_s) in [(0.1, 55.5, 0.86e6), (0.2, 50.4, 3.5e6), (0.3, 50.3, 14e6)] {
        assert_eq!(pacer.handle_sample(&seen(t_s, rtt_ms, bytes_per_s)), Pace::default());
    }
    // A queue that stays is one from the beginning: the line is slow.
    let mut pacer = Pacer::default();
    let paces = [0.1, 0.2, 0.3].map(|t_s| pacer.handle_sample(&seen(t_s, 60.0 + 500.0 * t_s, 1e6)));
    assert!(paces[1].bytes_per_s.is_some(), "{paces:?}");
}

#[test]
fn what_a_repaired_hole_brings_at_once_is_no_rate() {
    // As seen when 1 Gbit/s became 300 Mbit/s: with the last sample for the line's rate, so much
    // was given that the queue stayed for the rest of the transfer.
    let mut pacer = Pacer::default();
    let mut pace = Pace::default();
    for tenth in 1..60 {
        let rtt_ms = if (10..15).contains(&tenth) { 60.0 } else { 51.0 };
        pace = pacer.handle_sample(&seen(f64::from(tenth) / 10.0, rtt_ms, 110e6));
    }
    assert!(pace.bytes_per_s.is_some_and(|rate| rate > 80e6), "{pace:?}");
    let repaired = [
        (6.0, 60.0, 110e6),
        (6.2, 140.0, 2e6),
        (6.4, 140.0, 56e6),
        (6.6, 140.0, 0.0),
        (6.8, 120.0, 85e6),
    ];
    let paces = repaired.map(|(t_s, rtt_ms, rate)| pacer.handle_sample(&seen(t_s, rtt_ms, rate)));
    // Half of it empties the queue of a line of 35 MB/s.
    let given = paces[4].bytes_per_s;
    assert!(given.is_some_and(|rate| (10e6..30e6).contains(&rate)), "{paces:?}");
}

/// The rate that is kept to after half a minute in which 60 MB/s were carried and round trips were
/// 3 to 5 ms above their least, as they are with 64 connections; some segments of each sample were
/// lost, or none.
fn rate_where_jitter_is_taken_for_a_queue(lost: f64) -> Option<f64> {
    let mut pacer = Pacer::default();
    pacer.handle_sample(&seen(0.1, 50.2, 110e6));
    pacer.keep_to(117e6);
    let mut pace = Pace::default();
    for tenth in 2..300 {
        let mut sample = seen(f64::from(tenth) / 10.0, 53.2 + f64::from(tenth % 5) / 2.0, 60e6);
        for connection in &mut sample.connections {
            connection.tcp.retransmits = Some(lost);
        }
        pace = pacer.handle_sample(&sample);
    }
    pace.bytes_per_s
}

#[test]
fn where_losses_hold_the_rate_up_jitter_does_not_lower_what_is_kept_to() {
    let kept = rate_where_jitter_is_taken_for_a_queue(4.0);
    assert!(kept.is_some_and(|rate| rate > 110e6), "{kept:?}");
    // Without losses it is a queue, and in the end one that is not ours.
    assert_eq!(rate_where_jitter_is_taken_for_a_queue(0.0), None);
}

#[test]
fn what_fits_is_never_held() {
    let mut pacer = Pacer::default();
    let sample = |t_s: f64, rtt_ms: f64| {
        let tcp = Tcp { rtt_us: Some(rtt_ms * 1e3), min_rtt_us: Some(50e3), ..Tcp::default() };
        let connections = vec![Connection { tcp, ..Connection::default() }];
        Sample { t_s, connections_open: 1, bytes_per_s: 5e7, connections, ..Sample::default() }
    };
    for n in 0..1000 {
        let jitter = f64::from(n % 4);
        let pace = pacer.handle_sample(&sample(f64::from(n) / 10.0, 50.0 + jitter));
        assert_eq!(pace, Pace::default(), "sample {n}");
    }
    // Nothing known, nothing held; and a path of a machine to itself is none of ours.
    let unknown = Sample { t_s: 200.0, bytes_per_s: 1e9, ..Sample::default() };
    assert_eq!(pacer.handle_sample(&unknown), Pace::default());
}
