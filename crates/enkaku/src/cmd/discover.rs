//! `enkaku discover`: which targets a portal has (SendTargets).

use std::path::PathBuf;
use std::process::ExitCode;

use iscsi::initiator::{ChapCredentials, Config, Portal, Secret, credentials};
use serde::Serialize;

use super::advice::parse_portal;
use super::remote::{initiator_name, warn_of_a_password};
use super::{Usage, read_secret, say};

/// Lists the targets that a portal offers and where they are reached.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Portal to ask, and the CHAP user to be there; the port is 3260 unless given.
    #[arg(value_name = "[USER@]ADDR[:PORT]", value_parser = parse_asked)]
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

/// Where to ask, and as whom.
#[derive(Clone, Debug)]
struct Asked {
    portal: Portal,
    user: Option<String>,
    /// In the command line, where everybody can see it.
    password: Option<Secret>,
}

fn parse_asked(text: &str) -> Result<Asked, String> {
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
    Ok(Asked { portal, user: user.map(Into::into), password })
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
    config.chap = chap(&args)?;
    if let (Some(user), Some(file)) = (&args.mutual_user, &args.mutual_password_file) {
        let secret = Secret::new(read_secret(file)?.as_bytes());
        config.chap_mutual = Some(ChapCredentials { user: user.clone(), secret });
    }
    let records = iscsi::initiator::discover(&args.portal.portal, &config).await?;
    let found: Vec<Found> = records
        .into_iter()
        .map(|record| Found {
            target: record.name,
            portals: record.portals.iter().map(ToString::to_string).collect(),
        })
        .collect();
    if args.json {
        say(serde_json::to_string(&found)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for Found { target, portals } in found {
        say(format_args!("{target}\t{}", portals.join(" ")))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn chap(args: &Args) -> anyhow::Result<Option<ChapCredentials>> {
    let Asked { user, password, .. } = &args.portal;
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
        let user = |text| parse_asked(text).map(|asked| asked.user.unwrap_or_default());
        assert_eq!(user("h"), Ok(String::new()));
        assert_eq!(user("me@h:3261"), Ok("me".into()));
        assert_eq!(user("iscsi://me%secret@[::1]:3261/iqn.2026-01.a:b/0"), Ok("me".into()));
        assert!(parse_asked("me%secret@h").is_ok_and(|asked| asked.password.is_some()));
        assert_eq!(user("@h"), Err("the user name before '@' is empty".into()));
    }
}
