//! The path controller: samples what every connection achieves and what TCP says about it, asks a
//! tuner's policy, and does what it decides: more or fewer connections, socket buffers, congestion
//! control. It decides nothing about numbers itself; `meter` measures, `actuator` acts, and the
//! policy (`path::tuner`) is a pure function of the samples.
//!
//! It outlives connections and sessions: while there is no session it takes no samples, and a
//! policy's time stands still.

mod actuator;
mod disorder;
mod memory;
mod meter;
mod modelled;
mod report;
mod share;
mod young;

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use iscsi_proto::time::Instant;
use path::Model;
use path::tuner::{
    Bottleneck, Decision, LONG_RTT_S, Line, Pace, Pacer, Phase as TunerPhase, Policy, PolicyConfig,
    Room, Sample, Tcp, Why, part, sample_of, sending,
};

use self::actuator::Actuator;
pub(super) use self::memory::Keeper;
use self::meter::{Measured, Meter, View};
pub(super) use self::modelled::first_number;
use self::report::History;
pub use self::report::{PathChange, PathConnection, PathReport};
use self::share::{Held, Meted};
pub use self::share::{Share, ShareError};
use self::young::Young;
use super::Config;
use super::shared::Shared;
use super::state::Phase;
use crate::transport::socket_options;

/// Time between two samples: not so short that the scheduler is seen instead of the path, and short
/// enough that a queue that begins on a long path is seen as soon as it can be.
const INTERVAL: Duration = Duration::from_millis(100);

/// Decides about the path of one disk.
pub(super) struct Controller {
    policy: Box<dyn Policy>,
    /// To build it again with.
    config: PolicyConfig,
    meter: Meter,
    /// What limits, for the report: its thresholds are those of `enkaku diagnose`, whatever the
    /// policy.
    model: Model,
    /// The line's rate; none if the user wants none.
    pacer: Option<Pacer>,
    /// Commands wait for a rate of the user's, which is less than the line's.
    users_rate: bool,
    pace: Pace,
    /// The incarnation whose path the rate is of; none while there is no session.
    incarnation: Option<u64>,
    /// Round trip of the empty path, in seconds.
    rtt_s: f64,
    /// The line that the policy remembers, while it is filled again.
    renewed: Option<Line>,
    young: Young,
    meted: Meted,
    actuator: Actuator,
    history: History,
    /// The last decision that was carried out.
    wanted: u32,
    /// The target opened fewer connections than the policy wanted; it may search again when more
    /// can be opened.
    refused: bool,
    /// The policy wants more than the target grants.
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
            tokio::time::sleep(INTERVAL).await;
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
        let policy = allowed(policy, config);
        let paces = config.pacing && !matches!(policy, PolicyConfig::Model(_));
        Self {
            policy: policy.clone().build(),
            config: policy,
            meter: Meter::default(),
            model: Model::default(),
            pacer: paces.then(Pacer::default),
            users_rate: false,
            pace: Pace::default(),
            incarnation: None,
            rtt_s: 0.0,
            renewed: None,
            young: Young::default(),
            meted: Meted::new(config.share),
            actuator: Actuator::new(config),
            history: History::default(),
            wanted: config.connections.into(),
            refused: false,
            capped: false,
            t_s: 0.0,
            carried_bytes: 0.0,
        }
    }

    /// Before the first command: how long commands are made, and what may be under way on a long
    /// path that is new.
    fn open(&mut self, shared: &Shared) {
        let view = View::of(&shared.lock(), shared.now());
        let connections = meter::since_opening(&view);
        choose_stride(shared, &view, &connections);
        self.rtt_s = shortest(&connections).unwrap_or_default().as_secs_f64();
        self.incarnation = Some(view.incarnation);
        self.policy.remember(view.peer().and_then(|peer| shared.memory.of(peer)));
        if !self.begin_modelled(shared, view.open, shared.now()) {
            self.hold_first(shared, view.open, shared.now());
        }
    }

    /// Limits the first commands of a path that is new.
    fn hold_first(&mut self, shared: &Shared, connections: u32, now: Instant) {
        if self.pacer.is_some() {
            let room = self.young.first(self.rtt_s, connections);
            let rate = least([self.meted.rate(), room.map(|room| room.bytes_per_s)]);
            hold_back(shared, rate, room, now);
        }
    }

    /// The sessions have ended: those that come after them begin as on a new path, with small
    /// windows, and find out anew what it carries. A rate that was wrong must not outlive the
    /// session that it may have ended.
    fn forget(&mut self, shared: &Shared, peer: Option<IpAddr>, now: Instant) {
        self.meter.pause();
        self.model = Model::default();
        self.policy.forget();
        self.policy.remember(peer.and_then(|peer| shared.memory.of(peer)));
        self.pacer = self.pacer.take().map(|_| Pacer::default());
        (self.pace, self.renewed, self.young) = (Pace::default(), None, Young::default());
        self.actuator.forget_pace();
        // What was sent at the old rate is to hold up nothing at the new one.
        shared.with(|state, _| state.throttle.set_rate(None, now));
        if !self.begin_modelled(shared, 1, now) {
            self.hold_first(shared, self.wanted, now);
        }
    }

    /// Goes on with another policy, which has seen nothing yet.
    fn choose(&mut self, policy: PolicyConfig, config: &Config) {
        self.config = allowed(policy, config);
        self.policy = self.config.clone().build();
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
        if self.users_rate {
            // What waited for that, says nothing of the line.
            measured.sample.held_share = 0.0;
        }
        if self.policy.pacing().is_some() {
            return self.step_modelled(shared, &view, measured, now);
        }
        self.pace = self
            .pacer
            .as_mut()
            .map_or_else(Pace::default, |pacer| pacer.handle_sample(&measured.sample));
        measured.sample.pace = self.pace;
        let room = self.pacer.as_ref().and_then(|_| self.young.handle(&mut measured));
        if let (Some(pacer), Some(rate)) = (&mut self.pacer, self.young.ended_with()) {
            self.pace = pacer.begin_with(rate);
            measured.sample.pace = self.pace;
        }
        measured.sample.pace.seeking |= room.is_some();
        trace(&measured, room);
        let (rtt_us, limit) = self.account(shared, &view, &measured);
        let sample = &measured.sample;
        let rate = least([limit.bytes_per_s, self.pace.bytes_per_s]);
        self.users_rate = rate.is_some() && rate == limit.bytes_per_s;
        // While a path is new, some connections carry far more than others: none has a part.
        hold_back(shared, least([rate, room.map(|room| room.bytes_per_s)]), room, now);
        let is_long = self.pacer.is_some() && rtt_us.is_some_and(|us| us >= LONG_RTT_S * 1e6);
        let decision = if limit.binds {
            // What is held back here says nothing about the path.
            self.keep(sample)
        } else {
            self.decide(sample, &view)
        };
        if let Some(pacer) = &mut self.pacer
            && self.young.is_again(sample, &decision)
        {
            pacer.look_again();
        }
        let before = std::mem::replace(&mut self.renewed, decision.renewed);
        if let (Some(pacer), Some(line), None) = (&mut self.pacer, decision.renewed, before) {
            pacer.keep_to(line.bytes_per_s);
        }
        self.wanted = decision.connections;
        // Those that are closed now leave their part to the others at once: with the parts of
        // before, work would gather in them, and come as a burst. What those carry that are to fill
        // the line again, the others do not need.
        let filling = before.map_or(self.wanted.max(1), |line| line.connections).min(view.open);
        let part = rate.map(|rate| part(rate, busy(&view).min(f64::from(filling)), self.rtt_s));
        self.actuator.pace(part, is_long);
        self.actuator.carry_out(shared, &view, &measured, &decision, now);
        self.history.note(sample, self.wanted, &decision.why.to_string(), now);
        self.publish(shared, &view, now, Some((&measured, &decision)));
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
        self.model.handle_sample(&sample_of(sample), self.pace.bytes_per_s);
        let empty = shortest(&measured.connections);
        self.rtt_s = empty.map_or(self.rtt_s, |rtt| rtt.as_secs_f64());
        let rtt_us = round_trip_us(sample, empty);
        (rtt_us, self.meted.limit(sample.t_s, sample.bytes_per_s, rtt_us.unwrap_or(0.0)))
    }

    fn decide(&mut self, sample: &Sample, view: &View) -> Decision {
        let capped = view.ceiling.as_ref();
        if self.refused && capped.is_none_or(|ceiling| ceiling.connections > view.open) {
            self.refused = false;
            self.policy.restart();
        }
        let mut decision = self.policy.handle_sample(sample);
        let most = view.most.max(1);
        self.capped = decision.connections > most;
        decision.connections = decision.connections.min(most);
        match (&self.config, capped) {
            (PolicyConfig::Adaptive(_), _) => self.refused |= decision.why == Why::Refused,
            // It measures whatever is open as if it were what it asked for.
            (PolicyConfig::Golden(_), Some(ceiling)) if decision.connections > view.open => {
                let connections_max = ceiling.connections.max(1);
                tracing::info!(connections_max, "golden searches again below what is granted");
                self.policy = self.config.clone().connections_max(connections_max).build();
                self.refused = true;
                decision.connections = view.open.max(1);
                decision.why = Why::Refused;
            }
            _ => {}
        }
        decision
    }

    /// Everything stays as it is.
    fn keep(&self, sample: &Sample) -> Decision {
        let mut decision = path::tuner::Fixed::new(self.wanted).handle_sample(sample);
        (decision.phase, decision.why) = (TunerPhase::Hold, Why::Application);
        decision
    }

    fn publish(
        &self,
        shared: &Shared,
        view: &View,
        now: Instant,
        sampled: Option<(&Measured, &Decision)>,
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
        report.line_rate = self.pace.bytes_per_s;
        report.memory = self.policy.memory();
        report.changes = self.history.changes();
        (report.sampled_at, report.carried_bytes) = (now.0, self.carried_bytes);
        let Some((measured, decision)) = sampled else {
            report.connections.clear();
            (report.phase, report.bytes_per_s) = ("down", 0.0);
            report.why = "there is no session".to_owned();
            return;
        };
        report.phase = decision.phase.as_str();
        report.why = decision.why.to_string();
        report.bytes_per_s = measured.sample.bytes_per_s;
        report.limit = match self.policy.limit() {
            Some(known) => known,
            // Held at the rate that the pacer found the line to carry.
            None if measured.sample.pace.binds => Bottleneck::LineRate,
            None => self.model.estimate().limits,
        };
        report.connections.clone_from(&measured.connections);
        if self.meted.binds() {
            report.limit = Bottleneck::Share;
            report.why = "the rate is limited to what we may take".to_owned();
        }
    }
}

fn trace(measured: &Measured, room: Option<Room>) {
    let sample = &measured.sample;
    let each = |field: fn(&Tcp) -> Option<f64>| {
        sample.connections.iter().map(|connection| field(&connection.tcp)).collect::<Vec<_>>()
    };
    tracing::trace!(
        t_s = sample.t_s,
        bytes_per_s = sample.bytes_per_s,
        open = sample.connections_open,
        pace = ?sample.pace,
        rtts_us = ?each(|tcp| tcp.rtt_us),
        retransmits = ?each(|tcp| tcp.retransmits),
        cwnd = ?each(|tcp| tcp.cwnd_bytes),
        unacked = ?each(|tcp| tcp.in_flight_bytes),
        peer_window = ?each(|tcp| tcp.peer_window_bytes),
        send_buffer = ?each(|tcp| tcp.send_buffer_bytes),
        by_peer_window = ?each(|tcp| tcp.rwnd_limited_share),
        by_send_buffer = ?each(|tcp| tcp.sndbuf_limited_share),
        ?room,
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

/// The lower of two limits, where there are any.
fn least(rates: [Option<f64>; 2]) -> Option<f64> {
    rates.into_iter().flatten().reduce(f64::min)
}

/// Commands go no faster, and no more of them are under way.
fn hold_back(shared: &Shared, bytes_per_s: Option<f64>, room: Option<Room>, now: Instant) {
    shared.with(|state, batch| {
        state.throttle.set_rate(bytes_per_s, now);
        state.set_window(room.map(|room| room.bytes as u64), batch);
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

/// A policy with what this system allows.
fn allowed(mut policy: PolicyConfig, config: &Config) -> PolicyConfig {
    if let PolicyConfig::Adaptive(adaptive) = &mut policy {
        let (send, receive) = socket_options::buffer_limits();
        if config.send_buffer.is_none() && config.receive_buffer.is_none() {
            adaptive.socket_buffer_bytes_max = send.max(receive);
            adaptive.window_bytes = socket_options::automatic_window();
        }
        if config.congestion_control.is_none() {
            adaptive.congestion_controls = socket_options::congestion_controls();
        }
    }
    if let PolicyConfig::Model(model) = &mut policy {
        model.window_bytes = socket_options::automatic_window() as f64;
        model.paces = config.pacing;
    }
    policy
}

#[cfg(test)]
mod tests {
    use path::tuner::Connection;

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
            let tcp = Tcp { rtt_us: Some(2e4), min_rtt_us: Some(2e4), ..Tcp::default() };
            let connections = vec![Connection { tcp, ..Connection::default() }];
            let sample = Sample { t_s: 1.0, bytes_per_s: 1e6, connections, ..Sample::default() };
            let pacer = controller.pacer.as_mut().unwrap();
            pacer.handle_sample(&sample);
            pacer.keep_to(2e6);
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
            let sample = Sample { t_s: 2.0, ..sample };
            let pace = controller.pacer.as_mut().unwrap().handle_sample(&sample);
            assert_eq!(pace.bytes_per_s, None);
            assert!(!controller.actuator.is_pacing());
        }
    }
}
