//! [`Cluster`]: a client of a Ceph cluster, and [`Pool`], what it does in one of its pools.
//!
//! Connecting and closing wait for the network: never call them where others must go on.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::path::Path;
use std::ptr::{null, null_mut};

use crate::error::{OpenError, os_error};
use crate::ffi::{Calls, Opaque, calls};
use crate::url::Url;

/// What is set whatever the configuration says: names and values of Ceph's options.
///
/// `rbd_cache`: a cache in this process would hold writes back that were acknowledged, and show
/// another gateway's readers what is old. Without it, what is acknowledged is on the disks of all
/// replicas (Ceph's documentation, *RBD Config Settings*).
const SETTINGS: [(&CStr, &CStr); 1] = [(c"rbd_cache", c"false")];

/// Seconds that connecting may take.
const CONNECT_TIME: &CStr = c"client_mount_timeout";

/// Ceph's own, longer than anybody waits for a command that may merely have the wrong address.
const CONNECT_TIME_OF_CEPH: &[u8] = b"300\0";

/// Ours instead of that one; what a configuration says otherwise is kept.
const CONNECT_TIME_OURS: &CStr = c"30";

/// The user where none is named.
const DEFAULT_ID: &str = "admin";

/// A client that is connected.
pub(crate) struct Cluster {
    calls: &'static Calls,
    handle: Opaque,
}

// SAFETY: librados documents its handles as usable from all threads.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// Connects as the URL says.
    ///
    /// # Errors
    /// [`OpenError`].
    pub(crate) fn connect(url: &Url) -> Result<Self, OpenError> {
        let calls = calls()?;
        let id = url.id.as_deref().unwrap_or(DEFAULT_ID);
        let user = c_string(id, "the user")?;
        let mut handle: Opaque = null_mut();
        // SAFETY: `handle` is written to; `user` lives as long as the call.
        let created = unsafe { (calls.rados_create)(&raw mut handle, user.as_ptr()) };
        let conf = conf_name(url.conf.as_deref());
        let refused = |returned: i32, hint| OpenError::Connect {
            conf: conf.clone(),
            id: id.to_owned(),
            source: os_error(returned.into()),
            hint,
        };
        if created < 0 {
            return Err(refused(created, "the client cannot be made"));
        }
        // From here on it is shut down when dropped.
        let cluster = Self { calls, handle };
        cluster.configure(url.conf.as_deref())?;
        if cluster.is_set_to(CONNECT_TIME, CONNECT_TIME_OF_CEPH) {
            cluster.set((CONNECT_TIME, CONNECT_TIME_OURS));
        }
        SETTINGS.into_iter().for_each(|setting| cluster.set(setting));
        // SAFETY: the handle was made above and is not connected.
        let connected = unsafe { (calls.rados_connect)(cluster.handle) };
        if connected < 0 {
            return Err(refused(connected, advice(connected)));
        }
        Ok(cluster)
    }

    /// Reads the configuration, and what CEPH_ARGS adds to it.
    fn configure(&self, conf: Option<&Path>) -> Result<(), OpenError> {
        let file = match conf {
            Some(path) => Some(c_string(&path.to_string_lossy(), "the configuration's path")?),
            None => None,
        };
        let file = file.as_ref().map_or(null(), |file| file.as_ptr());
        // SAFETY: `file` is null, which stands for the usual places, or ends with a zero and lives.
        let read = unsafe { (self.calls.rados_conf_read_file)(self.handle, file) };
        if read < 0 {
            let source = os_error(read.into());
            return Err(OpenError::Conf { file: conf_name(conf), source });
        }
        // SAFETY: a null name stands for CEPH_ARGS.
        let read = unsafe { (self.calls.rados_conf_parse_env)(self.handle, null()) };
        if read < 0 {
            let source = os_error(read.into());
            return Err(OpenError::Conf { file: "CEPH_ARGS".to_owned(), source });
        }
        Ok(())
    }

    /// Has an option this value, which ends with a zero?
    fn is_set_to(&self, name: &CStr, value: &[u8]) -> bool {
        let mut found = [0u8; 16];
        // SAFETY: the name ends with a zero, and the length is that of what is written to.
        let got = unsafe {
            let into = found.as_mut_ptr().cast();
            (self.calls.rados_conf_get)(self.handle, name.as_ptr(), into, found.len())
        };
        got >= 0 && found.starts_with(value)
    }

    fn set(&self, (name, value): (&CStr, &CStr)) {
        // SAFETY: both end with a zero and live as long as the program.
        let set =
            unsafe { (self.calls.rados_conf_set)(self.handle, name.as_ptr(), value.as_ptr()) };
        if set < 0 {
            // An option that a later Ceph does not know any more has no effect there either.
            tracing::warn!(?name, ?value, error = %os_error(set.into()), "option of Ceph not set");
        }
    }

    /// A pool, and in it a namespace.
    ///
    /// # Errors
    /// [`OpenError::Pool`].
    pub(crate) fn pool(self, url: &Url) -> Result<Pool, OpenError> {
        let name = c_string(&url.pool, "the pool's name")?;
        let namespace = c_string(&url.namespace, "the namespace")?;
        let mut handle: Opaque = null_mut();
        // SAFETY: the cluster is connected, `handle` is written to, `name` lives.
        let made =
            unsafe { (self.calls.rados_ioctx_create)(self.handle, name.as_ptr(), &raw mut handle) };
        if made < 0 {
            return Err(OpenError::Pool {
                pool: url.pool.clone(),
                id: url.id.as_deref().unwrap_or(DEFAULT_ID).to_owned(),
                source: os_error(made.into()),
            });
        }
        let pool = Pool { handle, cluster: self };
        // SAFETY: the handle was made above; the name is copied.
        unsafe { (pool.cluster.calls.rados_ioctx_set_namespace)(handle, namespace.as_ptr()) };
        Ok(pool)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: made by `rados_create`, and its pools are gone: they own it.
        unsafe { (self.calls.rados_shutdown)(self.handle) };
    }
}

/// A pool of a cluster, which it keeps connected.
pub(crate) struct Pool {
    handle: Opaque,
    cluster: Cluster,
}

// SAFETY: as for `Cluster`.
unsafe impl Send for Pool {}
// SAFETY: as for `Cluster`.
unsafe impl Sync for Pool {}

impl Pool {
    pub(crate) fn calls(&self) -> &'static Calls {
        self.cluster.calls
    }

    /// For calls that take the pool. Valid as long as this is.
    pub(crate) fn handle(&self) -> Opaque {
        self.handle
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: made by `rados_ioctx_create`; whoever used it borrowed or owned this.
        unsafe { (self.cluster.calls.rados_ioctx_destroy)(self.handle) };
    }
}

pub(crate) fn c_string(text: &str, what: &'static str) -> Result<CString, OpenError> {
    CString::new(text).map_err(|_| OpenError::Zero { what })
}

fn conf_name(conf: Option<&Path>) -> String {
    conf.map_or_else(
        || match std::env::var("CEPH_CONF") {
            Ok(path) => format!("{path} (CEPH_CONF)"),
            Err(_) => "/etc/ceph/ceph.conf".to_owned(),
        },
        |path| path.display().to_string(),
    )
}

fn advice(returned: i32) -> &'static str {
    match -returned {
        libc::ETIMEDOUT => "no monitor answers; is mon_host right, and the cluster up?",
        libc::EACCES | libc::EPERM => "the key is not that of this user; see id= and the keyring",
        libc::ENOENT => "no keyring of this user was found; see id= and keyring in the file",
        libc::EINVAL => "is mon_host in the file?",
        _ => "see mon_host and keyring in the file",
    }
}
