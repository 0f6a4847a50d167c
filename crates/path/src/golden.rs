//! `golden`: iSCSI-APT as published (2009). The throughput G is measured over a time Tm at each N;
//! N doubles from 4 until G falls, then a golden section search divides the bracket until it is
//! small. It knows no noise, no ramp-up and no change of the path: that is the paper's, not ours to
//! mend. When told to restart it searches again.

use super::Config;
use super::policy::Phase;
use super::tcp::Sample;
use super::why::Why;

/// N and the G that it had.
type Point = (u32, f64);

/// A bracket and the two points that divide it, each with its G once that is known.
#[derive(Clone, Copy, Debug)]
struct Section {
    low: u32,
    high: u32,
    left: (u32, Option<f64>),
    right: (u32, Option<f64>),
}

#[derive(Clone, Copy, Debug)]
enum Search {
    /// The last point but one, and the last one.
    Bracket(Option<Point>, Option<Point>),
    Section(Section),
    /// Nothing is left to divide.
    Done,
}

/// The APT study's search.
#[derive(Clone, Debug)]
pub(crate) struct Golden {
    config: Config,
    search: Search,
    connections: u32,
    best: Option<Point>,
    t_last_s: Option<f64>,
    bytes: f64,
    seconds: f64,
}

impl Golden {
    /// A search that has not begun.
    pub(crate) fn new(config: Config) -> Self {
        let connections = config.connections_initial.clamp(1, config.connections_max.max(1));
        let search = Search::Bracket(None, None);
        Self { config, search, connections, best: None, t_last_s: None, bytes: 0.0, seconds: 0.0 }
    }

    /// Takes one sample. One that lies before its predecessor changes nothing.
    pub(crate) fn handle_sample(&mut self, sample: &Sample) {
        let interval_s = sample.t_s - self.t_last_s.unwrap_or(sample.t_s);
        if interval_s < 0.0 || !(interval_s * sample.bytes_per_s).is_finite() {
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

    /// The number wanted, what the search is doing, and why.
    pub(crate) fn wanted(&self) -> (u32, Phase, Why) {
        let (phase, why) = match self.search {
            Search::Bracket(..) => (Phase::Bracket, Why::Doubling),
            Search::Section(section) => (Phase::Section, Why::Between(section.low, section.high)),
            Search::Done => (Phase::Done, Why::Converged),
        };
        (self.connections, phase, why)
    }

    /// Searches again.
    pub(crate) fn restart(&mut self) {
        (self.search, self.best) = (Search::Bracket(None, None), None);
        (self.bytes, self.seconds) = (0.0, 0.0);
    }

    fn advance(&mut self, g: f64) {
        let point = (self.connections, g);
        if self.best.is_none_or(|(_, best)| g > best) {
            self.best = Some(point);
        }
        match self.search {
            Search::Bracket(before, last) => self.bracket(before, last, point),
            Search::Section(mut section) => {
                section.open().1 = Some(g);
                self.divide(section.better_part());
            }
            Search::Done => {}
        }
    }

    /// Doubles while G rises; the maximum then lies between the last point but one and this one.
    fn bracket(&mut self, before: Option<Point>, last: Option<Point>, point: Point) {
        let (n, g) = point;
        let risen = last.is_none_or(|(_, g_last)| g > g_last);
        if risen && n < self.config.connections_max {
            self.search = Search::Bracket(last, Some(point));
            self.connections = n.saturating_mul(2).min(self.config.connections_max);
            return;
        }
        let low = if risen { last } else { before };
        self.divide(Section::of(low.map_or(1, |(n, _)| n), n));
    }

    /// Measures the next point, unless no two different numbers lie inside.
    fn divide(&mut self, mut section: Section) {
        let Section { low, high, left, right } = section;
        if left.0 <= low || left.0 >= right.0 {
            self.search = Search::Done;
            self.connections = self.best.map_or(self.connections, |(n, _)| n).clamp(low, high);
        } else {
            self.connections = section.open().0;
            self.search = Search::Section(section);
        }
    }
}

impl Section {
    /// A bracket that is divided by the golden section, in whole numbers.
    fn of(low: u32, high: u32) -> Self {
        let golden_section = (5.0_f64.sqrt() - 1.0) / 2.0;
        let part = (f64::from(high - low) * golden_section).round() as u32;
        Self { low, high, left: (high - part, None), right: (low + part, None) }
    }

    /// The point whose G is measured next.
    fn open(&mut self) -> &mut (u32, Option<f64>) {
        if self.left.1.is_none() { &mut self.left } else { &mut self.right }
    }

    /// The part with the better point, once both are known.
    fn better_part(self) -> Self {
        match (self.left.1, self.right.1) {
            (Some(left), Some(right)) if left < right => {
                Self { left: self.right, ..Self::of(self.left.0, self.high) }
            }
            (Some(_), Some(_)) => Self { right: self.left, ..Self::of(self.low, self.right.0) },
            _ => self,
        }
    }
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
        let mut golden = Golden::new(Config { connections_max, ..Config::default() });
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
