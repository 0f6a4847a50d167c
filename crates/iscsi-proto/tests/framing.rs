//! Framing over arbitrary splits, limits and digests (RFC 7143 §11.1, §11.2, §13.1).

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use bytes::Bytes;
use iscsi_proto::frame::{DataDigest, FrameError, Framer, Framing, Limits, pad_len, parse_header};
use iscsi_proto::ids::{Itt, Lun, Ttt};
use iscsi_proto::pdu::{Header, NopOut, ScsiCommand, TaskAttribute};
use iscsi_proto::serial::{CmdSn, StatSn};
use proptest::prelude::*;

const FRAMINGS: [Framing; 4] = [
    Framing { header_digest: false, data_digest: false },
    Framing { header_digest: true, data_digest: false },
    Framing { header_digest: false, data_digest: true },
    Framing { header_digest: true, data_digest: true },
];

const LIMITS: Limits = Limits::full_feature(4096);

fn nop(itt: u32, length: usize) -> Header {
    NopOut {
        immediate: true,
        lun: Lun(0),
        itt: Itt(itt),
        ttt: Ttt::NONE,
        cmd_sn: CmdSn(1),
        exp_stat_sn: StatSn(2),
    }
    .encode(length as u32)
}

fn command(itt: u32, extended: usize, length: usize) -> Header {
    ScsiCommand {
        immediate: false,
        is_final: true,
        read: false,
        write: true,
        attribute: TaskAttribute::SIMPLE,
        priority: 0,
        lun: Lun(0),
        itt: Itt(itt),
        expected_data_transfer_length: length as u32,
        cmd_sn: CmdSn(1),
        exp_stat_sn: StatSn(2),
        cdb: [0x7f; 16],
        extended_cdb: Bytes::from(vec![9; extended]),
        bidi_read_length: None,
    }
    .encode(length as u32)
}

/// The examples of RFC 3720 B.4, in the order in which the bytes are sent.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.1
//= type=test
//# The CRC MUST be calculated by a method that produces the same results as the following process:
#[test]
fn digest_vectors() {
    let increasing: Vec<u8> = (0..32).collect();
    let decreasing: Vec<u8> = (0..32).rev().collect();
    let read10 = [
        0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0,
        0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
    ];
    for (data, expected) in [
        (&[0; 32][..], [0xaa, 0x36, 0x91, 0x8a]),
        (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
        (&increasing, [0x4e, 0x79, 0xdd, 0x46]),
        (&decreasing, [0x5c, 0xdb, 0x3f, 0x11]),
        (&read10, [0x56, 0x3a, 0x96, 0xd9]),
    ] {
        let mut digest = DataDigest::new();
        data.chunks(7).for_each(|piece| digest.update(piece));
        assert_eq!(digest.finish(), expected);
        assert!(digest.verify(expected).is_ok());
        assert!(digest.verify([0; 4]).is_err());
    }
    let header = Header { bhs: read10, ahs: Bytes::new() };
    let framing = Framing { header_digest: true, data_digest: false };
    assert_eq!(&framing.header_bytes(&header)[48..], [0x56, 0x3a, 0x96, 0xd9]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.2.3
//= type=test
//# A zero-length Data Segment also implies a zero-length Data-Digest.
#[test]
fn the_digest_covers_padding() {
    let framing = Framing { header_digest: false, data_digest: true };
    let trailer = framing.trailer([&b"ab"[..], b"c"]);
    let mut digest = DataDigest::new();
    digest.update(b"abc\0");
    assert_eq!(trailer.len(), 5);
    assert_eq!(trailer[0], 0);
    assert_eq!(trailer[1..], digest.finish());
    // An empty segment has no digest (§11.2.3).
    assert!(framing.trailer([&b""[..]]).is_empty());
    assert!(framing.trailer([]).is_empty());
    assert_eq!([0, 1, 2, 3, 4, 5].map(pad_len), [0, 3, 2, 1, 0, 3]);
}

#[test]
fn lengths_are_checked_before_the_data_arrives() {
    let header = nop(7, 4097);
    let error = parse_header(&header.bhs, Framing::default(), LIMITS).unwrap_err();
    assert!(matches!(error, FrameError::DataSegmentTooLong { length: 4097, max: 4096, .. }));
    // The largest length there is, of which nothing was sent yet.
    let mut bhs = nop(7, 0).bhs;
    bhs[5..8].fill(0xff);
    assert!(parse_header(&bhs, Framing::default(), LIMITS).is_err());
    // AHS at its maximum: refused without waiting for its 1020 bytes.
    bhs = nop(7, 0).bhs;
    bhs[4] = 0xff;
    let error = parse_header(&bhs, Framing::default(), LIMITS).unwrap_err();
    assert!(matches!(error, FrameError::AhsTooLong { length: 1020, max: 256, .. }));
    // During login there is no AHS at all.
    bhs[4] = 1;
    assert!(parse_header(&bhs, Framing::default(), Limits::LOGIN).is_err());
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# When a target or an initiator receives any iSCSI PDU with a header digest error, it MUST either
//# discard the header and all data up to the beginning of a later PDU or close the connection.
#[test]
fn with_header_digest_a_damaged_length_is_a_digest_error() {
    let framing = Framing { header_digest: true, data_digest: false };
    let bytes = framing.pdu_bytes(&command(1, 20, 100), &[5; 100]);
    for bit in 0..(48 + 24 + 4) * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        match parse_header(&damaged, framing, Limits::full_feature(1 << 20)) {
            Err(FrameError::HeaderDigest { .. }) => {}
            // TotalAHSLength grew: the digest is further on than the bytes.
            Ok(None) if bit / 8 == 4 => {}
            other => panic!("bit {bit}: {other:?}"),
        }
    }
}

#[test]
fn a_damaged_payload_costs_one_pdu() {
    let framing = FRAMINGS[3];
    let mut bytes = framing.pdu_bytes(&nop(1, 5), b"hello");
    bytes[53] ^= 0x40;
    bytes.extend(framing.pdu_bytes(&nop(2, 5), b"world"));
    let mut framer = Framer::new(framing, LIMITS);
    framer.push(&bytes);
    assert!(matches!(framer.next_pdu(), Err(FrameError::DataDigest { .. })));
    let (header, data) = framer.next_pdu().unwrap().unwrap();
    assert_eq!((header.itt(), &data[..]), (Itt(2), &b"world"[..]));
    assert_eq!(framer.next_pdu(), Ok(None));
    assert!(framer.into_rest().is_empty());
}

#[test]
fn every_split_of_two_pdus_yields_the_same() {
    for framing in FRAMINGS {
        let payload = [b'x'; 13];
        let mut bytes = framing.pdu_bytes(&command(1, 3, 13), &payload);
        bytes.extend(framing.pdu_bytes(&nop(2, 0), b""));
        for cut in 0..=bytes.len() {
            let mut framer = Framer::new(framing, LIMITS);
            let mut itts = Vec::new();
            for part in [&bytes[..cut], &bytes[cut..]] {
                framer.push(part);
                while let Some((header, data)) = framer.next_pdu().unwrap() {
                    assert!(data.is_empty() || data[..] == payload);
                    itts.push(header.itt().0);
                }
            }
            assert_eq!(itts, [1, 2], "cut at {cut}");
        }
    }
}

proptest! {
    /// A stream of PDUs, cut anywhere into pieces, with every kind of digests.
    #[test]
    fn streams_in_pieces(
        pdus in proptest::collection::vec((0usize..200, any::<bool>(), 0usize..40), 1..8),
        cuts in proptest::collection::vec(1usize..64, 1..200),
        framing in proptest::sample::select(&FRAMINGS[..]),
    ) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (i, &(length, is_command, extended)) in pdus.iter().enumerate() {
            let payload: Vec<u8> = (0..length).map(|at| (at * 31 + i) as u8).collect();
            let itt = i as u32;
            let header =
                if is_command { command(itt, extended, length) } else { nop(itt, length) };
            bytes.extend(framing.pdu_bytes(&header, &payload));
            expected.push((header, Bytes::from(payload)));
        }
        let mut framer = Framer::new(framing, LIMITS);
        let mut found = Vec::new();
        let mut rest = &bytes[..];
        for cut in cuts.into_iter().cycle() {
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            framer.push(piece);
            while let Some(pdu) = framer.next_pdu().unwrap() {
                found.push(pdu);
            }
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(found, expected);
        prop_assert!(framer.into_rest().is_empty());
    }

    /// Any bytes: never a panic, never a promise of more than the limits.
    #[test]
    fn arbitrary_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        framing in proptest::sample::select(&FRAMINGS[..]),
    ) {
        if let Ok(Some(frame)) = parse_header(&bytes, framing, LIMITS) {
            prop_assert!(frame.data_len <= 4096 && frame.header_len <= 48 + 256 + 4);
        }
        let mut framer = Framer::new(framing, LIMITS);
        framer.push(&bytes);
        while let Ok(Some(_)) = framer.next_pdu() {}
    }
}
