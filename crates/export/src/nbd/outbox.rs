//! Replies on their way to the socket, and the room that requests take until they are answered.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard};

use nbd::stream::Stream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::transmission::{PAYLOAD_LEN_MAX, Reply};

/// Requests of one connection under way at once: twice the deepest queue of common clients
/// (the kernel's nbd has 128).
const REQUESTS_MAX: usize = 256;

/// Payload bytes of one connection under way at once: room for two of the longest requests, so
/// that one is received while the other is carried out.
const BYTES_MAX: usize = 2 * PAYLOAD_LEN_MAX as usize;

/// Payload is counted in units of this many bytes, since that is how buffers are allocated.
const BYTES_UNIT: usize = block::buf::PAGE;

/// Replies per system call; each takes two of the 1024 slices the kernel accepts.
const REPLIES_PER_WRITE: usize = 64;

/// Room for requests under way.
pub(super) struct Limits {
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// The room of one request, freed when dropped.
pub(super) struct Room {
    _request: OwnedSemaphorePermit,
    _bytes: Option<OwnedSemaphorePermit>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            bytes: Arc::new(Semaphore::new(BYTES_MAX / BYTES_UNIT)),
        }
    }
}

impl Limits {
    /// Waits for room. `None` cannot happen: the semaphores are never closed.
    pub(super) async fn room(&self, bytes: u32) -> Option<Room> {
        let request = Arc::clone(&self.requests).acquire_owned().await.ok()?;
        let bytes = if bytes == 0 {
            None
        } else {
            let units = (bytes as usize).div_ceil(BYTES_UNIT) as u32;
            Some(Arc::clone(&self.bytes).acquire_many_owned(units).await.ok()?)
        };
        Some(Room { _request: request, _bytes: bytes })
    }

    /// Waits until no request is under way and all replies are sent or discarded.
    pub(super) async fn drained(&self) {
        let _ = self.requests.acquire_many(REQUESTS_MAX as u32).await;
    }
}

/// Replies on their way to the socket.
#[derive(Default)]
pub(super) struct Outbox {
    state: Mutex<OutboxState>,
    /// For the writer: there is something to send, or nothing will come any more.
    filled: Notify,
    /// For the reader: the socket does not take replies any more.
    broken: Notify,
}

#[derive(Default)]
struct OutboxState {
    replies: VecDeque<(Reply, Room)>,
    closing: Option<Closing>,
}

/// What happens to the replies of a closed outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    /// Those that are there are sent.
    Send,
    /// They and all later ones are dropped.
    Discard,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn push(&self, reply: Reply, room: Room) {
        let mut state = self.lock();
        if state.closing == Some(Closing::Discard) {
            return;
        }
        state.replies.push_back((reply, room));
        let first = state.replies.len() == 1;
        drop(state);
        // The writer empties the queue before it waits: only the first reply must wake it.
        if first {
            self.filled.notify_one();
        }
    }

    /// The next replies to send; empty when closed.
    async fn take(&self) -> Vec<(Reply, Room)> {
        loop {
            {
                let mut state = self.lock();
                let count = state.replies.len().min(REPLIES_PER_WRITE);
                if count > 0 {
                    return state.replies.drain(..count).collect();
                }
                if state.closing.is_some() {
                    return Vec::new();
                }
            }
            self.filled.notified().await;
        }
    }

    pub(super) fn close(&self, closing: Closing) {
        let mut state = self.lock();
        state.closing = Some(state.closing.filter(|c| *c == Closing::Discard).unwrap_or(closing));
        let dropped = match state.closing {
            Some(Closing::Discard) => std::mem::take(&mut state.replies),
            _ => VecDeque::new(),
        };
        drop(state);
        drop(dropped);
        self.filled.notify_one();
    }

    pub(super) async fn broken(&self) {
        self.broken.notified().await;
    }
}

/// The task that sends replies, many with one system call.
pub(super) async fn send_replies(stream: &Stream, outbox: &Outbox) -> io::Result<()> {
    loop {
        let replies = outbox.take().await;
        if replies.is_empty() {
            return Ok(());
        }
        let mut slices = [IoSlice::new(&[]); 2 * REPLIES_PER_WRITE];
        for ((reply, _), pair) in replies.iter().zip(slices.chunks_exact_mut(2)) {
            let [head, body] = reply.parts();
            pair[0] = IoSlice::new(head);
            pair[1] = IoSlice::new(body);
        }
        let sent = stream.write_all(&mut slices[..2 * replies.len()]).await;
        if let Err(error) = sent {
            outbox.close(Closing::Discard);
            outbox.broken.notify_one();
            return Err(error);
        }
    }
}
