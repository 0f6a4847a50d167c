//! `enkaku detach`: ends what `enkaku attach` has begun, and waits for it.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use backends::Location;
use export::kernel::KernelError;
use export::{nbd, ublk};
use rustix::process::{Pid, Signal, kill_process};
use wanlab::units;

use super::attach::registry::found;
use super::{Usage, complain, front, say};

/// Time between two looks whether it is detached.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Who waits longer than this wants to know for what.
const PATIENCE: Duration = Duration::from_secs(2);

/// Detaches a volume: what was written is at the far end when it ends. One that is mounted, or open
/// by FUSE, is detached when its users are done.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// What `enkaku attach --list` shows: the volume, or what it is attached as.
    #[arg(value_name = "URL|PLACE")]
    what: String,
    /// How long to wait; it is detached all the same when its users are done.
    #[arg(long, value_name = "TIME", default_value = "180s", value_parser = units::parse_duration,
          allow_hyphen_values = true)]
    timeout: Duration,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    // A URL may be written with a user, or with what goes without saying.
    let key = args.what.parse().map_or_else(|_| args.what.clone(), |url: Location| url.key());
    let mut meant = found();
    meant.retain(|one| one.entry.is(&key) || one.entry.is(&args.what));
    let Some(one) = meant.pop() else { return left(&args.what, &key).await };
    if !meant.is_empty() {
        let places = meant.iter().chain([&one]).map(|one| one.entry.places.join(" "));
        let places: Vec<String> = places.collect();
        return Err(Usage::error(format!(
            "{} is attached more than once: say as what ({})",
            args.what,
            places.join(", ")
        )));
    }
    let pid = one.entry.pid.and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let pid = pid.context("its process has no number")?;
    kill_process(pid, Signal::TERM).with_context(|| format!("asking process {} to end", pid))?;
    let begin = Instant::now();
    let mut said = false;
    loop {
        match one.ended() {
            Some(None) => {
                say(format_args!("detached {}", one.entry.volume))?;
                return Ok(ExitCode::SUCCESS);
            }
            Some(Some(failed)) => anyhow::bail!("{}: {failed}", one.entry.volume),
            None => {}
        }
        if begin.elapsed() >= args.timeout {
            anyhow::bail!(
                "{} is not detached within {:?}: it is in use, or is being written out",
                one.entry.places.join(" "),
                args.timeout
            );
        }
        if begin.elapsed() > PATIENCE && !std::mem::replace(&mut said, true) {
            complain(
                "waiting: it is in use (findmnt and lsof tell by whom), or is being written out",
            );
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// No process has it: it may be a device that one has left.
async fn left(what: &str, key: &str) -> anyhow::Result<ExitCode> {
    let nothing = || {
        Usage::error(format!("nothing is attached as {what}; `enkaku attach --list` has what is"))
    };
    let node = front::devices().find(|(_, volume)| volume == key).map(|(node, _)| node);
    let node = node.or_else(|| Path::new(what).canonicalize().ok()).ok_or_else(nothing)?;
    let mut ended = nbd::kernel::disconnect(&node).await;
    if matches!(ended, Err(KernelError::NotOurs(_))) {
        ended = ublk::disconnect(&node).await;
    }
    match ended {
        Ok(()) => {
            say(format_args!("detached {}, which no process served any more", node.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(KernelError::NotOurs(_)) => Err(nothing()),
        Err(error) => Err(error.into()),
    }
}
