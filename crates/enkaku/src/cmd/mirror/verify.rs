//! `enkaku mirror verify`.

use std::process::ExitCode;

use daemon::mirror::control::Request;
use wanlab::units;

use super::{Which, WhichLeg};
use crate::cmd::say;

/// Compares a leg with the local device, block by block, while both are in use. Exit code 1 when
/// something differs.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    leg: WhichLeg,
    /// Write to the leg again what differs.
    #[arg(long)]
    heal: bool,
    /// Read no faster than this, such as 200mbit.
    #[arg(long, value_name = "RATE", value_parser = units::parse_rate)]
    rate: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let bytes_per_s = args.rate.map(|bits| (bits / 8).max(1));
    let request = Request::Verify { leg: args.leg.leg, bytes_per_s, heal: args.heal };
    let answer = args.which.have_done(&request).await?;
    let Some(found) = answer.verify else {
        anyhow::bail!("the mirror did not say what it found; is it of this version?");
    };
    match args.json {
        true => say(serde_json::to_string_pretty(&found)?)?,
        false => say(found.text())?,
    }
    Ok(ExitCode::from(u8::from(!found.is_good())))
}
