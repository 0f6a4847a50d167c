//! Initiators that are allowed, denied and listed.

use iscsi::target::AccessRule;
use iscsi_proto::names::check_name;
use scsi::WriteProtection;

use super::drop_in::{self, Text};
use super::{
    InitiatorAllow, InitiatorDeny, InitiatorView, Ready, Refused, Step, changed, file_of, ours,
    sources, the_target,
};
use crate::admin::Answer;
use crate::config::{Place, TargetSection};
use crate::daemon::Daemon;

/// How the drop-in of an initiator begins. Its name is no longer than a file's may be with that.
const KIND: &str = "initiator";

/// Who may use what.
pub(crate) fn list(daemon: &Daemon) -> Answer {
    let config = daemon.config();
    let sessions = daemon.server.sessions();
    let view = |target: &TargetSection, initiator: Option<&str>, rule: &AccessRule, at: &Place| {
        let is_its = |name: &str| match initiator {
            Some(initiator) => name == initiator,
            None => !target.access.initiators.contains_key(name),
        };
        let its = sessions.iter().filter(|session| {
            session.target_name.as_ref() == Some(&target.name) && is_its(&session.initiator_name)
        });
        InitiatorView {
            initiator: initiator.map(str::to_owned),
            target: target.name.clone(),
            read_only_luns: match &rule.write_protection {
                WriteProtection::None => Some(Vec::new()),
                WriteProtection::All => None,
                WriteProtection::Units(numbers) => Some(numbers.iter().copied().collect()),
            },
            chap: rule.chap.is_some(),
            sessions: its.count(),
            file: at.file().to_owned(),
            line: at.line(),
        }
    };
    let mut views = Vec::new();
    for target in config.targets.values() {
        let (access, places) = (&target.access, &target.access_places);
        let named = access.initiators.iter().filter_map(|(name, rule)| {
            places.initiators.get(name).map(|at| view(target, Some(name.as_str()), rule, at))
        });
        views.extend(named);
        let anyone = access.anyone.as_ref().zip(places.anyone.as_ref());
        views.extend(anyone.map(|(rule, at)| view(target, None, rule, at)));
    }
    Answer { initiators: Some(views), ..Answer::ok() }
}

fn initiator_name(name: &str) -> Result<String, String> {
    check_name(name)
        .map_err(|error| format!("{name:?}: {error} (as in iqn.2026-11.org.example:host)"))
}

/// Lets one log in. What a command said before of it and this target is replaced.
pub(crate) fn allow(daemon: &Daemon, asked: &InitiatorAllow) -> Result<Answer, Refused> {
    let name = initiator_name(&asked.initiator)?;
    let config = daemon.config();
    let target = the_target(&config, asked.target.as_deref())?;
    let file = file_of(daemon, KIND, &name);
    let sources = sources(daemon)?;
    if let Some(place) = target.access_places.initiators.get(&name) {
        ours(&sources, place, &rule_of(&name, target))?;
    }
    let before = sources.text_of(&file);
    if let Some(text) = before
        && !drop_in::is_ours(text)
    {
        return Err(format!("{} is there, and no command wrote it", file.display()).into());
    }
    let rest = before.and_then(|text| drop_in::without_target(text, &target.name));
    let text = rest.map_or_else(|| Text::of("initiator allow"), Text::after);
    let text = text
        .table(drop_in::TARGET)
        .text("name", &target.name)
        .table("[[target.initiator]]")
        .text("name", &name)
        .flag("read_only", asked.read_only)
        .text_if("chap", asked.chap.as_ref());
    let step = Step { file, text: Some(text.into_string()) };
    Ok(changed(Ready::new(daemon, sources, Some(step))?.finish()?))
}

/// Takes that back.
pub(crate) fn deny(daemon: &Daemon, asked: &InitiatorDeny) -> Result<Answer, Refused> {
    let name = initiator_name(&asked.initiator)?;
    let config = daemon.config();
    let targets: Vec<&TargetSection> = match &asked.target {
        Some(target) => vec![the_target(&config, Some(target))?],
        None => config.targets.values().collect(),
    };
    let sources = sources(daemon)?;
    let file = file_of(daemon, KIND, &name);
    let mut text: Option<String> = None;
    let is_named = |target: &&&TargetSection| target.access.initiators.contains_key(&name);
    for target in targets.iter().filter(is_named) {
        check_deniable(target, &name)?;
        let Some(place) = target.access_places.initiators.get(&name) else { continue };
        let said = ours(&sources, place, &rule_of(&name, target))?;
        let left = text.as_deref().unwrap_or(said);
        text = Some(drop_in::without_target(left, &target.name).unwrap_or_default());
    }
    let Some(text) = text else {
        targets.iter().try_for_each(|target| check_deniable(target, &name))?;
        return Err(format!("{name} is not allowed to use anything there").into());
    };
    let step = Step { file, text: (!text.is_empty()).then_some(text) };
    let changes = Ready::new(daemon, sources, Some(step))?.finish()?;
    let ended_sessions = Some(changes.dropped);
    Ok(Answer { ended_sessions, ..changed(changes) })
}

/// Where anyone may come, no rule of its own keeps an initiator out.
fn check_deniable(target: &TargetSection, name: &str) -> Result<(), String> {
    match &target.access_places.anyone {
        Some(place) => Err(format!(
            "{} admits anyone ({}), {name} too: take that out there first",
            target.name,
            place.at()
        )),
        None => Ok(()),
    }
}

fn rule_of(name: &str, target: &TargetSection) -> String {
    format!("the rule for {name} with {}", target.name)
}
