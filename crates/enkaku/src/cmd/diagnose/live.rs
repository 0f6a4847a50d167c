//! The verdict on connections of this host, from some seconds of the kernel's counters.

use std::time::{Duration, Instant};

use tcpmon::ethtool::{Device, device_of};
use tcpmon::verdict::from_samples::{Known, Role, Watched, judge};
use tcpmon::watch::Watcher;
use wanlab::units::{parse_rate, parse_time};

use super::print::Answer;
use crate::cmd::Usage;
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
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "5s")]
    time: Duration,
    /// What the line carries, as in 1gbit, where you know it; otherwise it is what was seen.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    line_rate: Option<u64>,
}

impl LiveArgs {
    /// The port of the connections, if it was given.
    pub(super) fn port(&self) -> Option<u16> {
        self.select.port()
    }
}

/// Watches, then judges; why there was nothing to judge if so.
pub(super) fn answer(args: &LiveArgs) -> anyhow::Result<Result<Answer, String>> {
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
    let watched = watch(&mut watcher, args.time)?;
    let selection = args.select.describe();
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
    let Some(judgement) = judge(&watched, &known) else {
        return Ok(Err(format!(
            "nothing was transferred in {:.1} s on {} connections ({selection}); diagnose while it \
             is slow",
            begin.elapsed().as_secs_f64(),
            watched.len(),
        )));
    };
    Ok(Ok(Answer { judgement, processes: processes(&watcher, &watched), devices }))
}

/// Samples for so long.
fn watch(watcher: &mut Watcher, time: Duration) -> anyhow::Result<Vec<Watched>> {
    let begin = Instant::now();
    let mut looked = begin;
    while begin.elapsed() < time {
        std::thread::sleep(watcher.pace().min(time));
        if looked.elapsed() >= LOOK_PERIOD {
            looked = Instant::now();
            watcher.look().map_err(usage)?;
        }
        watcher.sample()?;
    }
    Ok(watcher.harvest())
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
