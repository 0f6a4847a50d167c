//! `enkaku monitor`: what TCP does under iSCSI, connection by connection, while it does it.

mod annotate;
mod draw;
pub(crate) mod events;
mod lines;
mod prometheus;
mod record;
pub(crate) mod report;
mod report_events;
mod rounds;
mod screen;
pub(crate) mod select;
mod sessions;
mod table;
mod units;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use wanlab::units::parse_duration;

use self::rounds::Rounds;
use super::Usage;

/// Time between two looks at least: shorter ones show noise.
pub(super) const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Rarer than this is a cron job's.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// See what TCP does under iSCSI, of any initiator and target
///
/// On a terminal a live view (q quits, ↑ ↓ choose a connection), elsewhere lines. Watches from
/// beside: nothing is sent, nothing is changed, and no root is needed but for the names of other
/// users' processes.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example: enkaku monitor --port 3260",
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    live: LiveArgs,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Record(record::Args),
    Report(report::Args),
}

#[derive(clap::Args, Debug)]
struct LiveArgs {
    #[command(flatten)]
    select: select::SelectArgs,
    /// Time from one line, or redrawing, to the next.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    interval: Duration,
    /// End after so many intervals.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// One JSON object per interval and line.
    #[arg(long)]
    json: bool,
    /// Each line also with the samples behind it, 100 a second or more.
    #[arg(long, requires = "json")]
    samples: bool,
    /// Serve the latest interval as metrics on http://ADDR:PORT/metrics.
    #[arg(long, value_name = "ADDR:PORT")]
    prometheus: Option<SocketAddr>,
    /// Count TCP's events too (retransmissions, SACKs, timeouts, waits for the send buffer), by
    /// eBPF programs in the kernel; needs root. With --json each event is a line of its own.
    #[arg(long)]
    events: bool,
    /// Lines of text also on a terminal.
    #[arg(long, conflicts_with = "json")]
    plain: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        None => live(&args.live),
        Some(Command::Record(args)) => super::run_async(record::run(args)),
        Some(Command::Report(args)) => report::run(&args),
    }
}

fn live(args: &LiveArgs) -> anyhow::Result<ExitCode> {
    if !(INTERVAL_MIN..=INTERVAL_MAX).contains(&args.interval) {
        return Err(Usage::error("--interval must be from 100ms to 3600s"));
    }
    let stop = stop_flag()?;
    let mut rounds = Rounds::new(args.select.selection(), args.interval)?;
    if args.events {
        rounds.watch_events(args.json)?;
    }
    if let Some(address) = args.prometheus {
        rounds.publish = Some(prometheus::serve(address)?);
    }
    rounds.series = args.samples;
    let about = args.select.describe();
    let terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if args.json || args.plain || !terminal {
        lines::run(&mut rounds, args.count, args.json, &about, &stop)?;
    } else {
        screen::run(&mut rounds, args.count, &about, &stop)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Becomes true at SIGINT or SIGTERM, so that the terminal is left as it was.
fn stop_flag() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = {
        let _inside = runtime.enter();
        super::stop_signal()
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let _ = runtime.block_on(signals);
        flag.store(true, Ordering::Relaxed);
    })?;
    Ok(stop)
}
