//! What ffprobe finds in a video, and a picture of it by ffmpeg. They read through our own server,
//! by ranges.

use serde::Deserialize;

use crate::programs::{CAREFUL, ProbeError, command, run};

/// Bytes of what ffprobe reports, and of a picture.
const REPORT_BYTES_MAX: u64 = 1 << 20;
const PICTURE_BYTES_MAX: u64 = 4 << 20;
/// Characters of a title.
const TITLE_CHARS_MAX: usize = 200;

/// Containers, codecs and length of a video.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Found {
    pub(super) title: Option<String>,
    pub(super) duration_s: Option<f64>,
    pub(super) container: Option<String>,
    pub(super) video_codec: Option<String>,
    pub(super) audio_codec: Option<String>,
    /// When the file says that it was made, in its own words.
    pub(super) created: Option<String>,
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
    creation_time: Option<String>,
}

/// Looks at the video at an address of ours.
pub(super) async fn probe(url: &str) -> Result<Found, ProbeError> {
    const ENTRIES: &str = "format=format_name,duration:format_tags=title,creation_time:\
                           stream=codec_type,codec_name:stream_disposition=attached_pic";
    let mut words = CAREFUL.to_vec();
    words.extend(["-show_entries", ENTRIES, "-of", "json", url]);
    let report = run("ffprobe", command("ffprobe", &words), REPORT_BYTES_MAX).await?;
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
        created: report.format.tags.creation_time,
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
    let picture = run("ffmpeg", command("ffmpeg", &words), PICTURE_BYTES_MAX).await?;
    if picture.is_empty() {
        let complaint = "no picture there".to_owned();
        return Err(ProbeError::Failed { program: "ffmpeg", complaint });
    }
    Ok(picture)
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
                "duration": "61.5004", "tags": {
                    "title": "A\u0000 b ", "creation_time": "2024-05-01T10:00:00.000000Z"}}}"#;
        let found = read(report).unwrap();
        assert_eq!(
            found,
            Found {
                title: Some("A b".into()),
                duration_s: Some(61.5),
                container: Some("mov".into()),
                video_codec: Some("h264".into()),
                audio_codec: Some("aac".into()),
                created: Some("2024-05-01T10:00:00.000000Z".into()),
            }
        );
        assert!(read(b"{}").unwrap_err().to_string().contains("neither video nor sound"));
        assert!(read(b"[").unwrap_err().to_string().contains("cannot be read"));
    }
}
