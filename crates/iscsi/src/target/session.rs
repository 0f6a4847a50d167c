//! A session as its connections share it: the core behind a lock, the SCSI nexus, and how one
//! connection's task is woken by another.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::{Either, select};
use futures_util::task::AtomicWaker;
use iscsi_proto::ids::{Itt, Lun, Tsih};
use iscsi_proto::target::{Admission, Completion, ConnId, Delivery, Orphans, Session};
use iscsi_proto::time::Instant;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::budget::Account;
use super::limit::{Throttle, Wait};
use super::overview::{About, Link};
use super::write_buffers::Collecting;

/// The clock of every core: time since the process asked first.
pub(crate) fn now() -> Instant {
    use std::sync::OnceLock;
    static EPOCH: OnceLock<std::time::Instant> = OnceLock::new();
    Instant(EPOCH.get_or_init(std::time::Instant::now).elapsed())
}

/// A session shared by the tasks of its connections.
pub(super) struct SharedSession {
    pub(super) tsih: Tsih,
    pub(super) initiator_name: String,
    pub(super) nexus: scsi::Nexus,
    pub(super) about: About,
    pub(super) account: Arc<Account>,
    links: Mutex<BTreeMap<ConnId, Link>>,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    core: Mutex<Session>,
    /// The session this one reinstates, until none of its commands can execute any more. It has
    /// none itself: whoever reinstates a session that waits takes over what that waits for.
    predecessor: Mutex<Option<Arc<SharedSession>>>,
    wakers: Mutex<BTreeMap<ConnId, Arc<AtomicWaker>>>,
    /// Data of writes whose connection was lost (error recovery level 2), for the one that takes
    /// them over.
    orphans: Mutex<Orphans<Collecting>>,
    /// Told whenever a command ends.
    settled: Notify,
    /// How many wait for that: commands that end at once ask before they tell.
    waiters: AtomicUsize,
    /// The log does not tell of its beginning, nor will it of its end.
    unlogged: AtomicBool,
    /// What its commands have to wait for.
    throttle: Mutex<Throttle>,
    /// Commands that do.
    held: AtomicUsize,
}

impl SharedSession {
    pub(super) fn new(
        tsih: Tsih,
        initiator_name: String,
        nexus: scsi::Nexus,
        about: About,
        account: Arc<Account>,
        core: Session,
        predecessor: Option<Arc<Self>>,
    ) -> Self {
        Self {
            tsih,
            initiator_name,
            nexus,
            about,
            account,
            links: Mutex::default(),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            core: Mutex::new(core),
            predecessor: Mutex::new(predecessor),
            wakers: Mutex::default(),
            orphans: Mutex::default(),
            settled: Notify::new(),
            waiters: AtomicUsize::new(0),
            unlogged: AtomicBool::new(false),
            throttle: Mutex::default(),
            held: AtomicUsize::new(0),
        }
    }

    /// Runs `f` on the core, then wakes the connections it gave work to. Nothing that waits,
    /// copies or computes digests belongs into `f`.
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Session) -> T) -> T {
        self.run(None, f)
    }

    /// As [`with`](Self::with), from the task of `conn`, which looks for its own work itself.
    fn with_own<T>(&self, conn: ConnId, f: impl FnOnce(&mut Session) -> T) -> T {
        self.run(Some(conn), f)
    }

    fn run<T>(&self, own: Option<ConnId>, f: impl FnOnce(&mut Session) -> T) -> T {
        let mut core = locked(&self.core);
        let result = f(&mut core);
        let mut woken = Vec::new(); // allocates only if another connection has work
        while let Some(conn) = core.poll_wake() {
            if Some(conn) != own && !woken.contains(&conn) {
                woken.push(conn);
            }
        }
        let mut aborted = Vec::new(); // and this one only if a command was aborted
        while let Some(itt) = core.poll_abort() {
            aborted.push(itt);
        }
        while let Some(delivery) = core.poll_delivery() {
            match delivery {
                Delivery::Acknowledged(receipt) => self.nexus.received(scsi::Receipt(receipt.0)),
                Delivery::Lost(receipt) => self.nexus.lost(scsi::Receipt(receipt.0)),
            }
        }
        if core.is_closed() && core.is_quiet() {
            // Under the lock: the answer to a logout is in the core, and another thread may send
            // it. Whoever reads it and logs in anew must not find the reservations of this session.
            self.nexus.end();
        }
        drop(core);
        aborted.into_iter().for_each(|itt| self.nexus.abort(u64::from(itt.0)));
        if !woken.is_empty() {
            self.wake(&woken);
        }
        result
    }

    fn wake(&self, conns: &[ConnId]) {
        let wakers = locked(&self.wakers);
        for waker in conns.iter().filter_map(|conn| wakers.get(conn)) {
            waker.wake();
        }
    }

    pub(super) fn register(&self, conn: ConnId) -> Arc<AtomicWaker> {
        let waker = Arc::new(AtomicWaker::new());
        let mut wakers = locked(&self.wakers);
        wakers.insert(conn, Arc::clone(&waker));
        waker
    }

    pub(super) fn unregister(&self, conn: ConnId) {
        locked(&self.wakers).remove(&conn);
    }

    /// Keeps the buffers of a lost connection. Before the core is told of the loss, so that whoever
    /// takes the tasks over finds them.
    pub(super) fn adopt(&self, conn: ConnId, writes: impl IntoIterator<Item = (Itt, Collecting)>) {
        let mut orphans = locked(&self.orphans);
        self.with(|core| orphans.adopt(core, conn, writes));
    }

    /// The buffer of a task that was taken over.
    pub(super) fn orphan(&self, itt: Itt) -> Option<Collecting> {
        locked(&self.orphans).take(itt)
    }

    /// Drops the buffers of tasks that are no more.
    pub(super) fn bury_orphans(&self) {
        let mut orphans = locked(&self.orphans);
        if !orphans.is_empty() {
            self.with(|core| orphans.bury(core));
        }
    }

    /// A connection is in full-feature phase: operators may see it.
    pub(super) fn add_link(&self, conn: ConnId, link: Link) {
        locked(&self.links).insert(conn, link);
    }

    pub(super) fn remove_link(&self, conn: ConnId) {
        locked(&self.links).remove(&conn);
    }

    /// The socket of a connection in full-feature phase.
    pub(super) fn stream(&self, conn: ConnId) -> Option<Arc<TcpStream>> {
        locked(&self.links).get(&conn).map(|link| Arc::clone(&link.stream))
    }

    pub(super) fn links<T>(&self, f: impl FnOnce(&mut dyn Iterator<Item = &Link>) -> T) -> T {
        f(&mut locked(&self.links).values())
    }

    /// The initiator has hung up a connection that has not come to its end here.
    pub(super) fn is_left(&self) -> bool {
        locked(&self.links).values().any(Link::is_closed_by_peer)
    }

    /// Connections in full-feature phase.
    pub(super) fn connections(&self) -> Vec<ConnId> {
        locked(&self.links).keys().copied().collect()
    }

    /// The log has too much about this peer already.
    pub(super) fn leave_out(&self) {
        self.unlogged.store(true, Ordering::Relaxed);
    }

    /// Does the log tell of this session?
    pub(super) fn is_logged(&self) -> bool {
        !self.unlogged.load(Ordering::Relaxed)
    }

    /// Other limits for its commands, from the next one on.
    pub(super) fn set_throttle(&self, throttle: Throttle) {
        let limits = throttle.limits();
        *locked(&self.throttle) = throttle;
        self.with(|core| core.set_holding(limits));
    }

    /// What a command has to wait for, if it has to.
    pub(super) fn wait_for_limit(self: &Arc<Self>, admission: &Admission) -> Option<Wait> {
        let wait = locked(&self.throttle).wait(admission)?;
        let waiting = HeldBack::begin(Arc::clone(self));
        Some(Box::pin(async move {
            wait.await;
            drop(waiting);
        }))
    }

    /// Does a limit hold back any of its commands?
    pub(super) fn is_held_back(&self) -> bool {
        self.held.load(Ordering::Relaxed) > 0
    }

    /// Counts the data of a command.
    pub(super) fn moved(&self, read_len: usize, written_len: usize) {
        for (sum, len) in [(&self.read_bytes, read_len), (&self.written_bytes, written_len)] {
            if len > 0 {
                sum.fetch_add(len as u64, Ordering::Relaxed);
            }
        }
    }

    /// Bytes read and written so far.
    pub(super) fn traffic(&self) -> (u64, u64) {
        (self.read_bytes.load(Ordering::Relaxed), self.written_bytes.load(Ordering::Relaxed))
    }

    /// As [`with_own`](Self::with_own); the core is first told of commands that have ended at once
    /// on their connection. Another thread may have aborted one meanwhile and wait for it.
    pub(super) fn with_ended<T>(
        &self,
        conn: ConnId,
        ended: &mut Vec<(Itt, Completion)>,
        f: impl FnOnce(&mut Session) -> T,
    ) -> T {
        let any = !ended.is_empty();
        let result = self.with_own(conn, |core| {
            for (itt, completion) in ended.drain(..) {
                core.complete(itt, completion);
            }
            f(core)
        });
        // Whoever looked at the core before these commands ended was counted before that, and the
        // lock of the core tells us of it; whoever looks later finds them ended.
        if any && self.waiters.load(Ordering::Relaxed) > 0 {
            self.settled.notify_waiters();
        }
        result
    }

    /// A command that had to wait for its medium has ended.
    pub(super) fn complete_late(&self, itt: Itt, completion: Completion) {
        self.with(|core| core.complete(itt, completion));
        self.settled.notify_waiters();
    }

    /// Ends the session: from now on nothing that it asks is done.
    pub(super) fn end(&self, reason: &'static str) {
        self.with(|core| core.close(reason));
    }

    /// [`Self::end`], then [`Self::ended`].
    pub(super) async fn close(&self, reason: &'static str) {
        self.end(reason);
        self.ended().await;
    }

    /// Of a session that was ended: waits until none of its commands, nor of the session it
    /// reinstates, can reach the medium any more.
    pub(super) async fn ended(&self) {
        self.outlive_predecessor().await;
        self.wait_until(Session::is_quiet).await;
    }

    /// Ends the session for one that reinstates it, and says what that has to wait for: this one,
    /// or what this one waits for itself, as it has no commands then and will never have any.
    ///
    /// However often an initiator comes back while a command hangs, one session waits for that
    /// command, and one login waits in that session.
    pub(super) fn give_way(self: &Arc<Self>) -> Arc<Self> {
        // First, so that no connection can enter it once nothing keeps it waiting.
        self.end("session reinstated");
        let inherited = locked(&self.predecessor).take();
        self.settle(); // its login has nothing to wait for any more
        inherited.unwrap_or_else(|| Arc::clone(self))
    }

    /// Does a session that this one reinstates keep it waiting?
    pub(super) fn waits(&self) -> bool {
        locked(&self.predecessor).is_some()
    }

    /// Waits until no command of the session this one reinstates can reach the medium: a stale
    /// write must not land on what the initiator writes from now on. Returns, too, when another
    /// session has taken over the wait.
    pub(super) async fn outlive_predecessor(&self) {
        let predecessor = locked(&self.predecessor).clone();
        let Some(predecessor) = predecessor else { return };
        let taken_over = pin!(self.wait_while(Self::waits));
        let quiet = pin!(predecessor.wait_until(Session::is_quiet));
        if let Either::Right(_) = select(taken_over, quiet).await {
            locked(&self.predecessor).take();
        }
    }

    /// Another session ended all tasks of a unit (`None`: of all units): returns when none of
    /// ours executes there any more.
    pub(super) async fn abort_and_wait(&self, lun: Option<Lun>) {
        self.with(|core| core.abort_all(lun));
        self.wait_until(Session::has_no_aborted_tasks).await;
    }

    async fn wait_until(&self, condition: impl Fn(&Session) -> bool) {
        self.wait_while(|session| !session.with(|core| condition(core))).await;
    }

    async fn wait_while(&self, condition: impl Fn(&Self) -> bool) {
        let _waiter = Waiter::new(&self.waiters);
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if !condition(self) {
                return;
            }
            settled.await;
        }
    }

    /// Tells whoever waits for something of this session to look again.
    pub(super) fn settle(&self) {
        self.settled.notify_waiters();
    }
}

/// A command that waits for a limit, for as long as it does.
struct HeldBack(Arc<SharedSession>);

impl HeldBack {
    fn begin(session: Arc<SharedSession>) -> Self {
        session.held.fetch_add(1, Ordering::Relaxed);
        Self(session)
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One that waits for commands to end, for as long as it does.
struct Waiter<'a>(&'a AtomicUsize);

impl<'a> Waiter<'a> {
    fn new(waiters: &'a AtomicUsize) -> Self {
        waiters.fetch_add(1, Ordering::Relaxed);
        Self(waiters)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere is our bug; what the lock guards is still the best there is.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
