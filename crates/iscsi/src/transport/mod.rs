//! Bytes in and out of a socket: `Receiver` lands payload where it belongs, `Sender` writes
//! many PDUs with one system call, [`login`] exchanges single PDUs before the full-feature phase,
//! [`Stream`] is the socket, in the clear or through TLS.

mod ahead;
mod dscp;
pub mod login;
mod receiver;
mod sender;
pub(crate) mod socket_options;
mod stream;
pub mod tcp_info;
mod tls;
mod vitals;

pub(crate) use ahead::Ahead;
pub use dscp::Dscp;
pub(crate) use receiver::{ANSWERS, Receiver};
pub(crate) use sender::Sender;
pub use stream::Stream;
pub use tls::Tls;
pub(crate) use vitals::Vitals;
