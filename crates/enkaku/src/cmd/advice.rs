//! What to do about it, said behind what went wrong: for mistakes that a user makes on the first
//! day, where the error knows what failed and the command line knows what was meant.

use std::io;

use iscsi::initiator::{ConnectError, Portal, ProbeError, Url, UrlError};
use iscsi_proto::login::initiator::LoginError;
use iscsi_proto::pdu::LoginStatus;

/// What to do about an error, if that is known here.
pub(crate) fn advice(error: &anyhow::Error) -> Option<&'static str> {
    error.chain().find_map(|cause| {
        let connect = cause.downcast_ref::<ConnectError>().and_then(of_connect);
        connect.or_else(|| cause.downcast_ref::<ProbeError>().and_then(of_probe))
    })
}

fn of_connect(error: &ConnectError) -> Option<&'static str> {
    match error {
        ConnectError::Login { source: LoginError::Refused { status }, .. } => of_status(*status),
        ConnectError::Connect { source, .. }
            if source.kind() == io::ErrorKind::ConnectionRefused =>
        {
            Some("nobody listens there: is the target running, and is the port right?")
        }
        ConnectError::Connect { source, .. } if source.kind() == io::ErrorKind::TimedOut => {
            Some("no answer: is a firewall between?")
        }
        ConnectError::Probe(error) => of_probe(error),
        _ => None,
    }
}

fn of_status(status: LoginStatus) -> Option<&'static str> {
    Some(match status {
        LoginStatus::NOT_FOUND => {
            "it has no target of this name for us; `enkaku discover HOST[:PORT]` lists its targets"
        }
        LoginStatus::AUTHENTICATION_FAILURE => {
            "user or password are wrong, or missing: USER@HOST and --chap-password-file; for a \
             volume whose target wants none, --chap-optional"
        }
        LoginStatus::AUTHORIZATION_FAILURE => {
            "it does not admit this initiator: --initiator-name has to be one of those it names"
        }
        _ => return None,
    })
}

fn of_probe(error: &ProbeError) -> Option<&'static str> {
    match error {
        ProbeError::NoUnit(_) => {
            Some("LUNs are numbered in the order in which the target was given them, from 0")
        }
        _ => None,
    }
}

/// A volume's URL, from a command line.
///
/// # Errors
/// What is wrong, and what was perhaps meant.
pub(crate) fn parse_url(text: &str) -> Result<Url, String> {
    let url = text.parse::<Url>();
    url.map_err(|error| match error {
        UrlError::Scheme if !text.contains("://") && text.parse::<Portal>().is_ok() => {
            format!("a volume is {FORM}; `enkaku discover {text}` lists the targets there")
        }
        UrlError::Scheme => format!("a volume is {FORM}"),
        UrlError::Missing("target name") => match text["iscsi://".len()..].trim_matches('/') {
            "" => format!("no host; a volume is {FORM}"),
            host => format!("no target name; `enkaku discover {host}` lists the targets there"),
        },
        error => error.to_string(),
    })
}

const FORM: &str = super::remote::URL_HELP;

/// A portal to ask for its targets, from a command line: a volume's URL has one, too.
///
/// # Errors
/// What is wrong, and what is allowed.
pub(crate) fn parse_portal(text: &str) -> Result<Portal, String> {
    let host = text.strip_prefix("iscsi://").unwrap_or(text);
    let host = host.split('/').next().unwrap_or(host);
    let host = host.rsplit('@').next().unwrap_or(host);
    host.parse::<Portal>().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portal_may_be_written_as_a_url() {
        for text in ["h:3261", "iscsi://h:3261", "iscsi://u%p@h:3261/iqn.2026-01.a:b/0"] {
            assert_eq!(parse_portal(text).map(|portal| portal.to_string()), Ok("h:3261".into()));
        }
        assert!(parse_portal("http://h").is_err());
    }

    #[test]
    fn what_is_no_url_gets_the_command_that_was_meant() {
        let said = |text| parse_url(text).err().unwrap_or_default();
        assert!(said("h:3260").contains("`enkaku discover h:3260`"));
        assert!(said("iscsi://h:3260").contains("`enkaku discover h:3260`"));
        assert!(said("iscsi://").contains("no host"));
        assert!(said("http://h/iqn.2026-01.a:b/0").contains("iscsi://"));
        assert!(said("iscsi://h/iqn.2026-01.a:b").contains("LUN"));
    }
}
