//! The process that keeps a named lab up in the background, and answers at its socket.
//!
//! It is forked, not executed, so that it needs no program of its own; hence it must be started
//! while there is a single thread. When it ends, the lab's guardian removes the socket too.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use tracing::{error, warn};

use crate::config::LabConfig;
use crate::control::{ControlError, Door, LabName, Reply, Request, read_line, write_line};
use crate::guardian::Leftover;
use crate::lab::{End, Lab, LabError, LabSpec, TcpSettings};
use crate::profile::{Player, Profile};
use crate::signals::Signals;
use crate::sys;
use crate::topology::{EmulatorStats, NodeStats, Topology};

/// A client that says nothing must not keep the others waiting.
const CLIENT_WITHIN: Duration = Duration::from_secs(2);

/// First byte of what the child tells the parent.
const IS_UP: u8 = b'+';
const IS_WRONG: u8 = b'?';
const HAS_FAILED: u8 = b'!';

/// A lab to be kept up.
#[derive(Debug, Clone)]
pub struct UpSpec {
    /// How others find it.
    pub name: LabName,
    /// What it is.
    pub lab: LabSpec,
    /// How it changes from its start.
    pub profile: Profile,
    /// Where the owner's log lines go, if anywhere.
    pub log: Option<PathBuf>,
}

/// What a running lab says of itself.
#[derive(Debug, Serialize)]
pub struct ShowReport {
    /// Its name.
    pub name: String,
    /// Its owner.
    pub pid: u32,
    /// Since its start.
    pub seconds: f64,
    /// Its form.
    pub topology: Topology,
    /// What the lines carried and dropped.
    #[serde(flatten)]
    pub stats: EmulatorStats,
    /// The same for each node of a star.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeStats>,
    /// The lines as they are now.
    pub link: LabConfig,
    /// The TCP settings of each namespace by its name.
    pub tcp: BTreeMap<String, TcpSettings>,
    /// What went wrong in the background, a step of the profile for example.
    pub error: Option<String>,
}

/// Starts a process that keeps the lab up, and returns when that is so.
///
/// # Errors
/// When a lab of this name is up, or this one cannot be built, or this process has threads.
pub fn up(spec: &UpSpec) -> Result<(), ControlError> {
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a process with threads cannot fork a lab's owner").into());
    }
    let socket = spec.name.socket()?;
    let log = spec.log.as_deref().map(create_log).transpose()?;
    let (told, tell) = sys::pipe()?;
    // SAFETY: there is a single thread, so the child may do anything; it never returns from here.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error().into()),
        0 => {
            drop(told);
            become_owner(spec, &socket, log, tell)
        }
        child => {
            drop(tell);
            let mut said = String::new();
            File::from(told).read_to_string(&mut said)?;
            let text = said.get(1..).unwrap_or_default().to_owned();
            match said.as_bytes().first() {
                Some(&IS_UP) => return Ok(()),
                _ => sys::reap(child),
            }
            Err(match said.as_bytes().first() {
                Some(&IS_WRONG) => ControlError::Refused(text),
                Some(&HAS_FAILED) => ControlError::Failed(text),
                _ => ControlError::Failed("the lab's owner has died".into()),
            })
        }
    }
}

fn create_log(path: &Path) -> Result<OwnedFd, ControlError> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    file.map(OwnedFd::from)
        .map_err(|error| ControlError::Failed(format!("log {}: {error}", path.display())))
}

/// The life of the child.
fn become_owner(spec: &UpSpec, socket: &Path, log: Option<OwnedFd>, tell: OwnedFd) -> ! {
    let started = sys::leave_terminal(log, tell.as_raw_fd())
        .map_err(|error| (HAS_FAILED, error.to_string()))
        .and_then(|()| Owner::start(spec, socket));
    let mut tell = File::from(tell);
    let code = match started {
        Ok(owner) => {
            // Nothing of the file system is held from here on. The parent may be gone.
            let _moved = std::env::set_current_dir("/");
            let _heard = tell.write_all(&[IS_UP]);
            drop(tell);
            match owner.serve() {
                Ok(()) => 0,
                Err(error) => {
                    error!(%error, "the lab's owner has failed");
                    1
                }
            }
        }
        Err((kind, text)) => {
            let _heard = tell.write_all(&[&[kind], text.as_bytes()].concat());
            1
        }
    };
    std::process::exit(code)
}

/// With all its causes, in one line.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The lab and its socket.
struct Owner {
    name: LabName,
    lab: Lab,
    listener: UnixListener,
    signals: Signals,
    player: Player,
    started: Instant,
    error: Option<String>,
}

impl Owner {
    fn start(spec: &UpSpec, socket: &Path) -> Result<Self, (u8, String)> {
        let failed = |error: io::Error| (HAS_FAILED, error.to_string());
        let signals = Signals::catch().map_err(failed)?;
        let listener = bind(&spec.name, socket).map_err(|error| {
            let kind = if error.is_usage() { IS_WRONG } else { HAS_FAILED };
            (kind, describe(&error))
        })?;
        let leftover = leftover(socket).map_err(failed)?;
        let lab = Lab::build_with(&spec.lab, Some(leftover)).map_err(|error| {
            // The guardian may not have been there yet to do it.
            let _gone = fs::remove_file(socket);
            (if error.is_usage() { IS_WRONG } else { HAS_FAILED }, describe(&error))
        })?;
        let player = spec.profile.play();
        let name = spec.name.clone();
        Ok(Self { name, lab, listener, signals, player, started: Instant::now(), error: None })
    }

    /// Answers until it is told to end, by a client or a signal.
    fn serve(mut self) -> io::Result<()> {
        loop {
            while let Some(settings) = self.player.due(Instant::now()) {
                if let Err(error) = self.lab.set(&settings) {
                    let text = format!("profile: {}", describe(&error));
                    warn!("{text}");
                    self.error = Some(text);
                }
            }
            let wait = self.player.next_at();
            let wait = wait.map(|at| at.saturating_duration_since(Instant::now()));
            let mut polled = [
                sys::readable(self.signals.fd().as_raw_fd()),
                sys::readable(self.lab.emulator_ended().as_raw_fd()),
                sys::readable(self.listener.as_raw_fd()),
            ];
            sys::poll(&mut polled, wait)?;
            let [signal, emulator, client] = polled.map(|polled| polled.revents != 0);
            if signal {
                return Ok(());
            }
            if emulator {
                return Err(io::Error::other("the emulated link has failed"));
            }
            if client {
                match self.listener.accept() {
                    Ok((stream, _)) => match self.answer(&stream) {
                        Ok(false) => {}
                        Ok(true) => return self.end(&stream),
                        Err(error) => warn!(%error, "a client was not answered"),
                    },
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => warn!(%error, "a client could not connect"),
                }
            }
        }
    }

    /// Whether the lab shall end.
    fn answer(&mut self, stream: &UnixStream) -> io::Result<bool> {
        stream.set_read_timeout(Some(CLIENT_WITHIN))?;
        stream.set_write_timeout(Some(CLIENT_WITHIN))?;
        let reply = match read_line(stream) {
            // Looked whether there is somebody.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => Reply::Refused(error.to_string()),
            Ok(Request::Down) => return Ok(true),
            Ok(Request::Show) => self.report_reply()?,
            Ok(Request::Set(settings)) => match self.lab.set(&settings) {
                Ok(()) => self.report_reply()?,
                Err(error) if error.is_usage() => Reply::Refused(describe(&error)),
                Err(error) => Reply::Failed(describe(&error)),
            },
            Ok(Request::Enter(end)) => self.door(end)?,
        };
        write_line(stream, &reply)?;
        Ok(false)
    }

    /// Takes the lab down, then says so.
    fn end(self, stream: &UnixStream) -> io::Result<()> {
        let mut report = self.report();
        let Self { lab, .. } = self;
        report.nodes = lab.nodes();
        report.stats = lab.stop();
        write_line(stream, &Reply::Report(Box::new(serde_json::to_value(report)?)))
    }

    fn door(&self, end: End) -> io::Result<Reply> {
        let Some(index) = self.lab.index(end) else {
            let all = names(self.lab.topology()).join(", ");
            return Ok(Reply::Refused(format!("lab {:?} has {all}", self.name.to_string())));
        };
        let namespace = self.lab.namespace(index);
        let environment = self.lab.environment(end).into_iter();
        Ok(Reply::Door(Door {
            pid: std::process::id(),
            fd: namespace.as_raw_fd(),
            identity: sys::identity(namespace)?,
            environment: environment.map(|(name, value)| (name.to_owned(), value)).collect(),
        }))
    }

    fn report_reply(&self) -> io::Result<Reply> {
        Ok(Reply::Report(Box::new(serde_json::to_value(self.report())?)))
    }

    fn report(&self) -> ShowReport {
        let names = names(self.lab.topology()).into_iter();
        ShowReport {
            name: self.name.to_string(),
            pid: std::process::id(),
            seconds: self.started.elapsed().as_secs_f64(),
            topology: self.lab.topology(),
            stats: self.lab.stats(),
            nodes: self.lab.nodes(),
            link: self.lab.config().clone(),
            tcp: names.zip(self.lab.tcp_settings().iter().cloned()).collect(),
            error: self.error.clone(),
        }
    }
}

/// What the namespaces are called.
fn names(topology: Topology) -> Vec<String> {
    match topology {
        Topology::Pair => vec!["near".into(), "far".into()],
        Topology::Star { nodes, .. } => (1..=nodes).map(|node| format!("node{node}")).collect(),
    }
}

/// Takes the socket's place in the file system.
fn bind(name: &LabName, socket: &Path) -> Result<UnixListener, ControlError> {
    let listener = match UnixListener::bind(socket) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(socket).is_ok() {
                return Err(ControlError::IsUp(name.to_string()));
            }
            // Its owner and its guardian were both killed.
            fs::remove_file(socket)?;
            UnixListener::bind(socket)?
        }
        bound => bound?,
    };
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn leftover(socket: &Path) -> io::Result<Leftover> {
    let metadata = fs::metadata(socket)?;
    let path = CString::new(socket.as_os_str().to_owned().into_vec())?;
    Ok(Leftover { path, identity: (metadata.dev(), metadata.ino()) })
}

impl LabError {
    /// Whether what was asked for is wrong, and not this machine.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Config(_) => true,
            // No such name, or a value that the kernel does not take.
            Self::Sysctl { source, .. } => {
                matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput)
            }
            _ => false,
        }
    }
}
