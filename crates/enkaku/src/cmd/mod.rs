//! One subcommand per file, and what all of them share: the runtime, logging, exit codes.

pub(crate) mod advice;
pub(crate) mod attach;
pub(crate) mod bench;
pub(crate) mod bursts;
pub(crate) mod cat;
pub(crate) mod completions;
pub(crate) mod conformance;
pub(crate) mod copy;
pub(crate) mod csi;
pub(crate) mod detach;
pub(crate) mod diagnose;
pub(crate) mod discover;
pub(crate) mod doctor;
pub(crate) mod files;
pub(crate) mod front;
pub(crate) mod image;
pub(crate) mod info;
pub(crate) mod isns;
mod live;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod media;
pub(crate) mod mirror;
pub(crate) mod monitor;
pub(crate) mod nic;
pub(crate) mod overwrite;
pub(crate) mod path_report;
pub(crate) mod plan;
pub(crate) mod remote;
pub(crate) mod secret;
pub(crate) mod serve;
pub(crate) mod stats_file;
pub(crate) mod target;
pub(crate) mod trace;
pub(crate) mod tune;
pub(crate) mod wan;

use std::future::Future;
use std::io::{IsTerminal, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use iscsi::poll::{BLOCKING_THREADS_MAX, POLL_MAX};
use iscsi::target::Chap;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use wanlab::units;
use zeroize::Zeroizing;

/// The request itself is wrong: exit code 2, as for an option clap refuses.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

impl Usage {
    /// As an error for `?`.
    pub(crate) fn error(message: impl Into<String>) -> anyhow::Error {
        Self(message.into()).into()
    }
}

/// Logs go to stderr: warnings, or more with `-v`, or what ENKAKU_LOG says.
pub(crate) fn init_logging(verbose: u8) {
    let level = match verbose {
        // fuser's warning is that it cannot unmount what we have unmounted.
        // Its errors in replies are that nobody waits for them any more.
        0 => "warn,fuser::session=error,fuser::reply=off",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    // Names of modules and fields are ASCII; the parser panics where it cuts a character in two.
    let wanted = std::env::var("ENKAKU_LOG").ok().filter(|wanted| wanted.is_ascii());
    let filter = wanted.and_then(|wanted| EnvFilter::try_new(wanted).ok());
    let filter = filter.unwrap_or_else(|| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}

/// Runs a command on the tokio runtime.
pub(crate) fn run_async(
    command: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().max_blocking_threads(BLOCKING_THREADS_MAX).build()?;
    let result = runtime.block_on(command);
    // A blocking read that hangs (a dead disk) must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// One line of what failed. Exit code 2 if the request was wrong, 1 otherwise.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    complain(&one_line(error));
    // A context of anyhow is found by the error, not by its chain.
    let usage = error.is::<Usage>() || error.chain().any(|cause| cause.is::<Usage>());
    ExitCode::from(if usage { 2 } else { 1 })
}

/// What failed, why, and what to do if that is known.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    // Libraries repeat their cause in their own text; say each thing once.
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !line.contains(&cause) {
            if !line.is_empty() {
                line.push_str(": ");
            }
            line.push_str(&cause);
        }
    }
    if let Some(advice) = advice::advice(error) {
        line = format!("{line} ({advice})");
    }
    without_numbers(&line.replace('\n', " "))
}

/// Help and version as clap prints them; anything else as one line, exit code 2.
pub(crate) fn report_usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind as K;
    match error.kind() {
        K::DisplayHelp | K::DisplayVersion => {
            let _ = error.print(); // a closed stdout is nobody's error
            return ExitCode::SUCCESS;
        }
        K::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::from(2);
        }
        _ => {}
    }
    let text = error.render().to_string();
    // clap adds usage and hints in paragraphs of their own; the first one says what is wrong.
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    let line = words.join(" ").replace("invalid digit found in string", "not a whole number");
    let tip = text.lines().find_map(|line| line.trim_start().strip_prefix("tip: "));
    // What is similar is worth a word; how to pass a value that looks like an option is not.
    let tip = tip.filter(|tip| tip.contains("exist")).unwrap_or("see --help");
    complain(&format!("{} ({tip})", line.trim_start_matches("error: ")));
    ExitCode::from(2)
}

pub(crate) fn complain(line: &str) {
    // If stderr is gone too, the exit code says it all.
    let _ = writeln!(std::io::stderr(), "enkaku: {}", without_numbers(line));
}

/// Without the numbers that the standard library puts behind the system's words: ` (os error 2)`.
pub(crate) fn without_numbers(line: &str) -> String {
    let mut parts = line.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, part| {
        let behind = part.split_once(')').map_or("", |(_, behind)| behind);
        line + behind
    })
}

/// Prints a line on stdout. If nobody reads it any more (a closed pipe), that is no failure.
pub(crate) fn say(line: impl std::fmt::Display) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Completes at SIGINT or SIGTERM.
pub(crate) async fn stop_signal() -> anyhow::Result<&'static str> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
    })
}

/// Reads a secret: the first line of a file, so that it stands in no argument list.
pub(crate) fn read_secret(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    let text = std::fs::read_to_string(path)
        .map(Zeroizing::new)
        .with_context(|| Usage(format!("cannot read the password file {}", path.display())))?;
    // Only a file: a pipe (`<(pass show …)`) is nobody else's.
    let open_to = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
    let whom = match open_to.map_or(0, |metadata| metadata.permissions().mode()) {
        mode if mode & 0o004 != 0 => Some("everybody"),
        mode if mode & 0o040 != 0 => Some("its group"),
        _ => None,
    };
    if let Some(whom) = whom {
        let shown = path.display();
        complain(&format!(
            "warning: the password file {shown} can be read by {whom}; chmod 600 it"
        ));
    }
    let secret = Zeroizing::new(text.lines().next().unwrap_or_default().to_owned());
    if secret.is_empty() {
        return Err(Usage::error(format!("the password file {} is empty", path.display())));
    }
    Ok(secret)
}

/// An address with a port, or alone, in brackets or without, at this one.
pub(crate) fn socket_address(text: &str, port: u16) -> Option<SocketAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let alone = || bare.parse::<IpAddr>().ok().map(|address| SocketAddr::new(address, port));
    text.parse().ok().or_else(alone)
}

/// A time to poll for, as in 50us.
pub(crate) fn parse_poll(text: &str) -> Result<Duration, String> {
    let time = units::parse_time(text).map_err(|error| error.to_string())?;
    let allowed = !time.is_zero() && time <= POLL_MAX;
    allowed.then_some(time).ok_or_else(|| format!("above 0, up to {POLL_MAX:?} is allowed"))
}

/// CHAP options of the commands that listen.
#[derive(clap::Args, Debug)]
pub(crate) struct ChapArgs {
    /// Initiators must know this CHAP user.
    #[arg(long, requires = "chap_password_file", value_name = "USER")]
    pub(crate) chap_user: Option<String>,
    /// File whose first line is the user's password.
    #[arg(long, requires = "chap_user", value_name = "FILE")]
    pub(crate) chap_password_file: Option<PathBuf>,
    /// Name the target proves itself with when the initiator asks it to (mutual CHAP).
    #[arg(long, requires = "mutual_password_file", requires = "chap_user", value_name = "USER")]
    pub(crate) mutual_user: Option<String>,
    /// File whose first line is the password for --mutual-user.
    #[arg(long, requires = "mutual_user", value_name = "FILE")]
    pub(crate) mutual_password_file: Option<PathBuf>,
}

impl ChapArgs {
    /// The credentials these options name.
    pub(crate) fn chap(&self) -> anyhow::Result<Option<Chap>> {
        let (Some(user), Some(file)) = (&self.chap_user, &self.chap_password_file) else {
            return Ok(None);
        };
        let secret = read_secret(file)?;
        let mutual = match (&self.mutual_user, &self.mutual_password_file) {
            (Some(user), Some(file)) => Some((user.as_str(), read_secret(file)?)),
            _ => None,
        };
        let mutual = mutual.as_ref().map(|(user, secret)| (*user, secret.as_str()));
        let chap = Chap::new(user, &secret, mutual);
        chap.map(Some).map_err(|error| Usage::error(format!("{}: {error}", file.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::without_numbers;

    #[test]
    fn the_number_of_an_error_says_nothing_to_a_user() {
        let said = "a: No such file or directory (os error 2): b (os error 111)";
        assert_eq!(without_numbers(said), "a: No such file or directory: b");
        assert_eq!(without_numbers("nothing (of the kind)"), "nothing (of the kind)");
    }
}
