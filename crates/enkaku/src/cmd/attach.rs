//! `enkaku attach`: a remote volume as a local file, an NBD export, a block device, or the LUN of a
//! target here.

mod owner;
pub(crate) mod registry;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use backends::Location;
use block::Device;
use block::layer::{CacheStats, FailuresLayer, StatsLayer};
use block::mirror::reservation_key;
use daemon::Attached;
use export::fuse::FuseConfig;
use export::kernel::KernelConfig;
use iscsi::initiator::IsidChoice;
use iscsi::target::Chap;
use scsi::LunOptions;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tracing::{info, warn};
use wanlab::units;

use self::owner::{Owner, Ownership};
use self::registry::{Entry, Registered};
use super::front::{self, Driver, IscsiFront};
use super::remote::{CacheArgs, RemoteArgs, Volume, parse_location};
use super::stats_file::StatsFile;
use super::target::table::{or_dash, table};
use super::{Usage, complain, one_line, read_secret, say, socket_address};

/// Makes a remote volume usable here, as a file, an NBD export, a block device or the LUN of a
/// target, until interrupted or detached.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("front").required(true)
          .args(["fuse", "nbd", "nbd_device", "ublk", "iscsi", "list"]))]
pub(crate) struct Args {
    #[arg(help = backends::FORMS, value_parser = parse_location, required_unless_present = "list",
          conflicts_with = "list")]
    url: Option<Location>,
    /// Mount it in this empty directory, as the file `volume`.
    #[arg(long, value_name = "DIR")]
    fuse: Option<PathBuf>,
    /// Serve it by NBD on a Unix socket (a path) or on TCP (ADDR:PORT).
    #[arg(long, value_name = "SOCKET|ADDR:PORT")]
    nbd: Option<String>,
    /// Make it a block device, /dev/nbdN, with a link to it in /dev/enkaku: IQN/LUN (as root, where
    /// the kernel's module nbd is loaded).
    #[arg(long)]
    nbd_device: bool,
    /// Make it a block device, /dev/ublkbN, with a link to it as of --nbd-device: less work for the
    /// processors (as root, where the kernel's module ublk_drv is loaded, Linux 6.5 or newer). If
    /// this process is killed, what it is asked waits for a successor, or for `detach`.
    #[arg(long)]
    ublk: bool,
    /// How long what an NBD device is asked waits for a successor, if this process is killed.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["fuse", "nbd", "ublk", "iscsi", "list"],
          default_value = "120s", value_parser = units::parse_duration, allow_hyphen_values = true)]
    successor_timeout: Duration,
    /// Serve it as LUN 0 of a target here, for initiators that are better off near it; port 0 takes
    /// a free one.
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_portal)]
    iscsi: Option<SocketAddr>,
    /// Name of that target.
    #[arg(long, conflicts_with_all = ["fuse", "nbd", "nbd_device", "ublk"],
          default_value = "iqn.2026-11.io.enkaku:gateway")]
    iqn: String,
    /// Initiators of that target must know this CHAP user.
    #[arg(long, conflicts_with_all = ["fuse", "nbd", "nbd_device", "ublk"],
          requires = "front_password_file", value_name = "USER")]
    front_user: Option<String>,
    /// File whose first line is that user's password.
    #[arg(long, requires = "front_user", value_name = "FILE")]
    front_password_file: Option<PathBuf>,
    /// Nobody reaches the volume but by this target: offer reservations and COMPARE AND WRITE,
    /// which hold among its initiators only.
    #[arg(long, conflicts_with_all = ["fuse", "nbd", "nbd_device", "ublk"])]
    exclusive: bool,
    /// Let the kernel gather writes to the file into large ones, which small writes gain from. A
    /// write past the end, or one the target refuses, is then told by fsync or close, not by write.
    #[arg(long, conflicts_with_all = ["nbd", "nbd_device", "ublk", "iscsi", "read_only"])]
    kernel_write_back: bool,
    /// Refuse all writes.
    #[arg(long)]
    read_only: bool,
    /// Keep everybody else from writing to the volume while it is attached, and those who only read
    /// it, as enkaku media, from believing it: a persistent reservation. With =take, whoever else
    /// has one loses it.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "hold",
          conflicts_with_all = ["read_only", "list"])]
    owner: Option<Owner>,
    /// Write what is going on to this file as JSON, anew every second.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Serve metrics (OpenMetrics) and health over HTTP; port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// List what is attached at this host, by processes of this user.
    #[arg(long)]
    list: bool,
    /// Print the list as JSON.
    #[arg(long, requires = "list")]
    json: bool,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Some(url) = &args.url else { return list(args.json) };
    if (args.nbd_device || args.ublk) && args.cache.is_write_back() {
        let option = if args.ublk { "--ublk" } else { "--nbd-device" };
        return Err(Usage::error(format!(
            "{option} with --cache write-back: if this process were killed, a successor would \
             take the device over without what was not flushed, and nobody would notice; \
             --cache read gathers writes in the kernel",
        )));
    }
    if args.owner.is_some() {
        Owner::check(url)?;
    }
    let mut registered = Registered::default();
    let result = attach(&args, url, &mut registered).await;
    registered.end(result.as_ref().err().map(one_line));
    result
}

/// Attaches it, until interrupted.
async fn attach(
    args: &Args,
    url: &Location,
    registered: &mut Registered,
) -> anyhow::Result<ExitCode> {
    let chap = front_chap(args)?;
    let metrics = front::metrics(args.metrics).await?;
    let volume = args.remote.open_with(url, |config| {
        // Who attaches a volume anew takes the place of the process that had it.
        if args.remote.isid.is_none() {
            config.isid = IsidChoice::Stable;
        }
    });
    let volume = volume.await?;
    if !args.read_only && args.owner.is_none() {
        register(&volume).await;
    }
    let carried = Arc::new(StatsLayer::new(volume.device()));
    let below = if metrics.is_some() { carried.clone() } else { volume.device() };
    let cache = args.cache.layer(below);
    let watched = Arc::new(FailuresLayer::new(cache.clone()));
    let mut device: Device = watched.clone();
    if args.read_only {
        device = Arc::new(block::layer::ReadOnlyLayer::new(device));
    }
    let stats = match &args.stats {
        Some(file) => Some(StatsFile::start(file, url, volume.backend(), &cache)?),
        None => None,
    };
    let mut answering = JoinSet::new();
    if let Some(metrics) = metrics {
        say(format_args!("metrics on http://{}/metrics", metrics.address()))?;
        let (name, of) = (url.key(), volume.backend().clone());
        let attached = Attached::new(name, of, carried, cache.clone(), watched.clone());
        answering.spawn(attached.serve(metrics));
    }
    let (owned, result) = match own(args, url, &volume).await {
        Ok(owned) => (owned, offer(args, url, device, chap, &volume, registered).await),
        Err(error) => (None, Err(error)),
    };
    drop((stats, answering));
    let written = cache.close().await;
    log_stats(&cache.stats());
    // Others believe the disk as soon as it is given back, so all has to be on it.
    let given_back = match owned {
        Some(owned) => owned.end().await,
        None => Ok(()),
    };
    let closed = volume.close().await;
    result?;
    written.context("writing out the cache")?;
    given_back?;
    closed.context("logging out")?;
    let failures = watched.failures();
    match failures.first {
        None => Ok(ExitCode::SUCCESS),
        Some(first) => anyhow::bail!(
            "{}: I/O failed while it was attached; failed operations: {}; the first: {first}",
            url,
            failures.count
        ),
    }
}

/// For nobody else, if that is asked for.
async fn own(args: &Args, url: &Location, volume: &Volume) -> anyhow::Result<Option<Ownership>> {
    match args.owner {
        Some(owner) => Ownership::begin(url, volume, owner).await.map(Some),
        None => Ok(None),
    }
}

/// As what was asked for, until interrupted.
async fn offer(
    args: &Args,
    url: &Location,
    device: Device,
    chap: Option<Chap>,
    volume: &Volume,
    registered: &mut Registered,
) -> anyhow::Result<()> {
    let key = url.key();
    let mut tell = |places: &[&str]| registered.tell(&key, places);
    match (&args.fuse, &args.nbd, args.iscsi) {
        (Some(dir), ..) => {
            let config = FuseConfig::default()
                .file_name("volume")
                .read_only(args.read_only)
                .kernel_write_back(args.kernel_write_back);
            front::fuse(device, dir, config, |file| tell(&[file])).await
        }
        (_, Some(socket), _) => front::nbd(device, socket, |address| tell(&[address])).await,
        (_, _, Some(listen)) => {
            let ready = |address: &str| tell(&[address]);
            gateway(args, device, listen, chap, volume, ready).await
        }
        _ => {
            let link = Path::new(LINKS).join(link_name(url));
            let driver = match args.ublk {
                true => Driver::Ublk,
                false => Driver::Nbd { dead_time: args.successor_timeout },
            };
            let config = KernelConfig { identity: key.clone(), link };
            let (sizes, watching) = sizes(volume, &device);
            let ended = front::block_device(driver, device, config, sizes, tell).await;
            watching.abort();
            ended
        }
    }
}

/// Where devices have lasting names.
const LINKS: &str = "/dev/enkaku";

/// A lasting name of a volume: of an iSCSI unit IQN/LUN, else the URL, with what may stand in the
/// name of a file.
fn link_name(url: &Location) -> PathBuf {
    let plain = |name: &str| {
        let usual = |c: char| c.is_ascii_alphanumeric() || "-._:+=@".contains(c);
        let name: String = name.chars().map(|c| if usual(c) { c } else { '_' }).collect();
        // Neither hidden nor a way upwards.
        if name.starts_with('.') { format!("_{name}") } else { name }
    };
    match url {
        Location::Iscsi(url) => PathBuf::from(plain(&url.target)).join(url.lun.to_string()),
        _ => plain(&url.key()).into(),
    }
}

/// What is attached.
fn list(json: bool) -> anyhow::Result<ExitCode> {
    let mut entries: Vec<Entry> = registry::found().into_iter().map(|one| one.entry).collect();
    for (node, volume) in front::devices() {
        let node = node.display().to_string();
        if !entries.iter().any(|entry| entry.places.contains(&node)) {
            let (pid, places) = (None, vec![node]);
            entries.push(Entry { pid, volume, places, since_s: 0, failed: None });
        }
    }
    if json {
        say(serde_json::to_string_pretty(&entries)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |entry: Entry| {
        let pid = or_dash(entry.pid.map(|pid| pid.to_string()));
        [pid, entry.volume, entry.places.join(" ")]
    };
    say(table(["PID", "VOLUME", "ATTACHED AS"], entries.into_iter().map(row).collect()))?;
    Ok(ExitCode::SUCCESS)
}

/// The sizes that a volume gets, as long as the task runs.
fn sizes(volume: &Volume, device: &Device) -> (watch::Receiver<u64>, JoinHandle<()>) {
    let (size, sizes) = watch::channel(device.info().size);
    let watch = volume.backend().clone().tell_sizes(move |now| size.send(now).is_ok());
    (sizes, tokio::spawn(watch))
}

fn parse_portal(text: &str) -> Result<SocketAddr, String> {
    socket_address(text, iscsi_proto::names::PORT).ok_or_else(|| {
        format!("{text:?} is not an address with a port, as in 127.0.0.1:3260 or [::1]:3260")
    })
}

/// Who may come in at the near side.
fn front_chap(args: &Args) -> anyhow::Result<Option<Chap>> {
    let (Some(user), Some(file)) = (&args.front_user, &args.front_password_file) else {
        return Ok(None);
    };
    let chap = Chap::new(user, &read_secret(file)?, None);
    chap.map(Some).map_err(|error| Usage::error(format!("{}: {error}", file.display())))
}

/// As a target here, which tells its initiators when the volume has grown.
async fn gateway(
    args: &Args,
    device: Device,
    listen: SocketAddr,
    chap: Option<Chap>,
    volume: &Volume,
    ready: impl FnOnce(&str),
) -> anyhow::Result<()> {
    if chap.is_none() && !listen.ip().is_loopback() {
        let what = if args.read_only { "read" } else { "read and overwrite" };
        complain(&format!(
            "warning: everybody who reaches {listen} can {what} the volume, without a password; \
             give --front-user and --front-password-file, or --iscsi 127.0.0.1"
        ));
    }
    let (growth, watching) = sizes(volume, &device);
    let options = LunOptions::default().with_shared_beyond(!args.exclusive);
    let front = IscsiFront { listen, iqn: args.iqn.clone(), chap, growth, options };
    let served = front::iscsi(device, front, ready).await;
    watching.abort();
    served
}

/// The leg of a mirror that was promoted is reserved, for those who register under its key.
async fn register(volume: &Volume) {
    let registered = async {
        let Some(disk) = volume.disk() else { return Ok(()) };
        let Some(fence) = disk.fence().await? else { return Ok(()) };
        let Some(holder) = fence.holder().await? else { return Ok(()) };
        if reservation_key(&volume.device()).await? == Some(holder) {
            fence.hold(holder).await?;
            info!("registered for the volume, which was promoted");
        }
        Ok::<(), block::BlockError>(())
    };
    if let Err(error) = registered.await {
        // Its writes tell, if there are any.
        warn!(%error, "not registered for the volume's reservation");
    }
}

fn log_stats(stats: &CacheStats) {
    let counters = serde_json::to_string(stats).unwrap_or_default();
    info!(coalescing_ratio = stats.coalescing_ratio(), counters, "cache");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_name_stays_in_its_folder() {
        for (url, name) in [
            (
                "iscsi://me@h:3261/iqn.2026-11.org.example:disks/7",
                "iqn.2026-11.org.example:disks/7",
            ),
            ("rbd:pool/image", "rbd:pool_image"),
            ("nbd://h:10809/../../etc", "nbd:__h:10809_.._.._etc"),
        ] {
            let url: Location = url.parse().unwrap();
            assert_eq!(link_name(&url), Path::new(name), "{url}");
        }
    }
}
