//! NBD (Network Block Device): the wire codec of both sides, and the sockets it goes over.
//!
//! Source: the NBD protocol, doc/proto.md of NetworkBlockDevice/nbd: fixed newstyle, structured
//! replies, `base:allocation`. The server is `export::nbd`.

#![forbid(unsafe_code)]

pub mod client;
pub mod inbox;
pub mod stream;
pub mod url;
pub mod wire;
