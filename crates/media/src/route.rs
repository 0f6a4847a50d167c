//! [`answer`]: which request is for what. Nothing of an address reaches a file system: it has an
//! identifier that the catalogue knows or does not know.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Either;
use hyper::body::Body;
use hyper::header::{
    ALLOW, CACHE_CONTROL, HOST, HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access::{Access, Who};
use crate::answers::{Answer, content, elsewhere, json, later, nothing, own, page, text};
use crate::catalogue::Video;
use crate::home::{Absence, Off};
use crate::lease::{Lease, Missing, Streaming};
use crate::owner;
use crate::remux::remuxed;
use crate::respond::{AnyBody, Resource, content_type, respond};
use crate::sent::sent;
use crate::shelf::{Shelf, Stock};
use crate::subtitles::{self, to_webvtt};
use crate::text::extension;
use crate::told;
use crate::uplinks::Door;
use crate::view::Sending;
use crate::watching::{Stream, Watchers};

/// How long a request waits for another one's place.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Requests that wait for a place; more are sent away.
pub(crate) const WAITING_MAX: usize = 64;
/// When it is worth asking again where all places are taken, in seconds.
const BUSY_RETRY_AFTER_S: u64 = 5;
/// How long the first bytes of a file may take that is believed to be as it was; then it is looked
/// up.
const BELIEVED_TIME_MAX: Duration = Duration::from_secs(4);
/// Bytes of a poster.
const POSTER_BYTES_MAX: u64 = 4 << 20;

const PAGE: &str = include_str!("../page/index.html");
const LOGIN: &str = include_str!("../page/login.html");
const OWNER: &str = include_str!("../page/owner.html");
const OWNER_SCRIPT: &str = include_str!("../page/owner.js");
const STYLE: &str = include_str!("../page/page.css");
const COMMON_SCRIPT: &str = include_str!("../page/common.js");
const SCRIPT: &str = include_str!("../page/page.js");
const REMUX_SCRIPT: &str = include_str!("../page/remux.js");
const LOGIN_SCRIPT: &str = include_str!("../page/login.js");
const ICON: &str = include_str!("../page/icon.svg");

/// What all requests share.
pub(crate) struct App {
    pub(crate) shelf: Shelf,
    /// Whom the port lets in that homes call.
    pub(crate) door: Option<Door>,
    pub(crate) access: Arc<Access>,
    pub(crate) watchers: Watchers,
    /// There are videos, and no way to find out which.
    pub(crate) is_private: bool,
    /// Names that the server has, besides its addresses.
    pub(crate) names: Vec<String>,
    /// Requests that may use storage at once.
    pub(crate) streams: Arc<Semaphore>,
    /// Those that may wait for that.
    pub(crate) waiting: Semaphore,
    /// Videos that may be remuxed at once.
    pub(crate) remuxes: Arc<Semaphore>,
}

/// Who asks for what.
pub(crate) struct Asked<'a> {
    pub(crate) head: &'a Parts,
    pub(crate) peer: IpAddr,
    pub(crate) who: Who,
    /// Begins all addresses that whoever asks may use: that of a link, or nothing.
    pub(crate) prefix: &'a str,
}

impl Asked<'_> {
    /// Two devices of one person are two viewers; several answers for one player are one.
    pub(crate) fn viewer(&self) -> String {
        format!("{} {}", self.who.shown(), self.peer)
    }

    /// As an owner sees what is sent.
    pub(crate) fn stream(&self, video: &Video) -> Stream {
        Stream {
            name: self.who.shown().to_owned(),
            address: self.peer.to_canonical(),
            video: video.id.clone(),
            home: video.home.clone(),
        }
    }
}

/// What a viewer is sent of, and what he holds meanwhile.
pub(crate) struct Taken {
    pub(crate) lease: Lease,
    /// Among those who use storage.
    pub(crate) place: OwnedSemaphorePermit,
    pub(crate) resource: Resource,
    /// What the file was when it was looked at.
    pub(crate) sending: Sending,
}

/// The use of a home, and a place among those who use storage.
type Entered = (Lease, OwnedSemaphorePermit);

/// Answers any request.
pub(crate) async fn answer<B>(app: &Arc<App>, peer: IpAddr, request: Request<B>) -> Answer
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (head, body) = request.into_parts();
    let mut answer = match refusal(app, &head) {
        Some(refusal) => refusal,
        None if is_look(&head.method) => look(app, peer, &head).await,
        None => sent(app, peer, &head, body).await,
    };
    let fields = answer.headers_mut();
    fields.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    fields.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    let own = HeaderValue::from_static("same-origin");
    fields.insert(HeaderName::from_static("cross-origin-resource-policy"), own);
    answer
}

fn is_look(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// What is wrong with a request, whatever it is for.
fn refusal(app: &App, head: &Parts) -> Option<Answer> {
    let is_sent = matches!(head.method, Method::POST | Method::PUT)
        && !app.is_private
        && head.uri.path().starts_with("/api/");
    if !is_look(&head.method) && !is_sent {
        let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD are allowed");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Some(answer);
    }
    let host = head.headers.get(HOST).and_then(|host| host.to_str().ok());
    match host.or_else(|| head.uri.host()) {
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
pub(crate) fn is_own(host: &str, names: &[String]) -> bool {
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_named = |name: &str| bare.eq_ignore_ascii_case(name);
    bare.parse::<IpAddr>().is_ok() || is_named("localhost") || names.iter().any(|one| is_named(one))
}

/// Answers whoever looks at something.
async fn look(app: &App, peer: IpAddr, head: &Parts) -> Answer {
    let path = head.uri.path();
    let mut asked = Asked { head, peer, who: Who::Anybody { is_owner: false }, prefix: "" };
    if app.is_private {
        return match parts(path)[..] {
            ["video", id, _] => video(app, &asked, id).await,
            _ => nothing(),
        };
    }
    match path {
        "/page.css" => return own(STYLE, "text/css; charset=utf-8"),
        "/common.js" => return own(COMMON_SCRIPT, "text/javascript; charset=utf-8"),
        "/remux.js" => return own(REMUX_SCRIPT, "text/javascript; charset=utf-8"),
        "/page.js" => return own(SCRIPT, "text/javascript; charset=utf-8"),
        "/login.js" => return own(LOGIN_SCRIPT, "text/javascript; charset=utf-8"),
        "/icon.svg" => return own(ICON, "image/svg+xml"),
        "/login" => return page(LOGIN),
        "/owner.js" => return own(OWNER_SCRIPT, "text/javascript; charset=utf-8"),
        _ => {}
    }
    if let Some(rest) = path.strip_prefix("/s/") {
        let (token, rest) = rest.split_once('/').unwrap_or((rest, ""));
        asked.prefix = &path[.."/s/".len() + token.len()];
        return match app.access.guest(token) {
            Some(Ok(who)) => route(app, &Asked { who, ..asked }, rest).await,
            Some(Err(())) => text(StatusCode::GONE, "this link has expired: ask for a new one"),
            None => text(StatusCode::NOT_FOUND, "this link is none that works"),
        };
    }
    match app.access.who(&head.headers) {
        Some(who) => route(app, &Asked { who, ..asked }, path).await,
        None if path == "/" || path == "/owner" => elsewhere(StatusCode::SEE_OTHER, "/login"),
        None => text(StatusCode::UNAUTHORIZED, "log in first"),
    }
}

fn parts(path: &str) -> Vec<&str> {
    path.strip_prefix('/').unwrap_or(path).splitn(4, '/').collect()
}

/// Answers who may be here.
async fn route(app: &App, asked: &Asked<'_>, path: &str) -> Answer {
    match parts(path)[..] {
        ["video", id, _] => video(app, asked, id).await,
        ["remux", id, _] => remuxed(app, asked, id).await,
        ["poster", id] => match app.shelf.stock().catalogue.video(id) {
            Some(video) if asked.who.may_see(video) => poster(video).await,
            _ => nothing(),
        },
        ["subtitles", id, name] => subtitles(app, asked, id, name).await,
        [""] => page(PAGE),
        ["owner"] if asked.who.is_owner() => page(OWNER),
        ["api", "owner"] if asked.who.is_owner() => json(&owner::seen(app, &asked.who)),
        ["api", "me"] => json(&told::me(app, &asked.who)),
        ["api", "videos"] => {
            match told::videos(app, asked, asked.head.uri.query().unwrap_or_default()) {
                Ok(found) => json(&found),
                Err(problem) => text(StatusCode::BAD_REQUEST, &problem),
            }
        }
        ["api", "homes"] => {
            let stock = app.shelf.stock();
            told::homes_of(&stock, &asked.who).for_each(|home| home.look());
            json(&told::homes(&stock, &asked.who))
        }
        _ => nothing(),
    }
}

fn off(off: &Off) -> Answer {
    let (name, since) = (&off.name, told::time(off.since));
    let line = match off.absence {
        Absence::Away => format!("the owner of the storage {name:?} has it, since {since}"),
        Absence::Damaged => format!("the storage {name:?} cannot be read, since {since}"),
        Absence::Edited => format!("the storage {name:?} is being edited, since {since}"),
        Absence::Off => format!("the storage {name:?} is off, since {since}"),
    };
    later(StatusCode::SERVICE_UNAVAILABLE, &line, off.retry_after.as_secs() + 1)
}

/// Why a file cannot be had.
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

    /// A video's file for who asks for it, and the use of its home.
    pub(crate) async fn take(
        &self,
        stock: &Stock,
        video: &Video,
        asked: &Asked<'_>,
    ) -> Result<Taken, Box<Answer>> {
        let entered = self.enter(stock, video).await?;
        taken(entered, video, asked).await
    }

    /// The use of a video's home.
    async fn enter(&self, stock: &Stock, video: &Video) -> Result<Entered, Box<Answer>> {
        let Some(place) = self.place().await else {
            return Err(Box::new(later(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many are watching: try again",
                BUSY_RETRY_AFTER_S,
            )));
        };
        // Every home that a video names is there: the catalogue was checked.
        let home = stock.homes.get(&video.home).ok_or_else(|| Box::new(nothing()))?;
        let lease = home.enter().await.map_err(|storage| Box::new(off(&storage)))?;
        Ok((lease, place))
    }
}

/// A video's file as it is now.
async fn taken(
    (lease, place): Entered,
    video: &Video,
    asked: &Asked<'_>,
) -> Result<Taken, Box<Answer>> {
    let shared = lease.shared_file(&video.path, asked.viewer()).await;
    let (resource, sending) = shared.map_err(|error| Box::new(missing(&error)))?;
    Ok(Taken { lease, place, resource, sending })
}

async fn video(app: &App, asked: &Asked<'_>, id: &str) -> Answer {
    let stock = app.shelf.stock();
    let found = stock.catalogue.video(id).filter(|video| asked.who.may_see(video));
    let Some(video) = found else { return nothing() };
    let (lease, place) = match app.enter(&stock, video).await {
        Ok(entered) => entered,
        Err(answer) => return *answer,
    };
    let taken = match lease.believed_file(&video.path, asked.viewer()).await {
        Some((resource, sending)) => {
            let believed = Taken { lease, place, resource, sending };
            if let Some(answer) = begun(streamed(app, asked, video, believed)).await {
                return answer;
            }
            app.take(&stock, video, asked).await
        }
        None => taken((lease, place), video, asked).await,
    };
    match taken {
        Ok(taken) => streamed(app, asked, video, taken).map(Either::Left),
        Err(answer) => *answer,
    }
}

/// The answer to whoever wants a file or a part of it.
fn streamed(app: &App, asked: &Asked<'_>, video: &Video, taken: Taken) -> Response<AnyBody> {
    let Taken { lease, place, resource, sending } = taken;
    let watching = app.watchers.enter(asked.stream(video));
    let answer = respond(&asked.head.method, &asked.head.headers, &resource);
    let mut answer = answer.map(|body| match body {
        Either::Left(body) => Either::Left(body.with_holder(Box::new(Streaming {
            lease: Arc::new(lease),
            _place: place,
            watching,
            sending: Arc::new(tokio::sync::Mutex::new(Some(sending))),
        }))),
        nothing => nothing,
    });
    let control = HeaderValue::from_static("private, no-cache");
    answer.headers_mut().insert(CACHE_CONTROL, control);
    answer
}

/// The answer about a file that is believed to be as it was, once that is confirmed with the first
/// bytes. None: it is not, or nothing of the file is sent.
async fn begun(answer: Response<AnyBody>) -> Option<Answer> {
    let (head, body) = answer.into_parts();
    let Either::Left(mut body) = body else { return None };
    let is_begun = tokio::time::timeout(BELIEVED_TIME_MAX, body.begin()).await;
    is_begun.is_ok_and(|is_begun| is_begun).then_some(())?;
    Some(Response::from_parts(head, Either::Left(Either::Left(body))))
}

async fn subtitles(app: &App, asked: &Asked<'_>, id: &str, name: &str) -> Answer {
    let stock = app.shelf.stock();
    let number = name.strip_suffix(".vtt").and_then(|number| number.parse::<usize>().ok());
    let found = stock.catalogue.video(id).filter(|video| asked.who.may_see(video));
    let Some(video) = found else { return nothing() };
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

/// A picture, of the catalogue itself or of this machine.
async fn poster(video: &Video) -> Answer {
    if let Some(picture) = &video.thumbnail {
        return content(picture.clone(), "image/jpeg", "private, max-age=300");
    }
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
