//! [`UblkDevice`]: a device as `/dev/ublkbN` of this machine's kernel (6.5 and later), whose ublk
//! driver hands requests to this process over io_uring: no socket, no other process's copy.
//!
//! **When this process is killed** the device stays, and its requests wait, as long as it takes:
//! for a successor, who finds it by a mark and is asked again what was not answered, or for
//! [`disconnect`]. So everything acknowledged has to be with the device below: a cache that
//! completes writes early would lose them unnoticed.
//!
//! The driver's numbers and structures are in `sys`, because the library for it, libublk, brings a
//! generator that needs libclang, and a runtime of its own.

mod control;
mod queue;
mod sys;

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use block::{Device, DeviceInfo};
use sha2::{Digest, Sha256};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use self::control::Control;
use self::queue::Queue;
use self::sys::{Op, Parameters};
use crate::byte_device::ByteDevice;
use crate::kernel::node::{self, Kind, SECTOR};
use crate::kernel::{
    DEATH_TIME_MAX, KernelConfig, KernelError, Place, RETRY, RunError, blocking, joined,
};

/// Whose each device of ours is, as a file by its number: the driver keeps no more than a mark.
const FOLDER: &str = "/run/enkaku-ublk";

/// The devices of the driver.
const UBLK: Kind = Kind("ublkb");

/// Largest block that a device can have: a page.
const BLOCK_SIZE_MAX: u32 = 4096;

/// Longest range that is zeroed or discarded at once, in sectors: 1 GiB.
const RANGE_SECTORS_MAX: u32 = 1 << 21;

/// A device that is there, and whose requests are answered. [`run`](Self::run) it to its end.
pub struct UblkDevice {
    device: ByteDevice,
    served: Served,
    place: Place,
}

/// The kernel's side of it.
struct Served {
    index: u32,
    queue: Queue,
    /// Comes when the queue is through.
    ended: oneshot::Receiver<()>,
}

impl UblkDevice {
    /// Takes over the device that a predecessor left, or makes a new one. Must be called within a
    /// tokio runtime.
    ///
    /// # Errors
    /// [`KernelError`]; there is no new device then.
    pub async fn attach(device: Device, config: KernelConfig) -> Result<Self, KernelError> {
        let device = ByteDevice::new(device);
        let (below, identity) = (device.clone(), config.identity);
        let attached = blocking(move || {
            let mut control = open()?;
            if control.features().unwrap_or(0) & sys::FEATURES != sys::FEATURES {
                let what = "this kernel's ublk driver is too old: Linux 6.5 is needed";
                return Err(KernelError::TooOld(what));
            }
            let left = left_by_a_predecessor(&mut control, &identity);
            let taken = left.map(|index| take_over(&mut control, index, &below)).transpose()?;
            match taken.flatten() {
                Some(served) => Ok((served, true)),
                None => make(&mut control, &identity, &below).map(|served| (served, false)),
            }
        });
        let (served, taken_over) = attached.await?;
        let place = Place::new(UBLK.node(served.index), &config.link, taken_over);
        Ok(Self { device, served, place })
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
        let Self { device, served: Served { index, queue, mut ended }, place: _link } = self;
        let mut shutdown = std::pin::pin!(shutdown);
        let (mut ending, mut asked) = (JoinSet::new(), false);
        // The device may have got another size while nobody served it.
        sizes.mark_changed();
        loop {
            tokio::select! {
                _ = &mut ended => break,
                Ok(()) = sizes.changed() => {
                    let size = *sizes.borrow_and_update();
                    // Not waited for: it waits for requests that are under way.
                    drop(tokio::task::spawn_blocking(move || resize(index, size)));
                }
                () = &mut shutdown, if !asked => {
                    asked = true;
                    let end = async move {
                        node::end_when_unused(&UBLK.node(index), move || stop(index)).await
                    };
                    ending.spawn(end);
                }
                Some(ended) = ending.join_next() => joined(ended)?, // then the queue ends, too
            }
        }
        while let Some(ended) = ending.join_next().await {
            joined(ended)?;
        }
        let failed = KernelError::of(format!("serving {}", UBLK.node(index).display()));
        // One that could not be served is left, for a successor or for `disconnect`.
        let removed = blocking(move || queue.join().map_err(failed).and_then(|()| remove(index)));
        let removed = removed.await;
        device.flush().await?;
        Ok(removed?)
    }
}

/// Devices of ours, with what each is known by; a process may serve it or not.
pub fn devices() -> Vec<(PathBuf, String)> {
    let all = UBLK.indices();
    if all.is_empty() {
        return Vec::new();
    }
    let Ok(mut control) = Control::open() else { return Vec::new() };
    let ours =
        all.into_iter().filter_map(|index| Some((UBLK.node(index), owner(&mut control, index)?)));
    ours.collect()
}

/// Ends a device of ours that no process serves any more: its requests fail.
///
/// # Errors
/// [`KernelError`].
pub async fn disconnect(node: &Path) -> Result<(), KernelError> {
    let index = UBLK.index_at(node).ok_or_else(|| KernelError::NotOurs(node.to_owned()))?;
    let node = node.to_owned();
    blocking(move || {
        if owner(&mut open()?, index).is_none() {
            return Err(KernelError::NotOurs(node));
        }
        stop(index)?;
        remove(index)
    })
    .await
}

fn open() -> Result<Control, KernelError> {
    Control::open().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            KernelError::NoModule { what: "ublk driver", module: "ublk_drv" }
        }
        _ => KernelError::of("/dev/ublk-control")(error),
    })
}

/// What a device is marked with: the begin of the hash of its identity.
fn mark(identity: &str) -> u64 {
    let hash = Sha256::digest(identity.as_bytes());
    hash.iter().take(8).fold(0, |mark, byte| mark << 8 | u64::from(*byte))
}

fn file_of(index: u32) -> PathBuf {
    Path::new(FOLDER).join(index.to_string())
}

/// The identity of a device of ours: what its file says, where the driver's mark agrees.
fn owner(control: &mut Control, index: u32) -> Option<String> {
    let identity = fs::read_to_string(file_of(index)).ok()?;
    let info = control.info(index).ok()?;
    (info.mark == mark(&identity)).then_some(identity)
}

fn left_by_a_predecessor(control: &mut Control, identity: &str) -> Option<u32> {
    let mark = mark(identity);
    UBLK.indices()
        .into_iter()
        .find(|index| control.info(*index).is_ok_and(|info| info.mark == mark))
}

/// Who serves the device `index` from now on; `None` if there is no such device any more.
fn take_over(
    control: &mut Control,
    index: u32,
    device: &ByteDevice,
) -> Result<Option<Served>, KernelError> {
    let begin = Instant::now();
    while let Err(error) = control.simple(Op::START_USER_RECOVERY, index, 0) {
        match control.info(index) {
            Err(gone) if gone.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            Ok(info) if begin.elapsed() > DEATH_TIME_MAX && info.state != sys::QUIESCED => {
                return Err(KernelError::InUse(UBLK.node(index)));
            }
            _ if begin.elapsed() > DEATH_TIME_MAX => {
                let what = format!("taking {} over", UBLK.node(index).display());
                return Err(KernelError::of(what)(error));
            }
            _ => std::thread::sleep(RETRY),
        }
    }
    serve(control, index, device, Op::END_USER_RECOVERY).map(Some)
}

/// A device that was not there.
fn make(control: &mut Control, identity: &str, device: &ByteDevice) -> Result<Served, KernelError> {
    let making = || KernelError::of("making a block device");
    let index = control.add(mark(identity)).map_err(making())?;
    let served = control
        .set_parameters(index, parameters(&device.info()))
        .and_then(|()| write_owner(index, identity))
        .map_err(making())
        .and_then(|()| serve(control, index, device, Op::START_DEV));
    if served.is_err()
        && let Err(error) = remove(index)
    {
        warn!(%error, index, "what was begun of a block device stays");
    }
    served
}

fn write_owner(index: u32, identity: &str) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).recursive(true).create(FOLDER)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    io::Write::write_all(&mut options.open(file_of(index))?, identity.as_bytes())
}

/// Answers its requests; it is there once `op` has completed.
fn serve(
    control: &mut Control,
    index: u32,
    device: &ByteDevice,
    op: Op,
) -> Result<Served, KernelError> {
    let shown = UBLK.node(index);
    let failed = |what: &str| KernelError::of(format!("{what} {}", shown.display()));
    let file = OpenOptions::new().read(true).write(true).open(format!("/dev/ublkc{index}"));
    let file = file.map_err(failed("opening"))?;
    let (end, ended) = oneshot::channel();
    let told = move || {
        // Who has given up waiting does not want to know.
        let _told = end.send(());
    };
    let queue = Queue::start(file, device.clone(), told).map_err(failed("serving"))?;
    match control.simple(op, index, u64::from(std::process::id())) {
        Ok(()) => Ok(Served { index, queue, ended }),
        Err(error) => {
            // The thread ends when what it has asked for is cancelled.
            let _why = stop(index);
            let why = queue.join().err().unwrap_or(error);
            Err(failed("starting")(why))
        }
    }
}

/// Has the kernel end it: what is under way is waited for, what comes then fails.
fn stop(index: u32) -> Result<(), KernelError> {
    let stopped = open()?.simple(Op::STOP_DEV, index, 0);
    stopped.map_err(KernelError::of(format!("ending {}", UBLK.node(index).display())))
}

/// Frees its number, once nobody serves it.
fn remove(index: u32) -> Result<(), KernelError> {
    let removed = open()?.simple(Op::DEL_DEV, index, 0);
    removed.map_err(KernelError::of(format!("removing {}", UBLK.node(index).display())))?;
    let _never_written = fs::remove_file(file_of(index));
    Ok(())
}

/// Has the kernel know another size.
fn resize(index: u32, size: u64) {
    let device = UBLK.node(index);
    if UBLK.size(index).is_ok_and(|known| known == size) {
        return;
    }
    let resized = open().and_then(|mut control| {
        if control.features().unwrap_or(0) & sys::F_UPDATE_SIZE == 0 {
            let what = "this kernel's ublk driver cannot change a size: Linux 6.16 is needed";
            return Err(KernelError::TooOld(what));
        }
        let resized = control.simple(Op::UPDATE_SIZE, index, size / SECTOR);
        resized.map_err(KernelError::of("another size"))
    });
    match resized {
        Ok(()) => info!(size, device = %device.display(), "the device has another size"),
        Err(error) => warn!(%error, size, device = %device.display(), "it keeps its size"),
    }
}

/// What the kernel has to know of a device.
fn parameters(info: &DeviceInfo) -> Parameters {
    let block_size = info.block_size.min(BLOCK_SIZE_MAX);
    let shift = block_size.trailing_zeros() as u8;
    let attribute = |is: bool, attribute: u32| if is { attribute } else { 0 };
    let writable = !info.read_only;
    let range = |can: bool| if can { RANGE_SECTORS_MAX } else { 0 };
    let trims = writable && info.can_trim;
    Parameters {
        kinds: sys::BASIC | if writable { sys::DISCARD } else { 0 },
        attributes: attribute(info.read_only, sys::ATTR_READ_ONLY)
            | attribute(info.can_flush, sys::ATTR_VOLATILE_CACHE)
            // It is kept by the device, or by a flush after the write.
            | attribute(writable && info.can_flush, sys::ATTR_FUA),
        logical_block_shift: shift,
        physical_block_shift: BLOCK_SIZE_MAX.trailing_zeros() as u8,
        io_optimal_shift: BLOCK_SIZE_MAX.trailing_zeros() as u8,
        io_least_shift: shift,
        sectors_max: sys::REQUEST_LEN_MAX / SECTOR as u32,
        sectors: info.size / SECTOR,
        discard_granularity: BLOCK_SIZE_MAX.max(info.block_size),
        discard_sectors_max: range(trims),
        discard_segments_max: u16::from(trims),
        // Zeroes are better written here than sent by the kernel.
        zeroes_sectors_max: range(writable),
        ..Parameters::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_ours_is_not_ended() {
        for node in ["/dev/sda", "/dev/ublkb", "/dev/ublkb4294967296", "/"] {
            let refused = disconnect(Path::new(node)).await.unwrap_err();
            assert!(matches!(refused, KernelError::NotOurs(_)), "{refused}");
        }
    }

    #[test]
    fn a_mark_is_of_the_identity() {
        let url = "iscsi://h/iqn.2026-11.org.example:a/0";
        assert_eq!(mark(url), mark(url));
        assert_ne!(mark(url), mark("iscsi://h/iqn.2026-11.org.example:a/1"));
        assert_ne!(mark(url), 0, "what others' devices have");
    }
}
