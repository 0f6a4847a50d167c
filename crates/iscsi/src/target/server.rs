//! [`Server`]: opens portals, lets sessions begin and end. What it serves is its
//! [`Catalog`], which may be replaced while it runs.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use iscsi_proto::ids::Tsih;
use iscsi_proto::keys::Offer;
use iscsi_proto::names::{NameError, TargetAddress, check_name};
use iscsi_proto::pdu::AsyncEvent;
use iscsi_proto::target::SessionConfig;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::accept::{BindError, BoundPortal, Portal, accept, spawn_connection};
use super::access::{AccessRule, AccessRules, Chap};
use super::catalog::{Catalog, Limits, PortalSpec, TargetSpec, default_offer};
use super::counters::CounterView;
use super::host::Host;
use super::limit::{Limit, LimitView};
use super::overview::SessionView;
use super::path;
use super::session::SharedSession;
use super::shared::Shared;
use crate::poll::Poller;
use crate::transport::{Dscp, Stream};

/// How long connections may take to write their last words at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// How often the server looks for sessions that are in the way of others.
const HOARDERS_EVERY: Duration = Duration::from_secs(5);

/// An ad-hoc server with one target: [`Server::bind`].
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
    /// Time from accepting a connection to its full-feature phase.
    pub login_timeout: Duration,
    /// Limits of the server; `login_timeout` above takes precedence.
    pub limits: Limits,
    /// Each portal has a thread of its own that polls for so long ([`PortalSpec::poll`]).
    pub poll: Option<Duration>,
    /// How fast each initiator may go.
    pub limit: Limit,
    /// How what is sent is marked ([`PortalSpec::dscp`]).
    pub dscp: Option<Dscp>,
}

impl ServerConfig {
    /// A target that anyone may use.
    ///
    /// # Errors
    /// `target_name` is no iSCSI name (RFC 7143 §4.2.7).
    pub fn new(target_name: &str) -> Result<Self, NameError> {
        let limits = Limits::default();
        Ok(Self {
            //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.7.1
            //# Each iSCSI node, whether it is an initiator, a target, or both, MUST have an iSCSI
            //# name.
            target_name: check_name(target_name)?,
            target_alias: None,
            offer: default_offer(),
            chap: None,
            session: SessionConfig::default(),
            login_timeout: limits.login_timeout,
            limits,
            poll: None,
            limit: Limit::default(),
            dscp: None,
        })
    }

    fn catalog(self, scsi: scsi::Target) -> Catalog {
        let rule = AccessRule { chap: self.chap, limit: self.limit, ..AccessRule::default() };
        let target = TargetSpec {
            name: self.target_name,
            alias: self.target_alias,
            scsi,
            offer: self.offer,
            session: self.session,
            access: AccessRules { anyone: Some(rule), ..AccessRules::default() },
            portals: None,
            lun_limits: BTreeMap::new(),
        };
        Catalog::new(Limits { login_timeout: self.login_timeout, ..self.limits })
            .with_target(target)
    }
}

/// The tasks of a server; they end with it.
#[derive(Default)]
pub(super) struct Tasks(Mutex<JoinSet<()>>);

impl Tasks {
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_on(task, &Handle::current());
    }

    fn spawn_on(&self, task: impl Future<Output = ()> + Send + 'static, runtime: &Handle) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, runtime);
    }
}

/// Targets that are served.
pub struct Server {
    shared: Arc<Shared>,
    tasks: Arc<Tasks>,
    waiting: Mutex<Vec<BoundPortal>>,
    local_addrs: Vec<SocketAddr>,
    /// Threads that poll, by portal: what was begun on one goes on when its portal is closed.
    pollers: Mutex<Vec<(String, Arc<Poller>)>>,
}

/// A session that a new catalog ended.
#[derive(Clone, Debug)]
pub struct Dropped {
    /// Whose.
    pub initiator_name: String,
    /// With which target.
    pub target_name: String,
    /// Why.
    pub reason: &'static str,
}

impl Server {
    /// A server of one target. Connections are accepted by the kernel from here on and answered
    /// once [`run`](Self::run) is called.
    ///
    /// # Errors
    /// [`BindError`] names the portal.
    pub fn bind(
        config: ServerConfig,
        scsi: scsi::Target,
        addresses: &[SocketAddr],
    ) -> Result<Self, BindError> {
        let (poll, dscp) = (config.poll, config.dscp);
        let spec = |address| PortalSpec { poll, dscp, ..PortalSpec::new(address) };
        let portals = addresses.iter().map(|address| BoundPortal::bind(spec(*address)));
        let portals = portals.collect::<Result<Vec<_>, _>>()?;
        let mut server = Self::new(config.catalog(scsi));
        server.local_addrs = portals.iter().map(BoundPortal::local_addr).collect();
        server.waiting = Mutex::new(portals);
        Ok(server)
    }

    /// A server without portals. Needs a tokio runtime around it.
    pub fn new(catalog: Catalog) -> Self {
        let shared = Arc::new(Shared::new(catalog));
        shared.limiters.apply(&shared.catalog());
        let server = Self {
            shared,
            tasks: Arc::default(),
            waiting: Mutex::default(),
            local_addrs: Vec::new(),
            pollers: Mutex::default(),
        };
        server.set_hosts();
        server.tasks.spawn(drop_hoarders(Arc::downgrade(&server.shared)));
        server.tasks.spawn(path::watch(Arc::downgrade(&server.shared)));
        server
    }

    /// The portals given to [`bind`](Self::bind), with the ports the kernel chose where 0 was asked
    /// for.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// Serves until `shutdown` completes, then ends every session: commands that execute are
    /// awaited, new ones are not accepted.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let waiting =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for portal in waiting {
            self.open(portal);
        }
        shutdown.await;
        self.stop().await;
    }

    /// Begins to answer connections on a portal. One of the same name is closed.
    pub fn open(&self, portal: BoundPortal) {
        let BoundPortal { spec, listener, local, poller } = portal;
        let listener = Arc::new(listener);
        let (stop, stopped) = watch::channel(false);
        let name: Arc<str> = spec.name.as_str().into();
        let tasks = Arc::downgrade(&self.tasks);
        let shared = Arc::clone(&self.shared);
        let accepting = accept(shared, tasks, name, Arc::clone(&listener), stopped);
        let key = spec.name.clone();
        self.close(&key);
        self.shared.lock_portals().insert(key.clone(), Portal { spec, local, listener, stop });
        match poller {
            None => self.tasks.spawn(accepting),
            Some(poller) => {
                self.tasks.spawn_on(accepting, poller.handle());
                let mut pollers = self.pollers.lock().unwrap_or_else(PoisonError::into_inner);
                pollers.push((key, poller));
            }
        }
    }

    /// Serves a connection that has come another way than to a portal, such as one that was dialled
    /// from here. It finds what there is at portals of this name, whether one is open or not.
    pub fn serve(&self, portal: &str, stream: Stream, peer: SocketAddr) {
        spawn_connection(&self.shared, &self.tasks, portal.into(), stream, peer);
    }

    /// Processor time that polling has burned so far, by portal; without those that do not poll.
    pub fn poll_burned(&self) -> BTreeMap<String, Duration> {
        let pollers = self.pollers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut burned = BTreeMap::<String, Duration>::new();
        for (portal, poller) in &*pollers {
            *burned.entry(portal.clone()).or_default() += poller.burned();
        }
        burned
    }

    /// Accepts no more connections on a portal. Those that came through it go on.
    pub fn close(&self, portal: &str) {
        if let Some(portal) = self.shared.lock_portals().remove(portal) {
            portal.stop.send_replace(true);
        }
    }

    /// Tells initiators another address of a portal from now on.
    pub fn set_external(&self, portal: &str, external: Option<TargetAddress>) {
        if let Some(portal) = self.shared.lock_portals().get_mut(portal) {
            portal.spec.external = external;
        }
    }

    /// Sends initiators that log in from now on elsewhere, or lets them in again.
    pub fn set_redirect(&self, portal: &str, redirect: Option<TargetAddress>) {
        if let Some(portal) = self.shared.lock_portals().get_mut(portal) {
            portal.spec.redirect = redirect;
        }
    }

    /// Marks otherwise what is sent over connections that come to a portal from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn set_dscp(&self, portal: &str, dscp: Option<Dscp>) -> io::Result<()> {
        let mut portals = self.shared.lock_portals();
        portals.get_mut(portal).map_or(Ok(()), |portal| portal.set_dscp(dscp))
    }

    /// The portals that are open, and their addresses.
    pub fn portals(&self) -> Vec<(PortalSpec, SocketAddr)> {
        let portals = self.shared.lock_portals();
        portals.values().map(|portal| (portal.spec.clone(), portal.local)).collect()
    }

    /// Replaces the catalog. Of sessions that it no longer allows nothing is done from then on, and
    /// what they have under way ends in the background; the others are not disturbed.
    pub fn apply(&self, catalog: Catalog) -> Vec<Dropped> {
        let catalog = Arc::new(catalog);
        self.shared.set_catalog(Arc::clone(&catalog));
        self.shared.limiters.apply(&catalog);
        self.set_hosts();
        let mut dropped = Vec::new();
        for session in self.shared.live() {
            let Some(target_name) = session.about.target_name.clone() else { continue };
            let initiator_name = session.initiator_name.clone();
            match catalog.forbids(&initiator_name, &target_name, &session.about.proof) {
                Ok(rule) => {
                    session.nexus.set_write_protection(rule.write_protection.clone());
                    let limiters = &self.shared.limiters;
                    session.set_throttle(limiters.throttle(
                        &catalog,
                        &target_name,
                        &initiator_name,
                    ));
                }
                Err(reason) => {
                    self.end(session, reason);
                    dropped.push(Dropped { initiator_name, target_name, reason });
                }
            }
        }
        dropped
    }

    fn set_hosts(&self) {
        for target in self.shared.catalog().targets.values() {
            let server = Arc::downgrade(&self.shared);
            target.scsi.set_host(Arc::new(Host { server, target_name: target.name.clone() }));
        }
    }

    /// The limits that hold now.
    pub fn limits(&self) -> Limits {
        self.shared.catalog().limits.clone()
    }

    /// The sessions there are, by handle.
    pub fn sessions(&self) -> Vec<SessionView> {
        self.shared.live().iter().map(|session| session.view()).collect()
    }

    /// Ends a session; false if there is none with this handle.
    pub fn drop_session(&self, tsih: u16) -> bool {
        let session = self.shared.lock().live.get(&Tsih(tsih)).cloned();
        let found = session.is_some();
        session.into_iter().for_each(|session| self.end(session, "dropped by the operator"));
        found
    }

    fn end(&self, session: Arc<SharedSession>, reason: &'static str) {
        end(&session, reason);
        session.end(reason); // what executes is waited for behind whoever asked
        self.tasks.spawn(async move { session.ended().await });
    }

    /// What happened so far.
    pub fn counters(&self) -> CounterView {
        self.shared.counters.view()
    }

    /// The limits that there are now: those of logical units, and those of initiators that have a
    /// session or have had one a short time ago.
    pub fn limit_views(&self) -> Vec<LimitView> {
        self.shared.limiters.view()
    }

    /// Connections that are open, logging in or further.
    pub fn connection_count(&self) -> usize {
        self.shared.connections.count()
    }

    /// Bytes of memory that commands use now, and commands that found none so far.
    pub fn memory(&self) -> (u64, u64) {
        (self.shared.budget.used(), self.shared.budget.refusals())
    }

    /// Accepts no more, asks every initiator to log out, and waits until they have, up to `limit`.
    /// Whoever is still there then is cut off by [`stop`](Self::stop).
    pub async fn drain(&self, limit: Duration) {
        self.refuse();
        let seconds = u16::try_from(limit.as_secs().max(1)).unwrap_or(u16::MAX);
        for session in self.shared.live() {
            for conn in session.connections() {
                // Parameter3: how long there is to log out (RFC 7143 §11.9.1).
                let event = AsyncEvent::LOGOUT_REQUEST;
                session.with(|core| core.send_async(conn, event, [0, 0, seconds]));
            }
        }
        let gone = self.shared.wait_until(|shared| shared.lock().live.is_empty());
        if tokio::time::timeout(limit, gone).await.is_err() {
            let sessions = self.shared.lock().live.len();
            warn!(sessions, "initiators did not log out in time");
        }
    }

    fn refuse(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        let portals = std::mem::take(&mut *self.shared.lock_portals());
        for portal in portals.into_values() {
            portal.stop.send_replace(true);
        }
    }

    /// Ends every session: commands that execute are awaited, new ones are not accepted.
    pub async fn stop(&self) {
        self.refuse();
        for session in self.shared.live() {
            session.close("the target shuts down").await;
        }
        let empty = self.shared.connections.empty();
        if tokio::time::timeout(SHUTDOWN_GRACE, empty).await.is_err() {
            let connections = self.shared.connections.count();
            warn!(connections, "cutting connections that do not end");
        }
    }
}

fn end(session: &SharedSession, reason: &'static str) {
    let (initiator, target) = (&session.initiator_name, session.about.target());
    info!(initiator, target, tsih = %session.tsih, reason, "session is dropped");
}

/// Ends sessions that hold memory others wait for and bring nothing to an end.
async fn drop_hoarders(shared: std::sync::Weak<Shared>) {
    let mut ticks = tokio::time::interval(HOARDERS_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        for session in shared.live() {
            // One that a limit holds back brings less to an end than it could.
            if !session.is_held_back() && shared.budget.hoards(&session.account) {
                warn!(
                    initiator = session.initiator_name,
                    tsih = %session.tsih,
                    bytes = session.account.used(),
                    "session is dropped: it holds memory that others wait for"
                );
                tokio::spawn(async move {
                    session.close("it holds memory that others wait for").await;
                });
            }
        }
    }
}
