//! How well the units of a pair can be reached at each of its daemons: listed, and said.

use std::sync::Arc;

use iscsi_proto::names::check_name;

use super::{AccessSet, AccessView, Refused};
use crate::admin::Answer;
use crate::config::pair::word;
use crate::daemon::Daemon;
use crate::pair::{Pair, state_named};

/// The targets that are a pair's, by name.
fn pairs(daemon: &Daemon) -> Vec<(String, Arc<Pair>)> {
    let state = daemon.lock();
    let targets = state.targets.iter();
    targets.filter_map(|(name, target)| Some((name.clone(), target.pair.clone()?))).collect()
}

/// What there is.
pub(crate) fn list(daemon: &Daemon) -> Result<Answer, Refused> {
    let mut views = Vec::new();
    for (target, pair) in pairs(daemon) {
        views.extend(pair.groups()?.into_iter().map(|(group, state)| AccessView {
            target: target.clone(),
            group,
            state: word(state).to_owned(),
            own: group == pair.section().group,
        }));
    }
    Ok(Answer { access: Some(views), ..Answer::ok() })
}

/// Says it; every daemon of the pair hears it within a second.
pub(crate) fn set(daemon: &Daemon, asked: &AccessSet) -> Result<Answer, Refused> {
    let state = state_named(&asked.state)?;
    let pairs = pairs(daemon);
    let known = || pairs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let (name, pair) = match (&asked.target, &pairs[..]) {
        (None, [only]) => only,
        (_, []) => {
            return Err("no target is a pair's ([target.pair] makes it one)".to_owned().into());
        }
        (None, _) => return Err(format!("which target? (there are: {})", known()).into()),
        (Some(name), _) => {
            let name = check_name(name).map_err(|error| format!("{name:?}: {error}"))?;
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.ok_or_else(|| format!("{name} is no pair's (there are: {})", known()))?
        }
    };
    pair.set(asked.group, state)?;
    let what = format!("target {name}: group {} is {}", asked.group, word(state));
    Ok(Answer { changes: Some(vec![what]), ..Answer::ok() })
}
