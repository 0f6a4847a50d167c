//! ffprobe and ffmpeg: as processes of their own, since what they read may be anybody's. They read
//! through a server of ours, by ranges, and nothing else.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;

/// How long one of them may take that looks at a video: a file with its index at the end, far away.
const TIME_MAX: Duration = Duration::from_secs(120);
/// Bytes of what they complain of that are kept: the last words.
const COMPLAINT_BYTES: usize = 300;

/// Nothing but our server is read, and no list of other addresses (HLS, concat) is taken for a
/// video; one allocation is at most 256 MiB.
pub(crate) const CAREFUL: &[&str] = &[
    "-v",
    "error",
    "-protocol_whitelist",
    "http,tcp",
    "-format_whitelist",
    "mov,matroska,avi,mpegts,mpeg,ogg,flv,asf",
    "-max_alloc",
    "268435456",
];

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

/// A program with these words, which gets no input.
pub(crate) fn command(program: &'static str, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A program that runs. It is killed when this is dropped.
pub(crate) struct Running {
    program: &'static str,
    child: Child,
    pub(crate) output: ChildStdout,
    complaint: JoinHandle<String>,
}

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// It is not there, or cannot be started.
    pub(crate) fn start(program: &'static str, mut command: Command) -> Result<Self, ProbeError> {
        let failed = |complaint: String| ProbeError::Failed { program, complaint };
        let mut child = command.kill_on_drop(true).spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => ProbeError::Absent(program),
            _ => failed(error.to_string()),
        })?;
        let (Some(output), Some(complaints)) = (child.stdout.take(), child.stderr.take()) else {
            return Err(failed("it has no output".into()));
        };
        Ok(Self { program, child, output, complaint: tokio::spawn(last_words(complaints)) })
    }

    /// Its number, as long as it runs.
    pub(crate) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for the end of one whose output has ended.
    ///
    /// # Errors
    /// It did not succeed.
    pub(crate) async fn end(mut self) -> Result<(), ProbeError> {
        let failed = |complaint| ProbeError::Failed { program: self.program, complaint };
        let status = self.child.wait().await.map_err(|error| failed(error.to_string()))?;
        let complaint = self.complaint.await.unwrap_or_default();
        match status.success() {
            true => Ok(()),
            false if complaint.is_empty() => Err(failed(status.to_string())),
            false => Err(failed(complaint)),
        }
    }
}

/// Runs a program; it ends with us, and when it takes too long.
///
/// # Errors
/// It is not there, did not succeed, or says more than it may.
pub(crate) async fn run(
    program: &'static str,
    command: Command,
    bytes_max: u64,
) -> Result<Vec<u8>, ProbeError> {
    let failed = |complaint: String| ProbeError::Failed { program, complaint };
    let mut running = Running::start(program, command)?;
    let work = async {
        let mut said = Vec::new();
        let read = (&mut running.output).take(bytes_max + 1).read_to_end(&mut said).await;
        read.map_err(|error| failed(error.to_string()))?;
        if said.len() as u64 > bytes_max {
            return Err(failed(format!("more than {bytes_max} bytes")));
        }
        running.end().await.map(|()| said)
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

    #[tokio::test]
    async fn last_words_are_the_last_line() {
        let said =
            [&b"x".repeat(9000)[..], b"\nhttp://127.0.0.1:1/video/0/video.mp4: Invalid data\n\n"];
        assert_eq!(last_words(&said.concat()[..]).await, "Invalid data");
        assert_eq!(last_words(&b""[..]).await, "");
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_named_with_its_package() {
        const NO_PROGRAM: &str = "enkaku-no-such-program";
        let error = run(NO_PROGRAM, command(NO_PROGRAM, &[]), 1).await.unwrap_err();
        assert!(error.to_string().contains("not installed"), "{error}");
    }

    #[tokio::test]
    async fn what_a_program_says_has_a_limit() {
        let zeroes = |count| command("head", &["-c", count, "/dev/zero"]);
        let error = run("head", zeroes("100"), 99).await.unwrap_err();
        assert_eq!(error.to_string(), "head: more than 99 bytes");
        assert_eq!(run("head", zeroes("99"), 99).await.unwrap().len(), 99);
        let error = run("cat", command("cat", &["no-such-file"]), 9).await.unwrap_err();
        assert!(error.to_string().contains("no-such-file"), "{error}");
    }
}
