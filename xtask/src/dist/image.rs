//! The container image (OCI Image Format 1.1, <https://github.com/opencontainers/image-spec>): the
//! stripped binary with the libraries that it is linked to, licences, and no shell.
//!
//! An image is a tarball and three documents that name it by its digest, so it is written here: no
//! builder of images has to be installed or run as root, and it is the same each time. For Docker
//! before version 25 the archive has that one's `manifest.json`, too.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::Dist;
use super::steps::{Tree, output, sha256, tar};

/// Who runs it, unless somebody else is named: nobody that a host has.
const USER: u32 = 65_532;
/// Folders of that user: the configuration, disk images and state, sockets.
const FOLDERS: [&str; 4] = ["etc/enkaku", "run/enkaku", "tmp", "var/lib/enkaku"];
/// Names are looked up in files and DNS; glibc has both in itself since 2.34.
const NAMES: &str = "passwd: files\ngroup: files\nhosts: files dns\n";
/// Terms of the libraries, where Debian has them.
const LICENCES: [&str; 2] = ["libc6", "libgcc-s1"];
const BLOBS: &str = "blobs/sha256";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

impl Dist<'_> {
    /// `enkaku-0.2.0-x86_64-linux.oci.tar`.
    pub(super) fn image(&self, binary: &Path, at: &str, work: &Path) -> Result<String> {
        let work = work.join("image");
        let layer = self.layer(binary, &work)?;
        let unpacked = format!("sha256:{}", sha256(&layer)?);
        super::steps::call(&work, "gzip", ["-nf".as_ref(), layer.as_os_str()])?;
        let archive = Tree::new(work.join("archive"))?;
        let layer = blob(&archive, LAYER, &fs::read(layer.with_extension("tar.gz"))?, &work)?;
        let config = self.config(at, &unpacked);
        let config = blob(&archive, CONFIG, config.to_string().as_bytes(), &work)?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [layer],
        });
        let mut image = blob(&archive, MANIFEST, manifest.to_string().as_bytes(), &work)?;
        let tag = format!("enkaku:{}", self.version);
        image["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        image["platform"] = json!({"architecture": self.architecture.0, "os": "linux"});
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [image]});
        archive.write("index.json", index.to_string().as_bytes(), 0o644)?;
        archive.write("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
        let docker = json!([{
            "Config": place(&config), "Layers": [place(&layer)],
            "RepoTags": [tag],
        }]);
        archive.write("manifest.json", docker.to_string().as_bytes(), 0o644)?;
        archive.settle(self.epoch)?;
        let name = format!("{}.oci.tar", self.stem());
        let made = self.file(&name);
        tar("--create", &made, archive.top(), &archive.entries()?, 0)?;
        Ok(name)
    }

    /// All files, as a tarball.
    fn layer(&self, binary: &Path, work: &Path) -> Result<PathBuf> {
        let tree = Tree::new(work.join("files"))?;
        tree.add(binary, "usr/bin/enkaku", 0o755)?;
        for library in libraries(binary)? {
            let name = library.strip_prefix("/")?.display().to_string();
            tree.add(&library, &name, 0o755)?;
        }
        for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
            tree.add(&self.root.join(name), &format!("usr/share/doc/enkaku/{name}"), 0o644)?;
        }
        for name in LICENCES.map(|name| format!("usr/share/doc/{name}/copyright")) {
            let there = Path::new("/").join(&name);
            if there.exists() {
                tree.add(&there, &name, 0o644)?;
            }
        }
        let users = format!("root:x:0:0::/:/\nenkaku:x:{USER}:{USER}::/var/lib/enkaku:/\n");
        tree.write("etc/passwd", users.as_bytes(), 0o644)?;
        tree.write("etc/group", format!("root:x:0:\nenkaku:x:{USER}:\n").as_bytes(), 0o644)?;
        tree.write("etc/nsswitch.conf", NAMES.as_bytes(), 0o644)?;
        tree.settle(self.epoch)?;
        let layer = work.join("layer.tar");
        tar("--create", &layer, tree.top(), &tree.entries()?, 0)?;
        let own = Tree::new(work.join("folders"))?;
        for folder in FOLDERS {
            fs::create_dir_all(own.top().join(folder))?;
        }
        own.settle(self.epoch)?;
        tar("--append", &layer, own.top(), &FOLDERS.map(ToOwned::to_owned), USER)?;
        Ok(layer)
    }

    fn config(&self, at: &str, unpacked: &str) -> Value {
        json!({
            "created": at,
            "architecture": self.architecture.0,
            "os": "linux",
            "config": {
                "User": format!("{USER}:{USER}"),
                "Entrypoint": ["/usr/bin/enkaku"],
                "Env": ["PATH=/usr/bin"],
                "WorkingDir": "/var/lib/enkaku",
                "ExposedPorts": {"3260/tcp": {}},
                "StopSignal": "SIGTERM",
                "Labels": {
                    "org.opencontainers.image.title": "enkaku",
                    "org.opencontainers.image.version": self.version,
                    "org.opencontainers.image.created": at,
                    "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
                    "org.opencontainers.image.source": "https://github.com/enkaku/enkaku",
                },
            },
            "rootfs": {"type": "layers", "diff_ids": [unpacked]},
            "history": [{"created": at, "created_by": "cargo xtask dist"}],
        })
    }
}

/// Puts a document into the archive; returns what names it.
fn blob(archive: &Tree, kind: &str, content: &[u8], work: &Path) -> Result<Value> {
    let file = work.join("blob");
    fs::write(&file, content)?;
    let digest = sha256(&file)?;
    archive.write(&format!("{BLOBS}/{digest}"), content, 0o644)?;
    Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": content.len()}))
}

/// Where it is in the archive.
fn place(named: &Value) -> String {
    let digest = named["digest"].as_str().unwrap_or_default();
    digest.replacen("sha256:", &format!("{BLOBS}/"), 1)
}

/// The libraries of a binary, and their loader, where they are in this system.
fn libraries(binary: &Path) -> Result<Vec<PathBuf>> {
    let folder = binary.parent().context("a binary without a folder")?;
    let said = output(folder, "ldd", [binary])?;
    let missing = said.lines().find(|line| line.ends_with("not found"));
    if let Some(missing) = missing {
        bail!("{}: {}", binary.display(), missing.trim());
    }
    Ok(paths(&said))
}

/// Paths of libraries, from lines of ldd such as
/// `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1c1b000000)`.
fn paths(said: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let line = line.split_once("=> ").map_or(line, |(_, path)| path);
        let path = line.split_whitespace().next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    said.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_with_a_file() {
        let said = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1c)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f1d)\n";
        let there = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(paths(said), there.map(PathBuf::from));
    }
}
