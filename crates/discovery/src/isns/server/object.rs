//! Objects as queries see them: kinds by tag, attributes, and how they are related (RFC 4171 §3,
//! §5.6.5.2).

use std::collections::BTreeSet;

use super::super::attr::{Attr, Kind, PortalKey, Tag};
use super::super::registration::node_type;
use super::directory::{Attrs, Directory, Held, Sight, number};

/// What an attribute belongs to (§6.1). Their order is that of an answer that tells everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Entity,
    Portal,
    Node,
    Group,
    Domain,
    Set,
}

impl Class {
    pub(super) const ALL: [Self; 6] =
        [Self::Entity, Self::Portal, Self::Node, Self::Group, Self::Domain, Self::Set];

    /// The kind of object that a tag is an attribute of, vendors' tags among them; none for those
    /// of Fibre Channel.
    pub(super) fn of(tag: Tag) -> Option<Self> {
        Some(match tag.0 {
            1..=15 | 385..=512 => Self::Entity,
            16..=31 | 513..=640 => Self::Portal,
            32..=47 | 641..=768 => Self::Node,
            48..=63 => Self::Group,
            2049..=2064 | 1025..=1280 => Self::Set,
            2065..=2079 | 1281..=1536 => Self::Domain,
            _ => return None,
        })
    }
}

/// One object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object<'d> {
    Entity(&'d str),
    Portal(&'d str, PortalKey),
    Node(&'d str, &'d str),
    Group(&'d str, &'d str, PortalKey),
    Domain(u32),
    Set(u32),
}

/// A directory as one node sees it.
pub(super) struct View<'d> {
    directory: &'d Directory,
    sight: Sight,
    /// Who looks.
    source: &'d str,
    /// Its entity.
    own: Option<&'d str>,
}

impl<'d> View<'d> {
    pub(super) fn new(directory: &'d Directory, source: &'d str) -> Self {
        let own = directory.owners.get(source).map(String::as_str);
        Self { directory, sight: directory.sight(source), source, own }
    }

    fn sees_all_of(&self, entity: &str) -> bool {
        matches!(self.sight, Sight::All) || self.own == Some(entity)
    }

    fn sees_domain(&self, id: u32) -> bool {
        matches!(self.sight, Sight::All)
            || self.directory.domains.of(self.source).any(|of| of == id)
    }

    fn held(&self, id: &str) -> Option<(&'d str, &'d Held)> {
        self.directory.entities.get_key_value(id).map(|(id, held)| (id.as_str(), held))
    }

    fn nodes(&self, (id, held): (&'d str, &'d Held)) -> Vec<Object<'d>> {
        let seen = held.nodes.keys().filter(|name| self.sight.has(name));
        seen.map(|name| Object::Node(id, name)).collect()
    }

    /// Portals through which a node that is seen is reached.
    fn portals(&self, (id, held): (&'d str, &'d Held)) -> Vec<Object<'d>> {
        let seen = held.portals.keys().filter(|key| {
            self.sees_all_of(id)
                || held
                    .nodes
                    .keys()
                    .any(|node| self.sight.has(node) && held.group(node, **key).is_some())
        });
        seen.map(|key| Object::Portal(id, *key)).collect()
    }

    fn groups(&self, (id, held): (&'d str, &'d Held)) -> Vec<Object<'d>> {
        let nodes = held.nodes.keys().filter(|name| self.sight.has(name));
        let pairs = nodes.flat_map(|name| held.portals.keys().map(move |key| (name, *key)));
        let joined = pairs.filter(|(name, key)| held.group(name, *key).is_some());
        joined.map(|(name, key)| Object::Group(id, name, key)).collect()
    }

    /// Everything of a class that is seen.
    pub(super) fn all(&self, class: Class) -> Vec<Object<'d>> {
        let entities = || self.directory.entities.iter().map(|(id, held)| (id.as_str(), held));
        match class {
            Class::Entity => {
                let seen = entities().filter(|(id, held)| {
                    self.sees_all_of(id) || held.nodes.keys().any(|name| self.sight.has(name))
                });
                seen.map(|(id, _)| Object::Entity(id)).collect()
            }
            Class::Portal => entities().flat_map(|held| self.portals(held)).collect(),
            Class::Node => entities().flat_map(|held| self.nodes(held)).collect(),
            Class::Group => entities().flat_map(|held| self.groups(held)).collect(),
            Class::Domain => {
                let ids = self.directory.domains.domains.keys().copied();
                ids.filter(|id| self.sees_domain(*id)).map(Object::Domain).collect()
            }
            Class::Set => {
                let seen = self.directory.domains.sets.iter().filter(|(_, set)| {
                    matches!(self.sight, Sight::All)
                        || set.members.iter().any(|id| self.sees_domain(*id))
                });
                seen.map(|(id, _)| Object::Set(*id)).collect()
            }
        }
    }

    /// Where a key names one object, it alone is looked at, and not the whole directory.
    pub(super) fn candidates(&self, class: Class, key: &[Attr]) -> Vec<Object<'d>> {
        let named = key.iter().find(|attr| !attr.is_empty());
        let directory = self.directory;
        let entity = match named {
            Some(attr) if attr.tag == Tag::ISCSI_NAME => {
                let name = attr.text().unwrap_or_default().to_ascii_lowercase();
                directory.owners.get(&name)
            }
            Some(attr) if attr.tag == Tag::ENTITY_ID => {
                let id = attr.text().unwrap_or_default().to_ascii_lowercase();
                directory.entities.get_key_value(&id).map(|(id, _)| id)
            }
            _ => return self.all(class),
        };
        let Some(held) = entity.and_then(|id| self.held(id)) else { return Vec::new() };
        match class {
            Class::Node => self.nodes(held),
            _ => self
                .all(class)
                .into_iter()
                .filter(|object| object.entity() == Some(held.0))
                .collect(),
        }
    }

    /// Objects of a class that belong to one of another, or itself.
    pub(super) fn related(&self, object: Object<'d>, class: Class) -> Vec<Object<'d>> {
        if object.class() == class {
            return vec![object];
        }
        let domains = &self.directory.domains;
        let Some(held) = object.entity().and_then(|id| self.held(id)) else {
            return self.related_to_domain(object, class);
        };
        let (id, of) = held;
        let joined = |node: &str, portal: PortalKey| of.group(node, portal).is_some();
        match (object, class) {
            (_, Class::Entity) => vec![Object::Entity(id)],
            (Object::Node(_, node), Class::Portal) => {
                let keys = of.portals.keys().filter(|key| joined(node, **key));
                keys.map(|key| Object::Portal(id, *key)).collect()
            }
            (Object::Node(_, node), Class::Group) => {
                let keys = of.portals.keys().filter(|key| joined(node, **key));
                keys.map(|key| Object::Group(id, node, *key)).collect()
            }
            (Object::Portal(_, key), Class::Node) => {
                let nodes =
                    of.nodes.keys().filter(|node| self.sight.has(node) && joined(node, key));
                nodes.map(|node| Object::Node(id, node)).collect()
            }
            (Object::Portal(_, key), Class::Group) => {
                let nodes =
                    of.nodes.keys().filter(|node| self.sight.has(node) && joined(node, key));
                nodes.map(|node| Object::Group(id, node, key)).collect()
            }
            (Object::Group(_, node, _), Class::Node) => vec![Object::Node(id, node)],
            (Object::Group(_, _, key), Class::Portal) => vec![Object::Portal(id, key)],
            (_, Class::Portal) => self.portals(held),
            (_, Class::Node) => self.nodes(held),
            (_, Class::Group) => self.groups(held),
            (_, Class::Domain) => {
                let nodes = self.related(object, Class::Node);
                let nodes = nodes.iter().filter_map(|node| node.node());
                let ids: BTreeSet<u32> = nodes.flat_map(|node| domains.of(node)).collect();
                let seen = ids.into_iter().filter(|id| self.sees_domain(*id));
                seen.map(Object::Domain).collect()
            }
            (_, Class::Set) => {
                let of = self.related(object, Class::Domain);
                of.into_iter().flat_map(|domain| self.related(domain, Class::Set)).collect()
            }
        }
    }

    fn related_to_domain(&self, object: Object<'d>, class: Class) -> Vec<Object<'d>> {
        let domains = &self.directory.domains;
        match (object, class) {
            (Object::Domain(id), Class::Set) => {
                let sets = domains.sets.iter().filter(|(_, set)| set.members.contains(&id));
                sets.map(|(id, _)| Object::Set(*id)).collect()
            }
            (Object::Set(id), Class::Domain) => {
                let members = domains.sets.get(&id).into_iter().flat_map(|set| &set.members);
                members.filter(|id| self.sees_domain(**id)).map(|id| Object::Domain(*id)).collect()
            }
            (Object::Domain(id), _) => {
                let members = domains.domains.get(&id).into_iter().flat_map(|it| &it.members);
                let owned = members.filter_map(|name| {
                    let id = self.directory.owners.get(name)?;
                    let (id, held) = self.held(id)?;
                    let (name, _) = held.nodes.get_key_value(name)?;
                    Some(Object::Node(id, name))
                });
                owned.flat_map(|node| self.related(node, class)).collect()
            }
            (Object::Set(_), _) => {
                let domains = self.related_to_domain(object, Class::Domain);
                domains.into_iter().flat_map(|it| self.related_to_domain(it, class)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// All attributes of an object, its key first.
    pub(super) fn attrs(&self, object: Object<'d>) -> Vec<Attr> {
        let stored = |attrs: &Attrs| {
            let attrs = attrs.iter();
            attrs.map(|(tag, value)| Attr { tag: *tag, value: value.clone() }).collect::<Vec<_>>()
        };
        let held = object.entity().and_then(|id| self.directory.entities.get(id));
        match (object, held) {
            (Object::Entity(id), Some(held)) => {
                [vec![Attr::new_text(Tag::ENTITY_ID, id)], stored(&held.attrs)].concat()
            }
            (Object::Portal(_, key), Some(held)) => {
                let attrs = held.portals.get(&key).map(stored).unwrap_or_default();
                [Attr::portal(key).to_vec(), attrs].concat()
            }
            (Object::Node(_, name), Some(held)) => {
                let attrs = held.nodes.get(name).map(stored).unwrap_or_default();
                [vec![Attr::new_text(Tag::ISCSI_NAME, name)], attrs].concat()
            }
            (Object::Group(_, name, key), Some(held)) => {
                let mut attrs = vec![
                    Attr::new_text(Tag::PG_ISCSI_NAME, name),
                    Attr::new_address(Tag::PG_PORTAL_ADDRESS, key.address),
                    Attr::new_number(Tag::PG_PORTAL_PORT, key.port),
                ];
                let tag = held.group(name, key);
                attrs.extend(tag.map(|tag| Attr::new_number(Tag::PG_TAG, tag)));
                attrs
            }
            (Object::Domain(id), _) => self.domain_attrs(id),
            (Object::Set(id), _) => {
                let Some(set) = self.directory.domains.sets.get(&id) else { return Vec::new() };
                vec![
                    Attr::new_number(Tag::DDS_ID, id),
                    Attr::new_text(Tag::DDS_NAME, &set.name),
                    Attr::new_number(Tag::DDS_STATUS, set.enabled.into()),
                ]
            }
            (_, None) => Vec::new(),
        }
    }

    fn domain_attrs(&self, id: u32) -> Vec<Attr> {
        let Some(domain) = self.directory.domains.domains.get(&id) else { return Vec::new() };
        let mut attrs =
            vec![Attr::new_number(Tag::DD_ID, id), Attr::new_text(Tag::DD_NAME, &domain.name)];
        for member in &domain.members {
            let id = self.directory.owners.get(member);
            let held = id.and_then(|id| self.directory.entities.get(id));
            let index = held.and_then(|held| number(held.nodes.get(member)?, Tag::NODE_INDEX));
            attrs.extend(index.map(|index| Attr::new_number(Tag::DD_MEMBER_INDEX, index)));
            attrs.push(Attr::new_text(Tag::DD_MEMBER_NAME, member));
        }
        attrs.push(Attr::new_number(Tag::DD_FEATURES, domain.features));
        attrs
    }

    /// Has the object all of these? One without a value is had by all.
    pub(super) fn matches(&self, object: Object<'d>, wanted: &[Attr]) -> bool {
        if wanted.iter().all(Attr::is_empty) {
            return true;
        }
        let attrs = self.attrs(object);
        let has = |wanted: &Attr| attrs.iter().any(|attr| fits(attr, wanted));
        wanted.iter().filter(|attr| !attr.is_empty()).all(has)
    }
}

/// Is an attribute the one that is wanted? Names are the same in any case; a type is the one that
/// is wanted when it has its bits, since a node may be both target and initiator.
fn fits(attr: &Attr, wanted: &Attr) -> bool {
    if attr.tag != wanted.tag {
        return false;
    }
    match (attr.tag.kind(), attr.tag) {
        (_, Tag::NODE_TYPE) => match (attr.number(), wanted.number()) {
            (Ok(has), Ok(wants)) => wants != 0 && has & wants == wants,
            _ => false,
        },
        (Kind::Text, _) => match (attr.text(), wanted.text()) {
            (Ok(has), Ok(wants)) => has.eq_ignore_ascii_case(wants),
            _ => false,
        },
        _ => attr.value == wanted.value,
    }
}

/// Does the type of a node in the key of a query mean something?
pub(super) fn is_type(attr: &Attr) -> bool {
    let known = node_type::TARGET | node_type::INITIATOR | node_type::CONTROL;
    attr.number().is_ok_and(|kind| kind & !known == 0)
}

impl<'d> Object<'d> {
    pub(super) fn class(self) -> Class {
        match self {
            Self::Entity(_) => Class::Entity,
            Self::Portal(..) => Class::Portal,
            Self::Node(..) => Class::Node,
            Self::Group(..) => Class::Group,
            Self::Domain(_) => Class::Domain,
            Self::Set(_) => Class::Set,
        }
    }

    pub(super) fn entity(self) -> Option<&'d str> {
        match self {
            Self::Entity(id) | Self::Portal(id, _) | Self::Node(id, _) | Self::Group(id, ..) => {
                Some(id)
            }
            Self::Domain(_) | Self::Set(_) => None,
        }
    }

    fn node(self) -> Option<&'d str> {
        match self {
            Self::Node(_, name) => Some(name),
            _ => None,
        }
    }

    /// In the order in which DevGetNext goes through them.
    pub(super) fn order(self) -> (u32, PortalKey, &'d str) {
        let none = PortalKey { address: std::net::IpAddr::from([0_u16; 8]), port: 0 };
        match self {
            Self::Entity(name) | Self::Node(_, name) => (0, none, name),
            Self::Portal(_, key) => (0, key, ""),
            Self::Group(_, name, key) => (0, key, name),
            Self::Domain(id) | Self::Set(id) => (id, none, ""),
        }
    }
}
