//! [`Server`]: connections, their limits, and what has to be done now and then.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use crate::catalogue::{Catalogue, CatalogueError};
use crate::guard::Guarded;
use crate::home::Opening;
use crate::route::{App, WAITING_MAX, answer};
use crate::shelf::Shelf;

/// Bytes of the head of a request. Browsers send one or two thousand.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Fields of it.
const FIELDS_MAX: usize = 64;
/// Bytes of answers in the kernel for one client: what is there is lost when it seeks.
const SEND_BUFFER_BYTES: u32 = 1 << 20;
/// How often the catalogue and idle homes are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pause after a failed accept, as when there are too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How long logouts may take at the end.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(3);

/// What is told to who is one too many, and leaves.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nConnection: close\r\n\
                      Content-Type: text/plain\r\nContent-Length: 26\r\n\r\n\
                      too many are connected now";

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Names that it has, besides its addresses and localhost.
    pub names: Vec<String>,
    /// Connections at once; of one address, a quarter of them.
    pub connections_max: usize,
    /// Answers at once that read from storage, each of which may have 8 MiB on its way.
    pub streams_max: usize,
    /// After how long storage that nobody wants anything of is let go.
    pub idle: Duration,
    /// How long a client may take for the head of a request, and say nothing between two.
    pub head_timeout: Duration,
    /// How long a client may take nothing of what it has asked for.
    pub patience: Duration,
    /// How volumes are opened.
    pub opening: Opening,
}

impl Config {
    /// Defaults: a household, or a club.
    pub fn new(listen: SocketAddr, opening: Opening) -> Self {
        Self {
            listen,
            names: Vec::new(),
            connections_max: 256,
            streams_max: 64,
            idle: Duration::from_secs(60),
            head_timeout: Duration::from_secs(20),
            patience: Duration::from_secs(60),
            opening,
        }
    }
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The catalogue cannot be used.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
}

/// A catalogue that is served, on a port that is bound.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: Arc<App>,
    config: Config,
}

impl Server {
    /// Serves the catalogue in a file, and what becomes of it.
    ///
    /// # Errors
    /// [`ServerError`].
    pub async fn bind(config: Config, catalogue: PathBuf) -> Result<Self, ServerError> {
        let shelf = Shelf::load(catalogue, config.opening.clone())?;
        Self::with(config, shelf, false).await
    }

    /// Serves the files of this catalogue to who knows their addresses, and nothing else.
    ///
    /// # Errors
    /// [`ServerError::Listen`].
    pub(crate) async fn bind_private(
        config: Config,
        catalogue: Catalogue,
    ) -> Result<Self, ServerError> {
        let shelf = Shelf::with(catalogue, config.opening.clone());
        Self::with(config, shelf, true).await
    }

    async fn with(config: Config, shelf: Shelf, is_private: bool) -> Result<Self, ServerError> {
        let refused = |source| ServerError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let app = Arc::new(App {
            shelf,
            is_private,
            names: config.names.clone(),
            streams: Arc::new(Semaphore::new(config.streams_max)),
            waiting: Semaphore::new(WAITING_MAX),
        });
        Ok(Self { listener, address, app, config })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` completes; then logs out everywhere.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        tokio::select! {
            () = self.accept() => {}
            () = self.look() => {}
            () = stop => {}
        }
        // All connections are gone with `accept`.
        let closing = tokio::time::timeout(CLOSE_TIME_MAX, self.app.shelf.close());
        if closing.await.is_err() {
            warn!("storage did not answer to the logout");
        }
    }

    async fn look(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let app = Arc::clone(&self.app);
            let read = tokio::task::spawn_blocking(move || app.shelf.refresh());
            if let Err(error) = read.await {
                warn!(%error, "reading the catalogue");
            }
            self.app.shelf.let_go_after(self.config.idle);
        }
    }

    async fn accept(&self) {
        let mut clients = JoinSet::new();
        let peers = Peers::default();
        loop {
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    debug!(%error, "cannot accept");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            while clients.try_join_next().is_some() {}
            let most = (self.config.connections_max / 4).max(1);
            let one = peers.enter(peer.ip(), most);
            let Some(one) = one.filter(|_| clients.len() < self.config.connections_max) else {
                debug!(%peer, "one connection too many");
                let _ = stream.try_write(FULL); // it may be gone already
                continue;
            };
            let app = Arc::clone(&self.app);
            let times = [self.config.head_timeout, self.config.patience];
            clients.spawn(async move {
                talk(app, stream, times).await;
                drop(one);
            });
        }
    }
}

async fn talk(app: Arc<App>, stream: TcpStream, [head_timeout, patience]: [Duration; 2]) {
    // Without these it works as well.
    let _ = stream.set_nodelay(true);
    let socket = socket2::SockRef::from(&stream);
    let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES as usize);
    let service = service_fn(move |request| {
        let app = Arc::clone(&app);
        async move { Ok::<_, Infallible>(answer(&app, &request).await) }
    });
    let stream = TokioIo::new(Guarded::new(stream, patience));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(FIELDS_MAX)
        .serve_connection(stream, service)
        .await;
    if let Err(error) = served {
        debug!(%error, "client");
    }
}

/// Connections by address, so that one does not take all. A proxy on this machine is many clients.
#[derive(Clone, Default)]
struct Peers(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection that counts.
struct Peer {
    peers: Peers,
    address: IpAddr,
}

impl Peers {
    fn enter(&self, address: IpAddr, most: usize) -> Option<Peer> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= most && !address.to_canonical().is_loopback() {
            return None;
        }
        *count += 1;
        Some(Peer { peers: self.clone(), address })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut counts = self.peers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_has_a_part_of_all_connections() {
        let peers = Peers::default();
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        let entered: Vec<Peer> = (0..3).filter_map(|_| peers.enter(one, 2)).collect();
        assert_eq!(entered.len(), 2);
        assert!(peers.enter(other, 2).is_some());
        drop(entered);
        assert!(peers.enter(one, 2).is_some());
        assert!(peers.0.lock().unwrap().is_empty());
        let near = IpAddr::from([127, 0, 0, 1]);
        assert_eq!((0..9).filter_map(|_| peers.enter(near, 2)).collect::<Vec<_>>().len(), 9);
    }

    #[test]
    fn who_is_one_too_many_is_told_so_in_http() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    }
}
