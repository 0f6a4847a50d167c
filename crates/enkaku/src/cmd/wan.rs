//! `enkaku wan`: commands across an emulated long-fat link on this machine.

pub(crate) mod line;
mod live;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use wanlab::units::parse_duration;
use wanlab::{FarCommand, Ready, RunError, RunReport, RunSpec, Topology};

use self::line::{LineArgs, RecordArgs};
use crate::cmd::Usage;

/// A long-fat link on this machine
#[derive(Debug, Args)]
pub(crate) struct WanArgs {
    #[command(subcommand)]
    command: WanCommand,
}

#[derive(Debug, Subcommand)]
enum WanCommand {
    /// Run one command at each end of an emulated link
    ///
    /// Both commands find the addresses of the ends in ENKAKU_NEAR and ENKAKU_FAR (IPv4) and in
    /// ENKAKU_NEAR6 and ENKAKU_FAR6. The far command starts first and is ended when the near one
    /// ends (SIGTERM, after 3 s SIGKILL); the exit code is the near command's. Needs root, or a
    /// kernel that lets users create user namespaces.
    #[command(
        after_help = "Example: enkaku wan run --rate 1gbit --rtt 20ms --far 'iperf3 -s --forceflush' \
                            --far-ready 'Server listening' -- sh -c 'iperf3 -c $ENKAKU_FAR'"
    )]
    Run(Box<RunArgs>),
    /// Keep a lab up in the background, under a name
    ///
    /// Commands run in it with `wan exec`. It ends with `wan down`, and all that runs in it ends
    /// with it, also when its process is killed.
    #[command(after_help = "Example: enkaku wan up lab --rate 1gbit:100mbit --rtt 20ms && \
                            enkaku wan exec lab near -- sh -c 'ping -c 3 $ENKAKU_FAR' && \
                            enkaku wan set lab --loss 1e-3 && enkaku wan down lab")]
    Up(Box<live::UpArgs>),
    /// Change a lab while traffic flows
    Set(Box<live::SetArgs>),
    /// Say what a lab is and what it has carried and dropped
    Show(live::ShowArgs),
    /// Run a command in a lab
    Exec(live::ExecArgs),
    /// End a lab and all that runs in it
    Down(live::DownArgs),
}

#[derive(Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    line: LineArgs,
    #[command(flatten)]
    record: RecordArgs,
    /// Shell command line for the far end
    #[arg(long, value_name = "COMMAND")]
    far: Option<OsString>,
    /// Start the near command when the far one prints a line that contains this
    #[arg(long, value_name = "TEXT", requires = "far")]
    far_ready: Option<String>,
    /// How long to wait for that line
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s",
          requires = "far_ready")]
    far_ready_timeout: Duration,
    /// Print what the link did as JSON to standard error at the end
    #[arg(long)]
    json: bool,
    /// Write what the link did as JSON to this file at the end
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The near command and its arguments
    #[arg(last = true, required = true, value_name = "NEAR-COMMAND")]
    near: Vec<OsString>,
}

/// Runs the subcommand; call it before the process has a second thread.
///
/// # Errors
/// When the lab cannot be built, a command cannot be run, or the report cannot be written.
pub(crate) fn run(args: WanArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        WanCommand::Run(args) => run_commands(*args),
        WanCommand::Up(args) => live::up(*args),
        WanCommand::Set(args) => live::set(*args),
        WanCommand::Show(args) => live::show(args),
        WanCommand::Exec(args) => live::exec(&args),
        WanCommand::Down(args) => live::down(&args),
    }
}

fn run_commands(args: RunArgs) -> anyhow::Result<ExitCode> {
    let (json, report_path) = (args.json, args.report.clone());
    let spec = spec(args)?;
    // Opened first: a run may take hours, and its numbers must not be lost to a wrong path.
    let report_file = match &report_path {
        Some(path) => {
            Some(File::create(path).with_context(|| format!("report {}", path.display()))?)
        }
        None => None,
    };
    let report = wanlab::run(&spec).map_err(|error| match error {
        RunError::Lab(error) if error.is_usage() => {
            Usage::error(format!("{:#}", anyhow::Error::new(error)))
        }
        error => error.into(),
    })?;
    if json {
        write_report(&report, io::stderr().lock())?;
    }
    if let Some(file) = report_file {
        write_report(&report, BufWriter::new(file)).context("writing the report")?;
    }
    Ok(ExitCode::from(report.exit_code))
}

fn spec(args: RunArgs) -> anyhow::Result<RunSpec> {
    let lab = args.line.config()?;
    let profile = args.record.profile(&lab, Topology::Pair)?;
    let capture = args.record.capture();
    let timeout = args.far_ready_timeout;
    let ready = args.far_ready.map(|text| Ready { text, timeout });
    let far = args.far.map(|shell| FarCommand { shell, ready });
    Ok(RunSpec { lab, near: args.near, far, profile, capture })
}

fn write_report(report: &RunReport, mut to: impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut to, report)?;
    writeln!(to)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use wanlab::{Queue, TcpBuffer};

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        wan: WanArgs,
    }

    fn parse(line: &str) -> Result<anyhow::Result<RunSpec>, clap::Error> {
        let cli = Cli::try_parse_from(["wan", "run"].into_iter().chain(line.split(' ')))?;
        let WanCommand::Run(args) = cli.wan.command else { panic!("not a run: {line}") };
        Ok(spec(*args))
    }

    #[test]
    fn a_whole_command_line() {
        let spec = parse(
            "--rate 2.5gbit --rtt 20ms --loss 1e-3 --queue 300 --seed 7 --mtu 9000 --wmem 64M \
             --far cat --far-ready listening --far-ready-timeout 2s -- echo -n hi",
        )
        .unwrap()
        .unwrap();
        assert_eq!(spec.lab.near_to_far.rate_bits_per_s, 2_500_000_000);
        assert_eq!(spec.lab.rtt(), Duration::from_millis(20));
        assert_eq!(spec.lab.far_to_near.queue, Queue::Packets(300));
        assert_eq!(spec.lab.tcp_wmem.max, 64 << 20);
        assert_eq!(spec.lab.tcp_rmem, TcpBuffer::RMEM_DEFAULT);
        assert_eq!(spec.near, ["echo", "-n", "hi"]);
        let ready = spec.far.unwrap().ready.unwrap();
        assert_eq!((ready.text.as_str(), ready.timeout), ("listening", Duration::from_secs(2)));
    }

    #[test]
    fn wrong_values_are_named() {
        let reject = |line: &str| {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            error.to_string()
        };
        assert!(reject("--rate 1gbit --rtt -20ms -- true").contains("is negative"));
        assert!(reject("--rate 1gbit --rtt 20 -- true").contains("has no unit"));
        assert!(reject("--rate 0gbit --rtt 0 -- true").contains("is not above zero"));
        assert!(reject("--rate 1gbit --rtt 0 --loss 1.5 -- true").contains("is above 1"));
        assert!(reject("--rate 1gbit --rtt 0 --queue 0 -- true").contains("1 packet or more"));
        assert!(reject("--rate 1gbit --rtt 0 --mtu 500 -- true").contains("500"));
        assert!(reject("--rate 1gbit --rtt 0 --wmem 1M 2M -- true").contains("2M"));
        assert!(reject("--rate 1gbit --rtt 0").contains("NEAR-COMMAND"));
        assert!(reject("--rate 1gbit --rtt 0 --far-ready x -- true").contains("--far"));
    }
}
