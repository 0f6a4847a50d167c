//! `sim`: runs seeds, says what happened in them, and how to see a failure again.

use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use sim::{Coverage, Options, Report, durability, mirror, run_all};

/// Runs the iSCSI cores against each other under a virtual clock.
#[derive(Debug, Parser)]
struct Arguments {
    /// Seeds to run, as FIRST..LAST (LAST not included)
    #[arg(long, default_value = "0..1000", value_parser = seeds)]
    seeds: Range<u64>,
    /// Run this seed only
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Run the world with storage in it: power cuts, write-back that fails, flushes that fail
    #[arg(long)]
    durability: bool,
    /// Run the mirror, and again with a cut at its operations
    #[arg(long, conflicts_with = "durability")]
    mirror: bool,
    /// Cuts of a seed of the mirror: a number, or `all`, at every operation in every way
    #[arg(long, default_value = "6", value_parser = cuts)]
    cuts: mirror::Cuts,
    /// Of a seed of the mirror, only the run with this cut; 0 is the one without
    #[arg(long)]
    run: Option<u64>,
    /// Print every PDU
    #[arg(short, long)]
    verbose: bool,
    /// Go on after a failure
    #[arg(long)]
    keep_going: bool,
    /// Runs at once; what they do does not depend on it [default: one for each core]
    #[arg(short, long)]
    jobs: Option<std::num::NonZeroUsize>,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (first, last) = text.split_once("..").ok_or("expected FIRST..LAST")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text:?}: {error}"));
    Ok(number(first)?..number(last)?)
}

fn cuts(text: &str) -> Result<mirror::Cuts, String> {
    match text {
        "all" => Ok(mirror::Cuts::All),
        _ => text.parse().map(mirror::Cuts::Some).map_err(|error| format!("{text:?}: {error}")),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seeds = arguments.seed.map_or(arguments.seeds, |seed| seed..seed + 1);
    let started = Instant::now();
    let (mut coverage, mut runs, mut failures) = (Coverage::default(), 0u64, 0u64);
    let world = match (arguments.durability, arguments.mirror) {
        (true, _) => " --durability",
        (_, true) => " --mirror",
        _ => "",
    };
    let each = |report: Report| {
        let seed = report.seed;
        runs += 1;
        coverage.merge(&report.coverage);
        if let Some(failure) = &report.failure {
            failures += 1;
            println!("seed {seed} failed {failure}");
            println!("again: cargo run -p sim --release --{world} --seed {seed} -v\n");
        } else if arguments.verbose {
            println!("seed {seed}: digest {:016x}, {:?}", report.digest, report.elapsed);
        }
        failures == 0 || arguments.keep_going
    };
    let (verbose, jobs) = (arguments.verbose, arguments.jobs);
    if arguments.durability {
        let options = durability::Options { verbose, jobs, sabotage: None };
        durability::run_all(seeds, options, each);
    } else if arguments.mirror {
        let (cuts, run) = (arguments.cuts, arguments.run);
        mirror::run_all(seeds, mirror::Options { verbose, jobs, sabotage: None, cuts, run }, each);
    } else {
        run_all(seeds, Options { verbose, jobs, sabotage: None }, each);
    }
    let seconds = started.elapsed().as_secs_f64();
    print!("{coverage}");
    println!("{runs} seeds, {failures} failed, {:.0} seeds/s", runs as f64 / seconds);
    if failures > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
