//! What `enkaku --version` tells of the build: commit, date and target. A build from the same
//! commit says the same, whenever and wherever it is made: the date is SOURCE_DATE_EPOCH, else the
//! commit's, never the clock's. No git is needed: ENKAKU_COMMIT can say it, and without either it
//! is unknown. A development build does not ask git, since it would be linked anew after each
//! commit.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    for name in ["ENKAKU_COMMIT", "SOURCE_DATE_EPOCH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    let named = |name| env::var(name).ok().filter(|value: &String| !value.is_empty());
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let from_git = if is_release { Repository::find() } else { None };
    let commit = named("ENKAKU_COMMIT").or_else(|| from_git.as_ref().map(|it| it.commit.clone()));
    let epoch = named("SOURCE_DATE_EPOCH").or_else(|| from_git.map(|it| it.epoch));
    let date = epoch.and_then(|epoch| epoch.trim().parse().ok()).and_then(date);
    let unknown = if is_release { "unknown" } else { "development build" };
    println!("cargo::rustc-env=ENKAKU_COMMIT={}", commit.as_deref().unwrap_or(unknown));
    println!("cargo::rustc-env=ENKAKU_DATE={}", date.as_deref().unwrap_or("unknown"));
    println!("cargo::rustc-env=ENKAKU_TARGET={}", env::var("TARGET").unwrap_or_default());
}

/// What git knows of the sources.
struct Repository {
    commit: String,
    /// When the commit was made, in seconds since 1970.
    epoch: String,
}

impl Repository {
    /// The repository whose root is the workspace's; one around it is somebody else's.
    fn find() -> Option<Self> {
        let root = Path::new("../..").canonicalize().ok()?;
        if Path::new(&git(&["rev-parse", "--show-toplevel"])?).canonicalize().ok()? != root {
            return None;
        }
        // Every commit and checkout writes there.
        for name in ["HEAD", "logs/HEAD"] {
            let file = git(&["rev-parse", "--git-path", name])?;
            if Path::new(&file).exists() {
                println!("cargo::rerun-if-changed={file}");
            }
        }
        let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
        Some(Self { commit, epoch: git(&["show", "-s", "--format=%ct", "HEAD"])? })
    }
}

fn git(words: &[&str]) -> Option<String> {
    output("git", words)
}

fn output(program: &str, words: &[&str]) -> Option<String> {
    let done =
        Command::new(program).args(words).output().ok().filter(|done| done.status.success())?;
    Some(String::from_utf8(done.stdout).ok()?.trim().to_owned())
}

/// The day in UTC; unknown where there is no `date` of coreutils or busybox.
fn date(epoch_s: i64) -> Option<String> {
    output("date", &["-u", "-d", &format!("@{epoch_s}"), "+%Y-%m-%d"])
}
