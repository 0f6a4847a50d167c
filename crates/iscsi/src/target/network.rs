//! [`network`]: whom a limit counts as one peer.

use std::net::{IpAddr, Ipv6Addr};

/// What one peer can take its addresses from: an IPv4 address, or an IPv6 network of 64 bits, in
/// which a single host may have any address (RFC 4291 §2.5.1).
pub(super) fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_host_is_its_network_and_an_ipv4_host_is_itself() {
        let network = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(network("2001:db8:1:2::"), network("2001:db8:1:2:ffff::1"));
        assert_ne!(network("2001:db8:1:3::1"), network("2001:db8:1:2::1"));
        assert_eq!(network("192.0.2.7"), "192.0.2.7");
        assert_eq!(network("::ffff:192.0.2.7"), "192.0.2.7", "the same host on a socket for both");
    }
}
