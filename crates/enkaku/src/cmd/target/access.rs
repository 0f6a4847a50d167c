//! `enkaku target access`: how well the units of a pair can be reached at each of its daemons.

use std::process::ExitCode;

use daemon::admin::{AccessSet, AccessView, Request};

use super::listing::{ListArgs, list};
use super::table::table;
use super::{SocketArgs, change};

#[derive(clap::Args, Debug)]
pub(super) struct AccessArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Says how well the units can be reached at a group, this daemon's or another's. All daemons
    /// of the pair tell it to their initiators.
    Set(SetArgs),
    /// Lists the groups.
    List(ListArgs),
}

#[derive(clap::Args, Debug)]
struct SetArgs {
    /// The group.
    group: u16,
    /// How well its units can be reached there.
    #[arg(value_parser = ["active", "non-optimized", "standby", "unavailable"])]
    state: String,
    /// The target, where more than one is a pair's.
    #[arg(long, value_name = "IQN")]
    target: Option<String>,
    #[command(flatten)]
    socket: SocketArgs,
}

pub(super) async fn run(args: AccessArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Set(SetArgs { group, state, target, socket }) => {
            let asked = AccessSet { group, state, target };
            change(&socket.socket, Request::AccessSet(asked)).await
        }
        Command::List(args) => {
            list(args, Request::AccessList {}, |answer| answer.access.take(), lines).await
        }
    }
}

fn lines(groups: &[AccessView]) -> String {
    let headings = ["TARGET", "GROUP", "STATE", "WHOSE"];
    let row = |one: &AccessView| {
        let whose = if one.own { "this daemon's" } else { "another's" };
        [one.target.clone(), one.group.to_string(), one.state.clone(), whose.to_owned()]
    };
    table(headings, groups.iter().map(row).collect())
}
