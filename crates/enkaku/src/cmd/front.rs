//! Where a device is offered on this machine until the user wants it back: as a file (FUSE), as an
//! NBD export, as a block device of the kernel, or as a target (iSCSI).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use block::Device;
use daemon::MetricsListener;
use export::fuse::{FuseConfig, UnmountError};
use export::kernel::{KernelConfig, Place};
use export::nbd::kernel::KernelDevice;
use export::nbd::{ExportConfig, Listen, Server};
use export::ublk::UblkDevice;
use iscsi::target::{Chap, ServerConfig};
use scsi::{LunOptions, Target, TargetConfig};
use tokio::sync::watch;
use tracing::{info, warn};

use super::{Usage, say, stop_signal};

/// Longest path of a socket in bytes (`sun_path` of unix(7), with a zero at its end).
const SOCKET_PATH_LEN_MAX: usize = 107;

/// The address of `--metrics`, bound before anything else is begun.
pub(crate) async fn metrics(
    address: Option<SocketAddr>,
) -> anyhow::Result<Option<MetricsListener>> {
    let Some(address) = address else { return Ok(None) };
    let bound = MetricsListener::bind(address).await;
    bound.map(Some).map_err(|error| Usage::error(format!("--metrics {address}: {error}")))
}

/// As the file `volume` in a directory. `ready` is told of it.
pub(crate) async fn fuse(
    device: Device,
    dir: &Path,
    config: FuseConfig,
    ready: impl FnOnce(&str),
) -> anyhow::Result<()> {
    let mut mount = export::fuse::mount(device, dir, config, tokio::runtime::Handle::current())
        .map_err(|error| Usage::error(error.to_string()))?;
    let file = mount.file().display().to_string();
    ready(&file);
    say(format_args!("attached as {file}"))?;
    tell_systemd();
    loop {
        tokio::select! {
            ended = mount.wait_unmounted() => return ended.context("the mount ended badly"),
            stop = stop_signal() => drop(stop?),
        }
        match mount.unmount().await {
            // Whoever holds the file open may still have data to write: their data comes first.
            Err(UnmountError::Busy(dir)) => {
                warn!(dir = %dir.display(), "in use; unmounting when its users are done");
                mount.detach()?;
            }
            result => return result.context("unmounting"),
        }
    }
}

/// By NBD on a Unix socket or on TCP. `ready` is told of it.
pub(crate) async fn nbd(
    device: Device,
    socket: &str,
    ready: impl FnOnce(&str),
) -> anyhow::Result<()> {
    let listen = match socket.parse::<SocketAddr>() {
        Ok(address) => Listen::Tcp(address),
        Err(_) => Listen::Unix(PathBuf::from(socket)),
    };
    if let Listen::Unix(path) = &listen
        && path.as_os_str().len() > SOCKET_PATH_LEN_MAX
    {
        return Err(Usage::error(format!(
            "--nbd {socket}: {} bytes; the path of a socket may have {SOCKET_PATH_LEN_MAX}",
            socket.len()
        )));
    }
    let config = ExportConfig { name: String::new(), device };
    let server = Server::bind(listen, config).await?;
    let address = server.local_addr().to_string();
    ready(&address);
    say(format_args!("listening on {address}"))?;
    tell_systemd();
    server.run(stopped()).await.context("the last flush failed")
}

/// Whose block device it becomes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Driver {
    /// The NBD client's, `/dev/nbdN`, whose requests wait for a successor for so long.
    Nbd { dead_time: Duration },
    /// The ublk driver's, `/dev/ublkbN`.
    Ublk,
}

/// As a block device of this machine's kernel, which changes its size as `sizes` tells. `ready` is
/// told of it and of its link.
pub(crate) async fn block_device(
    driver: Driver,
    device: Device,
    config: KernelConfig,
    sizes: watch::Receiver<u64>,
    ready: impl FnOnce(&[&str]),
) -> anyhow::Result<()> {
    let refused = |option| move |error| Usage::error(format!("{option}: {error}"));
    let ended = match driver {
        Driver::Nbd { dead_time } => {
            let attached = KernelDevice::attach(device, config, dead_time).await;
            let attached = attached.map_err(refused("--nbd-device"))?;
            tell_place(attached.place(), ready);
            attached.run(stopped(), sizes).await
        }
        Driver::Ublk => {
            let attached = UblkDevice::attach(device, config).await;
            let attached = attached.map_err(refused("--ublk"))?;
            tell_place(attached.place(), ready);
            attached.run(stopped(), sizes).await
        }
    };
    ended.context("the device ended badly")
}

/// A device is there. Its requests are answered whatever becomes of these lines.
fn tell_place(place: &Place, ready: impl FnOnce(&[&str])) {
    let places = [Some(place.node()), place.link()].into_iter().flatten();
    let places: Vec<String> = places.map(|place| place.display().to_string()).collect();
    if place.is_taken_over() {
        info!(device = places[0], "took over what a process that is gone had left");
    }
    ready(&places.iter().map(String::as_str).collect::<Vec<_>>());
    if let Err(error) = say(format_args!("attached as {}", places.join(", "))) {
        warn!(%error, "nobody was told what it is attached as");
    }
    tell_systemd();
}

/// The kernel's block devices that are ours, with the volume of each; a process may serve it or
/// not.
pub(crate) fn devices() -> impl Iterator<Item = (PathBuf, String)> {
    export::nbd::kernel::devices().into_iter().chain(export::ublk::devices())
}

/// A target with one LUN.
pub(crate) struct IscsiFront {
    pub(crate) listen: SocketAddr,
    pub(crate) iqn: String,
    pub(crate) chap: Option<Chap>,
    /// Changes when the device has grown.
    pub(crate) growth: watch::Receiver<u64>,
    /// How the unit presents itself.
    pub(crate) options: LunOptions,
}

/// As LUN 0 of a target. `ready` is told of it.
pub(crate) async fn iscsi(
    device: Device,
    front: IscsiFront,
    ready: impl FnOnce(&str),
) -> anyhow::Result<()> {
    let IscsiFront { listen, iqn, chap, mut growth, options } = front;
    let named = ServerConfig::new(&iqn);
    let mut config = named.map_err(|error| Usage::error(format!("--iqn {iqn}: {error}")))?;
    config.chap = chap;
    let target = Target::new(TargetConfig::new(&iqn));
    let added = target.add_lun(0, device, options);
    added.map_err(|error| Usage::error(error.to_string()))?;
    let bound = iscsi::target::Server::bind(config, target.clone(), &[listen]);
    let server = bound.map_err(anyhow::Error::from)?;
    let addresses: Vec<String> = server.local_addrs().iter().map(ToString::to_string).collect();
    ready(&format!("iscsi://{}/{iqn}/0", addresses.join(",")));
    for address in addresses {
        say(format_args!("listening on {address}"))?;
    }
    tell_systemd();
    let tell = async {
        while growth.changed().await.is_ok() {
            // The one unit that there is.
            let _ = target.capacity_changed(0);
        }
        std::future::pending().await
    };
    tokio::select! {
        () = server.run(stopped()) => Ok(()),
        () = tell => Ok(()),
    }
}

/// Who is ordered behind a unit of ours has waited for this.
fn tell_systemd() {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        warn!(%error, "systemd was not told that the device is there");
    }
}

async fn stopped() {
    drop(stop_signal().await);
}
