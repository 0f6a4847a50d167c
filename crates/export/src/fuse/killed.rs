//! A process that is killed while it waits for the file goes away, although its request cannot be
//! fulfilled now: the request is answered EINTR as soon as its caller is seen to be dying.
//!
//! FUSE_INTERRUPT would not do: the kernel sends none for what it reads ahead and for direct I/O,
//! where most callers wait (fuser answers ENOSYS to the rest, too, and then none is sent any more).
//! So what waits for long looks itself whether its caller has a SIGKILL pending; any signal that
//! ends a process becomes one. A caller that has ended is no reason to withdraw anything: threads
//! of the kernel start requests for others (loop devices, io_uring) and go.
//!
//! What a killed caller began is settled before others come near it:
//! * A read is dropped.
//! * A change that has not been sent is dropped; one that was sent goes on, and until it has ended,
//!   reads and changes of the same bytes wait, as for any other. It never lands on newer data.
//! * A flush goes on. If it fails, the next fsync is told, as nobody else was.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use block::range_lock::{RangeGuard, RangeLocks};
use block::{BlockError, Io};
use fuser::Errno;

/// How long a request waits before its caller is looked at, and again each time: too short for a
/// user to wait for, too long to cost anything where the device answers.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Most changes and flushes that go on without a caller, each with up to 1 MiB of data. Beyond, the
/// killed wait until some have ended.
const FORSAKEN_MAX: usize = 64;

/// Bit of SIGKILL in the masks of /proc.
const SIGKILL_BIT: u64 = 1 << (libc::SIGKILL - 1);

/// The thread whose request it is; 0 if it is not known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller(pub(super) u32);

impl Caller {
    fn is_dying(self) -> bool {
        #[cfg(test)]
        if self.0 == tests::DYING {
            return true;
        }
        // A kernel thread, or a process of another namespace, is never seen to die.
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0));
        self.0 != 0 && status.is_ok_and(|status| has_kill_pending(&status))
    }
}

fn has_kill_pending(status: &str) -> bool {
    let masks = status.lines().filter_map(|line| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    masks.fold(0, |all, mask| all | mask) & SIGKILL_BIT != 0
}

/// Awaits `future` as long as its caller lives; `None` when it is being killed.
async fn while_alive<F: Future + Unpin>(future: &mut F, caller: Caller) -> Option<F::Output> {
    loop {
        match tokio::time::timeout(LOOK_EVERY, &mut *future).await {
            Ok(output) => return Some(output),
            Err(_) if caller.is_dying() => return None,
            Err(_) => {}
        }
    }
}

/// What of a volume is being changed, and what goes on without a caller. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Changes {
    locks: Arc<RangeLocks>,
    forsaken: Arc<AtomicUsize>,
    unheard: Arc<Mutex<Option<Errno>>>,
}

/// A place among what goes on without a caller.
struct Forsaken(Arc<AtomicUsize>);

impl Drop for Forsaken {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The right of a read or a change to begin, or its place in the queue behind others of these
/// bytes.
pub(super) type Turn = Result<RangeGuard, block::range_lock::Waiting>;

impl Changes {
    fn forsake(&self) -> Option<Forsaken> {
        let place = Forsaken(Arc::clone(&self.forsaken));
        let before = self.forsaken.fetch_add(1, Ordering::AcqRel);
        (before < FORSAKEN_MAX).then_some(place)
    }

    /// The turn of a change. Overlapping ones go one after the other, whoever began them.
    pub(super) fn turn(&self, range: Range<u64>) -> Turn {
        self.locks.exclusive(range)
    }

    /// The turn of a read: after the changes of these bytes that have begun. Else it could bring
    /// what was there before, and the kernel would keep that for what was written.
    pub(super) fn turn_to_read(&self, range: Range<u64>) -> Turn {
        self.locks.shared(range)
    }

    /// The failure of a flush that nobody was told of.
    pub(super) fn take_unheard(&self) -> Option<Errno> {
        self.unheard.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Awaits something that may be dropped when its caller is killed.
    pub(super) async fn or_drop<T: Unpin>(
        mut io: Io<T>,
        caller: Caller,
        reply: impl FnOnce(Result<T, Errno>),
    ) {
        match while_alive(&mut io, caller).await {
            Some(result) => reply(result.map_err(super::volume::errno)),
            None => reply(Err(Errno::EINTR)),
        }
    }

    /// Awaits something that goes on when its caller is killed; `unheard` is called with its
    /// failure then.
    async fn or_forsake<T: Unpin>(
        &self,
        mut io: Io<T>,
        caller: Caller,
        reply: impl FnOnce(Result<T, Errno>),
        unheard: impl FnOnce(BlockError),
    ) {
        let errno = super::volume::errno;
        if let Some(result) = while_alive(&mut io, caller).await {
            return reply(result.map_err(errno));
        }
        let Some(_place) = self.forsake() else { return reply(io.await.map_err(errno)) };
        reply(Err(Errno::EINTR));
        if let Err(error) = io.await {
            unheard(error);
        }
    }

    /// Awaits the turn of a change, then the change.
    pub(super) async fn change(
        &self,
        turn: Turn,
        begin: impl FnOnce() -> Io<()>,
        caller: Caller,
        reply: impl FnOnce(Result<(), Errno>),
    ) {
        let _guard = match turn {
            Ok(guard) => guard,
            Err(mut waiting) => match while_alive(&mut waiting, caller).await {
                Some(guard) => guard,
                None => return reply(Err(Errno::EINTR)),
            },
        };
        // Nobody was told that it went well, so nobody has to be told that it did not.
        self.or_forsake(begin(), caller, reply, |_| ()).await;
    }

    /// Awaits a flush.
    pub(super) async fn flush(
        &self,
        io: Io<()>,
        caller: Caller,
        reply: impl FnOnce(Result<(), Errno>),
    ) {
        let keep = |error| {
            let mut unheard = self.unheard.lock().unwrap_or_else(PoisonError::into_inner);
            *unheard = Some(super::volume::errno(error));
        };
        self.or_forsake(io, caller, reply, keep).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    /// No thread has this number (PID_MAX_LIMIT is 2^22).
    pub(super) const DYING: u32 = u32::MAX;

    /// An operation that ends when told how.
    fn operation() -> (oneshot::Sender<Result<(), BlockError>>, Io<()>) {
        let (end, ended) = oneshot::channel();
        (end, Io::later(async move { ended.await.unwrap_or(Ok(())) }))
    }

    /// Somewhere to answer to.
    fn caller() -> (impl FnOnce(Result<(), Errno>) + Send, oneshot::Receiver<Option<i32>>) {
        let (say, said) = oneshot::channel();
        let reply = |result: Result<(), Errno>| {
            let _nobody_waits = say.send(result.err().map(|e| e.code()));
        };
        (reply, said)
    }

    #[tokio::test]
    async fn a_failed_flush_that_nobody_heard_is_told_to_the_next() {
        let changes = Changes::default();
        let (end, flush) = operation();
        let (reply, said) = caller();
        let flushing = tokio::spawn({
            let changes = changes.clone();
            async move { changes.flush(flush, Caller(DYING), reply).await }
        });
        assert_eq!(said.await.unwrap(), Some(libc::EINTR));
        assert!(changes.take_unheard().is_none());
        end.send(Err(BlockError::NoSpace)).unwrap();
        flushing.await.unwrap();
        assert_eq!(changes.take_unheard().map(|errno| errno.code()), Some(libc::ENOSPC));
        assert!(changes.take_unheard().is_none());
    }

    #[tokio::test]
    async fn a_change_waits_for_what_a_killed_caller_left_under_way() {
        let changes = Changes::default();
        let (end, first) = operation();
        let (reply, said) = caller();
        let turn = changes.turn(0..4096);
        let forsaken = tokio::spawn({
            let changes = changes.clone();
            async move { changes.change(turn, || first, Caller(DYING), reply).await }
        });
        assert_eq!(said.await.unwrap(), Some(libc::EINTR));
        let (reply, mut said) = caller();
        let (turn, begun) = (changes.turn(0..512), Arc::new(AtomicUsize::new(0)));
        let second = tokio::spawn({
            let (changes, begun) = (changes.clone(), begun.clone());
            let begin = move || {
                begun.fetch_add(1, Ordering::SeqCst);
                Io::ok(())
            };
            async move { changes.change(turn, begin, Caller(0), reply).await }
        });
        // What has not been sent is dropped when its caller is killed, too.
        let (reply, dropped) = caller();
        let turn = changes.turn(0..512);
        changes.change(turn, || unreachable!("it was never its turn"), Caller(DYING), reply).await;
        assert_eq!(dropped.await.unwrap(), Some(libc::EINTR));
        assert_eq!(begun.load(Ordering::SeqCst), 0);
        assert!(said.try_recv().is_err());
        end.send(Ok(())).unwrap();
        forsaken.await.unwrap();
        second.await.unwrap();
        assert_eq!((said.await.unwrap(), begun.load(Ordering::SeqCst)), (None, 1));
    }

    #[test]
    fn a_pending_sigkill_is_seen_wherever_it_is() {
        let status = |own: &str, shared: &str| {
            format!("Name:\tcat\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\tffffffffffffffff\n")
        };
        let none = "0000000000000000";
        assert!(!has_kill_pending(&status(none, "0000000000004000")));
        assert!(has_kill_pending(&status("0000000000000100", none)));
        assert!(has_kill_pending(&status(none, "0000000000004100")));
        assert!(!has_kill_pending("Name:\tcat\n"));
        assert!(!Caller(0).is_dying() && !Caller(std::process::id()).is_dying());
    }

    #[tokio::test]
    async fn what_is_forsaken_is_bounded_and_holds_back_readers() {
        let changes = Changes::default();
        let places: Vec<_> = std::iter::from_fn(|| changes.forsake()).collect();
        assert_eq!(places.len(), FORSAKEN_MAX);
        let turn = changes.turn(0..10);
        assert!(changes.turn_to_read(9..20).is_err());
        assert!(changes.turn_to_read(10..20).is_ok());
        drop((places, turn));
        assert!(changes.turn_to_read(9..20).is_ok() && changes.forsake().is_some());
    }
}
