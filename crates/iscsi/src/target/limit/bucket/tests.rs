//! Buckets under a clock that stands still unless everybody waits.

use super::*;
use crate::target::limit::BURST_DEFAULT;

const MIB: u64 = 1 << 20;

fn flow(name: &str) -> Flow {
    Arc::from(name)
}

fn iops(iops: u64) -> Limit {
    Limit::new(None, Some(iops)).with_burst(Duration::ZERO)
}

fn rate(bytes_per_s: u64) -> Limit {
    Limit::new(Some(bytes_per_s), None).with_burst(Duration::ZERO)
}

async fn take(bucket: &Arc<Bucket>, flow: &Flow, bytes: u64) {
    let cost = Cost { bytes };
    if !bucket.try_take(cost) {
        bucket.wait(flow, cost).await;
    }
}

/// A client that keeps `depth` commands of so many bytes waiting; how many were let through within
/// ten seconds.
async fn counted(bucket: &Arc<Bucket>, name: &str, depth: usize, bytes: u64) -> u64 {
    let (flow, end) = (flow(name), Instant::now() + Duration::from_secs(10));
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..depth {
        let (bucket, flow) = (Arc::clone(bucket), flow.clone());
        workers.spawn(async move {
            let mut count = 0;
            while tokio::time::timeout_at(end, take(&bucket, &flow, bytes)).await.is_ok()
                && Instant::now() < end
            {
                count += 1;
            }
            count
        });
    }
    workers.join_all().await.into_iter().sum()
}

fn near(counted: u64, wanted: u64) -> bool {
    counted.abs_diff(wanted) * 100 <= wanted.max(100)
}

#[tokio::test(start_paused = true)]
async fn small_limits_are_exact_whatever_the_depth() {
    for (limit, depth) in [(100, 1), (100, 32), (7, 3), (1, 2), (5000, 64), (20_000, 256)] {
        let bucket = Bucket::new(iops(limit));
        let count = counted(&bucket, "a", depth, 4096).await;
        assert!(near(count, limit * 10), "{limit} per second: {count} in 10 s");
    }
}

/// Timers are late by up to a millisecond, in which eight small commands are soon over: what they
/// cannot use then they use later, within the burst.
#[tokio::test(start_paused = true)]
async fn bytes_are_counted_whatever_the_size() {
    for bytes in [512, 4096, 65_536, MIB] {
        let bucket = Bucket::new(Limit::new(Some(20 * MIB), None));
        let count = counted(&bucket, "a", 8, bytes).await;
        assert!(near(count, 200 * MIB / bytes), "{bytes} bytes: {count}");
    }
}

/// The stricter of two limits holds; commands without data count as commands.
#[tokio::test(start_paused = true)]
async fn both_limits_hold() {
    let limit = Limit::new(Some(10 * MIB), Some(50));
    let large = counted(&Bucket::new(limit), "a", 4, MIB).await;
    assert!(near(large, 100), "{large}");
    let small = counted(&Bucket::new(limit), "a", 4, 512).await;
    assert!(near(small, 500), "{small}");
    let flushes = counted(&Bucket::new(limit), "a", 4, 0).await;
    assert!(near(flushes, 500), "{flushes}");
    let only_bytes = Bucket::new(rate(MIB));
    for _ in 0..10_000 {
        assert!(only_bytes.try_take(Cost { bytes: 0 }), "no limit for what moves no bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_not_used_may_be_used_later_up_to_the_burst() {
    let bucket = Bucket::new(iops(100).with_burst(Duration::from_secs(1)));
    tokio::time::advance(Duration::from_secs(60)).await;
    let at_once = (0..1000).take_while(|_| bucket.try_take(Cost::default())).count();
    assert_eq!(at_once, 101, "a second's worth, and the one that is due");
    let usual = Bucket::new(Limit::new(None, Some(100)));
    tokio::time::advance(Duration::from_secs(60)).await;
    let at_once = (0..1000).take_while(|_| usual.try_take(Cost::default())).count();
    assert_eq!(at_once as u128, 1 + BURST_DEFAULT.as_millis() / 10);
}

/// A burst is smaller than one command: that goes at once, and is paid off afterwards.
#[tokio::test(start_paused = true)]
async fn a_command_that_is_larger_than_the_burst_leaves_a_debt() {
    let bucket = Bucket::new(rate(MIB));
    let begin = Instant::now();
    take(&bucket, &flow("a"), 16 * MIB).await;
    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert!(!bucket.is_settled());
    take(&bucket, &flow("a"), 512).await;
    assert_eq!(begin.elapsed(), Duration::from_secs(16));
    let counts = bucket.counts();
    assert_eq!((counts.commands, counts.bytes, counts.delayed), (2, 16 * MIB + 512, 1));
    assert_eq!((counts.waited, counts.waiting), (Duration::from_secs(16), 0));
}

#[tokio::test(start_paused = true)]
async fn initiators_share_evenly_whatever_they_ask_for() {
    let bucket = Bucket::new(rate(20 * MIB));
    let clients = [("deep", 64, MIB), ("small", 32, 4096), ("shallow", 2, 65_536)];
    let clients = clients.map(|(name, depth, bytes)| {
        let bucket = bucket.clone();
        async move { counted(&bucket, name, depth, bytes).await * bytes / MIB }
    });
    let got = futures_util::future::join_all(clients).await;
    assert!(got.iter().all(|mib| mib.abs_diff(66) <= 3), "{got:?} MiB of 200");
}

#[tokio::test(start_paused = true)]
async fn a_late_timer_takes_nothing_away() {
    let bucket = Bucket::new(iops(1000));
    let name = flow("a");
    let tickets: Vec<_> = (0..500).map(|_| bucket.wait(&name, Cost::default())).collect();
    // Nobody looks for 300 ms; then all that is due goes at once.
    tokio::time::advance(Duration::from_millis(300)).await;
    let begin = Instant::now();
    for ticket in tickets {
        ticket.await;
    }
    let left = begin.elapsed();
    assert!(left <= Duration::from_millis(201), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn who_goes_away_costs_nothing_and_leaves_nothing() {
    let bucket = Bucket::new(iops(1));
    assert!(bucket.try_take(Cost::default()));
    let gone: Vec<_> = (0..100).map(|_| bucket.wait(&flow("a"), Cost::default())).collect();
    let stays = bucket.wait(&flow("b"), Cost::default());
    assert_eq!(bucket.counts().waiting, 101);
    drop(gone);
    assert_eq!(bucket.counts().waiting, 1);
    let begin = Instant::now();
    stays.await;
    assert_eq!(begin.elapsed(), Duration::from_secs(1));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(bucket.is_settled() && !bucket.lock().is_driven);
    assert_eq!(bucket.counts().commands, 2);
}

#[tokio::test(start_paused = true)]
async fn a_change_holds_for_those_that_wait() {
    let bucket = Bucket::new(iops(1));
    let name = flow("a");
    assert!(bucket.try_take(Cost::default()));
    let begin = Instant::now();
    let mut tickets: Vec<_> = (0..20).map(|_| bucket.wait(&name, Cost::default())).collect();
    let rest = tickets.split_off(10);
    tokio::time::advance(Duration::from_millis(500)).await;
    bucket.set_limit(iops(10));
    for ticket in tickets {
        ticket.await;
    }
    // Half a second was owed at 1 per second, which is 50 ms at 10; nine more behind it.
    let elapsed = begin.elapsed().as_millis();
    assert!((1440..=1470).contains(&elapsed), "{elapsed} ms");
    bucket.set_limit(Limit::default());
    let begin = Instant::now();
    for ticket in rest {
        ticket.await;
    }
    assert_eq!(begin.elapsed(), Duration::ZERO, "no limit any more");
}

#[test]
fn nothing_overflows() {
    assert_eq!(time_of(u64::MAX, 1), DEBT_MAX);
    assert_eq!(time_of(1, u64::MAX), Duration::ZERO);
    let least = Limit::new(Some(0), Some(0)).with_burst(Duration::MAX);
    assert_eq!(least.iops, Some(1));
    assert!(least.bytes_per_s.is_some_and(|rate| rate > 0) && least.burst < Duration::MAX);
}
