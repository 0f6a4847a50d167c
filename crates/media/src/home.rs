//! [`Home`]: a volume that is opened when somebody wants something of it, and let go when nobody
//! has for a while; and what is known of it meanwhile, so that a viewer of storage that is off is
//! told so at once.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use backends::{Location, Volume as Remote};
use block::{BlockError, Device};
use files::{Partition, Table, Volume as FileSystem};
use iscsi::initiator::Secret;
use tokio::sync::RwLock;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::aside::aside;
use crate::catalogue::{HomeSpec, Place};
use crate::lease::Lease;
use crate::line::Line;
use crate::recent::Recent;

/// How long an opening may take: a login of several round trips at 300 ms, and what is read then.
const OPEN_TIME_MAX: Duration = Duration::from_secs(12);

/// How long storage that is off is left alone.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// While somebody looks at the page, whether storage that nobody uses is still there is looked at
/// so often: a login each time.
const LOOK_AGAIN: Duration = Duration::from_secs(120);

/// How long a logout may take.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);

/// How volumes are opened, which is the caller's.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Those behind a URL.
    pub volumes: backends::Config,
    /// A file or a block device of this machine, to be read.
    pub path: fn(&Path) -> Result<Device, String>,
    /// The first line of a file with a password.
    pub secret: fn(&Path) -> Result<Secret, String>,
}

/// A volume of a catalogue.
pub struct Home {
    spec: HomeSpec,
    opening: Opening,
    /// Held while it is opened: all who want it wait for one opening.
    opened: tokio::sync::Mutex<Option<Arc<Opened>>>,
    known: Mutex<Known>,
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
    Off { since: SystemTime, retry: Instant, why: String, is_damaged: bool },
}

/// A volume in use.
pub(crate) struct Opened {
    pub(crate) files: RwLock<FileSystem>,
    /// When what it has kept of the disk was last forgotten.
    pub(crate) refreshed: Mutex<Instant>,
    /// Its identity, for tags.
    pub(crate) id: String,
    pub(crate) used: Mutex<Instant>,
    pub(crate) line: Line,
    pub(crate) recent: Recent,
    session: Option<Session>,
    /// Since when it has had no connection.
    down: Mutex<Option<SystemTime>>,
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
    /// It can be reached, and what is there cannot be read.
    pub is_damaged: bool,
    /// Its owner has taken it away: nobody looks for it until he says that it is back.
    pub is_away: bool,
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
        Self { spec, opening, opened, known, is_logged: false }
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
        if let Some(off) = self.known_off() {
            return Err(off);
        }
        let home = Arc::clone(self);
        // As a task, which goes on when nobody waits for it.
        match tokio::spawn(async move { home.open().await }).await {
            Ok(entered) => entered,
            Err(error) => Err(self.off(&format!("opening it ended: {error}"), false)),
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
            Ok(Some(Err((why, is_damaged)))) => Err(self.off(&why, is_damaged)),
            Ok(None) => Err(self.off("opening it went wrong", true)),
            Err(_) => Err(self.off(&format!("no answer within {OPEN_TIME_MAX:?}"), false)),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is off, and it is too early to try again.
    fn known_off(&self) -> Option<Off> {
        self.noted_off().filter(|off| !off.retry_after.is_zero())
    }

    /// It was off when somebody last tried.
    fn noted_off(&self) -> Option<Off> {
        match &self.known().condition {
            Condition::Off { since, retry, why, is_damaged } => Some(Off {
                name: self.spec.name.clone(),
                since: *since,
                retry_after: retry.saturating_duration_since(Instant::now()),
                why: why.clone(),
                is_damaged: *is_damaged,
                is_away: false,
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
        Some(Off {
            name: self.spec.name.clone(),
            since: *since,
            retry_after: RETRY_AFTER,
            why: "its owner has taken it away".into(),
            is_damaged: false,
            is_away: true,
        })
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
    fn off(&self, why: &str, is_damaged: bool) -> Off {
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
        let why = why.to_owned();
        known.condition = Condition::Off { since, retry, why: why.clone(), is_damaged };
        Off {
            name: self.spec.name.clone(),
            since,
            retry_after: RETRY_AFTER,
            why,
            is_damaged,
            is_away: false,
        }
    }

    /// Somebody has found that it is not there any more: the next one begins anew.
    pub(crate) fn lost(self: &Arc<Self>, opened: &Arc<Opened>, why: &str) -> Off {
        let off = self.off(why, false);
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
        if let Some(off) = self.away() {
            return Status::Off(off);
        }
        if let Ok(place) = self.opened.try_lock()
            && let Some(opened) = &*place
        {
            return match opened.down_since() {
                None => Status::On,
                Some(since) => Status::Off(Off {
                    name: self.spec.name.clone(),
                    since,
                    retry_after: RETRY_AFTER,
                    why: "it has no connection".into(),
                    is_damaged: false,
                    is_away: false,
                }),
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
            opened.recent.forget_old();
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

    /// Logs out, whoever uses it.
    pub(crate) async fn close(&self) {
        let opened = self.opened.lock().await.take();
        if let Some(session) = opened.as_ref().and_then(|opened| opened.session.as_ref()) {
            close(&session.0).await;
        }
    }
}

impl Opened {
    /// What went wrong, and whether it is the content of the volume.
    async fn open(spec: HomeSpec, opening: Opening) -> Result<Self, (String, bool)> {
        let (device, session) = match &spec.place {
            Place::Url(location) => {
                let location =
                    with_password(location, &spec, &opening).map_err(|why| (why, true))?;
                let opened = Remote::open(&location, opening.volumes).await;
                let session = Session(opened.map_err(|error| (error.to_string(), false))?);
                (session.0.device(), Some(session))
            }
            Place::Path(path) => ((opening.path)(path).map_err(|why| (why, false))?, None),
        };
        let files = match read(device, &spec).await {
            Ok(files) => files,
            Err(why) => {
                if let Some(session) = &session {
                    close(&session.0).await; // before this process may end
                }
                return Err(why);
            }
        };
        let (id, now) = (files.identity().id, Instant::now());
        Ok(Self {
            files: RwLock::new(files),
            refreshed: Mutex::new(now),
            id,
            used: Mutex::new(now),
            line: Line::new(),
            recent: Recent::default(),
            session,
            down: Mutex::default(),
        })
    }

    fn last_used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when no connection has been up.
    fn down_since(&self) -> Option<SystemTime> {
        let session = self.session.as_ref()?;
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        if session.0.connection_count() > 0 {
            *down = None;
        } else if down.is_none() {
            *down = Some(SystemTime::now());
        }
        *down
    }
}

/// The file system of a home's volume, or what is wrong with it as [`Opened::open`] tells.
async fn read(device: Device, spec: &HomeSpec) -> Result<FileSystem, (String, bool)> {
    let told = |error: files::Error| {
        let is_damaged = !matches!(error, files::Error::Device { .. });
        (error.to_string(), is_damaged)
    };
    let table = Table::read(device).await.map_err(told)?;
    let partition = choose(&table, spec.partition).map_err(|why| (why, true))?;
    let files = table.open(partition).await.map_err(told)?;
    for warning in table.warnings().iter().cloned().chain(files.warnings()) {
        warn!(home = spec.name, warning);
    }
    Ok(files)
}

/// Logs out when it is dropped.
struct Session(Remote);

impl Drop for Session {
    fn drop(&mut self) {
        let remote = self.0.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { close(&remote).await });
        }
    }
}

async fn close(remote: &Remote) {
    match tokio::time::timeout(CLOSE_TIME_MAX, remote.close()).await {
        // There is nothing to flush, which a unit that is reserved for somebody else refuses.
        Ok(Ok(()) | Err(BlockError::Fenced)) => {}
        Ok(Err(error)) => debug!(%error, "logout"),
        Err(_) => debug!("no answer to the logout"),
    }
}

fn with_password(
    location: &Location,
    spec: &HomeSpec,
    opening: &Opening,
) -> Result<Location, String> {
    let mut location = location.clone();
    if let (Location::Iscsi(url), Some(file)) = (&mut location, &spec.password_file) {
        url.password = Some((opening.secret)(file)?);
    }
    Ok(location)
}

/// The partition that is meant.
fn choose(table: &Table, number: Option<u32>) -> Result<&Partition, String> {
    if let Some(number) = number {
        let found = table.partitions().iter().find(|partition| partition.number == number);
        return found.ok_or_else(|| format!("it has no partition {number}"));
    }
    let readable: Vec<&Partition> = table.readable().collect();
    match (&readable[..], table.partitions()) {
        ([one], _) => Ok(one),
        // The error of its opening says what is there instead.
        ([], [one]) => Ok(one),
        ([], _) => Err("none of its partitions has a file system that can be read".into()),
        (several, _) => {
            let numbers: Vec<String> =
                several.iter().take(8).map(|one| one.number.to_string()).collect();
            let numbers = numbers.join(", ");
            Err(format!("several partitions have a file system ({numbers}): name one, partition ="))
        }
    }
}
