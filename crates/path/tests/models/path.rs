//! A path as a fluid model in virtual time: windows that double per round trip up to what a
//! connection may have, a line that caps their sum, noise from a seed. It is no TCP; it has what a
//! tuner must cope with: slow starts, plateaus with round edges, steps and noise.

use crate::random::Random;
use crate::{CongestionControl, Connection, ConnectionId, Decision, Policy, Sample, Tcp};

const MSS_BYTES: f64 = 1448.0;
/// Ten segments (RFC 6928).
const INITIAL_WINDOW_BYTES: f64 = 10.0 * MSS_BYTES;
/// Round trips until a new connection carries data: TCP, login.
const OPENING_ROUND_TRIPS: f64 = 3.0;
const TICK_S: f64 = 0.01;
pub(crate) const SAMPLE_S: f64 = 0.1;
/// Payload of 1 Gbit/s Ethernet with TCP and iSCSI headers.
pub(crate) const GIGABIT: f64 = 117e6;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Law {
    /// 1.22 · MSS / (RTT · √p) (Mathis 1997).
    Reno,
    /// W = 1.054 · (RTT/p)^¾ segments (RFC 9438 §5.1), at least Reno's.
    Cubic,
    /// Does not mind losses.
    Bbr,
}

impl From<Law> for CongestionControl {
    fn from(law: Law) -> Self {
        match law {
            Law::Reno => Self::Reno,
            Law::Cubic => Self::Cubic,
            Law::Bbr => Self::Bbr,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) line_bytes_per_s: f64,
    pub(crate) rtt_s: f64,
    pub(crate) loss: f64,
    pub(crate) law: Law,
    pub(crate) buffer_bytes: f64,
    /// Time that each `pdu_bytes` cost besides their transfer (the storage of the APT study).
    pub(crate) storage_s_per_byte: f64,
    pub(crate) competitors: f64,
    /// More connections than this overrun the queue and wait for timeouts: of 64 over a queue for
    /// 30, real TCP with windows of 64 KB carried 74 %.
    pub(crate) queue_connections: f64,
    /// Relative standard deviation of a sample.
    pub(crate) noise: f64,
    pub(crate) with_tcp: bool,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            line_bytes_per_s: GIGABIT,
            rtt_s: 0.02,
            loss: 0.0,
            law: Law::Cubic,
            buffer_bytes: 2e6,
            storage_s_per_byte: 0.0,
            competitors: 0.0,
            queue_connections: f64::INFINITY,
            noise: 0.02,
            with_tcp: false,
        }
    }
}

impl Path {
    /// What the law and the buffers allow one connection.
    fn window_bytes(&self) -> f64 {
        let reno = 1.22 * MSS_BYTES / self.loss.sqrt();
        let cubic = 1.054 * MSS_BYTES * (self.rtt_s / self.loss).powf(0.75);
        let law = match self.law {
            Law::Reno => reno,
            Law::Cubic => cubic.max(reno),
            Law::Bbr => f64::INFINITY,
        };
        law.min(self.buffer_bytes).max(2.0 * MSS_BYTES)
    }

    fn share(&self, connections: f64) -> f64 {
        let kept = (self.queue_connections / connections).min(1.0).powf(0.4);
        kept * self.line_bytes_per_s * connections / (connections + self.competitors)
    }

    /// The rate of all, given the sum of their windows.
    fn rate(&self, windows_bytes: f64, connections: f64) -> f64 {
        let wanted = windows_bytes / self.rtt_s / connections;
        let wanted = connections / (1.0 / wanted.max(1.0) + self.storage_s_per_byte);
        // The edge is round: flows that lose at the line do not use all of it.
        let line = self.share(connections);
        (wanted.powi(-16) + line.powi(-16)).powf(-1.0 / 16.0)
    }

    /// What `n` connections reach when all windows have grown.
    pub(crate) fn steady(&self, n: u32) -> f64 {
        self.rate(self.window_bytes() * f64::from(n), f64::from(n))
    }

    /// The best steady rate up to `max`, and the fewest connections within 2 % of it.
    pub(crate) fn best(&self, max: u32) -> (f64, u32) {
        let best = (1..=max).map(|n| self.steady(n)).fold(0.0, f64::max);
        let fewest = (1..=max).find(|&n| self.steady(n) >= 0.98 * best).unwrap_or(max);
        (best, fewest)
    }
}

/// A transfer over a path, sample by sample.
pub(crate) struct Transfer {
    pub(crate) path: Path,
    pub(crate) t_s: f64,
    /// When the path becomes another one.
    pub(crate) changes: Vec<(f64, Path)>,
    /// The most connections that the peer opens.
    pub(crate) granted: u32,
    initial: u32,
    windows: Vec<f64>,
    opened_s: Vec<f64>,
    /// What the kernel remembers as the shortest round trip (for minutes: longer than any run).
    min_rtt_s: f64,
    random: Random,
    /// Time and true rate of each sample.
    pub(crate) rates: Vec<(f64, f64)>,
    /// Time and wanted connections at each change.
    pub(crate) moves: Vec<(f64, u32)>,
}

impl Transfer {
    pub(crate) fn new(path: Path, n: u32, seed: u64) -> Self {
        let mut transfer = Self {
            path,
            t_s: 0.0,
            changes: Vec::new(),
            granted: u32::MAX,
            initial: n,
            windows: Vec::new(),
            opened_s: Vec::new(),
            min_rtt_s: f64::INFINITY,
            random: Random::new(seed),
            rates: Vec::new(),
            moves: Vec::new(),
        };
        transfer.resize(n);
        transfer
    }

    pub(crate) fn connections(&self) -> u32 {
        self.windows.len() as u32
    }

    fn resize(&mut self, n: u32) {
        self.windows.resize(n as usize, INITIAL_WINDOW_BYTES);
        self.opened_s.resize(n as usize, self.t_s);
    }

    /// The mean rate over the next interval.
    fn interval(&mut self) -> f64 {
        let ticks = (SAMPLE_S / TICK_S).round();
        let n = f64::from(self.connections());
        let mut bytes = 0.0;
        for _ in 0..ticks as u32 {
            self.t_s += TICK_S;
            self.change_path();
            // No flow keeps much more in flight than its share of the line and a little queue.
            let fair = 1.5 * self.path.share(n) * self.path.rtt_s / n;
            let most = self.path.window_bytes().min(fair.max(INITIAL_WINDOW_BYTES));
            let growth = (TICK_S / self.path.rtt_s).exp2();
            let mut sum = 0.0;
            for (window, opened_s) in self.windows.iter_mut().zip(&self.opened_s) {
                if self.t_s - opened_s > OPENING_ROUND_TRIPS * self.path.rtt_s {
                    *window = (*window * growth).min(most);
                    sum += *window;
                }
            }
            bytes += TICK_S * if sum > 0.0 { self.path.rate(sum, n) } else { 0.0 };
        }
        bytes / SAMPLE_S
    }

    fn change_path(&mut self) {
        if self.changes.first().is_some_and(|(at_s, _)| self.t_s >= *at_s) {
            let (noise, with_tcp) = (self.path.noise, self.path.with_tcp);
            self.path = Path { noise, with_tcp, ..self.changes.remove(0).1 };
        }
    }

    fn sample(&mut self, bytes_per_s: f64) -> Sample {
        let mut sample = Sample {
            t_s: self.t_s,
            connections_open: self.connections(),
            bytes_per_s,
            ..Sample::default()
        };
        if self.path.with_tcp {
            let n = f64::from(self.connections());
            let demand = self.windows.iter().sum::<f64>() / self.path.rtt_s;
            let queue = (demand / self.path.line_bytes_per_s).clamp(1.0, 1.5);
            let window = self.windows.iter().sum::<f64>() / n;
            let rtt_s = self.path.rtt_s * queue;
            self.min_rtt_s = self.min_rtt_s.min(rtt_s);
            let tcp = Tcp {
                rtt_us: Some(rtt_s * 1e6),
                min_rtt_us: Some(self.min_rtt_s * 1e6),
                cwnd_bytes: Some(window),
                in_flight_bytes: Some(window),
                retransmits: Some(self.path.loss * bytes_per_s / n * SAMPLE_S / MSS_BYTES),
                congestion_control: Some(self.path.law.into()),
                ..Tcp::default()
            };
            let connection = |(index, opened_s): (usize, &f64)| Connection {
                id: ConnectionId(index as u32),
                age_s: Some(self.t_s - opened_s),
                bytes_per_s: Some(bytes_per_s / n),
                tcp,
            };
            sample.connections = self.opened_s.iter().enumerate().map(connection).collect();
        }
        sample
    }

    /// Runs until `t_s`; the policy's wishes are fulfilled at once.
    pub(crate) fn run(&mut self, policy: &mut dyn Policy, t_s: f64) -> Option<Decision> {
        let mut last = None;
        while self.t_s + SAMPLE_S / 2.0 < t_s {
            let rate = self.interval();
            self.rates.push((self.t_s, rate));
            let noisy = rate * (1.0 + self.path.noise * self.random.normal()).max(0.05);
            let decision = {
                let sample = self.sample(noisy);
                policy.handle_sample(&sample)
            };
            if self.moves.last().map_or(self.connections(), |m| m.1) != decision.connections {
                self.moves.push((self.t_s, decision.connections));
            }
            self.resize(decision.connections.min(self.granted));
            last = Some(decision);
        }
        last
    }

    /// Mean true rate between two times.
    pub(crate) fn mean(&self, from_s: f64, to_s: f64) -> f64 {
        let inside = self.rates.iter().filter(|(t, _)| *t > from_s && *t <= to_s + 1e-6);
        let (sum, count) = inside.fold((0.0, 0.0), |(sum, count), (_, r)| (sum + r, count + 1.0));
        sum / count
    }

    /// The number of connections wanted at each sample of a time, in order of size.
    fn wanted(&self, from_s: f64, to_s: f64) -> Vec<u32> {
        let at = |t: f64| self.moves.iter().rev().find(|m| m.0 <= t).map_or(self.initial, |m| m.1);
        let inside = self.rates.iter().map(|r| r.0).filter(|t| *t > from_s && *t <= to_s);
        let mut wanted: Vec<u32> = inside.map(at).collect();
        wanted.sort_unstable();
        wanted
    }

    /// The median of the number of connections over a time.
    pub(crate) fn usual(&self, from_s: f64, to_s: f64) -> u32 {
        let wanted = self.wanted(from_s, to_s);
        wanted[wanted.len() / 2]
    }

    /// First time after `from_s` from which the mean over half a second reaches `level`.
    pub(crate) fn reaches(&self, level: f64, from_s: f64) -> Option<f64> {
        let times = self.rates.iter().map(|(t, _)| *t).filter(|t| *t > from_s + 0.49);
        times.into_iter().find(|&t| self.mean(t - 0.5, t) >= level)
    }
}
