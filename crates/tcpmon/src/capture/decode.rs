//! A frame as captured → a TCP segment: link layers, IPv4, IPv6, TCP. Cut frames are normal:
//! lengths come from the IP header, and only the bytes present are handed on.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    EtherType, LaxNetSlice, LaxSlicedPacket, TcpOptionElement, TcpSlice, TransportSlice,
};

use super::{CaptureSummary, SACK_BLOCKS_MAX, Segment, TcpOptions};

/// Number of a link-layer header type (<https://www.tcpdump.org/linktypes.html>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkType(pub i32);

impl LinkType {
    /// BSD loopback: address family in the capturing host's byte order.
    pub const NULL: Self = Self(0);
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);
    /// Raw IP.
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback: address family in network byte order.
    pub const LOOP: Self = Self(108);
    /// Linux cooked capture.
    pub const LINUX_SLL: Self = Self(113);
    /// Raw IPv4.
    pub const IPV4: Self = Self(228);
    /// Raw IPv6.
    pub const IPV6: Self = Self(229);
    /// Linux cooked capture, version 2.
    pub const LINUX_SLL2: Self = Self(276);
    /// What some systems write for raw IP (DLT_RAW).
    const RAW_BSD: [Self; 2] = [Self(12), Self(14)];
}

/// Where the network layer begins, and its EtherType unless the packet itself tells.
enum Network {
    Ethernet,
    Typed(usize, EtherType),
    Ip(usize),
    Unknown,
}

fn network(link: LinkType, frame: &[u8]) -> Network {
    let be16 = |at: usize| {
        frame.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    match link {
        LinkType::ETHERNET => Network::Ethernet,
        LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => Network::Ip(0),
        link if LinkType::RAW_BSD.contains(&link) => Network::Ip(0),
        LinkType::NULL | LinkType::LOOP => Network::Ip(4),
        LinkType::LINUX_SLL => Network::Typed(16, EtherType(be16(14))),
        LinkType::LINUX_SLL2 => Network::Typed(20, EtherType(be16(0))),
        _ => Network::Unknown,
    }
}

/// Reads one frame of `wire_len` bytes, of which `frame` was captured; `None` is counted in
/// `summary`.
pub fn decode<'a>(
    link: LinkType,
    frame: &'a [u8],
    wire_len: u32,
    time_ns: u64,
    summary: &mut CaptureSummary,
) -> Option<Segment<'a>> {
    summary.packets += 1;
    let packet = match network(link, frame) {
        Network::Ethernet => LaxSlicedPacket::from_ethernet(frame).ok(),
        Network::Typed(at, kind) => {
            frame.get(at..).map(|rest| LaxSlicedPacket::from_ether_type(kind, rest))
        }
        Network::Ip(at) => frame.get(at..).and_then(|rest| LaxSlicedPacket::from_ip(rest).ok()),
        Network::Unknown => {
            summary.unknown_link += 1;
            return None;
        }
    };
    let Some(packet) = packet else {
        summary.cut_headers += 1;
        return None;
    };
    let Some((ip, protocol_is_tcp, fragment)) = packet.net.as_ref().and_then(ip_facts) else {
        summary.not_tcp += 1;
        return None;
    };
    if fragment {
        summary.fragments += 1;
        return None;
    }
    match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            summary.segments += 1;
            Some(segment(frame, wire_len, time_ns, &ip, tcp))
        }
        None if protocol_is_tcp => {
            summary.cut_headers += 1;
            None
        }
        _ => {
            summary.not_tcp += 1;
            None
        }
    }
}

/// What the IP header says.
struct Ip {
    src: IpAddr,
    dst: IpAddr,
    id: Option<u16>,
    /// Where its first byte is in memory, to find offsets in the frame.
    begin: *const u8,
    /// Length of the packet with its header; `None` where it was left to the hardware (over
    /// 64 KiB, RFC 2675 jumbograms and Linux's BIG TCP).
    len: Option<usize>,
}

fn ip_facts(net: &LaxNetSlice<'_>) -> Option<(Ip, bool, bool)> {
    use etherparse::IpNumber;
    match net {
        LaxNetSlice::Ipv4(ip) => {
            let header = ip.header();
            let facts = Ip {
                src: header.source_addr().into(),
                dst: header.destination_addr().into(),
                id: Some(header.identification()),
                begin: header.slice().as_ptr(),
                len: Some(usize::from(header.total_len())).filter(|&len| len > 0),
            };
            Some((facts, ip.payload_ip_number() == IpNumber::TCP, ip.is_payload_fragmented()))
        }
        LaxNetSlice::Ipv6(ip) => {
            let header = ip.header();
            let payload = usize::from(header.payload_length());
            let facts = Ip {
                src: header.source_addr().into(),
                dst: header.destination_addr().into(),
                id: None,
                begin: header.slice().as_ptr(),
                len: Some(payload).filter(|&len| len > 0).map(|len| len + 40),
            };
            let is_tcp = ip.payload().ip_number == IpNumber::TCP;
            Some((facts, is_tcp, ip.is_payload_fragmented()))
        }
        LaxNetSlice::Arp(_) => None,
    }
}

fn segment<'a>(
    frame: &'a [u8],
    wire_len: u32,
    time_ns: u64,
    ip: &Ip,
    tcp: &TcpSlice<'a>,
) -> Segment<'a> {
    let offset_in = |at: *const u8| (at as usize).saturating_sub(frame.as_ptr() as usize);
    let ip_at = offset_in(ip.begin);
    let payload_at = offset_in(tcp.slice().as_ptr()) + tcp.header_slice().len();
    let headers = payload_at.saturating_sub(ip_at);
    let on_wire = (wire_len as usize).max(frame.len());
    let ip_len = ip.len.unwrap_or_else(|| on_wire.saturating_sub(ip_at));
    let payload_len = ip_len.saturating_sub(headers);
    // Behind the IP packet there may be Ethernet's padding.
    let payload = frame.get(payload_at..).unwrap_or_default();
    let payload = &payload[..payload.len().min(payload_len)];
    Segment {
        time_ns,
        src: SocketAddr::new(ip.src, tcp.source_port()),
        dst: SocketAddr::new(ip.dst, tcp.destination_port()),
        ip_id: ip.id,
        seq: tcp.sequence_number(),
        ack: tcp.ack().then(|| tcp.acknowledgment_number()),
        syn: tcp.syn(),
        fin: tcp.fin(),
        rst: tcp.rst(),
        window: tcp.window_size(),
        options: options(tcp),
        payload_len: u32::try_from(payload_len).unwrap_or(u32::MAX),
        payload,
    }
}

fn options(tcp: &TcpSlice<'_>) -> TcpOptions {
    let mut found = TcpOptions::default();
    // A damaged option ends the list; what came before it counts.
    for option in tcp.options_iterator().map_while(Result::ok) {
        match option {
            TcpOptionElement::MaximumSegmentSize(mss) => found.mss = Some(mss),
            TcpOptionElement::WindowScale(scale) => found.window_scale = Some(scale),
            TcpOptionElement::Timestamp(value, echo) => found.timestamps = Some((value, echo)),
            TcpOptionElement::SelectiveAcknowledgement(first, rest) => {
                let blocks = std::iter::once(Some(first)).chain(rest);
                for (slot, block) in found.sack.iter_mut().zip(blocks.take(SACK_BLOCKS_MAX)) {
                    *slot = block;
                }
            }
            TcpOptionElement::Noop | TcpOptionElement::SelectiveAcknowledgementPermitted => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn ethernet(payload: &[u8]) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .tcp(40_000, 3260, 1000, 65_000)
            .ack(77);
        let mut frame = Vec::new();
        builder.write(&mut frame, payload).unwrap();
        frame
    }

    #[test]
    fn a_cut_frame_keeps_the_length_it_had_on_the_wire() {
        let frame = ethernet(&[9; 500]);
        let mut summary = CaptureSummary::default();
        let cut = decode(LinkType::ETHERNET, &frame[..80], 554, 5, &mut summary).unwrap();
        assert_eq!((cut.payload_len, cut.payload.len()), (500, 26));
        assert_eq!((cut.seq, cut.ack, cut.window), (1000, Some(77), 65_000));
        assert_eq!(cut.dst.port(), 3260);
    }

    #[test]
    fn padding_of_ethernet_is_no_payload() {
        let mut frame = ethernet(&[]);
        frame.resize(60, 0);
        let mut summary = CaptureSummary::default();
        let ack = decode(LinkType::ETHERNET, &frame, 60, 5, &mut summary).unwrap();
        assert_eq!((ack.payload_len, ack.payload.len()), (0, 0));
    }

    #[test]
    fn the_same_packet_below_every_link_layer() {
        let frame = ethernet(b"payload");
        let ip = &frame[14..];
        let with = |head: &[u8]| [head, ip].concat();
        let mut sll = [0; 16];
        sll[14..].copy_from_slice(&[8, 0]);
        let mut sll2 = [0; 20];
        sll2[..2].copy_from_slice(&[8, 0]);
        let mut tagged = frame[..12].to_vec();
        tagged.extend_from_slice(&[0x81, 0, 0, 7, 8, 0]);
        for (link, bytes) in [
            (LinkType::ETHERNET, frame.clone()),
            (LinkType::ETHERNET, with(&tagged)),
            (LinkType::RAW, with(&[])),
            (LinkType(12), with(&[])),
            (LinkType::IPV4, with(&[])),
            (LinkType::LINUX_SLL, with(&sll)),
            (LinkType::LINUX_SLL2, with(&sll2)),
            (LinkType::NULL, with(&[2, 0, 0, 0])),
        ] {
            let mut summary = CaptureSummary::default();
            let wire_len = bytes.len() as u32;
            let found = decode(link, &bytes, wire_len, 1, &mut summary);
            let found = found.unwrap_or_else(|| panic!("{link:?}: {summary:?}"));
            assert_eq!((found.payload, found.src.port()), (&b"payload"[..], 40_000), "{link:?}");
        }
        let mut summary = CaptureSummary::default();
        assert_eq!(decode(LinkType(9999), &frame, 60, 1, &mut summary), None);
        assert_eq!(summary.unknown_link, 1);
        // Cut within the TCP header.
        assert_eq!(decode(LinkType::ETHERNET, &frame[..40], 61, 1, &mut summary), None);
        assert_eq!(summary.cut_headers, 1);
    }
}
