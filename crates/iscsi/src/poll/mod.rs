//! Busy polling, for those who have a processor to spare for latency: a thread with a runtime of
//! its own that, for a while after bytes have come, asks its sockets again and again before it
//! sleeps. Who sleeps has to be woken, which takes longer than a network of one room does. Nothing
//! here knows a connection: whatever is spawned on the [`Poller`] is polled for.
//!
//! It costs nothing while nothing comes: how long it asks falls to nothing when that was in vain
//! (`window`). What it burned is counted.

mod window;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::{JoinError, yield_now};

use window::Window;

/// Longest time to ask before sleeping: what takes longer is not worth a processor.
pub const POLL_MAX: Duration = Duration::from_millis(10);

/// Threads that may wait for disks at once, of a poller or any other runtime of a target. One file
/// has 64 at most (`block::backend::FileDevice`), so that dozens of disks have to hang before a
/// healthy one waits for a thread. Those that nobody needs end after some seconds.
pub const BLOCKING_THREADS_MAX: usize = 2048;

/// How long blocking work may go on when the thread ends.
const END_TIMEOUT: Duration = Duration::from_secs(1);

thread_local! {
    /// Of the poller whose thread this is.
    static HERE: RefCell<Option<Arc<Activity>>> = const { RefCell::new(None) };
}

/// Bytes have come on a socket of this thread.
pub(crate) fn note_received() {
    HERE.with_borrow(|here| {
        if let Some(activity) = here {
            activity.note();
        }
    });
}

/// A thread that polls. What is spawned on it runs until it is dropped.
pub struct Poller {
    runtime: Handle,
    activity: Arc<Activity>,
    /// Dropped with it, which ends the thread.
    _stop: oneshot::Sender<()>,
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Poller({:?} burned)", self.burned())
    }
}

/// What comes, and what was spent on asking for it.
#[derive(Default)]
struct Activity {
    received: AtomicU64,
    waker: AtomicWaker,
    burned_ns: AtomicU64,
}

impl Poller {
    /// Starts the thread, which asks for at most `longest` before it sleeps. With zero it never
    /// asks: it is one thread for all that is spawned on it, none of which another has to wake.
    ///
    /// # Errors
    /// The system has no thread or descriptor for it.
    pub fn start(longest: Duration) -> io::Result<Self> {
        let activity = Arc::<Activity>::default();
        let (stop, stopped) = oneshot::channel();
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .build()?;
        let handle = runtime.handle().clone();
        let here = Arc::clone(&activity);
        std::thread::Builder::new().name("poll".into()).spawn(move || {
            if !longest.is_zero() {
                HERE.set(Some(Arc::clone(&here)));
                runtime.spawn(ask(here, Window::new(longest.min(POLL_MAX))));
            }
            // Its sender is dropped, never used.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_timeout(END_TIMEOUT);
        })?;
        Ok(Self { runtime: handle, activity, _stop: stop })
    }

    /// Where to spawn what is to be polled for.
    pub fn handle(&self) -> &Handle {
        &self.runtime
    }

    /// Runs a future on the thread.
    ///
    /// # Errors
    /// It panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, JoinError> {
        self.runtime.spawn(work).await
    }

    /// Processor time spent on asking so far: that of sleeping, had it slept.
    pub fn burned(&self) -> Duration {
        Duration::from_nanos(self.activity.burned_ns.load(Ordering::Relaxed))
    }
}

impl Activity {
    fn note(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
        self.waker.wake();
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Sleeps until more than so much was received.
    async fn more_than(&self, received: u64) {
        poll_fn(|context| {
            self.waker.register(context.waker());
            if self.received() > received { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.waker.take();
    }

    fn burn(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.burned_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// Keeps the thread awake: a task that gives way whenever it is asked makes the runtime look at its
/// sockets, after all other tasks, and not sleep.
async fn ask(activity: Arc<Activity>, mut window: Window) {
    let mut seen = activity.received();
    loop {
        let asleep_since = Instant::now();
        activity.more_than(seen).await;
        window.slept(asleep_since.elapsed());
        seen = activity.received();
        while !window.length().is_zero() {
            let (found, burned) = ask_once(&activity, &mut seen, window.length()).await;
            activity.burn(burned);
            if !found {
                window.in_vain();
                break;
            }
        }
    }
}

/// Asks until something comes or the time is over. True: it came. And the time until then: without
/// that of the tasks that took it.
async fn ask_once(activity: &Activity, seen: &mut u64, longest: Duration) -> (bool, Duration) {
    let begin = Instant::now();
    let mut burned = Duration::ZERO;
    while burned < longest {
        yield_now().await;
        let received = activity.received();
        if received != *seen {
            *seen = received;
            return (true, burned);
        }
        burned = begin.elapsed();
    }
    (false, burned)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    const LONGEST: Duration = Duration::from_millis(1);

    /// A peer that answers each byte, on a thread of its own, after a pause.
    fn echo(pause: Duration) -> std::net::SocketAddr {
        use std::io::{Read, Write};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut byte = [0];
            while stream.read_exact(&mut byte).is_ok() {
                std::thread::sleep(pause);
                if stream.write_all(&byte).is_err() {
                    return;
                }
            }
        });
        address
    }

    async fn ask_and_hear(stream: &mut TcpStream, times: usize) {
        for n in 0..times {
            let mut byte = [n as u8];
            stream.write_all(&byte).await.unwrap();
            stream.read_exact(&mut byte).await.unwrap();
            note_received();
            assert_eq!(byte, [n as u8]);
        }
    }

    #[tokio::test]
    async fn answers_within_the_window_are_waited_for_awake_and_the_time_is_counted() {
        let poller = Poller::start(LONGEST).unwrap();
        let address = echo(LONGEST / 10);
        let work = async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            ask_and_hear(&mut stream, 50).await;
        };
        poller.run(work).await.unwrap();
        assert!(poller.burned() >= LONGEST, "{:?} for 50 pauses", poller.burned());
    }

    #[tokio::test]
    async fn while_nothing_comes_it_burns_nothing() {
        let poller = Poller::start(LONGEST).unwrap();
        // Long enough that a thread which has to wait for a processor does not sleep shorter.
        let address = echo(LONGEST * 50);
        let work = async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // Every answer is later than it asks: asking is given up.
            ask_and_hear(&mut stream, 6).await;
            stream
        };
        let mut stream = poller.run(work).await.unwrap();
        let given_up = poller.burned();
        assert!(given_up >= LONGEST, "{given_up:?}");
        let more = poller.run(async move { ask_and_hear(&mut stream, 6).await });
        more.await.unwrap();
        assert_eq!(poller.burned(), given_up, "it does not begin again");
    }

    #[tokio::test]
    async fn the_thread_ends_with_the_poller() {
        let poller = Poller::start(LONGEST).unwrap();
        let (lives, over) = oneshot::channel::<()>();
        poller.handle().spawn(async move {
            let _lives = lives;
            std::future::pending::<()>().await;
        });
        drop(poller);
        assert!(over.await.is_err(), "its tasks were dropped");
    }

    #[test]
    fn elsewhere_nothing_is_noted() {
        note_received();
        assert!(HERE.with_borrow(Option::is_none));
    }
}
