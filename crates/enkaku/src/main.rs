//! The one binary: one subcommand per file in `cmd`, no logic here.

mod cmd;
mod overview;

use std::process::ExitCode;

use clap::{FromArgMatches, Parser, Subcommand};

/// Remote block storage at line rate over long-fat networks.
#[derive(Parser)]
#[command(
    name = "enkaku",
    version,
    long_version = overview::LONG_VERSION,
    propagate_version = true,
    max_term_width = 100,
    arg_required_else_help = true
)]
struct Cli {
    /// More log lines on stderr (-v info, -vv debug, -vvv trace); ENKAKU_LOG takes a filter.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(cmd::serve::Args),
    Target(cmd::target::Args),
    Discover(cmd::discover::Args),
    Csi(cmd::csi::Args),
    Isns(cmd::isns::Args),
    Info(cmd::info::Args),
    Copy(cmd::copy::Args),
    Ls(cmd::ls::Args),
    Cat(cmd::cat::Args),
    Media(cmd::media::Args),
    Bench(cmd::bench::Args),
    Attach(cmd::attach::Args),
    Detach(cmd::detach::Args),
    Mirror(cmd::mirror::Args),
    Conformance(cmd::conformance::Args),
    Plan(cmd::plan::Args),
    Tune(cmd::tune::Args),
    Monitor(cmd::monitor::Args),
    Diagnose(cmd::diagnose::Args),
    Doctor(cmd::doctor::Args),
    Nic(cmd::nic::Args),
    Secret(cmd::secret::Args),
    Wan(cmd::wan::WanArgs),
    Completions(cmd::completions::Args),
    #[command(hide = true)]
    Man(cmd::man::Args),
}

/// The command line, or what is wrong with it.
fn parse() -> Result<Cli, clap::Error> {
    let mut command = overview::command();
    let words = overview::help_of_help(&command, std::env::args_os());
    let matches = command.try_get_matches_from_mut(words)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => return cmd::report_usage(&error),
    };
    // The daemon's log is set up by its configuration.
    if !matches!(&cli.command, Command::Target(args) if args.is_daemon()) {
        // A server's log says who comes and goes, as the daemon's does.
        let least = u8::from(matches!(&cli.command, Command::Csi(_) | Command::Isns(_)));
        cmd::init_logging(cli.verbose.max(least));
    }
    let result = match cli.command {
        Command::Serve(args) => cmd::run_async(cmd::serve::run(args)),
        Command::Target(args) => cmd::run_async(cmd::target::run(args)),
        Command::Discover(args) => cmd::run_async(cmd::discover::run(args)),
        Command::Csi(args) => cmd::run_async(cmd::csi::run(args)),
        Command::Isns(args) => cmd::run_async(cmd::isns::run(args)),
        Command::Info(args) => cmd::run_async(cmd::info::run(args)),
        Command::Copy(args) => cmd::run_async(cmd::copy::run(args)),
        Command::Ls(args) => cmd::run_async(cmd::ls::run(args)),
        Command::Cat(args) => cmd::run_async(cmd::cat::run(args)),
        Command::Media(args) => cmd::media::run(args),
        Command::Bench(args) => cmd::run_async(cmd::bench::run(args)),
        Command::Attach(args) => cmd::run_async(cmd::attach::run(args)),
        Command::Detach(args) => cmd::run_async(cmd::detach::run(args)),
        Command::Mirror(args) => cmd::run_async(cmd::mirror::run(args)),
        Command::Conformance(args) => cmd::conformance::run(args),
        Command::Plan(args) => cmd::plan::run(&args),
        Command::Tune(args) => cmd::tune::run(args),
        Command::Monitor(args) => cmd::monitor::run(args),
        Command::Diagnose(args) => cmd::diagnose::run(&args),
        Command::Doctor(args) => cmd::doctor::run(&args),
        Command::Nic(args) => cmd::nic::run(&args),
        Command::Secret(args) => cmd::secret::run(&args),
        Command::Wan(args) => cmd::wan::run(args),
        Command::Completions(args) => cmd::completions::run(&args),
        Command::Man(args) => cmd::man::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => cmd::report(&error),
    }
}
