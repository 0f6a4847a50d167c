//! `enkaku monitor record`: iSCSI sessions of this machine into a capture file, without their data.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use tcpmon::capture::live::{PACKET_BYTES_MAX, Packet, Socket, drop_privileges};
use tcpmon::capture::{CaptureSummary, LinkType, Slimmer, Writer, decode};
use tcpmon::events::{
    EventFilter, Events, describe, realtime_minus_monotonic_ns, write_begin, write_event,
};
use wanlab::units::parse_duration;

use crate::cmd::{Usage, say};

/// Record iSCSI sessions of this machine for `monitor report` and `diagnose --pcap`
///
/// Writes pcapng: IP, TCP and iSCSI headers and the text of logins; the data of the volume are
/// zeros. Needs CAP_NET_RAW (root), which it gives up when the socket is open. Ends at SIGINT or
/// SIGTERM.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The file, which is replaced.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The target's port.
    #[arg(long, value_name = "PORT", default_value_t = 3260,
          value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Network device [default: all].
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Stop after so long.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, allow_hyphen_values = true)]
    time: Option<Duration>,
    /// Stop when the file has so many bytes.
    #[arg(long, value_name = "SIZE", value_parser = wanlab::units::parse_size,
          default_value = "4G")]
    bytes_max: u64,
    /// Record TCP's events too, for `monitor report`: by eBPF programs in the kernel, of
    /// connections of this network namespace.
    #[arg(long)]
    events: bool,
    /// Print what was recorded as JSON at the end.
    #[arg(long)]
    json: bool,
}

/// How often signals and limits are looked at.
const TICK: Duration = Duration::from_millis(100);

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let device = args.interface.as_deref();
    let socket = Socket::open(device, args.port).with_context(|| match device {
        Some(name) => Usage(format!("cannot capture on {name}")),
        None => Usage("cannot capture".to_owned()),
    })?;
    let events = match args.events {
        true => Some(Events::open(&EventFilter { port: Some(args.port) })?),
        false => None,
    };
    for line in events.iter().flat_map(|events| describe(events.sources())) {
        eprintln!("enkaku: {line}");
    }
    let file = File::create(&args.file)
        .with_context(|| Usage(format!("cannot write {}", args.file.display())))?;
    drop_privileges().context("giving up privileges")?;
    say(format_args!("listening on {}, port {}", device.unwrap_or("all devices"), args.port))?;
    let stop = Arc::new(AtomicBool::new(false));
    let json = args.json;
    let signalled = stop.clone();
    let waiter = tokio::spawn(async move {
        if crate::cmd::stop_signal().await.is_ok() {
            signalled.store(true, Ordering::Relaxed);
        }
    });
    let recording =
        tokio::task::spawn_blocking(move || record(&args, socket, events, file, &stop)).await;
    waiter.abort();
    let Recording { packets, bytes, lost, events } = recording??;
    let mut report = json!({"packets": packets, "bytes": bytes, "lost": lost});
    let mut text = format!("{packets} packets, {bytes} bytes, {lost} lost");
    if let Some((events, lost)) = events {
        report["events"] = events.into();
        report["events_lost"] = lost.into();
        text += &format!("; {events} events, {lost} lost");
    }
    if json {
        say(report)?
    } else {
        say(text)?
    }
    Ok(ExitCode::SUCCESS)
}

/// What was recorded.
#[derive(Default)]
struct Recording {
    packets: u64,
    /// Of the file.
    bytes: u64,
    /// Packets that the kernel had no room for.
    lost: u64,
    /// Events, and events that were lost, where they were asked for.
    events: Option<(u64, u32)>,
}

/// The events beside the packets of a recording.
struct EventLog {
    events: Events,
    /// From the clock of events to that of packets.
    offset_ns: u64,
    written: u64,
}

impl EventLog {
    fn new(events: Events, writer: &mut Writer<BufWriter<File>>) -> std::io::Result<Self> {
        write_begin(writer)?;
        Ok(Self { events, offset_ns: realtime_minus_monotonic_ns(), written: 0 })
    }

    /// Writes what has happened; returns the bytes that this took.
    fn write(&mut self, writer: &mut Writer<BufWriter<File>>) -> std::io::Result<u64> {
        let mut result = Ok(0);
        let Self { events, offset_ns, written } = self;
        events.drain(|event, bytes| {
            if let Ok(before) = result {
                let at_ns = event.at_ns.saturating_add(*offset_ns);
                result = write_event(writer, at_ns, bytes).map(|bytes| before + bytes);
                *written += 1;
            }
        });
        result
    }
}

fn record(
    args: &Args,
    mut socket: Socket,
    events: Option<Events>,
    file: File,
    stop: &AtomicBool,
) -> anyhow::Result<Recording> {
    let mut writer = Writer::new(BufWriter::new(file), PACKET_BYTES_MAX as u32)?;
    let mut log = events.map(|events| EventLog::new(events, &mut writer)).transpose()?;
    let mut slimmer = Slimmer::new(args.port);
    let (mut packets, mut bytes, mut lost, mut last_ns) = (0_u64, 0_u64, 0_u64, 0_u64);
    let begin = Instant::now();
    let mut summary = CaptureSummary::default();
    loop {
        let got = socket.receive(TICK, |packet: &Packet<'_>| {
            let (wire_len, time_ns) = (packet.wire_len, packet.time_ns);
            let segment = decode(LinkType::RAW, packet.bytes, wire_len, time_ns, &mut summary);
            let Some(segment) = segment else { return Ok(()) };
            let kept = slimmer.slim(&segment, packet.bytes.len()).apply(packet.bytes);
            packets += 1;
            bytes += kept.len() as u64 + 32;
            last_ns = time_ns;
            writer.packet(time_ns, wire_len, &kept)
        });
        let recording = || format!("recording to {}", args.file.display());
        let got = got.with_context(recording)?;
        if let Some(log) = &mut log {
            bytes += log.write(&mut writer).with_context(recording)?;
        }
        lost += socket.take_lost()?;
        let over = args.time.is_some_and(|time| begin.elapsed() >= time);
        // What came before the signal is still to be read.
        let stopping = stop.load(Ordering::Relaxed) && got == 0;
        if over || stopping || bytes >= args.bytes_max {
            writer.finish(last_ns, packets + lost, lost)?;
            let events = log.map(|log| (log.written, log.events.lost()));
            return Ok(Recording { packets, bytes, lost, events });
        }
    }
}
