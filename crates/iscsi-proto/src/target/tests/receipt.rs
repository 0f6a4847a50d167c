//! Receipts: answers that the shell has to be sure of.

use super::*;
use crate::target::{Delivery, Receipt};
use crate::time::Instant;

fn attention() -> Completion {
    let sense = Bytes::from_static(&[0x70; 18]);
    Completion { status: 2, sense, receipt: Some(Receipt(7)), ..Completion::default() }
}

/// A session of level `level` whose first command has its answer, with its StatSN.
fn answered(level: u8) -> (Script, u32) {
    let mut script = Script::at_level(level);
    script.pdu(command(1, 100), &[]);
    let conn = script.conn;
    assert_eq!(script.executes(conn), [1]);
    script.session.complete(Itt(1), attention());
    let stat_sn = script.response(conn).stat_sn.0;
    assert_eq!(script.session.poll_delivery(), None, "sent is not received");
    (script, stat_sn)
}

#[test]
fn an_acknowledged_answer_is_received_once() {
    for level in [0, 1, 2] {
        let (mut script, stat_sn) = answered(level);
        script.pdu(ping(2, 101, stat_sn), &[]);
        assert_eq!(script.session.poll_delivery(), None, "level {level}");
        script.pdu(ping(3, 101, stat_sn + 1), &[]);
        assert_eq!(script.session.poll_delivery(), Some(Delivery::Acknowledged(Receipt(7))));
        script.session.handle_connection_lost(script.conn, Instant::default());
        assert_eq!(script.session.poll_delivery(), None, "level {level}");
    }
}

#[test]
fn what_goes_with_its_connection_is_lost() {
    for level in [0, 1, 2] {
        let (mut script, _) = answered(level);
        script.session.handle_connection_lost(script.conn, Instant::default());
        assert_eq!(script.session.poll_delivery(), Some(Delivery::Lost(Receipt(7))), "{level}");
    }
}

#[test]
fn an_answer_that_is_aborted_unsent_is_lost() {
    for completed_first in [true, false] {
        let mut script = Script::new();
        script.pdu(command(1, 100), &[]);
        let conn = script.conn;
        assert_eq!(script.executes(conn), [1]);
        if completed_first {
            script.session.complete(Itt(1), attention());
        }
        script.pdu(abort(2, 101, 1, 100), &[]);
        if !completed_first {
            script.session.complete(Itt(1), attention());
        }
        let sent = script.all_sent(conn);
        let answered = sent.iter().any(|(pdu, _)| matches!(pdu, Pdu::ScsiResponse(_)));
        let lost = script.session.poll_delivery() == Some(Delivery::Lost(Receipt(7)));
        assert_eq!(lost, !answered, "completed first: {completed_first}");
    }
}
