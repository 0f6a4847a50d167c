//! `enkaku diagnose`: names what limits an iSCSI transfer, of any initiator and target.

mod live;

use std::process::ExitCode;

/// Name what limits an iSCSI transfer
///
/// Watches connections of this host from beside, whoever made them: nothing is sent, nothing is
/// changed, and no root is needed. It works best on the host that the data leave: the target for
/// reads, the initiator for writes.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example: enkaku diagnose --port 3260 --time 10s")]
pub(crate) struct Args {
    #[command(flatten)]
    live: live::LiveArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    live::run(&args.live, args.json)
}
