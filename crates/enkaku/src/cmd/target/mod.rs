//! `enkaku target`: the target as a daemon with a configuration file, and what operators ask of it.

mod access;
mod initiator;
mod listing;
mod lun;
mod portal;
mod sessions;
pub(crate) mod table;

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use daemon::admin::{Answer, Limit, Request, ask};
use daemon::config::{Config, ConfigError};
use daemon::{DaemonError, check};

use super::{say, without_numbers};

/// The configuration, unless told otherwise.
const CONFIG: &str = "/etc/enkaku/target.toml";

/// The admin socket, unless told otherwise.
pub(crate) const SOCKET: &str = "/run/enkaku/target.sock";

/// Runs the target daemon, or talks to one.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Serves what the configuration says, until SIGTERM; SIGHUP reloads it.
    Run(ConfigArgs),
    /// Checks a configuration and says what would be served. Exit code 1 when it cannot be used.
    Check(ConfigArgs),
    /// Has the daemon read its configuration again. Exit code 1 when it cannot be used; nothing has
    /// changed then.
    Reload(SocketArgs),
    /// Lists the sessions, or ends one.
    Sessions(sessions::SessionsArgs),
    /// Adds, resizes, removes and lists logical units while the daemon runs.
    Lun(lun::LunArgs),
    /// Allows, denies and lists initiators while the daemon runs.
    Initiator(initiator::InitiatorArgs),
    /// Adds, removes and lists portals while the daemon runs.
    Portal(portal::PortalArgs),
    /// Sets and lists how well the units of a pair can be reached at each of its daemons.
    Access(access::AccessArgs),
    /// Says how the daemon is. Exit code 1 when something it serves has failed.
    Status(StatusArgs),
}

#[derive(clap::Args, Debug)]
struct ConfigArgs {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
}

/// Where the daemon is.
#[derive(clap::Args, Debug)]
struct SocketArgs {
    /// The daemon's admin socket.
    #[arg(long, value_name = "PATH", default_value = SOCKET, env = "ENKAKU_TARGET_SOCKET")]
    socket: PathBuf,
}

#[derive(clap::Args, Debug)]
struct StatusArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Does it become the daemon, which sets up its own log?
    pub(crate) fn is_daemon(&self) -> bool {
        matches!(self.command, Command::Run(_))
    }
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Run(args) => serve(&args.config).await,
        Command::Check(args) => Ok(match check(&args.config) {
            Ok(config) => {
                summary(&config)?;
                ExitCode::SUCCESS
            }
            Err(ConfigError(problems)) => complain(problems),
        }),
        Command::Reload(args) => {
            let answer = talk(&args.socket, Request::Reload {}).await?;
            if !answer.ok {
                return Ok(complain(answer.errors));
            }
            let changes = answer.changes.unwrap_or_default();
            changes.iter().try_for_each(say)?;
            say(format_args!("reloaded, {} changes", changes.len()))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Sessions(args) => sessions::run(args).await,
        Command::Lun(args) => lun::run(args).await,
        Command::Initiator(args) => initiator::run(args).await,
        Command::Portal(args) => portal::run(args).await,
        Command::Access(args) => access::run(args).await,
        Command::Status(args) => status(args).await,
    }
}

async fn serve(config: &Path) -> anyhow::Result<ExitCode> {
    // If nobody reads stdout any more, the log says the same.
    let announce = |line: &str| drop(say(line));
    match daemon::run(config, announce).await {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(DaemonError::Config(ConfigError(problems))) => Ok(complain(problems)),
        Err(error) => Err(error.into()),
    }
}

/// One line for each thing that is wrong.
fn complain(problems: Vec<impl std::fmt::Display>) -> ExitCode {
    let mut err = std::io::stderr().lock();
    for problem in problems {
        // If stderr is gone too, the exit code says it all.
        let _ = writeln!(err, "enkaku: {}", without_numbers(&problem.to_string()));
    }
    ExitCode::FAILURE
}

async fn talk(socket: &Path, request: Request) -> anyhow::Result<Answer> {
    ask(socket, request).await.map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                "is one running there? `systemctl status enkaku-target` tells, `enkaku target run` starts \
                 one; --socket says where it is"
            }
            ErrorKind::PermissionDenied => "its socket is for its own user and group",
            _ => "is it a daemon of this version?",
        };
        anyhow::anyhow!("no answer from a daemon at {}: {error} ({hint})", socket.display())
    })
}

/// Has something changed, and says what was.
async fn change(socket: &Path, request: Request) -> anyhow::Result<ExitCode> {
    let answer = talk(socket, request).await?;
    if !answer.ok {
        return Ok(complain(answer.errors));
    }
    answer.changes.unwrap_or_default().iter().try_for_each(say)?;
    if let Some(ended) = answer.ended_sessions {
        say(format_args!("{ended} sessions ended"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What a configuration would serve.
fn summary(config: &Config) -> anyhow::Result<()> {
    for warning in &config.warnings {
        say(format_args!("warning: {warning}"))?;
    }
    for (_, portal) in &config.portals {
        let external = portal.external.as_ref();
        let external = external.map_or_else(String::new, |address| format!(", told as {address}"));
        say(format_args!("portal {} on {}{external}", portal.name, portal.listen))?;
    }
    for uplink in &config.uplinks {
        say(format_args!("uplink {} to {}", uplink.name, uplink.server))?;
    }
    if let Some(isns) = &config.isns {
        say(format_args!("registered at the iSNS server {}", isns.server))?;
    }
    for target in config.targets.values() {
        let named = target.access.initiators.len();
        let anyone = target.access.anyone.as_ref();
        let who = match (anyone.map(|rule| rule.chap.is_some()), named) {
            (None, named) => format!("{named} initiators"),
            (Some(false), _) => "anyone".to_owned(),
            (Some(true), _) => "anyone with the CHAP secret".to_owned(),
        };
        say(format_args!("target {} for {who}", target.name))?;
        for (number, lun) in &target.luns {
            let what = lun.backing.describe();
            let mode = if lun.read_only { ", read-only" } else { "" };
            say(format_args!("  LUN {number}: {what}{mode}"))?;
        }
    }
    Ok(())
}

/// A limit, what it allows, and what it holds back.
fn limit_line(limit: &Limit) -> String {
    let of = match (&limit.initiator, limit.lun) {
        (Some(initiator), _) => format!("of {initiator} with {}", limit.target),
        (None, lun) => format!("of {} LUN {}", limit.target, lun.unwrap_or_default()),
    };
    let rate = limit.max_bytes_per_s.map(|bytes| format!("{:.1} Mbit/s", bytes as f64 * 8e-6));
    let iops = limit.max_iops.map(|iops| format!("{iops} commands/s"));
    let allowed: Vec<String> = rate.into_iter().chain(iops).collect();
    format!(
        "limit {of}: {}; {} wait, {} of {} have waited, {:.1} s in all",
        allowed.join(", "),
        limit.waiting,
        limit.delayed,
        limit.commands,
        limit.waited_s
    )
}

async fn status(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let answer = talk(&args.socket.socket, Request::Status {}).await?;
    let Some(status) = answer.status.filter(|_| answer.ok) else {
        return Ok(complain(answer.errors));
    };
    if args.json {
        say(serde_json::to_string_pretty(&status)?)?;
    } else {
        say(format_args!(
            "{} {} since {} s (process {}, {})",
            status.version,
            status.state,
            status.uptime_s,
            status.pid,
            status.config.display()
        ))?;
        say(format_args!("portals: {}", status.portals.join(", ")))?;
        say(format_args!("targets: {}", status.targets.join(", ")))?;
        say(format_args!("{} sessions, {} bytes in use", status.sessions, status.memory_bytes))?;
        status.limits.iter().try_for_each(|limit| say(limit_line(limit)))?;
        if let Some(isns) = &status.isns {
            let how = if isns.registered { "registered" } else { "not registered" };
            let why = isns.problem.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            say(format_args!("iSNS: {how} at {} as {}{why}", isns.server, isns.entity))?;
        }
        for uplink in &status.uplinks {
            let how = match (&uplink.known_as, &uplink.problem) {
                (Some(name), _) => format!("connected as {name}"),
                (None, Some(why)) => format!("not connected: {why}"),
                (None, None) => "not connected yet".to_owned(),
            };
            say(format_args!("uplink {} to {}: {how}", uplink.name, uplink.server))?;
        }
        status.failures.iter().try_for_each(|what| say(format_args!("failed: {what}")))?;
    }
    Ok(ExitCode::from(u8::from(!status.failures.is_empty())))
}
