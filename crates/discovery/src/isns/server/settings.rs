//! What the operator of a server decides: limits, control nodes, and the file of domains.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;

/// Limits of what clients can make a server hold, for a server on a small machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entities. One is a host.
    pub entities_max: usize,
    /// Portals and nodes of all entities.
    pub objects_max: usize,
    /// Portals of one entity. Every node may have a group with each of them.
    pub portals_per_entity_max: usize,
    /// Discovery domains, and sets of them.
    pub domains_max: usize,
    /// Members of one.
    pub members_max: usize,
    /// Bytes of a response: what a query of a large directory takes in memory.
    pub response_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entities_max: 1024,
            objects_max: 16_384,
            portals_per_entity_max: 64,
            domains_max: 1024,
            members_max: 16_384,
            response_bytes_max: super::super::pdu::MESSAGE_BYTES_MAX,
        }
    }
}

/// What a directory goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Limits.
    pub limits: Limits,
    /// Names of nodes that see everything and change domains. Nobody proves its name to iSNS:
    /// they are as safe as the network is.
    pub control: BTreeSet<String>,
    /// Nodes that are in no domain see each other.
    pub default_domain: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { limits: Limits::default(), control: BTreeSet::new(), default_domain: true }
    }
}

/// The file of domains: what an operator writes, and no client changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainsFile {
    /// Names of nodes that see everything and change other domains.
    #[serde(default)]
    pub control: BTreeSet<String>,
    /// Do nodes that are in no domain see each other? They do, unless this says no.
    #[serde(default)]
    pub default_domain: Option<bool>,
    /// Domains.
    #[serde(default, rename = "domain")]
    pub domains: Vec<DomainEntry>,
}

/// `[[domain]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainEntry {
    /// Its name.
    pub name: String,
    /// Names of targets and initiators.
    pub members: BTreeSet<String>,
}

impl DomainsFile {
    /// Reads it.
    ///
    /// # Errors
    /// Where it is wrong, and how.
    pub fn load(path: &Path) -> Result<Self, String> {
        let wrong = |what: String| format!("{}: {what}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        Self::parse(&text).map_err(wrong)
    }

    /// Reads text.
    ///
    /// # Errors
    /// Where it is wrong, and how.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut file: Self =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        let mut names = BTreeSet::new();
        for domain in &mut file.domains {
            if domain.name.is_empty() || domain.name.len() >= super::super::attr::TEXT_MAX {
                let len = domain.name.len();
                return Err(format!("a domain's name of {len} bytes (1 to 255 are allowed)"));
            }
            if !names.insert(domain.name.clone()) {
                return Err(format!("there are two domains {:?}", domain.name));
            }
            domain.members = normal(&domain.members)?;
        }
        file.control = normal(&file.control)?;
        Ok(file)
    }
}

/// Names as they are compared.
///
/// # Errors
/// Which of them is none.
pub fn normal(names: &BTreeSet<String>) -> Result<BTreeSet<String>, String> {
    names.iter().map(|name| node_name(name)).collect()
}

/// An iSCSI name in lower case (RFC 3722), 223 bytes at most.
///
/// # Errors
/// It is none.
pub fn node_name(name: &str) -> Result<String, String> {
    let begins = ["iqn.", "eui.", "naa."]
        .iter()
        .any(|kind| name.get(..kind.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(kind)));
    let allowed = |c: char| !c.is_control() && !c.is_whitespace();
    if !begins || name.len() > 223 || !name.chars().all(allowed) {
        return Err(format!(
            "{name:?} is no iSCSI name (iqn., eui. or naa., up to 223 bytes, is allowed)"
        ));
    }
    Ok(name.to_ascii_lowercase())
}
