//! `enkaku discover`: which targets a portal has (SendTargets), or a directory knows (iSNS), and
//! which volumes they have.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use daemon::config::parse_server;
use daemon::mirror::report::bytes;
use iscsi::initiator::{ChapCredentials, Config, Portal, Secret, UnitFound, credentials, units};
use iscsi_proto::names::{TargetAddress, check_name};
use serde::Serialize;

use super::advice::parse_portal;
use super::remote::{initiator_name, warn_of_a_password};
use super::{Usage, one_line, read_secret, say};

/// How long a target that is in a list may take to answer: others are waiting in it.
const TARGET_TIMEOUT: Duration = Duration::from_secs(5);

/// Lists the targets and volumes of a portal, or of an iSNS server, as URLs for the other commands
///
/// Below each target are its volumes, with their sizes; for that, it is logged in to for a moment.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Portal to ask, and the CHAP user to be there; the port is 3260 unless given. A volume's URL
    /// has a portal, too. Or isns://HOST or isns://HOST:PORT, an iSNS server, port 3205 unless
    /// given.
    #[arg(value_name = "[USER@]ADDR[:PORT]|isns://HOST", value_parser = parse_asked)]
    portal: Asked,
    /// Log in to no target: only what the portal or the server says of them.
    #[arg(long)]
    no_luns: bool,
    /// File whose first line is the user's CHAP password.
    #[arg(long, value_name = "FILE")]
    chap_password_file: Option<PathBuf>,
    /// Demand that the target proves itself as this CHAP user.
    #[arg(long, requires = "mutual_password_file", value_name = "USER")]
    mutual_user: Option<String>,
    /// File whose first line is the password for --mutual-user.
    #[arg(long, requires = "mutual_user", value_name = "FILE")]
    mutual_password_file: Option<PathBuf>,
    /// Name of this initiator [default: made of the host's name].
    #[arg(long, value_name = "IQN", env = "ENKAKU_INITIATOR_NAME")]
    initiator_name: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Where to ask.
#[derive(Clone, Debug)]
enum Asked {
    Portal(AskedPortal),
    /// HOST:PORT of an iSNS server.
    Isns(String),
}

/// A portal, and as whom to ask it.
#[derive(Clone, Debug)]
struct AskedPortal {
    portal: Portal,
    user: Option<String>,
    /// In the command line, where everybody can see it.
    password: Option<Secret>,
}

fn parse_asked(text: &str) -> Result<Asked, String> {
    match text.strip_prefix("isns://") {
        None => parse_asked_portal(text).map(Asked::Portal),
        Some(server) => parse_server(server.strip_suffix('/').unwrap_or(server))
            .map(Asked::Isns)
            .ok_or_else(|| format!("{text:?} is not isns://HOST or isns://HOST:PORT")),
    }
}

fn parse_asked_portal(text: &str) -> Result<AskedPortal, String> {
    let portal = parse_portal(text)?;
    let host = text.strip_prefix("iscsi://").unwrap_or(text);
    let host = host.split('/').next().unwrap_or(host);
    let login = host.rsplit_once('@').map(|(login, _)| login);
    let (user, password) = match login.map(|login| login.split_once('%')) {
        Some(Some((user, password))) => (Some(user), Some(Secret::new(password))),
        Some(None) => (login, None),
        None => (None, None),
    };
    if user == Some("") {
        return Err("the user name before '@' is empty".into());
    }
    Ok(AskedPortal { portal, user: user.map(Into::into), password })
}

#[derive(Serialize)]
struct Found {
    target: String,
    portals: Vec<String>,
    /// Volumes; absent where the target was not asked, or had no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    luns: Option<Vec<Volume>>,
    /// It has more than are listed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more_luns: bool,
    /// Why it has no volumes here.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct Volume {
    lun: u16,
    url: String,
    /// Peripheral device type of SPC-4; 0 is a disk.
    device_type: u8,
    vendor: String,
    product: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<u32>,
}

impl Found {
    fn new(target: String, portals: Vec<String>) -> Self {
        Self { target, portals, luns: None, more_luns: false, error: None }
    }

    /// For a person: the target, and its volumes below it.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{}\t{}", self.target, self.portals.join(" "))];
        let volumes = self.luns.as_deref().unwrap_or_default();
        let width = volumes.iter().map(|volume| volume.url.len()).max().unwrap_or(0);
        lines.extend(volumes.iter().map(|volume| {
            let what = match volume.size {
                Some(size) => bytes(size),
                None => device_type(volume.device_type).to_owned(),
            };
            let Volume { url, vendor, product, .. } = volume;
            format!("  {url:<width$}  {what:>10}  {vendor} {product}").trim_end().to_owned()
        }));
        if self.luns.as_ref().is_some_and(Vec::is_empty) {
            lines.push("  no volume for this initiator".to_owned());
        }
        if self.more_luns {
            lines.push("  and more".to_owned());
        }
        lines.extend(self.error.as_ref().map(|error| format!("  not asked for volumes: {error}")));
        lines
    }
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = Config::default();
    if let Some(name) = &args.initiator_name {
        config.initiator_name = initiator_name(name)?;
    }
    let mut chap = None;
    let mut found = match &args.portal {
        Asked::Portal(asked) => {
            config = with_chap(config, asked, &args)?;
            chap.clone_from(&config.chap);
            from_portal(asked, &config).await?
        }
        Asked::Isns(_) if args.chap_password_file.is_some() || args.mutual_user.is_some() => {
            return Err(Usage::error("an iSNS server asks for no CHAP: leave its options away"));
        }
        Asked::Isns(server) => from_isns(server, &config.initiator_name).await?,
    };
    if !args.no_luns {
        let user = chap.map(|chap| chap.user);
        for found in &mut found {
            ask_for_volumes(found, &args.portal, &config, user.as_deref()).await;
        }
    }
    if args.json {
        say(serde_json::to_string(&found)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    found.iter().flat_map(Found::lines).try_for_each(say)?;
    Ok(ExitCode::SUCCESS)
}

/// Logs in to the target for a moment. That it cannot be is no failure of the command, whose list
/// it is in.
async fn ask_for_volumes(found: &mut Found, asked: &Asked, config: &Config, user: Option<&str>) {
    let Some(portal) = way_in(asked, &found.portals).await else {
        found.error = Some("no address of TCP".to_owned());
        return;
    };
    let mut config = config.clone();
    // Discovery may be open where targets are not, and the other way round.
    config.chap_optional = true;
    config.login_timeout = config.login_timeout.min(TARGET_TIMEOUT);
    // What a password makes of a challenge is for who was asked, not for whomever he names.
    if !matches!(asked, Asked::Portal(asked) if asked.portal == portal) {
        (config.chap, config.chap_mutual) = (None, None);
    }
    match units(&portal, &found.target, &config).await {
        Err(error) => found.error = Some(one_line(&error.into())),
        Ok(answer) => {
            let volume = |unit: UnitFound| Volume {
                lun: unit.lun,
                url: url(&portal, user, &found.target, unit.lun),
                device_type: unit.kind,
                vendor: unit.vendor,
                product: unit.product,
                size: unit.size.map(|(size, _)| size),
                block_size: unit.size.map(|(_, block_size)| block_size),
            };
            found.more_luns = answer.more;
            found.luns = Some(answer.units.into_iter().map(volume).collect());
        }
    }
}

/// What is no disk (SPC-4 §6.6.2).
const fn device_type(kind: u8) -> &'static str {
    match kind & 0x1f {
        0x00 => "disk",
        0x01 => "tape",
        0x05 => "CD or DVD",
        0x07 => "optical",
        0x08 => "changer",
        0x0c => "controller",
        0x0d => "enclosure",
        _ => "other",
    }
}

/// Where to log in: at the portal that was asked, if the target is there as well, as it was
/// written; else at the first that it names.
async fn way_in(asked: &Asked, portals: &[String]) -> Option<Portal> {
    let named: Vec<TargetAddress> = portals.iter().filter_map(|text| text.parse().ok()).collect();
    if let Asked::Portal(AskedPortal { portal, .. }) = asked {
        let resolved = tokio::net::lookup_host((portal.host.as_str(), portal.port)).await;
        let addresses: Vec<_> = resolved.into_iter().flatten().collect();
        let is_asked = |named: &TargetAddress| {
            let host = named.host.parse().ok();
            addresses.iter().any(|a| host == Some(a.ip()) && named.port == a.port())
                || (named.host == portal.host && named.port == portal.port)
        };
        if named.is_empty() || named.iter().any(is_asked) {
            return Some(portal.clone());
        }
    }
    named.into_iter().next().map(Portal::from)
}

/// A volume's URL, as the other commands take it; without the port that is the default.
fn url(portal: &Portal, user: Option<&str>, target: &str, lun: u16) -> String {
    let login = user.map_or_else(String::new, |user| format!("{user}@"));
    let portal = portal.to_string();
    let portal = portal.strip_suffix(":3260").unwrap_or(&portal);
    format!("iscsi://{login}{portal}/{target}/{lun}")
}

fn with_chap(mut config: Config, asked: &AskedPortal, args: &Args) -> anyhow::Result<Config> {
    config.chap = chap(asked, args)?;
    if let (Some(user), Some(file)) = (&args.mutual_user, &args.mutual_password_file) {
        let secret = Secret::new(read_secret(file)?.as_bytes());
        config.chap_mutual = Some(ChapCredentials { user: user.clone(), secret });
    }
    Ok(config)
}

async fn from_portal(asked: &AskedPortal, config: &Config) -> anyhow::Result<Vec<Found>> {
    let records = iscsi::initiator::discover(&asked.portal, config).await?;
    let found = records.into_iter().map(|record| {
        Found::new(record.name, record.portals.iter().map(ToString::to_string).collect())
    });
    Ok(found.collect())
}

/// What an iSNS server tells the initiator `name`. What is no name or no address of TCP there is
/// nothing that anybody could connect to.
async fn from_isns(server: &str, name: &str) -> anyhow::Result<Vec<Found>> {
    let mut client = discovery::isns::Client::connect(server, false).await?;
    let mut found = Vec::new();
    for target in client.targets(name).await? {
        let Ok(name) = check_name(&target.name) else { continue };
        let portals = target.portals.iter().filter_map(|(key, group)| {
            let socket = key.socket()?;
            let (host, port) = (socket.ip().to_string(), socket.port());
            Some(TargetAddress { host, port, group: *group }.to_string())
        });
        found.push(Found::new(name, portals.collect()));
    }
    Ok(found)
}

fn chap(asked: &AskedPortal, args: &Args) -> anyhow::Result<Option<ChapCredentials>> {
    let AskedPortal { user, password, .. } = asked;
    if password.is_some() {
        warn_of_a_password();
    }
    let secret = match &args.chap_password_file {
        Some(file) => Some(Secret::new(read_secret(file)?.as_bytes())),
        None => password.clone(),
    };
    credentials(user.clone(), secret).map_err(|error| Usage::error(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portal_may_name_the_user_to_be_there() {
        let user = |text| parse_asked_portal(text).map(|asked| asked.user.unwrap_or_default());
        assert_eq!(user("h"), Ok(String::new()));
        assert_eq!(user("me@h:3261"), Ok("me".into()));
        assert_eq!(user("iscsi://me%secret@[::1]:3261/iqn.2026-01.a:b/0"), Ok("me".into()));
        assert!(parse_asked_portal("me%secret@h").is_ok_and(|asked| asked.password.is_some()));
        assert_eq!(user("@h"), Err("the user name before '@' is empty".into()));
    }

    #[test]
    fn what_is_found_is_a_url_that_other_commands_take() {
        for (portal, shown) in [("h", "h"), ("h:3261", "h:3261"), ("[::1]", "[::1]")] {
            let portal = portal.parse().unwrap();
            let text = url(&portal, Some("me"), "iqn.2026-01.a:b", 7);
            assert_eq!(text, format!("iscsi://me@{shown}/iqn.2026-01.a:b/7"));
            let parsed = text.parse::<iscsi::initiator::Url>().unwrap();
            assert_eq!((parsed.portal, parsed.lun), (portal, 7));
        }
    }

    #[test]
    fn volumes_are_below_their_target() {
        let volume = |lun, size, device_type| Volume {
            lun,
            url: format!("iscsi://h/iqn.2026-01.a:b/{lun}"),
            device_type,
            vendor: "IET".into(),
            product: "Controller".into(),
            size,
            block_size: None,
        };
        let mut found = Found::new("iqn.2026-01.a:b".into(), vec!["192.0.2.1:3260,1".into()]);
        found.luns = Some(vec![volume(0, None, 12), volume(10, Some(1 << 30), 0)]);
        found.more_luns = true;
        assert_eq!(
            found.lines().join("\n"),
            "iqn.2026-01.a:b\t192.0.2.1:3260,1\n  \
             iscsi://h/iqn.2026-01.a:b/0   controller  IET Controller\n  \
             iscsi://h/iqn.2026-01.a:b/10      1.1 GB  IET Controller\n  \
             and more"
        );
    }

    #[test]
    fn an_isns_server_is_a_host_with_its_own_port() {
        let server = |text| match parse_asked(text) {
            Ok(Asked::Isns(server)) => server,
            other => format!("{other:?}"),
        };
        assert_eq!(server("isns://home.example"), "home.example:3205");
        assert_eq!(server("isns://192.0.2.1:13205/"), "192.0.2.1:13205");
        assert_eq!(server("isns://[2001:db8::1]"), "[2001:db8::1]:3205");
        assert!(parse_asked("isns://").is_err_and(|what| what.contains("isns://HOST")));
    }
}
