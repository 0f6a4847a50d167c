//! Legs far away that carry out barriers: what is not waited for, and what becomes of a failure.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::world::*;
use crate::layer::{Fault, FaultLayer, OpKind};
use crate::mirror::{
    CreateOptions, Host, Lag, LegSource, LegState, LegStatus, Mirror, Mode, OnLag, OpenLeg, Order,
    OrderedWrites, Parts, TokioHost,
};
use crate::{
    BlockDevice, BlockError, Buf, Bytes, Device, DeviceInfo, Extent, Io, Result, WriteFlags,
    ZeroFlags,
};

const RTT: Duration = Duration::from_millis(100);
const COMMITS: u64 = 50;

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A unit half a round trip away. It carries out in order what it is asked for, and nothing of a
/// session behind what has failed.
struct Far {
    device: Device,
    jobs: mpsc::UnboundedSender<Job>,
    sessions: AtomicU64,
    failed: AtomicU64,
    keeps_order: bool,
}

impl Far {
    fn new(device: Device, keeps_order: bool) -> Arc<Self> {
        let (jobs, mut asked) = mpsc::unbounded_channel::<Job>();
        tokio::spawn(async move {
            while let Some(job) = asked.recv().await {
                job.await;
            }
        });
        let (sessions, failed) = Default::default();
        Arc::new(Self { device, jobs, sessions, failed, keeps_order })
    }
}

/// One session with it.
struct Line {
    far: Arc<Far>,
    session: u64,
}

impl Line {
    fn ask<T: Send + Unpin + 'static>(
        &self,
        operation: impl FnOnce(&Device) -> Io<T> + Send + 'static,
    ) -> Io<T> {
        let (tell, told) = oneshot::channel();
        let (far, session, arrives) = (self.far.clone(), self.session, Instant::now() + RTT / 2);
        let job = async move {
            tokio::time::sleep_until(arrives).await;
            let result = match far.failed.load(Ordering::SeqCst) >= session {
                true => Err(BlockError::Unreachable("behind a failure".into())),
                false => operation(&far.device).await,
            };
            if result.is_err() {
                far.failed.fetch_max(session, Ordering::SeqCst);
            }
            tokio::spawn(async move {
                tokio::time::sleep(RTT / 2).await;
                drop(tell.send(result));
            });
        };
        drop(self.far.jobs.send(Box::pin(job)));
        let gone = || Err(BlockError::Unreachable("gone".into()));
        Io::later(async move { told.await.unwrap_or_else(|_| gone()) })
    }
}

impl OrderedWrites for Line {
    fn barrier(&self) -> Io<()> {
        self.flush()
    }
}

impl BlockDevice for Line {
    fn info(&self) -> DeviceInfo {
        self.far.device.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.ask(move |device| device.read(offset, buf))
    }
    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        self.ask(move |device| device.write(offset, data, flags))
    }
    fn flush(&self) -> Io<()> {
        self.ask(|device| device.flush())
    }
    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.ask(move |device| device.trim(offset, len))
    }
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.ask(move |device| device.zero(offset, len, flags))
    }
    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.ask(move |device| device.extents(offset, len))
    }
}

struct Source(Arc<Far>);

impl LegSource for Source {
    fn name(&self) -> String {
        "far".to_owned()
    }

    fn connect(&self) -> Pin<Box<dyn Future<Output = Result<OpenLeg>> + Send>> {
        let far = self.0.clone();
        Box::pin(async move {
            let session = far.sessions.fetch_add(1, Ordering::SeqCst) + 1;
            let line = Arc::new(Line { far: far.clone(), session });
            line.flush().await?; // nothing of the session before can land any more
            let ordered: Arc<dyn OrderedWrites> = line.clone();
            let ordered = far.keeps_order.then_some(ordered).ok_or_else(|| "as told".to_owned());
            Ok(OpenLeg { ordered, ..OpenLeg::of(line) })
        })
    }
}

/// A mirror with one leg, which is in sync.
async fn mirrored(far: &Arc<Far>, local: Device) -> Mirror {
    let age = Duration::from_secs(600);
    let lag = Lag { age, bytes: 64 << 20, on: OnLag::Slow };
    // Without a redo log: what would take long otherwise goes there as a batch.
    let redo_bytes = Some(0);
    let config = crate::mirror::Config { mode: Mode::Async, lag, redo_bytes, ..Default::default() };
    let metadata = memory(4 << 20);
    let parts = || Parts {
        local: local.clone(),
        metadata: metadata.clone(),
        legs: vec![Arc::new(Source(far.clone())) as Arc<dyn LegSource>],
        host: Arc::new(TokioHost::current()) as Arc<dyn Host>,
    };
    Mirror::create(&parts(), &config, CreateOptions::default()).await.unwrap();
    let mirror = Mirror::open(parts(), config).await.unwrap();
    until(&mirror, |leg| leg.state == LegState::InSync && leg.epochs == 0).await;
    mirror
}

async fn until(mirror: &Mirror, ready: impl Fn(&LegStatus) -> bool) -> LegStatus {
    let waiting = async {
        loop {
            let leg = mirror.status().legs[0].clone();
            if ready(&leg) {
                return leg;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let limit = Duration::from_secs(3600);
    tokio::time::timeout(limit, waiting).await.expect("the leg gets there")
}

/// A write and a flush each 5 ms. How far the leg was behind at most.
async fn commit(mirror: &Mirror) -> Duration {
    let mut most = Duration::ZERO;
    for number in 0..COMMITS {
        let at = number % 7 * 8192; // most are written again in another epoch
        mirror.device().write(at, pattern(8192, number as u8), WriteFlags::NONE).await.unwrap();
        mirror.device().flush().await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        most = most.max(mirror.status().legs[0].lag);
    }
    most
}

async fn assert_equal(one: &Device, other: &Device) {
    let read = |device: &Device| device.read(0, Buf::new(SIZE as usize));
    assert!(read(one).await.unwrap()[..] == read(other).await.unwrap()[..], "the leg differs");
}

#[tokio::test(start_paused = true)]
async fn in_a_stream_no_epoch_waits_for_the_answers_of_another() {
    for (keeps_order, order) in [(true, Order::Stream), (false, Order::Waited)] {
        let (local, there) = (memory(SIZE), memory(LEG_SIZE));
        let far = Far::new(there.clone(), keeps_order);
        let mirror = mirrored(&far, local.clone()).await;
        let sending = mirror.status().legs[0].sending.clone().unwrap();
        assert_eq!(sending.order, order);
        let begun = Instant::now();
        let behind = commit(&mirror).await;
        until(&mirror, |leg| leg.epochs == 0).await;
        let took = begun.elapsed();
        match order {
            // What is told here of a leg is half a round trip old, and stamps go with the next
            // epoch.
            Order::Stream => {
                assert!(behind < 2 * RTT, "{behind:?}");
                assert!(took < Duration::from_millis(COMMITS * 5 + 50) + 3 * RTT, "{took:?}");
            }
            Order::Waited => assert!(took > COMMITS as u32 * 2 * RTT, "{took:?}"),
        }
        assert_equal(&local, &there).await;
        mirror.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_in_a_stream_ends_its_session_and_the_log_goes_on_behind_the_stamp() {
    for kind in [OpKind::Write, OpKind::Flush] {
        let (local, medium) = (memory(SIZE), memory(LEG_SIZE));
        let faults = Arc::new(FaultLayer::new(medium.clone(), 1));
        let far = Far::new(faults.clone(), true);
        let mirror = mirrored(&far, local.clone()).await;
        let copied = mirror.status().legs[0].copied_bytes;
        let error = || BlockError::Medium(std::io::Error::other("bad sector"));
        faults.inject(Fault::on(kind, error).nth(20).times(1));
        commit(&mirror).await;
        let leg = until(&mirror, |leg| leg.state == LegState::InSync && leg.epochs == 0).await;
        assert_eq!(far.sessions.load(Ordering::SeqCst), 3, "one for the making, and one anew");
        assert_eq!((leg.copied_bytes, leg.consistent), (copied, true), "nothing was copied");
        assert_equal(&local, &medium).await;
        mirror.close().await.unwrap();
    }
}
