//! Portals that are added, removed and listed.

use super::drop_in::{Text, check_name};
use super::{
    PortalAdd, PortalRemove, PortalView, Ready, Refused, Step, changed, file_of, is_new, ours,
    sources,
};
use crate::admin::Answer;
use crate::daemon::Daemon;

/// How the drop-in of a portal begins.
const KIND: &str = "portal";

/// Where initiators find the targets.
pub(crate) fn list(daemon: &Daemon) -> Answer {
    let config = daemon.config();
    let open = daemon.server.portals();
    let sessions = daemon.server.sessions();
    let views = config.portals.iter().map(|(place, portal)| {
        let local = open.iter().find(|(spec, _)| spec.name == portal.name);
        PortalView {
            name: portal.name.clone(),
            address: local.map_or(portal.listen, |(_, local)| *local).to_string(),
            external: portal.external.as_ref().map(ToString::to_string),
            sessions: sessions.iter().filter(|session| session.portal == portal.name).count(),
            file: place.file().to_owned(),
            line: place.line(),
        }
    });
    Answer { portals: Some(views.collect()), ..Answer::ok() }
}

/// Listens on one more address.
pub(crate) fn add(daemon: &Daemon, asked: &PortalAdd) -> Result<Answer, Refused> {
    check_name("portal", &asked.name)?;
    let file = file_of(daemon, KIND, &asked.name);
    let sources = sources(daemon)?;
    is_new(&sources, &file)?;
    let text = Text::of("portal add")
        .table("[[portal]]")
        .text("name", &asked.name)
        .text("listen", &asked.listen)
        .text_if("external", asked.external.as_ref())
        .text_if("dscp", asked.dscp.as_ref());
    let step = Step { file, text: Some(text.into_string()) };
    Ok(changed(Ready::new(daemon, sources, Some(step))?.finish()?))
}

/// Accepts no more there.
pub(crate) fn remove(daemon: &Daemon, asked: &PortalRemove) -> Result<Answer, Refused> {
    let config = daemon.config();
    let portal = config.portals.iter().find(|(_, portal)| portal.name == asked.name);
    let (place, _) = portal.ok_or_else(|| {
        let names = config.portals.iter().map(|(_, portal)| portal.name.as_str());
        let names: Vec<&str> = names.collect();
        format!("there is no portal {:?} (there are: {})", asked.name, names.join(", "))
    })?;
    let sources = sources(daemon)?;
    ours(&sources, place, &format!("the portal {}", asked.name))?;
    let step = Step { file: place.file().to_owned(), text: None };
    Ok(changed(Ready::new(daemon, sources, Some(step))?.finish()?))
}
