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
use wanlab::units::parse_time;

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
    #[arg(long, value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true)]
    time: Option<Duration>,
    /// Stop when the file has so many bytes.
    #[arg(long, value_name = "SIZE", value_parser = wanlab::units::parse_size,
          default_value = "4G")]
    bytes_max: u64,
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
    let recording = tokio::task::spawn_blocking(move || record(&args, socket, file, &stop)).await;
    waiter.abort();
    let recording = recording??;
    let (packets, bytes, lost) = recording;
    if json {
        say(json!({"packets": packets, "bytes": bytes, "lost": lost}))?;
    } else {
        say(format_args!("{packets} packets, {bytes} bytes, {lost} lost"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Packets, bytes of the file, packets lost.
fn record(
    args: &Args,
    mut socket: Socket,
    file: File,
    stop: &AtomicBool,
) -> anyhow::Result<(u64, u64, u64)> {
    let mut writer = Writer::new(BufWriter::new(file), PACKET_BYTES_MAX as u32)?;
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
        let got = got.with_context(|| format!("recording to {}", args.file.display()))?;
        lost += socket.take_lost()?;
        let over = args.time.is_some_and(|time| begin.elapsed() >= time);
        // What came before the signal is still to be read.
        let stopping = stop.load(Ordering::Relaxed) && got == 0;
        if over || stopping || bytes >= args.bytes_max {
            writer.finish(last_ns, packets + lost, lost)?;
            return Ok((packets, bytes, lost));
        }
    }
}
