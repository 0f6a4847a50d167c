//! iSCSI (RFC 7143) as bytes and state, both roles.
//!
//! What it is not: it opens no socket, reads no clock, draws no random number, spawns nothing and
//! never touches payload byte by byte. Time and randomness are arguments; payload is placed by
//! whoever owns the socket. The shell (`iscsi`) and the simulator (`sim`) drive the same cores.
//!
//! How a PDU comes in: [`frame::parse_header`] finds a header in the received bytes; the core's
//! `handle_header` answers where its data segment belongs ([`connection::Placement`]); the shell
//! reads it there and calls `handle_data`. How one goes out: `poll_transmit` yields a
//! [`connection::Transmit`], header bytes and a handle to the payload.

#![forbid(unsafe_code)]

pub mod connection;
pub mod frame;
pub mod ids;
pub mod initiator;
pub mod keys;
pub mod login;
pub mod names;
pub mod pdu;
pub mod serial;
pub mod target;
pub mod time;
