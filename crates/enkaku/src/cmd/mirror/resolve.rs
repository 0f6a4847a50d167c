//! `enkaku mirror resolve`.

use std::process::ExitCode;

use daemon::mirror::control::Request;

use super::Which;
use crate::cmd::say;

/// Takes back a leg that was promoted, or that has been written to at the other side: it gets the
/// local content, and what it has of its own is gone. To keep that instead, promote the leg and
/// make a mirror there.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    /// The leg whose writes are given up: its number from 1, its URL or path, or the end of that.
    #[arg(long, value_name = "LEG")]
    discard: String,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let request = Request::Resolve { discard: args.discard };
    args.which.have_done(&request).await?;
    say("resolved; `enkaku mirror status` tells how far the copy is")?;
    Ok(ExitCode::SUCCESS)
}
