//! `enkaku mirror remove-leg`.

use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use anyhow::Context;
use block::mirror::{Stopped, remove_leg};
use daemon::mirror::control::which_leg;
use daemon::mirror::{parts, report};

use super::Which;
use crate::cmd::{Usage, say};

/// Removes a leg from a mirror that does not run. What the leg holds becomes a plain image, of the
/// moment that is told; its reservation is given up.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    /// Which leg: its number from 1, its URL or path, or the end of that.
    #[arg(long, value_name = "LEG")]
    leg: String,
    /// Also one that cannot be reached: it is forgotten here, and stays as it is.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (files, config) = args.which.load()?;
    let names: Vec<String> = config.legs.iter().map(|leg| leg.way.to_string()).collect();
    let place = which_leg(Some(&args.leg), &names).map_err(Usage::error)?;
    let text = std::fs::read_to_string(files.config())?;
    let text = daemon::mirror::config::without_leg(&text, place);
    let parts = parts::open(&config).map_err(|error| Usage::error(error.to_string()))?;
    let source = &parts.legs[place];
    let leg = match source.connect().await {
        Ok(leg) => Some(leg),
        Err(_) if args.force => None,
        Err(error) => {
            let what = "--force forgets a leg that is not reached";
            return Err(anyhow::Error::from(error).context(format!("{} ({what})", source.name())));
        }
    };
    let mirror = Stopped { local: parts.local, metadata: parts.metadata, host: parts.host };
    let removed = remove_leg(&mirror, place, leg).await?;
    let written = files.write_config(&text);
    written.with_context(|| format!("writing {}", files.config().display()))?;
    if args.json {
        say(serde_json::to_string_pretty(&removed)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let what = match removed.image {
        None => {
            "nothing was changed there: it is somebody else's by now, or was not reached".into()
        }
        Some(image) => {
            let time = image.time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let kind = if image.consistent { "a plain image" } else { "no image of one moment" };
            format!("what it holds is {kind}, {} bytes of {}", image.size, report::clock(time))
        }
    };
    say(format_args!("{} is no leg of {} any more: {what}", removed.name, files.name()))?;
    Ok(ExitCode::SUCCESS)
}
