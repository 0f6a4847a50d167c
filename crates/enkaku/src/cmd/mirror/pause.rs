//! `enkaku mirror pause` and `resume`.

use std::process::ExitCode;

use daemon::mirror::control::Request;

use super::{Which, WhichLeg};
use crate::cmd::say;

/// Sends nothing to a leg any more; what changes is noted, and sent once it is resumed.
#[derive(clap::Args, Debug)]
pub(super) struct PauseArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    leg: WhichLeg,
}

/// Goes on with a leg that was paused, or tries one that has failed.
#[derive(clap::Args, Debug)]
pub(super) struct ResumeArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    leg: WhichLeg,
}

pub(super) async fn pause(args: PauseArgs) -> anyhow::Result<ExitCode> {
    args.which.have_done(&Request::Pause { leg: args.leg.leg }).await?;
    say("paused")?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn resume(args: ResumeArgs) -> anyhow::Result<ExitCode> {
    args.which.have_done(&Request::Resume { leg: args.leg.leg }).await?;
    say("resumed")?;
    Ok(ExitCode::SUCCESS)
}
