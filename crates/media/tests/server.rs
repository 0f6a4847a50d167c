//! The server as a browser and as its enemies meet it, over a disk that mke2fs has made.

#![allow(clippy::unwrap_used)] // helpers of tests fail as tests do

mod support;

use std::time::Duration;

use support::{LEN, answer, serve, text, until, write_disk};
use tokio::net::TcpStream;

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
    assert_eq!((scripts, page.matches("<script src=\"/").count()), (3, 3));
    for (target, kind) in [
        ("/common.js", "text/javascript"),
        ("/remux.js", "text/javascript"),
        ("/page.js", "text/javascript"),
        ("/page.css", "text/css"),
        ("/icon.svg", "image/svg+xml"),
    ] {
        let (status, head, _) = served.ask(target, "").await;
        assert!(status == 200 && head.contains(&format!("content-type: {kind}")), "{head}");
    }
}
