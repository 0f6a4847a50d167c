//! Networks that a server is used from: an address and how many of its bits count.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A network, as in `192.0.2.0/24`; an address alone is that one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Is the address in it? One that is mapped into IPv6 is the IPv4 one.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        let differing_from = |bit: u32| bit >= self.prefix.into();
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                differing_from((ours.to_bits() ^ theirs.to_bits()).leading_zeros())
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                differing_from((ours.to_bits() ^ theirs.to_bits()).leading_zeros())
            }
            _ => false,
        }
    }

    /// Is the address in one of them? In no network at all, everybody is.
    #[must_use]
    pub fn any_has(networks: &[Self], address: IpAddr) -> bool {
        networks.is_empty() || networks.iter().any(|network| network.has(address))
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no network (as in 192.0.2.0/24 or 2001:db8::/32)");
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(max), |prefix| prefix.parse().map_err(|_| wrong()))?;
        if prefix > max {
            return Err(format!("{text:?} has {prefix} bits (0 to {max} are allowed)"));
        }
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_the_networks_whose_bits_it_has() {
        let has = |network: &str, address: &str| {
            network.parse::<Network>().unwrap().has(address.parse().unwrap())
        };
        assert!(has("192.0.2.0/24", "192.0.2.255"));
        assert!(has("192.0.2.0/24", "::ffff:192.0.2.7"));
        assert!(!has("192.0.2.0/24", "192.0.3.0"));
        assert!(has("0.0.0.0/0", "198.51.100.1"));
        assert!(!has("0.0.0.0/0", "2001:db8::1"));
        assert!(has("192.0.2.7", "192.0.2.7") && !has("192.0.2.7", "192.0.2.6"));
        assert!(has("2001:db8::/32", "2001:db8:ffff::1"));
        assert!(!has("2001:db8::/32", "2001:db9::1"));
        for wrong in ["", "x/24", "192.0.2.0/33", "192.0.2.0/-1", "192.0.2.0/"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
        assert!(Network::any_has(&[], [192, 0, 2, 1].into()));
    }
}
