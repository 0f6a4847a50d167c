//! A leg as one session has it: what is asked of it goes over the link and is answered over it.

use std::sync::Arc;
use std::time::Duration;

use block::mirror::OrderedWrites;
use block::mirror::layout::TAIL_BYTES;
use block::{BlockDevice, BlockError, Buf, Bytes, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags};

use super::super::content::SECTOR_BYTES;
use super::super::disk::store::{Answer, Work};
use super::super::disk::{self, Slot, Waiting, lock, unit};
use super::super::sabotage::Lie;
use super::{Leg, TOLD_MS_MAX, Then};

/// The leg as one session has it.
pub(super) struct Remote {
    pub(super) leg: Leg,
    pub(super) session: u64,
}

impl Remote {
    pub(super) fn ask(&self, work: Work) -> Waiting {
        let inner = &self.leg.0;
        let slot = Arc::<Slot>::default();
        let mut link = lock(&inner.link);
        if !link.alive || link.session != self.session {
            let told = link.rng.coin();
            let delay = Duration::from_millis(link.rng.skewed(TOLD_MS_MAX));
            drop(link);
            if told {
                let slot = slot.clone();
                let gone = || Err(BlockError::Unreachable("simulated: session lost".into()));
                inner.executor.after(delay, move || slot.set(gone()));
            }
            return Waiting(slot);
        }
        let slow = match link.slow_until > inner.executor.now() {
            true => Duration::from_millis(link.rng.range(200, 4000)),
            false => Duration::ZERO,
        };
        let there = inner.kind.latency(&mut link.rng) + slow + link.farther;
        let back = inner.kind.latency(&mut link.rng) / 2;
        let early = matches!(
            (link.lie, &work),
            (Some(Lie::AnswersFlushEarly), Work::Flush)
                | (Some(Lie::AnswersWritesEarly), Work::Write { .. })
        );
        link.lied += u64::from(early);
        link.waiting.retain(|slot| slot.strong_count() > 0);
        link.waiting.push(Arc::downgrade(&slot));
        drop(link);
        let content_sectors = (inner.kind.bytes - TAIL_BYTES) / SECTOR_BYTES;
        if work.writes_at().is_some_and(|at| at < content_sectors) {
            lock(&inner.link).written_in = self.session;
        }
        let story = work.told();
        let id = lock(&inner.store).begin(self.leg.numbered(self.session), work);
        let now = inner.executor.now();
        inner.points.log(now, || format!("leg {} {id}: {story}", inner.number));
        inner.points.pass();
        let (leg, answer, session) = (self.leg.clone(), slot.clone(), self.session);
        let performs = if early { there + slow + back * 4 } else { there };
        if early {
            self.answer_with(there, id, slot.clone(), Ok(Vec::new()));
        }
        inner.executor.after(performs, move || {
            let then: Then = Box::new(move |leg, result| {
                if !early {
                    Remote { leg, session }.answer_with(back, id, answer, result);
                }
            });
            leg.arrive(session, id, then);
        });
        Waiting(slot)
    }

    fn answer_with(&self, delay: Duration, id: u64, slot: Arc<Slot>, answer: Answer) {
        let (leg, session) = (self.leg.clone(), self.session);
        self.leg.0.executor.after(delay, move || {
            lock(&leg.0.store).answered(id);
            let link = lock(&leg.0.link);
            if !link.alive || link.session != session {
                return;
            }
            drop(link);
            let (now, number) = (leg.0.executor.now(), leg.0.number);
            leg.0.points.log(now, || format!("leg {number} {id} {:?}", answer.as_ref().err()));
            leg.0.points.pass();
            slot.set(answer);
        });
    }
}

impl OrderedWrites for Remote {
    fn barrier(&self) -> Io<()> {
        unit(self.ask(Work::Barrier))
    }
}

impl BlockDevice for Remote {
    fn info(&self) -> DeviceInfo {
        self.leg.0.kind.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        disk::read(&self.info(), offset, buf, |work| self.ask(work))
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        disk::write(&self.info(), offset, &data, flags, |work| self.ask(work))
    }

    fn flush(&self) -> Io<()> {
        unit(self.ask(Work::Flush))
    }

    fn trim(&self, _offset: u64, _len: u64) -> Io<()> {
        Io::err(BlockError::Unsupported("trim"))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        disk::zero(&self.info(), offset, len, flags, |work| self.ask(work))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        match self.info().check(offset, len) {
            Err(error) => Io::err(error),
            Ok(()) => Io::ok(vec![Extent { offset, len, hole: false }]),
        }
    }
}
