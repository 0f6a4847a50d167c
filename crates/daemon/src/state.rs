//! What runs, and how it becomes what a new configuration says: everything that can fail is done
//! first ([`State::prepare`]), then the change is made ([`State::commit`]), which cannot.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::BlockDevice;
use iscsi::target::{BoundPortal, Catalog, Limit, PortalSpec, Server, TargetSpec};
use scsi::{Target, TargetConfig};
use tracing::{error, info, warn};

use crate::config::{Backing, Config, LunSection, Problem, TargetSection};
use crate::lun::{Opening, RunningLun, Storage, opens_alike};
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
        let which = format!("{target_name} LUN {number}: not served: ");
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
                let kept = before
                    .and_then(|before| before.luns.get(number))
                    .filter(|running| running.section.serves_alike(lun));
                let before = before.and_then(|before| before.luns.get(number));
                let mut anew = || match open_already(lun, before, &opened)? {
                    Some(storage) => Ok(storage),
                    None => Storage::open(lun, opening, &mut found.warnings)
                        .inspect(|storage| opened.push((lun.clone(), storage.clone()))),
                };
                let prepared = match kept {
                    Some(running) => running.check_size().map(|()| running.with_section(lun)),
                    None => anew().map(|storage| RunningLun::new(lun.clone(), storage)),
                };
                let tried = prepared.and_then(|running| {
                    let folder = config.server.state_directory.as_deref();
                    let kept_at = kept_at(folder, pair.as_deref(), &section.name, *number);
                    let options = running.options(kept_at);
                    let tried = trial.add_lun(*number, running.device(), options);
                    tried.map(|()| running).map_err(|error| lun.place.problem(error))
                });
                match tried {
                    Ok(running) => drop(luns.insert(*number, running)),
                    Err(problem)
                        if opening == Opening::ToServe
                            && matches!(lun.backing, Backing::Mirror(_) | Backing::Volume(_)) =>
                    {
                        let what = format!("{} LUN {number}: not served: {problem}", section.name);
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
        let Plan { catalog, mut targets, bound, portals, state_directory, unserved, .. } = plan;
        let mut changes = Changes::default();
        for what in &unserved {
            error!("{what}");
            changes.lines.push(what.clone());
        }
        self.unserved = unserved;
        for (name, running) in &mut targets {
            let known = self.targets.contains_key(name);
            let empty = BTreeMap::new();
            let before = self.targets.get(name).map_or(&empty, |target| &target.luns);
            change_luns(name, before, running, state_directory.as_deref(), &mut changes);
            if !known {
                changes.note(format!("target {name}: added"));
            }
        }
        for (name, gone) in self.targets.iter().filter(|(name, _)| !targets.contains_key(*name)) {
            gone.luns.iter().for_each(|(number, lun)| flush_later(name, *number, lun));
            changes.note(format!("target {name}: removed"));
        }
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

/// Removes, adds and grows the LUNs of a target that is being served.
fn change_luns(
    name: &str,
    before: &BTreeMap<u16, RunningLun>,
    now: &RunningTarget,
    state_directory: Option<&Path>,
    changes: &mut Changes,
) {
    let same = |number: &u16, lun: &RunningLun| {
        now.luns.get(number).is_some_and(|running| Arc::ptr_eq(&running.stats, &lun.stats))
    };
    let mut removed = Vec::new();
    for (number, lun) in before {
        if same(number, lun) {
            if lun.grow() {
                let _ = now.scsi.capacity_changed(*number); // it is there
                let size = lun.stats.info().size;
                changes.note(format!("{name} LUN {number}: grown to {size} bytes"));
            }
            continue;
        }
        removed.push(*number);
        let what = if now.luns.contains_key(number) { "replaced" } else { "removed" };
        changes.note(format!("{name} LUN {number}: {what}"));
    }
    let is_new = |number: &u16, lun: &RunningLun| {
        before.get(number).is_none_or(|before| !Arc::ptr_eq(&before.stats, &lun.stats))
    };
    let new: Vec<_> = now.luns.iter().filter(|(number, lun)| is_new(number, lun)).collect();
    let added = new.iter().map(|(number, lun)| {
        lun.grow();
        let kept_at = kept_at(state_directory, now.pair.as_deref(), name, **number);
        (**number, lun.device(), lun.options(kept_at))
    });
    let refused = now.scsi.change_luns(&removed, added.collect());
    let gone = removed.iter().filter_map(|number| before.get(number).map(|lun| (number, lun)));
    gone.for_each(|(number, lun)| flush_later(name, *number, lun));
    for (number, lun) in new {
        if let Some((_, error)) = refused.iter().find(|(refused, _)| refused == number) {
            // The trial went well, so its state file was damaged in between.
            warn!(target_name = name, lun = number, %error, "LUN is not served");
            changes.note(format!("{name} LUN {number}: not served: {error}"));
            continue;
        }
        if let Some(mirror) = lun.mirror() {
            mirror.serve_as(name, now.scsi.clone(), *number);
        }
        if let Some(volume) = lun.volume() {
            volume.serve_as(now.scsi.clone(), *number);
        }
        if !before.contains_key(number) {
            changes.note(format!("{name} LUN {number}: added"));
        }
    }
}

/// Makes stable what initiators cannot flush any more.
fn flush_later(target_name: &str, number: u16, lun: &RunningLun) {
    if lun.mirror().is_some() || lun.volume().is_some() {
        return; // It is closed in order when nobody has it any more.
    }
    let (device, target_name) = (lun.device(), target_name.to_owned());
    tokio::spawn(async move {
        if let Err(error) = device.flush().await {
            warn!(target_name, lun = number, %error, "the LUN that was removed is not flushed");
        }
    });
}

/// Storage for a LUN, if it is open already.
fn open_already(
    section: &LunSection,
    before: Option<&RunningLun>,
    opened: &[(LunSection, Storage)],
) -> Result<Option<Storage>, Problem> {
    if let Backing::Path(_) | Backing::Mirror(_) | Backing::Volume(_) = section.backing
        && let Some((known, storage)) = opened.iter().find(|(k, _)| k.backing == section.backing)
    {
        if !opens_alike(known, section) {
            return Err(section.place.problem(
                "read_only, block_size and direct cannot change while the file is open: \
                 remove the LUN, reload, and add it again",
            ));
        }
        return Ok(Some(storage.clone()));
    }
    if let (Backing::Memory(_), Some(before)) = (&section.backing, before)
        && matches!(before.section.backing, Backing::Memory(_))
    {
        if !opens_alike(&before.section, section) {
            return Err(section.place.problem(
                "memory cannot be opened in another way without losing what is in it: \
                 remove the LUN, reload, and add it again",
            ));
        }
        return Ok(Some(before.storage.clone()));
    }
    Ok(None)
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
