//! `enkaku monitor`: what TCP does under iSCSI.

mod record;
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
    Record(record::Args),
    Report(report::Args),
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Record(args) => super::run_async(record::run(args)),
        Command::Report(args) => report::run(&args),
    }
}
