//! `enkaku monitor`: what TCP does under iSCSI.

pub(crate) mod report;
pub(crate) mod select;

use std::process::ExitCode;

/// See what TCP does under iSCSI, of any initiator and target
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Report(report::Args),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Report(args) => report::run(args),
    }
}
