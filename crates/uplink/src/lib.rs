//! Connections to a home that lets nobody in, such as one behind NAT (docs/uplink.md).
//!
//! The home keeps one TLS connection, the *control connection*, to a server that can be reached.
//! When the server wants a connection to the home, it asks for one there, with a *token* that is
//! good for one connection and a few seconds; the home dials, shows the token, and from then on the
//! bytes are whoever's who wanted them. Both ends know each other by the hash of a key.
//!
//! What is decided is decided without a socket or a clock: `wire` has the messages, `control` both
//! ends of a control connection, `tokens` what a data connection has to show, `pause` when a home
//! dials again. [`home`] and [`server`] have the sockets. What goes over a data connection is not
//! known here.

#![forbid(unsafe_code)]

pub mod control;
pub mod home;
mod identity;
pub mod pause;
mod pin;
mod reader;
pub mod server;
pub mod tokens;
pub mod wire;

pub use identity::{Identity, IdentityError};
pub use pin::{Pin, PinError};

/// Port of a server, unless another is told: free in IANA's list, beside iSCSI's 3260.
pub const PORT: u16 = 3270;

/// What both ends say in TLS that they speak (RFC 7301). Another version is another name.
const ALPN: &[u8] = b"enkaku-uplink/1";
