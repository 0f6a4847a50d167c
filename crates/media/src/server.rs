//! [`Server`]: connections, their limits, and what has to be done now and then.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use discovery::ldap::LdapError;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::{debug, warn};
use uplink::Pin;
use uplink::server::Listener;

use crate::access::{Access, Who};
use crate::catalogue::{Catalogue, CatalogueError};
use crate::conversation::Conversation;
use crate::directory::{Follower, Source};
use crate::home::Opening;
use crate::route::{App, WAITING_MAX};
use crate::shelf::Shelf;
use crate::state::{StateError, StateFolder};
use crate::tls::Tls;
use crate::uplinks::{Door, UplinkError};
use crate::watching::Watchers;

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
    /// Videos that are remuxed at once, each by a process of some 50 MB of memory.
    pub remuxes_max: usize,
    /// After how long storage that nobody wants anything of is let go.
    pub idle: Duration,
    /// How long a client may take for the head of a request, and say nothing between two.
    pub head_timeout: Duration,
    /// How long a client may take nothing of what it has asked for.
    pub patience: Duration,
    /// How volumes are opened.
    pub opening: Opening,
    /// Who may watch.
    pub admission: Admission,
    /// With what browsers are spoken to; none is in the clear.
    pub tls: Option<Tls>,
    /// Where homes call that nobody can call, and the folder with their keys.
    pub uplink: Option<(SocketAddr, StateFolder)>,
}

/// Who may watch.
#[derive(Clone, Debug)]
pub enum Admission {
    /// Whoever reaches the server; nobody is asked for a name.
    Anybody,
    /// Who has an account of this folder. If there is none, this machine's users may do all, and no
    /// other is served.
    Accounts(StateFolder),
}

/// Where the catalogue is.
#[derive(Clone, Debug)]
pub enum Origin {
    /// In a file.
    File(PathBuf),
    /// In a directory.
    Directory(Box<Source>),
}

impl From<PathBuf> for Origin {
    fn from(file: PathBuf) -> Self {
        Self::File(file)
    }
}

impl Config {
    /// Defaults: a household, or a club.
    pub fn new(listen: SocketAddr, opening: Opening) -> Self {
        Self {
            listen,
            names: Vec::new(),
            connections_max: 256,
            streams_max: 64,
            remuxes_max: 8,
            idle: Duration::from_secs(60),
            head_timeout: Duration::from_secs(20),
            patience: Duration::from_secs(60),
            opening,
            admission: Admission::Anybody,
            tls: None,
            uplink: None,
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
    /// The directory with the catalogue cannot be read.
    #[error(transparent)]
    Directory(#[from] LdapError),
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// What it keeps besides cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// Homes cannot call it.
    #[error("uplink: {0}")]
    Uplink(#[from] UplinkError),
    /// Others than this machine's users would be let in, whoever they are.
    #[error("there are no accounts: whoever reaches {0} would see every video")]
    NoAccounts(SocketAddr),
}

/// A catalogue that is served, on a port that is bound.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: Arc<App>,
    config: Config,
    /// Where homes call.
    calls: Option<Listener>,
    /// Who reads the catalogue, if it is in a directory.
    follower: Option<Follower>,
}

impl Server {
    /// Serves the catalogue in a file or a directory, and what becomes of it.
    ///
    /// # Errors
    /// [`ServerError`].
    pub async fn bind(
        mut config: Config,
        catalogue: impl Into<Origin>,
    ) -> Result<Self, ServerError> {
        let (door, calls) = match &config.uplink {
            Some((address, folder)) => {
                let (door, calls) = Door::open(folder, *address).await?;
                (Some(door), Some(calls))
            }
            None => (None, None),
        };
        config.opening.uplinks = door.as_ref().map(Door::uplinks);
        let opening = config.opening.clone();
        let (mut shelf, follower) = match catalogue.into() {
            Origin::File(file) => (Shelf::load(file, opening)?, None),
            Origin::Directory(source) => {
                let (follower, catalogue) = Follower::start(*source).await?;
                (Shelf::with(catalogue, opening), Some(follower))
            }
        };
        if let Admission::Accounts(folder) = &config.admission {
            shelf = shelf.remember_in(folder)?;
        }
        Ok(Self { calls, follower, ..Self::with(config, shelf, door, false).await? })
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
        Self::with(config, shelf, None, true).await
    }

    async fn with(
        config: Config,
        shelf: Shelf,
        door: Option<Door>,
        is_private: bool,
    ) -> Result<Self, ServerError> {
        let access = Arc::new(admit(&config)?);
        let refused = |source| ServerError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let app = Arc::new(App {
            shelf,
            door,
            access,
            watchers: Watchers::default(),
            is_private,
            names: config.names.clone(),
            streams: Arc::new(Semaphore::new(config.streams_max)),
            waiting: Semaphore::new(WAITING_MAX),
            remuxes: Arc::new(Semaphore::new(config.remuxes_max)),
        });
        Ok(Self { listener, address, app, config, calls: None, follower: None })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where homes call it, and the key that they know it by.
    pub fn uplink(&self) -> Option<(SocketAddr, Pin)> {
        Some((self.calls.as_ref()?.address(), self.app.door.as_ref()?.pin()))
    }

    /// Does one have to log in?
    pub fn has_accounts(&self) -> bool {
        self.app.access.has_accounts()
    }

    /// Serves until `stop` completes; then logs out everywhere.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        // Ends with us, after the logouts.
        let mut answering = JoinSet::new();
        if let Some(calls) = self.calls.take() {
            answering.spawn(calls.run());
        }
        let follower = self.follower.take();
        tokio::select! {
            () = self.accept() => {}
            () = self.look() => {}
            () = self.follow(follower) => {}
            () = stop => {}
        }
        // All connections are gone with `accept`.
        self.keep().await;
        let closing = tokio::time::timeout(CLOSE_TIME_MAX, self.app.shelf.close());
        if closing.await.is_err() {
            warn!("storage did not answer to the logout");
        }
    }

    async fn look(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.keep().await;
            self.app.shelf.close_removed().await;
            self.app.shelf.let_go_after(self.config.idle);
        }
    }

    /// Serves what the directory has, for as long as the server runs.
    async fn follow(&self, follower: Option<Follower>) {
        let Some(mut follower) = follower else { return std::future::pending().await };
        loop {
            self.app.shelf.replace(follower.changed().await);
        }
    }

    /// Reads what has changed, and writes down what is new.
    async fn keep(&self) {
        let app = Arc::clone(&self.app);
        let kept = tokio::task::spawn_blocking(move || {
            app.shelf.refresh();
            app.access.keep();
            if let Some(door) = &app.door {
                door.refresh();
            }
        });
        if let Err(error) = kept.await {
            warn!(%error, "reading the catalogue and what is kept besides");
        }
    }

    async fn accept(&self) {
        let mut clients = JoinSet::new();
        let peers = Peers::default();
        let conversation = Conversation {
            app: Arc::clone(&self.app),
            tls: self.config.tls.as_ref().map(|tls| tls.acceptor.clone()),
            head_timeout: self.config.head_timeout,
            patience: self.config.patience,
        };
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
            let conversation = conversation.clone();
            clients.spawn(async move {
                conversation.hold(stream, peer.ip()).await;
                drop(one);
            });
        }
    }
}

/// Who is let in.
fn admit(config: &Config) -> Result<Access, ServerError> {
    let Admission::Accounts(folder) = &config.admission else { return Ok(Access::open()) };
    let is_near = config.listen.ip().to_canonical().is_loopback();
    let anybody = is_near.then_some(Who::Anybody { is_owner: true });
    let access = Access::load(folder.clone(), anybody, config.tls.is_some())?;
    if !is_near && !access.has_accounts() {
        return Err(ServerError::NoAccounts(config.listen));
    }
    Ok(access)
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
