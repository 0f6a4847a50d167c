//! Captures: files in both formats, and TCP connections that no capture would show.

use std::net::{Ipv4Addr, SocketAddr};

use tcpmon::capture::{CaptureSummary, Segment, TcpOptions};
use tcpmon::model::{Analysis, Report, analyse};

use crate::reader::Reader;

/// A capture file: whatever it is, it is read to an end, what was skipped is said, and the shares
/// of the time add up.
pub fn capture_file(data: &[u8]) {
    // The first byte chooses: any port, or iSCSI's alone.
    let Some((&choice, file)) = data.split_first() else { return };
    let port = (choice & 1 != 0).then_some(3260);
    if let Ok(report) = analyse(file, port) {
        let capture = &report.capture;
        let known = capture.segments
            + capture.not_tcp
            + capture.fragments
            + capture.cut_headers
            + capture.unknown_link;
        assert_eq!(known, capture.packets);
        check(&report);
    }
}

/// Segments of some connections, made of the input: sequence numbers that jump, acknowledgements of
/// what nobody sent, cut payload, times that go backwards.
pub fn capture_stream(data: &[u8]) {
    let mut input = Reader(data);
    let mut analysis = Analysis::new(None);
    let mut now = 1_000_000_000_u64;
    let mut next = [[1_u32; 2]; 4];
    while !input.is_empty() {
        let (kind, flags, len) = (input.u8(), input.u8(), u32::from(input.u16()));
        let (number, side) = (usize::from(kind & 3), usize::from(kind >> 2 & 1));
        let end = |side: usize| {
            let port = if side == 0 { 40_000 + number as u16 } else { 3260 };
            SocketAddr::from((Ipv4Addr::LOCALHOST, port))
        };
        let jump = if kind & 8 != 0 { u32::from(input.u16()) << (kind >> 4) } else { 0 };
        now = match kind >> 6 {
            0 => now.saturating_add(u64::from(input.u16()) * 1000),
            1 => now.saturating_sub(u64::from(input.u8())),
            2 => now.saturating_add(1 << (input.u8() & 63)),
            _ => now,
        };
        let payload = input.take(len.min(2000) as usize);
        let payload_len = if flags & 16 != 0 { len } else { payload.len() as u32 };
        let payload = &payload[..payload.len().min(payload_len as usize)];
        let seq = next[number][side].wrapping_sub(jump);
        let ack = (flags & 1 != 0).then(|| next[number][1 - side].wrapping_add(jump >> 1));
        let mut sack = [None; 4];
        if flags & 32 != 0 {
            sack[0] = Some((seq, seq.wrapping_add(len)));
        }
        analysis.handle_segment(&Segment {
            time_ns: now,
            src: end(side),
            dst: end(1 - side),
            ip_id: (flags & 64 != 0).then_some(flags.into()),
            seq,
            ack,
            syn: flags & 2 != 0,
            fin: flags & 4 != 0,
            rst: flags & 8 != 0,
            window: len as u16,
            options: TcpOptions {
                mss: Some(1460),
                window_scale: Some(kind),
                timestamps: (flags & 128 != 0).then_some((now as u32, jump)),
                sack,
            },
            payload_len,
            payload,
        });
        next[number][side] = next[number][side].wrapping_add(payload_len);
    }
    check(&analysis.report(CaptureSummary::default()));
}

fn check(report: &Report) {
    for connection in &report.connections {
        let shares = &connection.shares_s;
        let sum = shares.send_buffer
            + shares.receive_window
            + shares.congestion_loss
            + shares.congestion_window
            + shares.line_rate
            + shares.r2t
            + shares.round_trip
            + shares.target
            + shares.application
            + shares.unattributed;
        let error = (sum - connection.wall_s).abs();
        assert!(error <= 1e-9 * connection.wall_s.max(1.0), "{sum} of {}", connection.wall_s);
        for command in &connection.commands {
            let times = [command.before_us, command.ta_us, command.tb_us, command.r2t_wait_us];
            assert!(times.iter().all(|time| time.is_finite() && *time >= 0.0), "{command:?}");
        }
    }
    if let Some(judgement) = &report.verdict {
        let verdict = &judgement.verdict;
        let numbers = verdict.evidence.values().chain(&verdict.expected_bytes_per_s);
        assert!(numbers.copied().all(f64::is_finite), "{verdict:?}");
    }
}
