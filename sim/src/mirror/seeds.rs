//! Seeds: a run each, and again with a cut at its operations.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::sabotage::Sabotage;
use super::scenario::{Scenario, Trouble, cut, verified};
use super::subject::Subject;
use super::takeover::Takeover;
use super::world::{Outcome, World};
use crate::coverage::Coverage;
use crate::rng::Rng;
use crate::world::{Report, run_many};

/// Runs with two cuts instead of one, in percent: the second one comes while the first is mended.
const SECOND_CUTS: u32 = 40;

/// Where the second cut is at most, in points behind the first.
const SECOND_AFTER_MAX: u64 = 150;

/// One seed in so many is one in which a leg is taken over: it costs half as much again as another.
const TAKEOVERS: u64 = 16;

/// At how many of its points a seed is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cuts {
    /// At so many, evenly spread, each in one way.
    Some(u64),
    /// At all of them, in every way.
    All,
}

/// How to run a seed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Print what happens.
    pub verbose: bool,
    /// Runs at once; one for each core if not said.
    pub jobs: Option<std::num::NonZeroUsize>,
    /// Do something wrong on purpose.
    pub sabotage: Option<Sabotage>,
    /// Where to cut.
    pub cuts: Cuts,
    /// Only the run with this cut, counted from 1; 0 is the one without.
    pub run: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { verbose: false, jobs: None, sabotage: None, cuts: Cuts::Some(6), run: None }
    }
}

/// Runs a seed with all its cuts.
pub fn run(seed: u64, options: Options) -> Report {
    run_on(seed, options, &(Arc::new(Engine) as Arc<dyn Subject>))
}

/// Runs seeds, several at once. `each` gets every report, in the order in which seeds end, and says
/// whether to go on.
pub fn run_all(seeds: Range<u64>, options: Options, each: impl FnMut(Report) -> bool) {
    run_all_on(seeds, options, &(Arc::new(Engine) as Arc<dyn Subject>), each);
}

/// As [`run`], on any mirror.
pub(super) fn run_on(seed: u64, options: Options, subject: &Arc<dyn Subject>) -> Report {
    let (mut rng, mut coverage) = (Rng::new(seed), Coverage::default());
    let mode = subject.mode().or(options.sabotage.and_then(Sabotage::mode));
    let of_stream = options.sabotage.is_some_and(Sabotage::is_of_stream);
    let takes_over = match options.sabotage {
        _ if subject.mode().is_some() => false,
        Some(sabotage) => sabotage.takes_over(),
        None => seed % TAKEOVERS == TAKEOVERS - 1,
    };
    let mut scenario = Scenario::new(&mut rng, mode, subject.tail_bytes());
    if of_stream {
        scenario.legs.iter_mut().for_each(|leg| leg.ordered = true);
    }
    if options.sabotage == Some(Sabotage::VerifiedTooEarly) {
        scenario.config.verify = Some(verified(&mut rng));
    }
    if !subject.tells_units_apart() {
        scenario.troubles.retain(|(_, trouble)| !matches!(trouble, Trouble::Replace(_)));
    }
    let once = |cuts: &[(u64, Trouble)], number: u64| {
        let Options { verbose, sabotage, run, .. } = options;
        let verbose = verbose && run.is_none_or(|run| run == number);
        if verbose {
            println!("run {number}, cuts {cuts:?}");
        }
        let subject = subject.clone();
        if takes_over {
            let rng = Rng::new(seed);
            return Takeover::new(rng, scenario.clone(), cuts, subject, sabotage, verbose).run();
        }
        World::new(Rng::new(seed), scenario.clone(), cuts, subject, sabotage, verbose).run()
    };
    let mut report = Report {
        seed,
        coverage: Coverage::default(),
        digest: seed,
        elapsed: Duration::ZERO,
        failure: None,
    };
    let mut add = |outcome: Outcome, number: u64, cuts: &[(u64, Trouble)]| {
        coverage.merge(&outcome.coverage);
        coverage.hit("runs");
        coverage.add("images of legs", outcome.images);
        coverage.add("points", outcome.points);
        report.digest = report.digest.rotate_left(5) ^ outcome.digest;
        report.elapsed += outcome.elapsed;
        if let Some(what) = outcome.failure {
            report.failure = Some(format!("in run {number}, cuts {cuts:?}, {what}"));
        }
        report.failure.is_none()
    };
    let base = once(&[], 0);
    let points = base.points;
    if add(base, 0, &[]) {
        let plans = plans(&mut rng, points, scenario.legs.len(), options.cuts);
        for (number, cuts) in (1..).zip(&plans) {
            if options.run.is_some_and(|run| run != number) {
                continue;
            }
            if !add(once(cuts, number), number, cuts) {
                break;
            }
        }
    }
    report.coverage = coverage;
    report
}

fn plans(rng: &mut Rng, points: u64, legs: usize, cuts: Cuts) -> Vec<Vec<(u64, Trouble)>> {
    let mut plans = Vec::new();
    match cuts {
        Cuts::Some(count) => {
            let step = points.div_ceil(count.max(1)).max(1);
            let first = rng.range(1, step);
            for point in (first..=points).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
                let mut plan = vec![(point, cut(rng, legs))];
                if rng.percent(SECOND_CUTS) {
                    plan.push((point + rng.skewed(SECOND_AFTER_MAX), cut(rng, legs)));
                }
                plans.push(plan);
            }
        }
        Cuts::All => {
            let mut ways = vec![Trouble::CutHere, Trouble::EndProcess, Trouble::CutAll];
            for leg in 0..legs {
                ways.extend([Trouble::CutLeg(leg), Trouble::CutLink(leg)]);
            }
            for point in 1..=points {
                plans.extend(ways.iter().map(|way| vec![(point, *way)]));
            }
        }
    }
    plans
}

/// As [`run_all`], on any mirror.
pub(super) fn run_all_on(
    seeds: Range<u64>,
    options: Options,
    subject: &Arc<dyn Subject>,
    each: impl FnMut(Report) -> bool,
) {
    run_many(seeds, options.jobs, |seed| run_on(seed, options, subject), each);
}
