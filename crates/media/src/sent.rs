//! [`sent`]: what the page's scripts send: a name and a password, where somebody has stopped, what
//! an owner wants. A page of somebody else cannot: its browser would ask first (for JSON), says
//! whose script it is, and keeps the cookie to itself.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Body;
use hyper::header::{CONTENT_TYPE, ORIGIN, SET_COOKIE};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::access::{Refused, Who};
use crate::answers::{Answer, json, later, nothing, text};
use crate::owner;
use crate::route::{App, is_own};

/// Bytes that are taken: a name, a password.
const BYTES_MAX: usize = 8 << 10;
/// How long they may take.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Answers who sends something.
pub(crate) async fn sent<B>(app: &Arc<App>, peer: IpAddr, head: &Parts, body: B) -> Answer
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if let Some(refusal) = foreign(app, head) {
        return refusal;
    }
    let body = match tokio::time::timeout(TIME_MAX, Limited::new(body, BYTES_MAX).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) => return text(StatusCode::PAYLOAD_TOO_LARGE, "at most 8 KiB are taken"),
        Err(_) => return text(StatusCode::REQUEST_TIMEOUT, "it took too long"),
    };
    let path = head.uri.path();
    if (&head.method, path) == (&Method::POST, "/api/login") {
        return log_in(app, peer, &body).await;
    }
    let Some(who) = app.access.who(&head.headers) else {
        return text(StatusCode::UNAUTHORIZED, "log in first");
    };
    match (&head.method, path) {
        (&Method::POST, "/api/logout") => {
            let mut answer = json(&json!({}));
            answer.headers_mut().insert(SET_COOKIE, app.access.log_out(&head.headers));
            answer
        }
        (&Method::POST, path) => match path.strip_prefix("/api/owner/") {
            Some(what) if who.is_owner() => owner::done(app, &who, what, &body).await,
            Some(_) => text(StatusCode::FORBIDDEN, "this is for owners"),
            None => nothing(),
        },
        (&Method::PUT, path) => match path.strip_prefix("/api/position/") {
            Some(id) => position(app, &who, id, &body),
            None => nothing(),
        },
        _ => nothing(),
    }
}

/// What comes from somebody else's page.
fn foreign(app: &App, head: &Parts) -> Option<Answer> {
    let field = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let kind = field(CONTENT_TYPE.as_str()).and_then(|kind| kind.split(';').next());
    if kind.is_none_or(|kind| !kind.trim().eq_ignore_ascii_case("application/json")) {
        let line = "Content-Type: application/json is expected";
        return Some(text(StatusCode::UNSUPPORTED_MEDIA_TYPE, line));
    }
    let is_own_page =
        |origin: &str| origin.split_once("://").is_some_and(|(_, host)| is_own(host, &app.names));
    let is_foreign = field("sec-fetch-site").is_some_and(|site| site != "same-origin")
        || field(ORIGIN.as_str()).is_some_and(|origin| !is_own_page(origin));
    is_foreign.then(|| text(StatusCode::FORBIDDEN, "this is for our own page"))
}

/// What was sent.
///
/// # Errors
/// What is expected instead.
pub(crate) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Box<Answer>> {
    serde_json::from_slice(body)
        .map_err(|error| Box::new(text(StatusCode::BAD_REQUEST, &error.to_string())))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    name: String,
    password: String,
}

async fn log_in(app: &Arc<App>, peer: IpAddr, body: &[u8]) -> Answer {
    if !app.access.has_accounts() {
        return text(StatusCode::NOT_FOUND, "there are no accounts");
    }
    let login: Login = match read(body) {
        Ok(login) => login,
        Err(answer) => return *answer,
    };
    match app.access.log_in(peer, &login.name, login.password).await {
        Ok(cookie) => {
            let mut answer = json(&json!({}));
            answer.headers_mut().insert(SET_COOKIE, cookie);
            answer
        }
        Err(Refused::Wrong) => {
            text(StatusCode::UNAUTHORIZED, "this is not the name and password of anybody")
        }
        Err(Refused::TooMany(wait)) => {
            let seconds = wait.as_secs() + 1;
            let line = format!("too much was tried: again in {seconds} s");
            later(StatusCode::TOO_MANY_REQUESTS, &line, seconds)
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Position {
    position_s: f64,
}

fn position(app: &App, who: &Who, id: &str, body: &[u8]) -> Answer {
    let Who::User { name, .. } = who else {
        return text(StatusCode::NOT_FOUND, "without accounts, a browser remembers it itself");
    };
    if !app.shelf.stock().catalogue.video(id).is_some_and(|video| who.may_see(video)) {
        return nothing();
    }
    match read::<Position>(body) {
        Ok(position) if app.access.set_position(name, id, position.position_s) => json(&json!({})),
        Ok(_) => text(StatusCode::BAD_REQUEST, "position_s: seconds from 0 up are allowed"),
        Err(answer) => *answer,
    }
}
