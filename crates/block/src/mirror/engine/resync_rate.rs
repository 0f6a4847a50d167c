//! [`Pacer`]: when copies to a leg may send their next piece, by the limit that the user has set.
//! Pure: time is an argument.
//!
//! A limit in percent is one of what the copy itself has been seen to carry. While it is limited it
//! cannot see more than that, so for a moment now and then it is not: that moment is what counts.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::config::ResyncRate;

/// Time for which a copy is not limited, to see what the line carries: longer than slow start over
/// 200 ms.
const LOOK_FOR: Duration = Duration::from_secs(2);

/// Time between two such looks: what they take is a fifteenth of the time.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// A rate that was seen counts for this time.
const KNOWN_FOR: Duration = Duration::from_secs(300);

/// Bytes a second that a percentage does not go below, so that a copy ends although its line was
/// seen when it was bad.
const FLOOR_BYTES_PER_S: u64 = 1 << 20;

/// The pace of the copies to one leg.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    /// A look is under way: since when, and the bytes that had been copied by then.
    look: Option<(Duration, u64)>,
    /// When the last look ended.
    looked: Option<Duration>,
    /// Rates that were seen, in bytes a second, and when, oldest first.
    seen: VecDeque<(Duration, u64)>,
}

impl Pacer {
    /// When the next piece may be sent, where one of `bytes` is sent at `now`, `done` have been
    /// copied so far, and the moment of this one was `at`.
    pub(crate) fn next_after(
        &mut self,
        rate: ResyncRate,
        (now, at): (Duration, Duration),
        bytes: u64,
        done: u64,
    ) -> Duration {
        let limit = match rate {
            ResyncRate::Max => None,
            ResyncRate::BytesPerS(limit) => Some(limit),
            ResyncRate::Percent(percent) => self.limit(percent, now, done),
        };
        match limit {
            Some(limit) if limit > 0 => at + Duration::from_secs_f64(bytes as f64 / limit as f64),
            _ => Duration::ZERO,
        }
    }

    /// Bytes a second at most; `None` during a look.
    fn limit(&mut self, percent: u8, now: Duration, done: u64) -> Option<u64> {
        match self.look {
            Some((since, _)) if now < since + LOOK_FOR => return None,
            // The copy had ended in between: what was seen says nothing of the line.
            Some((since, _)) if now >= since + 2 * LOOK_FOR => {
                self.look = Some((now, done));
                return None;
            }
            Some((since, before)) => {
                let time = (now - since).as_secs_f64();
                let rate = done.saturating_sub(before) as f64 / time;
                self.seen.push_back((now, rate as u64));
                (self.look, self.looked) = (None, Some(now));
            }
            None if self.looked.is_none_or(|looked| now >= looked + LOOK_EVERY) => {
                self.look = Some((now, done));
                return None;
            }
            None => {}
        }
        while self.seen.front().is_some_and(|(at, _)| *at + KNOWN_FOR <= now) {
            self.seen.pop_front();
        }
        self.share(percent)
    }

    /// The limit as it is at this moment, without a look.
    pub(crate) fn limit_now(&self, rate: ResyncRate) -> Option<u64> {
        match rate {
            ResyncRate::Max => None,
            ResyncRate::BytesPerS(limit) => Some(limit),
            ResyncRate::Percent(percent) => self.share(percent),
        }
    }

    /// This percentage of the highest rate that was seen; `None` before any was.
    fn share(&self, percent: u8) -> Option<u64> {
        let most = self.seen.iter().map(|(_, rate)| *rate).max()?;
        Some((most / 100 * u64::from(percent)).max(FLOOR_BYTES_PER_S))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = 1 << 20;

    /// Copies for `seconds` over a line of `line` bytes a second; returns what each second carried.
    fn copy(pacer: &mut Pacer, rate: ResyncRate, line: u64, from: u64, seconds: u64) -> Vec<u64> {
        let (mut now, mut at) = (Duration::from_secs(from), Duration::from_secs(from));
        let mut done = 0;
        let mut carried = vec![0; seconds as usize];
        while now.as_secs() < from + seconds {
            carried[(now.as_secs() - from) as usize] += PIECE;
            at = pacer.next_after(rate, (now, at.max(now)), PIECE, done);
            done += PIECE;
            now = at.max(now + Duration::from_secs_f64(PIECE as f64 / line as f64));
        }
        carried
    }

    fn near(carried: u64, wanted: u64) {
        let off = carried.abs_diff(wanted);
        assert!(off * 20 <= wanted, "{carried} bytes, wanted {wanted}");
    }

    #[test]
    fn a_percentage_is_one_of_what_the_line_carries_unlimited() {
        let (mut pacer, line) = (Pacer::default(), 100 * PIECE);
        let carried = copy(&mut pacer, ResyncRate::Percent(40), line, 0, 100);
        near(carried[0], line);
        for second in [5, 20, 40, 60, 90] {
            near(carried[second], 40 * PIECE);
        }
        // Not 40 % of 40 %: what was seen while it was limited does not count.
        near(carried[3..].iter().sum::<u64>() / 97, 40 * PIECE + 60 * PIECE * 6 / 97);
    }

    #[test]
    fn a_line_that_has_become_slower_is_noticed_and_one_that_is_bad_ends_all_the_same() {
        let mut pacer = Pacer::default();
        copy(&mut pacer, ResyncRate::Percent(50), 100 * PIECE, 0, 60);
        let carried = copy(&mut pacer, ResyncRate::Percent(50), 20 * PIECE, 500, 60);
        near(carried[20], 10 * PIECE);
        let mut pacer = Pacer::default();
        let carried = copy(&mut pacer, ResyncRate::Percent(1), 10 * PIECE, 0, 20);
        near(carried[10], FLOOR_BYTES_PER_S);
    }

    #[test]
    fn a_limit_in_bytes_holds_from_the_first_piece_on() {
        let carried =
            copy(&mut Pacer::default(), ResyncRate::BytesPerS(8 * PIECE), 100 * PIECE, 0, 10);
        carried.iter().for_each(|carried| near(*carried, 8 * PIECE));
        let carried = copy(&mut Pacer::default(), ResyncRate::Max, 100 * PIECE, 0, 3);
        carried.iter().for_each(|carried| near(*carried, 100 * PIECE));
    }
}
