//! [`Home`]: a volume that is opened when somebody wants something of it, and let go when nobody
//! has for a while; and what is known of it meanwhile, so that a viewer of storage that is off is
//! told so at once.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use block::Device;
use iscsi::initiator::Secret;
use tokio::time::Instant;
use tracing::{info, warn};
use uplink::server::{Presence, Uplinks};

use crate::aside::aside;
use crate::catalogue::HomeSpec;
use crate::lease::Lease;
use crate::opened::Opened;

/// How long an opening may take: a login of several round trips at 300 ms, and what is read then.
const OPEN_TIME_MAX: Duration = Duration::from_secs(12);

/// How long storage that is off is left alone.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// While somebody looks at the page, whether storage that nobody uses is still there is looked at
/// so often: a login each time.
const LOOK_AGAIN: Duration = Duration::from_secs(120);

/// What a stream ends with that may be of another file from then on.
pub(crate) const EDITED: &str = "its owner is editing it";

/// How volumes are opened, which is the caller's.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Those behind a URL.
    pub volumes: backends::Config,
    /// A file or a block device of this machine, to be read.
    pub path: fn(&Path) -> Result<Device, String>,
    /// The first line of a file with a password.
    pub secret: fn(&Path) -> Result<Secret, String>,
    /// What calls this server, if anything may.
    pub uplinks: Option<Uplinks>,
}

/// A volume of a catalogue.
pub struct Home {
    spec: HomeSpec,
    opening: Opening,
    /// Held while it is opened: all who want it wait for one opening.
    opened: tokio::sync::Mutex<Option<Arc<Opened>>>,
    known: Mutex<Known>,
    /// Since when it is asked for.
    made: SystemTime,
    /// Nobody hears of its being off but by the log.
    is_logged: bool,
}

struct Known {
    condition: Condition,
    /// Somebody looks whether it is there, for the page.
    is_looked_at: bool,
}

enum Condition {
    /// Nobody has tried.
    Unknown,
    /// It was there then.
    There(Instant),
    /// Its owner has said that he unplugs it, and has not taken that back.
    Away(SystemTime),
    /// It was not.
    Off { since: SystemTime, retry: Instant, why: String, absence: Absence },
}

/// Storage that cannot be used now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Off {
    /// Name of the home.
    pub name: String,
    /// Since when that is known.
    pub since: SystemTime,
    /// When it is worth asking again.
    pub retry_after: Duration,
    /// What went wrong, for whoever runs the server: it may name addresses.
    pub why: String,
    /// In which way it cannot be used.
    pub absence: Absence,
}

/// In which way storage cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// It cannot be reached.
    Off,
    /// It can be reached, and what is there cannot be read.
    Damaged,
    /// Its owner has taken it away: nobody looks for it until he says that it is back.
    Away,
    /// Its owner is writing to it.
    Edited,
}

/// What a page shows of a home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nobody has tried.
    Unknown,
    /// It was there when somebody last used it.
    Ready,
    /// It is in use.
    On,
    /// It is not there.
    Off(Off),
}

impl Home {
    /// One that nobody has tried to use.
    pub fn new(spec: HomeSpec, opening: Opening) -> Self {
        let known = Known { condition: Condition::Unknown, is_looked_at: false };
        let (opened, known) = (tokio::sync::Mutex::default(), Mutex::new(known));
        Self { spec, opening, opened, known, made: SystemTime::now(), is_logged: false }
    }

    /// One whose going off is told in the log.
    pub(crate) fn logged(self) -> Self {
        Self { is_logged: true, ..self }
    }

    /// What it is.
    pub fn spec(&self) -> &HomeSpec {
        &self.spec
    }

    /// The volume, opened if it is not. Whoever waits for it and goes away changes nothing for
    /// others who wait.
    ///
    /// # Errors
    /// It is off, or was so a moment ago.
    pub async fn enter(self: &Arc<Self>) -> Result<Lease, Off> {
        if let Some(off) = self.away() {
            return Err(off);
        }
        if let Some(lease) = self.opened_now() {
            return Ok(lease);
        }
        if let Some(off) = self.not_calling().or_else(|| self.known_off()) {
            return Err(off);
        }
        let home = Arc::clone(self);
        // As a task, which goes on when nobody waits for it.
        match tokio::spawn(async move { home.open().await }).await {
            Ok(entered) => entered,
            Err(error) => Err(self.off(&format!("opening it ended: {error}"), Absence::Off)),
        }
    }

    fn opened_now(self: &Arc<Self>) -> Option<Lease> {
        let place = self.opened.try_lock().ok()?;
        place.as_ref().map(|opened| Lease::new(self, opened))
    }

    async fn open(self: &Arc<Self>) -> Result<Lease, Off> {
        let mut place = self.opened.lock().await;
        if let Some(opened) = &*place {
            return Ok(Lease::new(self, opened));
        }
        // Whoever had the lock has perhaps tried.
        if let Some(off) = self.known_off() {
            return Err(off);
        }
        let (spec, opening) = (self.spec.clone(), self.opening.clone());
        let opening = aside(move || Opened::open(spec, opening));
        match tokio::time::timeout(OPEN_TIME_MAX, opening).await {
            Ok(Some(Ok(opened))) => {
                let mut known = self.known();
                if let Some(off) = self.told_away(&known.condition) {
                    return Err(off); // it is logged out of as `opened` goes
                }
                info!(home = self.spec.name, volume = self.spec.place.key(), "opened");
                known.condition = Condition::There(Instant::now());
                let opened = place.insert(Arc::new(opened));
                Ok(Lease::new(self, opened))
            }
            Ok(Some(Err((why, absence)))) => Err(self.off(&why, absence)),
            Ok(None) => Err(self.off("opening it went wrong", Absence::Damaged)),
            Err(_) => {
                let why = format!("no answer within {OPEN_TIME_MAX:?}");
                Err(self.off(&why, Absence::Off))
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is off, and it is too early to try again.
    fn known_off(&self) -> Option<Off> {
        self.noted_off().filter(|off| !off.retry_after.is_zero())
    }

    /// It is to call this server, and does not. Once it does again, what was found before counts
    /// for nothing.
    fn not_calling(&self) -> Option<Off> {
        let (uplinks, name) = (self.opening.uplinks.as_ref()?, self.spec.uplink.as_deref()?);
        let since = match uplinks.presence(name) {
            Presence::Up { since: called } => {
                let mut known = self.known();
                if matches!(known.condition, Condition::Off { since, .. } if since <= called) {
                    known.condition = Condition::Unknown;
                }
                return None;
            }
            Presence::Gone { since } => since,
            Presence::Never => self.made,
        };
        let why = match uplinks.is_known(name) {
            true => "it does not call this server",
            false => "this server does not know it (`enkaku media uplink list`)",
        };
        Some(self.absent(Absence::Off, since, why))
    }

    /// It was off when somebody last tried.
    fn noted_off(&self) -> Option<Off> {
        match &self.known().condition {
            Condition::Off { since, retry, why, absence } => Some(Off {
                retry_after: retry.saturating_duration_since(Instant::now()),
                ..self.absent(*absence, *since, why)
            }),
            away => self.told_away(away),
        }
    }

    /// Its owner has it.
    fn away(&self) -> Option<Off> {
        self.told_away(&self.known().condition)
    }

    fn told_away(&self, condition: &Condition) -> Option<Off> {
        let Condition::Away(since) = condition else { return None };
        Some(self.absent(Absence::Away, *since, "its owner has taken it away"))
    }

    fn absent(&self, absence: Absence, since: SystemTime, why: &str) -> Off {
        let (name, why) = (self.spec.name.clone(), why.to_owned());
        Off { name, since, retry_after: RETRY_AFTER, why, absence }
    }

    /// Its owner is writing to it, since then.
    pub(crate) fn edited(&self, since: SystemTime) -> Off {
        self.absent(Absence::Edited, since, EDITED)
    }

    /// Its owner takes it away: nobody is let in from now on.
    pub(crate) fn set_away(&self, since: SystemTime) {
        self.known().condition = Condition::Away(since);
    }

    /// It is back: whoever wants something of it finds out whether it is there.
    pub(crate) fn take_back(&self) {
        let mut known = self.known();
        if matches!(known.condition, Condition::Away(_)) {
            known.condition = Condition::Unknown;
        }
    }

    /// Notes that it is off, and since when.
    fn off(&self, why: &str, absence: Absence) -> Off {
        let mut known = self.known();
        if let Some(away) = self.told_away(&known.condition) {
            return away;
        }
        let since = match &known.condition {
            Condition::Off { since, .. } => *since,
            _ => SystemTime::now(),
        };
        if self.is_logged && !matches!(known.condition, Condition::Off { .. }) {
            warn!(home = self.spec.name, volume = self.spec.place.key(), why, "off");
        }
        let retry = Instant::now() + RETRY_AFTER;
        known.condition = Condition::Off { since, retry, why: why.to_owned(), absence };
        self.absent(absence, since, why)
    }

    /// Somebody has found that it is not there any more: the next one begins anew.
    pub(crate) fn lost(self: &Arc<Self>, opened: &Arc<Opened>, why: &str) -> Off {
        let off = self.off(why, Absence::Off);
        let (home, opened) = (Arc::clone(self), Arc::clone(opened));
        tokio::spawn(async move {
            let mut place = home.opened.lock().await;
            if place.as_ref().is_some_and(|there| Arc::ptr_eq(there, &opened)) {
                *place = None;
            }
        });
        off
    }

    /// What a page shows.
    pub fn status(&self) -> Status {
        if let Some(off) = self.away().or_else(|| self.not_calling()) {
            return Status::Off(off);
        }
        if let Ok(place) = self.opened.try_lock()
            && let Some(opened) = &*place
        {
            return match (opened.down_since(), opened.view.edited_since()) {
                (None, None) => Status::On,
                (None, Some(since)) => Status::Off(self.edited(since)),
                (Some(since), _) => {
                    Status::Off(self.absent(Absence::Off, since, "it has no connection"))
                }
            };
        }
        if let Some(off) = self.noted_off() {
            return Status::Off(off);
        }
        match &self.known().condition {
            Condition::There(_) => Status::Ready,
            _ => Status::Unknown,
        }
    }

    /// Somebody looks at the page: what is not known, or was off, is tried again in the background.
    pub(crate) fn look(self: &Arc<Self>) {
        let is_open = self.opened.try_lock().map_or(true, |place| place.is_some());
        let mut known = self.known();
        let is_due = match &known.condition {
            Condition::Unknown => true,
            Condition::Away(_) => false,
            Condition::There(at) => !is_open && at.elapsed() >= LOOK_AGAIN,
            Condition::Off { retry, .. } => Instant::now() >= *retry,
        };
        if is_due && !std::mem::replace(&mut known.is_looked_at, true) {
            let home = Arc::clone(self);
            tokio::spawn(async move {
                let _ = home.enter().await; // what it finds is noted
                home.known().is_looked_at = false;
            });
        }
    }

    /// Logs out if nobody has used it for so long.
    pub(crate) fn let_go_after(&self, idle: Duration) {
        let Ok(mut place) = self.opened.try_lock() else { return };
        if let Some(opened) = &*place {
            opened.view.recent().forget_old();
        }
        // Every lease has a count of its own.
        let is_idle = place.as_ref().is_some_and(|opened| {
            Arc::strong_count(opened) == 1 && opened.last_used().elapsed() >= idle
        });
        if is_idle {
            info!(home = self.spec.name, "nobody uses it: logged out");
            let mut known = self.known();
            if !matches!(known.condition, Condition::Away(_)) {
                known.condition = Condition::There(Instant::now());
            }
            *place = None;
        }
    }

    /// Logs out, whoever uses it, if it is one that may not call this server any more: whose key
    /// was removed is not read from over connections from before.
    pub(crate) async fn close_if_removed(&self) {
        let (Some(uplinks), Some(name)) = (&self.opening.uplinks, &self.spec.uplink) else {
            return;
        };
        if !uplinks.is_known(name)
            && let Some(opened) = self.opened.lock().await.take()
        {
            warn!(home = self.spec.name, uplink = name, "it was removed: logged out");
            opened.close().await;
        }
    }

    /// Logs out, whoever uses it.
    pub(crate) async fn close(&self) {
        if let Some(opened) = self.opened.lock().await.take() {
            opened.close().await;
        }
    }
}
