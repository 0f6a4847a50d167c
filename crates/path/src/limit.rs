//! What limits a transfer: one enum with one wording for reports, diagnoses and both roles. The
//! model fills it in ([`super::model`]); nothing here decides.

use std::fmt;

/// What limits the typical connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bottleneck {
    /// Nothing is known.
    #[default]
    Unknown,
    /// There is not enough to send.
    Application,
    /// The window that the receiver announces.
    ReceiveWindow,
    /// The send buffer.
    SendBuffer,
    /// The congestion window, which losses keep small.
    Loss,
    /// The congestion window, without losses: it still grows.
    CongestionWindow,
    /// The line: packets wait in its queue, or the pace is what it was found to carry.
    Line,
}

impl Bottleneck {
    /// The word in JSON and in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Application => "application",
            Self::ReceiveWindow => "receive_window",
            Self::SendBuffer => "send_buffer",
            Self::Loss => "congestion_loss",
            Self::CongestionWindow => "congestion_window",
            Self::Line => "line_rate",
        }
    }

    /// A window or a buffer of each connection: more connections have more of them.
    pub fn is_per_connection(self) -> bool {
        use Bottleneck::{CongestionWindow, Loss, ReceiveWindow, SendBuffer};
        matches!(self, ReceiveWindow | SendBuffer | Loss | CongestionWindow)
    }
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "an unknown cause",
            Self::Application => "the application",
            Self::ReceiveWindow => "the receiver's window",
            Self::SendBuffer => "the send buffer",
            Self::Loss => "losses, which keep the congestion window small",
            Self::CongestionWindow => "the congestion window",
            Self::Line => "the line",
        })
    }
}
