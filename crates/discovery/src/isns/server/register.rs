//! DevAttrReg: what a client registers, checked as a whole before any of it counts
//! (RFC 4171 §5.6.5.1).

use std::net::IpAddr;

use super::super::attr::{Attr, Kind, PortalKey, Tag};
use super::super::message::{Request, Response};
use super::super::pdu::Status;
use super::super::registration::{PG_TAG_DEFAULT, node_type};
use super::directory::{Attrs, Directory, Held, Now, number};
use super::monitor::{INTERVAL_S, PERIOD_DEFAULT_S, PERIOD_S};
use super::object::Class;
use super::settings::node_name;

/// Attributes of one object, and bytes of one that is no text: certificates are the largest.
const ATTRS_MAX: usize = 32;
const OPAQUE_MAX: usize = 4096;

/// Bytes of one entity: some thousand nodes. All entities together are bounded by it, and the
/// message that stores one is far below the largest that is read.
const ENTITY_BYTES_MAX: usize = 256 << 10;

/// What only the server says.
const READ_ONLY: [Tag; 9] = [
    Tag::TIMESTAMP,
    Tag::ENTITY_INDEX,
    Tag::ENTITY_NEXT_INDEX,
    Tag::PORTAL_INDEX,
    Tag::PORTAL_NEXT_INDEX,
    Tag::NODE_INDEX,
    Tag::NODE_NEXT_INDEX,
    Tag::PG_INDEX,
    Tag::PG_NEXT_INDEX,
];

/// iSCSI, unless said otherwise (§6.2.2).
const PROTOCOL_ISCSI: u32 = 2;

/// Bit of a port that is UDP's (§6.3.2).
const UDP: u32 = 1 << 16;

/// What the attributes that come are about.
#[derive(Clone)]
enum Current {
    Nothing,
    Entity,
    Portal(PortalKey),
    Node(String),
}

/// An entity as it will be.
struct Draft<'d> {
    directory: &'d Directory,
    id: String,
    held: Held,
    current: Current,
    /// The tag for the groups that follow, and an address that waits for its port.
    group: Option<u32>,
    address: Option<IpAddr>,
    /// Nodes and portals that this message names.
    named: Vec<String>,
    now: Now,
}

impl Directory {
    pub(super) fn register(&mut self, request: &Request, source: &str, now: Now) -> Response {
        let mut response = Response::new(request.function, Status::SUCCESS);
        match self.drafted(request, source, now) {
            Ok((id, mut held)) => {
                self.number(&id, &mut held);
                response.operating = echo(&request.operating, &id, &held);
                response.key.push(Attr::new_text(Tag::ENTITY_ID, &id));
                if !request.key.is_empty() && request.key[0].tag != Tag::ENTITY_ID {
                    response.key.clone_from(&request.key);
                }
                self.put(&id, held, now);
            }
            Err(status) => response.status = status,
        }
        response
    }

    fn drafted(
        &mut self,
        request: &Request,
        source: &str,
        now: Now,
    ) -> Result<(String, Held), Status> {
        let (id, is_new) = self.meant(request)?;
        let mut held = self.entities.get(&id).cloned().unwrap_or_default();
        if request.replace {
            clear(&mut held, &request.key)?;
        }
        let limits = &self.settings.limits;
        let before = self.entities.get(&id).map_or(0, Held::objects);
        if is_new && self.entities.len() >= limits.entities_max {
            return Err(Status::BUSY);
        }
        let room = limits.objects_max.saturating_sub(self.objects() - before);
        held.heard = now.since_start;
        let is_trusted = self.is_control(source);
        let current = Current::Nothing;
        let (group, address, named) = (Some(PG_TAG_DEFAULT), None, Vec::new());
        let mut draft = Draft { directory: self, id, held, current, group, address, named, now };
        for attr in &request.operating {
            draft.take(attr)?;
            if draft.held.objects() > room
                || draft.held.portals.len() > draft.directory.settings.limits.portals_per_entity_max
            {
                return Err(Status::BUSY);
            }
        }
        // A node speaks for its own entity, which it may be about to come into (§5.6.1).
        let own = draft.directory.owners.get(source) == Some(&draft.id);
        if !(is_new || own || is_trusted || draft.named.iter().any(|name| name == source)) {
            return Err(Status::SOURCE_UNAUTHORIZED);
        }
        draft.finish()
    }

    /// The entity that is meant, and whether it is new.
    fn meant(&mut self, request: &Request) -> Result<(String, bool), Status> {
        let said = |attrs: &[Attr]| {
            let id = attrs.iter().find(|attr| attr.tag == Tag::ENTITY_ID && !attr.is_empty());
            let id = id.map(|id| id.text().map(str::to_ascii_lowercase)).transpose();
            id.map(|id| id.filter(|id| !id.is_empty()))
        };
        let format = |_| Status::FORMAT_ERROR;
        let owner = match request.key.first().map(|attr| attr.tag) {
            None | Some(Tag::ENTITY_ID) => None,
            Some(Tag::ISCSI_NAME) => {
                let name = request.key[0].text().map_err(format)?.to_ascii_lowercase();
                Some(self.owners.get(&name).cloned())
            }
            Some(Tag::PORTAL_ADDRESS) => {
                let key = portal_key(&request.key).ok_or(Status::FORMAT_ERROR)?;
                Some(self.portal_owners.get(&key).cloned())
            }
            Some(_) => return Err(Status::INVALID_REGISTRATION),
        };
        if let Some(owner) = owner {
            // A key that is no entity's is to be there already (§5.6.5.1).
            return owner.map(|id| (id, false)).ok_or(Status::INVALID_REGISTRATION);
        }
        let key = said(&request.key).map_err(format)?;
        let id = match key {
            Some(id) => Some(id),
            None => said(&request.operating).map_err(format)?,
        };
        match id {
            Some(id) => {
                let is_new = !self.entities.contains_key(&id);
                // Identifiers of that kind are the server's to give (§6.2.1).
                if is_new && id.starts_with("isns:") && !self.is_loading() {
                    return Err(Status::INVALID_REGISTRATION);
                }
                Ok((id, is_new))
            }
            None => loop {
                let id = format!("isns:{:08x}", self.index());
                if !self.entities.contains_key(&id) {
                    return Ok((id, true));
                }
            },
        }
    }

    /// Gives numbers to what has none yet; what comes again keeps its own.
    fn number(&mut self, id: &str, held: &mut Held) {
        if let Some(before) = self.entities.get(id) {
            let keep = |attrs: &mut Attrs, then: Option<&Attrs>, tag: Tag| {
                if let Some(index) = then.and_then(|then| then.get(&tag)) {
                    attrs.insert(tag, index.clone());
                }
            };
            for (key, attrs) in &mut held.portals {
                keep(attrs, before.portals.get(key), Tag::PORTAL_INDEX);
            }
            for (name, attrs) in &mut held.nodes {
                keep(attrs, before.nodes.get(name), Tag::NODE_INDEX);
            }
        }
        let mut give = |attrs: &mut Attrs, tag: Tag| {
            attrs.entry(tag).or_insert_with(|| Attr::new_number(tag, self.index()).value);
        };
        give(&mut held.attrs, Tag::ENTITY_INDEX);
        held.portals.values_mut().for_each(|attrs| give(attrs, Tag::PORTAL_INDEX));
        held.nodes.values_mut().for_each(|attrs| give(attrs, Tag::NODE_INDEX));
    }
}

/// Takes away what a registration replaces.
fn clear(held: &mut Held, key: &[Attr]) -> Result<(), Status> {
    let only = |attrs: &mut Attrs, tag: Tag| attrs.retain(|known, _| *known == tag);
    match key.first() {
        Some(attr) if attr.tag == Tag::ISCSI_NAME => {
            let name = attr.text().map_err(|_| Status::FORMAT_ERROR)?.to_ascii_lowercase();
            held.nodes.remove(&name);
            held.groups.retain(|(node, _), _| *node != name);
        }
        Some(attr) if attr.tag == Tag::PORTAL_ADDRESS => {
            let key = portal_key(key).ok_or(Status::FORMAT_ERROR)?;
            held.portals.remove(&key);
            held.groups.retain(|(_, portal), _| *portal != key);
        }
        _ => {
            only(&mut held.attrs, Tag::ENTITY_INDEX);
            held.portals.clear();
            held.nodes.clear();
            held.groups.clear();
        }
    }
    Ok(())
}

fn portal_key(attrs: &[Attr]) -> Option<PortalKey> {
    match attrs {
        [address, port, ..] if port.tag == Tag::PORTAL_PORT => {
            Some(PortalKey { address: address.address().ok()?, port: port.number().ok()? })
        }
        _ => None,
    }
}

impl Draft<'_> {
    fn take(&mut self, attr: &Attr) -> Result<(), Status> {
        let format = |_| Status::FORMAT_ERROR;
        match attr.tag {
            Tag::ENTITY_ID => {
                let id = attr.text().map_err(format)?.to_ascii_lowercase();
                if !id.is_empty() && id != self.id {
                    return Err(Status::INVALID_REGISTRATION);
                }
                self.current = Current::Entity;
            }
            Tag::PORTAL_ADDRESS | Tag::PG_PORTAL_ADDRESS => {
                self.address = Some(attr.address().map_err(format)?);
            }
            Tag::PORTAL_PORT => {
                let address = self.address.take().ok_or(Status::FORMAT_ERROR)?;
                self.portal(PortalKey { address, port: attr.number().map_err(format)? })?;
            }
            Tag::ISCSI_NAME => self.node(attr)?,
            Tag::PG_TAG => {
                let is_place = matches!(self.current, Current::Portal(_) | Current::Node(_));
                self.group = match (is_place, attr.is_empty()) {
                    (false, _) => return Err(Status::FORMAT_ERROR),
                    (true, true) => None,
                    (true, false) => Some(attr.number().map_err(format)?),
                };
            }
            Tag::PG_PORTAL_PORT => {
                let address = self.address.take().ok_or(Status::FORMAT_ERROR)?;
                let port = attr.number().map_err(format)?;
                let Current::Node(node) = self.current.clone() else {
                    return Err(Status::FORMAT_ERROR);
                };
                self.join(node, PortalKey { address, port })?;
            }
            Tag::PG_ISCSI_NAME => {
                let Current::Portal(portal) = self.current else {
                    return Err(Status::FORMAT_ERROR);
                };
                let node = attr.text().map_err(format)?.to_ascii_lowercase();
                self.join(node, portal)?;
            }
            _ => self.attribute(attr)?,
        }
        Ok(())
    }

    fn portal(&mut self, key: PortalKey) -> Result<(), Status> {
        let owner = self.directory.portal_owners.get(&key);
        if owner.is_some_and(|owner| *owner != self.id) {
            return Err(Status::INVALID_REGISTRATION);
        }
        self.held.portals.entry(key).or_default();
        (self.current, self.group) = (Current::Portal(key), Some(PG_TAG_DEFAULT));
        Ok(())
    }

    fn node(&mut self, attr: &Attr) -> Result<(), Status> {
        let text = attr.text().map_err(|_| Status::FORMAT_ERROR)?;
        let name = node_name(text).map_err(|_| Status::INVALID_REGISTRATION)?;
        let owner = self.directory.owners.get(&name);
        if owner.is_some_and(|owner| *owner != self.id) {
            return Err(Status::INVALID_REGISTRATION);
        }
        self.held.nodes.entry(name.clone()).or_default();
        self.named.push(name.clone());
        (self.current, self.group) = (Current::Node(name), Some(PG_TAG_DEFAULT));
        Ok(())
    }

    fn join(&mut self, node: String, portal: PortalKey) -> Result<(), Status> {
        self.held.groups.insert((node, portal), self.group);
        // Nodes and portals that groups name may come yet; their number is bounded as theirs is.
        let limits = &self.directory.settings.limits;
        if self.held.groups.len() > limits.objects_max {
            return Err(Status::BUSY);
        }
        Ok(())
    }

    fn attribute(&mut self, attr: &Attr) -> Result<(), Status> {
        if READ_ONLY.contains(&attr.tag) && !self.directory.is_loading() {
            return Err(Status::INVALID_REGISTRATION);
        }
        let value = match attr.tag.kind() {
            // In one form, whatever the client's was: tgt reads no other.
            Kind::Text if !attr.is_empty() => {
                let text = attr.text().map_err(|_| Status::FORMAT_ERROR)?;
                Attr::new_text(attr.tag, text).value
            }
            Kind::Opaque if attr.value.len() > OPAQUE_MAX => return Err(Status::BUSY),
            // A piece of the message, which would be held as long as the piece is.
            _ => attr.value.iter().copied().collect(),
        };
        let is_control = matches!(&self.current, Current::Node(name)
            if self.directory.is_control(name));
        let attrs = match (&self.current, Class::of(attr.tag)) {
            (Current::Entity, Some(Class::Entity)) => &mut self.held.attrs,
            (Current::Portal(key), Some(Class::Portal)) => {
                self.held.portals.entry(*key).or_default()
            }
            (Current::Node(name), Some(Class::Node)) => {
                self.held.nodes.entry(name.clone()).or_default()
            }
            // What is about nothing that we know is nobody's (Fibre Channel's, vendors').
            (_, None) => return Ok(()),
            _ => return Err(Status::FORMAT_ERROR),
        };
        if attr.tag == Tag::NODE_TYPE && !is_control {
            let kind = attr.number().unwrap_or(0);
            if kind & node_type::CONTROL != 0 {
                return Err(Status::SOURCE_UNAUTHORIZED);
            }
        }
        if value.is_empty() {
            attrs.remove(&attr.tag);
        } else {
            attrs.insert(attr.tag, value);
        }
        // What the server itself added comes with what was stored.
        let is_full = attrs.len() > ATTRS_MAX && !self.directory.is_loading();
        if is_full { Err(Status::BUSY) } else { Ok(()) }
    }

    /// What can only be said of the whole.
    fn finish(self) -> Result<(String, Held), Status> {
        let Self { directory, id, mut held, address, now, .. } = self;
        let is_loading = directory.is_loading();
        if held.is_empty() || address.is_some() {
            return Err(Status::INVALID_REGISTRATION);
        }
        if held.nodes.values().any(|attrs| !attrs.contains_key(&Tag::NODE_TYPE)) {
            return Err(Status::INVALID_REGISTRATION);
        }
        if held.bytes() > ENTITY_BYTES_MAX && !is_loading {
            return Err(Status::BUSY);
        }
        let Held { groups, nodes, portals, .. } = &mut held;
        groups.retain(|(node, portal), _| nodes.contains_key(node) || portals.contains_key(portal));
        let (asked, is_monitored) = grant_inquiries(&mut held)?;
        // Inquiries that could go nowhere (§6.3.5).
        if asked && !is_monitored && !is_loading {
            return Err(Status::INVALID_REGISTRATION);
        }
        let protocol = number(&held.attrs, Tag::ENTITY_PROTOCOL).unwrap_or(PROTOCOL_ISCSI);
        let period = match number(&held.attrs, Tag::REGISTRATION_PERIOD).unwrap_or(0) {
            0 if is_monitored => 0,
            0 => PERIOD_DEFAULT_S,
            asked => asked.clamp(*PERIOD_S.start(), *PERIOD_S.end()),
        };
        for attr in [
            Attr::new_number(Tag::ENTITY_PROTOCOL, protocol),
            Attr::new_number(Tag::REGISTRATION_PERIOD, period),
            Attr::new_long(Tag::TIMESTAMP, now.unix_s),
        ] {
            held.attrs.insert(attr.tag, attr.value);
        }
        held.set_monitors(now);
        Ok((id, held))
    }
}

/// Brings intervals within what is granted; says whether there are any, and any that have a port.
fn grant_inquiries(held: &mut Held) -> Result<(bool, bool), Status> {
    let (mut asked, mut is_monitored) = (false, false);
    for attrs in held.portals.values_mut() {
        let port = number(attrs, Tag::ESI_PORT).unwrap_or(0);
        if port & UDP != 0 {
            return Err(Status::ESI_NOT_AVAILABLE);
        }
        let interval = number(attrs, Tag::ESI_INTERVAL).unwrap_or(0);
        if interval > 0 {
            asked = true;
            is_monitored |= port != 0;
            let granted = interval.clamp(*INTERVAL_S.start(), *INTERVAL_S.end());
            let granted = Attr::new_number(Tag::ESI_INTERVAL, granted);
            attrs.insert(granted.tag, granted.value);
        }
    }
    Ok((asked, is_monitored))
}

/// What was registered, with what the server made of it (§5.7.5.1).
fn echo(operating: &[Attr], id: &str, held: &Held) -> Vec<Attr> {
    let granted = |attrs: Option<&Attrs>, tag: Tag| {
        let value = attrs.and_then(|attrs| attrs.get(&tag)).cloned();
        value.map(|value| Attr { tag, value })
    };
    let mut out = vec![Attr::new_text(Tag::ENTITY_ID, id)];
    out.extend(granted(Some(&held.attrs), Tag::REGISTRATION_PERIOD));
    let (mut portal, mut address) = (None, None);
    for attr in operating {
        match attr.tag {
            Tag::ENTITY_ID | Tag::REGISTRATION_PERIOD => continue,
            Tag::PORTAL_ADDRESS => address = attr.address().ok(),
            Tag::PORTAL_PORT => {
                let key = address.take().zip(attr.number().ok());
                portal = key.map(|(address, port)| PortalKey { address, port });
            }
            Tag::ESI_INTERVAL => {
                out.extend(granted(portal.and_then(|key| held.portals.get(&key)), attr.tag));
                continue;
            }
            _ => {}
        }
        out.push(match (attr.tag.kind(), attr.text()) {
            (Kind::Text, Ok(text)) if !attr.is_empty() => Attr::new_text(attr.tag, text),
            _ => attr.clone(),
        });
    }
    out
}
