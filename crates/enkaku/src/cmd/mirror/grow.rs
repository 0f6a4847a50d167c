//! `enkaku mirror grow`.

use std::process::ExitCode;

use anyhow::Context;
use block::mirror::{Stopped, grow};
use daemon::mirror::{parts, report};

use super::Which;
use super::create::NewMetadata;
use crate::cmd::overwrite::MayOverwrite;
use crate::cmd::{Usage, say};

/// Makes a mirror as large as its local disk is by now. All of its legs have to be larger by then,
/// too, and the mirror must not run. What is new is copied to the legs when it runs again.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (files, config) = args.which.load()?;
    let parts = parts::open(&config).map_err(|error| Usage::error(error.to_string()))?;
    if std::fs::metadata(&config.metadata).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(Usage::error(
            "its metadata are on a block device, where old and new ones cannot be side by side; \
             `enkaku mirror create --force` begins anew",
        ));
    }
    let bytes = parts::metadata_bytes(parts.local.info().size);
    let bytes = bytes.map_err(|why| Usage::error(format!("{}: {why}", config.local.display())))?;
    let mut legs = Vec::new();
    for source in &parts.legs {
        legs.push(source.connect().await.with_context(|| source.name())?);
    }
    let metadata = NewMetadata::open(&config.metadata, bytes, MayOverwrite::Forced).await?;
    let mirror = Stopped { local: parts.local, metadata: parts.metadata, host: parts.host };
    let size = grow(&mirror, &metadata.device, legs).await?;
    let kept = metadata.keep();
    kept.with_context(|| format!("writing {}", config.metadata.display()))?;
    say(format_args!("{} has {size} bytes ({}) now", files.name(), report::bytes(size)))?;
    Ok(ExitCode::SUCCESS)
}
