//! `enkaku mirror resync`.

use std::process::ExitCode;

use daemon::mirror::control::Request;

use super::{Which, WhichLeg};
use crate::cmd::say;

/// Copies to a leg what differs or may differ, now rather than at the next attempt.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    leg: WhichLeg,
    /// Copy all of it, whatever is known to be the same.
    #[arg(long)]
    whole: bool,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.which.have_done(&Request::Resync { leg: args.leg.leg, whole: args.whole }).await?;
    say("begun; `enkaku mirror status` tells how far it is")?;
    Ok(ExitCode::SUCCESS)
}
