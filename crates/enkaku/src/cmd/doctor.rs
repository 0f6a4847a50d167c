//! `enkaku doctor`: why an iSCSI session is slow, without knowing a port. It reads and watches;
//! what follows from it is decided in the crate `doctor`.

mod curves;
mod gather;
pub(super) mod root;
mod watch;

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use doctor::report::{Report, html, text};
use wanlab::units::parse_rate;

use self::gather::{Gathered, Question};
use super::{Usage, complain, say, socket_address};

/// Say why iSCSI is slow on this host, and what to change, command by command
///
/// Finds the sessions of open-iscsi, connections of port 3260 and those of enkaku, reads what was
/// negotiated, queues, read-ahead, buffers and devices, watches for some seconds, and names first,
/// second and third cause, each with the rate to expect of its change. It changes nothing. Root is
/// not needed, but sees more; what could not be read is said. Exit code 3 if there was no session.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples: enkaku doctor --line-rate 500mbit\n\
                        enkaku doctor 192.0.2.10:3260 --report ticket.html")]
pub(crate) struct Args {
    /// Only sessions with the target there; the port is 3260 unless given.
    #[arg(value_name = "ADDR:PORT", value_parser = parse_target)]
    target: Option<SocketAddr>,
    /// How long to watch.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// What the line carries, as in 1gbit, where you know it; otherwise the speed of the network
    /// device is taken for it.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    line_rate: Option<u64>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Write the report as one HTML page, too, with everything that it was made from.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Read sys/, proc/, and what `ss -tnmi` (ss) and `tc -j qdisc show` (tc) printed, below this
    /// folder; nothing is watched.
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

/// There was nothing to judge.
const NOTHING: u8 = 3;

fn parse_target(text: &str) -> Result<SocketAddr, String> {
    let wanted = "an address is wanted, as 192.0.2.10:3260 or [2001:db8::a]:3260";
    socket_address(text, gather::ISCSI_PORT).ok_or_else(|| wanted.to_owned())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.line_rate == Some(0) {
        return Err(Usage::error("--line-rate must be above zero"));
    }
    if let Some(root) = args.root.as_ref().filter(|root| !root.is_dir()) {
        return Err(Usage::error(format!("--root {}: no such folder", root.display())));
    }
    let question = Question {
        target: args.target,
        time: Duration::from_secs(args.seconds),
        line_rate: args.line_rate,
        root: args.root.clone(),
    };
    let gathered = gather::gather(&question)?;
    if gathered.is_empty() {
        complain(&nothing(args, &gathered));
        return Ok(ExitCode::from(NOTHING));
    }
    // Before root's rights are given up for a look at packets.
    let page = args.report.as_ref().map(|path| {
        File::create(path)
            .map(|file| (path, file))
            .with_context(|| Usage(format!("cannot write the report {}", path.display())))
    });
    let page = page.transpose()?;
    let report = Report::new(gathered.facts());
    if let Some((path, mut file)) = page {
        let written = format!("enkaku {}, {}", env!("CARGO_PKG_VERSION"), gather::now());
        file.write_all(html(&report, &written).as_bytes())
            .with_context(|| format!("the report {}", path.display()))?;
    }
    say(if args.json { serde_json::to_string(&report)? } else { text(&report) })?;
    Ok(ExitCode::SUCCESS)
}

/// What was looked at, and how to point at what was meant.
fn nothing(args: &Args, gathered: &Gathered) -> String {
    let places = gathered.looked_at().join(", ");
    let next = match args.target {
        Some(_) => "`enkaku monitor` shows all connections".to_owned(),
        None => "a target at another port: enkaku doctor ADDR:PORT; one of another network \
                 namespace: nsenter --target PID --net"
            .to_owned(),
    };
    let which = args.target.map(|target| format!(" with {target}")).unwrap_or_default();
    format!("no iSCSI session{which} was found in {places} ({next})")
}
