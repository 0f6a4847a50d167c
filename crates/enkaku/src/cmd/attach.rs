//! `enkaku attach`: a remote volume as a local file, an NBD export, or the LUN of a target here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use backends::Location;
use block::Device;
use block::layer::{CacheStats, FailuresLayer, StatsLayer};
use block::mirror::reservation_key;
use daemon::Attached;
use export::fuse::FuseConfig;
use iscsi::initiator::IsidChoice;
use iscsi::target::Chap;
use scsi::LunOptions;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::front::{self, IscsiFront};
use super::remote::{CacheArgs, RemoteArgs, Volume, parse_location};
use super::stats_file::StatsFile;
use super::{Usage, complain, read_secret, say, socket_address};

/// Makes a remote volume usable here, as a file, as an NBD export or as the LUN of a target, until
/// interrupted.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("front").required(true).args(["fuse", "nbd", "iscsi"]))]
pub(crate) struct Args {
    #[arg(help = backends::FORMS, value_parser = parse_location)]
    url: Location,
    /// Mount it in this empty directory, as the file `volume`.
    #[arg(long, value_name = "DIR")]
    fuse: Option<PathBuf>,
    /// Serve it by NBD on a Unix socket (a path) or on TCP (ADDR:PORT).
    #[arg(long, value_name = "SOCKET|ADDR:PORT")]
    nbd: Option<String>,
    /// Serve it as LUN 0 of a target here, for initiators that are better off near it; port 0 takes
    /// a free one.
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_portal)]
    iscsi: Option<SocketAddr>,
    /// Name of that target.
    #[arg(long, conflicts_with_all = ["fuse", "nbd"],
          default_value = "iqn.2026-11.io.enkaku:gateway")]
    iqn: String,
    /// Initiators of that target must know this CHAP user.
    #[arg(long, conflicts_with_all = ["fuse", "nbd"], requires = "front_password_file",
          value_name = "USER")]
    front_user: Option<String>,
    /// File whose first line is that user's password.
    #[arg(long, requires = "front_user", value_name = "FILE")]
    front_password_file: Option<PathBuf>,
    /// Nobody reaches the volume but by this target: offer reservations and COMPARE AND WRITE,
    /// which hold among its initiators only.
    #[arg(long, conflicts_with_all = ["fuse", "nbd"])]
    exclusive: bool,
    /// Let the kernel gather writes to the file into large ones, which small writes gain from. A
    /// write past the end, or one the target refuses, is then told by fsync or close, not by write.
    #[arg(long, conflicts_with_all = ["nbd", "iscsi", "read_only"])]
    kernel_write_back: bool,
    /// Refuse all writes.
    #[arg(long)]
    read_only: bool,
    /// Write what is going on to this file as JSON, anew every second.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Serve metrics (OpenMetrics) and health over HTTP; port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let chap = front_chap(&args)?;
    let metrics = front::metrics(args.metrics).await?;
    let volume = args.remote.open_with(&args.url, |config| {
        // Who attaches a volume anew takes the place of the process that had it.
        if args.remote.isid.is_none() {
            config.isid = IsidChoice::Stable;
        }
    });
    let volume = volume.await?;
    if !args.read_only {
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
        Some(file) => Some(StatsFile::start(file, &args.url, volume.backend(), &cache)?),
        None => None,
    };
    let mut answering = JoinSet::new();
    if let Some(metrics) = metrics {
        say(format_args!("metrics on http://{}/metrics", metrics.address()))?;
        let (name, of) = (args.url.key(), volume.backend().clone());
        let attached = Attached::new(name, of, carried, cache.clone(), watched.clone());
        answering.spawn(attached.serve(metrics));
    }
    let result = offer(&args, device, chap, &volume).await;
    drop((stats, answering));
    let written = cache.close().await;
    log_stats(&cache.stats());
    let closed = volume.close().await;
    result?;
    written.context("writing out the cache")?;
    closed.context("logging out")?;
    let failures = watched.failures();
    match failures.first {
        None => Ok(ExitCode::SUCCESS),
        Some(first) => anyhow::bail!(
            "{}: I/O failed while it was attached; failed operations: {}; the first: {first}",
            args.url,
            failures.count
        ),
    }
}

/// As what was asked for, until interrupted.
async fn offer(
    args: &Args,
    device: Device,
    chap: Option<Chap>,
    volume: &Volume,
) -> anyhow::Result<()> {
    match (&args.fuse, &args.nbd, args.iscsi) {
        (Some(dir), ..) => {
            let config = FuseConfig::default()
                .file_name("volume")
                .read_only(args.read_only)
                .kernel_write_back(args.kernel_write_back);
            front::fuse(device, dir, config, |_| ()).await
        }
        (_, Some(socket), _) => front::nbd(device, socket, |_| ()).await,
        (_, _, Some(listen)) => gateway(args, device, listen, chap, volume).await,
        _ => Ok(()),
    }
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
) -> anyhow::Result<()> {
    if chap.is_none() && !listen.ip().is_loopback() {
        let what = if args.read_only { "read" } else { "read and overwrite" };
        complain(&format!(
            "warning: everybody who reaches {listen} can {what} the volume, without a password; \
             give --front-user and --front-password-file, or --iscsi 127.0.0.1"
        ));
    }
    let (size, growth) = watch::channel(device.info().size);
    let watch = volume.backend().clone().tell_sizes(move |now| size.send(now).is_ok());
    let watching = tokio::spawn(watch);
    let options = LunOptions::default().with_shared_beyond(!args.exclusive);
    let front = IscsiFront { listen, iqn: args.iqn.clone(), chap, growth, options };
    let served = front::iscsi(device, front, |_| ()).await;
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
