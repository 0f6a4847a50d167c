//! [`Turns`]: whose turn it is on a line that all of them want. A viewer goes first who has got the
//! least in the last seconds, and of his streams that one which has: whoever takes as much as he
//! can gets no more than anybody else, by however many requests; and what has just begun, or is
//! sought for, goes ahead of players that have a while of their films in hand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Bytes that a viewer or a stream has got count half after this time. A player that reads ahead
/// has some seconds of its film in hand, and can wait for one that has nothing.
const GOT_HALF_LIFE: Duration = Duration::from_secs(2);
/// Less than this makes no difference any more, in bytes.
const GOT_MIN: f64 = 65_536.0;

/// A stream of a viewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) viewer: Arc<str>,
    /// One of this number; whatever is read for one request.
    pub(crate) stream: u64,
}

/// Those who wait, and what they have got.
pub(crate) struct Turns<T> {
    /// Counts turns, so that of two with the same, it is the other's.
    given: u64,
    viewers: BTreeMap<Arc<str>, Viewer<T>>,
}

struct Viewer<T> {
    share: Share,
    streams: BTreeMap<u64, Stream<T>>,
}

struct Stream<T> {
    share: Share,
    /// Bytes that are wanted, and who is told.
    waiting: VecDeque<(u64, T)>,
}

/// What a viewer or a stream has of the line.
struct Share {
    under_way: u64,
    /// Bytes that it had turns for, as much of them as counted then.
    got: f64,
    got_at: Instant,
    last: u64,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { given: 0, viewers: BTreeMap::new() }
    }
}

impl<T> Turns<T> {
    /// Somebody waits for so many bytes.
    pub(crate) fn push(&mut self, who: &Who, bytes: u64, waiter: T) {
        let now = Instant::now();
        let new_viewer = || Viewer { share: Share::new(now), streams: BTreeMap::new() };
        let viewer = self.viewers.entry(Arc::clone(&who.viewer)).or_insert_with(new_viewer);
        let new_stream = || Stream { share: Share::new(now), waiting: VecDeque::new() };
        let stream = viewer.streams.entry(who.stream).or_insert_with(new_stream);
        stream.waiting.push_back((bytes, waiter));
    }

    /// Whose turn it is, and for how much, if that fits. It is under way from now on.
    pub(crate) fn next(&mut self, fits: impl Fn(u64) -> bool) -> Option<(Who, u64, T)> {
        let now = Instant::now();
        let viewers = self.viewers.iter_mut().filter(|(_, one)| one.waits());
        let (name, viewer) = viewers.min_by_key(|(_, one)| one.share.order(now))?;
        let streams = viewer.streams.iter_mut().filter(|(_, one)| !one.waiting.is_empty());
        let (number, stream) = streams.min_by_key(|(_, one)| one.share.order(now))?;
        stream.waiting.front().filter(|(bytes, _)| fits(*bytes))?;
        let (bytes, waiter) = stream.waiting.pop_front()?;
        self.given += 1;
        stream.share.take(bytes, self.given, now);
        viewer.share.take(bytes, self.given, now);
        Some((Who { viewer: Arc::clone(name), stream: *number }, bytes, waiter))
    }

    /// These bytes of a stream are not under way any more: they have come, or were given up, and do
    /// not count then.
    pub(crate) fn release(&mut self, who: &Who, bytes: u64, has_come: bool) {
        let now = Instant::now();
        let Some(viewer) = self.viewers.get_mut(&who.viewer) else { return };
        viewer.share.release(bytes, has_come);
        if let Some(stream) = viewer.streams.get_mut(&who.stream) {
            stream.share.release(bytes, has_come);
        }
        if viewer.share.under_way == 0 && !viewer.waits() {
            self.viewers.retain(|_, one| !one.is_over(now));
        } else {
            viewer.forget(now);
        }
    }

    /// Somebody waits.
    pub(crate) fn are_wanted(&self) -> bool {
        self.viewers.values().any(Viewer::waits)
    }

    /// Nobody is known.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.viewers.is_empty()
    }
}

impl<T> Viewer<T> {
    fn waits(&self) -> bool {
        self.streams.values().any(|one| !one.waiting.is_empty())
    }

    /// Streams of which nothing makes a difference any more.
    fn forget(&mut self, now: Instant) {
        self.streams.retain(|_, one| !one.waiting.is_empty() || !one.share.is_over(now));
    }

    fn is_over(&mut self, now: Instant) -> bool {
        self.forget(now);
        self.streams.is_empty() && self.share.is_over(now)
    }
}

impl Share {
    fn new(now: Instant) -> Self {
        Self { under_way: 0, got: 0.0, got_at: now, last: 0 }
    }

    /// As much of what it has got as counts now.
    fn got(&self, now: Instant) -> f64 {
        let half_lives = (now - self.got_at).as_secs_f64() / GOT_HALF_LIFE.as_secs_f64();
        self.got * (-half_lives).exp2()
    }

    /// The least goes first.
    fn order(&self, now: Instant) -> (u64, u64) {
        (self.under_way.saturating_add(self.got(now) as u64), self.last)
    }

    fn take(&mut self, bytes: u64, turn: u64, now: Instant) {
        (self.got, self.got_at) = (self.got(now) + bytes as f64, now);
        self.under_way += bytes;
        self.last = turn;
    }

    fn release(&mut self, bytes: u64, has_come: bool) {
        self.under_way = self.under_way.saturating_sub(bytes);
        if !has_come {
            self.got = (self.got - bytes as f64).max(0.0);
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.under_way == 0 && self.got(now) < GOT_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 256 << 10;

    fn who(viewer: &str, stream: u64) -> Who {
        Who { viewer: viewer.into(), stream }
    }

    /// Each wants more than there is; who has had how many of so many turns.
    fn turns(turns: &mut Turns<()>, wanted: &[Who], count: u64) -> Vec<u64> {
        let mut had = vec![0; wanted.len()];
        for one in wanted {
            (0..count).for_each(|_| turns.push(one, BYTES, ()));
        }
        for _ in 0..count {
            let (who, bytes, ()) = turns.next(|_| true).unwrap();
            had[wanted.iter().position(|one| *one == who).unwrap()] += 1;
            turns.release(&who, bytes, true);
        }
        had
    }

    #[tokio::test(start_paused = true)]
    async fn a_viewer_gets_no_more_by_many_requests_and_his_streams_get_the_same() {
        let wanted = [who("a", 1), who("a", 2), who("a", 3), who("b", 4)];
        assert_eq!(turns(&mut Turns::default(), &wanted, 600), [100, 100, 100, 300]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_just_begun_is_first_among_the_streams_of_its_viewer() {
        let mut all = Turns::default();
        turns(&mut all, &[who("a", 1), who("a", 2)], 40);
        let had = turns(&mut all, &[who("a", 1), who("a", 2), who("a", 3)], 20);
        assert_eq!(had, [0, 0, 20], "until it has had as much");
        // What was long ago counts no more.
        tokio::time::advance(Duration::from_secs(60)).await;
        let had = turns(&mut all, &[who("a", 1), who("a", 2), who("a", 4)], 30);
        assert_eq!(had, [10, 10, 10]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_did_not_come_is_not_counted_and_who_is_gone_is_forgotten() {
        let mut all = Turns::default();
        for _ in 0..8 {
            all.push(&who("a", 1), BYTES, ());
            let (one, bytes, ()) = all.next(|_| true).unwrap();
            all.release(&one, bytes, false);
        }
        assert!(all.is_empty() && !all.are_wanted());
        all.push(&who("a", 1), BYTES, ());
        assert!(all.next(|bytes| bytes < BYTES).is_none(), "it does not fit");
        let (one, bytes, ()) = all.next(|_| true).unwrap();
        all.release(&one, bytes, true);
        tokio::time::advance(Duration::from_secs(10)).await;
        all.push(&who("b", 2), BYTES, ());
        let (one, bytes, ()) = all.next(|_| true).unwrap();
        all.release(&one, bytes, false);
        assert!(all.is_empty());
    }
}
