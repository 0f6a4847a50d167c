//! Which connections are wanted, and the same as a program that the kernel runs on every socket, so
//! that a host with a hundred thousand others answers with the few (linux/inet_diag.h,
//! `INET_DIAG_REQ_BYTECODE`).
//!
//! The program is a list of conditions, each with two forward jumps: `yes` is its own length, `no`
//! the distance to where it goes on otherwise. Who lands exactly at the end is accepted, who lands
//! 4 bytes behind it is not. The kernel checks that every `no` ends at the beginning of a
//! condition.

use std::net::IpAddr;

use crate::sample::{Connection, State};

const JUMP: u8 = 1;
const LOCAL_ADDRESS: u8 = 7;
const REMOTE_ADDRESS: u8 = 8;
const LOCAL_PORT: u8 = 11;
const REMOTE_PORT: u8 = 12;
/// A jump, and the front of every condition.
const OP_BYTES: usize = 4;
/// Marks a `no` that means "not wanted" until the program's length is known.
const REFUSE: u16 = u16::MAX;

/// Which connections are wanted. All conditions must hold; none is all connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// A port of either end.
    pub port: Option<u16>,
    /// An address of either end.
    pub address: Option<IpAddr>,
    /// States.
    pub states: Vec<State>,
}

impl Default for Filter {
    /// Every connection that can carry data.
    fn default() -> Self {
        Self { port: None, address: None, states: vec![State::ESTABLISHED, State::CLOSE_WAIT] }
    }
}

impl Filter {
    /// The states as the kernel takes them, a bit each.
    pub(super) fn state_bits(&self) -> u32 {
        self.states
            .iter()
            .fold(0, |bits, state| bits | 1_u32.checked_shl(state.0.into()).unwrap_or(0))
    }

    /// The program, empty if every socket is wanted.
    pub(super) fn bytecode(&self) -> Vec<u8> {
        let mut code = Vec::new();
        if let Some(port) = self.port {
            either(
                &mut code,
                &condition(LOCAL_PORT, &port_words(port)),
                &condition(REMOTE_PORT, &port_words(port)),
            );
        }
        if let Some(address) = self.address {
            let host = host_words(address);
            either(&mut code, &condition(LOCAL_ADDRESS, &host), &condition(REMOTE_ADDRESS, &host));
        }
        refuse_behind_the_end(&mut code);
        code
    }

    /// The same in this process, for kernels older than the program's conditions.
    pub fn wants(&self, connection: &Connection) -> bool {
        let Connection { local, remote, .. } = connection;
        self.port.is_none_or(|port| [local.port(), remote.port()].contains(&port))
            && self
                .address
                .is_none_or(|address| [local.ip(), remote.ip()].contains(&address.to_canonical()))
    }
}

/// One condition with its arguments; `no` is not yet known.
fn condition(code: u8, arguments: &[u8]) -> Vec<u8> {
    let length = OP_BYTES + arguments.len();
    let yes = u8::try_from(length).unwrap_or(u8::MAX); // 28 at most
    let mut bytes = vec![code, yes];
    bytes.extend(REFUSE.to_ne_bytes());
    bytes.extend(arguments);
    bytes
}

/// The port stands where an operation has its `no`.
fn port_words(port: u16) -> Vec<u8> {
    let mut words = vec![0, 0];
    words.extend(port.to_ne_bytes());
    words
}

/// `struct inet_diag_hostcond`: family, prefix length, any port, address.
fn host_words(address: IpAddr) -> Vec<u8> {
    let (family, octets) = match address.to_canonical() {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let family = u8::try_from(family).unwrap_or_default();
    let prefix = u8::try_from(octets.len() * 8).unwrap_or_default();
    let mut words = vec![family, prefix, 0, 0];
    words.extend((-1_i32).to_ne_bytes());
    words.extend(octets);
    words
}

/// Appends "the first or the second".
fn either(code: &mut Vec<u8>, first: &[u8], second: &[u8]) {
    let mut first = first.to_vec();
    // Where the first does not hold, go on behind the jump.
    let behind_the_jump = first.len() + OP_BYTES;
    set_no(&mut first, behind_the_jump);
    code.extend(first);
    code.extend([JUMP, 4]);
    code.extend(u16::try_from(OP_BYTES + second.len()).unwrap_or(REFUSE).to_ne_bytes());
    code.extend(second);
}

fn set_no(op: &mut [u8], distance: usize) {
    let distance = u16::try_from(distance).unwrap_or(REFUSE);
    op[2..4].copy_from_slice(&distance.to_ne_bytes());
}

fn refuse_behind_the_end(code: &mut [u8]) {
    let (mut at, end) = (0, code.len());
    while at < end {
        if code[at + 2..at + 4] == REFUSE.to_ne_bytes() {
            set_no(&mut code[at..], end + OP_BYTES - at);
        }
        at += usize::from(code[at + 1]);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    /// What net/ipv4/inet_diag.c does with the program (`inet_diag_bc_run`).
    fn kernel_wants(mut code: &[u8], connection: &Connection) -> bool {
        let ip = |address: SocketAddr| match address.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        while !code.is_empty() {
            let no = usize::from(u16::from_ne_bytes([code[2], code[3]]));
            let port = || u16::from_ne_bytes([code[6], code[7]]);
            let address = |end| code[12..usize::from(code[1])] == ip(end);
            let holds = match code[0] {
                JUMP => false,
                LOCAL_PORT => connection.local.port() == port(),
                REMOTE_PORT => connection.remote.port() == port(),
                LOCAL_ADDRESS => address(connection.local),
                REMOTE_ADDRESS => address(connection.remote),
                other => panic!("operation {other}"),
            };
            let step = if holds { usize::from(code[1]) } else { no };
            if step > code.len() {
                assert_eq!(step, code.len() + 4, "only 4 bytes behind the end refuse");
                return false;
            }
            code = &code[step..];
        }
        true
    }

    #[test]
    fn the_program_says_what_the_filter_says() {
        let connections = [
            "10.0.0.1:3260 10.0.0.2:50000",
            "10.0.0.2:50000 10.0.0.1:3260",
            "10.0.0.3:3260 10.0.0.4:3260",
            "10.0.0.1:22 10.0.0.9:1",
            "[fd00::1]:3260 [fd00::2]:7",
        ]
        .map(|line| {
            let (local, remote) = line.split_once(' ').unwrap();
            Connection { local: local.parse().unwrap(), remote: remote.parse().unwrap(), cookie: 1 }
        });
        let mut accepted = 0;
        for port in [None, Some(3260), Some(22), Some(9)] {
            for address in [None, Some("10.0.0.1"), Some("fd00::2"), Some("10.0.0.4")] {
                let address = address.map(|text| text.parse().unwrap());
                let filter = Filter { port, address, ..Filter::default() };
                let code = filter.bytecode();
                for connection in &connections {
                    let wanted = filter.wants(connection);
                    assert_eq!(kernel_wants(&code, connection), wanted, "{filter:?} {connection}");
                    accepted += usize::from(wanted);
                }
            }
        }
        assert_eq!(accepted, 10 + 8 + 2, "with no port, 3260 and 22");
    }

    #[test]
    fn states_are_bits() {
        assert_eq!(Filter::default().state_bits(), 1 << 1 | 1 << 8);
        let strange = Filter { states: vec![State(200)], ..Filter::default() };
        assert_eq!(strange.state_bits(), 0);
    }
}
