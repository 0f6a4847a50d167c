//! [`Object`]: a few kilobytes in a pool that several clients change one after the other: each
//! replaces a version that it has read, or learns that another came first
//! (`rados_write_op_assert_version`).
//!
//! Everything here waits for the network.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cluster::{Cluster, Pool};
use crate::error::{OpenError, os_error};
use crate::ffi::{CREATE_EXCLUSIVE, Opaque};
use crate::url::Url;

/// Longest content that is read, in bytes.
const LEN_MAX: usize = 1 << 20;

/// What is asked for first, which is enough as a rule.
const LEN_USUAL: usize = 16 << 10;

/// Objects of a pool whose names begin alike: `IMAGE.NAME`, where a URL names an image.
#[derive(Clone)]
pub struct Objects(Arc<Inner>);

struct Inner {
    /// Always there until it is dropped, which waits for the network.
    pool: Option<Pool>,
    prefix: String,
    /// Held from an operation until its version was asked for, which librados keeps for each pool.
    turn: Mutex<()>,
}

/// One of them.
#[derive(Clone)]
pub struct Object {
    objects: Objects,
    name: CString,
}

impl Objects {
    /// Connects to the cluster. A snapshot means nothing here.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn connect(url: &Url) -> Result<Self, OpenError> {
        let pool = Some(Cluster::connect(url)?.pool(url)?);
        Ok(Self(Arc::new(Inner { pool, prefix: url.image.clone(), turn: Mutex::default() })))
    }

    /// One of them, which need not be there.
    ///
    /// # Errors
    /// The name contains a zero byte.
    pub fn object(&self, name: &str) -> Result<Object, OpenError> {
        let name = crate::cluster::c_string(&format!("{}.{name}", self.0.prefix), "the name")?;
        Ok(Object { objects: self.clone(), name })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let pool = self.pool.take();
        let thread = std::thread::Builder::new().name("rados-close".into());
        if let Err(error) = thread.spawn(move || drop(pool)) {
            tracing::warn!(%error, "no thread, so a pool was closed on this one");
        }
    }
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Object({})", self.name.to_string_lossy())
    }
}

impl Object {
    /// The version and the content; `None` if it is not there.
    ///
    /// # Errors
    /// Ceph's.
    pub fn load(&self) -> io::Result<Option<(u64, Vec<u8>)>> {
        let (pool, _turn) = self.pool()?;
        let calls = pool.calls();
        for len in [LEN_USUAL, LEN_MAX] {
            let mut content = vec![0u8; len];
            // SAFETY: the pool is open, the name lives, and the buffer has this length.
            let read = unsafe {
                let into = content.as_mut_ptr().cast();
                (calls.rados_read)(pool.handle(), self.name.as_ptr(), into, len, 0)
            };
            match usize::try_from(read) {
                Ok(read) if read < len => {
                    content.truncate(read);
                    // SAFETY: the pool is open; the last operation on it was the one above.
                    let version = unsafe { (calls.rados_get_last_version)(pool.handle()) };
                    return Ok(Some((version, content)));
                }
                Ok(_) => {} // there is more
                Err(_) if read == -libc::ENOENT => return Ok(None),
                Err(_) => return Err(os_error(read.into())),
            }
        }
        Err(io::Error::other(format!("{self:?} has more than {LEN_MAX} bytes")))
    }

    /// Replaces the content that has this version (0: there is no object); the new version, or
    /// `None` if it had another by now.
    ///
    /// # Errors
    /// Ceph's; whether it was replaced is not known then.
    pub fn replace(&self, version: u64, content: &[u8]) -> io::Result<Option<u64>> {
        let (pool, _turn) = self.pool()?;
        let calls = pool.calls();
        // SAFETY: the operation is used by this thread only, and released below. The pool is open,
        // the name and the content live; a null time is now, and a null category is none.
        let done = unsafe {
            let operation: Opaque = (calls.rados_create_write_op)();
            match version {
                0 => (calls.rados_write_op_create)(operation, CREATE_EXCLUSIVE, null()),
                version => (calls.rados_write_op_assert_version)(operation, version),
            }
            let from = content.as_ptr().cast();
            (calls.rados_write_op_write_full)(operation, from, content.len());
            let operate = calls.rados_write_op_operate;
            let done = operate(operation, pool.handle(), self.name.as_ptr(), null_mut(), 0);
            (calls.rados_release_write_op)(operation);
            done
        };
        match -done {
            0 => {
                // SAFETY: as in `load`.
                Ok(Some(unsafe { (calls.rados_get_last_version)(pool.handle()) }))
            }
            libc::EEXIST | libc::ENOENT | libc::ERANGE | libc::EOVERFLOW => Ok(None),
            _ => Err(os_error(done.into())),
        }
    }

    fn pool(&self) -> io::Result<(&Pool, MutexGuard<'_, ()>)> {
        let inner = &self.objects.0;
        let pool = inner.pool.as_ref().ok_or_else(|| io::Error::other("the pool is closed"))?;
        Ok((pool, inner.turn.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
