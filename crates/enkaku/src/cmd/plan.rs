//! `enkaku plan`: what a path will allow, before anything is sent. It only translates; the models
//! are `path::law`.

use std::process::ExitCode;
use std::time::Duration;

use path::CongestionControl;
use path::law::{Outcome, PathPlan};
use serde_json::{Value, json};
use wanlab::units::{parse_probability, parse_rate, parse_size, parse_time};

use super::{Usage, say};

const ALL: [CongestionControl; 3] =
    [CongestionControl::Reno, CongestionControl::Cubic, CongestionControl::Bbr];

/// Says what a long-fat path allows: limit, connections, buffers, depth and memory.
///
/// The steady state of TCP in closed formulas: reno (Mathis et al. 1997), cubic (RFC 9438 §5.1),
/// bbr (not sensitive to loss below 15 %, Cardwell et al. 2016). Slow start, other traffic and slow
/// hosts are not in them. Measured with plain TCP on an emulated line (100 Mbit/s and 1 Gbit/s, RTT
/// 20 and 100 ms, loss 0 to 1e-3), its median error was 5 %; 11 % where losses decide. In ns-2
/// (reno and cubic, to 10 Gbit/s and RTT 300 ms) 2.5 % and 4 % (docs/plan.md).
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Rate of the line, e.g. 10gbit.
    #[arg(long, value_parser = parse_rate)]
    rate: u64,
    /// Round-trip time without queues, e.g. 120ms.
    #[arg(long, value_parser = parse_time)]
    rtt: Duration,
    /// Probability that a packet is lost.
    #[arg(long, default_value = "0", value_parser = parse_probability)]
    loss: f64,
    /// Packets that the bottleneck queues [default: one round trip of them].
    #[arg(long, value_name = "PACKETS")]
    queue: Option<u32>,
    /// The most that tcp_wmem allows a socket (its third number).
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = parse_size)]
    wmem: u64,
    /// The most that tcp_rmem allows a socket (its third number).
    #[arg(long, value_name = "SIZE", default_value = "6M", value_parser = parse_size)]
    rmem: u64,
    /// So many connections, instead of as many as fill the line.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    streams: Option<u32>,
    /// One JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.rtt.is_zero() {
        return Err(Usage::error(
            "--rtt must be above zero: without a round trip nothing is planned",
        ));
    }
    if args.rate == 0 || args.wmem == 0 || args.rmem == 0 {
        return Err(Usage::error("--rate, --wmem and --rmem must be above zero"));
    }
    let path = PathPlan {
        bits_per_s: args.rate as f64,
        rtt_s: args.rtt.as_secs_f64(),
        loss: args.loss,
        queue_packets: args.queue.map(f64::from),
        wmem_bytes: args.wmem as f64,
        rmem_bytes: args.rmem as f64,
        streams: args.streams,
    };
    let outcomes = ALL.map(|control| path.outcome(control));
    if args.json {
        say(json!({
            "limit_bytes_per_s": path.limit_bytes_per_s().round(),
            "bandwidth_delay_bytes": path.delay_product_bytes().round(),
            "congestion_controls": outcomes.iter().map(object).collect::<Vec<_>>(),
        }))?;
    } else {
        say(text(&path, &outcomes))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn object(outcome: &Outcome) -> Value {
    let warnings: Vec<String> = outcome.warnings.iter().map(ToString::to_string).collect();
    json!({
        "name": outcome.control.as_str(),
        "one_bytes_per_s": outcome.one_bytes_per_s.round(),
        "limited_by": outcome.bound.as_str(),
        "connections": outcome.connections,
        "session_bytes_per_s": outcome.session_bytes_per_s.round(),
        "wmem_wanted_bytes": outcome.wmem_wanted_bytes.ceil(),
        "rmem_wanted_bytes": outcome.rmem_wanted_bytes.ceil(),
        "depth": outcome.depth,
        "sender_memory_bytes": outcome.sender_memory_bytes.ceil(),
        "receiver_memory_bytes": outcome.receiver_memory_bytes.ceil(),
        "warnings": warnings,
    })
}

fn text(path: &PathPlan, outcomes: &[Outcome]) -> String {
    let mbit = |bytes_per_s: f64| bytes_per_s * 8.0 / 1e6;
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let mut lines = vec![
        format!(
            "The line carries {:.0} Mbit/s of iSCSI payload (MTU 1500); {:.1} MiB are on the way.",
            mbit(path.limit_bytes_per_s()),
            mib(path.delay_product_bytes())
        ),
        "         one Mbit/s  limited by       connections  all Mbit/s  wmem MiB  rmem MiB  depth  \
         memory MiB (sender, receiver)"
            .to_owned(),
    ];
    for outcome in outcomes {
        lines.push(format!(
            "{:<7} {:>11.1}  {:<15} {:>12}  {:>10.1}  {:>8.2}  {:>8.2}  {:>5}  {:.0}, {:.0}",
            outcome.control.as_str(),
            mbit(outcome.one_bytes_per_s),
            outcome.bound.as_str(),
            outcome.connections,
            mbit(outcome.session_bytes_per_s),
            mib(outcome.wmem_wanted_bytes),
            mib(outcome.rmem_wanted_bytes),
            outcome.depth,
            mib(outcome.sender_memory_bytes),
            mib(outcome.receiver_memory_bytes),
        ));
    }
    for outcome in outcomes {
        for warning in &outcome.warnings {
            lines.push(format!("{}: {warning}", outcome.control.as_str()));
        }
    }
    lines.join("\n")
}
