//! State change notifications: who is told of which change (RFC 4171 §5.6.5.8, §6.4.4).

use super::super::attr::{Attr, PortalKey, Tag};
use super::super::message::{Event, Notice, scn};
use super::super::registration::node_type;
use super::directory::{Attrs, Directory, Held, Now, number};

/// A notice, and the node that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The node.
    pub node: String,
    /// Nodes of the same entity: a connection of any of them is a way to it.
    pub siblings: Vec<String>,
    /// Where else it takes them (§6.3.7): address and TCP port.
    pub callbacks: Vec<PortalKey>,
    /// What to say.
    pub notice: Notice,
}

impl Directory {
    /// Notifications of nodes that are in `before` and not in `next`. Those of `before` are not in
    /// the directory any more.
    pub(super) fn gone(&self, before: &Held, next: &Held, now: Now) -> Vec<Notification> {
        let gone = before.nodes.iter().filter(|(name, _)| !next.nodes.contains_key(*name));
        let told = gone.flat_map(|(name, attrs)| {
            let kind = number(attrs, Tag::NODE_TYPE).unwrap_or(0);
            self.told_of(name, kind, scn::OBJECT_REMOVED, now)
        });
        told.collect()
    }

    /// Notes notifications of nodes of the entity `id` that are new or not as in `before`.
    pub(super) fn came(&mut self, id: &str, before: &Held, now: Now) {
        let Some(entity) = self.entities.get(id) else { return };
        let same_ways = entity.portals.keys().eq(before.portals.keys())
            && entity
                .portals
                .iter()
                .all(|(key, attrs)| before.portals.get(key).is_some_and(|then| same(then, attrs)))
            && entity.groups == before.groups;
        let mut told = Vec::new();
        for (name, attrs) in &entity.nodes {
            let event = match before.nodes.get(name) {
                None => scn::OBJECT_ADDED,
                Some(then) if same(then, attrs) && same_ways => continue,
                Some(_) => scn::OBJECT_UPDATED,
            };
            told.extend(self.told_of(name, self.kind_of(name), event, now));
        }
        self.notifications.extend(told);
    }

    /// Notifications of an event of the node `subject`.
    pub(super) fn told_of(
        &self,
        subject: &str,
        kind: u32,
        event: u32,
        now: Now,
    ) -> Vec<Notification> {
        let is_membership = event & (scn::DD_MEMBER_ADDED | scn::DD_MEMBER_REMOVED) != 0;
        let mut told = Vec::new();
        for entity in self.entities.values() {
            for (node, attrs) in &entity.nodes {
                let wants = number(attrs, Tag::SCN_BITMAP).unwrap_or(0);
                if wants & event == 0 {
                    continue; // nearly all
                }
                // A node knows what it has done itself; into which domains others put it, not.
                let is_self = node == subject && is_membership;
                let is_of_kind = (wants & scn::TARGET_AND_SELF_ONLY == 0
                    || kind & node_type::TARGET != 0)
                    && (wants & scn::INITIATOR_AND_SELF_ONLY == 0
                        || kind & node_type::INITIATOR != 0);
                let is_management = wants & scn::MANAGEMENT != 0 && self.is_control(node);
                let sees = is_management || self.see_each_other(node, subject);
                if !(is_self || (node != subject && is_of_kind && sees)) {
                    continue;
                }
                let bitmap = event | if is_management { scn::MANAGEMENT } else { 0 };
                told.push(notification(entity, node, bitmap, subject, now));
            }
        }
        told
    }
}

fn notification(entity: &Held, node: &str, bitmap: u32, subject: &str, now: Now) -> Notification {
    let callbacks = entity.portals.iter().filter_map(|(key, attrs)| {
        let port = number(attrs, Tag::SCN_PORT)?;
        let has_group = entity.group(node, *key).is_some();
        (has_group && port != 0).then_some(PortalKey { address: key.address, port })
    });
    Notification {
        node: node.to_owned(),
        siblings: entity.nodes.keys().filter(|name| *name != node).cloned().collect(),
        callbacks: callbacks.collect(),
        notice: Notice::Scn {
            destination: Attr::new_text(Tag::ISCSI_NAME, node),
            timestamp: now.unix_s,
            events: vec![Event { bitmap, about: vec![Attr::new_text(Tag::ISCSI_NAME, subject)] }],
        },
    }
}

/// Are attributes the same to others? Where inquiries and notifications go is nothing to them.
fn same(one: &Attrs, other: &Attrs) -> bool {
    let private = [Tag::ESI_INTERVAL, Tag::ESI_PORT, Tag::SCN_PORT, Tag::SCN_BITMAP];
    let shown = |attrs: &Attrs| -> Vec<_> {
        let shown = attrs.iter().filter(|(tag, _)| !private.contains(tag));
        shown.map(|(tag, value)| (*tag, value.clone())).collect()
    };
    shown(one) == shown(other)
}
