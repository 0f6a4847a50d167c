//! `enkaku mirror grow`.

use std::process::ExitCode;

use daemon::mirror::control::Request;
use daemon::mirror::report;

use super::{Which, not_shaped};
use crate::cmd::say;

/// Makes a mirror as large as its local disk is by now. All of its legs have to be larger by then,
/// too. What is new is copied to the legs at once, or when the mirror runs again. While it runs,
/// its user waits for a moment.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let files = args.which.files()?;
    let (size, seen) = match args.which.have_done_if_it_runs(&Request::Grow).await? {
        Some(answer) => (answer.size.unwrap_or_default(), answer.done.unwrap_or_default()),
        None => {
            let mut shape = args.which.shape().await?;
            (shape.grow().await.map_err(not_shaped)?, String::new())
        }
    };
    let seen = if seen.is_empty() { seen } else { format!("; {seen}") };
    let shown = report::bytes(size);
    say(format_args!("{} has {size} bytes ({shown}) now{seen}", files.name()))?;
    Ok(ExitCode::SUCCESS)
}
