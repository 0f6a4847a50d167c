//! [`RbdDisk`]: an image as a [`BlockDevice`]. Turns block operations into librbd's, bounds how
//! many are in flight, and follows the image's size.
//!
//! Everything acknowledged is stable: without a cache in this process (`cluster`) the cluster
//! acknowledges a write when all replicas have it on their disks. So there is no volatile cache, a
//! write is as good as one with FUA, and a flush has nothing to do but to wait.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use block::{
    BlockDevice, BlockError, Buf, Bytes, Compared, DeviceInfo, Extent, Io, Result, WriteFlags,
    ZeroFlags,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::Config;
use crate::error::{FENCED, OpenError, failure};
use crate::extents::Extents;
use crate::image::Image;
use crate::in_flight::{Finished, Payload, Waiting};
use crate::url::Url;

/// Operations in flight at once: more than the queues of a few sessions, so that librbd's memory
/// has a limit; others wait their turn.
const IN_FLIGHT_MAX: usize = 512;

/// Every client can use such blocks.
const BLOCK_SIZE: u32 = 512;

/// Longest range of one operation of librbd that zeroes, in bytes: it becomes a request for each of
/// its objects, of 4 MiB as a rule, at once.
const ZERO_LEN_MAX: u64 = 256 << 20;

/// Bytes whose extents are asked for at once, so that a long question does not keep one thread for
/// minutes where each object has to be asked.
const EXTENTS_LEN_MAX: u64 = 64 << 30;

/// An image in use. Clones are handles to the same one; when the last goes, it is closed in the
/// background.
#[derive(Clone)]
pub struct RbdDisk(Arc<Inner>);

struct Inner {
    name: String,
    read_only: bool,
    /// In whole blocks.
    size: AtomicU64,
    /// `None` once it was closed.
    image: RwLock<Option<Arc<Opened>>>,
    /// Ends when it was.
    closed: Mutex<Option<oneshot::Receiver<()>>>,
    places: Arc<Semaphore>,
    /// The cluster refuses what we send, for good.
    fenced: AtomicBool,
}

impl std::fmt::Debug for RbdDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RbdDisk({})", self.0.name)
    }
}

impl RbdDisk {
    /// Connects to the cluster and opens the image. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is tried again.
    pub async fn open(url: Url, config: Config) -> std::result::Result<Self, OpenError> {
        let read_only = config.read_only || url.snapshot.is_some();
        let name = Url { conf: None, id: None, ..url.clone() }.to_string();
        let opened = tokio::task::spawn_blocking(move || {
            let image = Image::open(&url, read_only)?;
            let size = image.size();
            Ok::<_, OpenError>((image, size))
        });
        let opened = opened.await.map_err(|error| OpenError::Thread(error.to_string()))?;
        let (image, size) = opened?;
        let changed = image.changed();
        let (done, closed) = oneshot::channel();
        let image = Opened { image: Some(image), closed: Some(done) };
        let size = match size {
            Ok(size) if size > 0 && size.is_multiple_of(u64::from(BLOCK_SIZE)) => size,
            Ok(size) => return Err(OpenError::Size { image: name, size }),
            Err(source) => {
                return Err(OpenError::Image { image: name, source, hint: String::new() });
            }
        };
        let inner = Arc::new(Inner {
            name,
            read_only,
            size: AtomicU64::new(size),
            image: RwLock::new(Some(Arc::new(image))),
            closed: Mutex::new(Some(closed)),
            places: Arc::new(Semaphore::new(IN_FLIGHT_MAX)),
            fenced: AtomicBool::new(false),
        });
        let disk = Arc::downgrade(&inner);
        tokio::spawn(async move {
            loop {
                changed.notified().await;
                if !look_at_size(&disk).await {
                    return;
                }
            }
        });
        Ok(Self(inner))
    }

    /// Waits for what is in flight and closes the image. Every later operation fails, on every
    /// handle.
    ///
    /// # Errors
    /// What failed when it was flushed before; it is closed in any case.
    pub async fn close(&self) -> Result<()> {
        let flushed = match self.0.image() {
            Some(_) if !self.0.read_only => self.flush().await,
            _ => Ok(()),
        };
        drop(self.0.image.write().unwrap_or_else(PoisonError::into_inner).take());
        let closed = self.0.closed.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(closed) = closed {
            // An error is what the end looks like.
            let _ = closed.await;
        }
        flushed
    }

    /// The image is open, and the cluster has not shut this client out.
    pub fn is_connected(&self) -> bool {
        !self.0.fenced.load(Ordering::Acquire) && self.0.image().is_some()
    }
}

/// Takes a new size; false when the disk is gone.
async fn look_at_size(disk: &Weak<Inner>) -> bool {
    let Some(image) = disk.upgrade().and_then(|inner| inner.image()) else { return false };
    let looked = tokio::task::spawn_blocking(move || image.image().map(Image::size)).await;
    let Some(inner) = disk.upgrade() else { return false };
    match looked {
        Ok(Some(Ok(size))) => {
            let size = size / u64::from(BLOCK_SIZE) * u64::from(BLOCK_SIZE);
            let before = inner.size.swap(size, Ordering::AcqRel);
            if before != size {
                tracing::info!(image = inner.name, before, size, "the image has another size");
            }
        }
        Ok(Some(Err(error))) => tracing::warn!(image = inner.name, %error, "size not known"),
        Ok(None) | Err(_) => return false,
    }
    true
}

/// An image that may be dropped anywhere: it is closed on a thread of its own, since that waits for
/// the network and for what is in flight.
struct Opened {
    /// Always there until it is dropped.
    image: Option<Image>,
    /// Dropped with it.
    closed: Option<oneshot::Sender<()>>,
}

impl Opened {
    fn image(&self) -> Option<&Image> {
        self.image.as_ref()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let (image, closed) = (self.image.take(), self.closed.take());
        let thread = std::thread::Builder::new().name("rbd-close".into());
        let spawned = thread.spawn(move || {
            drop(image);
            drop(closed);
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread, so an image was closed on this one");
        }
    }
}

impl Inner {
    fn image(&self) -> Option<Arc<Opened>> {
        self.image.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn opened(&self) -> Result<Arc<Opened>> {
        if self.fenced.load(Ordering::Acquire) {
            return Err(failure(i64::from(-FENCED), "using the image"));
        }
        self.image().ok_or_else(|| BlockError::Unreachable("the image was closed".into()))
    }

    /// Takes note of the end of this client, if that is what an operation tells.
    fn note(&self, returned: i64) {
        if returned == i64::from(-FENCED) && !self.fenced.swap(true, Ordering::AcqRel) {
            tracing::error!(
                image = self.name,
                "another client has taken the image over: the cluster refuses what we write"
            );
        }
    }

    /// Starts an operation, now if there is a place for it.
    fn start<T: Send + Unpin + 'static>(
        self: &Arc<Self>,
        begin: impl FnOnce(&Image, OwnedSemaphorePermit) -> Waiting + Send + 'static,
        end: impl FnOnce(Finished) -> Result<T> + Send + 'static,
    ) -> Io<T> {
        let opened = match self.opened() {
            Ok(opened) => opened,
            Err(error) => return Io::err(error),
        };
        let begin = move |place| match opened.image() {
            Some(image) => Ok(begin(image, place)),
            None => Err(gone()),
        };
        let inner = self.clone();
        let began = match self.places.clone().try_acquire_owned() {
            Ok(place) => Ok(begin(place)),
            Err(_) => Err(begin),
        };
        Io::later(async move {
            let waiting = match began {
                Ok(waiting) => waiting?,
                Err(begin) => {
                    let place = inner.places.clone().acquire_owned().await;
                    begin(place.map_err(|_| gone())?)?
                }
            };
            let finished = waiting.await.map_err(|_| gone())?;
            inner.note(finished.returned);
            end(finished)
        })
    }

    /// Zeroes a range, piece by piece: each is many requests at once already.
    fn zero(self: &Arc<Self>, offset: u64, len: u64, hole: bool, what: &'static str) -> Io<()> {
        let inner = self.clone();
        Io::later(async move {
            for (at, len) in pieces(offset, len, ZERO_LEN_MAX) {
                let begin = move |image: &Image, place| image.zero(at, len as usize, hole, place);
                inner.start(begin, done(what)).await?;
            }
            Ok(())
        })
    }
}

/// The end of an operation that gives nothing back.
fn done(what: &'static str) -> impl FnOnce(Finished) -> Result<()> {
    move |finished| match finished.returned {
        0.. => Ok(()),
        failed => Err(failure(failed, what)),
    }
}

fn gone() -> BlockError {
    BlockError::Unreachable("librbd has forgotten the operation".into())
}

/// What an image tells of its data. Where there is none any more, nothing is told: that is a
/// failure, since what is not told of counts as a hole.
fn data_of<I>(
    image: Option<I>,
    ask: impl FnOnce(I) -> std::result::Result<(), i64>,
) -> std::result::Result<(), i64> {
    image.map_or(Err(-i64::from(libc::ENOTCONN)), ask)
}

/// A range cut into pieces of at most `step` bytes.
fn pieces(offset: u64, len: u64, step: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..len.div_ceil(step)).map(move |n| {
        let at = offset + n * step;
        (at, step.min(offset + len - at))
    })
}

fn read_whole(finished: Finished) -> Result<Buf> {
    match (finished.returned, finished.payload) {
        (failed @ ..0, _) => Err(failure(failed, "reading")),
        (returned, Payload::Read(buf)) if returned == buf.len() as i64 => Ok(buf),
        (returned, _) => Err(BlockError::Medium(std::io::Error::other(format!(
            "reading an image gave {returned} bytes only"
        )))),
    }
}

/// Whether it was written.
fn swapped(finished: Finished) -> Result<bool> {
    const DIFFERS: i64 = -(libc::EILSEQ as i64);
    /// Of more than 512 bytes, or across the border of two objects, there is no one step.
    const TOO_LONG: i64 = -(libc::EINVAL as i64);
    match finished.returned {
        0.. => Ok(true),
        DIFFERS => Ok(false),
        TOO_LONG => Err(BlockError::Unsupported("comparing and writing more than a block")),
        failed => Err(failure(failed, "comparing and writing")),
    }
}

/// Where what was found differs from what was expected. Librbd's own word on it is not of one
/// meaning through its versions, so it is read again; if it has changed meanwhile, at the begin.
fn first_difference(found: &[u8], expected: &[u8]) -> u64 {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    differs.unwrap_or(0) as u64
}

impl BlockDevice for RbdDisk {
    fn info(&self) -> DeviceInfo {
        let inner = &self.0;
        let mut info = DeviceInfo::new(inner.size.load(Ordering::Acquire), BLOCK_SIZE);
        let writable = !inner.read_only;
        info.read_only = inner.read_only;
        info.volatile_cache = false;
        info.can_fua = writable;
        info.can_trim = writable;
        info.trim_zeroes = writable;
        info.can_zero = writable;
        info.can_extents = true;
        info.can_compare_and_write = writable;
        info
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        if let Err(error) = self.info().check(offset, buf.len() as u64) {
            return Io::err(error);
        }
        if buf.is_empty() {
            return Io::ok(buf);
        }
        self.0.start(move |image, place| image.read(offset, buf, place), read_whole)
    }

    fn write(&self, offset: u64, data: Bytes, _flags: WriteFlags) -> Io<()> {
        if let Err(error) = self.info().check_write(offset, data.len() as u64) {
            return Io::err(error);
        }
        if data.is_empty() {
            return Io::ok(());
        }
        let begin = move |image: &Image, place| image.write(offset, data, place);
        self.0.start(begin, done("writing"))
    }

    fn flush(&self) -> Io<()> {
        self.0.start(|image, place| image.flush(place), done("flushing"))
    }

    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        match self.info().check_write(offset, len) {
            // Not `rbd_aio_discard`, which leaves what is smaller than a granule as it was.
            Ok(()) => self.0.zero(offset, len, true, "trimming"),
            Err(error) => Io::err(error),
        }
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        match self.info().check_write(offset, len) {
            Ok(()) => self.0.zero(offset, len, flags.may_trim, "zeroing"),
            Err(error) => Io::err(error),
        }
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        if let Err(error) = self.info().check(offset, len) {
            return Io::err(error);
        }
        let inner = self.0.clone();
        Io::later(async move {
            let _place = inner.places.clone().acquire_owned().await.map_err(|_| gone())?;
            let mut extents = Extents::new(offset, len, BLOCK_SIZE);
            for (at, len) in pieces(offset, len, EXTENTS_LEN_MAX) {
                let opened = inner.opened()?;
                let asked = tokio::task::spawn_blocking(move || {
                    let told = data_of(opened.image(), |image| image.data(at, len, &mut extents));
                    (extents, told)
                });
                let (so_far, told) =
                    asked.await.map_err(|error| BlockError::Unreachable(error.to_string()))?;
                if let Err(returned) = told {
                    inner.note(returned);
                    return Err(failure(returned, "asking for extents"));
                }
                extents = so_far;
            }
            Ok(extents.finish())
        })
    }

    fn compare_and_write(&self, offset: u64, expected: Bytes, new: Bytes) -> Io<Compared> {
        let len = new.len();
        if let Err(error) = self.info().check_write(offset, len as u64) {
            return Io::err(error);
        }
        if expected.len() != len {
            return Io::err(BlockError::Unsupported("comparing and writing of two lengths"));
        }
        let compared = expected.clone();
        let begin =
            move |image: &Image, place| image.compare_and_write(offset, expected, new, place);
        let disk = self.clone();
        let swapping = self.0.start(begin, swapped);
        Io::later(async move {
            if swapping.await? {
                return Ok(Compared::Written);
            }
            let found = disk.read(offset, Buf::new(len)).await?;
            Ok(Compared::Differs { at: first_difference(&found, &compared) })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_is_gone_has_no_holes() {
        let mut extents = Extents::new(0, 4096, BLOCK_SIZE);
        let told = data_of(None::<&Image>, |image| image.data(0, 4096, &mut extents));
        let error = failure(told.unwrap_err(), "asking for extents");
        assert!(matches!(error, BlockError::Unreachable(_)), "{error}");
    }
}
