//! One direction at work: reads one TUN device, asks the [`Link`] about each segment, keeps what
//! survived in a [`PacketLog`], writes what is due to the other device. Never waits.

use std::io;
use std::sync::Arc;

use tracing::debug;

use crate::config::DirectionConfig;
use crate::gso::{Train, VNET_HDR_LEN};
use crate::link::{Counters, Fate, Link};
use crate::packet_log::PacketLog;
use crate::tun::Tun;

/// The longest frame: IPv6 counts its 40 bytes of header apart from the 65,535 of payload.
const FRAME_BYTES_MAX: usize = VNET_HDR_LEN + 40 + 65_535;

/// Packets moved before the other direction has its turn.
const BATCH: usize = 64;

/// A super-packet arrives with its last segment. Where the line is so slow that this would be
/// later than this after its first, it is cut, so that the receiver sees a stream and not lumps.
const TRAIN_NS_MAX: u64 = 1_000_000;

/// One direction of the emulator.
#[derive(Debug)]
pub(crate) struct Direction {
    from: Arc<Tun>,
    to: Arc<Tun>,
    link: Link,
    log: PacketLog,
    /// Used again for each super-packet that is cut.
    pieces: Pieces,
    /// Packets that the receiving device refused, because it was down for example.
    undeliverable: u64,
}

impl Direction {
    pub(crate) fn new(from: Arc<Tun>, to: Arc<Tun>, config: &DirectionConfig) -> Self {
        Self {
            from,
            to,
            link: Link::new(config),
            log: PacketLog::new(FRAME_BYTES_MAX),
            pieces: Pieces::default(),
            undeliverable: 0,
        }
    }

    /// Takes what the sending device has, up to a batch; how many packets that were.
    pub(crate) fn receive(&mut self, now_ns: impl Fn() -> u64) -> io::Result<usize> {
        for received in 0..BATCH {
            let Some(len) = self.from.receive(self.log.space())? else {
                return Ok(received);
            };
            self.admit(now_ns(), len);
        }
        Ok(BATCH)
    }

    /// Hands over what is due, up to a batch; how many packets that were.
    pub(crate) fn deliver(&mut self, now_ns: u64) -> usize {
        for delivered in 0..BATCH {
            let Some(packet) = self.log.due(now_ns) else {
                return delivered;
            };
            if let Err(error) = self.to.send(packet) {
                self.undeliverable += 1;
                debug!(%error, bytes = packet.len(), "packet not taken");
            }
            self.log.pop();
        }
        BATCH
    }

    /// When [`Direction::deliver`] has something to do.
    pub(crate) fn next_delivery_ns(&self) -> Option<u64> {
        self.log.next_delivery_ns()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.link.counters()
    }

    pub(crate) fn undeliverable(&self) -> u64 {
        self.undeliverable
    }

    /// Decides about the frame of `len` bytes that lies at the end of the log.
    fn admit(&mut self, now_ns: u64, len: usize) {
        let frame = &self.log.space()[..len];
        let Some(train) = Train::read(frame) else {
            let ip_bytes = len.saturating_sub(VNET_HDR_LEN) as u32;
            if let Fate::Delivered { at_ns } = self.link.enqueue(now_ns, ip_bytes) {
                self.log.commit(len, at_ns);
            }
            return;
        };
        self.pieces.choose(&train, &mut self.link, now_ns);
        match self.pieces.runs.as_slice() {
            [] => {}
            [run] if run.segments.len() == train.segments() => self.log.commit(len, run.at_ns),
            _ => {
                self.pieces.frame.clear();
                self.pieces.frame.extend_from_slice(frame);
                for run in &self.pieces.runs {
                    let piece = &mut self.pieces.piece;
                    train.write_piece(&self.pieces.frame, run.segments.clone(), piece);
                    self.log.append(piece, run.at_ns);
                }
            }
        }
    }
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
    at_ns: u64,
}

impl Pieces {
    fn choose(&mut self, train: &Train, link: &mut Link, now_ns: u64) {
        self.runs.clear();
        for segment in 0..train.segments() {
            let Fate::Delivered { at_ns } = link.enqueue(now_ns, train.ip_bytes(segment)) else {
                continue;
            };
            match self.runs.last_mut() {
                Some(run)
                    if run.segments.end == segment && at_ns - run.first_at_ns <= TRAIN_NS_MAX =>
                {
                    run.segments.end = segment + 1;
                    run.at_ns = at_ns;
                }
                _ => self.runs.push(Run {
                    segments: segment..segment + 1,
                    first_at_ns: at_ns,
                    at_ns,
                }),
            }
        }
    }
}
