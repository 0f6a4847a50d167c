//! `enkaku mirror remove-leg`.

use std::process::ExitCode;
use std::time::UNIX_EPOCH;

use block::mirror::Removed;
use daemon::mirror::control::{Request, which_leg};
use daemon::mirror::report;

use super::{Which, not_shaped};
use crate::cmd::{Usage, say};

/// Removes a leg. What it holds becomes a plain image, of the moment that is told; its reservation
/// is given up. While the mirror runs, its user waits for a moment.
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
    let files = args.which.files()?;
    let request = Request::RemoveLeg { leg: args.leg.clone(), force: args.force };
    let removed: Removed = match args.which.have_done_if_it_runs(&request).await? {
        Some(answer) => {
            answer.removed.ok_or_else(|| anyhow::anyhow!("it does not say what it did"))?
        }
        None => {
            let mut shape = args.which.shape().await?;
            let place = which_leg(Some(&args.leg), &shape.leg_names()).map_err(Usage::error)?;
            shape.remove_leg(place, args.force).await.map_err(not_shaped)?
        }
    };
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
