//! The line's arithmetic, segment by segment.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn line(rate_bits_per_s: u64, queue_packets: usize) -> DirectionConfig {
    let queue = Queue::Packets(queue_packets);
    DirectionConfig { rate_bits_per_s, queue, ..DirectionConfig::default() }
}

fn at(fate: Fate) -> u64 {
    match fate {
        Fate::Delivered { at_ns, .. } => at_ns,
        other => panic!("expected a delivery, got {other:?}"),
    }
}

#[test]
fn a_segment_takes_its_wire_time_and_the_delay() {
    let config = DirectionConfig { delay: Duration::from_millis(10), ..line(1_000_000_000, 9) };
    let mut link = Link::new(&config);
    // 1538 bytes at 1 Gbit/s take 12,304 ns.
    assert_eq!(at(link.enqueue(1000, 1500)), 1000 + 12_304 + 10_000_000);
    // The second waits for the first; an idle line starts at once.
    assert_eq!(at(link.enqueue(1000, 1500)), 1000 + 2 * 12_304 + 10_000_000);
    assert_eq!(at(link.enqueue(1_000_000, 1500)), 1_000_000 + 12_304 + 10_000_000);
}

#[test]
fn a_short_packet_takes_the_shortest_frame() {
    let mut link = Link::new(&line(1_000_000_000, 9));
    assert_eq!(at(link.enqueue(0, 40)), 84 * 8);
    assert_eq!(at(link.enqueue(1_000_000, 46)), 1_000_000 + 84 * 8);
    assert_eq!(at(link.enqueue(2_000_000, 47)), 2_000_000 + 85 * 8);
}

#[test]
fn the_queue_drops_its_tail_and_frees_a_place_at_each_departure() {
    let mut link = Link::new(&line(1_000_000_000, 3));
    for _ in 0..3 {
        at(link.enqueue(0, 1500));
    }
    assert_eq!(link.enqueue(0, 1500), Fate::DroppedQueue);
    assert_eq!(link.enqueue(12_303, 1500), Fate::DroppedQueue);
    assert_eq!(at(link.enqueue(12_304, 1500)), 4 * 12_304);
    assert_eq!(link.enqueue(12_304, 1500), Fate::DroppedQueue);
    link.note_queue(12_304);
    let expected = Counters {
        segments: 4,
        bytes: 6000,
        dropped_queue: 3,
        queue_bytes: 4500,
        queue_packets_max: 3,
        queue_bytes_max: 4500,
        classes: link.counters().classes.clone(),
        ..Counters::default()
    };
    assert_eq!(*link.counters(), expected);
    let [all] = expected.classes.as_slice() else { panic!("{expected:?}") };
    assert_eq!((all.class.as_str(), all.segments, all.dropped_queue), ("all", 4, 3));
    link.note_queue(4 * 12_304);
    assert_eq!(link.counters().queue_bytes, 0);
    // 0, 1, 2 and 2 segments went before.
    assert_eq!(all.queued.mean_us(), 12.304 * 5.0 / 4.0);
}

#[test]
fn rounding_does_not_change_the_rate() {
    // 7 Gbit/s: 1538 bytes are 1757.71… ns.
    let mut link = Link::new(&line(7_000_000_000, usize::MAX));
    let last = (0..700_000).map(|_| at(link.enqueue(0, 1500))).last().unwrap();
    assert_eq!(last, 1538 * 8 * 700_000 / 7);
}

/// What a policer drops never comes to the line: no queue, no time, no number of the losses'.
#[test]
fn what_a_policer_drops_takes_nothing_of_the_line() {
    // 3076 bytes are two packets; 12.304 Mbit/s fill one in a millisecond.
    let police = Some(crate::policer::Policer { rate_bits_per_s: 12_304_000, burst_bytes: 3076 });
    let mut link = Link::new(&DirectionConfig { police, ..line(1_000_000_000, 9) });
    assert_eq!(at(link.enqueue(0, 1500)), 12_304);
    assert_eq!(at(link.enqueue(0, 1500)), 2 * 12_304);
    assert_eq!(link.enqueue(0, 1500), Fate::DroppedPolice);
    assert_eq!(link.enqueue(999_999, 1500), Fate::DroppedPolice);
    assert_eq!(at(link.enqueue(1_000_000, 1500)), 1_000_000 + 12_304);
    let counters = link.counters();
    assert_eq!((counters.segments, counters.dropped_police, counters.dropped()), (3, 2, 2));
    assert_eq!(counters.queue_packets_max, 2);
    // It goes, and comes back full.
    link.set(1_000_000, &line(1_000_000_000, 9));
    assert!((0..5).all(|_| matches!(link.enqueue(1_100_000, 1500), Fate::Delivered { .. })));
    link.set(1_200_000, &DirectionConfig { police, ..line(1_000_000_000, 9) });
    let passed = (0..5).filter(|_| link.enqueue(1_200_000, 1500) != Fate::DroppedPolice);
    assert_eq!(passed.count(), 2);
}

#[test]
fn a_lost_segment_still_takes_the_line() {
    let mut link = Link::new(&DirectionConfig { loss: 1.0, ..line(1_000_000_000, 2) });
    assert_eq!(link.enqueue(0, 1500), Fate::DroppedLoss);
    assert_eq!(link.enqueue(0, 1500), Fate::DroppedLoss);
    assert_eq!(link.enqueue(0, 1500), Fate::DroppedQueue);
    assert_eq!(link.counters().dropped_loss, 2);
}

#[test]
fn the_same_seed_loses_the_same_segments() {
    let losses = |seed| {
        let config = DirectionConfig { loss: 0.1, seed, ..line(1_000_000_000, usize::MAX) };
        let mut link = Link::new(&config);
        (0..1000).map(|_| link.enqueue(0, 1500) == Fate::DroppedLoss).collect::<Vec<_>>()
    };
    assert_eq!(losses(7), losses(7));
    assert_ne!(losses(7), losses(8));
}

#[test]
fn the_loss_rate_lies_in_its_binomial_interval() {
    for (loss, seed) in [(1e-4, 1), (1e-3, 2), (1e-2, 3), (0.5, 4)] {
        let n = 2_000_000_u32;
        let config = DirectionConfig { loss, seed, ..line(1_000_000_000, usize::MAX) };
        let mut link = Link::new(&config);
        for i in 0..n {
            link.enqueue(u64::from(i) * 20_000, 1500);
        }
        let expected = f64::from(n) * loss;
        let sigma = (expected * (1.0 - loss)).sqrt();
        let lost = link.counters().dropped_loss as f64;
        assert!((lost - expected).abs() < 2.576 * sigma, "{loss}: {lost} lost of {n}");
    }
}

fn jittered(spec: &str) -> DirectionConfig {
    let jitter = crate::jitter::Jitter::parse(spec).unwrap();
    let delay = Duration::from_millis(10);
    DirectionConfig { jitter, delay, ..line(1_000_000_000, usize::MAX) }
}

#[test]
fn a_queue_of_bytes_drops_what_does_not_fit() {
    let queue = Queue::Bytes(4000);
    let mut link = Link::new(&DirectionConfig { queue, ..line(1_000_000_000, 1) });
    at(link.enqueue(0, 1500));
    at(link.enqueue(0, 1500));
    assert_eq!(link.enqueue(0, 1500), Fate::DroppedQueue);
    at(link.enqueue(0, 1000));
    assert_eq!(link.enqueue(0, 1), Fate::DroppedQueue);
    at(link.enqueue(12_304, 1500));
    assert_eq!(link.counters().queue_bytes_max, 4000);
}

#[test]
fn jitter_keeps_the_order_unless_asked_not_to() {
    let arrivals = |spec: &str| {
        let mut link = Link::new(&jittered(spec));
        (0..10_000_u64).map(|i| at(link.enqueue(i * 20_000, 1500))).collect::<Vec<_>>()
    };
    for spec in ["5ms", "5ms,hold=0", "5ms,normal", "5ms,exponential"] {
        let kept = arrivals(spec);
        assert!(kept.is_sorted(), "{spec}");
        assert_eq!(kept, arrivals(spec));
    }
    assert!(!arrivals("5ms,reorder").is_sorted());
}

/// A delay that falls must not let later segments overtake earlier ones either.
#[test]
fn a_delay_that_falls_keeps_the_order() {
    let config = |ms| DirectionConfig {
        delay: Duration::from_millis(ms),
        ..line(1_000_000_000, usize::MAX)
    };
    let mut link = Link::new(&config(50));
    let before = at(link.enqueue(0, 1500));
    assert_eq!(link.set(1000, &config(10)), None);
    assert_eq!(at(link.enqueue(20_000, 1500)), before);
    assert_eq!(at(link.enqueue(60_000_000, 1500)), 60_000_000 + 12_304 + 10_000_000);
}

#[test]
fn what_waits_leaves_at_the_new_rate() {
    let mut link = Link::new(&line(10_000_000, 100));
    // 1538 bytes at 10 Mbit/s take 1,230,400 ns; half of the first has left at the change.
    for _ in 0..10 {
        at(link.enqueue(0, 1500));
    }
    let half = 615_200;
    let retiming = link.set(half, &line(100_000_000, 100)).unwrap();
    assert_eq!(retiming.departure_ns(100), 100);
    assert_eq!(retiming.departure_ns(1_230_400), half + half / 10);
    let last = half + (10 * 1_230_400 - half) / 10;
    assert_eq!(retiming.departure_ns(10 * 1_230_400), last);
    link.deliveries_moved(Some(last));
    assert_eq!(at(link.enqueue(half, 1500)), last + 123_040);
    // And back: slower again.
    let retiming = link.set(half, &line(10_000_000, 100)).unwrap();
    assert_eq!(retiming.departure_ns(last), 10 * 1_230_400);
}

#[test]
fn settings_that_change_do_not_shift_the_losses() {
    let lossy = |rate| DirectionConfig { loss: 0.1, ..line(rate, usize::MAX) };
    let losses = |change_at: u64| {
        let mut link = Link::new(&lossy(1_000_000_000));
        let mut lost = Vec::new();
        for i in 0..1000 {
            if i == change_at {
                link.set(
                    i,
                    &DirectionConfig {
                        burst: Some(crate::GilbertElliott { p: 0.1, r: 0.5, h: 0.0, k: 1.0 }),
                        delay: Duration::from_millis(1),
                        ..lossy(2_000_000_000)
                    },
                );
            }
            lost.push(link.enqueue(i, 1500) == Fate::DroppedLoss);
        }
        (lost, link.counters().clone())
    };
    let (before, counters) = losses(u64::MAX);
    let (after, changed) = losses(500);
    assert_eq!(before, after);
    assert_eq!(counters.dropped_burst, 0);
    assert!(changed.dropped_burst > 0 && changed.dropped_loss > changed.dropped_burst);
    assert_eq!(changed.segments + changed.dropped_loss, 1000);
}

fn classes(text: &str) -> Option<crate::Classes> {
    Some(crate::Classes::parse(text).unwrap())
}

/// DSCP 46.
const EF: Segment = Segment { ip_bytes: 1500, traffic_class: 46 << 2 };

/// Offers a segment to a line with classes whose departures nobody needs.
fn offer(link: &mut Link, now_ns: u64, segment: impl Into<Segment>) -> Fate {
    while link.departure(now_ns).is_some() {}
    link.enqueue(now_ns, segment)
}

/// A message of the first class waits for what is being sent, and for nothing else.
#[test]
fn a_strict_class_waits_for_one_segment_at_most() {
    let mut link = Link::new(&DirectionConfig {
        classes: classes("strict,ef,rest"),
        ..line(1_000_000_000, 9)
    });
    for _ in 0..5 {
        assert_eq!(offer(&mut link, 0, 1500), Fate::Waits { class: 1, marked: false });
    }
    assert_eq!(offer(&mut link, 1, EF), Fate::Waits { class: 0, marked: false });
    assert_eq!(link.soonest_ns(0, 1), Some(2 * 12_304));
    assert_eq!(link.soonest_ns(1, 3), Some(4 * 12_304));
    assert_eq!(link.departure(12_303), None);
    let order: Vec<(usize, u64)> = std::iter::from_fn(|| link.departure(u64::MAX))
        .map(|departure| (departure.class, departure.at_ns.unwrap()))
        .collect();
    let times = (2..=6).map(|number| number * 12_304);
    assert_eq!(order, [0, 1, 1, 1, 1].into_iter().zip(times).collect::<Vec<_>>());
    let waited = &link.counters().classes[0].queued;
    assert!((waited.mean_us() - 12.303).abs() < 1e-9, "{waited:?}");
    // An idle line starts at once, at a time that is no multiple of anything.
    assert_eq!(offer(&mut link, 1_000_001, 1500), Fate::Waits { class: 1, marked: false });
    assert_eq!(link.departure(1_000_001).unwrap().departs_ns, 1_000_001 + 12_304);
}

#[test]
fn classes_have_queues_of_their_own() {
    let mut link = Link::new(&DirectionConfig {
        classes: classes("strict,ef,rest"),
        ..line(1_000_000_000, 2)
    });
    let fates: Vec<Fate> = (0..4).map(|_| offer(&mut link, 0, 1500)).collect();
    // One is being sent, two wait.
    assert_eq!(fates[2..], [Fate::Waits { class: 1, marked: false }, Fate::DroppedQueue]);
    assert_eq!(offer(&mut link, 0, EF), Fate::Waits { class: 0, marked: false });
    let [ef, rest] = link.counters().classes.as_slice() else { panic!("{link:?}") };
    assert_eq!((ef.segments, ef.dropped_queue, rest.segments, rest.dropped_queue), (1, 0, 3, 1));
    assert_eq!(rest.queue_bytes_max, 3000);
    assert_eq!(link.counters().queue_packets_max, 4);
}

#[test]
fn a_lost_segment_takes_the_line_in_a_class_too() {
    let config = DirectionConfig {
        loss: 1.0,
        classes: classes("weighted,ef=3,rest=1"),
        ..line(1_000_000_000, 9)
    };
    let mut link = Link::new(&config);
    assert_eq!(offer(&mut link, 0, EF), Fate::DroppedLoss);
    link.set(0, &DirectionConfig { loss: 0.0, ..config });
    assert_eq!(offer(&mut link, 0, EF), Fate::Waits { class: 0, marked: false });
    assert_eq!(link.soonest_ns(0, 1), Some(2 * 12_304));
    assert_eq!(link.departure(12_304).unwrap().departs_ns, 2 * 12_304);
}

/// RFC 3168 §5: where it would drop for congestion, it marks those who can hear of it.
#[test]
fn above_the_threshold_it_marks_who_is_capable_and_drops_the_others() {
    for text in [None, Some("strict,ef,rest")] {
        let config = DirectionConfig {
            ecn: Some(Queue::Packets(2)),
            classes: text.and_then(classes),
            ..line(1_000_000_000, 5)
        };
        let mut link = Link::new(&config);
        let marked = |fate| match fate {
            Fate::Delivered { marked, .. } | Fate::Waits { marked, .. } => marked,
            other => panic!("{other:?}"),
        };
        let with = |ecn: u8| Segment { ip_bytes: 1500, traffic_class: 46 << 2 | ecn };
        // With classes, what is being sent has left its queue.
        let before = if text.is_some() { 3 } else { 2 };
        assert!((0..before).all(|_| !marked(offer(&mut link, 0, with(0)))));
        assert_eq!(offer(&mut link, 0, with(0)), Fate::DroppedEcn);
        assert!(marked(offer(&mut link, 0, with(1))) && marked(offer(&mut link, 0, with(2))));
        // It was marked elsewhere.
        assert!(!marked(offer(&mut link, 0, with(3))));
        assert_eq!(offer(&mut link, 0, with(2)), Fate::DroppedQueue);
        let counters = link.counters();
        assert_eq!((counters.marked, counters.dropped_ecn, counters.dropped_queue), (2, 1, 1));
        let class = &counters.classes[0];
        assert_eq!((class.marked, class.dropped_ecn, class.segments), (2, 1, before + 3));
        assert_eq!(counters.dropped(), 2);
    }
}

/// Classes come, change and go while packets wait: what waits keeps its order and its bytes.
#[test]
fn what_waits_leaves_before_the_classes_change() {
    let plain = line(1_000_000_000, 9);
    let with = |text| DirectionConfig { classes: classes(text), ..plain.clone() };
    let mut link = Link::new(&plain);
    assert_eq!(at(link.enqueue(0, 1500)), 12_304);
    assert!(link.changes_classes(&with("strict,ef,rest")));
    link.set(1, &with("strict,ef,rest"));
    assert_eq!(offer(&mut link, 1, 1500), Fate::Waits { class: 1, marked: false });
    assert!(!link.changes_classes(&with("strict,ef,rest")));
    // All departures are taken, then the line is another.
    assert_eq!(link.departure(u64::MAX).unwrap().departs_ns, 2 * 12_304);
    link.set(2, &plain);
    assert_eq!(at(link.enqueue(2, 1500)), 3 * 12_304);
    assert_eq!(link.counters().segments, 3);
    let names: Vec<_> = link.counters().classes.iter().map(|class| &class.class).collect();
    assert_eq!(names, ["all"]);
}

#[test]
fn a_new_rate_holds_for_what_waits_in_a_class() {
    let with = |rate| DirectionConfig { classes: classes("strict,ef,rest"), ..line(rate, 9) };
    let mut link = Link::new(&with(10_000_000));
    offer(&mut link, 0, 1500);
    offer(&mut link, 0, 1500);
    assert_eq!(link.departure(0), None, "the first left when the second came");
    // Half of the first has left; the other half and the second take a tenth.
    let retiming = link.set(615_200, &with(100_000_000)).unwrap();
    assert_eq!(retiming.departure_ns(1_230_400), 615_200 + 61_520);
    assert_eq!(link.departure(615_200), None);
    assert_eq!(link.departure(676_720).unwrap().departs_ns, 676_720 + 123_040);
}

proptest! {
    /// Whatever comes in whatever class: a line with classes carries as many bytes in as much time
    /// as one without, and the order within a class is kept.
    #[test]
    fn classes_change_the_order_and_nothing_else(
        rate in 1_000_000_u64..20_000_000_000,
        text in prop::sample::select(vec!["strict,ef,rest", "weighted,rest=3,ef=2"]),
        offers in prop::collection::vec((0_u64..100_000, 20_u32..1500, any::<bool>()), 1..300),
    ) {
        let mut plain = Link::new(&line(rate, usize::MAX));
        let classed = DirectionConfig { classes: classes(text), ..line(rate, usize::MAX) };
        let mut link = Link::new(&classed);
        let (mut now_ns, mut last_ns) = (0, 0);
        let mut waiting = [Vec::new(), Vec::new()];
        let mut departures = Vec::new();
        for (gap_ns, ip_bytes, is_ef) in offers {
            now_ns += gap_ns;
            departures.extend(std::iter::from_fn(|| link.departure(now_ns)));
            let segment =
                Segment { ip_bytes, traffic_class: if is_ef { EF.traffic_class } else { 0 } };
            last_ns = at(plain.enqueue(now_ns, segment));
            let fate = link.enqueue(now_ns, segment);
            let Fate::Waits { class, .. } = fate else { panic!("{fate:?}") };
            waiting[class].push(now_ns);
        }
        departures.extend(std::iter::from_fn(|| link.departure(u64::MAX)));
        // A nanosecond of rounding for each segment.
        let late = departures.last().unwrap().departs_ns.abs_diff(last_ns);
        prop_assert!(late <= departures.len() as u64, "{late} ns from {last_ns}");
        prop_assert!(departures.is_sorted_by_key(|departure| departure.departs_ns));
        for (class, came) in waiting.iter().enumerate() {
            let left = departures.iter().filter(|departure| departure.class == class);
            let left: Vec<u64> = left.map(|departure| departure.departs_ns).collect();
            prop_assert_eq!(left.len(), came.len());
            prop_assert!(left.iter().zip(came).all(|(left, came)| left > came || rate > 1 << 30));
        }
        let counters = link.counters();
        prop_assert_eq!(counters.segments, departures.len() as u64);
        prop_assert_eq!(counters.classes.iter().map(|class| class.bytes).sum::<u64>(), counters.bytes);
    }

    /// Whatever is offered whenever: deliveries keep their order, the queue never holds more
    /// than its limit, and a queue of q packets delays by at most q × packet / rate.
    #[test]
    fn order_and_queue_delay(
        rate in 10_000_u64..20_000_000_000,
        queue in 1_usize..50,
        offers in prop::collection::vec((0_u64..5_000_000, 20_u32..1500), 1..300),
    ) {
        let mut link = Link::new(&line(rate, queue));
        let (mut now_ns, mut last_ns) = (0, 0);
        let mut delivered = 0;
        let bound_ns = (queue as u64 * 1538 * 8 * NANOS_PER_S).div_ceil(rate);
        for (gap_ns, bytes) in offers {
            now_ns += gap_ns;
            if let Fate::Delivered { at_ns, .. } = link.enqueue(now_ns, bytes) {
                prop_assert!(at_ns >= last_ns);
                prop_assert!(at_ns - now_ns <= bound_ns);
                last_ns = at_ns;
                delivered += 1;
            }
            prop_assert!(link.counters().queue_packets_max <= queue as u64);
        }
        prop_assert_eq!(link.counters().segments, delivered);
    }
}
