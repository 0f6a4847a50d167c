//! The verdict on connections of this host, from some seconds of the kernel's counters.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use tcpmon::ethtool::{Device, device_of};
use tcpmon::events::evidence;
use tcpmon::verdict::from_samples::{Judgement, Known, Role, Watched, judge};
use tcpmon::verdict::{Cause, Verdict};
use tcpmon::watch::Watcher;
use wanlab::units::{parse_rate, parse_time};

use crate::cmd::monitor::events::{EventsState, LiveEvents};
use crate::cmd::monitor::select::{SelectArgs, usage};
use crate::cmd::{Usage, say};

/// New connections are looked for this often.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// A shorter time has too few round trips for a verdict.
const TIME_MIN: Duration = Duration::from_millis(200);
/// A longer one is a monitor's work.
const TIME_MAX: Duration = Duration::from_secs(3600);
/// Exit code where there was no transfer to judge.
const NOTHING: u8 = 3;
/// TCP payload of a full packet over its bytes on Ethernet (MTU 1500, timestamps).
const PAYLOAD_SHARE: f64 = 1448.0 / 1538.0;

/// What to watch, and for how long.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LiveArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// How long to watch.
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "5s")]
    time: Duration,
    /// What the line carries, as in 1gbit, where you know it; otherwise it is what was seen.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    line_rate: Option<u64>,
    /// Add TCP's events (retransmissions, timeouts, waits for the send buffer) to the evidence, by
    /// eBPF programs in the kernel; needs root.
    #[arg(long)]
    events: bool,
}

impl LiveArgs {
    /// The port of the connections, if it was given.
    pub(super) fn port(&self) -> Option<u16> {
        self.select.port()
    }
}

/// The answer: the verdict, its doubts and its frame.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    verdict: &'a Verdict,
    not_excluded: &'a [Cause],
    connections: usize,
    bytes_per_s: f64,
    seconds: f64,
    processes: Vec<String>,
    /// The devices that the connections go through.
    devices: Vec<Device>,
    /// What was seen of events, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<EventsState>,
    /// What they say about the cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    events_say: Option<String>,
}

/// Runs the command.
pub(super) fn run(args: &LiveArgs, json: bool) -> anyhow::Result<ExitCode> {
    if args.select.is_all() {
        return Err(Usage::error(
            "which connections? --port 3260, --addr ADDRESS or --pid PID (see --help)",
        ));
    }
    if !(TIME_MIN..=TIME_MAX).contains(&args.time) {
        return Err(Usage::error("--time must be from 200ms to 3600s"));
    }
    let mut watcher = Watcher::new(args.select.selection()).map_err(usage)?;
    let begin = Instant::now();
    let mut events = match args.events {
        true => Some(LiveEvents::open(&watcher.selection().filter, begin, false)?),
        false => None,
    };
    if let Some(events) = events.as_ref().filter(|_| !json) {
        events.announce();
    }
    let watched = watch(&mut watcher, args.time, events.as_mut())?;
    if watched.is_empty() {
        return nothing(&format!("no TCP connection was there ({})", args.select.describe()));
    }
    let processes = processes(&watcher, &watched);
    let devices = devices(&watched);
    let known = Known {
        line_bytes_per_s: args.line_rate.map(payload),
        device_bytes_per_s: devices.iter().filter_map(|one| one.bits_per_s).min().map(payload),
        send_buffer_max_bytes: tcpmon::watch::send_buffer_max_bytes(),
        own_initiator: watched.iter().any(|one| is_own_initiator(&watcher, one)),
    };
    let Some(mut judgement) = judge(&watched, &known) else {
        return nothing(&format!(
            "nothing was transferred in {:.1} s on {} connections ({}); diagnose while it is slow",
            begin.elapsed().as_secs_f64(),
            watched.len(),
            args.select.describe()
        ));
    };
    let seconds = begin.elapsed().as_secs_f64();
    let events_say =
        events.as_ref().and_then(|events| add_events(&mut judgement, events, &watched, seconds));
    let report = Report {
        verdict: &judgement.verdict,
        not_excluded: &judgement.not_excluded,
        connections: judgement.connections,
        bytes_per_s: judgement.bytes_per_s,
        seconds,
        processes,
        devices,
        events: events.as_ref().map(LiveEvents::state),
        events_say,
    };
    if json {
        say(serde_json::to_string(&report)?)?;
    } else {
        say(text(&judgement, &report))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// There was nothing to judge: exit code 3.
fn nothing(why: &str) -> anyhow::Result<ExitCode> {
    eprintln!("enkaku: {why}");
    Ok(ExitCode::from(NOTHING))
}

/// Samples for so long.
fn watch(
    watcher: &mut Watcher,
    time: Duration,
    mut events: Option<&mut LiveEvents>,
) -> anyhow::Result<Vec<Watched>> {
    let begin = Instant::now();
    let mut looked = begin;
    while begin.elapsed() < time {
        std::thread::sleep(watcher.pace().min(time));
        if looked.elapsed() >= LOOK_PERIOD {
            looked = Instant::now();
            watcher.look().map_err(usage)?;
        }
        watcher.sample()?;
        if let Some(events) = &mut events {
            events.take(watcher);
        }
    }
    Ok(watcher.harvest())
}

/// Adds the events' numbers to the evidence; returns what they say about the cause.
fn add_events(
    judgement: &mut Judgement,
    events: &LiveEvents,
    watched: &[Watched],
    seconds: f64,
) -> Option<String> {
    let latest = watched.iter().filter_map(|one| one.samples.last());
    let counts = events.total(latest.map(|sample| sample.connection));
    let (cause, connections) = (judgement.verdict.cause, judgement.connections);
    let found = evidence(cause, &counts, &events.seen(), seconds, connections);
    judgement.verdict.evidence.extend(found.numbers);
    found.says
}

/// Whether it is an end that asks, and this program's.
fn is_own_initiator(watcher: &Watcher, watched: &Watched) -> bool {
    let owner = watched.samples.last().and_then(|sample| watcher.owner(sample));
    watched.role == Role::Initiator && owner.is_some_and(|owner| owner.comm == "enkaku")
}

#[allow(clippy::cast_precision_loss, reason = "rates of lines are far below 2^53")]
fn payload(bits_per_s: u64) -> f64 {
    bits_per_s as f64 / 8.0 * PAYLOAD_SHARE
}

/// The devices of the connections' own addresses, each once.
fn devices(watched: &[Watched]) -> Vec<Device> {
    let latest = watched.iter().filter_map(|one| one.samples.last());
    let mut names: Vec<String> =
        latest.filter_map(|sample| device_of(sample.connection.local.ip())).collect();
    names.sort();
    names.dedup();
    names.iter().filter_map(|name| Device::read(name).ok()).collect()
}

/// The names of the processes, each once.
fn processes(watcher: &Watcher, watched: &[Watched]) -> Vec<String> {
    let latest = watched.iter().filter_map(|one| one.samples.last());
    let mut names: Vec<String> =
        latest.filter_map(|sample| watcher.owner(sample)).map(|owner| owner.comm.clone()).collect();
    names.sort();
    names.dedup();
    names
}

/// For people: the cause, the advice, then the numbers.
fn text(judgement: &Judgement, report: &Report<'_>) -> String {
    let verdict = &judgement.verdict;
    let mut lines = vec![format!("{}: {}", verdict.cause.as_str(), verdict.advice)];
    if !judgement.not_excluded.is_empty() {
        let names: Vec<_> = judgement.not_excluded.iter().map(|cause| cause.as_str()).collect();
        lines.push(format!(
            "The kernel's counters of this end cannot exclude: {}. The other end, or a capture, can.",
            names.join(", ")
        ));
    }
    lines.extend(report.events_say.clone());
    lines.push(String::new());
    let processes = report.processes.join(", ");
    lines.push(format!("{:<24}{processes}", "processes"));
    for device in &report.devices {
        let driver = device.driver.as_deref().unwrap_or("no driver");
        let note = device.note.map(|note| format!(": {note}")).unwrap_or_default();
        lines.push(format!("{:<24}{} ({driver}){note}", "device", device.name));
    }
    for (name, value) in &verdict.evidence {
        let digits = if value.abs() < 10.0 && value.fract() != 0.0 { 4 } else { 0 };
        lines.push(format!("{name:<24}{value:.digits$}"));
    }
    lines.join("\n")
}
