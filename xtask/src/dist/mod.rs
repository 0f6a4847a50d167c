//! `cargo xtask dist`: what people install. A tarball with a stripped binary, its symbols apart, a
//! Debian package, checksums, and a list of what is inside (SBOM) where the tool for it is
//! installed.
//!
//! Everything is made from one binary by the system's own tools (binutils, tar, dpkg-deb), and
//! comes out the same byte by byte when it is made again: names are sorted, nobody owns anything,
//! and the time is that of SOURCE_DATE_EPOCH, else of the last commit. Which file goes where is
//! decided in `scripts/install` alone.

mod debian;
mod steps;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use self::steps::{Tree, call, output};

const USAGE: &str = "usage: cargo xtask dist [--binary PATH] [--out DIR]\n\
    --binary  a binary that is built already [default: target/release/enkaku is built]\n\
    --out     where the files go [default: target/dist]";

/// What is packaged, and with which time.
pub(crate) struct Dist<'a> {
    root: &'a Path,
    out: PathBuf,
    version: String,
    /// As Debian calls it, and as the target's triple begins.
    architecture: (&'static str, &'static str),
    epoch: u64,
}

/// Makes the packages; returns their names.
pub(crate) fn run(root: &Path, arguments: impl Iterator<Item = String>) -> Result<Vec<String>> {
    let (binary, out) = options(arguments)?;
    let binary = match binary {
        Some(binary) => binary,
        None => {
            call(root, "cargo", ["build", "--release", "--locked", "--package", "enkaku"])?;
            root.join("target/release/enkaku")
        }
    };
    let out = out.unwrap_or_else(|| root.join("target/dist"));
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    let dist = Dist {
        root,
        out: out.canonicalize()?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        architecture: architecture()?,
        epoch: epoch(root)?,
    };
    let work = dist.out.join("work");
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| work.display().to_string())?;
    }
    fs::create_dir_all(&work)?;
    let mut made = Vec::new();
    let stripped = dist.strip(&binary, &work, &mut made)?;
    made.push(dist.tarball(&stripped, &work)?);
    made.push(dist.debian(&stripped, &work)?);
    made.extend(dist.bill_of_materials()?);
    dist.sums(&mut made)?;
    fs::remove_dir_all(&work)?;
    Ok(made)
}

fn options(
    mut arguments: impl Iterator<Item = String>,
) -> Result<(Option<PathBuf>, Option<PathBuf>)> {
    let (mut binary, mut out) = (None, None);
    while let Some(name) = arguments.next() {
        let place = match name.as_str() {
            "--binary" => &mut binary,
            "--out" => &mut out,
            _ => bail!("{name} is not known\n{USAGE}"),
        };
        let value = arguments.next().with_context(|| format!("{name} needs a value\n{USAGE}"))?;
        *place = Some(std::path::absolute(value)?);
    }
    if let Some(path) = binary.as_ref().filter(|path: &&PathBuf| !path.is_file()) {
        bail!("--binary {}: there is no such file", path.display());
    }
    Ok((binary, out))
}

fn architecture() -> Result<(&'static str, &'static str)> {
    match std::env::consts::ARCH {
        "x86_64" => Ok(("amd64", "x86_64")),
        "aarch64" => Ok(("arm64", "aarch64")),
        "riscv64" => Ok(("riscv64", "riscv64gc")),
        other => bail!("{other}: packages are made for x86_64, aarch64 and riscv64"),
    }
}

/// The time that everything has.
fn epoch(root: &Path) -> Result<u64> {
    let named = std::env::var("SOURCE_DATE_EPOCH").ok().filter(|text| !text.is_empty());
    let text = match named {
        Some(text) => text,
        None => output(root, "git", ["show", "-s", "--format=%ct", "HEAD"])
            .context("the time of the packages: set SOURCE_DATE_EPOCH where there is no git")?,
    };
    text.trim().parse().with_context(|| format!("SOURCE_DATE_EPOCH {text:?}: seconds since 1970"))
}

impl Dist<'_> {
    /// `enkaku-0.1.0-x86_64-linux`.
    fn stem(&self) -> String {
        format!("enkaku-{}-{}-linux", self.version, self.architecture.1)
    }

    /// A file that was made.
    fn file(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }

    /// The binary without its symbols, which become a file of their own that debuggers find by the
    /// name in the binary.
    fn strip(&self, binary: &Path, work: &Path, made: &mut Vec<String>) -> Result<PathBuf> {
        let folder = work.join("bin");
        fs::create_dir_all(&folder)?;
        let (stripped, symbols) = (folder.join("enkaku"), folder.join("enkaku.debug"));
        let path = |path: &Path| path.as_os_str().to_owned();
        let keep: [OsString; 3] = ["--only-keep-debug".into(), path(binary), path(&symbols)];
        call(&folder, "objcopy", keep)?;
        let strip: [OsString; 5] = [
            "--strip-all".into(),
            "--remove-section=.comment".into(),
            "--add-gnu-debuglink=enkaku.debug".into(),
            path(binary),
            path(&stripped),
        ];
        call(&folder, "objcopy", strip)?;
        let tree = Tree::new(work.join("symbols").join(format!("{}-symbols", self.stem())))?;
        tree.add(&symbols, "enkaku.debug", 0o644)?;
        let name = format!("{}-symbols.tar.gz", self.stem());
        tree.pack(&self.file(&name), self.epoch)?;
        made.push(name);
        Ok(stripped)
    }

    /// What `make install` installs, to be unpacked into /usr/local.
    fn tarball(&self, binary: &Path, work: &Path) -> Result<String> {
        let top = work.join("tarball");
        self.install(binary, "/usr/local", &top, None)?;
        let named = work.join(self.stem());
        fs::rename(top.join("usr/local"), &named)?;
        let name = format!("{}.tar.gz", self.stem());
        Tree::of(named).pack(&self.file(&name), self.epoch)?;
        Ok(name)
    }

    /// As `make install` does it.
    fn install(&self, binary: &Path, prefix: &str, top: &Path, units: Option<&str>) -> Result<()> {
        let mut command = std::process::Command::new(self.root.join("scripts/install"));
        command.arg(prefix).arg(top).env("ENKAKU_BIN", binary);
        if let Some(units) = units {
            command.env("UNIT_DIR", units);
        }
        steps::done(&mut command).map(drop)
    }

    /// CycloneDX, of what is linked into the binary.
    fn bill_of_materials(&self) -> Result<Option<String>> {
        if output(self.root, "cargo", ["cyclonedx", "--version"]).is_err() {
            eprintln!(
                "dist: no SBOM: cargo-cyclonedx is not installed (cargo install cargo-cyclonedx)"
            );
            return Ok(None);
        }
        let name = format!("{}.cdx", self.stem());
        let words = ["cyclonedx", "--format", "json", "--override-filename", &name];
        let manifest = ["--manifest-path", "crates/enkaku/Cargo.toml", "--no-build-deps"];
        let mut command = std::process::Command::new("cargo");
        command.args(words).args(manifest).current_dir(self.root);
        // Serial number and time would be new ones each time.
        command.env("SOURCE_DATE_EPOCH", self.epoch.to_string());
        steps::done(&mut command)?;
        let name = format!("{name}.json");
        // The tool writes one beside each manifest of the workspace.
        let made = self.root.join("crates/enkaku").join(&name);
        fs::copy(&made, self.file(&name)).with_context(|| made.display().to_string())?;
        for folder in fs::read_dir(self.root.join("crates"))?.flatten() {
            let _none_there = fs::remove_file(folder.path().join(&name));
        }
        Ok(Some(name))
    }

    /// SHA256SUMS, as `sha256sum --check` takes it.
    fn sums(&self, made: &mut Vec<String>) -> Result<()> {
        made.sort();
        let sums = output(&self.out, "sha256sum", made.iter())?;
        fs::write(self.file("SHA256SUMS"), sums)?;
        made.push("SHA256SUMS".to_owned());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_said() {
        let asked = |words: &str| {
            let words = words.split(' ').map(ToOwned::to_owned).collect::<Vec<_>>();
            options(words.into_iter()).map_err(|error| error.to_string())
        };
        assert!(asked("--binary").is_err_and(|error| error.contains("needs a value")));
        assert!(asked("--fast x").is_err_and(|error| error.contains("--fast is not known")));
        assert!(asked("--binary /nowhere/x").is_err_and(|error| error.contains("no such file")));
        assert_eq!(asked("--out /tmp/x"), Ok((None, Some("/tmp/x".into()))));
    }
}
