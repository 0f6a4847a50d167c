//! `[[uplink]]`: a server that the daemon calls, because nobody can call it.

use std::path::PathBuf;
use std::sync::Arc;

use toml_span::value::ValueInner;
use uplink::{Identity, Pin};

use super::reader::{Place, Reader, Section, parsed, string};
use super::secret::read_private;

/// Longest name: it is shown beside those of portals.
const NAME_LEN_MAX: usize = 63;

/// `[[uplink]]`.
#[derive(Clone, Debug)]
pub struct UplinkSection {
    /// Where it stands.
    pub place: Place,
    /// What targets call it, as they call portals.
    pub name: String,
    /// HOST:PORT of the server.
    pub server: String,
    /// The server's key.
    pub pin: Pin,
    /// This host's.
    pub identity: Arc<Identity>,
}

impl UplinkSection {
    /// Would the same connections be made?
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let of = |section: &Self| (section.server.clone(), section.pin, section.identity.pin());
        of(self) == of(other)
    }
}

/// Reads all of them; names are not those of portals, nor of each other.
pub(super) fn uplinks(
    reader: &Reader,
    sections: Vec<Section<'_, '_>>,
    portals: &[String],
    warnings: &mut Vec<String>,
) -> Vec<UplinkSection> {
    let mut uplinks: Vec<UplinkSection> = Vec::new();
    for mut section in sections {
        let place = section.place();
        let name = section.required("name", name);
        let server = section.required("server", server);
        let pin = section.required("pin", pin);
        let identity = section.required("key_file", string).and_then(|(place, file)| {
            let read = read_private(&place, &PathBuf::from(&file), warnings);
            let identity = read.and_then(|pem| {
                Identity::from_pem(&pem).map_err(|error| format!("{file}: {error}"))
            });
            identity.map_err(|what| reader.complain(&place, what)).ok()
        });
        section.finish();
        let (Some((at, name)), Some((_, server)), Some((_, pin)), Some(identity)) =
            (name, server, pin, identity)
        else {
            continue;
        };
        if portals.contains(&name) || uplinks.iter().any(|other| other.name == name) {
            let what = format!("there is a portal or uplink called {name:?} already");
            reader.complain(&at, what);
            continue;
        }
        uplinks.push(UplinkSection { place, name, server, pin, identity: Arc::new(identity) });
    }
    uplinks
}

fn name(value: ValueInner<'_>) -> Result<String, String> {
    let text = string(value)?;
    let allowed = (1..=NAME_LEN_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    allowed.then_some(text).ok_or_else(|| {
        format!("is no name (letters, digits, - _ . are allowed, up to {NAME_LEN_MAX} of them)")
    })
}

fn pin(value: ValueInner<'_>) -> Result<Pin, String> {
    string(value)?.parse().map_err(|error: uplink::PinError| error.to_string())
}

fn server(value: ValueInner<'_>) -> Result<String, String> {
    parsed(
        "a host with a port if it is not 3270, as in films.example or [2001:db8::1]:3270",
        |text| super::isns::with_port(text, uplink::PORT),
    )(value)
}
