//! The lists of requirements: one TOML file per chapter of the RFC, one entry per sentence.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// Words that make a sentence a requirement (RFC 2119).
const NORMATIVE: &[&str] = &["MUST", "SHALL", "REQUIRED"];

/// Whom a sentence binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Who {
    Initiator,
    Target,
    Both,
    /// Administrators, authors of extensions, makers of hardware.
    Neither,
}

impl Who {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Initiator => "initiator",
            Self::Target => "target",
            Self::Both => "both",
            Self::Neither => "neither",
        }
    }
}

/// What becomes of it here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Status {
    /// Fulfilled: code and a test cite it.
    Done,
    /// It is about something optional that this implementation does not offer, or it is knowingly
    /// not fulfilled.
    NotSupported,
    /// It binds somebody else, or a case that cannot occur here.
    NotApplicable,
    /// Not fulfilled yet, or not proved by a test.
    Open,
}

impl Status {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::NotSupported => "not supported",
            Self::NotApplicable => "not applicable",
            Self::Open => "open",
        }
    }
}

/// One sentence.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Requirement {
    /// Number, or letter of an appendix.
    pub(super) section: String,
    pub(super) who: Who,
    pub(super) status: Status,
    /// Why it is not done.
    #[serde(default)]
    pub(super) reason: String,
    /// The sentence.
    pub(super) text: String,
    /// Title of its chapter, from the file.
    #[serde(skip)]
    pub(super) chapter: String,
    /// Files of code that cite it.
    #[serde(skip)]
    pub(super) code: Vec<String>,
    /// Files of tests that cite it.
    #[serde(skip)]
    pub(super) tests: Vec<String>,
}

impl Requirement {
    /// It is a MUST, and not one of the other sentences that the code relies on.
    pub(super) fn is_normative(&self) -> bool {
        let words = |c: char| !c.is_ascii_alphanumeric();
        self.text.split(words).any(|word| NORMATIVE.contains(&word))
    }

    #[cfg(test)]
    pub(super) fn parse_for_tests(section: &str, text: &str) -> Self {
        let (who, status) = (Who::Both, Status::Done);
        let (section, text) = (section.to_owned(), text.to_owned());
        let (reason, chapter) = (String::new(), String::new());
        Self { section, who, status, reason, text, chapter, code: vec![], tests: vec![] }
    }
}

/// One file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    /// Number and title of the chapter.
    chapter: String,
    requirement: Vec<Requirement>,
}

/// Every list of the folder, in the order of the files' names.
pub(super) fn read_all(folder: &Path) -> Result<Vec<Requirement>> {
    let context = || folder.display().to_string();
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(context)? {
        let path = entry.with_context(context)?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        all.extend(parse(&text).with_context(|| file.display().to_string())?);
    }
    Ok(all)
}

fn parse(text: &str) -> Result<Vec<Requirement>> {
    let List { chapter, mut requirement } = toml::from_str(text)?;
    for entry in &mut requirement {
        entry.chapter.clone_from(&chapter);
        entry.text = entry.text.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    Ok(requirement)
}

/// What is wrong with the lists themselves.
pub(super) fn faults(requirements: &[Requirement]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut faults = Vec::new();
    for Requirement { section, status, reason, text, .. } in requirements {
        let mut complain = |what: &str| faults.push(format!("section {section}: {what}: {text:?}"));
        if !seen.insert((section, text)) {
            complain("listed twice");
        }
        match (status, reason.is_empty()) {
            (Status::Done, false) => complain("done needs no reason"),
            (Status::Done, true) | (_, false) => {}
            (_, true) => complain(&format!("{} without a reason", status.name())),
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "chapter = '1 One'\n[[requirement]]\nsection = '1.2'\nwho = 'both'\n\
        status = 'not-supported'\nreason = 'none'\ntext = '''A MUST\n  be b.'''\n";

    #[test]
    fn a_list_is_read_with_its_spaces_normalised() {
        let list = parse(LIST).unwrap();
        assert_eq!((list[0].text.as_str(), list[0].chapter.as_str()), ("A MUST be b.", "1 One"));
        assert!(list[0].is_normative());
        assert!(faults(&list).is_empty());
        assert!(!Requirement::parse_for_tests("1", "It must be MUSTARD.").is_normative());
    }

    #[test]
    fn faults_of_a_list_are_named() {
        let no_reason = parse(&LIST.replace("'none'", "''")).unwrap();
        assert!(faults(&no_reason)[0].contains("not supported without a reason"));
        let twice = [parse(LIST).unwrap(), parse(LIST).unwrap()].concat();
        assert!(faults(&twice)[0].contains("listed twice"));
        assert!(parse(&LIST.replace("'both'", "'nobody'")).is_err());
        assert!(parse(&LIST.replace("who", "whom")).is_err());
    }
}
