//! `enkaku mirror resolve`.

use std::process::ExitCode;

use anyhow::Context;
use block::mirror::{RestoreProgress, Stopped, restore_local};
use daemon::mirror::control::{Request, which_leg};
use daemon::mirror::{parts, report};

use super::Which;
use crate::cmd::{Usage, complain, say};

/// Decides where both sides have written. A leg that is discarded gets the local content; with
/// `--discard local`, the local disk gets that of the leg that is kept, and the mirror must not
/// run. What the discarded side has of its own is gone.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    /// Whose writes are given up: a leg (its number from 1, its URL or path, or the end of that),
    /// or "local".
    #[arg(long, value_name = "LEG|local")]
    discard: String,
    /// With --discard local: the leg whose content is kept; needed where there are several.
    #[arg(long, value_name = "LEG")]
    keep: Option<String>,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.discard == "local" {
        return discard_local(&args).await;
    }
    if args.keep.is_some() {
        return Err(Usage::error("--keep belongs to --discard local"));
    }
    let request = Request::Resolve { discard: args.discard };
    args.which.have_done(&request).await?;
    say("resolved; `enkaku mirror status` tells how far the copy is")?;
    Ok(ExitCode::SUCCESS)
}

async fn discard_local(args: &Args) -> anyhow::Result<ExitCode> {
    let (files, config) = args.which.load()?;
    let names: Vec<String> = config.legs.iter().map(|leg| leg.way.to_string()).collect();
    let place = which_leg(args.keep.as_deref(), &names).map_err(Usage::error)?;
    let parts = parts::open(&config).map_err(|error| Usage::error(error.to_string()))?;
    let source = &parts.legs[place];
    let leg = source.connect().await.with_context(|| source.name())?;
    let mirror = Stopped { local: parts.local, metadata: parts.metadata, host: parts.host };
    let mut told = |progress: RestoreProgress| {
        let (done, left) = (progress.compared_bytes, progress.left_bytes);
        complain(&format!("{} compared, {} left", report::bytes(done), report::bytes(left)));
    };
    let done = restore_local(&mirror, place, leg, &mut told).await?;
    say(format_args!(
        "{} is what is at {}: {} differed; `enkaku mirror run {}` goes on with it",
        config.local.display(),
        names[place],
        report::bytes(done.written_bytes),
        files.name()
    ))?;
    Ok(ExitCode::SUCCESS)
}
