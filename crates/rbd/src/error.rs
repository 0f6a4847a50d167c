//! What goes wrong between us and Ceph: loading its libraries, opening an image, using it.

use std::io;

use block::BlockError;

/// Ceph's libraries cannot be used here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// One is not there, or not of this machine.
    #[error(
        "{file} cannot be loaded: install Ceph's client libraries (Debian and Ubuntu: apt install \
         librbd1, which brings librados2; Fedora: dnf install librbd1): {source}"
    )]
    Library {
        /// Its file name.
        file: &'static str,
        /// What the loader says.
        source: libloading::Error,
    },
    /// One is too old.
    #[error("{file} has no {call}: Ceph 16 or later is needed: {source}")]
    Call {
        /// Its file name.
        file: &'static str,
        /// What it lacks.
        call: &'static str,
        /// What the loader says.
        source: libloading::Error,
    },
}

/// Why an image could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Ceph's libraries.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Ceph's configuration.
    #[error("Ceph's configuration {file}: {source}")]
    Conf {
        /// The file, or how it is looked for.
        file: String,
        /// Why not.
        source: io::Error,
    },
    /// The cluster cannot be reached, or does not let us in.
    #[error("the Ceph cluster of {conf}, as client.{id}: {source} ({hint})")]
    Connect {
        /// The configuration that names it.
        conf: String,
        /// As whom.
        id: String,
        /// Why not.
        source: io::Error,
        /// What to look at.
        hint: &'static str,
    },
    /// The pool.
    #[error("there is no pool {pool:?} that client.{id} may use: {source}")]
    Pool {
        /// Its name.
        pool: String,
        /// As whom.
        id: String,
        /// Why not.
        source: io::Error,
    },
    /// The image or its snapshot.
    #[error("the image {image}: {source}{hint}")]
    Image {
        /// Its name, with pool and snapshot.
        image: String,
        /// Why not.
        source: io::Error,
        /// What to look at.
        hint: String,
    },
    /// Its size is none of a block device.
    #[error("the image {image} has {size} bytes, which are not whole blocks of 512, at least one")]
    Size {
        /// Its name, with pool and snapshot.
        image: String,
        /// Its size in bytes.
        size: u64,
    },
    /// A name holds a zero byte.
    #[error("{what} contains a zero byte")]
    Zero {
        /// Which.
        what: &'static str,
    },
    /// There is no thread to do it on.
    #[error("no thread for it: {0}")]
    Thread(String),
}

/// Ceph's error numbers are Linux's, negative.
pub(crate) fn os_error(returned: i64) -> io::Error {
    i32::try_from(-returned).map_or_else(
        |_| io::Error::other(format!("Ceph says {returned}")),
        io::Error::from_raw_os_error,
    )
}

/// What Ceph calls EBLOCKLISTED: the cluster refuses whatever this client sends, since another has
/// taken the image over from it.
pub(crate) const FENCED: i32 = libc::ESHUTDOWN;

/// An operation's failure in the words of a block device.
pub(crate) fn failure(returned: i64, what: &'static str) -> BlockError {
    let errno = i32::try_from(-returned).unwrap_or(0);
    match errno {
        libc::EROFS => BlockError::ReadOnly,
        libc::ENOSPC | libc::EDQUOT => BlockError::NoSpace,
        libc::EOPNOTSUPP => BlockError::Unsupported(what),
        FENCED => BlockError::Unreachable(format!(
            "{what}: another client has taken the image over, and the cluster refuses ours \
             (blocklisted); open the image anew when that is known to be over"
        )),
        libc::ETIMEDOUT | libc::ENOTCONN | libc::ENXIO => {
            BlockError::Unreachable(format!("{what}: {}", os_error(returned)))
        }
        _ => {
            let error = os_error(returned);
            BlockError::Medium(io::Error::new(error.kind(), format!("{what} an image: {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_ceph_are_told_by_what_can_be_done() {
        let of = |errno: i32| failure(i64::from(-errno), "writing");
        assert!(matches!(of(libc::ENOSPC), BlockError::NoSpace));
        assert!(matches!(of(libc::EROFS), BlockError::ReadOnly));
        assert!(matches!(of(libc::ETIMEDOUT), BlockError::Unreachable(_)));
        assert!(of(FENCED).to_string().contains("blocklisted"));
        let medium = of(libc::EIO);
        assert!(matches!(medium, BlockError::Medium(_)));
        assert!(medium.to_string().contains("writing an image"), "{medium}");
        assert!(os_error(i64::MIN + 1).to_string().contains("Ceph says"));
    }
}
