//! Random clients over a cache over a disk that delays, fails, is cut off and loses power, by seed:
//! every read is a latest write, what a flush or FUA has acknowledged is left after the cut, errors
//! are reported, memory is bounded, nothing hangs. A run is a function of its seed.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::disk::{BLOCK, BLOCKS, Disk, blocks, versions};
use super::history::History;
use super::{CacheConfig, CacheLayer, CacheMode, Random, Sabotage, config};
use crate::{BlockDevice, Buf, Result as IoResult, WriteFlags, ZeroFlags};

/// Seeds of every test of this file.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=1500;

/// Seeds in which a mistake has to be found.
const SEEDS_PER_SABOTAGE: std::ops::RangeInclusive<u64> = 1..=400;

/// Virtual time in which everything has to end: outages last up to twenty seconds.
const HANG: Duration = Duration::from_secs(600);

/// What happens in a run.
#[derive(Clone, Copy, Debug, Default)]
struct Plan {
    fail_per_cent: u64,
    outages: bool,
    sabotage: Option<Sabotage>,
}

struct World {
    cache: CacheLayer,
    history: Mutex<History>,
    plan: Plan,
    limits: CacheConfig,
    /// Few blocks make overlaps frequent.
    blocks: u64,
}

/// Runs one seed; what went wrong.
async fn run(seed: u64, plan: Plan) -> Result<(), String> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mode = if random.below(4) == 0 { CacheMode::Read } else { CacheMode::WriteBack };
    let disk = Disk::new(seed, plan.fail_per_cent);
    let state = disk.state.clone();
    if plan.outages {
        let start = Instant::now() + Duration::from_millis(random.below(3000));
        let end = start + Duration::from_millis(random.below(20_000));
        state.lock().unwrap().outage = Some(start..end);
    }
    let mut config = config(mode);
    config.mistakes.made = plan.sabotage;
    let world = World {
        cache: CacheLayer::new(Arc::new(disk), config.clone()),
        history: Mutex::new(History::new(BLOCKS)),
        plan,
        limits: config.checked(),
        blocks: if random.below(2) == 0 { BLOCKS } else { 384 },
    };
    let count = 1 + random.below(4);
    let clients = (0..count).map(|n| world.client(Random(seed << 3 ^ n ^ 0xcafe)));
    let clients = futures_util::future::try_join_all(clients);
    // Half of the cuts come in the middle of everything.
    let early = random.below(2) == 0;
    let end = if early { Duration::from_millis(random.below(4000)) } else { HANG };
    tokio::select! {
        biased;
        ended = clients => { ended?; }
        () = tokio::time::sleep(end) => if !early { return Err("a client hangs".into()) },
    }
    if !early && random.below(2) == 0 {
        state.lock().unwrap().fail_per_cent = 0;
        world.last_flush().await?;
        for block in (0..BLOCKS).step_by(256) {
            world.read(block..block + 256).await?;
        }
    }
    let left = state.lock().unwrap().cut();
    let history = world.history();
    (0..).zip(left).try_for_each(|(block, version)| history.check_left(block, version))
}

impl World {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap()
    }

    async fn client(&self, mut random: Random) -> Result<(), String> {
        let mut sequential = random.below(self.blocks / 2);
        for _ in 0..30 + random.below(60) {
            let longest = if random.below(8) == 0 { 300 } else { 24 };
            let count = 1 + random.below(longest);
            let block = random.below(self.blocks - count);
            match random.below(14) {
                0..=4 => self.write(block..block + count, random.below(5) == 0).await?,
                5 => self.zero(block..block + count, random.below(4) == 0).await?,
                6 => self.trim(block..block + count).await?,
                7 => self.flush().await?,
                8 => tokio::time::sleep(Duration::from_millis(random.below(100))).await,
                9..=11 => {
                    let count = count.min(24);
                    self.read(sequential..sequential + count).await?;
                    sequential = (sequential + count) % (self.blocks - 24);
                }
                _ => self.read(block..block + count).await?,
            }
            self.check_memory()?;
        }
        Ok(())
    }

    fn check_memory(&self) -> Result<(), String> {
        let stats = self.cache.stats();
        let bounded = stats.dirty_bytes <= self.limits.write_bytes_max
            && stats.read_bytes <= self.limits.read_bytes_max;
        if bounded { Ok(()) } else { Err(format!("more memory than allowed: {stats:?}")) }
    }

    /// Without failures nothing may fail.
    fn judge(&self, what: &str, result: &IoResult<()>) -> Result<(), String> {
        match result {
            Err(error) if self.plan.fail_per_cent == 0 => Err(format!("{what}: {error}")),
            _ => Ok(()),
        }
    }

    async fn write(&self, range: std::ops::Range<u64>, fua: bool) -> Result<(), String> {
        let version = self.history().version();
        let data = blocks(version, range.end - range.start);
        let start = self.history().begin(&range, version, fua);
        let result = self.cache.write(range.start * BLOCK, data, WriteFlags { fua }).await;
        self.history().end(&range, start, result.is_ok());
        self.judge("write", &result)
    }

    async fn zero(&self, range: std::ops::Range<u64>, fua: bool) -> Result<(), String> {
        let start = self.history().begin(&range, 0, fua);
        let len = (range.end - range.start) * BLOCK;
        let result = self.cache.zero(range.start * BLOCK, len, ZeroFlags::new(fua, true)).await;
        self.history().end(&range, start, result.is_ok());
        self.judge("zero", &result)
    }

    async fn trim(&self, range: std::ops::Range<u64>) -> Result<(), String> {
        let start = self.history().begin(&range, 0, false);
        let result = self.cache.trim(range.start * BLOCK, (range.end - range.start) * BLOCK).await;
        self.history().end(&range, start, result.is_ok());
        self.judge("trim", &result)
    }

    async fn read(&self, range: std::ops::Range<u64>) -> Result<(), String> {
        let start = self.history().tick();
        let buf = Buf::new(((range.end - range.start) * BLOCK) as usize);
        let result = self.cache.read(range.start * BLOCK, buf).await;
        let Ok(buf) = &result else { return self.judge("read", &result.map(drop)) };
        let mut history = self.history();
        let mut read = range.zip(versions(buf));
        read.try_for_each(|(block, version)| history.check_read(block, version, start))
    }

    async fn flush(&self) -> Result<(), String> {
        let start = self.history().tick();
        let before = self.cache.stats().deferred_errors;
        let result = self.cache.flush().await;
        let errors = self.cache.stats().deferred_errors;
        self.history().flushed(start, before, errors, result.is_ok())?;
        self.judge("flush", &result)
    }

    /// The disk is well again: the second flush at the latest ends well and leaves nothing.
    async fn last_flush(&self) -> Result<(), String> {
        self.flush().await?;
        let result = tokio::time::timeout(HANG, self.cache.flush()).await;
        let left = self.cache.stats();
        let room = self.cache.shared.room.available_permits() as u64 * super::PERMIT_BYTES;
        match result {
            Err(_) => Err("the last flush hangs".into()),
            Ok(Err(error)) => Err(format!("the last flush: {error}")),
            Ok(Ok(())) if left.dirty_bytes > 0 || left.failed_bytes > 0 => {
                Err(format!("left after the last flush: {left:?}"))
            }
            Ok(Ok(())) if room != self.limits.write_bytes_max => {
                Err(format!("{room} bytes are free, not {}", self.limits.write_bytes_max))
            }
            Ok(Ok(())) => Ok(()),
        }
    }
}

/// Runs a seed on a virtual clock of its own.
fn outcome(seed: u64, plan: Plan) -> Result<(), String> {
    super::paused().block_on(run(seed, plan))
}

fn all_seeds(plan: Plan) {
    let start = std::time::Instant::now();
    for seed in SEEDS {
        let outcome = outcome(seed, plan);
        assert!(outcome.is_ok(), "seed {seed}, {plan:?}: {}", outcome.unwrap_err());
    }
    let rate = SEEDS.count() as f64 / start.elapsed().as_secs_f64();
    eprintln!("{plan:?}: {} seeds, {rate:.0} a second", SEEDS.count());
}

#[test]
fn clients_of_a_slow_disk_see_the_latest_and_keep_what_was_flushed() {
    all_seeds(Plan::default());
}

#[test]
fn also_when_the_disk_fails_now_and_then() {
    all_seeds(Plan { fail_per_cent: 4, ..Plan::default() });
}

#[test]
fn also_when_the_connection_is_lost_and_everything_is_sent_again() {
    all_seeds(Plan { outages: true, ..Plan::default() });
}

#[test]
fn also_when_both_happens() {
    all_seeds(Plan { outages: true, fail_per_cent: 4, ..Plan::default() });
}

#[test]
fn a_seed_is_a_run() {
    let plan = Plan { outages: true, fail_per_cent: 4, sabotage: Some(Sabotage::KeepStaleChunks) };
    let found = (1..100).find_map(|seed| outcome(seed, plan).err().map(|why| (seed, why)));
    let (seed, why) = found.unwrap();
    assert_eq!(outcome(seed, plan), Err(why));
}

#[test]
fn every_mistake_is_found() {
    for sabotage in Sabotage::ALL {
        let plans = [(0, false), (4, true)];
        let tries = SEEDS_PER_SABOTAGE.flat_map(|seed| plans.map(|plan| (seed, plan)));
        let found = tries.into_iter().find_map(|(seed, (fail_per_cent, outages))| {
            let plan = Plan { fail_per_cent, outages, sabotage: Some(sabotage) };
            outcome(seed, plan).err().map(|why| (seed, why))
        });
        let Some((seed, why)) = found else { panic!("{sabotage:?} was not found") };
        let why: String = why.chars().take(100).collect();
        eprintln!("{sabotage:?}: seed {seed}: {why}");
    }
}
