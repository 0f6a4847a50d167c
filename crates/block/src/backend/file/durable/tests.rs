//! Tests of stability against a model of Linux's page cache and its errors.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar};
use std::time::{Duration, Instant};

use super::*;

/// One file of a kernel that writes back never by itself, has an error for every description
/// (errseq_t), and whose storage can be full.
#[derive(Clone, Default)]
struct Model(Arc<Shared>);

#[derive(Default)]
struct Shared {
    file: Mutex<State>,
    changed: Condvar,
    /// fdatasync waits for this.
    held: AtomicBool,
    syncs: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// Bytes accepted and not yet written back, by offset.
    dirty: Vec<u64>,
    stable: Vec<u64>,
    /// Raised by every failed write-back.
    error: u64,
    /// write(2) itself says ENOSPC.
    refuses: bool,
    /// Write-back fails with this errno.
    full: Option<i32>,
    /// RWF_DSYNC stops between its write-back and its report until as many have got there.
    meet: usize,
    met: usize,
    /// All descriptions share one error, as on file systems without errseq_t.
    one_for_all: bool,
}

/// What a description has seen of the errors.
struct Description(Arc<AtomicU64>);

impl Model {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.0.file)
    }

    /// Writes back all, or the pages of one write; then they are clean, whatever came of it.
    fn write_back(state: &mut State, only: Option<u64>) {
        let (now, rest) = std::mem::take(&mut state.dirty)
            .into_iter()
            .partition(|at| only.is_none_or(|only| *at == only));
        let now: Vec<u64> = now;
        state.dirty = rest;
        match state.full {
            Some(_) if !now.is_empty() => state.error += 1,
            _ => state.stable.extend(now),
        }
    }

    fn report(state: &State, errno: i32, description: &Description) -> io::Result<()> {
        match description.0.swap(state.error, Ordering::SeqCst) {
            seen if seen < state.error => Err(io::Error::from_raw_os_error(errno)),
            _ => Ok(()),
        }
    }
}

impl Kernel for Model {
    type Description = Description;

    fn reopen(&self, other: &Description) -> io::Result<Description> {
        let state = self.state();
        if state.one_for_all {
            return Ok(Description(other.0.clone()));
        }
        Ok(Description(Arc::new(AtomicU64::new(state.error))))
    }

    fn write(
        &self,
        description: &Description,
        data: &[u8],
        offset: u64,
        flags: libc::c_int,
    ) -> io::Result<usize> {
        let mut state = self.state();
        if state.refuses {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        state.dirty.push(offset);
        if flags & libc::RWF_DSYNC != 0 {
            Self::write_back(&mut state, Some(offset));
            state.met += 1;
            self.0.changed.notify_all();
            let all_here = |state: &mut State| state.met < state.meet;
            let patience = Duration::from_secs(10);
            let waited = self.0.changed.wait_timeout_while(state, patience, all_here);
            let (state, _) = waited.unwrap();
            Self::report(&state, libc::ENOSPC, description)?;
        }
        Ok(data.len())
    }

    fn sync_data(&self, description: &Description) -> io::Result<()> {
        self.0.syncs.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state();
        Self::write_back(&mut state, None);
        let held = |_: &mut State| self.0.held.load(Ordering::SeqCst);
        let patience = Duration::from_secs(10);
        let (state, _) = self.0.changed.wait_timeout_while(state, patience, held).unwrap();
        let errno = state.full.unwrap_or(libc::ENOSPC);
        Self::report(&state, errno, description)
    }
}

fn file() -> (Model, Description, Durable<Model>) {
    let model = Model::default();
    let io = Description(Arc::default());
    let durable = Durable::new(model.clone(), &io, true);
    (model, io, durable)
}

fn no_space<T>(result: Result<T>) -> bool {
    matches!(result, Err(BlockError::NoSpace))
}

/// Finding D3: the write with FUA is told of the pages of another write, and flushes still are.
#[test]
fn a_failed_fua_write_hides_nothing_from_the_next_flush() {
    for one_for_all in [false, true] {
        let (model, io, durable) = file();
        model.state().one_for_all = one_for_all;
        let durable = if one_for_all { Durable::new(model.clone(), &io, true) } else { durable };
        durable.write(&io, &[1], 7).unwrap();
        model.state().full = Some(libc::ENOSPC);
        Model::write_back(&mut model.state(), None);
        assert!(no_space(durable.write_fua(&io, &[2], 0)));
        model.state().full = None;
        for _ in 0..2 {
            assert!(no_space(durable.sync(&io)), "flush is GOOD and byte 7 is lost");
            assert!(no_space(durable.write_fua(&io, &[2], 0)));
        }
    }
}

/// A write that was refused has consumed nothing, and storage that is full for a while does not
/// need the device opened anew.
#[test]
fn a_refused_fua_write_is_no_failed_sync() {
    let (model, io, durable) = file();
    durable.write(&io, &[1], 7).unwrap();
    model.state().refuses = true;
    assert!(no_space(durable.write_fua(&io, &[2], 0)));
    model.state().refuses = false;
    durable.sync(&io).unwrap();
    durable.write_fua(&io, &[2], 0).unwrap();
    assert_eq!(model.state().stable, [7, 0]);
}

/// Several writes with FUA fail in write-back before any is told: each has to learn of it.
#[test]
fn of_concurrent_fua_writes_none_is_told_of_success_that_failed() {
    let (model, io, durable) = file();
    model.state().full = Some(libc::ENOSPC);
    model.state().meet = FUA_DESCRIPTIONS_MAX;
    std::thread::scope(|scope| {
        let writes: Vec<_> = (0..FUA_DESCRIPTIONS_MAX as u64)
            .map(|at| {
                let (durable, io) = (&durable, &io);
                scope.spawn(move || durable.write_fua(io, &[1], at))
            })
            .collect();
        for write in writes {
            assert!(no_space(write.join().unwrap()), "acknowledged, and not stable");
        }
    });
    assert!(model.state().stable.is_empty());
}

/// Two flushes at once: a failure concerns both, whoever of them is told by the kernel.
#[test]
fn of_concurrent_flushes_none_succeeds_over_a_failure() {
    let (model, io, durable) = file();
    durable.write(&io, &[1], 7).unwrap();
    model.state().full = Some(libc::EIO);
    model.0.held.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let flushes = [0, 1].map(|_| scope.spawn(|| durable.sync(&io)));
        // Both are under way when either one may be in the kernel with the other behind it, or
        // (were they not kept apart) both in the kernel.
        let until = Instant::now() + Duration::from_secs(10);
        while model.0.syncs.load(Ordering::SeqCst) == 0 && Instant::now() < until {
            std::thread::yield_now();
        }
        model.0.held.store(false, Ordering::SeqCst);
        model.0.changed.notify_all();
        for flush in flushes {
            assert!(matches!(flush.join().unwrap(), Err(BlockError::Medium(_))));
        }
    });
}

/// Flushes that wait for one share the next; none is served by one that began before it.
#[test]
fn waiting_flushes_share_the_next_one() {
    let (model, io, durable) = file();
    model.0.held.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| durable.sync(&io));
        let until = Instant::now() + Duration::from_secs(10);
        while model.0.syncs.load(Ordering::SeqCst) == 0 && Instant::now() < until {
            std::thread::yield_now();
        }
        durable.write(&io, &[1], 7).unwrap();
        let others = [0; 8].map(|_| scope.spawn(|| durable.sync(&io)));
        model.0.held.store(false, Ordering::SeqCst);
        model.0.changed.notify_all();
        first.join().unwrap().unwrap();
        others.into_iter().for_each(|other| other.join().unwrap().unwrap());
    });
    assert_eq!(model.state().stable, [7]);
    assert!(model.0.syncs.load(Ordering::SeqCst) <= 9);
}

/// Without another description FUA is a write and a flush.
#[test]
fn without_descriptions_fua_is_a_flush() {
    let (model, io, _) = file();
    let durable = Durable::new(model.clone(), &io, false);
    durable.write_fua(&io, &[1], 3).unwrap();
    assert_eq!(model.state().stable, [3]);
    assert_eq!(model.0.syncs.load(Ordering::SeqCst), 1);
}
