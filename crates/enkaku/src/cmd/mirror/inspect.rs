//! `enkaku mirror inspect`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use block::Device;
use block::backend::{FileDevice, FileOptions};
use block::mirror::{Inspection, inspect};
use daemon::mirror::config::Way;
use daemon::mirror::inspected;

use super::parse_way;
use crate::cmd::remote::{RemoteArgs, URL_HELP};
use crate::cmd::{Usage, say};

/// Shows what a device holds of a mirror: its metadata, or those of a leg. Writes nothing.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[arg(value_name = "URL|PATH", help = format!("{URL_HELP}, or a path"))]
    place: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: RemoteArgs,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let found = match &parse_way(&args.place)? {
        Way::Path(path) => inspect(&open_path(path)?).await?,
        Way::Url(url) => {
            let volume = args.remote.connect(url).await?;
            let found = inspect(&volume.device()).await;
            volume.close_unwritten().await?;
            found?
        }
    };
    show(&found, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// A file or block device, for reading.
pub(super) fn open_path(path: &Path) -> anyhow::Result<Device> {
    let options = FileOptions::default().with_read_only(true);
    let device = FileDevice::open(path, &options).map_err(|e| Usage::error(e.to_string()))?;
    Ok(Arc::new(device))
}

pub(super) fn show(found: &Inspection, json: bool) -> anyhow::Result<()> {
    match json {
        true => say(serde_json::to_string_pretty(found)?),
        false => say(inspected::text(found)),
    }
}
