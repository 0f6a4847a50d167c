//! What ffprobe finds in a video, and a picture of it by ffmpeg: as processes of their own, since
//! what they read may be anybody's. They read through our own server, by ranges.

use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// How long one of them may take: a file with its index at the end, far away.
const TIME_MAX: Duration = Duration::from_secs(120);
/// Bytes of what ffprobe reports, and of a picture.
const REPORT_BYTES_MAX: u64 = 1 << 20;
const PICTURE_BYTES_MAX: u64 = 4 << 20;
/// Bytes of what they complain of that are kept: the last words.
const COMPLAINT_BYTES: usize = 300;
/// Characters of a title.
const TITLE_CHARS_MAX: usize = 200;

/// Nothing but our server is read, and no list of other addresses (HLS, concat) is taken for a
/// video; one allocation is at most 256 MiB.
const CAREFUL: &[&str] = &[
    "-v",
    "error",
    "-protocol_whitelist",
    "http,tcp",
    "-format_whitelist",
    "mov,matroska,avi,mpegts,mpeg,ogg,flv,asf",
    "-max_alloc",
    "268435456",
];

/// Containers, codecs and length of a video.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Found {
    pub(super) title: Option<String>,
    pub(super) duration_s: Option<f64>,
    pub(super) container: Option<String>,
    pub(super) video_codec: Option<String>,
    pub(super) audio_codec: Option<String>,
}

/// Why a program did not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// It is not there.
    #[error("{0} is not installed; in Debian, it is in the package ffmpeg")]
    Absent(&'static str),
    /// It could not make anything of the file.
    #[error("{program}: {complaint}")]
    Failed {
        /// Which one.
        program: &'static str,
        /// Its last words.
        complaint: String,
    },
}

#[derive(Deserialize)]
struct Report {
    #[serde(default)]
    streams: Vec<Stream>,
    #[serde(default)]
    format: Format,
}

#[derive(Deserialize)]
struct Stream {
    codec_type: Option<String>,
    codec_name: Option<String>,
    #[serde(default)]
    disposition: Disposition,
}

#[derive(Default, Deserialize)]
struct Disposition {
    #[serde(default)]
    attached_pic: u8,
}

#[derive(Default, Deserialize)]
struct Format {
    format_name: Option<String>,
    duration: Option<String>,
    #[serde(default)]
    tags: Tags,
}

#[derive(Default, Deserialize)]
struct Tags {
    title: Option<String>,
}

/// Looks at the video at an address of ours.
pub(super) async fn probe(url: &str) -> Result<Found, ProbeError> {
    const ENTRIES: &str = "format=format_name,duration:format_tags=title:\
                           stream=codec_type,codec_name:stream_disposition=attached_pic";
    let mut words = CAREFUL.to_vec();
    words.extend(["-show_entries", ENTRIES, "-of", "json", url]);
    let report = run("ffprobe", &words, REPORT_BYTES_MAX).await?;
    read(&report)
}

fn read(report: &[u8]) -> Result<Found, ProbeError> {
    let failed = |complaint: String| ProbeError::Failed { program: "ffprobe", complaint };
    let report: Report = serde_json::from_slice(report)
        .map_err(|error| failed(format!("its report cannot be read: {error}")))?;
    let codec = |kind: &str| {
        // A picture of the cover is a stream of video, too.
        let mut streams = report.streams.iter().filter(|one| one.disposition.attached_pic == 0);
        let stream = streams.find(|one| one.codec_type.as_deref() == Some(kind))?;
        stream.codec_name.as_deref().and_then(plain)
    };
    let (video_codec, audio_codec) = (codec("video"), codec("audio"));
    if video_codec.is_none() && audio_codec.is_none() {
        return Err(failed("there is neither video nor sound in it".into()));
    }
    let seconds = report.format.duration.as_deref().and_then(|text| text.parse::<f64>().ok());
    let container = report.format.format_name.as_deref().map(|names| {
        // All names of a family, of which the first is the one that is known.
        names.split(',').next().unwrap_or(names)
    });
    Ok(Found {
        title: report.format.tags.title.as_deref().and_then(plain),
        // Thousandths are enough, and the same number is the same text.
        duration_s: seconds
            .filter(|seconds| seconds.is_finite() && *seconds >= 0.0)
            .map(|seconds| (seconds * 1000.0).round() / 1000.0),
        container: container.and_then(plain),
        video_codec,
        audio_codec,
    })
}

/// What a file says of itself, as a line.
fn plain(text: &str) -> Option<String> {
    let text: String = text.chars().filter(|char| !char.is_control()).collect();
    let text: String = text.trim().chars().take(TITLE_CHARS_MAX).collect();
    (!text.is_empty()).then_some(text)
}

/// A picture of that second, as JPEG.
pub(super) async fn picture(url: &str, second: f64) -> Result<Vec<u8>, ProbeError> {
    let second = format!("{second:.3}");
    let mut words = vec!["-nostdin"];
    words.extend(CAREFUL);
    words.extend(["-ss", &second, "-i", url, "-frames:v", "1", "-an", "-sn"]);
    words.extend(["-vf", "scale=480:-2", "-q:v", "4", "-f", "mjpeg", "pipe:1"]);
    let picture = run("ffmpeg", &words, PICTURE_BYTES_MAX).await?;
    if picture.is_empty() {
        let complaint = "no picture there".to_owned();
        return Err(ProbeError::Failed { program: "ffmpeg", complaint });
    }
    Ok(picture)
}

/// Runs a program; it ends with us, and when it takes too long.
async fn run(program: &'static str, words: &[&str], bytes_max: u64) -> Result<Vec<u8>, ProbeError> {
    let failed = |complaint: String| ProbeError::Failed { program, complaint };
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => ProbeError::Absent(program),
        _ => failed(error.to_string()),
    })?;
    let (Some(output), Some(complaints)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(failed("it has no output".into()));
    };
    let complaint = tokio::spawn(last_words(complaints));
    let work = async {
        let mut said = Vec::new();
        let read = output.take(bytes_max + 1).read_to_end(&mut said).await;
        read.map_err(|error| failed(error.to_string()))?;
        if said.len() as u64 > bytes_max {
            return Err(failed(format!("more than {bytes_max} bytes")));
        }
        let status = child.wait().await.map_err(|error| failed(error.to_string()))?;
        let complaint = complaint.await.unwrap_or_default();
        match status.success() {
            true => Ok(said),
            false if complaint.is_empty() => Err(failed(status.to_string())),
            false => Err(failed(complaint)),
        }
    };
    match tokio::time::timeout(TIME_MAX, work).await {
        Ok(done) => done,
        Err(_) => Err(failed(format!("not done within {TIME_MAX:?}"))),
    }
}

/// The last line of what a program complains of, all of which is taken.
async fn last_words(mut complaints: impl AsyncRead + Unpin) -> String {
    let mut kept = Vec::new();
    let mut piece = [0; 1024];
    while let Ok(len @ 1..) = complaints.read(&mut piece).await {
        kept.extend_from_slice(&piece[..len]);
        let surplus = kept.len().saturating_sub(4 * COMPLAINT_BYTES);
        kept.drain(..surplus);
    }
    let text = String::from_utf8_lossy(&kept);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    // It repeats the address, which says nothing to anybody.
    let line = line
        .rsplit_once("/video.")
        .and_then(|(_, rest)| rest.split_once(": "))
        .map_or(line, |(_, what)| what);
    let line: String = line.chars().filter(|char| !char.is_control()).collect();
    line.trim().chars().take(COMPLAINT_BYTES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_what_a_viewer_wants_to_know() {
        let report = br#"{"streams": [
            {"codec_type": "video", "codec_name": "mjpeg", "disposition": {"attached_pic": 1}},
            {"codec_type": "audio", "codec_name": "aac", "disposition": {"attached_pic": 0}},
            {"codec_type": "video", "codec_name": "h264"}],
            "format": {"format_name": "mov,mp4,m4a",
                "duration": "61.5004", "tags": {"title": "A\u0000 b "}}}"#;
        let found = read(report).unwrap();
        assert_eq!(
            found,
            Found {
                title: Some("A b".into()),
                duration_s: Some(61.5),
                container: Some("mov".into()),
                video_codec: Some("h264".into()),
                audio_codec: Some("aac".into()),
            }
        );
        assert!(read(b"{}").unwrap_err().to_string().contains("neither video nor sound"));
        assert!(read(b"[").unwrap_err().to_string().contains("cannot be read"));
    }

    #[tokio::test]
    async fn last_words_are_the_last_line() {
        let said =
            [&b"x".repeat(9000)[..], b"\nhttp://127.0.0.1:1/video/0/video.mp4: Invalid data\n\n"];
        assert_eq!(last_words(&said.concat()[..]).await, "Invalid data");
        assert_eq!(last_words(&b""[..]).await, "");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named_with_its_package() {
        let error = run("enkaku-no-such-program", &[], 1).await.unwrap_err();
        assert!(error.to_string().contains("not installed"), "{error}");
    }

    #[tokio::test]
    async fn what_a_program_says_has_a_limit() {
        let error = run("head", &["-c", "100", "/dev/zero"], 99).await.unwrap_err();
        assert_eq!(error.to_string(), "head: more than 99 bytes");
        assert_eq!(run("head", &["-c", "99", "/dev/zero"], 99).await.unwrap().len(), 99);
        let error = run("cat", &["no-such-file"], 9).await.unwrap_err();
        assert!(error.to_string().contains("no-such-file"), "{error}");
    }
}
