//! Many connections under an application that pauses: random writes of 4 to 128 KiB, sixteen at a
//! time, and a flush after each two hundred, for which it waits. It asks for less than the line
//! carries whenever it waits, and each command meets a window that has grown cold. What it achieves
//! is compared with that of the same run without a pace, as a user would compare it.

use std::collections::VecDeque;

use ::path::{
    Connection, ConnectionId, Controller, PolicyConfig, Sample, State, Tcp, part, sending,
};

use crate::random::Random;

const TICK_S: f64 = 0.002;
const SAMPLE_S: f64 = 0.1;
const SEGMENT: f64 = 1448.0;
/// Ten segments (RFC 6928), and again after a pause of a retransmission timeout (RFC 5681 §4.1).
const INITIAL_WINDOW: f64 = 10.0 * SEGMENT;
const RESTART_AFTER_S: f64 = 0.25;
const WINDOW_MAX: f64 = 2e6;
/// 400 Mbit/s with its headers, over 20 ms, and a queue of a thousand packets.
const LINE: f64 = 48e6;
const RTT_S: f64 = 0.02;
const QUEUE: f64 = 1.5e6;
/// The application, as fio's `--iodepth=16 --fsync=200`.
const DEPTH: usize = 16;
const FLUSH_AFTER: u32 = 200;
/// What the throttle lets go at once after a pause.
const BURST_S: f64 = 0.02;

struct Command {
    asked_s: f64,
    bytes: f64,
    /// Not yet sent, and sent but not acknowledged.
    unsent: f64,
    unacked: f64,
}

struct Socket {
    commands: VecDeque<Command>,
    window: f64,
    threshold: f64,
    in_flight: f64,
    rtt_s: f64,
    sent_s: f64,
    acked: f64,
    lost: f64,
    /// Time of the interval with something to send.
    part: f64,
}

/// A piece that one socket sent in one tick.
struct Piece {
    socket: usize,
    bytes: f64,
    sent_s: f64,
}

struct Run {
    controller: Option<Controller>,
    pace: Option<f64>,
    loss: f64,
    random: Random,
    t_s: f64,
    sockets: Vec<Socket>,
    waiting: VecDeque<Command>,
    outstanding: usize,
    written: u32,
    resumes_s: Option<f64>,
    free_s: f64,
    held_ticks: u32,
    queue: VecDeque<Piece>,
    queued: f64,
    acknowledgements: VecDeque<(f64, Piece)>,
    /// Results.
    done_bytes: f64,
    longest_s: f64,
    least_rate: f64,
}

impl Run {
    fn new(connections: usize, loss: f64, paced: bool, seed: u64) -> Self {
        let socket = |_| Socket {
            commands: VecDeque::new(),
            window: INITIAL_WINDOW,
            threshold: f64::INFINITY,
            in_flight: 0.0,
            rtt_s: RTT_S,
            sent_s: 0.0,
            acked: 0.0,
            lost: 0.0,
            part: f64::INFINITY,
        };
        let mut controller = paced.then(|| PolicyConfig::Fixed(connections as u32).build(true));
        let first = controller.as_mut().map(|one| one.first(Some(RTT_S), connections as u32));
        Self {
            pace: first.and_then(|orders| orders.pacing.bytes_per_s),
            controller,
            loss,
            random: Random::new(seed),
            t_s: 0.0,
            sockets: (0..connections).map(socket).collect(),
            waiting: VecDeque::new(),
            outstanding: 0,
            written: 0,
            resumes_s: None,
            free_s: 0.0,
            held_ticks: 0,
            queue: VecDeque::new(),
            queued: 0.0,
            acknowledgements: VecDeque::new(),
            done_bytes: 0.0,
            longest_s: 0.0,
            least_rate: f64::INFINITY,
        }
    }

    fn to(mut self, t_s: f64) -> Self {
        while self.t_s < t_s {
            for _ in 0..(SAMPLE_S / TICK_S).round() as u32 {
                self.tick();
            }
            self.sample();
        }
        self
    }

    fn tick(&mut self) {
        self.t_s += TICK_S;
        self.acknowledge();
        self.ask();
        self.let_go();
        self.send();
        self.carry();
    }

    /// The application: sixteen at a time, then a flush.
    fn ask(&mut self) {
        if self.written >= FLUSH_AFTER {
            // A flush takes its round trip once all before it has ended.
            if self.outstanding == 0 && self.resumes_s.is_none() {
                self.resumes_s = Some(self.t_s + RTT_S);
            }
            if self.resumes_s.is_none_or(|at_s| self.t_s < at_s) {
                return;
            }
            (self.written, self.resumes_s) = (0, None);
        }
        while self.outstanding < DEPTH && self.written < FLUSH_AFTER {
            let kibibytes = match self.random.uniform() {
                one if one < 0.5 => 4.0,
                one if one < 0.8 => 16.0,
                _ => 128.0,
            };
            let bytes = kibibytes * 1024.0;
            let asked_s = self.t_s;
            self.waiting.push_back(Command { asked_s, bytes, unsent: bytes, unacked: bytes });
            self.outstanding += 1;
            self.written += 1;
        }
    }

    /// The throttle, and the choice of a connection: one with the least to do.
    fn let_go(&mut self) {
        while !self.waiting.is_empty() {
            if self.pace.is_some() && self.free_s > self.t_s {
                self.held_ticks += 1;
                return;
            }
            let Some(command) = self.waiting.pop_front() else { return };
            if let Some(rate) = self.pace {
                self.free_s = self.free_s.max(self.t_s - BURST_S) + command.bytes / rate;
            }
            let backlog = |socket: &Socket| socket.commands.iter().map(|one| one.unacked).sum();
            let first = (self.random.uniform() * self.sockets.len() as f64) as usize;
            let order = (0..self.sockets.len()).map(|n| (n + first) % self.sockets.len());
            let loads = order.map(|n| (n, backlog(&self.sockets[n])));
            let least = loads.min_by(|a: &(usize, f64), b| a.1.total_cmp(&b.1));
            let least = least.map_or(0, |(index, _)| index);
            self.sockets[least].commands.push_back(command);
        }
    }

    fn send(&mut self) {
        for (index, socket) in self.sockets.iter_mut().enumerate() {
            let unsent: f64 = socket.commands.iter().map(|one| one.unsent).sum();
            if unsent <= 0.0 {
                continue;
            }
            if self.t_s - socket.sent_s > RESTART_AFTER_S && socket.in_flight <= 0.0 {
                socket.window = socket.window.min(INITIAL_WINDOW);
            }
            // Spread out over the round trip, as on a long path.
            let most = (2.0 * socket.window / socket.rtt_s).min(socket.part) * TICK_S;
            let mut bytes = unsent.min(socket.window - socket.in_flight).min(most).max(0.0);
            if bytes <= 0.0 {
                continue;
            }
            socket.in_flight += bytes;
            socket.sent_s = self.t_s;
            self.queue.push_back(Piece { socket: index, bytes, sent_s: self.t_s });
            self.queued += bytes;
            for command in &mut socket.commands {
                let now = command.unsent.min(bytes);
                command.unsent -= now;
                bytes -= now;
            }
        }
    }

    /// The line and its queue: what is lost comes again.
    fn carry(&mut self) {
        while self.queued > QUEUE {
            let Some(piece) = self.queue.pop_back() else { break };
            self.queued -= piece.bytes;
            self.lose(&piece, piece.bytes);
        }
        let mut left = LINE * TICK_S;
        while left > 0.0 {
            let Some(mut piece) = self.queue.pop_front() else { return };
            let carried = piece.bytes.min(left);
            (self.queued, left) = (self.queued - carried, left - carried);
            if self.random.uniform() < self.loss * carried / SEGMENT {
                self.lose(&piece, SEGMENT.min(carried));
            }
            let one = Piece { bytes: carried, ..piece };
            self.acknowledgements.push_back((self.t_s + RTT_S, one));
            piece.bytes -= carried;
            if piece.bytes > 0.0 {
                self.queue.push_front(piece);
            }
        }
    }

    /// A loss halves the window and costs the commands of its socket a round trip.
    fn lose(&mut self, piece: &Piece, bytes: f64) {
        let socket = &mut self.sockets[piece.socket];
        socket.window = (0.7 * socket.window).max(2.0 * SEGMENT);
        socket.threshold = socket.window;
        socket.lost += (bytes / SEGMENT).ceil();
        let again = Piece { socket: piece.socket, bytes, sent_s: piece.sent_s };
        self.queue.push_back(again);
        self.queued += bytes;
        if let Some(command) = socket.commands.front_mut() {
            command.unacked += bytes;
        }
        socket.in_flight += bytes;
    }

    fn acknowledge(&mut self) {
        while self.acknowledgements.front().is_some_and(|(at_s, _)| *at_s <= self.t_s) {
            let Some((_, piece)) = self.acknowledgements.pop_front() else { return };
            let socket = &mut self.sockets[piece.socket];
            socket.in_flight -= piece.bytes;
            socket.acked += piece.bytes;
            let segments = (piece.bytes / SEGMENT).max(1.0);
            let rtt_s = self.t_s - piece.sent_s;
            socket.rtt_s += (1.0 - 0.875_f64.powf(segments)) * (rtt_s - socket.rtt_s);
            socket.window += match socket.window < socket.threshold {
                true => piece.bytes,
                false => SEGMENT * piece.bytes / socket.window,
            };
            socket.window = socket.window.min(WINDOW_MAX);
            let mut bytes = piece.bytes;
            while let Some(command) = socket.commands.front_mut() {
                let now = command.unacked.min(bytes);
                (command.unacked, bytes) = (command.unacked - now, bytes - now);
                if command.unacked > 0.5 {
                    break;
                }
                let Some(command) = socket.commands.pop_front() else { break };
                self.outstanding -= 1;
                self.done_bytes += command.bytes;
                self.longest_s = self.longest_s.max(self.t_s - command.asked_s);
            }
        }
    }

    fn sample(&mut self) {
        let outstanding =
            self.sockets.iter().flat_map(|socket| &socket.commands).map(|one| one.bytes).sum();
        let bytes_per_s: f64 =
            self.sockets.iter().map(|socket| socket.acked).sum::<f64>() / SAMPLE_S;
        let starved = outstanding < 1.3 * bytes_per_s * RTT_S;
        let connection = |(index, socket): (usize, &mut Socket)| {
            let acked = std::mem::take(&mut socket.acked);
            let tcp = Tcp {
                // What is not sent is not acknowledged, and says nothing of the path as it is now.
                rtt_us: (acked > 0.0).then_some(socket.rtt_s * 1e6),
                min_rtt_us: Some(RTT_S * 1e6),
                cwnd_bytes: Some(socket.window),
                in_flight_bytes: Some(socket.in_flight),
                retransmits: Some(std::mem::take(&mut socket.lost)),
                app_limited: Some(starved && socket.commands.is_empty()),
                ..Tcp::default()
            };
            let id = ConnectionId(index as u32);
            Connection { id, age_s: None, bytes_per_s: Some(acked / SAMPLE_S), tcp }
        };
        let connections: Vec<_> = self.sockets.iter_mut().enumerate().map(connection).collect();
        let held_share = f64::from(std::mem::take(&mut self.held_ticks)) * TICK_S / SAMPLE_S;
        let sample = Sample {
            t_s: self.t_s,
            connections_open: self.sockets.len() as u32,
            bytes_per_s,
            held_share,
            outstanding_bytes: Some(outstanding),
            connections,
            ..Sample::default()
        };
        let Some(controller) = &mut self.controller else { return };
        let orders = controller.handle_sample(&sample);
        self.pace = orders.pacing.bytes_per_s;
        self.least_rate = self.pace.map_or(self.least_rate, |rate| rate.min(self.least_rate));
        let under_way = |socket: &Socket| socket.commands.iter().map(|one| one.bytes).sum();
        let sending = sending(self.sockets.iter().map(under_way));
        let paced = self.pace.filter(|_| orders.state != State::Startup);
        let part = paced.map_or(f64::INFINITY, |rate| part(rate, sending, RTT_S, false));
        self.sockets.iter_mut().for_each(|socket| socket.part = part);
    }
}

const SEEDS: std::ops::RangeInclusive<u64> = 1..=8;

#[test]
fn pauses_of_an_application_make_no_line_slow() {
    let mut failed = Vec::new();
    for connections in [4, 16, 32, 64] {
        for loss in [0.0, 1e-4] {
            for seed in SEEDS {
                let run = |paced| Run::new(connections, loss, paced, seed).to(30.0);
                let (paced, free) = (run(true), run(false));
                let share = paced.done_bytes / free.done_bytes;
                let wait = paced.longest_s / free.longest_s;
                let least = paced.least_rate / LINE;
                if share < 0.8 || wait > 1.5 || least < 0.1 {
                    failed.push(format!(
                        "{connections} connections, loss {loss}, seed {seed}: {share:.2} of what is \
                         carried without a pace ({:.1} MB/s), {wait:.2} times its longest wait \
                         ({:.2} s), rate down to {least:.3} of the line",
                        free.done_bytes / 30e6, free.longest_s
                    ));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}
