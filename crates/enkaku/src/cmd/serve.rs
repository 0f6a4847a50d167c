//! `enkaku serve`: an ad-hoc target, without a configuration file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use backends::{Location, Volume};
use block::Device;
use block::backend::{FileDevice, FileOptions, MemoryDevice, OpenError, check_fits_machine};
use block::layer::delay::DELAY_MAX;
use block::layer::{Delay, DelayLayer, Delays, Queueing, ReadOnlyLayer, ThickLayer};
use daemon::config::{parse_burst, parse_max_iops, parse_max_rate};
use iscsi::target::{CongestionChoice, Limit, Server, ServerConfig};
use iscsi::transport::Dscp;
use scsi::{LunOptions, Target, TargetConfig};
use wanlab::units;

use super::bursts::BurstArgs;
use super::remote::{NAME_HELP, parse_socket_buffer, warn_of_password};
use super::{ChapArgs, Usage, complain, parse_poll, say, socket_address, stop_signal};

/// Block size of memory, and of files unless told otherwise: what every client can use.
const DEFAULT_BLOCK_SIZE: u32 = 512;

/// Serves files, block devices or memory as an iSCSI target until interrupted.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Address to listen on, port 3260 unless given; port 0 takes a free one. May be given several
    /// times.
    #[arg(long, value_name = "ADDR[:PORT]", default_value = "[::]:3260",
          value_parser = parse_listen)]
    listen: Vec<SocketAddr>,
    /// Name of the target.
    #[arg(long, default_value = "iqn.2026-11.io.enkaku:target")]
    iqn: String,
    /// A logical unit: a file, a block device, mem:SIZE, or a volume by its URL:
    /// `iscsi://[user@]host[:port]/target-iqn/lun` (password in LIBISCSI_CHAP_PASSWORD),
    /// `nbd://HOST[:PORT]/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`, or an image of Ceph,
    /// `rbd:POOL/IMAGE[@SNAPSHOT][?conf=FILE&id=USER]`. LUN 0 is the first, and so on.
    #[arg(long, required = true, value_name = "PATH|mem:SIZE|URL")]
    lun: Vec<String>,
    /// Nobody reaches the volumes behind URLs but by this target: offer reservations and COMPARE
    /// AND WRITE for them, which hold among its initiators only. (Ceph's images have COMPARE AND
    /// WRITE without it, and for everybody.)
    #[arg(long)]
    exclusive: bool,
    /// Create files that do not exist, sparse, with this size.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    create: Option<u64>,
    /// Refuse all writes.
    #[arg(long)]
    read_only: bool,
    /// Allow memory disks that together are larger than this machine's memory.
    #[arg(long)]
    overcommit: bool,
    /// Logical block size, 512 or 4k [default: 512, or that of the block device].
    #[arg(long, value_name = "SIZE", value_parser = parse_block_size)]
    block_size: Option<u32>,
    /// Present fully provisioned units: no UNMAP, and zeroed blocks keep their storage.
    #[arg(long, visible_alias = "no-unmap")]
    thick: bool,
    /// Say that the medium is removable, and eject it when asked to.
    #[arg(long)]
    removable: bool,
    /// Offer WRITE ATOMIC up to this size: the storage below must write so much all or not at all.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    atomic_writes: Option<u64>,
    /// Most bytes a second that SANITIZE overwrites.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    sanitize_rate: Option<u64>,
    /// Physical block size to report [default: what suits the storage best].
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    physical_block_size: Option<u64>,
    /// TCP's congestion control: system, a name such as bbr, or auto: the system's until packets
    /// are lost on a path whose queue is empty, then bbr.
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = CongestionChoice::parse)]
    congestion_control: CongestionChoice,
    /// SO_SNDBUF of the connections; Linux doubles it [default: the kernel sizes it].
    #[arg(long, value_name = "SIZE", value_parser = parse_socket_buffer)]
    send_buffer: Option<usize>,
    /// SO_RCVBUF of the connections; Linux doubles it [default: the kernel sizes it].
    #[arg(long, value_name = "SIZE", value_parser = parse_socket_buffer)]
    receive_buffer: Option<usize>,
    /// Serve on a thread that asks its sockets for up to so long before it sleeps, as in 50us: less
    /// latency on a short path, for a processor that is busy while there are commands.
    #[arg(long, value_name = "TIME", value_parser = parse_poll)]
    poll: Option<Duration>,
    /// Mark what is sent: cs0 to cs7, af11 to af43, ef, va, le, or 0 to 63.
    #[arg(long, value_name = "DSCP")]
    dscp: Option<Dscp>,
    /// Most that each initiator may read and write, as in 400mbit: its commands wait, no one
    /// else's.
    #[arg(long, value_name = "RATE", value_parser = parse_max_rate)]
    max_rate: Option<u64>,
    /// Most commands a second of each initiator that read, write or flush.
    #[arg(long, value_name = "N", value_parser = parse_max_iops)]
    max_iops: Option<u64>,
    /// What an initiator did not use of its limit within so long before may be used at once.
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = parse_burst)]
    limit_burst: Duration,
    /// Bypass the page cache (O_DIRECT).
    #[arg(long)]
    direct: bool,
    /// For experiments: each read and write waits so long first, as at a slow disk; between two
    /// times, any time is equally likely. Each connection has a disk of its own: what comes over
    /// one waits in its queue, and for no other.
    #[arg(long, value_name = "TIME|MIN..MAX", value_parser = parse_delay)]
    delay: Option<Delay>,
    /// Seed of what --delay draws.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "delay")]
    delay_seed: u64,
    #[command(flatten)]
    chap: ChapArgs,
    #[command(flatten)]
    bursts: BurstArgs,
}

fn parse_block_size(text: &str) -> Result<u32, String> {
    match units::parse_size(text) {
        Ok(512) => Ok(512),
        Ok(4096) => Ok(4096),
        _ => Err(format!("{text:?} is not a block size (512 or 4096)")),
    }
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    socket_address(text, iscsi_proto::names::PORT).ok_or_else(|| {
        format!(
            "{text:?} is not an address with a port up to 65535, as in 192.0.2.1:3260 or [::]:3260"
        )
    })
}

fn parse_delay(text: &str) -> Result<Delay, String> {
    let time = |text: &str| match units::parse_time(text) {
        Ok(time) if time <= DELAY_MAX => Ok(time),
        Ok(_) => Err(format!("{text:?} is more than {} s", DELAY_MAX.as_secs())),
        Err(error) => Err(error.to_string()),
    };
    match text.split_once("..") {
        None => time(text).map(Delay::Fixed),
        Some((min, max)) => match (time(min)?, time(max)?) {
            (min, max) if min <= max => Ok(Delay::Uniform(min, max)),
            _ => Err(format!("{text:?}: the first time is the longer one")),
        },
    }
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = server_config(&args)?;
    if let Err(error) = iscsi::target::raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let target = Target::new(TargetConfig::new(&args.iqn));
    let options = lun_options(&args);
    let mut opened = Vec::new();
    check_memory(&args)?;
    check_files(&args)?;
    for (number, lun) in args.lun.iter().enumerate() {
        let number = u16::try_from(number).context("too many LUNs")?;
        let Opened { mut device, volume } = open(lun, &args).await?;
        if args.thick {
            device = Arc::new(ThickLayer::new(device));
        }
        if let Some(delay) = args.delay {
            let delays = Delays { read: delay, write: delay, ..Delays::default() };
            let seed = args.delay_seed.wrapping_add(number.into());
            let layer = DelayLayer::new(device, delays, seed);
            device = Arc::new(layer.with_queueing(Queueing::PerCaller));
        }
        let options = options.clone().with_shared_beyond(volume.is_some() && !args.exclusive);
        target
            .add_lun(number, Arc::clone(&device), options)
            .map_err(|error| Usage::error(format!("--lun {lun}: {error}")))?;
        if let Some(volume) = &volume {
            let target = target.clone();
            // Until the unit is gone.
            let watch = volume.clone().tell_sizes(move |_| target.capacity_changed(number).is_ok());
            tokio::spawn(watch);
        }
        opened.push(Opened { device, volume });
    }
    let server = Server::bind(config, target, &args.listen).map_err(anyhow::Error::from)?;
    for address in server.local_addrs() {
        say(format_args!("listening on {address}"))?;
    }
    if let Some(warning) = open_to_all(&args, server.local_addrs()) {
        complain(&warning);
    }
    server.run(async { drop(stop_signal().await) }).await;
    let mut result = Ok(ExitCode::SUCCESS);
    for (Opened { device, volume }, lun) in opened.into_iter().zip(&args.lun) {
        let flushed = device.flush().await;
        let closed = match volume {
            Some(volume) => volume.close().await,
            None => Ok(()),
        };
        // Every one is closed, whatever becomes of another.
        if let Err(error) = flushed.and(closed) {
            result = Err(error).with_context(|| format!("flushing --lun {lun} at the end"));
        }
    }
    result
}

/// A device that is served, and the volume that it is.
struct Opened {
    device: Device,
    volume: Option<Volume>,
}

/// What a user has to know who did not say who may come in.
fn open_to_all(args: &Args, listening: &[SocketAddr]) -> Option<String> {
    let public = listening.iter().find(|address| !address.ip().is_loopback())?;
    let what = if args.read_only { "read" } else { "read and overwrite" };
    args.chap.chap_user.is_none().then(|| {
        format!(
            "warning: everybody who reaches {public} can {what} these LUNs, without a password; \
             give --chap-user and --chap-password-file, or --listen 127.0.0.1"
        )
    })
}

/// One file behind two LUNs would be written by initiators that do not know of each other.
fn check_files(args: &Args) -> anyhow::Result<()> {
    let mut seen = BTreeMap::new();
    let mut volumes = BTreeMap::new();
    for lun in &args.lun {
        if let Ok(location) = lun.parse::<Location>()
            && let Some(other) = volumes.insert(location.key(), lun)
        {
            let what = format!("--lun {location}: the same volume as another, --lun {other}");
            return Err(Usage::error(what));
        }
        let Ok(there) = std::fs::metadata(lun) else { continue };
        if let Some(other) = seen.insert((there.dev(), there.ino()), lun) {
            return Err(Usage::error(format!("--lun {lun}: the same file as --lun {other}")));
        }
    }
    Ok(())
}

/// Memory disks take memory when they are written to, so only the beginning can refuse.
fn check_memory(args: &Args) -> anyhow::Result<()> {
    let sizes = args.lun.iter().filter_map(|lun| lun.strip_prefix("mem:"));
    let total = sizes.filter_map(|size| units::parse_size(size).ok()).fold(0, u64::saturating_add);
    match check_fits_machine(total) {
        Err(error) if !args.overcommit => {
            Err(Usage::error(format!("--lun mem: {error} (smaller sizes, or --overcommit)")))
        }
        _ => Ok(()),
    }
}

fn lun_options(args: &Args) -> LunOptions {
    let clamped = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
    let mut options = LunOptions::default();
    options.physical_block_size = args.physical_block_size.map(clamped);
    options
        .with_removable(args.removable)
        .with_atomic_write_bytes(clamped(args.atomic_writes.unwrap_or(0)))
        .with_sanitize_bytes_per_s(args.sanitize_rate.map(clamped).and_then(NonZeroU32::new))
}

fn server_config(args: &Args) -> anyhow::Result<ServerConfig> {
    let mut config = ServerConfig::new(&args.iqn)
        .map_err(|error| Usage::error(format!("--iqn {}: {error} ({NAME_HELP})", args.iqn)))?;
    config.chap = args.chap.chap()?;
    config.limits.congestion_control = args.congestion_control.clone();
    config.limits.send_buffer = args.send_buffer;
    config.limits.receive_buffer = args.receive_buffer;
    config.poll = args.poll;
    config.dscp = args.dscp;
    args.bursts.apply(&mut config.offer)?;
    config.limit = Limit::new(args.max_rate, args.max_iops).with_burst(args.limit_burst);
    Ok(config)
}

async fn open(lun: &str, args: &Args) -> anyhow::Result<Opened> {
    match Location::is_meant(lun) {
        true => open_volume(lun, args).await,
        false => open_here(lun, args).map(|device| Opened { device, volume: None }),
    }
}

/// A volume by its URL.
async fn open_volume(lun: &str, args: &Args) -> anyhow::Result<Opened> {
    let location = lun.parse::<Location>();
    let location = location.map_err(|error| {
        Usage::error(format!("--lun: {error}; a path or mem:SIZE can be served as well"))
    })?;
    if let Location::Iscsi(url) = &location {
        warn_of_password(url);
    }
    let volume = Volume::open(&location, backends::Config::to_serve(args.read_only));
    let volume = volume.await.with_context(|| format!("--lun {location}"))?;
    let mut device = volume.device();
    let block_size = device.info().block_size;
    if let Some(wanted) = args.block_size.filter(|wanted| *wanted != block_size) {
        let why = format!("--lun {location}: its blocks have {block_size} bytes, not {wanted}");
        return Err(Usage::error(why));
    }
    if args.read_only {
        device = Arc::new(ReadOnlyLayer::new(device));
    }
    Ok(Opened { device, volume: Some(volume) })
}

/// Memory, a file or a block device.
fn open_here(lun: &str, args: &Args) -> anyhow::Result<Device> {
    let wrong = |error: &dyn std::fmt::Display| Usage::error(format!("--lun {lun}: {error}"));
    if let Some(size) = lun.strip_prefix("mem:") {
        let size = units::parse_size(size).map_err(|error| wrong(&error))?;
        let block_size = args.block_size.unwrap_or(DEFAULT_BLOCK_SIZE);
        let device = MemoryDevice::open(size, block_size).map_err(|error| wrong(&error))?;
        let device: Device = Arc::new(device);
        return Ok(if args.read_only { Arc::new(ReadOnlyLayer::new(device)) } else { device });
    }
    let mut options =
        FileOptions::default().with_read_only(args.read_only).with_direct(args.direct);
    options.block_size = args.block_size;
    options.create = args.create;
    let device = FileDevice::open(lun, &options).map_err(|error| match error {
        OpenError::NotFound { .. } => {
            Usage::error(format!("--lun {lun}: no such file (--create SIZE makes one)"))
        }
        // It names the file itself.
        error => Usage::error(format!("--lun {error}")),
    })?;
    Ok(Arc::new(device))
}
