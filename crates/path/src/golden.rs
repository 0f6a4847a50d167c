//! `golden`: iSCSI-APT as published (2009). The throughput G is measured over a time Tm at each N;
//! N doubles from 4 until G falls, then a golden section search divides the bracket until it is
//! small. It knows no noise, no ramp-up and no change of the path: that is the paper's, not ours to
//! mend. When told to restart it searches again.

use super::count::CONNECTIONS;
use super::policy::Phase;
use super::tcp::Sample;
use super::why::Why;

/// What `golden` can be told. The defaults are the paper's.
#[derive(Clone, Debug, PartialEq)]
pub struct GoldenConfig {
    /// Tm: how long G is measured at each N.
    pub measuring_time_s: f64,
    /// The first N.
    pub connections_initial: u32,
    /// The largest N.
    pub connections_max: u32,
}

impl Default for GoldenConfig {
    fn default() -> Self {
        Self {
            measuring_time_s: 5.0,
            connections_initial: CONNECTIONS.0,
            connections_max: CONNECTIONS.1,
        }
    }
}

/// N and the G that it had.
type Point = (u32, f64);

#[derive(Clone, Debug)]
enum Search {
    /// The two best points so far, the newer one last.
    Bracket { before: Option<Point>, last: Option<Point> },
    /// The bracket and, inside it, the points with the G that is known.
    Section { low: u32, high: u32, left: (u32, Option<f64>), right: (u32, Option<f64>) },
    /// Nothing is left to divide.
    Done,
}

/// The APT study's search.
#[derive(Clone, Debug)]
pub(crate) struct Golden {
    config: GoldenConfig,
    search: Search,
    connections: u32,
    best: Option<Point>,
    t_last_s: Option<f64>,
    bytes: f64,
    seconds: f64,
    /// The last sample was none.
    is_bad: bool,
}

impl Golden {
    /// A search that has not begun.
    pub(crate) fn new(config: GoldenConfig) -> Self {
        let connections = config.connections_initial.clamp(1, config.connections_max.max(1));
        Self {
            config,
            search: Search::Bracket { before: None, last: None },
            connections,
            best: None,
            t_last_s: None,
            bytes: 0.0,
            seconds: 0.0,
            is_bad: false,
        }
    }

    /// Takes one sample. One that lies before its predecessor changes nothing.
    pub(crate) fn handle_sample(&mut self, sample: &Sample) {
        let before = self.t_last_s.unwrap_or(sample.t_s);
        let interval_s = sample.t_s - before;
        self.is_bad = !(interval_s >= 0.0 && sample.bytes_per_s.is_finite());
        if self.is_bad {
            return;
        }
        self.t_last_s = Some(sample.t_s);
        self.bytes += sample.bytes_per_s * interval_s;
        self.seconds += interval_s;
        // Sums of intervals miss their total by rounding.
        if self.seconds >= self.config.measuring_time_s * 0.999 && self.seconds > 0.0 {
            let g = self.bytes / self.seconds;
            (self.bytes, self.seconds) = (0.0, 0.0);
            self.advance(g);
        }
    }

    /// The number wanted.
    pub(crate) fn connections(&self) -> u32 {
        self.connections
    }

    /// What it is doing.
    pub(crate) fn phase(&self) -> Phase {
        match self.search {
            Search::Bracket { .. } => Phase::Bracket,
            Search::Section { .. } => Phase::Section,
            Search::Done => Phase::Done,
        }
    }

    /// Why.
    pub(crate) fn why(&self) -> Why {
        match self.search {
            _ if self.is_bad => Why::BadSample,
            Search::Bracket { .. } => Why::Doubling,
            Search::Section { low, high, .. } => Why::Between(low, high),
            Search::Done => Why::Converged,
        }
    }

    /// Searches again.
    pub(crate) fn restart(&mut self) {
        self.search = Search::Bracket { before: None, last: None };
        self.best = None;
        (self.bytes, self.seconds) = (0.0, 0.0);
    }

    fn advance(&mut self, g: f64) {
        let point = (self.connections, g);
        if self.best.is_none_or(|(_, best)| g > best) {
            self.best = Some(point);
        }
        match self.search.clone() {
            Search::Bracket { before, last } => self.bracket(before, last, point),
            Search::Section { low, high, left, right } => {
                let fill = |(n, known): (u32, Option<f64>)| {
                    (n, if n == self.connections { Some(g) } else { known })
                };
                self.section(low, high, fill(left), fill(right));
            }
            Search::Done => {}
        }
    }

    /// Doubles while G rises; the maximum then lies between the last point but one and this one.
    fn bracket(&mut self, before: Option<Point>, last: Option<Point>, point: Point) {
        let (n, g) = point;
        let risen = last.is_none_or(|(_, g_last)| g > g_last);
        if risen && n < self.config.connections_max {
            self.search = Search::Bracket { before: last, last: Some(point) };
            self.connections = n.saturating_mul(2).min(self.config.connections_max);
            return;
        }
        let low = if risen { last } else { before };
        let low = low.map_or(1, |(n, _)| n);
        self.divide(low, n);
    }

    fn divide(&mut self, low: u32, high: u32) {
        let (left, right) = inner(low, high);
        self.section(low, high, (left, None), (right, None));
    }

    /// Measures the points that are not known yet; with both known, keeps the better part.
    fn section(
        &mut self,
        mut low: u32,
        mut high: u32,
        mut left: (u32, Option<f64>),
        mut right: (u32, Option<f64>),
    ) {
        loop {
            // No two different numbers lie inside.
            if left.0 <= low || left.0 >= right.0 {
                self.search = Search::Done;
                self.connections = self.best.map_or(self.connections, |(n, _)| n).clamp(low, high);
                return;
            }
            let (Some(g_left), Some(g_right)) = (left.1, right.1) else {
                self.connections = if left.1.is_none() { left.0 } else { right.0 };
                self.search = Search::Section { low, high, left, right };
                return;
            };
            if g_left < g_right {
                low = left.0;
                left = right;
                right = (inner(low, high).1, None);
            } else {
                high = right.0;
                right = left;
                left = (inner(low, high).0, None);
            }
        }
    }
}

/// The two points that divide a bracket by the golden section, as whole numbers.
fn inner(low: u32, high: u32) -> (u32, u32) {
    let golden_section = (5.0_f64.sqrt() - 1.0) / 2.0;
    let part = (f64::from(high - low) * golden_section).round() as u32;
    (high - part, low + part)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds samples of one Tm each from the curve; the N measured, in order.
    fn moves(golden: &mut Golden, t_s: &mut f64, curve: impl Fn(u32) -> f64) -> Vec<u32> {
        let mut seen = Vec::new();
        for _ in 0..40 {
            let n = golden.connections;
            if matches!(golden.search, Search::Done) {
                break;
            }
            seen.push(n);
            *t_s += 5.0;
            let sample = Sample {
                t_s: *t_s,
                connections_open: n,
                bytes_per_s: curve(n),
                ..Sample::default()
            };
            golden.handle_sample(&sample);
        }
        seen
    }

    fn begun(connections_max: u32) -> Golden {
        let mut golden = Golden::new(GoldenConfig { connections_max, ..GoldenConfig::default() });
        golden.handle_sample(&Sample { connections_open: 4, ..Sample::default() });
        golden
    }

    #[test]
    fn it_finds_the_maximum_of_any_single_peak() {
        for peak in 1..=100_u32 {
            let mut golden = begun(128);
            let seen = moves(&mut golden, &mut 0.0, |n| -(f64::from(n) - f64::from(peak)).powi(2));
            assert!(golden.connections.abs_diff(peak) <= 1, "{peak}: {seen:?}");
            assert!(seen.len() <= 16, "{peak}: {seen:?}");
        }
    }

    #[test]
    fn it_doubles_from_four_and_searches_again_when_told() {
        let mut golden = begun(64);
        let mut t_s = 0.0;
        let first = moves(&mut golden, &mut t_s, |n| -(f64::from(n) - 20.0).powi(2));
        assert_eq!(first[..4], [4, 8, 16, 32]);
        golden.restart();
        let again = moves(&mut golden, &mut t_s, |n| -(f64::from(n) - 60.0).powi(2));
        assert!(golden.connections.abs_diff(60) <= 1, "{again:?}");
    }
}
