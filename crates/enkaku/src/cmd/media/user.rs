//! `enkaku media user`: accounts of the page of videos. A password is typed at a terminal or is in
//! a file, and never in a command line, which everybody on the machine can read.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use media::{Accounts, Role};
use zeroize::Zeroizing;

use super::{StateArgs, told};
use crate::cmd::{Usage, read_secret, say};

/// Adds, lists and removes those who may watch.
///
/// They are kept in accounts.json of the state folder, which a running server reads again within a
/// second or two. Passwords are kept as argon2id's hashes.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Adds an account; asks for its password.
    Add {
        /// Letters a-z, digits and . _ - @, up to 64.
        #[arg(value_name = "NAME")]
        name: String,
        /// May see who watches, give out links, and take storage away.
        #[arg(long)]
        owner: bool,
        #[command(flatten)]
        password: PasswordArgs,
        #[command(flatten)]
        state: StateArgs,
    },
    /// Removes an account, and logs it out everywhere.
    Remove {
        /// Its name.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        state: StateArgs,
    },
    /// Lists names and what each may do.
    List {
        #[command(flatten)]
        state: StateArgs,
    },
    /// Gives an account a new password, and logs it out everywhere.
    Passwd {
        /// Its name.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        password: PasswordArgs,
        #[command(flatten)]
        state: StateArgs,
    },
}

#[derive(clap::Args, Debug)]
struct PasswordArgs {
    /// File whose first line is the password [default: it is asked for at the terminal].
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Add { name, owner, password, state } => {
            let accounts = accounts(&state)?;
            let role = if owner { Role::Owner } else { Role::Viewer };
            accounts.add(&name, role, &password.read()?).map_err(told)?;
            say(format_args!("{} may watch, as {}", name.trim().to_lowercase(), role.word()))?;
        }
        Command::Remove { name, state } => {
            accounts(&state)?.remove(&name).map_err(told)?;
        }
        Command::List { state } => {
            for (name, role) in accounts(&state)?.list().map_err(told)? {
                say(format_args!("{name:<20} {}", role.word()))?;
            }
        }
        Command::Passwd { name, password, state } => {
            let accounts = accounts(&state)?;
            accounts.set_password(&name, &password.read()?).map_err(told)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn accounts(state: &StateArgs) -> anyhow::Result<Accounts> {
    Ok(Accounts::new(&state.folder()?))
}

impl PasswordArgs {
    fn read(&self) -> anyhow::Result<Zeroizing<String>> {
        if let Some(file) = &self.password_file {
            return read_secret(file);
        }
        if !std::io::stdin().is_terminal() {
            return Err(Usage::error("there is no terminal to ask at: use --password-file FILE"));
        }
        let ask = |what: &str| rpassword::prompt_password(what).context("asking for the password");
        let password = Zeroizing::new(ask("Password: ")?);
        let again = Zeroizing::new(ask("Again: ")?);
        if password != again {
            return Err(Usage::error("they are not the same: nothing has changed"));
        }
        Ok(password)
    }
}
