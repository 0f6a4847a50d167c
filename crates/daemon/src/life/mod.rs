//! The live life cycle: logical units, initiators and portals that come and go while the daemon
//! runs. What an operator asks for becomes a drop-in beside the configuration, by way of the reload
//! that there is: what it would refuse is refused here, and nothing is left behind.
//!
//! The order makes it safe to be killed anywhere: first everything is opened and checked with the
//! drop-in as it will be, then the drop-in is written, and only then the change is made, which
//! cannot fail. So what is on disk starts. Not here: what a configuration means (`config`), and how
//! it is changed (`state`).

pub(crate) mod access;
mod drop_in;
pub(crate) mod groups;
pub(crate) mod luns;
mod messages;
pub(crate) mod portals;

use std::path::{Path, PathBuf};

use iscsi_proto::names::check_name;

pub use messages::{
    AccessSet, AccessView, InitiatorAllow, InitiatorDeny, InitiatorView, LunAdd, LunRemove,
    LunResize, LunSnapshot, LunView, PortalAdd, PortalRemove, PortalView,
};

use crate::admin::Answer;
use crate::config::sources::{Sources, drop_in_folder};
use crate::config::{Config, Place, Problem, TargetSection};
use crate::daemon::Daemon;
use crate::state::{Changes, Plan};

/// Why something was not done, a line each.
#[derive(Debug)]
pub(crate) struct Refused(Vec<String>);

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self(vec![why])
    }
}

impl From<Refused> for Answer {
    fn from(Refused(errors): Refused) -> Self {
        Self::failed(errors)
    }
}

/// A drop-in to be written, or without a text to be removed.
struct Step {
    file: PathBuf,
    text: Option<String>,
}

/// A change that has been checked, and whose storage and sockets are open.
struct Ready<'d> {
    daemon: &'d Daemon,
    config: Config,
    plan: Plan,
    step: Option<Step>,
}

impl<'d> Ready<'d> {
    /// Has it checked what the files will say after a step.
    fn new(daemon: &'d Daemon, sources: Sources, step: Option<Step>) -> Result<Self, Refused> {
        let sources = match &step {
            Some(step) => sources.with(&step.file, step.text.as_deref()),
            None => sources,
        };
        let prepared = daemon.prepare(&sources);
        let (config, plan) = prepared.map_err(|problems| said(&problems, step.as_ref()))?;
        Ok(Self { daemon, config, plan, step })
    }

    /// Writes the drop-in, and makes the change.
    fn finish(self) -> Result<Changes, Refused> {
        if let Some(Step { file, text }) = &self.step {
            let kept = match text {
                Some(text) => drop_in::write(file, text),
                None => drop_in::remove(file),
            };
            kept.map_err(|error| {
                let folder = file.parent().unwrap_or(Path::new(".")).display();
                let shown = file.display();
                format!("{shown}: {error} (the daemon has to be allowed to write to {folder})")
            })?;
        }
        Ok(self.daemon.commit(self.config, self.plan))
    }
}

/// What is wrong, for somebody who gave options and wrote no file.
fn said(problems: &[Problem], step: Option<&Step>) -> Refused {
    let is_own = |problem: &Problem| step.is_some_and(|step| step.file == problem.file);
    let line = |problem: &Problem| match problem.key.rsplit('.').next() {
        Some(key) if is_own(problem) && !key.ends_with(']') => format!("{key}: {}", problem.what),
        _ if is_own(problem) => problem.what.clone(),
        _ => problem.to_string(),
    };
    Refused(problems.iter().map(line).collect())
}

fn sources(daemon: &Daemon) -> Result<Sources, Refused> {
    Sources::read(daemon.config_path()).map_err(|problems| said(&problems, None))
}

/// Where the drop-in of something is.
fn file_of(daemon: &Daemon, kind: &str, name: &str) -> PathBuf {
    drop_in_folder(daemon.config_path()).join(format!("{kind}-{name}.toml"))
}

/// The text of a drop-in that a command wrote.
///
/// # Errors
/// `what` stands elsewhere: where, and what to do.
fn ours<'s>(sources: &'s Sources, place: &Place, what: &str) -> Result<&'s str, String> {
    let at = place.at();
    match sources.text_of(place.file()) {
        Some(text) if drop_in::is_ours(text) => Ok(text),
        Some(_) => Err(format!(
            "{what} is said in {at}, which no command wrote: edit that file, \
             then `enkaku target reload`"
        )),
        None => {
            Err(format!("{what} was said in {at}, which is gone: `enkaku target reload` first"))
        }
    }
}

/// Nothing of that name is there yet.
fn is_new(sources: &Sources, file: &Path) -> Result<(), String> {
    match sources.text_of(file) {
        Some(_) => Err(format!("{} is there already", file.display())),
        None => Ok(()),
    }
}

/// The target that is meant: the only one, unless named.
fn the_target<'c>(config: &'c Config, name: Option<&str>) -> Result<&'c TargetSection, String> {
    let known = || config.targets.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    let Some(name) = name else {
        let mut targets = config.targets.values();
        return match (targets.next(), targets.next()) {
            (Some(only), None) => Ok(only),
            _ => Err(format!("which target? (there are: {})", known())),
        };
    };
    let checked = check_name(name).map_err(|error| format!("{name:?}: {error}"))?;
    config.targets.get(&checked).ok_or_else(|| {
        format!("there is no target {checked} (there are: {}; [[target]] makes one)", known())
    })
}

/// Done.
fn changed(Changes { lines, .. }: Changes) -> Answer {
    Answer { changes: Some(lines), ..Answer::ok() }
}
