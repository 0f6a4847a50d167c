//! Every request but registrations and queries, and which is which (RFC 4171 §5.6.5): what is taken
//! away, who wants to be told, and domains.

use std::collections::BTreeSet;

use super::super::attr::{Attr, PortalKey, Tag};
use super::super::message::{Request, Response, scn};
use super::super::pdu::{Function, Message, Status};
use super::directory::{Directory, Held, Now, number};
use super::domains::{Domain, DomainSet};
use super::settings::node_name;

impl Directory {
    /// Answers a message, if it is a request. The name of the node that asks comes with the answer.
    pub fn handle(&mut self, message: &Message, now: Now) -> (Response, Option<String>) {
        let function = message.function;
        let request = match Request::decode(message) {
            Ok(request) => request,
            Err(error) => {
                tracing::debug!(%error, "request");
                return (Response::new(function, Status::FORMAT_ERROR), None);
            }
        };
        let known = Function::DEV_ATTR_REG..=Function::DDS_DEREG;
        if !known.contains(&function) || function == Function::SCN {
            return (Response::new(function, Status::MESSAGE_NOT_SUPPORTED), None);
        }
        let source = request.source.as_ref().and_then(|source| source.text().ok());
        let Some(source) = source.and_then(|source| node_name(source).ok()) else {
            return (Response::new(function, Status::SOURCE_ABSENT), None);
        };
        self.hear(&source, now);
        let response = match function {
            Function::DEV_ATTR_REG => self.register(&request, &source, now),
            Function::DEV_ATTR_QRY => self.query(&request, &source),
            Function::DEV_GET_NEXT => self.next(&request, &source),
            _ => {
                let mut response = Response::new(function, Status::SUCCESS);
                match self.change(&request, &source, now) {
                    Ok((key, operating)) => (response.key, response.operating) = (key, operating),
                    Err(status) => response.status = status,
                }
                response
            }
        };
        (response, Some(source))
    }

    fn change(&mut self, request: &Request, source: &str, now: Now) -> Result<Told, Status> {
        let done = |done: Result<(), Status>| done.map(|()| Told::default());
        match request.function {
            Function::DEV_DEREG => done(self.deregister(request, source, now)),
            Function::SCN_REG => done(self.watch(request, source)),
            Function::SCN_DEREG => done(self.unwatch(request, source)),
            Function::SCN_EVENT => done(self.event(request, source, now)),
            _ if !self.is_control(source) && !self.is_loading() => Err(Status::SOURCE_UNAUTHORIZED),
            Function::DD_REG => self.set_domain(request, now),
            Function::DD_DEREG => done(self.unset_domain(request, now)),
            Function::DDS_REG => self.set_set(request),
            Function::DDS_DEREG => done(self.unset_set(request)),
            _ => Err(Status::MESSAGE_NOT_SUPPORTED),
        }
    }

    /// Takes objects away: all of them, or, where one is another's, none (§5.6.5.4).
    fn deregister(&mut self, request: &Request, source: &str, now: Now) -> Result<(), Status> {
        let own = self.owners.get(source).cloned();
        let may = |id: &str| own.as_deref() == Some(id) || self.is_control(source);
        let mut entities = BTreeSet::new();
        let mut portals: Vec<(String, PortalKey)> = Vec::new();
        let mut nodes: Vec<(String, String)> = Vec::new();
        let mut address = None;
        let format = |_| Status::FORMAT_ERROR;
        for attr in &request.operating {
            let owner = match attr.tag {
                Tag::ENTITY_ID => {
                    let id = attr.text().map_err(format)?.to_ascii_lowercase();
                    let is_there = self.entities.contains_key(&id);
                    is_there.then(|| {
                        entities.insert(id.clone());
                        id
                    })
                }
                Tag::PORTAL_ADDRESS => {
                    address = Some(attr.address().map_err(format)?);
                    None
                }
                Tag::PORTAL_PORT => {
                    let address = address.take().ok_or(Status::FORMAT_ERROR)?;
                    let key = PortalKey { address, port: attr.number().map_err(format)? };
                    let owner = self.portal_owners.get(&key).cloned();
                    portals.extend(owner.clone().map(|id| (id, key)));
                    owner
                }
                Tag::ISCSI_NAME => {
                    let name = attr.text().map_err(format)?.to_ascii_lowercase();
                    let owner = self.owners.get(&name).cloned();
                    nodes.extend(owner.clone().map(|id| (id, name)));
                    owner
                }
                Tag::PORTAL_INDEX | Tag::NODE_INDEX => {
                    let owned = self.by_index(attr);
                    match owned.clone() {
                        Some((id, Named::Portal(key))) => portals.push((id, key)),
                        Some((id, Named::Node(name))) => nodes.push((id, name)),
                        None => {}
                    }
                    owned.map(|(id, _)| id)
                }
                _ => return Err(Status::INVALID_DEREGISTRATION),
            };
            if owner.is_some_and(|id| !may(&id)) {
                return Err(Status::SOURCE_UNAUTHORIZED);
            }
        }
        for (id, key) in portals.into_iter().filter(|(id, _)| !entities.contains(id)) {
            self.without(&id, now, |held| drop(held.portals.remove(&key)));
        }
        for (id, name) in nodes.into_iter().filter(|(id, _)| !entities.contains(id)) {
            self.without(&id, now, |held| drop(held.nodes.remove(&name)));
        }
        entities.iter().for_each(|id| self.remove(id, now));
        Ok(())
    }

    fn without(&mut self, id: &str, now: Now, take: impl FnOnce(&mut Held)) {
        let Some(mut held) = self.entities.get(id).cloned() else { return };
        take(&mut held);
        let Held { groups, nodes, portals, monitors, .. } = &mut held;
        groups.retain(|(node, portal), _| nodes.contains_key(node) || portals.contains_key(portal));
        monitors.retain(|portal, _| portals.contains_key(portal));
        self.put(id, held, now);
    }

    fn by_index(&self, wanted: &Attr) -> Option<(String, Named)> {
        let wanted = (wanted.tag, wanted.number().ok()?);
        let has = |attrs| number(attrs, wanted.0) == Some(wanted.1);
        self.entities.iter().find_map(|(id, held)| {
            let node = held.nodes.iter().find(|(_, attrs)| has(attrs));
            let portal = held.portals.iter().find(|(_, attrs)| has(attrs));
            let node = node.map(|(name, _)| Named::Node(name.clone()));
            let found = node.or(portal.map(|(key, _)| Named::Portal(*key)));
            found.map(|found| (id.clone(), found))
        })
    }

    /// The one node that a key names, if the source may speak for it.
    fn spoken_for(&self, request: &Request, source: &str) -> Result<(String, String), Status> {
        let [key] = &request.key[..] else { return Err(Status::FORMAT_ERROR) };
        if key.tag != Tag::ISCSI_NAME {
            return Err(Status::FORMAT_ERROR);
        }
        let name = key.text().map_err(|_| Status::FORMAT_ERROR)?.to_ascii_lowercase();
        let id = self.owners.get(&name).ok_or(Status::NO_SUCH_ENTRY)?.clone();
        let may = self.owners.get(source) == Some(&id) || self.is_control(source);
        if may { Ok((id, name)) } else { Err(Status::SOURCE_UNAUTHORIZED) }
    }

    /// Nodes without an SCN port are told over their connections (§5.6.5.8), so it is not asked
    /// for: a client behind a translator of addresses has none that would be of use.
    fn watch(&mut self, request: &Request, source: &str) -> Result<(), Status> {
        let (id, name) = self.spoken_for(request, source)?;
        let [bitmap] = &request.operating[..] else { return Err(Status::FORMAT_ERROR) };
        let events = bitmap.number().map_err(|_| Status::FORMAT_ERROR)?;
        let is_management = events & scn::MANAGEMENT != 0;
        if bitmap.tag != Tag::SCN_BITMAP || (is_management && !self.is_control(&name)) {
            return Err(Status::SCN_REGISTRATION_REJECTED);
        }
        self.set_bitmap(&id, &name, events);
        Ok(())
    }

    fn unwatch(&mut self, request: &Request, source: &str) -> Result<(), Status> {
        // tgt takes its target back before it says that it wants no notifications.
        match self.spoken_for(request, source) {
            Ok((id, name)) => self.set_bitmap(&id, &name, 0),
            Err(Status::NO_SUCH_ENTRY) => {}
            Err(status) => return Err(status),
        }
        Ok(())
    }

    fn set_bitmap(&mut self, id: &str, name: &str, events: u32) {
        let held = self.entities.get_mut(id);
        if let Some(attrs) = held.and_then(|held| held.nodes.get_mut(name)) {
            let bitmap = Attr::new_number(Tag::SCN_BITMAP, events);
            attrs.insert(bitmap.tag, bitmap.value);
            self.changed = true;
        }
    }

    fn event(&mut self, request: &Request, source: &str, now: Now) -> Result<(), Status> {
        let (_, name) = self.spoken_for(request, source)?;
        let [bitmap] = &request.operating[..] else { return Err(Status::FORMAT_ERROR) };
        let events = bitmap.number().map_err(|_| Status::FORMAT_ERROR)? & scn::EVENTS;
        if bitmap.tag != Tag::SCN_BITMAP || events == 0 {
            return Err(Status::SCN_EVENT_REJECTED);
        }
        let told = self.told_of(&name, self.kind_of(&name), events, now);
        self.notifications.extend(told);
        Ok(())
    }

    /// Tells of nodes that came into a domain or left it; whoever sees them is found out while
    /// they are in.
    fn tell_membership(&mut self, nodes: &BTreeSet<String>, event: u32, now: Now) {
        for node in nodes.iter().filter(|node| self.owners.contains_key(*node)) {
            let told = self.told_of(node, self.kind_of(node), event, now);
            self.notifications.extend(told);
        }
    }

    fn set_domain(&mut self, request: &Request, now: Now) -> Result<Told, Status> {
        let limits = &self.settings.limits;
        let id = match number_of(&request.key, Tag::DD_ID)? {
            Some(id) if self.domains.domains.contains_key(&id) => id,
            Some(_) => return Err(Status::INVALID_REGISTRATION),
            None if self.domains.domains.len() >= limits.domains_max => return Err(Status::BUSY),
            None => match number_of(&request.operating, Tag::DD_ID)? {
                Some(id) => id,
                None => self.domains.free_domain().ok_or(Status::BUSY)?,
            },
        };
        let before = self.domains.domains.get(&id).cloned();
        let mut next = before.clone().unwrap_or_else(|| default_domain(id));
        if next.fixed {
            return Err(Status::SOURCE_UNAUTHORIZED);
        }
        let mut members = BTreeSet::new();
        for attr in &request.operating {
            let format = |_| Status::FORMAT_ERROR;
            match attr.tag {
                Tag::DD_NAME if !attr.is_empty() => next.name = attr.text().map_err(format)?.into(),
                Tag::DD_FEATURES => next.features = attr.number().map_err(format)?,
                Tag::DD_ID if !attr.is_empty() && attr.number() != Ok(id) => {
                    return Err(Status::INVALID_REGISTRATION);
                }
                Tag::DD_ID | Tag::DD_NAME => {}
                Tag::DD_MEMBER_NAME | Tag::DD_MEMBER_INDEX => {
                    members.extend(self.member(attr)?);
                }
                // Portals are no members here.
                _ => return Err(Status::FEATURE_NOT_SUPPORTED),
            }
        }
        let same_name = |(other, domain): (&u32, &Domain)| *other != id && domain.name == next.name;
        if self.domains.domains.iter().any(same_name) {
            return Err(Status::INVALID_REGISTRATION);
        }
        if next.members.len() + members.len() > limits.members_max {
            return Err(Status::BUSY);
        }
        let told = vec![
            Attr::new_number(Tag::DD_ID, id),
            Attr::new_text(Tag::DD_NAME, &next.name),
            Attr::new_number(Tag::DD_FEATURES, next.features),
        ];
        self.domains.domains.insert(id, next);
        members.retain(|member| self.domains.add(id, member));
        self.tell_membership(&members, scn::DD_MEMBER_ADDED, now);
        self.changed = true;
        Ok((request.key.clone(), told))
    }

    /// The name of a member. A number is one of a node that is registered (§5.6.5.9).
    fn member(&self, attr: &Attr) -> Result<Option<String>, Status> {
        if attr.tag == Tag::DD_MEMBER_NAME {
            let text = attr.text().map_err(|_| Status::FORMAT_ERROR)?;
            return node_name(text).map(Some).map_err(|_| Status::INVALID_REGISTRATION);
        }
        let as_node = Attr { tag: Tag::NODE_INDEX, value: attr.value.clone() };
        match self.by_index(&as_node) {
            Some((_, Named::Node(name))) => Ok(Some(name)),
            _ => Err(Status::INVALID_REGISTRATION),
        }
    }

    fn unset_domain(&mut self, request: &Request, now: Now) -> Result<(), Status> {
        let id = number_of(&request.key, Tag::DD_ID)?.ok_or(Status::INVALID_DEREGISTRATION)?;
        let Some(domain) = self.domains.domains.get(&id) else { return Ok(()) };
        if domain.fixed {
            return Err(Status::SOURCE_UNAUTHORIZED);
        }
        let all = domain.members.clone();
        if request.operating.is_empty() {
            self.tell_membership(&all, scn::DD_MEMBER_REMOVED, now);
            self.domains.remove(id);
            self.changed = true;
            return Ok(());
        }
        let mut members = BTreeSet::new();
        for attr in request.operating.iter().filter(|attr| attr.tag != Tag::DD_ID) {
            match attr.tag {
                Tag::DD_MEMBER_NAME => members.extend(self.member(attr)?),
                Tag::DD_MEMBER_INDEX => members.extend(self.member(attr).ok().flatten()),
                _ => return Err(Status::INVALID_DEREGISTRATION),
            }
        }
        members.retain(|member| all.contains(member));
        self.tell_membership(&members, scn::DD_MEMBER_REMOVED, now);
        for member in &members {
            self.domains.take(id, member);
        }
        self.changed = true;
        Ok(())
    }

    fn set_set(&mut self, request: &Request) -> Result<Told, Status> {
        let limits = &self.settings.limits;
        let id = match number_of(&request.key, Tag::DDS_ID)? {
            Some(id) if self.domains.sets.contains_key(&id) => id,
            Some(_) => return Err(Status::INVALID_REGISTRATION),
            None if self.domains.sets.len() >= limits.domains_max => return Err(Status::BUSY),
            None => match number_of(&request.operating, Tag::DDS_ID)? {
                Some(id) => id,
                None => self.domains.free_set().ok_or(Status::BUSY)?,
            },
        };
        let default = || DomainSet { name: format!("set {id}"), ..DomainSet::default() };
        let mut next = self.domains.sets.get(&id).cloned().unwrap_or_else(default);
        let mut made = Vec::new();
        for attr in &request.operating {
            let format = |_| Status::FORMAT_ERROR;
            match attr.tag {
                Tag::DDS_NAME if !attr.is_empty() => {
                    next.name = attr.text().map_err(format)?.into()
                }
                Tag::DDS_STATUS => next.enabled = attr.number().map_err(format)? & 1 != 0,
                Tag::DDS_ID if !attr.is_empty() && attr.number() != Ok(id) => {
                    return Err(Status::INVALID_REGISTRATION);
                }
                Tag::DDS_ID | Tag::DDS_NAME => {}
                Tag::DD_ID => {
                    let member = attr.number().ok().filter(|member| *member > 0);
                    let member = member.ok_or(Status::FORMAT_ERROR)?;
                    if !self.domains.domains.contains_key(&member) {
                        made.push(member);
                    }
                    next.members.insert(member);
                }
                _ => return Err(Status::INVALID_REGISTRATION),
            }
        }
        let same_name = |(other, set): (&u32, &DomainSet)| *other != id && set.name == next.name;
        if self.domains.sets.iter().any(same_name) {
            return Err(Status::INVALID_REGISTRATION);
        }
        if self.domains.domains.len() + made.len() > limits.domains_max {
            return Err(Status::BUSY);
        }
        let mut told = vec![
            Attr::new_number(Tag::DDS_ID, id),
            Attr::new_text(Tag::DDS_NAME, &next.name),
            Attr::new_number(Tag::DDS_STATUS, next.enabled.into()),
        ];
        let names = || self.domains.domains.values().map(|domain| &domain.name);
        if made.iter().any(|id| names().any(|name| *name == default_domain(*id).name)) {
            return Err(Status::INVALID_REGISTRATION);
        }
        for made in made {
            let domain = default_domain(made);
            told.push(Attr::new_number(Tag::DD_ID, made));
            told.push(Attr::new_text(Tag::DD_NAME, &domain.name));
            self.domains.domains.insert(made, domain);
        }
        self.domains.sets.insert(id, next);
        self.changed = true;
        Ok((request.key.clone(), told))
    }

    fn unset_set(&mut self, request: &Request) -> Result<(), Status> {
        let id = number_of(&request.key, Tag::DDS_ID)?.ok_or(Status::INVALID_DEREGISTRATION)?;
        let Some(set) = self.domains.sets.get_mut(&id) else { return Ok(()) };
        if request.operating.is_empty() {
            self.domains.sets.remove(&id);
            self.changed = true;
            return Ok(());
        }
        for attr in &request.operating {
            match (attr.tag, attr.number()) {
                (Tag::DD_ID, Ok(member)) => drop(set.members.remove(&member)),
                _ => return Err(Status::INVALID_DEREGISTRATION),
            }
        }
        self.changed = true;
        Ok(())
    }
}

/// Key and operating attributes of a response.
type Told = (Vec<Attr>, Vec<Attr>);

/// What a number stands for.
#[derive(Clone)]
enum Named {
    Portal(PortalKey),
    Node(String),
}

/// A domain that nobody has named.
fn default_domain(id: u32) -> Domain {
    Domain { name: format!("domain {id}"), ..Domain::default() }
}

/// The value of an attribute that is to be a number, if it is there and has one.
fn number_of(attrs: &[Attr], tag: Tag) -> Result<Option<u32>, Status> {
    let attr = attrs.iter().find(|attr| attr.tag == tag && !attr.is_empty());
    let number = attr.map(Attr::number).transpose().map_err(|_| Status::FORMAT_ERROR)?;
    // Zero is nobody's number.
    if number == Some(0) { Err(Status::FORMAT_ERROR) } else { Ok(number) }
}
