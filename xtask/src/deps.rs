//! The dependency rule: which crate of the workspace may use which other one.
//!
//! A crate exists where a reader must be able to believe that something is absent from it; this
//! table is what makes the absence true. Dependencies of tests count like any other.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// What a name begins with in a registry, where one is free for all of us; `block` is somebody's.
const PREFIX: &str = "enkaku-";
/// Every member of the workspace and the siblings it may use, by the names that code has for them.
const ALLOWED: &[(&str, &[&str])] = &[
    ("backends", &["block", "iscsi", "nbd", "rbd"]),
    ("block", &[]),
    ("conformance", &["iscsi-proto"]),
    ("csi", &["daemon", "iscsi-proto"]),
    (
        "daemon",
        &[
            "backends",
            "block",
            "discovery",
            "etcd",
            "iscsi",
            "iscsi-proto",
            "path",
            "scsi",
            "uplink",
            "wanlab",
        ],
    ),
    ("discovery", &[]),
    ("doctor", &["path"]),
    ("durability", &[]),
    (
        "enkaku",
        &[
            "backends",
            "block",
            "conformance",
            "csi",
            "daemon",
            "discovery",
            "doctor",
            "export",
            "files",
            "iscsi",
            "iscsi-proto",
            "media",
            "nbd",
            "path",
            "scsi",
            "tcpmon",
            "uplink",
            "wanlab",
        ],
    ),
    ("etcd", &[]),
    ("export", &["block", "nbd"]),
    ("files", &["block"]),
    (
        "fuzz-cases",
        &[
            "block",
            "daemon",
            "discovery",
            "export",
            "files",
            "iscsi",
            "iscsi-proto",
            "media",
            "nbd",
            "scsi",
            "tcpmon",
            "uplink",
        ],
    ),
    ("iscsi", &["block", "iscsi-proto", "path", "scsi"]),
    ("iscsi-proto", &["durability"]),
    ("media", &["backends", "block", "discovery", "files", "iscsi", "scsi", "uplink"]), // scsi: a target of its tests
    ("nbd", &["block", "durability"]),
    ("path", &[]),
    ("python", &["backends", "block", "export", "iscsi", "path"]),
    ("rbd", &["block"]),
    ("scsi", &["block"]),
    ("sim", &["block", "iscsi-proto", "scsi"]),
    ("tcpmon", &["iscsi-proto", "path"]),
    ("uplink", &["iscsi"]),
    ("wanlab", &[]),
    ("xtask", &[]),
];

/// The violations in the workspace at `root`, one line each.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let metadata = cargo_metadata(root)?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    Ok(packages.iter().flat_map(violations_of).collect())
}

fn cargo_metadata(root: &Path) -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")
}

fn violations_of(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let Some((_, allowed)) = ALLOWED.iter().find(|(member, _)| short(member) == short(name)) else {
        return vec![format!(
            "{name}: not in the dependency rule (xtask/src/deps.rs); add it there \
                             with the sentence in ARCHITECTURE.md that says what is absent from it"
        )];
    };
    let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    let may_use = |sibling: &str| allowed.iter().any(|one| short(one) == short(sibling));
    let mut found: Vec<_> = dependencies
        .iter()
        .filter(|dependency| dependency["path"].is_string())
        .filter_map(|dependency| dependency["name"].as_str())
        .filter(|sibling| !may_use(sibling))
        .map(|sibling| format!("{name} must not depend on {sibling}: allowed are {allowed:?}"))
        .collect();
    // An empty list is `publish = false`; nothing is said where it may go anywhere.
    if package["publish"].is_null() && name != "enkaku" && !name.starts_with(PREFIX) {
        found.push(format!(
            "{name}: a crate that may be published is called {PREFIX}{name}, with [lib] name; \
             others say publish = false"
        ));
    }
    found
}

/// A name without what makes it one of a registry.
fn short(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn workspace_keeps_the_dependency_rule() {
        let violations = check(crate::root()).unwrap();
        assert!(violations.is_empty(), "\n{}", violations.join("\n"));
    }

    #[test]
    fn forbidden_sibling_is_named() {
        let package = json!({"name": "enkaku-iscsi-proto", "dependencies": [
            {"name": "enkaku-block", "path": "/x", "kind": "dev"},
            {"name": "enkaku-durability", "path": "/x"},
            {"name": "bytes"},
        ]});
        let violations = violations_of(&package);
        assert_eq!(violations.len(), 1);
        assert!(violations[0].contains("enkaku-iscsi-proto must not depend on enkaku-block"));
    }

    #[test]
    fn what_may_be_published_has_a_name_of_ours() {
        let of = |publish: Value| json!({"name": "block", "publish": publish, "dependencies": []});
        assert!(violations_of(&of(Value::Null))[0].contains("is called enkaku-block"));
        assert!(violations_of(&of(json!([]))).is_empty());
    }

    #[test]
    fn unknown_member_is_refused() {
        let violations = violations_of(&json!({"name": "util", "dependencies": []}));
        assert!(violations[0].starts_with("util: not in the dependency rule"));
    }
}
