//! [`Turns`]: the buffered writes to one file, one at a time.
//!
//! A file system takes the inode's lock exclusively for each of them (tmpfs, ext4, XFS and btrfs
//! all do), and threads that meet there spin: with four connections on loopback a twelfth of both
//! cores went into `rwsem_spin_on_owner`. (With RWF_NOWAIT they fail instead.) So who finds a write
//! under way leaves its own with the thread that is writing, which goes on with it next.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::{BlockError, Io};

/// From here on a write (in bytes) is worth a turn. Below, the lock is free again before another
/// thread could be told: 4 KiB writes over four connections took 5 % longer with turns.
pub(super) const LONG_BYTES: usize = 64 << 10;

/// Bytes written for others before the thread sees to its own work again: about as long as a
/// connection may be kept waiting (a quarter of a millisecond).
const TURN_BYTES: usize = 1 << 20;

/// What [`Turns`] does one at a time.
pub(super) trait Write: Send + Sync + 'static {
    /// Writes all of `data` at `offset` (bytes), in this thread if it can.
    fn write(&self, offset: u64, data: Bytes) -> Io<()>;
}

/// Writes with `W`: who does so now, and what was left for it.
pub(super) struct Turns<W> {
    pub(super) file: W,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    writing: bool,
    waiting: VecDeque<Job>,
}

/// A write that was left.
struct Job {
    offset: u64,
    data: Bytes,
    done: oneshot::Sender<Io<()>>,
}

impl<W: Write> Turns<W> {
    pub(super) fn new(file: W) -> Arc<Self> {
        Arc::new(Self { file, state: Mutex::default() })
    }

    /// Writes now, unless someone is writing, who then does it.
    pub(super) fn write(self: &Arc<Self>, offset: u64, data: Bytes) -> Io<()> {
        let mut state = self.lock();
        if state.writing {
            let (done, outcome) = oneshot::channel::<Io<()>>();
            state.waiting.push_back(Job { offset, data, done });
            return Io::later(async move { outcome.await.map_err(abandoned)?.await });
        }
        state.writing = true;
        drop(state);
        let turn = Turn(Some(self.clone()));
        let outcome = self.file.write(offset, data);
        turn.pass();
        outcome
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn abandoned(_: oneshot::error::RecvError) -> BlockError {
    BlockError::Unreachable("shutting down".into())
}

/// The right to write, until it is passed. Dropped in a panic or with the runtime, it fails what
/// was left.
struct Turn<W: Write>(Option<Arc<Turns<W>>>);

impl<W: Write> Turn<W> {
    /// Does what was left: some of it here, what is beyond that in a task of its own.
    fn pass(mut self) {
        let mut written = 0;
        while let Some((turns, Job { offset, data, done })) = self.next() {
            written += data.len();
            let _abandoned = done.send(turns.file.write(offset, data));
            if written < TURN_BYTES {
                continue;
            }
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { self.pass() });
                return;
            }
        }
    }

    /// The write that has waited longest. `None` ends the turn.
    fn next(&mut self) -> Option<(&Turns<W>, Job)> {
        let mut state = self.0.as_ref()?.lock();
        let job = state.waiting.pop_front();
        state.writing = job.is_some();
        drop(state);
        if job.is_none() {
            self.0 = None;
        }
        Some((self.0.as_deref()?, job?))
    }
}

impl<W: Write> Drop for Turn<W> {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            let mut state = turns.lock();
            state.writing = false;
            let left = std::mem::take(&mut state.waiting);
            drop(state);
            drop(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};

    use super::*;

    /// Remembers who wrote what; a write at `HELD` waits until it is let go.
    struct Slow {
        entered: mpsc::SyncSender<()>,
        let_go: Mutex<mpsc::Receiver<()>>,
        inside: AtomicUsize,
        written: Mutex<Vec<(u64, ThreadId)>>,
    }

    const HELD: u64 = 0;
    const BAD: u64 = 13;

    impl Write for Slow {
        fn write(&self, offset: u64, _data: Bytes) -> Io<()> {
            assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two write at a time");
            if offset == HELD {
                self.entered.send(()).unwrap();
                let gone = self.let_go.lock().unwrap().recv().is_err();
                assert!(!gone, "the held write fails");
            }
            self.written.lock().unwrap().push((offset, thread::current().id()));
            assert_eq!(self.inside.fetch_sub(1, Ordering::SeqCst), 1);
            match offset {
                BAD => Io::err(BlockError::NoSpace),
                _ => Io::ok(()),
            }
        }
    }

    /// Turns, a thread that holds one, and what lets it go.
    fn held() -> (Arc<Turns<Slow>>, thread::JoinHandle<crate::Result<()>>, mpsc::Sender<()>) {
        let (entered, has_entered) = mpsc::sync_channel(1);
        let (let_go, gone) = mpsc::channel();
        let turns = Turns::new(Slow {
            entered,
            let_go: Mutex::new(gone),
            inside: AtomicUsize::new(0),
            written: Mutex::default(),
        });
        let runtime = tokio::runtime::Handle::current();
        let holder = thread::spawn({
            let turns = turns.clone();
            move || {
                let _in_runtime = runtime.enter();
                ready(turns.write(HELD, Bytes::new()))
            }
        });
        has_entered.recv().unwrap();
        (turns, holder, let_go)
    }

    fn ready(io: Io<()>) -> crate::Result<()> {
        io.try_ready().unwrap_or_else(|_| panic!("left with another thread"))
    }

    fn offsets(turns: &Turns<Slow>) -> Vec<u64> {
        turns.file.written.lock().unwrap().iter().map(|(offset, _)| *offset).collect()
    }

    #[tokio::test]
    async fn who_writes_does_what_is_left_in_order_and_each_hears_of_its_own() {
        let (turns, holder, let_go) = held();
        let left = [1, BAD, 2].map(|offset| turns.write(offset, Bytes::new()));
        drop(turns.write(3, Bytes::new())); // nobody waits for it, and it is written all the same
        assert!(offsets(&turns).is_empty());
        let_go.send(()).unwrap();
        let [one, bad, two] = left;
        one.await.unwrap();
        assert!(matches!(bad.await, Err(BlockError::NoSpace)));
        two.await.unwrap();
        let thread = holder.thread().id();
        holder.join().unwrap().unwrap();
        assert_eq!(offsets(&turns), [HELD, 1, BAD, 2, 3]);
        assert!(turns.file.written.lock().unwrap().iter().all(|(_, by)| *by == thread));
        // The turn has ended: the next one writes by itself.
        ready(turns.write(4, Bytes::new())).unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn more_than_a_turn_is_left_to_a_task() {
        let (turns, holder, let_go) = held();
        let piece = Bytes::from(vec![0; TURN_BYTES / 2]);
        let left = [1, 2, 3, 4, 5].map(|offset| turns.write(offset, piece.clone()));
        let_go.send(()).unwrap();
        let thread = holder.thread().id();
        holder.join().unwrap().unwrap();
        for io in left {
            io.await.unwrap();
        }
        assert_eq!(offsets(&turns), [HELD, 1, 2, 3, 4, 5]);
        let written = turns.file.written.lock().unwrap();
        assert!(written.iter().all(|(offset, by)| (*by == thread) == (*offset <= 2)));
    }

    #[tokio::test]
    async fn a_panic_fails_what_was_left_and_holds_nobody_up() {
        let (turns, holder, let_go) = held();
        let left = turns.write(1, Bytes::new());
        drop(let_go);
        assert!(holder.join().is_err());
        assert!(matches!(left.await, Err(BlockError::Unreachable(_))));
        turns.file.inside.store(0, Ordering::SeqCst);
        ready(turns.write(2, Bytes::new())).unwrap();
    }
}
