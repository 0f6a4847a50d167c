//! `cargo xtask dist --compare`: whether two builds of the last commit are the same, byte by byte.
//! Each begins with nothing but the files of the commit, in a folder of another name and length.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::release::{self, Origin};
use super::steps::{call, emptied};

/// The folders of the two builds.
const FOLDERS: [&str; 2] = ["a", "the-second-one"];

/// Builds and packages it twice. If both are the same they are what was asked for; returns their
/// names.
pub(super) fn made_twice(root: &Path, out: &Path, origin: &Origin) -> Result<Vec<String>> {
    let work = root.join("target/dist-compare");
    emptied(&work)?;
    let sources = work.join("sources.tar");
    let words = ["archive".as_ref(), "--output".as_ref(), sources.as_os_str(), "HEAD".as_ref()];
    call(root, "git", words).context("what is compared are builds of a commit")?;
    let mut made = Vec::new();
    for name in FOLDERS {
        let begin = Instant::now();
        let folder = work.join("build").join(name);
        emptied(&folder)?;
        call(&folder, "tar", ["-xf".as_ref(), sources.as_os_str()])?;
        let binary = release::build(&folder, origin)?;
        let built_s = begin.elapsed().as_secs();
        made = super::make(&folder, &binary, &work.join(name), origin)?;
        let all_s = begin.elapsed().as_secs();
        eprintln!("dist: {name}: built in {built_s} s, with its packages {all_s} s");
        fs::remove_dir_all(&folder)?;
    }
    let [first, second] = FOLDERS.map(|name| work.join(name));
    let differ = differences(&first, &second)?;
    if !differ.is_empty() {
        let (names, work) = (differ.join(", "), work.display());
        bail!("two builds of one commit differ in {names}; what each has made is in {work}");
    }
    fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    for name in &made {
        fs::copy(first.join(name), out.join(name)).with_context(|| name.clone())?;
    }
    fs::remove_dir_all(&work)?;
    eprintln!("dist: {} files, the same twice, byte by byte", made.len());
    Ok(made)
}

/// Names of the files that only one of two folders has, or that are not the same in both.
fn differences(first: &Path, second: &Path) -> Result<Vec<String>> {
    let mut names = BTreeSet::new();
    for folder in [first, second] {
        let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        for entry in entries {
            names.insert(entry?.file_name().display().to_string());
        }
    }
    let is_same = |name: &String| {
        let content = [first, second].map(|folder| fs::read(folder.join(name)));
        matches!(content, [Ok(one), Ok(other)] if one == other)
    };
    Ok(names.into_iter().filter(|name| !is_same(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        for (name, one, other) in [("same", "x", "x"), ("changed", "x", "y"), ("lost", "x", "")] {
            for (folder, text) in [(&first, one), (&second, other)] {
                fs::create_dir_all(folder).unwrap();
                if !text.is_empty() {
                    fs::write(folder.join(name), text).unwrap();
                }
            }
        }
        assert_eq!(differences(&first, &second).unwrap(), ["changed", "lost"]);
        assert_eq!(differences(&first, &first).unwrap(), Vec::<String>::new());
    }
}
