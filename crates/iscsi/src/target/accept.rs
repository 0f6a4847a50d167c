//! Portals: listening, and the way of a connection from accept to its end.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use iscsi_proto::names::TargetAddress;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tracing::{Instrument, info, info_span, warn};

use super::catalog::{CongestionChoice, Limits, PortalSpec};
use super::lobby::{Place, ShownOut};
use super::login::{self, LoginError};
use super::server::Tasks;
use super::session::now;
use super::shared::Shared;
use crate::poll::Poller;
use crate::transport::{Dscp, Stream};

/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How often a portal says that it cannot accept.
const COMPLAINT_EVERY: Duration = Duration::from_secs(60);

/// A portal could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    /// Where.
    pub address: SocketAddr,
    /// Why.
    pub source: io::Error,
}

/// A portal that is bound: the kernel accepts connections, nobody answers them yet.
#[derive(Debug)]
pub struct BoundPortal {
    pub(super) spec: PortalSpec,
    pub(super) listener: TcpListener,
    pub(super) local: SocketAddr,
    pub(super) poller: Option<Arc<Poller>>,
}

impl BoundPortal {
    /// Opens it.
    ///
    /// # Errors
    /// [`BindError`] names the address.
    pub fn bind(spec: PortalSpec) -> Result<Self, BindError> {
        let address = spec.listen;
        let fail = |source| BindError { address, source };
        let poller = spec.poll.map(Poller::start).transpose().map_err(fail)?.map(Arc::new);
        let listener = {
            // A socket belongs to the runtime that waits for it.
            let _on_its_thread = poller.as_ref().map(|poller| poller.handle().enter());
            listen(address, spec.dscp).map_err(fail)?
        };
        let local = listener.local_addr().map_err(fail)?;
        Ok(Self { spec, listener, local, poller })
    }

    /// Its address, with the port the kernel chose where 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

/// A portal that is open.
pub(super) struct Portal {
    pub(super) spec: PortalSpec,
    pub(super) local: SocketAddr,
    pub(super) listener: Arc<TcpListener>,
    pub(super) stop: watch::Sender<bool>,
}

impl Portal {
    /// What an initiator is told that reached us at `here` through this portal, which belongs to
    /// this portal group of the target that it is told of.
    pub(super) fn address_seen_at(&self, here: SocketAddr, group: u16) -> TargetAddress {
        match &self.spec.external {
            Some(external) => TargetAddress { group: Some(group), ..external.clone() },
            None => TargetAddress::new(here, group),
        }
    }

    /// Marks what is sent over connections that come from now on.
    pub(super) fn set_dscp(&mut self, dscp: Option<Dscp>) -> io::Result<()> {
        self.spec.dscp = dscp;
        dscp.unwrap_or(Dscp::BEST_EFFORT).apply(&*self.listener)
    }

    /// What others are told of this portal: nothing, if it has no address of its own.
    pub(super) fn address(&self, group: u16) -> Option<TargetAddress> {
        let specific = self.spec.external.is_some() || !self.local.ip().is_unspecified();
        specific.then(|| self.address_seen_at(self.local, group))
    }
}

fn listen(address: SocketAddr, dscp: Option<Dscp>) -> io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?; // a restarted target finds its old connections in TIME_WAIT
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    if let Some(dscp) = dscp {
        dscp.apply(&socket)?;
    }
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

/// Accepts until told to stop. Connections go on after that.
pub(super) async fn accept(
    shared: Arc<Shared>,
    tasks: Weak<Tasks>,
    portal: Arc<str>,
    listener: Arc<TcpListener>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut complaints = Complaints::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(tasks) = tasks.upgrade() else { return };
                spawn_connection(&shared, &tasks, Arc::clone(&portal), stream.into(), peer);
            }
            Err(error) => {
                // EMFILE and the like pass when connections close; give them the time to.
                complaints.note(&error);
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// What a portal that cannot accept has to say: at once, and then how often it was.
#[derive(Default)]
struct Complaints {
    failures: u64,
    last_said: Option<tokio::time::Instant>,
}

impl Complaints {
    fn note(&mut self, error: &io::Error) {
        self.failures += 1;
        let now = tokio::time::Instant::now();
        if self.last_said.is_none_or(|said| now - said >= COMPLAINT_EVERY) {
            let failures = std::mem::take(&mut self.failures);
            warn!(%error, failures, "cannot accept a connection");
            self.last_said = Some(now);
        }
    }
}

/// Takes a connection in, if there is room for it.
pub(super) fn spawn_connection(
    shared: &Arc<Shared>,
    tasks: &Tasks,
    portal: Arc<str>,
    stream: Stream,
    peer: SocketAddr,
) {
    let Some(place) = shared.connections.enter(shared.connections_max()) else {
        shared.counters.login_failed("connections_limit");
        if shared.may_log(peer) {
            warn!(%peer, "refused: too many connections");
        }
        return;
    };
    // In the order in which they came: tasks may begin in any other, and the oldest gives way.
    let limits = shared.catalog().limits.clone();
    let (all_max, peer_max) = (limits.logins_max, limits.logins_per_peer_max);
    let Some(login) = shared.logins.enter(peer.ip(), now(), all_max, peer_max) else {
        shared.counters.login_failed("logins_limit");
        if shared.may_log(peer) {
            warn!(%peer, "refused: too many logins under way");
        }
        return;
    };
    let shared = Arc::clone(shared);
    let serve = async move {
        serve(&shared, portal, stream, peer, &limits, login).await;
        drop(place);
    };
    tasks.spawn(serve.instrument(info_span!("connection", %peer)));
}

async fn serve(
    shared: &Arc<Shared>,
    portal: Arc<str>,
    stream: Stream,
    peer: SocketAddr,
    limits: &Limits,
    (place, shown_out): (Place, ShownOut),
) {
    let dscp = shared.lock_portals().get(&*portal).and_then(|portal| portal.spec.dscp);
    if let Err(error) = prepare(stream.socket(), limits, dscp) {
        // A peer that resets at once does this, too.
        if shared.may_log(peer) {
            warn!(%error, "cannot set up the socket");
        }
        return;
    }
    let timeout = limits.login_timeout;
    let login = login::login(shared, portal, stream, peer, place);
    let login = tokio::select! {
        login = tokio::time::timeout(timeout, login) => login,
        () = shown_out.wait() => Ok(Err(LoginError::GaveWay)),
    };
    match login {
        Ok(Ok(connection)) => connection.run().await,
        Ok(Err(error)) => {
            shared.counters.login_failed(error.label());
            if shared.may_log(peer) {
                info!(%error, "login failed");
            }
        }
        Err(_) => {
            shared.counters.login_failed("timeout");
            if shared.may_log(peer) {
                info!(seconds = timeout.as_secs(), "login took too long");
            }
        }
    }
}

fn prepare(stream: &TcpStream, limits: &Limits, dscp: Option<Dscp>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if let Some(dscp) = dscp {
        dscp.apply(stream)?;
    }
    let socket = socket2::SockRef::from(stream);
    if let CongestionChoice::Named(name) = &limits.congestion_control {
        socket.set_tcp_congestion(name.as_bytes())?;
    }
    if let Some(len) = limits.send_buffer {
        socket.set_send_buffer_size(len)?;
    }
    if let Some(len) = limits.receive_buffer {
        socket.set_recv_buffer_size(len)?;
    }
    Ok(())
}
