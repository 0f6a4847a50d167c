//! Immediate requests that are lost: nobody waits for ever for their answers.

use std::time::Duration;

use super::super::*;
use super::peer::Peer;
use crate::pdu::{NopIn, Pdu, TaskManagementFunction, TaskManagementResponseCode};

fn at_level(error_recovery_level: u8) -> Peer {
    let params =
        SessionParams { error_recovery_level, max_connections: 8, ..SessionParams::default() };
    Peer::with(params, 2)
}

/// Seconds pass in which data moves on every connection.
fn pass(peer: &mut Peer, seconds: u64) {
    for _ in 0..seconds {
        peer.now = peer.now + Duration::from_secs(1);
        for id in peer.ids.clone() {
            peer.session.note_progress(id, peer.now);
        }
        peer.session.handle_timeout(peer.now);
    }
}

/// The connection's ping is in the socket, behind more than the path carries in the time of a ping.
fn buried_ping() -> Peer {
    let mut peer = at_level(0);
    peer.now = peer.now + Duration::from_secs(5);
    assert_eq!(peer.session.suspects(peer.now).count(), 2, "both are silent");
    peer.session.handle_timeout(peer.now);
    assert_eq!(pings(&mut peer, 0).len() + pings(&mut peer, 1).len(), 2);
    peer
}

#[test]
fn a_connection_whose_bytes_are_acknowledged_is_alive_however_late_its_ping_is_answered() {
    let mut peer = buried_ping();
    for _ in 0..12 {
        peer.now = peer.now + Duration::from_secs(9);
        for id in peer.ids.clone() {
            peer.session.note_acknowledged(id, peer.now);
        }
        peer.now = peer.now + Duration::from_secs(1);
        peer.session.handle_timeout(peer.now);
        assert!(peer.session.is_open() && peer.events().is_empty(), "{:?}", peer.now);
    }
    // Nothing is acknowledged any more: within one more ping's time it is over.
    peer.now = peer.now + Duration::from_secs(10);
    assert_eq!(peer.session.suspects(peer.now).count(), 2);
    peer.session.handle_timeout(peer.now);
    let dead = |event: &Event<u32>| {
        matches!(event, Event::SessionEnded { error: Some(ConnectionError::PingTimeout { .. }) })
    };
    assert!(peer.events().iter().any(dead));
}

#[test]
fn acknowledged_bytes_do_not_spare_a_silent_peer_the_question() {
    let mut peer = at_level(0);
    for _ in 0..5 {
        peer.now = peer.now + Duration::from_secs(1);
        for id in peer.ids.clone() {
            peer.session.note_acknowledged(id, peer.now);
        }
        peer.session.handle_timeout(peer.now);
    }
    assert_eq!(pings(&mut peer, 0).len(), 1);
}

fn pings(peer: &mut Peer, k: usize) -> Vec<Itt> {
    let sent = peer.drain(k).into_iter();
    sent.filter_map(|(pdu, _)| match pdu {
        Pdu::NopOut(nop) if nop.itt != Itt::NONE => Some(nop.itt),
        _ => None,
    })
    .collect()
}

fn pong(peer: &mut Peer, k: usize, itt: Itt) -> Result<(), ConnectionError> {
    let pdu = NopIn {
        lun: Lun(0),
        itt,
        ttt: Ttt::NONE,
        stat_sn: peer.stat_sn[k].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
    };
    peer.give(k, &pdu.encode(0), &[]).map(|_| ())
}

#[test]
fn a_function_without_an_answer_costs_the_connection_and_its_owner_is_told() {
    let mut peer = at_level(2);
    let asked = peer.session.manage(TaskManagementFunction::LOGICAL_UNIT_RESET, Lun(0)).unwrap();
    let k = (0..2).find(|k| !peer.drain(*k).is_empty()).unwrap();
    pass(&mut peer, 59);
    assert!(peer.events().is_empty());
    // A later one does not put the first one's time off.
    peer.session.manage(TaskManagementFunction::CLEAR_TASK_SET, Lun(0)).unwrap();
    (0..2).for_each(|k| drop(peer.drain(k)));
    pass(&mut peer, 1);
    let events = peer.events();
    let cid = Cid(k as u16 + 1);
    let lost = |e: &Event<u32>| match e {
        Event::ConnectionFailed { connection, error } => {
            *connection == peer.ids[k] && *error == ConnectionError::NotAnswered { cid, itt: asked }
        }
        _ => false,
    };
    let told = |e: &Event<u32>| {
        let refused = TaskManagementResponseCode::REJECTED;
        matches!(e, Event::TaskManagementDone { itt, response, .. }
            if *itt == asked && *response == refused)
    };
    assert!(events.iter().any(lost) && events.iter().any(told), "{events:?}");
    assert!(peer.session.is_open());
}

#[test]
fn text_without_an_answer_is_lost() {
    let mut peer = at_level(2);
    let itt = peer.session.text(Bytes::from_static(b"SendTargets=All\0")).unwrap();
    (0..2).for_each(|k| drop(peer.drain(k)));
    pass(&mut peer, 60);
    let lost = |e: &Event<u32>| matches!(e, Event::TextLost { itt: lost } if *lost == itt);
    assert!(peer.events().iter().any(lost));
}

#[test]
fn below_level_2_a_missing_answer_ends_the_session() {
    for level in [0, 1] {
        let mut peer = at_level(level);
        peer.session.manage(TaskManagementFunction::LOGICAL_UNIT_RESET, Lun(0)).unwrap();
        (0..2).for_each(|k| drop(peer.drain(k)));
        pass(&mut peer, 60);
        let ended = |event: &Event<u32>| {
            matches!(
                event,
                Event::SessionEnded { error: Some(ConnectionError::NotAnswered { .. }) }
            )
        };
        assert!(peer.events().iter().any(ended), "level {level}");
    }
}

#[test]
fn an_answer_in_time_stops_the_clock() {
    let mut peer = at_level(2);
    let itt = peer.session.text(Bytes::from_static(b"SendTargets=All\0")).unwrap();
    let k = (0..2).find(|k| !peer.drain(*k).is_empty()).unwrap();
    pass(&mut peer, 50);
    let answer = crate::pdu::TextResponse {
        is_final: true,
        continues: false,
        lun: Lun(0),
        itt,
        ttt: Ttt::NONE,
        stat_sn: peer.stat_sn[k].take(),
        exp_cmd_sn: peer.exp_cmd_sn,
        max_cmd_sn: peer.max_cmd_sn(),
    };
    peer.give(k, &answer.encode(0), &[]).unwrap();
    pass(&mut peer, 100);
    let failed = |event: &Event<u32>| matches!(event, Event::ConnectionFailed { .. });
    assert!(!peer.events().iter().any(failed));
}

#[test]
fn a_ping_that_is_lost_while_data_moves_is_made_anew() {
    for (level, pings_wanted) in [(0, 1), (1, 2)] {
        let mut peer = at_level(level);
        let id = peer.ids[0];
        peer.session.ping(id);
        let mut sent = pings(&mut peer, 0);
        for _ in 0..15 {
            pass(&mut peer, 1);
            sent.extend(pings(&mut peer, 0));
        }
        assert_eq!(sent.len(), pings_wanted, "level {level}");
        // The first one was only late: its answer is no violation.
        for itt in sent {
            pong(&mut peer, 0, itt).unwrap();
        }
        let pongs = peer.events().into_iter().filter(|e| matches!(e, Event::Pong { .. }));
        assert_eq!(pongs.count(), 1);
    }
}
