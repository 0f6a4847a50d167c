//! However long a capture is and whatever is missing in it: what the analysis keeps is bounded, and
//! what it lets go of is counted.

use std::net::{Ipv4Addr, SocketAddr};

use iscsi_proto::frame::Framing;
use iscsi_proto::ids::{Itt, Lun};
use iscsi_proto::pdu::{Residual, ResponseCode, ScsiCommand, ScsiResponse, TaskAttribute};
use iscsi_proto::serial::{CmdSn, StatSn};
use tcpmon::capture::{CaptureSummary, Segment, TcpOptions};
use tcpmon::model::Analysis;

/// One direction of one connection.
struct Sender {
    ends: [SocketAddr; 2],
    seq: u32,
}

impl Sender {
    fn new(number: u16, to_target: bool) -> Self {
        let initiator = SocketAddr::from((Ipv4Addr::LOCALHOST, 10_000 + number));
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, 3260));
        let ends = if to_target { [initiator, target] } else { [target, initiator] };
        Self { ends, seq: 1 }
    }

    fn send(&mut self, analysis: &mut Analysis, time_ns: u64, payload: &[u8]) {
        self.segment(analysis, time_ns, payload, None, false);
    }

    fn segment(
        &mut self,
        analysis: &mut Analysis,
        time_ns: u64,
        payload: &[u8],
        ack: Option<u32>,
        fin: bool,
    ) {
        let payload_len = payload.len() as u32;
        analysis.handle_segment(&Segment {
            time_ns,
            src: self.ends[0],
            dst: self.ends[1],
            ip_id: None,
            seq: self.seq,
            ack,
            syn: false,
            fin,
            rst: false,
            window: 60_000,
            options: TcpOptions::default(),
            payload_len,
            payload,
        });
        self.seq = self.seq.wrapping_add(payload_len + u32::from(fin));
    }

    /// These bytes are not in the capture.
    fn lose(&mut self, bytes: u32) {
        self.seq = self.seq.wrapping_add(bytes);
    }
}

fn command(number: u32) -> Vec<u8> {
    let command = ScsiCommand {
        immediate: false,
        is_final: true,
        read: false,
        write: true,
        attribute: TaskAttribute::SIMPLE,
        priority: 0,
        lun: Lun(0),
        itt: Itt(number),
        expected_data_transfer_length: 4,
        cmd_sn: CmdSn(number),
        exp_stat_sn: StatSn(1),
        cdb: [0x2a; 16],
        extended_cdb: Default::default(),
        bidi_read_length: None,
    };
    Framing::default().pdu_bytes(&command.encode(4), &[7; 4])
}

fn response(number: u32) -> Vec<u8> {
    let response = ScsiResponse {
        response: ResponseCode::COMPLETED,
        status: 0,
        status_qualifier: 0,
        residual: Residual::None,
        bidi_read_residual: Residual::None,
        itt: Itt(number),
        snack_tag: 0,
        stat_sn: StatSn(number),
        exp_cmd_sn: CmdSn(number + 1),
        max_cmd_sn: CmdSn(number + 9),
        exp_data_sn: 0,
    };
    Framing::default().pdu_bytes(&response.encode(0), &[])
}

#[test]
fn what_waits_behind_holes_is_bounded_over_all_connections() {
    let mut analysis = Analysis::new(Some(3260));
    let mut senders: Vec<Sender> = (0..32).map(|number| Sender::new(number, true)).collect();
    for (number, sender) in senders.iter_mut().enumerate() {
        sender.send(&mut analysis, 1, &command(number as u32));
        sender.lose(100);
    }
    // 32 × 128 × 32 KiB are 128 MiB; 16 MiB are allowed for one, 64 for all.
    let segment = vec![7; 32 << 10];
    for round in 0..128 {
        for sender in &mut senders {
            sender.send(&mut analysis, 2 + round, &segment);
        }
    }
    let report = analysis.report(CaptureSummary::default());
    assert_eq!(report.connections.len(), 32);
    assert!(report.waits_cut > 0 && report.waits_cut < 32 * 128, "{}", report.waits_cut);
}

#[test]
fn single_commands_are_bounded_over_all_connections_and_their_sums_are_not() {
    const CONNECTIONS: u16 = 40;
    const COMMANDS: u32 = 2500;
    let mut analysis = Analysis::new(Some(3260));
    for number in 0..CONNECTIONS {
        let (mut there, mut back) = (Sender::new(number, true), Sender::new(number, false));
        for itt in 0..COMMANDS {
            let now = (u64::from(number) * u64::from(COMMANDS) + u64::from(itt)) * 1_000_000;
            there.send(&mut analysis, now, &command(itt));
            back.send(&mut analysis, now + 400_000, &response(itt));
        }
    }
    let report = analysis.report(CaptureSummary::default());
    let kept: usize = report.connections.iter().map(|one| one.commands.len()).sum();
    assert!((1 << 14..=1 << 16).contains(&kept), "{kept}");
    for one in &report.connections {
        let writes = one.writes.as_ref().unwrap();
        // The first one is seen before the analysis knows where PDUs begin.
        assert!(writes.commands >= u64::from(COMMANDS) - 1, "{}", writes.commands);
        assert!(one.commands.len() > 500, "{}", one.commands.len());
    }
    assert_eq!((report.waits_cut, report.connections_skipped), (0, 0));
}

/// What is sent after the end of a connection is none of it, and none of a new one for a while.
#[test]
fn a_connection_ends_with_both_fins_acknowledged() {
    let commands = |end: bool, later_ns: u64| {
        let mut analysis = Analysis::new(Some(3260));
        let (mut there, mut back) = (Sender::new(0, true), Sender::new(0, false));
        there.send(&mut analysis, 1_000, &command(1));
        back.send(&mut analysis, 2_000, &response(1));
        there.segment(&mut analysis, 3_000, &[], Some(back.seq), end);
        back.segment(&mut analysis, 4_000, &[], Some(there.seq), end);
        there.segment(&mut analysis, 5_000, &[], Some(back.seq), false);
        there.send(&mut analysis, 6_000 + later_ns, &command(2));
        back.send(&mut analysis, 7_000 + later_ns, &response(2));
        let report = analysis.report(CaptureSummary::default());
        let of = |one: &tcpmon::model::ConnectionReport| {
            one.writes.as_ref().map_or(0, |writes| writes.commands)
        };
        report.connections.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(commands(true, 0), [1]);
    // Without FINs it goes on.
    assert_eq!(commands(false, 0), [2]);
    // The same ports again, much later.
    assert_eq!(commands(true, 90_000_000_000), [1, 1]);
}
