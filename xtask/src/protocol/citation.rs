//! Citations in comments: which file quotes which sentence of the RFC, and whether it is code or a
//! test.
//!
//! ```text
//! //= https://www.rfc-editor.org/rfc/rfc7143#section-N       in Python:  #= https://…
//! //= type=test                                                          #= type=test
//! //# The sentence, or a part of it.                                     ## The sentence …
//! ```

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::DOCUMENT_URL;
use crate::tidy;

/// Folders with code and tests that may cite. `xtask` is not of them: it is no part of the product.
const FOLDERS: &[&str] = &["crates", "sim", "fuzz", "tests", "lab"];

/// What cites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Code that fulfils the sentence.
    Code,
    /// A test that checks it.
    Test,
}

/// One quotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Citation {
    /// Path from the repository's root.
    pub(super) file: String,
    /// Line of the address, from 1.
    pub(super) line: usize,
    /// Number, or letter of an appendix.
    pub(super) section: String,
    /// The words, with single spaces.
    pub(super) quote: String,
    pub(super) kind: Kind,
}

/// All citations of the repository at `root`, and what is wrong with their form.
pub(super) fn collect(root: &Path) -> Result<(Vec<Citation>, Vec<String>)> {
    let mut files = Vec::new();
    for folder in FOLDERS.iter().map(|folder| root.join(folder)).filter(|f| f.is_dir()) {
        tidy::collect(&folder, &mut files)?;
    }
    files.sort();
    let (mut citations, mut faults) = (Vec::new(), Vec::new());
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        for found in parse(&name, &text) {
            match found {
                Ok(citation) => citations.push(citation),
                Err(fault) => faults.push(fault),
            }
        }
    }
    Ok((citations, faults))
}

/// The citations of one file.
fn parse(name: &str, text: &str) -> Vec<Result<Citation, String>> {
    let (meta, content) = if name.ends_with(".py") { ("#=", "##") } else { ("//=", "//#") };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let tests_from = if is_test_file(name) { 0 } else { tidy::without_tests(text).lines().count() };
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let start = at;
        let Some(address) = lines[at].strip_prefix(meta) else {
            at += 1;
            if lines[start].starts_with(&format!("{content} ")) {
                found.push(Err(format!("{name}:{at}: a quotation without its source")));
            }
            continue;
        };
        at += 1;
        let attributes = take_prefixed(&lines, &mut at, meta);
        let quote = take_prefixed(&lines, &mut at, content).join(" ");
        found.push(citation(name, start + 1, address.trim(), &attributes, &quote).and_then(
            |citation| check_place(citation, start >= tests_from, lines.get(at..).unwrap_or(&[])),
        ));
    }
    found
}

/// The simulator is a test as a whole: it checks every PDU on the wire, wherever that stands.
fn is_test_file(name: &str) -> bool {
    tidy::is_test_file(name) || ["tests/", "sim/"].iter().any(|folder| name.starts_with(folder))
}

fn take_prefixed<'a>(lines: &[&'a str], at: &mut usize, prefix: &str) -> Vec<&'a str> {
    let run = lines[*at..].iter().map_while(|line| line.strip_prefix(prefix));
    let taken: Vec<&str> = run.map(str::trim).collect();
    *at += taken.len();
    taken
}

fn citation(
    name: &str,
    line: usize,
    address: &str,
    attributes: &[&str],
    quote: &str,
) -> Result<Citation, String> {
    let fault = |what: &str| Err(format!("{name}:{line}: {what}"));
    let Some(place) = address.strip_prefix(DOCUMENT_URL) else {
        return fault(&format!("{address} is not {DOCUMENT_URL}section-N"));
    };
    let section = place.strip_prefix("section-").or_else(|| place.strip_prefix("appendix-"));
    let Some(section) = section.filter(|section| !section.is_empty()) else {
        return fault(&format!("{place} is neither section-N nor appendix-X"));
    };
    let kind = match attributes {
        [] => Kind::Code,
        ["type=test"] => Kind::Test,
        other => return fault(&format!("{} is not type=test", other.join(", "))),
    };
    if quote.split_whitespace().count() < 3 {
        return fault("quotes less than three words");
    }
    let quote = quote.split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(Citation { file: name.to_owned(), line, section: section.to_owned(), quote, kind })
}

/// A test is cited as a test, directly above it; code is not.
fn check_place(citation: Citation, in_tests: bool, below: &[&str]) -> Result<Citation, String> {
    let Citation { file, line, kind, .. } = &citation;
    match (kind, in_tests) {
        (Kind::Code, true) => Err(format!("{file}:{line}: a test without type=test")),
        (Kind::Test, false) => Err(format!("{file}:{line}: type=test outside the tests")),
        (Kind::Test, true) if !file.starts_with("sim/") && !is_above_function(below) => {
            Err(format!("{file}:{line}: type=test that does not stand above a test"))
        }
        _ => Ok(citation),
    }
}

fn is_above_function(below: &[&str]) -> bool {
    let is_decoration =
        |line: &&&str| line.starts_with("//") || line.starts_with('#') || line.starts_with('@');
    let item = below.iter().find(|line| !is_decoration(line));
    item.is_some_and(|line| ["fn ", "async fn ", "def "].iter().any(|word| line.starts_with(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\
fn f() {
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2
    //# A MUST be
    //#   b.
    g();
}

#[cfg(test)]
mod tests {
    //= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
    //= type=test
    //# C MUST be d.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-5
    //= type=test
    //# E MUST be f.
    #[test]
    fn a_test() {}
}
";

    #[test]
    fn code_and_tests_are_told_apart() {
        let found: Vec<_> =
            parse("crates/a/src/a.rs", CODE).into_iter().map(Result::unwrap).collect();
        let brief = |c: &Citation| (c.line, c.section.clone(), c.quote.clone(), c.kind);
        assert_eq!(
            found.iter().map(brief).collect::<Vec<_>>(),
            [
                (2, "4.2".to_owned(), "A MUST be b.".to_owned(), Kind::Code),
                (10, "C".to_owned(), "C MUST be d.".to_owned(), Kind::Test),
                (13, "5".to_owned(), "E MUST be f.".to_owned(), Kind::Test),
            ]
        );
    }

    #[test]
    fn python_cites_in_its_own_comments() {
        let text = "#= https://www.rfc-editor.org/rfc/rfc7143#section-4.2\n#= type=test\n\
                    ## A MUST be b.\n@mark\ndef test_a():\n    pass\n";
        let found = parse("tests/test_a.py", text);
        assert!(matches!(&found[..], [Ok(Citation { kind: Kind::Test, .. })]), "{found:?}");
    }

    #[test]
    fn faults_of_form_are_named() {
        let url = "//= https://www.rfc-editor.org/rfc/rfc7143#";
        for (name, text, what) in [
            ("a.rs", format!("{url}section-1\n//# A b\nfn f() {{}}\n"), "less than three words"),
            ("a.rs", "//= https://example.org/#section-1\n//# A b c\n".into(), "is not https"),
            ("a.rs", format!("{url}4.2\n//# A b c\n"), "neither section-N"),
            ("a.rs", "//# A b c\n".into(), "without its source"),
            ("a.rs", format!("{url}section-1\n//= type=todo\n//# A b c\n"), "is not type=test"),
            ("a.rs", format!("{url}section-1\n//= type=test\n//# A b c\nfn f() {{}}\n"), "outside"),
            ("tests.rs", format!("{url}section-1\n//# A b c\nfn f() {{}}\n"), "without type=test"),
            ("tests.rs", format!("{url}section-1\n//= type=test\n//# A b c\nlet x;\n"), "above a"),
        ] {
            let found = parse(name, &text);
            let fault = found.into_iter().find_map(Result::err).unwrap_or_default();
            assert!(fault.contains(what), "{text}: {fault:?}");
        }
    }
}
