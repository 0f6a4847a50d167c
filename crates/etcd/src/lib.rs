//! Keys of etcd (version 3 of its API; 3.4 and later), each with a value that several processes
//! change one after the other: it is replaced only as long as nobody else has replaced it.
//!
//! What is asked is what the majority of the members holds ("linearizable"), so whoever is told a
//! value was told the newest. A member that does not answer is left for the next one.
//!
//! What it is not: watches, leases and elections, since who uses it asks again and again anyway.

#![forbid(unsafe_code)]

mod client;
pub mod url;
mod wire;

pub use client::{ConnectError, Etcd, Key, VALUE_LEN_MAX};
