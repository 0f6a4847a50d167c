//! The daemon's configuration: any text ends as a configuration or as problems with a place, and
//! the same text always as the same.

use std::path::Path;

use daemon::config::Config;

/// TOML as an operator, or whoever can edit the file, may write it.
pub fn target_toml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // What names a password file would be opened, and could be anything on this machine. A key can
    // also be written with escapes; those of characters that are in no key stay.
    if ["_file", "\\u00", "\\U0000", "\\x"].iter().any(|part| text.contains(part)) {
        return;
    }
    let read = || Config::parse(Path::new("fuzz.toml"), text);
    let (first, second) = (read(), read());
    match (first, second) {
        (Ok(first), Ok(second)) => assert_eq!(format!("{first:?}"), format!("{second:?}")),
        (Err(first), Err(second)) => {
            assert!(!first.0.is_empty(), "refused without a reason");
            assert_eq!(first.to_string(), second.to_string());
        }
        _ => panic!("read differently the second time"),
    }
}
