//! Talking to a lab that another process owns: where its socket is, and what is said there.
//!
//! One line of JSON each way per connection. The socket lies in a folder of the user's own and has
//! mode 0600; whoever can open it could as well stop the owner.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::guardian::Identity;
use crate::lab::End;
use crate::settings::Settings;
use crate::sys;

/// A request or reply; a star of 64 nodes with eight classes reports some 600 kB.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// The owner answers at once, except that taking a lab down waits for its processes.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

const NAME_BYTES_MAX: usize = 32;
const PREFIX: &str = "wan-";
const SUFFIX: &str = ".sock";

/// What a running lab is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Request {
    /// Say what the lab is and has done.
    Show,
    /// Change it.
    Set(Box<Settings>),
    /// How to get inside.
    Enter(End),
    /// End it.
    Down,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reply {
    /// To all but `Enter`: the lab as it is (was) now, an [`crate::ShowReport`].
    Report(Box<serde_json::Value>),
    /// To `Enter`.
    Door(Door),
    /// The request is wrong.
    Refused(String),
    /// The request is right, but failed.
    Failed(String),
}

/// A namespace that this process may enter.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Door {
    /// Who holds it open, under which number.
    pub(crate) pid: u32,
    pub(crate) fd: i32,
    /// Which it is, should the number mean something else by now.
    pub(crate) identity: Identity,
    pub(crate) environment: Vec<(String, String)>,
}

/// Why a running lab did not do what was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Not a name for a lab.
    #[error(
        "lab name {0:?}: give up to {NAME_BYTES_MAX} letters, digits, '-' or '_', first no '-'"
    )]
    Name(String),
    /// Not a name of a namespace.
    #[error("end {0:?}: give near or far, or in a star node1, node2, …")]
    End(String),
    /// The folder of the sockets is not safe or cannot be made.
    #[error("folder {path}: {what}")]
    Folder {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
        /// What the kernel said, if it was asked.
        source: Option<io::Error>,
    },
    /// No lab of this name.
    #[error("no lab {0:?} is up")]
    NotUp(String),
    /// A lab of this name is up already.
    #[error("lab {0:?} is up already")]
    IsUp(String),
    /// The owner says that the request is wrong.
    #[error("{0}")]
    Refused(String),
    /// The owner could not do it.
    #[error("{0}")]
    Failed(String),
    /// The connection to the owner failed.
    #[error("talking to the lab's owner")]
    Io(#[from] io::Error),
    /// The owner answered something else.
    #[error("the lab's owner does not speak this program's language")]
    Language(#[from] serde_json::Error),
}

impl ControlError {
    /// Whether the request was wrong, and not its execution.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Name(_) | Self::End(_) | Self::NotUp(_) | Self::IsUp(_) | Self::Refused(_)
        )
    }
}

/// The name of a lab that is or shall be up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabName(String);

impl std::str::FromStr for LabName {
    type Err = ControlError;

    fn from_str(name: &str) -> Result<Self, ControlError> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let fits = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with('-');
        if fits && name.bytes().all(good) {
            Ok(Self(name.to_owned()))
        } else {
            Err(ControlError::Name(name.to_owned()))
        }
    }
}

impl std::fmt::Display for LabName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for End {
    type Err = ControlError;

    fn from_str(end: &str) -> Result<Self, ControlError> {
        let node = || end.strip_prefix("node")?.parse().ok();
        match end {
            "near" => Ok(Self::Near),
            "far" => Ok(Self::Far),
            _ => node().map(Self::Node).ok_or_else(|| ControlError::End(end.to_owned())),
        }
    }
}

impl LabName {
    /// Where the lab's socket is.
    pub(crate) fn socket(&self) -> Result<PathBuf, ControlError> {
        Ok(folder()?.join(format!("{PREFIX}{}{SUFFIX}", self.0)))
    }

    /// The labs that are up.
    ///
    /// # Errors
    /// When the folder of the sockets cannot be read.
    pub fn all() -> Result<Vec<Self>, ControlError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder()?)? {
            let file = entry?.file_name();
            let name = file.to_str().and_then(|file| {
                file.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse::<Self>().ok()
            });
            // A socket whose owner and guardian were both killed is nobody's.
            names.extend(name.filter(|name| name.connect().is_ok()));
        }
        names.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(names)
    }

    /// The lab as it is: the JSON of a [`crate::ShowReport`].
    ///
    /// # Errors
    /// When it is not up, or does not answer.
    pub fn show(&self) -> Result<serde_json::Value, ControlError> {
        self.report(&Request::Show)
    }

    /// Changes the lab; what it is then, as [`LabName::show`].
    ///
    /// # Errors
    /// When it is not up, or the settings do not go with it.
    pub fn set(&self, settings: &Settings) -> Result<serde_json::Value, ControlError> {
        self.report(&Request::Set(Box::new(settings.clone())))
    }

    /// Ends the lab and all processes in it; what it had done, as [`LabName::show`].
    ///
    /// # Errors
    /// When it is not up, or does not answer.
    pub fn down(&self) -> Result<serde_json::Value, ControlError> {
        self.report(&Request::Down)
    }

    /// Becomes `command` inside the lab. The process is killed when the lab ends. To be called
    /// before this process has a second thread; returns only if that cannot be done.
    #[must_use]
    pub fn exec(&self, end: End, command: &[OsString]) -> ControlError {
        match self.enter(end, command) {
            Ok(mut command) => command.exec().into(),
            Err(error) => error,
        }
    }

    fn enter(&self, end: End, command: &[OsString]) -> Result<Command, ControlError> {
        let door = match self.ask(&Request::Enter(end))? {
            Reply::Door(door) => door,
            other => return Err(refusal(other)),
        };
        let gone = || ControlError::NotUp(self.0.clone());
        let owner = sys::pidfd(door.pid as libc::pid_t).map_err(|_| gone())?;
        let open = |path: String| {
            fs::File::open(&path).map_err(|source| {
                ControlError::Io(io::Error::new(source.kind(), format!("{path}: {source}")))
            })
        };
        let network = open(format!("/proc/{}/fd/{}", door.pid, door.fd))?;
        if sys::identity(network.as_fd())? != door.identity {
            return Err(gone());
        }
        let users = open(format!("/proc/{}/ns/user", door.pid))?;
        if sys::identity(users.as_fd())?
            != sys::identity(open("/proc/self/ns/user".into())?.as_fd())?
        {
            sys::enter_user_namespace(users.as_raw_fd())?;
        }
        sys::enter_network_namespace(network.as_raw_fd())?;
        // From here on the guardian sees this process, if the owner still lives.
        if sys::poll(&mut [sys::readable(owner.as_raw_fd())], Some(Duration::ZERO))? > 0 {
            return Err(gone());
        }
        let (program, arguments) =
            command.split_first().ok_or_else(|| ControlError::Refused("no command".into()))?;
        let mut command = Command::new(program);
        command.args(arguments).envs(door.environment);
        Ok(command)
    }

    fn report(&self, request: &Request) -> Result<serde_json::Value, ControlError> {
        match self.ask(request)? {
            Reply::Report(report) => Ok(*report),
            other => Err(refusal(other)),
        }
    }

    fn ask(&self, request: &Request) -> Result<Reply, ControlError> {
        let stream = self.connect()?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        write_line(&stream, request)?;
        Ok(read_line(&stream)?)
    }

    fn connect(&self) -> Result<UnixStream, ControlError> {
        UnixStream::connect(self.socket()?).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ControlError::NotUp(self.0.clone())
            }
            _ => error.into(),
        })
    }
}

fn refusal(reply: Reply) -> ControlError {
    match reply {
        Reply::Refused(why) => ControlError::Refused(why),
        Reply::Failed(why) => ControlError::Failed(why),
        Reply::Report(_) | Reply::Door(_) => {
            ControlError::Failed("the lab's owner answered another question".into())
        }
    }
}

pub(crate) fn write_line(mut to: &UnixStream, line: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    to.write_all(&text)
}

pub(crate) fn read_line<T: serde::de::DeserializeOwned>(from: &UnixStream) -> io::Result<T> {
    let mut line = Vec::new();
    BufReader::new(from.take(LINE_BYTES_MAX)).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&line)?)
}

/// `$XDG_RUNTIME_DIR/enkaku`, or `/run/enkaku` without one; made with mode 0700 if need be, and
/// refused if others could put sockets there.
fn folder() -> Result<PathBuf, ControlError> {
    let base = std::env::var_os("XDG_RUNTIME_DIR").filter(|base| !base.is_empty());
    let path = base.map_or_else(|| PathBuf::from("/run"), PathBuf::from).join("enkaku");
    check_folder(&path)?;
    Ok(path)
}

fn check_folder(path: &Path) -> Result<(), ControlError> {
    let fail = |what, source| ControlError::Folder { path: path.to_owned(), what, source };
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(fail(
                "cannot be made (set XDG_RUNTIME_DIR to a folder of yours)",
                Some(error),
            ));
        }
        _ => {}
    }
    let metadata =
        fs::symlink_metadata(path).map_err(|error| fail("cannot be looked at", Some(error)))?;
    // SAFETY: returns a number.
    let user = unsafe { libc::geteuid() };
    if !metadata.is_dir() || metadata.uid() != user || metadata.mode() & 0o022 != 0 {
        return Err(fail("must be this user's own and not writable for others", None));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn names() {
        for good in ["wan", "a-b_C9", "x".repeat(32).as_str()] {
            assert!(good.parse::<LabName>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a/b", "..", "a b", "ä", "x".repeat(33).as_str()] {
            assert!(bad.parse::<LabName>().is_err(), "{bad}");
        }
        assert_eq!("node12".parse::<End>().unwrap(), End::Node(12));
        assert!("node".parse::<End>().is_err() && "middle".parse::<End>().is_err());
    }

    #[test]
    fn requests_and_replies_survive_the_socket() {
        let (a, b) = UnixStream::pair().unwrap();
        let settings = Settings::parse("loss=0.5").unwrap();
        write_line(&a, &Request::Set(Box::new(settings.clone()))).unwrap();
        let Request::Set(got) = read_line(&b).unwrap() else { panic!("another request") };
        assert_eq!(*got, settings);
        write_line(&b, &Reply::Refused("why".into())).unwrap();
        let Reply::Refused(why) = read_line(&a).unwrap() else { panic!("another reply") };
        assert_eq!(why, "why");
        drop(b);
        assert!(read_line::<Reply>(&a).is_err());
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("enkaku");
        check_folder(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let error = check_folder(&path).unwrap_err().to_string();
        assert!(error.contains("not writable for others"), "{error}");
    }
}
