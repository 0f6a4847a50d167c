//! Thousands of seeds with storage in them, and the proof that they mean something: what has to
//! happen in them happens, they can be repeated, and mistakes made on purpose are found.

use sim::durability::{Options, Sabotage, run_all};
use sim::{Coverage, Report};

/// Seeds run by default; `SIM_DURABILITY_SEEDS=N` or `=FIRST..LAST` asks for others.
const SEEDS: std::ops::Range<u64> = 0..2000;

/// Seeds that a mistake made on purpose has to be found in.
const SABOTAGE_SEEDS: u64 = 150;

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("SIM_DURABILITY_SEEDS") else { return SEEDS };
    let number = |text: &str| text.trim().parse().expect("SIM_DURABILITY_SEEDS=N or FIRST..LAST");
    match text.split_once("..") {
        Some((first, last)) => number(first)..number(last),
        None => 0..number(&text),
    }
}

fn reports(seeds: std::ops::Range<u64>, options: Options) -> Vec<Report> {
    let mut reports = Vec::new();
    run_all(seeds, options, |report| {
        reports.push(report);
        true
    });
    reports
}

/// What some hundred seeds must have seen, or the simulation has lost its teeth.
const EVENTS: [&str; 50] = [
    "FUA write failed and told",
    "MODE SENSE refused",
    "WCE changed by MODE SELECT",
    "WCE changed by a restart",
    "command issued again",
    "command without an answer",
    "connection failed",
    "answer that told of a power-on lost",
    "cut: a part of the cache survived",
    "cut: at work",
    "cut: cache lost",
    "cut: in login",
    "cut: in replay",
    "cut: in set-up",
    "cut: without a session",
    "disk: FUA failed for an older failure",
    "disk: FUA took the only report",
    "disk: flush dropped a sector",
    "disk: flush failed",
    "disk: hang",
    "disk: read failed",
    "disk: write failed",
    "disk: write-back failed",
    "failure of our own told to a FUA write",
    "failure of our own told to a flush",
    "fault: black hole",
    "fault: reset",
    "fault: target closes",
    "flush failed and told",
    "flush interrupted",
    "flush of our own",
    "flush of our own failed",
    "incarnation",
    "log full",
    "login lost",
    "nobody answers",
    "operation: FUA write",
    "operation: flush",
    "power cut",
    "process restarted",
    "replay",
    "replay finished",
    "replay interrupted",
    "replay refused",
    "replay to a unit without a cache",
    "replay without a power-on told",
    "set-up interrupted",
    "target: task reassigned",
    "told of a nexus loss",
    "torn write",
];

#[test]
fn seeds_hold_and_meet_everything_they_should() {
    let reports = reports(seeds(), Options::default());
    let mut coverage = Coverage::default();
    for report in &reports {
        if let Some(failure) = &report.failure {
            let seed = report.seed;
            panic!(
                "seed {seed} failed {failure}\n\
                 again: cargo run -p sim --release -- --durability --seed {seed} -v"
            );
        }
        coverage.merge(&report.coverage);
    }
    println!("{} seeds\n{coverage}", reports.len());
    if reports.len() >= 1000 {
        let missing: Vec<_> = EVENTS.iter().filter(|event| coverage.count(event) == 0).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

#[test]
fn a_seed_is_the_same_run_every_time() {
    let digests = |reports: Vec<Report>| {
        let mut digests: Vec<_> = reports
            .into_iter()
            .map(|report| (report.seed, report.digest, report.elapsed, report.failure))
            .collect();
        digests.sort();
        digests
    };
    let first = digests(reports(0..30, Options::default()));
    assert_eq!(first, digests(reports(0..30, Options::default())));
    let mut distinct: Vec<u64> = first.iter().map(|(_, digest, ..)| *digest).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 30, "different seeds are different runs");
}

/// What the oracle may say of a mistake. Anything else is a mistake of the simulator.
const VERDICTS: [&str; 4] = [
    "a read returns",
    "after a flush the medium has",
    "after a FUA write the medium has",
    "was never told of (29/00)",
];

#[test]
fn mistakes_made_on_purpose_are_found() {
    let mut missed = Vec::new();
    for mistake in Sabotage::ALL {
        let options = Options { sabotage: Some(mistake), ..Options::default() };
        let mut runs = 0;
        let mut found = None;
        run_all(0..SABOTAGE_SEEDS, options, |report| {
            runs += 1;
            found = report.failure.map(|failure| (report.seed, failure));
            found.is_none()
        });
        let Some((seed, failure)) = found else {
            println!("{mistake:?}: found in none of {runs} runs");
            missed.push(mistake);
            continue;
        };
        let verdict = failure.lines().next().unwrap_or_default();
        println!("{mistake:?}: seed {seed}, run {runs}: {verdict}");
        assert!(
            VERDICTS.iter().any(|right| verdict.contains(right)),
            "{mistake:?} was taken for something else: {failure}"
        );
    }
    assert!(missed.is_empty(), "not found within {SABOTAGE_SEEDS} seeds: {missed:?}");
}
