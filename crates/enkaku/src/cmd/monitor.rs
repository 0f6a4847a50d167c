//! `enkaku monitor`: what TCP does, connection by connection, while it does it.

pub(crate) mod select;

use std::process::ExitCode;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    select: select::SelectArgs,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let _ = args;
    Ok(ExitCode::SUCCESS)
}
