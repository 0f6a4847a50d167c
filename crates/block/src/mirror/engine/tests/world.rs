//! A mirror of devices in memory, whose legs can be cut off, hang, fail and be replaced.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use super::inside::Copying;
use super::reserved::{Reservations, Reserver};
use crate::backend::MemoryDevice;
use crate::layer::FaultLayer;
use crate::mirror::engine::signal::lock;
use crate::mirror::{
    Config, CreateOptions, Fence, LegSource, LegState, MayOverwrite, Mirror, MirrorError, Mode,
    OpenLeg, Parts, TokioHost,
};
use crate::{
    BlockDevice, BlockError, Buf, Device, DeviceInfo, Extent, Io, Result, WriteFlags, ZeroFlags,
};

/// Bytes of the image.
pub(crate) const SIZE: u64 = 4 << 20;
/// Bytes of a leg: the image and the metadata behind it.
pub(crate) const LEG_SIZE: u64 = SIZE + (1 << 20);

/// How the way to a leg is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Everything is answered.
    Open,
    /// Nothing is answered, nor carried out.
    Hangs,
    /// Nothing is answered, but it is carried out.
    Mute,
    /// Everything fails.
    Cut,
}

/// A leg and the way to it.
pub(crate) struct TestLeg {
    name: String,
    state: Mutex<LegStateOfTest>,
    connects: AtomicU64,
    /// `None`: the unit knows no reservations.
    pub(crate) reservations: Mutex<Option<Reservations>>,
    /// It says that it knows them, and is not to be used without.
    pub(crate) requires_reservation: AtomicBool,
    /// Who is asked before its image is written over.
    pub(crate) keeper: Mutex<Option<Arc<Keeper>>>,
    /// What it copies by itself; `None`: nothing.
    pub(crate) copying: Mutex<Option<Copying>>,
    /// Bytes a second that its line carries of writes, and until when it has to do.
    pub(crate) carries: Mutex<Option<(u64, tokio::time::Instant)>>,
}

/// What somebody answers who keeps the image of a leg, once he has an answer.
pub(crate) type Kept = Option<std::result::Result<(), String>>;

/// Somebody who keeps the image of a leg before it is written over.
pub(crate) struct Keeper {
    /// When he was asked, and why.
    pub(crate) asked: Mutex<Vec<(tokio::time::Instant, String)>>,
    pub(crate) answer: tokio::sync::watch::Sender<Kept>,
}

impl Keeper {
    pub(crate) fn of(leg: &TestLeg, answer: Kept) -> Arc<Self> {
        let (asked, answer) = (Mutex::default(), tokio::sync::watch::Sender::new(answer));
        let keeper = Arc::new(Self { asked, answer });
        *lock(&leg.keeper) = Some(keeper.clone());
        keeper
    }

    /// Seconds from the first time that he was asked to each.
    pub(crate) fn asked_at_s(&self) -> Vec<u64> {
        let asked = lock(&self.asked);
        asked.iter().map(|(at, _)| (*at - asked[0].0).as_secs()).collect()
    }
}

struct LegStateOfTest {
    device: Device,
    way: Way,
    identity: String,
}

impl TestLeg {
    pub(crate) fn new(name: &str, device: Device) -> Arc<Self> {
        let identity = format!("id of {name}");
        let state = Mutex::new(LegStateOfTest { device, way: Way::Open, identity });
        Arc::new(Self {
            name: name.to_owned(),
            state,
            connects: AtomicU64::new(0),
            reservations: Mutex::default(),
            requires_reservation: AtomicBool::new(false),
            keeper: Mutex::default(),
            copying: Mutex::default(),
            carries: Mutex::default(),
        })
    }

    /// When its line has carried `bytes` more.
    fn carried(&self, bytes: usize) -> Option<tokio::time::Instant> {
        let mut carries = lock(&self.carries);
        let (rate, until) = carries.as_mut()?;
        let time = Duration::from_secs_f64(bytes as f64 / *rate as f64);
        *until = (*until).max(tokio::time::Instant::now()) + time;
        Some(*until)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn set_way(&self, way: Way) {
        lock(&self.state).way = way;
    }

    /// Another unit stands at its place.
    pub(crate) fn replace(&self, device: Device, identity: &str) {
        let mut state = lock(&self.state);
        (state.device, state.identity) = (device, identity.to_owned());
    }

    pub(crate) fn device(&self) -> Device {
        lock(&self.state).device.clone()
    }

    /// As another host opens it, which has no part in what the mirror's connects are.
    pub(crate) fn elsewhere(self: &Arc<Self>) -> OpenLeg {
        let fence = self.reserver(u64::MAX);
        OpenLeg { fence, ..OpenLeg::of(self.device()) }
    }

    fn reserver(self: &Arc<Self>, nexus: u64) -> Option<Arc<dyn Fence>> {
        let known = lock(&self.reservations).is_some();
        let offered = known || self.requires_reservation.load(Ordering::SeqCst);
        offered.then(|| Arc::new(Reserver { leg: self.clone(), nexus }) as Arc<dyn Fence>)
    }

    fn may_write(&self, nexus: u64) -> bool {
        lock(&self.reservations).as_ref().is_none_or(|unit| unit.admits(nexus))
    }

    pub(crate) fn connects(&self) -> u64 {
        self.connects.load(Ordering::SeqCst)
    }
}

/// One connect of a leg; of an earlier one nothing arrives any more.
pub(crate) struct Line {
    pub(crate) leg: Arc<TestLeg>,
    number: u64,
}

impl Line {
    pub(crate) fn ask<T: Send + Unpin + 'static>(
        &self,
        operation: impl FnOnce(&Device) -> Io<T>,
    ) -> Io<T> {
        let (device, way) = {
            let state = lock(&self.leg.state);
            (state.device.clone(), state.way)
        };
        if self.leg.connects() != self.number {
            return Io::err(BlockError::Unreachable("an earlier session".into()));
        }
        match way {
            Way::Open => operation(&device),
            Way::Cut => Io::err(BlockError::Unreachable("cut".into())),
            Way::Hangs => Io::later(std::future::pending()),
            Way::Mute => {
                let io = operation(&device);
                Io::later(async move {
                    drop(io.await);
                    std::future::pending().await
                })
            }
        }
    }
}

impl Line {
    fn change(&self, operation: impl FnOnce(&Device) -> Io<()>) -> Io<()> {
        let number = self.number;
        let leg = self.leg.clone();
        self.ask(move |device| {
            if leg.may_write(number) { operation(device) } else { Io::err(BlockError::Fenced) }
        })
    }
}

impl BlockDevice for Line {
    fn info(&self) -> DeviceInfo {
        self.leg.device().info()
    }
    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.ask(|device| device.read(offset, buf))
    }
    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        let carried = self.leg.carried(data.len());
        let write = self.change(|device| device.write(offset, data, flags));
        match carried {
            None => write,
            Some(until) => Io::later(async move {
                tokio::time::sleep_until(until).await;
                write.await
            }),
        }
    }
    fn flush(&self) -> Io<()> {
        self.ask(|device| device.flush())
    }
    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.change(|device| device.trim(offset, len))
    }
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.change(|device| device.zero(offset, len, flags))
    }
    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.ask(|device| device.extents(offset, len))
    }
}

/// What a mirror is told to connect to.
struct Source(Arc<TestLeg>);

impl LegSource for Source {
    fn name(&self) -> String {
        self.0.name.clone()
    }

    fn connect(&self) -> Pin<Box<dyn Future<Output = Result<OpenLeg>> + Send>> {
        let leg = self.0.clone();
        Box::pin(async move {
            let number = leg.connects.fetch_add(1, Ordering::SeqCst) + 1;
            let (way, identity) = {
                let state = lock(&leg.state);
                (state.way, state.identity.clone())
            };
            match way {
                Way::Open => {
                    let fence = leg.reserver(number);
                    let device = Arc::new(Line { leg, number });
                    let inside = device.inside();
                    Ok(OpenLeg { device, identity, ordered: Err(String::new()), fence, inside })
                }
                Way::Cut => Err(BlockError::Unreachable("no route".into())),
                Way::Hangs | Way::Mute => std::future::pending().await,
            }
        })
    }

    fn before_overwrite(&self, why: &str) -> Option<MayOverwrite> {
        let keeper = lock(&self.0.keeper).clone()?;
        lock(&keeper.asked).push((tokio::time::Instant::now(), why.to_owned()));
        Some(Box::pin(async move {
            let mut answer = keeper.answer.subscribe();
            let answer = answer.wait_for(Option::is_some).await.map(|answer| answer.clone());
            answer.ok().flatten().unwrap_or_else(|| Err("nobody".into()))
        }))
    }
}

/// A device as one process sees it: once that is killed, nothing of it arrives any more.
struct OfProcess {
    device: Device,
    process: u64,
    present: Arc<AtomicU64>,
}

impl OfProcess {
    fn ask<T: Send + Unpin + 'static>(&self, operation: impl FnOnce(&Device) -> Io<T>) -> Io<T> {
        if self.present.load(Ordering::SeqCst) != self.process {
            return Io::later(std::future::pending());
        }
        operation(&self.device)
    }
}

impl BlockDevice for OfProcess {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        self.ask(|device| device.read(offset, buf))
    }
    fn write(&self, offset: u64, data: Bytes, flags: WriteFlags) -> Io<()> {
        self.ask(|device| device.write(offset, data, flags))
    }
    fn flush(&self) -> Io<()> {
        self.ask(|device| device.flush())
    }
    fn trim(&self, offset: u64, len: u64) -> Io<()> {
        self.ask(|device| device.trim(offset, len))
    }
    fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Io<()> {
        self.ask(|device| device.zero(offset, len, flags))
    }
    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.ask(|device| device.extents(offset, len))
    }
}

/// A mirror and all that it stands on.
pub(crate) struct World {
    /// The local medium, and what can be made to fail in front of it.
    pub(crate) local: Arc<FaultLayer>,
    pub(crate) metadata: Arc<FaultLayer>,
    pub(crate) legs: Vec<Arc<TestLeg>>,
    pub(crate) config: Config,
    pub(crate) mirror: Option<Mirror>,
    process: Arc<AtomicU64>,
}

pub(crate) fn memory(size: u64) -> Device {
    Arc::new(MemoryDevice::new(size, 512).unwrap())
}

pub(crate) fn config() -> Config {
    Config { mode: Mode::Sync, ..Config::default() }
}

impl World {
    /// Devices that nothing was written to.
    pub(crate) fn blank(legs: usize) -> Self {
        Self::over(memory(SIZE), legs)
    }

    /// With this local medium.
    pub(crate) fn over(local: Device, legs: usize) -> Self {
        let leg = |number| TestLeg::new(&format!("leg {number}"), memory(LEG_SIZE));
        Self {
            local: Arc::new(FaultLayer::new(local, 1)),
            metadata: Arc::new(FaultLayer::new(memory(4 << 20), 1)),
            legs: (0..legs).map(leg).collect(),
            config: config(),
            mirror: None,
            process: Arc::default(),
        }
    }

    fn of_process(&self, device: Device) -> Device {
        let process = self.process.load(Ordering::SeqCst);
        Arc::new(OfProcess { device, process, present: self.process.clone() })
    }

    pub(crate) fn parts(&self) -> Parts {
        let source = |leg: &Arc<TestLeg>| Arc::new(Source(leg.clone())) as Arc<dyn LegSource>;
        Parts {
            local: self.of_process(self.local.clone()),
            metadata: self.of_process(self.metadata.clone()),
            legs: self.legs.iter().map(source).collect(),
            host: Arc::new(TokioHost::current()),
        }
    }

    pub(crate) async fn create(&self) -> std::result::Result<(), MirrorError> {
        Mirror::create(&self.parts(), &self.config, CreateOptions::default()).await
    }

    pub(crate) async fn open(&mut self) {
        self.mirror = Some(Mirror::open(self.parts(), self.config).await.unwrap());
    }

    /// Created, opened, and in sync.
    pub(crate) async fn in_sync(legs: usize) -> Self {
        let mut world = Self::blank(legs);
        world.create().await.unwrap();
        world.open().await;
        world.settled().await;
        world
    }

    pub(crate) fn mirror(&self) -> &Mirror {
        self.mirror.as_ref().unwrap()
    }

    pub(crate) fn device(&self) -> Device {
        self.mirror().device()
    }

    /// The process is killed: its tasks are gone with what they had under way.
    pub(crate) fn kill(&mut self) {
        self.process.fetch_add(1, Ordering::SeqCst);
        self.mirror = None;
        for leg in &self.legs {
            leg.connects.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(crate) async fn wait_state(&self, leg: usize, wanted: LegState) {
        self.wait(&format!("leg {leg} is {wanted:?}"), |mirror| {
            mirror.status().legs[leg].state == wanted
        })
        .await;
    }

    /// All legs are in sync.
    pub(crate) async fn settled(&self) {
        for leg in 0..self.legs.len() {
            self.wait_state(leg, LegState::InSync).await;
        }
    }

    pub(crate) async fn wait(&self, what: &str, done: impl Fn(&Mirror) -> bool) {
        let mirror = self.mirror();
        let wait = async {
            loop {
                let changed = mirror.changed();
                if done(mirror) {
                    return;
                }
                changed.await;
            }
        };
        let limit = Duration::from_secs(600);
        if tokio::time::timeout(limit, wait).await.is_err() {
            panic!("not within {limit:?}: {what}; {:#?}", mirror.status());
        }
    }

    pub(crate) async fn write(&self, offset: u64, len: usize, byte: u8) -> Result<()> {
        self.device().write(offset, Bytes::from(vec![byte; len]), WriteFlags::NONE).await
    }

    /// The image at a leg is what is here.
    pub(crate) async fn assert_equal(&self) {
        let local = content(&*self.local).await;
        for (number, leg) in self.legs.iter().enumerate() {
            let there = content(&*leg.device()).await;
            if let Some(at) = local.iter().zip(&there).position(|(a, b)| a != b) {
                panic!("leg {number} differs at byte {at}: {} and {}", local[at], there[at]);
            }
        }
    }
}

/// The first [`SIZE`] bytes.
pub(crate) async fn content(device: &dyn BlockDevice) -> Vec<u8> {
    device.read(0, Buf::new(SIZE as usize)).await.unwrap().to_vec()
}

/// Bytes that differ from place to place and from `salt` to `salt`.
pub(crate) fn pattern(len: usize, salt: u8) -> Bytes {
    crate::testing::pattern(len, salt)
}

/// Pseudo-random numbers (SplitMix64): the same seed gives the same run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }
}
