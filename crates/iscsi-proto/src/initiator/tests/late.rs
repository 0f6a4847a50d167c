//! PDUs that come late or twice at error recovery level 1, and commands that are being aborted when
//! they are refused (RFC 7143 §7.2.1, §7.11, §11.14, §11.16, §11.17.1).

use super::super::*;
use super::peer::{Peer, command, established};
use crate::connection::Placement;
use crate::pdu::{
    DataIn, Pdu, Reject, RejectReason, SnackKind, TaskManagementResponse,
    TaskManagementResponseCode,
};

fn peer(error_recovery_level: u8, connections: usize) -> Peer {
    let params = SessionParams {
        error_recovery_level,
        max_connections: 8,
        initial_r2t: false,
        ..SessionParams::default()
    };
    Peer::with(params, connections)
}

fn reject(peer: &mut Peer, bad: &Pdu) {
    let reject = Reject {
        reason: RejectReason::DATA_DIGEST_ERROR,
        stat_sn: peer.stat_sn[0].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
        data_sn: 0,
    };
    peer.give(0, &reject.encode(48), &bad.encode(512).bhs).unwrap();
}

/// A write that was sent, and that the target has not taken.
fn refused(peer: &mut Peer, len: usize) -> (Itt, Pdu) {
    let itt = peer.write(len, 1);
    let (pdu, _) = peer.drain(0).remove(0);
    let Pdu::ScsiCommand(command) = &pdu else { panic!("{pdu:?}") };
    peer.exp_cmd_sn = command.cmd_sn;
    (itt, pdu)
}

#[test]
fn a_status_that_was_asked_for_twice_comes_twice() {
    let mut peer = peer(1, 1);
    let (read, write) = (peer.read(1000, 1), peer.write(512, 2));
    peer.drain(0);
    let first = peer.data_in(0, read, 0, 0).encode(500);
    peer.give(0, &first, &[]).unwrap();
    let lost = peer.last_data_in(0, read, 500, 1).encode(500);
    peer.respond(0, write);
    let asked = peer.drain(0);
    let [(Pdu::SnackRequest(snack), _)] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(snack.kind, SnackKind::STATUS);
    peer.give(0, &lost, &[]).unwrap();
    assert_eq!(peer.done(), [2, 1]);
    assert_eq!(peer.give(0, &lost, &[]), Ok(Placement::Discard));
    assert!(peer.session.is_open());
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.11
//= type=test
//# If the abort request is received and the original command is missing, targets MUST consider the
//# original command with that RefCmdSN as received and issue a task management response with the
//# response code "Function complete".
#[test]
fn at_level_0_a_refused_command_is_not_sent_again_behind_its_abort() {
    let mut peer = peer(0, 1);
    let (itt, command) = refused(&mut peer, 512);
    let function = peer.session.abort(itt).unwrap();
    assert!(matches!(peer.drain(0)[..], [(Pdu::TaskManagementRequest(_), _)]));
    reject(&mut peer, &command);
    assert!(peer.drain(0).is_empty());
    assert!(peer.done().is_empty(), "the answer to the abort says how it ends");
    peer.exp_cmd_sn = peer.exp_cmd_sn.next();
    let response = TaskManagementResponse {
        response: TaskManagementResponseCode::COMPLETE,
        information: [0; 3],
        itt: function,
        stat_sn: peer.stat_sn[0].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
    };
    peer.give(0, &response.encode(0), &[]).unwrap();
    assert_eq!(peer.done(), [1]);
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-7.2.1
//= type=test
//# Retry MUST NOT be used for reasons other than plugging command sequence gaps and, in particular,
//# cannot be used for requesting PDU retransmissions from a target.
/// The command was refused, sent again because a ping told so, and taken; then the Reject of its
/// first copy comes.
#[test]
fn a_command_that_was_taken_is_not_sent_again_for_a_late_reject() {
    for acknowledged in [true, false] {
        let mut peer = peer(1, 1);
        let (itt, command) = refused(&mut peer, 200_000);
        if acknowledged {
            peer.exp_cmd_sn = peer.exp_cmd_sn.next();
        }
        let offset = 65536;
        let r2t = peer.r2t(0, itt, 0, offset, 8192).encode(0);
        peer.give(0, &r2t, &[]).unwrap();
        peer.drain(0);
        reject(&mut peer, &command);
        assert!(peer.drain(0).is_empty(), "acknowledged: {acknowledged}");
        let r2t = peer.r2t(0, itt, 1, offset + 8192, 8192).encode(0);
        peer.give(0, &r2t, &[]).unwrap();
        let out = peer.drain(0);
        assert!(matches!(&out[..], [(Pdu::DataOut(_), _)]), "{out:?}");
    }
}

/// It waits to be sent again when the target says that it has taken it after all.
#[test]
fn a_command_that_is_taken_while_its_retry_waits_is_not_sent_again() {
    let mut peer = peer(1, 1);
    let (itt, command) = refused(&mut peer, 200_000);
    reject(&mut peer, &command);
    assert!(peer.session.has_transmit(peer.ids[0]));
    peer.exp_cmd_sn = peer.exp_cmd_sn.next();
    let r2t = peer.r2t(0, itt, 0, 65536, 8192).encode(0);
    peer.give(0, &r2t, &[]).unwrap();
    let out = peer.drain(0);
    assert!(matches!(&out[..], [(Pdu::DataOut(_), _)]), "{out:?}");
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.14
//= type=test
//# If the Logout Request is intended to close the session, new iSCSI requests MUST NOT be sent on
//# any of the connections participating in the session.
#[test]
fn a_snack_that_waits_is_not_sent_behind_a_logout() {
    let mut peer = peer(1, 2);
    peer.write(4096, 1);
    let read = peer.read(1000, 2);
    assert!(matches!(peer.drain(1)[..], [(Pdu::ScsiCommand(_), _)]));
    let write = match &peer.drain(0)[..] {
        [(Pdu::ScsiCommand(command), _)] => command.itt,
        other => panic!("{other:?}"),
    };
    let asking = DataIn { acknowledge: true, ttt: Ttt(7), ..peer.data_in(1, read, 0, 0) };
    peer.give(1, &asking.encode(500), &[]).unwrap();
    let last = peer.last_data_in(1, read, 500, 1).encode(500);
    peer.give(1, &last, &[]).unwrap();
    peer.respond(0, write);
    assert_eq!(peer.done(), [2, 1]);
    peer.session.close();
    assert!(matches!(peer.drain(0)[..], [(Pdu::LogoutRequest(_), _)]));
    assert!(peer.drain(1).is_empty());
}

/// One connection leaves while another still has a command: that one asks for what it misses.
#[test]
fn a_connection_that_leaves_does_not_keep_another_from_asking() {
    let mut peer = peer(1, 2);
    peer.write(4096, 1);
    let read = peer.read(1000, 2);
    let write = match &peer.drain(0)[..] {
        [(Pdu::ScsiCommand(command), _)] => command.itt,
        other => panic!("{other:?}"),
    };
    peer.drain(1);
    peer.respond(0, write);
    peer.session.remove_connection(peer.ids[0]).unwrap();
    assert!(matches!(peer.drain(0)[..], [(Pdu::LogoutRequest(_), _)]));
    peer.session.close();
    let second = peer.data_in(1, read, 500, 1).encode(500);
    peer.give(1, &second, &[]).unwrap();
    let out = peer.drain(1);
    let [(Pdu::SnackRequest(snack), _)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((snack.kind, snack.itt), (SnackKind::DATA_OR_R2T, read));
}

/// The last connection that is left leaves, and the session with it: nobody joins it any more to
/// carry the commands that wait.
#[test]
fn nobody_joins_a_session_that_logs_out() {
    let mut peer = peer(2, 2);
    let itt = peer.read(512, 1);
    peer.drain(0);
    peer.read(512, 2); // waits on the second
    peer.session.remove_connection(peer.ids[0]).unwrap();
    peer.session.handle_connection_lost(peer.ids[1], peer.now);
    let last = peer.last_data_in(0, itt, 0, 0).encode(512);
    peer.give(0, &last, &[]).unwrap();
    let out = peer.drain(0);
    let [(Pdu::LogoutRequest(logout), _)] = &out[..] else { panic!("{out:?}") };
    assert_eq!(logout.reason, LogoutReason::CLOSE_SESSION);
    let joining = established(3, peer.session.params);
    assert_eq!(peer.session.add_connection(&joining, peer.now), Err(MembershipError::Ended));
    assert!(peer.session.submit(command(Bytes::new(), 512), 3).is_err());
    assert_eq!(peer.session.in_flight(), 1, "it comes back when the session ends");
}
