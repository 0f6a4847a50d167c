//! Runs and tables to read, for whoever changes the model.

use crate::line::{DEPTH_BYTES, LINE, Line, Run, SEEDS};
use crate::path::GIGABIT;

/// One run to look at: `TRACE=1 CASE="rtt_ms noise seed to_s" cargo test … one_run -- --ignored
/// --nocapture`.
#[test]
#[ignore = "a run to read"]
fn one_run() {
    let case = std::env::var("CASE").unwrap_or_default();
    let n: Vec<f64> = case.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [rtt_ms, noise, seed, kind] = n[..] else { return };
    let rtt_s = rtt_ms / 1e3;
    let line = Line { rtt_s, noise, ..LINE };
    let mut run = Run::new(seed as u64);
    match kind as u32 {
        1 => run.to(60.0, line, rtt_s),
        2 => {
            run.to(20.0, line, rtt_s);
            run.to(40.0, Line { bytes_per_s: 0.3 * GIGABIT, ..line }, rtt_s);
            run.to(60.0, line, rtt_s);
        }
        3 => {
            let short_s = if rtt_s > 0.1 { 0.05 } else { 0.01 };
            run.to(20.0, Line { rtt_s: short_s, ..line }, short_s);
            run.window_bytes = 1.2 * GIGABIT * short_s;
            run.to(40.0, line, short_s);
        }
        4 => {
            run.to(20.0, line, rtt_s);
            run.to(60.0, Line { shared: true, ..line }, rtt_s);
        }
        5 => run.to(20.0, Line { block_bytes: Some(4e6), ..line }, rtt_s),
        _ => {
            let line = Line { hiccups: 0.5, hiccup_s: Some(0.01), ..line };
            run.to(20.0, line, rtt_s);
            run.to(35.0, Line { bytes_per_s: 0.3 * GIGABIT, ..line }, rtt_s);
            run.to(50.0, line, rtt_s);
        }
    }
}

/// Shares and bytes lost of a line that is to be kept full.
#[test]
#[ignore = "a table to read"]
fn table_of_full_lines() {
    for rtt_ms in [3.0, 10.0, 20.0, 50.0, 100.0, 200.0, 300.0] {
        let (mut shares, mut lost) = (Vec::new(), Vec::new());
        for seed in SEEDS {
            let (rtt_s, mut run) = (rtt_ms / 1e3, Run::new(seed));
            run.to(15.0, Line { rtt_s, ..LINE }, rtt_s);
            let before = run.lost_bytes;
            run.to(60.0, Line { rtt_s, ..LINE }, rtt_s);
            shares.push(run.mean(15.0, 60.0) / GIGABIT.min(DEPTH_BYTES / rtt_s));
            lost.push((run.lost_bytes - before) / 1e6);
        }
        println!("{rtt_ms} ms: {shares:.3?} {lost:.1?}");
    }
}
