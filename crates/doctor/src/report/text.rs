//! The report for a terminal of 80 columns. Commands are not torn: a long one goes on behind a
//! backslash, so that it can be pasted as it is.

use super::{
    AGAIN, LOGIN, Report, about, again, closing, heading, logins, occasion, opening, sized,
};
use crate::judge::{Diagnosis, Finding, GoalFrom, Part, Step};
use crate::units::rate;

const WIDTH: usize = 80;
/// Columns before a finding's lines, and of their names.
const INDENT: usize = 5;
const NAMES: usize = 9;
/// Findings of a direction that are told in full.
const FULL: usize = 3;

/// The whole report, without a line's end behind it.
pub fn text(report: &Report) -> String {
    let mut lines = Vec::new();
    for (session, diagnosis) in report.pairs() {
        lines.push(heading(session));
        lines.extend(wrapped(&about(session), 2));
        lines.extend(wrapped(&sized(diagnosis), 2));
        let said = diagnosis.goal.from == GoalFrom::Said;
        for one in &diagnosis.parts {
            part(&mut lines, one, report, said);
        }
        notes(&mut lines, diagnosis);
        for (words, changes) in [(LOGIN, logins(diagnosis)), (AGAIN, again(diagnosis))] {
            if !changes.is_empty() {
                lines.push(String::new());
                lines.extend(wrapped(words, 2));
                lines.extend(changes.iter().flat_map(|change| command(&change.command, INDENT)));
            }
        }
        if diagnosis.is_certainly_healthy() {
            lines.push(String::new());
            lines.extend(wrapped("Nothing is wrong here.", 2));
        }
        lines.push(String::new());
    }
    for one in &report.facts.unread {
        lines.extend(wrapped(&format!("Not read: {}: {}", one.what, one.why), 0));
    }
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines.join("\n")
}

fn part(lines: &mut Vec<String>, part: &Part, report: &Report, said: bool) {
    lines.push(String::new());
    lines.extend(wrapped(&opening(part, &report.facts), 2));
    for (number, one) in (1..).zip(&part.findings) {
        if number > FULL {
            let more =
                format!("{number}. {} ({})", one.title, one.formula.as_deref().unwrap_or(""));
            lines.extend(wrapped(&more, 2));
        } else {
            finding(lines, &format!("{number}. "), one);
        }
    }
    lines.extend(closing(part, said).iter().flat_map(|text| wrapped(text, 2)));
}

fn notes(lines: &mut Vec<String>, diagnosis: &Diagnosis) {
    if diagnosis.notes.is_empty() {
        return;
    }
    lines.push(String::new());
    lines.push("  Besides:".to_owned());
    for one in &diagnosis.notes {
        finding(lines, " - ", one);
    }
}

fn finding(lines: &mut Vec<String>, mark: &str, one: &Finding) {
    for (at, line) in fold(&one.title, WIDTH - INDENT).into_iter().enumerate() {
        let mark = if at == 0 { mark } else { "" };
        lines.push(format!("  {mark:<3}{line}"));
    }
    if let Some(formula) = &one.formula {
        named(lines, "permits", formula);
    }
    for says in &one.evidence {
        named(lines, "seen", &format!("{} {}", says.name, says.value));
    }
    for change in one.changes.iter().filter(|change| change.step != Step::Login) {
        let label = if occasion(change).is_some() { "" } else { "change" };
        if let Some(occasion) = occasion(change) {
            named(lines, "change", &format!("({occasion})"));
        }
        let mut rows = command(&change.command, INDENT + NAMES);
        if let Some(first) = rows.first_mut() {
            *first = format!("{:INDENT$}{label:<NAMES$}{}", "", first.trim_start());
        }
        lines.extend(rows);
    }
    let then = one.then.as_ref().map(|what| format!(", then {what} is what limits"));
    if let Some(expected) = one.expected_bytes_per_s {
        named(lines, "expect", &format!("{}{}", rate(expected), then.unwrap_or_default()));
    } else if one.limit_bytes_per_s.is_some() && !one.changes.is_empty() {
        named(lines, "expect", "nothing yet by this alone, or nothing that a formula promises");
    }
}

/// A name and what belongs to it, in a column of its own.
fn named(lines: &mut Vec<String>, name: &str, text: &str) {
    let (indent, names) = (INDENT, NAMES);
    for (at, line) in fold(text, WIDTH - indent - names).into_iter().enumerate() {
        let name = if at == 0 { name } else { "" };
        lines.push(format!("{:indent$}{name:<names$}{line}", ""));
    }
}

fn wrapped(text: &str, indent: usize) -> Vec<String> {
    let fold = fold(text, WIDTH - indent);
    fold.into_iter().map(|line| format!("{:indent$}{line}", "")).collect()
}

/// Lines of whole words; one that is longer has a line of its own.
fn fold(text: &str, width: usize) -> Vec<String> {
    fill(text.split(' ').map(str::to_owned), width, "")
}

/// A command in lines that a shell takes for one.
fn command(text: &str, indent: usize) -> Vec<String> {
    let lines = fill(words(text).into_iter(), WIDTH - indent - 4, " \\");
    let mut lines = lines.into_iter().enumerate().map(|(at, line)| {
        let indent = if at == 0 { indent } else { indent + 2 };
        format!("{:indent$}{line}", "")
    });
    lines.by_ref().collect()
}

/// Split at blanks, but not within quotes.
fn words(text: &str) -> Vec<String> {
    let (mut found, mut quoted, mut escaped) = (vec![String::new()], false, false);
    for c in text.chars() {
        quoted ^= c == '\'' && !escaped;
        escaped = c == '\\' && !quoted && !escaped;
        match found.last_mut() {
            Some(word) if c != ' ' || quoted => word.push(c),
            _ => found.push(String::new()),
        }
    }
    found
}

fn fill(words: impl Iterator<Item = String>, width: usize, joint: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            last => {
                if let Some(line) = last {
                    line.push_str(joint);
                }
                lines.push(word);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_is_still_one_for_a_shell() {
        let name = "iqn.2003-01.org.linux-iscsi.filer.x8664:sn.0123456789ab";
        let long =
            format!("iscsiadm -m node -T {name} -p 192.0.2.10:3260 -o update -n 'a  b [0]' -v 1");
        let lines = command(&long, 14);
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= WIDTH), "{lines:?}");
        let pasted = lines.join("\n").replace("\\\n", "");
        let words = |text: &str| {
            text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(&pasted), words(&long));
        assert!(pasted.contains("'a  b [0]'"), "{pasted}");
        assert_eq!(super::words(r"-T 'it'\''s b' c"), ["-T", r"'it'\''s b'", "c"]);
    }

    #[test]
    fn words_are_folded_and_none_is_lost() {
        assert_eq!(fold("a bc def", 4), ["a bc", "def"]);
        assert_eq!(fold("abcdefgh i", 4), ["abcdefgh", "i"]);
        assert_eq!(fold("", 4), [""]);
    }
}
