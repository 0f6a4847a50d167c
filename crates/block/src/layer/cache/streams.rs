//! Recognises sequential readers among all reads. Pure.
//!
//! A read that begins where a known one ended (or ends where it began) belongs to the same stream.
//! Only the third in a row is read ahead of, so random reads, and pairs of them, cost nothing.
//!
//! So does the fourth at equal distances, if a good part of what lies between is read: `strides`.
//!
//! Long reads may begin a stream earlier and with a larger window, which saves the round trips that
//! a fresh connection needs to become fast. That is a loan: [`EAGER_MAX`] such streams may come to
//! nothing, then the next ones begin like all others until one of them has paid off.

use std::ops::Range;

use super::strides::Strides;
use super::window::{PathView, Window};

/// Streams remembered. Random reads fill it, too, so it is more than a player or two need.
const STREAMS_MAX: usize = 32;

/// Reads in a row that make a stream.
const RUN_MIN: u32 = 3;

/// Two reads in a row that are so long together make a stream, too, and what has been read by then
/// is the first window: as much as the kernel's read-ahead asks for when it is sure.
const EAGER_BYTES_MIN: u64 = 2 << 20;

/// Largest first window of such a stream.
const EAGER_WINDOW_MAX: u64 = 4 << 20;

/// Such streams that may not have used their first window.
const EAGER_MAX: u32 = 4;

/// How far behind the front a read of an established stream may be: requests of one reader that
/// overtook each other on their way here.
const DISORDER_BYTES: u64 = 2 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Unknown,
    Forward,
    Backward,
}

#[derive(Debug)]
struct Stream {
    direction: Direction,
    /// What has been read, at its far ends.
    read: Range<u64>,
    /// Reads in a row.
    run: u32,
    established: bool,
    /// Bytes of an eager first window that are still to be read.
    owed_bytes: u64,
    /// Up to here (forward) or down to here (backward) everything is asked for.
    ahead: u64,
    window: Window,
    last_used: u64,
}

/// The streams.
#[derive(Debug)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    clock: u64,
    chunk_bytes: u64,
    eager: u32,
    strides: Strides,
}

/// Names an established stream until the next call of [`Streams::observe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamIndex(usize);

impl Streams {
    pub(super) fn new(chunk_bytes: u64) -> Self {
        Self {
            streams: Vec::new(),
            clock: 0,
            chunk_bytes,
            eager: EAGER_MAX,
            strides: Strides::default(),
        }
    }

    /// Established streams.
    pub(super) fn established(&self) -> usize {
        self.streams.iter().filter(|stream| stream.established).count()
    }

    /// The widest window of the established streams.
    pub(super) fn window_bytes(&self) -> u64 {
        let established = self.streams.iter().filter(|stream| stream.established);
        established.map(|stream| stream.window.bytes()).max().unwrap_or(0)
    }

    /// Takes note of a read; returns the established stream it belongs to, and by how many bytes
    /// that has gone on.
    pub(super) fn observe(&mut self, read: Range<u64>) -> Option<(StreamIndex, u64)> {
        self.clock += 1;
        let Some(index) = self.streams.iter().position(|stream| stream.continues(&read)) else {
            let strided = self.strides.observe(&read, self.chunk_bytes);
            return self.begin(read, strided).filter(|_| strided.is_some()).map(|new| (new, 0));
        };
        let stream = &mut self.streams[index];
        let progress = stream.extend(&read);
        if !stream.established && stream.establish(self.chunk_bytes, self.eager > 0) {
            self.eager -= u32::from(stream.owed_bytes > 0);
        }
        stream.last_used = self.clock;
        stream.established.then_some((StreamIndex(index), progress))
    }

    /// The window's share of a stream's progress.
    pub(super) fn consume(&mut self, index: StreamIndex, bytes: u64, waited: bool, path: PathView) {
        let stream = &mut self.streams[index.0];
        stream.window.consume(bytes, waited, path);
        if stream.owed_bytes > 0 {
            stream.owed_bytes = stream.owed_bytes.saturating_sub(bytes);
            self.eager += u32::from(stream.owed_bytes == 0);
        }
    }

    /// What to ask for next, nearest first, as chunk numbers; they count as asked for.
    pub(super) fn plan(&mut self, index: StreamIndex, size: u64) -> Vec<u64> {
        let chunk = self.chunk_bytes;
        let stream = &mut self.streams[index.0];
        let window = stream.window.bytes();
        match stream.direction {
            Direction::Backward => {
                let to = stream.ahead.min(stream.read.start);
                let from = stream.read.start.saturating_sub(window) / chunk * chunk;
                stream.ahead = from.min(to);
                (from / chunk..to.div_ceil(chunk)).rev().collect()
            }
            _ => {
                let from = stream.ahead.max(stream.read.end);
                let to = stream.read.end.saturating_add(window).min(size);
                if to <= from {
                    return Vec::new();
                }
                stream.ahead = to.next_multiple_of(chunk);
                (from / chunk..to.div_ceil(chunk)).collect()
            }
        }
    }

    /// There was no room for this chunk and the planned ones after it.
    pub(super) fn give_back(&mut self, index: StreamIndex, chunk: u64) {
        let stream = &mut self.streams[index.0];
        stream.ahead = match stream.direction {
            Direction::Backward => (chunk + 1) * self.chunk_bytes,
            _ => chunk * self.chunk_bytes,
        };
    }

    /// Remembers a read that continues none; `strided` is how a series of them went on, if it did.
    fn begin(&mut self, read: Range<u64>, strided: Option<Direction>) -> Option<StreamIndex> {
        if self.streams.len() >= STREAMS_MAX {
            // What is no stream goes first, and of those the oldest.
            let oldest = (0..self.streams.len())
                .min_by_key(|i| (self.streams[*i].established, self.streams[*i].last_used));
            if let Some(oldest) = oldest.filter(|i| self.may_go(*i)) {
                self.streams.swap_remove(oldest);
            } else {
                return None;
            }
        }
        self.streams.push(Stream {
            direction: strided.unwrap_or(Direction::Unknown),
            ahead: if strided == Some(Direction::Backward) { read.start } else { read.end },
            read,
            run: 1,
            established: strided.is_some(),
            owed_bytes: 0,
            window: Window::new(2 * self.chunk_bytes),
            last_used: self.clock,
        });
        Some(StreamIndex(self.streams.len() - 1))
    }

    /// An established stream keeps its place for as many reads as there are places.
    fn may_go(&self, index: usize) -> bool {
        let stream = &self.streams[index];
        !stream.established || self.clock - stream.last_used > STREAMS_MAX as u64
    }
}

impl Stream {
    fn continues(&self, read: &Range<u64>) -> bool {
        if !self.established {
            let forward = self.direction != Direction::Backward && read.start == self.read.end;
            let backward = self.direction != Direction::Forward && read.end == self.read.start;
            return forward || backward;
        }
        match self.direction {
            Direction::Backward => {
                let front = self.read.start;
                let reach = self.ahead.min(front);
                (reach..=front.saturating_add(DISORDER_BYTES)).contains(&read.end)
            }
            _ => {
                let front = self.read.end;
                let reach = self.ahead.max(front);
                (front.saturating_sub(DISORDER_BYTES)..=reach).contains(&read.start)
            }
        }
    }

    /// Makes it a stream if enough speaks for that.
    fn establish(&mut self, chunk_bytes: u64, may_be_eager: bool) -> bool {
        let read_bytes = self.read.end - self.read.start;
        let eager = may_be_eager && read_bytes >= EAGER_BYTES_MIN;
        self.established = eager || self.run >= RUN_MIN;
        if eager {
            let window = read_bytes.min(EAGER_WINDOW_MAX);
            self.window = Window::starting_with(window, 2 * chunk_bytes);
            self.owed_bytes = window;
        }
        self.established
    }

    fn extend(&mut self, read: &Range<u64>) -> u64 {
        self.run = self.run.saturating_add(1);
        let before = self.read.clone();
        if self.direction == Direction::Unknown {
            let forward = read.start == before.end;
            self.direction = if forward { Direction::Forward } else { Direction::Backward };
        }
        if self.direction == Direction::Backward {
            self.read.start = before.start.min(read.start);
        } else {
            self.read.end = before.end.max(read.end);
        }
        if !self.established {
            let backward = self.direction == Direction::Backward;
            self.ahead = if backward { self.read.start } else { self.read.end };
        }
        (before.start - self.read.start) + (self.read.end - before.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 256 << 10;
    const SIZE: u64 = 1 << 30;
    const PATH: PathView =
        PathView { rate: 1 << 30, product_bytes: 1 << 30, window_bytes_max: 64 << 20 };

    fn read(streams: &mut Streams, offset: u64, len: u64) -> Vec<u64> {
        match streams.observe(offset..offset + len) {
            Some((index, progress)) => {
                streams.consume(index, progress, true, PATH);
                streams.plan(index, SIZE)
            }
            None => Vec::new(),
        }
    }

    #[test]
    fn the_third_read_in_a_row_is_read_ahead_of_and_nothing_is_asked_for_twice() {
        let mut streams = Streams::new(CHUNK);
        assert!(read(&mut streams, 0, 4096).is_empty());
        assert!(read(&mut streams, 4096, 4096).is_empty());
        let mut asked = read(&mut streams, 8192, 4096);
        assert_eq!(asked, [0, 1, 2]);
        for index in 3..2000 {
            asked.extend(read(&mut streams, index * 4096, 4096));
        }
        let expected: Vec<u64> = (0..asked.len() as u64).collect();
        assert_eq!(asked, expected);
    }

    #[test]
    fn several_streams_at_once_one_of_them_backwards() {
        let mut streams = Streams::new(CHUNK);
        let mut asked = [Vec::new(), Vec::new(), Vec::new()];
        for step in 0..100u64 {
            asked[0].extend(read(&mut streams, step * 65536, 65536));
            asked[1].extend(read(&mut streams, (256 << 20) + step * 4096, 4096));
            asked[2].extend(read(&mut streams, (600 << 20) - step * 65536, 65536));
        }
        assert_eq!(streams.established(), 3);
        assert!(asked[0].is_sorted() && asked[0].len() > 25);
        assert!(asked[1].is_sorted() && asked[1][0] == 1024);
        assert!(asked[2].is_sorted_by(|a, b| a > b) && asked[2].len() > 25);
    }

    #[test]
    fn random_reads_ask_for_nothing_and_do_not_push_out_a_stream() {
        let mut streams = Streams::new(CHUNK);
        let mut random = super::super::super::Random(7);
        let mut asked = 0;
        for step in 0..1000u64 {
            let offset = (1 << 29) + random.below(1 << 17) * 4096;
            assert!(read(&mut streams, offset, 4096).is_empty(), "step {step}");
            asked += read(&mut streams, step * 4096, 4096).len();
        }
        assert!(asked >= 16, "{asked}");
    }

    #[test]
    fn requests_that_overtake_each_other_stay_one_stream() {
        let mut streams = Streams::new(CHUNK);
        for step in [0u64, 1, 2, 4, 3, 6, 5, 7, 9, 8] {
            read(&mut streams, step * 131_072, 131_072);
        }
        assert_eq!((streams.streams.len(), streams.established()), (1, 1));
        assert_eq!(streams.streams[0].read, 0..10 * 131_072);
    }

    #[test]
    fn long_reads_begin_early_until_too_many_came_to_nothing() {
        const LONG: u64 = 1 << 20;
        let mut streams = Streams::new(CHUNK);
        let pair = |streams: &mut Streams, at: u64| {
            assert!(read(streams, at, LONG).is_empty());
            read(streams, at + LONG, LONG).len() as u64 * CHUNK
        };
        let asked: Vec<u64> = (0..8).map(|n| pair(&mut streams, n * (64 << 20))).collect();
        let eager = EAGER_MAX as usize;
        assert_eq!(asked[..eager], vec![2 * LONG; eager]);
        assert_eq!(asked[eager..], vec![0; 8 - eager]);
        // One that goes on pays back.
        for step in 2..5 {
            read(&mut streams, step * LONG, LONG);
        }
        assert!(pair(&mut streams, 640 << 20) > 0 && pair(&mut streams, 768 << 20) == 0);
    }

    #[test]
    fn what_had_no_room_is_asked_for_again() {
        let mut streams = Streams::new(CHUNK);
        for step in 0..2 {
            read(&mut streams, step * 4096, 4096);
        }
        let (index, _) = streams.observe(8192..12288).unwrap();
        assert_eq!(streams.plan(index, SIZE), [0, 1, 2]);
        streams.give_back(index, 1);
        assert_eq!(streams.plan(index, SIZE), [1, 2]);
        assert!(streams.plan(index, 600 << 10).is_empty());
    }
}
