//! `enkaku diagnose`: what limits a transfer of any initiator and target, in one answer.

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
#[derive(clap::Args, Debug)]
#[command(after_help = "Example: tcpdump -s 128 -w session.pcap port 3260; \
                        enkaku diagnose --pcap session.pcap")]
pub(crate) struct Args {
    /// A capture of the transfer (pcap or pcapng), made anywhere on the way; - is standard input.
    #[arg(long, value_name = "FILE", required = true)]
    pcap: Option<PathBuf>,
    /// The target's port [default: any connection that speaks iSCSI].
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// There was nothing to judge.
const NOTHING: u8 = 3;

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let verdict = match &args.pcap {
        Some(path) => pcap::verdict(path, args.port)?,
        None => None,
    };
    let Some(verdict) = verdict else {
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
