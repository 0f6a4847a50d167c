//! A sender of TCP with selective acknowledgements: slow start with HyStart (RFC 9406), reno (RFC
//! 5681), cubic (RFC 9438) or a window of two bandwidth × delay products that minds no losses, as
//! BBR's first version. A packet is lost when a later one is acknowledged, because lines keep the
//! order (RFC 8985).

use std::collections::VecDeque;

use ::path::CongestionControl;

use crate::link::Link;

const INITIAL_WINDOW: f64 = 10.0;
const RTO_MIN_S: f64 = 0.2;
const RTO_FIRST_S: f64 = 1.0;
const CUBIC_C: f64 = 0.4;
const CUBIC_BETA: f64 = 0.7;
const BBR_ROUNDS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Law {
    Reno,
    Cubic,
    Bbr,
}

impl Law {
    pub(crate) fn name(self) -> CongestionControl {
        match self {
            Self::Reno => CongestionControl::Reno,
            Self::Cubic => CongestionControl::Cubic,
            Self::Bbr => CongestionControl::Bbr,
        }
    }
}

struct Sent {
    number: u64,
    seq: u64,
    at_s: f64,
}

pub(crate) struct Flow {
    law: Law,
    /// When it is open, and windows are in packets from here on.
    pub(crate) usable_s: f64,
    pub(crate) cwnd: f64,
    window_max: f64,
    ssthresh: f64,
    /// What the application has given it to send, in packets, and what of that is sent.
    pub(crate) given: u64,
    next_seq: u64,
    pub(crate) una: u64,
    received: VecDeque<bool>,
    sent: VecDeque<Sent>,
    numbers: u64,
    lost: VecDeque<u64>,
    recovery: u64,
    pub(crate) retransmits: u64,
    pub(crate) srtt_s: f64,
    pub(crate) rtt_var_s: f64,
    pub(crate) min_rtt_s: f64,
    last_ack_s: f64,
    /// Timeouts since anything was acknowledged.
    timeouts: i32,
    /// It spreads a window over the round trip, as Linux does for sockets with a pacing rate.
    spreads: bool,
    /// The window is what stopped it from sending last.
    limited: bool,
    /// The most that a pace lets it send, in packets, by now.
    credit: f64,
    round_ends: u64,
    round_min_s: f64,
    cubic_max: f64,
    epoch_s: Option<f64>,
    /// Packets delivered, and their number a round trip ago with the rates of the last rounds.
    delivered: u64,
    round_began: (f64, u64),
    rates: VecDeque<f64>,
}

impl Flow {
    pub(crate) fn new(law: Law, window_max: f64, usable_s: f64) -> Self {
        Self {
            law,
            usable_s,
            cwnd: INITIAL_WINDOW,
            window_max,
            ssthresh: f64::INFINITY,
            given: 0,
            next_seq: 0,
            una: 0,
            received: VecDeque::new(),
            sent: VecDeque::new(),
            numbers: 0,
            lost: VecDeque::new(),
            recovery: 0,
            retransmits: 0,
            srtt_s: 0.0,
            rtt_var_s: 0.0,
            min_rtt_s: f64::INFINITY,
            last_ack_s: usable_s,
            timeouts: 0,
            spreads: false,
            limited: false,
            credit: 0.0,
            round_ends: 0,
            round_min_s: f64::INFINITY,
            cubic_max: 0.0,
            epoch_s: None,
            delivered: 0,
            round_began: (usable_s, 0),
            rates: VecDeque::new(),
        }
    }

    /// It always has something to send.
    pub(crate) fn greedy(mut self) -> Self {
        self.given = 1 << 48;
        self
    }

    /// With its windows spread over the round trip.
    pub(crate) fn spreading(mut self) -> Self {
        self.spreads = true;
        self
    }

    /// What it has not begun to send.
    pub(crate) fn unsent(&self) -> u64 {
        self.given - self.next_seq
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.sent.len() as u64
    }

    /// What it has to deliver yet.
    pub(crate) fn backlog(&self) -> u64 {
        self.given - self.una
    }

    /// Sends what window and pace allow; acknowledgements to come go to `acks`, with `name`.
    pub(crate) fn send(
        &mut self,
        now_s: f64,
        dt_s: f64,
        pace: Option<f64>,
        name: usize,
        link: &mut Link,
        acks: &mut VecDeque<(f64, usize, u64)>,
    ) {
        if now_s < self.usable_s {
            return;
        }
        self.time_out(now_s);
        let own = (self.law == Law::Bbr && !self.rates.is_empty()).then(|| 1.25 * self.bandwidth());
        let gain = if self.cwnd < self.ssthresh { 2.0 } else { 1.2 };
        let spread = (self.spreads && self.srtt_s > 0.0).then(|| gain * self.cwnd / self.srtt_s);
        let pace = [pace, own, spread].into_iter().flatten().reduce(f64::min);
        let most = pace.map_or(f64::INFINITY, |pace| (pace * dt_s).max(2.0) * 2.0);
        self.credit = (self.credit + pace.map_or(f64::INFINITY, |pace| pace * dt_s)).min(most);
        self.limited = false;
        while self.credit >= 1.0 {
            if self.in_flight() >= self.cwnd as u64 {
                self.limited = true;
                return;
            }
            let seq = match self.lost.pop_front() {
                Some(seq) => {
                    self.retransmits += 1;
                    seq
                }
                None if self.next_seq < self.given => {
                    self.next_seq += 1;
                    self.received.push_back(false);
                    self.next_seq - 1
                }
                None => return,
            };
            if self.sent.is_empty() {
                self.last_ack_s = now_s;
            }
            self.credit -= 1.0;
            self.numbers += 1;
            self.sent.push_back(Sent { number: self.numbers, seq, at_s: now_s });
            if let Some(ack_s) = link.send(now_s) {
                acks.push_back((ack_s, name, self.numbers));
            }
        }
        // Linux: in slow start a window counts as used from half of it on.
        self.limited = self.cwnd < self.ssthresh && 2 * self.in_flight() >= self.cwnd as u64;
    }

    /// Packet `number` is acknowledged.
    pub(crate) fn acknowledge(&mut self, now_s: f64, number: u64) {
        let limited = self.limited;
        (self.last_ack_s, self.timeouts) = (now_s, 0);
        while self.sent.front().is_some_and(|sent| sent.number < number) {
            let Some(sent) = self.sent.pop_front() else {
                break;
            };
            self.lost.push_back(sent.seq);
            if sent.number > self.recovery {
                self.reduce(now_s);
            }
        }
        if self.sent.front().is_none_or(|sent| sent.number != number) {
            return; // given up by a timeout
        }
        let Some(sent) = self.sent.pop_front() else {
            return;
        };
        self.delivered += 1;
        if let Some(known) = sent.seq.checked_sub(self.una) {
            self.received[known as usize] = true;
        }
        while self.received.front() == Some(&true) {
            self.received.pop_front();
            self.una += 1;
        }
        let rtt_s = now_s - sent.at_s;
        if self.srtt_s > 0.0 {
            self.rtt_var_s += ((rtt_s - self.srtt_s).abs() - self.rtt_var_s) / 4.0;
        }
        self.srtt_s += (rtt_s - self.srtt_s) * if self.srtt_s > 0.0 { 0.125 } else { 1.0 };
        self.min_rtt_s = self.min_rtt_s.min(rtt_s);
        self.grow(now_s, rtt_s, number, limited);
    }

    fn grow(&mut self, now_s: f64, rtt_s: f64, number: u64, limited: bool) {
        self.round_min_s = self.round_min_s.min(rtt_s);
        if number >= self.round_ends {
            let near_s = (self.min_rtt_s / 8.0).clamp(0.004, 0.016);
            if self.law != Law::Bbr
                && self.cwnd >= 16.0
                && self.round_min_s > self.min_rtt_s + near_s
            {
                self.ssthresh = self.ssthresh.min(self.cwnd);
            }
            let (began_s, delivered) = self.round_began;
            self.rates.push_back((self.delivered - delivered) as f64 / (now_s - began_s).max(1e-6));
            while self.rates.len() > BBR_ROUNDS {
                self.rates.pop_front();
            }
            self.round_began = (now_s, self.delivered);
            (self.round_ends, self.round_min_s) = (self.numbers, f64::INFINITY);
        }
        if self.law == Law::Bbr {
            let window = 2.0 * self.bandwidth() * self.min_rtt_s;
            self.cwnd = window.max(INITIAL_WINDOW).min(self.window_max);
            return;
        }
        if !limited {
            return;
        }
        self.cwnd += match self.law {
            _ if self.cwnd < self.ssthresh => 1.0,
            Law::Cubic => self.cubic(now_s),
            _ => 1.0 / self.cwnd,
        };
        self.cwnd = self.cwnd.min(self.window_max);
    }

    /// What an acknowledgement adds to cubic's window (RFC 9438 §4.2, §4.3).
    fn cubic(&mut self, now_s: f64) -> f64 {
        if self.epoch_s.is_none() {
            self.cubic_max = self.cubic_max.max(self.cwnd);
        }
        let since_s = now_s - *self.epoch_s.get_or_insert(now_s);
        let k = (self.cubic_max * (1.0 - CUBIC_BETA) / CUBIC_C).cbrt();
        let target = CUBIC_C * (since_s + self.srtt_s - k).powi(3) + self.cubic_max;
        let friendly = 0.53 / self.cwnd;
        ((target.min(1.5 * self.cwnd) - self.cwnd) / self.cwnd).max(friendly)
    }

    fn bandwidth(&self) -> f64 {
        self.rates.iter().copied().fold(0.0, f64::max)
    }

    fn reduce(&mut self, now_s: f64) {
        self.recovery = self.numbers;
        let beta = match self.law {
            Law::Reno => 0.5,
            Law::Cubic => CUBIC_BETA,
            Law::Bbr => return,
        };
        self.cubic_max = self.cwnd;
        self.epoch_s = Some(now_s);
        self.ssthresh = (self.cwnd * beta).max(2.0);
        self.cwnd = self.ssthresh;
    }

    /// Each is waited for twice as long as the one before (RFC 6298 §5.5), and only the first says
    /// something about the window (RFC 5681 §3.1).
    fn time_out(&mut self, now_s: f64) {
        let known = self.srtt_s > 0.0;
        let first_s = if known { RTO_MIN_S + 2.0 * self.srtt_s } else { RTO_FIRST_S };
        let patience_s = first_s * f64::from(self.timeouts).exp2();
        if self.sent.is_empty() || now_s - self.last_ack_s < patience_s {
            return;
        }
        self.lost.extend(self.sent.drain(..).map(|sent| sent.seq));
        if self.timeouts == 0 {
            self.reduce(now_s);
        }
        self.timeouts += 1;
        (self.cwnd, self.last_ack_s) = (2.0, now_s);
    }
}
