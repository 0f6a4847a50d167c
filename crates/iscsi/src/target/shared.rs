//! What all connections of a server share: the catalog, the sessions there are, and what concerns
//! more than one of them.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use iscsi_proto::ids::{Lun, Tsih};
use iscsi_proto::names::TargetAddress;
use iscsi_proto::pdu::{TaskManagementFunction, TaskManagementResponseCode};
use iscsi_proto::target::{Registry, Session};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::accept::Portal;
use super::budget::Budget;
use super::catalog::{Catalog, TargetSpec};
use super::counters::Counters;
use super::descriptors;
use super::gate::Gate;
use super::limit::Limiters;
use super::lobby::Lobby;
use super::log_limit::LogLimit;
use super::session::{SharedSession, now};

pub(super) struct Shared {
    catalog: RwLock<Arc<Catalog>>,
    pub(super) portals: Mutex<BTreeMap<String, Portal>>,
    pub(super) sessions: Mutex<Sessions>,
    /// Told whenever a connection or a session has ended.
    ended: Notify,
    pub(super) logins: Arc<Lobby>,
    pub(super) connections: Arc<Gate>,
    /// Connections that there may be: as many as the catalog says, and as there are descriptors.
    connections_max: AtomicUsize,
    pub(super) counters: Arc<Counters>,
    pub(super) log: LogLimit,
    pub(super) budget: Arc<Budget>,
    pub(super) limiters: Limiters,
    /// The SCSI side of discovery sessions: nothing.
    pub(super) nothing: scsi::Target,
    /// New sessions are refused.
    pub(super) stopping: AtomicBool,
}

/// Sessions by handle, and the rules of joining them.
pub(super) struct Sessions {
    pub(super) registry: Registry,
    pub(super) live: HashMap<Tsih, Arc<SharedSession>>,
}

impl Shared {
    pub(super) fn new(catalog: Catalog) -> Self {
        let limits = &catalog.limits;
        Self {
            budget: Budget::new(limits.memory_bytes_max, limits.sessions_max),
            connections_max: AtomicUsize::new(connections_max(&catalog)),
            catalog: RwLock::new(Arc::new(catalog)),
            portals: Mutex::default(),
            // How many sessions there may be is looked at in the catalog, where it can change.
            sessions: Mutex::new(Sessions {
                registry: Registry::new(usize::MAX),
                live: HashMap::new(),
            }),
            ended: Notify::new(),
            logins: Arc::default(),
            connections: Arc::default(),
            counters: Arc::default(),
            log: LogLimit::default(),
            limiters: Limiters::default(),
            nothing: scsi::Target::new(scsi::TargetConfig::new("discovery")),
            stopping: AtomicBool::new(false),
        }
    }

    pub(super) fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_catalog(&self, catalog: Arc<Catalog>) {
        self.budget.resize(catalog.limits.memory_bytes_max, catalog.limits.sessions_max);
        self.connections_max.store(connections_max(&catalog), Ordering::Relaxed);
        *self.catalog.write().unwrap_or_else(PoisonError::into_inner) = catalog;
    }

    /// Connections that there may be at once.
    pub(super) fn connections_max(&self) -> usize {
        self.connections_max.load(Ordering::Relaxed)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// May something about this peer be logged?
    pub(super) fn may_log(&self, peer: SocketAddr) -> bool {
        self.log.admits(peer.ip(), now())
    }

    pub(super) fn lock_portals(&self) -> MutexGuard<'_, BTreeMap<String, Portal>> {
        self.portals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All sessions, by handle.
    pub(super) fn live(&self) -> Vec<Arc<SharedSession>> {
        let mut sessions: Vec<_> = self.lock().live.values().cloned().collect();
        sessions.sort_by_key(|session| session.tsih);
        sessions
    }

    /// Forgets a session whose last connection has ended. One with commands still executing, or
    /// that waits for such a one, is kept: whoever logs in again has to wait for them.
    pub(super) fn forget(&self, session: &Arc<SharedSession>) {
        let lives = |core: &mut Session| {
            core.connection_count() > 0 || core.awaits_recovery() || !core.is_quiet()
        };
        if session.with(lives) || session.waits() {
            return;
        }
        let mut sessions = self.lock();
        let known = sessions.live.get(&session.tsih).is_some_and(|live| Arc::ptr_eq(live, session));
        if known {
            sessions.live.remove(&session.tsih);
            sessions.registry.remove(session.tsih);
            if session.is_logged() {
                info!(tsih = %session.tsih, initiator = session.initiator_name, "session ended");
            }
        }
        drop(sessions);
        session.with(|core| core.close("session ended")); // its nexus ends now, not with its last owner
        self.note_end();
    }

    /// A connection or a session has ended: whoever waits for that looks again.
    pub(super) fn note_end(&self) {
        self.ended.notify_waiters();
    }

    /// Waits for what comes with the end of connections or sessions.
    pub(super) async fn wait_until(&self, condition: impl Fn(&Self) -> bool) {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if condition(self) {
                return;
            }
            ended.await;
        }
    }

    /// Where an initiator that reached us at `here` through `portal` finds a target: there first,
    /// then at its other portals that have an address of their own.
    //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
    //# In a Discovery session, a target MUST return all path information (IP address-port pairs and
    //# Target Portal Group Tags) for the targets on the target Network Entity that the requesting
    //# initiator is authorized to access.
    pub(super) fn portals_for(
        &self,
        target: &TargetSpec,
        portal: &str,
        here: Option<SocketAddr>,
    ) -> Vec<TargetAddress> {
        let portals = self.lock_portals();
        let used: Vec<&Portal> =
            portals.values().filter(|portal| target.is_on(&portal.spec.name)).collect();
        let first = used.iter().find(|used| used.spec.name == portal);
        let group = target.scsi.config().portal_group_tag;
        let first = first.zip(here).map(|(portal, here)| portal.address_seen_at(here, group));
        let mut found: Vec<TargetAddress> = first.into_iter().collect();
        for other in used.iter().filter_map(|portal| portal.address(group)) {
            if !found.contains(&other) {
                found.push(other);
            }
        }
        found
    }

    /// What a task management function means beyond the session it came on.
    pub(super) async fn manage(
        &self,
        session: &Arc<SharedSession>,
        function: TaskManagementFunction,
        lun: Lun,
    ) -> Managed {
        use TaskManagementFunction as F;
        use TaskManagementResponseCode as R;
        let nexus = &session.nexus;
        match function {
            // The core knows the tasks; it asks where it has none.
            F::QUERY_TASK_SET if nexus.has_lun(lun.0) => return R::COMPLETE.into(),
            F::QUERY_TASK_SET => return R::LUN_DOES_NOT_EXIST.into(),
            F::QUERY_ASYNCHRONOUS_EVENT => {
                return match nexus.query_asynchronous_event(lun.0) {
                    Ok(None) => R::COMPLETE.into(),
                    Ok(Some(event)) => (R::SUCCEEDED, event.to_bytes()).into(),
                    Err(_) => R::LUN_DOES_NOT_EXIST.into(),
                };
            }
            F::I_T_NEXUS_RESET => {
                nexus.nexus_reset();
                return R::COMPLETE.into();
            }
            _ => {}
        }
        let everything = matches!(function, F::TARGET_WARM_RESET | F::TARGET_COLD_RESET);
        if function == F::CLEAR_ACA {
            let cleared = nexus.clear_aca(lun.0);
            return cleared.map_or(R::LUN_DOES_NOT_EXIST, |()| R::COMPLETE).into();
        }
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
            return R::LUN_DOES_NOT_EXIST.into();
        }
        let others = self.live().into_iter().filter(|other| {
            !Arc::ptr_eq(other, session) && other.about.target_name == session.about.target_name
        });
        for other in others {
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
        R::COMPLETE.into()
    }
}

/// How many connections the catalog and the descriptors of this process allow.
fn connections_max(catalog: &Catalog) -> usize {
    let wanted = catalog.limits.connections_max;
    let units = catalog.targets.values().map(|target| target.scsi.luns().len()).sum();
    let max = descriptors::connections_max(wanted, units);
    if max < wanted {
        warn!(max, wanted, "fewer connections than asked for: raise the limit of open files");
    }
    max
}

/// What came of a task management function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Managed {
    pub(super) response: TaskManagementResponseCode,
    /// Additional Response Information (RFC 7144 §6.4.1).
    pub(super) information: [u8; 3],
}

impl From<TaskManagementResponseCode> for Managed {
    fn from(response: TaskManagementResponseCode) -> Self {
        (response, [0; 3]).into()
    }
}

impl From<(TaskManagementResponseCode, [u8; 3])> for Managed {
    fn from((response, information): (TaskManagementResponseCode, [u8; 3])) -> Self {
        Self { response, information }
    }
}
