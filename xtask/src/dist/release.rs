//! The release build that is shipped. It has folders of its own below `target`, and comes out the
//! same wherever these, Cargo's and the compiler's are: the binary and its symbols know them by
//! other names (`--remap-path-prefix`, `-ffile-prefix-map`), and time and commit by
//! SOURCE_DATE_EPOCH and ENKAKU_COMMIT (crates/enkaku/build.rs).

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::linked::SHIPPED;
use super::steps::{output, shown};

/// What the folders are called in the binary: ours, Cargo's, and the compiler's.
const NAMES: [&str; 3] = ["/usr/src/enkaku", "/usr/src/cargo", "/usr/src/rust"];
/// What separates flags in CARGO_ENCODED_RUSTFLAGS, where they may have spaces.
const SEPARATOR: &str = "\u{1f}";

/// What is built, and when that was written.
pub(super) struct Origin {
    /// The time that everything has, in seconds since 1970.
    pub(super) epoch: u64,
    /// Unknown without git.
    pub(super) commit: Option<String>,
}

impl Origin {
    /// What the environment says, else the last commit.
    pub(super) fn of(root: &Path) -> Result<Self> {
        let epoch = match named("SOURCE_DATE_EPOCH") {
            Some(text) => text,
            None => output(root, "git", ["show", "-s", "--format=%ct", "HEAD"])
                .context("the time of the packages: set SOURCE_DATE_EPOCH where there is no git")?,
        };
        let is_bad = || format!("SOURCE_DATE_EPOCH {epoch:?}: seconds since 1970 are allowed");
        let commit = named("ENKAKU_COMMIT").or_else(|| {
            let commit = output(root, "git", ["rev-parse", "--short=12", "HEAD"]).ok();
            commit.map(|commit| commit.trim().to_owned())
        });
        Ok(Self { epoch: epoch.trim().parse().with_context(is_bad)?, commit })
    }
}

/// Builds it; returns the binary.
pub(super) fn build(root: &Path, origin: &Origin) -> Result<PathBuf> {
    let target = root.join("target/dist-build");
    let folders = folders(root)?;
    let mut command = Command::new("cargo");
    command.args(["build", "--release", "--locked", "--package", SHIPPED, "--target-dir"]);
    command.arg(&target).current_dir(root);
    command.env("SOURCE_DATE_EPOCH", origin.epoch.to_string());
    if let Some(commit) = &origin.commit {
        command.env("ENKAKU_COMMIT", commit);
    }
    command.env("CARGO_ENCODED_RUSTFLAGS", rust_flags(&folders)).env_remove("RUSTFLAGS");
    command.env("CFLAGS", c_flags(&folders));
    shown(&mut command)?;
    Ok(target.join("release").join(SHIPPED))
}

/// The folders that are called otherwise, in the order of their names.
fn folders(root: &Path) -> Result<[PathBuf; 3]> {
    let home = || env::home_dir().map(|home| home.join(".cargo"));
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home);
    let cargo = cargo.context("where Cargo's folder is: CARGO_HOME or HOME says it")?;
    let compiler = output(root, "rustc", ["--print", "sysroot"])?;
    Ok([root.to_owned(), cargo, compiler.trim().into()])
}

/// Flags of whoever builds this, and ours.
fn rust_flags(folders: &[PathBuf]) -> String {
    let own = named("CARGO_ENCODED_RUSTFLAGS").or_else(|| {
        let flags = named("RUSTFLAGS")?;
        Some(flags.split_whitespace().collect::<Vec<_>>().join(SEPARATOR))
    });
    let ours = called("--remap-path-prefix=", folders);
    own.into_iter().chain(ours).collect::<Vec<_>>().join(SEPARATOR)
}

/// For the C of our dependencies.
fn c_flags(folders: &[PathBuf]) -> String {
    let ours = called("-ffile-prefix-map=", folders);
    named("CFLAGS").into_iter().chain(ours).collect::<Vec<_>>().join(" ")
}

fn called(flag: &str, folders: &[PathBuf]) -> impl Iterator<Item = String> {
    folders
        .iter()
        .zip(NAMES)
        .map(move |(folder, name)| format!("{flag}{}={name}", folder.display()))
}

fn named(variable: impl AsRef<OsStr>) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_have_other_names() {
        let folders = ["/a/b c".into(), "/d".into(), "/e".into()];
        let flags = rust_flags(&folders);
        let ours: Vec<_> = flags.rsplit(SEPARATOR).take(3).collect();
        assert_eq!(ours[2], "--remap-path-prefix=/a/b c=/usr/src/enkaku");
        assert!(c_flags(&folders).ends_with("-ffile-prefix-map=/e=/usr/src/rust"));
    }

    #[test]
    fn this_repository_has_a_time() {
        let origin = Origin::of(crate::root()).unwrap();
        assert!(origin.epoch > 1_700_000_000);
    }
}
