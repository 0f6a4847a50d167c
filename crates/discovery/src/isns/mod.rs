//! iSNS, the name service of iSCSI (RFC 4171): targets register where they are, initiators ask
//! which they may see, discovery domains say who sees whom.
//!
//! The codec ([`pdu`], [`attr`], [`message`]) and the server's decisions ([`Directory`]) are plain
//! functions of bytes and time; [`client`], [`registrar`] and [`serve`] move the bytes. There is no
//! iFCP, no authentication block (§5.5; it protects nobody whose keys cannot be distributed: use a
//! network that is trusted), and no UDP (§5.2 makes it optional).

pub mod attr;
pub mod client;
mod file;
pub mod message;
pub mod network;
pub mod pdu;
pub mod registrar;
pub mod registration;
pub mod serve;
pub mod server;

pub use attr::{Attr, PortalKey, Tag};
pub use client::{Client, ClientError};
pub use message::{Notice, Request, Response};
pub use pdu::{Assembler, Function, Message, ProtocolError, Status};
pub use registration::{Entity, FoundTarget, Node, Portal};
pub use server::{Directory, DomainsFile, Settings};

/// The port of iSNS servers, TCP (§2.9).
pub const PORT: u16 = 3205;
