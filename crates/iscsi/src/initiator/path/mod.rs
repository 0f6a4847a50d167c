//! The path controller: samples what every connection achieves and what TCP says about it, asks the
//! controller of the crate `path`, and does what it decides: a pace for the commands, more or fewer
//! connections, socket buffers, congestion control. It decides nothing about the path itself;
//! `meter` measures, `actuator` acts, and the decisions are a pure function of the samples.
//!
//! It outlives connections and sessions: while there is no session it takes no samples, and the
//! time of the decisions stands still.

mod actuator;
mod begin;
mod disorder;
mod memory;
mod meter;
mod report;
mod share;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use iscsi_proto::time::Instant;
use path::{
    Bottleneck, Estimate, Orders, Pacing, Phase as Search, PolicyConfig, SAMPLE, SHORT_RTT_S,
    Sample, Sockets, State, Tcp, Why, part, sending,
};

use self::actuator::Actuator;
pub(super) use self::begin::first_number;
pub(super) use self::memory::Keeper;
use self::meter::{Measured, Meter, View};
pub use self::report::{PathChange, PathConnection, PathReport};
use self::share::{Held, Meted};
pub use self::share::{Share, ShareError};
use super::Config;
use super::shared::Shared;
use super::state::Phase;

/// Commands that wait for the user's rate in this share of an interval are held by it.
const WAITS_SHARE: f64 = 0.5;

/// Decides about the path of one disk.
pub(super) struct Controller {
    path: path::Controller,
    /// Who chooses the number, to begin again with.
    policy: PolicyConfig,
    /// A pace may be looked for.
    paces: bool,
    meter: Meter,
    /// Commands wait for a rate of the user's, which is less than the line's.
    users_rate: bool,
    /// The pace of a path that does not fill any more.
    line_rate: Option<f64>,
    /// The incarnation whose path the pace is of; none while there is no session.
    incarnation: Option<u64>,
    /// Round trip of the empty path, in seconds.
    rtt_s: f64,
    meted: Meted,
    actuator: Actuator,
    /// The last decision that was carried out.
    wanted: u32,
    /// The target grants fewer connections than `golden` wanted; it searches again when more can
    /// be opened.
    refused: bool,
    /// More are wanted than the target grants.
    capped: bool,
    /// Time of the last sample, and what all of them counted.
    t_s: f64,
    carried_bytes: f64,
}

impl Controller {
    /// Sets the limits for the first commands, which must not be there before: a path that is new
    /// and gets all of them at once runs over.
    pub(super) fn begin(shared: &Shared) -> Self {
        let mut controller = Self::new(&shared.config);
        controller.open(shared);
        controller
    }

    /// Samples and decides until the disk is closed.
    pub(super) async fn run(mut self, shared: Arc<Shared>) {
        loop {
            tokio::time::sleep(SAMPLE).await;
            let now = shared.now();
            let view = {
                let state = shared.lock();
                if state.phase == Phase::Closed {
                    return;
                }
                View::of(&state, now)
            };
            let chosen = shared.chosen.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(policy) = chosen {
                self.choose(policy, &shared.config);
            }
            self.step(&shared, view, now);
        }
    }

    fn new(config: &Config) -> Self {
        let policy = config.policy.clone();
        let policy = policy.unwrap_or(PolicyConfig::Fixed(config.connections.into()));
        let policy = begin::allowed(policy, config);
        Self {
            path: policy.clone().build(config.pacing),
            policy,
            paces: config.pacing,
            meter: Meter::default(),
            users_rate: false,
            line_rate: None,
            incarnation: None,
            rtt_s: 0.0,
            meted: Meted::new(config.share),
            actuator: Actuator::new(config),
            wanted: config.connections.into(),
            refused: false,
            capped: false,
            t_s: 0.0,
            carried_bytes: 0.0,
        }
    }

    /// Goes on with another policy.
    fn choose(&mut self, policy: PolicyConfig, config: &Config) {
        self.policy = begin::allowed(policy, config);
        self.path.choose(self.policy.clone(), self.paces);
        self.refused = false;
    }

    /// Takes a sample and does what follows from it.
    fn step(&mut self, shared: &Shared, view: View, now: Instant) {
        let present = view.up.then_some(view.incarnation);
        if present != self.incarnation {
            let before = std::mem::replace(&mut self.incarnation, present);
            // The first after an outage has been prepared already.
            if before.is_some() {
                self.forget(shared, view.peer(), now);
            }
        }
        if !view.up {
            self.publish(shared, &view, now, None);
            return;
        }
        let Some(mut measured) = self.meter.measure(&view, now) else { return };
        let waits = self.users_rate && measured.sample.held_share >= WAITS_SHARE;
        if self.users_rate {
            // What waited for that, says nothing of the line.
            measured.sample.held_share = 0.0;
        }
        let (rtt_us, limit) = self.account(shared, &view, &measured);
        let orders = match limit.binds || waits {
            // What is held back here says nothing about the path.
            true => self.keep(),
            false => self.decide(&measured.sample, &view),
        };
        self.wanted = orders.connections;
        let background = self.path.is_background();
        // In the background no connection is to be quick at somebody's cost.
        let fills = orders.state == State::Startup && !background;
        // On a short path that a busy host makes look long, who is slow is slow.
        if fills && self.rtt_s >= SHORT_RTT_S {
            spare_who_is_late(&mut measured);
        }
        let is_line = self.path.is_line();
        let pacing = if is_line || fills { orders.pacing } else { Pacing::default() };
        let rate = self.obey(shared, pacing, limit.bytes_per_s, now);
        self.line_rate = orders.pacing.bytes_per_s.filter(|_| is_line);
        trace(&measured, orders.pacing, self.path.estimate());
        let sharing = busy(&view).min(f64::from(self.wanted.max(1).min(view.open)));
        // While a path fills, some connections carry far more than others: none has a part.
        let has_part = is_line || self.users_rate && !fills;
        let part =
            rate.filter(|_| has_part).map(|rate| part(rate, sharing, self.rtt_s, background));
        let is_long = rtt_us.is_some_and(|us| us >= SHORT_RTT_S * 1e6);
        self.actuator.pace(part, is_long && measured.bursts);
        self.actuator.carry_out(shared, &view, &measured, &orders, now);
        let known = self.path.remembered();
        shared.memory.note(view.peer(), known, self.carried_bytes, now);
        self.publish(shared, &view, now, Some((measured, &orders)));
    }

    /// Holds commands back as the path and the user want; the rate of the two.
    fn obey(
        &mut self,
        shared: &Shared,
        pacing: Pacing,
        users: Option<f64>,
        now: Instant,
    ) -> Option<f64> {
        let rate = [users, pacing.bytes_per_s].into_iter().flatten().reduce(f64::min);
        self.users_rate = rate.is_some() && rate == users;
        hold_back(shared, rate, pacing.window_bytes, now);
        rate
    }

    /// Counts what was carried; the round trip, and what the user lets us take.
    fn account(
        &mut self,
        shared: &Shared,
        view: &View,
        measured: &Measured,
    ) -> (Option<f64>, Held) {
        choose_stride(shared, view, &measured.connections);
        let sample = &measured.sample;
        self.carried_bytes += sample.bytes_per_s * (sample.t_s - self.t_s);
        self.t_s = sample.t_s;
        let empty = shortest(&measured.connections);
        self.rtt_s = empty.map_or(self.rtt_s, |rtt| rtt.as_secs_f64());
        let rtt_us = round_trip_us(sample, empty);
        (rtt_us, self.meted.limit(sample.t_s, sample.bytes_per_s, rtt_us.unwrap_or(0.0)))
    }

    fn decide(&mut self, sample: &Sample, view: &View) -> Orders {
        let ceiling = view.ceiling.as_ref().map(|ceiling| ceiling.connections);
        if self.refused && ceiling.is_none_or(|most| most > view.open) {
            self.refused = false;
            self.path.restart();
        }
        let most = view.most.max(1);
        self.path.grant(most);
        let mut orders = self.path.handle_sample(sample);
        let at_most = orders.why == Why::AtMost && self.policy.connections().1 > most;
        self.capped = at_most || orders.connections > most;
        orders.connections = orders.connections.min(most);
        let golden = matches!(self.policy, PolicyConfig::Golden(_));
        if let Some(granted) = ceiling.filter(|_| golden && orders.connections > view.open) {
            // It measures whatever is open as if it were what it asked for.
            let connections_max = granted.max(1);
            tracing::info!(connections_max, "golden searches again below what is granted");
            let policy = self.policy.clone().connections_max(connections_max);
            self.path.choose(policy, self.paces);
            self.refused = true;
            (orders.connections, orders.why) = (view.open.max(1), Why::Refused);
        }
        orders
    }

    /// Everything stays as it is.
    fn keep(&self) -> Orders {
        Orders {
            connections: self.wanted,
            phase: Search::Hold,
            why: Why::Application,
            sockets: Sockets::default(),
            ..self.path.orders()
        }
    }

    fn publish(
        &self,
        shared: &Shared,
        view: &View,
        now: Instant,
        sampled: Option<(Measured, &Orders)>,
    ) {
        let mut report = shared.path.lock().unwrap_or_else(PoisonError::into_inner);
        report.policy = self.policy.name();
        report.connections_wanted = self.wanted;
        report.connections_open = view.open;
        report.connections_opening = view.opening;
        let granted = || format!("the target grants MaxConnections={}", view.most);
        let ceiling = view.ceiling.as_ref().map(|ceiling| ceiling.reason.clone());
        report.ceiling = ceiling.or(self.capped.then(granted));
        report.max_rate = self.meted.rate();
        report.line_rate = self.line_rate;
        report.memory = self.path.memory();
        (report.sampled_at, report.carried_bytes) = (now.0, self.carried_bytes);
        let Some((measured, orders)) = sampled else {
            report.connections.clear();
            (report.phase, report.bytes_per_s) = ("down", 0.0);
            report.why = "there is no session".to_owned();
            return;
        };
        report.phase = orders.phase.as_str();
        report.why = orders.why.to_string();
        report.note(&measured.sample, now);
        report.bytes_per_s = measured.sample.bytes_per_s;
        report.limit = self.path.estimate().limits;
        report.connections = measured.connections;
        if self.meted.binds() {
            report.limit = Bottleneck::Share;
            report.why = "the rate is limited to what we may take".to_owned();
        }
    }
}

/// All windows of a new path are to grow: a connection that began later gets as much work, unless
/// it loses.
fn spare_who_is_late(measured: &mut Measured) {
    let sample = &measured.sample;
    for (.., serial, slowness) in &mut measured.slowness {
        let of = sample.connections.iter().find(|one| one.id.0 == *serial);
        *slowness = if of.is_some_and(|one| one.loses()) { *slowness } else { 1.0 };
    }
}

fn trace(measured: &Measured, pacing: Pacing, estimate: &Estimate) {
    let sample = &measured.sample;
    let each = |field: fn(&Tcp) -> Option<f64>| {
        sample.connections.iter().map(|connection| field(&connection.tcp)).collect::<Vec<_>>()
    };
    tracing::trace!(
        t_s = sample.t_s,
        bytes_per_s = sample.bytes_per_s,
        open = sample.connections_open,
        ?pacing,
        ?estimate,
        rtts_us = ?each(|tcp| tcp.rtt_us),
        retransmits = ?each(|tcp| tcp.retransmits),
        cwnd = ?each(|tcp| tcp.cwnd_bytes),
        unacked = ?each(|tcp| tcp.in_flight_bytes),
        peer_window = ?each(|tcp| tcp.peer_window_bytes),
        send_buffer = ?each(|tcp| tcp.send_buffer_bytes),
        by_peer_window = ?each(|tcp| tcp.rwnd_limited_share),
        by_send_buffer = ?each(|tcp| tcp.sndbuf_limited_share),
        outstanding = ?measured.connections.iter().map(|c| c.outstanding_bytes).collect::<Vec<_>>(),
        slowness = ?measured.slowness.iter().map(|(.., slowness)| slowness).collect::<Vec<_>>(),
        "sample"
    );
}

/// The shortest round trip of an interval; while nothing moves, what is known of the path without a
/// queue.
fn round_trip_us(sample: &Sample, empty: Option<Duration>) -> Option<f64> {
    let rtts_us = sample.connections.iter().filter_map(|connection| connection.tcp.rtt_us);
    rtts_us.reduce(f64::min).or(empty.map(|rtt| rtt.as_secs_f64() * 1e6))
}

/// How many connections share what is sent.
fn busy(view: &View) -> f64 {
    sending(view.seen.iter().map(|seen| seen.outstanding_bytes as f64))
}

/// Commands go no faster, and no more of them are under way.
fn hold_back(shared: &Shared, bytes_per_s: Option<f64>, window: Option<f64>, now: Instant) {
    shared.with(|state, batch| {
        state.throttle.set_rate(bytes_per_s, now);
        state.set_window(window.map(|bytes| bytes as u64), batch);
    });
}

/// The round trip of the empty path.
fn shortest(connections: &[PathConnection]) -> Option<Duration> {
    connections.iter().filter_map(|connection| connection.min_rtt).min()
}

/// How long commands are made follows the path.
fn choose_stride(shared: &Shared, view: &View, connections: &[PathConnection]) {
    if shared.config.hand_out_evenly || shared.config.uncut {
        return;
    }
    if let Some(((session, connection), rtt)) = view.agreed.as_ref().zip(shortest(connections)) {
        shared.stride.choose(rtt, view.open, session, connection);
    }
}

/// What is known now: of the last interval, or where none has ended yet, of each connection since
/// it was opened.
pub(super) fn report(shared: &Shared) -> PathReport {
    let mut report = shared.path.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if report.connections.is_empty() {
        let view = View::of(&shared.lock(), shared.now());
        report.connections = meter::since_opening(&view);
        report.connections_open = view.open;
    }
    report
}

#[cfg(test)]
mod tests {
    use path::Connection;

    use super::*;
    use crate::initiator::isid::ChosenIsid;

    #[test]
    fn a_session_that_is_set_up_again_forgets_the_rate() {
        let url = "iscsi://far/iqn.2026-11.org.example:path/0".parse().unwrap();
        let isid = ChosenIsid::choose(&url, &Config::default()).unwrap();
        let shared = Shared::new(url, Config::default(), isid.into());
        let now = Instant(Duration::from_secs(9));
        let view = |up, incarnation| {
            let view = View::of(&shared.lock(), now);
            View { up, incarnation, ..view }
        };
        // The sessions end and are set up again so soon that nobody sees them down; or later.
        for views in [vec![(true, 2)], vec![(false, 1), (true, 2)]] {
            let mut controller = Controller::new(&shared.config);
            (controller.incarnation, controller.rtt_s) = (Some(1), 0.02);
            // A queue of 30 ms stands at a megabyte a second.
            let tcp = Tcp { rtt_us: Some(5e4), min_rtt_us: Some(2e4), ..Tcp::default() };
            let connections = vec![Connection { tcp, ..Connection::default() }];
            for tenth in 1..100 {
                let (t_s, connections) = (f64::from(tenth) / 10.0, connections.clone());
                let sample = Sample { t_s, bytes_per_s: 1e6, connections, ..Sample::default() };
                controller.path.handle_sample(&sample);
            }
            let pace = |controller: &Controller| controller.path.orders().pacing.bytes_per_s;
            assert!(pace(&controller).is_some_and(|rate| rate < 2e6), "{:?}", pace(&controller));
            hold_back(&shared, Some(2e6), None, now);
            controller.actuator.pace(Some(6e3), true);
            // A command of 20 MB holds up the next one for ten seconds at that rate.
            let held = |state: &mut crate::initiator::state::State| {
                state.throttle.spend(20_000_000, now);
                state.throttle.holds(now + Duration::from_secs(1))
            };
            assert!(shared.with(|state, _| held(state)));
            for (up, incarnation) in views {
                controller.step(&shared, view(up, incarnation), now);
            }
            assert!(!shared.with(|state, _| held(state)), "as fast as a new path");
            // What a first connection may have under way, in a round trip.
            assert_eq!(pace(&controller), Some(1048576.0 / 0.02));
            assert!(!controller.actuator.is_pacing());
        }
    }
}
