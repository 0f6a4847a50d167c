//! What an owner sees and does, and what nobody else may.

#![allow(clippy::unwrap_used)] // helpers of tests fail as tests do

mod support;

use media::{Accounts, Admission, Role, StateFolder};
use serde_json::{Value, json};
use support::{Served, enter, serve, until};
use tempfile::TempDir;

fn state() -> (TempDir, StateFolder) {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::open(&folder.path().join("state")).unwrap();
    let accounts = Accounts::new(&state);
    accounts.add("anna", Role::Owner, support::PASSWORD).unwrap();
    accounts.add("ben", Role::Viewer, support::PASSWORD).unwrap();
    (folder, state)
}

async fn with(state: &StateFolder) -> Served {
    let admission = Admission::Accounts(state.clone());
    serve(true, |config| config.admission = admission).await
}

async fn json_of(served: &Served, target: &str, cookie: &str) -> Value {
    let (status, head, body) = served.ask(target, cookie).await;
    assert_eq!(status, 200, "{head}");
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn a_home_is_unplugged_until_its_owner_says_that_it_is_back() {
    let (_folder, state) = state();
    let served = with(&state).await;
    let (anna, ben) = (enter(&served, "anna").await, enter(&served, "ben").await);
    let videos = json_of(&served, "/api/videos", &ben).await;
    let src = videos["videos"][0]["src"].as_str().unwrap().to_owned();
    assert_eq!(served.ask(&src, &ben).await.0, 200);
    let owner = async |what: &str, body: &Value| {
        served.send("POST", &format!("/api/owner/{what}"), &anna, &body.to_string()).await.0
    };
    let attic = json!({ "home": "attic" });
    assert_eq!(owner("unplug", &attic).await, 200);
    let off = async |served: &Served, cookie: &str| {
        let (status, _, body) = served.ask(&src, cookie).await;
        (status, String::from_utf8(body).unwrap())
    };
    let (status, said) = off(&served, &ben).await;
    assert_eq!(status, 503);
    assert!(said.starts_with("the owner of the storage \"attic\" has it, since 20"), "{said}");
    let homes = json_of(&served, "/api/homes", &ben).await;
    assert_eq!(homes["homes"][0]["state"], "away");

    // It is so after a restart, too.
    let again = with(&state).await;
    let cookie = enter(&again, "ben").await;
    assert_eq!(off(&again, &cookie).await.0, 503);

    assert_eq!(owner("back", &attic).await, 200);
    until("back", async || served.ask(&src, &ben).await.0 == 200).await;
    for (what, body, expected) in [
        ("unplug", json!({ "home": "cellar" }), 404),
        ("back", json!({ "home": "cellar" }), 404),
        ("unplug", json!({ "hom": "attic" }), 400),
        ("nothing", attic.clone(), 404),
    ] {
        assert_eq!(owner(what, &body).await, expected, "{what} {body}");
    }
}

#[tokio::test]
async fn an_owner_makes_links_and_takes_them_back_and_a_viewer_does_not() {
    let (_folder, state) = state();
    let served = with(&state).await;
    let (anna, ben) = (enter(&served, "anna").await, enter(&served, "ben").await);
    for target in ["/owner", "/api/owner"] {
        assert_eq!(served.ask(target, &anna).await.0, 200, "{target}");
        assert_eq!(served.ask(target, &ben).await.0, 404, "{target}");
    }
    for what in ["unplug", "back", "share", "unshare"] {
        let target = format!("/api/owner/{what}");
        assert_eq!(served.send("POST", &target, &ben, "{}").await.0, 403, "{what}");
        assert_eq!(served.send("POST", &target, "", "{}").await.0, 401, "{what}");
    }
    let videos = json_of(&served, "/api/videos", &anna).await;
    let id = videos["videos"][0]["id"].as_str().unwrap();
    let share = async |video: &str, time_s: u64| {
        let body = json!({ "video": video, "time_s": time_s }).to_string();
        served.send("POST", "/api/owner/share", &anna, &body).await
    };
    assert_eq!(share("0000000000000000", 60).await.0, 404);
    assert_eq!(share(id, 0).await.0, 400);
    assert_eq!(share(id, u64::MAX).await.0, 400);
    let (status, head, body) = share(id, 60).await;
    assert_eq!(status, 200, "{head}");
    let made: Value = serde_json::from_slice(&body).unwrap();
    let path = made["path"].as_str().unwrap();
    assert_eq!(served.ask(path, "").await.0, 200, "at once");
    let seen = json_of(&served, "/api/owner", &anna).await;
    assert_eq!(seen["links"][0]["title"], "The Film");
    assert_eq!((&seen["can_share"], &seen["watching"]), (&json!(true), &json!([])));
    let link = json!({ "link": made["link"] }).to_string();
    let unshare = served.send("POST", "/api/owner/unshare", &anna, &link).await;
    assert_eq!(unshare.0, 200);
    assert_eq!(served.ask(path, "").await.0, 404, "at once");
    let again = served.send("POST", "/api/owner/unshare", &anna, &link).await;
    assert_eq!(again.0, 400);
}
