//! What the page is told: who looks at it, videos and homes, as JSON.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use files::Timestamp;
use serde_json::{Value, json};

use crate::access::Who;
use crate::catalogue::Video;
use crate::home::{Absence, Home, Status};
use crate::remux::Way;
use crate::respond::content_type;
use crate::route::{App, Asked};
use crate::shelf::Stock;
use crate::text::extension;

/// Videos of one answer, unless fewer are asked for.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 500;
/// Bytes of a search.
const QUERY_BYTES_MAX: usize = 1024;

/// Who looks.
pub(crate) fn me(app: &App, who: &Who) -> Value {
    let name = match who {
        Who::User { name, .. } => Some(name),
        _ => None,
    };
    json!({ "name": name, "is_owner": who.is_owner(), "accounts": app.access.has_accounts() })
}

/// The videos that a query asks for: `q`, words; `sort`, an order; `offset` and `limit`, a part of
/// what is found.
///
/// # Errors
/// What is wrong with the query.
pub(crate) fn videos(app: &App, asked: &Asked<'_>, query: &str) -> Result<Value, String> {
    let (mut words, mut offset, mut limit) = (String::new(), 0, LIMIT);
    let mut is_newest_first = false;
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "q" if value.len() > QUERY_BYTES_MAX => {
                return Err(format!("q: at most {QUERY_BYTES_MAX} bytes are allowed"));
            }
            "q" => words = value.into_owned(),
            "offset" => offset = number("offset", &value, usize::MAX)?,
            "limit" => limit = number("limit", &value, LIMIT_MAX)?,
            "sort" => {
                is_newest_first = match &*value {
                    "title" => false,
                    "newest" => true,
                    _ => return Err("sort: title or newest is allowed".into()),
                };
            }
            _ => return Err("allowed are q, sort, offset and limit".into()),
        }
    }
    let stock = app.shelf.stock();
    let found = stock.catalogue.search(&words).filter(|video| asked.who.may_see(video));
    let mut found: Vec<&Video> = found.collect();
    if is_newest_first {
        // Those of which it is not known are the last; those of one time are in order of title.
        found.sort_by_key(|video| Reverse(video.recorded));
    }
    let shown = found.iter().skip(offset).take(limit);
    let shown = shown.map(|video| {
        let position = app.access.position(&asked.who, &video.id);
        one(video, asked.prefix, position)
    });
    Ok(json!({
        "total": found.len(),
        "offset": offset,
        "videos": shown.collect::<Vec<_>>(),
    }))
}

fn number(key: &str, text: &str, max: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number <= max);
    number.ok_or_else(|| match max {
        usize::MAX => format!("{key}: a number is allowed"),
        max => format!("{key}: a number up to {max} is allowed"),
    })
}

fn one(video: &Video, prefix: &str, position: Option<f64>) -> Value {
    let id = &video.id;
    // Players of phones look at the end of an address to know what it is.
    let extension = extension(&video.path).unwrap_or_else(|| "bin".into());
    let subtitles = video.subtitles.iter().enumerate().map(|(number, one)| {
        json!({
            "src": format!("{prefix}/subtitles/{id}/{number}.vtt"),
            "language": one.language,
            "label": one.label,
        })
    });
    let remux = match Way::of(video) {
        Way::AsItIs => Value::Null,
        way => json!({
            "src": format!("{prefix}/remux/{id}/video.mp4"),
            "is_only_way": way == Way::Remuxed,
        }),
    };
    let has_picture = video.poster.is_some() || video.thumbnail.is_some();
    json!({
        "id": id,
        "title": video.title,
        "home": video.home,
        "src": format!("{prefix}/video/{id}/video.{extension}"),
        "type": content_type(extension.as_bytes()),
        "remux": remux,
        "poster": has_picture.then(|| format!("{prefix}/poster/{id}")),
        "subtitles": subtitles.collect::<Vec<_>>(),
        "tags": video.tags,
        "duration_s": video.duration_s,
        "bytes": video.bytes,
        "recorded": video.recorded.map(|recorded| recorded.to_string()),
        "container": video.container,
        "video_codec": video.video_codec,
        "audio_codec": video.audio_codec,
        "position_s": position,
    })
}

/// Homes that somebody may know of, in the order of the catalogue.
pub(crate) fn homes_of<'a>(stock: &'a Stock, who: &'a Who) -> impl Iterator<Item = &'a Arc<Home>> {
    let only = match who {
        Who::Guest { video } => stock.catalogue.video(video).map(|video| video.home.as_str()),
        _ => None,
    };
    let is_shown = move |name: &str| only.is_none_or(|only| only == name);
    let homes = stock.catalogue.homes().iter().filter(move |spec| is_shown(&spec.name));
    homes.filter_map(|spec| stock.homes.get(&spec.name))
}

/// What is known of them.
pub(crate) fn homes(stock: &Stock, who: &Who) -> Value {
    json!({ "homes": homes_of(stock, who).map(|home| condition(home)).collect::<Vec<_>>() })
}

fn condition(home: &Home) -> Value {
    let (state, since) = match home.status() {
        Status::Unknown => ("unknown", None),
        Status::Ready => ("ready", None),
        Status::On => ("on", None),
        Status::Off(off) => {
            let state = match off.absence {
                Absence::Off => "off",
                Absence::Damaged => "damaged",
                Absence::Away => "away",
                Absence::Edited => "edited",
            };
            (state, Some(time(off.since)))
        }
    };
    json!({ "name": home.spec().name, "state": state, "since": since })
}

/// As people and browsers read it.
pub(crate) fn time(time: SystemTime) -> String {
    time_text(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Seconds since 1970 as people and browsers read them.
pub fn time_text(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    Timestamp { seconds, nanos: 0, is_utc: true }.to_string()
}
