//! The shape of the files: a header that says what the file is, limits on length, no paths of
//! somebody's machine; documents that name only what exists. What rustfmt and clippy check is left
//! to them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Lines of a Rust file without its tests: what one reading holds.
const FILE_LINES_MAX: usize = 500;
/// Lines of a function outside tests: about one screen.
const FUNCTION_LINES_MAX: usize = 70;
/// Columns of a comment, as of rustfmt's code, which leaves comments alone.
const COMMENT_COLUMNS_MAX: usize = 100;
/// Folders with source that is ours.
const SOURCE_FOLDERS: &[&str] = &["crates", "sim", "xtask", "fuzz", "lab", "tests"];
/// Documents whose links and names of files are checked.
const DOCUMENTS: &[&str] =
    &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "PROTOCOL.md", "CHANGELOG.md"];
/// Written in two pieces so that this file does not contain them.
const FOREIGN_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/")];

/// The violations in the repository at `root`, one line each.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for folder in SOURCE_FOLDERS.iter().map(|folder| root.join(folder)).filter(|f| f.is_dir()) {
        collect(&folder, &mut files)?;
    }
    files.sort();
    let mut violations = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        violations.extend(violations_in(&name, &text));
    }
    violations.extend(dead_links(root)?);
    Ok(violations)
}

/// Links of the documents at the root to files that do not exist, and names of code files that
/// exist nowhere: documents go stale silently.
fn dead_links(root: &Path) -> Result<Vec<String>> {
    let mut sources = Vec::new();
    for folder in SOURCE_FOLDERS.iter().map(|folder| root.join(folder)).filter(|f| f.is_dir()) {
        collect(&folder, &mut sources)?;
    }
    let mut dead = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(root.join(document)).context(*document)?;
        // What follows # is a place in the file, or in this one.
        let file = |link: &str| link.split('#').next().unwrap_or_default().to_owned();
        let link_is_dead = |link: &&str| !link.contains("://") && !root.join(file(link)).exists();
        let links = between(&text, "](", ")").filter(link_is_dead);
        let name_is_dead = |name: &&str| {
            let is_code = name.ends_with(".rs") || name.ends_with(".py");
            is_code && !name.contains(' ') && !sources.iter().any(|path| path.ends_with(name))
        };
        let names = between(&text, "`", "`").filter(name_is_dead);
        dead.extend(links.chain(names).map(|what| format!("{document}: {what} does not exist")));
    }
    Ok(dead)
}

/// The parts of a text between an opening and a closing mark.
fn between<'a>(
    text: &'a str,
    open: &'static str,
    close: &'static str,
) -> impl Iterator<Item = &'a str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, behind) = rest.split_once(open)?;
        let (inside, behind) = behind.split_once(close)?;
        rest = behind;
        Some(inside)
    })
}

pub(crate) fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() {
            // Cargo marks its own folders; `target` alone is also the name of a module.
            if !path.join("CACHEDIR.TAG").exists() && !name.starts_with('.') {
                collect(&path, files)?;
            }
        } else if name.ends_with(".rs") || name.ends_with(".py") {
            files.push(path);
        }
    }
    Ok(())
}

fn violations_in(name: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for path in FOREIGN_PATHS.iter().filter(|path| line.contains(**path)) {
            found.push(format!("{name}:{number}: {path} is a path of somebody's machine"));
        }
    }
    if name.ends_with(".py") {
        if !text.trim().is_empty() && !text.starts_with("\"\"\"") {
            found.push(format!("{name}: does not open with a docstring saying what it is"));
        }
        return found;
    }
    if !text.starts_with("//!") {
        found.push(format!("{name}: does not open with `//!` saying what it is"));
    }
    found.extend(wide_comments(text).into_iter().map(|(number, columns)| {
        format!("{name}:{number}: comment of {columns} columns, at most {COMMENT_COLUMNS_MAX}")
    }));
    let code = without_tests(text);
    let lines = count_lines(code.lines());
    if lines > FILE_LINES_MAX && !is_test_file(name) {
        found.push(format!("{name}: {lines} lines without tests, at most {FILE_LINES_MAX}"));
    }
    if !is_test_file(name) {
        found.extend(long_functions(code).into_iter().map(|(number, lines)| {
            format!("{name}:{number}: function of {lines} lines, at most {FUNCTION_LINES_MAX}")
        }));
    }
    found
}

/// Lines somebody has to read to understand the code; what is quoted from an RFC is not of them.
fn count_lines<'a>(lines: impl Iterator<Item = &'a str>) -> usize {
    let is_citation = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("//=") || line.starts_with("//#")
    };
    lines.filter(|line| !is_citation(line)).count()
}

/// Line number and columns of comments above the limit; but rows of tables and lines of one word,
/// which cannot be broken, and quotations.
fn wide_comments(text: &str) -> Vec<(usize, usize)> {
    let is_free = |line: &str| {
        let words = line.trim_start().trim_start_matches(['/', '!']);
        words.starts_with(['#', '='])
            || words.trim_start().starts_with('|')
            || words.split_whitespace().count() < 2
    };
    let comments = (1..).zip(text.lines()).filter(|(_, line)| line.trim_start().starts_with("//"));
    let columns =
        comments.filter(|(_, line)| !is_free(line)).map(|(at, line)| (at, line.chars().count()));
    columns.filter(|(_, columns)| *columns > COMMENT_COLUMNS_MAX).collect()
}

/// A file that holds nothing but tests.
pub(crate) fn is_test_file(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("tests.rs") || name.ends_with("_test.rs")
}

/// Tests stand last in a file, so everything from `#[cfg(test)]` before `mod … {` on is tests.
pub(crate) fn without_tests(text: &str) -> &str {
    const MARK: &str = "\n#[cfg(test)]\nmod ";
    let is_inline = |at: &usize| {
        let line = text[at + MARK.len()..].lines().next();
        line.is_some_and(|line| line.ends_with('{'))
    };
    let end = text.match_indices(MARK).map(|(at, _)| at).find(is_inline);
    end.map_or(text, |end| &text[..end])
}

/// Line number and length of functions above the limit. Relies on rustfmt: a function ends at the
/// first `}` with the indentation of its `fn`.
fn long_functions(code: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = code.lines().collect();
    let mut long = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let body = line.trim_start();
        let indent = line.len() - body.len();
        if !is_function_start(body) {
            continue;
        }
        let end_line = format!("{:indent$}}}", "");
        if let Some(end) = lines[start..].iter().position(|line| *line == end_line) {
            let length = count_lines(lines[start..=start + end].iter().copied());
            if length > FUNCTION_LINES_MAX {
                long.push((start + 1, length));
            }
        }
    }
    long
}

fn is_function_start(line: &str) -> bool {
    let qualifiers = ["pub ", "pub(crate) ", "pub(super) ", "const ", "async ", "unsafe "];
    let mut rest = line;
    while let Some(shorter) = qualifiers.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = shorter;
    }
    rest.starts_with("fn ") && !line.ends_with('}') && !line.ends_with(';')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_is_tidy() {
        let violations = check(crate::root()).unwrap();
        assert!(violations.is_empty(), "\n{}", violations.join("\n"));
    }

    #[test]
    fn header_length_and_foreign_path_are_found() {
        let long = format!("fn f() {{\n{}}}\n", "    g();\n".repeat(FILE_LINES_MAX));
        let path = concat!("// see /ho", "me/me\n");
        let found = violations_in("a.rs", &(long + path)).join("\n");
        assert!(found.contains("does not open with `//!`"), "{found}");
        assert!(found.contains("503 lines without tests"), "{found}");
        assert!(found.contains("a.rs:1: function of 502 lines"), "{found}");
        assert!(found.contains("a.rs:503: "), "{found}");
    }

    #[test]
    fn wide_comments_are_found_and_what_cannot_be_broken_is_free() {
        let wide = "word ".repeat(20);
        let text =
            format!("//! A.\n/// {wide}\n//! | {wide}|\n//# {wide}\n//! {}\n", "x".repeat(120));
        assert_eq!(wide_comments(&text), [(2, 104)]);
    }

    #[test]
    fn tests_do_not_count() {
        let tests = format!("\n#[cfg(test)]\nmod tests {{\n{}}}\n", "    // t\n".repeat(600));
        assert_eq!(violations_in("a.rs", &format!("//! A.\n{tests}")), Vec::<String>::new());
    }
}
