//! Names a peer tells us: iSCSI names (RFC 7143 §4.2.7), target addresses and portals. They are
//! checked before anybody uses one, because sooner or later a name becomes a file name, a log line
//! or an argument: other initiators were taken over by a TargetName with `/` or `$()` in it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Longest iSCSI name in bytes (§4.2.7.2).
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.7.1
//# Initiators and targets MUST support the receipt of iSCSI names of up to the maximum length of
//# 223 bytes.
pub const NAME_MAX: usize = 223;

/// TCP port of iSCSI.
//= https://www.rfc-editor.org/rfc/rfc7143#section-15
//# Implementations needing a system TCP port number may use port 860, the port assigned by IANA as
//# the iSCSI system port; however, in order to use port 860, it MUST be explicitly specified --
//# implementations MUST NOT default to the use of port 860, as 3260 is the only allowed default.
pub const PORT: u16 = 3260;

/// Longest host name in a TargetAddress (RFC 1123).
const HOST_MAX: usize = 253;

/// Why a name is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Empty or longer than 223 bytes.
    #[error("iSCSI name of {length} bytes")]
    Length {
        /// Bytes.
        length: usize,
    },
    /// Not `iqn.`, `eui.` or `naa.` with what has to follow.
    #[error("not an iqn., eui. or naa. name")]
    Format,
    /// A character that no iSCSI name has.
    #[error("character {0:?} in an iSCSI name")]
    Character(char),
    /// Not `host[:port][,group]`.
    #[error("not a target address")]
    Address,
}

/// Checks an iSCSI name and returns it in lower case, the form in which names are compared.
///
/// Names are ASCII here: the full stringprep profile (RFC 3722) admits more, nobody uses it, and
/// what cannot be compared safely is refused.
///
/// # Errors
/// [`NameError`] says what is wrong with it.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.7.2
//# An iSCSI name MUST be a UTF-8 (see [RFC3629]) encoding of a string of Unicode characters with
//# the following properties:
pub fn check_name(name: &str) -> Result<String, NameError> {
    let length = name.len();
    if length == 0 || length > NAME_MAX {
        return Err(NameError::Length { length });
    }
    // §4.2.7.2 allows letters, digits, dash, dot and colon; the rest is what shells and paths are
    // made of. Underscores are not in the RFC, are met in the field and harm nobody.
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':' | '_');
    if let Some(c) = name.chars().find(|&c| !allowed(c)) {
        return Err(NameError::Character(c));
    }
    let name = name.to_ascii_lowercase();
    let is_hex = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let valid = if let Some(rest) = name.strip_prefix("iqn.") {
        is_iqn(rest)
    } else if let Some(digits) = name.strip_prefix("eui.") {
        digits.len() == 16 && is_hex(digits)
    } else if let Some(digits) = name.strip_prefix("naa.") {
        matches!(digits.len(), 16 | 32) && is_hex(digits)
    } else {
        false
    };
    if valid { Ok(name) } else { Err(NameError::Format) }
}

/// `yyyy-mm.` and at least one character (§4.2.7.4).
fn is_iqn(rest: &str) -> bool {
    let Some((date, authority)) = rest.split_once('.') else {
        return false;
    };
    let is_digits = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    let is_date = matches!(date.split_once('-'),
        Some((year, month)) if year.len() == 4 && month.len() == 2
            && is_digits(year) && is_digits(month));
    is_date && !authority.is_empty()
}

/// TargetAddress: `host[:port][,group]` (§13.8), the host a name or an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetAddress {
    /// DNS name or IP address, IPv6 without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Portal group tag; absent in a redirection.
    pub group: Option<u16>,
}

impl TargetAddress {
    /// A portal as SendTargets announces it.
    pub fn new(address: SocketAddr, group: u16) -> Self {
        Self { host: address.ip().to_string(), port: address.port(), group: Some(group) }
    }
}

impl fmt::Display for TargetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Brackets tell the colons of an IPv6 address from the one before the port (§13.8).
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)?;
        } else {
            write!(f, "{}:{}", self.host, self.port)?;
        }
        self.group.map_or(Ok(()), |group| write!(f, ",{group}"))
    }
}

impl std::str::FromStr for TargetAddress {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (address, group) = match text.split_once(',') {
            Some((address, group)) => (address, Some(parse_u16(group)?)),
            None => (text, None),
        };
        let (host, port) = if let Some(rest) = address.strip_prefix('[') {
            let (host, port) = rest.split_once(']').ok_or(NameError::Address)?;
            let host: Ipv6Addr = host.parse().map_err(|_| NameError::Address)?;
            let port = match port {
                "" => None,
                port => Some(port.strip_prefix(':').ok_or(NameError::Address)?),
            };
            (host.to_string(), port)
        } else {
            let (host, port) = match address.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (address, None),
            };
            if !is_host(host) {
                return Err(NameError::Address);
            }
            (host.to_ascii_lowercase(), port)
        };
        let port = port.map_or(Ok(PORT), parse_u16)?;
        Ok(Self { host, port, group })
    }
}

fn parse_u16(text: &str) -> Result<u16, NameError> {
    let is_digits = text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|_| is_digits).ok_or(NameError::Address)
}

/// An IPv4 address or a DNS name.
fn is_host(host: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_')
            // A leading dash would be an option to whoever passes it on.
            && !label.starts_with('-')
    };
    host.parse::<IpAddr>().is_ok()
        || host.len() <= HOST_MAX && host.trim_end_matches('.').split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.7.2
    //= type=test
    //# An iSCSI name MUST be a UTF-8 (see [RFC3629]) encoding of a string of Unicode characters
    //# with the following properties:
    #[test]
    fn names_that_are_names() {
        for name in [
            "iqn.1993-08.org.debian:01:8a4f2ad3d4b",
            "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-ls",
            "iqn.2001-04.com.example",
            "iqn.2001-04.com.example:disk_1.a-b",
            "eui.02004567A425678D",
            "naa.52004567BA64678D",
            "naa.62004567BA64678D0123456789ABCDEF",
        ] {
            assert_eq!(check_name(name), Ok(name.to_ascii_lowercase()), "{name}");
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.7.1
    //= type=test
    //# Each iSCSI node, whether it is an initiator, a target, or both, MUST have an iSCSI name.
    //= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.7.1
    //= type=test
    //# Initiators and targets MUST support the receipt of iSCSI names of up to the maximum length
    //# of 223 bytes.
    #[test]
    fn names_that_are_not() {
        let long = format!("iqn.2001-04.com.example:{}", "a".repeat(200));
        assert_eq!(check_name(&long), Err(NameError::Length { length: 224 }));
        assert!(check_name(&long[..NAME_MAX]).is_ok());
        assert_eq!(check_name(""), Err(NameError::Length { length: 0 }));
        for name in [
            "disk",
            "iqn",
            "iqn.",
            "iqn.2001-04",
            "iqn.2001-04.",
            "iqn.2001.com.example",
            "iqn.01-04.com.example",
            "iqn.20o1-04.com.example",
            "eui.02004567A425678",
            "eui.02004567A425678G",
            "naa.52004567BA64678D0",
        ] {
            assert_eq!(check_name(name), Err(NameError::Format), "{name}");
        }
        for (name, c) in [
            ("iqn.2001-04.com.example:../../etc/passwd", '/'),
            ("iqn.2001-04.com.example:$(id)", '$'),
            ("iqn.2001-04.com.example:a b", ' '),
            ("iqn.2001-04.com.example:a;b", ';'),
            ("iqn.2001-04.com.example:a\nb", '\n'),
            ("iqn.2001-04.com.example:é", 'é'),
        ] {
            assert_eq!(check_name(name), Err(NameError::Character(c)), "{name}");
        }
    }

    //= https://www.rfc-editor.org/rfc/rfc7143#section-15
    //= type=test
    //# Implementations needing a system TCP port number may use port 860, the port assigned by IANA
    //# as the iSCSI system port; however, in order to use port 860, it MUST be explicitly specified
    //# -- implementations MUST NOT default to the use of port 860, as 3260 is the only allowed
    //# default.
    #[test]
    fn addresses_there_and_back() {
        for (text, host, port, group) in [
            ("10.0.0.1:3260,1", "10.0.0.1", 3260, Some(1)),
            ("10.0.0.1", "10.0.0.1", PORT, None),
            ("[2001:db8::1]:860,65535", "2001:db8::1", 860, Some(65535)),
            ("[::1]", "::1", PORT, None),
            ("San1.Example.com:3261", "san1.example.com", 3261, None),
        ] {
            let address: TargetAddress = text.parse().unwrap();
            let expected = TargetAddress { host: host.to_owned(), port, group };
            assert_eq!(address, expected);
            assert_eq!(address.to_string().parse(), Ok(expected));
        }
        let socket = "[2001:db8::1]:3260".parse().unwrap();
        assert_eq!(TargetAddress::new(socket, 1).to_string(), "[2001:db8::1]:3260,1");
    }

    #[test]
    fn addresses_that_are_not() {
        for text in [
            "",
            ":3260",
            "10.0.0.1:",
            "10.0.0.1:65536",
            "10.0.0.1:+1",
            "10.0.0.1,",
            "10.0.0.1,65536",
            "10.0.0.1,1,1",
            "2001:db8::1",
            "[2001:db8::1",
            "[2001:db8::1]3260",
            "[host]:1",
            "../x",
            "a b",
            "-oProxyCommand=x",
            "a..b",
            "$(id)",
        ] {
            assert_eq!(text.parse::<TargetAddress>(), Err(NameError::Address), "{text:?}");
        }
    }
}
