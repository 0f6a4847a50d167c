//! `enkaku discover`: which targets a portal has (SendTargets), or a directory knows (iSNS).

use std::path::PathBuf;
use std::process::ExitCode;

use daemon::config::parse_server;
use iscsi::initiator::{ChapCredentials, Config, Portal, Secret, credentials};
use iscsi_proto::names::{TargetAddress, check_name};
use serde::Serialize;

use super::advice::parse_portal;
use super::remote::{initiator_name, warn_of_a_password};
use super::{Usage, read_secret, say};

/// Lists the targets that a portal offers, or an iSNS server knows, and where they are reached.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Portal to ask, and the CHAP user to be there; the port is 3260 unless given. Or
    /// isns://HOST or isns://HOST:PORT, an iSNS server, port 3205 unless given.
    #[arg(value_name = "[USER@]ADDR[:PORT]|isns://HOST", value_parser = parse_asked)]
    portal: Asked,
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
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut config = Config::default();
    if let Some(name) = &args.initiator_name {
        config.initiator_name = initiator_name(name)?;
    }
    let found = match &args.portal {
        Asked::Portal(asked) => from_portal(asked, &args, config).await?,
        Asked::Isns(_) if args.chap_password_file.is_some() || args.mutual_user.is_some() => {
            return Err(Usage::error("an iSNS server asks for no CHAP: leave its options away"));
        }
        Asked::Isns(server) => from_isns(server, &config.initiator_name).await?,
    };
    if args.json {
        say(serde_json::to_string(&found)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for Found { target, portals } in found {
        say(format_args!("{target}\t{}", portals.join(" ")))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn from_portal(
    asked: &AskedPortal,
    args: &Args,
    mut config: Config,
) -> anyhow::Result<Vec<Found>> {
    config.chap = chap(asked, args)?;
    if let (Some(user), Some(file)) = (&args.mutual_user, &args.mutual_password_file) {
        let secret = Secret::new(read_secret(file)?.as_bytes());
        config.chap_mutual = Some(ChapCredentials { user: user.clone(), secret });
    }
    let records = iscsi::initiator::discover(&asked.portal, &config).await?;
    let found = records.into_iter().map(|record| Found {
        target: record.name,
        portals: record.portals.iter().map(ToString::to_string).collect(),
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
        found.push(Found { portals: portals.collect(), target: name });
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
