//! Small things that texts are made of.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}"); // to a String, which cannot fail
    }
    text
}

/// What follows the last dot of the last name of a path, in small letters, if it is a plain one.
pub(crate) fn extension(path: &str) -> Option<String> {
    let name = path.rsplit('/').next()?;
    let (stem, extension) = name.rsplit_once('.')?;
    let is_plain = !stem.is_empty()
        && (1..=5).contains(&extension.len())
        && extension.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_plain.then(|| extension.to_ascii_lowercase())
}

/// A path in the form in which files are told of: from the root, without what means nothing.
pub(crate) fn plain(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    format!("/{}", parts.join("/"))
}

/// Is it one of these, or below one?
pub(crate) fn is_below(path: &str, folders: &[String]) -> bool {
    folders.iter().any(|folder| {
        let folder = plain(folder);
        let rest = path.strip_prefix(folder.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_what_is_below_it() {
        let below = |path: &str, folder: &str| is_below(path, &[folder.to_owned()]);
        assert!(
            below("/films/a.mp4", "films/") && below("/films/a.mp4", "/") && below("/a", "./a")
        );
        assert!(!below("/films2/a.mp4", "/films") && !below("/a.mp4", "/a"));
    }

    #[test]
    fn an_extension_is_plain_letters_and_digits() {
        let of = |path: &str| extension(path);
        assert_eq!(of("/a/film.MP4"), Some("mp4".into()));
        assert_eq!(of("/a.b/film"), None);
        assert_eq!(of("/.mp4"), None);
        assert_eq!(of("film.m p4"), None);
        assert_eq!(of("film.\u{fc}"), None);
        assert_eq!(of("film."), None);
        assert_eq!(hex(&[0, 0xaf]), "00af");
    }
}
