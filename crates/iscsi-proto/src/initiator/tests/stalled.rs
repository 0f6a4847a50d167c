//! Which command is still, and since when.

use super::super::*;
use super::peer::{Peer, at};
use crate::pdu::Pdu;

/// Whose turn it would be to be given up, and since when it is still, in milliseconds.
fn stalled(peer: &Peer) -> Option<(u32, u64)> {
    peer.session.stalled().map(|(context, since)| (*context, since.0.as_millis() as u64))
}

fn send(peer: &mut Peer, ms: u64) -> Vec<(Pdu, Bytes)> {
    peer.now = at(ms);
    peer.drain(0)
}

#[test]
fn a_command_is_still_from_when_it_was_sent() {
    let mut peer = Peer::new(1);
    peer.read(4096, 1);
    assert_eq!(stalled(&peer), None, "the target does not have it");
    send(&mut peer, 1000);
    assert_eq!(stalled(&peer), Some((1, 1000)));
    peer.respond(0, Itt(0));
    assert_eq!(stalled(&peer), None);
}

#[test]
fn data_of_a_read_moves_it_each_piece_and_part_of_a_piece() {
    let mut peer = Peer::new(1);
    let itt = peer.read(8192, 1);
    send(&mut peer, 1000);
    peer.now = at(50_000);
    let first = peer.data_in(0, itt, 0, 0).encode(4096);
    peer.session.handle_header(peer.ids[0], peer.now, &first).unwrap();
    assert_eq!(stalled(&peer), Some((1, 50_000)));
    peer.session.note_progress(peer.ids[0], at(70_000));
    assert_eq!(stalled(&peer), Some((1, 70_000)), "bytes of its data have come");
    peer.session.handle_data(peer.ids[0], at(90_000), &[], true).unwrap();
    peer.session.note_progress(peer.ids[0], at(99_000));
    assert_eq!(stalled(&peer), Some((1, 70_000)), "those were not its own");
}

#[test]
fn data_of_a_write_moves_it_and_so_does_being_asked_for_it() {
    let mut peer = Peer::new(1);
    let itt = peer.write(200_000, 1);
    send(&mut peer, 1000);
    peer.now = at(40_000);
    let asked = peer.r2t(0, itt, 0, 8192, 65_536).encode(0);
    peer.give(0, &asked, &[]).unwrap();
    assert_eq!(stalled(&peer), Some((1, 40_000)));
    assert!(!send(&mut peer, 80_000).is_empty());
    assert_eq!(stalled(&peer), Some((1, 80_000)));
}

#[test]
fn older_ones_speak_for_younger_ones_and_never_the_other_way() {
    let mut peer = Peer::new(1);
    let itts: Vec<Itt> = (1..=3).map(|context| peer.read(4096, context)).collect();
    send(&mut peer, 1000);
    // The first one moves: whoever is behind it may be waiting for that.
    peer.now = at(50_000);
    let data = peer.data_in(0, itts[0], 0, 0).encode(512);
    peer.give(0, &data, &[]).unwrap();
    assert_eq!(stalled(&peer).unwrap().1, 50_000);
    // It ends, which speaks for them, too.
    peer.now = at(90_000);
    peer.respond(0, itts[0]);
    assert_eq!(stalled(&peer).unwrap().1, 91_000);
    // That the third one ends says nothing of the second one.
    peer.now = at(150_000);
    peer.respond(0, itts[2]);
    assert_eq!(stalled(&peer), Some((2, 91_000)));
}

#[test]
fn one_that_hangs_is_found_among_many_that_do_not() {
    let mut peer = Peer::new(1);
    peer.read(4096, 0);
    send(&mut peer, 0);
    for second in 1..=300 {
        let itt = peer.read(4096, second);
        send(&mut peer, u64::from(second) * 1000);
        peer.respond(0, itt);
        assert_eq!(stalled(&peer), Some((0, 0)));
    }
    // What went out before that much ended is remembered for as long as anybody waits.
    assert!(peer.session.ends.len() <= 240);
}
