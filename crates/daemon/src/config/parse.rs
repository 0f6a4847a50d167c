//! From TOML to [`Config`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use iscsi::poll::POLL_MAX;
use iscsi::target::{CongestionChoice, Limits, PortalSpec, SessionConfig, TargetSpec};
use iscsi_proto::keys::{DigestPreference, Offer};
use iscsi_proto::names::TargetAddress;
use toml_span::value::ValueInner;

use super::isns::isns;
use super::reader::{
    Place, Problem, Reader, Section, boolean, dscp, number, one_of, parsed, size, sort, string,
    time,
};
use super::sources::Sources;
use super::target::Context;
use super::uplink::uplinks;
use super::{Config, ServerPlaces, ServerSection, secret};

/// The admin socket, unless told otherwise.
pub(crate) const ADMIN_SOCKET: &str = "/run/enkaku/target.sock";

/// Least memory: the largest command has to fit what one initiator may use of the common half.
const MEMORY_BYTES_MIN: u64 = 128 << 20;

/// Largest values of their fields (RFC 7143 §13).
const LENGTH_MAX: u64 = (1 << 24) - 1;

/// Longest time limit that is taken for meant.
const TIME_MAX: Duration = Duration::from_secs(3600);

const LEVELS: &[&str] = &["off", "error", "warn", "info", "debug", "trace"];

const DIGESTS: &[(&str, DigestPreference)] = &[
    ("never", DigestPreference::Never),
    ("avoid", DigestPreference::Avoid),
    ("prefer", DigestPreference::Prefer),
    ("require", DigestPreference::Require),
];

/// What could be understood, and everything that is wrong.
pub(super) fn config(sources: &Sources) -> (Option<Config>, Vec<Problem>) {
    let open = sources.iter().map(|source| (Reader::new(&source.path, &source.text), source));
    let readers: Vec<_> = open.collect();
    let mut merged: Option<Section<'_, '_>> = None;
    let mut is_toml = true;
    for (reader, source) in &readers {
        match toml_span::parse(&source.text) {
            Ok(mut value) => {
                let span = value.span;
                let ValueInner::Table(table) = value.take() else { continue };
                let part = Section::new(reader, String::new(), span, table);
                match &mut merged {
                    Some(before) => before.merge(part),
                    None => merged = Some(part),
                }
            }
            Err(error) => {
                reader.complain(&reader.place(error.span, ""), error);
                is_toml = false;
            }
        }
    }
    // Half of what belongs together would be told to be wrong for want of the other half.
    let whole = merged.filter(|_| is_toml).zip(readers.first());
    let config = whole.and_then(|(merged, (main, _))| root(main, merged));
    let main = sources.iter().next().map_or(Path::new(""), |source| &*source.path);
    let problems = readers.iter().flat_map(|(reader, _)| reader.take_problems());
    let mut problems: Vec<Problem> = problems.collect();
    sort(&mut problems, main);
    (config, problems)
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
    let uplink_sections = root.sections("uplink");
    // A home that nobody can call need not listen.
    if sections.is_empty() && uplink_sections.is_empty() {
        root.complain("no portal: where to listen? (add [[portal]] with listen = \"[::]:3260\")");
    }
    let portals = portals(reader, sections);
    let Ok(default) = TargetSpec::new("iqn.2026-11.io.enkaku:default", nothing()) else {
        return None;
    };
    let mut names: Vec<_> = portals.iter().map(|(_, portal)| portal.name.clone()).collect();
    let uplinks = uplinks(reader, uplink_sections, &names, &mut warnings);
    names.extend(uplinks.iter().map(|uplink| uplink.name.clone()));
    let names = names.into_iter().collect();
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
        // No mistake: units and their targets may come and go while it runs, down to none.
        let what = "no target: nothing is served (add [[target]], or `enkaku target lun add`)";
        context.warnings.push(root.place().problem(what).to_string());
    }
    let targets = context.targets(sections);
    root.finish();
    let warnings = context.warnings;
    Some(Config { server, limits, discovery, isns, uplinks, portals, targets, warnings })
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
        let external = section.get("external", target_address());
        let redirect = section.get("redirect", target_address());
        let poll = section.get("poll", time(POLL_MAX));
        let dscp = section.get("dscp", dscp);
        section.finish();
        let Some((place, listen)) = listen else { continue };
        let name = name.unwrap_or_else(|| listen.to_string());
        let same =
            |other: &&(Place, PortalSpec)| other.1.name == name || overlap(other.1.listen, listen);
        if let Some((known, other)) = portals.iter().find(same) {
            let what = format!("there is a portal {} on {} already", other.name, other.listen);
            reader.complain(&place, format!("{what}, in {}", known.at()));
            continue;
        }
        portals.push((place, PortalSpec { name, listen, external, redirect, poll, dscp }));
    }
    portals
}

/// An address that initiators are told.
fn target_address() -> impl FnOnce(ValueInner<'_>) -> Result<TargetAddress, String> {
    parsed("an address or host name, with a port if it is not 3260", |text| {
        text.parse::<TargetAddress>().ok().filter(|address| address.group.is_none())
    })
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
pub(super) fn parameters(mut offer: Offer, mut section: Section<'_, '_>) -> Offer {
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
