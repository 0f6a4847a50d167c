//! A command of the run and the processes it starts, ended together.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::sys;

/// How long commands have between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);

/// The end of a group's last member is no event for a process that is not its parent: look again.
const GROUP_POLL: Duration = Duration::from_millis(10);

/// A child and, if it leads one, its process group.
#[derive(Debug)]
pub(crate) struct Group {
    child: Child,
    ended: OwnedFd,
    leads: bool,
    status: Option<ExitStatus>,
}

impl Group {
    /// Starts `command` as the leader of a process group of its own.
    pub(crate) fn lead(mut command: Command) -> io::Result<Self> {
        command.process_group(0);
        Self::start(command, true)
    }

    /// Starts `command` in our process group, where the terminal's keys reach it.
    pub(crate) fn join(command: Command) -> io::Result<Self> {
        Self::start(command, false)
    }

    fn start(mut command: Command, leads: bool) -> io::Result<Self> {
        let mut child = command.spawn()?;
        match sys::pidfd(child.id() as libc::pid_t) {
            Ok(ended) => Ok(Self { child, ended, leads, status: None }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Can be read when the command has ended.
    pub(crate) fn ended(&self) -> RawFd {
        self.ended.as_raw_fd()
    }

    /// How the command ended, if it has.
    pub(crate) fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status)
    }

    fn signal(&self, signal: libc::c_int) {
        let pid = self.child.id() as libc::pid_t;
        // An error says that nobody is left, which is what a signal is for.
        let _gone = match (self.leads, self.status) {
            (true, _) => sys::kill(-pid, signal),
            (false, None) => sys::kill(pid, signal),
            (false, Some(_)) => Ok(()),
        };
    }

    /// Whether the command has ended and its group is empty.
    fn is_gone(&mut self) -> io::Result<bool> {
        let ended = self.status()?.is_some();
        Ok(ended && (!self.leads || sys::kill(-(self.child.id() as libc::pid_t), 0).is_err()))
    }
}

/// Ends all groups: SIGTERM, and SIGKILL for what is left after 3 s.
pub(crate) fn terminate(groups: &mut [&mut Group]) -> io::Result<()> {
    for group in groups.iter() {
        group.signal(libc::SIGTERM);
        // A stopped process takes SIGTERM only when it goes on.
        group.signal(libc::SIGCONT);
    }
    let deadline = Instant::now() + GRACE;
    loop {
        let mut left = Vec::new();
        for group in groups.iter_mut() {
            if !group.is_gone()? {
                // An ended leader's descriptor stays readable and would end each wait at once.
                let fd = if group.status.is_none() { group.ended() } else { -1 };
                left.push(sys::readable(fd));
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            break;
        }
        sys::poll(&mut left, Some(GROUP_POLL))?;
    }
    for group in groups.iter_mut() {
        group.signal(libc::SIGKILL);
        if group.status.is_none() {
            group.status = Some(group.child.wait()?);
        }
    }
    Ok(())
}
