//! `Hooked`: a way to a leg with a command that is run before its image is written over in place,
//! such as one that has a snapshot made there. Where the command fails, nothing is written over.
//!
//! The command is run as it is, without a shell, in a process group of its own, with
//! `ENKAKU_MIRROR` (the mirror's name), `ENKAKU_LEG` (the leg's number), `ENKAKU_URL` (its URL
//! without credentials, or its path) and `ENKAKU_WHY` in its environment. Its stdout is not read;
//! of its stderr the last line is told where it fails.

use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use block::Result;
use block::mirror::{LegSource, MayOverwrite, OpenLeg, Parts};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, Command};
use tracing::{info, warn};

/// How long the command may take unless the configuration says otherwise: a snapshot is a matter of
/// seconds.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);

/// Bytes of stderr that are kept: its end.
const STDERR_LEN_MAX: usize = 4096;

/// Characters of the line that is told.
const LINE_CHARS_MAX: usize = 200;

/// How long what the command has printed is waited for behind its end. It is there already, but
/// what it has left in the background may hold the pipe open.
const STDERR_PATIENCE: Duration = Duration::from_millis(200);

/// `before_resync` of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// How long it may take.
    pub timeout: Duration,
}

/// A leg whose image is written over only after the command.
struct Hooked {
    source: Arc<dyn LegSource>,
    hook: Hook,
    mirror: String,
    number: usize,
}

/// The same parts, with the command before each leg.
pub(crate) fn hooked(parts: &Parts, hook: Option<&Hook>, mirror: &str) -> Parts {
    let mut parts = parts.clone();
    let Some(hook) = hook else { return parts };
    for (place, leg) in parts.legs.iter_mut().enumerate() {
        let (source, hook, mirror) = (Arc::clone(leg), hook.clone(), mirror.to_owned());
        *leg = Arc::new(Hooked { source, hook, mirror, number: place + 1 });
    }
    parts
}

impl LegSource for Hooked {
    fn name(&self) -> String {
        self.source.name()
    }

    fn connect(&self) -> Pin<Box<dyn Future<Output = Result<OpenLeg>> + Send>> {
        self.source.connect()
    }

    fn before_overwrite(&self, why: &str) -> Option<MayOverwrite> {
        let (hook, name, number) = (self.hook.clone(), self.source.name(), self.number);
        let environment = vec![
            ("ENKAKU_MIRROR", self.mirror.clone()),
            ("ENKAKU_LEG", number.to_string()),
            ("ENKAKU_URL", name.clone()),
            ("ENKAKU_WHY", why.to_owned()),
        ];
        let why = why.to_owned();
        Some(Box::pin(async move {
            let program = hook.command.first().cloned().unwrap_or_default();
            info!("leg {number}, {name}: before_resync ({program}) runs: {why}");
            let ended = run(&hook, environment).await;
            match &ended {
                Ok(()) => info!("leg {number}, {name}: before_resync ({program}) has ended well"),
                Err(how) => warn!("leg {number}, {name}: before_resync ({program}) {how}"),
            }
            ended.map_err(|how| format!("before_resync ({program}) {how}"))
        }))
    }
}

/// Runs the command to its end.
///
/// # Errors
/// How it has failed.
async fn run(
    hook: &Hook,
    environment: Vec<(&'static str, String)>,
) -> std::result::Result<(), String> {
    let Some((program, arguments)) = hook.command.split_first() else { return Ok(()) };
    let mut command = Command::new(program);
    command.args(arguments).envs(environment).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot be started: {error}"))?;
    let group = Group(child.id());
    let stderr = child.stderr.take();
    let Ok(ended) = tokio::time::timeout(hook.timeout, end_of(&mut child, stderr)).await else {
        group.end(&mut child).await;
        let seconds = hook.timeout.as_secs_f64();
        return Err(format!("had not ended after {seconds} s (before_resync_timeout)"));
    };
    let (status, said) = ended.map_err(|error| format!("is lost: {error}"))?;
    group.has_ended();
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    let last: String = last.map_or_else(String::new, |line| format!(": {line}"));
    Err(format!("ended with {status}{}", last.chars().take(LINE_CHARS_MAX).collect::<String>()))
}

/// How the command ends, and the end of what it has printed to stderr.
async fn end_of(
    child: &mut Child,
    stderr: Option<ChildStderr>,
) -> std::io::Result<(ExitStatus, Vec<u8>)> {
    let mut said = Vec::new();
    let Some(mut stderr) = stderr else { return Ok((child.wait().await?, said)) };
    let status = tokio::select! {
        status = child.wait() => Some(status?),
        () = read_end(&mut stderr, &mut said) => None,
    };
    let status = match status {
        Some(status) => {
            let rest = read_end(&mut stderr, &mut said);
            let _held_open = tokio::time::timeout(STDERR_PATIENCE, rest).await;
            status
        }
        None => child.wait().await?,
    };
    Ok((status, said))
}

/// Reads to the end, of which the last bytes are kept.
async fn read_end(from: &mut ChildStderr, said: &mut Vec<u8>) {
    let mut buffer = [0; 1024];
    while let Ok(len) = from.read(&mut buffer).await
        && len > 0
    {
        said.extend_from_slice(&buffer[..len]);
        let old = said.len().saturating_sub(STDERR_LEN_MAX);
        drop(said.drain(..old));
    }
}

/// The processes of a command. Dropped before they have ended, they are asked to.
struct Group(Option<u32>);

impl Group {
    /// The command has ended; what it has left in the background stays.
    fn has_ended(mut self) {
        self.0 = None;
    }

    /// Ends them.
    async fn end(mut self, child: &mut Child) {
        signal(self.0, libc::SIGTERM);
        let _in_time = tokio::time::timeout(GRACE, child.wait()).await;
        signal(self.0.take(), libc::SIGKILL);
        let _reaped = child.wait().await;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        signal(self.0, libc::SIGTERM);
    }
}

fn signal(group: Option<u32>, signal: libc::c_int) {
    let Some(group) = group.and_then(|leader| libc::pid_t::try_from(leader).ok()) else { return };
    // SAFETY: takes no pointers. An error says that nobody is left.
    unsafe { libc::kill(-group, signal) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(script: &str) -> Hook {
        let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        Hook { command, timeout: Duration::from_secs(20) }
    }

    async fn run_it(hook: &Hook) -> std::result::Result<(), String> {
        run(hook, vec![("ENKAKU_LEG", "2".to_owned())]).await
    }

    #[tokio::test]
    async fn how_it_ends_is_told() {
        run_it(&hook("test \"$ENKAKU_LEG\" = 2")).await.unwrap();
        let error = run_it(&hook("echo no room >&2; echo; exit 3")).await.unwrap_err();
        assert_eq!(error, "ended with exit status: 3: no room");
        let error =
            run_it(&hook("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1")).await.unwrap_err();
        assert!(error.starts_with("ended with exit status: 1") && error.len() < 250, "{error}");
        let none = Hook { command: vec!["/nowhere/none".into()], ..hook("") };
        let error = run_it(&none).await.unwrap_err();
        assert!(error.contains("cannot be started"), "{error}");
        // Its arguments are no script.
        let command = ["/bin/echo", "; exit 1"].map(str::to_owned).to_vec();
        run_it(&Hook { command, ..hook("") }).await.unwrap();
    }

    #[tokio::test]
    async fn what_it_leaves_in_the_background_is_not_waited_for() {
        let script = "sleep 5 & echo $! >&2; exit 4";
        let begun = std::time::Instant::now();
        let error = run_it(&hook(script)).await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(4), "{error}");
        let left = error.rsplit(' ').next().unwrap();
        let path = format!("/proc/{left}");
        assert!(std::path::Path::new(&path).exists(), "{error}");
    }

    /// What the command has started has to end with it, or two snapshots would be made at once.
    #[tokio::test]
    async fn one_that_does_not_end_is_ended_with_all_that_it_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", file.display());
        for dropped in [false, true] {
            let short = Hook { timeout: Duration::from_millis(500), ..hook(&script) };
            if dropped {
                let long = hook(&script);
                let run = run_it(&long);
                assert!(tokio::time::timeout(Duration::from_millis(500), run).await.is_err());
            } else {
                let error = run_it(&short).await.unwrap_err();
                assert_eq!(error, "had not ended after 0.5 s (before_resync_timeout)");
            }
            let pid = std::fs::read_to_string(&file).unwrap();
            let status = format!("/proc/{}/status", pid.trim());
            let lives = || {
                std::fs::read_to_string(&status).is_ok_and(|status| !status.contains("State:\tZ"))
            };
            let until = std::time::Instant::now() + Duration::from_secs(20);
            while lives() {
                assert!(std::time::Instant::now() < until, "process {pid} lives");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            std::fs::remove_file(&file).unwrap();
        }
    }
}
