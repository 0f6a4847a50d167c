//! How many events of each kind there were, by connection.

use std::collections::{BTreeMap, HashMap};

use super::event::{Event, KINDS, Kind};

/// Connections that are counted; more are left out, as from the kernel's table.
const CONNECTIONS_MAX: usize = crate::diag::CONNECTIONS_MAX;
/// A connection that was not seen in so many looks at the table is gone: its events come at once,
/// the table is looked at now and then.
const ABSENT_MAX: u8 = 3;

/// Events of one connection, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    events: [u64; KINDS.len()],
    /// Segments that the retransmissions sent again.
    pub retransmitted_segments: u64,
    /// Time in the waits for room in the send buffer.
    pub send_wait_us: u64,
    /// SACKs that report a duplicate.
    pub dsacks: u64,
}

impl Counts {
    /// Events of a kind.
    pub fn of(&self, kind: Kind) -> u64 {
        self.events[kind.index()]
    }

    /// Adds another connection's.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.events.iter_mut().zip(other.events) {
            *sum += more;
        }
        self.retransmitted_segments += other.retransmitted_segments;
        self.send_wait_us += other.send_wait_us;
        self.dsacks += other.dsacks;
    }

    /// The numbers by name, of the kinds that can be seen: what cannot be seen is not 0.
    pub fn named(&self, seen: &[Kind]) -> BTreeMap<&'static str, u64> {
        let mut named: BTreeMap<_, _> =
            seen.iter().map(|kind| (kind.as_str(), self.of(*kind))).collect();
        for (kind, name, value) in [
            (Kind::Retransmit, "retransmitted_segments", self.retransmitted_segments),
            (Kind::SendWait, "send_wait_us", self.send_wait_us),
            (Kind::Sack, "dsack", self.dsacks),
        ] {
            if seen.contains(&kind) {
                named.insert(name, value);
            }
        }
        named
    }
}

/// Counts by connection, since the beginning and since they were last taken.
#[derive(Debug, Default)]
pub struct Tally {
    connections: HashMap<u64, Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    /// The number of the latest event of each kind.
    numbers: [u32; KINDS.len()],
    counts: Counts,
    /// What has been taken already.
    taken: Counts,
    /// How often it was not among those that are there.
    absent: u8,
}

impl Tally {
    /// Counts an event. Its number tells how many were before it that nobody told.
    pub fn add(&mut self, event: &Event) {
        let cookie = event.connection.cookie;
        if self.connections.len() >= CONNECTIONS_MAX && !self.connections.contains_key(&cookie) {
            return;
        }
        let entry = self.connections.entry(cookie).or_default();
        let at = event.event.index();
        // A number that does not grow is of a connection that the kernel had forgotten meanwhile.
        let new = event.number.checked_sub(entry.numbers[at]).filter(|new| *new > 0);
        entry.counts.events[at] += u64::from(new.unwrap_or(1));
        entry.numbers[at] = event.number;
        match event.event {
            Kind::Retransmit => entry.counts.retransmitted_segments += u64::from(event.segments),
            Kind::SendWait => entry.counts.send_wait_us += u64::from(event.wait_us),
            Kind::Sack => entry.counts.dsacks += u64::from(event.dsack),
            _ => {}
        }
    }

    /// Everything of a connection, by its socket's cookie.
    pub fn of(&self, cookie: u64) -> Counts {
        self.connections.get(&cookie).map(|entry| entry.counts).unwrap_or_default()
    }

    /// What is new of a connection since this was last asked.
    pub fn take(&mut self, cookie: u64) -> Counts {
        let Some(entry) = self.connections.get_mut(&cookie) else { return Counts::default() };
        let (now, before) = (entry.counts, entry.taken);
        entry.taken = now;
        let mut events = now.events;
        for (count, before) in events.iter_mut().zip(before.events) {
            *count -= before;
        }
        Counts {
            events,
            retransmitted_segments: now.retransmitted_segments - before.retransmitted_segments,
            send_wait_us: now.send_wait_us - before.send_wait_us,
            dsacks: now.dsacks - before.dsacks,
        }
    }

    /// Forgets connections that are not there, some calls after they were last.
    pub fn retain(&mut self, is_there: impl Fn(u64) -> bool) {
        self.connections.retain(|cookie, entry| {
            entry.absent = if is_there(*cookie) { 0 } else { entry.absent + 1 };
            entry.absent < ABSENT_MAX
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::tests::raw;
    use super::*;

    fn event(kind: Kind, cookie: u64, number: u32) -> Event {
        let mut event = Event::decode(&raw(kind as u8, libc::AF_INET)).unwrap();
        event.connection.cookie = cookie;
        event.number = number;
        event
    }

    #[test]
    fn events_that_were_not_told_are_counted_by_their_numbers() {
        let mut tally = Tally::default();
        for number in [1, 40, 41] {
            tally.add(&event(Kind::Probe, 7, number));
        }
        assert_eq!(tally.of(7).of(Kind::Probe), 41);
        assert_eq!(tally.of(8), Counts::default());
        assert_eq!(tally.take(7).of(Kind::Probe), 41);
        tally.add(&event(Kind::Probe, 7, 43));
        assert_eq!(tally.take(7).of(Kind::Probe), 2);
        assert_eq!(tally.take(7), Counts::default());
        // The kernel forgot the connection and began again.
        tally.add(&event(Kind::Probe, 7, 1));
        tally.add(&event(Kind::Probe, 7, 3));
        assert_eq!(tally.take(7).of(Kind::Probe), 3);
        assert_eq!(tally.of(7).of(Kind::Probe), 46);
    }

    #[test]
    fn what_events_carry_is_summed_by_kind() {
        let mut tally = Tally::default();
        for (kind, number) in [(Kind::Retransmit, 1), (Kind::SendWait, 1), (Kind::Sack, 1)] {
            tally.add(&event(kind, 7, number));
        }
        tally.add(&event(Kind::Retransmit, 7, 2));
        let counts = tally.of(7);
        assert_eq!(counts.retransmitted_segments, 2 * 96);
        assert_eq!(counts.send_wait_us, 108);
        assert_eq!(counts.dsacks, 1);
        let named = counts.named(&[Kind::Retransmit, Kind::Probe]);
        let expected = [("probe", 0), ("retransmit", 2), ("retransmitted_segments", 192)];
        assert_eq!(named, BTreeMap::from(expected), "kinds that cannot be seen are absent");
        let mut both = counts;
        both.add(&counts);
        assert_eq!((both.of(Kind::Retransmit), both.send_wait_us), (4, 216));
    }

    #[test]
    fn the_number_of_connections_is_bounded_and_ended_ones_are_forgotten() {
        let mut tally = Tally::default();
        for cookie in 0..CONNECTIONS_MAX as u64 + 9 {
            tally.add(&event(Kind::Rto, cookie, 1));
        }
        assert_eq!(tally.connections.len(), CONNECTIONS_MAX);
        for _ in 1..ABSENT_MAX {
            tally.retain(|_| false);
        }
        assert_eq!(tally.connections.len(), CONNECTIONS_MAX, "they may be too new for the table");
        tally.retain(|cookie| cookie == 4);
        assert_eq!(tally.connections.len(), 1);
        assert_eq!(tally.of(4).of(Kind::Rto), 1);
    }
}
