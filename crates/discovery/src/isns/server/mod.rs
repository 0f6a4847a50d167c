//! The server's side (RFC 4171 §2.2, §3, §5.6.5): what is registered, who sees what, who is told of
//! what. [`Directory`] is plain: a request and the time go in, a response comes out; the shell that
//! has sockets and a file is [`super::serve`].
//!
//! Differences from the RFC, on purpose: a registration that replaces an entity by the same one is
//! no change, so that a renewal wakes nobody up (§5.6.5.1 would notify twice); a domain that is in
//! no set is active (§2.2.2 wants an enabled set; Open-iSNS asks for none). Portals are no members
//! of domains here.

mod directory;
mod domains;
mod monitor;
mod notify;
mod object;
mod query;
mod register;
mod requests;
pub mod settings;
mod stored;
#[cfg(test)]
mod tests;

pub use directory::{Directory, Now};
pub use monitor::Inquiry;
pub use notify::Notification;
pub use settings::{DomainsFile, Limits, Settings};
pub use stored::StoredError;
