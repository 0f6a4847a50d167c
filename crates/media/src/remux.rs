//! [`remuxed`]: a video that browsers do not play only because of its container. ffmpeg puts what
//! is in it into fragmented MP4 (`-c copy`) while it is watched: nothing is decoded, and nothing is
//! written anywhere. What is not decoded by browsers stays a file to download.
//!
//! The times in what is sent are those of the video, wherever it begins. So a page feeds it to a
//! player (Media Source Extensions) at these times, and seeks by asking for another beginning.

mod codecs;
mod process;
mod source;

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tracing::{info, warn};

pub(crate) use self::process::Remuxed;
use self::process::{Ended, Film, Job};
use crate::answers::{Answer, later, nothing, text};
use crate::catalogue::Video;
use crate::lease::Lent;
use crate::programs::ProbeError;
use crate::respond::AnyBody;
use crate::route::{App, Asked, Taken};
use crate::text::extension;

/// How long one waits for another one's turn: who seeks is about to leave his own.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// When it is worth asking again where all are taken, in seconds.
const BUSY_RETRY_AFTER_S: u64 = 5;
/// When it is worth asking again where the storage has failed at the start, in seconds.
const LOST_RETRY_AFTER_S: u64 = 5;
/// No video is longer: a month. ffmpeg takes more, and adds to it.
const SECONDS_MAX: f64 = 31.0 * 24.0 * 3600.0;

/// Codecs that browsers decode, of pictures and of sound, as ffprobe calls them. Some lack one of
/// them, which their page finds out.
const PICTURES: &[&str] = &["h264", "vp9", "av1"];
const SOUNDS: &[&str] = &["aac", "mp3", "opus", "flac"];
/// Containers, as ffprobe calls them, that no browser plays as a file.
const FOREIGN: &[&str] = &["avi", "mpegts", "mpeg", "flv", "asf"];

/// How a browser gets to play a video.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// As it is, or not at all.
    AsItIs,
    /// As it is where a browser can, otherwise remuxed.
    Perhaps,
    /// Remuxed: no browser plays its container.
    Remuxed,
}

impl Way {
    /// That of a video, by what the catalogue says of it. Where that is nothing, it is a file.
    pub(crate) fn of(video: &Video) -> Self {
        let (picture, sound) = (video.video_codec.as_deref(), video.audio_codec.as_deref());
        let is_decoded = picture.is_none_or(|codec| PICTURES.contains(&codec))
            && sound.is_none_or(|codec| SOUNDS.contains(&codec))
            && (picture.is_some() || sound.is_some());
        let Some(container) = video.container.as_deref().filter(|_| is_decoded) else {
            return Self::AsItIs;
        };
        let extension = extension(&video.path).unwrap_or_default();
        match container {
            foreign if FOREIGN.contains(&foreign) => Self::Remuxed,
            // ffprobe does not tell MP4 from QuickTime, nor WebM from Matroska.
            "mov" if !matches!(&*extension, "mp4" | "m4v" | "m4a") => Self::Perhaps,
            "matroska" if extension != "webm" => Self::Perhaps,
            _ => Self::AsItIs,
        }
    }
}

/// Answers who asks for a video remuxed, from second `t` on.
pub(crate) async fn remuxed(app: &App, asked: &Asked<'_>, id: &str) -> Answer {
    let stock = app.shelf.stock();
    let found = stock.catalogue.video(id).filter(|video| asked.who.may_see(video));
    let Some(video) = found.filter(|video| Way::of(video) != Way::AsItIs) else { return nothing() };
    let begin_s = match begin(asked.head.uri.query().unwrap_or_default()) {
        Ok(second) => second,
        Err(problem) => return text(StatusCode::BAD_REQUEST, &problem),
    };
    let Some(turn) = turn(app).await else {
        let line = "too many videos are being remuxed: try again";
        return later(StatusCode::TOO_MANY_REQUESTS, line, BUSY_RETRY_AFTER_S);
    };
    let Taken { lease, place, resource, sending } = match app.take(&stock, video, asked).await {
        Ok(taken) => taken,
        Err(answer) => return *answer,
    };
    if asked.head.method == Method::HEAD {
        return with(Either::Left(Either::Right(Full::default())), "video/mp4");
    }
    let (trouble, troubles) = mpsc::channel(1);
    let lent = Lent { resource, lease: Arc::new(lease), sending, trouble };
    let job = Job {
        lent,
        troubles,
        watching: app.watchers.enter(asked.stream(video)),
        held: [turn, place],
        film: Film {
            container: video.container.clone().unwrap_or_default(),
            video_codec: video.video_codec.clone(),
            audio_codec: video.audio_codec.clone(),
            begin_s,
        },
    };
    match job.start().await {
        Ok((body, content_type)) => with(Either::Right(body), &content_type),
        Err(why) => refusal(video, &why),
    }
}

/// Where it is to begin: `t`, in seconds.
///
/// # Errors
/// What is wrong with the query.
fn begin(query: &str) -> Result<f64, String> {
    let mut begin_s = 0.0;
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let second = value.parse::<f64>().ok().filter(|second| (0.0..SECONDS_MAX).contains(second));
        begin_s = match (&*key, second) {
            ("t", Some(second)) => second,
            _ => return Err(format!("t: seconds from 0 to {SECONDS_MAX} are allowed")),
        };
    }
    Ok(begin_s)
}

async fn turn(app: &App) -> Option<OwnedSemaphorePermit> {
    let turn = Arc::clone(&app.remuxes).acquire_owned();
    tokio::time::timeout(WAIT_MAX, turn).await.ok()?.ok()
}

fn with(body: Either<AnyBody, Remuxed>, content_type: &str) -> Answer {
    let mut answer = Response::new(body);
    let fields = answer.headers_mut();
    if let Ok(value) = HeaderValue::from_str(content_type) {
        fields.insert(CONTENT_TYPE, value);
    }
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Why there is nothing to be seen.
fn refusal(video: &Video, why: &Ended) -> Answer {
    let (home, path) = (&video.home, &video.path);
    match why {
        Ended::Program(ProbeError::Absent(_)) => {
            warn!(home, path, %why, "cannot be remuxed");
            let line = "ffmpeg is not installed at the server, which would put it into a \
                        container that this browser plays";
            text(StatusCode::NOT_IMPLEMENTED, line)
        }
        Ended::Program(_) => {
            warn!(home, path, %why, "cannot be remuxed");
            let line = "ffmpeg cannot put it into a container that this browser plays";
            text(StatusCode::INTERNAL_SERVER_ERROR, line)
        }
        Ended::Unordered => {
            text(StatusCode::NOT_IMPLEMENTED, "the file does not tell the order of its pictures")
        }
        Ended::Storage(_) => {
            info!(home, path, %why, "a stream ends");
            let line = "the storage has failed, or is being edited";
            later(StatusCode::SERVICE_UNAVAILABLE, line, LOST_RETRY_AFTER_S)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_plays_but_for_its_container_is_remuxed() {
        use Way::{AsItIs, Perhaps, Remuxed};
        for (path, container, picture, sound, way) in [
            ("a.avi", Some("avi"), Some("h264"), Some("mp3"), Remuxed),
            ("a.ts", Some("mpegts"), Some("h264"), Some("aac"), Remuxed),
            ("a.mp4", Some("mpegts"), Some("h264"), None, Remuxed),
            ("a.flv", Some("flv"), None, Some("aac"), Remuxed),
            ("a.wmv", Some("asf"), Some("vc1"), Some("wmav2"), AsItIs),
            ("a.avi", Some("avi"), Some("mpeg4"), Some("mp3"), AsItIs),
            ("a.avi", Some("avi"), Some("h264"), Some("ac3"), AsItIs),
            ("a.ts", Some("mpegts"), Some("hevc"), Some("aac"), AsItIs),
            ("a.ts", Some("mpegts"), None, None, AsItIs),
            ("a.mkv", Some("matroska"), Some("av1"), Some("opus"), Perhaps),
            ("a.mkv", Some("matroska"), Some("hevc"), Some("opus"), AsItIs),
            ("a.webm", Some("matroska"), Some("vp9"), Some("opus"), AsItIs),
            ("a.MOV", Some("mov"), Some("h264"), Some("aac"), Perhaps),
            ("a.mp4", Some("mov"), Some("h264"), Some("aac"), AsItIs),
            ("a.ogv", Some("ogg"), Some("theora"), Some("vorbis"), AsItIs),
            ("a.avi", None, Some("h264"), None, AsItIs),
            ("a.avi", None, None, None, AsItIs),
        ] {
            let video = Video {
                container: container.map(Into::into),
                video_codec: picture.map(Into::into),
                audio_codec: sound.map(Into::into),
                ..Video::new("t".into(), "h", path)
            };
            assert_eq!(Way::of(&video), way, "{path} {container:?} {picture:?} {sound:?}");
        }
    }

    #[test]
    fn it_begins_at_a_second() {
        assert_eq!(begin(""), Ok(0.0));
        assert_eq!(begin("t=12.5"), Ok(12.5));
        for query in ["t=-1", "t=NaN", "t=inf", "t=1e300", "t=", "t=1:00", "s=1", "t=1&x"] {
            assert!(begin(query).unwrap_err().starts_with("t: seconds"), "{query}");
        }
    }
}
