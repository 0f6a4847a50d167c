//! Options of every command that uses a remote volume, and connecting to one.

mod location;

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use backends::Location;
use block::Device;
use block::layer::{CacheConfig, CacheLayer, CacheMode};
use iscsi::initiator::{
    ChapCredentials, Config, ERROR_RECOVERY_LEVEL_DEFAULT, ERROR_RECOVERY_LEVEL_MAX, IsidChoice,
    PASSWORD_VARIABLE, RemoteDisk, Secret, Share, Url,
};
use iscsi::target::CongestionChoice;
use iscsi::transport::Dscp;
use iscsi_proto::keys::DigestPreference;
use iscsi_proto::names::check_name;
use path::PolicyConfig;
use wanlab::units;

pub(crate) use self::location::parse_location;
use super::bursts::BurstArgs;
use super::{Usage, complain, read_secret};

/// The form of a volume's URL, libiscsi's.
pub(crate) const URL_HELP: &str = "iscsi://[user[%password]@]host[:port]/target-iqn/lun";

/// The form of a name.
pub(crate) const NAME_HELP: &str = "allowed is iqn.YYYY-MM.DOMAIN[:NAME], eui.… or naa.…";

/// Most connections that may be asked for.
const CONNECTIONS_MAX: u16 = 64;

/// Smallest rate that may be set, in bits a second: below it, one transfer takes minutes.
const MAX_RATE_MIN: u64 = 64_000;

/// Where paths are remembered, if no option says it.
const MEMORY_VARIABLE: &str = "ENKAKU_PATH_MEMORY";

/// How to reach a volume.
#[derive(clap::Args, Debug)]
pub(crate) struct RemoteArgs {
    /// TCP connections to use, 1 to 64; auto lets a policy choose while data flows.
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = parse_connections)]
    pub(crate) connections: Connections,
    /// Who chooses the number of connections: adaptive (from a model of the path), golden (the APT
    /// study's search), fixed or fixed:N [default: adaptive with auto, fixed with a number, which
    /// the others begin with].
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<PolicyConfig>,
    /// Where --policy adaptive remembers what paths carried, for the next process; off remembers
    /// nothing [default: $ENKAKU_PATH_MEMORY, else enkaku/paths in $XDG_STATE_HOME or
    /// ~/.local/state].
    #[arg(long, value_name = "off|FILE", value_parser = parse_path_memory)]
    path_memory: Option<PathMemory>,
    /// Take only this part of what the path gives, such as 0.5, measured now and then.
    #[arg(long, value_name = "PART", conflicts_with = "max_rate")]
    pub(crate) share: Option<Share>,
    /// Take no more than this rate, such as 500mbit.
    #[arg(long, value_name = "RATE", value_parser = parse_max_rate)]
    pub(crate) max_rate: Option<u64>,
    /// Take only what others leave: give way to every queue on the path within seconds, over as few
    /// connections as carry it (LEDBAT, RFC 6817). Finds rate and number by itself.
    #[arg(long)]
    pub(crate) background: bool,
    /// On a long path: auto sends and asks no faster than the line was found to carry, so that its
    /// queue does not run over; off leaves that to TCP.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = parse_pacing,
          action = clap::ArgAction::Set)]
    pub(crate) pacing: bool,
    /// Name of this initiator [default: made of the host's name].
    #[arg(long, value_name = "IQN", env = "ENKAKU_INITIATOR_NAME")]
    pub(crate) initiator_name: Option<String>,
    /// File whose first line is the CHAP password of the URL's user.
    #[arg(long, value_name = "FILE")]
    pub(crate) chap_password_file: Option<PathBuf>,
    /// Go on without CHAP where the target wants none, although there is a password.
    #[arg(long)]
    pub(crate) chap_optional: bool,
    /// Demand that the target proves itself as this CHAP user.
    #[arg(long, requires = "mutual_password_file", value_name = "USER")]
    pub(crate) mutual_user: Option<String>,
    /// File whose first line is the password for --mutual-user.
    #[arg(long, requires = "mutual_user", value_name = "FILE")]
    pub(crate) mutual_password_file: Option<PathBuf>,
    /// CRC32C over headers and data: none, prefer (if the target can) or require.
    #[arg(long, value_name = "WHEN", default_value = "none", value_parser = parse_digest)]
    pub(crate) digest: DigestPreference,
    /// How deep errors are recovered if the target can do it, too: 0 sets the session up again,
    /// 1 asks for damaged PDUs again, 2 moves tasks of a lost connection to others.
    #[arg(long, value_name = "0|1|2", default_value_t = ERROR_RECOVERY_LEVEL_DEFAULT,
          value_parser = clap::value_parser!(u8).range(..=i64::from(ERROR_RECOVERY_LEVEL_MAX)))]
    pub(crate) error_recovery_level: u8,
    /// Name of the sessions (ISID): stable is made of this host and the volume, so that a process
    /// takes the place of one that was killed; random; or a name to make it of [default: stable for
    /// attach, else random].
    #[arg(long, value_name = "stable|random|NAME", value_parser = parse_isid)]
    pub(crate) isid: Option<IsidChoice>,
    /// Other initiators write to the volume, too: after an interruption nothing is written again
    /// that could land on theirs; if the target has lost it, the next flush fails.
    #[arg(long)]
    pub(crate) shared: bool,
    /// How long I/O waits for a target that is gone before it fails.
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = units::parse_duration,
          allow_hyphen_values = true)]
    pub(crate) replacement_timeout: Duration,
    /// TCP congestion control of the connections (bbr, cubic, reno, …).
    #[arg(long, value_name = "NAME", value_parser = parse_congestion_control)]
    pub(crate) congestion_control: Option<String>,
    /// Mark the packets of the connections: cs0 to cs7, af11 to af43, ef, va, le, or 0 to 63. What
    /// is read is marked by the target.
    #[arg(long, value_name = "DSCP")]
    pub(crate) dscp: Option<Dscp>,
    /// SO_SNDBUF of the connections; Linux doubles it [default: the kernel sizes it].
    #[arg(long, value_name = "SIZE", value_parser = parse_socket_buffer)]
    pub(crate) send_buffer: Option<usize>,
    /// SO_RCVBUF of the connections; Linux doubles it [default: the kernel sizes it].
    #[arg(long, value_name = "SIZE", value_parser = parse_socket_buffer)]
    pub(crate) receive_buffer: Option<usize>,
    /// How long --policy golden measures each number of connections [default: 5s].
    #[arg(long, value_name = "TIME", value_parser = parse_measuring_time,
          allow_hyphen_values = true)]
    pub(crate) measuring_time: Option<Duration>,
    #[command(flatten)]
    bursts: BurstArgs,
}

/// What is cached on this side.
#[derive(clap::Args, Debug)]
pub(crate) struct CacheArgs {
    /// What to cache: none, read (reads ahead of sequential readers) or write-back (also completes
    /// writes from memory: what is not flushed is lost with this process).
    #[arg(long, value_name = "WHAT", default_value = "read", value_parser = parse_cache)]
    cache: CacheMode,
    /// Most memory of the cache [default: 128M for reading, 64M more for writing].
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    cache_bytes: Option<u64>,
}

impl CacheArgs {
    /// Writes are completed from memory.
    pub(crate) fn is_write_back(&self) -> bool {
        self.cache == CacheMode::WriteBack
    }

    /// The cache these options ask for, before `device`.
    pub(crate) fn layer(&self, device: Device) -> Arc<CacheLayer> {
        let mut config = CacheConfig::default().mode(self.cache);
        if let Some(bytes) = self.cache_bytes {
            config = config.bytes_max(bytes);
        }
        Arc::new(CacheLayer::new(device, config))
    }
}

fn parse_cache(text: &str) -> Result<CacheMode, String> {
    match text {
        "none" => Ok(CacheMode::None),
        "read" => Ok(CacheMode::Read),
        "write-back" => Ok(CacheMode::WriteBack),
        _ => Err(format!("{text:?} is not none, read or write-back")),
    }
}

/// How many connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connections {
    /// Chosen here.
    Auto,
    /// So many.
    Fixed(u16),
}

/// Where paths are remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PathMemory {
    /// Nowhere.
    Off,
    /// In this file.
    File(PathBuf),
}

fn parse_path_memory(text: &str) -> Result<PathMemory, String> {
    match text {
        "off" => Ok(PathMemory::Off),
        "" => Err("an empty name is no file".into()),
        file => Ok(PathMemory::File(file.into())),
    }
}

/// The file of paths where no option names one: the environment's, else one among the user's state.
fn usual_memory_file(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    match variable(MEMORY_VARIABLE).filter(|name| !name.is_empty()) {
        Some(name) if name == "off" => None,
        Some(name) => Some(name.into()),
        None => Some(state_folder(variable)?.join("enkaku/paths")),
    }
}

/// Where state is kept that nobody misses (XDG Base Directory Specification 0.8), if anywhere;
/// relative paths do not count there.
fn state_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))
}

fn parse_max_rate(text: &str) -> Result<u64, String> {
    match units::parse_rate(text) {
        Ok(rate) if rate >= MAX_RATE_MIN => Ok(rate),
        Ok(_) => Err(format!("{text:?} is less than 64kbit")),
        Err(error) => Err(error.to_string()),
    }
}

fn parse_connections(text: &str) -> Result<Connections, String> {
    if text == "auto" {
        return Ok(Connections::Auto);
    }
    match text.parse() {
        Ok(n) if (1..=CONNECTIONS_MAX).contains(&n) => Ok(Connections::Fixed(n)),
        _ => Err(format!("{text:?} is neither auto nor a number from 1 to {CONNECTIONS_MAX}")),
    }
}

fn parse_pacing(text: &str) -> Result<bool, String> {
    match text {
        "auto" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{text:?} is not auto or off")),
    }
}

fn parse_congestion_control(text: &str) -> Result<String, String> {
    match CongestionChoice::parse(text)? {
        CongestionChoice::Named(name) => Ok(name),
        _ => Err(format!("{text:?} is for targets; leave the option out to have the system's")),
    }
}

fn parse_isid(text: &str) -> Result<IsidChoice, String> {
    match text {
        "stable" => Ok(IsidChoice::Stable),
        "random" => Ok(IsidChoice::Random),
        "" => Err("an ISID cannot be made of an empty name".into()),
        name => Ok(IsidChoice::Named(name.into())),
    }
}

/// Socket buffers that may be asked for: below, no segment fits; above, the kernel counts wrong.
const SOCKET_BUFFER: std::ops::RangeInclusive<u64> = 4096..=1 << 30;

/// A size for SO_SNDBUF or SO_RCVBUF.
pub(crate) fn parse_socket_buffer(text: &str) -> Result<usize, String> {
    let bytes = units::parse_size(text).map_err(|error| error.to_string())?;
    match usize::try_from(bytes) {
        Ok(size) if SOCKET_BUFFER.contains(&bytes) => Ok(size),
        _ => Err(format!("{text:?} is not from 4k to 1G")),
    }
}

fn parse_measuring_time(text: &str) -> Result<Duration, String> {
    match units::parse_duration(text) {
        Ok(time) if !time.is_zero() => Ok(time),
        Ok(_) => Err(format!("{text:?} is no time to measure in")),
        Err(error) => Err(error.to_string()),
    }
}

fn parse_digest(text: &str) -> Result<DigestPreference, String> {
    match text {
        "none" => Ok(DigestPreference::Avoid),
        "prefer" => Ok(DigestPreference::Prefer),
        "require" => Ok(DigestPreference::Require),
        _ => Err(format!("{text:?} is not none, prefer or require")),
    }
}

impl RemoteArgs {
    /// The configuration these options ask for, for a volume or a portal.
    fn config(&self) -> anyhow::Result<Config> {
        let rate = self.max_rate.map(|bits| Share::Rate(bits as f64 / 8.0));
        let mut config = Config::default()
            .policy(self.policy()?)
            .share(self.share.or(rate))
            .pacing(self.pacing)
            .digests(self.digest, self.digest)
            .error_recovery_level(self.error_recovery_level)
            .replacement_timeout(self.replacement_timeout);
        if let Some(name) = &self.initiator_name {
            config.initiator_name = initiator_name(name)?;
        }
        config.path_memory = self.memory_file()?;
        config.shared = self.shared;
        config.isid = self.isid.clone().unwrap_or_default();
        config.congestion_control.clone_from(&self.congestion_control);
        config.dscp = self.dscp;
        config.chap_optional = self.chap_optional;
        config.send_buffer = self.send_buffer;
        config.receive_buffer = self.receive_buffer;
        self.bursts.apply(&mut config.offer)?;
        if let (Some(user), Some(file)) = (&self.mutual_user, &self.mutual_password_file) {
            let secret = Secret::new(read_secret(file)?.as_bytes());
            config.chap_mutual = Some(ChapCredentials { user: user.clone(), secret });
        }
        Ok(config)
    }

    /// Where the path is remembered.
    fn memory_file(&self) -> anyhow::Result<Option<PathBuf>> {
        let remembers = match &self.policy {
            _ if self.background => false,
            Some(policy) => matches!(policy, PolicyConfig::Adaptive(_)),
            None => self.connections == Connections::Auto,
        };
        match &self.path_memory {
            Some(PathMemory::File(_)) if !remembers => {
                Err(Usage::error("--path-memory FILE is for --policy adaptive"))
            }
            Some(PathMemory::File(file)) => Ok(Some(file.clone())),
            None => Ok(usual_memory_file(|name| env::var_os(name))),
            Some(PathMemory::Off) => Ok(None),
        }
    }

    /// Who chooses the number of connections, and what he begins with.
    fn policy(&self) -> anyhow::Result<PolicyConfig> {
        let chosen = match self.connections {
            Connections::Auto => None,
            Connections::Fixed(n) => Some(u32::from(n)),
        };
        let mut policy = match (&self.policy, chosen) {
            _ if self.background => self.in_background()?,
            (Some(policy), _) => policy.clone(),
            (None, Some(n)) => PolicyConfig::Fixed(n),
            (None, None) => PolicyConfig::default(),
        };
        match (&mut policy, chosen) {
            (PolicyConfig::Adaptive(config), Some(n)) => config.connections_initial = n,
            (PolicyConfig::Golden(config), Some(n)) => config.connections_initial = n,
            (PolicyConfig::Fixed(fixed), Some(n)) => *fixed = n,
            _ => {}
        }
        if let PolicyConfig::Fixed(n) = &policy
            && *n > u32::from(CONNECTIONS_MAX)
        {
            return Err(Usage::error(format!("--policy fixed:{n}: at most {CONNECTIONS_MAX}")));
        }
        match (&mut policy, self.measuring_time) {
            (PolicyConfig::Golden(golden), Some(time)) => {
                golden.measuring_time_s = time.as_secs_f64();
            }
            (_, Some(_)) => {
                return Err(Usage::error("--measuring-time is for --policy golden"));
            }
            _ => {}
        }
        Ok(policy)
    }

    /// The policy that takes what others leave.
    fn in_background(&self) -> anyhow::Result<PolicyConfig> {
        match &self.policy {
            None | Some(PolicyConfig::Adaptive(_)) if self.pacing => {
                Ok(PolicyConfig::Adaptive(path::Config::in_background()))
            }
            None | Some(PolicyConfig::Adaptive(_)) => {
                Err(Usage::error("--background gives way by its pace: it cannot have --pacing off"))
            }
            Some(_) => Err(Usage::error(
                "--background finds rate and number by itself: leave --policy out (only \
                 adaptive, which it is a mode of, may be named)",
            )),
        }
    }

    /// Connects to the volume.
    pub(crate) async fn open(&self, location: &Location) -> anyhow::Result<Volume> {
        self.open_with(location, |_| ()).await
    }

    /// Connects to the volume, after a last change of the configuration for iSCSI.
    pub(crate) async fn open_with(
        &self,
        location: &Location,
        change: impl FnOnce(&mut Config),
    ) -> anyhow::Result<Volume> {
        let volume = match location {
            Location::Iscsi(url) => backends::Volume::Iscsi(self.connect_with(url, change).await?),
            Location::Nbd(_) => {
                let config = backends::Config { nbd: self.nbd()?, ..Default::default() };
                let opened = backends::Volume::open(location, config).await;
                opened.with_context(|| location.to_string())?
            }
            Location::Rbd(_) => {
                self.check_for_rbd()?;
                // What is wrong names the image already.
                backends::Volume::open(location, backends::Config::default()).await?
            }
        };
        Ok(Volume { volume })
    }

    /// Logs in to a volume behind iSCSI.
    pub(crate) async fn connect(&self, url: &Url) -> anyhow::Result<Volume> {
        Ok(Volume { volume: backends::Volume::Iscsi(self.connect_with(url, |_| ()).await?) })
    }

    /// Logs in to a volume behind iSCSI, after a last change of the configuration.
    async fn connect_with(
        &self,
        url: &Url,
        change: impl FnOnce(&mut Config),
    ) -> anyhow::Result<RemoteDisk> {
        let mut config = self.config()?;
        change(&mut config);
        warn_of_password(url);
        let mut url = url.clone();
        if let Some(file) = &self.chap_password_file {
            if url.user.is_none() {
                return Err(Usage::error(format!(
                    "--chap-password-file: {url} names no user; write iscsi://USER@HOST/…"
                )));
            }
            url.password = Some(Secret::new(read_secret(file)?.as_bytes()));
        }
        Ok(RemoteDisk::connect(url, config).await?)
    }
}

/// Says so where a password stands in the command line.
pub(crate) fn warn_of_password(url: &Url) {
    if url.password.is_some() {
        warn_of_a_password();
    }
}

/// Says that a password stands in the command line.
pub(crate) fn warn_of_a_password() {
    complain(&format!(
        "warning: the password in the URL can be seen in the list of processes and in the \
         shell's history: put it into a file for --chap-password-file, or into \
         {PASSWORD_VARIABLE}"
    ));
}

/// Checks the name an initiator calls itself.
pub(crate) fn initiator_name(name: &str) -> anyhow::Result<String> {
    check_name(name)
        .map_err(|error| Usage::error(format!("initiator name {name}: {error} ({NAME_HELP})")))
}

/// A remote volume in use.
#[derive(Clone)]
pub(crate) struct Volume {
    volume: backends::Volume,
}

impl Volume {
    /// As a block device.
    pub(crate) fn device(&self) -> Device {
        self.volume.device()
    }

    /// As what it is.
    pub(crate) fn backend(&self) -> &backends::Volume {
        &self.volume
    }

    /// As a logical unit behind iSCSI, if it is one.
    pub(crate) fn disk(&self) -> Option<&RemoteDisk> {
        self.volume.iscsi()
    }

    /// Logs out, where nothing was written: there is nothing to flush, which a unit that is
    /// reserved for somebody else refuses.
    pub(crate) async fn close_unwritten(self) -> anyhow::Result<()> {
        match self.volume.close().await {
            Err(block::BlockError::Fenced) => Ok(()),
            closed => Ok(closed?),
        }
    }

    /// Flushes and logs out.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        Ok(self.volume.close().await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_kept_where_the_specification_says() {
        let folder = |xdg: &'static str, home: &'static str| {
            state_folder(|name| match name {
                "XDG_STATE_HOME" => Some(xdg.into()),
                "HOME" => Some(home.into()),
                _ => None,
            })
        };
        assert_eq!(folder("/state", "/mine"), Some("/state".into()));
        assert_eq!(folder("", "/mine"), Some("/mine/.local/state".into()));
        assert_eq!(folder("relative", "/mine"), Some("/mine/.local/state".into()));
        assert_eq!(folder("", ""), None);
        let memory = |said: &'static str| {
            usual_memory_file(|name| match name {
                MEMORY_VARIABLE => Some(said.into()),
                "HOME" => Some("/mine".into()),
                _ => None,
            })
        };
        assert_eq!(memory(""), Some("/mine/.local/state/enkaku/paths".into()));
        assert_eq!(memory("/elsewhere"), Some("/elsewhere".into()));
        assert_eq!(memory("off"), None);
        assert_eq!(parse_path_memory("off"), Ok(PathMemory::Off));
        assert_eq!(parse_path_memory("./off"), Ok(PathMemory::File("./off".into())));
        assert!(parse_path_memory("").is_err());
    }
}
