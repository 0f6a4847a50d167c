//! What events say for or against a cause, beside the kernel's counters.

use std::collections::BTreeMap;

use super::{Counts, Kind};
use crate::verdict::Bottleneck;

/// Numbers for [`crate::verdict::Verdict::evidence`], and what they mean for the cause.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// By name; kinds that cannot be seen are absent.
    pub numbers: BTreeMap<&'static str, f64>,
    /// A sentence where events have something to say about the cause.
    pub says: Option<String>,
}

/// Evidence from the events of some connections in some seconds.
#[allow(clippy::cast_precision_loss, reason = "counts far below 2^53")]
pub fn evidence(
    cause: Bottleneck,
    counts: &Counts,
    seen: &[Kind],
    seconds: f64,
    connections: usize,
) -> Evidence {
    let mut numbers = BTreeMap::new();
    let named = [
        (Kind::Retransmit, "events_retransmit"),
        (Kind::DuplicateAck, "events_duplicate_ack"),
        (Kind::Sack, "events_sack"),
        (Kind::Rto, "events_rto"),
        (Kind::SendWait, "events_send_wait"),
        (Kind::LocalCongestion, "events_local_congestion"),
    ];
    for (kind, name) in named {
        if seen.contains(&kind) {
            numbers.insert(name, counts.of(kind) as f64);
        }
    }
    let waited = counts.send_wait_us as f64 / 1e6;
    let share = (waited / (seconds * connections.max(1) as f64).max(1e-9)).min(1.0);
    if seen.contains(&Kind::SendWait) {
        numbers.insert("events_share_send_wait", share);
    }
    let says = match cause {
        Bottleneck::SendBuffer if seen.contains(&Kind::SendWait) => Some(format!(
            "The application has waited {} times for room in the send buffer, {:.0} % of the time.",
            counts.of(Kind::SendWait),
            share * 100.0
        )),
        Bottleneck::CongestionLoss if seen.contains(&Kind::Retransmit) => {
            Some(losses(counts, seen))
        }
        _ => None,
    };
    Evidence { numbers, says }
}

fn losses(counts: &Counts, seen: &[Kind]) -> String {
    let again = counts.of(Kind::Retransmit);
    let mut text =
        format!("{again} retransmissions of {} segments were seen", counts.retransmitted_segments);
    let timeouts = match seen.contains(&Kind::Rto) {
        true => format!(", and {} timeouts", counts.of(Kind::Rto)),
        false => "; timeouts cannot be told apart by this kernel".to_owned(),
    };
    text += &timeouts;
    if counts.dsacks > 0 {
        text += &format!("; {} of what was sent again had arrived (D-SACK)", counts.dsacks);
    }
    text + "."
}

#[cfg(test)]
mod tests {
    use super::super::event::tests::raw;
    use super::super::{Event, KINDS, Tally};
    use super::*;

    fn counts(kind: Kind, number: u32) -> Counts {
        let mut tally = Tally::default();
        let mut event = Event::decode(&raw(kind as u8, libc::AF_INET)).unwrap();
        event.number = number;
        event.segments = 3;
        event.wait_us = 3_000_000;
        tally.add(&event);
        tally.of(event.connection.cookie)
    }

    #[test]
    fn waits_speak_for_the_send_buffer() {
        let counts = counts(Kind::SendWait, 12);
        let found = evidence(Bottleneck::SendBuffer, &counts, &KINDS, 5.0, 1);
        assert_eq!(found.numbers["events_send_wait"], 12.0);
        assert!((found.numbers["events_share_send_wait"] - 0.6).abs() < 1e-9);
        let says = found.says.unwrap();
        assert!(says.contains("12 times") && says.contains("60 %"), "{says}");
        let two = evidence(Bottleneck::SendBuffer, &counts, &KINDS, 5.0, 2);
        assert!((two.numbers["events_share_send_wait"] - 0.3).abs() < 1e-9);
        assert_eq!(evidence(Bottleneck::Storage, &counts, &KINDS, 5.0, 1).says, None);
    }

    #[test]
    fn what_cannot_be_seen_is_no_evidence() {
        let counts = counts(Kind::Retransmit, 4);
        let seen = [Kind::Probe, Kind::Retransmit];
        let found = evidence(Bottleneck::CongestionLoss, &counts, &seen, 5.0, 1);
        assert_eq!(found.numbers, BTreeMap::from([("events_retransmit", 4.0)]));
        let says = found.says.unwrap();
        assert!(says.starts_with("4 retransmissions of 3 segments"), "{says}");
        assert!(says.contains("cannot be told apart"), "{says}");
        assert_eq!(evidence(Bottleneck::SendBuffer, &counts, &seen, 5.0, 1).says, None);
        let all = evidence(Bottleneck::CongestionLoss, &counts, &KINDS, 5.0, 1).says.unwrap();
        assert!(all.contains("0 timeouts"), "{all}");
    }
}
