//! `enkaku target lun`: logical units that come, grow and go while the daemon runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use backends::Location;
use daemon::admin::{LunAdd, LunRemove, LunResize, LunSnapshot, LunView, Request};
use wanlab::units;

use super::listing::{ListArgs, list};
use super::table::{bytes, or_dash, table};
use super::{SocketArgs, change};
use crate::cmd::Usage;

#[derive(clap::Args, Debug)]
pub(super) struct LunArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Serves one more. It is written to target.d beside the configuration, so that it is there
    /// after a restart.
    Add(AddArgs),
    /// Gives the file behind one another size; initiators are told. Only for those that `lun add`
    /// added.
    Resize(ResizeArgs),
    /// Serves one no more. What is behind it is not deleted. Only for those that `lun add` added.
    Remove(RemoveArgs),
    /// Keeps what the file behind one holds now in another file, which shares its blocks: at once,
    /// whatever its size, on a file system with reflinks (XFS, Btrfs).
    Snapshot(SnapshotArgs),
    /// Lists them all, with the sessions that use them.
    List(ListArgs),
}

#[derive(clap::Args, Debug)]
struct AddArgs {
    /// What `lun resize` and `lun remove` will know it by.
    name: String,
    /// What is behind it: a file, a block device, mem:SIZE, or a volume's URL.
    #[arg(long, value_name = "URL|FILE")]
    path: String,
    /// Make a sparse file of this size. One that is there is taken if it has the size, and refused
    /// otherwise.
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    create: Option<u64>,
    /// The target; may be left out where there is one.
    #[arg(long, value_name = "IQN")]
    target: Option<String>,
    /// Make that target, which is not there yet. It admits nobody until `initiator allow`, and goes
    /// with the unit.
    #[arg(long, requires = "target")]
    new_target: bool,
    /// Its number; the lowest that is free unless given.
    #[arg(long, value_name = "N")]
    lun: Option<u16>,
    /// No initiator may write.
    #[arg(long)]
    read_only: bool,
    /// Logical block size in bytes: 512 or 4096.
    #[arg(long, value_name = "BYTES")]
    block_size: Option<u32>,
    /// Bypass the page cache.
    #[arg(long)]
    direct: bool,
    /// Serial number instead of the one that follows from target and number.
    #[arg(long, value_name = "TEXT")]
    serial: Option<String>,
    /// Nobody reaches the volume behind the URL but by this daemon: reservations are offered.
    #[arg(long)]
    exclusive: bool,
    /// How fast all initiators together may use it, in bits a second: 400mbit.
    #[arg(long, value_name = "RATE")]
    max_rate: Option<String>,
    /// How many commands a second they may send.
    #[arg(long, value_name = "N")]
    max_iops: Option<u64>,
    #[command(flatten)]
    socket: SocketArgs,
}

#[derive(clap::Args, Debug)]
struct ResizeArgs {
    /// Its name, or TARGET/LUN.
    name: String,
    /// The new size.
    #[arg(value_parser = units::parse_size)]
    size: u64,
    /// Allow a smaller size. What is behind the new end is lost; no session may have it in use.
    #[arg(long)]
    shrink: bool,
    #[command(flatten)]
    socket: SocketArgs,
}

#[derive(clap::Args, Debug)]
struct RemoveArgs {
    /// Its name, or TARGET/LUN.
    name: String,
    /// Although sessions have read or written it: their next commands find no such unit.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    socket: SocketArgs,
}

#[derive(clap::Args, Debug)]
struct SnapshotArgs {
    /// Its name, or TARGET/LUN.
    name: String,
    /// The other file, which is not there yet.
    file: PathBuf,
    #[command(flatten)]
    socket: SocketArgs,
}

pub(super) async fn run(args: LunArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Add(args) => {
            let socket = args.socket.socket.clone();
            change(&socket, Request::LunAdd(request(args)?)).await
        }
        Command::Resize(ResizeArgs { name, size, shrink, socket }) => {
            let request = Request::LunResize(LunResize { name, size, shrink });
            change(&socket.socket, request).await
        }
        Command::Remove(RemoveArgs { name, force, socket }) => {
            change(&socket.socket, Request::LunRemove(LunRemove { name, force })).await
        }
        Command::Snapshot(SnapshotArgs { name, file, socket }) => {
            let request = LunSnapshot { name, file: absolute("FILE", &file)? };
            change(&socket.socket, Request::LunSnapshot(request)).await
        }
        Command::List(args) => {
            list(args, Request::LunList {}, |answer| answer.luns.take(), lines).await
        }
    }
}

/// The daemon has another working directory than whoever asks.
fn absolute(what: &str, path: &Path) -> anyhow::Result<String> {
    let absolute = std::path::absolute(path);
    let absolute = absolute.map_err(|error| Usage::error(format!("{what}: {error}")))?;
    let text = absolute.into_os_string().into_string();
    text.map_err(|path| Usage::error(format!("{what}: {path:?} is not UTF-8")))
}

fn request(args: AddArgs) -> anyhow::Result<LunAdd> {
    let is_file = !Location::is_meant(&args.path) && !args.path.starts_with("mem:");
    let path = match is_file {
        true => absolute("--path", Path::new(&args.path))?,
        false => args.path,
    };
    Ok(LunAdd {
        name: args.name,
        path,
        create: args.create,
        target: args.target,
        new_target: args.new_target,
        lun: args.lun,
        read_only: args.read_only,
        block_size: args.block_size,
        direct: args.direct,
        serial: args.serial,
        exclusive: args.exclusive,
        max_rate: args.max_rate,
        max_iops: args.max_iops,
    })
}

fn lines(luns: &[LunView]) -> String {
    let headings = ["NAME", "TARGET", "LUN", "SIZE", "BACKING", "MODE", "SESSIONS"];
    let row = |lun: &LunView| {
        let mode = match (lun.size_bytes, lun.read_only) {
            (None, _) => "not served",
            (Some(_), true) => "read-only",
            (Some(_), false) => "read-write",
        };
        [
            or_dash(lun.name.clone()),
            lun.target.clone(),
            lun.lun.to_string(),
            or_dash(lun.size_bytes.map(bytes)),
            lun.backing.clone(),
            mode.to_owned(),
            lun.sessions.to_string(),
        ]
    };
    table(headings, luns.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_a_line() {
        let served = LunView {
            name: Some("vm1".to_owned()),
            target: "iqn.a:b".to_owned(),
            lun: 3,
            size_bytes: Some(20 << 30),
            backing: "/srv/vm1.img".to_owned(),
            read_only: false,
            sessions: 2,
            file: "/etc/enkaku/target.d/lun-vm1.toml".into(),
            line: 6,
        };
        let backing = "nbd://h/x".to_owned();
        let unserved = LunView { name: None, lun: 10, size_bytes: None, backing, ..served.clone() };
        let text = lines(&[served, unserved]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "NAME  TARGET   LUN  SIZE   BACKING       MODE        SESSIONS",
                "vm1   iqn.a:b  3    20.0G  /srv/vm1.img  read-write  2",
                "-     iqn.a:b  10   -      nbd://h/x     not served  2",
            ]
        );
    }
}
