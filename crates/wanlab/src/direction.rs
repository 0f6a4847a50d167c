//! One line at work: asks the [`Link`] about each segment of a packet, keeps what survived in a
//! [`PacketLog`], with classes in one for each until it leaves, says what is due. Never waits;
//! where packets come from and go to is its owner's business.

use std::collections::VecDeque;
use std::io;

use crate::capture::Recorder;
use crate::config::DirectionConfig;
use crate::counters::Counters;
use crate::gso::{Train, VNET_HDR_LEN};
use crate::ip::{set_congestion_experienced, traffic_class};
use crate::link::{Fate, Link, Segment};
use crate::packet_log::{PacketLog, Times};

/// The longest frame: IPv6 counts its 40 bytes of header apart from the 65,535 of payload.
const FRAME_BYTES_MAX: usize = VNET_HDR_LEN + 40 + 65_535;

/// Packets moved before another direction has its turn.
pub(crate) const BATCH: usize = 64;

/// A super-packet arrives with its last segment. Where the line, or the part of it that a class has
/// in any case, is so slow that this would be later than this after its first, it is cut, so that
/// the receiver sees a stream and not lumps.
const TRAIN_NS_MAX: u64 = 1_000_000;

/// Packets that wait in a class.
#[derive(Debug)]
struct ClassLog {
    packets: PacketLog,
    /// How many segments of each have not left yet.
    segments: VecDeque<usize>,
}

impl ClassLog {
    fn push(&mut self, packet: &[u8], segments: usize) {
        self.packets.append(packet, Times { departs_ns: 0, at_ns: 0 });
        self.segments.push_back(segments);
    }
}

/// One direction of the emulator.
#[derive(Debug)]
pub(crate) struct Direction {
    /// Its number in a capture.
    number: usize,
    link: Link,
    /// What has left or is being sent, and what leaves at a known time.
    log: PacketLog,
    /// What waits in each class.
    classes: Vec<ClassLog>,
    /// Where a packet is read to on a line with classes.
    arrived: Box<[u8]>,
    /// Used again for each super-packet that is cut.
    pieces: Pieces,
}

impl Direction {
    pub(crate) fn new(number: usize, config: &DirectionConfig) -> Self {
        Self {
            number,
            link: Link::new(config),
            log: PacketLog::new(FRAME_BYTES_MAX),
            classes: Vec::new(),
            arrived: vec![0; FRAME_BYTES_MAX].into(),
            pieces: Pieces::default(),
        }
    }

    /// Makes this another line from now on.
    pub(crate) fn set(&mut self, now_ns: u64, config: &DirectionConfig) {
        self.advance(if self.link.changes_classes(config) { u64::MAX } else { now_ns });
        if let Some(retiming) = self.link.set(now_ns, config) {
            let last_at_ns = self.log.retime(retiming);
            self.link.deliveries_moved(last_at_ns);
        }
    }

    /// Takes what the sending device has, up to a batch; how many packets that were. `read` reads
    /// the next one, if there is one.
    ///
    /// The clock is read after the packet, which has come by then. The other way round it would
    /// leave too soon where this thread loses its processor in between.
    pub(crate) fn receive(
        &mut self,
        read: impl Fn(&mut [u8]) -> io::Result<Option<usize>>,
        now_ns: impl Fn() -> u64,
        recorder: &mut Option<Recorder>,
    ) -> io::Result<usize> {
        for received in 0..BATCH {
            let done = if self.link.has_classes() {
                // What leaves its class by now comes into the log first.
                self.receive_aside(&read, &now_ns, recorder)?
            } else {
                let len = read(self.log.space())?;
                len.map(|len| self.admit(now_ns(), len, recorder))
            };
            if done.is_none() {
                return Ok(received);
            }
        }
        Ok(BATCH)
    }

    fn receive_aside(
        &mut self,
        read: impl Fn(&mut [u8]) -> io::Result<Option<usize>>,
        now_ns: impl Fn() -> u64,
        recorder: &mut Option<Recorder>,
    ) -> io::Result<Option<()>> {
        let mut frame = std::mem::take(&mut self.arrived);
        let read = read(&mut frame);
        if let Ok(Some(len)) = read {
            self.take(now_ns(), &frame[..len], recorder);
        }
        self.arrived = frame;
        Ok(read?.map(|_| ()))
    }

    /// Takes a frame from another line.
    pub(crate) fn take(&mut self, now_ns: u64, frame: &[u8], recorder: &mut Option<Recorder>) {
        self.advance(now_ns);
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

    /// When [`Direction::due`] has something to give at the soonest.
    pub(crate) fn next_delivery_ns(&self) -> Option<u64> {
        let waiting = self
            .classes
            .iter()
            .enumerate()
            .filter_map(|(class, log)| self.link.soonest_ns(class, *log.segments.front()?));
        self.log.next_delivery_ns().into_iter().chain(waiting).min()
    }

    /// Lets leave what leaves its class by now.
    pub(crate) fn advance(&mut self, now_ns: u64) {
        while let Some(departure) = self.link.departure(now_ns) {
            let Some(at_ns) = departure.at_ns else {
                continue;
            };
            let class = &mut self.classes[departure.class];
            let left = class.segments.front_mut().map(|left| {
                *left = left.saturating_sub(1);
                *left
            });
            if left == Some(0)
                && let Some(packet) = class.packets.due(0)
            {
                self.log.append(packet, Times { departs_ns: departure.departs_ns, at_ns });
                class.packets.pop();
                class.segments.pop_front();
            }
        }
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.link.counters()
    }

    /// Brings what waits up to date.
    pub(crate) fn note_queue(&mut self, now_ns: u64) {
        self.link.note_queue(now_ns);
    }

    /// Decides about the frame of `len` bytes that lies at the end of the log, and must not be
    /// overwritten by what leaves before it: [`Direction::advance`] was called for this time.
    fn admit(&mut self, now_ns: u64, len: usize, recorder: &mut Option<Recorder>) {
        let frame = &self.log.space()[..len];
        let Some(train) = Train::read(frame) else {
            let ip = frame.get(VNET_HDR_LEN..).unwrap_or_default();
            let traffic_class = traffic_class(frame);
            let fate =
                self.link.enqueue(now_ns, Segment { ip_bytes: ip.len() as u32, traffic_class });
            if let Some(recorder) = recorder {
                recorder.record(self.number, now_ns, ip, fate);
            }
            if let Some(run) = Run::new(0, fate, || 0) {
                self.keep(len, &run);
            }
            return;
        };
        let scribe = recorder.as_mut().map(|recorder| Scribe { recorder, number: self.number });
        self.pieces.choose(&train, frame, &mut self.link, now_ns, scribe);
        match self.pieces.runs.as_slice() {
            [] => {}
            [run] if run.segments.len() == train.segments() => {
                let run = run.clone();
                self.keep(len, &run);
            }
            _ => {
                let Pieces { runs, frame: whole, piece } = &mut self.pieces;
                whole.clear();
                whole.extend_from_slice(frame);
                for run in runs {
                    train.write_piece(whole, run.segments.clone(), piece);
                    if run.marked {
                        set_congestion_experienced(piece);
                    }
                    match run.way {
                        Way::Known { times, .. } => self.log.append(piece, times),
                        Way::Waits { class, .. } => {
                            class_log(&mut self.classes, class).push(piece, run.segments.len());
                        }
                    }
                }
            }
        }
    }

    /// Keeps the whole frame of `len` bytes that lies at the end of the log.
    fn keep(&mut self, len: usize, run: &Run) {
        let frame = &mut self.log.space()[..len];
        if run.marked {
            set_congestion_experienced(frame);
        }
        match run.way {
            Way::Known { times, .. } => self.log.commit(len, times),
            Way::Waits { class, .. } => {
                class_log(&mut self.classes, class).push(frame, run.segments.len());
            }
        }
    }
}

/// The packets of a class, of which the first make room for them.
fn class_log(classes: &mut Vec<ClassLog>, class: usize) -> &mut ClassLog {
    while classes.len() <= class {
        let packets = PacketLog::new(FRAME_BYTES_MAX);
        classes.push(ClassLog { packets, segments: VecDeque::new() });
    }
    &mut classes[class]
}

/// Writes the segments of a super-packet into the capture.
struct Scribe<'a> {
    recorder: &'a mut Recorder,
    number: usize,
}

/// Which segments of a super-packet travel together.
#[derive(Debug, Default)]
struct Pieces {
    runs: Vec<Run>,
    frame: Vec<u8>,
    piece: Vec<u8>,
}

/// Neighbouring segments that arrive together, with the last of them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    segments: std::ops::Range<usize>,
    /// Whether they tell of congestion.
    marked: bool,
    way: Way,
}

/// How they leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// At a known time, which is that of the last one.
    Known { first_at_ns: u64, times: Times },
    /// From their class; `sending_ns` is how long that takes all of them, if all other classes
    /// have packets too.
    Waits { class: usize, sending_ns: u64 },
}

impl Run {
    /// A run of one segment, if that survived; `sending_ns` is asked where it waits.
    fn new(segment: usize, fate: Fate, sending_ns: impl FnOnce() -> u64) -> Option<Self> {
        let (marked, way) = match fate {
            Fate::Delivered { at_ns, departs_ns, marked } => {
                (marked, Way::Known { first_at_ns: at_ns, times: Times { departs_ns, at_ns } })
            }
            Fate::Waits { class, marked } => {
                (marked, Way::Waits { class, sending_ns: sending_ns() })
            }
            _ => return None,
        };
        Some(Self { segments: segment..segment + 1, marked, way })
    }

    /// Takes the segment that comes next, if it is in time to travel along; a segment that
    /// overtakes the last one is not.
    fn take(&mut self, next: &Self) -> bool {
        if self.segments.end != next.segments.start || self.marked != next.marked {
            return false;
        }
        let way = match (self.way, next.way) {
            (Way::Known { first_at_ns, times: last }, Way::Known { times, .. })
                if times.at_ns >= last.at_ns && times.at_ns - first_at_ns <= TRAIN_NS_MAX =>
            {
                Way::Known { first_at_ns, times }
            }
            (Way::Waits { class, sending_ns }, Way::Waits { sending_ns: more_ns, .. })
                if sending_ns.saturating_add(more_ns) <= TRAIN_NS_MAX =>
            {
                Way::Waits { class, sending_ns: sending_ns + more_ns }
            }
            _ => return false,
        };
        (self.segments.end, self.way) = (next.segments.end, way);
        true
    }
}

impl Pieces {
    fn choose(
        &mut self,
        train: &Train,
        frame: &[u8],
        link: &mut Link,
        now_ns: u64,
        mut scribe: Option<Scribe<'_>>,
    ) {
        self.runs.clear();
        let traffic_class = traffic_class(frame);
        let part = link.part(traffic_class);
        for segment in 0..train.segments() {
            let ip_bytes = train.ip_bytes(segment);
            let fate = link.enqueue(now_ns, Segment { ip_bytes, traffic_class });
            if let Some(scribe) = &mut scribe {
                train.write_piece(frame, segment..segment + 1, &mut self.piece);
                let ip = &self.piece[VNET_HDR_LEN..];
                scribe.recorder.record(scribe.number, now_ns, ip, fate);
            }
            let sending_ns = || (link.wire_ns(ip_bytes) as f64 / part) as u64;
            let Some(run) = Run::new(segment, fate, sending_ns) else {
                continue;
            };
            if !self.runs.last_mut().is_some_and(|last| last.take(&run)) {
                self.runs.push(run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gso::tests::{craft, software_gso};
    use crate::{Classes, Queue};

    fn line(classes: Option<&str>) -> DirectionConfig {
        DirectionConfig {
            rate_bits_per_s: 100_000_000,
            queue: Queue::Packets(usize::MAX),
            classes: classes.map(|text| Classes::parse(text).unwrap()),
            ..DirectionConfig::default()
        }
    }

    /// A super-packet whose payload is one number again and again.
    fn packet(number: u8, payload: usize, traffic_class: u8) -> Vec<u8> {
        let mut frame = craft(true, &vec![number; payload], 1000, 0x10, 12);
        frame[VNET_HDR_LEN] = 0x60 | traffic_class >> 4;
        frame[VNET_HDR_LEN + 1] = traffic_class << 4;
        frame
    }

    /// All that is due by then, as the segments of a real line.
    fn due(direction: &mut Direction, now_ns: u64) -> Vec<Vec<u8>> {
        let mut segments = Vec::new();
        direction.advance(now_ns);
        while let Some(frame) = direction.due(now_ns) {
            segments.extend(software_gso(frame));
            direction.pop();
        }
        segments
    }

    #[test]
    fn what_waits_arrives_as_it_was_and_marked_where_it_should() {
        let ecn = Some(Queue::Packets(3));
        let mut direction =
            Direction::new(0, &DirectionConfig { ecn, ..line(Some("strict,ef,rest")) });
        // ECT(1), five segments.
        let capable = packet(7, 5000, 1);
        direction.take(0, &capable, &mut None);
        direction.take(1, &packet(8, 100, 46 << 2), &mut None);
        let got = due(&mut direction, u64::MAX);
        let mut whole = software_gso(&capable);
        // Three wait when the fourth comes.
        for segment in &mut whole[3..] {
            segment[1] |= 0x30;
        }
        let urgent = software_gso(&packet(8, 100, 46 << 2)).remove(0);
        assert_eq!(got.len(), 6);
        assert_eq!(got.iter().filter(|segment| **segment != urgent).count(), 5);
        let others: Vec<_> = got.into_iter().filter(|segment| *segment != urgent).collect();
        assert_eq!(others, whole);
        assert_eq!(direction.counters().marked, 2);
    }

    #[test]
    fn a_lab_wakes_in_time_for_the_next_delivery() {
        let mut direction = Direction::new(0, &line(Some("weighted,ef=3,rest=1")));
        direction.take(0, &packet(1, 900, 0), &mut None);
        let mut last = 0;
        for number in 2..20 {
            direction.take(
                0,
                &packet(number, 900, if number % 2 == 0 { 46 << 2 } else { 0 }),
                &mut None,
            );
        }
        let mut arrived = 0;
        while let Some(at_ns) = direction.next_delivery_ns() {
            assert!(at_ns > last || arrived == 0, "no time passes: {at_ns}");
            last = at_ns;
            arrived += due(&mut direction, at_ns).len();
        }
        assert_eq!(arrived, 19);
    }

    #[test]
    fn a_packet_that_comes_late_in_a_call_takes_the_delay_none_the_less() {
        use std::cell::Cell;

        const DELAY_NS: u64 = 10_000_000;
        for classes in [None, Some("strict,ef,rest")] {
            let delay = std::time::Duration::from_nanos(DELAY_NS);
            let mut direction = Direction::new(0, &DirectionConfig { delay, ..line(classes) });
            let (clock_ns, came_ns) = (Cell::new(1_000), Cell::new(None));
            // The thread stands still for 2.5 ms in the middle of the call, and one comes then.
            let read = |space: &mut [u8]| {
                if came_ns.get().is_some() {
                    return Ok(None);
                }
                clock_ns.set(clock_ns.get() + 2_500_000);
                came_ns.set(Some(clock_ns.get()));
                let frame = packet(1, 100, 0);
                space[..frame.len()].copy_from_slice(&frame);
                Ok(Some(frame.len()))
            };
            let received = direction.receive(read, || clock_ns.get(), &mut None).unwrap();
            assert_eq!(received, 1);
            direction.advance(u64::MAX);
            let at_ns = direction.next_delivery_ns().unwrap();
            assert!(at_ns >= came_ns.get().unwrap() + DELAY_NS, "{classes:?}: {at_ns}");
        }
    }

    proptest! {
        /// Whatever comes when and in which class, and while classes change: every byte of what
        /// came arrives once, in the order of its class.
        #[test]
        fn nothing_is_lost_or_changed_in_a_class(
            steps in prop::collection::vec(
                (0_u64..2_000_000, 1_usize..9000, any::<bool>(), 0_u8..12), 1..60,
            ),
        ) {
            let mut direction = Direction::new(0, &line(Some("weighted,ef=2,rest=1")));
            let (mut now_ns, mut got) = (0, Vec::new());
            let mut sent = [Vec::new(), Vec::new()];
            for (number, (gap_ns, payload, is_ef, change)) in steps.into_iter().enumerate() {
                now_ns += gap_ns;
                got.extend(due(&mut direction, now_ns));
                match change {
                    0 => direction.set(now_ns, &line(None)),
                    1 => direction.set(now_ns, &line(Some("strict,ef,rest"))),
                    2 => direction.set(now_ns, &line(Some("strict,rest,ef"))),
                    _ => {}
                }
                let frame = packet(number as u8, payload, if is_ef { 46 << 2 } else { 0 });
                sent[usize::from(is_ef)].extend(software_gso(&frame));
                direction.take(now_ns, &frame, &mut None);
            }
            got.extend(due(&mut direction, u64::MAX));
            prop_assert_eq!(direction.next_delivery_ns(), None);
            let is_ef = |segment: &&Vec<u8>| segment[0] & 15 != 0;
            let ef: Vec<Vec<u8>> = got.iter().filter(is_ef).cloned().collect();
            let rest: Vec<Vec<u8>> =
                got.iter().filter(|segment| !is_ef(segment)).cloned().collect();
            prop_assert_eq!(&ef, &sent[1]);
            prop_assert_eq!(&rest, &sent[0]);
        }
    }
}
