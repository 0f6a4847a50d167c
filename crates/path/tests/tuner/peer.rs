//! `adaptive` and a peer that opens connections slowly, or fewer than it is asked for.

use ::path::tuner::{Decision, Policy, PolicyConfig, Sample};

/// One connection's rate; ten fill the line.
const ONE: f64 = 10e6;
const LINE: f64 = 100e6;

/// A session without noise whose peer opens what `opens` says of time, wanted and present number.
fn session(
    policy: &mut dyn Policy,
    t_s: f64,
    opens: impl Fn(f64, u32, u32) -> u32,
) -> Vec<Decision> {
    let mut open = 4;
    let mut decisions: Vec<Decision> = Vec::new();
    for tick in 1..=(t_s * 10.0) as u32 {
        let t_s = f64::from(tick) / 10.0;
        let bytes_per_s = (ONE * f64::from(open)).min(LINE);
        let sample = Sample { t_s, connections_open: open, bytes_per_s, ..Sample::default() };
        let decision = policy.handle_sample(&sample);
        open = opens(t_s, decision.connections, open);
        decisions.push(decision);
    }
    decisions
}

fn last(decisions: &[Decision]) -> u32 {
    decisions.last().map_or(0, |decision| decision.connections)
}

#[test]
fn connections_that_take_six_seconds_to_open_were_not_refused() {
    let mut policy = PolicyConfig::default().build();
    let decisions = session(policy.as_mut(), 60.0, |t_s, wanted, open| {
        // All of those asked for arrive together, every six seconds.
        if wanted < open || ((t_s * 10.0).round() as u32).is_multiple_of(60) {
            wanted
        } else {
            open
        }
    });
    assert!((10..=11).contains(&last(&decisions)), "{}", last(&decisions));
}

#[test]
fn what_is_refused_is_taken_as_the_limit_and_asked_for_again_later() {
    let mut policy = PolicyConfig::default().build();
    let decisions = session(policy.as_mut(), 190.0, |t_s, wanted, _| {
        wanted.min(if t_s < 30.0 { 6 } else { 64 })
    });
    assert_eq!(decisions[250].connections, 6, "{:?}", decisions[250]);
    assert!((10..=11).contains(&last(&decisions)), "{}", last(&decisions));
}

#[test]
fn late_connections_end_a_refusal() {
    let mut policy = PolicyConfig::default().build();
    let decisions = session(policy.as_mut(), 60.0, |t_s, wanted, open| {
        // Slower than any patience; whoever opens them does not know that nobody waits any more.
        match t_s {
            t if t < 25.0 => open,
            t if t < 26.0 => wanted.max(12),
            _ => wanted,
        }
    });
    assert_eq!(decisions[230].connections, 4);
    assert!((10..=12).contains(&last(&decisions)), "{}", last(&decisions));
}
