//! [`Server`]: listeners, the sessions there are, and what concerns more than one of them.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use iscsi_proto::ids::{Lun, Tsih};
use iscsi_proto::keys::Offer;
use iscsi_proto::names::{NameError, TargetAddress, check_name};
use iscsi_proto::pdu::{TaskManagementFunction, TaskManagementResponseCode};
use iscsi_proto::target::{Registry, Session, SessionConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{Instrument, info, info_span, warn};

use super::access::{Access, Chap, PORTAL_GROUP};
use super::host::Sessions as Host;
use super::login;
use super::session::SharedSession;

/// Pause after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How long connections may take to write their last words at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// What a target offers and allows.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Name of the one target behind the portals.
    pub target_name: String,
    /// Alias shown to people.
    pub target_alias: Option<String>,
    /// Parameters offered in negotiation.
    pub offer: Offer,
    /// Who may log in: everybody, or who knows a secret.
    pub chap: Option<Chap>,
    /// Limits of a session.
    pub session: SessionConfig,
    /// Time from accepting a connection to its full-feature phase. A peer that connects and says
    /// nothing holds a place no longer than this.
    pub login_timeout: Duration,
    /// Connections that may be logging in at once.
    pub logins_max: usize,
    /// Connections at once, over all sessions.
    pub connections_max: usize,
    /// Sessions at once.
    pub sessions_max: usize,
    /// Socket buffer sizes in bytes; `None` leaves them to the kernel's autotuning, which follows
    /// the path up to the limits of tcp_rmem and tcp_wmem.
    pub socket_buffer: Option<usize>,
}

impl ServerConfig {
    /// A target that anyone may use.
    ///
    /// # Errors
    /// `target_name` is no iSCSI name (RFC 7143 §4.2.7).
    pub fn new(target_name: &str) -> Result<Self, NameError> {
        let mut offer = Offer::default();
        // Nothing here needs time before a session can be reinstated (§13.15).
        offer.session.default_time2wait = 0;
        // As much recovery as the initiator wants. Its order of sequences decides whether several
        // R2Ts may be outstanding then (§13.19), so that we ask for none.
        offer.session.error_recovery_level = 2;
        offer.session.data_pdu_in_order = false;
        offer.session.data_sequence_in_order = false;
        Ok(Self {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.7.1
            //# Each iSCSI node, whether it is an initiator, a target, or both, MUST have an iSCSI
            //# name.
            target_name: check_name(target_name)?,
            target_alias: None,
            offer,
            chap: None,
            session: SessionConfig::default(),
            login_timeout: Duration::from_secs(15),
            logins_max: 256,
            connections_max: 4096,
            sessions_max: 1024,
            socket_buffer: None,
        })
    }
}

/// A portal could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}")]
pub struct BindError {
    /// Where.
    pub address: SocketAddr,
    /// Why.
    pub source: io::Error,
}

/// A target that listens.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
}

/// What all connections share.
pub(super) struct Shared {
    pub(super) config: ServerConfig,
    pub(super) scsi: scsi::Target,
    portals: Vec<SocketAddr>,
    access: Arc<Access>,
    pub(super) sessions: Mutex<Sessions>,
    logins: Semaphore,
    connections: Arc<Semaphore>,
}

/// Sessions by handle, and the rules of joining them.
pub(super) struct Sessions {
    pub(super) registry: Registry,
    pub(super) live: HashMap<Tsih, Arc<SharedSession>>,
}

impl Server {
    /// Opens the portals. Connections are accepted by the kernel from here on and answered once
    /// [`run`](Self::run) is called.
    ///
    /// # Errors
    /// [`BindError`] names the portal.
    pub fn bind(
        config: ServerConfig,
        scsi: scsi::Target,
        addresses: &[SocketAddr],
    ) -> Result<Self, BindError> {
        let mut listeners = Vec::with_capacity(addresses.len());
        let mut portals = Vec::with_capacity(addresses.len());
        for &address in addresses {
            let fail = |source| BindError { address, source };
            let listener = listen(address).map_err(fail)?;
            portals.push(listener.local_addr().map_err(fail)?);
            listeners.push(listener);
        }
        let registry = Registry::new(config.sessions_max);
        let access = Access {
            target_name: config.target_name.clone(),
            target_alias: config.target_alias.clone(),
            chap: config.chap.clone(),
        };
        let shared = Shared {
            scsi,
            portals,
            access: Arc::new(access),
            sessions: Mutex::new(Sessions { registry, live: HashMap::new() }),
            logins: Semaphore::new(config.logins_max),
            connections: Arc::new(Semaphore::new(config.connections_max)),
            config,
        };
        let shared = Arc::new(shared);
        shared.scsi.set_host(Arc::new(Host(Arc::downgrade(&shared))));
        Ok(Self { shared, listeners })
    }

    /// The portals, with the ports the kernel chose where 0 was asked for.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.shared.portals
    }

    /// Serves until `shutdown` completes, then ends every session: commands that execute are
    /// awaited, new ones are not accepted.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let (stop, stopped) = watch::channel(false);
        let mut accepting = JoinSet::new();
        for listener in self.listeners {
            accepting.spawn(accept(Arc::clone(&self.shared), listener, stopped.clone()));
        }
        shutdown.await;
        let _ = stop.send(true);
        let sessions: Vec<_> = self.shared.lock().live.values().cloned().collect();
        for session in sessions {
            session.close("the target shuts down").await;
        }
        while accepting.join_next().await.is_some() {}
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?; // a restarted target finds its old connections in TIME_WAIT
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    TcpListener::from_std(socket.into())
}

async fn accept(shared: Arc<Shared>, listener: TcpListener, mut stopped: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => break,
        };
        match accepted {
            Ok((stream, peer)) => spawn_connection(&shared, &mut connections, stream, peer),
            Err(error) => {
                // EMFILE and the like pass when connections close; give them the time to.
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(SHUTDOWN_GRACE, all).await.is_err() {
        warn!(connections = connections.len(), "cutting connections that do not end");
    }
}

fn spawn_connection(
    shared: &Arc<Shared>,
    connections: &mut JoinSet<()>,
    stream: TcpStream,
    peer: SocketAddr,
) {
    let Ok(permit) = Arc::clone(&shared.connections).try_acquire_owned() else {
        return warn!(%peer, "refused: too many connections");
    };
    let shared = Arc::clone(shared);
    let serve = async move {
        serve(&shared, stream).await;
        drop(permit);
    };
    connections.spawn(serve.instrument(info_span!("connection", %peer)));
}

async fn serve(shared: &Arc<Shared>, stream: TcpStream) {
    if let Err(error) = prepare(&stream, shared.config.socket_buffer) {
        return warn!(%error, "cannot set up the socket");
    }
    let Ok(_place) = shared.logins.try_acquire() else {
        return warn!("refused: too many logins under way");
    };
    let timeout = shared.config.login_timeout;
    match tokio::time::timeout(timeout, login::login(shared, stream)).await {
        Ok(Ok(connection)) => {
            drop(_place);
            connection.run().await;
        }
        Ok(Err(error)) => info!(%error, "login failed"),
        Err(_) => info!(seconds = timeout.as_secs(), "login took too long"),
    }
}

fn prepare(stream: &TcpStream, buffer: Option<usize>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    if let Some(len) = buffer {
        socket.set_send_buffer_size(len)?;
        socket.set_recv_buffer_size(len)?;
    }
    Ok(())
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Forgets a session whose last connection has ended. One with commands still executing is
    /// kept: whoever logs in again has to wait for them.
    pub(super) fn forget(&self, session: &Arc<SharedSession>) {
        let lives = |core: &mut Session| {
            core.connection_count() > 0 || core.awaits_recovery() || !core.is_quiet()
        };
        if session.with(lives) {
            return;
        }
        let mut sessions = self.lock();
        let known = sessions.live.get(&session.tsih).is_some_and(|live| Arc::ptr_eq(live, session));
        if known {
            sessions.live.remove(&session.tsih);
            sessions.registry.remove(session.tsih);
            info!(tsih = %session.tsih, initiator = session.initiator_name, "session ended");
        }
    }

    pub(super) fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access)
    }

    /// Where an initiator that reached us through `local` finds the target: there first, then at
    /// the other portals that have an address of their own.
    //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
    //# In a Discovery session, a target MUST return all path information (IP address-port pairs and
    //# Target Portal Group Tags) for the targets on the target Network Entity that the requesting
    //# initiator is authorized to access.
    pub(super) fn portals_for(&self, local: Option<TargetAddress>) -> Vec<TargetAddress> {
        let specific = self.portals.iter().filter(|portal| !portal.ip().is_unspecified());
        let others = specific.map(|portal| TargetAddress::new(*portal, PORTAL_GROUP));
        let mut portals: Vec<TargetAddress> = local.into_iter().collect();
        for other in others {
            if !portals.contains(&other) {
                portals.push(other);
            }
        }
        portals
    }

    /// What a task management function means beyond the session it came on.
    pub(super) async fn manage(
        &self,
        session: &Arc<SharedSession>,
        function: TaskManagementFunction,
        lun: Lun,
    ) -> TaskManagementResponseCode {
        use TaskManagementFunction as F;
        let everything = matches!(function, F::TARGET_WARM_RESET | F::TARGET_COLD_RESET);
        let done = match function {
            F::CLEAR_TASK_SET => session.nexus.clear_task_set(lun.0),
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
            //# For the LOGICAL UNIT RESET function, the target MUST behave as dictated by the
            //# Logical Unit Reset function in [SAM2].
            F::LOGICAL_UNIT_RESET => session.nexus.lun_reset(lun.0),
            _ => {
                session.nexus.target_reset();
                Ok(())
            }
        };
        if done.is_err() {
            return TaskManagementResponseCode::LUN_DOES_NOT_EXIST;
        }
        let others: Vec<_> = self.lock().live.values().cloned().collect();
        for other in others.iter().filter(|other| !Arc::ptr_eq(other, session)) {
            other.abort_and_wait((!everything).then_some(lun)).await;
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.5.1
            //# Additionally, the target MUST treat the TARGET COLD RESET function as a power-on
            //# event, thus terminating all of its TCP connections to all initiators (all sessions
            //# are terminated).
            //= https://www.rfc-editor.org/rfc/rfc7143#section-11.6.1
            //# For the TARGET COLD RESET function, the target MUST then close all of its TCP
            //# connections to all initiators (terminates all sessions).
            if function == F::TARGET_COLD_RESET {
                other.close("target cold reset").await;
            }
        }
        TaskManagementResponseCode::COMPLETE
    }
}
