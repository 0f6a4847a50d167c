//! The configuration: TOML, read strictly, all errors at once; a file, and drop-ins beside it.
//!
//! It says what is wanted; nothing is opened here but password files.

mod isns;
pub(crate) mod limit;
mod lun;
pub mod pair;
mod parse;
pub(crate) mod reader;
pub(crate) mod secret;
pub(crate) mod sources;
mod target;
#[cfg(test)]
mod tests;
mod uplink;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use iscsi::target::{
    AccessRules, Chap, CongestionChoice, Limit, Limits, PortalSpec, SessionConfig,
};
use iscsi_proto::keys::Offer;

use crate::mirror::files::Files;
use pair::PairSection;
use sources::Sources;

pub use isns::{IsnsSection, parse_server};
pub use limit::{parse_burst, parse_max_iops, parse_max_rate};
pub use reader::{Place, Problem};
pub use uplink::UplinkSection;

/// What the file says.
#[derive(Clone, Debug)]
pub struct Config {
    /// The daemon itself.
    pub server: ServerSection,
    /// Limits over all targets.
    pub limits: Limits,
    /// What initiators have to prove to be told of targets.
    pub discovery: Option<Chap>,
    /// Where the targets are registered.
    pub isns: Option<IsnsSection>,
    /// Whom to call.
    pub uplinks: Vec<UplinkSection>,
    /// Where to listen, with the place in the file.
    pub portals: Vec<(Place, PortalSpec)>,
    /// Targets by name.
    pub targets: BTreeMap<String, TargetSection>,
    /// What is allowed but unwise.
    pub warnings: Vec<String>,
}

/// `[server]` and `[metrics]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSection {
    /// Where persistent reservations are kept; without it they end with the daemon.
    pub state_directory: Option<PathBuf>,
    /// The admin socket.
    pub admin_socket: PathBuf,
    /// Log level, or a filter of tracing.
    pub log: String,
    /// Where the configurations of mirrors are; the usual place unless given.
    pub mirror_directory: Option<PathBuf>,
    /// How long initiators may take to log out at shutdown.
    pub shutdown_timeout: Duration,
    /// TCP's congestion control of all connections.
    pub congestion_control: CongestionChoice,
    /// Where metrics and health are served over HTTP.
    pub metrics: Option<SocketAddr>,
    /// Where these stand.
    pub places: ServerPlaces,
}

/// Where what is opened outside of targets and portals stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerPlaces {
    /// Of `state_directory`.
    pub state_directory: Place,
    /// Of `admin_socket`.
    pub admin_socket: Place,
    /// Of `metrics.listen`.
    pub metrics: Place,
}

/// `[[target]]`.
#[derive(Clone, Debug)]
pub struct TargetSection {
    /// Where it stands.
    pub place: Place,
    /// iSCSI name, in lower case.
    pub name: String,
    /// For people.
    pub alias: Option<String>,
    /// Negotiated parameters.
    pub offer: Offer,
    /// Limits of a session.
    pub session: SessionConfig,
    /// Names of the portals it uses; `None`: all.
    pub portals: Option<BTreeSet<String>>,
    /// Who may use it.
    pub access: AccessRules,
    /// Where that is said: of each initiator that is named, and of `anyone = true`.
    pub access_places: AccessPlaces,
    /// Other daemons serve the same units under its name.
    pub pair: Option<PairSection>,
    /// Logical units by number.
    pub luns: BTreeMap<u16, LunSection>,
    /// How fast all initiators together may use one of them. Apart from the rest of a LUN, which
    /// cannot change while it is in use.
    pub lun_limits: BTreeMap<u16, Limit>,
}

/// Where the rules of a target stand.
#[derive(Clone, Debug, Default)]
pub struct AccessPlaces {
    /// By initiator name, in lower case.
    pub initiators: BTreeMap<String, Place>,
    /// Where `anyone = true` is said, if it is.
    pub anyone: Option<Place>,
}

/// What is behind a logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A regular file or a block device.
    Path(PathBuf),
    /// Memory of this many bytes.
    Memory(u64),
    /// A mirror that this daemon runs.
    Mirror(Files),
    /// A volume of somebody else's target or server.
    Volume(VolumeSection),
}

/// A volume of somebody else's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSection {
    /// Where it is.
    pub source: VolumeSource,
    /// File whose first line is the CHAP password of the URL's user.
    pub chap_password_file: Option<PathBuf>,
}

/// Where a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeSource {
    /// A URL that [`backends::Location`] can read, without a password.
    Url(String),
    /// A server that is started for it: a program and its arguments.
    Command(Vec<String>),
}

impl fmt::Display for VolumeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => f.write_str(url),
            Self::Command(argv) => f.write_str(&argv.join(" ")),
        }
    }
}

/// `[[target.lun]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct LunSection {
    /// Where it stands. Makes no difference to a comparison.
    pub place: Place,
    /// What is behind it.
    pub backing: Backing,
    /// Make a sparse file of this size where there is none.
    pub create: Option<u64>,
    /// No initiator may write.
    pub read_only: bool,
    /// Logical block size in bytes.
    pub block_size: Option<u32>,
    /// Physical block size in bytes to report.
    pub physical_block_size: Option<u32>,
    /// Bypass the page cache.
    pub direct: bool,
    /// Space can be given back (UNMAP).
    pub thin: bool,
    /// Completed writes may be volatile until a flush.
    pub write_cache: bool,
    /// Serial number instead of the derived one.
    pub serial: Option<String>,
    /// NAA designator instead of the derived one.
    pub naa: Option<u64>,
    /// Vendor and product identification.
    pub product: Option<(String, String)>,
    /// Memory that the machine may not have.
    pub overcommit: bool,
    /// Warn initiators when the file system has less left.
    pub space_warning_bytes: u64,
    /// Nobody reaches the volume behind it but by this daemon.
    pub exclusive: bool,
}

impl Backing {
    /// What it is, for people.
    pub fn describe(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::Volume(volume) => volume.source.to_string(),
            Self::Memory(bytes) => format!("memory of {bytes} bytes"),
            Self::Mirror(files) => format!("the mirror {}", files.name()),
        }
    }
}

impl LunSection {
    /// Is a unit with this section the same as one with the other? `create` says something only
    /// where there is no file yet.
    pub(crate) fn serves_alike(&self, other: &Self) -> bool {
        let other = Self { create: self.create, ..other.clone() };
        *self == other
    }

    /// May others reach the same data by other ways than this daemon?
    pub(crate) fn is_shared_beyond(&self) -> bool {
        match &self.backing {
            Backing::Volume(VolumeSection { source: VolumeSource::Url(_), .. }) => !self.exclusive,
            // The socket of a server that we start is ours.
            _ => false,
        }
    }
}

/// A configuration that cannot be used, and every reason why.
#[derive(Debug, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct ConfigError(pub Vec<Problem>);

fn lines(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

impl Config {
    /// Reads a file, and the drop-ins beside it.
    ///
    /// # Errors
    /// [`ConfigError`] with everything that is wrong with them.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::of(&Sources::read(path).map_err(ConfigError)?)
    }

    /// Reads text; `path` is for messages.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::of(&Sources::of_text(path, text))
    }

    /// Reads what files say that were read already.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn of(sources: &Sources) -> Result<Self, ConfigError> {
        match parse::config(sources) {
            (Some(config), problems) if problems.is_empty() => Ok(config),
            (_, problems) => Err(ConfigError(problems)),
        }
    }

    /// Reads a file, and the drop-ins beside it, as far as they can be understood, and says
    /// everything that is wrong with them.
    pub(crate) fn examine(path: &Path) -> (Option<Self>, Vec<Problem>) {
        match Sources::read(path) {
            Ok(sources) => parse::config(&sources),
            Err(problems) => (None, problems),
        }
    }
}
