//! `enkaku nic`: a network device's knobs, read, and set where it is asked for.

use std::process::ExitCode;

use tcpmon::ethtool::{COALESCING, Change, Device, EthtoolError, Knob, OFFLOADS, RINGS, change};

use super::{Usage, say};

/// Show, and change, what a network device does with packets
///
/// Line rate, MTU, offloads, interrupt coalescing and rings. Nothing is changed without a --set
/// option; changes need CAP_NET_ADMIN, are in the order offloads, coalescing, rings, and end at the
/// first that is refused.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example: enkaku nic eth0 --set-coalescing rx-usecs=50 --set-ring rx=4096")]
pub(crate) struct Args {
    /// The device, as in `ip link`.
    device: String,
    /// Switch an offload: rx, tx, sg, tso, gso or gro, =on or =off.
    #[arg(long, value_name = "NAME=on|off", value_parser = offload)]
    set_offload: Vec<Change>,
    /// Delay interrupts: rx-usecs, rx-frames, tx-usecs or tx-frames.
    #[arg(long, value_name = "NAME=N", value_parser = coalescing)]
    set_coalescing: Vec<Change>,
    /// Packets that a ring holds: rx or tx.
    #[arg(long, value_name = "NAME=N", value_parser = ring)]
    set_ring: Vec<Change>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn split(text: &str) -> Result<(&str, &str), String> {
    text.split_once('=').ok_or_else(|| "must be NAME=VALUE".to_owned())
}

fn offload(text: &str) -> Result<Change, String> {
    let (name, value) = split(text)?;
    let known = OFFLOADS.iter().find(|offload| offload.name == name);
    let known = known.ok_or_else(|| unknown(name, OFFLOADS.iter().map(|one| one.name)))?;
    match value {
        "on" => Ok(Change::Offload(*known, true)),
        "off" => Ok(Change::Offload(*known, false)),
        _ => Err(format!("{value} is neither on nor off")),
    }
}

fn coalescing(text: &str) -> Result<Change, String> {
    let (name, value) = split(text)?;
    let known = COALESCING.iter().find(|(known, _)| *known == name);
    let (known, _) = known.ok_or_else(|| unknown(name, COALESCING.iter().map(|one| one.0)))?;
    Ok(Change::Coalescing(known, number(value)?))
}

fn ring(text: &str) -> Result<Change, String> {
    let (name, value) = split(text)?;
    let known = RINGS.iter().find(|(known, ..)| *known == name);
    let (known, ..) = known.ok_or_else(|| unknown(name, RINGS.iter().map(|one| one.0)))?;
    Ok(Change::Ring(known, number(value)?))
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{text} is not a number from 0 to {}", u32::MAX))
}

fn unknown(name: &str, known: impl Iterator<Item = &'static str>) -> String {
    format!("{name} is none of {}", known.collect::<Vec<_>>().join(", "))
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    for wanted in [&args.set_offload, &args.set_coalescing, &args.set_ring].into_iter().flatten() {
        change(&args.device, *wanted).map_err(usage)?;
    }
    let device = Device::read(&args.device).map_err(usage)?;
    say(if args.json { serde_json::to_string(&device)? } else { text(&device) })?;
    Ok(ExitCode::SUCCESS)
}

fn usage(error: EthtoolError) -> anyhow::Error {
    match error {
        EthtoolError::NoDevice(_) => Usage::error(error.to_string()),
        other => other.into(),
    }
}

fn text(device: &Device) -> String {
    let line = device
        .bits_per_s
        .map_or_else(|| "none known".to_owned(), |bits| format!("{} Mbit/s", bits / 1_000_000));
    let mut lines = vec![
        format!("{}: driver {}", device.name, device.driver.as_deref().unwrap_or("none")),
        format!("{:<12}{line}", "line"),
        format!("{:<12}{}", "mtu", device.mtu_bytes.unwrap_or_default()),
        format!("{:<12}{}", "offloads", knobs(&device.offloads, true)),
        format!("{:<12}{}", "coalescing", knobs(&device.coalescing, false)),
        format!("{:<12}{}", "rings", knobs(&device.rings, false)),
    ];
    lines.extend(device.note.map(|note| format!("{:<12}{note}", "note")));
    lines.join("\n")
}

fn knobs(knobs: &[Knob], switches: bool) -> String {
    let one = |knob: &Knob| match (switches, knob.max) {
        (true, _) => format!("{} {}", knob.name, if knob.value == 0 { "off" } else { "on" }),
        (false, Some(max)) => format!("{} {} of {max}", knob.name, knob.value),
        (false, None) => format!("{} {}", knob.name, knob.value),
    };
    if knobs.is_empty() {
        "none".to_owned()
    } else {
        knobs.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}
