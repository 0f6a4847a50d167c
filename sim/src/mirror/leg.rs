//! A disk at the end of a link: the [`LegSource`] of the engine. A link that is cut answers nothing
//! any more, and what was asked over it is carried out or not, also *after* the cut, until the next
//! `connect` has returned.

mod fence;
mod remote;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use block::BlockError;
use block::mirror::layout::TAIL_BYTES;
use block::mirror::{BLOCK_BYTES, Fence, Host, LegSource, OpenLeg, OrderedWrites};

use self::remote::Remote;
use super::content::Content;
use super::disk::store::{Answer, Session, Store};
use super::disk::{Kind, Slot, lock, sectors};
use super::executor::Executor;
use super::line::Line;
use super::points::Points;
use super::sabotage::Lie;
use crate::rng::Rng;

/// Longest time until a lost session is told of, where it is told at all.
const TOLD_MS_MAX: u64 = 500;

/// Longest time that a command of a lost session may still be under way at the leg.
const LINGERS_MS_MAX: u64 = 4000;

/// Time that a target out of reach lets an attempt to connect wait at most.
const REFUSED_MS_MAX: u64 = 1500;

/// A link that is down for longer is one that is not to be used yet.
const OPEN_WITHIN: Duration = Duration::from_secs(100);

/// Hears what became of a command.
type Then = Box<dyn FnOnce(Leg, Answer) + Send>;

/// A leg. Clones share it.
#[derive(Clone)]
pub(crate) struct Leg(Arc<Inner>);

struct Inner {
    number: usize,
    kind: Kind,
    store: Arc<Mutex<Store>>,
    way: u64,
    /// It knows reservations.
    fenced: Mutex<bool>,
    executor: Executor,
    points: Points,
    link: Mutex<Link>,
    line: Line,
    /// Who hears of commands that wait for a barrier.
    behind: Mutex<BTreeMap<u64, Then>>,
    /// Whose pauses `connect` uses: those of the present start of the host.
    host: Mutex<Arc<dyn Host>>,
}

struct Link {
    rng: Rng,
    /// Sessions so far; the last is the present one.
    session: u64,
    /// The last session in which something else than metadata was written.
    written_in: u64,
    /// The present session has no fault so far.
    alive: bool,
    /// Until then there is no way to the leg.
    down_until: Duration,
    /// Until then everything takes much longer.
    slow_until: Duration,
    /// What each operation takes more than its kind says.
    farther: Duration,
    /// Longest time that a command of a lost session may still be under way, in milliseconds.
    lingers_ms_max: u64,
    identity: String,
    /// Who waits for answers in the present session.
    waiting: Vec<Weak<Slot>>,
    lie: Option<Lie>,
    /// How often that was done.
    lied: u64,
}

impl Leg {
    pub(crate) fn new(
        number: usize,
        kind: Kind,
        executor: Executor,
        points: Points,
        line: Line,
        mut rng: Rng,
    ) -> Self {
        let mut store = Store::new(rng.fork());
        let stamps = kind.bytes.saturating_sub(TAIL_BYTES) + 2 * BLOCK_BYTES;
        store.stamps = sectors(stamps, 2 * BLOCK_BYTES);
        let store = Arc::new(Mutex::new(store));
        Self::over(number, kind, store, 0, executor, points, line, rng)
    }

    /// A way to a disk that can be reached on other ways as well.
    #[expect(clippy::too_many_arguments, reason = "parts of a leg, all different")]
    pub(crate) fn over(
        number: usize,
        kind: Kind,
        store: Arc<Mutex<Store>>,
        way: u64,
        executor: Executor,
        points: Points,
        line: Line,
        rng: Rng,
    ) -> Self {
        let link = Mutex::new(Link {
            rng,
            session: 0,
            written_in: 0,
            alive: false,
            down_until: Duration::ZERO,
            slow_until: Duration::ZERO,
            farther: Duration::ZERO,
            lingers_ms_max: LINGERS_MS_MAX,
            identity: format!("naa.60000000000000{number:02}"),
            waiting: Vec::new(),
            lie: None,
            lied: 0,
        });
        let host = Mutex::new(executor.host() as Arc<dyn Host>);
        let (fenced, behind) = (Mutex::new(false), Mutex::default());
        Self(Arc::new(Inner {
            number,
            kind,
            store,
            way,
            fenced,
            executor,
            points,
            link,
            line,
            behind,
            host,
        }))
    }

    pub(crate) fn set_lie(&self, lie: Option<Lie>) {
        lock(&self.0.store).set_lie(lie);
        lock(&self.0.link).lie = lie;
    }

    /// Whether it knows reservations.
    pub(crate) fn set_fenced(&self, fenced: bool) {
        *lock(&self.0.fenced) = fenced;
    }

    /// On which way it is reached.
    pub(crate) fn way(&self) -> u64 {
        self.0.way
    }

    /// There is a way to it, as far as is known beforehand.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.0.link).down_until.saturating_sub(self.0.executor.now()) < OPEN_WITHIN
    }

    /// How often it has lied.
    pub(crate) fn lied(&self) -> u64 {
        lock(&self.0.link).lied + lock(&self.0.store).lied
    }

    /// What passes between it and the engine.
    pub(crate) fn line(&self) -> &Line {
        &self.0.line
    }

    pub(crate) fn set_host(&self, host: Arc<dyn Host>) {
        *lock(&self.0.host) = host;
    }

    pub(crate) fn store(&self) -> &Mutex<Store> {
        &self.0.store
    }

    /// Number of the present session.
    pub(crate) fn session(&self) -> u64 {
        lock(&self.0.link).session
    }

    /// The present session, as the disk knows it.
    pub(crate) fn login(&self) -> Session {
        self.numbered(self.session())
    }

    fn numbered(&self, number: u64) -> Session {
        Session::Login { way: self.0.way, number }
    }

    /// Number of the last session in which something else than metadata was written: before that a
    /// mirror has a new superblock there, and knows it.
    pub(crate) fn written_in(&self) -> u64 {
        lock(&self.0.link).written_in
    }

    pub(crate) fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The link fails for `down`. What is under way is not answered.
    pub(crate) fn cut_link(&self, down: Duration) {
        let mut link = lock(&self.0.link);
        link.down_until = link.down_until.max(self.0.executor.now() + down);
        let was_alive = std::mem::take(&mut link.alive);
        let told = link.rng.coin();
        let delay = Duration::from_millis(link.rng.skewed(TOLD_MS_MAX));
        let waiting = std::mem::take(&mut link.waiting);
        let (session, lingers) = (self.numbered(link.session), link.lingers_ms_max);
        drop(link);
        if was_alive {
            lock(&self.0.store).lose_session(self.0.way);
            let leg = self.clone();
            let lingers = Duration::from_millis(lingers);
            self.0.executor.after(lingers, move || lock(&leg.0.store).forget(session));
        }
        if told {
            self.0.executor.after(delay, move || {
                for slot in waiting.iter().filter_map(Weak::upgrade) {
                    slot.set(Err(BlockError::Unreachable("simulated reset".into())));
                }
            });
        }
    }

    /// The power of the leg fails for `down`.
    pub(crate) fn cut_power(&self, down: Duration) {
        {
            let mut link = lock(&self.0.link);
            if link.lie == Some(Lie::HidesPowerCut) {
                // The session goes on as if nothing were.
                link.lied += 1;
                return lock(&self.0.store).cut();
            }
        }
        self.cut_link(down);
        lock(&self.0.store).cut();
    }

    /// Everything takes long for a while.
    pub(crate) fn slow_down(&self, time: Duration) {
        lock(&self.0.link).slow_until = self.0.executor.now() + time;
    }

    /// Its way is so much longer than its kind says.
    pub(crate) fn move_away(&self, by: Duration) {
        lock(&self.0.link).farther = by;
    }

    /// A command of a lost session is under way for no longer than that.
    pub(crate) fn set_lingers(&self, at_most: Duration) {
        lock(&self.0.link).lingers_ms_max = at_most.as_millis() as u64;
    }

    /// Another unit is found at the same place from now on.
    pub(crate) fn replace(&self) {
        self.put_back(BTreeMap::new());
        lock(&self.0.link).identity = "naa.6fffffffffffff00".into();
    }

    /// The unit is put back to an earlier content.
    pub(crate) fn put_back(&self, content: BTreeMap<u64, Content>) {
        self.cut_link(Duration::ZERO);
        lock(&self.0.store).put_back(content);
    }

    /// All is well from now on.
    pub(crate) fn heal(&self) {
        let now = self.0.executor.now();
        let mut link = lock(&self.0.link);
        (link.down_until, link.slow_until) = (now, now);
        drop(link);
        let mut store = lock(&self.0.store);
        store.full = false;
        store.faults = Default::default();
    }

    /// A command is carried out. One of a session that was lost meanwhile may wait a while longer.
    fn arrive(&self, session: u64, id: u64, then: Then) {
        let mut link = lock(&self.0.link);
        let lost = !link.alive || link.session != session;
        if lost && link.rng.coin() {
            let longest = link.lingers_ms_max;
            let delay = Duration::from_millis(link.rng.below(longest));
            let leg = self.clone();
            let ends: Then = Box::new(move |leg, _| lock(&leg.0.store).answered(id));
            return self.0.executor.after(delay, move || leg.carry_out(id, ends));
        }
        drop(link);
        self.carry_out(id, then);
    }

    /// Carries a command out, or has it wait for a barrier.
    fn carry_out(&self, id: u64, then: Then) {
        let (result, ripe) = {
            let mut store = lock(&self.0.store);
            (store.perform(id), store.take_ripe())
        };
        let now = self.0.executor.now();
        let Some(result) = result else {
            self.0.points.log(now, || format!("leg {} {id} waits, or is gone", self.0.number));
            lock(&self.0.behind).insert(id, then);
            return;
        };
        self.0.points.log(now, || format!("leg {} {id} is carried out", self.0.number));
        then(self.clone(), result);
        for next in ripe {
            let delay = self.0.kind.latency(&mut lock(&self.0.link).rng) / 8;
            let leg = self.clone();
            self.0.executor.after(delay, move || {
                let then = lock(&leg.0.behind).remove(&next);
                leg.carry_out(next, then.unwrap_or_else(|| Box::new(|_, _| {})));
            });
        }
    }

    async fn open(self) -> block::Result<OpenLeg> {
        let host = lock(&self.0.host).clone();
        let unreachable = || BlockError::Unreachable("simulated: no route".into());
        let (there, refused) = {
            let mut link = lock(&self.0.link);
            let refused = link.rng.skewed(REFUSED_MS_MAX);
            (self.0.kind.latency(&mut link.rng), Duration::from_millis(refused))
        };
        host.sleep(there).await;
        if lock(&self.0.link).down_until > self.0.executor.now() {
            host.sleep(refused).await;
            return Err(unreachable());
        }
        let session = {
            let mut link = lock(&self.0.link);
            link.session += 1;
            link.alive = true;
            link.waiting.clear();
            lock(&self.0.behind).clear();
            let mut store = lock(&self.0.store);
            store.quiesce(self.numbered(link.session));
            link.session
        };
        let now = self.0.executor.now();
        self.0.points.log(now, || format!("leg {} session {session}", self.0.number));
        self.0.points.pass();
        host.sleep(there).await;
        let link = lock(&self.0.link);
        if !link.alive || link.session != session {
            return Err(unreachable());
        }
        let remote = Arc::new(Remote { leg: self.clone(), session });
        let ordered: Arc<dyn OrderedWrites> = remote.clone();
        let ordered = self.0.kind.ordered.then(|| self.0.line.barriers(session, ordered));
        let ordered = ordered.ok_or_else(|| "simulated: no barriers".to_owned());
        let device = self.0.line.begin(session, remote.clone());
        let fence = lock(&self.0.fenced).then_some(remote as Arc<dyn Fence>);
        let inside = Err(String::new());
        Ok(OpenLeg { device, identity: link.identity.clone(), ordered, fence, inside })
    }
}

impl LegSource for Leg {
    fn name(&self) -> String {
        format!("leg{}", self.0.number)
    }

    fn connect(&self) -> Pin<Box<dyn Future<Output = block::Result<OpenLeg>> + Send>> {
        Box::pin(self.clone().open())
    }
}
