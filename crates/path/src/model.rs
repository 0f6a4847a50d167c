//! Samples in, an [`Estimate`] of the path out: what the line carries, its round trip without our
//! queue, the queue, what a connection may carry, losses, what limits. The only file with
//! thresholds about the path; `rate` and `count` decide from the estimate alone.
//!
//! Three rules make the estimate:
//! * **Bandwidth is measured where the line is saturated** (a queue stands or the load loses
//!   packets): there the mean of what is carried is what the line carries, up or down. Elsewhere
//!   what is carried is a lower bound, and may only raise it (BBR's delivery-rate filter,
//!   draft-cardwell-iccrg-bbr §4.5).
//! * **A sender without enough to send proves nothing downwards** (`is_app_limited`,
//!   draft-cheng-iccrg-delivery-rate-estimation §3.4; RFC 7661).
//! * **A queue of ours empties when we send less than the line carries.** A round trip that stays
//!   long although enough less was sent is the path's: a longer way, a scheduler's jitter, or a
//!   queue that others fill. (BBR's ProbeRTT asks the same question by the clock; here it is asked
//!   when it matters.)

use super::law::Law;
use super::limit::{Bottleneck, MOSTLY, Signs, is_queued};
use super::recent::{Interval, Minima, Recent, mean};
use super::tcp::{CongestionControl, ERROR_SHARE, MORE, OTHER_SHARE, SAMPLE_S, Sample, Tcp};

/// The mean of round trips that jitter lies so many mean deviations above the shortest: exact where
/// they are spread evenly, less where they have a tail.
const JITTER_DEVIATIONS: f64 = 2.0;
/// A queue stands if all samples of so many seconds, two samples and a half, show it: a
/// scheduler's slice is shorter (COPA's standing round trip, NSDI 2018 §2.1).
pub(crate) const STANDING_S: f64 = 2.0 * MORE * SAMPLE_S;
/// The queue that cruising holds: a part of the round trip within these seconds. Above what an idle
/// host adds (1 to 2 ms measured), below half of the smallest queues of lines (250 packets at 1
/// Gbit/s are 3 ms).
pub(crate) const TARGET_SHARE: f64 = 0.04;
pub(crate) const TARGET_S: (f64, f64) = (0.002, 0.008);
/// Above that stands so many times the median step of round trips from sample to sample, up to half
/// as much again as the longest.
const TARGET_JITTERS: f64 = 1.5;
/// A queue of so many targets is a long one, whatever hosts add.
pub(crate) const LONG: f64 = 2.0;
/// Share of segments lost from which losses are the load's (BBRv2, draft-cardwell-iccrg-bbr §2.7),
/// and retransmission timeouts decide, which the laws of reno and cubic leave out.
pub(crate) const LOSS_SHARE: f64 = 0.02;
/// Full: commands waited for the pace in this share of the time, or this share of bandwidth ×
/// round trip was under way at both ends of the interval.
const FULL_SHARE: f64 = 1.0 - OTHER_SHARE;
/// A path is full if so many rounds bring no more (BBR §4.3.1.2), and the first measure is their
/// mean.
pub(crate) const FULL_ROUNDS: f64 = 3.0;
/// A saturated line is measured over seconds, and round trips: so many samples that one of them
/// weighs no more than what is noise, and twice the rounds of the first measure.
pub(crate) const MEASURE: (f64, f64) = (SAMPLE_S / OTHER_SHARE, 2.0 * FULL_ROUNDS);
/// What is not longer ago than two such seconds holds now.
pub(crate) const LATELY_S: f64 = 2.0 * MEASURE.0;
/// A lower bound above a measured bandwidth raises it by this part: most of it is noise the first
/// time.
const RAISE_WEIGHT: f64 = 0.4;
/// Once so many seconds of the line were sent less, which is the shortest queue that cruising holds
/// in each of the rounds, a queue is shorter by a quarter of them, or not ours.
const DRAINED_S: f64 = FULL_ROUNDS * TARGET_S.0;
/// Others are waited for so many seconds; what they do now and then, they have done within the
/// second.
pub(crate) const PATIENCE_S: (f64, f64) = (5.0, 60.0);
/// What did not empty is asked about again after seconds, each time twice as many, up to the
/// second.
pub(crate) const ASK_AGAIN_S: (f64, f64) = (2.0 * PATIENCE_S.0, PATIENCE_S.1);

/// What the path is like, as of the last sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// End of the last interval, in seconds.
    pub t_s: f64,
    /// Connections in it.
    pub connections: u32,
    /// Payload in bytes a second: in the last interval, and over the last round trips.
    pub bytes_per_s: f64,
    /// The mean over two round trips, at least two samples.
    pub carried: f64,
    /// What the line carries: measured where it was saturated, else the most that was carried.
    pub bandwidth: Option<f64>,
    /// The bandwidth was measured where the line was saturated.
    pub measured: bool,
    /// A queue or losses of the load have shown the line: no jitter explains them.
    pub shown: bool,
    /// The line is saturated: a queue stands, or the load loses packets.
    pub saturated: bool,
    /// Round trip without our queue, in seconds.
    pub rtt_s: Option<f64>,
    /// The shortest that was ever seen: what a new transfer begins with.
    pub least_rtt_s: Option<f64>,
    /// The queue that stands, and that of the last sample, in seconds.
    pub queue_s: f64,
    /// The queue of the last sample, in seconds.
    pub queue_now_s: f64,
    /// The queue that cruising holds, in seconds, and what of it is jitter's.
    pub queue_target_s: f64,
    pub(crate) jitter_s: f64,
    /// It is asked now whether the queue is ours: less goes until it would be empty.
    pub(crate) asks: bool,
    /// The longest queue that was seen, in seconds: at least that much finds room.
    pub queue_most_s: f64,
    /// Share of segments lost over the last round trips.
    pub loss: f64,
    /// Losses are the load's.
    pub lossy: bool,
    /// Losses that no load explains keep the windows small: no queue, nothing else in the way.
    pub losses_limit: bool,
    /// Share of segments lost over the last seconds and round trips.
    pub loss_lately: f64,
    /// What losses without a queue leave of a connection, in bytes a second: windows that slow
    /// start has left are above it for seconds.
    pub each_most: Option<f64>,
    /// The sender had enough to fill the line.
    pub full: bool,
    /// Commands waited for the pace, in bursts at least.
    pub held: bool,
    /// Commands wait for windows or the pace: more is asked for than comes in two round trips. An
    /// application that waits for its answers has as much under way as comes in one (Little's law).
    pub waits: bool,
    /// Others fill the queue, and it runs over.
    pub shared: bool,
    /// What the windows of the typical connection hold, in bytes.
    pub window_bytes: Option<f64>,
    /// Commands under way or waiting.
    pub commands: Option<usize>,
    /// The line is what limits: commands are held at the pace that it was found to carry, or it is
    /// saturated.
    pub line: bool,
    /// The name of what limits, for reports: no decision follows from it.
    pub limits: Bottleneck,
}

impl Estimate {
    /// Seconds until what is done shows in a sample.
    pub fn round_s(&self) -> f64 {
        self.rtt_s.unwrap_or(SAMPLE_S) + SAMPLE_S
    }

    /// Seconds over which the first measure is made.
    fn first_s(&self) -> f64 {
        FULL_ROUNDS * self.round_s()
    }

    /// Seconds over which a saturated line is measured.
    fn span_s(&self) -> f64 {
        MEASURE.0 + MEASURE.1 * self.rtt_s.unwrap_or(0.0)
    }

    /// What a connection goes on carrying that has carried so much: no more than losses leave it.
    pub(crate) fn lasting(&self, each: f64) -> f64 {
        each.min(self.each_most.unwrap_or(f64::INFINITY))
    }

    /// What the line carries, where that was measured.
    pub(crate) fn measured_bandwidth(&self) -> Option<f64> {
        self.bandwidth.filter(|_| self.measured)
    }

    /// What one connection carries where the line does not limit, in bytes a second.
    pub fn per_connection(&self) -> Option<f64> {
        let rtt_s = self.rtt_s.filter(|rtt_s| *rtt_s > 0.0)?;
        self.window_bytes.map(|bytes| bytes / rtt_s)
    }
}

/// A queue that is being emptied: how long it was, how much less than the line carries was sent
/// since, both in seconds of the line; and what the line was believed to carry before.
#[derive(Clone, Copy, Debug)]
struct Draining {
    queue_s: f64,
    drained_s: f64,
    bandwidth: f64,
}

/// Learns what a path is like.
#[derive(Clone, Debug, Default)]
pub struct Model {
    recent: Recent,
    last: Estimate,
    /// What of the round trip no lower pace has emptied; when that is asked again, and the pause
    /// before.
    stays_s: f64,
    ask_at_s: Option<f64>,
    pause_s: f64,
    draining: Option<Draining>,
    saturated_since_s: Option<f64>,
    /// A queue or losses have shown for the first time.
    shown_s: Option<f64>,
    /// The bandwidth when the line was saturated last.
    found: Option<f64>,
    outstanding: Option<f64>,
    /// For how long nothing was carried that was asked for.
    silent_s: f64,
    /// What was under way when the path fell silent, less what was carried since, in bytes.
    broken_off: f64,
    /// In the background, where every queue is somebody's: the base delay of the last minutes.
    base: Option<Minima>,
}

impl Model {
    /// One that has seen nothing. To a transfer in the background, which takes what others leave,
    /// what stands above the shortest round trip of the last minutes is a queue, whoever fills it.
    pub(crate) fn new(background: bool) -> Self {
        Self { base: background.then(Minima::default), ..Self::default() }
    }

    /// The estimate as of the last sample.
    pub fn estimate(&self) -> &Estimate {
        &self.last
    }

    /// Takes one sample, and the pace in force during it. One whose time does not lie after that of
    /// its predecessor, or whose rate is no number, changes nothing.
    pub fn handle_sample(&mut self, sample: &Sample, pace: Option<f64>) -> &Estimate {
        let dt_s = sample.t_s - self.last.t_s;
        let usable = dt_s > 0.0 && sample.bytes_per_s.is_finite() && sample.bytes_per_s >= 0.0;
        if !usable {
            return &self.last;
        }
        let mut now = Estimate { t_s: sample.t_s, ..self.last };
        (now.connections, now.commands) = (sample.connections_open, sample.commands);
        now.bytes_per_s = sample.bytes_per_s;
        let rtt_s = sample.typical(|tcp| tcp.rtt_us).map(|us| us / 1e6);
        self.note_round_trip(sample, rtt_s, &mut now);
        let mut controls = sample.connections.iter().map(|one| one.tcp.congestion_control);
        let bbr = controls.any(|control| control == Some(CongestionControl::Bbr));
        let signs = Signs::of(|field| sample.typical(field), bbr);
        let whole = self.is_whole(sample, dt_s, &signs);
        now.full = self.is_full(sample, &signs, &now) && whole;
        now.held = sample.held_share >= OTHER_SHARE;
        let retransmits = sample.retransmits().filter(|_| whole).unwrap_or(0.0);
        let (t_s, bytes_per_s, full) = (now.t_s, now.bytes_per_s, now.full);
        let believed = now.bandwidth.unwrap_or(0.0);
        let cuts = if whole { sample.cuts() } else { 0.0 };
        let interval =
            Interval { t_s, dt_s, bytes_per_s, rtt_s, retransmits, cuts, full, believed };
        self.recent.push(interval, 4.0 * now.span_s());
        let rounds_s = 2.0 * now.rtt_s.unwrap_or(0.0).max(SAMPLE_S);
        now.carried = self.recent.mean(t_s - rounds_s).unwrap_or(0.0);
        let passes = 2.0 * now.carried * now.rtt_s.unwrap_or(0.0);
        now.waits = now.held || sample.outstanding_bytes.is_none_or(|bytes| bytes > passes);
        self.note_queue(rtt_s, &mut now);
        now.loss = self.recent.loss(t_s - rounds_s);
        now.lossy = now.loss > LOSS_SHARE;
        self.note_saturation(pace, sample.held_share >= FULL_SHARE, &mut now);
        self.note_bandwidth(pace, &mut now);
        self.note_draining(dt_s, pace, &mut now);
        let windows = |tcp: &Tcp| [tcp.cwnd_bytes, tcp.peer_window_bytes];
        let least = |tcp: &Tcp| windows(tcp).into_iter().flatten().reduce(f64::min);
        now.window_bytes = sample.typical(least).filter(|bytes| *bytes > 0.0);
        // Commands are held at the pace that the line was found to carry.
        let used = pace.is_some_and(|pace| now.carried >= FULL_SHARE * pace);
        let held = used && sample.held_share >= MOSTLY && now.measured;
        now.line = held || now.saturated;
        now.loss_lately = self.recent.loss(t_s - now.span_s());
        let since_s = t_s - 2.0 * now.span_s();
        let long_s = LONG * now.queue_target_s;
        let unexplained = self.recent.loss(since_s) > 0.0 && !self.ran_over(since_s, long_s, &now);
        // Losses are not what limits BBR, or who waits for data, the receiver or a buffer.
        let other = bbr || signs.silent || signs.app_limited || signs.counted().is_some();
        now.losses_limit = now.full && !now.line && !other && unexplained;
        now.each_most = unexplained.then(|| self.each_most(sample, since_s)).flatten();
        let asks = sample.outstanding_bytes.is_some_and(|bytes| bytes > 0.0);
        now.limits = if held { Bottleneck::LineRate } else { limits(signs, asks, &now) };
        self.last = now;
        &self.last
    }

    fn note_round_trip(&mut self, sample: &Sample, rtt_s: Option<f64>, now: &mut Estimate) {
        // A queue is a smoothed round trip above that of the empty path. The shortest one of a
        // single packet is below that by the path's jitter.
        let jitter_us = sample.typical(|tcp| tcp.rtt_var_us).unwrap_or(0.0);
        let least_us = sample.typical(|tcp| tcp.min_rtt_us);
        let least_s = least_us.map(|us| (us + JITTER_DEVIATIONS * jitter_us) / 1e6);
        let seen_s = least_s.into_iter().chain(rtt_s).reduce(f64::min);
        now.least_rtt_s = match &mut self.base {
            Some(base) => base.note(sample.t_s, seen_s),
            None => now.least_rtt_s.into_iter().chain(seen_s).reduce(f64::min),
        };
        if self.ask_at_s.take_if(|at_s| now.t_s >= *at_s).is_some() {
            (self.stays_s, now.shared) = (0.0, false);
        }
        let Some(least_s) = now.least_rtt_s else { return };
        now.rtt_s = Some(least_s + self.stays_s);
        let most_s = if self.base.is_some() { TARGET_S.0 } else { TARGET_S.1 };
        let target_s = (TARGET_SHARE * least_s).clamp(TARGET_S.0, most_s);
        let jitter_s = TARGET_JITTERS * self.recent.jitter_s(now.t_s - LATELY_S);
        now.queue_target_s = (target_s + jitter_s).min(1.5 * TARGET_S.1);
        now.jitter_s = now.queue_target_s - target_s;
    }

    /// No silence is being repaired. What was under way in a path that carries nothing, although it
    /// is asked to, is sent again when it is back: until as much has been carried, losses are no
    /// load's, windows are those of slow start, and nothing is known of the line. What windows let
    /// go at once comes at once, too: only a round trip in which nothing comes is a silence.
    fn is_whole(&mut self, sample: &Sample, dt_s: f64, signs: &Signs) -> bool {
        let asked = sample.outstanding_bytes.map_or(!signs.app_limited, |bytes| bytes > 0.0);
        let is_silent = sample.bytes_per_s <= 0.0 && asked;
        self.silent_s = if is_silent { self.silent_s + dt_s } else { 0.0 };
        let held_s = self.last.rtt_s.unwrap_or(0.0) + self.last.queue_now_s;
        self.broken_off = (self.broken_off - sample.bytes_per_s * dt_s).max(0.0);
        if self.silent_s > held_s {
            self.broken_off = self.broken_off.max(self.last.bandwidth.unwrap_or(0.0) * held_s);
        }
        self.broken_off <= 0.0
    }

    /// The sender had enough to fill the line: commands waited for the pace, or enough of them were
    /// under way (Little's law); where neither is known, the kernel decides.
    fn is_full(&mut self, sample: &Sample, signs: &Signs, now: &Estimate) -> bool {
        let before = std::mem::replace(&mut self.outstanding, sample.outstanding_bytes);
        let under_way = sample.outstanding_bytes.map(|now| before.map_or(now, |old| old.min(now)));
        let believed = now.bandwidth.unwrap_or(0.0).max(now.bytes_per_s);
        let holds = |bytes: f64| bytes >= FULL_SHARE * believed * now.rtt_s.unwrap_or(0.0);
        sample.held_share >= FULL_SHARE
            || now.bytes_per_s.max(now.carried) > 0.0 && under_way.map_or(!signs.app_limited, holds)
    }

    fn note_queue(&mut self, rtt_s: Option<f64>, now: &mut Estimate) {
        let Some(empty_s) = now.rtt_s else { return };
        let above = |rtt_s: f64| (rtt_s - empty_s).max(0.0);
        now.queue_now_s = rtt_s.map_or(now.queue_now_s, above);
        now.queue_most_s = now.queue_most_s.max(now.queue_now_s);
        let standing_s = if self.base.is_some() { SAMPLE_S } else { STANDING_S };
        let standing = self.recent.least_rtt_s(now.t_s - standing_s);
        now.queue_s = standing.map_or(now.queue_s, above);
        // A shorter way, or jitter that has ended: what stays is not more than what was there
        // lately.
        let lately = self.recent.since(now.t_s - LATELY_S).filter_map(|one| one.rtt_s);
        if let Some((most_s, least_s)) = lately.reduce(f64::max).zip(now.least_rtt_s) {
            self.stays_s = self.stays_s.min((most_s - least_s).max(0.0));
        }
    }

    /// Has the line shown itself, and is it saturated?
    fn note_saturation(&mut self, pace: Option<f64>, held: bool, now: &mut Estimate) {
        // Without a pace nobody can ask whether a round trip that doubled is a queue or a longer
        // way.
        let unclear = pace.is_none() && now.queue_s > now.rtt_s.unwrap_or(0.0);
        // An application that waits for its answers has as much under way as it carries (Little's
        // law): beside commands that nothing holds back, what hosts add is no queue of a full line.
        let (jitter_s, target_s) = (now.jitter_s, now.queue_target_s);
        // Jitter adds as much as to the target, and twice that now and then.
        let shows_s = if held { target_s + jitter_s } else { LONG * target_s };
        let stands_s = if held { shows_s / 2.0 } else { shows_s };
        let queued = now.queue_s > stands_s && !unclear;
        now.saturated = now.full && (queued || now.lossy);
        // What came at the end of a pause is half a sample.
        let begun_s = now.t_s - if self.last.full { SAMPLE_S } else { 0.0 };
        let since_s = self.saturated_since_s.unwrap_or(begun_s);
        self.saturated_since_s = now.saturated.then_some(since_s);
        // What is lost beside a queue has run over.
        let shows_s = |loss: f64| if loss > 0.0 { target_s } else { shows_s };
        if now.full && (now.queue_now_s > shows_s(now.loss) || now.lossy) {
            self.shown_s.get_or_insert(now.t_s);
        }
        // The jitter of a new path is known after some samples only, and kernels take it for a
        // queue, too: they leave slow start early, and windows limit then.
        let still = |since_s: f64| self.ran_over(since_s, shows_s(self.recent.loss(since_s)), now);
        self.shown_s = self.shown_s.filter(|at_s| now.measured || still(*at_s - SAMPLE_S));
        now.shown = self.shown_s.is_some();
        now.measured |= self.shown_s.is_some_and(|shown_s| now.t_s - shown_s >= now.first_s());
    }

    fn note_bandwidth(&mut self, pace: Option<f64>, now: &mut Estimate) {
        let first_s = now.first_s();
        let known = now.bandwidth.unwrap_or(0.0);
        // Not more than was let go came through, whatever a sample says.
        let mut seen = now.carried.min(pace.unwrap_or(f64::INFINITY));
        if now.measured && seen > known {
            seen = known + RAISE_WEIGHT * (seen - known);
        }
        if !now.full {
            // Bursts at the pace that build no queue and lose nothing are carried at the pace.
            let loses = self.recent.loss(now.t_s - first_s) > 0.0;
            let passed = now.held && !loses && now.queue_now_s < now.queue_target_s / 2.0;
            let burst = pace.filter(|_| passed).unwrap_or(0.0);
            now.bandwidth = now.bandwidth.map(|bandwidth| bandwidth.max(seen).max(burst));
            return;
        }
        if now.shown && !now.measured {
            // The line runs over the first time: it is busy while holes are repaired, and what
            // comes through them at once, or not at all, is one rate on average.
            now.bandwidth = Some(self.recent.most(now.t_s - 2.0 * first_s, first_s));
            return;
        }
        let span_s = now.span_s();
        // What waits for a hole to be filled comes later, at once.
        let rate = self.saturated_since_s.filter(|_| self.silent_s <= 0.0).and_then(|since_s| {
            let from_s = since_s.max(now.t_s - span_s);
            // While holes are repaired, the best rounds count: what comes through them at once is
            // more than the line.
            let measured = match now.lossy {
                true => self.recent.most(from_s, first_s),
                false => mean(self.recent.since(from_s).filter(|one| one.full))?,
            };
            // What is within the noise of few samples weighs as much as there are.
            let is_other = (measured / known - 1.0).abs() > OTHER_SHARE;
            let weight = if is_other { 1.0 } else { (now.t_s - from_s) / span_s };
            (now.t_s - from_s >= now.round_s()).then_some(known + weight * (measured - known))
        });
        let bandwidth = rate.unwrap_or(known.max(seen));
        now.bandwidth = Some(bandwidth);
        if now.saturated {
            self.found = Some(bandwidth);
        } else if self.found.take_if(|found| bandwidth > MORE * *found).is_some() {
            // More was carried, and nothing stood: what was measured was not the line.
            (now.measured, now.shown, self.shown_s) = (false, false, None);
        }
    }

    /// Since then a queue was there that was longer than this, or as much was lost as only loads
    /// lose.
    fn ran_over(&self, since_s: f64, queue_s: f64, now: &Estimate) -> bool {
        let most_s = self.recent.since(since_s).filter_map(|one| one.rtt_s).reduce(f64::max);
        let seen_s = most_s.unwrap_or(0.0) - now.rtt_s.unwrap_or(0.0);
        seen_s > queue_s || self.recent.loss(since_s) > LOSS_SHARE
    }

    /// What the congestion control of those who send makes of what was lost since then, taken one
    /// standard error lower.
    fn each_most(&self, sample: &Sample, since_s: f64) -> Option<f64> {
        let control = sample.connections.iter().find_map(|one| one.tcp.congestion_control)?;
        let rtt_s = self.last.rtt_s.filter(|rtt_s| *rtt_s > 0.0)?;
        let (cuts, sent) = self.recent.sums(since_s, |one| one.cuts);
        let least = (cuts - cuts.sqrt()) / sent.max(cuts);
        (least > 0.0).then(|| Law::of(control, rtt_s, least).window_bytes / rtt_s)
    }

    /// Is the queue ours? It is, if it goes when less is sent than the line carries.
    fn note_draining(&mut self, dt_s: f64, pace: Option<f64>, now: &mut Estimate) {
        now.asks = false;
        // What stood above the target is asked about until half of it is gone.
        let half_s = self.draining.map_or(f64::INFINITY, |one| one.queue_s / 2.0);
        let least_s = half_s.min(now.queue_target_s);
        let stands = now.measured && self.base.is_none() && now.queue_s > least_s;
        let (Some(pace), Some(bandwidth), true) = (pace, now.bandwidth, stands) else {
            self.draining = None;
            return;
        };
        let begin = Draining { queue_s: now.queue_s, drained_s: 0.0, bandwidth };
        let draining = self.draining.get_or_insert(begin);
        let is_other = self.last.bandwidth.is_some_and(|was| bandwidth < (1.0 - OTHER_SHARE) * was);
        if is_other || now.queue_s < draining.queue_s / 2.0 {
            *draining = begin;
        }
        // What another flow has taken meanwhile was not sent less.
        let less = (1.0 - ERROR_SHARE - pace / bandwidth).max(0.0);
        draining.drained_s += if now.full { less * dt_s } else { 0.0 };
        // What was sent less in the last round cannot show yet.
        let seen_s = draining.drained_s - less * now.round_s();
        // Where jitter may be half of it, less is sent for the question's sake, until all of it
        // would be gone; what is left is the path's. Jitter loses nothing; others' queues do.
        let lately_s = now.t_s - LATELY_S;
        let swings = TARGET_JITTERS * self.recent.jitter_s(lately_s) > now.queue_s / 2.0;
        let loses = self.recent.loss(lately_s) > 0.0;
        let asks = swings && self.ask_at_s.is_none() && !loses;
        let most_s = if asks { draining.queue_s } else { DRAINED_S.min(1.5 * draining.queue_s) };
        if seen_s <= most_s {
            now.asks = asks;
            return;
        }
        if !asks && draining.queue_s - now.queue_s > (MORE - 1.0) * seen_s {
            *draining = begin;
        } else {
            // What was measured behind a longer way or jitter, which lose nothing, was not the
            // line. Behind a queue that others fill it is what they leave.
            if !loses {
                let lately = self.recent.since(lately_s).map(|one| one.believed);
                now.bandwidth = Some(lately.fold(draining.bandwidth, f64::max));
            }
            self.stays_s += now.queue_s;
            (self.draining, self.saturated_since_s) = (None, None);
            // What others fill runs over, and is there again.
            now.shared = loses && self.pause_s > 0.0;
            self.pause_s = (2.0 * self.pause_s).clamp(ASK_AGAIN_S.0, ASK_AGAIN_S.1);
            self.ask_at_s = Some(now.t_s + self.pause_s);
            now.rtt_s = now.least_rtt_s.map(|least_s| least_s + self.stays_s);
            (now.queue_s, now.queue_now_s, now.saturated) = (0.0, 0.0, false);
        }
    }
}

/// The name of what limits the typical connection where no commands wait for the line; `asks` says
/// that commands are under way.
fn limits(signs: Signs, asks: bool, now: &Estimate) -> Bottleneck {
    let stands = |empty_s: f64| is_queued(1e6 * (empty_s + now.queue_s), 1e6 * empty_s);
    let queued = now.rtt_s.is_some_and(stands);
    let idle = if asks { Bottleneck::QueueDepth } else { Bottleneck::Application };
    Signs { queued, loss: now.loss_lately, ..signs }.limit(now.full, idle)
}
