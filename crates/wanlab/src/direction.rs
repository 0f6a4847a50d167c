//! One line at work: asks the [`Link`] about each segment of a packet, keeps what survived in a
//! [`PacketLog`], says what is due. Never waits; where packets come from and go to is its owner's
//! business.

use std::io;

use crate::capture::Recorder;
use crate::config::DirectionConfig;
use crate::gso::{Train, VNET_HDR_LEN};
use crate::link::{Counters, Fate, Link};
use crate::packet_log::{PacketLog, Times};
use crate::tun::Tun;

/// The longest frame: IPv6 counts its 40 bytes of header apart from the 65,535 of payload.
const FRAME_BYTES_MAX: usize = VNET_HDR_LEN + 40 + 65_535;

/// Packets moved before another direction has its turn.
pub(crate) const BATCH: usize = 64;

/// A super-packet arrives with its last segment. Where the line is so slow that this would be
/// later than this after its first, it is cut, so that the receiver sees a stream and not lumps.
const TRAIN_NS_MAX: u64 = 1_000_000;

/// One direction of the emulator.
#[derive(Debug)]
pub(crate) struct Direction {
    /// Its number in a capture.
    number: usize,
    link: Link,
    log: PacketLog,
    /// Used again for each super-packet that is cut.
    pieces: Pieces,
}

impl Direction {
    pub(crate) fn new(number: usize, config: &DirectionConfig) -> Self {
        Self {
            number,
            link: Link::new(config),
            log: PacketLog::new(FRAME_BYTES_MAX),
            pieces: Pieces::default(),
        }
    }

    /// Makes this another line from now on.
    pub(crate) fn set(&mut self, now_ns: u64, config: &DirectionConfig) {
        if let Some(retiming) = self.link.set(now_ns, config) {
            let last_at_ns = self.log.retime(retiming);
            self.link.deliveries_moved(last_at_ns);
        }
    }

    /// Takes what the sending device has, up to a batch; how many packets that were.
    pub(crate) fn receive(
        &mut self,
        from: &Tun,
        now_ns: impl Fn() -> u64,
        recorder: &mut Option<Recorder>,
    ) -> io::Result<usize> {
        for received in 0..BATCH {
            let Some(len) = from.receive(self.log.space())? else {
                return Ok(received);
            };
            self.admit(now_ns(), len, recorder);
        }
        Ok(BATCH)
    }

    /// Takes a frame from another line.
    pub(crate) fn take(&mut self, now_ns: u64, frame: &[u8], recorder: &mut Option<Recorder>) {
        // What came out of a line is no longer than what fits into one.
        if let Some(space) = self.log.space().get_mut(..frame.len()) {
            space.copy_from_slice(frame);
            self.admit(now_ns, frame.len(), recorder);
        }
    }

    /// The next frame, if it is due.
    pub(crate) fn due(&self, now_ns: u64) -> Option<&[u8]> {
        self.log.due(now_ns)
    }

    /// Forgets that frame.
    pub(crate) fn pop(&mut self) {
        self.log.pop();
    }

    /// When [`Direction::due`] has something to give.
    pub(crate) fn next_delivery_ns(&self) -> Option<u64> {
        self.log.next_delivery_ns()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.link.counters()
    }

    /// Decides about the frame of `len` bytes that lies at the end of the log.
    fn admit(&mut self, now_ns: u64, len: usize, recorder: &mut Option<Recorder>) {
        let frame = &self.log.space()[..len];
        let Some(train) = Train::read(frame) else {
            let ip = frame.get(VNET_HDR_LEN..).unwrap_or_default();
            let fate = self.link.enqueue(now_ns, ip.len() as u32);
            if let Some(recorder) = recorder {
                recorder.record(self.number, now_ns, ip, fate);
            }
            if let Fate::Delivered { at_ns, departs_ns } = fate {
                self.log.commit(len, Times { departs_ns, at_ns });
            }
            return;
        };
        let scribe =
            recorder.as_mut().map(|recorder| Scribe { recorder, number: self.number, frame });
        self.pieces.choose(&train, &mut self.link, now_ns, scribe);
        match self.pieces.runs.as_slice() {
            [] => {}
            [run] if run.segments.len() == train.segments() => self.log.commit(len, run.times),
            _ => {
                self.pieces.frame.clear();
                self.pieces.frame.extend_from_slice(frame);
                for run in &self.pieces.runs {
                    let piece = &mut self.pieces.piece;
                    train.write_piece(&self.pieces.frame, run.segments.clone(), piece);
                    self.log.append(piece, run.times);
                }
            }
        }
    }
}

/// Writes the segments of a super-packet into the capture.
struct Scribe<'a> {
    recorder: &'a mut Recorder,
    number: usize,
    frame: &'a [u8],
}

/// Which segments of a super-packet travel together.
#[derive(Debug, Default)]
struct Pieces {
    runs: Vec<Run>,
    frame: Vec<u8>,
    piece: Vec<u8>,
}

/// Neighbouring segments that arrive together, with the last of them.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    segments: std::ops::Range<usize>,
    first_at_ns: u64,
    /// Of the last one.
    times: Times,
}

impl Run {
    /// Whether this segment comes next and in time to travel along; a segment that overtakes the
    /// last one does not.
    fn takes(&self, segment: usize, at_ns: u64) -> bool {
        self.segments.end == segment
            && at_ns >= self.times.at_ns
            && at_ns - self.first_at_ns <= TRAIN_NS_MAX
    }
}

impl Pieces {
    fn choose(
        &mut self,
        train: &Train,
        link: &mut Link,
        now_ns: u64,
        mut scribe: Option<Scribe<'_>>,
    ) {
        self.runs.clear();
        for segment in 0..train.segments() {
            let fate = link.enqueue(now_ns, train.ip_bytes(segment));
            if let Some(scribe) = &mut scribe {
                train.write_piece(scribe.frame, segment..segment + 1, &mut self.piece);
                let ip = &self.piece[VNET_HDR_LEN..];
                scribe.recorder.record(scribe.number, now_ns, ip, fate);
            }
            let Fate::Delivered { at_ns, departs_ns } = fate else {
                continue;
            };
            let times = Times { departs_ns, at_ns };
            match self.runs.last_mut() {
                Some(run) if run.takes(segment, at_ns) => {
                    run.segments.end = segment + 1;
                    run.times = times;
                }
                _ => self.runs.push(Run {
                    segments: segment..segment + 1,
                    first_at_ns: at_ns,
                    times,
                }),
            }
        }
    }
}
