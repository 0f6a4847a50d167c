//! Block devices of this machine's kernel: what those of its NBD client (`nbd::kernel`) and of its
//! ublk driver (`ublk`) have in common.

pub(crate) mod node;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use block::BlockError;
use tokio::task::{JoinError, spawn_blocking};

pub use self::node::Place;

/// The kernel may learn of a predecessor's death somewhat later than we.
pub(crate) const DEATH_TIME_MAX: Duration = Duration::from_secs(5);

/// Time between two tries to take a device over, and two looks whether it is in use.
pub(crate) const RETRY: Duration = Duration::from_millis(100);

/// How a device is attached.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// What a successor finds it by: the same for the same volume, and for no other.
    pub identity: String,
    /// A name for it, as a symbolic link: its number may be another each time.
    pub link: PathBuf,
}

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// No module.
    #[error("this kernel has no {what}: load its module (modprobe {module})")]
    NoModule {
        /// What it lacks.
        what: &'static str,
        /// Where that is.
        module: &'static str,
    },
    /// A module that cannot do what is needed.
    #[error("{0}")]
    TooOld(&'static str),
    /// No right to it.
    #[error("only root (CAP_SYS_ADMIN) can make block devices")]
    NotPermitted,
    /// Somebody else's.
    #[error("{0} is this volume already, and another process serves it")]
    InUse(PathBuf),
    /// There is none of ours.
    #[error("{0} is no device of enkaku's")]
    NotOurs(PathBuf),
    /// The system refuses.
    #[error("{what}: {source}")]
    Refused {
        /// What it refuses.
        what: String,
        /// Why.
        source: io::Error,
    },
}

impl KernelError {
    pub(crate) fn of(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted,
            _ => Self::Refused { what: what.into(), source },
        }
    }
}

/// Why a device did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The kernel.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The last flush: acknowledged writes may be lost.
    #[error("the last flush failed: {0}")]
    Flush(#[from] BlockError),
}

/// On a thread that may wait.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KernelError> + Send + 'static,
) -> Result<T, KernelError> {
    joined(spawn_blocking(work).await)
}

/// What a task of ours came to.
pub(crate) fn joined<T>(
    ended: Result<Result<T, KernelError>, JoinError>,
) -> Result<T, KernelError> {
    let failed = |error| KernelError::Refused {
        what: "a task of this process".into(),
        source: io::Error::other::<JoinError>(error),
    };
    ended.map_err(failed)?
}
