//! Where the time of a connection went: at each moment its commands say who is waited for, and
//! while data flow, TCP says what held them back. All times are the initiator's, so what comes
//! from the target counts when it has reached the initiator. The shares add up to the whole; what
//! could not be told is one of them.

use std::collections::HashMap;

use iscsi_proto::pdu::{Header, Pdu};
use serde::Serialize;

use super::commands::{CommandTimes, Kind, Records};
use super::flow::{Flow, Pause, release_ns};

/// Commands under way that are followed; a window is seldom above 128.
const COMMANDS_MAX: usize = 2048;
/// FirstBurstLength where the login was not captured (RFC 7143 §13.14).
const FIRST_BURST_BYTES_DEFAULT: u64 = 65_536;

/// Where the time went, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Shares {
    /// Waiting for memory of the sender's buffer.
    pub send_buffer_ns: u64,
    /// The receiver's window was full.
    pub receive_window_ns: u64,
    /// Losses were repaired, or the window was small because of them.
    pub congestion_loss_ns: u64,
    /// The congestion window was full.
    pub congestion_window_ns: u64,
    /// The line was busy.
    pub line_ns: u64,
    /// Waiting for R2Ts, the network's part.
    pub r2t_ns: u64,
    /// Waiting for a response or the first data, the network's part.
    pub round_trip_ns: u64,
    /// The target had everything it needed and worked.
    pub target_ns: u64,
    /// The initiator had nothing under way, or did not send what it could.
    pub application_ns: u64,
    /// Not known: the capture has a hole there.
    pub unattributed_ns: u64,
}

impl Shares {
    /// The whole.
    pub fn sum_ns(&self) -> u64 {
        self.send_buffer_ns
            + self.receive_window_ns
            + self.congestion_loss_ns
            + self.congestion_window_ns
            + self.line_ns
            + self.r2t_ns
            + self.round_trip_ns
            + self.target_ns
            + self.application_ns
            + self.unattributed_ns
    }
}

#[derive(Clone, Debug)]
struct Command {
    kind: Kind,
    begin_ns: u64,
    /// When the initiator last sent something of it, and where that ends in the stream.
    sent_ns: u64,
    sent_end: u64,
    expected: u64,
    permitted: u64,
    /// Bytes sent (of a write) or received (of a read).
    moved: u64,
    receiving: bool,
    first_data_ns: Option<u64>,
    last_data_ns: Option<u64>,
    r2ts: u32,
    r2t_wait_ns: u64,
}

/// Who is waited for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Unknown,
    Nothing,
    Sending,
    Receiving,
    /// Since when, stream end of what must arrive first, and for an R2T or for something else.
    Waiting {
        since_ns: u64,
        end: u64,
        r2t: bool,
        read: bool,
    },
}

/// Time in which all writes that were begun had sent what they may.
#[derive(Clone, Copy, Debug, Default)]
struct Waited {
    r2t_ns: u64,
    round_trip_ns: u64,
    target_ns: u64,
}

/// What the network looks like at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) rtt_ns: u64,
    pub(crate) first_burst: Option<u64>,
}

/// Attributes the time of one connection.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    commands: HashMap<u32, Command>,
    origin_ns: u64,
    begin_ns: Option<u64>,
    now_ns: u64,
    unknown: bool,
    shares: Shares,
    /// Time since the last segment of the sender, to be named when the next one comes.
    sending_ns: u64,
    receiving_ns: u64,
    target_ns: u64,
    /// Since the last segment of the sender, as [`Waited`]; what sends it on tells whether so.
    writing: Waited,
    /// When something of the target last came that the initiator may have waited for.
    answered_ns: Option<u64>,
    idle_since_ns: Option<u64>,
    last_was_kept: bool,
    records: Records,
    most_outstanding: usize,
    outstanding_ns: f64,
}

impl Timeline {
    pub(crate) fn new(origin_ns: u64) -> Self {
        Self { origin_ns, ..Self::default() }
    }

    pub(crate) fn records(&self) -> &Records {
        &self.records
    }

    pub(crate) fn shares(&self) -> Shares {
        self.shares
    }

    pub(crate) fn wall_ns(&self) -> u64 {
        self.begin_ns.map_or(0, |begin| self.now_ns.saturating_sub(begin))
    }

    pub(crate) fn most_outstanding(&self) -> usize {
        self.most_outstanding
    }

    /// Commands under way, the mean over the time in which there were any or none.
    pub(crate) fn mean_outstanding(&self) -> f64 {
        self.outstanding_ns / (self.wall_ns().max(1) as f64)
    }

    /// The stream was lost: what is under way is not known until commands are seen again.
    pub(crate) fn lose(&mut self, now: u64, to_target: &mut Flow, path: Path) {
        self.advance(now, to_target, path);
        self.commands.clear();
        self.idle_since_ns = None;
        self.unknown = self.begin_ns.is_some();
    }

    fn state(&self) -> State {
        if self.unknown {
            return State::Unknown;
        }
        if self.commands.is_empty() {
            return State::Nothing;
        }
        let mut waiting: Option<(u64, u64, bool, bool)> = None;
        let mut receiving = false;
        for command in self.commands.values() {
            let writes = command.kind == Kind::Write;
            if writes && command.permitted > command.moved {
                return State::Sending;
            }
            receiving |= command.receiving;
            let candidate = (
                command.sent_ns,
                command.sent_end,
                writes && command.moved < command.expected,
                command.kind == Kind::Read,
            );
            if waiting.is_none_or(|oldest| candidate < oldest) {
                waiting = Some(candidate);
            }
        }
        match waiting {
            _ if receiving => State::Receiving,
            Some((since_ns, end, r2t, read)) => State::Waiting { since_ns, end, r2t, read },
            None => State::Nothing,
        }
    }

    /// Time goes on to `now`.
    pub(crate) fn advance(&mut self, now: u64, to_target: &Flow, path: Path) {
        if self.begin_ns.is_none() || now <= self.now_ns {
            return;
        }
        let step = now - self.now_ns;
        self.outstanding_ns += self.commands.len() as f64 * step as f64;
        match self.state() {
            State::Unknown => self.shares.unattributed_ns += step,
            State::Nothing => self.shares.application_ns += step,
            State::Sending => self.sending_ns += step,
            State::Receiving => self.receiving_ns += step,
            State::Waiting { since_ns, end, r2t, read } => {
                // The network's part lasts a round trip, and until what was sent has arrived; the
                // last segment's acknowledgement may be a delayed one, so it is not waited for.
                let slack = 2 * u64::from(to_target.mss());
                let arrived = to_target.acked().saturating_add(slack) >= end;
                let network_until = since_ns.saturating_add(path.rtt_ns);
                let network = if arrived {
                    network_until.saturating_sub(self.now_ns).min(step)
                } else {
                    step
                };
                if read {
                    self.shares.round_trip_ns += network;
                    self.target_ns += step - network;
                } else {
                    let waited = &mut self.writing;
                    *(if r2t { &mut waited.r2t_ns } else { &mut waited.round_trip_ns }) += network;
                    waited.target_ns += step - network;
                }
            }
        }
        self.now_ns = now;
    }

    /// The initiator sent a data segment after a pause.
    pub(crate) fn handle_sent(&mut self, pause: Pause, to_target: &mut Flow, rtt_ns: u64) {
        let waited = std::mem::take(&mut self.sending_ns);
        self.name(waited, pause, to_target, Kind::Write);
        // Who has no more commands than these waits for an answer to begin the next. One that an
        // acknowledgement lets begin had been there, and TCP did not take it.
        let answered =
            self.answered_ns.is_some_and(|at| self.now_ns.saturating_sub(at) <= release_ns(rtt_ns));
        if pause == Pause::Released && !answered {
            let Waited { r2t_ns, round_trip_ns, target_ns } = std::mem::take(&mut self.writing);
            to_target.add_blocked(r2t_ns + round_trip_ns + target_ns);
        }
        self.settle_writing();
    }

    fn settle_writing(&mut self) {
        let waited = std::mem::take(&mut self.writing);
        self.shares.r2t_ns += waited.r2t_ns;
        self.shares.round_trip_ns += waited.round_trip_ns;
        self.shares.target_ns += waited.target_ns;
    }

    /// A data segment of the target arrived after a pause.
    pub(crate) fn handle_arrived(&mut self, pause: Pause, to_initiator: &mut Flow, rtt_ns: u64) {
        // What comes as soon after the oldest command as after an acknowledgement is its answer: no
        // window of TCP held back what was not asked for. The command carries an acknowledgement,
        // too.
        if let State::Waiting { since_ns, read: true, .. } = self.state()
            && pause != Pause::Loss
            && self.now_ns.saturating_sub(since_ns) <= rtt_ns.saturating_add(release_ns(rtt_ns))
        {
            self.shares.target_ns += std::mem::take(&mut self.target_ns);
        }
        let waited = std::mem::take(&mut self.receiving_ns);
        self.name(waited, pause, to_initiator, Kind::Read);
        let waited = std::mem::take(&mut self.target_ns);
        self.name(waited, pause, to_initiator, Kind::Read);
    }

    fn name(&mut self, waited: u64, pause: Pause, flow: &mut Flow, kind: Kind) {
        match pause {
            Pause::Loss => self.shares.congestion_loss_ns += waited,
            Pause::Window => self.shares.receive_window_ns += waited,
            Pause::Released | Pause::Paced => flow.add_blocked(waited),
            Pause::Idle if kind == Kind::Write => self.shares.application_ns += waited,
            Pause::Idle => self.shares.target_ns += waited,
        }
    }

    /// What waits to be named at the end.
    pub(crate) fn finish(&mut self) {
        self.shares.unattributed_ns += std::mem::take(&mut self.sending_ns);
        self.shares.unattributed_ns += std::mem::take(&mut self.receiving_ns);
        self.shares.target_ns += std::mem::take(&mut self.target_ns);
        self.settle_writing();
    }

    /// A PDU of the initiator begins; `end` is where it ends in the stream.
    pub(crate) fn handle_request(
        &mut self,
        pdu: &Pdu,
        header: &Header,
        end: u64,
        now: u64,
        path: Path,
    ) {
        match pdu {
            Pdu::ScsiCommand(command) => {
                if self.begin_ns.is_none() {
                    self.begin_ns = Some(now);
                    self.now_ns = now;
                }
                self.unknown = false;
                if let Some(idle) = self.idle_since_ns.take()
                    && self.last_was_kept
                    && let Some(record) = self.records.last()
                {
                    record.tc_us = Some(micros(now.saturating_sub(idle)));
                }
                if self.commands.len() >= COMMANDS_MAX {
                    return;
                }
                let expected = u64::from(command.expected_data_transfer_length);
                let kind = match (command.write, command.read) {
                    (true, _) if expected > 0 => Kind::Write,
                    (_, true) if expected > 0 => Kind::Read,
                    _ => Kind::Other,
                };
                let immediate = u64::from(header.data_segment_length());
                let burst = path.first_burst.unwrap_or(FIRST_BURST_BYTES_DEFAULT);
                let unsolicited = if command.is_final { immediate } else { burst };
                let found = Command {
                    kind,
                    begin_ns: now,
                    sent_ns: now,
                    sent_end: end,
                    expected,
                    permitted: unsolicited.min(expected),
                    moved: 0,
                    receiving: false,
                    first_data_ns: (immediate > 0).then_some(now),
                    last_data_ns: None,
                    r2ts: 0,
                    r2t_wait_ns: 0,
                };
                self.commands.insert(command.itt.0, found);
                self.most_outstanding = self.most_outstanding.max(self.commands.len());
            }
            Pdu::DataOut(data) => {
                let Some(command) = self.commands.get_mut(&data.itt.0) else { return };
                if command.moved >= command.permitted.min(command.expected) {
                    // An R2T that the capture does not have must have come.
                    command.permitted = command.expected;
                }
                command.first_data_ns.get_or_insert(now);
                command.sent_end = end;
            }
            _ => {}
        }
    }

    /// The last byte of a PDU of the initiator left.
    pub(crate) fn handle_request_end(&mut self, header: &Header, now: u64) {
        let Some(command) = self.commands.get_mut(&header.itt().0) else { return };
        let data = u64::from(header.data_segment_length());
        let moved = match Pdu::parse(header) {
            Ok(Pdu::DataOut(out)) => u64::from(out.buffer_offset) + data,
            Ok(Pdu::ScsiCommand(_)) => data,
            _ => return,
        };
        command.moved = command.moved.max(moved);
        command.sent_ns = now;
        command.last_data_ns = Some(now);
    }

    /// A PDU of the target arrives.
    pub(crate) fn handle_reply(&mut self, pdu: &Pdu, header: &Header, now: u64) {
        self.answered_ns = Some(now);
        match pdu {
            Pdu::R2t(r2t) => {
                let Some(command) = self.commands.get_mut(&r2t.itt.0) else { return };
                if command.permitted <= command.moved {
                    command.r2t_wait_ns += now.saturating_sub(command.sent_ns);
                }
                let until =
                    u64::from(r2t.buffer_offset) + u64::from(r2t.desired_data_transfer_length);
                command.permitted = command.permitted.max(until).min(command.expected.max(until));
                command.r2ts += 1;
            }
            Pdu::DataIn(data) => {
                if let Some(command) = self.commands.get_mut(&data.itt.0) {
                    command.receiving = true;
                    command.first_data_ns.get_or_insert(now);
                }
                if data.status.is_some() && header.data_segment_length() == 0 {
                    self.complete(data.itt.0, now);
                }
            }
            Pdu::ScsiResponse(response) => self.complete(response.itt.0, now),
            _ => {}
        }
    }

    /// The last byte of a PDU of the target arrived.
    pub(crate) fn handle_reply_end(&mut self, header: &Header, now: u64) {
        let Ok(Pdu::DataIn(data)) = Pdu::parse(header) else { return };
        let Some(command) = self.commands.get_mut(&data.itt.0) else { return };
        let end = u64::from(data.buffer_offset) + u64::from(header.data_segment_length());
        command.moved = command.moved.max(end);
        command.last_data_ns = Some(now);
        command.receiving = command.moved < command.expected;
        if data.status.is_some() {
            self.complete(data.itt.0, now);
        }
    }

    fn complete(&mut self, itt: u32, now: u64) {
        let Some(command) = self.commands.remove(&itt) else { return };
        let first = command.first_data_ns.unwrap_or(now);
        let last = command.last_data_ns.unwrap_or(first).max(first);
        self.last_was_kept = self.records.push(CommandTimes {
            at_s: command.begin_ns.saturating_sub(self.origin_ns) as f64 / 1e9,
            kind: command.kind,
            bytes: command.moved,
            before_us: micros(first.saturating_sub(command.begin_ns)),
            ta_us: micros(last - first),
            tb_us: micros(now.saturating_sub(last)),
            tc_us: None,
            r2t_wait_us: micros(command.r2t_wait_ns),
            r2ts: command.r2ts,
        });
        self.idle_since_ns = self.commands.is_empty().then_some(now);
    }
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}
