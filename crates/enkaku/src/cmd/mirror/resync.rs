//! `enkaku mirror resync`.

use std::process::ExitCode;

use daemon::mirror::config::{parse_rate, rate_words};
use daemon::mirror::control::Request;

use super::{Which, WhichLeg};
use crate::cmd::say;

/// Copies to a leg what differs or may differ, now rather than at the next attempt; or says how
/// fast copies may go.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    leg: WhichLeg,
    /// Copy all of it, whatever is known to be the same.
    #[arg(long)]
    whole: bool,
    /// Copies may go so fast from now on, until the mirror is started anew: 200mbit, 80% (of what
    /// copies have been seen to carry at most lately), or max. Without --leg or --whole nothing
    /// else is done.
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut begins = true;
    if let Some(rate) = args.rate {
        let words = rate_words(parse_rate(&rate).map_err(crate::cmd::Usage::error)?);
        args.which.have_done(&Request::Rate { rate }).await?;
        begins = args.leg.leg.is_some() || args.whole;
        say(format_args!("copies may go at {words} until the mirror is started anew"))?;
    }
    if begins {
        args.which.have_done(&Request::Resync { leg: args.leg.leg, whole: args.whole }).await?;
        say("begun; `enkaku mirror status` tells how far it is")?;
    }
    Ok(ExitCode::SUCCESS)
}
