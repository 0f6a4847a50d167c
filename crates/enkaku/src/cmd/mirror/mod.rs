//! `enkaku mirror`: a local disk that is kept at other places as well. One file per subcommand;
//! what there is to decide is decided in `daemon::mirror` and `block::mirror`.

mod add_leg;
mod create;
mod failback;
mod grow;
mod inspect;
mod pause;
mod promote;
mod remove_leg;
mod resolve;
mod resync;
mod run;
mod status;
mod top;
mod verify;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use daemon::config::ConfigError;
use daemon::mirror::config::{MirrorConfig, Way};
use daemon::mirror::control::{Answer, Request, ask};
use daemon::mirror::files::{Files, Surroundings, check_name};
use daemon::mirror::shape::{Shape, ShapeError};

use super::{Usage, complain};

/// Keeps the content of a local disk at up to three other places as well: volumes of any iSCSI
/// target, files or block devices.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Create(create::Args),
    AddLeg(add_leg::Args),
    RemoveLeg(remove_leg::Args),
    Grow(grow::Args),
    Failback(failback::Args),
    Run(run::Args),
    Status(status::Args),
    Top(top::Args),
    Pause(pause::PauseArgs),
    Resume(pause::ResumeArgs),
    Resync(resync::Args),
    Verify(verify::Args),
    Promote(promote::Args),
    Resolve(resolve::Args),
    Inspect(inspect::Args),
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let done = subcommand(args.command).await;
    match done.map_err(anyhow::Error::downcast::<ConfigError>) {
        Ok(code) => Ok(code),
        Err(Err(error)) => Err(error),
        // A line for each mistake.
        Err(Ok(ConfigError(problems))) => {
            problems.iter().for_each(|problem| complain(&problem.to_string()));
            Ok(ExitCode::FAILURE)
        }
    }
}

async fn subcommand(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create(args) => create::run(args).await,
        Command::AddLeg(args) => add_leg::run(args).await,
        Command::RemoveLeg(args) => remove_leg::run(args).await,
        Command::Grow(args) => grow::run(args).await,
        Command::Failback(args) => failback::run(args).await,
        Command::Run(args) => run::run(args).await,
        Command::Status(args) => status::run(args).await,
        Command::Top(args) => top::run(args).await,
        Command::Pause(args) => pause::pause(args).await,
        Command::Resume(args) => pause::resume(args).await,
        Command::Resync(args) => resync::run(args).await,
        Command::Verify(args) => verify::run(args).await,
        Command::Promote(args) => promote::run(args).await,
        Command::Resolve(args) => resolve::run(args).await,
        Command::Inspect(args) => inspect::run(args).await,
    }
}

/// Which mirror.
#[derive(clap::Args, Debug)]
struct Which {
    /// Name of the mirror.
    #[arg(value_name = "NAME", value_parser = check_name)]
    name: String,
    /// Where configurations are [default: /etc/enkaku/mirrors for root, else
    /// ~/.config/enkaku/mirrors].
    #[arg(long, value_name = "DIR", env = "ENKAKU_MIRROR_CONFIG_DIR")]
    config_dir: Option<PathBuf>,
}

/// Which of its legs.
#[derive(clap::Args, Debug)]
struct WhichLeg {
    /// Which leg: its number from 1, its URL or path, or the end of that; needed where there are
    /// several.
    #[arg(long, value_name = "LEG")]
    leg: Option<String>,
}

/// A leg's place as it was written. Not by clap, which would show a password that stands in it.
fn parse_way(text: &str) -> anyhow::Result<Way> {
    Way::parse(text).map_err(Usage::error)
}

/// What was asked for wrongly ends with another code than what went wrong.
fn not_shaped(error: ShapeError) -> anyhow::Error {
    match error {
        ShapeError::Config(config) => config.into(),
        ShapeError::Parts(_) | ShapeError::Asked(_) => Usage::error(error.to_string()),
        other => other.into(),
    }
}

impl Which {
    fn files(&self) -> anyhow::Result<Files> {
        let around = Surroundings::of_this_process();
        Files::new(&self.name, self.config_dir.as_deref(), &around).map_err(Usage::error)
    }

    fn load(&self) -> anyhow::Result<(Files, MirrorConfig)> {
        let files = self.files()?;
        let config = MirrorConfig::load(files.config())?;
        Ok((files, config))
    }

    /// Asks the mirror; `None` where it does not run.
    async fn ask(&self, request: &Request) -> anyhow::Result<Option<Answer>> {
        let files = self.files()?;
        match ask(files.socket(), request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                    // A name that is mistyped is not a mirror that does not run.
                    MirrorConfig::load(files.config())?;
                    Ok(None)
                }
                ErrorKind::PermissionDenied => Err(anyhow::anyhow!(
                    "the control socket {} is its owner's: {error}",
                    files.socket().display()
                )),
                ErrorKind::UnexpectedEof => {
                    Err(anyhow::anyhow!("the mirror {} ended meanwhile", self.name))
                }
                _ => Err(anyhow::anyhow!(
                    "no answer at {}: {error} (is the mirror of this version?)",
                    files.socket().display()
                )),
            },
        }
    }

    /// Has the mirror do something, which has to run for it.
    async fn have_done(&self, request: &Request) -> anyhow::Result<Answer> {
        let Some(answer) = self.have_done_if_it_runs(request).await? else {
            let name = &self.name;
            anyhow::bail!("the mirror {name} does not run (`enkaku mirror run {name}` starts it)");
        };
        Ok(answer)
    }

    /// Has the mirror do something; `None` where it does not run.
    async fn have_done_if_it_runs(&self, request: &Request) -> anyhow::Result<Option<Answer>> {
        let Some(answer) = self.ask(request).await? else { return Ok(None) };
        if !answer.ok {
            anyhow::bail!("{}: {}", self.name, answer.errors.join("; "));
        }
        Ok(Some(answer))
    }

    /// What it is made of, which nobody else uses now.
    async fn shape(&self) -> anyhow::Result<Shape> {
        Shape::open(self.files()?).await.map_err(not_shaped)
    }
}
