//! [`Access`]: who asks. A browser has a session of an account, or an address has a link to one
//! video in it, or the server asks nobody for a name.

mod account;
mod guesses;
mod positions;
mod sessions;
mod shares;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use hyper::header::{COOKIE, HeaderMap, HeaderValue};
use tokio::sync::Semaphore;
use tracing::{error, warn};

pub use self::account::{Accounts, Role};
use self::guesses::Guesses;
use self::positions::{Positions, SECONDS_MAX};
use self::sessions::{LIFE_S, Sessions};
use self::shares::Linked;
pub use self::shares::{Share, Shares};
use crate::catalogue::Video;
use crate::state::{Stamp, StateError, StateFolder, load, save};
use crate::text::unix_now;

/// Passwords that are hashed at once, each with 19 MiB of memory and a processor.
const HASHED_MAX: usize = 2;
/// Those that wait for that; more are sent away.
const HASHED_WAITING_MAX: usize = 16;
/// When it is worth asking again then.
const BUSY: Duration = Duration::from_secs(5);

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// Nobody was asked for a name.
    Anybody {
        /// Only this machine is served, so whoever it is may do all.
        is_owner: bool,
    },
    /// An account.
    User {
        /// Its name.
        name: String,
        /// What it may do.
        role: Role,
    },
    /// Who has a link to a video.
    Guest {
        /// Identifier of the video.
        video: String,
    },
}

impl Who {
    pub(crate) fn is_owner(&self) -> bool {
        match self {
            Self::Anybody { is_owner } => *is_owner,
            Self::User { role, .. } => *role == Role::Owner,
            Self::Guest { .. } => false,
        }
    }

    /// As an owner sees him.
    pub(crate) fn shown(&self) -> &str {
        match self {
            Self::Anybody { .. } => "somebody",
            Self::User { name, .. } => name,
            Self::Guest { .. } => "somebody with a link",
        }
    }

    /// May he know of this video? One that is for some accounts is for nobody else: not for who
    /// has a link, nor for an owner of the server.
    pub(crate) fn may_see(&self, video: &Video) -> bool {
        match (self, &video.visible_to) {
            (Self::Guest { video: only }, None) => *only == video.id,
            (_, None) => true,
            (Self::User { name, .. }, Some(names)) => names.contains(name),
            (_, Some(_)) => false,
        }
    }
}

/// Why somebody is not let in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is not the name and password of anybody.
    Wrong,
    /// Too much was tried, or is being tried at this moment.
    TooMany(Duration),
}

/// Who may do what.
pub(crate) struct Access {
    kept: Option<Kept>,
    /// Whether anybody may be there without a name, and if so, as an owner.
    anybody: Option<Who>,
    accounts: RwLock<account::Known>,
    shares: RwLock<shares::Known>,
    /// There have been accounts: that there are none any more opens nothing.
    is_asked: AtomicBool,
    guesses: Mutex<Guesses>,
    sessions: Mutex<Sessions>,
    positions: Mutex<Positions>,
    /// Something of those two is not in their file.
    is_new: [AtomicBool; 2],
    hashed: Semaphore,
    hashed_waiting: Semaphore,
    /// Browsers come by TLS.
    is_secure: bool,
}

/// Where it is kept.
struct Kept {
    folder: StateFolder,
    accounts: Accounts,
    shares: Shares,
    /// What the files of accounts and links were when they were last read.
    stamps: Mutex<[Option<Stamp>; 2]>,
}

impl Access {
    /// For everybody who reaches the server; nothing is kept.
    pub(crate) fn open() -> Self {
        Self {
            kept: None,
            anybody: Some(Who::Anybody { is_owner: false }),
            accounts: RwLock::default(),
            shares: RwLock::default(),
            is_asked: AtomicBool::new(false),
            guesses: Mutex::default(),
            sessions: Mutex::default(),
            positions: Mutex::default(),
            is_new: Default::default(),
            hashed: Semaphore::new(HASHED_MAX),
            hashed_waiting: Semaphore::new(HASHED_WAITING_MAX),
            is_secure: false,
        }
    }

    /// With what is kept in a folder. Without accounts, `anybody` may come, if he is one.
    ///
    /// # Errors
    /// Something of the folder cannot be read.
    pub(crate) fn load(
        folder: StateFolder,
        anybody: Option<Who>,
        is_secure: bool,
    ) -> Result<Self, StateError> {
        let (accounts, shares) = (Accounts::new(&folder), Shares::new(&folder));
        let stamps = [Stamp::of(accounts.file()), Stamp::of(shares.file())];
        let sessions = load(&folder.file(SESSIONS))?;
        let positions = load(&folder.file(POSITIONS))?;
        let known = accounts.load()?;
        Ok(Self {
            anybody,
            is_asked: AtomicBool::new(!known.is_empty()),
            accounts: RwLock::new(known),
            shares: RwLock::new(shares.load()?),
            sessions: Mutex::new(sessions),
            positions: Mutex::new(positions),
            kept: Some(Kept { folder, accounts, shares, stamps: Mutex::new(stamps) }),
            is_secure,
            ..Self::open()
        })
    }

    /// Are there accounts, so that one has to log in?
    pub(crate) fn has_accounts(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// The links, if they are kept.
    pub(crate) fn shares(&self) -> Option<&Shares> {
        self.kept.as_ref().map(|kept| &kept.shares)
    }

    /// Who asks with these fields; none has to log in.
    pub(crate) fn who(&self, fields: &HeaderMap) -> Option<Who> {
        if !self.has_accounts() {
            return self.anybody.clone();
        }
        let accounts = self.known();
        let sessions = held(&self.sessions);
        let name = sessions.find(
            token(fields, self.cookie())?,
            |name| accounts.stamp(name),
            unix_now(),
        )?;
        let role = accounts.role(name)?;
        Some(Who::User { name: name.to_owned(), role })
    }

    /// Whom a link is for. `Err` is one that was valid.
    pub(crate) fn guest(&self, token: &str) -> Option<Result<Who, ()>> {
        let shares = self.shares.read().unwrap_or_else(PoisonError::into_inner);
        Some(match shares.find(token, unix_now())? {
            Linked::Video(video) => Ok(Who::Guest { video }),
            Linked::Expired => Err(()),
        })
    }

    /// Begins a session; returns the cookie.
    ///
    /// # Errors
    /// [`Refused`].
    pub(crate) async fn log_in(
        self: &Arc<Self>,
        address: IpAddr,
        name: &str,
        password: String,
    ) -> Result<HeaderValue, Refused> {
        let name = account::folded(name);
        let is_known = held(&self.sessions).knows(&name, address, unix_now());
        let attempt = held(&self.guesses).attempt(address, &name, is_known, Instant::now());
        let attempt = attempt.map_err(Refused::TooMany)?;
        let Ok(_waiting) = self.hashed_waiting.try_acquire() else {
            held(&self.guesses).was_right(attempt); // nothing was learned from it
            return Err(Refused::TooMany(BUSY));
        };
        let _hashed = self.hashed.acquire().await.map_err(|_| Refused::TooMany(BUSY))?;
        let access = Arc::clone(self);
        let expected = self.known().expected(&name);
        // A hash takes some hundredths of a second.
        let stamp = tokio::task::spawn_blocking(move || {
            expected.stamp_if(&zeroize::Zeroizing::new(password))
        });
        let Ok(Some(stamp)) = stamp.await else {
            warn!(%address, name = shown(&name), "a wrong password");
            return Err(Refused::Wrong);
        };
        held(&access.guesses).was_right(attempt);
        let token = held(&access.sessions).begin(&name, &stamp, address, unix_now());
        let token = token.map_err(|error| {
            error!(%error, "no session without random numbers");
            Refused::TooMany(BUSY)
        })?;
        self.is_new[0].store(true, Ordering::Relaxed);
        Ok(self.set_cookie(&token, LIFE_S))
    }

    /// Ends the session; returns what takes the cookie away.
    pub(crate) fn log_out(&self, fields: &HeaderMap) -> HeaderValue {
        let token = token(fields, self.cookie()).unwrap_or_default();
        if held(&self.sessions).end(token) {
            self.is_new[0].store(true, Ordering::Relaxed);
        }
        self.set_cookie("", 0)
    }

    /// Where somebody has stopped.
    pub(crate) fn position(&self, who: &Who, video: &str) -> Option<f64> {
        let Who::User { name, .. } = who else { return None };
        held(&self.positions).get(name, video)
    }

    /// Notes where somebody has stopped; tells whether it is a place.
    pub(crate) fn set_position(&self, name: &str, video: &str, seconds: f64) -> bool {
        if !(0.0..SECONDS_MAX).contains(&seconds) {
            return false;
        }
        held(&self.positions).set(name, video, seconds, unix_now());
        self.is_new[1].store(true, Ordering::Relaxed);
        true
    }

    /// Reads accounts and links again, if they have changed, and writes down what is new. Blocks as
    /// long as that takes.
    pub(crate) fn keep(&self) {
        let Some(kept) = &self.kept else { return };
        let now = [Stamp::of(kept.accounts.file()), Stamp::of(kept.shares.file())];
        let before = std::mem::replace(&mut *held(&kept.stamps), now);
        if now[0] != before[0] {
            match kept.accounts.load() {
                Ok(known) => self.changed(known),
                Err(error) => warn!(%error, "accounts are wrong: what was there before stays"),
            }
        }
        if now[1] != before[1] {
            self.reload_shares();
        }
        self.write(0, SESSIONS, &self.sessions);
        self.write(1, POSITIONS, &self.positions);
    }

    /// Reads links again.
    pub(crate) fn reload_shares(&self) {
        let Some(kept) = &self.kept else { return };
        match kept.shares.load() {
            Ok(known) => *self.shares.write().unwrap_or_else(PoisonError::into_inner) = known,
            Err(error) => warn!(%error, "links are wrong: what was there before stays"),
        }
    }

    fn changed(&self, known: account::Known) {
        if !known.is_empty() {
            self.is_asked.store(true, Ordering::Relaxed);
        }
        if held(&self.positions).retain(|name| known.role(name).is_some()) {
            self.is_new[1].store(true, Ordering::Relaxed);
        }
        *self.accounts.write().unwrap_or_else(PoisonError::into_inner) = known;
    }

    fn write<T: Clone + serde::Serialize>(&self, number: usize, name: &str, value: &Mutex<T>) {
        let Some(kept) = &self.kept else { return };
        if self.is_new[number].swap(false, Ordering::Relaxed) {
            let value = held(value).clone();
            if let Err(error) = save(&kept.folder.file(name), &value) {
                self.is_new[number].store(true, Ordering::Relaxed);
                warn!(%error, "cannot be kept");
            }
        }
    }

    fn known(&self) -> std::sync::RwLockReadGuard<'_, account::Known> {
        self.accounts.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its name. With the prefix, a browser takes it by TLS alone, and from nobody else.
    fn cookie(&self) -> &'static str {
        if self.is_secure { "__Host-session" } else { "session" }
    }

    fn set_cookie(&self, token: &str, seconds: u64) -> HeaderValue {
        let (name, secure) = (self.cookie(), if self.is_secure { "; Secure" } else { "" });
        let text =
            format!("{name}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
        // Base64 and what is above: always a value.
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("session="))
    }
}

const SESSIONS: &str = "sessions.json";
const POSITIONS: &str = "positions.json";

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the log shows of what a stranger has typed.
fn shown(name: &str) -> String {
    name.chars().take(64).filter(|c| !c.is_control()).collect()
}

/// The cookie of this name.
fn token<'a>(fields: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let values = fields.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = values.flat_map(|value| value.split(';')).map(str::trim);
    pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn folder() -> (tempfile::TempDir, StateFolder) {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::open(&folder.path().join("state")).unwrap();
        (folder, state)
    }

    fn fields(cookie: &HeaderValue) -> HeaderMap {
        let pair = cookie.to_str().unwrap().split(';').next().unwrap();
        let pair = format!("other=1; {pair}");
        HeaderMap::from_iter([(COOKIE, HeaderValue::from_str(&pair).unwrap())])
    }

    #[tokio::test]
    async fn a_session_outlives_the_server_and_not_its_password() {
        let (_folder, state) = folder();
        let accounts = Accounts::new(&state);
        accounts.add("anna", Role::Owner, "correct horse").unwrap();
        let access = || Arc::new(Access::load(state.clone(), None, true).unwrap());
        let first = access();
        assert!(first.has_accounts() && first.who(&HeaderMap::new()).is_none());
        let cookie = first.log_in(NEAR, " Anna", "correct horse".into()).await.unwrap();
        let text = cookie.to_str().unwrap();
        assert!(text.starts_with("__Host-session="), "{text}");
        assert!(text.ends_with("; Path=/; Max-Age=2592000; HttpOnly; SameSite=Strict; Secure"));
        let anna = Who::User { name: "anna".into(), role: Role::Owner };
        assert_eq!(first.who(&fields(&cookie)), Some(anna.clone()));
        assert!(first.set_position("anna", "a", 12.0) && !first.set_position("anna", "a", -1.0));
        assert!(!first.set_position("anna", "a", f64::NAN));
        first.keep();

        let second = access();
        assert_eq!(second.who(&fields(&cookie)), Some(anna.clone()));
        assert_eq!(second.position(&anna, "a"), Some(12.0));
        accounts.set_password("anna", "battery staple").unwrap();
        second.keep();
        assert_eq!(second.who(&fields(&cookie)), None);
        let wrong = second.log_in(NEAR, "anna", "correct horse".into()).await;
        assert_eq!(wrong.unwrap_err(), Refused::Wrong);
        let cookie = second.log_in(NEAR, "anna", "battery staple".into()).await.unwrap();
        second.log_out(&fields(&cookie));
        assert_eq!(second.who(&fields(&cookie)), None);

        accounts.remove("anna").unwrap();
        second.keep();
        assert!(second.has_accounts(), "nobody is let in because there are no accounts any more");
        assert_eq!((second.who(&HeaderMap::new()), second.position(&anna, "a")), (None, None));
    }

    #[tokio::test]
    async fn who_guesses_has_to_wait_and_who_was_here_has_not() {
        let (_folder, state) = folder();
        Accounts::new(&state).add("anna", Role::Viewer, "correct horse").unwrap();
        let access = Arc::new(Access::load(state, None, false).unwrap());
        let (far, home) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        access.log_in(home, "anna", "correct horse".into()).await.unwrap();
        let mut wrong = 0;
        let wait = loop {
            match access.log_in(far, "anna", "guess".into()).await.unwrap_err() {
                Refused::Wrong => wrong += 1,
                Refused::TooMany(wait) => break wait,
            }
        };
        assert!((1..=20).contains(&wrong) && wait <= Duration::from_secs(60), "{wrong} {wait:?}");
        let right = access.log_in(far, "anna", "correct horse".into()).await;
        assert!(matches!(right, Err(Refused::TooMany(_))), "otherwise it would tell that it is it");
        access.log_in(home, "anna", "correct horse".into()).await.unwrap();
    }

    #[test]
    fn without_accounts_anybody_is_who_the_server_says() {
        let (_folder, state) = folder();
        let anybody = Who::Anybody { is_owner: true };
        let access = Access::load(state.clone(), Some(anybody.clone()), false).unwrap();
        assert_eq!(access.who(&HeaderMap::new()), Some(anybody));
        Accounts::new(&state).add("anna", Role::Viewer, "correct horse").unwrap();
        access.keep();
        assert_eq!(access.who(&HeaderMap::new()), None, "from now on one has to log in");
        let [one, other] = ["a", "b"].map(|path| Video::new("t".into(), "h", path));
        let guest = Who::Guest { video: one.id.clone() };
        assert!(guest.may_see(&one) && !guest.may_see(&other) && !guest.is_owner());
    }

    #[test]
    fn what_is_for_some_is_for_nobody_else() {
        let video = Video::new("t".into(), "h", "a");
        let some = Video { visible_to: Some(vec!["anna".into()]), ..video.clone() };
        let nobody = Video { visible_to: Some(Vec::new()), ..video.clone() };
        let user = |name: &str, role| Who::User { name: name.into(), role };
        let anna = user("anna", Role::Viewer);
        assert!(anna.may_see(&video) && anna.may_see(&some) && !anna.may_see(&nobody));
        for who in [
            user("ben", Role::Owner),
            Who::Anybody { is_owner: true },
            Who::Guest { video: video.id.clone() },
        ] {
            assert!(who.may_see(&video) && !who.may_see(&some), "{who:?}");
        }
    }
}
