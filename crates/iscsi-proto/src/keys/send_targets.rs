//! SendTargets: the list of targets and their portals, as text of full-feature phase (RFC 7143
//! Appendix C, §13.3).

use bytes::Bytes;

use super::text::{Pair, TextError, TextWriter, parse};
use crate::names::{NameError, TargetAddress, check_name};

/// Most text an initiator takes as an answer to SendTargets: some 8,000 targets with two portals.
pub const ANSWER_MAX: usize = 1024 * 1024;

/// A target and where it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRecord {
    /// iSCSI name.
    pub name: String,
    /// Portals; none means the address that was asked.
    pub portals: Vec<TargetAddress>,
}

/// Which targets are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendTargets {
    /// `All`: every target the initiator may know of; in a discovery session only.
    All,
    /// The target named.
    Named(String),
    /// Empty: the target of this session; in a normal session only.
    This,
}

impl SendTargets {
    /// Reads the value of the key.
    ///
    /// # Errors
    /// [`NameError`] if it is not a name.
    pub fn from_value(value: &str) -> Result<Self, NameError> {
        match value {
            "All" => Ok(Self::All),
            "" => Ok(Self::This),
            name => check_name(name).map(Self::Named),
        }
    }
}

/// Writes the answer to SendTargets.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.8
//# If the TargetAddress is returned within a SendTargets response, the portal-group-tag MUST be
//# included.
pub fn encode(records: &[TargetRecord]) -> Bytes {
    let mut out = TextWriter::default();
    for record in records {
        out.push("TargetName", &record.name);
        for portal in &record.portals {
            out.push("TargetAddress", portal);
        }
    }
    out.finish()
}

/// Why an answer to SendTargets is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendTargetsError {
    /// It is not text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A name or an address is not one.
    #[error("{key}={value:?}: {source}")]
    Name {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// What is wrong with it.
        source: NameError,
    },
    /// TargetAddress before any TargetName.
    #[error("TargetAddress={value:?} without a TargetName")]
    NoTarget {
        /// The address.
        value: String,
    },
    /// A key that has no place here.
    #[error("key {key} in an answer to SendTargets")]
    Key {
        /// The key.
        key: String,
    },
}

/// Reads the answer to SendTargets. Every name is checked: it comes from a target that nobody has
/// authenticated.
///
/// # Errors
/// [`SendTargetsError`] names the first pair that is not acceptable.
pub fn decode(text: &[u8]) -> Result<Vec<TargetRecord>, SendTargetsError> {
    let mut records: Vec<TargetRecord> = Vec::new();
    for Pair { key, value } in parse(text)? {
        let invalid =
            |key| move |source| SendTargetsError::Name { key, value: value.to_owned(), source };
        match key {
            "TargetName" => {
                let name = check_name(value).map_err(invalid("TargetName"))?;
                records.push(TargetRecord { name, portals: Vec::new() });
            }
            "TargetAddress" => {
                let portal = value.parse().map_err(invalid("TargetAddress"))?;
                records
                    .last_mut()
                    .ok_or_else(|| SendTargetsError::NoTarget { value: value.to_owned() })?
                    .portals
                    .push(portal);
            }
            // Allowed beside them, and of no use here.
            "TargetAlias" => {}
            key => return Err(SendTargetsError::Key { key: key.to_owned() }),
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_there_and_back() {
        let records = vec![
            TargetRecord {
                name: "iqn.2026-11.org.example:a".to_owned(),
                portals: vec![
                    TargetAddress::new("10.0.0.1:3260".parse().unwrap(), 1),
                    TargetAddress::new("[2001:db8::1]:3261".parse().unwrap(), 2),
                ],
            },
            TargetRecord { name: "iqn.2026-11.org.example:b".to_owned(), portals: vec![] },
        ];
        let text = encode(&records);
        let expected = "TargetName=iqn.2026-11.org.example:a\0TargetAddress=10.0.0.1:3260,1\0\
                        TargetAddress=[2001:db8::1]:3261,2\0TargetName=iqn.2026-11.org.example:b\0";
        assert_eq!(text, expected);
        assert_eq!(decode(&text), Ok(records));
    }

    #[test]
    fn hostile_answers_are_refused() {
        for text in [
            "TargetName=../../etc/cron.d/x\0",
            "TargetName=iqn.2026-11.org.example:`id`\0",
            "TargetAddress=10.0.0.1:3260,1\0",
            "TargetName=iqn.2026-11.org.example:a\0TargetAddress=;reboot:3260,1\0",
            "TargetName=iqn.2026-11.org.example:a\0Surprise=1\0",
            "TargetName=iqn.2026-11.org.example:a",
        ] {
            assert!(decode(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_asked_for() {
        assert_eq!(SendTargets::from_value("All"), Ok(SendTargets::All));
        assert_eq!(SendTargets::from_value(""), Ok(SendTargets::This));
        let name = "iqn.2026-11.org.example:a";
        assert_eq!(SendTargets::from_value(name), Ok(SendTargets::Named(name.to_owned())));
        assert!(SendTargets::from_value("all").is_err());
    }
}
