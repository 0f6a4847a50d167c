//! `enkaku mirror create`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use anyhow::Context;
use block::Device;
use block::backend::{FileDevice, FileOptions, OpenError};
use block::mirror::{
    Config as Behaviour, CreateOptions, Inspection, Mirror, Mode, OpenLeg, Parts, PromoteOptions,
    TokioHost, inspect, primary_of_leg,
};
use daemon::config::ConfigError;
use daemon::mirror::config::{LegConfig, MirrorConfig, Way};
use daemon::mirror::files::Files;
use daemon::mirror::next::NewMetadata;
use daemon::mirror::{inspected, parts, report};
use iscsi_proto::keys::DigestPreference;

use super::{Which, parse_way};
use crate::cmd::overwrite::{self, MayOverwrite};
use crate::cmd::{Usage, say};

/// A constant, since rustdoc would take the brackets for links.
pub(super) const REMOTE_HELP: &str = "A leg: iscsi://[user@]host[:port]/target-iqn/lun, or a path, such as one \
     of a second disk; it has to be a little larger than the local disk. Up to three.";

/// Makes a mirror of a local disk: writes its configuration and prepares its metadata and legs. The
/// content of the local disk stays as it is; that of the legs is replaced once the mirror runs.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    /// The local disk: a file or a block device. Its content is what is kept elsewhere.
    #[arg(long, value_name = "PATH")]
    local: PathBuf,
    #[arg(long, help = REMOTE_HELP, required = true, value_name = "URL|PATH")]
    remote: Vec<String>,
    /// Where the mirror keeps what it knows: a file, or a block device [default: beside a local
    /// file, else /var/lib/enkaku/NAME.mirror].
    #[arg(long, value_name = "PATH")]
    metadata: Option<PathBuf>,
    /// When a write is told complete: sync, once it is at the legs in sync, too; async, once it is
    /// at the local disk, with the legs some seconds behind at most.
    #[arg(long, value_name = "sync|async", default_value = "sync", value_parser = parse_mode)]
    mode: Mode,
    /// The legs hold what the local disk holds, or its content does not matter: nothing is copied.
    #[arg(long)]
    skip_initial_copy: bool,
    /// The local disk is a leg, here at the other site: take it over (as `promote` does), and keep
    /// its former local disk as it from now on, once that is given back (`failback`) as the one
    /// --remote.
    #[arg(long, conflicts_with = "skip_initial_copy")]
    from_leg: bool,
    /// Overwrite what there is of another mirror, and whatever the legs hold.
    #[arg(long)]
    force: bool,
    /// File whose first line is the CHAP password of the URLs' users.
    #[arg(long, value_name = "FILE")]
    chap_password_file: Option<PathBuf>,
    /// Demand that the targets prove themselves as this CHAP user.
    #[arg(long, requires = "mutual_password_file", value_name = "USER")]
    mutual_user: Option<String>,
    /// File whose first line is the password for --mutual-user.
    #[arg(long, requires = "mutual_user", value_name = "FILE")]
    mutual_password_file: Option<PathBuf>,
    /// Name of this initiator [default: made of the host's name].
    #[arg(long, value_name = "IQN", env = "ENKAKU_INITIATOR_NAME")]
    initiator_name: Option<String>,
}

fn parse_mode(text: &str) -> Result<Mode, String> {
    match text {
        "sync" => Ok(Mode::Sync),
        "async" => Ok(Mode::Async),
        _ => Err(format!("{text:?} is neither sync nor async")),
    }
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let files = args.which.files()?;
    let may = if args.force { MayOverwrite::Forced } else { MayOverwrite::OnAYes };
    if files.config().exists() {
        let what = format!("the mirror {} exists ({})", files.name(), files.config().display());
        overwrite::ask(&what, may)?;
    }
    let text = args.config(&files)?.to_toml(files.name()).map_err(Usage::error)?;
    // What is written has to be readable, so that each mistake is found before a leg is touched.
    let config = MirrorConfig::parse(files.config(), &text).map_err(without_places)?;
    let local = parts::open_local(&config.local).map_err(|e| Usage::error(e.to_string()))?;
    let local: Device = local;
    if args.from_leg {
        return from_leg(&args, local, &config, &files, &text).await;
    }
    let size = local.info().size;
    let shown = config.local.display();
    let metadata_bytes =
        parts::metadata_bytes(size).map_err(|why| Usage::error(format!("{shown}: {why}")))?;
    let legs = parts::sources(&config).map_err(|error| Usage::error(error.to_string()))?;
    for leg in &legs {
        let opened = leg.connect().await.with_context(|| leg.name())?;
        let fits = parts::check_leg(opened.device.info().size, size);
        fits.map_err(|error| Usage::error(format!("{}: {error}", leg.name())))?;
        not_a_mirrors(&opened.device, &leg.name(), may).await?;
        if !args.skip_initial_copy {
            overwrite::device(&*opened.device, &leg.name(), may).await?;
        }
    }
    let metadata = new_metadata(&config.metadata, metadata_bytes, may, &files).await?;
    let host = Arc::new(TokioHost::current());
    let parts = Parts { local, metadata: metadata.device().clone(), legs, host };
    let options = CreateOptions { skip_initial_copy: args.skip_initial_copy, force: args.force };
    Mirror::create(&parts, &config.behaviour, options).await?;
    let kept = metadata.keep().and_then(|()| files.write_config(&text));
    kept.with_context(|| format!("writing {}", files.config().display()))?;
    say(format_args!(
        "created {}; `enkaku mirror run {0}` with --fuse, --nbd or --iscsi starts it \
         (configuration: {})",
        files.name(),
        files.config().display()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Takes a leg over and makes it the local disk of a mirror.
async fn from_leg(
    args: &Args,
    local: Device,
    config: &MirrorConfig,
    files: &Files,
    text: &str,
) -> anyhow::Result<ExitCode> {
    let shown = config.local.display();
    let Inspection::Leg(found) = inspect(&local).await? else {
        return Err(Usage::error(format!("{shown} is no leg of a mirror")));
    };
    let legs = parts::sources(config).map_err(|error| Usage::error(error.to_string()))?;
    let [old_disk] = &legs[..] else {
        let what = "--from-leg: one --remote, the disk that is given back; others come later";
        return Err(Usage::error(what));
    };
    let may = if args.force { MayOverwrite::Forced } else { MayOverwrite::OnAYes };
    let bytes = parts::metadata_bytes(found.size_bytes);
    let bytes = bytes.map_err(|why| Usage::error(format!("{shown}: {why}")))?;
    let metadata = new_metadata(&config.metadata, bytes, may, files).await?;
    let leg = OpenLeg::of(local);
    let options = PromoteOptions { force: args.force, release: false };
    let host = TokioHost::current();
    let promoted = primary_of_leg(leg, metadata.device(), &host, &old_disk.name(), options).await?;
    let kept = metadata.keep().and_then(|()| files.write_config(text));
    kept.with_context(|| format!("writing {}", files.config().display()))?;
    say(format_args!(
        "promoted: {} bytes, generation {}; it is the local disk of {}, whose leg is awaited at {}",
        promoted.size,
        promoted.generation,
        files.name(),
        old_disk.name()
    ))?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn config(&self, files: &Files) -> anyhow::Result<MirrorConfig> {
        let ways = self.remote.iter().map(|remote| parse_way(remote));
        let ways: Vec<Way> = ways.collect::<anyhow::Result<_>>()?;
        let absolute = |path: &Path| {
            let path = std::path::absolute(path);
            path.map_err(|error| Usage::error(format!("a path is empty: {error}")))
        };
        let secret = |file: &Option<PathBuf>| file.as_deref().map(absolute).transpose();
        let local = absolute(&self.local)?;
        let metadata = match &self.metadata {
            Some(path) => absolute(path)?,
            None => files.metadata_of(&local),
        };
        let (password, mutual) =
            (secret(&self.chap_password_file)?, secret(&self.mutual_password_file)?);
        let leg = |way: &Way| {
            let mut leg = LegConfig::new(way.clone());
            if let Way::Url(url) = way {
                leg.chap_password_file = password.clone().filter(|_| url.user.is_some());
                leg.mutual = self.mutual_user.clone().zip(mutual.clone());
                leg.initiator_name.clone_from(&self.initiator_name);
                leg.digest = DigestPreference::Avoid;
            }
            leg
        };
        Ok(MirrorConfig {
            local,
            metadata,
            behaviour: Behaviour { mode: self.mode, ..Behaviour::default() },
            hook: None,
            legs: ways.iter().map(leg).collect(),
        })
    }
}

/// Nothing is written yet, so that lines of a file help nobody.
pub(super) fn without_places(ConfigError(problems): ConfigError) -> anyhow::Error {
    let what: Vec<String> = problems.into_iter().map(|problem| problem.what).collect();
    Usage::error(what.join("; "))
}

/// What another mirror uses is given up knowingly only.
pub(super) async fn not_a_mirrors(
    device: &Device,
    name: &str,
    may: MayOverwrite,
) -> anyhow::Result<()> {
    if may == MayOverwrite::Forced {
        return Ok(());
    }
    match inspected::found(&inspect(device).await) {
        Some(what) => overwrite::ask(&format!("{name} {what}"), may),
        None => Ok(()),
    }
}

/// The device for the metadata of a mirror that is made: what is overwritten is asked about.
async fn new_metadata(
    path: &Path,
    bytes: u64,
    may: MayOverwrite,
    files: &Files,
) -> anyhow::Result<NewMetadata> {
    let there = std::fs::metadata(path).ok();
    let wrong = |error: parts::PartsError| Usage::error(error.to_string());
    if there.as_ref().is_some_and(|there| !there.is_file()) {
        let device = parts::create_metadata(path, bytes).map_err(wrong)?;
        overwrite::device(&*device, &path.display().to_string(), may).await?;
        return Ok(NewMetadata::in_place(device));
    }
    if there.is_some_and(|there| there.len() > 0) && may != MayOverwrite::Forced {
        if let Some(what) = whose_metadata(path, files).await {
            return overwrite::ask(&format!("{} {what}", path.display()), may)
                .and_then(|()| NewMetadata::beside(path, bytes).map_err(wrong));
        }
        overwrite::existing_file(path, may).await?;
    }
    NewMetadata::beside(path, bytes).map_err(wrong)
}

/// Whose metadata are in a file, if they are a mirror's: what stands in them, and which of the
/// configurations beside ours names them.
async fn whose_metadata(path: &Path, files: &Files) -> Option<String> {
    let what = match FileDevice::open(path, &FileOptions::default().with_read_only(true)) {
        Ok(device) => inspected::found(&inspect(&(Arc::new(device) as Device)).await)?,
        Err(OpenError::InUse { .. }) => "is in use by another process".into(),
        Err(_) => return None,
    };
    let written = std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let written = written.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let written = written.map_or_else(String::new, |time| {
        format!(", written to last at {}", report::clock(time.as_secs_f64()))
    });
    let named = match files.with_metadata(path) {
        Some((name, local)) => {
            format!("; they are {name}'s, whose local disk is {}", local.display())
        }
        None => "; no configuration beside this one names them".into(),
    };
    Some(format!("{what}{written}{named}"))
}
