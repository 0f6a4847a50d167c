//! `enkaku discover`: which targets a portal has (SendTargets).

use std::process::ExitCode;

use serde::Serialize;

/// Lists the targets that a portal offers and where they are reached.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Portal to ask; the port is 3260 unless given.
    #[arg(value_name = "ADDR[:PORT]")]
    portal: String,
    /// Name of this initiator.
    #[arg(long, value_name = "IQN", env = "ENKAKU_INITIATOR_NAME",
          default_value = "iqn.2026-11.io.enkaku:initiator")]
    initiator_name: String,
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
    let config = iscsi::initiator::Config::new(&args.initiator_name)
        .map_err(|error| super::Usage::error(format!("--initiator-name: {error}")))?;
    let portal = iscsi::initiator::parse_portal(&args.portal)
        .map_err(|error| super::Usage::error(format!("{}: {error}", args.portal)))?;
    let records = iscsi::initiator::discover(&portal, &config).await?;
    let found: Vec<Found> = records
        .into_iter()
        .map(|record| Found {
            target: record.name,
            portals: record.portals.iter().map(ToString::to_string).collect(),
        })
        .collect();
    if args.json {
        println!("{}", serde_json::to_string(&found)?);
        return Ok(ExitCode::SUCCESS);
    }
    for Found { target, portals } in found {
        println!("{target}\t{}", portals.join(" "));
    }
    Ok(ExitCode::SUCCESS)
}
