//! `enkaku target portal`: where the daemon listens, while it runs.

use std::process::ExitCode;

use daemon::admin::{PortalAdd, PortalRemove, PortalView, Request};

use super::listing::{ListArgs, list};
use super::table::{or_dash, table};
use super::{SocketArgs, change};

#[derive(clap::Args, Debug)]
pub(super) struct PortalArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Listens on one more address. Targets that name their portals are not reached through it.
    Add(AddArgs),
    /// Accepts no more there; sessions that came through it go on. Only for those that `portal add`
    /// added.
    Remove(RemoveArgs),
    /// Lists them.
    List(ListArgs),
}

#[derive(clap::Args, Debug)]
struct AddArgs {
    /// What targets and logs call it.
    name: String,
    /// Where to listen: 192.0.2.1:3260, say; IPv6 addresses stand in brackets.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: String,
    /// What initiators are told instead, behind a NAT.
    #[arg(long, value_name = "HOST[:PORT]")]
    external: Option<String>,
    /// How what is sent through it is marked: cs0-7, af11-43, ef, va, le, or 0-63.
    #[arg(long, value_name = "MARK")]
    dscp: Option<String>,
    #[command(flatten)]
    socket: SocketArgs,
}

#[derive(clap::Args, Debug)]
struct RemoveArgs {
    /// What it is called.
    name: String,
    #[command(flatten)]
    socket: SocketArgs,
}

pub(super) async fn run(args: PortalArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Add(AddArgs { name, listen, external, dscp, socket }) => {
            let asked = PortalAdd { name, listen, external, dscp };
            change(&socket.socket, Request::PortalAdd(asked)).await
        }
        Command::Remove(RemoveArgs { name, socket }) => {
            change(&socket.socket, Request::PortalRemove(PortalRemove { name })).await
        }
        Command::List(args) => {
            list(args, Request::PortalList {}, |answer| answer.portals.take(), lines).await
        }
    }
}

fn lines(portals: &[PortalView]) -> String {
    let headings = ["NAME", "ADDRESS", "TOLD AS", "SESSIONS", "SAID IN"];
    let row = |portal: &PortalView| {
        [
            portal.name.clone(),
            portal.address.clone(),
            or_dash(portal.external.clone()),
            portal.sessions.to_string(),
            format!("{}:{}", portal.file.display(), portal.line),
        ]
    };
    table(headings, portals.iter().map(row).collect())
}
