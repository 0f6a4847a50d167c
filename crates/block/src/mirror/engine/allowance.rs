//! [`Allowance`]: how many bytes are under way to a leg, and how many may be. Pure.
//!
//! It grows while operations are answered within some times the quickest of them: then more fills
//! the line, and beyond that more only waits in front of it, with all that the user sends. One that
//! takes more than a part of the time after which the leg is lost makes it smaller: a slow line is
//! to be filled, not to be given up. It is as many that are late as are not that count, so packets
//! that are lost now and then choke nothing. And it becomes no smaller than Little's law asks for:
//! what was under way with an operation, and how long that took, is what the line carries. So
//! nothing is choked either by connections that have just begun, all of whose answers are late.

use std::time::Duration;

/// Bytes that may be under way before it is known what the line carries.
pub(super) const BYTES_FIRST: u64 = 2 << 20;

/// An operation that takes more than this part of the time after which a leg is lost makes the
/// allowance smaller, unless that is no more than [`LATENCY_PER_LEAST`].
const LATENCY_PER_TIMEOUT: u32 = 16;

/// The allowance grows while an operation takes no longer than this multiple of the quickest one,
/// or than this time.
const LATENCY_OF_GROWTH: (u32, Duration) = (3, Duration::from_millis(50));

/// It grows up to this multiple of the quickest operation where the line has carried twice as much:
/// 256 KiB take five round trips over a connection that begins (RFC 6928), and one more where a
/// packet is lost.
const LATENCY_PER_LEAST: u32 = 6;

/// Data and zeroes: what the line carries bounds the one, what a target can zero the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowances {
    pub(super) data: Allowance,
    pub(super) zeroes: Allowance,
}

impl Allowances {
    /// More may be sent, of whichever kind.
    pub(super) fn have_room(&self) -> bool {
        self.data.has_room() && self.zeroes.has_room()
    }

    /// The allowance of zeroes, or of data.
    pub(super) fn of(&mut self, zero: bool) -> &mut Allowance {
        if zero { &mut self.zeroes } else { &mut self.data }
    }
}

/// Bytes of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    under_way: u64,
    bytes: u64,
    bytes_min: u64,
    bytes_max: u64,
    latency_max: Duration,
    /// The quickest answer.
    least: Duration,
    /// The most bytes a second that the line has carried.
    most: f64,
}

impl Allowance {
    /// Begins with `first` bytes and stays between the bounds, of which the upper one gives way, to
    /// a leg that is lost after `timeout`.
    pub(super) fn new(first: u64, (min, max): (u64, u64), timeout: Duration) -> Self {
        let (bytes_min, bytes_max) = (min, max.max(min));
        let latency_max = timeout / LATENCY_PER_TIMEOUT;
        let (bytes, least) = (first.min(bytes_max), Duration::MAX);
        Self { under_way: 0, bytes, bytes_min, bytes_max, latency_max, least, most: 0.0 }
    }

    /// Bytes that may be under way.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// More may be sent. One operation may always be under way, however large it is.
    pub(super) fn has_room(&self) -> bool {
        self.under_way < self.bytes
    }

    /// An operation is sent.
    pub(super) fn sent(&mut self, bytes: u64, now: Duration) -> Sent {
        self.under_way += bytes;
        Sent { bytes, under_way: self.under_way, since: now }
    }

    /// It was answered.
    pub(super) fn answered(&mut self, sent: Sent, now: Duration) {
        let took = now.saturating_sub(sent.since);
        self.under_way -= sent.bytes;
        self.least = self.least.min(took);
        let (times, at_all) = LATENCY_OF_GROWTH;
        let soon = (self.least * times).max(at_all);
        let late = (self.least * LATENCY_PER_LEAST).max(self.latency_max);
        let carried = sent.under_way as f64 / took.as_secs_f64().max(1e-6);
        let fills_half = carried * 2.0 >= self.most;
        if took <= soon || took <= late && !fills_half {
            self.most = self.most.max(carried);
            self.bytes = (self.bytes + sent.bytes / 2).min(self.bytes_max);
        } else if took > late && sent.under_way >= self.bytes / 2 {
            let in_time = carried * late.as_secs_f64();
            let smaller = self.bytes.saturating_sub(sent.bytes / 2).max(self.bytes_min);
            self.bytes = smaller.max(self.bytes.min(in_time as u64));
        }
    }
}

/// An operation under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) bytes: u64,
    /// Bytes under way when it was sent, its own among them.
    under_way: u64,
    pub(super) since: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn of(first: u64, max: u64) -> Allowance {
        Allowance::new(first, (64, max), 16 * SECOND)
    }

    /// A whole window is sent at once as `operations` of a size, and answered after `took`.
    fn window(allowance: &mut Allowance, operations: u64, took: Duration) -> u64 {
        let bytes = allowance.bytes().div_ceil(operations);
        let sent: Vec<Sent> =
            (0..operations).map(|_| allowance.sent(bytes, Duration::ZERO)).collect();
        sent.into_iter().for_each(|sent| allowance.answered(sent, took));
        allowance.bytes()
    }

    #[test]
    fn it_grows_with_a_window_answered_in_time_and_shrinks_with_a_late_one() {
        let mut allowance = of(2 << 20, 16 << 20);
        assert_eq!(window(&mut allowance, 8, SECOND), 3 << 20);
        for _ in 0..8 {
            window(&mut allowance, 8, Duration::ZERO);
        }
        assert_eq!(allowance.bytes(), 16 << 20);
        let once = window(&mut allowance, 8, 2 * SECOND);
        assert!((8 << 20..12 << 20).contains(&once), "{once}");
        for _ in 0..90 {
            window(&mut allowance, 8, 4 * SECOND);
        }
        assert_eq!(allowance.bytes(), 64);
    }

    /// What is allowed on a line of 100 MB/s, where each answer is so late.
    fn on_a_line(round_trip: Duration, late: impl Fn(u64) -> Duration) -> u64 {
        let (mut allowance, mut now, mut free) =
            (of(2 << 20, 64 << 20), Duration::ZERO, Duration::ZERO);
        let mut under_way = std::collections::BTreeMap::new();
        for number in 0..4000 {
            while !allowance.has_room() {
                let ((at, _), sent) = under_way.pop_first().unwrap();
                now = at;
                allowance.answered(sent, now);
            }
            free = free.max(now) + SECOND / 400;
            let sent = allowance.sent(250_000, now);
            under_way.insert((free + round_trip + late(number), number), sent);
        }
        allowance.bytes()
    }

    #[test]
    fn a_line_is_filled_and_no_long_queue_stands_in_front_of_it() {
        for ms in [1, 50, 200] {
            let round_trip = Duration::from_millis(ms);
            let bytes = on_a_line(round_trip, |_| Duration::ZERO) as f64 / 1e8;
            let least = round_trip.as_secs_f64();
            assert!(bytes > least && bytes < (5.0 * least).max(0.12), "{bytes} s at {ms} ms");
        }
    }

    #[test]
    fn answers_that_are_late_for_a_lost_packet_leave_the_line_filled() {
        let lost = |number| if number % 20 == 0 { SECOND } else { Duration::ZERO };
        let bytes = on_a_line(SECOND / 10, lost);
        assert!(bytes > 20_000_000, "{bytes}: some 5 MB wait for packets sent again");
    }

    #[test]
    fn a_line_that_answers_late_since_it_has_just_begun_is_not_choked() {
        let mut allowance = of(2 << 20, 64 << 20);
        let quick = allowance.sent(4096, Duration::ZERO);
        allowance.answered(quick, SECOND / 10);
        let begun = window(&mut allowance, 32, 2 * SECOND);
        assert!((1 << 20..2 << 20).contains(&begun), "{begun}");
        // What is late while little is under way says nothing of the window.
        let alone = allowance.sent(4096, Duration::ZERO);
        allowance.answered(alone, 12 * SECOND);
        assert_eq!(allowance.bytes(), begun);
    }

    #[test]
    fn there_is_room_up_to_what_is_allowed_and_for_one_that_is_larger() {
        let mut allowance = Allowance::new(100, (64, 100), 16 * SECOND);
        let mut sent = Vec::new();
        for (bytes, room) in [(0, true), (99, true), (1, false)] {
            sent.push(allowance.sent(bytes, Duration::ZERO));
            assert_eq!(allowance.has_room(), room);
        }
        sent.into_iter().for_each(|sent| allowance.answered(sent, Duration::ZERO));
        assert!(allowance.has_room());
        allowance.sent(1000, Duration::ZERO);
        assert!(!allowance.has_room());
    }
}
