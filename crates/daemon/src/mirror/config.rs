//! The configuration of one mirror: TOML, read strictly, all errors at once; and written, since
//! `enkaku mirror create` makes it.
//!
//! It says what is wanted; nothing is opened here. Secrets never stand in it, only the names of
//! their files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use block::mirror::{Config as Behaviour, LEGS_MAX, Mode, OnLag, OnLoss, ResyncRate};
use iscsi::initiator::Url;
use iscsi::transport::Dscp;
use iscsi_proto::keys::DigestPreference;
use iscsi_proto::names::check_name;
use toml_span::value::ValueInner;

use self::before::{hook, hook_toml};
use self::lag::lag;
pub use self::rate::{parse_rate, rate_words};
use self::verify::{verify, verify_toml};
use super::hook::Hook;
use crate::config::ConfigError;
use crate::config::reader::{
    Place, Problem, Reader, Section, dscp, number, one_of, size, string, time,
};
use crate::toml_text::{quoted, quoted_path};

/// Longest wait for a leg that is taken for meant.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// Most connections that may be asked for, as on the command line of `attach`.
const CONNECTIONS_MAX: u64 = 64;

const MODES: &[(&str, Mode)] = &[("sync", Mode::Sync), ("async", Mode::Async)];

const ON_LAG: &[(&str, OnLag)] =
    &[("slow", OnLag::Slow), ("fall-behind", OnLag::FallBehind), ("stop", OnLag::Stop)];

const ON_LOSS: &[(&str, OnLoss)] = &[("continue", OnLoss::Continue), ("stop", OnLoss::Stop)];

const FENCES: &[(&str, FenceWish)] =
    &[("reservation", FenceWish::Reservation), ("none", FenceWish::None)];

const ORDERS: &[(&str, OrderWish)] =
    &[("auto", OrderWish::Auto), ("stream", OrderWish::Stream), ("waited", OrderWish::Waited)];

const DIGESTS: &[(&str, DigestPreference)] = &[
    ("none", DigestPreference::Avoid),
    ("prefer", DigestPreference::Prefer),
    ("require", DigestPreference::Require),
];

/// What the file says.
#[derive(Clone, Debug)]
pub struct MirrorConfig {
    /// The local device: a regular file or a block device.
    pub local: PathBuf,
    /// Where the mirror keeps what it knows: a file of its own or a block device.
    pub metadata: PathBuf,
    /// How it behaves.
    pub behaviour: Behaviour,
    /// What is run before a leg's image is written over in place.
    pub hook: Option<Hook>,
    /// The legs, in their order: at least one, at most [`LEGS_MAX`].
    pub legs: Vec<LegConfig>,
}

/// `[[mirror.remote]]`.
#[derive(Clone, Debug)]
pub struct LegConfig {
    /// Where it stands.
    pub place: Place,
    /// Where the leg is.
    pub way: Way,
    /// File whose first line is the CHAP password of the URL's user.
    pub chap_password_file: Option<PathBuf>,
    /// Name that the target has to prove, and the file of its password.
    pub mutual: Option<(String, PathBuf)>,
    /// How we call ourselves there.
    pub initiator_name: Option<String>,
    /// TCP connections; chosen while data flows unless given.
    pub connections: Option<u16>,
    /// How packets are marked; as the system does unless given.
    pub dscp: Option<Dscp>,
    /// CRC32C over headers and data.
    pub digest: DigestPreference,
    /// What keeps others from writing; a reservation where the target knows them unless given.
    pub fence: Option<FenceWish>,
    /// How the epochs of the asynchronous mode get there.
    pub order: OrderWish,
}

/// How epochs get to a leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderWish {
    /// As suits the target best.
    #[default]
    Auto,
    /// In one stream, where the target keeps the order of commands.
    Stream,
    /// Each when the one before is known to be stable, whatever the target can.
    Waited,
}

/// What keeps others from writing to a leg, where the configuration says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceWish {
    /// A persistent reservation: without one the leg is not used.
    Reservation,
    /// Nothing but looks at the leg's superblock, also where its target knows reservations: for
    /// targets whose reservations do harm.
    None,
}

/// How a leg is reached.
#[derive(Clone, Debug)]
pub enum Way {
    /// By iSCSI.
    Url(Box<Url>),
    /// As a file or block device of this machine.
    Path(PathBuf),
}

impl Way {
    /// What a user writes on a command line: a URL, or a path.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.contains("://") {
            let absolute = std::path::absolute(text).map_err(|error| format!("{text}: {error}"))?;
            return Ok(Self::Path(absolute));
        }
        let url: Url = text.parse().map_err(|error| format!("{error}"))?;
        if url.password.is_some() {
            return Err(format!(
                "{url}: a configuration holds no password: leave it out of the URL, and put it \
                 into a file for chap_password_file, or into LIBISCSI_CHAP_PASSWORD"
            ));
        }
        Ok(Self::Url(Box::new(url)))
    }
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(url) => url.fmt(f),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

impl LegConfig {
    /// A leg with nothing said about it but where it is.
    pub fn new(way: Way) -> Self {
        Self {
            place: Place::default(),
            way,
            chap_password_file: None,
            mutual: None,
            initiator_name: None,
            connections: None,
            dscp: None,
            digest: DigestPreference::Avoid,
            fence: None,
            order: OrderWish::Auto,
        }
    }
}

impl MirrorConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`] with everything that is wrong with it.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let what = match error.kind() {
                std::io::ErrorKind::NotFound => {
                    "there is no such mirror; `enkaku mirror create` makes one".to_owned()
                }
                _ => format!("cannot be read: {error}"),
            };
            ConfigError(vec![Place::of_file(path, "").problem(what)])
        })?;
        Self::parse(path, &text)
    }

    /// Reads text; `path` is for messages.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        match parse(path, text) {
            (Some(config), problems) if problems.is_empty() => Ok(config),
            (_, problems) => Err(ConfigError(problems)),
        }
    }

    /// The text of the file; [`parse`](Self::parse) reads the same from it.
    ///
    /// # Errors
    /// A path that TOML cannot hold, since it is no UTF-8.
    pub fn to_toml(&self, name: &str) -> Result<String, String> {
        let defaults = Behaviour::default();
        let behaviour = &self.behaviour;
        let mut text = format!(
            "# The mirror {name}. What the keys mean: docs/mirror.md. Changes count from the next\n\
             # `enkaku mirror run` on.\n[mirror]\nlocal = {}\nmetadata = {}\nmode = \"{}\"\n",
            quoted_path(&self.local)?,
            quoted_path(&self.metadata)?,
            word(MODES, behaviour.mode),
        );
        // `write!` to a String cannot fail.
        let lag = &behaviour.lag;
        let _ = writeln!(
            text,
            "lag = {{ seconds = {:?}, bytes = {}, on = \"{}\" }}",
            lag.age.as_secs_f64(),
            lag.bytes,
            word(ON_LAG, lag.on)
        );
        let _ = writeln!(text, "on_loss = \"{}\"", word(ON_LOSS, behaviour.on_loss));
        let timeout_ms = behaviour.remote_timeout.as_millis();
        let _ = writeln!(text, "remote_timeout = \"{timeout_ms}ms\"");
        if behaviour.resync_rate != ResyncRate::Max {
            let _ = writeln!(text, "resync_rate = \"{}\"", rate_words(behaviour.resync_rate));
        }
        if behaviour.resync_window_bytes != defaults.resync_window_bytes {
            let _ = writeln!(text, "resync_window = {}", behaviour.resync_window_bytes);
        }
        if let Some(bytes) = behaviour.redo_bytes {
            let _ = writeln!(text, "redo = {bytes}");
        }
        if let Some(every) = &behaviour.verify {
            text.push_str(&verify_toml(every));
        }
        if let Some(hook) = &self.hook {
            text.push_str(&hook_toml(hook));
        }
        for leg in &self.legs {
            text.push_str(&leg.to_toml()?);
        }
        Ok(text)
    }
}

/// The text of a configuration without one of its legs, as an editor would make it: what else
/// stands there, comments too, stays.
pub fn without_leg(text: &str, leg: usize) -> String {
    let mut legs = 0;
    let mut out = false;
    let lines = text.lines().filter(|line| {
        let line = line.trim_start();
        if line.starts_with('[') {
            let remote = line.starts_with("[[mirror.remote]]");
            out = remote && legs == leg;
            legs += usize::from(remote);
        }
        !out
    });
    let mut text: String = lines.flat_map(|line| [line, "\n"]).collect();
    text.truncate(text.trim_end().len());
    text + "\n"
}

impl LegConfig {
    /// Its table.
    ///
    /// # Errors
    /// A path that TOML cannot hold, since it is no UTF-8.
    pub fn to_toml(&self) -> Result<String, String> {
        let mut text = String::from("\n[[mirror.remote]]\n");
        match &self.way {
            Way::Url(url) => {
                let _ = writeln!(text, "url = {}", quoted(&url.to_string()));
            }
            Way::Path(path) => {
                let _ = writeln!(text, "path = {}", quoted_path(path)?);
            }
        }
        if let Some(file) = &self.chap_password_file {
            let _ = writeln!(text, "chap_password_file = {}", quoted_path(file)?);
        }
        if let Some((user, file)) = &self.mutual {
            let _ = writeln!(text, "mutual_user = {}", quoted(user));
            let _ = writeln!(text, "mutual_password_file = {}", quoted_path(file)?);
        }
        if let Some(name) = &self.initiator_name {
            let _ = writeln!(text, "initiator_name = {}", quoted(name));
        }
        if let Some(connections) = self.connections {
            let _ = writeln!(text, "connections = {connections}");
        }
        if let Some(dscp) = self.dscp {
            let _ = writeln!(text, "dscp = \"{dscp}\"");
        }
        if self.digest != DigestPreference::Avoid {
            let _ = writeln!(text, "digest = \"{}\"", word(DIGESTS, self.digest));
        }
        if let Some(fence) = self.fence {
            let _ = writeln!(text, "fence = \"{}\"", word(FENCES, fence));
        }
        if self.order != OrderWish::Auto {
            let _ = writeln!(text, "order = \"{}\"", word(ORDERS, self.order));
        }
        Ok(text)
    }
}

fn word<T: Copy + PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, other)| *other == value).map_or("", |(word, _)| *word)
}

/// What could be understood, and everything that is wrong.
fn parse(path: &Path, text: &str) -> (Option<MirrorConfig>, Vec<Problem>) {
    let reader = Reader::new(path, text);
    let config = match toml_span::parse(text) {
        Ok(mut value) => {
            let span = value.span;
            match value.take() {
                ValueInner::Table(table) => root(Section::new(&reader, String::new(), span, table)),
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

fn root(mut root: Section<'_, '_>) -> Option<MirrorConfig> {
    let section = root.section("mirror");
    if section.is_none() {
        root.complain("no table [mirror]: is it the configuration of a mirror?");
    }
    let config = section.and_then(mirror);
    root.finish();
    config
}

fn mirror(mut section: Section<'_, '_>) -> Option<MirrorConfig> {
    let local = section.required("local", absolute);
    let metadata = section.required("metadata", absolute);
    let mut behaviour = Behaviour::default();
    if let Some(mode) = section.get("mode", one_of(MODES)) {
        behaviour.mode = mode;
    }
    if let Some(lag_section) = section.section("lag") {
        behaviour.lag = lag(lag_section, behaviour.lag);
    }
    if let Some(on_loss) = section.get("on_loss", one_of(ON_LOSS)) {
        behaviour.on_loss = on_loss;
    }
    if let Some(timeout) = section.get("remote_timeout", time(TIMEOUT_MAX)) {
        behaviour.remote_timeout = timeout;
    }
    if let Some(rate) = section.get("resync_rate", rate) {
        behaviour.resync_rate = rate;
    }
    if let Some(bytes) = section.get("resync_window", size(64 << 10, 1 << 30)) {
        behaviour.resync_window_bytes = bytes;
    }
    if let Some(bytes) = section.get("redo", size(0, 1 << 40)) {
        behaviour.redo_bytes = Some(bytes);
    }
    behaviour.verify = section.section("verify").map(verify);
    let hook = hook(&mut section);
    let sections = section.sections("remote");
    let count = sections.len();
    if count == 0 || count > LEGS_MAX {
        section.complain(format!("{count} legs ([[mirror.remote]]); a mirror has 1 to {LEGS_MAX}"));
    }
    let legs: Vec<LegConfig> = sections.into_iter().filter_map(leg).collect();
    let own: Vec<&(Place, PathBuf)> = local.iter().chain(&metadata).collect();
    one_thing_twice(&section, &own, &legs);
    section.finish();
    let (local, metadata) = (local?.1, metadata?.1);
    Some(MirrorConfig { local, metadata, behaviour, hook, legs })
}

/// A disk that is its own mirror protects nobody.
fn one_thing_twice(section: &Section<'_, '_>, own: &[&(Place, PathBuf)], legs: &[LegConfig]) {
    let own = own.iter().map(|(place, path)| (place, path.display().to_string()));
    let legs = legs.iter().map(|leg| (&leg.place, leg.way.to_string()));
    let mut seen: Vec<String> = Vec::new();
    for (place, name) in own.chain(legs) {
        if seen.contains(&name) {
            section.complain_at(place, format!("{name} is there twice"));
        }
        seen.push(name);
    }
}

fn leg(mut section: Section<'_, '_>) -> Option<LegConfig> {
    let place = section.place();
    let given = section.has("url") || section.has("path");
    let url = section.with("url", |value| match Way::parse(&string(value)?)? {
        way @ Way::Url(_) => Ok(way),
        Way::Path(path) => Err(format!("{} is no URL (path = … is for files)", path.display())),
    });
    let path = section.get("path", |value| absolute(value).map(Way::Path));
    let way = match (url, path) {
        (Some((_, url)), None) => Some(url),
        (None, Some(path)) => Some(path),
        (Some((place, _)), Some(_)) => {
            section.complain_at(&place, "path is there as well: one of them");
            None
        }
        (None, None) => {
            // A url or path that was there and wrong has been complained about.
            if !given {
                section.complain("url or path is missing");
            }
            None
        }
    };
    let chap_password_file = section.get("chap_password_file", absolute);
    let user = section.get("mutual_user", string);
    let file = section.get("mutual_password_file", absolute);
    if user.is_some() != file.is_some() {
        section.complain("mutual_user and mutual_password_file belong together");
    }
    let initiator_name = section.get("initiator_name", |value| {
        check_name(&string(value)?).map_err(|error| error.to_string())
    });
    let connections = section.get("connections", number(1, CONNECTIONS_MAX));
    let dscp = section.get("dscp", dscp);
    let digest = section.get("digest", one_of(DIGESTS)).unwrap_or(DigestPreference::Avoid);
    let fence = section.get("fence", one_of(FENCES));
    let order = section.get("order", one_of(ORDERS)).unwrap_or_default();
    section.finish();
    Some(LegConfig {
        place,
        way: way?,
        chap_password_file,
        mutual: user.zip(file),
        initiator_name,
        connections: connections.and_then(|n| u16::try_from(n).ok()),
        dscp,
        digest,
        fence,
        order,
    })
}

/// A path that means the same wherever the process was started.
fn absolute(value: ValueInner<'_>) -> Result<PathBuf, String> {
    let path = PathBuf::from(string(value)?);
    match path.is_absolute() {
        true => Ok(path),
        false => {
            Err(format!("{} is relative; a path that begins with / is needed", path.display()))
        }
    }
}

/// `"200mbit"`, or `"max"` for no limit; in bytes a second.
fn rate(value: ValueInner<'_>) -> Result<ResyncRate, String> {
    parse_rate(&string(value)?)
}

mod before;
mod lag;
mod rate;
#[cfg(test)]
mod tests;
mod verify;
