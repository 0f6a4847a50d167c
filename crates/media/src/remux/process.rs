//! [`Job`]: one run of ffmpeg for one viewer, and [`Remuxed`], what it says, as the body of an
//! answer. Whoever drops either kills the process, and ends what it was reading.
//!
//! A server that is killed takes with it both ends that the process works between: its next read
//! or write is its last, and processor time is limited for one that does neither. A signal at its
//! parent's death (PR_SET_PDEATHSIG) would be asked for between fork and exec, by unsafe code.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::process::Command;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tracing::{info, warn};

use super::codecs;
use super::source::Source;
use crate::lease::Lent;
use crate::programs::{CAREFUL, ProbeError, Running, command, run};
use crate::watching::Watching;

const PROGRAM: &str = "ffmpeg";
/// The file, for a process that reads it through a proxy of its own: it has no name there.
const ADDRESS: &str = "http://video/video.bin";
/// How long it may take until something is to be seen: an index at the end, far away.
const START_TIME_MAX: Duration = Duration::from_secs(30);
/// Bytes until it is known which codecs there are.
const HEAD_BYTES_MAX: usize = 1 << 20;
/// Bytes that are taken from the process at once: what a pipe holds.
const PIECE_BYTES: usize = 64 << 10;
/// Memory of a process. ffmpeg and its libraries take less than a tenth of it.
const MEMORY_BYTES_MAX: u64 = 2 << 30;
/// Processor time of a process: more than twice what 100 GB take. What a file makes it do without
/// end, ends.
const PROCESSOR_S_MAX: u64 = 900;
/// Where a container has no index, ffmpeg goes to a place before the second that is wanted, and
/// drops what comes before the next picture that stands for itself, which may be too late. Begun
/// so much earlier, it is not, if there is one every two seconds as broadcasters have it.
const EARLIER_S: f64 = 2.0;
/// Bytes of what ffprobe reports: a number.
const REPORT_BYTES_MAX: u64 = 64;

/// Fragments of a second, or from one picture that stands for itself to the next, at the times of
/// the file: no edit lists, which players read differently. `delay_moov`: an MPEG-TS tells what is
/// in it only with its first packets.
const FRAGMENTS: &[&str] = &[
    "-movflags",
    "frag_keyframe+empty_moov+delay_moov+default_base_moof+frag_discont+negative_cts_offsets",
    "-frag_duration",
    "1000000",
    "-use_editlist",
    "0",
    "-avoid_negative_ts",
    "disabled",
    "-f",
    "mp4",
    "pipe:1",
];

/// What is to be remuxed: what the catalogue says of it, and from where on.
pub(super) struct Film {
    pub(super) container: String,
    pub(super) video_codec: Option<String>,
    pub(super) audio_codec: Option<String>,
    pub(super) begin_s: f64,
}

/// For whom, and what he holds meanwhile.
pub(super) struct Job {
    pub(super) film: Film,
    pub(super) lent: Lent,
    /// What goes wrong with the file while it is lent.
    pub(super) troubles: mpsc::Receiver<String>,
    pub(super) watching: Watching,
    pub(super) held: [OwnedSemaphorePermit; 2],
}

/// Why there is nothing more, before the end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// ffmpeg is missing, or has failed.
    #[error(transparent)]
    Program(#[from] ProbeError),
    /// Pictures are not in the order in which they are shown, and AVI has no times to tell it.
    #[error("it has H.264 with B-frames in AVI, which does not tell their order")]
    Unordered,
    /// The storage has failed, or its owner is editing it.
    #[error("{0}")]
    Storage(String),
}

impl Job {
    /// Starts it, and waits until it is known what comes: that is the type of it.
    ///
    /// # Errors
    /// Why nothing comes.
    pub(super) async fn start(self) -> Result<(Remuxed, String), Ended> {
        match tokio::time::timeout(START_TIME_MAX, self.begin()).await {
            Ok(begun) => begun,
            Err(_) => Err(failed(format!("nothing within {START_TIME_MAX:?}"))),
        }
    }

    async fn begin(self) -> Result<(Remuxed, String), Ended> {
        let words = self.film.words();
        let source = Source::open(self.lent).await.map_err(|error| failed(error.to_string()))?;
        if !self.film.has_times() && has_b_frames(&source).await? {
            return Err(Ended::Unordered);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let running = Running::start(PROGRAM, through(&source, command(PROGRAM, &words)))?;
        restrict(&running).map_err(|error| failed(error.to_string()))?;
        let mut work = Work {
            process: Process::Runs(Box::new(running)),
            piece: vec![0; PIECE_BYTES],
            troubles: self.troubles,
            _source: source,
            _held: self.held,
        };
        let mut head = Vec::new();
        let content_type = loop {
            let Some(bytes) = std::future::poll_fn(|context| work.poll_next(context)).await? else {
                break None; // nothing is left behind the second that was asked for
            };
            head.extend_from_slice(&bytes);
            let content_type = codecs::content_type(&head);
            if content_type.is_some() {
                break content_type;
            }
            if head.len() > HEAD_BYTES_MAX {
                return Err(failed("its head has no end".into()));
            }
        };
        let body = Remuxed { head: head.into(), work: Some(work), watching: self.watching };
        Ok((body, content_type.unwrap_or_else(|| "video/mp4".into())))
    }
}

impl Film {
    /// Does it tell when a picture is shown, or is that only known where it is when it is decoded?
    fn has_times(&self) -> bool {
        self.container != "avi" || self.video_codec.as_deref() != Some("h264")
    }

    fn words(&self) -> Vec<String> {
        let has_index = !matches!(&*self.container, "mpegts" | "mpeg");
        let begin_s = if has_index { self.begin_s } else { (self.begin_s - EARLIER_S).max(0.0) };
        let mut words = vec!["-nostdin"];
        words.extend(CAREFUL);
        words.extend(["-copyts", "-start_at_zero", "-fflags", "+genpts"]);
        let second = format!("{begin_s:.3}");
        // A seek to the start is one that some containers cannot do.
        if begin_s > 0.0 {
            words.extend(["-ss", &second]);
        }
        words.extend(["-i", ADDRESS, "-map", "0:V:0?", "-map", "0:a:0?", "-c", "copy"]);
        if self.audio_codec.as_deref() == Some("aac") {
            words.extend(["-bsf:a", "aac_adtstoasc"]);
        }
        words.extend(["-map_metadata", "-1", "-map_chapters", "-1"]);
        // FLAC in MP4 was an experiment for some versions.
        words.extend(["-strict", "experimental"]);
        words.extend(FRAGMENTS);
        words.into_iter().map(ToOwned::to_owned).collect()
    }
}

fn failed(complaint: String) -> Ended {
    ProbeError::Failed { program: PROGRAM, complaint }.into()
}

/// With nothing in its environment but where programs are, and whom it may ask: other variables
/// could make it write reports, or ask somebody else.
fn through(source: &Source, mut command: Command) -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).env("http_proxy", source.proxy());
    command
}

/// It writes no file, and ends if it takes more than anybody needs.
fn restrict(running: &Running) -> Result<(), Errno> {
    let id = running.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let Some(id) = id else { return Ok(()) };
    for (resource, most) in [
        (Resource::Fsize, 0),
        (Resource::Core, 0),
        (Resource::As, MEMORY_BYTES_MAX),
        (Resource::Cpu, PROCESSOR_S_MAX),
    ] {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        match prlimit(Some(id), resource, limit) {
            Ok(_) | Err(Errno::SRCH) => {} // it may have ended already
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Are there pictures that are shown before others that they follow in the file?
async fn has_b_frames(source: &Source) -> Result<bool, ProbeError> {
    const PROBE: &str = "ffprobe";
    let mut words = CAREFUL.to_vec();
    words.extend(["-select_streams", "V:0", "-show_entries", "stream=has_b_frames"]);
    words.extend(["-of", "default=noprint_wrappers=1:nokey=1", ADDRESS]);
    let report = run(PROBE, through(source, command(PROBE, &words)), REPORT_BYTES_MAX).await?;
    Ok(report.trim_ascii() != b"0")
}

/// A process at work, and what it needs for that.
struct Work {
    process: Process,
    piece: Vec<u8>,
    troubles: mpsc::Receiver<String>,
    _source: Source,
    _held: [OwnedSemaphorePermit; 2],
}

enum Process {
    Runs(Box<Running>),
    /// It has said all, and is waited for.
    Ends(Pin<Box<dyn Future<Output = Result<(), ProbeError>> + Send>>),
    /// It is being handed from one to the other.
    Gone,
}

impl Work {
    /// The next bytes; `None` is the end of the video.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Ended>> {
        if let Poll::Ready(Some(why)) = self.troubles.poll_recv(context) {
            return Poll::Ready(Err(Ended::Storage(why)));
        }
        if let Process::Runs(running) = &mut self.process {
            let mut piece = ReadBuf::new(&mut self.piece);
            let read = ready!(Pin::new(&mut running.output).poll_read(context, &mut piece));
            read.map_err(|error| failed(error.to_string()))?;
            if !piece.filled().is_empty() {
                return Poll::Ready(Ok(Some(Bytes::copy_from_slice(piece.filled()))));
            }
            if let Process::Runs(running) = std::mem::replace(&mut self.process, Process::Gone) {
                self.process = Process::Ends(Box::pin(running.end()));
            }
        }
        if let Process::Ends(end) = &mut self.process {
            let ended = ready!(end.as_mut().poll(context));
            self.process = Process::Gone;
            // A file that ends too early is none to the program, which makes an end of it.
            if let Ok(why) = self.troubles.try_recv() {
                return Poll::Ready(Err(Ended::Storage(why)));
            }
            ended?;
        }
        Poll::Ready(Ok(None))
    }
}

/// A video in another container, as it is made.
pub(crate) struct Remuxed {
    /// What has come already.
    head: Bytes,
    work: Option<Work>,
    watching: Watching,
}

impl Remuxed {
    fn sent(&self, bytes: Bytes) -> Frame<Bytes> {
        self.watching.sent(bytes.len() as u64);
        Frame::data(bytes)
    }

    /// Nothing more is sent, and nobody takes what was for the whole.
    fn ended(&mut self, why: Ended) -> Ended {
        match &why {
            Ended::Program(_) => warn!(%why, "a video cannot be remuxed to its end"),
            _ => info!(%why, "a stream ends"),
        }
        self.work = None;
        why
    }
}

impl Body for Remuxed {
    type Data = Bytes;
    type Error = Ended;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Ended>>> {
        if self.work.is_some()
            && let Poll::Ready(why) = self.watching.poll_end(context)
        {
            return Poll::Ready(Some(Err(self.ended(Ended::Storage(why)))));
        }
        let head = std::mem::take(&mut self.head);
        if !head.is_empty() {
            return Poll::Ready(Some(Ok(self.sent(head))));
        }
        let Some(work) = &mut self.work else { return Poll::Ready(None) };
        match ready!(work.poll_next(context)) {
            Ok(Some(bytes)) => Poll::Ready(Some(Ok(self.sent(bytes)))),
            Ok(None) => {
                self.work = None;
                Poll::Ready(None)
            }
            Err(why) => Poll::Ready(Some(Err(self.ended(why)))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn film(container: &str, begin_s: f64) -> Film {
        Film {
            container: container.into(),
            video_codec: Some("h264".into()),
            audio_codec: Some("aac".into()),
            begin_s,
        }
    }

    #[test]
    fn a_program_is_told_where_to_begin_before_what_it_reads() {
        let begin = |container, second| {
            let words = film(container, second).words();
            let input = words.iter().position(|word| word == "-i").unwrap();
            let seek = words.iter().position(|word| word == "-ss");
            assert_eq!(words[input + 1], ADDRESS);
            assert!(seek.is_none_or(|seek| seek < input));
            seek.map(|seek| words[seek + 1].clone())
        };
        assert_eq!(begin("matroska", 0.0), None);
        assert_eq!(begin("matroska", 61.5), Some("61.500".into()));
        assert_eq!(begin("mpegts", 61.5), Some("59.500".into()));
        assert_eq!(begin("mpegts", 1.5), None);
    }

    #[test]
    fn nothing_but_our_server_is_read_and_nothing_is_written_but_the_answer() {
        let words = film("mpegts", 1.5).words();
        let has = |pair: [&str; 2]| words.windows(2).any(|two| two == pair);
        assert!(has(["-protocol_whitelist", "http,tcp"]) && has(["-c", "copy"]));
        assert!(has(["-bsf:a", "aac_adtstoasc"]));
        assert_eq!(words.iter().filter(|word| *word == "-i").count(), 1);
        assert_eq!(words.last().unwrap(), "pipe:1");
        let other = Film { audio_codec: Some("mp3".into()), ..film("avi", 0.0) };
        assert!(!other.words().iter().any(|word| word == "-bsf:a"));
        assert!(!other.has_times() && film("flv", 0.0).has_times());
    }
}
