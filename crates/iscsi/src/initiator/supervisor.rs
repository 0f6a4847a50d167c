//! Keeps a disk's sessions alive: sets up an incarnation, waits for its end, sets up the next one,
//! and tells the callers when it has been gone for too long.
//!
//! An incarnation is up when every session has logged in (with the same ISIDs, so that the target
//! drops what it still has of the last one, RFC 7143 §6.3.5), the unit is ready and is the same as
//! before, and what a volatile cache may have lost has been written again. Further connections of a
//! session come when they come: one whose first packet is lost holds up nobody.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, try_join_all};
use iscsi_proto::ids::Isid;
use iscsi_proto::initiator::ConnectionId;
use iscsi_proto::keys::ConnectionParams;
use tokio::task::JoinSet;

use super::config::AfterLoss;
use super::connect::{ConnectError, Link};
use super::extra;
use super::group::{Opening, Ready, establish};
use super::growth::Job;
use super::life::Pulse;
use super::member::{Member, Part};
use super::outage::Outage;
use super::probe::{Prober, Unit};
use super::rejoin::{self, Backoff, Rejoined};
use super::replay::replay;
use super::role::ConnectionRole;
use super::shared::Shared;
use super::state::Phase;
use crate::driver::{CloseReason, drive};
use crate::transport::Stream;

/// How long the drivers of an ended incarnation may take to close their sockets.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// What was to be opened.
enum Arrival {
    Connection(Rejoined),
    Session(Result<Link, ConnectError>),
    /// The unit answers over the session that was added here.
    Settled(usize, Result<(), ConnectError>),
}

/// The drivers of an incarnation. Dropping it closes their sockets.
pub(super) struct Incarnation {
    number: u64,
    drivers: JoinSet<()>,
    /// Connections and sessions that are being opened.
    arrivals: JoinSet<Arrival>,
}

impl Incarnation {
    fn new(number: u64) -> Self {
        Self { number, drivers: JoinSet::new(), arrivals: JoinSet::new() }
    }

    fn drive(
        &mut self,
        shared: &Arc<Shared>,
        member: usize,
        id: ConnectionId,
        mut stream: Stream,
        params: ConnectionParams,
    ) {
        let incarnation = self.number;
        let mut role = ConnectionRole::new(shared.clone(), incarnation, member, id);
        let shared = shared.clone();
        self.drivers.spawn(async move {
            let reason = drive(&mut stream, params.framing(), params.limits(), &mut role).await;
            // Otherwise it is being set up or closed, and whoever does that says what went wrong.
            let in_use = shared.lock().phase == Phase::Up;
            match reason {
                CloseReason::LoggedOut => tracing::debug!(incarnation, member, "logged out"),
                reason if in_use => {
                    tracing::warn!(incarnation, member, %reason, "connection ended");
                }
                reason => tracing::debug!(incarnation, member, %reason, "connection ended"),
            }
        });
    }

    /// Begins to open what is missing.
    fn open_missing(&mut self, shared: &Arc<Shared>, isid_bits: u32) {
        let now = shared.now();
        for job in shared.with(|state, _| state.jobs(now)) {
            self.begin_to_open(shared, isid_bits, job);
        }
        // Those that have ended need no keeping.
        while self.drivers.try_join_next().is_some() {}
    }

    fn begin_to_open(&mut self, shared: &Arc<Shared>, isid_bits: u32, job: Job) {
        let (shared, number) = (shared.clone(), self.number);
        match job {
            Job::Connection { member, cid, pause } => self.arrivals.spawn(async move {
                let rejoined = rejoin::rejoin(shared, number, member, cid, pause).await;
                Arrival::Connection(rejoined)
            }),
            Job::Session { qualifier } => self.arrivals.spawn(async move {
                let isid = Isid::random(isid_bits, qualifier);
                Arrival::Session(extra::open(&shared, number, isid).await)
            }),
        };
    }

    /// Takes in what is opened while something else is done.
    async fn meanwhile<T>(&mut self, shared: &Arc<Shared>, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                Some(Ok(arrival)) = self.arrivals.join_next() => self.arrived(shared, arrival),
                outcome = &mut work => return outcome,
            }
        }
    }

    /// Something was opened, or was not.
    fn arrived(&mut self, shared: &Arc<Shared>, arrival: Arrival) {
        self.take_in(shared, arrival);
        shared.settled.notify_waiters();
    }

    fn take_in(&mut self, shared: &Arc<Shared>, arrival: Arrival) {
        let number = self.number;
        let (member, link) = match arrival {
            Arrival::Connection(rejoined) => {
                let member = rejoined.member;
                (member, rejoin::install(shared, number, rejoined))
            }
            Arrival::Session(link) => match extra::install(shared, number, link) {
                Some((member, ready)) => (member, Some(ready)),
                None => return,
            },
            Arrival::Settled(member, result) => {
                return extra::settled(shared, number, member, &result);
            }
        };
        let Some((id, stream, params)) = link else { return };
        self.drive(shared, member, id, stream, params);
        shared.timers.notify_one();
        if shared.lock().member(number, member).is_some_and(|m| m.part == Part::Joining) {
            let shared = shared.clone();
            self.arrivals.spawn(async move {
                Arrival::Settled(member, extra::settle(&shared, number, member).await)
            });
        }
    }
}

/// Connects, logs in, probes, replays, and opens the gate.
pub(super) async fn bring_up(
    shared: &Arc<Shared>,
    isid_bits: u32,
) -> Result<Incarnation, ConnectError> {
    let portal = &shared.url.portal;
    let limit = shared.config.login_timeout;
    let timed_out = || ConnectError::TimedOut { portal: portal.clone(), seconds: limit.as_secs() };
    let began = shared.now();
    let opening = tokio::time::timeout(limit, establish(shared, isid_bits));
    let Opening { groups, joining } = opening.await.map_err(|_| timed_out())??;
    let (mut members, mut links) = (Vec::new(), Vec::new());
    for (index, group) in groups.into_iter().enumerate() {
        let mut member = Member::new(group.session, group.home.isid);
        member.home = Some(group.home);
        let Ready { id, stream, params } = group.leading;
        member.attach(id, stream.socket(), shared.lock().growth.opened(shared.now()));
        links.push((index, id, stream, params));
        members.push(member);
    }
    let sessions = members.len();
    if let Some(first) = members.first_mut() {
        first.rejoining.clone_from(&joining);
    }
    let now = shared.now();
    let incarnation = shared.with(|state, batch| {
        state.gather(now + now.since(began));
        state.begin(members, now, batch)
    });
    let mut drivers = Incarnation::new(incarnation);
    for (member, id, stream, params) in links {
        drivers.drive(shared, member, id, stream, params);
    }
    shared.timers.notify_one();
    // Both take some round trips, and neither needs the other.
    for cid in joining {
        let job = Job::Connection { member: 0, cid, pause: Duration::ZERO };
        drivers.begin_to_open(shared, isid_bits, job);
    }
    let probing = tokio::time::timeout(limit, probe(shared, incarnation, sessions));
    let unit = probing.await.map_err(|_| timed_out())??;
    let prober = Prober { shared, incarnation, member: 0 };
    drivers.meanwhile(shared, replay(&prober, &unit)).await?;
    shared.with(|state, batch| state.open(batch));
    shared.settled.notify_waiters();
    Ok(drivers)
}

/// Asks the unit everything that has to be known before the first command.
async fn probe(
    shared: &Shared,
    incarnation: u64,
    sessions: usize,
) -> Result<Arc<Unit>, ConnectError> {
    let prober = |member| Prober { shared, incarnation, member };
    let (first, probers) = (prober(0), (0..sessions).map(prober).collect::<Vec<_>>());
    let begin = || shared.lock().unit_changed = false;
    begin();
    // Each session is a nexus of its own, with unit attentions of its own. What is asked meanwhile
    // counts if the unit was ready and did not change: a round trip less.
    let (ready, described) =
        join(try_join_all(probers.iter().map(Prober::settle)), first.describe()).await;
    let was_ready = ready?.into_iter().all(|at_once| at_once) && !shared.lock().unit_changed;
    let unit = match described {
        Ok(unit) if was_ready => unit,
        _ => {
            begin(); // what is told from here on may be newer than the answers
            first.describe().await?
        }
    };
    if let Some(before) = shared.unit() {
        unit.check_same(&before)?;
    }
    Ok(shared.set_unit(unit))
}

/// Runs until the disk is closed.
pub(super) async fn supervise(shared: Arc<Shared>, isid_bits: u32, first: Incarnation) {
    let mut incarnation = first;
    let mut backoff = Backoff::default();
    loop {
        let why = loop {
            // Looks before it waits: the session may have ended while it was being set up.
            let (ended, unit_changed, closed) = {
                let mut state = shared.lock();
                let unit_changed = std::mem::take(&mut state.unit_changed);
                (state.ended.clone(), unit_changed, state.phase == Phase::Closed)
            };
            match ended {
                Some(_) if closed => return drain(incarnation).await,
                Some(why) => break why,
                None if unit_changed => refresh(&shared).await,
                None => {}
            }
            if !closed {
                incarnation.open_missing(&shared, isid_bits);
            }
            tokio::select! {
                () = shared.changed.notified() => {}
                Some(Ok(arrival)) = incarnation.arrivals.join_next() => {
                    incarnation.arrived(&shared, arrival);
                }
            }
        };
        if shared.config.after_loss == AfterLoss::Die {
            tracing::warn!("{}: connection lost ({why})", shared.url);
            shared.settled.notify_waiters();
            return drain(incarnation).await;
        }
        let outage = Outage::begin(&shared, &why);
        if shared.lock().carried {
            backoff = Backoff::default();
        }
        let time2wait = shared.time2wait();
        drain(incarnation).await;
        match reconnect(&shared, isid_bits, &why, time2wait, &mut backoff).await {
            Some(next) => {
                outage.end(&shared);
                incarnation = next;
            }
            None => return,
        }
    }
}

/// Lets the drivers of an ended incarnation close their sockets.
async fn drain(mut incarnation: Incarnation) {
    incarnation.arrivals.abort_all();
    // They were woken and have nothing to wait for; who does not go is dropped.
    let all = async { while incarnation.drivers.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, all).await;
}

/// Tries until it succeeds, or the disk is closed (`None`).
async fn reconnect(
    shared: &Arc<Shared>,
    isid_bits: u32,
    why: &str,
    time2wait: Duration,
    backoff: &mut Backoff,
) -> Option<Incarnation> {
    let patience = shared.config.replacement_timeout;
    let mut give_up_at = tokio::time::Instant::now() + patience;
    let mut last = why.to_string();
    // It grows until a session has carried data: a target may accept a login and break at once.
    let mut pause = time2wait.max(backoff.take());
    let mut waiting = true;
    loop {
        let delay = pause;
        let attempt = async {
            tokio::time::sleep(delay).await;
            bring_up(shared, isid_bits).await
        };
        tokio::pin!(attempt);
        let result = loop {
            tokio::select! {
                result = &mut attempt => break result,
                () = tokio::time::sleep_until(give_up_at), if waiting => {
                    // A target that takes what is written again is not gone.
                    let again = shared.deadline(shared.lock().progress_at) + patience;
                    if again > give_up_at {
                        give_up_at = again;
                        continue;
                    }
                    waiting = false;
                    Outage::give_up(shared, &last);
                    let phase = Phase::Unreachable(last.clone());
                    shared.with(|state, batch| state.give_up(phase, &last, batch));
                    shared.settled.notify_waiters();
                }
                () = shared.changed.notified() => {
                    if shared.lock().phase == Phase::Closed {
                        return None;
                    }
                }
            }
        };
        match result {
            Ok(incarnation) => {
                return Some(incarnation);
            }
            Err(error) => {
                tracing::debug!(%error, "cannot reconnect yet");
                last = error.to_string();
                shared.with(|state, batch| state.end(last.clone(), batch));
                pause = backoff.take();
            }
        }
    }
}

/// The unit said that it changed: learn its new size.
async fn refresh(shared: &Shared) {
    let (incarnation, member) = {
        let state = shared.lock();
        (state.incarnation, state.leading())
    };
    match (Prober { shared, incarnation, member }).describe().await {
        Ok(unit) => {
            tracing::info!(size = unit.info.size, "unit changed");
            let cache = unit.cache;
            shared.set_unit(unit);
            let mut state = shared.lock();
            if !state.unit_changed {
                state.durability.set_cache(cache);
            }
        }
        Err(error) => tracing::warn!(%error, "unit changed, but does not say how"),
    }
}

/// Serves the timers of sessions and resting commands until the disk is closed.
pub(super) async fn keep_time(shared: Arc<Shared>) {
    let mut pulse = Pulse::default();
    loop {
        let next = shared.lock().next_timeout();
        let due = async {
            match next {
                Some(at) => tokio::time::sleep_until(shared.deadline(at)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {
                let now = shared.now();
                pulse.feel(&shared, now);
                shared.with(|state, batch| state.expire(now, batch));
            }
            () = shared.timers.notified() => {}
        }
    }
}
