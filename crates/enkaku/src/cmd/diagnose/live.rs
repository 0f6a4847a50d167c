//! The verdict on connections of this host, from some seconds of the kernel's counters.

use std::time::{Duration, Instant};

use tcpmon::ethtool::{Device, device_of};
use tcpmon::events::evidence;
use tcpmon::verdict::Judgement;
use tcpmon::verdict::from_samples::{Known, Role, Watched, judge};
use tcpmon::watch::Watcher;
use wanlab::units::{parse_duration, parse_rate};

use super::packets;
use super::print::Answer;
use crate::cmd::Usage;
use crate::cmd::monitor::events::LiveEvents;
use crate::cmd::monitor::select::{SelectArgs, usage};

/// New connections are looked for this often.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// A shorter time has too few round trips for a verdict.
const TIME_MIN: Duration = Duration::from_millis(200);
/// A longer one is a monitor's work.
const TIME_MAX: Duration = Duration::from_secs(3600);
/// TCP payload of a full packet over its bytes on Ethernet (MTU 1500, timestamps).
const PAYLOAD_SHARE: f64 = 1448.0 / 1538.0;

/// What to watch, and for how long.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct LiveArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// How long to watch.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    time: Duration,
    /// What the line carries, as in 1gbit, where you know it; otherwise it is what was seen.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    line_rate: Option<u64>,
    /// Add TCP's events (retransmissions, timeouts, waits for the send buffer) to the evidence, by
    /// eBPF programs in the kernel; needs root.
    #[arg(long)]
    events: bool,
    /// Judge by the kernel's counters alone. Otherwise, where they cannot tell, packets are
    /// looked at for as long again, at most 5 s, if that is allowed (CAP_NET_RAW); nothing of
    /// them is kept.
    #[arg(long, conflicts_with = "pcap")]
    counters_only: bool,
}

impl LiveArgs {
    /// The port of the connections, if it was given.
    pub(super) fn port(&self) -> Option<u16> {
        self.select.port()
    }
}

/// Watches, then judges; why there was nothing to judge if so. `quiet` says nothing meanwhile.
pub(super) fn answer(args: &LiveArgs, quiet: bool) -> anyhow::Result<Result<Answer, String>> {
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
    let selection = args.select.describe();
    let mut events = match args.events {
        true => Some(LiveEvents::open(&watcher.selection().filter, begin, false)?),
        false => None,
    };
    if let Some(events) = events.as_ref().filter(|_| !quiet) {
        events.announce();
    }
    let watched = watch(&mut watcher, args.time, events.as_mut())?;
    if watched.is_empty() {
        return Ok(Err(format!("no TCP connection was there ({selection})")));
    }
    let devices = devices(&watched);
    let known = Known {
        line_bytes_per_s: args.line_rate.map(payload),
        device_bytes_per_s: devices.iter().filter_map(|one| one.bits_per_s).min().map(payload),
        send_buffer_max_bytes: tcpmon::watch::send_buffer_max_bytes(),
        own_initiator: watched.iter().any(|one| is_own_initiator(&watcher, one)),
    };
    let Some(mut judgement) = judge(&watched, &known) else {
        return Ok(Err(format!(
            "nothing was transferred in {:.1} s on {} connections ({selection}); diagnose while it \
             is slow",
            begin.elapsed().as_secs_f64(),
            watched.len(),
        )));
    };
    let seconds = begin.elapsed().as_secs_f64();
    let processes = processes(&watcher, &watched);
    let counters = look_closer(&mut judgement, &watched, args);
    let events_say =
        events.as_ref().and_then(|events| add_events(&mut judgement, events, &watched, seconds));
    let events = events.as_ref().map(LiveEvents::state);
    Ok(Ok(Answer { judgement, counters, processes, devices, events, events_say }))
}

/// Lets packets decide what counters cannot; what those said, if so.
fn look_closer(
    judgement: &mut Judgement,
    watched: &[Watched],
    args: &LiveArgs,
) -> Option<Judgement> {
    if args.counters_only || !packets::would_tell(judgement) {
        return None;
    }
    match packets::look(judgement, watched, args.time) {
        Ok(found) => found.map(|found| std::mem::replace(judgement, found)),
        Err(error) => {
            tracing::info!(%error, "packets cannot be looked at");
            None
        }
    }
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
pub(in crate::cmd) fn payload(bits_per_s: u64) -> f64 {
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
