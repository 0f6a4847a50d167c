//! `enkaku man`: the manual pages of all commands, for who packages the program. Hidden: a user has
//! `man enkaku` then.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;

use super::Usage;
use crate::Cli;

/// Write the manual pages of all commands, enkaku.1, enkaku-copy.1 and so on, into a directory
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to; it has to be there.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let shown = args.dir.display();
    if !args.dir.is_dir() {
        return Err(Usage::error(format!("there is no directory {shown}; make it first")));
    }
    // Without the overview, which is made for a terminal: a page has a list of the commands.
    clap_mangen::generate_to(Cli::command(), &args.dir)
        .with_context(|| format!("cannot write the pages into {shown}"))?;
    Ok(ExitCode::SUCCESS)
}
