//! Texts as basic strings of TOML (<https://toml.io/en/v1.0.0#string>), for files that are written
//! here and read again.

use std::fmt::Write as _;
use std::path::Path;

/// A text, with its quotation marks, on one line.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _never_fails = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A path.
///
/// # Errors
/// It is no UTF-8, which TOML is.
pub(crate) fn quoted_path(path: &Path) -> Result<String, String> {
    let text = path.to_str();
    text.map(quoted).ok_or_else(|| format!("{} cannot stand in TOML: no UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back_from_toml() {
        for text in ["plain", "a \"b\" \\c", "tab\tnewline\nend\u{7f}\u{1}", "ünï/日本", "#[[x]]"]
        {
            let toml = format!("key = {}", quoted(text));
            assert_eq!(toml.lines().count(), 1, "{toml}");
            let value = toml_span::parse(&toml).unwrap();
            assert_eq!(value.pointer("/key").and_then(|value| value.as_str()), Some(text));
        }
    }

    #[test]
    fn a_path_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStrExt;
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/a\xff"));
        assert!(quoted_path(path).is_err_and(|error| error.contains("no UTF-8")));
        assert_eq!(quoted_path(Path::new("/a b")), Ok("\"/a b\"".to_owned()));
    }
}
