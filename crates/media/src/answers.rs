//! Answers that are in memory: texts, our own pages, what is told when something is not there.

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, LOCATION, RETRY_AFTER,
};
use hyper::{Response, StatusCode};
use serde_json::Value;

use crate::remux::Remuxed;
use crate::respond::AnyBody;

/// Any answer.
pub(crate) type Answer = Response<Either<AnyBody, Remuxed>>;

/// No script, style or picture but our own, nothing inline; nobody shows the page in a frame. Its
/// scripts send what is typed into a form, a browser itself does not; and they feed a player what
/// is remuxed (`blob:` is of a page's own making).
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// A page of ours.
pub(crate) fn page(text: &'static str) -> Answer {
    let mut page = own(text, "text/html; charset=utf-8");
    let policy = HeaderValue::from_static(POLICY);
    page.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    page
}

/// A file of ours.
pub(crate) fn own(text: &'static str, content_type: &'static str) -> Answer {
    content(text, content_type, "no-cache")
}

/// Any content.
pub(crate) fn content(
    body: impl Into<Bytes>,
    content_type: &'static str,
    cache_control: &'static str,
) -> Answer {
    let mut answer = Response::new(Either::Left(Either::Right(Full::new(body.into()))));
    let fields = answer.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static(cache_control));
    answer
}

/// What a script asked for.
pub(crate) fn json(value: &Value) -> Answer {
    content(value.to_string(), "application/json", "no-store")
}

/// A line for whoever looks.
pub(crate) fn text(status: StatusCode, line: &str) -> Answer {
    let mut answer = content(format!("{line}\n"), "text/plain; charset=utf-8", "no-store");
    *answer.status_mut() = status;
    answer
}

/// There is no such thing, or none for whoever asks.
pub(crate) fn nothing() -> Answer {
    text(StatusCode::NOT_FOUND, "there is nothing of this name")
}

/// A request that may succeed later.
pub(crate) fn later(status: StatusCode, line: &str, retry_after_s: u64) -> Answer {
    let mut answer = text(status, line);
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_after_s.max(1)));
    answer
}

/// What is asked for is at another address.
pub(crate) fn elsewhere(status: StatusCode, address: &str) -> Answer {
    let mut answer = text(status, address);
    if let Ok(value) = HeaderValue::from_str(address) {
        answer.headers_mut().insert(LOCATION, value);
    }
    answer
}
