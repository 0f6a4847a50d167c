//! What runs, and how it becomes what a new configuration says: everything that can fail is done
//! first ([`State::prepare`]), then the change is made ([`State::commit`]), which cannot.

mod luns;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use block::BlockDevice;
use iscsi::target::{BoundPortal, Catalog, Limit, PortalSpec, Server, TargetSpec};
use scsi::{Target, TargetConfig};
use tracing::{error, info};

use self::luns::{change_luns, flush_later, not_served, open_already};
use crate::config::{Backing, Config, LunSection, Problem, TargetSection};
use crate::lun::{Opening, RunningLun, Storage};
use crate::mirror::lun::MirrorLun;
use crate::mirror::report::Report;
use crate::pair::{Pair, kept_at};
use crate::volume::VolumeLun;
use crate::{check, limits};

/// A target that is served.
#[derive(Clone)]
pub(crate) struct RunningTarget {
    pub(crate) scsi: Target,
    pub(crate) luns: BTreeMap<u16, RunningLun>,
    pub(crate) pair: Option<Arc<Pair>>,
}

/// What is served now. Clones share devices and targets.
#[derive(Clone, Default)]
pub(crate) struct State {
    pub(crate) targets: BTreeMap<String, RunningTarget>,
    portals: BTreeMap<String, PortalSpec>,
    /// Limits, by what they are for.
    limits: BTreeMap<String, Limit>,
    /// LUNs that are not served although they are configured, and why: a mirror that does not run
    /// is no reason for the others not to be served.
    unserved: Vec<String>,
}

/// A change that is ready to be made.
pub(crate) struct Plan {
    catalog: Catalog,
    targets: BTreeMap<String, RunningTarget>,
    bound: Vec<BoundPortal>,
    portals: BTreeMap<String, PortalSpec>,
    state_directory: Option<PathBuf>,
    unserved: Vec<String>,
    /// What may yet be in the way, or is unwise.
    pub(crate) warnings: Vec<String>,
}

impl Plan {
    /// Why a unit that is configured would not be served, if so.
    pub(crate) fn why_unserved(&self, target_name: &str, number: u16) -> Option<&str> {
        let which = not_served(target_name, number, &"");
        self.unserved.iter().find_map(|what| what.strip_prefix(&which))
    }
}

/// What was found while a change was prepared.
#[derive(Default)]
struct Found {
    warnings: Vec<String>,
    problems: Vec<Problem>,
    unserved: Vec<String>,
}

/// What a change came to, for people.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) lines: Vec<String>,
    /// Sessions that it ended.
    pub(crate) dropped: usize,
}

impl Changes {
    fn note(&mut self, what: String) {
        info!("{what}");
        self.lines.push(what);
    }
}

impl State {
    /// Opens everything that a configuration needs and that is not open yet; or, as a trial, finds
    /// out by the same steps whether it would open.
    ///
    /// # Errors
    /// All that cannot be had; nothing has changed then.
    pub(crate) fn prepare(&self, config: &Config, opening: Opening) -> Result<Plan, Vec<Problem>> {
        let mut problems = check::folders(&config.server);
        problems.extend(check::memory(config));
        problems.extend(check::same_files(config));
        let mut found = Found { problems, ..Found::default() };
        let targets = self.prepare_targets(config, opening, &mut found);
        let Found { mut warnings, mut problems, unserved } = found;
        let bound = self.bind_portals(config, opening, &mut warnings, &mut problems);
        let mut catalog =
            Catalog::new(config.limits.clone()).with_discovery(config.discovery.clone());
        for (name, running) in &targets {
            let Some(section) = config.targets.get(name) else { continue };
            match spec(section, running.scsi.clone()) {
                Ok(spec) => catalog = catalog.with_target(spec),
                Err(problem) => problems.push(problem),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let portals = config.portals.iter().map(|(_, spec)| (spec.name.clone(), spec.clone()));
        let state_directory = config.server.state_directory.clone();
        let portals = portals.collect();
        Ok(Plan { catalog, targets, bound, portals, state_directory, unserved, warnings })
    }

    fn bind_portals(
        &self,
        config: &Config,
        opening: Opening,
        warnings: &mut Vec<String>,
        problems: &mut Vec<Problem>,
    ) -> Vec<BoundPortal> {
        let mut bound = Vec::new();
        for (place, spec) in &config.portals {
            // The same listener goes on, perhaps with another external address.
            let open = self.portals.values().find(|open| open.listen == spec.listen);
            match open.filter(|open| spec.listen.port() != 0 || open.name == spec.name) {
                Some(open) if open.name == spec.name && open.poll == spec.poll => continue,
                Some(open) if open.name == spec.name => {
                    let what = "the portal is open and cannot poll in another way; \
                                remove it, reload, and add it again";
                    problems.push(place.problem(what));
                    continue;
                }
                Some(open) => {
                    let what = format!(
                        "the portal is open as {:?} and cannot get another name; \
                         remove it, reload, and add it again",
                        open.name
                    );
                    problems.push(place.problem(what));
                    continue;
                }
                None => {}
            }
            match BoundPortal::bind(spec.clone()) {
                Ok(portal) => bound.push(portal),
                Err(error)
                    if opening == Opening::Trial
                        && error.source.kind() == io::ErrorKind::AddrInUse =>
                {
                    warnings.push(place.problem(check::IN_USE).to_string());
                }
                Err(error) => problems.push(place.problem(error)),
            }
        }
        bound
    }

    fn prepare_targets(
        &self,
        config: &Config,
        opening: Opening,
        found: &mut Found,
    ) -> BTreeMap<String, RunningTarget> {
        let mut opened = self.open_storage();
        let mut targets = BTreeMap::new();
        for section in config.targets.values() {
            let before = self.targets.get(&section.name);
            let group = section.pair.as_ref().map_or(1, |pair| pair.group);
            let named = || TargetConfig::new(&section.name).with_group(group);
            let scsi = before.map_or_else(|| Target::new(named()), |running| running.scsi.clone());
            let known = before.map(|running| running.pair.as_ref());
            let pair = Pair::of(section, known, &scsi, opening).unwrap_or_else(|problem| {
                found.problems.push(problem);
                None
            });
            // Whatever add_lun would refuse, it refuses here, where nobody sees it.
            let trial = Target::new(named());
            let mut luns = BTreeMap::new();
            for (number, lun) in &section.luns {
                let running = before.and_then(|before| before.luns.get(number));
                if let Some(kept) = running.filter(|running| running.section.serves_alike(lun)) {
                    // Not tried again: a store of reservations that cannot be read just now is no
                    // reason to take a unit away from those who use it.
                    match kept.check_size() {
                        Ok(()) => drop(luns.insert(*number, kept.with_section(lun))),
                        Err(problem) => found.problems.push(problem),
                    }
                    continue;
                }
                let mut anew = || match open_already(lun, running, &opened)? {
                    Some(storage) => Ok(storage),
                    None => Storage::open(lun, opening, &mut found.warnings)
                        .inspect(|storage| opened.push((lun.clone(), storage.clone()))),
                };
                let prepared = anew().map(|storage| RunningLun::new(lun.clone(), storage));
                let tried = prepared.and_then(|prepared| {
                    let folder = config.server.state_directory.as_deref();
                    let kept_at = kept_at(folder, pair.as_deref(), &section.name, *number);
                    let tried =
                        trial.add_lun(*number, prepared.device(), prepared.options(kept_at));
                    tried.map(|()| prepared).map_err(|error| lun.place.problem(error))
                });
                match tried {
                    Ok(prepared) => drop(luns.insert(*number, prepared)),
                    Err(problem)
                        if opening == Opening::ToServe
                            && running.is_none()
                            && matches!(lun.backing, Backing::Mirror(_) | Backing::Volume(_)) =>
                    {
                        let what = not_served(&section.name, *number, &problem);
                        found.unserved.push(what);
                    }
                    Err(problem) => found.problems.push(problem),
                }
            }
            targets.insert(section.name.clone(), RunningTarget { scsi, luns, pair });
        }
        targets
    }

    /// All storage that is open, with the section it was opened for.
    fn open_storage(&self) -> Vec<(LunSection, Storage)> {
        let luns = self.targets.values().flat_map(|target| target.luns.values());
        luns.map(|lun| (lun.section.clone(), lun.storage.clone())).collect()
    }

    /// Makes the change.
    pub(crate) fn commit(&mut self, plan: Plan, server: &Server) -> Changes {
        let Plan { catalog, mut targets, bound, portals, state_directory, mut unserved, .. } = plan;
        let mut changes = Changes::default();
        for (name, running) in &mut targets {
            let known = self.targets.contains_key(name);
            let empty = BTreeMap::new();
            let before = self.targets.get(name).map_or(&empty, |target| &target.luns);
            let folder = state_directory.as_deref();
            unserved.extend(change_luns(name, before, running, folder, &mut changes));
            if !known {
                changes.note(format!("target {name}: added"));
            }
        }
        for (name, gone) in self.targets.iter().filter(|(name, _)| !targets.contains_key(*name)) {
            gone.luns.iter().for_each(|(number, lun)| flush_later(name, *number, lun));
            changes.note(format!("target {name}: removed"));
        }
        for what in &unserved {
            error!("{what}");
            changes.lines.push(what.clone());
        }
        self.unserved = unserved;
        let limits = limits::of(&catalog);
        limits::changes(&self.limits, &limits).into_iter().for_each(|what| changes.note(what));
        self.limits = limits;
        // Sessions go before the files of removed targets do.
        for dropped in server.apply(catalog) {
            changes.dropped += 1;
            changes.note(format!(
                "session of {} with {}: dropped ({})",
                dropped.initiator_name, dropped.target_name, dropped.reason
            ));
        }
        self.change_portals(portals, bound, server, &mut changes);
        self.targets = targets;
        changes
    }

    fn change_portals(
        &mut self,
        portals: BTreeMap<String, PortalSpec>,
        bound: Vec<BoundPortal>,
        server: &Server,
        changes: &mut Changes,
    ) {
        for (name, before) in &self.portals {
            match portals.get(name) {
                Some(now) if now == before => {}
                Some(now) if now.listen == before.listen => {
                    change_portal(name, before, now, server, changes);
                }
                _ => {
                    server.close(name);
                    changes.note(format!("portal {name}: closed"));
                }
            }
        }
        for portal in bound {
            changes.note(format!("portal {}: open", portal.local_addr()));
            server.open(portal);
        }
        self.portals = portals;
    }

    /// Looks at the storage of all LUNs: space for the soft threshold.
    pub(crate) fn report_space(&self) {
        for target in self.targets.values() {
            for (number, lun) in &target.luns {
                if let Some(usage) = lun.space() {
                    // A LUN of ours exists; between a reload's steps it is about to.
                    let _ = target.scsi.report_space(*number, usage);
                }
            }
        }
    }

    /// LUNs that cannot be relied on, by target and number.
    pub(crate) fn failures(&self) -> Vec<String> {
        let luns = self.targets.iter().flat_map(|(name, target)| {
            target.luns.iter().filter_map(move |(number, lun)| {
                lun.failure().map(|why| format!("{name} LUN {number}: {why}"))
            })
        });
        let pairs = self.targets.iter().filter_map(|(name, target)| {
            let trouble = target.pair.as_ref()?.trouble()?;
            Some(format!("{name}: {trouble}"))
        });
        self.unserved.iter().cloned().chain(pairs).chain(luns).collect()
    }

    /// What it shares with other daemons.
    pub(crate) fn pairs(&self) -> Vec<Arc<Pair>> {
        self.targets.values().filter_map(|target| target.pair.clone()).collect()
    }

    /// The mirrors that run here.
    pub(crate) fn mirrors(&self) -> Vec<Arc<MirrorLun>> {
        let luns = self.targets.values().flat_map(|target| target.luns.values());
        luns.filter_map(RunningLun::mirror).cloned().collect()
    }

    /// The volumes of others that are served here.
    pub(crate) fn volumes(&self) -> Vec<Arc<VolumeLun>> {
        let luns = self.targets.values().flat_map(|target| target.luns.values());
        luns.filter_map(RunningLun::volume).cloned().collect()
    }
}

impl RunningTarget {
    /// How its mirrors stand.
    pub(crate) fn mirrors(&self) -> Vec<Report> {
        let mirrors = self.luns.values().filter_map(RunningLun::mirror);
        mirrors.filter_map(|mirror| mirror.report()).collect()
    }
}

/// Changes what can be changed of a portal that is open.
fn change_portal(
    name: &str,
    before: &PortalSpec,
    now: &PortalSpec,
    server: &Server,
    changes: &mut Changes,
) {
    if now.external != before.external {
        server.set_external(name, now.external.clone());
        changes.note(format!("portal {name}: another external address"));
    }
    if now.redirect != before.redirect {
        let to = now.redirect.as_ref();
        let what = to.map_or_else(|| "admitted".to_owned(), |to| format!("sent to {to}"));
        server.set_redirect(name, now.redirect.clone());
        changes.note(format!("portal {name}: new sessions are {what}"));
    }
    if now.dscp != before.dscp {
        let mark =
            now.dscp.map_or_else(|| "not marked".to_owned(), |dscp| format!("marked {dscp}"));
        changes.note(match server.set_dscp(name, now.dscp) {
            Ok(()) => format!("portal {name}: new connections are {mark}"),
            Err(error) => format!("portal {name}: new connections cannot be {mark}: {error}"),
        });
    }
}

/// Makes everything stable.
pub(crate) async fn flush(targets: &BTreeMap<String, RunningTarget>) -> Result<(), String> {
    let mut failed = Vec::new();
    for (name, target) in targets {
        for (number, lun) in &target.luns {
            if let Err(error) = lun.stats.flush().await {
                failed.push(format!("flushing {name} LUN {number}: {error}"));
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

fn spec(section: &TargetSection, scsi: Target) -> Result<TargetSpec, Problem> {
    let spec = TargetSpec::new(&section.name, scsi);
    let mut spec = spec.map_err(|error| section.place.problem(error))?;
    spec.alias = section.alias.clone();
    spec.offer = section.offer;
    spec.session = section.session.clone();
    spec.access = section.access.clone();
    spec.portals = section.portals.clone();
    spec.lun_limits = section.lun_limits.clone();
    Ok(spec)
}
