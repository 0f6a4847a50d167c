//! `enkaku attach`: a remote volume as a local file or an NBD export.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use block::Device;
use block::layer::{CacheStats, FailuresLayer};
use block::mirror::reservation_key;
use export::fuse::FuseConfig;
use iscsi::initiator::{IsidChoice, Url};
use tracing::{info, warn};

use super::advice::parse_url;
use super::front;
use super::remote::{CacheArgs, RemoteArgs, URL_HELP, Volume};
use super::stats_file::StatsFile;

/// Makes a remote volume usable here, as a file or as an NBD export, until interrupted.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("front").required(true).args(["fuse", "nbd"]))]
pub(crate) struct Args {
    #[arg(help = URL_HELP, value_parser = parse_url)]
    url: Url,
    /// Mount it in this empty directory, as the file `volume`.
    #[arg(long, value_name = "DIR")]
    fuse: Option<PathBuf>,
    /// Serve it by NBD on a Unix socket (a path) or on TCP (ADDR:PORT).
    #[arg(long, value_name = "SOCKET|ADDR:PORT")]
    nbd: Option<String>,
    /// Let the kernel gather writes to the file into large ones, which small writes gain from. A
    /// write past the end, or one the target refuses, is then told by fsync or close, not by write.
    #[arg(long, conflicts_with_all = ["nbd", "read_only"])]
    kernel_write_back: bool,
    /// Refuse all writes.
    #[arg(long)]
    read_only: bool,
    /// Write what is going on to this file as JSON, anew every second.
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let volume = args.remote.connect_with(&args.url, |config| {
        // Who attaches a volume anew takes the place of the process that had it.
        if args.remote.isid.is_none() {
            config.isid = IsidChoice::Stable;
        }
    });
    let volume = volume.await?;
    if !args.read_only {
        register(&volume).await;
    }
    let cache = args.cache.layer(volume.device());
    let watched = Arc::new(FailuresLayer::new(cache.clone()));
    let mut device: Device = watched.clone();
    if args.read_only {
        device = Arc::new(block::layer::ReadOnlyLayer::new(device));
    }
    let stats = match &args.stats {
        Some(file) => Some(StatsFile::start(file, &args.url, volume.disk(), &cache)?),
        None => None,
    };
    let result = match (&args.fuse, &args.nbd) {
        (Some(dir), _) => {
            let config = FuseConfig::default()
                .file_name("volume")
                .read_only(args.read_only)
                .kernel_write_back(args.kernel_write_back);
            front::fuse(device, dir, config, |_| ()).await
        }
        (_, Some(socket)) => front::nbd(device, socket, |_| ()).await,
        _ => Ok(()),
    };
    drop(stats);
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

/// The leg of a mirror that was promoted is reserved, for those who register under its key.
async fn register(volume: &Volume) {
    let registered = async {
        let Some(fence) = volume.disk().fence().await? else { return Ok(()) };
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
