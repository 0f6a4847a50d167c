//! Text keys of RFC 7143 §13: table, negotiation, text.

mod params;

pub use params::{ConnectionParams, DigestKind, SessionParams};
