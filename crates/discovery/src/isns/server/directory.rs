//! What is registered: entities with their portals and nodes, and the relations between them
//! (RFC 4171 §3).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::super::attr::{Attr, PortalKey, Tag};
use super::super::registration::{PG_TAG_DEFAULT, node_type};
use super::domains::Domains;
use super::monitor::Monitor;
use super::notify::Notification;
use super::settings::{DomainsFile, Settings};

/// The time, in the two ways in which it is needed.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For expiry: since any moment, never back.
    pub since_start: Duration,
    /// For time stamps: seconds since 1970.
    pub unix_s: u64,
}

/// Attributes of an object but its key.
pub(super) type Attrs = BTreeMap<Tag, Bytes>;

/// An entity and what is in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub(super) attrs: Attrs,
    pub(super) portals: BTreeMap<PortalKey, Attrs>,
    pub(super) nodes: BTreeMap<String, Attrs>,
    /// Tags of portal groups that were registered; `None`: not reached that way.
    pub(super) groups: BTreeMap<(String, PortalKey), Option<u32>>,
    /// When something was last heard from it.
    pub(super) heard: Duration,
    /// Portals that inquiries are sent to.
    pub(super) monitors: BTreeMap<PortalKey, Monitor>,
}

impl Held {
    /// The tag of the group that joins a node and a portal (§3.4).
    pub(super) fn group(&self, node: &str, portal: PortalKey) -> Option<u32> {
        if self.groups.is_empty() {
            return Some(PG_TAG_DEFAULT); // nearly always
        }
        let known = self.groups.get(&(node.to_owned(), portal));
        known.copied().unwrap_or(Some(PG_TAG_DEFAULT))
    }

    pub(super) fn objects(&self) -> usize {
        self.portals.len() + self.nodes.len()
    }

    /// About what it takes in memory and in the state file.
    pub(super) fn bytes(&self) -> usize {
        let of = |attrs: &Attrs| attrs.values().map(|value| 16 + value.len()).sum::<usize>();
        let portals: usize = self.portals.values().map(|attrs| 48 + of(attrs)).sum();
        let nodes: usize = self.nodes.iter().map(|(name, attrs)| 16 + name.len() + of(attrs)).sum();
        let groups: usize = self.groups.keys().map(|(name, _)| 64 + name.len()).sum();
        of(&self.attrs) + portals + nodes + groups
    }

    /// Is nothing left that anybody could want?
    pub(super) fn is_empty(&self) -> bool {
        self.objects() == 0
    }
}

/// A number among attributes.
pub(super) fn number(attrs: &Attrs, tag: Tag) -> Option<u32> {
    let value = attrs.get(&tag)?.clone();
    Attr { tag, value }.number().ok()
}

/// All that a server knows.
#[derive(Debug, Default)]
pub struct Directory {
    pub(super) settings: Settings,
    pub(super) entities: BTreeMap<String, Held>,
    /// Entities by their nodes.
    pub(super) owners: BTreeMap<String, String>,
    /// Entities by their portals.
    pub(super) portal_owners: BTreeMap<PortalKey, String>,
    pub(super) domains: Domains,
    /// The next number of anything: no number is used again soon (§6.2.7).
    pub(super) next_index: u32,
    /// Who is to be told of what has happened.
    pub(super) notifications: Vec<Notification>,
    /// Changes that are to be stored.
    pub(super) changed: bool,
    /// It is being read from where it was stored.
    pub(super) loading: bool,
}

/// Whom a query is about (§2.2.2).
pub(super) enum Sight {
    /// A control node's.
    All,
    /// Nodes by name.
    Of(BTreeSet<String>),
}

impl Sight {
    pub(super) fn has(&self, node: &str) -> bool {
        match self {
            Self::All => true,
            Self::Of(nodes) => nodes.contains(node),
        }
    }
}

impl Directory {
    /// An empty one, with the domains of a file.
    #[must_use]
    pub fn new(mut settings: Settings, file: &DomainsFile) -> Self {
        settings.control.extend(file.control.iter().cloned());
        settings.default_domain = file.default_domain.unwrap_or(settings.default_domain);
        let domains = Domains::from_file(file);
        Self { settings, domains, next_index: 1, ..Self::default() }
    }

    /// How many entities, and how many portals and nodes of them.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.entities.len(), self.objects())
    }

    pub(super) fn objects(&self) -> usize {
        self.owners.len() + self.portal_owners.len()
    }

    /// Is a node of that name registered?
    #[must_use]
    pub fn has_node(&self, name: &str) -> bool {
        self.owners.contains_key(name)
    }

    /// What has to be told since it was last asked, with whom it is to be told.
    pub fn take_notifications(&mut self) -> Vec<Notification> {
        std::mem::take(&mut self.notifications)
    }

    /// Has something changed since it was last asked that should outlast a restart?
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn is_loading(&self) -> bool {
        self.loading
    }

    pub(super) fn is_control(&self, node: &str) -> bool {
        self.settings.control.contains(node)
    }

    /// An entity was heard of through one of its nodes (§6.2.6).
    pub(super) fn hear(&mut self, node: &str, now: Now) {
        let entity = self.owners.get(node).and_then(|id| self.entities.get_mut(id));
        if let Some(entity) = entity {
            entity.heard = now.since_start;
            let stamp = Attr::new_long(Tag::TIMESTAMP, now.unix_s);
            entity.attrs.insert(stamp.tag, stamp.value);
        }
    }

    pub(super) fn index(&mut self) -> u32 {
        let index = self.next_index;
        self.next_index = self.next_index.checked_add(1).unwrap_or(1);
        index
    }

    /// Which nodes the node `name` sees: those of its active domains, and its own entity's.
    pub(super) fn sight(&self, name: &str) -> Sight {
        if self.is_control(name) {
            return Sight::All;
        }
        let mut seen = self.domains.seen_by(name);
        if self.settings.default_domain && !self.domains.knows(name) {
            let unbound = self.owners.keys().filter(|node| !self.domains.knows(node));
            seen.extend(unbound.cloned());
        }
        if let Some(own) = self.owners.get(name).and_then(|id| self.entities.get(id)) {
            seen.extend(own.nodes.keys().cloned());
        }
        Sight::Of(seen)
    }

    /// Do two nodes see each other?
    pub(super) fn see_each_other(&self, one: &str, other: &str) -> bool {
        let in_none = || !self.domains.knows(one) && !self.domains.knows(other);
        let entity = |name| self.owners.get(name);
        one == other
            || self.domains.share(one, other)
            || (self.settings.default_domain && in_none())
            || entity(one).is_some_and(|id| entity(other) == Some(id))
    }

    /// Bits of a node's type.
    pub(super) fn kind_of(&self, node: &str) -> u32 {
        let entity = self.owners.get(node).and_then(|id| self.entities.get(id));
        let attrs = entity.and_then(|entity| entity.nodes.get(node));
        let kind = attrs.and_then(|attrs| number(attrs, Tag::NODE_TYPE)).unwrap_or(0);
        if self.is_control(node) { kind | node_type::CONTROL } else { kind }
    }

    /// Puts `next` in the place of the entity `id`; an empty one takes it away. Nodes and portals
    /// of others are not in it: that has been seen to.
    pub(super) fn put(&mut self, id: &str, next: Held, now: Now) {
        let before = self.entities.remove(id).unwrap_or_default();
        for node in before.nodes.keys() {
            self.owners.remove(node);
        }
        for portal in before.portals.keys() {
            self.portal_owners.remove(portal);
        }
        // Whoever saw what goes is told, which is found out while it is known what it was.
        let gone = self.gone(&before, &next, now);
        for node in next.nodes.keys() {
            self.owners.insert(node.clone(), id.to_owned());
        }
        for portal in next.portals.keys() {
            self.portal_owners.insert(*portal, id.to_owned());
        }
        let is_empty = next.is_empty();
        self.entities.insert(id.to_owned(), next);
        self.came(id, &before, now);
        self.notifications.extend(gone);
        if is_empty {
            self.entities.remove(id);
        }
        self.changed = true;
    }

    /// Takes an entity away.
    pub(super) fn remove(&mut self, id: &str, now: Now) {
        self.put(id, Held::default(), now);
    }
}
