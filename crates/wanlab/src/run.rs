//! One command at each end of a lab: start, watch, end, report.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStdout, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;
use thiserror::Error;
use tracing::warn;

use crate::capture::CaptureConfig;
use crate::config::{IpVersion, LabConfig, tcp_payload_limit_bits_per_s};
use crate::group::{Group, terminate};
use crate::lab::{End, Lab, LabError, LabSpec, TcpSettings};
use crate::profile::{Player, Profile};
use crate::signals::Signals;
use crate::sys;
use crate::topology::EmulatorStats;

/// What to run on what link.
#[derive(Debug, Clone)]
pub struct RunSpec {
    /// The link.
    pub lab: LabConfig,
    /// Program and arguments at the near end; the run ends with it.
    pub near: Vec<OsString>,
    /// A shell command line at the far end, started first.
    pub far: Option<FarCommand>,
    /// How the link changes from the start of the near command.
    pub profile: Profile,
    /// Where every segment is logged, if at all.
    pub capture: Option<CaptureConfig>,
}

/// The command at the far end.
#[derive(Debug, Clone)]
pub struct FarCommand {
    /// For `sh -c`.
    pub shell: OsString,
    /// What to wait for before the near command starts.
    pub ready: Option<Ready>,
}

/// A line of the far command's standard output that says it can be used.
#[derive(Debug, Clone)]
pub struct Ready {
    /// Part of that line, `listening on` for example.
    pub text: String,
    /// How long to wait for it.
    pub timeout: Duration,
}

/// How the run ended, and what the link did meanwhile.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// The link as it was at the end.
    pub link: LabConfig,
    /// What TCP over IPv4 could carry from near to far at most, in payload bits per second, at
    /// the start.
    pub tcp_payload_limit_bits_per_s: f64,
    /// The TCP settings of the near namespace.
    pub tcp: TcpSettings,
    /// The TCP settings of the far namespace.
    pub tcp_far: TcpSettings,
    /// From the start of the near command to its end.
    pub seconds: f64,
    /// What the link carried and dropped.
    #[serde(flatten)]
    pub stats: EmulatorStats,
    /// Exit code of the near command, 128 + signal if a signal ended it or the run.
    pub exit_code: u8,
}

/// Why a run could not be completed. Everything it started has been ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// There is no lab.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A command could not be started.
    #[error("the {end} command {program:?} cannot be started")]
    Spawn {
        /// At which end.
        end: &'static str,
        /// The program.
        program: OsString,
        /// What the kernel said.
        source: io::Error,
    },
    /// No near command was given.
    #[error("no command to run at the near end")]
    NoCommand,
    /// The far command ended before it said that it was ready.
    #[error("the far command ended before it was ready ({status})")]
    FarEndedEarly {
        /// How.
        status: ExitStatus,
    },
    /// The far command failed while the near one was running, which was then ended.
    #[error("the far command failed while the near one was running ({status})")]
    FarFailed {
        /// How.
        status: ExitStatus,
    },
    /// The far command did not say in time that it was ready.
    #[error(
        "the far command printed no line with {text:?} within {timeout:?} (many programs keep what \
         they print to a pipe back: `stdbuf -oL`, or an option of theirs, stops that)"
    )]
    FarNotReady {
        /// What was waited for.
        text: String,
        /// How long.
        timeout: Duration,
    },
    /// The emulator stopped by itself; its error was logged.
    #[error("the emulated link failed during the run")]
    LinkFailed,
    /// Watching the commands failed.
    #[error("watching the commands")]
    Watch(#[from] io::Error),
}

/// Builds the lab, runs the commands, takes all down.
///
/// SIGINT, SIGTERM and SIGHUP end both commands and the run (of several runs in one process, the
/// first takes them). A far command that ends with status 0 has done its work and the near one
/// goes on; any other end of it is an error.
///
/// # Errors
/// When the lab cannot be built, a command cannot be started, or the far command fails.
pub fn run(spec: &RunSpec) -> Result<RunReport, RunError> {
    let signals = Signals::catch()?;
    let lab = Lab::build(&LabSpec {
        config: spec.lab.clone(),
        capture: spec.capture.clone(),
        ..LabSpec::default()
    })?;
    let player = Profile::default().play();
    let mut session =
        Session { lab, signals, player, far: None, far_output: None, far_ready: false };
    let outcome = session.conduct(spec);
    let far_ended = session.far.as_mut().map_or(Ok(()), |far| terminate(&mut [far]));
    let Session { lab, far_output, .. } = session;
    let settings = lab.tcp_settings().to_vec();
    let link = lab.config().clone();
    let stats = lab.stop();
    // The last process that could hold this pipe has ended with the lab.
    if let Some(output) = far_output
        && output.thread.join().is_err()
    {
        warn!("the thread for the far command's output has panicked");
    }
    let (exit_code, time) = outcome?;
    far_ended?;
    let near_to_far = &spec.lab.near_to_far;
    let [tcp, tcp_far] = <[TcpSettings; 2]>::try_from(settings)
        .map_err(|_| io::Error::other("a pair has two namespaces"))?;
    Ok(RunReport {
        tcp_payload_limit_bits_per_s: tcp_payload_limit_bits_per_s(
            near_to_far.rate_bits_per_s,
            spec.lab.mtu,
            IpVersion::V4,
        ),
        link,
        tcp,
        tcp_far,
        seconds: time.as_secs_f64(),
        stats,
        exit_code,
    })
}

/// A run in progress.
struct Session {
    lab: Lab,
    signals: Signals,
    player: Player,
    far: Option<Group>,
    far_output: Option<FarOutput>,
    /// Whether the far command has said that it is ready.
    far_ready: bool,
}

/// What ended a wait.
enum Event {
    NearEnded(ExitStatus),
    FarReady,
    Interrupted(u8),
    TimedOut,
}

impl Session {
    /// Exit code and duration of the near command.
    fn conduct(&mut self, spec: &RunSpec) -> Result<(u8, Duration), RunError> {
        if let Some(far) = &spec.far
            && let Some(code) = self.start_far(far)?
        {
            return Ok((code, Duration::ZERO));
        }
        let (program, arguments) = spec.near.split_first().ok_or(RunError::NoCommand)?;
        let mut command = self.lab.command(End::Near, program);
        command.args(arguments);
        let started = Instant::now();
        // At a terminal the near command takes ^C and ^Z like any other; elsewhere it leads a
        // group, so that what it starts can be ended with it.
        let near =
            if io::stdin().is_terminal() { Group::join(command) } else { Group::lead(command) };
        let mut near = near.map_err(|source| RunError::Spawn {
            end: "near",
            program: program.clone(),
            source,
        })?;
        self.player = spec.profile.play();
        let event = self.wait(Some(&mut near), None);
        let time = started.elapsed();
        let mut groups = vec![&mut near];
        if let Ok(Event::Interrupted(_)) = event {
            groups.extend(self.far.as_mut());
        }
        terminate(&mut groups)?;
        match event? {
            Event::NearEnded(status) => Ok((exit_code(status), time)),
            Event::Interrupted(signal) => Ok((128 + signal, time)),
            // Neither was asked for.
            Event::FarReady | Event::TimedOut => Ok((0, time)),
        }
    }

    /// Starts the far command and waits until it is ready; an exit code if a signal came first.
    fn start_far(&mut self, far: &FarCommand) -> Result<Option<u8>, RunError> {
        let mut command = self.lab.command(End::Far, "sh");
        command.arg("-c").arg(&far.shell).stdin(Stdio::null());
        if far.ready.is_some() {
            command.stdout(Stdio::piped());
        }
        let mut group = Group::lead(command).map_err(|source| RunError::Spawn {
            end: "far",
            program: "sh".into(),
            source,
        })?;
        let output = group.child().stdout.take();
        self.far = Some(group);
        let (Some(ready), Some(output)) = (&far.ready, output) else {
            return Ok(None);
        };
        self.far_output = Some(FarOutput::start(output, ready.text.clone())?);
        match self.wait(None, Some(Instant::now() + ready.timeout))? {
            Event::Interrupted(signal) => Ok(Some(128 + signal)),
            Event::TimedOut => {
                Err(RunError::FarNotReady { text: ready.text.clone(), timeout: ready.timeout })
            }
            Event::FarReady | Event::NearEnded(_) => Ok(None),
        }
    }

    /// Waits for the end of the near command or, before there is one, for the far one's ready
    /// line.
    fn wait(
        &mut self,
        mut near: Option<&mut Group>,
        deadline: Option<Instant>,
    ) -> Result<Event, RunError> {
        loop {
            while let Some(settings) = self.player.due(Instant::now()) {
                self.lab.set(&settings)?;
            }
            if let Some(status) = near.as_mut().map_or(Ok(None), |near| near.status())? {
                return Ok(Event::NearEnded(status));
            }
            if let Some(status) = self.far.as_mut().map_or(Ok(None), Group::status)? {
                if near.is_none() {
                    return Err(RunError::FarEndedEarly { status });
                }
                if !status.success() {
                    return Err(RunError::FarFailed { status });
                }
                self.far = None;
            }
            if near.is_none() && self.far_ready {
                return Ok(Event::FarReady);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(Event::TimedOut);
            }
            let ready = self.far_output.as_ref().and_then(|output| output.ready.as_ref());
            let fd_or_none = |fd: Option<i32>| sys::readable(fd.unwrap_or(-1));
            let mut polled = [
                sys::readable(self.signals.fd().as_raw_fd()),
                sys::readable(self.lab.emulator_ended().as_raw_fd()),
                fd_or_none(near.as_ref().map(|near| near.ended())),
                fd_or_none(self.far.as_ref().map(Group::ended)),
                fd_or_none(ready.map(AsRawFd::as_raw_fd)),
            ];
            let wake = deadline.into_iter().chain(self.player.next_at()).min();
            let timeout = wake.map(|wake| wake.saturating_duration_since(Instant::now()));
            sys::poll(&mut polled, timeout)?;
            let [signal, emulator, _, _, said] = polled.map(|polled| polled.revents != 0);
            if signal {
                return Ok(Event::Interrupted(self.signals.take()?));
            }
            if emulator {
                return Err(RunError::LinkFailed);
            }
            if said && let Some(output) = &mut self.far_output {
                // Without a byte, the far command has closed its output; its end decides.
                self.far_ready = output.take_ready()?;
            }
        }
    }
}

/// The far command's standard output on its way to ours, on a thread: it must flow on while the
/// run waits for something else, or the far command would block.
struct FarOutput {
    /// One byte when the text is seen.
    ready: Option<OwnedFd>,
    thread: JoinHandle<()>,
}

impl FarOutput {
    /// Lines are searched up to this length; a ready line is short.
    const LINE_BYTES_MAX: usize = 4096;

    fn start(output: ChildStdout, text: String) -> io::Result<Self> {
        let (ready, seen) = sys::pipe()?;
        let thread = thread::Builder::new().name("wanlab-far-output".into()).spawn(move || {
            if let Err(error) = Self::pass_on(output, &text, &seen) {
                warn!(%error, "the far command's output is lost from here on");
            }
        })?;
        Ok(Self { ready: Some(ready), thread })
    }

    /// Whether the text was seen; to be asked once, when `ready` can be read.
    fn take_ready(&mut self) -> io::Result<bool> {
        let Some(ready) = self.ready.take() else {
            return Ok(false);
        };
        Ok(sys::read(ready.as_fd(), &mut [0])? == Some(1))
    }

    fn pass_on(mut output: ChildStdout, text: &str, seen: &OwnedFd) -> io::Result<()> {
        let mut buffer = [0; 4096];
        let mut line = Vec::new();
        let mut searching = true;
        loop {
            let n = match output.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            let mut stdout = io::stdout().lock();
            stdout.write_all(&buffer[..n])?;
            stdout.flush()?;
            for &byte in &buffer[..n] {
                if !searching {
                    break;
                }
                if byte != b'\n' {
                    line.push(byte);
                    line.truncate(Self::LINE_BYTES_MAX);
                } else if String::from_utf8_lossy(&std::mem::take(&mut line)).contains(text) {
                    sys::write(seen.as_fd(), &[1])?;
                    searching = false;
                }
            }
        }
    }
}

/// As a shell reports it.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    code as u8
}
