//! Super-packets: how many segments one holds, and the same again without some of them.
//!
//! A TUN device with offload hands over TCP packets of up to 64 KiB behind a `virtio_net_hdr`
//! (virtio 1.2 §5.1.6), to be cut into segments of `gso_size` payload each. The link drops single
//! segments; [`Train::write_piece`] makes a smaller super-packet of a run that survived, with
//! what the kernel would have written into these segments: IP length and identification, TCP
//! sequence number, FIN and PSH on the last segment only, CWR on the first only, and the sum of
//! the pseudo-header where the receiver expects a partial checksum. Pure functions on bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

/// Length of the `virtio_net_hdr` in front of each packet.
pub(crate) const VNET_HDR_LEN: usize = 10;

const VIRTIO_NET_HDR_F_NEEDS_CSUM: u8 = 1;
const VIRTIO_NET_HDR_GSO_NONE: u8 = 0;
const VIRTIO_NET_HDR_GSO_TCPV4: u8 = 1;
const VIRTIO_NET_HDR_GSO_TCPV6: u8 = 4;
const VIRTIO_NET_HDR_GSO_ECN: u8 = 0x80;

const IPV6_HEADER_LEN: usize = 40;
const TCP_PROTOCOL: u16 = 6;
const TCP_CHECKSUM_OFFSET: usize = 16;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// The header in front of a packet, in the byte order of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct VnetHdr {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

impl VnetHdr {
    fn read(frame: &[u8]) -> Option<Self> {
        let u16_at =
            |at: usize| frame.get(at..at + 2).map(|two| u16::from_ne_bytes([two[0], two[1]]));
        Some(Self {
            flags: *frame.first()?,
            gso_type: *frame.get(1)?,
            hdr_len: u16_at(2)?,
            gso_size: u16_at(4)?,
            csum_start: u16_at(6)?,
            csum_offset: u16_at(8)?,
        })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend([self.flags, self.gso_type]);
        for field in [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset] {
            out.extend(field.to_ne_bytes());
        }
    }
}

/// Where a frame (`virtio_net_hdr` and IP packet) wants to go.
pub(crate) fn destination(frame: &[u8]) -> Option<IpAddr> {
    let ip = frame.get(VNET_HDR_LEN..)?;
    match ip.first()? >> 4 {
        4 => {
            let octets: [u8; 4] = ip.get(16..20)?.try_into().ok()?;
            Some(Ipv4Addr::from(octets).into())
        }
        6 => {
            let octets: [u8; 16] = ip.get(24..40)?.try_into().ok()?;
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

/// A super-packet of TCP: what its segments have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Train {
    vnet: VnetHdr,
    ip_version: u8,
    ip_header_len: usize,
    /// IP and TCP headers, which each segment carries.
    header_len: usize,
    payload_len: usize,
    /// TCP payload of each segment but the last.
    segment_payload: usize,
    segments: usize,
}

impl Train {
    /// Reads a frame (`virtio_net_hdr` and IP packet). `None` is a packet that travels as it is:
    /// not a super-packet, or none that this code knows how to cut.
    pub(crate) fn read(frame: &[u8]) -> Option<Self> {
        let vnet = VnetHdr::read(frame)?;
        let ip = &frame[VNET_HDR_LEN..];
        let ip_version = ip.first()? >> 4;
        let ip_header_len = match (vnet.gso_type & !VIRTIO_NET_HDR_GSO_ECN, ip_version) {
            (VIRTIO_NET_HDR_GSO_TCPV4, 4) => usize::from(ip[0] & 0x0f) * 4,
            (VIRTIO_NET_HDR_GSO_TCPV6, 6) => IPV6_HEADER_LEN,
            _ => return None,
        };
        let tcp_at = usize::from(vnet.csum_start);
        let data_offset = usize::from(ip.get(tcp_at + 12)? >> 4) * 4;
        let header_len = tcp_at + data_offset;
        let well_formed = vnet.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM != 0
            && usize::from(vnet.csum_offset) == TCP_CHECKSUM_OFFSET
            && vnet.gso_size > 0
            && ip_header_len >= 20
            && tcp_at >= ip_header_len
            && data_offset >= 20
            && header_len < ip.len();
        if !well_formed {
            return None;
        }
        let payload_len = ip.len() - header_len;
        let segment_payload = usize::from(vnet.gso_size);
        let segments = payload_len.div_ceil(segment_payload);
        Some(Self {
            vnet,
            ip_version,
            ip_header_len,
            header_len,
            payload_len,
            segment_payload,
            segments,
        })
    }

    /// How many segments the super-packet stands for.
    pub(crate) fn segments(&self) -> usize {
        self.segments
    }

    /// Length of the n-th segment as an IP packet.
    pub(crate) fn ip_bytes(&self, segment: usize) -> u32 {
        let payload = self.payload(segment..segment + 1);
        (self.header_len + payload.len()) as u32
    }

    /// Replaces `out` by a frame that holds only this run of the segments of `frame`, which must
    /// be the frame that `self` was read from.
    pub(crate) fn write_piece(&self, frame: &[u8], run: Range<usize>, out: &mut Vec<u8>) {
        let payload = self.payload(run.clone());
        let one = run.len() == 1;
        let first = run.start == 0;
        let last = run.end == self.segments;
        let vnet = VnetHdr {
            gso_type: match (one, first) {
                (true, _) => VIRTIO_NET_HDR_GSO_NONE,
                (false, true) => self.vnet.gso_type,
                (false, false) => self.vnet.gso_type & !VIRTIO_NET_HDR_GSO_ECN,
            },
            gso_size: if one { 0 } else { self.vnet.gso_size },
            hdr_len: self.header_len as u16,
            ..self.vnet
        };
        let old = &frame[VNET_HDR_LEN..];
        out.clear();
        vnet.write(out);
        out.extend_from_slice(&old[..self.header_len]);
        out.extend_from_slice(&old[self.header_len..][payload.clone()]);
        let ip = &mut out[VNET_HDR_LEN..];
        self.patch_ip(ip, run.start);
        self.patch_tcp(ip, payload.start as u32, first, last);
    }

    /// Where the payload of these segments lies in the whole payload.
    fn payload(&self, run: Range<usize>) -> Range<usize> {
        let end = (run.end * self.segment_payload).min(self.payload_len);
        run.start * self.segment_payload..end
    }

    fn patch_ip(&self, ip: &mut [u8], first_segment: usize) {
        if self.ip_version == 4 {
            let total = ip.len() as u16;
            let identification = get_u16(ip, 4).wrapping_add(first_segment as u16);
            put_u16(ip, 2, total);
            put_u16(ip, 4, identification);
            put_u16(ip, 10, 0);
            let sum = fold(sum_of(&ip[..self.ip_header_len]));
            put_u16(ip, 10, !sum);
        } else {
            let payload = (ip.len() - IPV6_HEADER_LEN) as u16;
            put_u16(ip, 4, payload);
        }
    }

    fn patch_tcp(&self, ip: &mut [u8], payload_before: u32, first: bool, last: bool) {
        let tcp_at = usize::from(self.vnet.csum_start);
        let tcp_len = (ip.len() - tcp_at) as u64;
        let addresses = if self.ip_version == 4 { &ip[12..20] } else { &ip[8..40] };
        let pseudo_header = fold(sum_of(addresses) + u64::from(TCP_PROTOCOL) + tcp_len);
        let tcp = &mut ip[tcp_at..];
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
        tcp[4..8].copy_from_slice(&sequence.wrapping_add(payload_before).to_be_bytes());
        if !last {
            tcp[13] &= !(TCP_FIN | TCP_PSH);
        }
        if !first {
            tcp[13] &= !TCP_CWR;
        }
        put_u16(tcp, TCP_CHECKSUM_OFFSET, pseudo_header);
    }
}

fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The sum of 16-bit words of RFC 1071, before folding; an odd last byte is a word's upper half.
fn sum_of(bytes: &[u8]) -> u64 {
    bytes
        .chunks(2)
        .map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0)))
        .sum()
}

pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A super-packet as the kernel hands it over.
    pub(crate) fn craft(v6: bool, payload: &[u8], mss: u16, flags: u8, options: usize) -> Vec<u8> {
        let tcp_len = 20 + options + payload.len();
        let ip = if v6 {
            let mut ip = vec![0x60, 0x0a, 0xbc, 0xde, 0, 0, 6, 64];
            ip.extend((0..32).map(|i| i * 7 + 3));
            put_u16(&mut ip, 4, tcp_len as u16);
            ip
        } else {
            let mut ip = vec![0x45, 0, 0, 0, 0xff, 0xfe, 0x40, 0, 64, 6, 0, 0];
            ip.extend([10, 77, 0, 1, 10, 77, 0, 2]);
            put_u16(&mut ip, 2, (20 + tcp_len) as u16);
            let sum = fold(sum_of(&ip));
            put_u16(&mut ip, 10, !sum);
            ip
        };
        let tcp_at = ip.len();
        let addresses = if v6 { sum_of(&ip[8..40]) } else { sum_of(&ip[12..20]) };
        let mut tcp = vec![0x12, 0x34, 0x0c, 0xbc, 0xff, 0xff, 0xf0, 0x00, 1, 2, 3, 4];
        tcp.extend([(((20 + options) / 4) << 4) as u8, flags, 0x01, 0xf5, 0, 0, 0, 0]);
        tcp.extend(std::iter::repeat_n(1, options));
        put_u16(&mut tcp, 16, fold(addresses + 6 + tcp_len as u64));
        let vnet = VnetHdr {
            flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
            gso_type: if v6 { VIRTIO_NET_HDR_GSO_TCPV6 } else { VIRTIO_NET_HDR_GSO_TCPV4 }
                | if flags & TCP_CWR != 0 { VIRTIO_NET_HDR_GSO_ECN } else { 0 },
            hdr_len: (tcp_at + 20 + options) as u16,
            gso_size: mss,
            csum_start: tcp_at as u16,
            csum_offset: 16,
        };
        let mut frame = Vec::new();
        vnet.write(&mut frame);
        frame.extend(ip);
        frame.extend(tcp);
        frame.extend(payload);
        frame
    }

    /// Segmentation in software, written apart from the code under test: each segment is a whole
    /// IP packet with complete checksums. A frame without GSO only gets its checksum completed.
    pub(crate) fn software_gso(frame: &[u8]) -> Vec<Vec<u8>> {
        let vnet = VnetHdr::read(frame).unwrap();
        let ip = &frame[VNET_HDR_LEN..];
        let v6 = ip[0] >> 4 == 6;
        let tcp_at = if v6 { 40 } else { 20 };
        let header_len = tcp_at + usize::from(ip[tcp_at + 12] >> 4) * 4;
        // The partial checksum must be the pseudo-header's, or hardware would complete it wrongly.
        let addresses = if v6 { &ip[8..40] } else { &ip[12..20] };
        let pseudo = |tcp_len: usize| sum_of(addresses) + 6 + tcp_len as u64;
        assert_eq!(get_u16(&ip[tcp_at..], 16), fold(pseudo(ip.len() - tcp_at)));
        assert_eq!(vnet.flags, VIRTIO_NET_HDR_F_NEEDS_CSUM);
        assert_eq!(usize::from(vnet.hdr_len), header_len);
        let said = if v6 { get_u16(ip, 4) + 40 } else { get_u16(ip, 2) };
        assert_eq!(usize::from(said), ip.len());
        if !v6 {
            assert_eq!(fold(sum_of(&ip[..20])), 0xffff);
        }
        let step = if vnet.gso_type == VIRTIO_NET_HDR_GSO_NONE {
            usize::MAX
        } else {
            usize::from(vnet.gso_size)
        };
        let payload = &ip[header_len..];
        let parts: Vec<&[u8]> = payload.chunks(step).collect();
        let mut offset = 0;
        let mut segments = Vec::new();
        for (k, part) in parts.iter().enumerate() {
            let mut segment = ip[..header_len].to_vec();
            segment.extend_from_slice(part);
            let sequence = u32::from_be_bytes(ip[tcp_at + 4..tcp_at + 8].try_into().unwrap());
            let sequence = sequence.wrapping_add(offset as u32).to_be_bytes();
            segment[tcp_at + 4..tcp_at + 8].copy_from_slice(&sequence);
            if k + 1 < parts.len() {
                segment[tcp_at + 13] &= !0x09;
            }
            if k > 0 {
                segment[tcp_at + 13] &= !0x80;
            }
            let len = segment.len();
            if v6 {
                put_u16(&mut segment, 4, (len - 40) as u16);
            } else {
                put_u16(&mut segment, 2, len as u16);
                put_u16(&mut segment, 4, get_u16(ip, 4).wrapping_add(k as u16));
                put_u16(&mut segment, 10, 0);
                let sum = fold(sum_of(&segment[..20]));
                put_u16(&mut segment, 10, !sum);
            }
            put_u16(&mut segment, tcp_at + 16, 0);
            let sum = fold(pseudo(len - tcp_at) + sum_of(&segment[tcp_at..]));
            put_u16(&mut segment, tcp_at + 16, !sum);
            segments.push(segment);
            offset += part.len();
        }
        segments
    }

    /// Runs of `true`.
    fn runs(kept: &[bool]) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (k, _) in kept.iter().enumerate().filter(|(_, kept)| **kept) {
            match runs.last_mut() {
                Some(run) if run.end == k => run.end = k + 1,
                _ => runs.push(k..k + 1),
            }
        }
        runs
    }

    #[test]
    fn the_whole_run_is_the_same_frame() {
        for v6 in [false, true] {
            let frame = craft(v6, &[0xa5; 10_000], 1448, 0x98 | TCP_FIN, 12);
            let train = Train::read(&frame).unwrap();
            assert_eq!(train.segments(), 7);
            let mut out = vec![1, 2, 3];
            train.write_piece(&frame, 0..7, &mut out);
            assert_eq!(out, frame);
        }
    }

    #[test]
    fn segment_sizes_are_those_on_the_wire() {
        let frame = craft(false, &[0; 3000], 1448, 0x10, 12);
        let train = Train::read(&frame).unwrap();
        let sizes: Vec<u32> = (0..train.segments()).map(|k| train.ip_bytes(k)).collect();
        assert_eq!(sizes, [1500, 1500, 52 + 104]);
        let frame = craft(true, &[0; 2856], 1428, 0x10, 12);
        let train = Train::read(&frame).unwrap();
        assert_eq!((train.segments(), train.ip_bytes(1)), (2, 1500));
    }

    #[test]
    fn destinations() {
        for v6 in [false, true] {
            let frame = craft(v6, &[0; 10], 1448, 0x10, 0);
            let at = VNET_HDR_LEN + if v6 { 24 } else { 16 };
            let len = if v6 { 16 } else { 4 };
            let octets = match destination(&frame).unwrap() {
                IpAddr::V4(v4) => v4.octets().to_vec(),
                IpAddr::V6(v6) => v6.octets().to_vec(),
            };
            assert_eq!(octets, frame[at..at + len]);
            assert_eq!(destination(&frame[..at + len - 1]), None);
        }
        assert_eq!(destination(&[0; VNET_HDR_LEN]), None);
        assert_eq!(destination(&[0; 60]), None);
    }

    #[test]
    fn what_is_no_train_travels_as_it_is() {
        let good = craft(false, &[0; 3000], 1448, 0x10, 0);
        assert!(Train::read(&good).is_some());
        let spoil = |at: usize, value: u8| {
            let mut frame = good.clone();
            frame[at] = value;
            Train::read(&frame)
        };
        assert_eq!(spoil(1, VIRTIO_NET_HDR_GSO_NONE), None);
        assert_eq!(spoil(1, VIRTIO_NET_HDR_GSO_TCPV6), None);
        assert_eq!(spoil(1, 5), None); // UDP segmentation, which the devices do not offer.
        assert_eq!(spoil(0, 0), None); // Checksum complete.
        assert_eq!(spoil(VNET_HDR_LEN + 20 + 12, 0x40), None); // TCP header of 16 bytes.
        assert_eq!(spoil(VNET_HDR_LEN, 0x44), None); // IP header of 16 bytes.
        for len in 0..VNET_HDR_LEN + 41 {
            assert_eq!(Train::read(&good[..len]), None, "{len} bytes");
        }
    }

    proptest! {
        /// Software segmentation of the pieces = software segmentation of the whole, minus what
        /// was dropped; checksums included.
        #[test]
        fn any_loss_pattern_leaves_the_other_segments_as_they_were(
            v6: bool,
            payload in prop::collection::vec(any::<u8>(), 1..8000),
            mss in 200_u16..2000,
            fin: bool, psh: bool, cwr: bool,
            options in 0_usize..=10,
            pattern in prop::collection::vec(any::<bool>(), 40),
        ) {
            let flags = 0x10
                | if fin { TCP_FIN } else { 0 }
                | if psh { TCP_PSH } else { 0 }
                | if cwr { TCP_CWR } else { 0 };
            let frame = craft(v6, &payload, mss, flags, options * 4);
            let train = Train::read(&frame).unwrap();
            let whole = software_gso(&frame);
            prop_assert_eq!(train.segments(), whole.len());
            for (k, segment) in whole.iter().enumerate() {
                prop_assert_eq!(train.ip_bytes(k) as usize, segment.len());
            }
            let kept = &pattern[..whole.len()];
            let mut got = Vec::new();
            let mut piece = Vec::new();
            for run in runs(kept) {
                train.write_piece(&frame, run, &mut piece);
                got.extend(software_gso(&piece));
            }
            let expected: Vec<_> =
                whole.into_iter().zip(kept).filter(|(_, kept)| **kept).map(|(s, _)| s).collect();
            prop_assert_eq!(got, expected);
        }

        #[test]
        fn no_frame_panics(frame in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(train) = Train::read(&frame) {
                let mut out = Vec::new();
                for k in 0..train.segments() {
                    train.ip_bytes(k);
                    train.write_piece(&frame, k..k + 1, &mut out);
                }
            }
        }
    }
}
