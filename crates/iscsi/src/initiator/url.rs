//! libiscsi's URL syntax: `iscsi://[user[%password]@]host[:port]/target-iqn/lun`.
//!
//! Parses and checks; resolves no name and opens nothing. A password never appears in `Debug`
//! or `Display`.

use std::fmt;
use std::str::FromStr;

use iscsi_proto::ids::Lun;
use iscsi_proto::login::chap::{ChapCredentials, Secret};
use iscsi_proto::names::{NameError, PORT, TargetAddress, check_name};

/// Largest LUN: 14 bits of flat addressing (SAM-4 §4.6.8). Targets number far fewer.
pub const LUN_MAX: u16 = 0x3fff;

/// Where to log in: a portal's address as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Portal {
    /// Host name, IPv4 address, or IPv6 address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// A logical unit of a target, and who asks for it.
#[derive(Clone, Debug)]
pub struct Url {
    /// Address of the portal.
    pub portal: Portal,
    /// Name of the target, in lower case.
    pub target: String,
    /// Number of the logical unit.
    pub lun: u16,
    /// CHAP name.
    pub user: Option<String>,
    /// CHAP secret.
    pub password: Option<Secret>,
}

/// Why nobody can be authenticated with what was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// A password, but no name that goes with it.
    #[error(
        "a CHAP password but no user: put it before the host, user@host, or in {USER_VARIABLE}"
    )]
    NoUser,
    /// A name, but no password.
    #[error("no password for CHAP user: put it in a file, or in {PASSWORD_VARIABLE}")]
    NoPassword,
}

/// Environment variable of the CHAP name, which libiscsi's tools read as well.
const USER_VARIABLE: &str = "LIBISCSI_CHAP_USERNAME";
/// Environment variable of the CHAP secret, which libiscsi's tools read as well.
pub const PASSWORD_VARIABLE: &str = "LIBISCSI_CHAP_PASSWORD";

/// What is wrong with a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// Not `iscsi://`.
    #[error("URL does not begin with iscsi://")]
    Scheme,
    /// Parts are missing; shown is the form.
    #[error("URL has no {0}; its form is iscsi://[user[%password]@]host[:port]/target-iqn/lun")]
    Missing(&'static str),
    /// Something follows the LUN.
    #[error("unexpected {0:?} after the LUN")]
    Trailing(String),
    /// Not a host.
    #[error("host {0:?}: a name, an IPv4 address, or an IPv6 address in brackets is allowed")]
    Host(String),
    /// Not a port.
    #[error("port {0:?}: 1 to 65535 is allowed")]
    Port(String),
    /// Not a target name.
    #[error("target name {name:?}: {source}; allowed is iqn.YYYY-MM.DOMAIN[:NAME], eui.… or naa.…")]
    Target {
        /// As written.
        name: String,
        /// What is wrong with it.
        source: NameError,
    },
    /// Not a LUN.
    #[error("LUN {0:?}: 0 to {LUN_MAX} is allowed")]
    Lun(String),
    /// Empty CHAP name.
    #[error("the user name before '@' is empty")]
    User,
}

impl Url {
    /// Whom to authenticate as: the URL's user, else `LIBISCSI_CHAP_USERNAME`, with the URL's
    /// password, else `secret`, else `LIBISCSI_CHAP_PASSWORD`. `None` if there is neither.
    ///
    /// # Errors
    /// [`CredentialsError`] if one of both is missing.
    pub fn credentials(
        &self,
        secret: Option<String>,
    ) -> Result<Option<ChapCredentials>, CredentialsError> {
        credentials(self.user.clone(), self.password.clone().or(secret.map(Secret::new)))
    }

    /// The LUN as it goes over the wire.
    pub const fn wire_lun(&self) -> Lun {
        wire_lun(self.lun)
    }
}

/// A LUN as it goes over the wire: peripheral addressing up to 255, flat above (SAM-4 §4.6).
pub(super) const fn wire_lun(lun: u16) -> Lun {
    let method = if lun < 256 { 0 } else { 0x4000 };
    Lun((((lun & LUN_MAX) | method) as u64) << 48)
}

/// Whom to authenticate as: this user, else `LIBISCSI_CHAP_USERNAME`, with this password, else
/// `LIBISCSI_CHAP_PASSWORD`. `None` if there is neither.
///
/// # Errors
/// [`CredentialsError`] if one of both is missing.
pub fn credentials(
    user: Option<String>,
    password: Option<Secret>,
) -> Result<Option<ChapCredentials>, CredentialsError> {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    match (user.or_else(|| variable(USER_VARIABLE)), password) {
        (Some(user), Some(secret)) => Ok(Some(ChapCredentials { user, secret })),
        (Some(user), None) => {
            let secret = variable(PASSWORD_VARIABLE).ok_or(CredentialsError::NoPassword)?;
            Ok(Some(ChapCredentials { user, secret: Secret::new(secret) }))
        }
        (None, Some(_)) => Err(CredentialsError::NoUser),
        (None, None) => Ok(None),
    }
}

impl FromStr for Portal {
    type Err = UrlError;

    /// `host`, `host:port`, `[v6]`, `[v6]:port`.
    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (host, rest) = match text.strip_prefix('[') {
            Some(inner) => {
                let closed = inner.split_once(']');
                let (host, rest) = closed.ok_or_else(|| UrlError::Host(text.into()))?;
                let address: Result<std::net::Ipv6Addr, _> =
                    host.split('%').next().unwrap_or(host).parse();
                address.map_err(|_| UrlError::Host(text.into()))?;
                (host, rest)
            }
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match rest.strip_prefix(':') {
            Some(port) => {
                port.parse().ok().filter(|p| *p != 0).ok_or_else(|| UrlError::Port(port.into()))?
            }
            None if rest.is_empty() => PORT,
            None => return Err(UrlError::Host(text.into())),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let v6 = text.starts_with('[');
        if host.is_empty() || !(v6 || host.chars().all(plain)) {
            return Err(UrlError::Host(text.into()));
        }
        Ok(Self { host: host.into(), port })
    }
}

impl From<TargetAddress> for Portal {
    fn from(address: TargetAddress) -> Self {
        Self { host: address.host, port: address.port }
    }
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let rest = text.strip_prefix("iscsi://").ok_or(UrlError::Scheme)?;
        // A password may hold any character, '/' and '@' too: the path begins at the target's
        // name, or where a URL without a well-formed one would have it.
        let names = ["/iqn.", "/eui.", "/naa."].iter().filter_map(|prefix| rest.rfind(prefix));
        let host_at = rest.rfind('@').unwrap_or(0);
        let slash = names.max().or_else(|| rest[host_at..].find('/').map(|at| host_at + at));
        let slash = slash.ok_or(UrlError::Missing("target name"))?;
        let (authority, path) = (&rest[..slash], &rest[slash + 1..]);
        let (login, portal) = match authority.rsplit_once('@') {
            Some((login, portal)) => (Some(login), portal),
            None => (None, authority),
        };
        if portal.is_empty() {
            return Err(UrlError::Missing("host"));
        }
        let (user, password) = match login {
            Some(login) => match login.split_once('%') {
                Some((user, password)) => (Some(user), Some(Secret::new(password))),
                None => (Some(login), None),
            },
            None => (None, None),
        };
        if user == Some("") {
            return Err(UrlError::User);
        }
        let mut path = path.splitn(3, '/');
        let target =
            path.next().filter(|t| !t.is_empty()).ok_or(UrlError::Missing("target name"))?;
        let lun = path.next().filter(|l| !l.is_empty()).ok_or(UrlError::Missing("LUN"))?;
        if let Some(rest) = path.next() {
            return Err(UrlError::Trailing(rest.into()));
        }
        let number = lun.parse().ok().filter(|n| *n <= LUN_MAX);
        Ok(Self {
            portal: portal.parse()?,
            target: check_name(target)
                .map_err(|source| UrlError::Target { name: target.into(), source })?,
            lun: number.ok_or_else(|| UrlError::Lun(lun.into()))?,
            user: user.map(Into::into),
            password,
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("iscsi://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        write!(f, "{}/{}/{}", self.portal, self.target, self.lun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IQN: &str = "iqn.2026-11.org.example:disk.1";

    fn parse(authority: &str) -> Url {
        format!("iscsi://{authority}/{IQN}/3").parse().unwrap()
    }

    #[test]
    fn every_part_is_found() {
        let url = parse("storage.example.org");
        assert_eq!((url.portal.host.as_str(), url.portal.port), ("storage.example.org", 3260));
        assert_eq!((url.target.as_str(), url.lun), (IQN, 3));
        assert!(url.user.is_none() && url.password.is_none());
        let url = parse("me@10.0.0.1:3261");
        assert_eq!((url.user.as_deref(), url.portal.port), (Some("me"), 3261));
        let url = parse("me%pa/ss@w%rd@[fe80::1]:99");
        assert!(url.password.unwrap().is_same(&Secret::new("pa/ss@w%rd")));
        assert_eq!(url.portal, Portal { host: "fe80::1".into(), port: 99 });
        assert_eq!(url.portal.to_string(), "[fe80::1]:99");
    }

    #[test]
    fn a_password_is_never_printed() {
        let url = parse("me%hunter22@host");
        assert!(!format!("{url:?} {url}").contains("hunter22"));
        assert_eq!(url.to_string(), format!("iscsi://me@host:3260/{IQN}/3"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| text.parse::<Url>().unwrap_err();
        assert_eq!(error("http://h/iqn.2026-11.a/0"), UrlError::Scheme);
        assert_eq!(error("iscsi://host"), UrlError::Missing("target name"));
        assert_eq!(error("iscsi://host/"), UrlError::Missing("target name"));
        assert_eq!(error("iscsi:///iqn.2026-11.a/0"), UrlError::Missing("host"));
        assert_eq!(error("iscsi://h/iqn.2026-11.a"), UrlError::Missing("LUN"));
        assert_eq!(error("iscsi://h/iqn.2026-11.a/0/1"), UrlError::Trailing("1".into()));
        assert_eq!(error("iscsi://h/iqn.2026-11.a/16384"), UrlError::Lun("16384".into()));
        assert_eq!(error("iscsi://h/iqn.2026-11.a/-1"), UrlError::Lun("-1".into()));
        assert_eq!(error("iscsi://h:0/iqn.2026-11.a/0"), UrlError::Port("0".into()));
        assert_eq!(error("iscsi://h:x/iqn.2026-11.a/0"), UrlError::Port("x".into()));
        assert_eq!(error("iscsi://fe80::1/iqn.2026-11.a/0"), UrlError::Port(":1".into()));
        assert_eq!(error("iscsi://[zz]/iqn.2026-11.a/0"), UrlError::Host("[zz]".into()));
        assert_eq!(error("iscsi://a;b/iqn.2026-11.a/0"), UrlError::Host("a;b".into()));
        let target = |name: &str, source| UrlError::Target { name: name.into(), source };
        assert_eq!(error("iscsi://h/disk/0"), target("disk", NameError::Format));
        let shell = "iqn.2026-11.a:$(x)";
        let url = format!("iscsi://h/{shell}/0");
        assert_eq!(error(&url), target(shell, NameError::Character('$')));
        assert_eq!(error("iscsi://@h/iqn.2026-11.a/0"), UrlError::User);
    }

    #[test]
    fn a_name_and_a_password_go_together() {
        let secret = || Some("from a file".to_string());
        let found = parse("me@h").credentials(secret()).unwrap().unwrap();
        assert_eq!(found.user, "me");
        assert!(found.secret.is_same(&Secret::new("from a file")));
        let found = parse("me%from the URL@h").credentials(secret()).unwrap().unwrap();
        assert!(found.secret.is_same(&Secret::new("from the URL")));
        if std::env::var_os(USER_VARIABLE).is_none() {
            assert_eq!(parse("h").credentials(secret()).unwrap_err(), CredentialsError::NoUser);
            assert!(parse("h").credentials(None).unwrap().is_none());
        }
    }

    #[test]
    fn luns_take_their_wire_form() {
        let lun = |n| Url { lun: n, ..parse("h") }.wire_lun().0;
        assert_eq!(lun(3), 0x0003_0000_0000_0000);
        assert_eq!(lun(300), 0x412c_0000_0000_0000);
    }
}
