//! NBD URLs: `nbd://HOST[:PORT]/EXPORT` and `nbd+unix:///EXPORT?socket=PATH`.
//!
//! Source: doc/uri.md of NetworkBlockDevice/nbd. Not here: TLS (`nbds`), vsock and ssh.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::wire::STRING_LEN_MAX;

/// NBD's port (IANA).
pub const DEFAULT_PORT: u16 = 10809;

/// The forms of an NBD URL.
pub const FORMS: &str = "nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH";

/// Longest path of a socket in bytes (`sun_path` of unix(7), with a zero at its end).
const SOCKET_PATH_LEN_MAX: usize = 107;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A name or an address, and a port.
    Tcp {
        /// Without the brackets of IPv6.
        host: String,
        /// Never 0.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// One export of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Where.
    pub address: Address,
    /// Name of the export; empty is the server's default.
    pub export: String,
}

/// Why a text is no NBD URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url:?}: {why}; allowed is {FORMS}")]
pub struct UrlError {
    url: String,
    why: String,
}

impl Url {
    /// Is this meant as an NBD URL, right or wrong?
    pub fn is_meant(text: &str) -> bool {
        text.split_once("://").is_some_and(|(scheme, _)| {
            scheme == "nbd"
                || scheme == "nbds"
                || scheme.starts_with("nbd+")
                || scheme.starts_with("nbds+")
        })
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        parse(text).map_err(|why| UrlError { url: text.to_owned(), why })
    }
}

fn parse(text: &str) -> Result<Url, String> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err("a scheme is missing".into());
    };
    if rest.contains('#') {
        return Err("a fragment (#) means nothing here".into());
    }
    let (place, query) = match rest.split_once('?') {
        Some((place, query)) => (place, Some(query)),
        None => (rest, None),
    };
    let (authority, export) = place.split_once('/').unwrap_or((place, ""));
    let export = decoded(export, "the export's name")?;
    if export.len() > STRING_LEN_MAX {
        return Err(format!("the export's name has more than {STRING_LEN_MAX} bytes"));
    }
    let address = match scheme {
        "nbd" => {
            if let Some(query) = query {
                return Err(format!("?{query}: a TCP address takes no parameters"));
            }
            tcp(authority)?
        }
        "nbd+unix" => unix(authority, query)?,
        "nbds" | "nbds+unix" => return Err("NBD over TLS is not supported".into()),
        _ => return Err(format!("the scheme {scheme} is not supported")),
    };
    Ok(Url { address, export })
}

fn tcp(authority: &str) -> Result<Address, String> {
    if authority.contains('@') {
        return Err("NBD has no users and passwords".into());
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("a ] is missing")?;
            let port = match port.strip_prefix(':') {
                None if !port.is_empty() => return Err(format!("{port:?} behind the ]")),
                port => port,
            };
            (host, port)
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return Err("a host is missing".into());
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => match port.parse() {
            Ok(port) if port != 0 => port,
            _ => return Err(format!("{port:?} is not a port from 1 to 65535")),
        },
    };
    Ok(Address::Tcp { host: decoded(host, "the host")?, port })
}

fn unix(authority: &str, query: Option<&str>) -> Result<Address, String> {
    if !authority.is_empty() {
        return Err(format!("nbd+unix has no host, but {authority:?} stands behind the //"));
    }
    let mut socket = None;
    for parameter in query.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
        match parameter.split_once('=') {
            Some(("socket", path)) if socket.is_none() => {
                socket = Some(decoded(path, "the socket's path")?);
            }
            Some(("socket", _)) => return Err("socket= is there twice".into()),
            _ => return Err(format!("{parameter:?}: the only parameter is socket=PATH")),
        }
    }
    match socket {
        None => Err("?socket=PATH is missing".into()),
        Some(path) if path.is_empty() => Err("the socket's path is empty".into()),
        Some(path) if path.len() > SOCKET_PATH_LEN_MAX => Err(format!(
            "the socket's path has {} bytes; it may have {SOCKET_PATH_LEN_MAX}",
            path.len()
        )),
        Some(path) => Ok(Address::Unix(path.into())),
    }
}

/// RFC 3986 §2.1 undone.
fn decoded(text: &str, what: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.split_at_checked(2).and_then(|(digits, tail)| {
            rest = tail;
            let digits = std::str::from_utf8(digits).ok()?;
            digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then_some(digits)
        });
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(|| format!("{what}: % without two hexadecimal digits"))?);
    }
    if bytes.contains(&0) {
        return Err(format!("{what} contains a zero byte"));
    }
    String::from_utf8(bytes).map_err(|_| format!("{what} is not UTF-8"))
}

/// RFC 3986 §2.1, with the slash left as it is.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = encoded(&self.export);
        match &self.address {
            Address::Tcp { host, port } if host.contains(':') => {
                write!(f, "nbd://[{host}]:{port}/{export}")
            }
            Address::Tcp { host, port } => write!(f, "nbd://{host}:{port}/{export}"),
            Address::Unix(path) => {
                write!(f, "nbd+unix:///{export}?socket={}", encoded(&path.to_string_lossy()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> Url {
        Url { address: Address::Tcp { host: host.into(), port }, export: export.into() }
    }

    #[test]
    fn the_forms_are_read() {
        let read = |text: &str| text.parse::<Url>().unwrap();
        assert_eq!(read("nbd://host"), tcp("host", 10809, ""));
        assert_eq!(read("nbd://host:10/a%20b/c"), tcp("host", 10, "a b/c"));
        assert_eq!(read("nbd://[::1]:11/"), tcp("::1", 11, ""));
        assert_eq!(read("nbd://[fe80::1]"), tcp("fe80::1", 10809, ""));
        let unix = read("nbd+unix:///disk?socket=/tmp/a%20b");
        assert_eq!(unix.address, Address::Unix("/tmp/a b".into()));
        assert_eq!(unix.export, "disk");
        for text in ["nbd://host:10/a%20b/c", "nbd://[::1]:11/", "nbd+unix:///?socket=/tmp/s"] {
            assert_eq!(read(text).to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, why) in [
            ("nbds://host/x", "TLS"),
            ("nbd+ssh://host/x", "scheme nbd+ssh"),
            ("nbd:///x", "host is missing"),
            ("nbd://u@host/x", "no users"),
            ("nbd://host:0/", "port from 1"),
            ("nbd://host:x/", "port from 1"),
            ("nbd://[::1/", "] is missing"),
            ("nbd://[::1]x/", "behind the ]"),
            ("nbd://host/?socket=/x", "no parameters"),
            ("nbd+unix:///x", "socket=PATH is missing"),
            ("nbd+unix://host/x?socket=/s", "no host"),
            ("nbd+unix:///x?socket=", "empty"),
            ("nbd+unix:///x?socket=a&socket=b", "twice"),
            ("nbd+unix:///x?tls=1", "only parameter"),
            ("nbd://host/%4", "hexadecimal"),
            ("nbd://host/%+1", "hexadecimal"),
            ("nbd://host/%00", "zero byte"),
            ("nbd://host/%ff", "UTF-8"),
            ("nbd://host/x#y", "fragment"),
        ] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(error.contains("nbd+unix:///EXPORT"), "{error}");
        }
        let long = format!("nbd+unix:///x?socket=/{}", "a".repeat(200));
        assert!(long.parse::<Url>().unwrap_err().to_string().contains("may have 107"));
        assert!(Url::is_meant("nbd+vsock://x") && !Url::is_meant("iscsi://x"));
    }
}
