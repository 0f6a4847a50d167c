//! [`Dscp`]: the mark that a connection's packets carry (RFC 2474), so that a network can tell
//! storage from what it should not wait for. Set on the socket before it connects or accepts, so
//! that the first packet has it, too.
//!
//! What a network does with a mark is its own business; a host's own queues go by SO_PRIORITY,
//! which is set with it. ECN's two bits beside the mark are TCP's: the kernel keeps them for
//! streams.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::str::FromStr;

use socket2::SockRef;

use super::socket_options::set_number;

/// Names and code points: RFC 2474 (CS), 2597 (AF), 3246 (EF), 5865 (VA), 8622 (LE).
const NAMES: [(&str, u8); 23] = [
    ("cs0", 0),
    ("le", 1),
    ("cs1", 8),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("cs2", 16),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("cs3", 24),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("cs4", 32),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("cs5", 40),
    ("va", 44),
    ("ef", 46),
    ("cs6", 48),
    ("cs7", 56),
];

/// Largest code point: six bits.
const MAX: u8 = 63;

/// A differentiated services code point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dscp(u8);

impl Dscp {
    /// Best effort: what packets carry unless told otherwise.
    pub const BEST_EFFORT: Self = Self(0);

    /// The code point.
    pub fn value(self) -> u8 {
        self.0
    }

    /// The queue of this host that suits it: the words of `tc-prio(8)`, by which `pfifo_fast`, the
    /// bands of `prio` and the classes of network cards choose. Up to 6 needs no privilege.
    fn priority(self) -> u32 {
        const BEST_EFFORT: u32 = 0;
        const FILLER: u32 = 1;
        const INTERACTIVE_BULK: u32 = 4;
        const INTERACTIVE: u32 = 6;
        match (self.0, self.0 >> 3) {
            (1 | 8, _) => FILLER, // LE and CS1: what is left over (RFC 8622 §2, RFC 4594 §4.10)
            (_, 0) => BEST_EFFORT,
            (_, 1..=3) => INTERACTIVE_BULK,
            _ => INTERACTIVE,
        }
    }

    /// Marks what a socket sends from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn apply(self, socket: &impl AsFd) -> io::Result<()> {
        let (socket, value) = (SockRef::from(socket), u32::from(self.0) << 2);
        let is_v6 = socket.domain()? == socket2::Domain::IPV6;
        if is_v6 {
            socket.set_tclass_v6(value)?;
        }
        // Also of an IPv6 socket, which may talk to IPv4: the kernel looks at one or the other.
        match socket.set_tos_v4(value) {
            Err(error) if !is_v6 => return Err(error),
            _ => {}
        }
        // Behind it: IP_TOS sets a priority of its own, after the old meaning of that byte. One
        // that was accepted has the mark of the one that listens, but not its priority.
        set_number(&socket, (libc::SOL_SOCKET, libc::SO_PRIORITY), self.priority())
    }
}

impl FromStr for Dscp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        let named = NAMES.iter().find(|(name, _)| *name == lower).map(|(_, value)| *value);
        let value = named.or_else(|| text.parse().ok().filter(|value| *value <= MAX));
        value.map(Self).ok_or_else(|| {
            format!(
                "{text:?} is no DSCP (cs0 to cs7, af11 to af43, ef, va, le, or a number from 0 to {MAX})"
            )
        })
    }
}

/// Its name, or its number.
impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, value)| *value == self.0) {
            Some((name, _)) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    fn get(socket: &impl AsFd, level: libc::c_int, name: libc::c_int) -> u32 {
        let (mut value, mut len) = (0_u32, size_of::<u32>() as libc::socklen_t);
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: both are writable for the lengths that they are said to have.
        let result =
            unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
        assert_eq!(result, 0);
        value
    }

    #[test]
    fn names_and_numbers() {
        for (text, value) in
            [("ef", 46), ("AF11", 10), ("cs6", 48), ("le", 1), ("0", 0), ("63", 63)]
        {
            assert_eq!(text.parse(), Ok(Dscp(value)));
        }
        for wrong in ["64", "-1", "cs8", "af44", "af10", "", "ef ", "0x10"] {
            let error = wrong.parse::<Dscp>().unwrap_err();
            assert!(error.contains("cs0 to cs7, af11 to af43"), "{error}");
        }
        for value in 0..=MAX {
            assert_eq!(Dscp(value).to_string().parse(), Ok(Dscp(value)));
        }
    }

    #[test]
    fn a_socket_is_marked_and_one_that_is_accepted_inherits_it() {
        let dscp: Dscp = "af21".parse().unwrap();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert!(address.starts_with('['), "without IPv6 there is nothing to mark");
                continue;
            };
            dscp.apply(&listener).unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, _) = listener.accept().unwrap();
            let (level, name) = match near.local_addr().unwrap().is_ipv6() {
                true => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
                false => (libc::IPPROTO_IP, libc::IP_TOS),
            };
            assert_eq!(get(&far, level, name), 18 << 2, "its first packet is marked");
            dscp.apply(&far).unwrap();
            dscp.apply(&near).unwrap();
            for socket in [&near, &far] {
                assert_eq!(get(socket, level, name), 18 << 2, "{address}");
                assert_eq!(get(socket, libc::SOL_SOCKET, libc::SO_PRIORITY), 4, "{address}");
            }
        }
    }

    /// A listener on all addresses serves IPv4, too.
    #[test]
    fn a_socket_of_both_families_is_marked_in_both() {
        let dscp: Dscp = "ef".parse().unwrap();
        let Ok(listener) = TcpListener::bind("[::]:0") else { return };
        dscp.apply(&listener).unwrap();
        assert_eq!(get(&listener, libc::IPPROTO_IPV6, libc::IPV6_TCLASS), 46 << 2);
        assert_eq!(get(&listener, libc::IPPROTO_IP, libc::IP_TOS), 46 << 2);
        let _near = TcpStream::connect(("127.0.0.1", listener.local_addr().unwrap().port()));
        let (far, _) = listener.accept().unwrap();
        assert_eq!(get(&far, libc::IPPROTO_IP, libc::IP_TOS), 46 << 2);
    }

    #[test]
    fn priorities_are_those_that_need_no_privilege() {
        let of = |text: &str| text.parse::<Dscp>().unwrap().priority();
        assert_eq!([of("le"), of("cs1"), of("cs0"), of("af11"), of("ef")], [1, 1, 0, 4, 6]);
        assert!((0..=MAX).all(|value| Dscp(value).priority() <= 6));
    }
}
