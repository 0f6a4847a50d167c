//! `enkaku diagnose`: names what limits an iSCSI transfer, of any initiator and target.

mod live;
mod pcap;

use std::path::PathBuf;
use std::process::ExitCode;

use tcpmon::verdict::Verdict;

use super::say;

/// Name what limits an iSCSI transfer, of any initiator and target
///
/// Says why, what to change, and the throughput to expect of it; causes: send_buffer,
/// receive_window, congestion_loss, congestion_window, r2t, queue_depth, storage, line_rate,
/// application. Exit code 3 if there was no transfer to judge.
///
/// Without --pcap it watches connections of this host from beside, whoever made them: nothing is
/// sent, nothing is changed, and no root is needed. It works best on the host that the data leave:
/// the target for reads, the initiator for writes.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples: enkaku diagnose --port 3260 --time 10s\n\
                        tcpdump -s 128 -w session.pcap port 3260; \
                        enkaku diagnose --pcap session.pcap")]
pub(crate) struct Args {
    /// A capture of the transfer (pcap or pcapng), made anywhere on the way; - is standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["addr", "pid", "time", "line_rate", "events"])]
    pcap: Option<PathBuf>,
    #[command(flatten)]
    live: live::LiveArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// There was nothing to judge.
const NOTHING: u8 = 3;

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(path) = &args.pcap else { return live::run(&args.live, args.json) };
    let Some(verdict) = pcap::verdict(path, args.live.port())? else {
        eprintln!("enkaku: no iSCSI command that moves data was seen: there is nothing to judge");
        return Ok(ExitCode::from(NOTHING));
    };
    print(&verdict, args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn print(verdict: &Verdict, json: bool) -> anyhow::Result<()> {
    if json {
        return say(serde_json::to_string(verdict)?);
    }
    say(format_args!("{}: {}", verdict.cause.as_str(), verdict.advice))?;
    if let Some(rate) = verdict.expected_bytes_per_s {
        let now = verdict.evidence.get("bytes_per_s").copied().unwrap_or(0.0);
        let mbit = |bytes_per_s: f64| bytes_per_s * 8e-6;
        say(format_args!("now {:.1} Mbit/s, then about {:.1}", mbit(now), mbit(rate)))?;
    }
    for (name, value) in &verdict.evidence {
        say(format_args!("  {name:<28}{value:.6}"))?;
    }
    Ok(())
}
