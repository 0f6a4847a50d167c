//! What is kept until it is acknowledged, and how much (RFC 7143 §4.2.2.2).

use super::*;

#[test]
fn answers_are_kept_until_their_number_is_acknowledged() {
    let mut script = Script::at_level(1);
    for n in 0..3 {
        script.pdu(read(n, 100 + n, 512), &[]);
        script.executes(script.conn);
        script.session.complete(Itt(n), good(&[7; 512]));
        script.sent(script.conn);
    }
    assert_eq!(script.session.task_count(), 0, "they take no place in the window");
    assert_eq!(script.session.tasks_of(script.conn), 3);
    script.pdu(ping(9, 103, 3), &[]); // also an immediate request acknowledges
    assert_eq!(script.session.tasks_of(script.conn), 1);
    script.pdu(ping(9, 103, 2), &[]);
    assert_eq!(script.session.tasks_of(script.conn), 1, "an old number changes nothing");
}

#[test]
fn level_0_keeps_nothing() {
    let mut script = Script::new();
    script.pdu(read(1, 100, 512), &[]);
    script.executes(script.conn);
    script.session.complete(Itt(1), good(&[7; 512]));
    script.sent(script.conn);
    assert_eq!(script.session.tasks_of(script.conn), 0);
}

#[test]
fn a_tag_that_is_used_again_acknowledges() {
    let mut script = Script::at_level(1);
    let second = script.log_in(2, NOW);
    script.pdu(read(1, 100, 512), &[]);
    script.executes(script.conn);
    script.session.complete(Itt(1), good(&[7; 512]));
    script.sent(script.conn);
    script.try_pdu(second, command(1, 101), &[]).unwrap();
    assert_eq!(script.session.tasks_of(script.conn), 0);
    script.pdu(snack(SnackKind::STATUS, Itt::NONE.0, 1, 1), &[]);
    assert!(script.sent(script.conn).is_none(), "its initiator has it, or it could not know");
}

#[test]
fn reads_wait_for_acknowledgement_and_an_idle_initiator_is_asked_for_it() {
    let config = SessionConfig { read_bytes_max: 4096, ..SessionConfig::default() };
    let mut script = Script::at_level_with(1, config);
    script.pdu(read(1, 100, 4096), &[]);
    assert_eq!(script.executes(script.conn), [1]);
    script.pdu(read(2, 101, 4096), &[]);
    script.session.complete(Itt(1), good(&[7; 4096]));
    let sent = script.all_sent(script.conn);
    assert!(script.executes(script.conn).is_empty(), "what was sent may be asked for again");
    let Some((Pdu::NopIn(asks), _)) = sent.last() else { panic!("{sent:?}") };
    assert_eq!(asks.itt, Itt::NONE);
    assert_ne!(asks.ttt, Ttt::NONE, "an answer is wanted");
    // It may have lost the status: the answer to the ping acknowledges nothing.
    let answer = |exp_stat_sn| NopOut { ttt: asks.ttt, ..ping(Itt::NONE.0, 102, exp_stat_sn) };
    script.pdu(answer(1), &[]);
    assert!(script.executes(script.conn).is_empty());
    let due = script.session.poll_timeout(script.conn).unwrap();
    assert!(due < NOW + SessionConfig::default().ping_after);
    assert!(script.session.handle_timeout(script.conn, due));
    assert!(matches!(script.sent(script.conn), Some((Pdu::NopIn(_), _))), "asked again");
    script.pdu(answer(2), &[]);
    assert_eq!(script.executes(script.conn), [2]);
}

#[test]
fn responses_are_held_back_from_an_initiator_that_acknowledges_nothing() {
    let config = SessionConfig { unacknowledged_max: 8, ..SessionConfig::default() };
    let mut script = Script::at_level_with(1, config);
    for n in 0..12 {
        script.pdu(command(n, 100 + n), &[]);
        script.executes(script.conn);
        script.session.complete(Itt(n), Completion::default());
    }
    let sent = script.all_sent(script.conn);
    let responses = sent.iter().filter(|(pdu, _)| matches!(pdu, Pdu::ScsiResponse(_))).count();
    assert_eq!(responses, 8);
    assert!(matches!(sent.last(), Some((Pdu::NopIn(_), _))), "and it is asked");
    script.pdu(ping(Itt::NONE.0, 112, 9), &[]);
    assert_eq!(script.all_sent(script.conn).len(), 4);
}

#[test]
fn a_peer_that_pings_and_acknowledges_nothing_is_shown_out() {
    let mut script = Script::at_level(1);
    let data = vec![0; 1024];
    let mut sent = 0;
    let closed = (0..20_000u32).any(|n| {
        script.pdu(ping(n, 100, 1), &data);
        sent += script.all_sent(script.conn).len();
        matches!(script.session.poll_event(script.conn), Some(Event::Close { .. }))
    });
    assert!(closed, "{sent} answers");
    assert!(sent < 5000, "{sent}");
}
