//! A target that does not keep to the protocol: an error that names what it did, no panic, and
//! never a place outside the command's buffer.

use super::super::*;
use super::peer::Peer;
use crate::pdu::{DataIn, Header, NopIn, R2t, Residual, ScsiResponse};
use crate::serial::{DataSn, R2tSn};

fn violation(peer: &mut Peer, header: &Header, data: &[u8]) -> Violation {
    match peer.give(0, header, data) {
        Err(ConnectionError::Protocol { violation, .. }) => {
            assert!(!peer.session.is_open());
            violation
        }
        other => panic!("{other:?}"),
    }
}

fn reading(len: u32) -> (Peer, Itt) {
    let mut peer = Peer::new(1);
    let itt = peer.read(len, 1);
    peer.drain(0);
    (peer, itt)
}

fn writing(len: usize) -> (Peer, Itt) {
    let mut peer = Peer::new(1);
    let itt = peer.write(len, 1);
    peer.drain(0);
    (peer, itt)
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.7
//= type=test
//# All initiator-detected PDU construction errors MUST be considered as format errors.
#[test]
fn data_in_outside_the_buffer() {
    let (mut peer, itt) = reading(512);
    let header = peer.data_in(0, itt, 0, 0).encode(513);
    assert!(matches!(violation(&mut peer, &header, &[]), Violation::DataOverrun { .. }));
    let (mut peer, itt) = reading(512);
    let header = peer.data_in(0, itt, u32::MAX, 0).encode(512);
    assert!(matches!(violation(&mut peer, &header, &[]), Violation::DataOverrun { .. }));
}

#[test]
fn data_in_for_a_write() {
    let (mut peer, itt) = writing(512);
    let header = peer.data_in(0, itt, 0, 0).encode(512);
    assert!(matches!(violation(&mut peer, &header, &[]), Violation::DataOverrun { .. }));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-13.19
//= type=test
//# If DataSequenceInOrder is set to Yes, data sequences MUST be transferred using continuously
//# non-decreasing sequence offsets (R2T buffer offset for writes, or the smallest SCSI Data-In
//# buffer offset within a read data sequence).
#[test]
fn data_in_twice_or_with_a_gap() {
    let (mut peer, itt) = reading(4096);
    let header = peer.data_in(0, itt, 0, 0).encode(512);
    peer.give(0, &header, &[]).unwrap();
    let again = DataIn { data_sn: DataSn(1), ..peer.data_in(0, itt, 0, 1) }.encode(512);
    assert_eq!(violation(&mut peer, &again, &[]), Violation::DataOffset { got: 0, expected: 512 });
    let (mut peer, itt) = reading(4096);
    let header = peer.data_in(0, itt, 0, 1).encode(512);
    assert_eq!(violation(&mut peer, &header, &[]), Violation::DataSn { got: 1, expected: 0 });
}

#[test]
fn unknown_reserved_and_unsent_tags() {
    for itt in [Itt(0), Itt(0x1234_0007), Itt::NONE] {
        let mut peer = Peer::new(1);
        let header = peer.response(0, itt, 0).encode(0);
        assert_eq!(violation(&mut peer, &header, &[]), Violation::UnknownTask);
    }
    let mut peer = Peer::new(1);
    let itt = peer.read(512, 1);
    let header = peer.response(0, itt, 0).encode(0);
    assert_eq!(violation(&mut peer, &header, &[]), Violation::WrongTask);
}

#[test]
fn an_answer_given_twice() {
    let (mut peer, itt) = reading(512);
    peer.respond(0, itt);
    let header = peer.response(0, itt, 0).encode(0);
    assert_eq!(violation(&mut peer, &header, &[]), Violation::UnknownTask);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.2
//= type=test
//# Initiators MUST undertake recovery actions if the difference is greater than an
//# implementation-defined constant that MUST NOT exceed 2**31 - 1.
//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.2.2
//= type=test
//# Initiators and targets MUST support the response-numbering scheme.
#[test]
fn status_numbers_out_of_order() {
    let (mut peer, itt) = reading(512);
    peer.stat_sn[0].take();
    let header = peer.response(0, itt, 0).encode(0);
    assert!(matches!(violation(&mut peer, &header, &[]), Violation::StatSn { .. }));
}

#[test]
fn residual_beyond_the_transfer() {
    let (mut peer, itt) = reading(512);
    let residual = Residual::Underflow(513);
    let header = ScsiResponse { residual, ..peer.response(0, itt, 0) }.encode(0);
    assert!(matches!(violation(&mut peer, &header, &[]), Violation::ResidualRange { .. }));
}

#[test]
fn r2t_outside_the_data_or_for_a_read() {
    // 8192 bytes went out as immediate data.
    for (offset, len) in
        [(8192, 12_000), (8192, 0), (0, 512), (9000, 512), (u32::MAX, 512), (8192, u32::MAX)]
    {
        let (mut peer, itt) = writing(20_000);
        let header = peer.r2t(0, itt, 0, offset, len).encode(0);
        assert!(matches!(violation(&mut peer, &header, &[]), Violation::R2tRange { .. }));
    }
    let (mut peer, itt) = reading(512);
    let header = peer.r2t(0, itt, 0, 0, 512).encode(0);
    assert!(matches!(violation(&mut peer, &header, &[]), Violation::R2tRange { .. }));
}

#[test]
fn r2t_out_of_order_without_tag_or_over_the_agreed_number() {
    let (mut peer, itt) = writing(20_000);
    let header = R2t { r2t_sn: R2tSn(1), ..peer.r2t(0, itt, 0, 8192, 512) }.encode(0);
    assert!(matches!(violation(&mut peer, &header, &[]), Violation::DataSn { .. }));
    let (mut peer, itt) = writing(20_000);
    let header = R2t { ttt: Ttt::NONE, ..peer.r2t(0, itt, 0, 8192, 512) }.encode(0);
    assert_eq!(violation(&mut peer, &header, &[]), Violation::R2tUnexpected);
    let (mut peer, itt) = writing(20_000);
    let first = peer.r2t(0, itt, 0, 8192, 512).encode(0);
    peer.give(0, &first, &[]).unwrap();
    let second = peer.r2t(0, itt, 1, 8704, 512).encode(0);
    assert_eq!(violation(&mut peer, &second, &[]), Violation::R2tUnexpected);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.5.3
//= type=test
//# As the Initiator Task Tag is used to identify a task during its execution, the iSCSI initiator
//# and target MUST verify that all other fields used in task-related PDUs have values that are
//# consistent with the values used at the task instantiation, based on the Initiator Task Tag
//# (e.g., the LUN used in an R2T PDU MUST be the same as the one used in the SCSI Command PDU used
//# to instantiate the task).
#[test]
fn r2t_for_another_unit_than_the_commands() {
    let (mut peer, itt) = writing(20_000);
    let header = R2t { lun: Lun(1 << 48), ..peer.r2t(0, itt, 0, 8192, 512) }.encode(0);
    assert_eq!(violation(&mut peer, &header, &[]), Violation::WrongTask);
}

#[test]
fn pings_without_reading_the_answers() {
    let mut peer = Peer::new(1);
    let mut last = Ok(crate::connection::Placement::None);
    for _ in 0..100 {
        let nop = NopIn {
            lun: Lun(0),
            itt: Itt::NONE,
            ttt: Ttt(1),
            stat_sn: peer.stat_sn[0],
            exp_cmd_sn: peer.exp_cmd_sn,
            max_cmd_sn: peer.max_cmd_sn(),
        };
        last = peer.give(0, &nop.encode(4), b"ping");
        if last.is_err() {
            break;
        }
    }
    let flood = |v: &Violation| matches!(v, Violation::NopFlood { .. });
    assert!(matches!(last, Err(ConnectionError::Protocol { violation, .. }) if flood(&violation)));
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.8
//= type=test
//# When an initiator receives any iSCSI PDU with a payload digest error, it MUST discard the PDU.
#[test]
fn a_broken_data_digest_gives_the_command_back() {
    let (mut peer, itt) = reading(512);
    let header = peer.last_data_in(0, itt, 0, 0).encode(512);
    let id = peer.ids[0];
    peer.session.handle_header(id, peer.now, &header).unwrap();
    let error = peer.session.handle_data(id, peer.now, &[], false).unwrap_err();
    assert_eq!(error, ConnectionError::DataDigest { cid: Cid(1) });
    let requeued = |e: &Event<u32>| matches!(e, Event::TaskRequeue { context: 1, .. });
    assert_eq!(peer.events().iter().filter(|e| requeued(e)).count(), 1);
}
