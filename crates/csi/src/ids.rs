//! Names that others choose, and what they are here: volumes and snapshots by their ids, targets
//! and nodes by their iSCSI names (RFC 7143 §4.2.7).
//!
//! An id follows from the name alone, so that who asks for the same volume again is told of it,
//! by whichever process.

use std::fmt::Write;

use iscsi_proto::names::check_name;
use sha2::{Digest, Sha256};

/// How ids of volumes begin, and how those of snapshots do.
pub(crate) const VOLUME: &str = "csi";
pub(crate) const SNAPSHOT: &str = "snap";

/// Longest name that is used as it is: with the beginning it is at most what a target daemon takes
/// as the name of a unit (64).
const PLAIN_LEN_MAX: usize = 48;

/// Bytes of a hash that stand for any other name: nobody finds two names with the same.
const HASH_LEN: usize = 16;

/// The id that follows from a name. What is no word of small letters, digits and dashes becomes a
/// hash, behind a dot, which words do not have.
pub(crate) fn id(kind: &str, name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.is_empty() && name.len() <= PLAIN_LEN_MAX && name.chars().all(is_plain) {
        return format!("{kind}-{name}");
    }
    let hash = Sha256::digest(name.as_bytes());
    let mut id = format!("{kind}.");
    for byte in &hash[..HASH_LEN] {
        let _never_fails = write!(id, "{byte:02x}");
    }
    id
}

/// Could it be one of our ids? What is not, is no name of a file either.
pub(crate) fn is_id(kind: &str, id: &str) -> bool {
    let Some(rest) = id.strip_prefix(kind) else { return false };
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    match (rest.strip_prefix('-'), rest.strip_prefix('.')) {
        (Some(name), _) => {
            !name.is_empty() && name.len() <= PLAIN_LEN_MAX && name.chars().all(is_plain)
        }
        (_, Some(hash)) => {
            hash.len() == 2 * HASH_LEN && hash.bytes().all(|digit| digit.is_ascii_hexdigit())
        }
        _ => false,
    }
}

/// The iSCSI name of a node. What is none already gets the beginning of the names that
/// initiators of ours have by default.
///
/// # Errors
/// What a name would be.
pub fn initiator_name(node_id: &str) -> Result<String, String> {
    let named = |name: &str| check_name(&format!("iqn.2026-11.org.enkaku:{name}")).ok();
    let given = check_name(node_id).ok();
    let own = || Some(node_id).filter(|name| !name.is_empty()).and_then(named);
    given.or_else(own).ok_or_else(|| {
        format!(
            "{node_id:?} is no name of a node (allowed: an iSCSI name, or a name of letters, \
             digits, '.', '-' and ':', such as the host's)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_from_names_and_are_names_of_files_and_units() {
        assert_eq!(id(VOLUME, "pvc-0a1b"), "csi-pvc-0a1b");
        let odd = ["PVC", "a.b", "a/../b", "", &"x".repeat(128), "csi.h", "ü"];
        for name in odd {
            let made = id(VOLUME, name);
            assert!(is_id(VOLUME, &made), "{made}");
            assert!(made.len() <= 64, "{made}");
            assert_eq!(made, id(VOLUME, name));
        }
        let long = "x".repeat(48);
        assert_eq!(id(SNAPSHOT, &long), format!("snap-{long}"));
        assert!(is_id(SNAPSHOT, &format!("snap-{long}")));
    }

    #[test]
    fn what_is_no_id_is_told_from_one() {
        let hash = "0".repeat(32);
        let wrong = ["", "csi", "csi-", "csi-A", "csi-../x", "csi.0", "vm1", "snap-a", "csi-a@b"];
        for text in wrong {
            assert!(!is_id(VOLUME, text), "{text}");
        }
        assert!(is_id(VOLUME, &format!("csi.{hash}")) && !is_id(SNAPSHOT, &format!("csi.{hash}")));
        assert!(!is_id(VOLUME, &format!("csi-{}", "x".repeat(49))));
    }

    #[test]
    fn nodes_have_iscsi_names() {
        let named = "iqn.2026-11.org.example:host";
        assert_eq!(initiator_name(named).as_deref(), Ok(named));
        let ours = Ok("iqn.2026-11.org.enkaku:worker-1.example");
        assert_eq!(initiator_name("Worker-1.example").as_deref(), ours);
        for wrong in ["", "a b", "../x", &"x".repeat(223)] {
            assert!(initiator_name(wrong).is_err(), "{wrong}");
        }
    }
}
