//! Data that never comes (RFC 7143 §7.9).

use std::time::Duration;

use super::*;

fn config() -> SessionConfig {
    SessionConfig { data_timeout: Duration::from_secs(3), ..SessionConfig::default() }
}

#[test]
fn silence_in_a_sequence_is_answered_with_a_recovery_r2t() {
    let mut script = Script::at_level_with(1, config());
    script.pdu(write(1, 100, 2048), &[]);
    let r2t = script.r2t();
    script.pdu(data_out(1, r2t.ttt, 0, 0, false), &[1; 1024]);
    let due = script.session.poll_timeout(script.conn).unwrap();
    assert_eq!(due, NOW + Duration::from_secs(3));
    assert!(script.session.handle_timeout(script.conn, due));
    let again = script.r2t();
    assert_eq!((again.buffer_offset, again.desired_data_transfer_length), (1024, 1024));
    let late = data_out(1, r2t.ttt, 1, 1024, true);
    assert_eq!(script.pdu(late, &[1; 1024]), Placement::Discard);
    script.pdu(data_out(1, again.ttt, 0, 1024, true), &[1; 1024]);
    assert_eq!(script.executes(script.conn), [1]);
}

#[test]
fn silence_in_unsolicited_data_ends_it() {
    let mut script = Script::at_level_with(1, config());
    let announced = ScsiCommand { is_final: false, ..write(1, 100, 1024) };
    script.pdu(announced, &[1; 256]);
    let due = script.session.poll_timeout(script.conn).unwrap();
    script.session.handle_timeout(script.conn, due);
    let r2t = script.r2t();
    assert_eq!((r2t.buffer_offset, r2t.desired_data_transfer_length), (256, 768));
}

/// Nothing is said about the command: the initiator would not hear it, and can have the command
/// executed elsewhere.
#[test]
fn silence_for_ever_ends_the_connection() {
    let mut script = Script::at_level_with(1, config());
    script.pdu(write(1, 100, 512), &[]);
    let mut asked = 0;
    let reason = loop {
        match script.sent(script.conn) {
            Some((Pdu::R2t(_), _)) => asked += 1,
            Some((Pdu::NopIn(_), _)) => {
                let now = script.session.poll_timeout(script.conn).unwrap();
                script.session.note_progress(script.conn, now); // it is there, it says
            }
            Some(other) => panic!("{other:?}"),
            None => {} // the time was not up after all
        }
        let due = script.session.poll_timeout(script.conn).unwrap();
        assert!(script.session.handle_timeout(script.conn, due));
        let mut events = std::iter::from_fn(|| script.session.poll_event(script.conn));
        let close = events.find_map(|event| match event {
            Event::Close { reason, at_once: true } => Some(reason),
            _ => None,
        });
        if let Some(reason) = close {
            break reason;
        }
    };
    assert_eq!((asked, reason), (9, "data that was asked for again does not come"));
}

#[test]
fn a_connection_that_brings_other_data_is_not_silent() {
    let mut script = Script::at_level_with(1, config());
    script.pdu(write(1, 100, 2048), &[]);
    script.pdu(write(2, 101, 2048), &[]);
    script.r2t();
    let other = script.r2t();
    let large = data_out(2, other.ttt, 0, 0, true).encode(2048);
    script.session.handle_header(script.conn, NOW, &large).unwrap();
    waits_for(&mut script, 30);
}

/// Also when other PDUs go with it: the shell writes many at once.
#[test]
fn a_connection_that_takes_other_data_is_not_silent() {
    let mut script = Script::at_level_with(1, config());
    script.pdu(write(1, 100, 2048), &[]);
    script.r2t();
    assert!(script.sent(script.conn).is_none());
    script.pdu(read(2, 101, 512), &[]);
    script.session.complete(Itt(2), good(&[1; 512]));
    assert!(matches!(script.sent(script.conn), Some((Pdu::DataIn(_), _))));
    script.pdu(ping(3, 102, 1), &[]);
    assert!(matches!(script.sent(script.conn), Some((Pdu::NopIn(_), _))));
    waits_for(&mut script, 30);
}

/// Pings come more often than the timer of lost data runs out.
#[test]
fn a_connection_that_brings_pings_is_silent() {
    let mut script = Script::at_level_with(1, config());
    script.pdu(write(1, 100, 2048), &[]);
    script.r2t();
    waits_for(&mut script, 3);
    let due = NOW + Duration::from_secs(3);
    script.session.note_progress(script.conn, due);
    assert!(script.session.handle_timeout(script.conn, due));
    script.r2t();
}

/// Something moves every second, and nothing is asked for again before the time is up.
fn waits_for(script: &mut Script, seconds: u64) {
    for second in 1..seconds {
        let now = NOW + Duration::from_secs(second);
        script.session.note_progress(script.conn, now);
        assert!(script.session.handle_timeout(script.conn, now));
        assert!(script.sent(script.conn).is_none(), "after {second} s");
    }
}

#[test]
fn level_0_has_no_such_timer() {
    let mut script = Script::with(params(), config());
    script.pdu(write(1, 100, 2048), &[]);
    let due = script.session.poll_timeout(script.conn).unwrap();
    assert_eq!(due, NOW + SessionConfig::default().ping_after);
}
