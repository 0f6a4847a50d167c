//! `enkaku target initiator`: who may log in, while the daemon runs.

use std::process::ExitCode;

use daemon::admin::{InitiatorAllow, InitiatorDeny, InitiatorView, Request};

use super::listing::{ListArgs, list};
use super::table::table;
use super::{SocketArgs, change};

#[derive(clap::Args, Debug)]
pub(super) struct InitiatorArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Lets an initiator log in to a target; given again, how it may is replaced.
    Allow(AllowArgs),
    /// Takes that back, and ends its sessions. Only for those that `initiator allow` allowed.
    Deny(DenyArgs),
    /// Lists who may use which target.
    List(ListArgs),
}

#[derive(clap::Args, Debug)]
struct AllowArgs {
    /// Its iSCSI name.
    #[arg(value_name = "IQN")]
    initiator: String,
    /// The target; may be left out where there is one.
    #[arg(long, value_name = "IQN")]
    target: Option<String>,
    /// It may only read.
    #[arg(long)]
    read_only: bool,
    /// What it has to prove: the name of a [chap.NAME] of the configuration, instead of the
    /// target's.
    #[arg(long, value_name = "NAME")]
    chap: Option<String>,
    #[command(flatten)]
    socket: SocketArgs,
}

#[derive(clap::Args, Debug)]
struct DenyArgs {
    /// Its iSCSI name.
    #[arg(value_name = "IQN")]
    initiator: String,
    /// The target; all that it was allowed to use unless given.
    #[arg(long, value_name = "IQN")]
    target: Option<String>,
    #[command(flatten)]
    socket: SocketArgs,
}

pub(super) async fn run(args: InitiatorArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Allow(AllowArgs { initiator, target, read_only, chap, socket }) => {
            let asked = InitiatorAllow { initiator, target, read_only, chap };
            change(&socket.socket, Request::InitiatorAllow(asked)).await
        }
        Command::Deny(DenyArgs { initiator, target, socket }) => {
            let asked = InitiatorDeny { initiator, target };
            change(&socket.socket, Request::InitiatorDeny(asked)).await
        }
        Command::List(args) => {
            list(args, Request::InitiatorList {}, |answer| answer.initiators.take(), lines).await
        }
    }
}

fn lines(initiators: &[InitiatorView]) -> String {
    let headings = ["INITIATOR", "TARGET", "MODE", "CHAP", "SESSIONS", "SAID IN"];
    let row = |one: &InitiatorView| {
        let mode = match one.read_only_luns.as_deref() {
            None => "read-only".to_owned(),
            Some([]) => "read-write".to_owned(),
            Some(luns) => {
                let luns: Vec<String> = luns.iter().map(ToString::to_string).collect();
                format!("read-only: {}", luns.join(","))
            }
        };
        [
            one.initiator.clone().unwrap_or_else(|| "(anyone)".to_owned()),
            one.target.clone(),
            mode,
            if one.chap { "yes" } else { "no" }.to_owned(),
            one.sessions.to_string(),
            format!("{}:{}", one.file.display(), one.line),
        ]
    };
    table(headings, initiators.iter().map(row).collect())
}
