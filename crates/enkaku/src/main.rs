//! The one binary: one subcommand per file in `cmd`, no logic here.

mod cmd;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Remote block storage at line rate over long-fat networks.
#[derive(Parser)]
#[command(name = "enkaku", version, propagate_version = true, max_term_width = 100)]
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
    //X     Discover(cmd::discover::Args),
    //X     Info(cmd::info::Args),
    //X     Copy(cmd::copy::Args),
    //X     Bench(cmd::bench::Args),
    //X     Attach(cmd::attach::Args),
    Wan(cmd::wan::WanArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    cmd::init_logging(cli.verbose);
    let result = match cli.command {
        Command::Serve(args) => cmd::run_async(cmd::serve::run(args)),
        //X         Command::Discover(args) => cmd::run_async(cmd::discover::run(args)),
        //X         Command::Info(args) => cmd::run_async(cmd::info::run(args)),
        //X         Command::Copy(args) => cmd::run_async(cmd::copy::run(args)),
        //X         Command::Bench(args) => cmd::run_async(cmd::bench::run(args)),
        //X         Command::Attach(args) => cmd::run_async(cmd::attach::run(args)),
        Command::Wan(args) => cmd::wan::run(args),
    };
    match result {
        Ok(code) => code,
        Err(error) => cmd::report(&error),
    }
}
