//! A mirror so simple that it is right by inspection: one thing at a time, and a whole copy after
//! anything. It shows that the world lets a right mirror pass and finds a wrong one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::mirror::{Host, LegSource, Mode};
use block::{
    BlockDevice, BlockError, Buf, Bytes, Device, DeviceInfo, Extent, Io, WriteFlags, ZeroFlags,
};
use futures_util::future::{Either, select};

use super::content::{Content, SECTOR, SECTOR_BYTES};
use super::disk::lock;
use super::scenario::DATA_BYTES;
use super::seeds::{Cuts, Options, run_all_on};
use super::subject::{Later, Over, Place, Running, Subject};

const PIECE_BYTES: u64 = 1 << 20;
const TAIL_BYTES: u64 = 4096;
const CONSISTENT: u8 = b'C';
const INCONSISTENT: u8 = b'I';

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    NoMarkBeforeCopy,
    ConsistentBeforeFlush,
    FlushNotSent,
    FuaNotSent,
    LocalFlushSkipped,
    LocalFuaSkipped,
    SomeWritesNotSent,
    CopyWithoutLock,
    NoCopyAfterRestart,
    NoCopyAfterLoss,
    FlushToldBeforeLegs,
    LostLegStaysInSync,
    ZeroNotSent,
}

const MISTAKES: [Mistake; 13] = [
    Mistake::NoMarkBeforeCopy,
    Mistake::ConsistentBeforeFlush,
    Mistake::FlushNotSent,
    Mistake::FuaNotSent,
    Mistake::LocalFlushSkipped,
    Mistake::LocalFuaSkipped,
    Mistake::SomeWritesNotSent,
    Mistake::CopyWithoutLock,
    Mistake::NoCopyAfterRestart,
    Mistake::NoCopyAfterLoss,
    Mistake::FlushToldBeforeLegs,
    Mistake::LostLegStaysInSync,
    Mistake::ZeroNotSent,
];

struct Toy(Option<Mistake>);

impl Subject for Toy {
    fn tail_bytes(&self) -> u64 {
        TAIL_BYTES
    }

    fn mode(&self) -> Option<Mode> {
        Some(Mode::Sync)
    }

    fn tells_units_apart(&self) -> bool {
        false
    }

    fn create(&self, _: Place) -> Later<Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn open(&self, place: Place) -> Later<Result<Arc<dyn Running>, String>> {
        let legs = place.legs.iter().map(|_| Mutex::default()).collect();
        let toy = Run(Arc::new(Inner { mistake: self.0, place, gate: Default::default(), legs }));
        for leg in 0..toy.0.legs.len() {
            let run = toy.clone();
            toy.0.place.host.spawn(Box::pin(async move { run.follow(leg).await }));
        }
        Box::pin(async { Ok(Arc::new(toy) as Arc<dyn Running>) })
    }

    fn image(&self, leg_bytes: u64, tail: &dyn Fn(u64) -> Content) -> Result<Option<Over>, String> {
        let first = (leg_bytes - TAIL_BYTES) / SECTOR_BYTES;
        let consistent = tail(first) == Content::Raw(Arc::new([CONSISTENT; SECTOR]));
        Ok(consistent.then(Over::new))
    }
}

/// The end of the leg: it may have room between for the redo log of a better mirror.
fn mark_at(leg: &Device) -> u64 {
    leg.info().size - TAIL_BYTES
}

#[derive(Clone)]
struct Run(Arc<Inner>);

struct Inner {
    mistake: Option<Mistake>,
    place: Place,
    gate: futures_util::lock::Mutex<()>,
    legs: Vec<Mutex<Option<Device>>>,
}

impl Run {
    fn makes(&self, mistake: Mistake) -> bool {
        self.0.mistake == Some(mistake)
    }

    async fn within<T: Unpin>(&self, io: Io<T>) -> block::Result<T> {
        let pause = self.0.place.host.sleep(self.0.place.config.remote_timeout);
        match select(io, pause).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(BlockError::Unreachable("no answer".into())),
        }
    }

    async fn follow(self, leg: usize) {
        let host = self.0.place.host.clone();
        let mut attached = false;
        loop {
            if let Ok(open) = self.0.place.legs[leg].connect().await {
                let known = self.makes(Mistake::NoCopyAfterLoss) && attached;
                if known {
                    *lock(&self.0.legs[leg]) = Some(open.device.clone());
                }
                if known || self.attach(leg, open.device).await.is_ok() {
                    attached = true;
                    while lock(&self.0.legs[leg]).is_some() {
                        host.sleep(Duration::from_millis(20)).await;
                    }
                }
            }
            host.sleep(Duration::from_millis(200)).await;
        }
    }

    async fn attach(&self, leg: usize, device: Device) -> block::Result<()> {
        let held = self.0.gate.lock().await;
        let held = Some(held).filter(|_| !self.makes(Mistake::CopyWithoutLock));
        let blank = Buf::zeroed(TAIL_BYTES as usize);
        let mark = self.within(device.read(mark_at(&device), blank)).await?;
        let formatted = mark[0] == CONSISTENT;
        let skips = self.makes(Mistake::NoCopyAfterRestart) && formatted;
        if !skips {
            if !self.makes(Mistake::NoMarkBeforeCopy) || !formatted {
                self.mark(&device, INCONSISTENT).await?;
            }
            if self.makes(Mistake::ConsistentBeforeFlush) {
                self.mark(&device, CONSISTENT).await?;
            }
            for offset in (0..DATA_BYTES).step_by(PIECE_BYTES as usize) {
                let piece = Buf::new(PIECE_BYTES as usize);
                let piece = self.0.place.local.read(offset, piece).await?;
                let write = device.write(offset, piece.freeze(), WriteFlags::NONE);
                self.within(write).await?;
            }
            self.within(device.flush()).await?;
            self.mark(&device, CONSISTENT).await?;
        }
        *lock(&self.0.legs[leg]) = Some(device);
        drop(held);
        Ok(())
    }

    async fn mark(&self, device: &Device, mark: u8) -> block::Result<()> {
        let data = Bytes::from(vec![mark; TAIL_BYTES as usize]);
        self.within(device.write(mark_at(device), data, WriteFlags::FUA)).await
    }

    /// Asks all legs in sync; one that fails is one no more.
    async fn on_legs(&self, ask: impl Fn(&Device) -> Io<()>) {
        for leg in &self.0.legs {
            let Some(device) = lock(leg).clone() else { continue };
            let done = self.within(ask(&device)).await;
            if done.is_err() && !self.makes(Mistake::LostLegStaysInSync) {
                *lock(leg) = None;
            }
        }
    }

    async fn write(self, offset: u64, data: Bytes, fua: bool) -> block::Result<()> {
        let _held = self.0.gate.lock().await;
        let here = WriteFlags::default();
        let mut flags = WriteFlags::NONE;
        flags.fua = fua;
        let local = if self.makes(Mistake::LocalFuaSkipped) { here } else { flags };
        self.0.place.local.write(offset, data.clone(), local).await?;
        if self.makes(Mistake::SomeWritesNotSent) && !offset.is_multiple_of(8192) {
            return Ok(());
        }
        if self.makes(Mistake::FuaNotSent) {
            flags.fua = false;
        }
        self.on_legs(|leg| leg.write(offset, data.clone(), flags)).await;
        Ok(())
    }

    async fn flush(self) -> block::Result<()> {
        let _held = self.0.gate.lock().await;
        if !self.makes(Mistake::LocalFlushSkipped) {
            self.0.place.local.flush().await?;
        }
        if self.makes(Mistake::FlushToldBeforeLegs) {
            let late = self.clone();
            let flush = async move { late.on_legs(|leg| leg.flush()).await };
            self.0.place.host.spawn(Box::pin(flush));
        } else if !self.makes(Mistake::FlushNotSent) {
            self.on_legs(|leg| leg.flush()).await;
        }
        Ok(())
    }
}

impl Running for Run {
    fn device(&self) -> Device {
        Arc::new(self.clone())
    }

    fn in_sync(&self, leg: usize) -> bool {
        lock(&self.0.legs[leg]).is_some()
    }

    fn refuses(&self, _: usize) -> bool {
        false
    }

    fn settled(&self, leg: usize) -> bool {
        self.in_sync(leg)
    }

    fn look_after(&self, _: usize) -> Later<()> {
        Box::pin(async {})
    }

    fn state(&self) -> String {
        format!("{:?}", (0..self.0.legs.len()).map(|leg| self.in_sync(leg)).collect::<Vec<_>>())
    }

    fn close(&self) -> Later<Result<(), String>> {
        let run = self.clone();
        Box::pin(async move { run.flush().await.map_err(|error| error.to_string()) })
    }
}

impl BlockDevice for Run {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new(DATA_BYTES, self.0.place.local.info().block_size)
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        let run = self.clone();
        Io::later(async move {
            let _held = run.0.gate.lock().await;
            run.0.place.local.read(offset, buf).await
        })
    }

    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        Io::later(self.clone().write(offset, data, flags.fua))
    }

    fn flush(&self) -> Io<()> {
        Io::later(self.clone().flush())
    }

    fn trim(&self, _: u64, _: u64) -> Io<()> {
        Io::err(BlockError::Unsupported("trim"))
    }

    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        if self.makes(Mistake::ZeroNotSent) {
            return self.0.place.local.zero(offset, len, flags);
        }
        let zeroes = Bytes::from(vec![0; len as usize]);
        Io::later(self.clone().write(offset, zeroes, flags.fua))
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.0.place.local.extents(offset, len)
    }
}

fn failures(mistake: Option<Mistake>, seeds: u64) -> Vec<(u64, String)> {
    let subject: Arc<dyn Subject> = Arc::new(Toy(mistake));
    let mut failures = Vec::new();
    let options = Options { cuts: Cuts::Some(4), ..Options::default() };
    run_all_on(0..seeds, options, &subject, |report| {
        failures.extend(report.failure.map(|failure| (report.seed, failure)));
        true
    });
    failures.sort();
    failures
}

#[test]
fn a_right_mirror_passes() {
    let failures = failures(None, 60);
    assert!(failures.is_empty(), "{} seeds: {:?}", failures.len(), failures[0]);
}

#[test]
fn a_wrong_mirror_is_found() {
    let mut missed = Vec::new();
    for mistake in MISTAKES {
        let found = failures(Some(mistake), 30);
        println!("{mistake:?}: {} of 30 seeds: {:?}", found.len(), found.first());
        if found.is_empty() {
            missed.push(mistake);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
