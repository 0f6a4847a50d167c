//! `[isns]`: where the daemon's targets are registered.

use std::time::Duration;

use iscsi_proto::names::TargetAddress;
use toml_span::value::ValueInner;

use super::reader::{Place, Section, list, parsed, string, time};

/// Longest identifier of an entity, and name of a domain (RFC 4171 §6.1: 256 bytes with a NUL).
const TEXT_MAX: usize = 255;

/// Longest time between inquiries: what a server grants at most, ours and Open-iSNS's.
const ESI_MAX: Duration = Duration::from_secs(3600);

/// `[isns]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsnsSection {
    /// Where it stands.
    pub place: Place,
    /// HOST:PORT of the server.
    pub server: String,
    /// What the host is called there; its name unless given.
    pub entity: Option<String>,
    /// How often the server is to ask whether the host is there; never unless given.
    pub esi_interval: Option<Duration>,
    /// Discovery domains that the targets are put into.
    pub domains: Vec<String>,
}

pub(super) fn isns(mut section: Section<'_, '_>) -> Option<IsnsSection> {
    let place = section.place();
    let server = section.required("server", server);
    let entity = section.get("entity", text);
    let esi_interval = section.get("esi_interval", time(ESI_MAX));
    let domains = section.get("domains", list(text)).unwrap_or_default();
    section.finish();
    let (_, server) = server?;
    Some(IsnsSection { place, server, entity, esi_interval, domains })
}

fn text(value: ValueInner<'_>) -> Result<String, String> {
    let text = string(value)?;
    let allowed = text.len() <= TEXT_MAX && !text.chars().any(char::is_control);
    allowed.then_some(text).ok_or_else(|| {
        format!("is too long or has control characters (up to {TEXT_MAX} bytes are allowed)")
    })
}

fn server(value: ValueInner<'_>) -> Result<String, String> {
    parsed(
        "a host with a port if it is not 3205, as in isns.example.org or [2001:db8::1]:3205",
        parse_server,
    )(value)
}

/// HOST:PORT of `host[:port]`.
pub fn parse_server(text: &str) -> Option<String> {
    with_port(text, discovery::isns::PORT)
}

/// HOST:PORT of `host[:port]`, with this port where none is written.
pub(super) fn with_port(text: &str, port: u16) -> Option<String> {
    let mut address: TargetAddress =
        text.parse().ok().filter(|at: &TargetAddress| at.group.is_none())?;
    let behind_brackets = text.split_once(']').map_or(text, |(_, behind)| behind);
    // Where no port is written, it is not iSCSI's, as it is in other addresses.
    if !behind_brackets.contains(':') {
        address.port = port;
    }
    Some(address.to_string())
}
