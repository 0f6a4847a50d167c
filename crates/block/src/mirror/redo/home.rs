//! [`Places`]: where in the redo log what a batch brings home is, so that the leg can copy it there
//! by itself; and the [`Request`]s in which it does.
//!
//! Pure, and known to whoever has written the batch. Not here: copies that fail, and what of the
//! log is read ([`replay`](super::replay)), which also checks it.

use std::ops::Range;

use super::super::BLOCK_BYTES;
use super::super::epoch::Piece;
use super::super::epoch::range_map::{Cut, RangeMap};
use super::super::link::{CopyLimits, CopyRun};
use super::record::places_of;

/// Ranges that are remembered at most, some 64 bytes each: scattered blocks of 4 GiB.
const RANGES_MAX: usize = 1 << 20;

/// What a request costs at most, in bytes: a fraction of a second for a disk. Each run takes a
/// disk's arm to two places, which is worth so many bytes.
const REQUEST_COST_MAX: u64 = 4 << 20;
const RUN_COST_MIN: u64 = 32 << 10;

/// Where a range's content comes from: the first byte in the leg, or zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source(Option<u64>);

impl Cut for Source {
    fn part(&self, at: u64, _: u64) -> Self {
        Self(self.0.map(|from| from + at))
    }
}

/// What a batch brings home, a later piece over an earlier one.
#[derive(Debug, Default)]
pub(crate) struct Places(RangeMap<Source>);

impl Places {
    /// A record of these pieces stands at byte `at` of the leg. False: that is more than can be
    /// remembered.
    pub(crate) fn note(&mut self, at: u64, pieces: &[Piece]) -> bool {
        for (piece, place) in pieces.iter().zip(places_of(pieces)) {
            self.0.insert(piece.range(), Source(place.map(|place| at + place)));
        }
        self.0.len() <= RANGES_MAX
    }

    /// What is copied, and the ranges that are zeroes. None overlaps with another.
    pub(crate) fn into_runs(self) -> (Vec<CopyRun>, Vec<Range<u64>>) {
        let (mut runs, mut zeroes) = (Vec::<CopyRun>::new(), Vec::new());
        for (range, source) in self.0.iter() {
            let Some(from) = source.0 else {
                zeroes.push(range);
                continue;
            };
            let len = range.end - range.start;
            match runs.last_mut() {
                Some(last) if (last.from + last.len, last.to + last.len) == (from, range.start) => {
                    last.len += len;
                }
                _ => runs.push(CopyRun { from, to: range.start, len }),
            }
        }
        (runs, zeroes)
    }
}

/// What is asked for at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) runs: Vec<CopyRun>,
    /// What it costs the leg, in bytes.
    pub(crate) cost: u64,
}

/// Runs as requests that the leg takes.
pub(crate) fn requests(runs: &[CopyRun], limits: CopyLimits) -> Vec<Request> {
    let step = limits.run_bytes_max.min(REQUEST_COST_MAX);
    // Whole blocks of whatever size the leg has, where it takes as much.
    let step = if step >= BLOCK_BYTES { step / BLOCK_BYTES * BLOCK_BYTES } else { step };
    let (mut requests, mut request) = (Vec::new(), Request::default());
    for run in runs {
        let mut done = 0;
        while done < run.len {
            let len = step.min(run.len - done);
            let cost = len.max(RUN_COST_MIN);
            let is_full =
                request.runs.len() >= limits.runs_max || request.cost + cost > REQUEST_COST_MAX;
            if is_full && !request.runs.is_empty() {
                requests.push(std::mem::take(&mut request));
            }
            request.runs.push(CopyRun { from: run.from + done, to: run.to + done, len });
            request.cost += cost;
            done += len;
        }
    }
    if !request.runs.is_empty() {
        requests.push(request);
    }
    requests
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::super::super::epoch::Content;
    use super::super::super::superblock::MirrorId;
    use super::super::{Gather, Writer};
    use super::*;

    const IMAGE: usize = 1 << 16;

    /// A device with an image and a log behind it, and a batch in that.
    fn written(pieces: &[Piece]) -> (Vec<u8>, Places) {
        let mut device = vec![0; IMAGE];
        let (mut writer, mut gather) = (Writer::new(MirrorId(1), 2, 1 << 30), Gather::default());
        let mut places = Places::default();
        let mut records: Vec<_> =
            pieces.iter().filter_map(|piece| gather.add(piece.clone())).collect();
        records.push(gather.take());
        for record in records.iter().filter(|record| !record.is_empty()) {
            let (at, bytes) = writer.record(record).unwrap();
            assert_eq!(IMAGE as u64 + at, device.len() as u64);
            assert!(places.note(IMAGE as u64 + at, record));
            device.extend_from_slice(&bytes);
        }
        (device, places)
    }

    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        let piece = (0u64..120, 1u64..9, any::<bool>(), any::<u8>()).prop_map(
            |(block, blocks, zero, byte)| {
                let (offset, len) = (block * 512, blocks * 512);
                let data = (0..len).map(|at| byte ^ (at / 512) as u8).collect::<Vec<_>>();
                let content = if zero { Content::Zero(len) } else { Content::Data(data.into()) };
                Piece { offset, content }
            },
        );
        prop::collection::vec(piece, 0..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// In whatever order the requests are carried out, it is what the pieces one after the
        /// other give.
        #[test]
        fn what_is_copied_is_what_replaying_writes(
            pieces in pieces(),
            runs_max in 1usize..6,
            blocks in 1u64..20,
        ) {
            let (mut device, places) = written(&pieces);
            let mut expected = vec![0; IMAGE];
            for piece in &pieces {
                let range = piece.offset as usize..piece.range().end as usize;
                match &piece.content {
                    Content::Data(data) => expected[range].copy_from_slice(data),
                    Content::Zero(_) => expected[range].fill(0),
                }
            }
            let (runs, zeroes) = places.into_runs();
            let limits = CopyLimits { runs_max, run_bytes_max: blocks * 512, at_once: 1 };
            for request in requests(&runs, limits).into_iter().rev() {
                prop_assert!((1..=runs_max).contains(&request.runs.len()));
                for CopyRun { from, to, len } in request.runs.into_iter().rev() {
                    prop_assert!(len > 0 && len <= blocks * 512 && (from | to | len) % 512 == 0);
                    device.copy_within(from as usize..(from + len) as usize, to as usize);
                }
            }
            for range in zeroes {
                device[range.start as usize..range.end as usize].fill(0);
            }
            prop_assert!(device[..IMAGE] == expected);
        }
    }

    #[test]
    fn rows_are_one_run_and_requests_are_small() {
        let piece = |block: u64| {
            let content = Content::Data(Bytes::from(vec![block as u8; 4096]));
            Piece { offset: block * 4096, content }
        };
        let (_, places) = written(&[piece(3), piece(4), piece(5), piece(9), piece(5)]);
        let (runs, zeroes) = places.into_runs();
        let log = IMAGE as u64 + 4096;
        let run = |place: u64, to: u64, blocks: u64| CopyRun {
            from: log + place * 4096,
            to: to * 4096,
            len: blocks * 4096,
        };
        // The later one of block 5 counts.
        assert_eq!((runs, zeroes), (vec![run(0, 3, 2), run(4, 5, 1), run(3, 9, 1)], vec![]));
        let limits = CopyLimits { runs_max: 1000, run_bytes_max: 10_000, at_once: 1 };
        let cut = requests(&[run(0, 0, 5)], limits);
        let lens: Vec<u64> = cut[0].runs.iter().map(|run| run.len).collect();
        assert_eq!((cut.len(), lens), (1, vec![8192, 8192, 4096]));
        let many: Vec<_> = (0..300).map(|n| run(n, 2 * n, 1)).collect();
        let counts: Vec<_> =
            requests(&many, limits).iter().map(|request| request.runs.len()).collect();
        assert_eq!(counts, [128, 128, 44]);
        let long = CopyLimits { run_bytes_max: 1 << 30, ..limits };
        assert_eq!(requests(&[run(0, 0, 4096)], long).len(), 4);
    }
}
