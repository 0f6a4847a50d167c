//! Why a policy decided as it did: one clear sentence each.

use std::fmt;

use crate::limit::Bottleneck;

/// The reason of a decision.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Why {
    /// The user chose this number.
    Chosen,
    /// A measurement is not finished.
    Measuring,
    /// The connections asked for are not open yet.
    Opening,
    /// The line is full, and its rate is being looked for.
    Seeking,
    /// They carry what the line was found to.
    LineFull,
    /// Windows of this system's size need so many connections for a gigabit over this round trip.
    LongPath,
    /// Each connection is limited by this, so more of them can help.
    Limited(Bottleneck),
    /// The last increase helped, by this factor.
    Helped(f64),
    /// The last increase did not help: the throughput changed by this factor, within the noise.
    NoGain(f64),
    /// Fewer connections may do as well.
    TryFewer,
    /// Fewer connections kept the throughput, at this factor of the plateau.
    FewerDo(f64),
    /// Fewer connections lost throughput, at this factor of the plateau.
    FewerLose(f64),
    /// Fewer connections carry more, by this factor: that many overran the path.
    Overload(f64),
    /// These are the fewest connections found on the plateau.
    Plateau,
    /// The throughput fell to this factor of what it was: the path has changed.
    Fell(f64),
    /// The path's losses are over: windows of new connections grow faster than those that lost.
    LossesEnded,
    /// The throughput rose to this factor of what it was: the path has changed.
    Rose(f64),
    /// Nothing has changed for a while; a probe looks whether the path allows more.
    LookAgain,
    /// No more connections are allowed.
    AtMost,
    /// The peer opened fewer connections than asked for.
    Refused,
    /// The application asks for less than the path gives.
    Application,
    /// Nothing is transferred.
    NoTraffic,
    /// The sample's time does not lie after the one before, or its rate is no number.
    BadSample,
    /// `golden`: the throughput still rose when N was doubled.
    Doubling,
    /// `golden`: the maximum lies between these.
    Between(u32, u32),
    /// `golden`: the bracket is too small to divide.
    Converged,
    /// `model`: its own reason.
    Model(crate::Why),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |factor: f64| (factor * 100.0).round();
        match *self {
            Self::Chosen => f.write_str("the number was chosen by the user"),
            Self::Measuring => f.write_str("a measurement is not finished"),
            Self::Seeking => f.write_str("the line is full; its rate is being looked for"),
            Self::LineFull => f.write_str("they carry what the line was found to"),
            Self::LongPath => {
                f.write_str("windows of this size need so many connections over this round trip")
            }
            Self::Opening => f.write_str("the connections asked for are not open yet"),
            Self::Limited(limit) => write!(f, "each connection is limited by {limit}"),
            Self::Helped(g) => write!(f, "more connections brought {} % of before", percent(g)),
            Self::NoGain(g) => write!(f, "more connections did not help: {} %", percent(g)),
            Self::TryFewer => f.write_str("fewer connections may do as well"),
            Self::FewerDo(g) => write!(f, "fewer connections keep {} %", percent(g)),
            Self::FewerLose(g) => write!(f, "fewer connections reach only {} %", percent(g)),
            Self::Overload(g) => write!(f, "fewer connections carry more: {} %", percent(g)),
            Self::Plateau => f.write_str("the fewest connections that reach the plateau"),
            Self::Fell(g) => write!(f, "the path changed: throughput fell to {} %", percent(g)),
            Self::Rose(g) => write!(f, "the path changed: throughput rose to {} %", percent(g)),
            Self::LossesEnded => {
                f.write_str("nothing is lost any more, and new connections grow faster")
            }
            Self::LookAgain => f.write_str("a probe whether the path allows more by now"),
            Self::AtMost => f.write_str("no more connections are allowed"),
            Self::Refused => f.write_str("the peer opened fewer connections than asked for"),
            Self::Application => f.write_str("the application asks for less than the path gives"),
            Self::NoTraffic => f.write_str("nothing is transferred"),
            Self::BadSample => f.write_str("the sample was ignored: its time or rate is wrong"),
            Self::Doubling => f.write_str("the throughput still rises with the connections"),
            Self::Between(low, high) => write!(f, "the best lies between {low} and {high}"),
            Self::Model(why) => why.fmt(f),
            Self::Converged => f.write_str("the bracket is too small to divide"),
        }
    }
}
