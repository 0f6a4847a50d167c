//! Messages of NETLINK_SOCK_DIAG for TCP (linux/inet_diag.h, sock_diag(7)): a request out of a
//! filter or a connection, a [`Sample`] out of an answer. Netlink's own headers and attributes are
//! read by
//! `netlink-packet-core`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NlaBuffer, NlasIterator};

use super::filter::Filter;
use crate::sample::{Bbr, Connection, Memory, Sample, State, TcpInfo, canonical, u32_at};

/// `SOCK_DIAG_BY_FAMILY`.
pub(super) const BY_FAMILY: u16 = 20;
const HEADER_BYTES: usize = 16;
/// `struct inet_diag_msg` before its attributes.
const ANSWER_BYTES: usize = 72;
const ATTRIBUTE_BYTES: usize = 4;
/// `INET_DIAG_REQ_BYTECODE`.
const BYTECODE: u16 = 1;
const INFO: u16 = 2;
const VEGAS_INFO: u16 = 3;
const CONGESTION_CONTROL: u16 = 4;
const MEMORY: u16 = 7;
const BBR_INFO: u16 = 16;
/// Asking for `VEGAS_INFO` is asking for what the algorithm in use has to tell.
const EXTENSIONS: u8 =
    1 << (INFO - 1) | 1 << (VEGAS_INFO - 1) | 1 << (CONGESTION_CONTROL - 1) | 1 << (MEMORY - 1);

/// Asks for every connection of an address family that the filter wants.
pub(super) fn dump(family: u8, filter: &Filter, in_kernel: bool, sequence: u32) -> Vec<u8> {
    let code = if in_kernel { filter.bytecode() } else { Vec::new() };
    let mut body = request(family, filter.state_bits(), &[0; 48]);
    if !code.is_empty() {
        let length = u16::try_from(ATTRIBUTE_BYTES + code.len()).unwrap_or(u16::MAX);
        body.extend(length.to_ne_bytes());
        body.extend(BYTECODE.to_ne_bytes());
        body.extend(code);
    }
    message(NLM_F_REQUEST | NLM_F_DUMP, sequence, &body)
}

/// Asks for one connection.
pub(super) fn one(connection: &Connection, sequence: u32) -> Vec<u8> {
    let mut id = Vec::with_capacity(48);
    id.extend(connection.local.port().to_be_bytes());
    id.extend(connection.remote.port().to_be_bytes());
    let mut family = 0;
    for address in [connection.local, connection.remote] {
        let mut octets = [0; 16];
        match address.ip() {
            IpAddr::V4(ip) => octets[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => octets = ip.octets(),
        }
        family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        id.extend(octets);
    }
    // A link-local connection is one of an interface.
    let interface = match connection.local {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    id.extend(interface.to_ne_bytes());
    id.extend(connection.cookie.to_ne_bytes());
    let family = u8::try_from(family).unwrap_or_default();
    message(NLM_F_REQUEST, sequence, &request(family, u32::MAX, &id))
}

fn request(family: u8, states: u32, id: &[u8]) -> Vec<u8> {
    let protocol = u8::try_from(libc::IPPROTO_TCP).unwrap_or_default();
    let mut body = vec![family, protocol, EXTENSIONS, 0];
    body.extend(states.to_ne_bytes());
    body.extend(id);
    body
}

fn message(flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES + body.len()];
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut buffer = NetlinkBuffer::new(&mut bytes);
    buffer.set_length(length);
    buffer.set_message_type(BY_FAMILY);
    buffer.set_flags(flags);
    buffer.set_sequence_number(sequence);
    bytes[HEADER_BYTES..].copy_from_slice(body);
    bytes
}

/// Reads the payload of an answer. `None` for what has no counters (a listening socket has no
/// `tcp_info` in some kernels) or is shorter than it must be.
pub(super) fn sample(payload: &[u8], at_us: u64) -> Option<Sample> {
    let (socket, attributes) = payload.split_at_checked(ANSWER_BYTES)?;
    let mut sample = Sample {
        at_us,
        connection: connection(socket)?,
        state: State(socket[1]),
        receive_queue_bytes: u32_at(socket, 56)?,
        send_queue_bytes: u32_at(socket, 60)?,
        inode: u32_at(socket, 68)?,
        congestion_control: String::new(),
        tcp: TcpInfo::default(),
        memory: None,
        bbr: None,
    };
    let mut told = false;
    for attribute in NlasIterator::new(attributes) {
        let Ok(attribute) = attribute else { break };
        told |= read(&attribute, &mut sample);
    }
    told.then_some(sample)
}

/// Whether it was the `tcp_info`.
fn read(attribute: &NlaBuffer<&[u8]>, sample: &mut Sample) -> bool {
    let value = attribute.value();
    match attribute.kind() {
        INFO => match TcpInfo::parse(value) {
            Some(tcp) => sample.tcp = tcp,
            None => return false,
        },
        MEMORY => sample.memory = Memory::parse(value),
        BBR_INFO => sample.bbr = Bbr::parse(value),
        CONGESTION_CONTROL => {
            let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
            sample.congestion_control = String::from_utf8_lossy(name).into_owned();
        }
        _ => {}
    }
    attribute.kind() == INFO
}

/// `struct inet_diag_msg`: family, state, timer, retransmissions, then `inet_diag_sockid`.
fn connection(socket: &[u8]) -> Option<Connection> {
    let family = i32::from(*socket.first()?);
    let port = |at: usize| Some(u16::from_be_bytes(*socket.get(at..)?.first_chunk()?));
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 16] = *socket.get(at..)?.first_chunk()?;
        match family {
            libc::AF_INET => Some(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into()),
            libc::AF_INET6 => Some(Ipv6Addr::from(octets).into()),
            _ => None,
        }
    };
    let cookie: [u8; 8] = *socket.get(44..)?.first_chunk()?;
    let mut local = canonical(address(8)?, port(4)?);
    if let SocketAddr::V6(address) = &mut local {
        address.set_scope_id(u32_at(socket, 40)?);
    }
    let remote = canonical(address(24)?, port(6)?);
    Some(Connection { local, remote, cookie: u64::from_ne_bytes(cookie) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(family: i32, attributes: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = vec![u8::try_from(family).unwrap(), 1, 0, 0];
        bytes.extend(3260_u16.to_be_bytes());
        bytes.extend(40000_u16.to_be_bytes());
        for last in [1, 2] {
            let mut ip = if family == libc::AF_INET6 {
                "::ffff:10.0.0.0".parse::<Ipv6Addr>().unwrap().octets()
            } else {
                [10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
            };
            ip[if family == libc::AF_INET6 { 15 } else { 3 }] = last;
            bytes.extend(ip);
        }
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(77_u64.to_ne_bytes());
        bytes.extend([0_u32, 5, 6, 1000, 4242].iter().flat_map(|word| word.to_ne_bytes()));
        for (kind, value) in attributes {
            bytes.extend(u16::try_from(4 + value.len()).unwrap().to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn an_answer_becomes_a_sample() {
        for family in [libc::AF_INET, libc::AF_INET6] {
            let attributes = [
                (CONGESTION_CONTROL, b"cubic\0".to_vec()),
                (INFO, vec![1; 232]),
                (MEMORY, vec![2; 36]),
                (99, vec![9; 3]),
            ];
            let sample = sample(&answer(family, &attributes), 5).unwrap();
            assert_eq!(sample.connection.local, "10.0.0.1:3260".parse().unwrap());
            assert_eq!(sample.connection.remote, "10.0.0.2:40000".parse().unwrap());
            assert_eq!((sample.connection.cookie, sample.inode), (77, 4242));
            assert_eq!((sample.receive_queue_bytes, sample.send_queue_bytes), (5, 6));
            assert_eq!(sample.congestion_control, "cubic");
            assert_eq!(sample.tcp.rtt_us, 0x0101_0101);
            assert_eq!(sample.memory.unwrap().drops, 0x0202_0202);
        }
    }

    #[test]
    fn short_and_strange_answers_are_none() {
        let whole = answer(libc::AF_INET, &[(INFO, vec![1; 232])]);
        for length in 0..whole.len() {
            assert_eq!(sample(&whole[..length], 0), None, "{length} bytes");
        }
        assert_eq!(sample(&answer(libc::AF_INET, &[(INFO, vec![1; 50])]), 0), None);
        assert_eq!(sample(&answer(libc::AF_UNIX, &[(INFO, vec![1; 232])]), 0), None);
    }
}
