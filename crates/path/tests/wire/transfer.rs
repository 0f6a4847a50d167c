//! A transfer of commands over some flows, as the initiator makes it: commands wait for the pace,
//! go to the flow that should have them done first, and are followed by others; a controller is
//! asked every tenth of a second. Or plain flows without a controller, to compare with.

use std::collections::VecDeque;

use ::path::{Config, Connection, ConnectionId, Controller, Remembered, Sample, Tcp};

use crate::flow::{Flow, Law};
use crate::link::{Line, Link};

const SAMPLE_S: f64 = 0.1;
pub(crate) const COMMAND_BYTES: f64 = 262144.0;
/// 32 operations of 1 MiB under way.
const DEPTH_BYTES: f64 = 33554432.0;
/// TCP's handshake, the login, those of the connections that join, and what is asked of a volume
/// before its first command, as measured; a connection that joins later needs fewer.
pub(crate) const LOGIN_ROUND_TRIPS: f64 = 9.0;
const JOIN_ROUND_TRIPS: f64 = 3.0;
/// What the kernel's default buffers hold.
const WINDOW_BYTES: f64 = 3e6;
/// What may go at once after a pause, as time at the pace.
const BURST_S: f64 = 0.02;

/// What runs over the line.
pub(crate) struct Scenario {
    pub(crate) line: Line,
    pub(crate) law: Law,
    /// When the line becomes another one.
    pub(crate) changes: Vec<(f64, Line)>,
    /// The application is silent in every other span of so many seconds.
    pub(crate) pauses_s: Option<f64>,
    /// A flow of others that begins at a time, and when it has nothing more to send.
    pub(crate) other: Option<(f64, Law)>,
    pub(crate) other_ends_s: f64,
    /// The controller is at the end that receives: it sees no congestion window, and of losses only
    /// that segments begin to come out of order.
    pub(crate) reads: bool,
    /// Bytes in a packet.
    pub(crate) packet_bytes: f64,
    pub(crate) depth_bytes: f64,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            line: Line::default(),
            law: Law::Cubic,
            changes: Vec::new(),
            pauses_s: None,
            other: None,
            other_ends_s: f64::INFINITY,
            reads: false,
            packet_bytes: 1448.0,
            depth_bytes: DEPTH_BYTES,
        }
    }
}

pub(crate) struct Transfer {
    link: Link,
    law: Law,
    changes: Vec<(f64, Line)>,
    pauses_s: Option<f64>,
    reads: bool,
    depth_bytes: f64,
    flows: Vec<Flow>,
    other: Option<Flow>,
    other_ends_s: f64,
    acks: VecDeque<(f64, usize, u64)>,
    controller: Option<Controller>,
    begun: bool,
    now_s: f64,
    pace: Option<f64>,
    window: Option<f64>,
    has_parts: bool,
    background: bool,
    free_at_s: f64,
    held_s: f64,
    sampled: Vec<(u64, u64)>,
    /// Ends and payload of each interval, and of the others'.
    pub(crate) rates: Vec<(f64, f64)>,
    pub(crate) others: Vec<(f64, f64)>,
    pub(crate) moves: Vec<(f64, u32)>,
    /// The line's queue at the end of each interval, as time.
    queues: Vec<(f64, f64)>,
    wanted: u32,
}

impl Transfer {
    /// With a controller.
    pub(crate) fn new(scenario: Scenario, config: Config, seed: u64) -> Self {
        let background = config.background;
        let config = Config { window_bytes: WINDOW_BYTES, ..config };
        let transfer = Self::with(scenario, Some(Controller::new(config)), seed);
        Self { background, ..transfer }
    }

    /// So many plain flows, which begin after a handshake.
    pub(crate) fn plain(scenario: Scenario, flows: usize, seed: u64) -> Self {
        let (law, rtt_s) = (scenario.law, scenario.line.rtt_s);
        let window = WINDOW_BYTES / scenario.packet_bytes;
        let mut transfer = Self::with(scenario, None, seed);
        let flow = |_| Flow::new(law, window, rtt_s).greedy();
        transfer.flows = (0..flows).map(flow).collect();
        transfer
    }

    fn with(scenario: Scenario, controller: Option<Controller>, seed: u64) -> Self {
        let Scenario { line, law, changes, pauses_s, other, other_ends_s, .. } = scenario;
        let Scenario { reads, packet_bytes, depth_bytes, .. } = scenario;
        let window = WINDOW_BYTES / packet_bytes;
        // What it may have under way is enough for every line here.
        let window = (4.0 * window).max(2.0 * line.bytes_per_s * line.rtt_s / packet_bytes);
        let other = other.map(|(at_s, law)| Flow::new(law, window, at_s).greedy());
        Self {
            link: Link::new(line, packet_bytes, seed),
            law,
            changes,
            pauses_s,
            reads,
            depth_bytes,
            flows: Vec::new(),
            other,
            other_ends_s,
            acks: VecDeque::new(),
            controller,
            begun: false,
            now_s: 0.0,
            pace: None,
            window: None,
            has_parts: false,
            background: false,
            free_at_s: 0.0,
            held_s: 0.0,
            sampled: Vec::new(),
            rates: Vec::new(),
            others: Vec::new(),
            moves: Vec::new(),
            queues: Vec::new(),
            wanted: 0,
        }
    }

    pub(crate) fn run(&mut self, to_s: f64) {
        let dt_s = (self.link.line.rtt_s / 50.0).clamp(1e-4, 1e-3);
        let mut sample_s = self.now_s + SAMPLE_S;
        while self.now_s < to_s - dt_s / 2.0 {
            self.now_s += dt_s;
            if self.changes.first().is_some_and(|(at_s, _)| self.now_s >= *at_s) {
                self.link.line = self.changes.remove(0).1;
            }
            self.tick(dt_s);
            if self.now_s >= sample_s - dt_s / 2.0 {
                self.sample();
                sample_s += SAMPLE_S;
            }
        }
    }

    fn tick(&mut self, dt_s: f64) {
        while self.acks.front().is_some_and(|(at_s, ..)| *at_s <= self.now_s) {
            let Some((at_s, name, number)) = self.acks.pop_front() else {
                break;
            };
            match self.flows.get_mut(name) {
                Some(flow) => flow.acknowledge(at_s, number),
                None => self.other.iter_mut().for_each(|flow| flow.acknowledge(at_s, number)),
            }
        }
        self.begin();
        self.give(dt_s);
        self.share_out();
        let part = self.part();
        // Whoever is first would always have the room that the queue has.
        let first = (self.now_s / dt_s) as usize % self.flows.len().max(1);
        for at in 0..self.flows.len() {
            let name = (first + at) % self.flows.len();
            let (link, acks) = (&mut self.link, &mut self.acks);
            self.flows[name].send(self.now_s, dt_s, part, name, link, acks);
        }
        if let Some(other) = &mut self.other
            && self.now_s < self.other_ends_s
        {
            other.send(self.now_s, dt_s, None, usize::MAX, &mut self.link, &mut self.acks);
        }
    }

    /// The leading connection is logged in: the controller says how many more to open.
    fn begin(&mut self) {
        let rtt_s = self.link.line.rtt_s;
        let Some(controller) = &mut self.controller else {
            return;
        };
        if self.begun || self.now_s < LOGIN_ROUND_TRIPS * rtt_s {
            return;
        }
        self.begun = true;
        let orders = controller.first(Some(rtt_s), 4);
        self.obey(orders);
        // They were opened as soon as the first one had told the round trip.
        for flow in &mut self.flows {
            flow.usable_s = self.now_s;
        }
    }

    fn obey(&mut self, orders: ::path::Orders) {
        let fills = orders.state == ::path::State::Startup;
        self.has_parts = self.controller.as_ref().is_some_and(::path::Controller::is_line);
        let pacing = Some(orders.pacing).filter(|_| self.has_parts || fills).unwrap_or_default();
        (self.pace, self.window) = (pacing.bytes_per_s, pacing.window_bytes);
        if self.wanted != orders.connections {
            self.wanted = orders.connections;
            self.moves.push((self.now_s, self.wanted));
        }
        let usable_s = self.now_s + JOIN_ROUND_TRIPS * self.link.line.rtt_s;
        let window = WINDOW_BYTES / self.link.packet_bytes;
        while self.flows.len() < self.wanted as usize {
            self.flows.push(Flow::new(self.law, window, usable_s).spreading());
        }
        // Closed ones get no more work; what they have goes on.
    }

    /// Gives commands to flows, as pace, window and depth allow.
    fn give(&mut self, dt_s: f64) {
        if self.controller.is_none() || !self.begun {
            return;
        }
        if self.pauses_s.is_some_and(|span_s| (self.now_s / span_s) as u64 % 2 == 1) {
            return;
        }
        let packets = (COMMAND_BYTES / self.link.packet_bytes).ceil().max(1.0);
        let bytes = packets * self.link.packet_bytes;
        let backlog: u64 = self.flows.iter().map(Flow::backlog).sum();
        let mut outstanding = backlog as f64 * self.link.packet_bytes;
        let window = self.window.unwrap_or(f64::INFINITY).min(self.depth_bytes);
        while outstanding < window || outstanding == 0.0 {
            if self.pace.is_some() && self.free_at_s > self.now_s {
                self.held_s += dt_s;
                break;
            }
            let open = self.flows.iter_mut().take(self.wanted as usize);
            let open = open.filter(|flow| flow.usable_s <= self.now_s);
            let Some(flow) = open.min_by_key(|flow| flow.backlog()) else {
                break;
            };
            flow.given += packets as u64;
            outstanding += bytes;
            if let Some(pace) = self.pace {
                self.free_at_s = self.free_at_s.max(self.now_s - BURST_S) + bytes / pace;
            }
        }
    }

    /// A flow with nothing to send takes over a command that another has not begun to send.
    fn share_out(&mut self) {
        let packets = (COMMAND_BYTES / self.link.packet_bytes).ceil().max(1.0) as u64;
        if self.controller.is_none() {
            return;
        }
        for at in 0..self.flows.len().min(self.wanted as usize) {
            let flow = &self.flows[at];
            if flow.usable_s > self.now_s || flow.unsent() > 0 {
                continue;
            }
            let Some(from) = (0..self.flows.len()).max_by_key(|from| self.flows[*from].unsent())
            else {
                return;
            };
            if self.flows[from].unsent() <= packets {
                return;
            }
            self.flows[from].given -= packets;
            self.flows[at].given += packets;
        }
    }

    /// What a socket may send, in packets a second.
    fn part(&self) -> Option<f64> {
        let pace = self.pace.filter(|_| self.has_parts)?;
        let sending = self.flows.iter().filter(|flow| flow.backlog() > 0).count().max(1);
        let headroom = if self.background { 1.05 } else { 1.25 };
        Some((headroom * pace / sending as f64).max(1048576.0) / self.link.packet_bytes)
    }

    fn sample(&mut self) {
        let (packet, now_s) = (self.link.packet_bytes, self.now_s);
        self.sampled.resize(self.flows.len(), (0, 0));
        let mut connections = Vec::new();
        let mut carried = 0.0;
        for (at, flow) in self.flows.iter().enumerate() {
            if flow.usable_s > now_s {
                continue;
            }
            let (una, retransmits) =
                std::mem::replace(&mut self.sampled[at], (flow.una, flow.retransmits));
            let rate = (flow.una - una) as f64 * packet / SAMPLE_S;
            carried += rate;
            let moved = flow.una > una;
            // The model counts segments; packets may be longer.
            let lost = (flow.retransmits - retransmits) as f64 * packet / 1448.0;
            let flight = flow.in_flight() as f64 * packet;
            let received = rate * flow.min_rtt_s;
            let tcp = Tcp {
                rtt_us: (moved && flow.srtt_s > 0.0).then_some(flow.srtt_s * 1e6),
                rtt_var_us: Some(flow.rtt_var_s * 1e6),
                min_rtt_us: flow.min_rtt_s.is_finite().then_some(flow.min_rtt_s * 1e6),
                cwnd_bytes: (!self.reads).then_some(flow.cwnd * packet),
                in_flight_bytes: Some(if self.reads { received } else { flight }),
                peer_window_bytes: self.reads.then_some(WINDOW_BYTES),
                congestion_control: (!self.reads).then(|| self.law.name()),
                retransmits: Some(if self.reads { lost.min(1.0) } else { lost }),
                ..Tcp::default()
            };
            let (id, bytes_per_s) = (ConnectionId(at as u32), Some(rate));
            connections.push(Connection {
                id,
                age_s: Some(now_s - flow.usable_s),
                bytes_per_s,
                tcp,
            });
        }
        self.rates.push((now_s, carried));
        self.queues.push((now_s, self.link.queue_s(now_s)));
        let other = self.other.as_ref().map_or(0, |flow| flow.una) as f64 * packet;
        self.others.push((now_s, other));
        let backlog: u64 = self.flows.iter().map(Flow::backlog).sum();
        let sample = Sample {
            t_s: now_s,
            connections_open: connections.len().min(self.wanted as usize) as u32,
            bytes_per_s: carried,
            connections,
            held_share: (std::mem::take(&mut self.held_s) / SAMPLE_S).min(1.0),
            outstanding_bytes: Some(backlog as f64 * packet),
            ..Sample::default()
        };
        let Some(controller) = self.controller.as_mut().filter(|_| self.begun) else {
            return;
        };
        let orders = controller.handle_sample(&sample);
        if std::env::var_os("TRACE").is_some() {
            let e = controller.estimate();
            println!(
                "{now_s:6.2} {:8} n {:2}/{:2} rate {:6.1} carried {:6.1} bw {:6.1} pace {:6.1} q {:5.1} now {:5.1} rtt {:5.1} sat {} full {} loss {:.4} dropped {} {:?}",
                format!("{:?}", orders.state),
                sample.connections_open,
                orders.connections,
                carried / 1e6,
                e.carried / 1e6,
                e.bandwidth.unwrap_or(0.0) / 1e6,
                orders.pacing.bytes_per_s.unwrap_or(0.0) / 1e6,
                e.queue_s * 1e3,
                e.queue_now_s * 1e3,
                e.rtt_s.unwrap_or(0.0) * 1e3,
                u8::from(e.saturated),
                u8::from(e.full),
                e.loss,
                self.link.dropped,
                orders.why
            );
        }
        self.obey(orders);
    }

    /// Mean payload between two times, in bytes a second.
    pub(crate) fn mean(&self, from_s: f64, to_s: f64) -> f64 {
        mean(&self.rates, from_s, to_s)
    }

    /// Mean queue of the line between two times, in seconds.
    pub(crate) fn queue_s(&self, from_s: f64, to_s: f64) -> f64 {
        mean(&self.queues, from_s, to_s)
    }

    /// The line as it is now.
    pub(crate) fn line(&self) -> Line {
        self.link.line
    }

    /// Packets that found no place.
    pub(crate) fn dropped(&self) -> u64 {
        self.link.dropped
    }

    /// What is known of the path before the first command.
    pub(crate) fn remember(&mut self, known: Option<Remembered>) {
        self.controller.iter_mut().for_each(|controller| controller.remember(known));
    }

    /// What is worth keeping for the next transfer.
    pub(crate) fn remembered(&self) -> Option<Remembered> {
        self.controller.as_ref()?.remembered()
    }

    /// Mean rate of the other flows between two times.
    pub(crate) fn mean_of_others(&self, from_s: f64, to_s: f64) -> f64 {
        let at = |t_s: f64| self.others.iter().find(|(at_s, _)| *at_s >= t_s).map_or(0.0, |o| o.1);
        (at(to_s - 0.05) - at(from_s)) / (to_s - from_s)
    }
}

/// Mean of what was seen between two times.
fn mean(seen: &[(f64, f64)], from_s: f64, to_s: f64) -> f64 {
    let inside = seen.iter().filter(|(t_s, _)| *t_s > from_s && *t_s <= to_s + 1e-6);
    let (sum, count) = inside.fold((0.0, 0_u32), |(sum, n), (_, value)| (sum + value, n + 1));
    sum / f64::from(count.max(1))
}
