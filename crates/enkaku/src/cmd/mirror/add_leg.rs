//! `enkaku mirror add-leg`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use daemon::mirror::config::{LegConfig, MirrorConfig, Way};
use daemon::mirror::control::Request;
use daemon::mirror::parts;

use super::create::{not_a_mirrors, without_places};
use super::{Which, not_shaped, parse_way};
use crate::cmd::overwrite::{self, MayOverwrite};
use crate::cmd::{Usage, say};

/// Adds a leg. It gets its first copy at once, or when the mirror runs again. While the mirror
/// runs, its user waits for a moment.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    #[arg(long, help = super::create::REMOTE_HELP, value_name = "URL|PATH")]
    remote: String,
    /// Overwrite whatever the leg holds.
    #[arg(long)]
    force: bool,
    /// File whose first line is the CHAP password of the URL's user.
    #[arg(long, value_name = "FILE")]
    chap_password_file: Option<PathBuf>,
    /// Name of this initiator [default: made of the host's name].
    #[arg(long, value_name = "IQN", env = "ENKAKU_INITIATOR_NAME")]
    initiator_name: Option<String>,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let files = args.which.files()?;
    let mut leg = LegConfig::new(parse_way(&args.remote)?);
    if let Way::Url(url) = &leg.way {
        let file = args.chap_password_file.as_deref().map(std::path::absolute).transpose()?;
        leg.chap_password_file = file.filter(|_| url.user.is_some());
        leg.initiator_name.clone_from(&args.initiator_name);
    }
    let table = leg.to_toml().map_err(Usage::error)?;
    MirrorConfig::load(files.config())?;
    let before = std::fs::read_to_string(files.config())?;
    let text = format!("{}\n{table}", before.trim_end());
    MirrorConfig::parse(files.config(), &text).map_err(without_places)?;
    let wrong = |error: parts::PartsError| Usage::error(error.to_string());
    let source = parts::source(&leg).map_err(wrong)?;
    let name = source.name();
    let opened = source.connect().await.with_context(|| name.clone())?;
    let may = if args.force { MayOverwrite::Forced } else { MayOverwrite::OnAYes };
    not_a_mirrors(&opened.device, &name, may).await?;
    overwrite::device(&*opened.device, &name, may).await?;
    drop((opened, source));
    let request = Request::AddLeg { leg: table.clone(), force: args.force };
    if let Some(answer) = args.which.have_done_if_it_runs(&request).await? {
        let which = answer.done.unwrap_or_default();
        say(format_args!("{name} is {which} of {}; its first copy has begun", files.name()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut shape = args.which.shape().await?;
    let new = shape.new_leg(&table).await.map_err(not_shaped)?;
    let number = shape.add_leg(new, args.force).await.map_err(not_shaped)?;
    say(format_args!("{name} is leg {number} of {}", files.name()))?;
    Ok(ExitCode::SUCCESS)
}
