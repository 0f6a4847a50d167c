//! `enkaku bench`: a load on a volume, measured.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use backends::Location;
use block::load::{self, Depth, LoadOptions, LoadReport, Pattern};
use iscsi::initiator::{Config, RemoteDisk};
use iscsi::poll::Poller;
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use wanlab::units;

use super::overwrite::{self, MayOverwrite};
use super::path_report::Path;
use super::remote::{Connections, RemoteArgs, Volume, parse_location};
use super::trace::Trace;
use super::{Usage, parse_poll, say};

/// Measures reads or writes of a volume. Writes destroy its content: one that is not blank takes
/// --force, or a yes on a terminal.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(help = backends::FORMS, value_parser = parse_location)]
    url: Location,
    /// Kind of load.
    #[arg(long, value_enum, default_value = "read")]
    rw: Rw,
    /// Bytes per operation.
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = units::parse_size)]
    bs: u64,
    /// Operations under way at once.
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    depth: u32,
    /// --depth is for each connection: as many operations more or less as connections come and go.
    /// They are handed out evenly and not cut into several commands, so that with --depth 1 each
    /// connection gets its next operation when its last one is done.
    #[arg(long)]
    depth_per_connection: bool,
    /// Each operation is one SCSI command, also where shorter ones would be faster (a long path, a
    /// first burst that is shorter): what sg_dd does. Fails where the unit takes none so long.
    #[arg(long)]
    one_command: bool,
    /// How long.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::parse_duration,
          allow_hyphen_values = true)]
    time: Duration,
    /// Run for so long before measuring begins: what is reported is the steady state.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::parse_duration,
          allow_hyphen_values = true)]
    ramp: Duration,
    /// Write to the volume whatever it holds, without a look at it.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Run on a thread that asks its sockets for up to so long before it sleeps, as in 50us: less
    /// latency on a short path, for a processor that is busy.
    #[arg(long, value_name = "TIME", value_parser = parse_poll)]
    poll: Option<Duration>,
    /// Write every operation and every sample of the path to a file, as lines of JSON.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    remote: RemoteArgs,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
#[value(rename_all = "lower")]
enum Rw {
    /// Sequential reads
    Read,
    /// Sequential writes
    Write,
    /// Random reads
    Randread,
    /// Random writes
    Randwrite,
}

impl Rw {
    fn pattern(self) -> (Pattern, &'static str) {
        match self {
            Self::Read => (Pattern::Read, "read"),
            Self::Write => (Pattern::Write, "write"),
            Self::Randread => (Pattern::RandomRead, "randread"),
            Self::Randwrite => (Pattern::RandomWrite, "randwrite"),
        }
    }
}

#[derive(Serialize)]
struct Report {
    rw: &'static str,
    block_size: u64,
    depth: u32,
    depth_per_connection: bool,
    connections: usize,
    seconds: f64,
    bytes: u64,
    bytes_per_s: f64,
    iops: f64,
    lat_us: Latency,
    cpu_s: Cpu,
    /// Part of the processor time that was spent on asking sockets instead of sleeping, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    poll_s: Option<f64>,
    /// Of volumes behind iSCSI.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<Path>,
}

#[derive(Serialize)]
struct Latency {
    p50: f64,
    p95: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

#[derive(Serialize)]
struct Cpu {
    user: f64,
    sys: f64,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    // What keeps no more than one thread busy is quicker on one: the other would have to be woken.
    let one_command = args.depth == 1 && !args.depth_per_connection;
    let one_thread = one_command || matches!(args.remote.connections, Connections::Fixed(1));
    if args.poll.is_none() && !one_thread {
        return measure(args, None).await;
    }
    let poller = Arc::new(Poller::start(args.poll.unwrap_or_default())?);
    poller.run(measure(args, Some(Arc::clone(&poller)))).await?
}

async fn measure(args: Args, poller: Option<Arc<Poller>>) -> anyhow::Result<ExitCode> {
    let volume = connect(&args).await?;
    let device = volume.device();
    let block_size = block_size(&args, &volume)?;
    let (pattern, name) = args.rw.pattern();
    if matches!(pattern, Pattern::Write | Pattern::RandomWrite) {
        let may = if args.force { MayOverwrite::Forced } else { MayOverwrite::OnAYes };
        overwrite::device(&*device, &args.url.to_string(), may).await?;
    }
    let mut options = LoadOptions {
        pattern,
        block_size,
        depth: Depth::Fixed(args.depth as usize),
        ramp: args.ramp,
        duration: args.time,
        seed: 0x9e37_79b9_7f4a_7c15,
        each: None,
    };
    let mut following = None;
    if args.depth_per_connection {
        let disk = of_iscsi(&volume, "--depth-per-connection")?.clone();
        let (depth, following_it) = follow(disk, args.depth as usize);
        (options.depth, following) = (depth, Some(following_it));
    }
    let mut trace = None;
    if let Some(file) = &args.trace {
        let (begun, each) = Trace::start(file, of_iscsi(&volume, "--trace")?, name)?;
        (options.each, trace) = (Some(each), Some(begun));
    }
    // On a worker thread: the main one would pay a futex call for every wake-up.
    let measured = tokio::spawn(async move { load::run(&device, &options).await }).await??;
    if let Some(following) = following {
        following.abort();
    }
    if let Some(trace) = trace {
        trace.end().await?;
    }
    let mut report = report(&args, name, &volume, &measured)?;
    let polling = poller.filter(|_| args.poll.is_some());
    report.poll_s = polling.map(|poller| poller.burned().as_secs_f64());
    volume.close().await?;
    if args.json {
        say(serde_json::to_string(&report)?)?;
    } else {
        print_table(&report)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The volume, its operations made into commands as the options say.
async fn connect(args: &Args) -> anyhow::Result<Volume> {
    let bytes = u32::try_from(args.bs).unwrap_or(u32::MAX);
    let change = |config: &mut Config| {
        config.hand_out_evenly = args.depth_per_connection;
        config.uncut = args.one_command;
        if args.depth_per_connection || args.one_command {
            config.transfer_len_max = config.transfer_len_max.max(bytes);
        }
    };
    args.remote.open_with(&args.url, change).await
}

/// Bytes of an operation, if the volume takes such.
fn block_size(args: &Args, volume: &Volume) -> anyhow::Result<u32> {
    let whole = volume.device().info().block_size;
    let fits = |bytes: &u32| *bytes > 0 && bytes.is_multiple_of(whole);
    let block_size = u32::try_from(args.bs).ok().filter(fits).ok_or_else(|| {
        Usage::error(format!(
            "--bs {} is not a multiple of the volume's block size {whole}",
            args.bs
        ))
    })?;
    if args.one_command {
        let longest = of_iscsi(volume, "--one-command")?.transfer_len_max();
        if block_size > longest {
            return Err(Usage::error(format!(
                "--one-command: the unit takes at most {longest} bytes in a command, \
                 --bs is {block_size}"
            )));
        }
    }
    Ok(block_size)
}

/// The volume as what an option is for.
fn of_iscsi<'a>(volume: &'a Volume, option: &str) -> anyhow::Result<&'a RemoteDisk> {
    let why = || Usage::error(format!("{option} is for iscsi:// volumes, not for NBD"));
    volume.disk().ok_or_else(why)
}

/// How often connections are counted: they come and go at intervals of 100 ms and more.
const COUNT_EVERY: Duration = Duration::from_millis(5);

/// A depth of so many operations for each connection that takes commands.
fn follow(disk: RemoteDisk, per_connection: usize) -> (Depth, JoinHandle<()>) {
    let (say, depth) = watch::channel(per_connection * disk.connections_open());
    let following = tokio::spawn(async move {
        loop {
            tokio::time::sleep(COUNT_EVERY).await;
            let wanted = per_connection * disk.connections_open();
            say.send_if_modified(|depth| std::mem::replace(depth, wanted) != wanted);
        }
    });
    (Depth::Following(depth), following)
}

fn report(
    args: &Args,
    rw: &'static str,
    volume: &Volume,
    measured: &LoadReport,
) -> anyhow::Result<Report> {
    let seconds = measured.elapsed.as_secs_f64();
    let percentile = |p: f64| measured.latency_ns.value_at_percentile(p) as f64 / 1000.0;
    Ok(Report {
        rw,
        block_size: args.bs,
        depth: args.depth,
        depth_per_connection: args.depth_per_connection,
        connections: volume.backend().connection_count(),
        seconds,
        bytes: measured.bytes,
        bytes_per_s: measured.bytes as f64 / seconds,
        iops: measured.operations as f64 / seconds,
        lat_us: Latency {
            p50: percentile(50.0),
            p95: percentile(95.0),
            p99: percentile(99.0),
            p999: percentile(99.9),
            max: measured.latency_ns.max() as f64 / 1000.0,
        },
        cpu_s: cpu()?,
        poll_s: None,
        path: volume.disk().map(|disk| Path::of(&disk.path())),
    })
}

/// CPU time this process has used.
fn cpu() -> anyhow::Result<Cpu> {
    let ticks = std::fs::read_to_string("/proc/self/stat")?;
    // Fields 14 and 15 (proc(5)), counted behind the command's name, which may hold spaces.
    let behind_name = ticks.rsplit(") ").next().unwrap_or_default();
    let mut fields = behind_name.split(' ').skip(11).map(str::parse::<f64>);
    let mut next = || fields.next().and_then(Result::ok).unwrap_or(0.0) / TICKS_PER_S;
    Ok(Cpu { user: next(), sys: next() })
}

/// USER_HZ, 100 on every Linux architecture but Alpha.
const TICKS_PER_S: f64 = 100.0;

fn print_table(report: &Report) -> anyhow::Result<()> {
    say(format_args!(
        "{} {} bytes, depth {}, {} connection(s): {:.1} MB/s, {:.0} IOPS",
        report.rw,
        report.block_size,
        report.depth,
        report.connections,
        report.bytes_per_s / 1e6,
        report.iops
    ))?;
    let Latency { p50, p95, p99, p999, max } = report.lat_us;
    say(format_args!(
        "latency: p50 {p50:.0} µs, p95 {p95:.0} µs, p99 {p99:.0} µs, p99.9 {p999:.0} µs, \
         max {max:.0} µs"
    ))?;
    let polling = report.poll_s.map(|s| format!(", of which {s:.2} s polling")).unwrap_or_default();
    let Cpu { user, sys } = report.cpu_s;
    say(format_args!("cpu: {user:.2} s user, {sys:.2} s system{polling}"))?;
    report.path.as_ref().map_or(Ok(()), say)
}
