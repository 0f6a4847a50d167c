//! Discovery domains and sets of them (RFC 4171 §2.2.2, §3.6, §3.7): who sees whom.

use std::collections::{BTreeMap, BTreeSet};

use super::settings::DomainsFile;

/// A discovery domain. Members need not be registered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) features: u32,
    pub(super) members: BTreeSet<String>,
    /// The domain stands in the operator's file: no client changes it.
    pub(super) fixed: bool,
}

/// A set of domains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DomainSet {
    pub(super) name: String,
    pub(super) enabled: bool,
    pub(super) members: BTreeSet<u32>,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Domains {
    pub(super) domains: BTreeMap<u32, Domain>,
    pub(super) sets: BTreeMap<u32, DomainSet>,
    /// Domains of a node.
    of: BTreeMap<String, BTreeSet<u32>>,
}

impl Domains {
    /// The domains of a file have the lowest numbers, in its order.
    pub(super) fn from_file(file: &DomainsFile) -> Self {
        let mut domains = Self::default();
        for (id, entry) in (1..).zip(&file.domains) {
            domains.domains.insert(id, Domain { name: entry.name.clone(), ..Domain::default() });
            for member in &entry.members {
                domains.add(id, member);
            }
            if let Some(domain) = domains.domains.get_mut(&id) {
                domain.fixed = true;
            }
        }
        domains
    }

    /// A number that is free, above all that are taken.
    pub(super) fn free_domain(&self) -> Option<u32> {
        self.domains.last_key_value().map_or(Some(1), |(last, _)| last.checked_add(1))
    }

    /// A number of a set that is free.
    pub(super) fn free_set(&self) -> Option<u32> {
        self.sets.last_key_value().map_or(Some(1), |(last, _)| last.checked_add(1))
    }

    /// Is the node in any domain?
    pub(super) fn knows(&self, node: &str) -> bool {
        self.of.contains_key(node)
    }

    /// Domains of a node.
    pub(super) fn of(&self, node: &str) -> impl Iterator<Item = u32> {
        self.of.get(node).into_iter().flatten().copied()
    }

    /// Does the domain count? In sets it does where one of them is enabled, in none it does.
    pub(super) fn is_active(&self, id: u32) -> bool {
        let mut sets = self.sets.values().filter(|set| set.members.contains(&id)).peekable();
        sets.peek().is_none() || sets.any(|set| set.enabled)
    }

    /// Whom a node sees by domains.
    pub(super) fn seen_by(&self, node: &str) -> BTreeSet<String> {
        let active = self.of(node).filter(|id| self.is_active(*id));
        let domains = active.filter_map(|id| self.domains.get(&id));
        domains.flat_map(|domain| domain.members.iter().cloned()).collect()
    }

    /// Have two nodes an active domain in common?
    pub(super) fn share(&self, one: &str, other: &str) -> bool {
        let Some(others) = self.of.get(other) else { return false };
        self.of(one).any(|id| others.contains(&id) && self.is_active(id))
    }

    /// Puts a node into a domain; says whether it was not there.
    pub(super) fn add(&mut self, id: u32, node: &str) -> bool {
        let Some(domain) = self.domains.get_mut(&id) else { return false };
        self.of.entry(node.to_owned()).or_default().insert(id);
        domain.members.insert(node.to_owned())
    }

    /// Takes a node out of a domain; says whether it was there.
    pub(super) fn take(&mut self, id: u32, node: &str) -> bool {
        if let Some(of) = self.of.get_mut(node) {
            of.remove(&id);
            if of.is_empty() {
                self.of.remove(node);
            }
        }
        self.domains.get_mut(&id).is_some_and(|domain| domain.members.remove(node))
    }

    /// Takes a domain away; returns its members.
    pub(super) fn remove(&mut self, id: u32) -> BTreeSet<String> {
        let members = self.domains.get(&id).map(|domain| domain.members.clone());
        for member in members.iter().flatten() {
            self.take(id, member);
        }
        self.domains.remove(&id);
        for set in self.sets.values_mut() {
            set.members.remove(&id);
        }
        members.unwrap_or_default()
    }
}
