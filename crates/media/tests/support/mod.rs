//! A server over a disk that mke2fs has made (one of the fuzz cases') in a file, and what one says
//! to it.

#![allow(clippy::unwrap_used)] // helpers of tests fail as tests do
#![allow(dead_code, reason = "each test file uses a part of them")]

use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use block::backend::{FileDevice, FileOptions, MemoryDevice};
use block::{BlockDevice, Device, WriteFlags};
use media::{Config, Opening, Server};
use scsi::{LunOptions, Target, TargetConfig};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uplink::Pin;

const DISK: &[u8] = include_bytes!("../../../../fuzz/corpus/files/ext4");
pub(crate) const FILM: &str = "/folder/ein langer Name ü.mkv";
/// Content of it.
pub(crate) const LEN: usize = 700;
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// A disk from the corpus: `u32` sectors, then `u24` sector, `u16` bytes, the bytes.
pub(crate) fn disk() -> Vec<u8> {
    let number =
        |bytes: &[u8]| bytes.iter().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
    let mut content = vec![0; number(&DISK[..4]) * 512];
    let mut rest = &DISK[4..];
    while !rest.is_empty() {
        let (offset, len) = (number(&rest[..3]) * 512, number(&rest[3..5]));
        content[offset..offset + len].copy_from_slice(&rest[5..5 + len]);
        rest = &rest[5 + len..];
    }
    content
}

pub(crate) fn write_disk(path: &Path) {
    std::fs::write(path, disk()).unwrap();
}

fn open(path: &Path) -> Result<Device, String> {
    let options = FileOptions::default().with_read_only(true);
    let file = FileDevice::open(path, &options).map_err(|error| error.to_string())?;
    Ok(Arc::new(file))
}

pub(crate) fn opening() -> Opening {
    Opening {
        volumes: backends::Config::default(),
        path: open,
        secret: |_| Err("there is none".into()),
        uplinks: None,
    }
}

/// The name of a target with the disk.
pub(crate) const IQN: &str = "iqn.2026-11.org.example:films";

/// The disk as a unit of a target, and itself, so that it can be changed.
pub(crate) async fn unit() -> (Target, Device) {
    let content = disk();
    let device = MemoryDevice::new(content.len() as u64, 512).unwrap();
    device.write(0, content.into(), WriteFlags::NONE).await.unwrap();
    let device: Device = Arc::new(device);
    let target = Target::new(TargetConfig::new(IQN));
    target.add_lun(0, Arc::clone(&device), LunOptions::default()).unwrap();
    (target, device)
}

pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) folder: TempDir,
    /// Where homes call, and the server's key.
    pub(crate) uplink: Option<(SocketAddr, Pin)>,
}

/// Serves a catalogue of one video on a disk, which is there or not.
pub(crate) async fn serve(is_there: bool, change: impl FnOnce(&mut Config)) -> Served {
    let folder = tempfile::tempdir().unwrap();
    if is_there {
        write_disk(&folder.path().join("disk.img"));
    }
    serve_catalogue(folder, &text("The Film"), change).await
}

/// Serves this catalogue, which is put into the folder.
pub(crate) async fn serve_catalogue(
    folder: TempDir,
    text: &str,
    change: impl FnOnce(&mut Config),
) -> Served {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let served = Served { address, folder, uplink: None };
    std::fs::write(served.catalogue(), text).unwrap();
    let mut config = Config::new(served.address, opening());
    change(&mut config);
    let server = Server::bind(config, served.catalogue()).await.unwrap();
    let (address, uplink) = (server.address(), server.uplink());
    tokio::spawn(server.run(std::future::pending()));
    Served { address, uplink, ..served }
}

pub(crate) fn text(title: &str) -> String {
    format!(
        "[[home]]\nname = \"attic\"\nvolume = \"disk.img\"\n\n[[video]]\ntitle = \"{title}\"\n\
         home = \"attic\"\npath = \"{FILM}\"\nposter = \"poster.jpg\"\ntags = [\"a <b> tag\"]\n\
         subtitles = [{{ path = \"/folder/none.srt\" }}]\n"
    )
}

/// Status, head in small letters, and body.
pub(crate) type Answer = (u16, String, Vec<u8>);

impl Served {
    pub(crate) fn catalogue(&self) -> PathBuf {
        self.folder.path().join("catalogue.toml")
    }

    pub(crate) async fn say(&self, text: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // It may be refused before all of it is taken.
        let _ = stream.write_all(text).await;
        let mut all = Vec::new();
        let read = stream.read_to_end(&mut all);
        let _ = tokio::time::timeout(LIMIT, read).await.expect("an end");
        all
    }

    pub(crate) async fn ask(&self, target: &str, fields: &str) -> Answer {
        self.send("GET", target, fields, "").await
    }

    /// What a script sends, as JSON unless it is nothing.
    pub(crate) async fn send(
        &self,
        method: &str,
        target: &str,
        fields: &str,
        body: &str,
    ) -> Answer {
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}");
        if !body.is_empty() {
            head += "Content-Type: application/json\r\n";
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        let text = format!("{head}Connection: close\r\n\r\n{body}");
        answer(&self.say(text.as_bytes()).await)
    }

    pub(crate) async fn json(&self, target: &str) -> Value {
        let (status, head, body) = self.ask(target, "").await;
        assert_eq!(status, 200, "{head}");
        serde_json::from_slice(&body).unwrap()
    }

    pub(crate) async fn src(&self) -> String {
        self.json("/api/videos").await["videos"][0]["src"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn state(&self) -> String {
        self.json("/api/homes").await["homes"][0]["state"].as_str().unwrap().to_owned()
    }
}

pub(crate) fn answer(all: &[u8]) -> Answer {
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8(all[..end].to_vec()).unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head, all[end..].to_vec())
}

pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("not {what}"));
}

pub(crate) const PASSWORD: &str = "correct horse";

pub(crate) fn login(name: &str, password: &str) -> String {
    format!("{{\"name\": \"{name}\", \"password\": \"{password}\"}}")
}

/// Logs in; returns the field with the cookie.
pub(crate) async fn enter(served: &Served, name: &str) -> String {
    let body = login(name, PASSWORD);
    let text = format!(
        "POST /api/login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len(),
    );
    let all = served.say(text.as_bytes()).await;
    let all = String::from_utf8(all).unwrap();
    let is_cookie = |line: &&str| line.to_lowercase().starts_with("set-cookie: ");
    let line = all.lines().find(is_cookie).unwrap_or_else(|| panic!("{all}"));
    assert!(line.ends_with("; HttpOnly; SameSite=Strict"), "{line}");
    let pair = line["set-cookie: ".len()..].split(';').next().unwrap();
    format!("Cookie: {pair}\r\n")
}
