//! What limits a transfer: one enum with one wording for reports, diagnoses and both roles, and the
//! thresholds that tell one cause from another where TCP's counters are all that is known. Whoever
//! has them over an interval fills in [`Signs`]; how they were gathered is not decided here, and
//! nothing is changed because of a name.

use std::fmt;

use serde::Serialize;

use super::tcp::{CongestionControl, Connection, MORE, OTHER_SHARE, SHORT_RTT_S, Tcp};

/// A limit that the kernel itself counts is believed from this share of the time on, a quarter.
const COUNTED_SHARE_MIN: f64 = MORE - 1.0;
/// The same where other signs point at it too.
pub const COUNTED_SHARE_WITH_SIGNS: f64 = 0.03;
/// What is in flight fills a window or a buffer at this part of it: the rest is rounding.
pub const FULL: f64 = 1.0 / MORE;
/// A state that takes this share of the time is that of the interval.
pub const MOSTLY: f64 = 0.5;
/// Losses matter from this share of segments on.
pub const LOSS_MIN: f64 = 2e-5;
/// Up to this loss BBR (v1, Linux) keeps its rate (Cardwell et al. 2016, figure 8); beyond it takes
/// losses for a full path.
pub(crate) const BBR_LOSS_MAX: f64 = 0.15;

/// The one thing that, changed, makes a transfer faster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Bottleneck {
    /// The sender waits for memory of its send buffer (S0's finding).
    SendBuffer,
    /// The window that the receiver announces is full.
    ReceiveWindow,
    /// Losses keep the congestion window small.
    CongestionLoss,
    /// The congestion window is full without losses: it is still growing, or it is bounded.
    CongestionWindow,
    /// Data wait for the target's R2Ts (RFC 7143 §11.8).
    R2t,
    /// Too few commands are outstanding for the path: one round trip each.
    QueueDepth,
    /// The target's medium is what takes the time.
    Storage,
    /// The line is full, or what it was found to carry is sent: there is nothing to gain.
    LineRate,
    /// The initiator's application does not ask for more.
    Application,
    /// The user lets us take no more than a share.
    Share,
    /// Nothing is known.
    #[default]
    Unknown,
}

impl Bottleneck {
    /// What a diagnosis may name.
    pub const DIAGNOSED: [Self; 9] = [
        Self::SendBuffer,
        Self::ReceiveWindow,
        Self::CongestionLoss,
        Self::CongestionWindow,
        Self::R2t,
        Self::QueueDepth,
        Self::Storage,
        Self::LineRate,
        Self::Application,
    ];

    /// Its name in JSON, metrics and on the command line.
    pub fn as_str(self) -> &'static str {
        self.words().0
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::SendBuffer => ("send_buffer", "the send buffer"),
            Self::ReceiveWindow => ("receive_window", "the receiver's window"),
            Self::CongestionLoss => {
                ("congestion_loss", "losses, which keep the congestion window small")
            }
            Self::CongestionWindow => ("congestion_window", "the congestion window"),
            Self::R2t => ("r2t", "waits for R2Ts"),
            Self::QueueDepth => ("queue_depth", "the number of commands under way"),
            Self::Storage => ("storage", "the target's storage"),
            Self::LineRate => ("line_rate", "the line"),
            Self::Application => ("application", "the application"),
            Self::Share => ("share", "the share that it may take"),
            Self::Unknown => ("unknown", "an unknown cause"),
        }
    }
}

/// In a sentence: "limited by …".
impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words().1)
    }
}

/// A queue stands on the path at this round trip: it is another one than the smallest, beyond the
/// noise of timers.
pub fn is_queued(rtt_us: f64, least_rtt_us: f64) -> bool {
    rtt_us > least_rtt_us * (1.0 + OTHER_SHARE) && rtt_us > least_rtt_us + 1e6 * SHORT_RTT_S / 2.0
}

/// Round trips of a queue that a loss-based congestion control has filled: a shorter one is jitter.
fn is_filled(rtt_us: f64, least_rtt_us: f64) -> bool {
    rtt_us > MORE * least_rtt_us
}

/// What the end that sends says of an interval, as means over its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Signs {
    /// Share of the time in which the receiver's window held it up, as the kernel counts.
    pub receive_window_share: f64,
    /// The same of the send buffer.
    pub send_buffer_share: f64,
    /// Most of the time nothing was there to send.
    pub silent: bool,
    /// Most of the time a queue stood on the path.
    pub queued: bool,
    /// Sent, neither acknowledged nor lost.
    pub in_flight_bytes: f64,
    /// Written and not yet sent.
    pub not_sent_bytes: f64,
    /// Congestion window; infinite where it is not known.
    pub cwnd_bytes: f64,
    /// The window that the receiver announces; infinite where it is not known.
    pub send_window_bytes: f64,
    /// Share of the segments that were sent again.
    pub loss: f64,
    /// BBR is in use.
    pub bbr: bool,
    /// Most of the time the application limited the rate that the kernel measures.
    pub app_limited: bool,
}

impl Signs {
    /// Those of the typical connection, or of one; `field` reads what is known of it.
    pub fn of(field: impl Fn(fn(&Tcp) -> Option<f64>) -> Option<f64>, bbr: bool) -> Self {
        let queued = field(|tcp| tcp.rtt_us)
            .zip(field(|tcp| tcp.min_rtt_us))
            .is_some_and(|(rtt_us, least_us)| is_queued(rtt_us, least_us));
        Self {
            receive_window_share: field(|tcp| tcp.rwnd_limited_share).unwrap_or(0.0),
            send_buffer_share: field(|tcp| tcp.sndbuf_limited_share).unwrap_or(0.0),
            silent: field(|tcp| tcp.busy_share).is_some_and(|busy| busy < MOSTLY),
            queued,
            in_flight_bytes: field(|tcp| tcp.in_flight_bytes).unwrap_or(0.0),
            not_sent_bytes: field(|tcp| tcp.not_sent_bytes).unwrap_or(0.0),
            cwnd_bytes: field(|tcp| tcp.cwnd_bytes).unwrap_or(f64::INFINITY),
            send_window_bytes: field(|tcp| tcp.peer_window_bytes).unwrap_or(f64::INFINITY),
            // An interval of a tenth of a second has too few segments for one loss to be little.
            loss: f64::from(u8::from(field(|tcp| tcp.retransmits).unwrap_or(0.0) > 0.0)),
            bbr,
            app_limited: field(|tcp| tcp.app_limited.map(|app| f64::from(u8::from(app))))
                .is_some_and(|share| share >= MOSTLY),
        }
    }

    /// What the kernel itself counted, if that limits.
    pub fn counted(&self) -> Option<Bottleneck> {
        let (window_share, buffer_share) = (self.receive_window_share, self.send_buffer_share);
        // A sender that sleeps most of the time fills nothing with what it sends in between; and
        // one that lets little be unsent (TCP_NOTSENT_LOWAT) is counted as waiting for its buffer
        // now and then.
        let counts = |share: f64, signs: bool| {
            share >= COUNTED_SHARE_MIN || !self.silent && signs && share >= COUNTED_SHARE_WITH_SIGNS
        };
        // A pacing sender spreads a window that is too small over the round trip, so that it is
        // full only now and then; the window is what is in flight all the same.
        let fills = |limit: f64| self.fills(limit) && limit < self.cwnd_bytes;
        let window = counts(window_share, fills(self.send_window_bytes));
        let buffer = counts(buffer_share, fills(self.in_flight_bytes + self.not_sent_bytes));
        match window && (!buffer || window_share > buffer_share) {
            true => Some(Bottleneck::ReceiveWindow),
            false => buffer.then_some(Bottleneck::SendBuffer),
        }
    }

    /// Data wait for the congestion window or for pacing: why is it no larger? None where BBR
    /// sends at a rate that it has measured while it was given too little: that is not the path's.
    pub fn network(&self) -> Option<Bottleneck> {
        match () {
            () if self.bbr && self.loss > BBR_LOSS_MAX => Some(Bottleneck::CongestionLoss),
            () if self.queued => Some(Bottleneck::LineRate),
            // BBR sends at the rate that arrives.
            () if self.bbr => (!self.app_limited).then_some(Bottleneck::LineRate),
            () if self.loss >= LOSS_MIN => Some(Bottleneck::CongestionLoss),
            () => Some(Bottleneck::CongestionWindow),
        }
    }

    /// What limits: what the kernel counted; else what data wait for, if there are enough of them;
    /// else `idle`. To the kernel a flow is limited by the application whenever a buffer or the
    /// receiver's window holds it up, so those come first.
    pub(crate) fn limit(&self, enough: bool, idle: Bottleneck) -> Bottleneck {
        match self.counted() {
            Some(counted) => counted,
            None if enough && !self.silent && !self.app_limited => self.waiting(),
            None => idle,
        }
    }

    /// What limits a transfer that has enough to send, where the kernel has not counted it.
    fn waiting(&self) -> Bottleneck {
        let waits = self.not_sent_bytes > 0.0 || self.fills(self.cwnd_bytes);
        if !self.queued && self.fills(self.send_window_bytes) {
            return Bottleneck::ReceiveWindow;
        }
        self.network().filter(|_| self.queued || waits).unwrap_or_default()
    }

    fn fills(&self, limit: f64) -> bool {
        self.in_flight_bytes >= limit * FULL
    }
}

/// The congestion window of a sender was the limit in an interval, kept small by losses that no
/// queue explains.
pub fn is_lossy_path(tcp: &Tcp) -> bool {
    let signs = Signs::of(|field| field(tcp), false);
    let other = signs.silent || signs.app_limited || is_short_of_buffer(|field| field(tcp));
    let queued = tcp.rtt_us.zip(tcp.min_rtt_us).is_none_or(|(rtt, least)| is_filled(rtt, least));
    signs.loss > 0.0 && signs.fills(signs.cwnd_bytes) && !queued && !other
}

/// A buffer at one of the ends held the sender up most of the time, or its window is full; `field`
/// reads what is known of the connection, or of the typical one.
pub(crate) fn is_short_of_buffer(field: impl Fn(fn(&Tcp) -> Option<f64>) -> Option<f64>) -> bool {
    let queue = field(|tcp| tcp.rtt_us).zip(field(|tcp| tcp.min_rtt_us));
    let queued = queue.is_some_and(|(rtt, least)| is_filled(rtt, least));
    let signs = Signs::of(field, false);
    signs.receive_window_share.max(signs.send_buffer_share) >= MOSTLY
        || !queued && signs.fills(signs.send_window_bytes)
}

/// What limits one connection, from a single interval of it.
pub fn of_connection(connection: &Connection) -> Bottleneck {
    let tcp = &connection.tcp;
    let bbr = tcp.congestion_control == Some(CongestionControl::Bbr);
    Signs::of(|field| field(tcp), bbr).limit(true, Bottleneck::Application)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A congestion window that is full, and nothing else.
    pub(crate) fn full_window() -> Tcp {
        Tcp {
            rtt_us: Some(50_000.0),
            min_rtt_us: Some(50_000.0),
            cwnd_bytes: Some(1e5),
            in_flight_bytes: Some(9.5e4),
            ..Tcp::default()
        }
    }

    #[test]
    fn the_name_in_reports_is_that_of_json() {
        for bottleneck in Bottleneck::DIAGNOSED.into_iter().chain([Bottleneck::Share]) {
            let expected = format!("{bottleneck:?}").to_lowercase();
            assert_eq!(bottleneck.as_str().replace('_', ""), expected);
            assert!(!bottleneck.to_string().contains('_'), "{bottleneck}");
        }
    }

    #[test]
    fn losses_are_the_paths_own_only_while_its_queue_is_short_and_the_window_full() {
        let lossy = |change: fn(&mut Tcp)| {
            let mut tcp = Tcp { retransmits: Some(3.0), ..full_window() };
            change(&mut tcp);
            is_lossy_path(&tcp)
        };
        assert!(lossy(|_| ()) && lossy(|tcp| tcp.rtt_us = Some(58_000.0)));
        assert!(!lossy(|tcp| tcp.retransmits = Some(0.0)), "nothing was lost");
        assert!(!lossy(|tcp| tcp.rtt_us = Some(80_000.0)), "the queue is what overflowed");
        assert!(!lossy(|tcp| tcp.min_rtt_us = None), "whether there is a queue is not known");
        assert!(!lossy(|tcp| tcp.in_flight_bytes = Some(2e4)), "little to send");
        assert!(!lossy(|tcp| tcp.app_limited = Some(true)));
        assert!(!lossy(|tcp| tcp.peer_window_bytes = Some(1e5)), "another window is full");
        assert!(!lossy(|tcp| tcp.sndbuf_limited_share = Some(0.8)));
    }

    #[test]
    fn each_cause_of_a_connection_is_told_from_the_others() {
        let of = |change: fn(&mut Tcp)| {
            let mut tcp = full_window();
            change(&mut tcp);
            of_connection(&Connection { tcp, ..Connection::default() })
        };
        assert_eq!(of(|_| ()), Bottleneck::CongestionWindow);
        assert_eq!(of(|tcp| tcp.retransmits = Some(3.0)), Bottleneck::CongestionLoss);
        assert_eq!(of(|tcp| tcp.rtt_us = Some(56_000.0)), Bottleneck::LineRate);
        assert_eq!(of(|tcp| tcp.app_limited = Some(true)), Bottleneck::Application);
        assert_eq!(of(|tcp| tcp.rwnd_limited_share = Some(0.3)), Bottleneck::ReceiveWindow);
        assert_eq!(of(|tcp| tcp.sndbuf_limited_share = Some(0.3)), Bottleneck::SendBuffer);
        assert_eq!(of(|tcp| tcp.peer_window_bytes = Some(1e5)), Bottleneck::ReceiveWindow);
        assert_eq!(of(|tcp| tcp.in_flight_bytes = Some(1.0)), Bottleneck::Unknown);
        let bbr = |tcp: &mut Tcp| tcp.congestion_control = Some(CongestionControl::Bbr);
        assert_eq!(of(bbr), Bottleneck::LineRate);
        let lacks = |queued| {
            let signs = Signs::of(|field| field(&full_window()), true);
            Signs { app_limited: true, queued, ..signs }.network()
        };
        assert_eq!((lacks(false), lacks(true)), (None, Some(Bottleneck::LineRate)));
        assert_eq!(of_connection(&Connection::default()), Bottleneck::Unknown);
    }
}
