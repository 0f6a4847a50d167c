//! The daemon's targets in an iSNS server (`[isns]`): what is wished of it, which
//! [`registrar`] does. Whether it is there makes no difference to what is served.

use std::sync::Mutex;
use std::time::Duration;

use discovery::isns::registrar::{self, Offered, Place, Standing, Wish};
use iscsi::target::{PortalSpec, Server};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::config::{Config, IsnsSection};

/// How long a server may take to forget us when the daemon stops.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(6);

/// The daemon's side of a registration.
pub(crate) struct Registration {
    /// None when the daemon has left.
    wishes: Mutex<Option<watch::Sender<Option<Wish>>>>,
    standing: watch::Receiver<Standing>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// How it stands, and with whom.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) server: String,
    pub(crate) entity: String,
    pub(crate) standing: Standing,
}

impl Registration {
    /// Nothing is registered yet.
    pub(crate) fn new() -> Self {
        let (wishes, wished) = watch::channel(None);
        let (tell, standing) = watch::channel(Standing::default());
        let keeper = tokio::spawn(registrar::keep(wished, tell));
        let (wishes, keeper) = (Mutex::new(Some(wishes)), Mutex::new(Some(keeper)));
        Self { wishes, standing, keeper }
    }

    /// Has registered what is served now, as the configuration says.
    pub(crate) fn set(&self, config: &Config, server: &Server) {
        let wish = config.isns.as_ref().map(|section| wish(section, config, server));
        let wishes = self.wishes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(wishes) = &*wishes {
            wishes.send_if_modified(|known| {
                let is_new = *known != wish;
                *known = wish;
                is_new
            });
        }
    }

    /// How it stands; nothing if nothing is to be registered.
    pub(crate) fn view(&self) -> Option<View> {
        let wishes = self.wishes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let wish = wishes.as_ref()?.borrow().clone()?;
        let standing = self.standing.borrow().clone();
        Some(View { server: wish.server, entity: wish.entity, standing })
    }

    /// Takes it away: nobody shall be sent to a daemon that stops.
    pub(crate) async fn leave(&self) {
        let lock = || self.keeper.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        drop(self.wishes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take());
        let Some(mut keeper) = lock().take() else { return };
        if tokio::time::timeout(LEAVE_TIMEOUT, &mut keeper).await.is_err() {
            warn!("the iSNS server does not answer; what is registered there will expire");
            keeper.abort();
        }
    }
}

fn wish(section: &IsnsSection, config: &Config, server: &Server) -> Wish {
    let portals = server.portals().into_iter();
    let targets = config.targets.values().map(|target| Offered {
        name: target.name.clone(),
        alias: target.alias.clone(),
        portals: target.portals.as_ref().map(|names| names.iter().cloned().collect()),
    });
    Wish {
        server: section.server.clone(),
        entity: section.entity.clone().unwrap_or_else(host_name),
        esi_interval_s: section.esi_interval.map(|it| it.as_secs().max(1) as u32),
        domains: section.domains.clone(),
        portals: portals.map(|(spec, local)| (spec.name.clone(), place(&spec, local))).collect(),
        targets: targets.collect(),
    }
}

/// Where initiators find a portal. One that listens everywhere is where the iSNS server is reached
/// from: of all addresses of a host that is the one that others are known to be able to use.
fn place(spec: &PortalSpec, local: std::net::SocketAddr) -> Place {
    match &spec.external {
        Some(told) => match told.host.parse() {
            Ok(address) => Place::At(std::net::SocketAddr::new(address, told.port)),
            Err(_) => Place::Named(told.host.clone(), told.port),
        },
        None if local.ip().is_unspecified() => Place::Here(local.port()),
        None => Place::At(local),
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "enkaku".to_owned() } else { name.trim().to_lowercase() }
}
