//! `enkaku mirror failback`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use block::mirror::{Inspection, failback::bytes_needed, hand_back, inspect};
use daemon::mirror::control::which_leg;
use daemon::mirror::{parts, report};

use super::{Which, WhichLeg};
use crate::cmd::{Usage, say};

/// Gives the local disk of this site back to a leg that was promoted, as a leg of it: notes behind
/// its image what differs, and has this mirror not run any more. A file is made longer for that.
/// What was written here and is not there is given up. Export the disk then; the mirror at the
/// other site (`create --from-leg`) sends it what differs.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    leg: WhichLeg,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (files, config) = args.which.load()?;
    let names: Vec<String> = config.legs.iter().map(|leg| leg.way.to_string()).collect();
    let leg = which_leg(args.leg.leg.as_deref(), &names).map_err(Usage::error)?;
    let wrong = |error: parts::PartsError| Usage::error(error.to_string());
    // Opened, and so nobody else's, before it is made longer.
    let before = parts::open(&config).map_err(wrong)?;
    let Inspection::Metadata(found) = inspect(&before.metadata).await? else {
        return Err(Usage::error("its metadata are none of a mirror"));
    };
    drop(before);
    make_longer(&config.local, bytes_needed(found.size_bytes))?;
    let parts = parts::open(&config).map_err(wrong)?;
    let given = hand_back(&parts.local, &parts.metadata, parts.host.clone(), leg).await?;
    if args.json {
        say(serde_json::to_string_pretty(&given)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    say(format_args!(
        "{} can be exported as a leg of what was promoted at {}: {} of {} may differ from what was \
         there then; {} does not run any more",
        config.local.display(),
        given.leg,
        report::bytes(given.differing_bytes),
        report::bytes(given.size),
        files.name()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// A block device that is too short is complained about later, by what is needed.
fn make_longer(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let metadata = std::fs::metadata(path).with_context(|| path.display().to_string())?;
    if metadata.is_file() && metadata.len() < bytes {
        let file = std::fs::OpenOptions::new().write(true).open(path);
        let longer = file.and_then(|file| file.set_len(bytes).and_then(|()| file.sync_all()));
        longer.with_context(|| format!("making {} {bytes} bytes long", path.display()))?;
    }
    Ok(())
}
