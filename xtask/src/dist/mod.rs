//! `cargo xtask dist`: what people install. A tarball with a stripped binary, its symbols apart, a
//! Debian package, a container image, a list of what is inside (SBOM), and checksums.
//!
//! Everything is made from one binary by the system's own tools (binutils, tar, dpkg-deb), and
//! comes out the same byte by byte when it is made again: names are sorted, nobody owns anything,
//! and the time is that of SOURCE_DATE_EPOCH, else of the last commit. Which file goes where is
//! decided in `scripts/install` alone. That the binary is the same again, too, is what `compare`
//! finds out.

mod compare;
mod debian;
mod image;
mod linked;
mod release;
mod steps;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use self::linked::{Build, Linked};
use self::release::Origin;
use self::steps::{Tree, call, output};

const USAGE: &str = "usage: cargo xtask dist [--binary PATH | --compare] [--out DIR]\n\
    --binary   a binary of these sources that is built already [default: it is built]\n\
    --compare  the last commit is built twice, in two folders, and everything has to be the same\n\
    --out      where the files go [default: target/dist]";

/// What is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    binary: Option<PathBuf>,
    out: Option<PathBuf>,
    is_compared: bool,
}

/// What is packaged, and with which time.
struct Dist<'a> {
    root: &'a Path,
    out: PathBuf,
    version: String,
    /// As Debian calls it, and as the target's triple begins.
    architecture: (&'static str, &'static str),
    epoch: u64,
}

/// Makes the packages; returns their names.
pub(crate) fn run(root: &Path, arguments: impl Iterator<Item = String>) -> Result<Vec<String>> {
    let options = Options::read(arguments)?;
    let origin = Origin::of(root)?;
    let out = options.out.unwrap_or_else(|| root.join("target/dist"));
    if options.is_compared {
        return compare::made_twice(root, &out, &origin);
    }
    let binary = match options.binary {
        Some(binary) => binary,
        None => release::build(root, &origin)?,
    };
    make(root, &binary, &out, &origin)
}

/// Makes them of a binary.
fn make(root: &Path, binary: &Path, out: &Path, origin: &Origin) -> Result<Vec<String>> {
    fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let dist = Dist {
        root,
        out: out.canonicalize()?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        architecture: architecture()?,
        epoch: origin.epoch,
    };
    let work = dist.out.join("work");
    steps::emptied(&work)?;
    let linked = Linked::of(root, &dist.triple())?;
    let mut made = Vec::new();
    let stripped = dist.strip(binary, &linked, &work, &mut made)?;
    made.push(dist.tarball(&stripped, &work)?);
    made.push(dist.debian(&stripped, &work)?);
    let at = dist.at()?;
    made.push(dist.image(&stripped, &at, &work)?);
    made.push(dist.bill_of_materials(binary, &stripped, &linked, &at)?);
    dist.sums(&mut made)?;
    fs::remove_dir_all(&work)?;
    Ok(made)
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self::default();
        while let Some(name) = arguments.next() {
            let place = match name.as_str() {
                "--binary" => &mut options.binary,
                "--out" => &mut options.out,
                "--compare" => {
                    options.is_compared = true;
                    continue;
                }
                _ => bail!("{name} is not known\n{USAGE}"),
            };
            let value = arguments.next();
            let value = value.with_context(|| format!("{name} needs a value\n{USAGE}"))?;
            *place = Some(std::path::absolute(value)?);
        }
        if let Some(path) = options.binary.as_ref().filter(|path| !path.is_file()) {
            bail!("--binary {}: there is no such file", path.display());
        }
        if options.is_compared && options.binary.is_some() {
            bail!("--compare builds the binary itself, so --binary is not allowed beside it");
        }
        Ok(options)
    }
}

fn architecture() -> Result<(&'static str, &'static str)> {
    match std::env::consts::ARCH {
        "x86_64" => Ok(("amd64", "x86_64")),
        "aarch64" => Ok(("arm64", "aarch64")),
        "riscv64" => Ok(("riscv64", "riscv64gc")),
        other => bail!("{other}: packages are made for x86_64, aarch64 and riscv64"),
    }
}

impl Dist<'_> {
    /// `enkaku-0.2.0-x86_64-linux`.
    fn stem(&self) -> String {
        format!("enkaku-{}-{}-linux", self.version, self.architecture.1)
    }

    /// `x86_64-unknown-linux-gnu`.
    fn triple(&self) -> String {
        format!("{}-unknown-linux-gnu", self.architecture.1)
    }

    /// A file that was made.
    fn file(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }

    /// The binary without its symbols, which become a file of their own that debuggers find by the
    /// name in the binary; and with the names of what is linked into it.
    fn strip(
        &self,
        binary: &Path,
        linked: &Linked,
        work: &Path,
        made: &mut Vec<String>,
    ) -> Result<PathBuf> {
        let folder = work.join("bin");
        fs::create_dir_all(&folder)?;
        let (stripped, symbols) = (folder.join("enkaku"), folder.join("enkaku.debug"));
        let path = |path: &Path| path.as_os_str().to_owned();
        let keep: [OsString; 3] = ["--only-keep-debug".into(), path(binary), path(&symbols)];
        call(&folder, "objcopy", keep)?;
        fs::write(folder.join("linked"), linked.section()?)?;
        let strip: [OsString; 7] = [
            "--strip-all".into(),
            "--remove-section=.comment".into(),
            // One that cargo-auditable has made.
            format!("--remove-section={}", linked::SECTION).into(),
            format!("--add-section={}=linked", linked::SECTION).into(),
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

    /// The time that everything has, in RFC 3339's form.
    fn at(&self) -> Result<String> {
        let epoch = format!("@{}", self.epoch);
        let at = output(self.root, "date", ["-u", "-d", &epoch, "+%FT%TZ"])?;
        Ok(at.trim().to_owned())
    }

    /// The list of what is linked into the binary.
    fn bill_of_materials(
        &self,
        binary: &Path,
        stripped: &Path,
        linked: &Linked,
        at: &str,
    ) -> Result<String> {
        let notes = [OsString::from("-p"), ".comment".into(), binary.into()];
        let notes = output(self.root, "readelf", notes)?;
        let rustc = notes.split_once("rustc version ").map(|(_, rest)| rest);
        let build = Build {
            at,
            binary_sha256: &steps::sha256(stripped)?,
            rustc: rustc.and_then(|rest| rest.split_whitespace().next()),
        };
        let name = format!("{}.cdx.json", self.stem());
        fs::write(self.file(&name), linked.bill(&build)?)?;
        Ok(name)
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
            Options::read(words.into_iter()).map_err(|error| error.to_string())
        };
        let failed = |words: &str, said: &str| {
            assert!(asked(words).is_err_and(|error| error.contains(said)), "{words}");
        };
        failed("--binary", "needs a value");
        failed("--fast x", "--fast is not known");
        failed("--binary /nowhere/x", "no such file");
        failed("--compare --binary Cargo.toml", "builds the binary itself");
        let options = |out: Option<&str>, is_compared| {
            Ok(Options { out: out.map(PathBuf::from), is_compared, ..Options::default() })
        };
        assert_eq!(asked("--out /tmp/x"), options(Some("/tmp/x"), false));
        assert_eq!(asked("--compare"), options(None, true));
    }
}
