//! Why there should be so many connections: one clear sentence for each reason.

use std::fmt;

use super::limit::Bottleneck;

/// The reason of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Why {
    /// A level is being measured.
    #[default]
    Measuring,
    /// The path fills.
    Filling,
    /// The round trip asks for so many.
    RoundTrip,
    /// The path carried this last time, in bytes a second; what became of the memory.
    Remembered(f64, &'static str),
    /// Each connection is limited by this, so that more can help.
    Limited(Bottleneck),
    /// The line carries R and a connection w, in bytes a second.
    Needed(f64, f64),
    /// Fewer may do: a level that was full at once tells nothing of a connection.
    Fewer,
    /// What is carried changed by this factor.
    Changed(f64),
    /// These suffice.
    Holds,
    /// The application asks for less than the path gives.
    Application,
    /// The peer opened fewer than asked for.
    Refused,
    /// No more are allowed.
    AtMost,
    /// The user chose it.
    Chosen,
    /// `golden`: the throughput still rose when N was doubled.
    Doubling,
    /// `golden`: the maximum lies between these.
    Between(u32, u32),
    /// `golden`: the bracket is too small to divide.
    Converged,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mega = |rate: f64| (rate / 1e5).round() / 10.0;
        match *self {
            Self::Measuring => f.write_str("a level is being measured"),
            Self::Filling => f.write_str("the path is being filled"),
            Self::RoundTrip => f.write_str("the round trip asks for so many"),
            Self::Remembered(line, outcome) => {
                write!(f, "the path carried {} MB/s last time ({outcome})", mega(line))
            }
            Self::Limited(by) => write!(f, "each connection is limited by {by}"),
            Self::Needed(line, each) => {
                write!(f, "the line carries {} MB/s, a connection {}", mega(line), mega(each))
            }
            Self::Fewer => f.write_str("the first number was full already; fewer are tried"),
            Self::Changed(factor) => {
                write!(f, "what is carried changed to {} %", (factor * 100.0).round())
            }
            Self::Holds => f.write_str("these suffice"),
            Self::Application => f.write_str("the application asks for less than the path gives"),
            Self::Refused => f.write_str("the peer opened fewer connections than asked for"),
            Self::AtMost => f.write_str("no more connections are allowed"),
            Self::Chosen => f.write_str("the number was chosen by the user"),
            Self::Doubling => f.write_str("the throughput still rises with the connections"),
            Self::Between(low, high) => write!(f, "the best lies between {low} and {high}"),
            Self::Converged => f.write_str("the bracket is too small to divide"),
        }
    }
}
