//! The Debian package (Debian Policy 4.6.2), by dpkg-deb. Written here rather than by a tool of
//! Rust's, so that making it needs nothing that Debian does not have, and its files are those of
//! `make install`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::Dist;
use super::steps::{Tree, call, done, output};

/// Revision of the packaging.
const REVISION: &str = "1";
const MAINTAINER: &str = "Enkaku developers <enkaku@users.noreply.github.com>";
/// Where systemd of Debian 12 looks for what packages bring.
const UNITS: &str = "/lib/systemd/system";
const DOCUMENTS: &str = "usr/share/doc/enkaku";

const DESCRIPTION: &str = "Remote block storage at line rate over long-fat networks
 An iSCSI target and initiator that do not collapse where the round trip
 is long, and the instruments that show why others do. A session takes as
 many TCP connections as the path needs; a volume is attached as a file or
 an NBD export, copied, or mirrored to other sites.
 .
 Nothing is served or attached until it is configured; see enkaku(1).";

/// As debhelper's dh_installsysusers, dh_installtmpfiles and dh_installsystemd would write them,
/// but that nothing is enabled or started: there is no configuration yet.
const AFTER_INSTALLATION: &str = r#"#!/bin/sh
set -e
if [ "$1" = configure ]; then
    if [ -x "$(command -v systemd-sysusers)" ]; then
        systemd-sysusers enkaku.conf
    fi
    if [ -x "$(command -v systemd-tmpfiles)" ]; then
        systemd-tmpfiles --create enkaku.conf || true
    fi
    if [ -d /run/systemd/system ]; then
        systemctl --system daemon-reload >/dev/null || true
        # A daemon of the version before goes on as the new one. What is attached is not let go.
        if [ -n "$2" ]; then
            deb-systemd-invoke try-restart enkaku-target.service enkaku-monitor.service >/dev/null || true
        fi
    fi
fi
"#;

const BEFORE_REMOVAL: &str = r#"#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop enkaku-target.service enkaku-monitor.service \
        'enkaku-attach@*.service' 'enkaku-mirror@*.service' >/dev/null || true
fi
"#;

const AFTER_REMOVAL: &str = r#"#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
fi
# Disk images may be in /var/lib/enkaku and passwords in /etc/enkaku: they are the administrator's.
if [ "$1" = purge ]; then
    for folder in attach mirrors target.d ""; do
        rmdir --ignore-fail-on-non-empty "/etc/enkaku/$folder" 2>/dev/null || true
    done
fi
"#;

impl Dist<'_> {
    /// `enkaku_0.2.0-1_amd64.deb`.
    pub(super) fn debian(&self, binary: &Path, work: &Path) -> Result<String> {
        let tree = Tree::new(work.join("debian/enkaku"))?;
        self.install(binary, "/usr", tree.top(), Some(UNITS))?;
        self.documents(&tree)?;
        for name in tree.files()?.iter().filter(|name| name.starts_with("usr/share/man/")) {
            tree.compress(name)?;
        }
        let sums = tree.files()?;
        let sums = output(tree.top(), "md5sum", sums.iter())?;
        tree.write("DEBIAN/md5sums", sums.as_bytes(), 0o644)?;
        tree.write("DEBIAN/control", self.control(&tree, work)?.as_bytes(), 0o644)?;
        for (name, text) in
            [("postinst", AFTER_INSTALLATION), ("prerm", BEFORE_REMOVAL), ("postrm", AFTER_REMOVAL)]
        {
            tree.write(&format!("DEBIAN/{name}"), text.as_bytes(), 0o755)?;
        }
        tree.settle(self.epoch)?;
        let name = format!("enkaku_{}-{REVISION}_{}.deb", self.version, self.architecture.0);
        let mut command = std::process::Command::new("dpkg-deb");
        command.args(["--root-owner-group", "-Zxz", "--build"]).arg(tree.top());
        command.arg(self.file(&name)).env("SOURCE_DATE_EPOCH", self.epoch.to_string());
        done(&mut command)?;
        Ok(name)
    }

    /// Debian has its own places and names for licences and changes.
    fn documents(&self, tree: &Tree) -> Result<()> {
        for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
            fs::remove_file(tree.top().join(DOCUMENTS).join(name))?;
        }
        let changes = tree.top().join(DOCUMENTS).join("CHANGELOG.md");
        fs::rename(changes, tree.top().join(DOCUMENTS).join("changelog"))?;
        let at = output(self.root, "date", ["-u", "-R", "-d", &format!("@{}", self.epoch)])?;
        let changelog = format!(
            "enkaku ({}-{REVISION}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- \
             {MAINTAINER}  {}\n",
            self.version,
            at.trim()
        );
        tree.write(&format!("{DOCUMENTS}/changelog.Debian"), changelog.as_bytes(), 0o644)?;
        for name in ["changelog", "changelog.Debian"] {
            tree.compress(&format!("{DOCUMENTS}/{name}"))?;
        }
        tree.write(&format!("{DOCUMENTS}/copyright"), self.copyright()?.as_bytes(), 0o644)
    }

    /// The format of <https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/>.
    fn copyright(&self) -> Result<String> {
        let mit = fs::read_to_string(self.root.join("LICENSE-MIT")).context("LICENSE-MIT")?;
        let whose = mit.lines().find(|line| line.starts_with("Copyright"));
        let whose = whose.unwrap_or("The Enkaku developers").trim_start_matches("Copyright (c) ");
        let text: Vec<String> = mit
            .lines()
            .map(|line| if line.trim().is_empty() { " .".to_owned() } else { format!(" {line}") })
            .collect();
        Ok(format!(
            "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
             Upstream-Name: enkaku\nSource: https://github.com/enkaku/enkaku\n\n\
             Files: *\nCopyright: {whose}\nLicense: Expat or Apache-2.0\n\n\
             License: Expat\n{}\n\n\
             License: Apache-2.0\n On Debian systems, the full text of the Apache License 2.0 is in\n \
             /usr/share/common-licenses/Apache-2.0.\n",
            text.join("\n")
        ))
    }

    fn control(&self, tree: &Tree, work: &Path) -> Result<String> {
        let size_kib: u64 = tree
            .files()?
            .iter()
            .filter_map(|name| fs::metadata(tree.top().join(name)).ok())
            .map(|metadata| metadata.len().div_ceil(1024))
            .sum();
        Ok(format!(
            "Package: enkaku\nVersion: {}-{REVISION}\nArchitecture: {}\nMaintainer: {MAINTAINER}\n\
             Installed-Size: {size_kib}\nDepends: {}, systemd | systemd-standalone-sysusers | \
             opensysusers\nRecommends: fuse3\nSuggests: prometheus\nSection: admin\n\
             Priority: optional\nHomepage: https://github.com/enkaku/enkaku\n\
             Description: {DESCRIPTION}\n",
            self.version,
            self.architecture.0,
            libraries(&tree.top().join("usr/bin/enkaku"), work)?
        ))
    }
}

/// Packages of the libraries that the binary needs, with their least versions.
fn libraries(binary: &Path, work: &Path) -> Result<String> {
    // The tool wants a source package around it.
    let folder = work.join("libraries");
    fs::create_dir_all(folder.join("debian"))?;
    fs::write(
        folder.join("debian/control"),
        "Source: enkaku\n\nPackage: enkaku\nArchitecture: any\n",
    )?;
    call(
        &folder,
        "dpkg-shlibdeps",
        ["-Odepends".as_ref(), "--ignore-missing-info".as_ref(), binary.as_os_str()],
    )?;
    let text = fs::read_to_string(folder.join("depends"))?;
    let list = text.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    list.map(ToOwned::to_owned).context("dpkg-shlibdeps found no library")
}
