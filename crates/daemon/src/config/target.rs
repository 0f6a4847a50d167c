//! `[[target]]`: what several files say of a target, together; its units, and who may use it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use backends::Location;
use iscsi::target::{AccessRule, AccessRules, Chap, Limit, SessionConfig};
use iscsi_proto::keys::Offer;
use iscsi_proto::names::check_name;
use scsi::WriteProtection;
use toml_span::value::ValueInner;

use super::limit::limit;
use super::lun::lun;
use super::pair::{PairSection, pair};
use super::parse::parameters;
use super::reader::{Place, Reader, Section, boolean, list, number, string};
use super::{AccessPlaces, Backing, LunSection, TargetSection, VolumeSection, VolumeSource};

/// What a target is called whose name is wrong; it is never served.
const NAMELESS: &str = "iqn.2026-11.io.enkaku:nameless";

/// What the sections of the file have in common while it is read.
pub(super) struct Context<'r> {
    pub(super) reader: &'r Reader,
    pub(super) chaps: BTreeMap<String, Option<Chap>>,
    pub(super) portals: BTreeSet<String>,
    pub(super) session: SessionConfig,
    pub(super) offer: Offer,
    pub(super) mirrors: Option<PathBuf>,
    pub(super) warnings: Vec<String>,
}

/// A table with its name, where that is right.
type Named<'r, 'de> = (Option<(Place, String)>, Section<'r, 'de>);

impl Context<'_> {
    /// The credentials that the key `chap` names.
    pub(super) fn chap(&self, section: &mut Section<'_, '_>) -> Option<Chap> {
        let (place, name) = section.with("chap", string)?;
        match self.chaps.get(&name) {
            Some(chap) => chap.clone(),
            None => {
                self.reader.complain(&place, format!("there is no [chap.{name}]"));
                None
            }
        }
    }

    pub(super) fn targets(
        &mut self,
        sections: Vec<Section<'_, '_>>,
    ) -> BTreeMap<String, TargetSection> {
        let mut targets = BTreeMap::new();
        for (name, section) in self.by_name(sections) {
            let target = self.target(name, section);
            targets.insert(target.name.clone(), target);
        }
        self.check_backings(&targets);
        targets
    }

    /// The targets of all files: what several say of one, together.
    fn by_name<'r, 'de>(&self, sections: Vec<Section<'r, 'de>>) -> Vec<Named<'r, 'de>> {
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        let mut targets: Vec<Named<'r, 'de>> = Vec::new();
        for mut section in sections {
            let named = section.required("name", name);
            let found = named.as_ref().and_then(|(_, name)| known.get(name).copied());
            let Some((place, name)) = &named else {
                targets.push((named, section));
                continue;
            };
            match found.and_then(|at| targets.get_mut(at)) {
                Some((_, before)) if before.ends_in_the_file_of(&section) => {
                    self.reader.complain(place, format!("there is a target {name} already"));
                }
                Some((_, before)) => before.merge(section),
                None => {
                    known.insert(name.clone(), targets.len());
                    targets.push((named, section));
                }
            }
        }
        targets
    }

    /// One file behind two LUNs would be written by initiators that do not know of each other:
    /// neither reservations nor caches reach across.
    fn check_backings(&self, targets: &BTreeMap<String, TargetSection>) {
        let mut seen: BTreeMap<PathBuf, String> = BTreeMap::new();
        for target in targets.values() {
            for (number, lun) in &target.luns {
                let path = match &lun.backing {
                    Backing::Path(path) => path.clone(),
                    Backing::Mirror(files) => files.config().to_owned(),
                    Backing::Volume(VolumeSection { source: VolumeSource::Url(url), .. }) => {
                        let location = url.parse::<Location>();
                        PathBuf::from(location.map_or_else(|_| url.clone(), |at| at.key()))
                    }
                    // Each server that is started is another.
                    Backing::Memory(_) | Backing::Volume(_) => continue,
                };
                let who = format!("LUN {number} of {}", target.name);
                if let Some(other) = seen.insert(path, who) {
                    self.reader.complain(&lun.place, format!("is behind {other} already"));
                }
            }
        }
    }

    fn target(
        &mut self,
        name: Option<(Place, String)>,
        mut section: Section<'_, '_>,
    ) -> TargetSection {
        let alias = section.get("alias", string);
        let portals = self.target_portals(&mut section);
        let offer = match section.section("parameters") {
            Some(parameters_section) => parameters(self.offer, parameters_section),
            None => self.offer,
        };
        let (luns, lun_limits) = self.luns(section.sections("lun"));
        if luns.is_empty() {
            let what = "has no logical unit (add [[target.lun]], or `enkaku target lun add`)";
            self.warnings.push(section.place().problem(what).to_string());
        }
        let pair = section.section("pair").and_then(pair);
        if let Some(pair) = &pair {
            self.check_pair(pair, &luns);
        }
        let (access, access_places) = self.access(&mut section, &luns);
        // What else is wrong with a target shows although its name is wrong, too.
        let (place, name) = name.unwrap_or_else(|| {
            let place = section.place();
            let name = format!("{NAMELESS}.{}", place.line());
            (place, name)
        });
        section.finish();
        let session = self.session.clone();
        TargetSection {
            place,
            name,
            alias,
            offer,
            session,
            portals,
            access,
            access_places,
            pair,
            luns,
            lun_limits,
        }
    }

    /// What only one process can have open is nothing for several.
    fn check_pair(&self, pair: &PairSection, luns: &BTreeMap<u16, LunSection>) {
        let what = format!(
            "is not for a target with [target.pair] (group {}): the units of a pair are volumes \
             behind URLs (rbd:, nbd:, iscsi:), which several daemons can have open",
            pair.group
        );
        for lun in luns.values() {
            let is_url = matches!(
                &lun.backing,
                Backing::Volume(VolumeSection { source: VolumeSource::Url(_), .. })
            );
            if !is_url || lun.exclusive {
                self.reader.complain(&lun.place, &what);
            }
        }
    }

    fn target_portals(&self, section: &mut Section<'_, '_>) -> Option<BTreeSet<String>> {
        let (place, names) = section.with("portals", list(string))?;
        for name in names.iter().filter(|name| !self.portals.contains(*name)) {
            self.reader.complain(&place, format!("there is no portal or uplink called {name:?}"));
        }
        if names.is_empty() {
            self.reader.complain(&place, "is empty: the target could not be reached");
        }
        Some(names.into_iter().collect())
    }

    fn access(
        &self,
        section: &mut Section<'_, '_>,
        luns: &BTreeMap<u16, LunSection>,
    ) -> (AccessRules, AccessPlaces) {
        let anyone = section.with("anyone", boolean);
        let has_chap = section.place();
        let chap = self.chap(section);
        let each = limit(section).unwrap_or_default();
        let mut access = AccessRules::default();
        let mut places = AccessPlaces::default();
        for mut initiator in section.sections("initiator") {
            let name = initiator.required("name", name);
            // Without credentials of its own, those of the target hold.
            let chap = self.chap(&mut initiator).or_else(|| chap.clone());
            let write_protection = self.protection(&mut initiator, luns);
            let limit = limit(&mut initiator).unwrap_or(each);
            initiator.finish();
            let Some((place, name)) = name else { continue };
            let rule = AccessRule { chap, write_protection, limit };
            if let Some(known) = places.initiators.get(&name) {
                let what = format!("there is a rule for {name} already, in {}", known.at());
                self.reader.complain(&place, what);
                continue;
            }
            places.initiators.insert(name.clone(), place);
            access.initiators.insert(name, rule);
        }
        match anyone {
            Some((place, true)) => {
                access.anyone = Some(AccessRule { chap, limit: each, ..AccessRule::default() });
                places.anyone = Some(place);
            }
            // It is meant: initiators will be named while it runs.
            Some((_, false)) => {}
            None if access.initiators.is_empty() => {
                let what = "admits nobody: name initiators with [[target.initiator]], \
                            or say anyone = true";
                self.reader.complain(&has_chap, what);
            }
            None => {}
        }
        (access, places)
    }

    fn protection(
        &self,
        section: &mut Section<'_, '_>,
        luns: &BTreeMap<u16, LunSection>,
    ) -> WriteProtection {
        let read = |value: ValueInner<'_>| match value {
            ValueInner::Boolean(true) => Ok(WriteProtection::All),
            ValueInner::Boolean(false) => Ok(WriteProtection::None),
            value @ ValueInner::Array(_) => {
                let max = u64::from(scsi::Lun::MAX);
                let numbers = list(|value| number(0, max)(value).map(|lun| lun as u16))(value)?;
                Ok(WriteProtection::Units(numbers.into_iter().collect()))
            }
            other => Err(format!("is {}, not true, false or an array of LUNs", other.type_str())),
        };
        let Some((place, protection)) = section.with("read_only", read) else {
            return WriteProtection::None;
        };
        if let WriteProtection::Units(numbers) = &protection {
            for number in numbers.iter().filter(|number| !luns.contains_key(number)) {
                self.reader.complain(&place, format!("there is no LUN {number}"));
            }
        }
        protection
    }

    /// The logical units, and the limits of those that have one.
    fn luns(
        &self,
        sections: Vec<Section<'_, '_>>,
    ) -> (BTreeMap<u16, LunSection>, BTreeMap<u16, Limit>) {
        let (mut luns, mut limits) = (BTreeMap::new(), BTreeMap::new());
        for mut section in sections {
            let number = section.required("number", number(0, u64::from(scsi::Lun::MAX)));
            let lun = lun(&mut section, self.mirrors.as_deref());
            let limit = limit(&mut section);
            section.finish();
            let (Some((place, number)), Some(lun)) = (number, lun) else { continue };
            if let Some(known) = luns.get(&(number as u16)).map(|lun: &LunSection| &lun.place) {
                let what = format!("there is a LUN {number} already, in {}", known.at());
                self.reader.complain(&place, what);
                continue;
            }
            luns.insert(number as u16, lun);
            limits.extend(limit.map(|limit| (number as u16, limit)));
        }
        (luns, limits)
    }
}

fn name(value: ValueInner<'_>) -> Result<String, String> {
    let text = string(value)?;
    check_name(&text)
        .map_err(|error| format!("{text:?}: {error} (as in iqn.2026-11.org.example:disks)"))
}
