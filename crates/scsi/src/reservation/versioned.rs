//! [`Versioned`]: a state in a [`SharedStore`], read and changed by several targets. It never goes
//! back: what is older than something that was known before it was asked for is an error, since it
//! is another place under the same name (a file system that is not mounted, or was rolled back).

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::shared::SharedStore;

/// Changes by others that may come in between before one is given up: each of them is one that
/// somebody was told of.
const ATTEMPTS_MAX: usize = 64;

/// What several targets know together, as the bytes that are stored. The default is what holds
/// where nothing was ever stored.
pub trait SharedState: Clone + PartialEq + Default {
    /// Why it cannot be had.
    type Error: From<io::Error>;

    /// As it is stored.
    fn encode(&self) -> Vec<u8>;

    /// From what was stored.
    ///
    /// # Errors
    /// It is damaged.
    fn decode(bytes: &[u8]) -> Result<Self, Self::Error>;
}

/// What was read, and its version.
#[derive(Clone, Debug)]
pub struct Known<S> {
    /// Grows with every change; 0 where nothing was ever stored. Two readings at once may end in
    /// the other order than they began, so whoever puts one in force compares this first.
    pub version: u64,
    /// The state.
    pub state: S,
}

/// What became of a change.
#[derive(Debug)]
pub enum Changed<S, T, E> {
    /// It is stored, or there was nothing to store.
    Done {
        /// What holds now.
        known: Known<S>,
        /// Something was stored.
        stored: bool,
        /// What the change gave back.
        value: T,
    },
    /// The change did not want what it found; nothing was stored.
    Refused(E),
    /// Others came first, again and again.
    Contended,
}

/// A store of one kind of state.
#[derive(Debug)]
pub struct Versioned<S> {
    store: Arc<dyn SharedStore>,
    /// Newest version that was met.
    newest: AtomicU64,
    kind: PhantomData<fn() -> S>,
}

impl<S: SharedState> Versioned<S> {
    /// What is kept in this store.
    pub fn new(store: Arc<dyn SharedStore>) -> Self {
        Self { store, newest: AtomicU64::new(0), kind: PhantomData }
    }

    /// Reads the store. May block.
    ///
    /// # Errors
    /// It cannot be read, is damaged, or is older than what was known before.
    pub fn load(&self) -> Result<Known<S>, S::Error> {
        // From before the question: a newer one that somebody reads meanwhile does not make this
        // answer a wrong one.
        let known_before = self.newest.load(Ordering::Acquire);
        let known = match self.store.load()? {
            Some(stored) => Known { version: stored.version, state: S::decode(&stored.state)? },
            None => Known { version: 0, state: S::default() },
        };
        if known.version < known_before {
            let what = format!("version {known_before} was there, and now {} is", known.version);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what).into());
        }
        self.newest.fetch_max(known.version, Ordering::AcqRel);
        Ok(known)
    }

    /// Changes what is stored. May block; `change` is called again where others came first.
    ///
    /// # Errors
    /// As [`load`](Self::load); or it is not known whether it was stored.
    pub fn change<T, E>(
        &self,
        mut change: impl FnMut(&mut S) -> Result<T, E>,
    ) -> Result<Changed<S, T, E>, S::Error> {
        for _ in 0..ATTEMPTS_MAX {
            let Known { version, state: before } = self.load()?;
            let mut state = before.clone();
            let value = match change(&mut state) {
                Ok(value) => value,
                Err(refusal) => return Ok(Changed::Refused(refusal)),
            };
            if state == before {
                return Ok(Changed::Done { known: Known { version, state }, stored: false, value });
            }
            if let Some(version) = self.store.replace(version, &state.encode())? {
                self.newest.fetch_max(version, Ordering::AcqRel);
                return Ok(Changed::Done { known: Known { version, state }, stored: true, value });
            }
        }
        Ok(Changed::Contended)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use super::super::shared::Stored;
    use super::*;

    #[derive(Clone, Debug, Default, PartialEq)]
    struct Text(String);

    impl SharedState for Text {
        type Error = io::Error;

        fn encode(&self) -> Vec<u8> {
            self.0.clone().into_bytes()
        }

        fn decode(bytes: &[u8]) -> Result<Self, io::Error> {
            let text = String::from_utf8(bytes.to_vec());
            text.map(Self).map_err(|_| io::ErrorKind::InvalidData.into())
        }
    }

    /// In memory; a reading that has what is stored may be held until it is let go.
    #[derive(Debug, Default)]
    struct Store {
        stored: Mutex<Option<Stored>>,
        held: Mutex<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>,
    }

    impl SharedStore for Store {
        fn load(&self) -> io::Result<Option<Stored>> {
            let found = self.stored.lock().unwrap().clone();
            let held = self.held.lock().unwrap().take();
            if let Some((reached, go)) = held {
                reached.send(()).unwrap();
                go.recv().unwrap();
            }
            Ok(found)
        }

        fn replace(&self, version: u64, state: &[u8]) -> io::Result<Option<u64>> {
            let mut stored = self.stored.lock().unwrap();
            if stored.as_ref().map_or(0, |stored| stored.version) != version {
                return Ok(None);
            }
            *stored = Some(Stored { version: version + 1, state: state.to_vec() });
            Ok(Some(version + 1))
        }
    }

    fn say(states: &Versioned<Text>, text: &str) -> u64 {
        let changed = states.change(|state| {
            text.clone_into(&mut state.0);
            Ok::<(), ()>(())
        });
        let Ok(Changed::Done { known, .. }) = changed else { panic!("{changed:?}") };
        known.version
    }

    #[test]
    fn what_went_back_is_an_error_and_what_is_slow_is_not() {
        let store = Arc::new(Store::default());
        let states = Versioned::<Text>::new(store.clone());
        assert_eq!(states.load().unwrap().version, 0);
        assert_eq!(say(&states, "one"), 1);
        // A reading that began before a change and ends after it.
        let ((reached, begun), (let_go, go)) = (mpsc::channel(), mpsc::channel());
        *store.held.lock().unwrap() = Some((reached, go));
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| states.load());
            begun.recv().unwrap();
            assert_eq!(say(&states, "two"), 2);
            let_go.send(()).unwrap();
            let old = slow.join().unwrap().unwrap();
            assert_eq!((old.version, old.state.0.as_str()), (1, "one"));
        });
        *store.stored.lock().unwrap() = None;
        let error = states.load().unwrap_err().to_string();
        assert_eq!(error, "version 2 was there, and now 0 is");
        let refused = states.change(|_| Err::<(), _>("no"));
        assert!(refused.is_err(), "{refused:?}");
    }

    #[test]
    fn a_change_that_is_refused_stores_nothing() {
        let states = Versioned::<Text>::new(Arc::new(Store::default()));
        let refused = states.change(|state| {
            state.0.push('x');
            Err::<(), _>("no")
        });
        assert!(matches!(refused, Ok(Changed::Refused("no"))), "{refused:?}");
        assert_eq!(states.load().unwrap().version, 0);
    }
}
