//! [`answer`]: which request is for what. Nothing of an address reaches a file system: it has an
//! identifier that the catalogue knows or does not know.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
    HeaderValue, REFERRER_POLICY, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::catalogue::Video;
use crate::home::Off;
use crate::json;
use crate::lease::{Lease, Missing, Streaming};
use crate::respond::{AnyBody, content_type, respond};
use crate::shelf::{Shelf, Stock};
use crate::subtitles::{self, to_webvtt};
use crate::text::extension;

/// How long a request waits for another one's place.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Requests that wait for a place; more are sent away.
pub(crate) const WAITING_MAX: usize = 64;
/// When it is worth asking again where all places are taken, in seconds.
const BUSY_RETRY_AFTER_S: u64 = 5;
/// Bytes of a poster.
const POSTER_BYTES_MAX: u64 = 4 << 20;

/// No script, style or picture but our own, nothing inline; nobody shows the page in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      media-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

const PAGE: &str = include_str!("../page/index.html");
const STYLE: &str = include_str!("../page/page.css");
const SCRIPT: &str = include_str!("../page/page.js");
const ICON: &str = include_str!("../page/icon.svg");

/// What all requests share.
pub(crate) struct App {
    pub(crate) shelf: Shelf,
    /// There are videos, and no way to find out which.
    pub(crate) is_private: bool,
    /// Names that the server has, besides its addresses.
    pub(crate) names: Vec<String>,
    /// Requests that may use storage at once.
    pub(crate) streams: Arc<Semaphore>,
    /// Those that may wait for that.
    pub(crate) waiting: Semaphore,
}

type Answer = Response<AnyBody>;

/// Answers any request; its body does not matter.
pub(crate) async fn answer<B>(app: &App, request: &Request<B>) -> Answer {
    let mut answer = match refusal(app, request) {
        Some(refusal) => refusal,
        None => route(app, request).await,
    };
    let fields = answer.headers_mut();
    fields.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    fields.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let own = HeaderValue::from_static("same-origin");
    fields.insert(HeaderName::from_static("cross-origin-resource-policy"), own);
    answer
}

/// What is wrong with a request, whatever it is for.
fn refusal<B>(app: &App, request: &Request<B>) -> Option<Answer> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD are allowed");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Some(answer);
    }
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    match host.or_else(|| request.uri().host()) {
        Some(host) if is_own(host, &app.names) => None,
        Some(_) => Some(text(
            StatusCode::MISDIRECTED_REQUEST,
            "this server answers to its addresses, to localhost, and to what --name says",
        )),
        None => Some(text(StatusCode::BAD_REQUEST, "Host is missing")),
    }
}

/// A page of somebody else can have a browser ask us under a name of its own that leads here, and
/// read the answer; under an address it cannot.
fn is_own(host: &str, names: &[String]) -> bool {
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_named = |name: &str| bare.eq_ignore_ascii_case(name);
    bare.parse::<IpAddr>().is_ok() || is_named("localhost") || names.iter().any(|one| is_named(one))
}

async fn route<B>(app: &App, request: &Request<B>) -> Answer {
    let path = request.uri().path();
    let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).splitn(4, '/').collect();
    match parts[..] {
        ["video", id, _] => video(app, request.method(), request.headers(), id).await,
        _ if app.is_private => nothing(),
        [""] => page(),
        ["page.css"] => own(STYLE, "text/css; charset=utf-8"),
        ["page.js"] => own(SCRIPT, "text/javascript; charset=utf-8"),
        ["icon.svg"] => own(ICON, "image/svg+xml"),
        ["api", "videos"] => {
            match json::videos(&app.shelf.stock(), request.uri().query().unwrap_or_default()) {
                Ok(found) => content(found.to_string(), "application/json", "no-store"),
                Err(problem) => text(StatusCode::BAD_REQUEST, &problem),
            }
        }
        ["api", "homes"] => {
            let stock = app.shelf.stock();
            stock.homes.values().for_each(|home| home.look());
            content(json::homes(&stock).to_string(), "application/json", "no-store")
        }
        ["poster", id] => match app.shelf.stock().catalogue.video(id) {
            Some(video) => poster(video).await,
            None => nothing(),
        },
        ["subtitles", id, name] => subtitles(app, id, name).await,
        _ => nothing(),
    }
}

fn page() -> Answer {
    let mut page = own(PAGE, "text/html; charset=utf-8");
    let policy = HeaderValue::from_static(POLICY);
    page.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    page
}

fn own(text: &'static str, content_type: &'static str) -> Answer {
    content(text, content_type, "no-cache")
}

fn content(
    body: impl Into<Bytes>,
    content_type: &'static str,
    cache_control: &'static str,
) -> Answer {
    let mut answer = Response::new(Either::Right(Full::new(body.into())));
    let fields = answer.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static(cache_control));
    answer
}

/// A line for whoever looks.
pub(crate) fn text(status: StatusCode, line: &str) -> Answer {
    let mut answer = content(format!("{line}\n"), "text/plain; charset=utf-8", "no-store");
    *answer.status_mut() = status;
    answer
}

fn nothing() -> Answer {
    text(StatusCode::NOT_FOUND, "there is nothing of this name")
}

/// A request that may succeed later.
fn later(line: &str, retry_after_s: u64) -> Answer {
    let mut answer = text(StatusCode::SERVICE_UNAVAILABLE, line);
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_after_s.max(1)));
    answer
}

fn off(off: &Off) -> Answer {
    let (name, since) = (&off.name, json::time(off.since));
    let line = if off.is_damaged {
        format!("the storage {name:?} cannot be read, since {since}")
    } else {
        format!("the storage {name:?} is off, since {since}")
    };
    later(&line, off.retry_after.as_secs() + 1)
}

fn missing(missing: &Missing) -> Answer {
    match missing {
        Missing::NoFile(_) => text(StatusCode::NOT_FOUND, "its storage has no such file any more"),
        // What exactly is wrong with whose disk is in the log.
        Missing::Unreadable(_) => {
            text(StatusCode::INTERNAL_SERVER_ERROR, "the file cannot be read: it is damaged")
        }
        Missing::Off(storage) => off(storage),
    }
}

impl App {
    /// A place among those who use storage; none if too many wait already, or it takes too long.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.streams).try_acquire_owned() {
            return Some(place);
        }
        let _waiting = self.waiting.try_acquire().ok()?;
        let place = Arc::clone(&self.streams).acquire_owned();
        tokio::time::timeout(WAIT_MAX, place).await.ok()?.ok()
    }

    /// The use of a video's home.
    async fn enter(
        &self,
        stock: &Stock,
        video: &Video,
    ) -> Result<(Lease, OwnedSemaphorePermit), Box<Answer>> {
        let Some(place) = self.place().await else {
            return Err(Box::new(later("too many are watching: try again", BUSY_RETRY_AFTER_S)));
        };
        // Every home that a video names is there: the catalogue was checked.
        let home = stock.homes.get(&video.home).ok_or_else(|| Box::new(nothing()))?;
        let lease = home.enter().await.map_err(|storage| Box::new(off(&storage)))?;
        Ok((lease, place))
    }
}

async fn video(app: &App, method: &Method, fields: &HeaderMap, id: &str) -> Answer {
    let stock = app.shelf.stock();
    let Some(video) = stock.catalogue.video(id) else { return nothing() };
    let (lease, place) = match app.enter(&stock, video).await {
        Ok(entered) => entered,
        Err(answer) => return *answer,
    };
    let resource = match lease.file(&video.path).await {
        Ok(resource) => resource,
        Err(error) => return missing(&error),
    };
    let mut answer = respond(method, fields, &resource).map(|body| match body {
        Either::Left(body) => Either::Left(body.with_holder(Box::new(Streaming(lease, place)))),
        nothing => nothing,
    });
    let control = HeaderValue::from_static("private, no-cache");
    answer.headers_mut().insert(CACHE_CONTROL, control);
    answer
}

async fn subtitles(app: &App, id: &str, name: &str) -> Answer {
    let stock = app.shelf.stock();
    let number = name.strip_suffix(".vtt").and_then(|number| number.parse::<usize>().ok());
    let Some(video) = stock.catalogue.video(id) else { return nothing() };
    let Some(one) = number.and_then(|number| video.subtitles.get(number)) else { return nothing() };
    let (lease, _place) = match app.enter(&stock, video).await {
        Ok(entered) => entered,
        Err(answer) => return *answer,
    };
    match lease.content(&one.path, subtitles::BYTES_MAX).await {
        Ok(bytes) => content(to_webvtt(&bytes), "text/vtt; charset=utf-8", "private, no-cache"),
        Err(error) => missing(&error),
    }
}

/// A picture of this machine.
async fn poster(video: &Video) -> Answer {
    let Some(path) = &video.poster else { return nothing() };
    let read = async {
        // A pipe of that name would be waited for for ever.
        let metadata = tokio::fs::metadata(path).await?;
        if !metadata.is_file() || metadata.len() > POSTER_BYTES_MAX {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        tokio::fs::read(path).await
    };
    match read.await {
        Ok(bytes) => {
            let extension = extension(&path.to_string_lossy()).unwrap_or_default();
            content(bytes, content_type(extension.as_bytes()), "private, max-age=300")
        }
        Err(error) => {
            let shown = path.display();
            tracing::warn!(poster = %shown, %error, "cannot be shown");
            nothing()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_addresses_and_the_names_it_was_given() {
        let names = ["films.example".to_owned()];
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "[::1]:8080",
            "[fe80::1]",
            "localhost:8080",
            "LOCALHOST",
            "films.example",
            "Films.Example:443",
            "192.0.2.1:80",
        ] {
            assert!(is_own(host, &names), "{host}");
        }
        for host in
            ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "[", "[]"]
        {
            assert!(!is_own(host, &names), "{host}");
        }
    }
}
