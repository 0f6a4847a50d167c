//! LDAP, a directory of entries (RFC 4511): where a catalogue of many homes is kept
//! (docs/directory.md).
//!
//! [`Directory`] is what is asked of one: entries that a filter fits, and changes. [`Client`] asks
//! a server. What entries mean is the caller's. Not here: SASL, referrals, a server.

mod address;
mod client;
mod connect;
pub mod dn;
pub mod gate;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;

pub use address::{Address, AddressError};
pub use client::{Bind, Client, Settings};

/// An entry: its name, and attributes by name in small letters, each with its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// As the server writes it.
    pub dn: String,
    /// In small letters, without options such as `;binary`.
    pub attributes: BTreeMap<String, Vec<Vec<u8>>>,
}

impl Entry {
    /// All values of an attribute, whose name is in small letters.
    #[must_use]
    pub fn values(&self, name: &str) -> &[Vec<u8>] {
        self.attributes.get(name).map_or(&[], Vec::as_slice)
    }

    /// The first value, if it is a text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.values(name).first()?).ok()
    }
}

/// Which entries are meant. Shown, it is RFC 4515's text with every value escaped, so that no value
/// can mean more than itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// An attribute has this value.
    Is(&'static str, String),
    /// One of its values is this or greater, in the order of the attribute.
    AtLeast(&'static str, String),
    /// One of its values has this in it.
    Contains(&'static str, String),
    /// All of these.
    All(Vec<Filter>),
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escaped = |value: &str| ldap3::ldap_escape(value.to_owned()).into_owned();
        match self {
            Self::Is(name, value) => write!(f, "({name}={})", escaped(value)),
            Self::AtLeast(name, value) => write!(f, "({name}>={})", escaped(value)),
            Self::Contains(name, value) => write!(f, "({name}=*{}*)", escaped(value)),
            Self::All(filters) => {
                f.write_str("(&")?;
                filters.iter().try_for_each(|filter| write!(f, "{filter}"))?;
                f.write_str(")")
            }
        }
    }
}

/// What is asked for, at or below the directory's base.
#[derive(Clone, Debug)]
pub struct Search {
    /// Which entries.
    pub filter: Filter,
    /// Which attributes; `*` is all that are no operational ones.
    pub attributes: Vec<&'static str>,
    /// More entries are an error.
    pub entries_max: usize,
}

/// Attributes and their values, as they are to be.
pub type Attributes = Vec<(&'static str, Vec<Vec<u8>>)>;

/// What is to become of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is new.
    Add {
        /// Its name.
        dn: String,
        /// All that it has.
        attributes: Attributes,
    },
    /// These attributes get these values; one without any goes.
    Replace {
        /// Its name.
        dn: String,
        /// Which are other than before.
        attributes: Attributes,
    },
    /// It goes.
    Remove {
        /// Its name.
        dn: String,
    },
}

impl Change {
    /// Which entry.
    #[must_use]
    pub fn dn(&self) -> &str {
        match self {
            Self::Add { dn, .. } | Self::Replace { dn, .. } | Self::Remove { dn } => dn,
        }
    }
}

/// Entries below a base, which can be asked for and changed.
pub trait Directory: Send + Sync {
    /// What it is called, for people: a URL without a password.
    fn name(&self) -> String;

    /// The name of the entry that all others are below.
    fn base(&self) -> String;

    /// Hands over one entry after the other. What is wrong with one that cannot be handed over is
    /// in the log.
    ///
    /// # Errors
    /// [`LdapError`]; some entries may have been handed over.
    fn search(
        &self,
        wanted: &Search,
        each: &mut (dyn FnMut(Entry) + Send),
    ) -> impl Future<Output = Result<(), LdapError>> + Send;

    /// Makes changes, several at once and in any order. Returns those that the server has refused,
    /// by the names of their entries; all others are made.
    ///
    /// # Errors
    /// [`LdapError`]; some changes may have been made.
    fn apply(
        &self,
        changes: Vec<Change>,
    ) -> impl Future<Output = Result<Vec<(String, LdapError)>, LdapError>> + Send;
}

/// What went wrong with a directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LdapError {
    /// No connection, or it broke.
    #[error("directory {server}: {source}")]
    Connection {
        /// Where.
        server: String,
        /// Why.
        source: std::io::Error,
    },
    /// It is not who it should be, or speaks no TLS.
    #[error("directory {server}: TLS: {why}")]
    Tls {
        /// Where.
        server: String,
        /// Why not.
        why: String,
    },
    /// It does not answer.
    #[error("directory {server}: no answer for {seconds} s")]
    Silent {
        /// Where.
        server: String,
        /// How long was waited.
        seconds: u64,
    },
    /// It says no.
    #[error("directory {server} refuses {what}: {why}")]
    Refused {
        /// Where.
        server: String,
        /// What was asked.
        what: String,
        /// Its reason, with what may help.
        why: String,
    },
    /// What it sends is not LDAP, or is more than is taken.
    #[error("directory {server}: {why}")]
    Nonsense {
        /// Where.
        server: String,
        /// What is wrong.
        why: String,
    },
    /// Something of ours: a file, a setting.
    #[error("{place}: {problem}")]
    Settings {
        /// Which.
        place: String,
        /// What is wrong, and what is allowed.
        problem: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_means_nothing_but_itself() {
        let hostile = "*)(uid=*\\\0ü";
        let filter = Filter::All(vec![
            Filter::Is("cn", hostile.into()),
            Filter::Contains("ekTitle", "a*b".into()),
            Filter::AtLeast("modifyTimestamp", "20260101000000Z".into()),
        ]);
        let text = filter.to_string();
        assert_eq!(
            text,
            "(&(cn=\\2a\\29\\28uid=\\2a\\5c\\00ü)(ekTitle=*a\\2ab*)(modifyTimestamp>=20260101000000Z))"
        );
        assert!(ldap3::parse_filter(&text).is_ok());
    }
}
