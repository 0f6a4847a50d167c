//! Reads: segments, bursts, status, and the memory they hold (RFC 7143 §11.7, §11.4).

use super::*;

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.2
//= type=test
//# Initiators and targets MUST support the response-numbering scheme.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.4
//= type=test
//# Data and R2T PDUs transferred as part of some command execution MUST be sequenced.
//= https://www.rfc-editor.org/rfc/rfc7143#section-11.7.1
//= type=test
//# DataSegmentLength MUST NOT exceed MaxRecvDataSegmentLength for the direction it is sent, and the
//# total of all the DataSegmentLength of all PDUs in a sequence MUST NOT exceed MaxBurstLength (or
//# FirstBurstLength for unsolicited data).
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.19
//= type=test
//# If DataSequenceInOrder is set to Yes, data sequences MUST be transferred using continuously
//# non-decreasing sequence offsets (R2T buffer offset for writes, or the smallest SCSI Data-In
//# buffer offset within a read data sequence).
#[test]
fn a_read_is_cut_into_segments_and_bursts_with_status_on_the_last() {
    let mut script = Script::new();
    script.pdu(read(7, 100, 5000), &[]);
    assert_eq!(script.executes(script.conn), [7]);
    script.session.complete(Itt(7), good(&[3; 4500]));
    let mut seen = Vec::new();
    while let Some((Pdu::DataIn(pdu), data)) = script.sent(script.conn) {
        seen.push((
            pdu.buffer_offset,
            data.len(),
            pdu.is_final,
            pdu.data_sn.0,
            pdu.status.is_some(),
        ));
        if let Some(status) = pdu.status {
            assert_eq!(status.residual, Residual::Underflow(500));
            assert_eq!(pdu.stat_sn, StatSn(1));
        }
    }
    let expected = [
        (0, 1024, false, 0, false),
        (1024, 1024, true, 1, false),
        (2048, 1024, false, 2, false),
        (3072, 1024, true, 3, false),
        (4096, 404, true, 4, true),
    ];
    assert_eq!(seen, expected);
    assert_eq!(script.session.task_count(), 0);
}

#[test]
fn reads_wait_until_those_before_them_are_sent() {
    let config = SessionConfig { read_bytes_max: 4096, ..SessionConfig::default() };
    let mut script = Script::with(params(), config);
    for n in 0..3 {
        script.pdu(read(n, 100 + n, 4096), &[]);
    }
    script.pdu(command(3, 103), &[]);
    assert_eq!(script.executes(script.conn), [0, 3], "only what brings data waits");
    let data_in = Bytes::from(vec![0; 4096]);
    let completion = Completion { data_in, wanted_length: 4096, ..Completion::default() };
    script.session.complete(Itt(0), completion);
    assert!(script.executes(script.conn).is_empty(), "its data is still here");
    while script.sent(script.conn).is_some() {}
    assert_eq!(script.executes(script.conn), [1]);
    script.pdu(abort(9, 104, 2, 102), &[]);
    script.session.complete(Itt(1), Completion::default());
    assert!(script.executes(script.conn).is_empty(), "the last one was aborted");
}
