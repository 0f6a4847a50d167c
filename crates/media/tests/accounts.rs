//! Who may see what, as browsers and strangers meet it: logging in and out, positions, links to one
//! video, and what a page of somebody else can make a browser send.

#![allow(clippy::unwrap_used)] // helpers of tests fail as tests do

mod support;

use std::path::Path;
use std::time::Duration;

use media::{Accounts, Admission, Config, Role, Shares, StateFolder};
use support::{LEN, PASSWORD, Served, enter, login, serve, until};
use tempfile::TempDir;

fn state() -> (TempDir, StateFolder) {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::open(&folder.path().join("state")).unwrap();
    (folder, state)
}

async fn with(state: &StateFolder) -> Served {
    let admission = Admission::Accounts(state.clone());
    serve(true, |config: &mut Config| config.admission = admission).await
}

async fn with_anna() -> (Served, TempDir, StateFolder) {
    let (folder, state) = state();
    Accounts::new(&state).add("anna", Role::Owner, PASSWORD).unwrap();
    (with(&state).await, folder, state)
}

#[tokio::test]
async fn nothing_is_shown_to_who_is_not_logged_in() {
    let (served, _folder, _state) = with_anna().await;
    let (status, head, _) = served.ask("/", "").await;
    assert!(status == 303 && head.contains("\r\nlocation: /login\r\n"), "{head}");
    let cookie = enter(&served, "anna").await;
    let (_, _, body) = served.ask("/api/videos", &cookie).await;
    let found: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let src = found["videos"][0]["src"].as_str().unwrap().to_owned();
    let id = src[7..23].to_owned();
    for target in [
        src.clone(),
        "/api/videos".into(),
        "/api/homes".into(),
        "/api/me".into(),
        "/api/nothing".into(),
        format!("/poster/{id}"),
        format!("/subtitles/{id}/0.vtt"),
        "/page".into(),
    ] {
        for fields in ["", "Cookie: session=\r\n", "Cookie: session=AAAA; x=y\r\n"] {
            let (status, head, body) = served.ask(&target, fields).await;
            assert_eq!(status, 401, "{target} {fields}: {head}");
            assert_eq!(body, b"log in first\n", "{target}");
        }
    }
    for target in ["/login", "/login.js", "/common.js", "/page.css", "/page.js", "/icon.svg"] {
        assert_eq!(served.ask(target, "").await.0, 200, "{target}");
    }
    let (status, head, body) = served.ask("/login", "").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self';"));
    let page = String::from_utf8(body).unwrap();
    assert!(!page.contains("style=") && !page.contains(" onsubmit") && !page.contains("<style"));

    let (status, _, body) = served.ask(&src, &cookie).await;
    assert_eq!((status, body.len()), (200, LEN));
    let (_, _, body) = served.ask("/api/me", &cookie).await;
    let me: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(me, serde_json::json!({ "name": "anna", "is_owner": true, "accounts": true }));
    let (status, head, _) = served.send("POST", "/api/logout", &cookie, "{}").await;
    assert!(status == 200 && head.contains("set-cookie: session=; path=/; max-age=0;"), "{head}");
    assert_eq!(served.ask(&src, &cookie).await.0, 401);
}

#[tokio::test]
async fn who_guesses_is_told_to_wait() {
    let (served, _folder, _state) = with_anna().await;
    let (mut wrong, mut last) = (0, String::new());
    for _ in 0..20 {
        let (status, head, body) =
            served.send("POST", "/api/login", "", &login("anna", "guess")).await;
        last = format!("{head}{}", String::from_utf8(body).unwrap());
        match status {
            401 => wrong += 1,
            429 => break,
            _ => panic!("{last}"),
        }
    }
    assert!((3..20).contains(&wrong), "{wrong}: {last}");
    assert!(last.contains("\r\nretry-after: "), "{last}");
    let (status, _, _) = served.send("POST", "/api/login", "", &login("anna", PASSWORD)).await;
    assert_eq!(status, 429, "a right one is not told from a wrong one");
    // Nobody else is kept out by it.
    let (status, _, _) = served.send("POST", "/api/login", "", &login("ben", "guess")).await;
    assert_eq!(status, 401);
}

#[tokio::test]
async fn a_page_of_somebody_else_cannot_send_anything() {
    let (served, _folder, _state) = with_anna().await;
    let cookie = enter(&served, "anna").await;
    let body = login("anna", PASSWORD);
    for fields in [
        "Origin: https://evil.example\r\n",
        "Origin: null\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\n",
    ] {
        let fields = format!("{cookie}{fields}");
        for target in ["/api/login", "/api/logout"] {
            let (status, head, _) = served.send("POST", target, &fields, &body).await;
            assert_eq!(status, 403, "{fields}: {head}");
        }
    }
    let own = format!("{cookie}Origin: http://localhost:8080\r\nSec-Fetch-Site: same-origin\r\n");
    assert_eq!(served.send("POST", "/api/login", &own, &body).await.0, 200);
    let text = format!(
        "POST /api/logout HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{cookie}\
         Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    let said = served.say(text.as_bytes()).await;
    assert!(said.starts_with(b"HTTP/1.1 415 "), "a form can send text");
    for (body, status) in [
        (String::new(), 415),
        ("{".into(), 400),
        ("[]".into(), 400),
        ("{\"name\": \"anna\", \"password\": \"x\", \"more\": 1}".into(), 400),
        (login("anna", &"x".repeat(9000)), 413),
    ] {
        let (said, head, _) = served.send("POST", "/api/login", "", &body).await;
        assert_eq!(said, status, "{body:.60}: {head}");
    }
    assert_eq!(served.send("PUT", "/", &cookie, "{}").await.0, 405);
    assert_eq!(served.send("PUT", "/api/x", &cookie, "{}").await.0, 404);
}

#[tokio::test]
async fn each_viewer_goes_on_where_he_has_stopped() {
    let (_folder, state) = state();
    let accounts = Accounts::new(&state);
    accounts.add("anna", Role::Owner, PASSWORD).unwrap();
    accounts.add("ben", Role::Viewer, PASSWORD).unwrap();
    let served = with(&state).await;
    let (anna, ben) = (enter(&served, "anna").await, enter(&served, "ben").await);
    let video = async |cookie: &str| {
        let (_, _, body) = served.ask("/api/videos", cookie).await;
        serde_json::from_slice::<serde_json::Value>(&body).unwrap()["videos"][0].clone()
    };
    let first = video(&anna).await;
    assert!(first["position_s"].is_null());
    let target = format!("/api/position/{}", first["id"].as_str().unwrap());
    let put = async |target: &str, body: &str| served.send("PUT", target, &anna, body).await.0;
    assert_eq!(put(&target, "{\"position_s\": 61.5}").await, 200);
    assert_eq!(video(&anna).await["position_s"], 61.5);
    assert!(video(&ben).await["position_s"].is_null());
    assert_eq!(put("/api/position/0000000000000000", "{\"position_s\": 1}").await, 404);
    for body in ["{\"position_s\": -1}", "{\"position_s\": 1e300}", "{\"position_s\": \"1\"}"] {
        assert_eq!(put(&target, body).await, 400, "{body}");
    }
    let kept = state.path().join("positions.json");
    until("kept", async || std::fs::read_to_string(&kept).is_ok_and(|text| text.contains("61.5")))
        .await;
    assert_eq!(put(&target, "{\"position_s\": 0}").await, 200);
    assert!(video(&anna).await["position_s"].is_null());
}

#[tokio::test]
async fn a_link_shows_its_video_and_nothing_else() {
    let (served, _folder, state) = with_anna().await;
    let cookie = enter(&served, "anna").await;
    let (_, _, body) = served.ask("/api/videos", &cookie).await;
    let found: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let id = found["videos"][0]["id"].as_str().unwrap().to_owned();
    let shares = Shares::new(&state);
    let (name, token) = shares.add(&id, Duration::from_secs(3600)).unwrap();
    let (_, of_another) = shares.add("0123456789abcdef", Duration::from_secs(3600)).unwrap();
    let (_, short) = shares.add(&id, Duration::from_secs(1)).unwrap();
    until("known", async || served.ask(&format!("/s/{token}"), "").await.0 == 200).await;

    let (_, _, body) = served.ask(&format!("/s/{token}/api/videos"), "").await;
    let found: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(found["total"], 1);
    let src = found["videos"][0]["src"].as_str().unwrap();
    assert!(src.starts_with(&format!("/s/{token}/video/{id}/")), "{src}");
    let (status, head, body) = served.ask(src, "Range: bytes=0-99\r\n").await;
    assert_eq!((status, body.len()), (206, 100), "{head}");
    let (_, _, body) = served.ask(&format!("/s/{token}/api/homes"), "").await;
    assert!(String::from_utf8_lossy(&body).contains("attic"));

    // The same video by the link to another, and other things by a link that works.
    let other = served.ask(&format!("/s/{of_another}/video/{id}/video.mkv"), "").await;
    assert_eq!(other.0, 404);
    let (_, _, body) = served.ask(&format!("/s/{of_another}/api/videos"), "").await;
    assert!(String::from_utf8_lossy(&body).contains("\"total\":0"));
    let position = format!("/s/{token}/api/position/{id}");
    assert_eq!(served.send("PUT", &position, "", "{\"position_s\": 1}").await.0, 405);
    for target in [
        "/s/".to_owned(),
        "/s/x".into(),
        format!("/s/{}", &token[1..]),
        format!("/s/{token}x/api/videos"),
        format!("/s/{token}/s/{token}"),
        format!("/s/{token}/../../api/videos"),
        format!("/s/{token}/login"),
    ] {
        assert_eq!(served.ask(&target, "").await.0, 404, "{target}");
    }
    until("expired", async || served.ask(&format!("/s/{short}"), "").await.0 == 410).await;
    shares.remove(&name).unwrap();
    until("taken back", async || served.ask(src, "").await.0 == 404).await;
}

#[tokio::test]
async fn without_accounts_this_machine_alone_is_served() {
    let (_folder, state) = state();
    let served = with(&state).await;
    let me = served.json("/api/me").await;
    assert_eq!(me, serde_json::json!({ "name": null, "is_owner": true, "accounts": false }));
    let (status, ..) = served.send("POST", "/api/login", "", &login("anna", PASSWORD)).await;
    assert_eq!(status, 404);
    Accounts::new(&state).add("anna", Role::Viewer, PASSWORD).unwrap();
    until("asked for", async || served.ask("/api/me", "").await.0 == 401).await;
    Accounts::new(&state).remove("anna").unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(served.ask("/api/me", "").await.0, 401, "removing the last opens nothing");

    let catalogue = served.catalogue();
    let bound = async |state: &StateFolder, catalogue: &Path| {
        let opening = support::opening();
        let mut config = Config::new(([0, 0, 0, 0], 0).into(), opening);
        config.admission = Admission::Accounts(state.clone());
        media::Server::bind(config, catalogue.to_owned()).await.map(|_| ())
    };
    let refused = bound(&state, &catalogue).await.unwrap_err().to_string();
    assert!(refused.contains("would see every video"), "{refused}");
    Accounts::new(&state).add("anna", Role::Viewer, PASSWORD).unwrap();
    bound(&state, &catalogue).await.unwrap();
}
