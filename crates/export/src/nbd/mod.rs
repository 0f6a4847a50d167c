//! NBD server: one block device as one export, over a Unix socket or TCP.
//!
//! Source: the NBD protocol, doc/proto.md of NetworkBlockDevice/nbd: fixed newstyle, structured
//! replies, `base:allocation`. Not here: TLS, extended headers, resize, several exports. Whoever
//! can connect can read and write, so TCP belongs on a loopback or an otherwise guarded address.
//!
//! [`kernel`] has the kernel of this machine as its client, over a socket pair: `/dev/nbdN`.
//!
//! `handshake` and `transmission` know no sockets; `connection`, `outbox` and `listen` know little
//! else. The messages as bytes are in the crate `nbd`, which has the client, too.

mod connection;
pub mod handshake;
pub mod kernel;
mod listen;
mod outbox;
mod transmission;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use block::{BlockError, Device, DeviceInfo};
use nbd::wire::STRING_LEN_MAX;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{Instrument, debug, info, info_span, warn};

use self::handshake::Offer;
use self::listen::Listener;
pub use self::listen::LocalAddr;
use crate::byte_device::ByteDevice;

/// Most connections served at once. Clients use up to 16 per export; the rest wait in the
/// backlog, so that memory stays below this times the limit per connection.
pub const CONNECTIONS_MAX: usize = 64;

/// Pause after `accept` failed for lack of descriptors or memory, which does not pass at once.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket at this path, for this user only.
    Unix(PathBuf),
    /// TCP; port 0 takes a free one.
    Tcp(SocketAddr),
}

/// What is exported.
#[derive(Clone)]
pub struct ExportConfig {
    /// Export name; clients may also ask for the empty name.
    pub name: String,
    /// The device.
    pub device: Device,
}

/// Why a server could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The export name is longer than the protocol allows.
    #[error("export name of {0} bytes is longer than {STRING_LEN_MAX}")]
    NameTooLong(usize),
    /// Another process listens on the socket.
    #[error("{0} is in use by another process")]
    InUse(PathBuf),
    /// Something is there that must not be removed.
    #[error("{0} exists and is not a socket")]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// Path or address.
        address: String,
        /// What the system said.
        source: io::Error,
    },
}

/// The device as all connections see it.
struct Export {
    name: String,
    device: ByteDevice,
}

impl Export {
    fn offer(&self) -> Offer {
        let info = self.device.info();
        Offer {
            name: self.name.clone(),
            size: info.size,
            flags: transmission::transmission_flags(&info),
            block_size_minimum: info.block_size,
            block_size_preferred: preferred_block_size(&info),
            payload_len_max: transmission::PAYLOAD_LEN_MAX,
        }
    }
}

/// A power of two between the smallest unit and the longest payload, as the protocol demands.
fn preferred_block_size(info: &DeviceInfo) -> u32 {
    info.preferred_block_size.clamp(info.block_size, transmission::PAYLOAD_LEN_MAX)
}

/// A bound server; [`run`](Self::run) serves clients.
pub struct Server {
    listener: Listener,
    export: Arc<Export>,
}

impl Server {
    /// Starts to listen. Clients can connect from now on, and are served once `run` is polled.
    ///
    /// A socket file left over by a dead process is replaced; one that somebody listens on, or a
    /// file that is no socket, is left alone. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`BindError`].
    pub async fn bind(listen: Listen, config: ExportConfig) -> Result<Self, BindError> {
        if config.name.len() > STRING_LEN_MAX {
            return Err(BindError::NameTooLong(config.name.len()));
        }
        let listener = Listener::bind(listen).await?;
        let export = Export { name: config.name, device: ByteDevice::new(config.device) };
        Ok(Self { listener, export: Arc::new(export) })
    }

    /// Where the server listens.
    pub fn local_addr(&self) -> &LocalAddr {
        self.listener.local_addr()
    }

    /// Serves clients until `shutdown` completes. Then accepts no more, answers what is under way,
    /// refuses new requests with `ESHUTDOWN`, removes the socket file and flushes the device.
    ///
    /// # Errors
    /// The error of the final flush: acknowledged writes may be lost.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), BlockError> {
        let Self { mut listener, export } = self;
        let (stop, stopped) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut next_id = 0u64;
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                    let stream = match accepted {
                        Ok(stream) => stream,
                        Err(error) => {
                            warn!(%error, "cannot accept a connection");
                            tokio::time::sleep(ACCEPT_RETRY).await;
                            continue;
                        }
                    };
                    let span = info_span!("nbd", connection = next_id, peer = %stream.peer());
                    next_id += 1;
                    let (export, stopped) = (Arc::clone(&export), stopped.clone());
                    let serve = async move {
                        info!("connected");
                        match connection::serve(stream, export, stopped).await {
                            Ok(()) => info!("disconnected"),
                            Err(error) => info!(%error, "connection ended"),
                        }
                    };
                    connections.spawn(serve.instrument(span));
                }
            }
        }
        drop(listener);
        let _ = stop.send(true);
        debug!(connections = connections.len(), "shutting down");
        while connections.join_next().await.is_some() {}
        export.device.flush().await
    }
}
