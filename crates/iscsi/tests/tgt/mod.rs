//! A real tgtd on a free port of loopback, ended by its process id.

#![allow(dead_code)] // not every test file uses all of it

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The target's name.
pub(crate) const IQN: &str = "iqn.2026-11.org.example:test";

/// tgtd numbers its control sockets up to here.
const CONTROL_MAX: u32 = 32_767;

pub(crate) struct Tgt {
    child: Option<Child>,
    dir: tempfile::TempDir,
    port: u16,
    control: u32,
    chap: Option<(&'static str, &'static str)>,
}

impl Tgt {
    /// `None`, and a line that says so, where tgt is not installed.
    pub(crate) fn start(size: u64) -> Option<Self> {
        Self::start_with(size, None)
    }

    pub(crate) fn start_with(
        size: u64,
        chap: Option<(&'static str, &'static str)>,
    ) -> Option<Self> {
        if !Path::new("/usr/sbin/tgtd").exists() {
            eprintln!("SKIPPED: tgtd is not installed (Debian package tgt)");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::File::create(dir.path().join("disk")).unwrap().set_len(size).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut tgt = Self { child: None, dir, port, control: u32::from(port) % CONTROL_MAX, chap };
        tgt.run();
        Some(tgt)
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    pub(crate) fn portal(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn url(&self) -> String {
        let login = self.chap.map_or(String::new(), |(user, secret)| format!("{user}%{secret}@"));
        format!("iscsi://{login}{}/{IQN}/1", self.portal())
    }

    /// Ends tgtd without warning, as a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts tgtd on the same port with the same disk.
    pub(crate) fn run(&mut self) {
        let portal = format!("portal={}", self.portal());
        let log = std::fs::File::create(self.dir.path().join("log")).unwrap();
        let child = Command::new("/usr/sbin/tgtd")
            .args(["-f", "-C", &self.control.to_string(), "--iscsi", &portal])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        let new = ["--op", "new", "--mode", "target", "--tid", "1", "-T", IQN];
        let begun = Instant::now();
        while !self.adm(&new) {
            assert!(begun.elapsed() < Duration::from_secs(20), "tgtd does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        let disk = self.disk();
        let disk = disk.to_str().unwrap();
        let unit = ["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", disk];
        assert!(self.adm(&unit));
        if let Some((user, secret)) = self.chap {
            let account =
                ["--op", "new", "--mode", "account", "--user", user, "--password", secret];
            assert!(self.adm(&account));
            assert!(self.adm(&["--op", "bind", "--mode", "account", "--tid", "1", "--user", user]));
        }
        assert!(self.adm(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"]));
    }

    /// Sets a key of the target.
    pub(crate) fn require(&self, key: &str, value: &str) {
        let update = ["--op", "update", "--mode", "target", "--tid", "1", "--name", key];
        assert!(self.adm(&[&update[..], &["--value", value]].concat()));
    }

    fn adm(&self, arguments: &[&str]) -> bool {
        Command::new("/usr/sbin/tgtadm")
            .args(["-C", &self.control.to_string(), "--lld", "iscsi"])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success()
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        self.kill();
        for suffix in ["", ".lock"] {
            let _ = std::fs::remove_file(format!("/var/run/tgtd/socket.{}{suffix}", self.control));
        }
    }
}
