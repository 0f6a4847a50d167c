//! What a session's connections did while they were watched, as values at equal distances.

use doctor::facts::Curves;
use tcpmon::sample::Sample;
use tcpmon::verdict::from_samples::Watched;

/// Values of a curve besides its first one: more than a page has room for are noise.
const POINTS: u64 = 100;

/// A number of a connection at some microsecond, in the order of time.
type Points = Vec<(u64, f64)>;

/// The curves of the end that comes first; none without two looks at it.
pub(super) fn curves(watched: &[Watched]) -> Option<Curves> {
    let role = watched.first()?.role;
    let own: Vec<&[Sample]> =
        watched.iter().filter(|one| one.role == role).map(|one| one.samples.as_slice()).collect();
    let begin = own.iter().filter_map(|samples| samples.first()).map(|one| one.at_us).min()?;
    let end = own.iter().filter_map(|samples| samples.last()).map(|one| one.at_us).max()?;
    let step_us = end.checked_sub(begin)? / POINTS;
    if step_us == 0 {
        return None;
    }
    let times: Vec<u64> = (0..=POINTS).map(|at| begin + at * step_us).collect();
    let points = |of: &dyn Fn(&Sample) -> u64| -> Vec<Points> {
        let of =
            |samples: &&[Sample]| samples.iter().map(|one| (one.at_us, of(one) as f64)).collect();
        own.iter().map(of).collect()
    };
    let sent = points(&|one| one.tcp.sent_bytes.or(one.tcp.acked_bytes).unwrap_or_default());
    let received = points(&|one| one.tcp.received_bytes.unwrap_or_default());
    let in_flight = points(&|one| one.tcp.in_flight_bytes());
    let rtt = points(&|one| one.tcp.rtt_us.into());
    let moved = |all: &[Points]| sum(all, end) - sum(all, begin);
    let counted = if moved(&sent) >= moved(&received) { sent } else { received };
    let step_s = step_us as f64 / 1e6;
    let rate = |pair: &[u64]| (sum(&counted, pair[1]) - sum(&counted, pair[0])) / step_s;
    let longest = |at: &u64| rtt.iter().map(|one| value(one, *at)).fold(0.0, f64::max);
    Some(Curves {
        step_s,
        bytes_per_s: times.windows(2).map(rate).collect(),
        in_flight_bytes: times.iter().skip(1).map(|at| sum(&in_flight, *at)).collect(),
        rtt_us: times.iter().skip(1).map(longest).collect(),
    })
}

fn sum(all: &[Points], at_us: u64) -> f64 {
    all.iter().map(|one| value(one, at_us)).sum()
}

/// Between two looks in proportion; before the first and after the last one as it was then.
fn value(points: &[(u64, f64)], at_us: u64) -> f64 {
    let after = points.partition_point(|(at, _)| *at <= at_us);
    match (after.checked_sub(1).and_then(|before| points.get(before)), points.get(after)) {
        (Some((begin, low)), Some((end, high))) => {
            let share = (at_us - begin) as f64 / (end - begin) as f64;
            low + (high - low) * share
        }
        (Some((_, only)), None) | (None, Some((_, only))) => *only,
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_looks_a_value_is_in_proportion() {
        let points = [(10, 100.0), (20, 200.0), (20, 300.0)];
        let at = |us| value(&points, us);
        assert_eq!([at(0), at(10), at(15), at(20), at(99)], [100.0, 100.0, 150.0, 300.0, 300.0]);
        assert_eq!(value(&[], 5), 0.0);
        assert_eq!(sum(&[points.to_vec(), vec![(0, 1.0)]], 15), 151.0);
        assert!(curves(&[]).is_none());
    }
}
