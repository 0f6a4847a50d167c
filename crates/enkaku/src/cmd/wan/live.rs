//! Labs that stay up in the background: `up`, `set`, `show`, `exec`, `down`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;
use wanlab::{ControlError, End, LabName, LabSpec, Settings, Topology, UpSpec};

use super::line::{LineArgs, RecordArgs};
use crate::cmd::Usage;

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// What the lab shall be called
    name: LabName,
    #[command(flatten)]
    line: LineArgs,
    #[command(flatten)]
    record: RecordArgs,
    /// N nodes around a switch instead of a near and a far end; --rate A:B is then from a node to
    /// the switch and from the switch to a node, and --rtt from a node to the switch and back, so
    /// that two nodes are twice as far apart
    #[arg(long, value_name = "N")]
    star: Option<usize>,
    /// Networks that join the nodes, each with a switch: 1 or 2
    #[arg(long, value_name = "N", default_value_t = 1, requires = "star")]
    networks: usize,
    /// Append the background process's log lines to this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Print the lab as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// Which lab
    name: LabName,
    #[command(flatten)]
    line: LineArgs,
    /// Print the lab as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Which lab; all without a name
    name: Option<LabName>,
    /// Print one object, or an array of all
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// Which lab
    name: LabName,
    /// Where: near, far, or in a star node1, node2, …
    end: End,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct DownArgs {
    /// Which lab
    name: LabName,
    /// Print what it had done as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn up(args: UpArgs) -> anyhow::Result<ExitCode> {
    let config = args.line.config()?;
    let topology = match args.star {
        Some(nodes) => Topology::Star { nodes, networks: args.networks },
        None => Topology::Pair,
    };
    let profile = args.record.profile(&config, topology)?;
    let lab = LabSpec { config, topology, capture: args.record.capture() };
    let name = args.name.clone();
    wanlab::up(&UpSpec { name, lab, profile, log: args.log }).map_err(usage)?;
    print(&args.name.show().map_err(usage)?, args.json)
}

pub(crate) fn set(args: SetArgs) -> anyhow::Result<ExitCode> {
    let settings = args.line.settings();
    if settings == Settings::default() {
        return Err(Usage::error("nothing to set, as in --loss 1e-3 (see --help)"));
    }
    print(&args.name.set(&settings).map_err(usage)?, args.json)
}

pub(crate) fn show(args: ShowArgs) -> anyhow::Result<ExitCode> {
    if let Some(name) = &args.name {
        return print(&name.show().map_err(usage)?, args.json);
    }
    let names = LabName::all().map_err(usage)?;
    let reports = names.iter().map(LabName::show).collect::<Result<Vec<_>, _>>().map_err(usage)?;
    if args.json {
        println!("{}", Value::from(reports));
    } else if reports.is_empty() {
        println!("no lab is up");
    } else {
        reports.iter().for_each(|report| print!("{}", text(report)));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn exec(args: &ExecArgs) -> anyhow::Result<ExitCode> {
    let error = args.name.exec(args.end, &args.command);
    let command = args.command.first().map(|command| command.display().to_string());
    Err(match (error, command) {
        // As a shell answers.
        (ControlError::Io(error), Some(command))
            if error.kind() == std::io::ErrorKind::NotFound =>
        {
            eprintln!("enkaku: {command}: {error}");
            return Ok(ExitCode::from(127));
        }
        (error, _) => usage(error),
    })
}

pub(crate) fn down(args: &DownArgs) -> anyhow::Result<ExitCode> {
    let report = args.name.down().map_err(usage)?;
    if args.json {
        println!("{report}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Exit code 2 where the request was wrong.
fn usage(error: ControlError) -> anyhow::Error {
    if error.is_usage() { Usage::error(error.to_string()) } else { error.into() }
}

fn print(report: &Value, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        println!("{report}");
    } else {
        print!("{}", text(report));
    }
    Ok(ExitCode::SUCCESS)
}

/// The report for people.
fn text(report: &Value) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{} (process {}, up for {:.0} s, MTU {})",
        report["name"].as_str().unwrap_or_default(),
        report["pid"],
        report["seconds"].as_f64().unwrap_or_default(),
        report["link"]["mtu"],
    );
    let star = &report["topology"]["star"];
    let (there, back) = if star.is_object() {
        let _ =
            writeln!(text, "  star of {} nodes, {} network(s)", star["nodes"], star["networks"]);
        ("to switch", "from switch")
    } else {
        ("near to far", "far to near")
    };
    for (title, direction) in [(there, "near_to_far"), (back, "far_to_near")] {
        let _ = writeln!(text, "  {title}: {}", line_text(&report["link"][direction]));
        let _ = writeln!(text, "    {}", counters_text(&report[direction]));
        for class in report[direction]["classes"].as_array().into_iter().flatten() {
            let _ = writeln!(text, "    {}", class_text(class));
        }
    }
    for (node, lines) in report["link"]["nodes"].as_object().into_iter().flatten() {
        for (title, line) in [(there, "to_switch"), (back, "from_switch")] {
            let _ = writeln!(text, "  node{node} {title}: {}", line_text(&lines[line]));
        }
    }
    for (end, tcp) in report["tcp"].as_object().into_iter().flatten() {
        let _ = write!(text, "  {end}:");
        for (name, value) in tcp.as_object().into_iter().flatten() {
            if let Some(value) = value.as_str() {
                let _ = write!(text, " {name} \"{value}\"");
            }
        }
        for (name, value) in tcp["sysctls"].as_object().into_iter().flatten() {
            let _ = write!(text, " {name} {value}");
        }
        text.push('\n');
    }
    if let Some(error) = report["error"].as_str() {
        let _ = writeln!(text, "  error: {error}");
    }
    text
}

fn line_text(line: &Value) -> String {
    let number = |name: &str| line[name].as_f64().unwrap_or_default();
    let queue = match line["queue_bytes"].as_u64() {
        Some(bytes) => format!("{bytes} bytes"),
        None => format!("{} packets", line["queue_packets"]),
    };
    let mut text = format!(
        "{} Mbit/s, {} ms, loss {}, queue {queue}",
        number("rate_bits_per_s") / 1e6,
        number("delay_us") / 1e3,
        number("loss"),
    );
    if let Some(classes) = line["classes"].as_str() {
        let _ = write!(text, " for each of {classes}");
    }
    if let Some((unit, threshold)) = line["ecn"].as_object().and_then(|ecn| ecn.iter().next()) {
        let unit = unit.trim_start_matches("queue_");
        let _ = write!(text, ", ECN above {threshold} {unit}");
    }
    let burst = &line["burst"];
    if burst.is_object() {
        let _ = write!(
            text,
            ", bursts p {} r {} h {} k {}",
            burst["p"], burst["r"], burst["h"], burst["k"]
        );
    }
    let police = &line["police"];
    if police.is_object() {
        let mbit = police["rate_bits_per_s"].as_f64().unwrap_or_default() / 1e6;
        let _ = write!(text, ", policed at {mbit} Mbit/s, burst {} bytes", police["burst_bytes"]);
    }
    let jitter = &line["jitter"];
    if jitter.is_object() {
        let ms = |name: &str| jitter[name].as_f64().unwrap_or_default() / 1e6;
        let form = jitter["distribution"].as_str().unwrap_or_default();
        let (amount, hold) = (ms("jitter_ns"), ms("hold_ns"));
        let _ = write!(text, ", jitter {amount} ms {form} held {hold} ms");
        if jitter["reorder"] == true {
            text.push_str(" reordering");
        }
    }
    text
}

fn counters_text(counters: &Value) -> String {
    format!(
        "{} segments, {} bytes; marked {}; dropped {} policer, {} queue, {} ECN, {} loss \
         ({} in bursts); queue at most {} packets",
        counters["segments"],
        counters["bytes"],
        counters["marked"],
        counters["dropped_police"],
        counters["dropped_queue"],
        counters["dropped_ecn"],
        counters["dropped_loss"],
        counters["dropped_burst"],
        counters["queue_packets_max"],
    )
}

fn class_text(class: &Value) -> String {
    format!(
        "class {}: {} segments, {} bytes; marked {}; dropped {} queue, {} ECN; queued {} us in the \
         mean, p99 {} us",
        class["class"].as_str().unwrap_or_default(),
        class["segments"],
        class["bytes"],
        class["marked"],
        class["dropped_queue"],
        class["dropped_ecn"],
        class["queued"]["mean_us"],
        class["queued"]["p99_us"],
    )
}
