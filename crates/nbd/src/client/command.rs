//! [`ServerCommand`]: a server that we start, hand a socket to, log for, and stop.
//!
//! The socket is handed over as systemd does it (sd_listen_fds(3)): nbdkit and qemu-nbd know that.
//! It lies in a folder of this user only. Not here: what is said over it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tracing::{debug, info, warn};

use super::error::ConnectError;

/// How long a server may take to end once it is asked to.
const STOP_TIME_MAX: Duration = Duration::from_secs(3);

/// Time between two looks at whether the server has ended.
const LOOK: Duration = Duration::from_millis(50);

/// Longest line of a server's output that is logged, in bytes; the rest is a line of its own.
const LINE_LEN_MAX: usize = 1024;

/// Puts the socket where sd_listen_fds(3) has it, and becomes the server, so that LISTEN_PID is
/// true. The socket comes as standard input, which needs no `unsafe` code.
const HAND_OVER: &str =
    r#"exec 3<&0 </dev/null; LISTEN_FDS=1; LISTEN_PID=$$; export LISTEN_FDS LISTEN_PID; exec "$@""#;

/// A server as a command line.
#[derive(Debug)]
pub struct ServerCommand {
    argv: Vec<String>,
    listener: UnixListener,
    path: PathBuf,
    running: Mutex<Option<Child>>,
    /// What it said last, which tells why it ended.
    last_line: Arc<std::sync::Mutex<String>>,
    /// Removed with the socket in it.
    _folder: tempfile::TempDir,
}

impl std::fmt::Display for ServerCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.argv.join(" "))
    }
}

impl ServerCommand {
    /// The program and its arguments; it is started by [`NbdDisk::start`](super::NbdDisk::start).
    ///
    /// # Errors
    /// There is no program, or no socket can be made.
    pub fn new(argv: Vec<String>) -> Result<Self, ConnectError> {
        let error = |why: String| ConnectError::Command { command: argv.join(" "), why };
        if argv.first().is_none_or(String::is_empty) {
            return Err(error("the name of a program is missing".into()));
        }
        let socket = || {
            let folder = tempfile::Builder::new().prefix("enkaku-nbd-").tempdir()?;
            let path = folder.path().join("socket");
            Ok::<_, io::Error>((UnixListener::bind(&path)?, path, folder))
        };
        let (listener, path, folder) =
            socket().map_err(|source| error(format!("cannot make a socket: {source}")))?;
        let (running, last_line) = (Mutex::new(None), Arc::default());
        Ok(Self { argv, listener, path, running, last_line, _folder: folder })
    }

    /// Starts the server unless it runs, and says where its socket is.
    pub(super) async fn ready(&self) -> Result<&Path, ConnectError> {
        let mut running = self.running.lock().await;
        if let Some(child) = running.as_mut() {
            match child.try_wait() {
                Ok(None) => return Ok(&self.path),
                Ok(Some(status)) => warn!("{self} ended ({status}); starting it again"),
                Err(error) => return Err(self.failed(error.to_string())),
            }
        }
        *running = Some(self.spawn().map_err(|error| self.failed(error.to_string()))?);
        Ok(&self.path)
    }

    fn spawn(&self) -> io::Result<Child> {
        let socket = OwnedFd::from(self.listener.try_clone()?);
        let mut child = Command::new("/bin/sh")
            .args(["-c", HAND_OVER, "enkaku"])
            .args(&self.argv)
            .stdin(Stdio::from(socket))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A terminal's interrupt is ours: the server is stopped when its data is flushed.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        info!(pid = child.id(), "started {self}");
        let name = self.argv[0].clone();
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(log(stdout, name.clone(), Arc::clone(&self.last_line)));
        }
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(log(stderr, name, Arc::clone(&self.last_line)));
        }
        Ok(child)
    }

    /// Waits until the server has ended.
    pub(super) async fn ended(&self) -> ConnectError {
        loop {
            if let Some(child) = self.running.lock().await.as_mut()
                && let Ok(Some(status)) = child.try_wait()
            {
                // Its last words may still be in the pipe.
                tokio::time::sleep(LOOK).await;
                let said = self.last_line.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let said = if said.is_empty() { said } else { format!(": {said}") };
                return self.failed(format!("ended ({status}){said}"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Asks the server to end, and ends it when it does not.
    pub(super) async fn stop(&self) {
        let Some(mut child) = self.running.lock().await.take() else { return };
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid
            && let Err(error) = kill_process(pid, Signal::TERM)
        {
            debug!(%error, "asking {self} to end");
        }
        match tokio::time::timeout(STOP_TIME_MAX, child.wait()).await {
            Ok(Ok(status)) => debug!(%status, "{self} ended"),
            Ok(Err(error)) => warn!(%error, "{self}"),
            Err(_) => {
                warn!("{self} does not end; killing it");
                let _ = child.kill().await; // or it has ended just now
            }
        }
    }

    fn failed(&self, why: String) -> ConnectError {
        ConnectError::Command { command: self.to_string(), why }
    }
}

/// Logs what a server says, line by line, until it closes the pipe.
async fn log(
    output: impl AsyncRead + Unpin,
    program: String,
    last_line: Arc<std::sync::Mutex<String>>,
) {
    let mut output = BufReader::with_capacity(LINE_LEN_MAX, output);
    let mut line = Vec::new();
    while let Ok(found) = output.fill_buf().await {
        if found.is_empty() {
            break;
        }
        let end = found.iter().position(|byte| *byte == b'\n');
        let room = LINE_LEN_MAX - line.len();
        let taken = end.unwrap_or(found.len()).min(room);
        line.extend_from_slice(&found[..taken]);
        let is_over = end.is_some_and(|end| end == taken) || line.len() == LINE_LEN_MAX;
        output.consume(taken + usize::from(end == Some(taken)));
        if is_over {
            tell(&mut line, &program, &last_line);
        }
    }
    tell(&mut line, &program, &last_line);
}

fn tell(line: &mut Vec<u8>, program: &str, last_line: &std::sync::Mutex<String>) {
    let text = super::handshake::printable(line, LINE_LEN_MAX);
    line.clear();
    if text.is_empty() {
        return;
    }
    info!(program, "{text}");
    *last_line.lock().unwrap_or_else(PoisonError::into_inner) = text;
}
