//! What a seed decides: the disks, the mirror's settings, the guest's habits, and what goes wrong.

use std::sync::Arc;
use std::time::Duration;

use block::mirror::{Config, Lag, Mode, OnLag, OnLoss, ResyncRate, VerifyEvery};

use super::disk::Kind;
use super::guest::Habits;
use crate::rng::Rng;

/// Bytes of the guest's data: some extents of the activity log.
pub(crate) const DATA_BYTES: u64 = 4 << 20;

/// What goes wrong at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The power of this host fails.
    CutHere,
    /// The process of the mirror ends; the caches of its disks live on.
    EndProcess,
    /// The power of a leg fails.
    CutLeg(usize),
    /// The power of all legs and of this host fails.
    CutAll,
    /// The link to a leg fails.
    CutLink(usize),
    /// A leg becomes slow.
    Slow(usize),
    /// A leg has no space left, for a while.
    Full(usize),
    /// What a leg holds is kept aside.
    Remember(usize),
    /// A leg is put back to what was kept aside.
    PutBack(usize),
    /// Another unit is found in place of a leg.
    Replace(usize),
}

/// All that a seed decides.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) config: Config,
    pub(crate) local: Kind,
    pub(crate) metadata: Kind,
    pub(crate) legs: Vec<Kind>,
    pub(crate) habits: Arc<Habits>,
    /// Blocks of the local disk that hold something before there is a mirror.
    pub(crate) filled: Vec<u64>,
    /// What goes wrong, and at which point.
    pub(crate) troubles: Vec<(u64, Trouble)>,
    /// Writes of legs that fail, in thousandths.
    pub(crate) leg_errors: u64,
}

impl Scenario {
    pub(crate) fn new(rng: &mut Rng, mode: Option<Mode>, tail_bytes: u64) -> Self {
        let drawn = rng.pick(&[Mode::Sync, Mode::Async]);
        let mode = mode.unwrap_or(drawn);
        let unit_sectors = rng.pick(&[1, 8]);
        let kind = |rng: &mut Rng, bytes, latency_us| Kind {
            bytes,
            block_bytes: unit_sectors as u32 * 512,
            can_fua: rng.coin(),
            can_zero: rng.coin(),
            can_extents: rng.coin(),
            ordered: false,
            latency_us,
        };
        let local = kind(rng, DATA_BYTES, (20, 2000));
        let metadata = Kind { can_fua: rng.coin(), ..kind(rng, 4 << 20, (20, 2000)) };
        let count = rng.pick(&[1, 1, 1, 2, 2, 3]);
        let distance = rng.pick(&[100, 1000, 20_000]);
        let mut legs: Vec<Kind> = (0..count)
            .map(|_| {
                // Half of them have room for a redo log, some for a small one.
                let redo_bytes = rng.pick(&[0, 0, 0, 32 << 10, 1 << 20, 1 << 20]);
                kind(rng, DATA_BYTES + redo_bytes + tail_bytes, (distance, distance * 2))
            })
            .collect();
        let habits = Arc::new(Habits {
            places: places(rng),
            unit_sectors,
            threads: rng.range(1, 5),
            operations: rng.range(5, 40),
            pause_us_max: rng.pick(&[1_000, 30_000, 300_000]),
            overlap: rng.pick(&[0, 0, 50]),
            flushes: rng.pick(&[5, 20, 40]),
            forced: rng.pick(&[0, 10, 30]),
            failures: false,
        });
        let filled = (0..rng.below(4)).map(|_| rng.pick(&habits.places)).collect();
        let mut troubles: Vec<(u64, Trouble)> =
            (0..rng.below(4)).map(|_| (rng.skewed(400), trouble(rng, count))).collect();
        let (leg, point) = (rng.below(count) as usize, rng.range(20, 300));
        match rng.below(20) {
            0..=1 => {
                troubles.push((rng.below(point), Trouble::Remember(leg)));
                troubles.push((point, Trouble::PutBack(leg)));
            }
            2 => troubles.push((point, Trouble::Replace(leg))),
            _ => {}
        }
        let leg_errors = rng.pick(&[0, 0, 0, 20]);
        let in_stream = mode == Mode::Async && rng.below(3) == 0;
        legs.iter_mut().for_each(|leg| leg.ordered = in_stream);
        let mut config = config(rng, mode);
        if troubles.iter().any(|(_, trouble)| matches!(trouble, Trouble::Replace(_))) {
            config.on_loss = OnLoss::Continue; // nobody here decides about another's unit
        }
        Self { config, local, metadata, legs, habits, filled, troubles, leg_errors }
    }
}

fn places(rng: &mut Rng) -> Vec<u64> {
    let blocks = DATA_BYTES / block::mirror::BLOCK_BYTES;
    let mut places: Vec<u64> = vec![0, 1, 2, 3, 255, 256, blocks - 2];
    let more = rng.below(6);
    places.extend((0..more).map(|_| rng.below(blocks - 2)));
    let few = rng.range(2, places.len() as u64) as usize;
    if rng.coin() {
        places.truncate(few);
    }
    places
}

fn config(rng: &mut Rng, mode: Mode) -> Config {
    Config {
        mode,
        lag: Lag {
            age: Duration::from_millis(rng.pick(&[300, 2000])),
            bytes: rng.pick(&[64 << 10, 1 << 20]),
            on: rng.pick(&[OnLag::Slow, OnLag::FallBehind]),
        },
        on_loss: rng.pick(&[OnLoss::Continue, OnLoss::Continue, OnLoss::Stop]),
        remote_timeout: Duration::from_millis(rng.pick(&[1000, 3000])),
        retry: (Duration::from_millis(50), Duration::from_millis(800)),
        resync_window_bytes: rng.pick(&[64 << 10, 1 << 20]),
        resync_rate: ResyncRate::Max,
        redo_bytes: Some(1 << 20),
        // So often that some come to their end beside the guest.
        verify: (rng.below(4) == 0).then(|| verified(rng)),
    }
}

/// A mirror that compares its legs by itself, all the time.
pub(crate) fn verified(rng: &mut Rng) -> VerifyEvery {
    let every = Duration::from_millis(rng.pick(&[50, 500, 3000]));
    VerifyEvery { every, rate: ResyncRate::Max }
}

/// Any, but for what ends this host: those are the business of the cuts.
fn trouble(rng: &mut Rng, legs: u64) -> Trouble {
    let leg = rng.below(legs) as usize;
    match rng.below(10) {
        0..=3 => Trouble::CutLink(leg),
        4..=6 => Trouble::CutLeg(leg),
        7 => Trouble::Slow(leg),
        8 => Trouble::Full(leg),
        _ => Trouble::CutHere,
    }
}

/// What cuts, at a point that was chosen.
pub(crate) fn cut(rng: &mut Rng, legs: usize) -> Trouble {
    let leg = rng.below(legs as u64) as usize;
    match rng.below(10) {
        0..=3 => Trouble::CutHere,
        4 => Trouble::EndProcess,
        5..=6 => Trouble::CutLeg(leg),
        7 => Trouble::CutAll,
        _ => Trouble::CutLink(leg),
    }
}
