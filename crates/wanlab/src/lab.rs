//! The lab as a value: two namespaces, the link between them, and whatever runs inside.

use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use serde::Serialize;
use thiserror::Error;

use crate::config::{ConfigError, LabConfig};
use crate::emulator::{Emulator, EmulatorStats};
use crate::guardian::Guardian;
use crate::netns::{Namespace, acquire_privilege};
use crate::sys;
use crate::tun::{FAR_V4, FAR_V6, NEAR_V4, NEAR_V6, Tun, sysctl};

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Where a user's command runs, `10.77.0.1`.
    Near,
    /// Where its peer runs, `10.77.0.2`.
    Far,
}

/// Why there is no lab.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LabError {
    /// A value that no link can have.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Neither root nor a user namespace.
    #[error("the lab needs root or a user namespace, and {reason}")]
    Privilege {
        /// What stands in the way.
        reason: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A namespace could not be made or entered.
    #[error("network namespace")]
    Namespace {
        /// What the kernel said.
        source: io::Error,
    },
    /// The TUN device could not be made.
    #[error("TUN device (/dev/net/tun)")]
    Tun {
        /// What the kernel said.
        source: io::Error,
    },
    /// The TUN device could not be set up.
    #[error("configuring {what} of the emulated link")]
    Configure {
        /// Which step.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A sysctl could not be read or set.
    #[error("sysctl {name}")]
    Sysctl {
        /// Its dotted name.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A process or thread of the lab could not be started.
    #[error("starting the lab")]
    Start(#[from] io::Error),
}

/// TCP settings that were in force, as the namespaces themselves say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TcpSettings {
    /// `net.ipv4.tcp_wmem`.
    pub tcp_wmem: String,
    /// `net.ipv4.tcp_rmem`.
    pub tcp_rmem: String,
    /// `net.ipv4.tcp_congestion_control`, which a socket may override.
    pub congestion_control: String,
}

impl TcpSettings {
    /// Of the calling thread's namespace.
    fn read() -> Result<Self, LabError> {
        Ok(Self {
            tcp_wmem: sysctl("net/ipv4/tcp_wmem")?,
            tcp_rmem: sysctl("net/ipv4/tcp_rmem")?,
            congestion_control: sysctl("net/ipv4/tcp_congestion_control")?,
        })
    }
}

/// Two network namespaces joined by an emulated link.
///
/// All of it ends with this value, and with this process however that ends: processes inside are
/// killed, then devices and namespaces vanish. Fields are dropped in this order.
#[derive(Debug)]
pub struct Lab {
    _guardian: Guardian,
    emulator: Emulator,
    near: Namespace,
    far: Namespace,
    tcp: TcpSettings,
}

impl Lab {
    /// Builds the lab and starts the emulator.
    ///
    /// Needs root. For other users the process enters a user namespace in which it is root, which
    /// the kernel only allows before the process has a second thread.
    ///
    /// # Errors
    /// When a value is out of range, or the kernel refuses a step.
    pub fn new(config: &LabConfig) -> Result<Self, LabError> {
        config.validate()?;
        acquire_privilege()?;
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        let guardian = Guardian::start([&near, &far])?;
        let (near_tun, tcp) =
            near.run(|| Ok((Tun::new(NEAR_V4, NEAR_V6, config)?, TcpSettings::read()?)))?;
        let far_tun = far.run(|| Tun::new(FAR_V4, FAR_V6, config))?;
        let emulator = Emulator::start(near_tun, far_tun, config)?;
        Ok(Self { _guardian: guardian, emulator, near, far, tcp })
    }

    /// A command that will run at one end, knows both addresses (`ENKAKU_NEAR`, `ENKAKU_FAR`,
    /// `ENKAKU_NEAR6`, `ENKAKU_FAR6`) and dies with the thread that starts it, which therefore
    /// must live as long as the command shall.
    pub fn command(&self, end: End, program: impl AsRef<OsStr>) -> Command {
        let namespace = match end {
            End::Near => self.near.raw(),
            End::Far => self.far.raw(),
        };
        let parent = std::process::id();
        let mut command = Command::new(program);
        command
            .env("ENKAKU_NEAR", NEAR_V4.to_string())
            .env("ENKAKU_FAR", FAR_V4.to_string())
            .env("ENKAKU_NEAR6", NEAR_V6.to_string())
            .env("ENKAKU_FAR6", FAR_V6.to_string());
        let enter = move || {
            sys::set_parent_death_signal(libc::SIGKILL)?;
            // The parent may have died before the line above.
            if std::os::unix::process::parent_id() != parent {
                return Err(io::ErrorKind::NotFound.into());
            }
            sys::enter_network_namespace(namespace)
        };
        // SAFETY: `enter` only makes system calls, which is allowed between fork and exec.
        unsafe { command.pre_exec(enter) };
        command
    }

    /// What the emulator has done; at most 10 ms old while packets flow.
    #[must_use]
    pub fn stats(&self) -> EmulatorStats {
        self.emulator.stats()
    }

    /// The TCP settings of both ends.
    #[must_use]
    pub fn tcp_settings(&self) -> &TcpSettings {
        &self.tcp
    }

    /// Can be read when the emulator has stopped, which it does by itself only after an error.
    pub(crate) fn emulator_ended(&self) -> BorrowedFd<'_> {
        self.emulator.ended()
    }

    /// Stops the link and returns the final counters.
    #[must_use]
    pub fn stop(mut self) -> EmulatorStats {
        self.emulator.stop()
    }
}
