//! The matrix in PROTOCOL.md: how many requirements there are of each status, one table per
//! chapter, and the reasons of what is not done.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::requirement::{Requirement, Status};

/// Everything between these two lines is written by `cargo xtask protocol --write`.
const BEGIN: &str = "<!-- matrix: made by `cargo xtask protocol --write` -->\n";
const END: &str = "<!-- end of the matrix -->\n";

/// Characters of a sentence that a row shows.
const SENTENCE_CHARS_MAX: usize = 170;

/// `document` with a new matrix; `None` if the marks are not there.
pub(super) fn replace(document: &str, matrix: &str) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some([before, BEGIN, matrix, END, after].concat())
}

/// How many there are of each status, in one line.
pub(super) fn summary(requirements: &[Requirement]) -> String {
    let count =
        |status| requirements.iter().filter(|r| r.is_normative() && r.status == status).count();
    let others = requirements.iter().filter(|r| !r.is_normative()).count();
    format!(
        "{} requirements: {} done, {} open, {} not supported, {} not applicable; \
         {others} other sentences that code relies on",
        requirements.len() - others,
        count(Status::Done),
        count(Status::Open),
        count(Status::NotSupported),
        count(Status::NotApplicable),
    )
}

/// All that stands between the marks.
pub(super) fn render(requirements: &[Requirement]) -> String {
    let mut out = format!("\n{}.\n", summary(requirements));
    let mut chapter = "";
    for requirement in requirements {
        if requirement.chapter != chapter {
            chapter = &requirement.chapter;
            let _ = write!(
                out,
                "\n### {chapter}\n\n| section | requirement | who | status | code | test |\n\
                 |---|---|---|---|---|---|\n"
            );
        }
        let Requirement { section, text, who, status, code, tests, .. } = requirement;
        let _ = writeln!(
            out,
            "| {section} | {} | {} | {} | {} | {} |",
            escape(&shorten(text)),
            who.name(),
            status.name(),
            links(code),
            links(tests)
        );
    }
    out += &reasons(requirements, Status::Open, "Open");
    out += &reasons(requirements, Status::NotSupported, "Not supported, and why");
    out += &reasons(requirements, Status::NotApplicable, "Not applicable, and why");
    out + "\n"
}

/// The reasons of one status, each with the sections it is given for.
fn reasons(requirements: &[Requirement], status: Status, title: &str) -> String {
    let mut sections: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut order = Vec::new();
    for requirement in requirements.iter().filter(|r| r.status == status) {
        let reason = requirement.reason.as_str();
        let list = sections.entry(reason).or_insert_with(|| {
            order.push(reason);
            Vec::new()
        });
        list.push(&requirement.section);
    }
    let mut out = format!("\n### {title}\n\n");
    if order.is_empty() {
        return out + "Nothing.\n";
    }
    for reason in order {
        let list = &sections[reason];
        let mut distinct = list.clone();
        distinct.dedup();
        let _ = writeln!(out, "* {} (§{}; {})", escape(reason), distinct.join(", §"), list.len());
    }
    out
}

/// A sentence for one line: its beginning, or what stands around its MUST.
fn shorten(text: &str) -> String {
    if text.chars().count() <= SENTENCE_CHARS_MAX {
        return text.to_owned();
    }
    let word = ["MUST", "SHALL", "REQUIRED"].iter().filter_map(|word| text.find(word)).min();
    // So much before the word that at least as much of the line is left behind it.
    let start = match word {
        Some(at) if at > SENTENCE_CHARS_MAX / 2 => {
            let from = floor_char(text, at - SENTENCE_CHARS_MAX / 3);
            text[from..].find(' ').map_or(from, |space| from + space + 1)
        }
        _ => 0,
    };
    let head = if start > 0 { "… " } else { "" };
    let rest = &text[start..];
    if rest.chars().count() <= SENTENCE_CHARS_MAX {
        return format!("{head}{rest}");
    }
    let end = floor_char(rest, SENTENCE_CHARS_MAX);
    let end = rest[..end].rfind(' ').unwrap_or(end);
    format!("{head}{} …", &rest[..end])
}

fn floor_char(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Characters that a Markdown table would take for its own.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '*' | '<' | '`' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}

/// Links to files, named without what all of them have in common.
fn links(files: &[String]) -> String {
    let name = |file: &str| {
        let name = file.strip_prefix("crates/").unwrap_or(file);
        name.replacen("/src/", "/", 1)
    };
    files.iter().map(|file| format!("[{}]({file})", name(file))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let document = format!("before\n{BEGIN}old\n{END}after\n");
        let fresh = replace(&document, "new\n").unwrap();
        assert_eq!(fresh, format!("before\n{BEGIN}new\n{END}after\n"));
        assert_eq!(replace("without marks", "new"), None);
    }

    #[test]
    fn rows_link_files_and_reasons_are_gathered() {
        let mut done = Requirement::parse_for_tests("1.2", "A|b MUST be 2**31.");
        done.chapter = "1 One".to_owned();
        done.code = vec!["crates/a/src/b/c.rs".to_owned()];
        done.tests = vec!["tests/test_a.py".to_owned()];
        let mut open = Requirement::parse_for_tests("1.3", "C MUST be d.");
        open.chapter = "1 One".to_owned();
        open.status = Status::Open;
        open.reason = "later".to_owned();
        let text = render(&[done, open.clone(), open]);
        assert!(text.starts_with("\n3 requirements: 1 done, 2 open, 0 not supported"), "{text}");
        let row = "| 1.2 | A\\|b MUST be 2\\*\\*31. | both | done | [a/b/c.rs](crates/a/src/b/c.rs) | \
                   [tests/test_a.py](tests/test_a.py) |\n";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("### Open\n\n* later (§1.3; 2)\n"), "{text}");
        assert!(text.contains("### Not supported, and why\n\nNothing.\n"), "{text}");
    }

    #[test]
    fn long_sentences_keep_their_must() {
        let long = format!("{} MUST {}.", "word ".repeat(60).trim(), "more ".repeat(60).trim());
        let short = shorten(&long);
        assert!(short.contains("MUST") && short.starts_with("… word"), "{short}");
        assert!(short.ends_with("more …") && short.chars().count() < 180, "{short}");
        assert_eq!(shorten("A MUST be b."), "A MUST be b.");
        let _ = shorten(&"é".repeat(400));
    }
}
