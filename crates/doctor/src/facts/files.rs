//! Where texts come from: somebody else's file system, or a test's map. What a file says is trusted
//! as little as a peer.

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Its text.
    Text(String),
    /// There is none.
    Absent,
    /// It may not be read.
    Denied,
}

/// Files by their path below the root, without a slash in front.
pub trait Files {
    /// The text of a file, at most [`TEXT_BYTES_MAX`] of it.
    fn read(&self, path: &str) -> Read;
    /// Names in a folder in order, at most [`NAMES_MAX`]; none where there is no such folder.
    fn names(&self, path: &str) -> Vec<String>;
    /// The last part of what a symbolic link points to.
    fn link(&self, path: &str) -> Option<String>;
}

/// Attributes of sysfs are a page at most; /proc/cpuinfo of a large host is longer.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
/// Names of a folder that are looked at.
pub const NAMES_MAX: usize = 4096;
/// A word of an attribute that is kept: names of targets have 223 bytes (RFC 7143 §4.2.7.1).
const WORD_BYTES_MAX: usize = 256;

/// One line without what surrounds it, and without what would move a terminal's cursor.
pub(crate) fn word(files: &dyn Files, path: &str) -> Option<String> {
    let Read::Text(text) = files.read(path) else { return None };
    let line = text.lines().next().unwrap_or_default().trim();
    // The kernel's and open-iscsi's ways to say that there is none.
    if line.is_empty() || ["<NULL>", "(null)", "<empty>"].contains(&line) {
        return None;
    }
    Some(clean(line).chars().take(WORD_BYTES_MAX).collect())
}

/// A number.
pub(crate) fn number(files: &dyn Files, path: &str) -> Option<u64> {
    word(files, path)?.parse().ok()
}

/// A switch, 0 or 1.
pub(crate) fn switch(files: &dyn Files, path: &str) -> Option<bool> {
    match number(files, path)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Control characters replaced, by which a name could write elsewhere on a terminal, and those
/// that turn the direction of text.
pub(crate) fn clean(text: &str) -> String {
    let bad = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
            || matches!(c, '\u{2066}'..='\u{2069}')
    };
    let safe = |c: char| match c {
        '\t' => ' ',
        c if bad(c) => '\u{fffd}',
        c => c,
    };
    text.chars().map(safe).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Files of a test: path and text; a link's text begins with `->`, what may not be read is `!`.
    #[derive(Default)]
    pub(crate) struct Tree(pub(crate) BTreeMap<String, String>);

    impl Tree {
        /// Lines of `path: text`.
        pub(crate) fn of(lines: &str) -> Self {
            let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty());
            let pair = |line: &str| {
                let (path, text) = line.split_once(": ").unwrap();
                (path.to_owned(), text.to_owned())
            };
            Self(lines.map(pair).collect())
        }
    }

    impl Files for Tree {
        fn read(&self, path: &str) -> Read {
            match self.0.get(path).map(String::as_str) {
                Some("!") => Read::Denied,
                Some(text) => Read::Text(format!("{text}\n")),
                None => Read::Absent,
            }
        }

        fn names(&self, path: &str) -> Vec<String> {
            let below = self.0.keys().filter_map(|one| one.strip_prefix(path)?.strip_prefix('/'));
            let mut names: Vec<String> =
                below.filter_map(|rest| Some(rest.split('/').next()?.to_owned())).collect();
            names.dedup();
            names
        }

        fn link(&self, path: &str) -> Option<String> {
            let text = self.0.get(path)?.strip_prefix("->")?;
            Some(text.rsplit('/').next()?.to_owned())
        }
    }

    #[test]
    fn a_hostile_text_is_a_word_or_nothing() {
        let tree = Tree::of(&format!(
            "a: iqn.\u{1b}[2J\u{202e}x\nb: (null)\nc: {}\nd: !",
            "9".repeat(400)
        ));
        assert_eq!(word(&tree, "a").unwrap(), "iqn.\u{fffd}[2J\u{fffd}x");
        assert_eq!(word(&tree, "b"), None);
        assert_eq!(
            (number(&tree, "a"), number(&tree, "c"), number(&tree, "d")),
            (None, None, None)
        );
        assert_eq!(word(&tree, "c").unwrap().len(), WORD_BYTES_MAX);
    }
}
