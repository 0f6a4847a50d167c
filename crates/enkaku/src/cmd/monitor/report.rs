//! `enkaku monitor report`: a capture as connections, commands, and where the time went.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;
use tcpmon::capture::read_capture;
use tcpmon::model::{Analysis, CommandSummary, ConnectionReport, Report, analyse};
use tcpmon::pdus::Direction;
use tcpmon::verdict::Judgement;

use super::annotate;
use super::report_events::{self, EventsReport};
use crate::cmd::{Usage, say};

/// Analyse a capture (pcap or pcapng, made anywhere on the way): commands, TCP, where the time went
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The capture; - is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The target's port [default: any connection that speaks iSCSI].
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Also write a line per TCP segment into this file, as CSV.
    #[arg(long, value_name = "FILE")]
    segments: Option<PathBuf>,
    /// Also write the capture with comments into this file, as pcapng for Wireshark: the verdict,
    /// times of commands, retransmissions, windows that are full.
    #[arg(long, value_name = "OUT.pcapng")]
    annotate: Option<PathBuf>,
    /// Print JSON, with the times of single commands.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.annotate {
        annotate::check(&args.file, path)?;
    }
    if let Some(path) = &args.segments {
        write_segments(&args.file, args.port, path)?;
    }
    let report = analyse_file(&args.file, args.port)?;
    if let Some(path) = &args.annotate {
        let comments = annotate::write(&args.file, args.port, &report, path)?;
        eprintln!("enkaku: {comments} comments in {}", path.display());
    }
    let events = report_events::read(&args.file, &report)?;
    if args.json {
        say(serde_json::to_string(&WithEvents { report: &report, events })?)?;
        return Ok(ExitCode::SUCCESS);
    }
    complain_of_damage(&report);
    print(&report)?;
    if let Some(events) = events {
        events.print()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The analysis, and the events where the recording has some.
#[derive(Serialize)]
struct WithEvents<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(flatten)]
    events: Option<EventsReport>,
}

/// Reads and analyses a file.
pub(crate) fn analyse_file(path: &Path, port: Option<u16>) -> anyhow::Result<Report> {
    let wrong = |error: &dyn std::fmt::Display| {
        Usage::error(format!("capture {}: {error}", path.display()))
    };
    if path == Path::new("-") {
        return analyse(std::io::stdin(), port).map_err(|error| wrong(&error));
    }
    let file = File::open(path).map_err(|error| wrong(&error))?;
    analyse(file, port).map_err(|error| wrong(&error))
}

/// A line for each segment; the analysis runs once more for it, because files may be long.
fn write_segments(capture: &Path, port: Option<u16>, to: &Path) -> anyhow::Result<()> {
    let file =
        File::open(capture).with_context(|| Usage(format!("capture {}", capture.display())))?;
    let writing = || format!("writing {}", to.display());
    let mut out = BufWriter::new(File::create(to).with_context(writing)?);
    writeln!(
        out,
        "time_s,to_target,payload_bytes,in_flight_bytes,window_bytes,retransmissions,pdus"
    )?;
    let mut analysis = Analysis::new(port);
    let (mut origin_ns, mut result) = (None, Ok(()));
    let read = read_capture(file, |segment| {
        let origin_ns = *origin_ns.get_or_insert(segment.time_ns);
        let Some(trace) = analysis.trace_segment(segment).filter(|_| result.is_ok()) else {
            return;
        };
        let pdus: Vec<String> = trace.opcodes.iter().map(ToString::to_string).collect();
        result = writeln!(
            out,
            "{:.6},{},{},{},{},{},{}",
            trace.time_ns.saturating_sub(origin_ns) as f64 / 1e9,
            u8::from(trace.direction == Direction::ToTarget),
            trace.payload_bytes,
            trace.in_flight_bytes,
            trace.window_bytes.map_or(String::new(), |bytes| bytes.to_string()),
            trace.retransmissions,
            pdus.join(" ")
        );
    });
    read.with_context(|| Usage(format!("capture {}", capture.display())))?;
    result.and_then(|()| out.flush()).with_context(writing)
}

/// What of the file could not be used.
pub(crate) fn complain_of_damage(report: &Report) {
    let capture = &report.capture;
    if let Some(why) = &capture.stopped {
        eprintln!("enkaku: the capture is damaged: {why}");
    }
    for (count, what) in [
        (capture.lost_by_capture, "packets lost by the capturing program"),
        (capture.fragments, "IP fragments"),
        (capture.cut_headers, "packets cut within their headers"),
        (capture.unknown_link, "packets of an unknown link type"),
        (capture.no_time, "packets without a time"),
        (report.connections_skipped, "connections, too many at once"),
        (report.waits_cut, "times what waited behind a hole, too much in all connections"),
    ] {
        if count > 0 {
            eprintln!("enkaku: skipped: {count} {what}");
        }
    }
}

fn print(report: &Report) -> anyhow::Result<()> {
    let capture = &report.capture;
    say(format_args!(
        "{} packets, {} TCP segments, {} iSCSI connections, {} others",
        capture.packets,
        capture.segments,
        report.connections.len(),
        report.not_iscsi
    ))?;
    for connection in &report.connections {
        print_connection(connection)?;
    }
    match &report.verdict {
        Some(Judgement { verdict, .. }) => {
            say(format_args!("\n{}: {}", verdict.cause.as_str(), verdict.advice))
        }
        None => say("\nno command that moves data was seen"),
    }
}

fn print_connection(connection: &ConnectionReport) -> anyhow::Result<()> {
    let round_trip = &connection.round_trip;
    let point = serde_json::to_value(round_trip.capture_point).context("capture point")?;
    say(format_args!(
        "\n{} -> {}: {:.3} s, RTT {:.3} ms, captured at: {}",
        connection.initiator,
        connection.target,
        connection.seconds,
        round_trip.rtt_us.unwrap_or(0.0) / 1e3,
        point.as_str().unwrap_or("unknown")
    ))?;
    for (name, summary) in [("writes", &connection.writes), ("reads", &connection.reads)] {
        if let Some(summary) = summary {
            print_commands(name, summary)?;
        }
    }
    say(format_args!("  {:.3} s from the first command on, of which", connection.wall_s))?;
    let shares = serde_json::to_value(connection.shares_s).context("shares")?;
    for (name, seconds) in shares.as_object().into_iter().flatten() {
        let seconds = seconds.as_f64().unwrap_or(0.0);
        if seconds > 0.0 {
            let share = 100.0 * seconds / connection.wall_s.max(1e-9);
            say(format_args!("    {name:<18}{seconds:>10.3} s {share:>5.1} %"))?;
        }
    }
    for (way, flow, pdus) in [
        ("to the target", &connection.to_target, &connection.pdus_to_target),
        ("to the initiator", &connection.to_initiator, &connection.pdus_to_initiator),
    ] {
        say(format_args!(
            "  {way}: {} PDUs ({} times lost), {} segments, {} retransmitted, {} bytes in flight \
             at most, window {} at most",
            pdus.pdus,
            pdus.lost_sync,
            flow.counts.segments,
            flow.counts.retransmissions,
            flow.in_flight_max_bytes,
            flow.window_max_bytes
        ))?;
    }
    Ok(())
}

fn print_commands(name: &str, summary: &CommandSummary) -> anyhow::Result<()> {
    let tc = summary.tc_us.map_or("-".to_owned(), |us| format!("{:.3}", us / 1e3));
    say(format_args!(
        "  {} {name}, {} bytes; medians: {} bytes, first data after {:.3} ms, Ta {:.3} ms, Tb {:.3} \
         ms, Tc {tc} ms, {:.1} R2Ts",
        summary.commands,
        summary.bytes,
        summary.bytes_median,
        summary.before_us / 1e3,
        summary.ta_us / 1e3,
        summary.tb_us / 1e3,
        summary.r2ts
    ))
}
