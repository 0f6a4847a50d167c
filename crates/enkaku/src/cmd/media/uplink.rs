//! `enkaku media uplink`: storage that calls the server of a page, because nobody can call it: the
//! keys that it is known by, and the server's own.

use std::path::PathBuf;
use std::process::ExitCode;

use media::{UplinkHomes, uplink_key};
use uplink::Pin;

use super::{StateArgs, told};
use crate::cmd::say;

/// Adds, lists and removes storage that calls the server, such as a home behind NAT.
///
/// Each is known by the pin of its key (docs/uplink.md), which is kept in uplinks.json of the state
/// folder. A running server reads it again within a second or two.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Lets a host call, by its key; homes of the catalogue are behind it by `uplink = "NAME"`.
    Add {
        /// Letters a-z, digits and -, up to 63.
        #[arg(value_name = "NAME")]
        name: String,
        /// SHA-256 of its public key: 64 hexadecimal digits.
        #[arg(value_name = "PIN")]
        pin: Pin,
        #[command(flatten)]
        state: StateArgs,
    },
    /// Lets it call no more, and ends what it has called.
    Remove {
        /// Its name.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        state: StateArgs,
    },
    /// Lists names and pins.
    List {
        #[command(flatten)]
        state: StateArgs,
    },
    /// Prints the server's own pin, which hosts that call have to know; the key is made at first.
    Key {
        #[command(flatten)]
        state: StateArgs,
    },
    /// Prints the pin of a host that calls, where its target daemon is; the key is made at first.
    HostKey {
        /// The key in PEM, which `key_file` in `[[uplink]]` of its configuration names.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Runs the command.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Add { name, pin, state } => {
            homes(&state)?.add(&name, pin).map_err(told)?;
            say(format_args!("{name} may call"))?;
        }
        Command::Remove { name, state } => homes(&state)?.remove(&name).map_err(told)?,
        Command::List { state } => {
            for (name, pin) in homes(&state)?.list()? {
                say(format_args!("{name:<20} {pin}"))?;
            }
        }
        Command::Key { state } => say(homes(&state)?.identity()?.pin())?,
        Command::HostKey { file } => say(uplink_key(&file)?.pin())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn homes(state: &StateArgs) -> anyhow::Result<UplinkHomes> {
    Ok(UplinkHomes::new(&state.folder()?))
}
