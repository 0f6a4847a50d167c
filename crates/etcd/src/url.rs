//! [`Url`]: members of etcd, and what our keys begin with, in the form of [`FORMS`].
//!
//! Values of parameters and the prefix are percent-encoded where their characters mean something
//! here (RFC 3986 §2.1).

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

const SCHEME: &str = "etcd://";

/// The form of the URL.
pub const FORMS: &str = "etcd://HOST[:PORT][,HOST…]/PREFIX\
                         [?ca=FILE&cert=FILE&key=FILE&user=NAME&password_file=FILE]";

/// Where clients of etcd find a member.
const PORT: u16 = 2379;

/// Members of one cluster; etcd advises against more than seven.
const MEMBERS_MAX: usize = 16;

/// Longest host, prefix, path or user, in bytes.
const PART_LEN_MAX: usize = 1024;

/// What means something in the URL, or cannot stand in one; a slash means nothing behind the host.
const RESERVED: &AsciiSet =
    &CONTROLS.add(b' ').add(b'%').add(b'?').add(b'&').add(b'=').add(b'#').add(b'+');

/// A cluster, how we come to it, and where our keys are in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Members, each `HOST:PORT`, an IPv6 address in brackets. At least one.
    pub members: Vec<String>,
    /// What keys begin with, before a slash.
    pub prefix: String,
    /// Certificates (PEM) that a member's own is signed by; with them the connection is TLS.
    pub ca: Option<PathBuf>,
    /// Our certificate and its key (PEM), where members ask for one.
    pub identity: Option<Identity>,
    /// Who we are, where etcd has users.
    pub user: Option<User>,
}

/// What a member knows us by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Certificate, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
}

/// A user of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// File whose first line is the password.
    pub password_file: PathBuf,
}

/// Why a text names no keys of etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url:?}: {why}; allowed is {FORMS}")]
pub struct UrlError {
    url: String,
    why: String,
}

impl Url {
    /// Is this meant as keys of etcd, right or wrong?
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("etcd:")
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        parse(text).map_err(|why| UrlError { url: text.to_owned(), why })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |text: &str| utf8_percent_encode(text, RESERVED).to_string();
        let path = |path: &PathBuf| text(&path.to_string_lossy());
        write!(f, "{SCHEME}{}/{}", self.members.join(","), text(&self.prefix))?;
        let mut parameters = Vec::new();
        if let Some(ca) = &self.ca {
            parameters.push(format!("ca={}", path(ca)));
        }
        if let Some(Identity { cert, key }) = &self.identity {
            parameters.push(format!("cert={}&key={}", path(cert), path(key)));
        }
        if let Some(User { name, password_file }) = &self.user {
            let password_file = path(password_file);
            parameters.push(format!("user={}&password_file={password_file}", text(name)));
        }
        let mark = if parameters.is_empty() { "" } else { "?" };
        write!(f, "{mark}{}", parameters.join("&"))
    }
}

fn parse(text: &str) -> Result<Url, String> {
    let rest = text.strip_prefix(SCHEME).ok_or("does not begin with etcd://")?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (members, prefix) = place.split_once('/').ok_or("the prefix is missing")?;
    let members = members.split(',').map(member).collect::<Result<Vec<_>, _>>()?;
    if members.len() > MEMBERS_MAX {
        return Err(format!("{} members; {MEMBERS_MAX} at most", members.len()));
    }
    let prefix = decoded(prefix, "the prefix")?;
    let mut parameters = Parameters::of(query)?;
    let mut file = |name| parameters.take(name).map(PathBuf::from);
    let (ca, cert, key) = (file("ca"), file("cert"), file("key"));
    let password_file = file("password_file");
    let name = parameters.take("user");
    parameters.finish()?;
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some(Identity { cert, key }),
        (None, None) => None,
        _ => return Err("cert= and key= belong together".into()),
    };
    let user = match (name, password_file) {
        (Some(name), Some(password_file)) => Some(User { name, password_file }),
        (None, None) => None,
        _ => return Err("user= and password_file= belong together".into()),
    };
    if ca.is_none() && (identity.is_some() || user.is_some()) {
        return Err("certificates and passwords are for TLS only, which takes ca=".into());
    }
    Ok(Url { members, prefix, ca, identity, user })
}

/// `HOST[:PORT]` with its port.
fn member(text: &str) -> Result<String, String> {
    let wrong = |why: &str| Err(format!("member {text:?}: {why}"));
    let end = if text.starts_with('[') { text.find(']').map(|at| at + 1) } else { text.find(':') };
    let (host, port) = text.split_at(end.unwrap_or(text.len()));
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        }
    };
    if !is_host || text.len() > PART_LEN_MAX {
        return wrong("a name or an address (IPv6 in brackets) is needed");
    }
    let port = match port.strip_prefix(':').map(str::parse::<u16>) {
        None if port.is_empty() => PORT,
        Some(Ok(port)) if port > 0 => port,
        _ => return wrong("a port is a number from 1 to 65535"),
    };
    Ok(format!("{host}:{port}"))
}

/// What stands behind the question mark.
struct Parameters(Vec<(String, String)>);

impl Parameters {
    fn of(query: &str) -> Result<Self, String> {
        let parts = query.split('&').filter(|part| !part.is_empty());
        let one = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Ok((name.to_owned(), decoded(value, &format!("the value of {name:?}"))?))
        };
        parts.map(one).collect::<Result<Vec<_>, String>>().map(Self)
    }

    /// The first of this name, which is left out then.
    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.remove(at).1)
    }

    /// What nobody took is unknown, or there twice.
    fn finish(self) -> Result<(), String> {
        match self.0.first() {
            Some((name, _)) => Err(format!("{name:?} is no parameter, or is there twice")),
            None => Ok(()),
        }
    }
}

fn decoded(text: &str, what: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| format!("{what} is not UTF-8"))?;
    match decoded.len() {
        0 => Err(format!("{what} is missing")),
        1..=PART_LEN_MAX if !decoded.contains('\0') => Ok(decoded.into_owned()),
        1..=PART_LEN_MAX => Err(format!("{what} contains a zero byte")),
        _ => Err(format!("{what} has more than {PART_LEN_MAX} bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_found_and_written_again() {
        for text in [
            "etcd://a:2379/enkaku",
            "etcd://a:1,b.example:2379,[2001:db8::1]:2379/site/enkaku",
            "etcd://192.0.2.1:2379/p%20q?ca=/etc/ca.pem",
            "etcd://a:2379/p?ca=/c&cert=/a%26b&key=/k&user=u%3Dv&password_file=/f",
        ] {
            assert_eq!(text.parse::<Url>().unwrap().to_string(), text);
        }
        let url: Url = "etcd://a,[::1]/p/q?user=u&password_file=/f&ca=/c".parse().unwrap();
        assert_eq!(url.members, ["a:2379", "[::1]:2379"]);
        assert_eq!((url.prefix.as_str(), url.identity), ("p/q", None));
        assert_eq!(url.user, Some(User { name: "u".into(), password_file: "/f".into() }));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let many = format!("etcd://{}/p", vec!["a"; 17].join(","));
        for (text, why) in [
            ("etcd:a/p", "does not begin with etcd://"),
            ("etcd://a", "the prefix is missing"),
            ("etcd://a/", "the prefix is missing"),
            ("etcd:///p", "a name or an address"),
            ("etcd://a,,b/p", "a name or an address"),
            ("etcd://a@b/p", "a name or an address"),
            ("etcd://[::g]/p", "a name or an address"),
            ("etcd://[::1/p", "a name or an address"),
            ("etcd://::1/p", "a name or an address"),
            ("etcd://a:0/p", "from 1 to 65535"),
            ("etcd://a:b/p", "from 1 to 65535"),
            ("etcd://[::1]2/p", "from 1 to 65535"),
            ("etcd://a/p%ff", "not UTF-8"),
            ("etcd://a/p%00", "zero byte"),
            ("etcd://a/p?ca=", "is missing"),
            ("etcd://a/p?ca=/a&ca=/b", "\"ca\" is no parameter, or is there twice"),
            ("etcd://a/p?colour=red", "\"colour\" is no parameter"),
            ("etcd://a/p?ca=/c&cert=/a", "cert= and key="),
            ("etcd://a/p?ca=/c&user=a", "user= and password_file="),
            ("etcd://a/p?user=a&password_file=/f", "TLS only"),
            ("etcd://a/p?cert=/a&key=/k", "TLS only"),
            (&many, "16 at most"),
        ] {
            let said = text.parse::<Url>().unwrap_err().to_string();
            assert!(said.contains(why) && said.contains(FORMS), "{said}");
        }
    }
}
