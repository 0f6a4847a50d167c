//! Requirements of RFC 7143 against code and tests: `cargo xtask protocol`.
//!
//! `docs/protocol/rfc7143` lists every normative sentence of the RFC with what becomes of it here.
//! Code and tests cite those sentences (`citation`); a requirement that is called done has to be
//! cited by both. The matrix in PROTOCOL.md is made from the two (`matrix`). The RFC itself is not
//! in the repository: the list is what citations are compared with.

mod citation;
mod matrix;
mod requirement;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use citation::{Citation, Kind};
use requirement::{Requirement, Status};

/// Where the lists are.
const LISTS: &str = "docs/protocol/rfc7143";
/// What citations name.
const DOCUMENT_URL: &str = "https://www.rfc-editor.org/rfc/rfc7143#";
/// Holds the matrix.
const DOCUMENT: &str = "PROTOCOL.md";

/// The violations in the repository at `root`, one line each.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let Survey { requirements, mut violations } = survey(root)?;
    let text = fs::read_to_string(root.join(DOCUMENT)).context(DOCUMENT)?;
    match matrix::replace(&text, &matrix::render(&requirements)) {
        None => violations.push(format!("{DOCUMENT}: the marks around the matrix are missing")),
        Some(fresh) if fresh != text => violations
            .push(format!("{DOCUMENT}: the matrix is out of date: cargo xtask protocol --write")),
        Some(_) => {}
    }
    report(&requirements);
    Ok(violations)
}

/// Brings the matrix up to date; the violations that remain.
pub(crate) fn write(root: &Path) -> Result<Vec<String>> {
    let Survey { requirements, mut violations } = survey(root)?;
    let path = root.join(DOCUMENT);
    let text = fs::read_to_string(&path).context(DOCUMENT)?;
    match matrix::replace(&text, &matrix::render(&requirements)) {
        None => violations.push(format!("{DOCUMENT}: the marks around the matrix are missing")),
        Some(fresh) => fs::write(&path, fresh).context(DOCUMENT)?,
    }
    report(&requirements);
    Ok(violations)
}

/// Requirements with what cites them, and what is wrong with either.
struct Survey {
    requirements: Vec<Requirement>,
    violations: Vec<String>,
}

fn survey(root: &Path) -> Result<Survey> {
    let mut requirements = requirement::read_all(&root.join(LISTS))?;
    let mut violations = requirement::faults(&requirements);
    let (citations, faults) = citation::collect(root)?;
    violations.extend(faults);
    for citation in &citations {
        violations.extend(assign(citation, &mut requirements));
    }
    violations.extend(requirements.iter().filter_map(uncited));
    Ok(Survey { requirements, violations })
}

/// Enters a citation with the requirements that it quotes; says why if it quotes none.
fn assign(citation: &Citation, requirements: &mut [Requirement]) -> Option<String> {
    let Citation { file, line, section, quote, kind } = citation;
    let complain = |what: &str| Some(format!("{file}:{line}: section {section}: {what}"));
    let in_section: Vec<usize> =
        (0..requirements.len()).filter(|i| requirements[*i].section == *section).collect();
    if in_section.is_empty() {
        return complain("the list has no sentence of this section");
    }
    // A part of one sentence, or several sentences with at most a part of one more.
    let mut quoted = Vec::new();
    let mut rest = quote.clone();
    for &index in &in_section {
        if rest.contains(&requirements[index].text) {
            rest = rest.replacen(&requirements[index].text, "", 1).trim().to_owned();
            quoted.push(index);
        }
    }
    if !rest.is_empty() {
        let part = in_section.iter().find(|i| requirements[**i].text.contains(&rest));
        let Some(part) = part else {
            return complain(&format!("not a sentence of the list: {rest:?}"));
        };
        quoted.push(*part);
    }
    for index in quoted {
        let files = match kind {
            Kind::Code => &mut requirements[index].code,
            Kind::Test => &mut requirements[index].tests,
        };
        if !files.contains(file) {
            files.push(file.clone());
            files.sort();
        }
    }
    None
}

/// What a requirement lacks that is called done.
fn uncited(requirement: &Requirement) -> Option<String> {
    let Requirement { section, text, status, code, tests, .. } = requirement;
    let lacks = match (code.is_empty(), tests.is_empty()) {
        _ if *status != Status::Done => return None,
        (false, false) => return None,
        (true, true) => "neither code nor a test cites it",
        (true, false) => "no code cites it",
        (false, true) => "no test cites it",
    };
    Some(format!("section {section}: done, but {lacks}: {text:?}"))
}

/// Prints how many there are of each status, and what could be called done by now.
fn report(requirements: &[Requirement]) {
    println!("{}", matrix::summary(requirements));
    let ripe =
        |r: &&Requirement| r.status == Status::Open && !r.code.is_empty() && !r.tests.is_empty();
    for Requirement { section, text, .. } in requirements.iter().filter(ripe) {
        println!("open, though code and a test cite it: section {section}: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_is_complete_and_current() {
        let violations = check(crate::root()).unwrap();
        assert!(violations.is_empty(), "\n{}", violations.join("\n"));
    }

    fn requirement(section: &str, text: &str) -> Requirement {
        Requirement::parse_for_tests(section, text)
    }

    fn citation(section: &str, quote: &str) -> Citation {
        Citation {
            file: "a.rs".into(),
            line: 7,
            section: section.into(),
            quote: quote.into(),
            kind: Kind::Code,
        }
    }

    #[test]
    fn quotations_are_parts_or_runs_of_sentences_of_their_section() {
        let list =
            || vec![requirement("1.2", "A MUST be b."), requirement("1.2", "C MUST NOT be d.")];
        let hits = |quote: &str, section: &str| {
            let mut requirements = list();
            let fault = assign(&citation(section, quote), &mut requirements);
            let cited: Vec<bool> = requirements.iter().map(|r| !r.code.is_empty()).collect();
            (fault.is_none(), cited)
        };
        assert_eq!(hits("A MUST be b.", "1.2"), (true, vec![true, false]));
        assert_eq!(hits("MUST NOT be d", "1.2"), (true, vec![false, true]));
        assert_eq!(hits("A MUST be b. C MUST NOT be d.", "1.2"), (true, vec![true, true]));
        assert_eq!(hits("A MUST be b. C MUST NOT", "1.2"), (true, vec![true, true]));
        assert_eq!(hits("A MUST be c.", "1.2"), (false, vec![false, false]));
        assert_eq!(hits("A MUST be b. And more.", "1.2"), (false, vec![false, false]));
        assert_eq!(hits("A MUST be b.", "1.3"), (false, vec![false, false]));
    }

    #[test]
    fn what_is_done_needs_code_and_a_test() {
        let mut done = requirement("1", "A MUST be b.");
        assert!(uncited(&done).unwrap().contains("neither"));
        done.code.push("a.rs".into());
        assert!(uncited(&done).unwrap().contains("no test"));
        done.tests.push("t.rs".into());
        assert_eq!(uncited(&done), None);
        done.code.clear();
        assert!(uncited(&done).unwrap().contains("no code"));
        done.status = Status::Open;
        assert_eq!(uncited(&done), None);
    }
}
