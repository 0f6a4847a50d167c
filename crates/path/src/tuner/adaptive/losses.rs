//! What `adaptive` does where a path begins to lose, and where that ends. Losses ask for a number
//! of connections, which is opened at once. When they are over, the windows that they made small
//! need ten seconds to fill the line again (RFC 9438 §4.2: they grow with the time since the last
//! loss), but a new connection's doubles with each round trip. So as many as filled the line before
//! the losses are opened, at the rate that was found then, and take the place of all others.

use super::super::{Line, Sample, Why};
use super::constants::*;
use super::lossy::congestion_control;
use super::{Adaptive, Point, State};
use crate::limit::Bottleneck;

/// When windows were last replaced by new ones, and when that may be again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewal {
    at_s: f64,
    pause_s: f64,
}

impl Default for Renewal {
    fn default() -> Self {
        Self { at_s: f64::NEG_INFINITY, pause_s: RENEWAL_PAUSE_S }
    }
}

impl Renewal {
    /// Losses that come and go are not to open connections all the time.
    fn begin(&mut self, t_s: f64) -> bool {
        let since_s = t_s - self.at_s;
        if since_s < self.pause_s {
            return false;
        }
        let soon = since_s < RENEWAL_SOON * self.pause_s;
        self.pause_s = if soon { (2.0 * self.pause_s).min(PAUSE_MAX_S) } else { RENEWAL_PAUSE_S };
        self.at_s = t_s;
        true
    }
}

/// How many commands there are at once, at most; long ago counts less. A connection beyond their
/// number has never anything to do, and the windows of all are the colder for each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Commands(Option<f64>);

impl Commands {
    pub(super) fn handle_sample(&mut self, sample: &Sample, interval_s: f64) {
        let Some(now) = sample.commands else { return };
        let kept = (-interval_s / COMMANDS_MEMORY_S).exp();
        self.0 = Some((kept * self.0.unwrap_or(0.0)).max(now as f64));
    }

    /// As many connections have something to do at most.
    fn most(self) -> u32 {
        self.0.map_or(u32::MAX, |most| (most.ceil() as u32).max(1))
    }
}

/// A line that was full, over what round trip and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    pub(super) line: Line,
    rtt_s: f64,
    noted_s: f64,
}

impl Adaptive {
    /// So many fill the line. One that carried far more not long ago is not forgotten: what keeps
    /// the present one down may be losses that are not known yet.
    pub(super) fn note_filled(&mut self, connections: u32, t_s: f64) {
        let Some(now) = self.line_bytes_per_s.filter(|_| !self.lossy.is_known()) else { return };
        let fresh = self.filled.filter(|filled| t_s - filled.noted_s < FILLED_MEMORY_S);
        let before = fresh.map_or(0.0, |filled| filled.line.bytes_per_s);
        if now >= FILLED_SHARE * before {
            // Not a little less each time.
            let line = Line { bytes_per_s: now.max(before), connections };
            self.filled = Some(Filled { line, rtt_s: self.rtt_s, noted_s: t_s });
        }
    }

    /// Changes the number where losses begin or end; true if that is done.
    pub(super) fn answer_losses(&mut self, sample: &Sample, ended: bool) -> bool {
        if self.renew(sample.t_s, ended) {
            return true;
        }
        let Some(wanted) = self.foresee(sample) else { return false };
        self.foreseen = wanted;
        // Their slow starts and first losses take a while; some to spare cost little meanwhile.
        self.shrink_s = sample.t_s + SHRINK_AFTER_CHANGE_S;
        let bytes_per_s = self.windows.last(0).unwrap_or(sample.bytes_per_s);
        let base = Point { connections: self.connections, bytes_per_s, settled: false };
        self.start_grow(base, wanted, sample.t_s, Why::Limited(Bottleneck::CongestionLoss));
        true
    }

    /// Connections that the path's losses ask for, if that is far more than there are and than was
    /// tried in this search.
    fn foresee(&self, sample: &Sample) -> Option<u32> {
        let wanted = self.lossy.connections(sample, &self.config.congestion_controls)?;
        let wanted = wanted.min(self.connections_max()).min(self.commands.most());
        let tried = f64::from(self.connections.max(self.foreseen));
        let factor = match congestion_control(sample) {
            Some(_) => LOSSY_FACTOR_MIN,
            None => LOSSY_FACTOR_RECEIVING,
        };
        (f64::from(wanted) >= factor * tried).then_some(wanted)
    }

    /// Opens new connections beside many that lost something, now or as soon as there is room.
    fn renew(&mut self, t_s: f64, ended: bool) -> bool {
        if let State::Renew { wanted, filled } = self.state {
            if self.connections < wanted {
                self.move_to(wanted, t_s, self.state, Why::LossesEnded);
            } else {
                self.shrink_s = t_s + SHRINK_AFTER_CHANGE_S;
                self.enough = Some(filled.connections);
                self.hold(filled.connections, filled.bytes_per_s, t_s, Why::LossesEnded);
            }
            return true;
        }
        // Over a longer path so few do not fill it, and behind another's queue it is not all
        // theirs.
        let same = |before: &Filled| {
            self.rtt_s <= before.rtt_s + SAME_RTT_S.max(SAME_RTT_SHARE * before.rtt_s)
        };
        let Some(before) = self.filled.filter(|before| ended && same(before)) else { return false };
        let filled = before.line;
        let many = self.connections / RENEWAL_FACTOR_MIN >= filled.connections;
        if !many || !self.renewal.begin(t_s) {
            return false;
        }
        self.foreseen = 0;
        let wanted = (self.connections + filled.connections).min(self.connections_max());
        // Those in whose place they come are closed first.
        let room = wanted - filled.connections;
        let first = if room < self.connections { room } else { wanted };
        self.move_to(first, t_s, State::Renew { wanted, filled }, Why::LossesEnded);
        true
    }
}
