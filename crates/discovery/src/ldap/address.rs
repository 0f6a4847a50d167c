//! [`Address`]: `ldap://HOST[:PORT]/BASE` (RFC 4516), without what follows a `?` there.

use std::fmt;
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Characters of an entry's name that stand in a URL unencoded.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'=').remove(b',').remove(b'-').remove(b'.').remove(b'_').remove(b'+');

/// Where a directory is, and which entry of it is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// TLS from the first byte on.
    pub is_tls: bool,
    /// The name of the entry that all others are below.
    pub base: String,
}

/// What is wrong with a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{url:?}: {problem}; allowed is ldap://HOST[:PORT]/BASE or ldaps://…, as in \
         ldap://directory.example/ou=videos,dc=example"
)]
pub struct AddressError {
    /// As written.
    pub url: String,
    /// What is wrong.
    pub problem: &'static str,
}

impl Address {
    /// Is this meant as a URL of a directory, right or wrong?
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        matches!(scheme.as_deref(), Some("ldap" | "ldaps" | "ldapi"))
    }

    /// Host and port, as they are dialled.
    #[must_use]
    pub fn server(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Is it this machine, so that nobody can listen on the way?
    #[must_use]
    pub fn is_near(&self) -> bool {
        let address = self.host.parse::<std::net::IpAddr>();
        self.host.eq_ignore_ascii_case("localhost")
            || address.is_ok_and(|address| address.to_canonical().is_loopback())
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = |problem| AddressError { url: text.to_owned(), problem };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let is_tls = match scheme.to_ascii_lowercase().as_str() {
            "ldap" => false,
            "ldaps" => true,
            _ => return Err(wrong("another scheme")),
        };
        let (server, base) = rest.split_once('/').ok_or_else(|| wrong("it has no base"))?;
        if server.contains('@') {
            return Err(AddressError {
                url: "ldap://…@…".into(), // it may be a password
                problem: "a user in it: --directory-user says who we are",
            });
        }
        if base.contains(['?', '#']) {
            return Err(wrong("something follows the base"));
        }
        let (host, port) = match server.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (host, port),
            None => server.split_at(server.find(':').unwrap_or(server.len())),
        };
        let is_host = !host.is_empty()
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte));
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => Some(if is_tls { 636 } else { 389 }),
            Some(digits) => digits.parse().ok().filter(|port| *port != 0),
            None => None,
        };
        let port = port.filter(|_| is_host).ok_or_else(|| wrong("no host, or no port"))?;
        let base = percent_decode_str(base).decode_utf8();
        let base = base.map_err(|_| wrong("the base is not UTF-8"))?.into_owned();
        if !base.contains('=') || base.contains('\0') {
            return Err(wrong("the base is no name of an entry"));
        }
        Ok(Self { host: host.to_owned(), port, is_tls, base })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "ldaps" } else { "ldap" };
        write!(f, "{scheme}://{}/{}", self.server(), utf8_percent_encode(&self.base, PLAIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_server_and_a_base() {
        for (text, server, base) in [
            ("ldap://d.example/dc=example", "d.example:389", "dc=example"),
            ("LDAPS://d.example/dc=a%20b,dc=c", "d.example:636", "dc=a b,dc=c"),
            ("ldap://[2001:db8::1]:1389/ou=%C3%BC", "[2001:db8::1]:1389", "ou=ü"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.server().as_str(), address.base.as_str()), (server, base));
            assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
        }
        assert!("ldap://127.0.0.1/dc=a".parse::<Address>().unwrap().is_near());
        assert!(Address::is_meant("ldapi://x") && !Address::is_meant("films/ldap.toml"));
    }

    #[test]
    fn what_is_wrong_is_told_without_a_password() {
        let said = |text: &str| text.parse::<Address>().unwrap_err().to_string();
        for text in [
            "ldap://d.example",
            "ldap:///dc=a",
            "ldap://d.example:0/dc=a",
            "ldap://d.example:x/dc=a",
            "ldap://d e/dc=a",
            "ldapi:///dc=a",
            "ldap://d.example/",
            "ldap://d.example/dc=a?cn?sub",
            "ldap://d.example/%ff=a",
        ] {
            assert!(said(text).contains("allowed is ldap://"), "{text}");
        }
        let said = said("ldap://cn=a:secret@d.example/dc=a");
        assert!(said.contains("--directory-user") && !said.contains("secret"), "{said}");
    }
}
