//! [`Image`]: an open image. Safe calls, each of which says what it waits for.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use block::{Buf, Bytes};
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::cluster::{Cluster, Pool, c_string};
use crate::error::{OpenError, os_error};
use crate::extents::Extents;
use crate::ffi::{Calls, FEATURE_FAST_DIFF, Opaque, ZEROES_THICK};
use crate::in_flight::{Payload, Waiting, start};
use crate::url::Url;

/// An image of a cluster, open. Closing waits for the network: drop it on a thread that may.
pub(crate) struct Image {
    handle: Opaque,
    watch: Option<u64>,
    /// What the watch points to. Freed after it.
    changed: Arc<Notify>,
    has_fast_diff: bool,
    pool: Pool,
}

// SAFETY: librbd documents its images as usable from all threads (`rbd/librbd.h`, *Thread safety*
// of librados); nothing here is changed after it was opened.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Image {
    /// Connects to the cluster and opens the image. Waits for both.
    ///
    /// # Errors
    /// [`OpenError`].
    pub(crate) fn open(url: &Url, read_only: bool) -> Result<Self, OpenError> {
        let pool = Cluster::connect(url)?.pool(url)?;
        let calls = pool.calls();
        let name = c_string(&url.image, "the image's name")?;
        let snapshot = match &url.snapshot {
            Some(snapshot) => Some(c_string(snapshot, "the snapshot's name")?),
            None => None,
        };
        let snapshot = snapshot.as_ref().map_or(null(), |snapshot| snapshot.as_ptr());
        let mut handle: Opaque = null_mut();
        let open = if read_only { calls.rbd_open_read_only } else { calls.rbd_open };
        // SAFETY: the pool is open, `handle` is written to, the names live, null is no snapshot.
        let opened = unsafe { open(pool.handle(), name.as_ptr(), &raw mut handle, snapshot) };
        if opened < 0 {
            return Err(not_opened(url, opened));
        }
        // From here on it is closed when dropped.
        let mut image = Self {
            handle,
            watch: None,
            changed: Arc::default(),
            has_fast_diff: features(calls, handle) & FEATURE_FAST_DIFF != 0,
            pool,
        };
        image.watch();
        Ok(image)
    }

    fn calls(&self) -> &'static Calls {
        self.pool.calls()
    }

    /// Asks to be told of changes to the image.
    fn watch(&mut self) {
        let argument = Arc::as_ptr(&self.changed).cast::<c_void>().cast_mut();
        let mut watch = 0;
        // SAFETY: `changed` lives until the watch is gone, see `Drop`; it may be used on any
        // thread.
        let set = unsafe {
            (self.calls().rbd_update_watch)(self.handle, &raw mut watch, updated, argument)
        };
        match set {
            0.. => self.watch = Some(watch),
            // Snapshots do not change, and everything else but a resize works without.
            _ => tracing::debug!(error = %os_error(set.into()), "the image is not watched"),
        }
    }

    /// Is notified when something about the image has changed, its size perhaps.
    pub(crate) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Its size in bytes. Waits for the cluster when that has changed.
    ///
    /// # Errors
    /// Librbd's.
    pub(crate) fn size(&self) -> std::io::Result<u64> {
        let mut size = 0;
        // SAFETY: the image is open and `size` is written to.
        let got = unsafe { (self.calls().rbd_get_size)(self.handle, &raw mut size) };
        if got < 0 { Err(os_error(got.into())) } else { Ok(size) }
    }

    /// Starts filling a buffer.
    pub(crate) fn read(&self, offset: u64, buf: Buf, place: OwnedSemaphorePermit) -> Waiting {
        let calls = self.calls();
        start(calls, Payload::Read(buf), place, |completion, payload| {
            let Payload::Read(buf) = payload else { return -i64::from(libc::EINVAL) };
            // SAFETY: the image is open; the buffer is `payload`'s, and has this length.
            unsafe {
                let into = buf.as_mut_ptr().cast();
                (calls.rbd_aio_read)(self.handle, offset, buf.len(), into, completion).into()
            }
        })
    }

    /// Starts writing.
    pub(crate) fn write(&self, offset: u64, data: Bytes, place: OwnedSemaphorePermit) -> Waiting {
        let calls = self.calls();
        start(calls, Payload::Write(data), place, |completion, payload| {
            let Payload::Write(data) = payload else { return -i64::from(libc::EINVAL) };
            // SAFETY: the image is open; the data is `payload`'s, and has this length.
            unsafe {
                let from = data.as_ptr().cast();
                (calls.rbd_aio_write)(self.handle, offset, data.len(), from, completion).into()
            }
        })
    }

    /// Starts waiting for all writes that have begun.
    pub(crate) fn flush(&self, place: OwnedSemaphorePermit) -> Waiting {
        let calls = self.calls();
        start(calls, Payload::Nothing, place, |completion, _| {
            // SAFETY: the image is open.
            unsafe { (calls.rbd_aio_flush)(self.handle, completion).into() }
        })
    }

    /// Starts making a range read as zeroes: a hole, or written.
    pub(crate) fn zero(
        &self,
        offset: u64,
        len: usize,
        hole: bool,
        place: OwnedSemaphorePermit,
    ) -> Waiting {
        let calls = self.calls();
        let flags = if hole { 0 } else { ZEROES_THICK };
        start(calls, Payload::Nothing, place, |completion, _| {
            // SAFETY: the image is open; no memory is used.
            unsafe {
                let begin = calls.rbd_aio_write_zeroes;
                begin(self.handle, offset, len, completion, flags, 0).into()
            }
        })
    }

    /// Starts comparing and writing, of the same length, in one object.
    pub(crate) fn compare_and_write(
        &self,
        offset: u64,
        expected: Bytes,
        new: Bytes,
        place: OwnedSemaphorePermit,
    ) -> Waiting {
        let calls = self.calls();
        let payload = Payload::Compare { expected, new, differs_at: 0 };
        start(calls, payload, place, |completion, payload| {
            let Payload::Compare { expected, new, differs_at } = payload else {
                return -i64::from(libc::EINVAL);
            };
            let len = expected.len().min(new.len());
            // SAFETY: the image is open; all memory is `payload`'s and at least `len` long.
            unsafe {
                let (expected, new) = (expected.as_ptr().cast(), new.as_ptr().cast());
                let begin = calls.rbd_aio_compare_and_write;
                begin(self.handle, offset, len, expected, new, completion, differs_at, 0) as i64
            }
        })
    }

    /// Adds the data of a range. Waits for the cluster.
    ///
    /// # Errors
    /// Librbd's, negative.
    pub(crate) fn data(&self, offset: u64, len: u64, extents: &mut Extents) -> Result<(), i64> {
        // With an object map, one look at it tells which objects there are; without, each is asked,
        // and then it may as well tell what is in it.
        let whole_objects = u8::from(self.has_fast_diff);
        let argument = (&raw mut *extents).cast();
        // SAFETY: the image is open; librbd calls `differs` before it returns, one call at a time,
        // so that `extents` is borrowed as long and by nobody else. No name: since the beginning.
        let told = unsafe {
            let call = self.calls().rbd_diff_iterate2;
            call(self.handle, null(), offset, len, 1, whole_objects, differs, argument)
        };
        if told < 0 { Err(told.into()) } else { Ok(()) }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.take() {
            // SAFETY: the watch is this image's. No call to `updated` goes on when it returns.
            unsafe { (self.calls().rbd_update_unwatch)(self.handle, watch) };
        }
        // Whoever follows the size would wait for ever: it learns that there is no image any more.
        self.changed.notify_one();
        // SAFETY: opened by `rbd_open`, closed once. It waits for what is in flight.
        let closed = unsafe { (self.calls().rbd_close)(self.handle) };
        if closed < 0 {
            tracing::warn!(error = %os_error(closed.into()), "the image was not closed in order");
        }
    }
}

fn features(calls: &Calls, handle: Opaque) -> u64 {
    let mut features = 0;
    // SAFETY: the image is open and `features` is written to.
    let got = unsafe { (calls.rbd_get_features)(handle, &raw mut features) };
    if got < 0 { 0 } else { features }
}

fn not_opened(url: &Url, opened: i32) -> OpenError {
    let plain = Url { conf: None, id: None, ..url.clone() };
    let hint = match (-opened, &url.snapshot) {
        (libc::ENOENT, Some(_)) => " (is that the image, and the snapshot? see `rbd snap ls`)",
        (libc::ENOENT, None) => " (see `rbd ls`)",
        (libc::EPERM | libc::EACCES, _) => " (do the user's caps allow it? see `ceph auth get`)",
        _ => "",
    };
    OpenError::Image {
        image: plain.to_string(),
        source: os_error(opened.into()),
        hint: hint.to_owned(),
    }
}

/// `rbd_update_callback_t`.
///
/// # Safety
/// `argument` is the [`Notify`] of an image that is open.
unsafe extern "C" fn updated(argument: *mut c_void) {
    // SAFETY: see above.
    let changed = unsafe { &*argument.cast::<Notify>() };
    changed.notify_one();
}

/// The callback of `rbd_diff_iterate2`.
///
/// # Safety
/// `argument` is an [`Extents`] that nobody else uses meanwhile.
unsafe extern "C" fn differs(
    offset: u64,
    len: usize,
    exists: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: see above.
    let extents = unsafe { &mut *argument.cast::<Extents>() };
    if exists == 0 {
        return 0; // a hole, as everything that is not told
    }
    // A panic (no memory left) must not go through C.
    match catch_unwind(AssertUnwindSafe(|| extents.data(offset, len as u64))) {
        Ok(()) => 0,
        Err(_) => -libc::ENOMEM,
    }
}
