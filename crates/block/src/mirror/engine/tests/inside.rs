//! A leg that copies by itself what is in its redo log: the image there at every moment, also where
//! it refuses in the middle; what goes over the line; and what people are told.

use std::sync::Arc;
use std::time::Duration;

use super::atomic::{changed_while_lost, image_at_every_moment, in_sync};
use super::world::*;
use crate::layer::{Delay, DelayLayer, Delays};
use crate::mirror::engine::signal::lock;
use crate::mirror::layout::TAIL_BYTES;
use crate::mirror::{CopyInside, CopyLimits, CopyRun, HomeWay, Mode, ResyncRate};
use crate::{BlockError, Buf, Io, Result, WriteFlags};

const LOG: u64 = LEG_SIZE - SIZE - TAIL_BYTES;

/// What a leg does with copies.
#[derive(Clone, Copy)]
pub(crate) struct Copying {
    limits: CopyLimits,
    /// Requests that it carries out before it fails one, in the middle.
    good: u64,
    under_way: usize,
}

impl Copying {
    fn new(limits: CopyLimits, good: u64) -> Self {
        Self { limits, good, under_way: 0 }
    }
}

const SMALL: CopyLimits = CopyLimits { runs_max: 3, run_bytes_max: 16 << 10, at_once: 2 };

struct Inside(Arc<Line>);

impl Line {
    pub(crate) fn inside(self: &Arc<Self>) -> std::result::Result<Arc<dyn CopyInside>, String> {
        match *lock(&self.leg.copying) {
            Some(_) => Ok(Arc::new(Inside(self.clone()))),
            None => Err("it does not copy".to_owned()),
        }
    }
}

impl Inside {
    fn copying<T>(&self, act: impl FnOnce(&mut Copying) -> T) -> T {
        act(lock(&self.0.leg.copying).as_mut().unwrap())
    }
}

impl CopyInside for Inside {
    fn limits(&self) -> CopyLimits {
        self.copying(|copying| copying.limits)
    }

    fn copy(&self, runs: Vec<CopyRun>) -> Io<()> {
        let good = self.copying(|copying| {
            let limits = copying.limits;
            let fits = |run: &CopyRun| run.len > 0 && run.len <= limits.run_bytes_max;
            assert!(runs.len() <= limits.runs_max && runs.iter().all(fits), "{runs:?}");
            copying.under_way += 1;
            assert!(copying.under_way <= limits.at_once, "{} at once", copying.under_way);
            copying.good = copying.good.saturating_sub(1);
            copying.good > 0
        });
        let line = self.0.clone();
        Io::later(async move {
            let copied = copy(&line, runs, good).await;
            Inside(line).copying(|copying| copying.under_way -= 1);
            copied
        })
    }
}

/// `good`: all of it; else one run, and a failure.
async fn copy(line: &Arc<Line>, runs: Vec<CopyRun>, good: bool) -> Result<()> {
    for CopyRun { from, to, len } in runs {
        let data = line.ask(|device| device.read(from, Buf::new(len as usize))).await?.freeze();
        line.ask(|device| device.write(to, data, WriteFlags::NONE)).await?;
        if !good {
            return Err(BlockError::Medium(std::io::Error::other("copy aborted at segment 1")));
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_copies_by_itself_has_an_image_at_every_moment() {
    for (mode, good) in
        [(Mode::Sync, u64::MAX), (Mode::Async, u64::MAX), (Mode::Sync, 3), (Mode::Async, 1)]
    {
        let (world, owed, sent) =
            image_at_every_moment(mode, Some(Copying::new(SMALL, good))).await;
        let leg = world.mirror().status().legs[0].clone();
        let home = leg.home.unwrap();
        if good == u64::MAX {
            assert_eq!(home.way, HomeWay::Inside, "{}", home.why);
            assert!(sent * 10 <= owed * 11, "{mode:?}: {sent} bytes for {owed} that were owed");
        } else {
            assert_eq!(home.way, HomeWay::SentAgain);
            assert!(home.why.contains("copy aborted at segment 1"), "{}", home.why);
            assert!(sent > owed * 19 / 10, "{mode:?}: {sent} bytes for {owed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_copies_little_at_a_time_is_sent_it_again() {
    let world = in_sync(Mode::Sync, LOG, ResyncRate::Max).await;
    changed_while_lost(&world).await;
    let delays = Delays::all(Delay::Fixed(Duration::from_millis(100)));
    let far = DelayLayer::new(world.legs[0].device(), delays, 1);
    world.legs[0].replace(Arc::new(far), "id of leg 0");
    let one = CopyLimits { runs_max: 1, run_bytes_max: 4096, at_once: 1 };
    *lock(&world.legs[0].copying) = Some(Copying::new(one, u64::MAX));
    world.legs[0].set_way(Way::Open);
    world.settled().await;
    world.assert_equal().await;
    let home = world.mirror().status().legs[0].home.clone().unwrap();
    assert_eq!(home.way, HomeWay::SentAgain);
    assert!(home.why.contains("commands for the last batch"), "{}", home.why);
}

#[tokio::test(start_paused = true)]
async fn a_leg_that_does_not_copy_says_why() {
    let world = in_sync(Mode::Sync, LOG, ResyncRate::Max).await;
    let home = world.mirror().status().legs[0].home.clone().unwrap();
    assert_eq!((home.way, &*home.why), (HomeWay::SentAgain, "it does not copy"));
}
