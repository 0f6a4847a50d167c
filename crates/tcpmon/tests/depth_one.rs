//! One command at a time on a path so short that every answer comes while an acknowledgement is
//! still fresh: what lets the data out is the command, and no window of TCP.

use std::net::{Ipv4Addr, SocketAddr};

use iscsi_proto::frame::Framing;
use iscsi_proto::ids::{Itt, Lun, Ttt};
use iscsi_proto::pdu::{DataIn, DataInStatus, Residual, ScsiCommand, TaskAttribute};
use iscsi_proto::serial::{CmdSn, DataSn, StatSn};
use tcpmon::capture::{CaptureSummary, Segment, TcpOptions};
use tcpmon::model::Analysis;
use tcpmon::verdict::{Bottleneck, Judgement};

const BLOCK_BYTES: u32 = 4096;
const READS: u32 = 2000;

fn read(number: u32) -> Vec<u8> {
    let command = ScsiCommand {
        immediate: false,
        is_final: true,
        read: true,
        write: false,
        attribute: TaskAttribute::SIMPLE,
        priority: 0,
        lun: Lun(0),
        itt: Itt(number),
        expected_data_transfer_length: BLOCK_BYTES,
        cmd_sn: CmdSn(number),
        exp_stat_sn: StatSn(number),
        cdb: [0x28; 16],
        extended_cdb: Default::default(),
        bidi_read_length: None,
    };
    Framing::default().pdu_bytes(&command.encode(0), &[])
}

fn data(number: u32) -> Vec<u8> {
    let data = DataIn {
        is_final: true,
        acknowledge: false,
        status: Some(DataInStatus { status: 0, residual: Residual::None }),
        lun: Lun(0),
        itt: Itt(number),
        ttt: Ttt::NONE,
        stat_sn: StatSn(number),
        exp_cmd_sn: CmdSn(number + 1),
        max_cmd_sn: CmdSn(number + 9),
        data_sn: DataSn(0),
        buffer_offset: 0,
    };
    Framing::default().pdu_bytes(&data.encode(BLOCK_BYTES), &[7; BLOCK_BYTES as usize])
}

/// Reads one by one as a capture on loopback has them: 10 µs from end to end and back, the target
/// takes `target_us`, the initiator `initiator_us` until it asks for the next block.
fn one_by_one(target_us: u64, initiator_us: u64, window: u16) -> Option<Judgement> {
    let initiator = SocketAddr::from((Ipv4Addr::LOCALHOST, 10_000));
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, 3260));
    let mut analysis = Analysis::new(Some(3260));
    let (mut sent, mut got, mut now_us) = (100_u32, 900_u32, 1_000_u64);
    let mut segment = |at_us: u64, to_target: bool, seq: u32, ack, syn: bool, payload: &[u8]| {
        let (src, dst) = if to_target { (initiator, target) } else { (target, initiator) };
        let options = TcpOptions {
            mss: syn.then_some(65_483),
            window_scale: syn.then_some(7),
            ..TcpOptions::default()
        };
        analysis.handle_segment(&Segment {
            time_ns: at_us * 1000,
            src,
            dst,
            ip_id: None,
            seq,
            ack,
            syn,
            fin: false,
            rst: false,
            window,
            options,
            payload_len: payload.len() as u32,
            payload,
        });
    };
    segment(now_us, true, sent, None, true, &[]);
    segment(now_us + 5, false, got, Some(sent + 1), true, &[]);
    (sent, got) = (sent + 1, got + 1);
    segment(now_us + 10, true, sent, Some(got), false, &[]);
    for number in 0..READS {
        now_us += initiator_us;
        let (question, answer) = (read(number), data(number));
        segment(now_us, true, sent, Some(got), false, &question);
        sent += question.len() as u32;
        now_us += 10 + target_us;
        segment(now_us, false, got, Some(sent), false, &answer);
        got += answer.len() as u32;
    }
    analysis.report(CaptureSummary::default()).verdict
}

#[test]
fn what_answers_a_command_was_held_back_by_no_window() {
    // Of 128 bytes: what Linux begins with on loopback, one of its segments there, and many.
    for window in [512, 8192] {
        let slow_target = one_by_one(60, 20, window).unwrap();
        assert_eq!(slow_target.verdict.cause, Bottleneck::Storage, "{slow_target:?}");
        let slow_application = one_by_one(20, 60, window).unwrap();
        let cause = slow_application.verdict.cause;
        assert_eq!(cause, Bottleneck::Application, "{slow_application:?}");
        for judgement in [slow_target, slow_application] {
            let evidence = judgement.verdict.evidence;
            let windows = evidence["share_congestion_window"] + evidence["share_receive_window"];
            assert!(windows < 0.01, "{evidence:?}");
        }
    }
}
