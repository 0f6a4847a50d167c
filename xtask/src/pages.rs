//! The pages of docs/: each is reached by links from README.md, and links lead to files and
//! headings that are there. A page that nobody finds is a page that nobody mends.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

const START: &str = "README.md";
const FOLDER: &str = "docs";

/// The violations in the repository at `root`, one line each.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeSet::new();
    collect(root, Path::new(FOLDER), &mut pages)?;
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    let mut left = vec![PathBuf::from(START)];
    while let Some(page) = left.pop() {
        if !seen.insert(page.clone()) {
            continue;
        }
        let text = fs::read_to_string(root.join(&page)).with_context(|| shown(&page))?;
        for link in links(&text) {
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let to = if file.is_empty() { page.clone() } else { join(&page, file) };
            if !root.join(&to).exists() {
                found.push(format!("{}: the link to {link} leads nowhere", shown(&page)));
                continue;
            }
            if !is_page(&to) {
                continue;
            }
            let there = fs::read_to_string(root.join(&to)).with_context(|| shown(&to))?;
            if !place.is_empty() && !places(&there).contains(place) {
                found.push(format!("{}: {link}: no heading is called so", shown(&page)));
            }
            left.push(to);
        }
    }
    let lost = pages.difference(&seen);
    found.extend(lost.map(|page| {
        format!("{}: no link leads there; name it in {FOLDER}/README.md", shown(page))
    }));
    Ok(found)
}

fn shown(page: &Path) -> String {
    page.display().to_string()
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "md")
}

fn collect(root: &Path, folder: &Path, pages: &mut BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(root.join(folder)).with_context(|| shown(folder))? {
        let name = folder.join(entry?.file_name());
        if root.join(&name).is_dir() {
            collect(root, &name, pages)?;
        } else if is_page(&name) {
            pages.insert(name);
        }
    }
    Ok(())
}

/// The files and headings that a page links to. What stands in code is no link.
fn links(text: &str) -> Vec<&str> {
    let (mut links, mut in_code) = (Vec::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        links.extend(
            targets.filter(|to| !to.contains("://") && !to.contains(' ') && !to.is_empty()),
        );
    }
    links
}

/// What a link may name behind #: a page's headings, as GitHub and `make site` call them.
fn places(text: &str) -> BTreeSet<String> {
    let (mut places, mut in_code) = (BTreeSet::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let heading = line.trim_start_matches('#');
        if in_code || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let name = place(heading.trim());
        // The second heading of a name is name-1, the third name-2.
        let more = (1..).map(|nth| format!("{name}-{nth}"));
        let free = std::iter::once(name.clone()).chain(more).find(|name| !places.contains(name));
        places.extend(free);
    }
    places
}

fn place(heading: &str) -> String {
    let kept = |letter: char| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then_some(letter),
    };
    heading.to_lowercase().chars().filter_map(kept).collect()
}

/// A link of a page, from the root.
fn join(page: &Path, link: &str) -> PathBuf {
    let mut out = PathBuf::new();
    for part in page.parent().unwrap_or(Path::new("")).join(link).components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            Component::Normal(name) => out.push(name),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_found_from_the_readme() {
        let found = check(crate::root()).unwrap();
        assert!(found.is_empty(), "\n{}", found.join("\n"));
    }

    #[test]
    fn lost_pages_and_dead_links_are_found() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("README.md", "[all](docs/README.md) [web](https://example.org/x.md)\n");
        write("docs/README.md", "[a](a.md#part), ![picture](b.svg)\n```\n[no](c.md)\n```\n");
        write("docs/a.md", "[home](../README.md) [deep](d/e.md)\n```\n# part\n```\n");
        write(
            "docs/d/e.md",
            "[a](../a.md) [here](#this-es-part-2) [too](#same-1)\n\
             ## This: `E`'s part 2\n# Same\n# Same\n",
        );
        write("docs/lost.md", "[a](a.md)\n");
        assert_eq!(
            check(root.path()).unwrap(),
            [
                "docs/README.md: a.md#part: no heading is called so",
                "docs/README.md: the link to b.svg leads nowhere",
                "docs/lost.md: no link leads there; name it in docs/README.md",
            ]
        );
    }
}
