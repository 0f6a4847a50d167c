//! What is linked into the binary, told twice: as a list beside it (SBOM, CycloneDX 1.6,
//! <https://cyclonedx.org/docs/1.6/json/>), and in the binary itself, in the section that
//! `cargo audit bin` and scanners read (<https://github.com/rust-secure-code/cargo-auditable>,
//! PARSING.md).
//!
//! Cargo says what it is: `cargo tree` for this package, target and features alone, so that neither
//! procedural macros, tests nor what only other packages of the workspace use are in it; Cargo.lock
//! has the checksums. Made here rather than by cargo-cyclonedx and cargo-auditable: nothing has to
//! be installed, a binary that is there already can be described, and no path of the machine is in
//! what comes out, which is the same each time.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use auditable_serde::{DependencyKind, Package, Source, VersionInfo};
use serde::Deserialize;
use serde_json::{Value, json};

use super::steps::output;

/// The package whose binary is shipped.
pub(super) const SHIPPED: &str = "enkaku";
/// Section of the binary with its packages.
pub(super) const SECTION: &str = ".dep-v0";
/// Procedural macros are not among what is told as linked.
const SECTION_FORMAT: u32 = 1;
/// Of deflate; of speed against size the latter counts, for some kilobytes.
const COMPRESSION: u8 = 9;
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The packages in the binary, the one that is shipped first.
#[derive(Debug)]
pub(super) struct Linked(Vec<Crate>);

/// One of them.
#[derive(Debug)]
struct Crate {
    package: Package,
    licence: String,
    /// SHA-256 of the .crate file, of those from a registry.
    checksum: Option<String>,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    source: Option<String>,
    checksum: Option<String>,
}

/// What a list says besides its packages.
pub(super) struct Build<'a> {
    /// In RFC 3339's form.
    pub(super) at: &'a str,
    pub(super) binary_sha256: &'a str,
    /// As the compiler has left it in the binary.
    pub(super) rustc: Option<&'a str>,
}

impl Linked {
    /// Asks Cargo.
    pub(super) fn of(root: &Path, triple: &str) -> Result<Self> {
        let what = ["tree", "--locked", "--package", SHIPPED, "--target", triple];
        let how =
            ["--edges", "normal,no-proc-macro", "--prefix", "depth", "--format", "\t{p}\t{l}"];
        let tree = output(root, "cargo", what.iter().chain(&how))?;
        let lock = fs::read_to_string(root.join("Cargo.lock")).context("Cargo.lock")?;
        Self::read(&tree, &lock)
    }

    /// Of what `cargo tree` has printed, and of Cargo.lock.
    fn read(tree: &str, lock: &str) -> Result<Self> {
        let lock: Lock = toml::from_str(lock).context("Cargo.lock")?;
        let locked: BTreeMap<_, _> =
            lock.package.iter().map(|it| ((&*it.name, &*it.version), it)).collect();
        let mut crates: Vec<Crate> = Vec::new();
        let mut places = BTreeMap::new();
        // Those on the way from the root to the line at hand.
        let mut above: Vec<usize> = Vec::new();
        for line in tree.lines() {
            let unknown = || format!("cargo tree: {line:?} is no package of Cargo.lock");
            let (depth, key, licence) = fields(line).with_context(unknown)?;
            let at = match places.get(&key) {
                Some(at) => *at,
                None => {
                    let known = locked.get(&key).with_context(unknown)?;
                    crates.push(Crate::new(known, licence, depth == 0)?);
                    *places.entry(key).or_insert(crates.len() - 1)
                }
            };
            above.truncate(depth);
            if let Some(user) = above.last().and_then(|user| crates.get_mut(*user))
                && !user.package.dependencies.contains(&at)
            {
                user.package.dependencies.push(at);
            }
            above.push(at);
        }
        for one in &mut crates {
            one.package.dependencies.sort_unstable();
        }
        crates.first().context("cargo tree printed nothing")?;
        Ok(Self(crates))
    }

    /// The content of the section.
    pub(super) fn section(&self) -> Result<Vec<u8>> {
        let packages = self.0.iter().map(|one| one.package.clone()).collect();
        let text = serde_json::to_vec(&VersionInfo { packages, format: SECTION_FORMAT })?;
        Ok(miniz_oxide::deflate::compress_to_vec_zlib(&text, COMPRESSION))
    }

    /// The list. A serial number would be another one each time; the format does without.
    pub(super) fn bill(&self, build: &Build<'_>) -> Result<String> {
        let (shipped, others) = self.0.split_first().context("no package")?;
        let mut product = shipped.component("application");
        product["hashes"] = sha256(build.binary_sha256);
        let compiler = build
            .rustc
            .map(|version| json!({"type": "application", "name": "rustc", "version": version}));
        let depends = |one: &Crate| {
            let on = one.package.dependencies.iter().filter_map(|at| self.0.get(*at));
            json!({"ref": one.name(), "dependsOn": on.map(Crate::name).collect::<Vec<_>>()})
        };
        let bill = json!({
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {
                "timestamp": build.at,
                "lifecycles": [{"phase": "build"}],
                "tools": {"components": compiler.into_iter().collect::<Vec<_>>()},
                "component": product,
            },
            "components": others.iter().map(|one| one.component("library")).collect::<Vec<_>>(),
            "dependencies": self.0.iter().map(depends).collect::<Vec<_>>(),
        });
        Ok(serde_json::to_string_pretty(&bill)? + "\n")
    }
}

impl Crate {
    fn new(locked: &Locked, licence: &str, is_shipped: bool) -> Result<Self> {
        let version = locked.version.parse().with_context(|| locked.version.clone())?;
        let source = match locked.source.as_deref() {
            None => Source::Local,
            Some(CRATES_IO) => Source::CratesIo,
            Some(other) if other.starts_with("git+") => Source::Git,
            Some(_) => Source::Registry,
        };
        let package = Package {
            name: locked.name.clone(),
            version,
            source,
            kind: DependencyKind::Runtime,
            dependencies: Vec::new(),
            root: is_shipped,
        };
        // Older packages have a slash where SPDX has the word.
        let licence = licence.replace('/', " OR ").replace("  OR  ", " OR ");
        Ok(Self { package, licence, checksum: locked.checksum.clone() })
    }

    /// What the list calls it: its package URL, if that is where it came from. Our own crates have
    /// none: they are those of this commit, whatever a registry has under such a name.
    fn name(&self) -> String {
        let Package { name, version, source, .. } = &self.package;
        match source {
            Source::CratesIo => format!("pkg:cargo/{name}@{version}"),
            _ => format!("{name}@{version}"),
        }
    }

    fn component(&self, kind: &str) -> Value {
        let mut component = json!({
            "type": kind,
            "bom-ref": self.name(),
            "name": self.package.name,
            "version": self.package.version.to_string(),
        });
        if self.package.source == Source::CratesIo {
            component["purl"] = self.name().into();
        }
        if !self.licence.is_empty() {
            component["licenses"] = json!([{"expression": self.licence}]);
        }
        if let Some(checksum) = &self.checksum {
            component["hashes"] = sha256(checksum);
        }
        component
    }
}

fn sha256(digest: &str) -> Value {
    json!([{"alg": "SHA-256", "content": digest}])
}

/// Depth, name with version, and licence of a line such as `1\tbytes v1.12.0 (*)\tMIT`; of ours the
/// folder follows, and a mark where what is below was told before.
fn fields(line: &str) -> Option<(usize, (&str, &str), &str)> {
    let mut parts = line.split('\t');
    let depth = parts.next()?.parse().ok()?;
    let mut package = parts.next()?.split(' ');
    let name = package.next()?;
    let version = package.next()?.strip_prefix('v')?;
    let licence = parts.next()?;
    Some((depth, (name, version), licence.trim_end_matches(" (*)")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = r#"
        [[package]]
        name = "enkaku"
        version = "0.1.0"
        [[package]]
        name = "block"
        version = "0.1.0"
        [[package]]
        name = "bytes"
        version = "1.12.0"
        source = "registry+https://github.com/rust-lang/crates.io-index"
        checksum = "ab12"
        [[package]]
        name = "proptest"
        version = "1.12.0"
        source = "registry+https://github.com/rust-lang/crates.io-index"
        checksum = "cd34"
    "#;
    const TREE: &str = "0\tenkaku v0.1.0 (/a b/enkaku)\tMIT OR Apache-2.0\n\
                        1\tblock v0.1.0 (/a b/block)\tMIT OR Apache-2.0\n\
                        2\tbytes v1.12.0\tMIT/Apache-2.0\n\
                        1\tbytes v1.12.0\tMIT/Apache-2.0 (*)\n";

    fn linked() -> Linked {
        Linked::read(TREE, LOCK).unwrap()
    }

    #[test]
    fn the_list_has_what_is_linked_and_nothing_else() {
        let build =
            Build { at: "2025-11-26T09:40:00Z", binary_sha256: "ef", rustc: Some("1.95.0") };
        let bill: Value = serde_json::from_str(&linked().bill(&build).unwrap()).unwrap();
        let product = &bill["metadata"]["component"];
        assert_eq!(product["name"], "enkaku");
        assert_eq!(product["hashes"], sha256("ef"));
        let names: Vec<_> = bill["components"].as_array().unwrap().iter().collect();
        assert_eq!(names.len(), 2);
        assert_eq!(names[0]["bom-ref"], "block@0.1.0");
        assert_eq!(names[0]["purl"], Value::Null);
        assert_eq!(names[1]["purl"], "pkg:cargo/bytes@1.12.0");
        assert_eq!(names[1]["hashes"], sha256("ab12"));
        assert_eq!(names[1]["licenses"], json!([{"expression": "MIT OR Apache-2.0"}]));
        let on =
            json!({"ref": "enkaku@0.1.0", "dependsOn": ["block@0.1.0", "pkg:cargo/bytes@1.12.0"]});
        assert_eq!(bill["dependencies"][0], on);
        assert!(!bill.to_string().contains("/a b"), "no folder of this machine");
    }

    #[test]
    fn the_section_is_read_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let (section, binary) = (folder.path().join("section"), folder.path().join("binary"));
        fs::write(&section, linked().section().unwrap()).unwrap();
        let add = format!("--add-section={SECTION}={}", section.display());
        let this = std::env::current_exe().unwrap();
        let words = [add.as_ref(), "--strip-all".as_ref(), this.as_os_str(), binary.as_os_str()];
        super::super::steps::call(folder.path(), "objcopy", words).unwrap();
        let read = auditable_info::audit_info_from_file(&binary, Default::default()).unwrap();
        let names: Vec<_> = read.packages.iter().map(|package| &*package.name).collect();
        assert_eq!(names, ["enkaku", "block", "bytes"]);
        assert_eq!(read.packages[0].dependencies, [1, 2]);
        assert!(read.packages[0].root);
    }

    #[test]
    fn what_cargo_says_otherwise_is_an_error() {
        let failed = |tree: &str| format!("{:#}", Linked::read(tree, LOCK).unwrap_err());
        assert!(failed("").contains("printed nothing"));
        assert!(failed("0\tbytes v9.0.0\tMIT\n").contains("no package of Cargo.lock"));
        assert!(failed("enkaku v0.1.0\n").contains("no package of Cargo.lock"));
    }

    #[test]
    fn the_workspace_is_described() {
        let linked = Linked::of(crate::root(), "x86_64-unknown-linux-gnu").unwrap();
        let has = |name: &str| linked.0.iter().any(|one| one.package.name == name);
        assert!(has("enkaku-iscsi-proto") && has("tokio"));
        assert!(!has("proptest") && !has("pyo3") && !has("clap_derive") && !has("xtask"));
        assert!(linked.0.iter().all(|one| !one.licence.is_empty()));
    }
}
