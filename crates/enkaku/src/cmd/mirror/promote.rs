//! `enkaku mirror promote`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use block::mirror::{PromoteOptions, TokioHost, promote};
use daemon::mirror::config::LegConfig;
use daemon::mirror::parts::source;
use daemon::mirror::report;

use super::parse_way;
use crate::cmd::remote::URL_HELP;
use crate::cmd::{Usage, say};

/// Takes over, at the other site, with the near one or without: the image at a leg becomes one of
/// its own, which is attached, copied or mounted as any other.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[arg(value_name = "URL|PATH", help = format!("{URL_HELP}, or a path"))]
    place: String,
    /// Also an image that is not of one moment, or one whose mirror lives, where no reservation can
    /// keep that from writing.
    #[arg(long)]
    force: bool,
    /// Give the leg's reservation up once it is taken over: for users of it that know nothing of
    /// reservations. The old mirror finds out by its own look at the leg only.
    #[arg(long)]
    release: bool,
    /// File whose first line is the CHAP password of the URL's user.
    #[arg(long, value_name = "FILE")]
    chap_password_file: Option<PathBuf>,
    /// Name of this initiator [default: made of the host's name].
    #[arg(long, value_name = "IQN", env = "ENKAKU_INITIATOR_NAME")]
    initiator_name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut leg = LegConfig::new(parse_way(&args.place)?);
    leg.chap_password_file = args.chap_password_file;
    leg.initiator_name = args.initiator_name;
    let source = source(&leg).map_err(|error| Usage::error(error.to_string()))?;
    let opened = source.connect().await.with_context(|| source.name())?;
    let host = TokioHost::current();
    let options = PromoteOptions { force: args.force, release: args.release };
    let promoted = promote(opened, &host, options).await?;
    if args.json {
        say(serde_json::to_string_pretty(&promoted)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let since_1970 = |time: std::time::SystemTime| time.duration_since(std::time::UNIX_EPOCH).ok();
    let image = match promoted.image_time.and_then(since_1970) {
        Some(time) => format!("image of {}", report::clock(time.as_secs_f64())),
        None => "image of a moment that is not known".into(),
    };
    let behind = promoted.behind.map(|behind| {
        format!(", {} behind the last sign of life", report::time(behind.as_secs_f64()))
    });
    let epoch = promoted.epoch;
    say(format_args!("{image}, epoch {epoch}{}", behind.unwrap_or_default()))?;
    if promoted.applied_bytes > 0 {
        say(format_args!(
            "{} of its redo log were committed and are at their place now",
            report::bytes(promoted.applied_bytes)
        ))?;
    }
    if !promoted.consistent {
        say("it is not of one moment: check the file system before you use it")?;
    }
    say(format_args!("promoted: {} bytes, generation {}", promoted.size, promoted.generation))?;
    if let Some(key) = promoted.reservation {
        say(format_args!(
            "reserved under key {key:#018x}: `enkaku attach` registers under it, others have to before \
             they write (--release gives it up)"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
