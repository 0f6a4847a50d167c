//! The byte of an IP header that says what a packet is to a queue: IPv4's DS field (RFC 2474 §3) or
//! IPv6's traffic class, with the two bits of ECN (RFC 3168 §5). Frames are as in [`crate::gso`].

use crate::gso::{VNET_HDR_LEN, fold};

/// Both bits of ECN: congestion experienced.
pub(crate) const CONGESTION_EXPERIENCED: u8 = 3;

const IPV4_HEADER_LEN_MIN: usize = 20;

/// DSCP and ECN of a frame; 0 where there is no IP header.
pub(crate) fn traffic_class(frame: &[u8]) -> u8 {
    match frame.get(VNET_HDR_LEN..) {
        Some([first, second, ..]) if first >> 4 == 4 => *second,
        Some([first, second, ..]) if first >> 4 == 6 => first << 4 | second >> 4,
        _ => 0,
    }
}

/// Says in a frame that it met congestion.
pub(crate) fn set_congestion_experienced(frame: &mut [u8]) {
    let Some(ip) = frame.get_mut(VNET_HDR_LEN..) else {
        return;
    };
    match ip.first().map(|first| first >> 4) {
        Some(4) if ip.len() >= IPV4_HEADER_LEN_MIN => {
            let word = |ip: &[u8], at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
            let before = word(ip, 0);
            ip[1] |= CONGESTION_EXPERIENCED;
            // Incrementally (RFC 1624 §3, equation 3).
            let sum = u64::from(!word(ip, 10)) + u64::from(!before) + u64::from(word(ip, 0));
            ip[10..12].copy_from_slice(&(!fold(sum)).to_be_bytes());
        }
        Some(6) if ip.len() >= 2 => ip[1] |= CONGESTION_EXPERIENCED << 4,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn v4(traffic_class: u8, other: [u8; 18]) -> Vec<u8> {
        let mut frame = vec![0; VNET_HDR_LEN];
        frame.extend([0x45, traffic_class]);
        frame.extend(other);
        frame[VNET_HDR_LEN + 10..VNET_HDR_LEN + 12].fill(0);
        let checksum = !header_sum(&frame);
        frame[VNET_HDR_LEN + 10..VNET_HDR_LEN + 12].copy_from_slice(&checksum.to_be_bytes());
        frame
    }

    fn header_sum(frame: &[u8]) -> u16 {
        let words = frame[VNET_HDR_LEN..].chunks(2);
        fold(words.map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum())
    }

    proptest! {
        #[test]
        fn a_mark_changes_two_bits_and_the_checksum(traffic_class: u8, other: [u8; 18]) {
            let mut frame = v4(traffic_class, other);
            prop_assert_eq!(self::traffic_class(&frame), traffic_class);
            set_congestion_experienced(&mut frame);
            prop_assert_eq!(self::traffic_class(&frame), traffic_class | 3);
            prop_assert_eq!(header_sum(&frame), 0xffff);
            let mut again = v4(traffic_class | 3, other);
            again[VNET_HDR_LEN + 10..VNET_HDR_LEN + 12]
                .copy_from_slice(&frame[VNET_HDR_LEN + 10..VNET_HDR_LEN + 12]);
            prop_assert_eq!(frame, again);
        }

        #[test]
        fn version_6_has_no_checksum(traffic_class: u8, flow: u8) {
            let mut frame = vec![0; VNET_HDR_LEN];
            frame.extend([0x60 | traffic_class >> 4, traffic_class << 4 | (flow & 15)]);
            frame.extend([7; 38]);
            prop_assert_eq!(self::traffic_class(&frame), traffic_class);
            set_congestion_experienced(&mut frame);
            prop_assert_eq!(self::traffic_class(&frame), traffic_class | 3);
            prop_assert_eq!(frame[VNET_HDR_LEN + 1] & 15, flow & 15);
        }

        #[test]
        fn no_frame_panics(mut frame in prop::collection::vec(any::<u8>(), 0..60)) {
            traffic_class(&frame);
            set_congestion_experienced(&mut frame);
        }
    }
}
