//! What a client registers, and what it makes of an answer: objects of RFC 4171 §3 as values.
//! Who sends them when, [`super::registrar`] knows.

use std::collections::BTreeSet;

use super::attr::{Attr, PortalKey, Tag};
use super::message::{Request, Response};
use super::pdu::Function;

/// What a node is: bits of its type (§6.4.2).
pub mod node_type {
    /// It has logical units.
    pub const TARGET: u32 = 1;
    /// It uses them.
    pub const INITIATOR: u32 = 2;
    /// It manages the directory.
    pub const CONTROL: u32 = 4;
}

/// iSCSI, among the entity protocols (§6.2.2).
const PROTOCOL_ISCSI: u32 = 2;

/// The tag of portal groups that nobody named (§3.4).
pub(crate) const PG_TAG_DEFAULT: u32 = 1;

/// A host with its targets: what one registration is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entity {
    /// Its identifier, the same in every registration of this host (§6.2.1).
    pub id: String,
    /// Seconds after which the server forgets it unless it hears of it (§6.2.6).
    pub period_s: u32,
    /// Where its nodes are reached.
    pub portals: Vec<Portal>,
    /// Its targets or initiators.
    pub nodes: Vec<Node>,
}

/// Where nodes are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Address and port.
    pub key: PortalKey,
    /// For people.
    pub name: Option<String>,
}

/// A target or initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its iSCSI name.
    pub name: String,
    /// Bits of [`node_type`].
    pub kind: u32,
    /// For people.
    pub alias: Option<String>,
    /// Portals that it is reached through; `None`: all of its entity.
    pub portals: Option<BTreeSet<PortalKey>>,
}

/// Where a client takes what the server says by itself: a port of its own, which is that of its
/// connection, so that a server may as well answer on that (§6.3.5, §6.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Callback {
    /// The TCP port.
    pub port: u16,
    /// Seconds between inquiries; `None`: no inquiries.
    pub esi_interval_s: Option<u32>,
}

impl Entity {
    /// The node in whose name is registered and asked.
    #[must_use]
    pub fn source(&self) -> &str {
        self.nodes.first().map_or("", |node| &node.name)
    }

    /// The whole entity, in the place of whatever was registered under its identifier. Servers
    /// differ in what a partial update means to them; a whole one leaves no choice.
    ///
    /// `callback` goes to the portal `at`: one is enough (§6.3.5), and a server that cannot reach
    /// it takes only that portal for gone.
    #[must_use]
    pub fn registration(&self, callback: Option<Callback>, at: Option<PortalKey>) -> Request {
        let mut request = Request::new(Function::DEV_ATTR_REG, self.source());
        request.replace = true;
        let id = Attr::new_text(Tag::ENTITY_ID, &self.id);
        request.key.push(id.clone());
        let out = &mut request.operating;
        out.push(id);
        out.push(Attr::new_number(Tag::ENTITY_PROTOCOL, PROTOCOL_ISCSI));
        out.push(Attr::new_number(Tag::REGISTRATION_PERIOD, self.period_s));
        let chosen = self.portals.iter().position(|portal| Some(portal.key) == at).unwrap_or(0);
        for (index, portal) in self.portals.iter().enumerate() {
            out.extend(Attr::portal(portal.key));
            out.extend(portal.name.as_ref().map(|name| Attr::new_text(Tag::PORTAL_NAME, name)));
            let Some(callback) = callback.filter(|_| index == chosen) else { continue };
            if let Some(interval) = callback.esi_interval_s {
                out.push(Attr::new_number(Tag::ESI_INTERVAL, interval));
                out.push(Attr::new_number(Tag::ESI_PORT, callback.port.into()));
            }
            out.push(Attr::new_number(Tag::SCN_PORT, callback.port.into()));
        }
        for node in &self.nodes {
            out.push(Attr::new_text(Tag::ISCSI_NAME, &node.name));
            out.push(Attr::new_number(Tag::NODE_TYPE, node.kind));
            out.extend(node.alias.as_ref().map(|alias| Attr::new_text(Tag::ALIAS, alias)));
            let Some(reached) = &node.portals else { continue };
            let (near, far): (Vec<_>, Vec<_>) =
                self.portals.iter().map(|portal| portal.key).partition(|key| reached.contains(key));
            out.push(Attr::new_number(Tag::PG_TAG, PG_TAG_DEFAULT));
            out.extend(near.into_iter().flat_map(group_portal));
            if !far.is_empty() {
                out.push(Attr::empty(Tag::PG_TAG));
                out.extend(far.into_iter().flat_map(group_portal));
            }
        }
        request
    }

    /// Takes it away again.
    #[must_use]
    pub fn deregistration(&self) -> Request {
        let mut request = Request::new(Function::DEV_DEREG, self.source());
        request.operating.push(Attr::new_text(Tag::ENTITY_ID, &self.id));
        request
    }

    /// Asks whether it is still registered; by that the registration is renewed (§6.2.6).
    #[must_use]
    pub fn renewal(&self) -> Request {
        let mut request = Request::new(Function::DEV_ATTR_QRY, self.source());
        request.key.push(Attr::new_text(Tag::ISCSI_NAME, self.source()));
        request.operating.push(Attr::empty(Tag::ISCSI_NAME));
        request.operating.push(Attr::empty(Tag::ENTITY_ID));
        request
    }

    /// Does the answer to a renewal say that it is registered?
    #[must_use]
    pub fn is_in(&self, renewal: &Response) -> bool {
        let says = |tag: Tag, text: &str| {
            let mut attrs = renewal.operating.iter().filter(|attr| attr.tag == tag);
            attrs.any(|attr| attr.text() == Ok(text))
        };
        says(Tag::ISCSI_NAME, self.source()) && says(Tag::ENTITY_ID, &self.id)
    }
}

fn group_portal(key: PortalKey) -> [Attr; 2] {
    [
        Attr::new_address(Tag::PG_PORTAL_ADDRESS, key.address),
        Attr::new_number(Tag::PG_PORTAL_PORT, key.port),
    ]
}

/// Asks for all targets that `source` may see, and where they are.
#[must_use]
pub fn targets_query(source: &str) -> Request {
    let mut request = Request::new(Function::DEV_ATTR_QRY, source);
    request.key.push(Attr::new_number(Tag::NODE_TYPE, node_type::TARGET));
    request.operating = [
        Tag::ISCSI_NAME,
        Tag::NODE_TYPE,
        Tag::ALIAS,
        Tag::PORTAL_ADDRESS,
        Tag::PORTAL_PORT,
        Tag::PG_PORTAL_ADDRESS,
        Tag::PG_PORTAL_PORT,
        Tag::PG_TAG,
    ]
    .map(Attr::empty)
    .into();
    request
}

/// A target that a directory knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundTarget {
    /// Its iSCSI name.
    pub name: String,
    /// For people.
    pub alias: Option<String>,
    /// Where it is reached, with the tag of the portal group where the server tells it.
    pub portals: Vec<(PortalKey, Option<u16>)>,
}

/// The targets in the answer to [`targets_query`]: what follows a name is about it, until the next.
///
/// # Errors
/// Which attribute stands where it cannot.
pub fn found_targets(response: &Response) -> Result<Vec<FoundTarget>, String> {
    let mut found: Vec<(FoundTarget, u32)> = Vec::new();
    let (mut address, mut group_address, mut group) = (None, None, None);
    for attr in &response.operating {
        if attr.is_empty() && attr.tag != Tag::PG_TAG {
            continue;
        }
        if attr.tag == Tag::ISCSI_NAME {
            let name = attr.text()?.to_owned();
            found.push((FoundTarget { name, ..FoundTarget::default() }, node_type::TARGET));
            continue;
        }
        let Some((target, kind)) = found.last_mut() else {
            return Err(format!("{} before any {}", attr.tag, Tag::ISCSI_NAME));
        };
        match attr.tag {
            Tag::NODE_TYPE => *kind = attr.number()?,
            Tag::ALIAS => target.alias = Some(attr.text()?.to_owned()),
            Tag::PORTAL_ADDRESS => address = Some(attr.address()?),
            Tag::PORTAL_PORT => {
                let Some(address) = address.take() else {
                    return Err(format!("{} without an address before it", attr.tag));
                };
                target.portals.push((PortalKey { address, port: attr.number()? }, None));
            }
            Tag::PG_PORTAL_ADDRESS => group_address = Some(attr.address()?),
            Tag::PG_PORTAL_PORT => {
                let port = attr.number()?;
                group = group_address.take().map(|address| PortalKey { address, port });
            }
            Tag::PG_TAG if !attr.is_empty() => {
                let tag = u16::try_from(attr.number()?).ok();
                let group = group.take();
                let portal = target.portals.iter_mut().find(|(key, _)| Some(*key) == group);
                if let Some((_, known)) = portal {
                    *known = tag;
                }
            }
            _ => {}
        }
    }
    // A server that does not know the type in the key tells of initiators, too.
    let targets = found.into_iter().filter(|(_, kind)| kind & node_type::TARGET != 0);
    Ok(targets.map(|(target, _)| target).collect())
}
