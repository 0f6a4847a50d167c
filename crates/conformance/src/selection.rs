//! Which checks run: names with `*` and `?`.

/// Patterns of names. Without any, everything runs.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only checks that one of these matches; all if empty.
    pub only: Vec<String>,
    /// And none that one of these matches.
    pub skip: Vec<String>,
}

impl Selection {
    /// Whether the check of this name runs.
    pub fn includes(&self, name: &str) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, name));
        (self.only.is_empty() || any(&self.only)) && !any(&self.skip)
    }

    /// The first pattern that is the name of nothing: most likely a slip of the finger.
    pub fn unmatched<'a>(&'a self, names: &[&str]) -> Option<&'a str> {
        let patterns = self.only.iter().chain(&self.skip);
        patterns
            .map(String::as_str)
            .find(|pattern| !names.iter().any(|name| matches(pattern, name)))
    }
}

/// `*` is any run of characters, `?` any one. Takes time proportional to both lengths' product.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                // The last star takes one character more.
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for pattern in ["*", "mcs.*", "mcs.cmdsn-order", "*order", "m?s.*-or*er", "**order*"] {
            assert!(matches(pattern, "mcs.cmdsn-order"), "{pattern}");
        }
        for pattern in ["", "mcs", "mcs.?", "*.orde", "ms*", "mcs.cmdsn-order?"] {
            assert!(!matches(pattern, "mcs.cmdsn-order"), "{pattern}");
        }
    }

    #[test]
    fn skip_wins_over_only() {
        let selection = Selection { only: vec!["a.*".into()], skip: vec!["*.two".into()] };
        assert!(selection.includes("a.one"));
        assert!(!selection.includes("a.two"));
        assert!(!selection.includes("b.one"));
        assert_eq!(selection.unmatched(&["a.one", "b.two"]), None);
        assert_eq!(selection.unmatched(&["b.one", "b.two"]), Some("a.*"));
    }
}
