//! `enkaku discover`: which targets a portal has (SendTargets).

use std::process::ExitCode;

use iscsi::initiator::{Config, Portal};
use serde::Serialize;

use super::advice::parse_portal;
use super::remote::initiator_name;
use super::say;

/// Lists the targets that a portal offers and where they are reached.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Portal to ask; the port is 3260 unless given.
    #[arg(value_name = "ADDR[:PORT]", value_parser = parse_portal)]
    portal: Portal,
    /// Name of this initiator [default: made of the host's name].
    #[arg(long, value_name = "IQN", env = "ENKAKU_INITIATOR_NAME")]
    initiator_name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Found {
    target: String,
    portals: Vec<String>,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = Config::default();
    if let Some(name) = &args.initiator_name {
        config.initiator_name = initiator_name(name)?;
    }
    let records = iscsi::initiator::discover(&args.portal, &config).await?;
    let found: Vec<Found> = records
        .into_iter()
        .map(|record| Found {
            target: record.name,
            portals: record.portals.iter().map(ToString::to_string).collect(),
        })
        .collect();
    if args.json {
        say(serde_json::to_string(&found)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for Found { target, portals } in found {
        say(format_args!("{target}\t{}", portals.join(" ")))?;
    }
    Ok(ExitCode::SUCCESS)
}
