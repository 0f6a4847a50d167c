//! Text keys of RFC 7143 §13: the declarative [`table`], the rules that work on it
//! ([`Negotiation`]), and the text they travel in ([`text`]).
//!
//! Security keys are in the table so that their stage is checked like any other's; what they mean
//! is [`crate::login::chap`]'s business.

mod error;
mod negotiate;
mod offer;
mod params;
pub mod send_targets;
pub mod table;
pub mod text;
pub mod value;

pub use error::NegotiationError;
pub use negotiate::{Negotiation, Role};
pub use offer::{DigestPreference, Offer};
pub use params::{ConnectionParams, Declared, DigestKind, SessionParams, TaskReporting};
pub use table::Key;
