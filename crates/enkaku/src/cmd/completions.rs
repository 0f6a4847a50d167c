//! `enkaku completions`: what a shell needs to complete our command lines.

use std::process::ExitCode;

use clap_complete::{Shell, generate};

use super::say;
use crate::overview;

/// Print the completions of commands and options for a shell
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example: enkaku completions bash >~/.local/share/bash-completion/completions/enkaku"
)]
pub(crate) struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    generate(args.shell, &mut overview::command(), "enkaku", &mut text);
    say(String::from_utf8_lossy(&text).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
