//! `enkaku mirror status`.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use block::mirror::inspect;
use daemon::mirror::control::Request;
use daemon::mirror::report::Report;

use super::Which;
use super::inspect::{open_path, show};
use crate::cmd::say;

/// Time between two looks of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Tells how a mirror stands: each leg, how far it is behind, what a promotion would lose. Exit
/// code 1 unless all legs are in sync. Of one that does not run, its metadata is shown.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    /// Print JSON; with --watch, an object a line.
    #[arg(long)]
    json: bool,
    /// Look again every second, until interrupted or the mirror ends.
    #[arg(long)]
    watch: bool,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Some(report) = ask(&args.which).await? else {
        return stopped(&args).await;
    };
    if args.watch {
        return watch(&args, report).await;
    }
    match args.json {
        true => say(serde_json::to_string_pretty(&report)?)?,
        false => say(report.text())?,
    }
    Ok(ExitCode::from(u8::from(!report.in_sync())))
}

async fn ask(which: &Which) -> anyhow::Result<Option<Report>> {
    let Some(answer) = which.ask(&Request::Status).await? else { return Ok(None) };
    match answer.status {
        Some(report) if answer.ok => Ok(Some(report)),
        _ => anyhow::bail!("{}: {}", which.name, answer.errors.join("; ")),
    }
}

async fn watch(args: &Args, first: Report) -> anyhow::Result<ExitCode> {
    let mut report = Some(first);
    let clears = std::io::stdout().is_terminal() && !args.json;
    while let Some(now) = report {
        if args.json {
            say(serde_json::to_string(&now)?)?;
        } else if clears {
            // The cursor goes home, and what is below goes: no flicker as of a cleared screen.
            let text = now.text().replace('\n', "\x1b[K\n");
            let mut out = std::io::stdout().lock();
            write!(out, "\x1b[H{text}\x1b[K\n\x1b[J").and_then(|()| out.flush())?;
        } else {
            say(format_args!("{}\n", now.text()))?;
        }
        tokio::time::sleep(WATCH_EVERY).await;
        report = ask(&args.which).await?;
    }
    say(format_args!("the mirror {} does not run any more", args.which.name))?;
    Ok(ExitCode::FAILURE)
}

/// What the metadata of a mirror says that does not run.
async fn stopped(args: &Args) -> anyhow::Result<ExitCode> {
    let (files, config) = args.which.load()?;
    let found = inspect(&open_path(&config.metadata)?).await?;
    if !args.json {
        say(format_args!("{} does not run; its metadata says:", files.name()))?;
    }
    show(&found, args.json)?;
    Ok(ExitCode::FAILURE)
}
