//! Streams made by the encoders, cut and damaged in many ways, and what is read of them.

use iscsi_proto::frame::Framing;
use iscsi_proto::ids::{Itt, Lun, Ttt};
use iscsi_proto::pdu::TaskAttribute;
use iscsi_proto::pdu::{DataOut, Header, LoginResponse, LoginStatus, Pdu, ScsiCommand, Stage};
use iscsi_proto::serial::{CmdSn, DataSn, StatSn};

use super::*;
use crate::stream::Chunk;

fn command(itt: u32) -> Header {
    ScsiCommand {
        immediate: false,
        is_final: true,
        read: false,
        write: true,
        attribute: TaskAttribute::SIMPLE,
        priority: 0,
        lun: Lun(0),
        itt: Itt(itt),
        expected_data_transfer_length: 4096,
        cmd_sn: CmdSn(itt),
        exp_stat_sn: StatSn(1),
        cdb: [0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0],
        extended_cdb: Default::default(),
        bidi_read_length: None,
    }
    .encode(0)
}

fn data(itt: u32, length: u32) -> Header {
    DataOut {
        is_final: true,
        lun: Lun(0),
        itt: Itt(itt),
        ttt: Ttt(7),
        exp_stat_sn: StatSn(1),
        data_sn: DataSn(0),
        buffer_offset: 0,
    }
    .encode(length)
}

/// Commands with their data, `rounds` of them.
fn stream(framing: Framing, rounds: u32) -> Vec<u8> {
    let payload: Vec<u8> = (0..1001_u32).map(|at| (at % 251) as u8).collect();
    (0..rounds)
        .flat_map(|itt| {
            let data = framing.pdu_bytes(&data(itt, payload.len() as u32), &payload);
            [framing.pdu_bytes(&command(itt), &[]), data].concat()
        })
        .collect()
}

struct Read {
    itts: Vec<(bool, u32)>,
    ends: usize,
    counts: DecodeCounts,
    digests: Digests,
}

/// Reads chunks of `(wire_len, captured)` bytes.
fn read(bytes: &[u8], from_start: bool, cuts: impl Iterator<Item = (usize, usize)>) -> Read {
    let mut decoder = Decoder::new(Direction::ToTarget, from_start);
    let (mut digests, mut negotiated) = (Digests::default(), Negotiated::default());
    let (mut itts, mut ends, mut at) = (Vec::new(), 0, 0);
    for (wire_len, captured) in cuts {
        let wire_len = wire_len.min(bytes.len() - at);
        if wire_len == 0 {
            break;
        }
        let chunk = Chunk::Data {
            offset: at as u64,
            wire_len: wire_len as u64,
            bytes: &bytes[at..at + captured.min(wire_len)],
            time_ns: 1,
        };
        decoder.handle_chunk(chunk, &mut digests, &mut negotiated, &mut |event| match event {
            PduEvent::Header { pdu: Some(Pdu::ScsiCommand(command)), .. } => {
                itts.push((true, command.itt.0));
            }
            PduEvent::Header { pdu: Some(Pdu::DataOut(data)), .. } => {
                itts.push((false, data.itt.0));
            }
            PduEvent::Header { .. } => panic!("no such PDU was sent"),
            PduEvent::End { .. } => ends += 1,
        });
        at += wire_len;
    }
    Read { itts, ends, counts: decoder.counts(), digests }
}

fn expected(from: u32, to: u32) -> Vec<(bool, u32)> {
    (from..to).flat_map(|itt| [(true, itt), (false, itt)]).collect()
}

#[test]
fn every_kind_of_digest_is_found_out_whatever_the_segments() {
    for (header_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)]
    {
        let bytes = stream(Framing { header_digest, data_digest }, 20);
        for segment in [1, 7, 48, 52, 100, 1448, 65_536] {
            let got = read(&bytes, true, std::iter::repeat((segment, segment)));
            let what = format!("{header_digest} {data_digest} {segment}");
            assert_eq!(got.itts, expected(0, 20), "{what}");
            assert_eq!((got.ends, got.counts.lost_sync), (20, 0), "{what}");
            let found = Digests { header: Some(header_digest), data: Some(data_digest) };
            assert_eq!(got.digests, found, "{what}");
        }
    }
}

#[test]
fn payload_that_was_not_captured_does_no_harm() {
    let bytes = stream(Framing::default(), 20);
    // A command and its data's header are 96 bytes; the capture keeps 100 of each segment.
    let round = bytes.len() / 20;
    let got = read(&bytes, true, std::iter::repeat((round, 100)));
    assert_eq!(got.itts, expected(0, 20));
    assert_eq!((got.ends, got.counts.lost_sync), (20, 0));
}

#[test]
fn a_header_that_was_not_captured_costs_no_more_than_the_way_to_the_next() {
    let bytes = stream(Framing::default(), 20);
    let round = bytes.len() / 20;
    let mut number = 0;
    let cuts = std::iter::repeat_with(|| {
        number += 1;
        (round, if number == 4 { 60 } else { round })
    });
    let got = read(&bytes, true, cuts);
    let mut wanted = expected(0, 20);
    wanted.remove(7); // the data of the fourth command
    assert_eq!(got.itts, wanted);
    assert_eq!(got.counts.lost_sync, 1);
}

#[test]
fn a_capture_that_begins_in_the_middle_finds_the_next_command() {
    let bytes = stream(Framing { header_digest: true, data_digest: true }, 20);
    let got = read(&bytes[333..], false, std::iter::repeat((1448, 1448)));
    assert_eq!(got.itts, expected(1, 20));
    assert_eq!(got.digests, Digests { header: Some(true), data: Some(true) });
}

#[test]
fn the_login_tells_the_digests_and_the_keys() {
    let mut decoder = Decoder::new(Direction::ToInitiator, true);
    let (mut digests, mut negotiated) = (Digests::default(), Negotiated::default());
    let text = b"HeaderDigest=CRC32C\0DataDigest=None\0FirstBurstLength=0x10000\0InitialR2T=Yes\0";
    let response = LoginResponse {
        transit: true,
        continues: false,
        csg: Stage::LOGIN_OPERATIONAL_NEGOTIATION,
        nsg: Stage::FULL_FEATURE_PHASE,
        version_max: 0,
        version_active: 0,
        isid: Default::default(),
        tsih: iscsi_proto::ids::Tsih(1),
        itt: Itt(1),
        stat_sn: StatSn(1),
        exp_cmd_sn: CmdSn(1),
        max_cmd_sn: CmdSn(9),
        status: LoginStatus::SUCCESS,
    };
    let bytes = Framing::default().pdu_bytes(&response.encode(text.len() as u32), text);
    let wire_len = bytes.len() as u64;
    let chunk = Chunk::Data { offset: 0, wire_len, bytes: &bytes, time_ns: 1 };
    decoder.handle_chunk(chunk, &mut digests, &mut negotiated, &mut |_| ());
    assert_eq!(digests, Digests { header: Some(true), data: Some(false) });
    assert_eq!(negotiated.first_burst_bytes, Some(65_536));
    assert_eq!(negotiated.initial_r2t, Some(true));
}
