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

#[test]
fn silence_for_ever_ends_the_command() {
    let mut script = Script::at_level_with(1, config());
    script.pdu(write(1, 100, 512), &[]);
    let mut asked = 0;
    let response = loop {
        match script.sent(script.conn) {
            Some((Pdu::R2t(_), _)) => asked += 1,
            Some((Pdu::ScsiResponse(response), _)) => break response,
            Some((Pdu::NopIn(_), _)) => {
                let now = script.session.poll_timeout(script.conn).unwrap();
                script.session.note_progress(script.conn, now); // it is there, it says
            }
            Some(other) => panic!("{other:?}"),
            None => {} // the time was not up after all
        }
        let due = script.session.poll_timeout(script.conn).unwrap();
        assert!(script.session.handle_timeout(script.conn, due));
    };
    assert_eq!((asked, response.status), (9, 2));
}

#[test]
fn a_connection_that_brings_other_data_is_not_silent() {
    let mut script = Script::at_level_with(1, config());
    script.pdu(write(1, 100, 2048), &[]);
    script.r2t();
    let at = |seconds| NOW + Duration::from_secs(seconds);
    for second in 1..30 {
        script.session.note_progress(script.conn, at(second));
        assert!(script.session.handle_timeout(script.conn, at(second)));
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
