//! Where `enkaku media` has to do with a directory (docs/directory.md): how it is spoken to, and
//! what it is told of a volume. A password is in a file or in the environment, never in a command
//! line, which everybody on the machine can read.

use std::path::PathBuf;
use std::time::Duration;

use backends::Location;
use discovery::ldap::{Address, Bind, Client, Settings};
use iscsi::initiator::Url;
use media::{Place, Source, VolumeEntry};
use wanlab::units;
use zeroize::Zeroizing;

use super::{OpeningArgs, parse_volume};
use crate::cmd::{Usage, read_secret};

/// Has the password, if no file has.
const PASSWORD_VARIABLE: &str = "ENKAKU_DIRECTORY_PASSWORD";
/// Shortest time between two readings: each is a question for everything.
const EVERY_MIN: Duration = Duration::from_secs(1);

/// How a directory is spoken to.
#[derive(clap::Args, Debug)]
pub(super) struct DirectoryArgs {
    /// Name of the entry that we are at the directory, as in cn=enkaku,dc=example.
    #[arg(long, value_name = "DN")]
    directory_user: Option<String>,
    /// File whose first line is its password [default: ENKAKU_DIRECTORY_PASSWORD of the
    /// environment].
    #[arg(long, value_name = "FILE", requires = "directory_user")]
    directory_password_file: Option<PathBuf>,
    /// Begins TLS at an ldap:// address, and says nothing before.
    #[arg(long)]
    directory_starttls: bool,
    /// Certificate in PEM that has to vouch for the directory's [default: those of the system].
    #[arg(long, value_name = "FILE")]
    directory_ca: Option<PathBuf>,
}

/// What a server makes of a directory.
#[derive(clap::Args, Debug)]
pub(super) struct SourceArgs {
    #[command(flatten)]
    directory: DirectoryArgs,
    /// How often a directory is read again.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_every)]
    directory_every: Duration,
    /// iSNS server that knows where targets are whose address the directory does not have.
    #[arg(long, value_name = "HOST[:PORT]")]
    isns: Option<String>,
    /// File whose first line is the CHAP password of users whom the directory's volumes name.
    #[arg(long, value_name = "FILE")]
    volume_password_file: Option<PathBuf>,
}

/// What a directory is told of a volume.
#[derive(clap::Args, Debug)]
pub(super) struct ToldArgs {
    /// Directory that is to tell of the videos, beside the catalogue or in its place.
    #[arg(long, value_name = "ldap://HOST/BASE")]
    pub(super) directory: Option<String>,
    #[command(flatten)]
    access: DirectoryArgs,
    /// How a server reaches the volume: iscsi://HOST/IQN/LUN, with USER@ and :PORT where they are
    /// needed [default: VOLUME].
    #[arg(long = "as", value_name = "URL", value_parser = parse_volume, requires = "directory")]
    as_volume: Option<Place>,
    /// The volume's host calls the server: its name there (enkaku media uplink).
    #[arg(long, value_name = "NAME", requires = "directory")]
    uplink: Option<String>,
    /// Leaves the address out: servers ask iSNS for it.
    #[arg(long, conflicts_with = "uplink", requires = "directory")]
    by_isns: bool,
}

fn parse_every(text: &str) -> Result<Duration, String> {
    let time = units::parse_duration(text).map_err(|error| error.to_string())?;
    (time >= EVERY_MIN).then_some(time).ok_or_else(|| format!("{text:?}: 1s or more is allowed"))
}

impl DirectoryArgs {
    /// The directory at an address.
    pub(super) fn client(&self, url: &str) -> anyhow::Result<Client> {
        let address: Address = url.parse().map_err(|error| Usage::error(format!("{error}")))?;
        let bind = match (&self.directory_user, &self.directory_password_file) {
            (None, _) => None,
            (Some(dn), Some(file)) => Some(Bind { dn: dn.clone(), password: read_secret(file)? }),
            (Some(dn), None) => {
                let Ok(password) = std::env::var(PASSWORD_VARIABLE).map(Zeroizing::new) else {
                    return Err(Usage::error(format!(
                        "--directory-user has no password: put it into a file for \
                         --directory-password-file, or into {PASSWORD_VARIABLE}"
                    )));
                };
                Some(Bind { dn: dn.clone(), password })
            }
        };
        let (is_starttls, ca) = (self.directory_starttls, self.directory_ca.clone());
        let client = Client::new(Settings { address, is_starttls, ca, bind });
        client.map_err(|error| Usage::error(error.to_string()))
    }
}

impl SourceArgs {
    /// The catalogue in a directory.
    pub(super) fn source(&self, url: &str, opening: &OpeningArgs) -> anyhow::Result<Source> {
        let isns = self.isns.as_ref().map(|server| match server.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => server.clone(),
            _ => format!("{server}:{}", discovery::isns::PORT),
        });
        Ok(Source {
            directory: self.directory.client(url)?,
            isns,
            initiator_name: opening.initiator_name()?,
            password_file: self.volume_password_file.clone(),
            every: self.directory_every,
        })
    }
}

impl ToldArgs {
    /// The directory that is meant.
    pub(super) fn client(&self, url: &str) -> anyhow::Result<Client> {
        self.access.client(url)
    }

    /// What is told of the volume; what is found in it comes later.
    pub(super) fn volume(
        &self,
        volume: &Place,
        partition: Option<u32>,
    ) -> anyhow::Result<VolumeEntry> {
        let Place::Url(Location::Iscsi(url)) = self.as_volume.as_ref().unwrap_or(volume) else {
            return Err(Usage::error(
                "a directory knows volumes by their iSCSI names: say how a server reaches this \
                 one, --as iscsi://HOST/IQN/LUN",
            ));
        };
        let Url { portal, target, lun, user, password } = &**url;
        if password.is_some() {
            let why = "a password in the URL, which the directory would have to show: \
                       leave it out; servers have --volume-password-file";
            return Err(Usage::error(why));
        }
        let has_portal = !self.by_isns && self.uplink.is_none();
        Ok(VolumeEntry {
            name: String::new(),
            id: String::new(),
            target: target.clone(),
            lun: *lun,
            portal: has_portal.then(|| portal.to_string()),
            uplink: self.uplink.clone(),
            partition,
            user: user.clone(),
        })
    }
}
