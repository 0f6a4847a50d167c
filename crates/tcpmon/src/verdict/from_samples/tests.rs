//! Connections made up of numbers, each with one thing that limits it.

use path::limit::COUNTED_SHARE_WITH_SIGNS;

use super::*;
use crate::sample::{Connection, Memory, State, TcpInfo};

const STEP_US: u64 = 2500;
const RTT_US: u64 = 20_000;
const STEPS_PER_RTT: u64 = RTT_US / STEP_US;

/// Counters of a connection with RTT 20 ms, two seconds long; `step` says what each 2.5 ms change.
fn connection(mut step: impl FnMut(u64, &mut Sample)) -> Vec<Sample> {
    let mut sample = Sample {
        at_us: 0,
        connection: Connection {
            local: "10.0.0.1:50000".parse().unwrap(),
            remote: "10.0.0.2:3260".parse().unwrap(),
            cookie: 1,
        },
        state: State::ESTABLISHED,
        inode: 1,
        receive_queue_bytes: 0,
        send_queue_bytes: 0,
        congestion_control: "cubic".into(),
        tcp: TcpInfo {
            mss_bytes: 1448,
            receive_mss_bytes: 1448,
            rtt_us: 20_100,
            min_rtt_us: Some(20_000),
            cwnd_segments: 500,
            sent_bytes: Some(0),
            received_bytes: Some(0),
            data_segments_in: Some(0),
            data_segments_out: Some(0),
            not_sent_bytes: Some(0),
            busy_us: Some(0),
            rwnd_limited_us: Some(0),
            sndbuf_limited_us: Some(0),
            send_window_bytes: Some(4 << 20),
            receive_window_bytes: Some(4 << 20),
            ..TcpInfo::default()
        },
        memory: Some(Memory { send_buffer_bytes: 1 << 20, ..Memory::default() }),
        bbr: None,
    };
    let mut samples = Vec::new();
    for at in 0..2_000_000 / STEP_US {
        sample.at_us += STEP_US;
        step(at, &mut sample);
        samples.push(sample.clone());
    }
    samples
}

fn send(sample: &mut Sample, bytes: u64) {
    *sample.tcp.sent_bytes.as_mut().unwrap() += bytes;
    *sample.tcp.data_segments_out.as_mut().unwrap() += u32::try_from(bytes.div_ceil(1448)).unwrap();
}

fn receive(sample: &mut Sample, bytes: u64) {
    *sample.tcp.received_bytes.as_mut().unwrap() += bytes;
    *sample.tcp.data_segments_in.as_mut().unwrap() += u32::try_from(bytes.div_ceil(1448)).unwrap();
}

fn judged(samples: Vec<Sample>, role: Role) -> Judgement {
    let known = Known { send_buffer_max_bytes: Some(4 << 20), ..Known::default() };
    judge(&[Watched { samples, role }], &known).unwrap()
}

fn cause_of(samples: Vec<Sample>) -> Bottleneck {
    judged(samples, Role::Initiator).verdict.cause
}

#[test]
fn what_the_kernel_counts_is_believed() {
    let window = |_, sample: &mut Sample| {
        send(sample, 10_000);
        sample.tcp.not_sent_bytes = Some(100_000);
        *sample.tcp.rwnd_limited_us.as_mut().unwrap() += STEP_US / 2;
    };
    assert_eq!(cause_of(connection(window)), Bottleneck::ReceiveWindow);
    let buffer = |_, sample: &mut Sample| {
        send(sample, 10_000);
        *sample.tcp.sndbuf_limited_us.as_mut().unwrap() += STEP_US / 2;
    };
    assert_eq!(cause_of(connection(buffer)), Bottleneck::SendBuffer);
}

/// A burst per round trip that fills a buffer of so many bytes; with `asked`, an answer comes
/// first.
fn bursts(buffer: u32, asked: bool) -> Vec<Sample> {
    connection(|at, sample| {
        if at % STEPS_PER_RTT == 0 {
            send(sample, 400_000);
            receive(sample, if asked { 48 } else { 0 });
        } else if at % STEPS_PER_RTT == 4 && !asked {
            receive(sample, 48);
        }
        let queued = u32::try_from(u64::from(buffer) * 9 / 10).unwrap();
        sample.memory = Some(Memory {
            send_buffer_bytes: buffer,
            send_queued_bytes: queued,
            ..Memory::default()
        });
    })
}

#[test]
fn a_full_buffer_limits_if_it_cannot_grow_or_nobody_asked_for_what_refills_it() {
    assert_eq!(cause_of(bursts(4 << 20, true)), Bottleneck::SendBuffer);
    assert_eq!(cause_of(bursts(512 << 10, true)), Bottleneck::QueueDepth);
    assert_eq!(cause_of(bursts(512 << 10, false)), Bottleneck::SendBuffer);
}

#[test]
fn data_that_wait_for_the_network_wait_for_one_of_three() {
    let waiting = |queue_us: u32, losses: u32| {
        connection(move |_, sample| {
            send(sample, 10_000);
            sample.tcp.not_sent_bytes = Some(500_000);
            sample.tcp.rtt_us = 20_000 + queue_us;
            sample.tcp.total_retrans_segments += losses;
        })
    };
    assert_eq!(cause_of(waiting(100, 1)), Bottleneck::CongestionLoss);
    assert_eq!(cause_of(waiting(100, 0)), Bottleneck::CongestionWindow);
    // Whoever fills the line loses too, at its queue.
    assert_eq!(cause_of(waiting(15_000, 1)), Bottleneck::LineRate);
    let mut bbr = waiting(100, 0);
    bbr.iter_mut().for_each(|sample| sample.congestion_control = "bbr".into());
    assert_eq!(cause_of(bbr.clone()), Bottleneck::LineRate);
    // What BBR measured while it was given too little, is no line's.
    bbr.iter_mut().for_each(|sample| sample.tcp.app_limited = true);
    assert_eq!(cause_of(bbr), Bottleneck::QueueDepth);
}

/// What a program that reports on its own path names in each tenth of a second.
fn reported(samples: &[Sample], starved: bool) -> Vec<Bottleneck> {
    let mut model = path::Model::default();
    let tenths = samples.windows(41).step_by(40);
    let named = tenths.map(|tenth| {
        let (before, now) = (&tenth[0], &tenth[40]);
        let tcp = path::Tcp {
            busy_share: None,
            app_limited: Some(starved),
            peer_window_bytes: now.tcp.send_window_bytes.map(f64::from),
            congestion_control: now.congestion_control.parse().ok(),
            ..now.tcp.sending_since(&before.tcp, 0.1)
        };
        let sent = now.tcp.sent_bytes.unwrap() - before.tcp.sent_bytes.unwrap();
        let sample = path::Sample {
            t_s: facts::micros(now.at_us) / 1e6,
            connections_open: 1,
            bytes_per_s: facts::micros(sent) / 0.1,
            connections: vec![path::Connection { tcp, ..path::Connection::default() }],
            outstanding_bytes: Some(1e6),
            ..path::Sample::default()
        };
        model.handle_sample(&sample, None).limits
    });
    named.collect()
}

/// What `copy --json` says while `diagnose` watches it: the same samples, the same name.
#[test]
fn a_report_of_the_own_path_and_a_diagnosis_name_the_same() {
    let stream = |change: fn(&mut Sample)| {
        connection(move |_, sample| {
            send(sample, 10_000);
            sample.tcp.not_sent_bytes = Some(500_000);
            change(sample);
        })
    };
    fn spent(counter: &mut Option<u64>) {
        *counter.as_mut().unwrap() += STEP_US / 3;
    }
    let cases = [
        (Bottleneck::CongestionWindow, stream(|_| ())),
        // Less than half of the time, but the kernel counts it.
        (Bottleneck::ReceiveWindow, stream(|s| spent(&mut s.tcp.rwnd_limited_us))),
        (Bottleneck::SendBuffer, stream(|s| spent(&mut s.tcp.sndbuf_limited_us))),
        (Bottleneck::CongestionLoss, stream(|s| s.tcp.total_retrans_segments += 1)),
        // A queue of less than a quarter of the round trip is one.
        (Bottleneck::LineRate, stream(|s| s.tcp.rtt_us = 23_000)),
        (Bottleneck::LineRate, stream(|s| s.congestion_control = "bbr".into())),
        // Losses at the queue of a line that is full.
        (
            Bottleneck::LineRate,
            stream(|s| {
                s.tcp.rtt_us = 35_000;
                s.tcp.total_retrans_segments += 1;
            }),
        ),
    ];
    for (expected, samples) in cases {
        let named = reported(&samples, false);
        assert!(named[5..].iter().all(|name| *name == expected), "{expected:?}: {named:?}");
        assert_eq!(cause_of(samples), expected);
    }
    // A loss now and then: between two of them it is still they that limit.
    let rare = connection(|at, sample| {
        send(sample, 10_000);
        sample.tcp.not_sent_bytes = Some(500_000);
        sample.tcp.total_retrans_segments += u32::from(at % 200 == 0);
    });
    assert!(reported(&rare, false)[5..].iter().all(|name| *name == Bottleneck::CongestionLoss));
    assert_eq!(cause_of(rare), Bottleneck::CongestionLoss);
    let one_by_one = bursts(512 << 10, true);
    assert!(reported(&one_by_one, true).iter().all(|name| *name == Bottleneck::QueueDepth));
    assert_eq!(cause_of(one_by_one), Bottleneck::QueueDepth);
}

/// A question of 48 bytes every `period`, and an answer of 100 kB after `answer` steps.
fn questions(period: u64, answer: u64) -> Vec<Sample> {
    connection(move |at, sample| {
        if at % period == 0 {
            send(sample, 48);
        }
        if at % period == answer {
            receive(sample, 100_000);
        }
    })
}

#[test]
fn silences_are_the_path_s_the_target_s_or_the_application_s() {
    // An answer after one round trip, and the next question at once.
    let one_by_one = judged(questions(9, 8), Role::Initiator);
    assert_eq!(one_by_one.verdict.cause, Bottleneck::QueueDepth);
    assert!(one_by_one.not_excluded.contains(&Bottleneck::SendBuffer));
    // An answer after five round trips.
    assert_eq!(cause_of(questions(41, 40)), Bottleneck::Storage);
    // An answer after one, a question four later.
    assert_eq!(cause_of(questions(40, 8)), Bottleneck::Application);
}

/// Whoever lets little be unsent is counted as waiting for its buffer, now and then, although it is
/// the application that is slow.
#[test]
fn a_sender_that_sleeps_between_its_writes_fills_no_buffer() {
    let slow = connection(|at, sample| {
        let turn = at % 100;
        if turn == 0 {
            send(sample, 65_584);
        }
        if turn < STEPS_PER_RTT {
            sample.tcp.unacked_segments = 45;
            *sample.tcp.sndbuf_limited_us.as_mut().unwrap() += STEP_US;
        } else {
            sample.tcp.unacked_segments = 0;
        }
        if turn == STEPS_PER_RTT {
            receive(sample, 48);
        }
    });
    let judgement = judged(slow, Role::Initiator);
    assert!(judgement.verdict.evidence["share_send_buffer"] > COUNTED_SHARE_WITH_SIGNS);
    assert_eq!(judgement.verdict.cause, Bottleneck::Application);
}

/// A write of 64 KiB, and 48 bytes a round trip later: an R2T or a response, who knows.
fn writes_one_by_one(role: Role) -> Judgement {
    let sends = connection(|at, sample| match (at % STEPS_PER_RTT, role) {
        (0, Role::Initiator) => send(sample, 65_584),
        (0, Role::Target) => receive(sample, 65_584),
        (7, Role::Initiator) => receive(sample, 48),
        (1, Role::Target) => send(sample, 48),
        _ => {}
    });
    judged(sends, role)
}

#[test]
fn waits_for_r2ts_cannot_be_told_and_that_is_said() {
    let seen = writes_one_by_one(Role::Initiator);
    assert_eq!(
        (seen.verdict.cause, &seen.not_excluded[..]),
        (Bottleneck::QueueDepth, &[Bottleneck::R2t][..])
    );
    let doubt = &seen.cannot_tell[0];
    assert_eq!(doubt.cause, Bottleneck::R2t);
    assert!(doubt.why.contains("cannot be told from samples"), "{doubt:?}");
    assert!(doubt.command.contains("record session.pcapng --port 3260"), "{doubt:?}");
    assert!(doubt.command.contains("diagnose --pcap session.pcapng"), "{doubt:?}");
    let served = writes_one_by_one(Role::Target);
    let doubt = served.cannot_tell.iter().find(|doubt| doubt.cause == Bottleneck::R2t).unwrap();
    // The port that the target listens on is this end's.
    assert!(doubt.command.contains("--port 50000"), "{doubt:?}");
    // Reads have no R2Ts; of their sender, the target, the other end sees little.
    let reads = judged(questions(9, 8), Role::Initiator);
    assert!(!reads.not_excluded.contains(&Bottleneck::R2t), "{reads:?}");
    assert_eq!(reads.cannot_tell.len(), reads.not_excluded.len());
    assert!(reads.cannot_tell[0].command.starts_with("at the target: enkaku diagnose --port 3260"));
}

/// Reads of 96 KiB one at a time through a window that cannot be scaled: a window comes, the rest a
/// round trip later, and the next read is asked for at once.
#[test]
fn reads_through_a_window_without_scale_are_limited_by_it() {
    let read = |window: u32| {
        connection(move |at, sample| {
            sample.tcp.receive_window_bytes = Some(window);
            let turn = at % (2 * STEPS_PER_RTT + 1);
            if turn == 0 {
                send(sample, 48);
            } else if turn.is_multiple_of(STEPS_PER_RTT) {
                receive(sample, if turn == STEPS_PER_RTT { 65_535 } else { 32_769 });
            }
        })
    };
    assert_eq!(cause_of(read(65_535)), Bottleneck::ReceiveWindow);
    // The same data through a window that would let more of them come: it is the sender that holds
    // them back, of which this end knows little.
    let other = judged(read(1 << 20), Role::Initiator);
    assert_ne!(other.verdict.cause, Bottleneck::ReceiveWindow);
    assert!(other.not_excluded.contains(&Bottleneck::CongestionWindow), "{other:?}");
}

#[test]
fn the_same_silences_seen_from_the_target() {
    let served = |period: u64, think: u64| {
        connection(move |at, sample| {
            if at % period == 0 {
                receive(sample, 48);
            }
            if at % period == think {
                send(sample, 100_000);
            }
        })
    };
    let cause_of = |samples| judged(samples, Role::Target).verdict.cause;
    assert_eq!(cause_of(served(9, 0)), Bottleneck::QueueDepth);
    assert_eq!(cause_of(served(40, 32)), Bottleneck::Storage);
    assert_eq!(cause_of(served(40, 1)), Bottleneck::Application);
}

#[test]
fn a_receiver_tells_losses_from_a_full_line_by_the_steadiness() {
    let stream = |bytes: fn(u64) -> u64, late: u32| {
        connection(move |at, sample| {
            receive(sample, bytes(at));
            let seen = &mut sample.tcp.received_out_of_order_segments;
            *seen = Some(seen.unwrap_or(0) + late);
        })
    };
    let steady = judged(stream(|_| 20_000, 1), Role::Initiator);
    assert_eq!(steady.verdict.cause, Bottleneck::LineRate);
    assert!(steady.not_excluded.contains(&Bottleneck::SendBuffer));
    // Slots below 4 ms have no rate of their own: the peak is the kernel's.
    let mut uneven = stream(|_| 20_000, 30);
    uneven.iter_mut().for_each(|s| s.tcp.delivery_rate_bytes_per_s = Some(30_000_000));
    assert_eq!(cause_of(uneven), Bottleneck::CongestionLoss);
}

#[test]
fn a_known_line_decides_and_nothing_moving_is_no_verdict() {
    let stream = connection(|_, sample| send(sample, 25_000));
    let watched = [Watched { samples: stream.clone(), role: Role::Initiator }];
    let known = Known { line_bytes_per_s: Some(10.5e6), ..Known::default() };
    assert_eq!(judge(&watched, &known).unwrap().verdict.cause, Bottleneck::LineRate);
    let idle = connection(|at, sample| send(sample, u64::from(at % 100 == 0) * 48));
    assert_eq!(judge(&[Watched { samples: idle, role: Role::Target }], &known), None);
    assert_eq!(judge(&[], &known), None);
    let single = vec![stream[0].clone()];
    assert_eq!(judge(&[Watched { samples: single, role: Role::Target }], &known), None);
}

#[test]
fn of_two_ends_on_one_host_the_sender_counts() {
    let sender = connection(|_, sample| {
        send(sample, 10_000);
        sample.tcp.not_sent_bytes = Some(100_000);
        *sample.tcp.rwnd_limited_us.as_mut().unwrap() += STEP_US;
    });
    let mut receiver = connection(|_, sample| receive(sample, 10_000));
    for sample in &mut receiver {
        let Connection { local, remote, .. } = sample.connection;
        sample.connection = Connection { local: remote, remote: local, cookie: 2 };
    }
    let watched = [
        Watched { samples: receiver, role: Role::Target },
        Watched { samples: sender, role: Role::Initiator },
    ];
    let judgement = judge(&watched, &Known::default()).unwrap();
    assert_eq!((judgement.connections, judgement.verdict.cause), (1, Bottleneck::ReceiveWindow));
    let expected = 10_000.0 / 2500e-6;
    assert!((judgement.bytes_per_s / expected - 1.0).abs() < 0.01, "{}", judgement.bytes_per_s);
}
