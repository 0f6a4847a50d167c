//! What an owner sees and does: who watches what from where, storage that he takes away and brings
//! back, links to single videos.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::access::{Shares, Who};
use crate::answers::{Answer, json, nothing, text};
use crate::route::App;
use crate::sent::read;
use crate::state::ChangeError;
use crate::told;

/// What his page shows.
pub(crate) fn seen(app: &App, who: &Who) -> Value {
    let stock = app.shelf.stock();
    let video = |id: &str| stock.catalogue.video(id).filter(|video| who.may_see(video));
    let title = |id: &str| video(id).map(|video| video.title.clone());
    let watching = app.watchers.seen().into_iter().map(|one| {
        json!({
            "name": one.stream.name,
            "address": one.stream.address.to_string(),
            "video": one.stream.video,
            "title": title(&one.stream.video),
            "home": one.stream.home,
            "since": told::time(one.since),
            "bytes": one.bytes,
        })
    });
    let shares = app.access.shares().and_then(|shares| shares.list().ok()).unwrap_or_default();
    let shares = shares.into_iter().map(|(id, share)| {
        json!({ "link": id, "title": title(&share.video), "until": told::time_text(share.until) })
    });
    let mut all = told::homes(&stock, who);
    all["watching"] = watching.collect();
    all["links"] = shares.collect();
    all["can_share"] = app.access.has_accounts().into();
    all
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Home {
    home: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Share {
    video: String,
    time_s: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    link: String,
}

/// Does what he asks for.
pub(crate) async fn done(app: &Arc<App>, who: &Who, what: &str, body: &[u8]) -> Answer {
    let answer = match what {
        "unplug" => match read::<Home>(body) {
            Ok(asked) => return unplug(app, asked.home).await,
            Err(answer) => Err(answer),
        },
        "back" => written(app, body, |app, asked: Home| take_back(app, &asked.home)).await,
        "share" => {
            let who = who.clone();
            written(app, body, move |app, asked: Share| share(app, &who, &asked)).await
        }
        "unshare" => written(app, body, |app, asked: Link| unshare(app, &asked.link)).await,
        _ => Ok(nothing()),
    };
    answer.unwrap_or_else(|answer| *answer)
}

/// Does what writes a file down, which may take as long as a disk does.
async fn written<T: DeserializeOwned + Send + 'static>(
    app: &Arc<App>,
    body: &[u8],
    act: impl FnOnce(&App, T) -> Answer + Send + 'static,
) -> Result<Answer, Box<Answer>> {
    let (app, asked) = (Arc::clone(app), read::<T>(body)?);
    tokio::task::spawn_blocking(move || act(&app, asked)).await.map_err(|error| {
        warn!(%error, "what an owner asked for");
        Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, "it went wrong: see the log"))
    })
}

/// Ends what is sent from a home and logs out: then it can be unplugged. Nobody looks for it until
/// it is said to be back.
async fn unplug(app: &Arc<App>, name: String) -> Answer {
    let Some(home) = app.shelf.stock().homes.get(&name).cloned() else { return nothing() };
    let (noting, of_home) = (Arc::clone(app), name.clone());
    let noted = tokio::task::spawn_blocking(move || noting.shelf.set_away(&of_home, true)).await;
    let ended = app.watchers.end(&name, "its owner unplugs the storage");
    home.close().await;
    info!(home = name, ended, "unplugged by its owner");
    if let Ok(Err(error)) = noted {
        warn!(%error, "that a home is away is forgotten when the server ends");
    }
    json(&json!({ "ended": ended }))
}

fn take_back(app: &App, name: &str) -> Answer {
    let stock = app.shelf.stock();
    let Some(home) = stock.homes.get(name) else { return nothing() };
    if let Err(error) = app.shelf.set_away(name, false) {
        warn!(%error, "that a home is back is forgotten when the server ends");
    }
    home.look();
    json(&json!({}))
}

fn share(app: &App, who: &Who, asked: &Share) -> Answer {
    let stock = app.shelf.stock();
    let video = stock.catalogue.video(&asked.video).filter(|video| who.may_see(video));
    let Some(video) = video else { return nothing() };
    if video.visible_to.is_some() {
        let why = "it is for some accounts, and a link has none";
        return text(StatusCode::BAD_REQUEST, why);
    }
    with_shares(app, |shares| {
        let (link, token) = shares.add(&asked.video, Duration::from_secs(asked.time_s))?;
        Ok(json!({ "link": link, "path": format!("/s/{token}") }))
    })
}

fn unshare(app: &App, link: &str) -> Answer {
    with_shares(app, |shares| shares.remove(link).map(|()| json!({})))
}

fn with_shares(app: &App, act: impl FnOnce(&Shares) -> Result<Value, ChangeError>) -> Answer {
    let Some(shares) = app.access.shares() else { return nothing() };
    match act(shares) {
        Ok(value) => {
            app.access.reload_shares();
            json(&value)
        }
        Err(ChangeError::Wrong(what)) => text(StatusCode::BAD_REQUEST, &what),
        Err(error) => {
            warn!(%error, "links");
            text(StatusCode::INTERNAL_SERVER_ERROR, "it cannot be written down: see the log")
        }
    }
}
