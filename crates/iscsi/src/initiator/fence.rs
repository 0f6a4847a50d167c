//! [`Reservation`]: keeps others from writing to a unit, and is kept from it, by a persistent
//! reservation "write exclusive, registrants only" (SPC-4 §5.12).
//!
//! A reservation belongs to I_T nexuses, and a disk has one for each of its sessions: all of them
//! are registered, those that join later before their first command (`extra`). Anybody may
//! register, a host that was preempted too. So whoever registers looks afterwards who has the
//! reservation, and takes the registration back if it is somebody else: one who preempts us before
//! we look is seen, one who does it later ends the registration.
//!
//! READ FULL STATUS is not asked for: who holds the reservation is a key here, not a nexus.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use block::mirror::Fence;
use block::{BlockError, Io, Result};
use iscsi_proto::initiator::Command;
use iscsi_proto::pdu::TaskAttribute;

use super::cdb;
use super::disk::RemoteDisk;
use super::isid::digest_long;
use super::member::Part;
use super::probe::Prober;
use super::reservation::{
    ALLOCATION_LEN, Action, Held, Question, WRITE_EXCLUSIVE_REGISTRANTS_ONLY, ask, held, keys,
};
use super::sense::judge_reservation;
use super::shared::Shared;
use super::state::{State, command};

/// Times that others may be quicker with the reservation that we take.
const ROUNDS_MAX: u32 = 8;

/// The reservation of a leg's unit, over the sessions of one disk.
pub(super) struct Reservation(RemoteDisk);

impl Reservation {
    /// `None`: the unit knows no persistent reservations.
    pub(super) async fn of(disk: &RemoteDisk) -> Result<Option<Self>> {
        let shared = disk.shared();
        let nexus = leading(shared)?;
        match read(&nexus, Question::Keys).await {
            Ok(_) => Ok(Some(Self(disk.clone()))),
            Err(error @ BlockError::Unreachable(_)) => Err(error),
            Err(BlockError::Unsupported(_)) => Ok(None),
            // Another kind of reservation stands against it now.
            Err(_) => Ok(Some(Self(disk.clone()))),
        }
    }

    fn later<T: Send + 'static, F>(&self, operation: impl FnOnce(RemoteDisk) -> F) -> Io<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        Io::later(operation(self.0.clone()))
    }
}

impl RemoteDisk {
    /// The unit's reservation; `None` where it knows none.
    ///
    /// # Errors
    /// The target cannot be asked.
    pub async fn fence(&self) -> Result<Option<Arc<dyn Fence>>> {
        let fence = Reservation::of(self).await?;
        Ok(fence.map(|fence| Arc::new(fence) as Arc<dyn Fence>))
    }

    /// A key to reserve the unit under that this initiator port has, and its successor under the
    /// same name, and nobody else.
    pub fn reservation_key(&self) -> u64 {
        let shared = self.shared();
        let port = format!("{} {:06x}", shared.config.initiator_name, shared.isid.bits);
        digest_long(&port) | 1 // no registration has the key 0
    }
}

impl Fence for Reservation {
    fn hold(&self, key: u64) -> Io<()> {
        self.later(move |disk| async move { hold(disk.shared(), key).await })
    }

    fn take(&self, key: u64) -> Io<()> {
        self.later(move |disk| async move { take(disk.shared(), key).await })
    }

    fn holder(&self) -> Io<Option<u64>> {
        self.later(|disk| async move {
            Ok(reservation(&leading(disk.shared())?).await?.map(|held| held.key))
        })
    }

    fn release(&self, key: u64) -> Io<()> {
        self.later(move |disk| async move { release(disk.shared(), key).await })
    }
}

impl State {
    /// Sessions that carry commands, or will: each is a nexus.
    fn nexuses(&self) -> Vec<usize> {
        let has_part = |part| matches!(part, Part::Full | Part::Joining);
        let nexuses = self.members.iter().enumerate();
        nexuses.filter(|(_, m)| has_part(m.part) && m.session.is_open()).map(|(n, _)| n).collect()
    }
}

/// Registers under the key what joins from now on, and returns what is there to be registered.
fn begin(shared: &Shared, key: Option<u64>) -> Result<Vec<Prober<'_>>> {
    let mut state = shared.lock();
    state.fence_key = key;
    let incarnation = state.incarnation;
    let nexuses = state.nexuses();
    drop(state);
    if nexuses.is_empty() {
        return Err(super::state::session_ended());
    }
    Ok(nexuses.into_iter().map(|member| Prober { shared, incarnation, member }).collect())
}

fn leading(shared: &Shared) -> Result<Prober<'_>> {
    let state = shared.lock();
    let incarnation = state.incarnation;
    let first = state.nexuses().first().copied().ok_or_else(super::state::session_ended);
    first.map(|member| Prober { shared, incarnation, member })
}

async fn hold(shared: &Shared, key: u64) -> Result<()> {
    refuse_others(&leading(shared)?, key).await?;
    let nexuses = begin(shared, Some(key))?;
    let held = async {
        for nexus in &nexuses {
            register(nexus, key).await?;
        }
        let nexus = &nexuses[0];
        // One of our other nexuses may have it.
        if reservation(nexus).await?.is_none() {
            act(nexus, Action::Reserve { key }).await?;
        }
        demand_ours(nexus, key).await
    };
    let result = held.await;
    if matches!(result, Err(BlockError::Fenced)) {
        // Not after any other failure: it may be us who has the reservation, and it would go.
        give_back(shared, key).await;
    }
    result
}

/// Registers a session that joins a disk whose others are registered, before it carries anything.
pub(super) async fn join(nexus: &Prober<'_>) -> Result<()> {
    let key = nexus.shared.lock().fence_key;
    let Some(key) = key else { return Ok(()) };
    let joined = async {
        register(nexus, key).await?;
        demand_ours(nexus, key).await
    };
    let result = joined.await;
    if matches!(result, Err(BlockError::Fenced)) {
        let _ = act(nexus, Action::Unregister { key }).await;
    }
    result
}

async fn take(shared: &Shared, key: u64) -> Result<()> {
    let nexuses = begin(shared, Some(key))?;
    for nexus in &nexuses {
        register(nexus, key).await?;
    }
    let nexus = &nexuses[0];
    let mut rounds = 0;
    loop {
        let taken = match reservation(nexus).await? {
            Some(held) if is_ours(held, key) => break,
            Some(Held { key: victim, .. }) => preempt(nexus, key, victim).await,
            None => act(nexus, Action::Reserve { key }).await,
        };
        rounds += 1;
        match taken {
            Ok(()) => {}
            // Somebody else was quicker, and may have ended our registration.
            Err(BlockError::Fenced) if rounds < ROUNDS_MAX => register(nexus, key).await?,
            Err(error) => return Err(error),
        }
    }
    // Whoever is registered may write, also without the reservation.
    let others: BTreeSet<u64> = keys(&read(nexus, Question::Keys).await?).into_iter().collect();
    for victim in others.into_iter().filter(|other| *other != key) {
        match preempt(nexus, key, victim).await {
            Ok(()) | Err(BlockError::Fenced) => {} // gone already; if it is us, the next look tells
            Err(error) => return Err(error),
        }
    }
    demand_ours(nexus, key).await
}

/// Ends the registrations of a key, and what was asked for over them. tgt 1.0.85 knows PREEMPT
/// alone. There, what has not begun is refused from then on, and a command with the ORDERED
/// attribute waits for what has.
async fn preempt(nexus: &Prober<'_>, key: u64, victim: u64) -> Result<()> {
    match act(nexus, Action::Preempt { key, victim, aborts: true }).await {
        Err(BlockError::Unsupported(_)) => {}
        result => return result,
    }
    act(nexus, Action::Preempt { key, victim, aborts: false }).await?;
    let flush = command(nexus.shared.url.wire_lun(), cdb::synchronize_cache());
    let flush = Command { attribute: TaskAttribute::ORDERED, ..flush };
    nexus.answer(flush).await.map(drop)
}

async fn release(shared: &Shared, key: u64) -> Result<()> {
    let nexuses = begin(shared, None)?;
    let nexus = &nexuses[0];
    if reservation(nexus).await?.is_some_and(|held| is_ours(held, key)) {
        // A nexus of before may have it, and others of ours may be registered: all of that comes
        // to this one, and goes with it.
        register(nexus, key).await?;
        if_registered(act(nexus, Action::Preempt { key, victim: key, aborts: false }).await)?;
        if_registered(act(nexus, Action::Release { key }).await)?;
    }
    for nexus in &nexuses {
        if_registered(act(nexus, Action::Unregister { key }).await)?;
    }
    Ok(())
}

/// RESERVATION CONFLICT says that the nexus is not registered, which is what was wanted.
fn if_registered(done: Result<()>) -> Result<()> {
    match done {
        Err(BlockError::Fenced) => Ok(()),
        done => done,
    }
}

/// What was registered for nothing. As far as it can be done: the next login looks again.
async fn give_back(shared: &Shared, key: u64) {
    for nexus in begin(shared, None).unwrap_or_default() {
        let _ = act(&nexus, Action::Unregister { key }).await;
    }
}

const fn is_ours(held: Held, key: u64) -> bool {
    held.key == key && held.kind == WRITE_EXCLUSIVE_REGISTRANTS_ONLY
}

/// [`BlockError::Fenced`] unless we have the reservation.
async fn demand_ours(nexus: &Prober<'_>, key: u64) -> Result<()> {
    match reservation(nexus).await? {
        Some(held) if is_ours(held, key) => Ok(()),
        _ => Err(BlockError::Fenced),
    }
}

/// [`BlockError::Fenced`] if somebody else has the reservation.
async fn refuse_others(nexus: &Prober<'_>, key: u64) -> Result<()> {
    match reservation(nexus).await? {
        Some(held) if !is_ours(held, key) => Err(BlockError::Fenced),
        _ => Ok(()),
    }
}

async fn reservation(nexus: &Prober<'_>) -> Result<Option<Held>> {
    read(nexus, Question::Reservation).await.map(|data| held(&data))
}

/// Registers so that it outlives the power of the unit, or, where the unit cannot, without.
async fn register(nexus: &Prober<'_>, key: u64) -> Result<()> {
    match act(nexus, Action::RegisterAnyway { key, outlives_power: true }).await {
        Err(BlockError::Unsupported(_)) => {}
        result => return result,
    }
    let url = &nexus.shared.url;
    tracing::info!("{url}: the target forgets reservations when it loses power");
    act(nexus, Action::RegisterAnyway { key, outlives_power: false }).await
}

async fn act(nexus: &Prober<'_>, action: Action) -> Result<()> {
    let (cdb, list) = action.encode();
    let command = Command { data_out: list.into(), ..command(nexus.shared.url.wire_lun(), cdb) };
    nexus.answer_by(command, judge_reservation).await.map(drop)
}

async fn read(nexus: &Prober<'_>, question: Question) -> Result<Vec<u8>> {
    let (data_in_len, cdb) = (ALLOCATION_LEN.into(), ask(question, ALLOCATION_LEN));
    let command = Command { data_in_len, ..command(nexus.shared.url.wire_lun(), cdb) };
    nexus.answer(command).await
}
