//! From TOML to [`Config`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backends::Location;
use iscsi::poll::POLL_MAX;
use iscsi::target::{
    AccessRule, AccessRules, Chap, CongestionChoice, Limit, Limits, PortalSpec, SessionConfig,
    TargetSpec,
};
use iscsi_proto::keys::{DigestPreference, Offer};
use iscsi_proto::names::{TargetAddress, check_name};
use scsi::WriteProtection;
use toml_span::value::ValueInner;

use super::isns::isns;
use super::limit::limit;
use super::lun::lun;
use super::reader::{
    Place, Problem, Reader, Section, boolean, dscp, list, number, one_of, parsed, size, string,
    time,
};
use super::{
    Backing, Config, LunSection, ServerPlaces, ServerSection, TargetSection, VolumeSection,
    VolumeSource, secret,
};

/// The admin socket, unless told otherwise.
pub(crate) const ADMIN_SOCKET: &str = "/run/enkaku/target.sock";

/// Least memory: the largest command has to fit what one initiator may use of the common half.
const MEMORY_BYTES_MIN: u64 = 128 << 20;

/// Largest values of their fields (RFC 7143 §13).
const LENGTH_MAX: u64 = (1 << 24) - 1;

/// Longest time limit that is taken for meant.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// What a target is called whose name is wrong; it is never served.
const NAMELESS: &str = "iqn.2026-11.io.enkaku:nameless";

const LEVELS: &[&str] = &["off", "error", "warn", "info", "debug", "trace"];

const DIGESTS: &[(&str, DigestPreference)] = &[
    ("never", DigestPreference::Never),
    ("avoid", DigestPreference::Avoid),
    ("prefer", DigestPreference::Prefer),
    ("require", DigestPreference::Require),
];

/// What the sections of the file have in common while it is read.
struct Context<'r> {
    reader: &'r Reader,
    chaps: BTreeMap<String, Option<Chap>>,
    portals: BTreeSet<String>,
    session: SessionConfig,
    offer: Offer,
    mirrors: Option<PathBuf>,
    warnings: Vec<String>,
}

/// What could be understood, and everything that is wrong.
pub(super) fn config(path: &Path, text: &str) -> (Option<Config>, Vec<Problem>) {
    let reader = Reader::new(path, text);
    let config = match toml_span::parse(text) {
        Ok(mut value) => {
            let span = value.span;
            match value.take() {
                ValueInner::Table(table) => {
                    root(&reader, Section::new(&reader, String::new(), span, table))
                }
                _ => None,
            }
        }
        Err(error) => {
            reader.complain(&reader.place(error.span, ""), error);
            None
        }
    };
    (config, reader.into_problems())
}

fn root(reader: &Reader, mut root: Section<'_, '_>) -> Option<Config> {
    let mut warnings = Vec::new();
    let chaps = root.section("chap").map(Section::named).unwrap_or_default();
    let read = |(name, section)| (name, secret::chap(reader, section, &mut warnings));
    let chaps = chaps.into_iter().map(read).collect();
    let metrics = root.section("metrics");
    let server = server(reader, root.section("server"), metrics);
    let (mut limits, command_window) = limits(reader, root.section("limits"));
    limits.congestion_control = server.congestion_control.clone();
    let mut session = SessionConfig::default();
    session.command_window = command_window;
    // A quarter of the common half: what one session may be promised at once.
    session.buffered_bytes_max = session.buffered_bytes_max.min(limits.memory_bytes_max / 8);
    let sections = root.sections("portal");
    if sections.is_empty() {
        root.complain("no portal: where to listen? (add [[portal]] with listen = \"[::]:3260\")");
    }
    let portals = portals(reader, sections);
    let Ok(default) = TargetSpec::new("iqn.2026-11.io.enkaku:default", nothing()) else {
        return None;
    };
    let names = portals.iter().map(|(_, portal)| portal.name.clone()).collect();
    let mirrors = server.mirror_directory.clone();
    let offer = default.offer;
    let mut context = Context { reader, chaps, portals: names, session, offer, mirrors, warnings };
    if let Some(section) = root.section("parameters") {
        context.offer = parameters(context.offer, section);
    }
    let discovery = root.section("discovery").and_then(|mut section| {
        let chap = context.chap(&mut section);
        section.finish();
        chap
    });
    let isns = root.section("isns").and_then(isns);
    let sections = root.sections("target");
    if sections.is_empty() {
        root.complain("no target: nothing would be served (add [[target]])");
    }
    let targets = context.targets(sections);
    root.finish();
    let warnings = context.warnings;
    Some(Config { server, limits, discovery, isns, portals, targets, warnings })
}

fn nothing() -> scsi::Target {
    scsi::Target::new(scsi::TargetConfig::new("nothing"))
}

fn server(
    reader: &Reader,
    server: Option<Section<'_, '_>>,
    metrics: Option<Section<'_, '_>>,
) -> ServerSection {
    let mut places = ServerPlaces {
        admin_socket: reader.missing("server.admin_socket"),
        ..ServerPlaces::default()
    };
    let mut out = ServerSection {
        state_directory: None,
        admin_socket: PathBuf::from(ADMIN_SOCKET),
        mirror_directory: None,
        log: "info".into(),
        shutdown_timeout: Duration::from_secs(10),
        congestion_control: CongestionChoice::Auto,
        metrics: None,
        places: ServerPlaces::default(),
    };
    if let Some(mut section) = server {
        if let Some((place, path)) = section.with("state_directory", string) {
            (places.state_directory, out.state_directory) = (place, Some(PathBuf::from(path)));
        }
        if let Some((place, path)) = section.with("admin_socket", string) {
            (places.admin_socket, out.admin_socket) = (place, PathBuf::from(path));
        }
        if let Some(path) = section.get("mirror_directory", string) {
            out.mirror_directory = Some(PathBuf::from(path));
        }
        // A bare word that is no level would be taken for the name of a module.
        let is_filter = |text: &str| match text.contains('=') {
            true => crate::logging::parse_filter(text).is_some(),
            false => LEVELS.contains(&text),
        };
        let filter = parsed("a log level (error, warn, info, debug, trace) or filter", |text| {
            is_filter(text).then(|| text.to_owned())
        });
        if let Some(log) = section.get("log", filter) {
            out.log = log;
        }
        if let Some(timeout) = section.get("shutdown_timeout", time(TIME_MAX)) {
            out.shutdown_timeout = timeout;
        }
        let control = |value: ValueInner<'_>| CongestionChoice::parse(&string(value)?);
        if let Some(choice) = section.get("congestion_control", control) {
            out.congestion_control = choice;
        }
        section.finish();
    }
    if let Some(mut section) = metrics {
        if let Some((place, address)) = section.required("listen", address) {
            (places.metrics, out.metrics) = (place, Some(address));
        }
        section.finish();
    }
    out.places = places;
    out
}

fn address(value: ValueInner<'_>) -> Result<SocketAddr, String> {
    parsed("an address with a port, as in 192.0.2.1:3260 or [::]:3260", |text| text.parse().ok())(
        value,
    )
}

/// `[limits]`, and the command window of a session.
fn limits(reader: &Reader, section: Option<Section<'_, '_>>) -> (Limits, u32) {
    let mut limits = Limits::default();
    let mut command_window = SessionConfig::default().command_window;
    let Some(mut section) = section else { return (limits, command_window) };
    // 32,767: half of the session handles there are.
    for (key, max, limit) in [
        ("connections", 65_536, &mut limits.connections_max),
        ("sessions", 32_767, &mut limits.sessions_max),
        ("sessions_per_initiator", 32_767, &mut limits.sessions_per_initiator_max),
        ("logins", 65_536, &mut limits.logins_max),
        ("logins_per_address", 65_536, &mut limits.logins_per_peer_max),
    ] {
        if let Some(value) = section.get(key, number(1, max)) {
            *limit = value as usize;
        }
    }
    if let Some(value) = section.get("login_timeout", time(TIME_MAX)) {
        limits.login_timeout = value;
    }
    if let Some(value) = section.get("command_window", number(1, 65_536)) {
        command_window = value as u32;
    }
    if let Some((place, value)) = section.with("memory", size(MEMORY_BYTES_MIN, 1 << 50)) {
        limits.memory_bytes_max = value;
        let share = value / 2 / limits.sessions_max as u64;
        if share < 64 << 10 {
            let what = format!(
                "leaves {share} bytes for each of {} sessions (at least 64k; \
                 more memory, or fewer limits.sessions)",
                limits.sessions_max
            );
            reader.complain(&place, what);
        }
    }
    section.finish();
    (limits, command_window)
}

fn portals(reader: &Reader, sections: Vec<Section<'_, '_>>) -> Vec<(Place, PortalSpec)> {
    let mut portals: Vec<(Place, PortalSpec)> = Vec::new();
    for mut section in sections {
        let listen = section.required("listen", address);
        let name = section.get("name", string);
        let external = section.get(
            "external",
            parsed("an address or host name, with a port if it is not 3260", |text| {
                text.parse::<TargetAddress>().ok().filter(|address| address.group.is_none())
            }),
        );
        let poll = section.get("poll", time(POLL_MAX));
        let dscp = section.get("dscp", dscp);
        section.finish();
        let Some((place, listen)) = listen else { continue };
        let name = name.unwrap_or_else(|| listen.to_string());
        let same =
            |other: &&(Place, PortalSpec)| other.1.name == name || overlap(other.1.listen, listen);
        if let Some((_, other)) = portals.iter().find(same) {
            let what = format!("there is a portal {} on {} already", other.name, other.listen);
            reader.complain(&place, what);
            continue;
        }
        portals.push((place, PortalSpec { name, listen, external, poll, dscp }));
    }
    portals
}

/// Would the kernel refuse one of two listeners? The unspecified IPv6 address takes IPv4, too.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let all = |this: SocketAddr, other: SocketAddr| {
        this.ip().is_unspecified() && (this.is_ipv6() || other.is_ipv4())
    };
    one.port() == other.port()
        && one.port() != 0
        && (one.ip() == other.ip() || all(one, other) || all(other, one))
}

/// `[parameters]` and `[target.parameters]`.
fn parameters(mut offer: Offer, mut section: Section<'_, '_>) -> Offer {
    let session = &mut offer.session;
    for (key, value) in [
        ("max_connections", &mut session.max_connections),
        ("max_outstanding_r2t", &mut session.max_outstanding_r2t),
    ] {
        if let Some(number) = section.get(key, number(1, 65_535)) {
            *value = number as u16;
        }
    }
    for (key, value) in
        [("initial_r2t", &mut session.initial_r2t), ("immediate_data", &mut session.immediate_data)]
    {
        if let Some(flag) = section.get(key, boolean) {
            *value = flag;
        }
    }
    for (key, value) in [
        ("max_burst_length", &mut session.max_burst_length),
        ("first_burst_length", &mut session.first_burst_length),
        ("max_recv_data_segment_length", &mut offer.max_recv_data_segment_length),
    ] {
        if let Some(bytes) = section.get(key, size(512, LENGTH_MAX)) {
            *value = bytes as u32;
        }
    }
    for (key, value) in
        [("header_digest", &mut offer.header_digest), ("data_digest", &mut offer.data_digest)]
    {
        if let Some(digest) = section.get(key, one_of(DIGESTS)) {
            *value = digest;
        }
    }
    let (first, burst) = (offer.session.first_burst_length, offer.session.max_burst_length);
    if first > burst {
        let what = format!("first_burst_length {first} is above max_burst_length {burst}");
        section.complain(what);
    }
    section.finish();
    offer
}

impl Context<'_> {
    /// The credentials that the key `chap` names.
    fn chap(&self, section: &mut Section<'_, '_>) -> Option<Chap> {
        let (place, name) = section.with("chap", string)?;
        match self.chaps.get(&name) {
            Some(chap) => chap.clone(),
            None => {
                self.reader.complain(&place, format!("there is no [chap.{name}]"));
                None
            }
        }
    }

    fn targets(&mut self, sections: Vec<Section<'_, '_>>) -> BTreeMap<String, TargetSection> {
        let mut targets = BTreeMap::new();
        for section in sections {
            let target = self.target(section);
            if targets.contains_key(&target.name) {
                let what = format!("there is a target {} already", target.name);
                self.reader.complain(&target.place, what);
                continue;
            }
            targets.insert(target.name.clone(), target);
        }
        self.check_backings(&targets);
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

    fn target(&mut self, mut section: Section<'_, '_>) -> TargetSection {
        let name = section.required("name", name);
        let alias = section.get("alias", string);
        let portals = self.target_portals(&mut section);
        let offer = match section.section("parameters") {
            Some(parameters_section) => parameters(self.offer, parameters_section),
            None => self.offer,
        };
        let (luns, lun_limits) = self.luns(section.sections("lun"));
        if luns.is_empty() {
            section.complain("has no logical unit (add [[target.lun]])");
        }
        let access = self.access(&mut section, &luns);
        // What else is wrong with a target shows although its name is wrong, too.
        let (place, name) = name.unwrap_or_else(|| {
            let place = section.place();
            let name = format!("{NAMELESS}.{}", place.line());
            (place, name)
        });
        section.finish();
        let session = self.session.clone();
        TargetSection { place, name, alias, offer, session, portals, access, luns, lun_limits }
    }

    fn target_portals(&self, section: &mut Section<'_, '_>) -> Option<BTreeSet<String>> {
        let (place, names) = section.with("portals", list(string))?;
        for name in names.iter().filter(|name| !self.portals.contains(*name)) {
            self.reader.complain(&place, format!("there is no portal called {name:?}"));
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
    ) -> AccessRules {
        let anyone = section.get("anyone", boolean).unwrap_or(false);
        let has_chap = section.place();
        let chap = self.chap(section);
        let each = limit(section).unwrap_or_default();
        let mut access = AccessRules::default();
        for mut initiator in section.sections("initiator") {
            let name = initiator.required("name", name);
            // Without credentials of its own, those of the target hold.
            let chap = self.chap(&mut initiator).or_else(|| chap.clone());
            let write_protection = self.protection(&mut initiator, luns);
            let limit = limit(&mut initiator).unwrap_or(each);
            initiator.finish();
            let Some((place, name)) = name else { continue };
            let rule = AccessRule { chap, write_protection, limit };
            if access.initiators.insert(name.clone(), rule).is_some() {
                self.reader.complain(&place, format!("there is a rule for {name} already"));
            }
        }
        if anyone {
            access.anyone = Some(AccessRule { chap, limit: each, ..AccessRule::default() });
        } else if access.initiators.is_empty() {
            let what = "admits nobody: name initiators with [[target.initiator]], \
                        or say anyone = true";
            self.reader.complain(&has_chap, what);
        }
        access
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
            if luns.insert(number as u16, lun).is_some() {
                self.reader.complain(&place, format!("there is a LUN {number} already"));
            }
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
