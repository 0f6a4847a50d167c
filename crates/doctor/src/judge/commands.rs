//! Commands to paste. Names of targets are somebody else's words: whatever stands in one is quoted.

use super::case::Case;
use super::{Change, Place, Step};
use crate::facts::Initiator;

/// A word for a POSIX shell.
pub(super) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._:/=,@%+-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// At once, on this host.
pub(super) fn now(command: String) -> Change {
    Change { place: Place::Here, step: Step::Now, command }
}

/// At once, on this host, for the block device that there is now.
pub(super) fn of_disk(command: String) -> Change {
    Change { place: Place::Here, step: Step::Disk, command }
}

/// A setting of the kernel. Windows and congestion control are those of connections made later.
pub(super) fn sysctl(place: Place, name: &str, value: &str) -> Change {
    let command = format!("sysctl -w {name}={}", quote(value));
    Change { place, step: Step::NextLogin, command }
}

/// A key of the record of open-iscsi, and nothing for another initiator.
pub(super) fn record(case: &Case<'_>, name: &str, value: &str) -> Vec<Change> {
    let Some(node) = node(case) else { return Vec::new() };
    let command = format!("{node} -o update -n {} -v {}", quote(name), quote(value));
    vec![Change { place: case.initiator(), step: Step::NextLogin, command }]
}

/// Out and in again.
pub(super) fn login(case: &Case<'_>) -> Vec<Change> {
    let Some(node) = node(case) else { return Vec::new() };
    let step = |word: &str| Change {
        place: case.initiator(),
        step: Step::Login,
        command: format!("{node} {word}"),
    };
    vec![step("--logout"), step("--login")]
}

/// An option of our own programs, and nothing for others.
pub(super) fn option(case: &Case<'_>, command: &str) -> Vec<Change> {
    if case.session.initiator != Initiator::Enkaku {
        return Vec::new();
    }
    let (place, command) = (case.initiator(), command.to_owned());
    vec![Change { place, step: Step::Option, command }]
}

fn node(case: &Case<'_>) -> Option<String> {
    let session = case.session;
    if session.initiator != Initiator::OpenIscsi {
        return None;
    }
    let (target, portal) = (session.target.as_ref()?, session.record.or(session.portal)?);
    Some(format!("iscsiadm -m node -T {} -p {}", quote(target), quote(&portal.to_string())))
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn a_name_is_one_word_whatever_it_says() {
        assert_eq!(quote("iqn.2026-11.org.example:disk"), "iqn.2026-11.org.example:disk");
        assert_eq!(quote("node.conn[0].tcp.window_size"), "'node.conn[0].tcp.window_size'");
        assert_eq!(quote("iqn.x:'; rm -rf / #"), r"'iqn.x:'\''; rm -rf / #'");
        assert_eq!(quote("$(reboot)"), "'$(reboot)'");
        assert_eq!(quote(""), "''");
    }
}
