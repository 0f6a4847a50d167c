//! The server as a browser and as its enemies meet it, over a disk that mke2fs has made (one of the
//! fuzz cases') in a file.

#![allow(clippy::unwrap_used)] // helpers of tests fail as tests do

use std::future::Future;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use block::Device;
use block::backend::{FileDevice, FileOptions};
use media::{Config, Opening, Server};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const DISK: &[u8] = include_bytes!("../../../fuzz/corpus/files/ext4");
const FILM: &str = "/folder/ein langer Name ü.mkv";
/// Content of it.
const LEN: usize = 700;
const LIMIT: Duration = Duration::from_secs(30);

/// A disk from the corpus: `u32` sectors, then `u24` sector, `u16` bytes, the bytes.
fn write_disk(path: &Path) {
    let number =
        |bytes: &[u8]| bytes.iter().fold(0usize, |sum, byte| sum << 8 | usize::from(*byte));
    let file = std::fs::File::create(path).unwrap();
    file.set_len(number(&DISK[..4]) as u64 * 512).unwrap();
    let mut rest = &DISK[4..];
    while !rest.is_empty() {
        let (offset, len) = (number(&rest[..3]) as u64 * 512, number(&rest[3..5]));
        file.write_all_at(&rest[5..5 + len], offset).unwrap();
        rest = &rest[5 + len..];
    }
}

fn open(path: &Path) -> Result<Device, String> {
    let options = FileOptions::default().with_read_only(true);
    let file = FileDevice::open(path, &options).map_err(|error| error.to_string())?;
    Ok(Arc::new(file))
}

struct Served {
    address: SocketAddr,
    folder: TempDir,
}

/// Serves a catalogue of one video on a disk, which is there or not.
async fn serve(is_there: bool, change: impl FnOnce(&mut Config)) -> Served {
    let folder = tempfile::tempdir().unwrap();
    if is_there {
        write_disk(&folder.path().join("disk.img"));
    }
    let served = Served { address: SocketAddr::from(([127, 0, 0, 1], 0)), folder };
    std::fs::write(served.catalogue(), text("The Film")).unwrap();
    let opening = Opening {
        volumes: backends::Config::default(),
        path: open,
        secret: |_| Err("there is none".into()),
    };
    let mut config = Config::new(served.address, opening);
    change(&mut config);
    let server = Server::bind(config, served.catalogue()).await.unwrap();
    let address = server.address();
    tokio::spawn(server.run(std::future::pending()));
    Served { address, ..served }
}

fn text(title: &str) -> String {
    format!(
        "[[home]]\nname = \"attic\"\nvolume = \"disk.img\"\n\n[[video]]\ntitle = \"{title}\"\n\
         home = \"attic\"\npath = \"{FILM}\"\nposter = \"poster.jpg\"\ntags = [\"a <b> tag\"]\n\
         subtitles = [{{ path = \"/folder/none.srt\" }}]\n"
    )
}

/// Status, head in small letters, and body.
type Answer = (u16, String, Vec<u8>);

impl Served {
    fn catalogue(&self) -> PathBuf {
        self.folder.path().join("catalogue.toml")
    }

    async fn say(&self, text: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // It may be refused before all of it is taken.
        let _ = stream.write_all(text).await;
        let mut all = Vec::new();
        let read = stream.read_to_end(&mut all);
        let _ = tokio::time::timeout(LIMIT, read).await.expect("an end");
        all
    }

    async fn ask(&self, target: &str, fields: &str) -> Answer {
        let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n");
        let text = format!("{head}Connection: close\r\n{fields}\r\n");
        answer(&self.say(text.as_bytes()).await)
    }

    async fn json(&self, target: &str) -> Value {
        let (status, head, body) = self.ask(target, "").await;
        assert_eq!(status, 200, "{head}");
        serde_json::from_slice(&body).unwrap()
    }

    async fn src(&self) -> String {
        self.json("/api/videos").await["videos"][0]["src"].as_str().unwrap().to_owned()
    }

    async fn state(&self) -> String {
        self.json("/api/homes").await["homes"][0]["state"].as_str().unwrap().to_owned()
    }
}

fn answer(all: &[u8]) -> Answer {
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8(all[..end].to_vec()).unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head, all[end..].to_vec())
}

async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("not {what}"));
}

#[tokio::test]
async fn a_video_comes_from_its_volume() {
    let served = serve(true, |_| ()).await;
    let found = served.json("/api/videos?q=the+film").await;
    assert_eq!(found["total"], 1);
    let video = &found["videos"][0];
    assert_eq!((&video["title"], &video["type"]), (&"The Film".into(), &"video/x-matroska".into()));
    let src = video["src"].as_str().unwrap();
    assert!(src.ends_with("/video.mkv"), "{src}");
    let (status, head, body) = served.ask(src, "").await;
    assert_eq!((status, body.len()), (200, LEN), "{head}");
    assert!(body.iter().all(|byte| *byte == b'x'));
    let (status, head, body) = served.ask(src, "Range: bytes=-100\r\n").await;
    assert_eq!((status, body.len()), (206, 100), "{head}");
    assert!(head.contains(&format!("content-range: bytes 600-699/{LEN}\r\n")), "{head}");
    assert!(head.contains("x-content-type-options: nosniff\r\n"), "{head}");
    assert_eq!(served.state().await, "on");
    let (status, _, body) = served.ask(&format!("/subtitles/{}/0.vtt", &src[7..23]), "").await;
    assert_eq!(status, 404, "{}", String::from_utf8_lossy(&body));
}

#[tokio::test]
async fn what_is_not_there_is_not_found_and_nothing_else_is_reached() {
    let served = serve(true, |_| ()).await;
    let id = served.src().await[7..23].to_owned();
    std::fs::write(served.folder.path().join("secret"), "secret").unwrap();
    for target in [
        "/secret".to_owned(),
        "/../secret".into(),
        "/poster/../secret".into(),
        "/poster/%2e%2e%2fsecret".into(),
        "/poster/..%00".into(),
        format!("/poster/{id}"), // the catalogue names it, and it is not there
        format!("/poster/{id}/x"),
        format!("/video/{id}"),
        "/video/0000000000000000/video.mkv".into(),
        "/video//video.mkv".into(),
        "/video/..%2f..%2fsecret/x".into(),
        format!("/subtitles/{id}/1.vtt"),
        format!("/subtitles/{id}/-1.vtt"),
        format!("/subtitles/{id}/99999999999999999999999.vtt"),
        "//".into(),
        "/api".into(),
        format!("/{}", "a/".repeat(5000)),
    ] {
        let (status, head, body) = served.ask(&target, "").await;
        assert_eq!(status, 404, "{target:.40}: {head}");
        assert!(!String::from_utf8_lossy(&body).contains("secret"), "{target:.40}");
    }
    for query in
        ["?x=1", "?limit=501", "?limit=-1", "?offset=x", &format!("?q={}", "a".repeat(2000))]
    {
        let (status, _, body) = served.ask(&format!("/api/videos{query}"), "").await;
        assert_eq!((status, body.is_empty()), (400, false), "{query:.40}");
    }
    let found = served.json("/api/videos?q=%00%ff%2e%2e&offset=18446744073709551615").await;
    assert_eq!(found["total"], 0);
}

#[tokio::test]
async fn who_asks_for_too_much_is_told_so() {
    let served = serve(true, |_| ()).await;
    let src = served.src().await;
    let (status, head, _) =
        served.ask(&src, &format!("Range: bytes={}1-1\r\n", "0-0,".repeat(16))).await;
    assert_eq!(status, 416, "{head}");
    let many = format!("Range: bytes={}1-1\r\n", "0-0,".repeat(10_000));
    let (status, head, _) = served.ask(&src, &many).await;
    assert_eq!(status, 431, "{head}");
    let many = "X: y\r\n".repeat(1000);
    let (status, head, _) = served.ask(&src, &many).await;
    assert_eq!(status, 431, "{head}");
    for request in [
        "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "DELETE / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ] {
        assert_eq!(answer(&served.say(request.as_bytes()).await).0, 405, "{request}");
    }
    for (request, status) in [
        ("GET / HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 421),
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1:8\r\nConnection: close\r\n\r\n", 200),
        ("GET\r\n\r\n", 400),
    ] {
        assert_eq!(answer(&served.say(request.as_bytes()).await).0, status, "{request}");
    }
}

#[tokio::test]
async fn half_a_request_and_silence_come_to_an_end() {
    let served = serve(true, |config| config.head_timeout = Duration::from_millis(300)).await;
    for text in ["", "GET / HT", "GET / HTTP/1.1\r\nHost: localhost\r\n"] {
        let said = served.say(text.as_bytes()).await;
        assert!(!said.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&said));
    }
    let (status, ..) = served.ask("/", "").await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn one_connection_too_many_is_sent_away() {
    let served = serve(true, |config| config.connections_max = 2).await;
    let _one = TcpStream::connect(served.address).await.unwrap();
    let _two = TcpStream::connect(served.address).await.unwrap();
    until("sent away", async || served.ask("/", "").await.0 == 503).await;
    drop((_one, _two));
    until("taken", async || served.ask("/", "").await.0 == 200).await;
}

#[tokio::test]
async fn storage_that_is_off_is_named_and_comes_back() {
    let served = serve(false, |_| ()).await;
    let src = served.src().await;
    assert_eq!(served.json("/api/homes").await["homes"][0]["name"], "attic");
    let (status, head, body) = served.ask(&src, "Range: bytes=0-1\r\n").await;
    let said = String::from_utf8(body).unwrap();
    assert_eq!(status, 503, "{head}");
    assert!(head.contains("\r\nretry-after: "), "{head}");
    assert!(said.contains("the storage \"attic\" is off, since 20"), "{said}");
    let path = served.folder.path().display().to_string();
    assert!(!said.contains(&path), "what is wrong where is nobody's business: {said}");
    assert_eq!(served.state().await, "off");
    write_disk(&served.folder.path().join("disk.img"));
    // Nobody has to ask for a video: that the page is looked at is enough.
    until("back", async || matches!(&*served.state().await, "on" | "ready")).await;
    assert_eq!(served.ask(&src, "Range: bytes=0-1\r\n").await.0, 206);
}

#[tokio::test]
async fn a_volume_that_nobody_uses_is_let_go() {
    let served = serve(true, |config| config.idle = Duration::ZERO).await;
    let src = served.src().await;
    assert_eq!(served.ask(&src, "").await.0, 200);
    until("let go", async || served.state().await == "ready").await;
    assert_eq!(served.ask(&src, "").await.0, 200);
}

#[tokio::test]
async fn a_catalogue_that_changes_is_seen_and_a_wrong_one_is_not() {
    let served = serve(true, |_| ()).await;
    let title = async || served.json("/api/videos").await["videos"][0]["title"].clone();
    let src = served.src().await;
    std::fs::write(served.catalogue(), text("Another Title")).unwrap();
    until("seen", async || title().await == "Another Title").await;
    assert_eq!(served.src().await, src, "it is the same video");
    std::fs::write(served.catalogue(), "[[video]]\ntitle = 3\n").unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(title().await, "Another Title");
    std::fs::write(served.catalogue(), text("A Third")).unwrap();
    until("seen", async || title().await == "A Third").await;
}

#[tokio::test]
async fn the_page_has_no_script_but_its_own() {
    let served = serve(true, |_| ()).await;
    let (status, head, body) = served.ask("/", "").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self';"));
    assert!(!head.contains("unsafe"), "{head}");
    let page = String::from_utf8(body).unwrap();
    assert!(!page.contains("style=") && !page.contains(" onclick") && !page.contains("<style"));
    let scripts = page.matches("<script").count();
    assert_eq!((scripts, page.matches("<script src=\"/page.js\"").count()), (1, 1));
    for (target, kind) in
        [("/page.js", "text/javascript"), ("/page.css", "text/css"), ("/icon.svg", "image/svg+xml")]
    {
        let (status, head, _) = served.ask(target, "").await;
        assert!(status == 200 && head.contains(&format!("content-type: {kind}")), "{head}");
    }
}
