//! [`respond`]: the answer to a request for a file (RFC 9110: methods §9.3, conditions §13,
//! ranges §14, several of them in one body §14.6).

use std::ops::Range;

use block::Device;
use bytes::Bytes;
use files::{FileReader, Name};
use http_body_util::{Either, Full};
use hyper::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, HeaderName,
    HeaderValue, IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Response, StatusCode};
use sha2::{Digest, Sha256};

use crate::body::{FileBody, Segment};
use crate::range::Wanted;
use crate::text::hex;

/// What is sent: parts of a file, or what is in memory.
pub type AnyBody = Either<FileBody, Full<Bytes>>;

/// Bytes of the line between two parts, which no file can know.
const BOUNDARY_BYTES: usize = 16;

/// A file that is served.
#[derive(Clone)]
pub struct Resource {
    file: FileReader,
    etag: HeaderValue,
    content_type: &'static str,
}

impl Resource {
    /// An open file of the volume with this [identity](files::Identity::id), the name it has, and
    /// the [version](files::Entry::version) of its entry. The tag changes with each of them, so
    /// that a player never puts parts of two files together.
    pub fn new(file: FileReader, volume: &str, name: &Name, version: u64) -> Self {
        let mut hash = Sha256::new();
        hash.update(file.size().to_be_bytes());
        hash.update(version.to_be_bytes());
        hash.update(volume.as_bytes());
        let tag = format!("\"{}\"", hex(&hash.finalize()[..16]));
        let extension = name.as_bytes().rsplit(|byte| *byte == b'.').next();
        let content_type = content_type(extension.unwrap_or_default());
        // A tag is hexadecimal digits, so it is a value.
        let etag = HeaderValue::from_str(&tag).unwrap_or_else(|_| HeaderValue::from_static("\"\""));
        Self { file, etag, content_type }
    }

    /// Another text for other content: the tag without its quotes.
    pub fn version(&self) -> String {
        self.etag.to_str().unwrap_or_default().trim_matches('"').to_owned()
    }

    /// With its reads on another way.
    pub(crate) fn through(mut self, change: impl FnOnce(Device) -> Device) -> Self {
        self.file = self.file.through(change);
        self
    }

    /// The file.
    pub fn file(&self) -> &FileReader {
        &self.file
    }
}

/// What browsers want to be told of what they play. Nothing of a volume is ever a page.
pub(crate) fn content_type(extension: &[u8]) -> &'static str {
    match extension.to_ascii_lowercase().as_slice() {
        b"mp4" | b"m4v" => "video/mp4",
        b"webm" => "video/webm",
        b"mkv" => "video/x-matroska",
        b"mov" => "video/quicktime",
        b"avi" => "video/x-msvideo",
        b"mpg" | b"mpeg" => "video/mpeg",
        b"ts" | b"m2ts" => "video/mp2t",
        b"ogv" => "video/ogg",
        b"mp3" => "audio/mpeg",
        b"m4a" => "audio/mp4",
        b"flac" => "audio/flac",
        b"ogg" | b"opus" => "audio/ogg",
        b"jpg" | b"jpeg" => "image/jpeg",
        b"png" => "image/png",
        b"webp" => "image/webp",
        _ => "application/octet-stream",
    }
}

/// Answers a request for a file.
pub fn respond(method: &Method, fields: &HeaderMap, resource: &Resource) -> Response<AnyBody> {
    let size = resource.file.size();
    let is_get = method == Method::GET;
    if !is_get && method != Method::HEAD {
        let allowed = HeaderValue::from_static("GET, HEAD");
        return nothing(StatusCode::METHOD_NOT_ALLOWED, resource, [(ALLOW, allowed)]);
    }
    if fields.contains_key(IF_MATCH) && !names(fields, &IF_MATCH, &resource.etag, false) {
        return nothing(StatusCode::PRECONDITION_FAILED, resource, []);
    }
    if names(fields, &IF_NONE_MATCH, &resource.etag, true) {
        return nothing(StatusCode::NOT_MODIFIED, resource, []);
    }
    // A range is one of GET alone, and of this version alone if it says so.
    let wanted = match range(fields, resource).filter(|_| is_get) {
        Some(field) => Wanted::read(field, size),
        None => Wanted::Whole,
    };
    let (status, content) = match wanted {
        Wanted::Whole => (StatusCode::OK, whole(resource)),
        Wanted::Parts(parts) => (StatusCode::PARTIAL_CONTENT, part_or_parts(resource, &parts)),
        Wanted::Outside => {
            let fields = [(CONTENT_RANGE, value(format!("bytes */{size}")))];
            return nothing(StatusCode::RANGE_NOT_SATISFIABLE, resource, fields);
        }
    };
    let (mut fields, body) = content;
    fields.push((CONTENT_LENGTH, value(body.left().to_string())));
    fields.push((X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")));
    let body = if is_get { Either::Left(body) } else { Either::Right(Full::default()) };
    with(status, resource, fields, body)
}

/// Fields of a response, and its body.
type Content = (Vec<(HeaderName, HeaderValue)>, FileBody);

fn whole(resource: &Resource) -> Content {
    let all = Segment::Part(0..resource.file.size());
    let fields = vec![(CONTENT_TYPE, HeaderValue::from_static(resource.content_type))];
    (fields, FileBody::new(&resource.file, [all]))
}

/// One part is the body itself; several are told apart by lines between them.
fn part_or_parts(resource: &Resource, parts: &[Range<u64>]) -> Content {
    let (content_type, size) = (resource.content_type, resource.file.size());
    let told = |part: &Range<u64>| format!("bytes {}-{}/{size}", part.start, part.end - 1);
    if let [part] = parts {
        let fields = vec![
            (CONTENT_TYPE, HeaderValue::from_static(content_type)),
            (CONTENT_RANGE, value(told(part))),
        ];
        return (fields, FileBody::new(&resource.file, [Segment::Part(part.clone())]));
    }
    let boundary = boundary();
    let mut segments = Vec::with_capacity(2 * parts.len() + 1);
    for part in parts {
        let range = told(part);
        let head = format!(
            "\r\n--{boundary}\r\nContent-Type: {content_type}\r\nContent-Range: {range}\r\n\r\n"
        );
        segments.push(Segment::Text(head.into()));
        segments.push(Segment::Part(part.clone()));
    }
    segments.push(Segment::Text(format!("\r\n--{boundary}--\r\n").into()));
    let content_type = value(format!("multipart/byteranges; boundary={boundary}"));
    (vec![(CONTENT_TYPE, content_type)], FileBody::new(&resource.file, segments))
}

/// Drawn for each answer: a file that had it inside could pretend to end a part.
fn boundary() -> String {
    let mut bytes = [0; BOUNDARY_BYTES];
    if let Err(error) = getrandom::fill(&mut bytes) {
        // Zeroes are as valid; only a file that was made for it can make use of them.
        tracing::warn!(%error, "no random numbers");
    }
    hex(&bytes)
}

/// The range that is asked for, unless its condition does not hold: then it is the whole file. A
/// date is no condition that holds: file systems tell seconds, and FAT not even which.
fn range<'a>(fields: &'a HeaderMap, resource: &Resource) -> Option<&'a str> {
    if fields.get(IF_RANGE).is_some_and(|tag| *tag != resource.etag) {
        return None;
    }
    let mut values = fields.get_all(RANGE).iter();
    let field = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(field)
}

/// Whether a list of tags has this one, or `*`; where weak ones count, `W/` makes no difference.
fn names(fields: &HeaderMap, field: &HeaderName, tag: &HeaderValue, weak: bool) -> bool {
    let values = fields.get_all(field).iter().filter_map(|value| value.to_str().ok());
    let mut tags = values.flat_map(|value| value.split(',')).map(str::trim);
    tags.any(|named| {
        let strong = named.strip_prefix("W/").filter(|_| weak).unwrap_or(named);
        named == "*" || strong.as_bytes() == tag.as_bytes()
    })
}

fn nothing(
    status: StatusCode,
    resource: &Resource,
    fields: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
) -> Response<AnyBody> {
    with(status, resource, fields, Either::Right(Full::default()))
}

fn with(
    status: StatusCode,
    resource: &Resource,
    fields: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
    body: AnyBody,
) -> Response<AnyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(ETAG, resource.etag.clone());
    headers.extend(fields);
    response
}

/// Letters, digits and signs of ours alone, which is always a value.
fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("0"))
}
