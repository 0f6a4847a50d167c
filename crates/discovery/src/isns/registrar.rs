//! Keeps an entity registered: at a server that is there, that comes back, and that forgot
//! (RFC 4171 §6.2.6). It says how things stand; that others go on meanwhile is their business.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use super::client::{Client, ClientError};
use super::message::Notice;
use super::pdu::{Function, Status};
use super::registration::{Callback, Entity, Node, Portal};
use super::{Attr, PortalKey, Request, Tag};

/// Seconds without a message after which a server forgets us. Long enough for two renewals that
/// fail, short enough that a dead host is not offered for long.
pub const PERIOD_S: u32 = 120;

/// Time between renewals. A server that forgot us is found by them, so it is below the 45 s in
/// which it is to know us again.
const RENEW_EVERY: Duration = Duration::from_secs(30);

/// Pauses between attempts: from the first to all after the last. Below 45 s with an attempt.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

/// Least time between renewals, whatever period a server grants.
const RENEW_EVERY_MIN: Duration = Duration::from_secs(1);

/// Where a portal is, as far as it is known before there is a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// There.
    At(SocketAddr),
    /// At the address from which the server is reached.
    Here(u16),
    /// At each address of a name.
    Named(String, u16),
}

/// A target to register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Its iSCSI name.
    pub name: String,
    /// For people.
    pub alias: Option<String>,
    /// Names of portals that it is reached through; `None`: all.
    pub portals: Option<Vec<String>>,
}

/// What is to be registered, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// HOST:PORT of the server.
    pub server: String,
    /// The entity's identifier.
    pub entity: String,
    /// Seconds between inquiries of the server; `None`: none.
    pub esi_interval_s: Option<u32>,
    /// Discovery domains, by name, that the targets shall be in.
    pub domains: Vec<String>,
    /// Portals by name.
    pub portals: Vec<(String, Place)>,
    /// Targets.
    pub targets: Vec<Offered>,
}

/// How it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Is it registered, as far as is known?
    pub registered: bool,
    /// Why not, or what else is wrong.
    pub problem: Option<String>,
    /// How often it has been registered.
    pub registrations: u64,
    /// Inquiries answered.
    pub inquiries: u64,
}

/// Why a connection was left.
enum Left {
    /// There is another wish.
    Changed,
    /// The server does not know us any more.
    Forgotten,
    /// There is none.
    Failed(ClientError),
}

impl From<ClientError> for Left {
    fn from(error: ClientError) -> Self {
        Self::Failed(error)
    }
}

/// Keeps registered what is wished, and takes it away when there is no wish any more (`None`).
/// Ends when the sender of wishes is gone, which is as good as none. `standing` says how it stands
/// all the while.
pub async fn keep(mut wishes: watch::Receiver<Option<Wish>>, standing: watch::Sender<Standing>) {
    let mut failures = 0_usize;
    loop {
        let wish = wishes.borrow_and_update().clone();
        let Some(wish) = wish else {
            standing.send_if_modified(|known| std::mem::take(known) != Standing::default());
            if wishes.changed().await.is_err() {
                return;
            }
            continue;
        };
        let mut told = wish.server.clone();
        match registered(&wish, &mut wishes, &standing, &mut failures).await {
            // Nobody is left who could have another one.
            Left::Changed if wishes.has_changed().is_err() => return,
            Left::Changed => {
                failures = 0;
                continue;
            }
            Left::Forgotten => {
                told.push_str(" has forgotten this entity");
                info!(server = wish.server, "the iSNS server has forgotten us");
                set_failed(&standing, told);
                if failures == 0 {
                    failures = 1;
                    continue;
                }
            }
            Left::Failed(error) => {
                if standing.borrow().problem.as_deref() != Some(&error.to_string()) {
                    warn!(entity = wish.entity, %error, "not registered");
                }
                set_failed(&standing, error.to_string());
            }
        }
        let pause = PAUSES[failures.min(PAUSES.len() - 1)];
        failures += 1;
        tokio::select! {
            () = sleep(pause) => {}
            changed = wishes.changed() => if changed.is_err() { return },
        }
    }
}

fn set_failed(standing: &watch::Sender<Standing>, problem: String) {
    standing.send_modify(|standing| {
        standing.registered = false;
        standing.problem = Some(problem);
    });
}

/// Registers, renews, and answers until something happens.
async fn registered(
    wish: &Wish,
    wishes: &mut watch::Receiver<Option<Wish>>,
    standing: &watch::Sender<Standing>,
    failures: &mut usize,
) -> Left {
    // A daemon that stops does not wait for a server that does not answer.
    let connected = tokio::select! {
        connected = Client::connect(&wish.server, wish.esi_interval_s.is_some()) => connected,
        _ = wishes.changed() => return Left::Changed,
    };
    let attempt = async {
        let mut client = connected?;
        let local = client.local_addr()?;
        let entity = wish.entity(local.ip()).await;
        let granted = register(&mut client, wish, &entity, local).await?;
        Ok::<_, ClientError>((client, entity, granted))
    };
    let (mut client, entity, period) = match attempt.await {
        Ok(done) => done,
        Err(error) => return Left::Failed(error),
    };
    let problem = join_domains(&mut client, wish, &entity).await.err();
    if let Some(problem) = &problem {
        warn!(entity = wish.entity, server = %client.server(), problem, "discovery domains");
    }
    standing.send_modify(|standing| {
        standing.registered = true;
        standing.problem = problem;
        standing.registrations += 1;
    });
    let targets = entity.nodes.len();
    info!(server = %client.server(), entity = entity.id, targets, "registered");
    *failures = 0;
    let every = RENEW_EVERY.min(Duration::from_secs(u64::from(period) / 3)).max(RENEW_EVERY_MIN);
    let left = renew(&mut client, &entity, every, wishes, standing).await;
    if matches!(left, Left::Changed) {
        leave(&mut client, wish, wishes, &entity, standing).await;
    }
    left
}

/// Takes the entity away where nothing takes its place.
async fn leave(
    client: &mut Client,
    wish: &Wish,
    wishes: &watch::Receiver<Option<Wish>>,
    entity: &Entity,
    standing: &watch::Sender<Standing>,
) {
    let next = wishes.has_changed().ok().and_then(|_| wishes.borrow().clone());
    let stays = next.is_some_and(|next| {
        (&next.server, &next.entity) == (&wish.server, &wish.entity) && !next.targets.is_empty()
    });
    if stays {
        return;
    }
    match client.call(&entity.deregistration()).await {
        Ok(_) => info!(server = %client.server(), entity = entity.id, "deregistered"),
        Err(error) => warn!(entity = entity.id, %error, "not deregistered; it will expire"),
    }
    standing.send_modify(|standing| standing.registered = false);
}

/// The period that the server grants.
async fn register(
    client: &mut Client,
    wish: &Wish,
    entity: &Entity,
    local: SocketAddr,
) -> Result<u32, ClientError> {
    let callback =
        client.callback_port().map(|port| Callback { port, esi_interval_s: wish.esi_interval_s });
    let here = entity.portals.iter().find(|portal| portal.key.address == local.ip().to_canonical());
    let request = entity.registration(callback, here.map(|portal| portal.key));
    let mut response = client.ask(&request).await?;
    if response.status == Status::ESI_NOT_AVAILABLE {
        debug!(server = %client.server(), "no inquiries: registered by period alone");
        let callback = callback.map(|callback| Callback { esi_interval_s: None, ..callback });
        response =
            client.ask(&entity.registration(callback, here.map(|portal| portal.key))).await?;
    }
    if response.status != Status::SUCCESS {
        let (server, function) = (client.server(), request.function);
        return Err(ClientError::Refused { server, function, status: response.status });
    }
    let mut granted = response.operating.iter().filter(|attr| attr.tag == Tag::REGISTRATION_PERIOD);
    let granted = granted.find_map(|attr| attr.number().ok()).filter(|period| *period > 0);
    Ok(granted.unwrap_or(entity.period_s))
}

async fn renew(
    client: &mut Client,
    entity: &Entity,
    every: Duration,
    wishes: &mut watch::Receiver<Option<Wish>>,
    standing: &watch::Sender<Standing>,
) -> Left {
    let mut at = Instant::now() + every;
    loop {
        tokio::select! {
            // Whoever sent the wishes is gone: so is the wish.
            _ = wishes.changed() => return Left::Changed,
            notice = client.notice() => match notice {
                Ok(Notice::Esi { .. }) => standing.send_modify(|standing| standing.inquiries += 1),
                Ok(notice) => debug!(?notice, "iSNS"),
                Err(error) => return Left::Failed(error),
            },
            () = sleep_until(at) => {
                match client.ask(&entity.renewal()).await {
                    Ok(answer) if entity.is_in(&answer) => at = Instant::now() + every,
                    Ok(_) => return Left::Forgotten,
                    Err(error) => return Left::Failed(error),
                }
            }
        }
    }
}

/// Puts the targets into their domains; one that does not exist is made.
async fn join_domains(client: &mut Client, wish: &Wish, entity: &Entity) -> Result<(), String> {
    for name in &wish.domains {
        let joined = join_domain(client, name, entity).await;
        joined.map_err(|error| format!("domain {name:?}: {error}"))?;
    }
    Ok(())
}

async fn join_domain(client: &mut Client, name: &str, entity: &Entity) -> Result<(), ClientError> {
    let named = Attr::new_text(Tag::DD_NAME, name);
    let mut query = Request::new(Function::DEV_ATTR_QRY, entity.source());
    query.key.push(named.clone());
    query.operating = [Tag::DD_ID, Tag::DD_MEMBER_NAME].map(Attr::empty).into();
    let known = client.ask(&query).await?;
    let members = known.operating.iter().filter(|attr| attr.tag == Tag::DD_MEMBER_NAME);
    let members: BTreeSet<String> =
        members.filter_map(|attr| Some(attr.text().ok()?.to_ascii_lowercase())).collect();
    if entity.nodes.iter().all(|node| members.contains(&node.name.to_ascii_lowercase())) {
        return Ok(()); // as the server's operator has it
    }
    let id = known.operating.into_iter().find(|attr| attr.tag == Tag::DD_ID && !attr.is_empty());
    let mut request = Request::new(Function::DD_REG, entity.source());
    match id.filter(|_| known.status == Status::SUCCESS) {
        Some(id) => {
            request.key.push(id.clone());
            request.operating.push(id);
        }
        None => request.operating.push(named),
    }
    let members = entity.nodes.iter().map(|node| Attr::new_text(Tag::DD_MEMBER_NAME, &node.name));
    request.operating.extend(members);
    client.call(&request).await.map(drop)
}

impl Wish {
    /// As it is registered over a connection from `local`. A name that has no address now has
    /// none in the directory.
    async fn entity(&self, local: IpAddr) -> Entity {
        let mut portals: Vec<(&str, Portal)> = Vec::new();
        for (name, place) in &self.portals {
            let keys: Vec<PortalKey> = match place {
                Place::At(address) => vec![(*address).into()],
                Place::Here(port) => vec![SocketAddr::new(local, *port).into()],
                Place::Named(host, port) => {
                    match tokio::net::lookup_host((host.as_str(), *port)).await {
                        Ok(addresses) => addresses.map(Into::into).collect(),
                        Err(error) => {
                            warn!(portal = name, host, %error, "portal is not registered");
                            Vec::new()
                        }
                    }
                }
            };
            for key in keys {
                if portals.iter().all(|(_, portal)| portal.key != key) {
                    portals.push((name, Portal { key, name: Some(name.clone()) }));
                }
            }
        }
        let nodes = self.targets.iter().map(|target| Node {
            name: target.name.clone(),
            kind: super::registration::node_type::TARGET,
            alias: target.alias.clone(),
            portals: target.portals.as_ref().map(|names| {
                let reached = portals.iter().filter(|(name, _)| names.iter().any(|n| n == name));
                reached.map(|(_, portal)| portal.key).collect()
            }),
        });
        Entity {
            id: self.entity.clone(),
            period_s: PERIOD_S,
            nodes: nodes.collect(),
            portals: portals.iter().map(|(_, portal)| portal.clone()).collect(),
        }
    }
}
