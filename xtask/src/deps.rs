//! The dependency rule: which crate of the workspace may use which other one.
//!
//! A crate exists where a reader must be able to believe that something is absent from it; this
//! table is what makes the absence true. Dependencies of tests count like any other.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Every member of the workspace and the siblings it may use.
const ALLOWED: &[(&str, &[&str])] = &[
    ("backends", &["block", "iscsi", "nbd", "rbd"]),
    ("block", &[]),
    ("conformance", &["iscsi-proto"]),
    (
        "daemon",
        &["backends", "block", "discovery", "iscsi", "iscsi-proto", "path", "scsi", "wanlab"],
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
            "wanlab",
        ],
    ),
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
        ],
    ),
    ("iscsi", &["block", "iscsi-proto", "path", "scsi"]),
    ("iscsi-proto", &["durability"]),
    ("media", &["backends", "block", "files", "iscsi"]),
    ("nbd", &["block", "durability"]),
    ("path", &[]),
    ("python", &["backends", "block", "export", "iscsi", "path"]),
    ("rbd", &["block"]),
    ("scsi", &["block"]),
    ("sim", &["block", "iscsi-proto", "scsi"]),
    ("tcpmon", &["iscsi-proto", "path"]),
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
    let Some((_, allowed)) = ALLOWED.iter().find(|(member, _)| *member == name) else {
        return vec![format!(
            "{name}: not in the dependency rule (xtask/src/deps.rs); add it there \
                             with the sentence in ARCHITECTURE.md that says what is absent from it"
        )];
    };
    let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    dependencies
        .iter()
        .filter(|dependency| dependency["path"].is_string())
        .filter_map(|dependency| dependency["name"].as_str())
        .filter(|sibling| !allowed.contains(sibling))
        .map(|sibling| format!("{name} must not depend on {sibling}: allowed are {allowed:?}"))
        .collect()
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
        let package = json!({"name": "iscsi-proto", "dependencies": [
            {"name": "block", "path": "/x", "kind": "dev"},
            {"name": "bytes"},
        ]});
        let violations = violations_of(&package);
        assert_eq!(violations.len(), 1);
        assert!(violations[0].contains("iscsi-proto must not depend on block"));
    }

    #[test]
    fn unknown_member_is_refused() {
        let violations = violations_of(&json!({"name": "util", "dependencies": []}));
        assert!(violations[0].starts_with("util: not in the dependency rule"));
    }
}
