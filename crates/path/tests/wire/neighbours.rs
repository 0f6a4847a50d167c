//! A flow of somebody else's that begins on a line which we fill.

use crate::flow::Law;
use crate::link::Line;
use crate::transfer::Scenario;
use crate::{GIGABIT, SEEDS, of_seed, plain, run};

/// What one flow beside ours keeps from 20 s after its begin on, for half a minute, and the most
/// that is left unused; from eight begins at other times of our sawtooth, beside ours that send and
/// that receive; as shares of the line. Or beside so many plain flows.
fn beside(law: Law, rtt_s: f64, flows: Option<usize>) -> (Vec<f64>, f64) {
    let (mut kept, mut free) = (Vec::new(), 0.0_f64);
    for begin in 0..8 {
        for seed in SEEDS.into_iter().take(2) {
            let begins_s = 10.0 + 0.4 * f64::from(begin);
            let line = Line { rtt_s, ..Line::default() };
            let scenario = Scenario { line, other: Some((begins_s, law)), ..Scenario::default() };
            let (from_s, to_s) = (begins_s + 20.0, begins_s + 50.0);
            let transfer = match flows {
                Some(flows) => plain(of_seed(scenario, seed), flows, seed, to_s + 0.1),
                None => run(scenario, seed, to_s + 0.1),
            };
            let theirs = transfer.mean_of_others(from_s, to_s) / GIGABIT;
            free = free.max(1.0 - theirs - transfer.mean(from_s, to_s) / GIGABIT);
            kept.push(theirs);
        }
    }
    kept.sort_by(f64::total_cmp);
    (kept, free)
}

#[test]
fn one_cubic_flow_keeps_a_quarter_of_a_long_line_in_the_middle() {
    // What it took was counted as sent less, so that the queue, which did not empty, was not ours,
    // and what was believed before it came was believed again: it kept 0.08 (and four plain flows
    // leave it 0.04 and 0.24).
    for rtt_s in [0.05, 0.1] {
        let (kept, free) = beside(Law::Cubic, rtt_s, None);
        assert!(kept[kept.len() / 2] >= 0.25, "{rtt_s} s: {kept:.2?}");
        assert!(free <= 0.03, "{rtt_s} s: {free:.3} unused");
    }
}

/// `PLAIN=8`: beside so many plain flows.
#[test]
#[ignore = "a table to read"]
fn table_of_neighbours() {
    let flows = std::env::var("PLAIN").ok().map(|flows| flows.parse().expect("a number of flows"));
    let (mut sum, mut count) = (0.0, 0.0);
    for rtt_s in [0.02, 0.05, 0.1] {
        for law in [Law::Cubic, Law::Reno, Law::Bbr] {
            let (kept, free) = beside(law, rtt_s, flows);
            println!("{} ms, {:?}: {kept:.2?}, {free:.3} unused", 1e3 * rtt_s, law.name());
            sum += kept.iter().sum::<f64>();
            count += kept.len() as f64;
        }
    }
    println!("on average {:.3}", sum / count);
}
