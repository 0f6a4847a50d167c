//! [`KernelDevice`]: a device as `/dev/nbdN` of this machine's kernel, which is the client. It is
//! set up over generic netlink (`netlink`), with one end of a socket pair; the requests that come
//! out of the other end are answered as any client's.
//!
//! **When this process is killed** the device stays, and its requests wait for a while. A successor
//! finds it by its identity and gives the kernel a new socket; requests that were not answered are
//! asked again over that one. So everything acknowledged has to be with the device below: a cache
//! that completes writes early would lose them unnoticed.
//!
//! **One connection.** Of several, the kernel takes one whose request is not answered for a while
//! for dead, and asks again over another; the first may yet be carried out, and put old data over
//! newer. Of one, it waits as long as the device below takes.
//!
//! Not here: ioctl(2), the older way to set it up, which has no successor.

mod netlink;
mod sysfs;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as Socket;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use block::Device;
use nbd::inbox::Inbox;
use nbd::stream::Stream;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tracing::{debug, info, warn};

use self::netlink::{Netlink, Setup};
use self::sysfs::NBD;
use super::handshake::Session;
use super::{Export, connection, transmission};
use crate::byte_device::ByteDevice;
use crate::kernel::node;
use crate::kernel::{
    DEATH_TIME_MAX, KernelConfig, KernelError, Place, RETRY, RunError, blocking, joined,
};

/// Largest block that the kernel's client can have: a page.
const BLOCK_SIZE_MAX: u32 = 4096;

/// How often the kernel looks at a request that is not answered. After a takeover one that was
/// under way is asked again at its next look; before, each look at each is a line in its log.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Begins an identity, so that a device of ours is known as such.
const OURS: &str = "enkaku ";

/// A device that is there, and whose requests are answered. [`run`](Self::run) it to its end.
pub struct KernelDevice {
    export: Arc<Export>,
    control: Control,
    serving: Serving,
    place: Place,
}

/// One task, which ends when the kernel closes its end of the socket and all that was begun is
/// done. True if it has said that it ends the device.
type Serving = JoinSet<Result<bool, connection::ConnectionError>>;

/// The kernel's side of it.
#[derive(Clone)]
struct Control {
    index: u32,
    identity: Arc<str>,
    block_size: u32,
    flags: u16,
    dead_time: Duration,
}

impl KernelDevice {
    /// Takes over the device that a predecessor left, or makes a new one. Its requests wait for a
    /// successor for `dead_time`, in whole seconds, if this process is killed. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// [`KernelError`]; there is no new device then.
    pub async fn attach(
        device: Device,
        config: KernelConfig,
        dead_time: Duration,
    ) -> Result<Self, KernelError> {
        let export = Arc::new(Export { name: String::new(), device: ByteDevice::new(device) });
        let info = export.device.info();
        let mut control = Control {
            index: 0,
            identity: format!("{OURS}{}", config.identity).into(),
            block_size: info.block_size.min(BLOCK_SIZE_MAX),
            flags: transmission::transmission_flags(&info).0,
            dead_time,
        };
        let left = control.clone();
        let left = blocking(move || Ok(left.left_by_a_predecessor())).await?;
        let mut serving = None;
        if let Some(index) = left {
            control.index = index;
            serving = control.give_socket(&export).await?;
        }
        let taken_over = serving.is_some();
        let serving = match serving {
            Some(serving) => serving,
            None => control.make(&export).await?,
        };
        let node = control.node();
        if !taken_over && sysfs::identity(control.index).is_none() {
            warn!(device = %node.display(), "this kernel is older than 5.14: no process can take \
                  the device over from this one");
        }
        let place = Place::new(node, &config.link, taken_over);
        Ok(Self { export, control, serving, place })
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Returns when `shutdown` has completed and nobody has it mounted any more, or when somebody
    /// else has ended the device. It takes the sizes that `sizes` tells. Flushes at the end.
    ///
    /// # Errors
    /// The error of the final flush, or what the kernel says; the device may be left then.
    pub async fn run(
        self,
        shutdown: impl Future<Output = ()>,
        mut sizes: watch::Receiver<u64>,
    ) -> Result<(), RunError> {
        let Self { export, control, mut serving, place: _link } = self;
        let mut shutdown = std::pin::pin!(shutdown);
        let (mut ending, mut asked) = (JoinSet::new(), false);
        let disconnecting = Arc::new(AtomicBool::new(false));
        // The device may have got another size while nobody served it.
        sizes.mark_changed();
        loop {
            tokio::select! {
                ended = serving.join_next() => {
                    match ended {
                        Some(Ok(Ok(true))) => break,
                        Some(Ok(Err(error))) => warn!(%error, "the kernel's socket is of no use"),
                        _ => {}
                    }
                    if disconnecting.load(Ordering::Acquire) {
                        break;
                    }
                    // It has closed the socket, and goes on with another.
                    match control.give_socket(&export).await? {
                        Some(again) => serving = again,
                        None => break,
                    }
                }
                Ok(()) = sizes.changed() => {
                    let (control, size) = (control.clone(), *sizes.borrow_and_update());
                    // Not waited for: it waits for requests that are under way.
                    drop(spawn_blocking(move || control.resize(size)));
                }
                () = &mut shutdown, if !asked => {
                    asked = true;
                    ending.spawn(control.clone().end_when_unused(disconnecting.clone()));
                }
                Some(ended) = ending.join_next() => joined(ended)?, // then the socket ends, too
            }
        }
        while let Some(ended) = ending.join_next().await {
            joined(ended)?;
        }
        export.device.flush().await?;
        Ok(())
    }
}

/// Devices of ours, with what each is known by; a process may serve it or not.
pub fn devices() -> Vec<(PathBuf, String)> {
    let all = sysfs::all().into_iter();
    let ours = all.filter_map(|(index, identity)| {
        Some((NBD.node(index), identity.strip_prefix(OURS)?.to_owned()))
    });
    ours.collect()
}

/// Ends a device of ours that no process serves any more: its requests fail.
///
/// # Errors
/// [`KernelError`].
pub async fn disconnect(node: &Path) -> Result<(), KernelError> {
    let ours = NBD
        .index_at(node)
        .filter(|index| sysfs::identity(*index).is_some_and(|identity| identity.starts_with(OURS)));
    let index = ours.ok_or_else(|| KernelError::NotOurs(node.to_owned()))?;
    blocking(move || {
        open()?.disconnect(index).map_err(KernelError::of(format!("ending /dev/nbd{index}")))
    })
    .await
}

impl Control {
    fn node(&self) -> PathBuf {
        NBD.node(self.index)
    }

    /// The device is in use, and ours.
    fn is_there(&self) -> bool {
        sysfs::identity(self.index).as_deref() == Some(&*self.identity)
    }

    fn left_by_a_predecessor(&self) -> Option<u32> {
        let mut all = sysfs::all().into_iter();
        all.find(|(_, identity)| **identity == *self.identity).map(|(index, _)| index)
    }

    /// Gives the device a socket in place of one that is dead; `None` if there is no such device
    /// any more.
    async fn give_socket(&self, export: &Arc<Export>) -> Result<Option<Serving>, KernelError> {
        let begin = Instant::now();
        loop {
            let (serving, ours, kernels) = socket(export)?;
            let control = self.clone();
            let taken = blocking(move || {
                let taken = open()?.give_socket(control.index, &control.identity, kernels.as_fd());
                drop(kernels);
                // One that it did not take, because none is dead, is closed by now.
                Ok(taken.map(|()| !is_closed(&ours)))
            });
            let taken = taken.await?;
            if matches!(taken, Ok(true)) {
                return Ok(Some(serving));
            }
            if !self.is_there() {
                return Ok(None);
            }
            if begin.elapsed() > DEATH_TIME_MAX {
                let what = format!("taking {} over", self.node().display());
                taken.map_err(KernelError::of(what))?;
                return Err(KernelError::InUse(self.node()));
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// A device that was not there.
    async fn make(&mut self, export: &Arc<Export>) -> Result<Serving, KernelError> {
        let (serving, _ours, kernels) = socket(export)?;
        let (control, size) = (self.clone(), export.device.info().size);
        let made = blocking(move || {
            let setup = Setup {
                identity: &control.identity,
                size,
                block_size: control.block_size,
                flags: control.flags,
                dead_time: control.dead_time,
            };
            let made = open()?.connect(&setup, kernels.as_fd());
            made.map_err(KernelError::of("making a block device"))
        });
        self.index = made.await?;
        let index = self.index;
        // Not waited for: it waits for what others have asked of the new device already.
        drop(spawn_blocking(move || {
            if let Err(error) = sysfs::set_look_ms(index, LOOK_EVERY.as_millis()) {
                debug!(%error, "the kernel looks at requests at its own times");
            }
        }));
        Ok(serving)
    }

    /// Has the kernel know another size. Waits for the requests that are under way.
    fn resize(&self, size: u64) {
        let device = self.node();
        if NBD.size(self.index).is_ok_and(|known| known == size) {
            return;
        }
        let resized = open().and_then(|mut netlink| {
            let resized = netlink.resize(self.index, &self.identity, size, self.block_size);
            resized.map_err(KernelError::of("another size"))
        });
        match resized {
            Ok(()) => info!(size, device = %device.display(), "the device has another size"),
            Err(error) => warn!(%error, size, device = %device.display(), "it keeps its size"),
        }
    }

    /// Waits until nobody has it mounted, and ends it. From when on, stands in `disconnecting`.
    async fn end_when_unused(self, disconnecting: Arc<AtomicBool>) -> Result<(), KernelError> {
        let index = self.index;
        let end = move || {
            let mut netlink = open()?;
            disconnecting.store(true, Ordering::Release);
            netlink.disconnect(index).map_err(KernelError::of(format!("ending nbd{index}")))
        };
        node::end_when_unused(&self.node(), end).await
    }
}

fn open() -> Result<Netlink, KernelError> {
    Netlink::open().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => KernelError::NoModule { what: "NBD client", module: "nbd" },
        _ => KernelError::of("generic netlink")(error),
    })
}

/// A socket whose requests are answered, before the kernel has its end: what it has been asked for
/// by others, it asks for at once. Our end, to look at, and the kernel's.
fn socket(export: &Arc<Export>) -> Result<(Serving, Socket, Socket), KernelError> {
    let made = || {
        let (ours, kernels) = Socket::pair()?;
        ours.set_nonblocking(true)?;
        let stream = Arc::new(Stream::unix(UnixStream::from_std(ours.try_clone()?)?));
        Ok((stream, ours, kernels))
    };
    let (stream, ours, kernels) = made().map_err(KernelError::of("a socket pair"))?;
    let export = export.clone();
    let mut serving = Serving::new();
    serving.spawn(async move {
        // It ends with the socket, and never before.
        let (_stop, stopped) = watch::channel(false);
        let inbox = Inbox::new(stream.clone());
        connection::transmit(stream, inbox, export, Session::default(), stopped).await
    });
    Ok((serving, ours, kernels))
}

/// Whether nobody has the other end.
fn is_closed(ours: &Socket) -> bool {
    let peeked = socket2::SockRef::from(ours).peek(&mut [std::mem::MaybeUninit::uninit()]);
    matches!(peeked, Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_the_kernel_did_not_take_is_known_as_closed() {
        let (ours, kernels) = Socket::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        assert!(!is_closed(&ours));
        drop(kernels);
        assert!(is_closed(&ours));
    }

    #[tokio::test]
    async fn what_is_not_ours_is_not_ended() {
        for node in ["/dev/sda", "/dev/nbd", "/dev/nbd4294967295", "/"] {
            let refused = disconnect(Path::new(node)).await.unwrap_err();
            assert!(matches!(refused, KernelError::NotOurs(_)), "{refused}");
        }
    }
}
