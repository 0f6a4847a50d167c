//! A login and some commands as pcap and pcapng files, and as segments.

use iscsi_proto::frame::Framing;
use iscsi_proto::ids::Itt;
use iscsi_proto::pdu::{Residual, ResponseCode, ScsiCommand, ScsiResponse};
use iscsi_proto::serial::{CmdSn, StatSn};

use super::scsi_command;

/// What the initiator and the target say in turn.
fn conversation() -> Vec<(usize, Vec<u8>)> {
    let (said, answered) = super::login_streams(0);
    let mut all = vec![(0, said), (1, answered)];
    for itt in 0..4 {
        let cmd_sn = CmdSn(itt);
        let command = ScsiCommand { cmd_sn, ..scsi_command(itt, [0x2a; 16], 0, 512) };
        let response = ScsiResponse {
            response: ResponseCode::COMPLETED,
            status: 0,
            status_qualifier: 0,
            residual: Residual::None,
            bidi_read_residual: Residual::None,
            itt: Itt(itt),
            snack_tag: 0,
            stat_sn: StatSn(itt),
            exp_cmd_sn: CmdSn(itt + 1),
            max_cmd_sn: CmdSn(itt + 9),
            exp_data_sn: 0,
        };
        all.push((0, Framing::default().pdu_bytes(&command.encode(512), &[itt as u8; 512])));
        all.push((1, Framing::default().pdu_bytes(&response.encode(0), &[])));
    }
    all
}

/// Every packet as bare IPv4 with its time in microseconds.
fn packets() -> Vec<(u32, Vec<u8>)> {
    let mut next = [1000_u32, 5000];
    let mut packets = Vec::new();
    let mut push = |side: usize, flags: u8, payload: &[u8], next: &mut [u32; 2]| {
        let ports: [[u8; 2]; 2] = [40_000_u16.to_be_bytes(), 3260_u16.to_be_bytes()];
        let len = (40 + payload.len()) as u16;
        let mut packet = vec![0x45, 0];
        packet.extend(len.to_be_bytes());
        packet.extend([0, packets.len() as u8 + 1, 0x40, 0, 64, 6, 0, 0]);
        packet.extend([10, 0, 0, 1 + side as u8, 10, 0, 0, 2 - side as u8]);
        packet.extend(ports[side]);
        packet.extend(ports[1 - side]);
        packet.extend(next[side].to_be_bytes());
        packet.extend(next[1 - side].to_be_bytes());
        packet.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        packet.extend(payload);
        let syn = u32::from(flags & 2 != 0);
        next[side] = next[side].wrapping_add(payload.len() as u32 + syn);
        packets.push((packets.len() as u32 * 5000, packet));
    };
    push(0, 0x02, &[], &mut next);
    push(1, 0x12, &[], &mut next);
    push(0, 0x10, &[], &mut next);
    for (side, bytes) in conversation() {
        push(side, 0x18, &bytes, &mut next);
    }
    packets
}

/// pcap (any port), pcapng (iSCSI's), and the pcap cut.
pub(super) fn files() -> Vec<(&'static str, Vec<u8>)> {
    const LINKTYPE_RAW: u32 = 101;
    let mut pcap = vec![0];
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, LINKTYPE_RAW] {
        pcap.extend(u32::to_le_bytes(word));
    }
    let mut pcapng = vec![1];
    for word in [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28] {
        pcapng.extend(u32::to_le_bytes(word));
    }
    for word in [1, 20, LINKTYPE_RAW, 0, 20] {
        pcapng.extend(u32::to_le_bytes(word));
    }
    for (time_us, packet) in packets() {
        let len = packet.len() as u32;
        for word in [1, time_us, len, len] {
            pcap.extend(u32::to_le_bytes(word));
        }
        pcap.extend(&packet);
        let padded = packet.len().next_multiple_of(4);
        let total = 32 + padded as u32;
        for word in [6, total, 0, 0, time_us, len, len] {
            pcapng.extend(u32::to_le_bytes(word));
        }
        pcapng.extend(&packet);
        pcapng.resize(pcapng.len() + padded - packet.len(), 0);
        pcapng.extend(total.to_le_bytes());
    }
    let cut = pcap[..pcap.len() - 77].to_vec();
    vec![("pcap", pcap), ("pcapng", pcapng), ("cut", cut)]
}

/// The conversation for `capture_stream`, with its handshake.
pub(super) fn stream() -> Vec<(&'static str, Vec<u8>)> {
    let mut input = Vec::new();
    let mut push = |side: usize, flags: u8, payload: &[u8]| {
        input.extend([(side << 2) as u8, flags]);
        input.extend((payload.len() as u16).to_be_bytes());
        input.extend(5000_u16.to_be_bytes());
        input.extend(payload);
    };
    push(0, 2, &[]);
    push(1, 3, &[]);
    for (side, bytes) in conversation() {
        push(side, 1, &bytes[..bytes.len().min(2000)]);
    }
    vec![("conversation", input)]
}

/// The first packets for `pcap`: Ethernet, raw IP, big-endian with nanoseconds, and lengths that
/// lie.
pub(super) fn pcap() -> Vec<(&'static str, Vec<u8>)> {
    let record = |kind: u8, out: &mut Vec<u8>| {
        // Payload, then ports, flags, options and numbers of the TCP header, then the time.
        out.extend([kind, 4, b'd', b'a', b't', b'a', 0, 0x18, 3]);
        out.extend([0, 0, 0, 1, 0, 0, 0, 2]);
        out.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    };
    let file = |flags: u8, link: u8, kinds: &[u8]| {
        let mut out = vec![flags, link];
        for &kind in kinds {
            record(kind, &mut out);
            out.extend([0, 0, 0, 9, 0, 7]);
        }
        out
    };
    vec![
        ("ethernet", file(0, 0, &[8, 8, 16, 8])),
        ("raw", file(4, 1, &[8, 16, 24, 0])),
        ("big-endian", file(3, 4, &[8, 8])),
        ("lies", file(0, 0, &[8, 11, 8])),
        ("stretched", file(8, 1, &[8, 12, 8])),
    ]
}

/// Blocks of every kind for `pcapng`.
pub(super) fn pcapng() -> Vec<(&'static str, Vec<u8>)> {
    let packet = |kind: u8| {
        let mut out = vec![kind, 0, 0, 1, 0, 0, 0, 9];
        out.extend([4, b'd', b'a', b't', b'a', 0, 0x18, 0, 0, 0, 0, 1, 0, 0, 0, 2]);
        out
    };
    let interface = [&[0x60, 1, 2][..], &[9], &[0; 8]].concat();
    let statistics = [&[0x80, 0, 0, 0, 0, 1, 4][..], &[6], &[0; 24]].concat();
    let all = |flags: u8, parts: &[&[u8]]| [&[flags][..], &parts.concat()].concat();
    vec![
        ("packets", all(2, &[&packet(8), &packet(16), &packet(8)])),
        ("big-endian", all(3, &[&packet(8), &packet(8)])),
        ("interfaces", all(0, &[&packet(8), &interface, &packet(8), &statistics])),
        ("sections", all(0, &[&packet(8), &[0xa1], &interface, &packet(8)])),
        ("simple", all(0, &[&[0x40, 4, 1, 2, 3, 4], &packet(8)])),
        ("lies", all(0, &[&packet(8), &packet(0x1c), &packet(11)])),
    ]
}

/// Some PDUs for `stream`, in order, out of order, cut, acknowledged before they came.
pub(super) fn segments() -> Vec<(&'static str, Vec<u8>)> {
    let pdus = |flags: u8| {
        let mut out = vec![flags, 0, 7, 5];
        for kind in [1_u8, 0x24, 4, 0x0b, 2] {
            out.extend([kind, 0x80, 0, 0, 0, 0, 0, kind, 7, 40]);
            out.resize(out.len() + usize::from(kind >> 3 & 3) * 4, 0);
        }
        out
    };
    let pieces = |out: Vec<u8>, pieces: &[(u8, u16, u16)]| {
        let bytes = pieces.iter().flat_map(|&(kind, at, len)| {
            [&[kind][..], &at.to_be_bytes(), &len.to_be_bytes()].concat()
        });
        out.into_iter().chain(bytes).collect()
    };
    vec![
        ("in-order", pieces(pdus(0), &[(3, 0, 100), (3, 100, 100), (3, 200, 400)])),
        ("reordered", pieces(pdus(1), &[(3, 300, 200), (3, 100, 250), (3, 0, 120)])),
        ("digests", pieces(pdus(6), &[(3, 0, 300), (3, 250, 300)])),
        ("cut", pieces(pdus(0), &[(0x81, 0, 200), (0x41, 200, 200)])),
        ("missed", pieces(pdus(8), &[(3, 0, 100), (3, 200, 100), (0, 300, 0), (0x42, 0, 0)])),
        ("middle", pieces(pdus(16), &[(3, 60, 200), (3, 260, 100)])),
    ]
}
