//! `enkaku conformance`: checks a target against RFC 7143, PDU by PDU.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use conformance::{CheckReport, Config, Outcome, Report, Selection, Writes};
use iscsi::initiator::Url;
use wanlab::units;

use super::advice::parse_url;
use super::remote::{URL_HELP, initiator_name};
use super::{Usage, read_secret, say};

/// Checks a target against RFC 7143: login, several connections in a session, data transfer, task
/// management, digests, every error recovery level.
///
/// Some checks reset the unit: do not run them beside work that matters. The exit code is 1 if a
/// check fails.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(help = URL_HELP, required_unless_present = "list", value_parser = parse_url)]
    url: Option<Url>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Write a JUnit report, too.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// List the checks and run none.
    #[arg(long)]
    list: bool,
    /// Run only checks with this name (* and ? match); may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Run no checks with this name (* and ? match); may be given several times.
    #[arg(long, value_name = "NAME")]
    skip: Vec<String>,
    /// The volume's content is of no value: what checks overwrite is not restored. Otherwise they
    /// save the last 128 KiB, write there only, and restore it after each check.
    #[arg(long, conflicts_with = "read_only")]
    writable: bool,
    /// Skip the checks that write.
    #[arg(long)]
    read_only: bool,
    /// Longest wait for each answer.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::parse_duration,
          allow_hyphen_values = true)]
    timeout: Duration,
    /// Name of this initiator.
    #[arg(
        long,
        value_name = "IQN",
        env = "ENKAKU_INITIATOR_NAME",
        default_value = "iqn.2026-11.io.enkaku:conformance"
    )]
    initiator_name: String,
    /// File whose first line is the CHAP password of the URL's user.
    #[arg(long, value_name = "FILE")]
    chap_password_file: Option<PathBuf>,
}

/// Shortest time for an answer that makes sense: a scheduler's turn on a busy machine.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let selection = Selection { only: args.only.clone(), skip: args.skip.clone() };
    let names: Vec<_> = conformance::all().map(|check| check.name).collect();
    if let Some(pattern) = selection.unmatched(&names) {
        return Err(Usage::error(format!("{pattern:?} is the name of no check (see --list)")));
    }
    let Some(url) = args.url.as_ref().filter(|_| !args.list) else {
        return list(&selection, args.json);
    };
    let config = config(&args, url)?;
    let quiet = args.json;
    let mut broken = None;
    let report = conformance::run(config, &selection, |check| {
        if !quiet && broken.is_none() {
            broken = show(check).err();
        }
    });
    let report = report.map_err(|why| anyhow::anyhow!("{url}: {why}"))?;
    if let Some(error) = broken {
        return Err(error);
    }
    finish(&args, &report)
}

fn config(args: &Args, url: &Url) -> anyhow::Result<Config> {
    if args.timeout < TIMEOUT_MIN {
        return Err(Usage::error(format!("--timeout: at least {TIMEOUT_MIN:?} is needed")));
    }
    let secret = args.chap_password_file.as_deref().map(read_secret).transpose()?;
    let mut url = url.clone();
    if let Some(secret) = secret {
        // The file is meant for this run; what the URL holds may be in a shell's history.
        url.password = Some(iscsi::initiator::Secret::new(secret.as_bytes()));
    }
    let credentials = url.credentials(None).map_err(|error| Usage::error(error.to_string()))?;
    let portal = &url.portal;
    let addresses: Vec<SocketAddr> = (portal.host.as_str(), portal.port)
        .to_socket_addrs()
        .with_context(|| format!("{portal}"))?
        .collect();
    let writes = match (args.read_only, args.writable) {
        (true, _) => Writes::Forbidden,
        (_, true) => Writes::Free,
        _ => Writes::Restoring,
    };
    Ok(Config {
        addresses,
        target: url.target.clone(),
        lun: url.wire_lun(),
        initiator_name: initiator_name(&args.initiator_name)?,
        credentials,
        timeout: args.timeout,
        writes,
    })
}

fn list(selection: &Selection, json: bool) -> anyhow::Result<ExitCode> {
    let checks: Vec<_> = conformance::all().filter(|c| selection.includes(c.name)).collect();
    if json {
        let one = |check: &&conformance::Check| serde_json::json!({"name": check.name, "rfc": check.rfc, "writes": check.writes});
        say(serde_json::Value::Array(checks.iter().map(one).collect()))?;
    } else {
        for check in checks {
            let writes = if check.writes { "writes" } else { "" };
            say(format_args!("{:<44} {:<12} {writes}", check.name, check.rfc)
                .to_string()
                .trim_end())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(check: &CheckReport) -> anyhow::Result<()> {
    let (name, rfc, detail) = (check.name, check.rfc, &check.detail);
    say(format_args!("{:<8} {name:<44} {rfc:<12} {detail}", check.result.as_str()))
}

fn finish(args: &Args, report: &Report) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.junit {
        std::fs::write(file, report.junit())
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if args.json {
        say(serde_json::to_string(report)?)?;
    } else {
        let Report { passed, failed, skipped, .. } = report;
        say(format_args!("{passed} passed, {failed} failed, {skipped} skipped"))?;
    }
    let bad = report.checks.iter().any(|check| check.result == Outcome::Failed);
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
