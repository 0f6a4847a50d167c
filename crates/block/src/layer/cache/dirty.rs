//! Writes that were acknowledged and are not yet on the device. Pure bookkeeping: no I/O.
//!
//! They are kept by aligned chunk: what waits (`pending`) and, at most once per chunk, what is
//! being written (`flights`). So writes that overlap reach the device one after the other, and all
//! others at once. What a newer write covers is dropped before it is written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::sabotage::{Mistakes, Sabotage};

/// A piece of a write, and how much memory it keeps alive.
#[derive(Clone, Debug)]
struct Piece {
    data: Bytes,
    pinned: usize,
}

impl Piece {
    /// A part of it. A small one is copied, so that it does not keep the whole alive.
    fn part(&self, range: Range<usize>) -> Self {
        if range.len() * 2 < self.pinned {
            let data = Bytes::copy_from_slice(&self.data[range]);
            return Self { pinned: data.len(), data };
        }
        Self { data: self.data.slice(range), pinned: self.pinned }
    }
}

/// Pieces by offset, without overlap.
type Pieces = BTreeMap<u64, Piece>;

#[derive(Debug)]
struct Pending {
    pieces: Pieces,
    bytes: u64,
    seq: u64,
    born: Instant,
}

#[derive(Debug)]
struct Flight {
    pieces: Pieces,
    bytes: u64,
    seq: u64,
}

/// A chunk's data to be written: runs of adjacent pieces.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) chunk: u64,
    pub(super) runs: Vec<(u64, Vec<Bytes>)>,
}

/// When a chunk may go out before it is full.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readiness {
    pub(super) now: Instant,
    /// Born so long ago.
    pub(super) delay: Duration,
    /// Everything, because memory is short.
    pub(super) pressure: bool,
}

/// All of it.
#[derive(Debug)]
pub(super) struct Dirty {
    chunk_bytes: u64,
    pending: BTreeMap<u64, Pending>,
    flights: BTreeMap<u64, Flight>,
    /// Pending chunks in the order of their first write; those that failed are not among them.
    order: BTreeMap<u64, u64>,
    full: BTreeSet<u64>,
    failed: BTreeSet<u64>,
    next_seq: u64,
    /// Everything up to here is to go out now.
    urgent_seq: u64,
    bytes: u64,
    mistakes: Mistakes,
}

impl Dirty {
    pub(super) fn new(chunk_bytes: u64) -> Self {
        Self {
            chunk_bytes,
            pending: BTreeMap::new(),
            flights: BTreeMap::new(),
            order: BTreeMap::new(),
            full: BTreeSet::new(),
            failed: BTreeSet::new(),
            next_seq: 1,
            urgent_seq: 0,
            bytes: 0,
            mistakes: Mistakes::default(),
        }
    }

    pub(super) fn with_mistakes(self, mistakes: Mistakes) -> Self {
        Self { mistakes, ..self }
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Of these, bytes that failed and wait for [`retry`](Self::retry).
    pub(super) fn failed_bytes(&self) -> u64 {
        let failed = self.failed.iter().filter_map(|chunk| self.pending.get(chunk));
        failed.map(|pending| pending.bytes).sum()
    }

    /// Takes a write. Returns how many older bytes it has replaced.
    pub(super) fn insert(&mut self, offset: u64, data: &Bytes, now: Instant) -> u64 {
        let mut replaced = 0;
        let (mut at, mut rest) = (offset, data.clone());
        while !rest.is_empty() {
            let chunk = at / self.chunk_bytes;
            let len = ((chunk + 1) * self.chunk_bytes - at).min(rest.len() as u64);
            let piece = Piece { data: rest.split_to(len as usize), pinned: data.len() };
            let piece = piece.part(0..len as usize);
            replaced += self.insert_piece(chunk, at, piece, now);
            at += len;
        }
        self.bytes += data.len() as u64 - replaced;
        replaced
    }

    fn insert_piece(&mut self, chunk: u64, at: u64, piece: Piece, now: Instant) -> u64 {
        let next_seq = &mut self.next_seq;
        let order = &mut self.order;
        let pending = self.pending.entry(chunk).or_insert_with(|| {
            let seq = *next_seq;
            *next_seq += 1;
            order.insert(seq, chunk);
            Pending { pieces: BTreeMap::new(), bytes: 0, seq, born: now }
        });
        let len = piece.data.len() as u64;
        let replaced = cut(&mut pending.pieces, at..at + len);
        if self.mistakes.has(Sabotage::LoseTail)
            && let Some(tail) = pending.pieces.get_mut(&(at + len))
        {
            tail.data = Bytes::from(vec![0; tail.data.len()]);
        }
        pending.pieces.insert(at, piece);
        pending.bytes += len - replaced;
        if pending.bytes == self.chunk_bytes && !self.failed.contains(&chunk) {
            self.full.insert(chunk);
        }
        replaced
    }

    /// The next chunk to write, if one is ready; it counts as being written. A chunk waits that is
    /// `held`, by its number and the sequence number of its data.
    pub(super) fn take(
        &mut self,
        ready: Readiness,
        held: impl Fn(u64, u64) -> bool,
    ) -> Option<Job> {
        let free = |chunk: &u64| {
            let seq = self.pending.get(chunk).map_or(0, |pending| pending.seq);
            let under_way = self.flights.contains_key(chunk);
            (!under_way || self.mistakes.has(Sabotage::TwoFlights)) && !held(*chunk, seq)
        };
        let due = |chunk: &u64, seq: u64| {
            let born = self.pending.get(chunk).map_or(ready.now, |pending| pending.born);
            ready.pressure || seq <= self.urgent_seq || born + ready.delay <= ready.now
        };
        let aged = self.order.iter().take_while(|(seq, chunk)| due(chunk, **seq));
        let chunk = aged
            .map(|(_, chunk)| *chunk)
            .find(&free)
            .or_else(|| self.full.iter().copied().find(&free))?;
        let pending = self.pending.remove(&chunk)?;
        self.order.remove(&pending.seq);
        self.full.remove(&chunk);
        let runs = runs(&pending.pieces);
        let Pending { pieces, bytes, seq, .. } = pending;
        self.flights.insert(chunk, Flight { pieces, bytes, seq });
        Some(Job { chunk, runs })
    }

    /// The chunk is written. Returns the bytes set free.
    pub(super) fn written(&mut self, chunk: u64) -> u64 {
        let freed = self.flights.remove(&chunk).map_or(0, |flight| flight.bytes);
        self.bytes -= freed;
        freed
    }

    /// The chunk could not be written: its data waits again, below what is newer, until
    /// [`retry`](Self::retry). Returns the bytes set free, those that were replaced meanwhile.
    pub(super) fn failed(&mut self, chunk: u64) -> u64 {
        let Some(flight) = self.flights.remove(&chunk) else { return 0 };
        if self.mistakes.has(Sabotage::ForgetFailedData) {
            self.bytes -= flight.bytes;
            return flight.bytes;
        }
        let newer = self.pending.remove(&chunk);
        self.full.remove(&chunk);
        let born = newer.as_ref().map_or_else(Instant::now, |newer| newer.born);
        let mut merged =
            Pending { pieces: flight.pieces, bytes: flight.bytes, seq: flight.seq, born };
        let mut freed = 0;
        if let Some(newer) = newer {
            self.order.remove(&newer.seq);
            for (at, piece) in newer.pieces {
                let len = piece.data.len() as u64;
                if self.mistakes.has(Sabotage::OldOverNew) && merged.pieces.contains_key(&at) {
                    freed += len;
                    continue;
                }
                let replaced = cut(&mut merged.pieces, at..at + len);
                merged.pieces.insert(at, piece);
                merged.bytes += len - replaced;
                freed += replaced;
            }
        }
        self.pending.insert(chunk, merged);
        self.failed.insert(chunk);
        self.bytes -= freed;
        freed
    }

    /// Chunks that could not be written.
    pub(super) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// What could not be written may be tried again.
    pub(super) fn retry(&mut self) {
        for chunk in std::mem::take(&mut self.failed) {
            if let Some(pending) = self.pending.get(&chunk) {
                self.order.insert(pending.seq, chunk);
            }
        }
    }

    /// Everything so far is to go out now. Returns what [`is_out`](Self::is_out) takes.
    pub(super) fn urge(&mut self) -> u64 {
        self.urgent_seq = self.last_seq();
        self.urgent_seq
    }

    /// The newest chunk's sequence number.
    pub(super) fn last_seq(&self) -> u64 {
        self.next_seq - 1
    }

    /// Everything up to `seq` has been written or has failed.
    pub(super) fn is_out(&self, seq: u64) -> bool {
        let sent = self.order.first_key_value().is_none_or(|(first, _)| *first > seq);
        let written = self.flights.values().all(|flight| flight.seq > seq);
        (sent || self.mistakes.has(Sabotage::FlushIgnoresPending))
            && (written || self.mistakes.has(Sabotage::FlushIgnoresFlights))
    }

    /// Data of `range` up to `seq` waits, or any is being written.
    pub(super) fn overlaps(&self, range: &Range<u64>, seq: u64) -> bool {
        let chunks = self.chunks(range);
        let waits = self.pending.range(chunks.clone()).any(|(_, pending)| pending.seq <= seq);
        let under_way = self.flights.range(chunks).next().is_some();
        (waits && !self.mistakes.has(Sabotage::OvertakePending))
            || (under_way && !self.mistakes.has(Sabotage::OvertakeFlights))
    }

    /// As [`overlaps`](Self::overlaps), leaving out what has failed and waits for
    /// [`retry`](Self::retry).
    pub(super) fn overlaps_unfailed(&self, range: &Range<u64>, seq: u64) -> bool {
        let chunks = self.chunks(range);
        if self.failed.range(chunks.clone()).next().is_none() {
            return self.overlaps(range, seq);
        }
        let waits =
            |(chunk, waits): (&u64, &Pending)| waits.seq <= seq && !self.failed.contains(chunk);
        self.pending.range(chunks.clone()).any(waits) || self.flights.range(chunks).next().is_some()
    }

    /// Drops the data of `range` that wait in chunks up to `seq`: something else is on the device
    /// now. Returns the bytes set free.
    pub(super) fn discard(&mut self, range: &Range<u64>, seq: u64) -> u64 {
        let mut freed = 0;
        let waiting = self.pending.range(self.chunks(range)).filter(|(_, waits)| waits.seq <= seq);
        let chunks: Vec<u64> = waiting.map(|(chunk, _)| *chunk).collect();
        for chunk in chunks {
            let Some(pending) = self.pending.get_mut(&chunk) else { continue };
            let cut = cut(&mut pending.pieces, range.clone());
            pending.bytes -= cut;
            freed += cut;
            if cut > 0 {
                self.full.remove(&chunk);
            }
            if pending.bytes == 0 {
                self.order.remove(&pending.seq);
                self.failed.remove(&chunk);
                self.pending.remove(&chunk);
            }
        }
        self.bytes -= freed;
        freed
    }

    /// Data of `range`, older before newer.
    pub(super) fn overlay(&self, range: &Range<u64>) -> Vec<(u64, Bytes)> {
        let mut found = Vec::new();
        if self.bytes == 0 {
            return found;
        }
        let flights = self.flights.range(self.chunks(range)).map(|(_, flight)| &flight.pieces);
        let pending = self.pending.range(self.chunks(range)).map(|(_, waits)| &waits.pieces);
        for (at, piece) in flights.chain(pending).flatten() {
            let (start, end) = (range.start.max(*at), range.end.min(at + piece.data.len() as u64));
            if start < end {
                found.push((start, piece.data.slice((start - at) as usize..(end - at) as usize)));
            }
        }
        found
    }

    /// When the oldest chunk has waited for `delay`.
    pub(super) fn next_due(&self, delay: Duration) -> Option<Instant> {
        let (_, chunk) = self.order.first_key_value()?;
        self.pending.get(chunk).map(|pending| pending.born + delay)
    }

    fn chunks(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.chunk_bytes..range.end.div_ceil(self.chunk_bytes)
    }
}

/// Removes `range` from the pieces; returns the bytes removed.
fn cut(pieces: &mut Pieces, range: Range<u64>) -> u64 {
    let before = pieces.range(..range.start).next_back().map(|(at, _)| *at);
    let inside = pieces.range(range.clone()).map(|(at, _)| *at);
    let touched: Vec<u64> = before.into_iter().chain(inside).collect();
    let mut removed = 0;
    for at in touched {
        let end = at + pieces.get(&at).map_or(0, |piece| piece.data.len() as u64);
        if end <= range.start {
            continue;
        }
        let Some(piece) = pieces.remove(&at) else { continue };
        removed += end.min(range.end) - at.max(range.start);
        if at < range.start {
            pieces.insert(at, piece.part(0..(range.start - at) as usize));
        }
        if end > range.end {
            let tail = (range.end - at) as usize..piece.data.len();
            pieces.insert(range.end, piece.part(tail));
        }
    }
    removed
}

/// Joins adjacent pieces.
fn runs(pieces: &Pieces) -> Vec<(u64, Vec<Bytes>)> {
    let mut runs: Vec<(u64, Vec<Bytes>)> = Vec::new();
    let mut end = None;
    for (at, piece) in pieces {
        match runs.last_mut() {
            Some((_, run)) if end == Some(*at) => run.push(piece.data.clone()),
            _ => runs.push((*at, vec![piece.data.clone()])),
        }
        end = Some(at + piece.data.len() as u64);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 64 << 10;

    fn data(len: u64, fill: u8) -> Bytes {
        Bytes::from(vec![fill; len as usize])
    }

    fn ready(pressure: bool) -> Readiness {
        Readiness { now: Instant::now(), delay: Duration::from_secs(3600), pressure }
    }

    fn content(dirty: &Dirty, len: u64) -> Vec<u8> {
        let mut content = vec![0; len as usize];
        for (at, data) in dirty.overlay(&(0..len)) {
            content[at as usize..at as usize + data.len()].copy_from_slice(&data);
        }
        content
    }

    #[test]
    fn small_writes_go_out_as_one_and_only_when_the_chunk_is_full() {
        let mut dirty = Dirty::new(CHUNK);
        for block in 0..16 {
            assert!(dirty.take(ready(false), |_, _| false).is_none());
            dirty.insert(block * 4096, &data(4096, block as u8), Instant::now());
        }
        let job = dirty.take(ready(false), |_, _| false).unwrap();
        assert_eq!((job.chunk, job.runs.len(), job.runs[0].1.len()), (0, 1, 16));
        assert_eq!(dirty.bytes(), CHUNK);
        assert_eq!(dirty.written(0), CHUNK);
        assert_eq!(dirty.bytes(), 0);
    }

    #[test]
    fn an_overlapping_write_waits_for_the_one_under_way() {
        let mut dirty = Dirty::new(CHUNK);
        dirty.insert(0, &data(8192, 1), Instant::now());
        dirty.take(ready(true), |_, _| false).unwrap();
        dirty.insert(4096, &data(8192, 2), Instant::now());
        assert!(dirty.take(ready(true), |_, _| false).is_none());
        let seen = content(&dirty, 16384);
        assert!(seen[..4096].iter().all(|b| *b == 1) && seen[4096..12288].iter().all(|b| *b == 2));
        dirty.written(0);
        assert!(dirty.take(ready(true), |chunk, _| chunk == 0).is_none(), "held");
        assert!(dirty.take(ready(true), |_, _| false).is_some());
    }

    #[test]
    fn what_failed_waits_below_what_is_newer_until_retried() {
        let mut dirty = Dirty::new(CHUNK);
        dirty.insert(0, &data(8192, 1), Instant::now());
        dirty.take(ready(true), |_, _| false).unwrap();
        dirty.insert(4096, &data(4096, 2), Instant::now());
        assert_eq!(dirty.failed(0), 4096);
        assert_eq!(dirty.bytes(), 8192);
        assert!(dirty.has_failed() && dirty.take(ready(true), |_, _| false).is_none());
        let seen = content(&dirty, 8192);
        assert!(seen[..4096].iter().all(|b| *b == 1) && seen[4096..].iter().all(|b| *b == 2));
        let seq = dirty.urge();
        dirty.retry();
        assert!(!dirty.is_out(seq));
        dirty.take(ready(false), |_, _| false).unwrap();
        dirty.written(0);
        assert!(dirty.is_out(seq) && dirty.bytes() == 0);
    }

    #[test]
    fn a_small_rest_of_a_large_write_does_not_keep_it_in_memory() {
        let mut dirty = Dirty::new(CHUNK);
        dirty.insert(0, &data(CHUNK, 1), Instant::now());
        dirty.insert(0, &data(CHUNK - 4096, 2), Instant::now());
        let rest = &dirty.pending[&0].pieces[&(CHUNK - 4096)];
        assert_eq!((rest.pinned, rest.data.len()), (4096, 4096));
        assert_eq!(dirty.bytes(), CHUNK);
    }

    proptest::proptest! {
        #[test]
        fn any_writes_read_back(writes in proptest::collection::vec((0u64..500, 1u64..200, 0u8..5), 1..80)) {
            let mut dirty = Dirty::new(CHUNK);
            let mut model = vec![0u8; 512 * 1024];
            for (step, (block, blocks, event)) in writes.into_iter().enumerate() {
                let (offset, len) = (block * 512, blocks * 512);
                let fill = step as u8 + 1;
                model[offset as usize..(offset + len) as usize].fill(fill);
                dirty.insert(offset, &data(len, fill), Instant::now());
                if event == 0 && let Some(job) = dirty.take(ready(true), |_, _| false) {
                    dirty.failed(job.chunk);
                    dirty.retry();
                }
                assert_eq!(content(&dirty, model.len() as u64), model);
                let held: u64 = dirty.pending.values().map(|p| p.bytes).sum();
                assert_eq!(held, dirty.bytes());
                let pieces = dirty.pending.values().flat_map(|p| p.pieces.values());
                assert_eq!(pieces.map(|p| p.data.len() as u64).sum::<u64>(), held);
            }
        }
    }
}
