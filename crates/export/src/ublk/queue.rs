//! The requests of a device: one thread that waits for them and for what they came to.
//!
//! The driver wants both from one thread. Requests that are not done at once are finished where the
//! device's are, by tasks, which copy what was read into the kernel's request themselves; they
//! leave the result and ring a bell.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use block::{BlockError, Buf, Io};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use tokio::runtime::Handle;
use tracing::warn;

use super::sys::{self, DEPTH, Description, IoCommand, Wanted};
use crate::byte_device::{ByteDevice, ReadData};

/// What the bell's completions are known by; others are known by their tags.
const BELL: u64 = u64::MAX;

/// A thread that answers requests until the device is stopped.
pub(super) struct Queue {
    thread: JoinHandle<io::Result<()>>,
}

impl Queue {
    /// Begins to fetch requests from `/dev/ublkcN`, which is `file`. Within a tokio runtime, where
    /// those that take time are waited for.
    ///
    /// # Errors
    /// There is no thread, ring or memory.
    pub(super) fn start(
        file: File,
        device: ByteDevice,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = Handle::current();
        let descriptions = Descriptions::of(&file)?;
        let shared = Arc::new(Shared {
            file,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            answered: Mutex::default(),
        });
        let thread = std::thread::Builder::new().name("ublk".to_owned()).spawn(move || {
            // What a device begins by itself is begun there.
            let _within = runtime.enter();
            let served = IoUring::new(u32::from(DEPTH) * 2).and_then(|ring| {
                Thread { ring, descriptions, shared, device, runtime: &runtime }.run()
            });
            ended();
            served
        })?;
        Ok(Self { thread })
    }

    /// Until the thread is through. It is once the device is stopped.
    ///
    /// # Errors
    /// What kept it from its work.
    pub(super) fn join(self) -> io::Result<()> {
        let panicked = |_| io::Error::other("the thread of a block device has panicked");
        self.thread.join().map_err(panicked)?
    }
}

/// What the thread has with the tasks, which alone leave answers here.
struct Shared {
    file: File,
    bell: OwnedFd,
    /// Tags with what their requests came to.
    answered: Mutex<Vec<(u16, i32)>>,
}

impl Shared {
    fn answer(&self, tag: u16, result: i32) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.push((tag, result));
        if answered.len() == 1 {
            // It was empty, so the thread does not know yet that it is not.
            if let Err(error) = rustix::io::write(&self.bell, &1_u64.to_ne_bytes()) {
                warn!(%error, "a request of a block device waits for the next");
            }
        }
    }

    fn take_answered(&self) -> Vec<(u16, i32)> {
        std::mem::take(&mut *self.answered.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives the kernel what was read.
    fn give(&self, tag: u16, read: &ReadData) -> i32 {
        match self.file.write_all_at(read, sys::data_at(tag)) {
            Ok(()) => read.len() as i32,
            Err(error) => {
                warn!(%error, "what was read cannot be given to the kernel");
                -libc::EIO
            }
        }
    }
}

struct Thread<'a> {
    ring: IoUring,
    descriptions: Descriptions,
    shared: Arc<Shared>,
    device: ByteDevice,
    runtime: &'a Handle,
}

impl Thread<'_> {
    fn run(mut self) -> io::Result<()> {
        for tag in 0..DEPTH {
            self.tell(sys::FETCH, tag, 0)?;
        }
        self.listen()?;
        let (mut completed, mut left) = (Vec::new(), DEPTH);
        while left > 0 {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                waited => drop(waited?),
            }
            completed.extend(self.ring.completion().map(|one| (one.user_data(), one.result())));
            for (what, result) in completed.drain(..) {
                match (what, result) {
                    (BELL, _) => {
                        // It says that something was answered, and nothing else.
                        let _rung = rustix::io::read(&self.shared.bell, &mut [0; 8]);
                        self.listen()?;
                    }
                    (tag, 0) => self.begin(tag as u16)?,
                    (_, sys::ABORT) => left -= 1,
                    (_, error) => return Err(io::Error::from_raw_os_error(-error)),
                }
            }
            for (tag, result) in self.shared.take_answered() {
                self.commit(tag, result)?;
            }
        }
        Ok(())
    }

    /// What a request came to; wants the next with its tag.
    fn commit(&mut self, tag: u16, result: i32) -> io::Result<()> {
        self.tell(sys::COMMIT_AND_FETCH, tag, result)
    }

    /// Wants a request with this tag; what the one before came to.
    fn tell(&mut self, command: u32, tag: u16, result: i32) -> io::Result<()> {
        let told = IoCommand { queue: 0, tag, result, address: 0 };
        let file = types::Fd(self.shared.file.as_raw_fd());
        let entry = opcode::UringCmd16::new(file, command).cmd(told.bytes()).build();
        self.push(&entry.user_data(u64::from(tag)))
    }

    /// Listens for the bell once more.
    fn listen(&mut self) -> io::Result<()> {
        let bell = types::Fd(self.shared.bell.as_raw_fd());
        let entry = opcode::PollAdd::new(bell, libc::POLLIN as u32).build();
        self.push(&entry.user_data(BELL))
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        #[allow(unsafe_code, reason = "io_uring's queue takes what it is given")]
        // SAFETY: neither kind of entry has the kernel read or write memory of ours, and the files
        // that they name are open as long as the ring is.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // There is room for all tags and the bell.
        pushed.map_err(|_| io::ErrorKind::QuotaExceeded.into())
    }

    /// A request has come.
    fn begin(&mut self, tag: u16) -> io::Result<()> {
        let asked = self.descriptions.get(tag);
        let (offset, len) = (asked.offset(), asked.len());
        match asked.wanted() {
            Wanted::Read => {
                let shared = self.shared.clone();
                let given = move |read: ReadData| shared.give(tag, &read);
                self.finish(tag, self.device.read(offset, len as usize), given)
            }
            Wanted::Write { fua } => {
                let mut data = Buf::new(len as usize);
                if let Err(error) = self.shared.file.read_exact_at(&mut data, sys::data_at(tag)) {
                    warn!(%error, "what is to be written cannot be had from the kernel");
                    return self.commit(tag, -libc::EIO);
                }
                let written = self.device.write(offset, data.freeze(), fua);
                self.finish(tag, written, move |()| len as i32)
            }
            Wanted::Flush => self.finish(tag, self.device.flush(), |()| 0),
            Wanted::Discard => self.finish(tag, self.device.trim(offset, len, false), |()| 0),
            Wanted::Zeroes { fua, may_trim } => {
                self.finish(tag, self.device.zero(offset, len, fua, may_trim), |()| 0)
            }
            Wanted::Other => self.commit(tag, -libc::EOPNOTSUPP),
        }
    }

    /// Now, or by a task.
    fn finish<T: Send + Unpin + 'static>(
        &mut self,
        tag: u16,
        io: Io<T>,
        result: impl FnOnce(T) -> i32 + Send + 'static,
    ) -> io::Result<()> {
        let result = move |done: block::Result<T>| done.map_or_else(failure, result);
        match io.try_ready() {
            Ok(done) => self.commit(tag, result(done)),
            Err(io) => {
                let shared = self.shared.clone();
                self.runtime.spawn(async move { shared.answer(tag, result(io.await)) });
                Ok(())
            }
        }
    }
}

/// An error as a result.
fn failure(error: BlockError) -> i32 {
    -crate::errno(&error)
}

/// What requests want, by tag: memory of the driver's.
struct Descriptions(NonNull<Description>);

#[allow(unsafe_code, reason = "memory of the driver's")]
// SAFETY: it is mapped until this is dropped, and only read.
unsafe impl Send for Descriptions {}

impl Descriptions {
    const LEN: usize = DEPTH as usize * size_of::<Description>();

    fn of(file: &File) -> io::Result<Self> {
        #[allow(unsafe_code, reason = "memory of the driver's")]
        // SAFETY: a new mapping, which takes the place of none.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Self::LEN,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                sys::DESCRIPTIONS_AT,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(mapped.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// The description of a request that is not answered yet: until then the driver leaves it as
    /// it is.
    fn get(&self, tag: u16) -> Description {
        assert!(tag < DEPTH);
        #[allow(unsafe_code, reason = "memory of the driver's")]
        // SAFETY: the tag is within what is mapped, where any bytes are a description.
        unsafe {
            self.0.add(usize::from(tag)).read_volatile()
        }
    }
}

impl Drop for Descriptions {
    fn drop(&mut self) {
        #[allow(unsafe_code, reason = "memory of the driver's")]
        // SAFETY: what `of` has mapped, and nobody else has.
        unsafe {
            libc::munmap(self.0.as_ptr().cast(), Self::LEN);
        }
    }
}
