//! `enkaku mirror add-leg`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use block::mirror::{CreateOptions, Mirror};
use daemon::config::ConfigError;
use daemon::mirror::config::{LegConfig, MirrorConfig, Way};
use daemon::mirror::parts;

use super::create::not_a_mirrors;
use super::{Which, parse_way};
use crate::cmd::overwrite::{self, MayOverwrite};
use crate::cmd::{Usage, say};

/// Adds a leg to a mirror that does not run; it gets its first copy when the mirror runs again.
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
    let (files, config) = args.which.load()?;
    let mut leg = LegConfig::new(parse_way(&args.remote)?);
    if let Way::Url(url) = &leg.way {
        let file = args.chap_password_file.as_deref().map(std::path::absolute).transpose()?;
        leg.chap_password_file = file.filter(|_| url.user.is_some());
        leg.initiator_name.clone_from(&args.initiator_name);
    }
    let before = std::fs::read_to_string(files.config())?;
    let text = format!("{}\n{}", before.trim_end(), leg.to_toml().map_err(Usage::error)?);
    let grown = MirrorConfig::parse(files.config(), &text).map_err(|ConfigError(problems)| {
        let what: Vec<String> = problems.into_iter().map(|problem| problem.what).collect();
        Usage::error(what.join("; "))
    })?;
    let wrong = |error: parts::PartsError| Usage::error(error.to_string());
    let parts = parts::open(&config).map_err(wrong)?;
    let source = parts::source(&leg).map_err(wrong)?;
    let opened = source.connect().await.with_context(|| source.name())?;
    let may = if args.force { MayOverwrite::Forced } else { MayOverwrite::OnAYes };
    not_a_mirrors(&opened.device, &source.name(), may).await?;
    overwrite::device(&*opened.device, &source.name(), may).await?;
    drop(opened);
    let options = CreateOptions { skip_initial_copy: false, force: args.force };
    Mirror::add_leg(&parts, &config.behaviour, &*source, options).await?;
    let written = files.write_config(&text);
    written.with_context(|| format!("writing {}", files.config().display()))?;
    say(format_args!("{} is leg {} of {}", source.name(), grown.legs.len(), files.name()))?;
    Ok(ExitCode::SUCCESS)
}
