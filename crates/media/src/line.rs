//! [`Line`]: the line to a home, which all who watch something of it share. What is asked for and
//! has not come stays within a limit; whose read is next, [`Turns`] decides.
//!
//! The limit is the line's own: what reads take longer than the shortest one has taken, they stand
//! in a queue, which somebody who seeks would have to wait behind. More than [`QUEUE_AIM`] of that,
//! and there are fewer of them. A queue is what all of them have stood in: one that takes longer
//! than its neighbours has lost a packet, and fewer of them would not bring that sooner. What is
//! aborted does not help: it has left the disk, and is on its way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use block::layer::{ReadOnlyLayer, Reads};
use block::{BlockError, Buf, Device, DeviceInfo, Extent, Io};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::turns::{Turns, Who};

/// Most bytes under way: 640 Mbit/s at a round trip of 100 ms.
const BYTES_MAX: u64 = 8 << 20;
/// Most bytes under way to begin with.
const BYTES_FIRST: u64 = 1 << 20;
/// Least: two pieces, on whatever line, so that it carries one while the next is asked for.
const BYTES_MIN: u64 = 2 * PIECE;
/// Shorter reads tell nothing of a queue: they take less on a line that is slow, too.
const PIECE: u64 = 256 << 10;
/// How long a read may stand in a queue before there are too many of them. Enough to keep a line
/// full whose reads are not alike, and a fifth of the 0.3 s that a seek may take on a short one.
const QUEUE_AIM: Duration = Duration::from_millis(60);
/// Bytes of reads of which the shortest tells whether there is a queue (as CoDel, RFC 8289, takes
/// the least of an interval): four pieces, which rarely all lose a packet, and are a round or less.
const ROUND: u64 = 4 * PIECE;
/// The shortest read counts for so long; then it is looked for again, with few under way.
const LEAST_FOR: Duration = Duration::from_secs(30);
/// By how much the limit grows with a read, once it has been too high.
const BYTES_UP: u64 = 32 << 10;
/// A round of which no read is done.
const NO_READ: (u64, Duration) = (0, Duration::MAX);

/// The line to a home.
#[derive(Clone)]
pub(crate) struct Line(Arc<Mutex<State>>);

struct State {
    limit: u64,
    /// What the shortest read has taken, and when that was.
    least: Option<(Duration, Instant)>,
    /// The limit has not been too high yet, and doubles with each round of reads.
    is_opening: bool,
    /// Reads that were asked for before this say nothing of the limit of now.
    lowered_at: Option<Instant>,
    /// Bytes of the reads since the last look at the limit, and what the shortest has taken.
    round: (u64, Duration),
    under_way: u64,
    /// Streams that there were.
    streams: u64,
    turns: Turns<oneshot::Sender<Place>>,
}

/// Bytes that somebody may have under way, until this is dropped.
struct Place {
    line: Line,
    who: Who,
    bytes: u64,
    since: Instant,
    is_done: bool,
}

impl Line {
    /// One that nobody uses.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            limit: BYTES_FIRST,
            least: None,
            is_opening: true,
            lowered_at: None,
            round: NO_READ,
            under_way: 0,
            streams: 0,
            turns: Turns::default(),
        })))
    }

    /// The device as one more stream of this viewer shares it with others.
    pub(crate) fn shared(&self, device: Device, viewer: &str) -> Device {
        let stream = {
            let mut state = self.lock();
            state.streams += 1;
            state.streams
        };
        let who = Who { viewer: viewer.into(), stream };
        Arc::new(ReadOnlyLayer::new(Shared { device, line: self.clone(), who }))
    }

    async fn place(&self, who: &Who, bytes: u64) -> Option<Place> {
        let (sender, place) = oneshot::channel();
        self.lock().turns.push(who, bytes, sender);
        self.give();
        place.await.ok()
    }

    /// Gives places as long as there are some.
    fn give(&self) {
        loop {
            let next = self.lock().next();
            let Some((who, bytes, sender)) = next else { return };
            let (line, since) = (self.clone(), Instant::now());
            let place = Place { line, who, bytes, since, is_done: false };
            if let Err(place) = sender.send(place) {
                place.give_back(); // who waited for it has gone
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Who is next, and how much it is. It counts as under way from now on.
    fn next(&mut self) -> Option<(Who, u64, oneshot::Sender<Place>)> {
        let (under_way, limit) = (self.under_way, self.limit);
        let next = self.turns.next(|bytes| under_way == 0 || under_way + bytes <= limit)?;
        self.under_way += next.1;
        Some(next)
    }

    fn release(&mut self, who: &Who, bytes: u64, has_come: bool) {
        self.under_way = self.under_way.saturating_sub(bytes);
        self.turns.release(who, bytes, has_come);
    }

    /// A read of `bytes` is done, which was asked for at `since`.
    fn judge(&mut self, bytes: u64, since: Instant) {
        let (now, took) = (Instant::now(), since.elapsed());
        let is_waited_for = self.turns.are_wanted();
        if bytes < PIECE {
            if self.is_opening && is_waited_for {
                self.limit = (self.limit + bytes).min(BYTES_MAX);
            }
            return;
        }
        let Some((least, _)) = self.least.filter(|(_, at)| now - *at < LEAST_FOR) else {
            (self.least, self.is_opening) = (Some((took, now)), true);
            (self.limit, self.lowered_at) = (BYTES_FIRST, Some(now));
            self.round = NO_READ;
            return;
        };
        if took <= least {
            self.least = Some((took, now));
        }
        let most = least.min(took) + QUEUE_AIM;
        if self.lowered_at.is_some_and(|at| since < at) {
            return;
        }
        if took <= most && is_waited_for {
            let more = if self.is_opening { bytes } else { BYTES_UP };
            self.limit = (self.limit + more).min(BYTES_MAX);
        }
        self.round = (self.round.0 + bytes, self.round.1.min(took));
        let (read, shortest) = self.round;
        if read < ROUND {
            return;
        }
        self.round = NO_READ;
        if shortest > most {
            // What is under way and how long it takes are in proportion.
            let fitting = (self.limit as f64 * most.as_secs_f64() / shortest.as_secs_f64()) as u64;
            self.limit = fitting.max(self.limit / 2).max(BYTES_MIN);
            (self.is_opening, self.lowered_at) = (false, Some(now));
        }
    }
}

impl Place {
    /// The read is done.
    fn done(mut self) {
        self.is_done = true;
        self.line.lock().judge(self.bytes, self.since);
    }

    /// Without another look at who is next, which is going on.
    fn give_back(mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.line.lock().release(&self.who, bytes, false);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.line.lock().release(&self.who, self.bytes, self.is_done);
            self.line.give();
        }
    }
}

/// A device whose reads wait for their turn.
struct Shared {
    device: Device,
    line: Line,
    who: Who,
}

impl Reads for Shared {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        let (device, line) = (Arc::clone(&self.device), self.line.clone());
        let who = self.who.clone();
        Io::later(async move {
            let gone = || BlockError::Unreachable("nobody gives out places any more".into());
            // As a task of its own, which ends with this: who has paused asks for nothing, and his
            // place is free for others as soon as the read is done.
            let mut task = JoinSet::new();
            task.spawn(async move {
                let place = line.place(&who, buf.len() as u64).await.ok_or_else(gone)?;
                let read = device.read(offset, buf).await;
                place.done();
                read
            });
            task.join_next().await.and_then(Result::ok).unwrap_or_else(|| Err(gone()))
        })
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.device.extents(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use files::{FileExtent, FileReader, ReadConfig};

    use super::*;
    use crate::testing::Disk;

    /// Reads with so many bytes at once, and counts what has come.
    fn watch(device: Device, bytes_max: u64) -> Arc<Mutex<u64>> {
        let extent = FileExtent { offset: 0, len: 1 << 29, at: Some(0) };
        let config = ReadConfig { bytes_max, bytes_first: bytes_max, ..ReadConfig::default() };
        let file = FileReader::new(device, vec![extent]).with_config(config);
        let count = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&count);
        tokio::spawn(async move {
            let mut reading = file.read(0..file.size());
            while let Some(Ok(bytes)) = reading.next().await {
                *counted.lock().unwrap() += bytes.len() as u64;
            }
        });
        count
    }

    async fn settle() {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn eight_viewers_get_the_same_though_one_takes_all_that_he_can() {
        let Disk { device, turns, .. } = Disk::new(0);
        let line = Line::new();
        let viewer = |number: u64, bytes: u64| {
            watch(line.shared(Arc::clone(&device), &number.to_string()), bytes)
        };
        let greedy = viewer(0, 64 << 20);
        settle().await;
        let others: Vec<_> = (1..8).map(|number| viewer(number, 2 << 20)).collect();
        settle().await;
        // What the greedy one had asked for before the others came is his.
        turns.add_permits((BYTES_FIRST / PIECE) as usize);
        settle().await;
        let before = *greedy.lock().unwrap();
        for _ in 0..800 {
            turns.add_permits(1);
            settle().await;
        }
        let of_others = others.iter().map(|count| *count.lock().unwrap());
        let of_greedy = std::iter::once(*greedy.lock().unwrap() - before);
        let all: Vec<u64> = of_greedy.chain(of_others).collect();
        let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!(*least >= 95 * PIECE && most - least <= 8 * PIECE, "{all:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_begins_is_ahead_of_those_who_have_something_in_hand_and_then_like_them() {
        let Disk { device, turns, .. } = Disk::new(0);
        let line = Line::new();
        let viewer =
            |number: u64| watch(line.shared(Arc::clone(&device), &number.to_string()), 8 << 20);
        let turn = async |count: u64| {
            for _ in 0..count {
                tokio::time::advance(Duration::from_millis(20)).await;
                turns.add_permits(1);
                settle().await;
            }
        };
        let others: Vec<_> = (0..4).map(viewer).collect();
        turn(500).await;
        let of_others = || others.iter().map(|count| *count.lock().unwrap()).sum::<u64>();
        let new = viewer(4);
        settle().await;
        turn(2 * BYTES_FIRST / PIECE).await; // what is on its way is that of others
        let before = of_others();
        turn(20).await;
        let got = *new.lock().unwrap();
        assert!(got >= 18 * PIECE, "{got} of {}", 20 * PIECE);
        assert!(of_others() - before <= 4 * PIECE);
        turn(200).await;
        let (before, had) = (of_others(), *new.lock().unwrap());
        turn(200).await;
        let share = *new.lock().unwrap() - had;
        assert!((36 * PIECE..=44 * PIECE).contains(&share), "{share} of {}", 200 * PIECE);
        assert!(of_others() - before >= 150 * PIECE, "and nobody starves");
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_paused_keeps_nobody_waiting() {
        let Disk { device, turns, .. } = Disk::new(0);
        let line = Line::new();
        let extent = FileExtent { offset: 0, len: 1 << 29, at: Some(0) };
        let file = FileReader::new(line.shared(Arc::clone(&device), "a"), vec![extent]);
        let mut paused = file.read(0..file.size());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(paused.poll_next(&mut context).is_pending());
        settle().await;
        // All that he has asked for has come, and he takes none of it.
        turns.add_permits((ReadConfig::default().bytes_max / PIECE) as usize);
        settle().await;
        let other = watch(line.shared(device, "b"), 2 << 20);
        turns.add_permits(40);
        settle().await;
        assert!(*other.lock().unwrap() >= 32 * PIECE, "{}", other.lock().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_alone_has_the_whole_line_and_who_leaves_gives_his_place_back() {
        let Disk { device, turns, counts } = Disk::new(0);
        let line = Line::new();
        let extent = FileExtent { offset: 0, len: 1 << 29, at: Some(0) };
        let file = FileReader::new(line.shared(Arc::clone(&device), "a"), vec![extent]);
        let mut reading = file.read(0..file.size());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..100 {
            assert!(reading.poll_next(&mut context).is_pending());
        }
        settle().await;
        assert_eq!(counts.bytes(), BYTES_FIRST);
        drop(reading);
        settle().await;
        {
            let state = line.lock();
            assert!(state.under_way == 0 && state.turns.is_empty());
        }
        turns.add_permits(1);
        let mut again = file.read(0..1);
        assert_eq!(again.next().await.unwrap().unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_is_late_alone_stood_in_no_queue() {
        let line = Line::new();
        let limit_after = async |millis: &[u64]| {
            for millis in millis {
                let since = Instant::now();
                tokio::time::advance(Duration::from_millis(*millis)).await;
                line.lock().judge(PIECE, since);
            }
            line.lock().limit
        };
        assert_eq!(limit_after(&[100; 5]).await, BYTES_FIRST);
        // Packets were lost of every other one.
        assert_eq!(limit_after(&[110, 310, 100, 320, 300, 310, 310, 120]).await, BYTES_FIRST);
        let less = limit_after(&[250, 240, 200, 220]).await;
        assert_eq!(less, BYTES_FIRST * 160 / 200, "as much as would take 60 ms longer");
        assert_eq!(limit_after(&[150, 330, 155, 145]).await, less);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_line_has_less_under_way_and_a_quick_one_more() {
        let Disk { device, turns, counts } = Disk::new(0);
        let line = Line::new();
        let count = watch(line.shared(device, "a"), 64 << 20);
        let under_way = || counts.bytes() - *count.lock().unwrap();
        settle().await;
        // 5 pieces a second: 10 Mbit/s.
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(200)).await;
            turns.add_permits(1);
            settle().await;
        }
        assert!(under_way() <= BYTES_MIN + PIECE, "{}", under_way());
        // 100 a second: 210 Mbit/s.
        for _ in 0..300 {
            tokio::time::advance(Duration::from_millis(10)).await;
            turns.add_permits(1);
            settle().await;
        }
        // With two of them under way, the shortest takes 0.02 s.
        let takes = under_way() as f64 / PIECE as f64 / 100.0;
        assert!((0.05..=0.11).contains(&takes), "{takes} s");
        // 1,000 a second.
        for _ in 0..1000 {
            tokio::time::advance(Duration::from_millis(1)).await;
            turns.add_permits(1);
            settle().await;
        }
        assert_eq!(under_way(), BYTES_MAX, "and not the end of the film");
    }
}
