//! One client of the NBD server: a task that reads and starts requests, and one that sends replies.
//!
//! Requests run concurrently and are answered as they finish. Back-pressure: a request is read only
//! when there is room for it, and its room is freed when its reply is on the socket; so a client
//! that does not read its replies stops being read, too.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use block::{BlockError, Buf, Bytes, Extent, Io};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinHandle, coop};
use tokio::time::timeout;
use tracing::{debug, trace};

use super::Export;
use super::handshake::{Handshake, HandshakeError, Outcome, Session};
use super::listen::Stream;
use super::transmission::{
    Action, PAYLOAD_LEN_MAX, Refusal, Reply, admit, cache_len, memory_len, payload_len,
};
use super::wire::{BadMagic, REQUEST_HEADER_LEN, RequestHeader};

/// Time a client has for the handshake. It takes a few round trips; who needs longer than this
/// holds a connection for nothing.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(15);

/// Requests of one connection under way at once: twice the deepest queue of common clients
/// (the kernel's nbd has 128).
const REQUESTS_MAX: usize = 256;

/// Payload bytes of one connection under way at once: room for two of the longest requests, so
/// that one is received while the other is carried out.
const BYTES_MAX: usize = 2 * PAYLOAD_LEN_MAX as usize;

/// Payload is counted in units of this many bytes, since that is how buffers are allocated.
const BYTES_UNIT: usize = block::buf::PAGE;

/// Time a client has to take its last replies once the connection is ending.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// Bytes read ahead of the request being handled: some hundred headers, or several small writes.
/// Payload beyond it goes from the socket straight into its buffer.
const INBOX_LEN: usize = 16 << 10;

/// Replies per system call; each takes two of the 1024 slices the kernel accepts.
const REPLIES_PER_WRITE: usize = 64;

/// Why a connection ended, other than by the client's wish.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("handshake: {0}")]
    Handshake(#[from] HandshakeError),
    #[error("handshake not finished within {HANDSHAKE_TIME_MAX:?}")]
    HandshakeTimeout,
    #[error("handshake: client closed the connection")]
    HandshakeClosed,
    #[error("{0}")]
    BadMagic(#[from] BadMagic),
    #[error("a write of {0} bytes is longer than {PAYLOAD_LEN_MAX}")]
    PayloadTooLong(u32),
    #[error("client closed the connection within a request")]
    Truncated,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Serves one client until it leaves, breaks the protocol, or the server stops.
pub(super) async fn serve(
    stream: Stream,
    export: Arc<Export>,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), ConnectionError> {
    let stream = Arc::new(stream);
    let mut inbox = Inbox::new(Arc::clone(&stream));
    let session = tokio::select! {
        negotiated = timeout(HANDSHAKE_TIME_MAX, negotiate(&stream, &mut inbox, &export)) => {
            negotiated.map_err(|_| ConnectionError::HandshakeTimeout)??
        }
        _ = stopped.wait_for(|stop| *stop) => return Ok(()),
    };
    let Some(session) = session else { return Ok(()) };
    debug!(?session, "transmission begins");

    let shared = Arc::new(Shared { export, session, outbox: Outbox::default() });
    let limits = Limits::default();
    let writer = tokio::spawn(send_replies(Arc::clone(&stream), Arc::clone(&shared)));
    let mut reader = Reader { inbox, shared: Arc::clone(&shared), limits: &limits, writer };
    let mut patience_after_stop = stopped.clone();
    let result = tokio::select! {
        result = reader.run(stopped) => result,
        // For a client that stops in the middle of a request.
        () = async {
            // An error means that the server is gone: the same.
            let _ = patience_after_stop.wait_for(|stop| *stop).await;
            tokio::time::sleep(DRAIN_TIME_MAX).await;
        } => Ok(()),
    };
    let writer = reader.writer;
    if timeout(DRAIN_TIME_MAX, limits.drained()).await.is_err() {
        debug!("client does not take its replies");
        writer.abort();
        shared.outbox.close(Closing::Discard);
        // What the device has begun is finished: a write is not abandoned half done.
        limits.drained().await;
    }
    shared.outbox.close(Closing::Send);
    match writer.await {
        Ok(sent) => result.and(sent.map_err(ConnectionError::Io)),
        Err(_aborted) => result,
    }
}

/// The handshake; `None` when the client ends it politely.
async fn negotiate(
    stream: &Stream,
    inbox: &mut Inbox,
    export: &Export,
) -> Result<Option<Session>, ConnectionError> {
    let mut handshake = Handshake::new(export.offer());
    let mut output = handshake.greeting();
    // Grows with what the client sends, to the longest option and no further.
    let mut input = Vec::new();
    loop {
        let (used, outcome) = handshake.handle(&input, &mut output)?;
        input.drain(..used);
        if outcome != Outcome::Continue && !output.is_empty() {
            stream.write_all(&mut [IoSlice::new(&output)]).await?;
            output.clear();
        }
        match outcome {
            Outcome::Continue => {}
            Outcome::Closed => return Ok(None),
            Outcome::Transmission(session) => {
                inbox.put_back(&input);
                return Ok(Some(session));
            }
            Outcome::Incomplete => {
                let mut received = [0; 4096];
                match stream.read(&mut [IoSliceMut::new(&mut received)]).await? {
                    0 => return Err(ConnectionError::HandshakeClosed),
                    count => input.extend_from_slice(&received[..count]),
                }
            }
        }
    }
}

/// Room for requests under way.
struct Limits {
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// The room of one request, freed when dropped.
struct Room {
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
    async fn room(&self, bytes: u32) -> Option<Room> {
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
    async fn drained(&self) {
        let _ = self.requests.acquire_many(REQUESTS_MAX as u32).await;
    }
}

/// What requests under way need to be answered.
struct Shared {
    export: Arc<Export>,
    session: Session,
    outbox: Outbox,
}

impl Shared {
    /// Answers at once if `io` is ready, else when it is done.
    fn answer<T: Send + Unpin + 'static>(
        self: &Arc<Self>,
        header: RequestHeader,
        room: Room,
        io: Io<T>,
        reply: impl FnOnce(&Session, T) -> Reply + Send + 'static,
    ) {
        match io.try_ready() {
            Ok(result) => self.finish(&header, room, result, reply),
            Err(io) => {
                let this = Arc::clone(self);
                tokio::spawn(async move { this.finish(&header, room, io.await, reply) });
            }
        }
    }

    fn finish<T>(
        &self,
        header: &RequestHeader,
        room: Room,
        result: Result<T, BlockError>,
        reply: impl FnOnce(&Session, T) -> Reply,
    ) {
        match result {
            Ok(value) => self.outbox.push(reply(&self.session, value), room),
            Err(error) => self.refuse(header, room, &error.into()),
        }
    }

    fn refuse(&self, header: &RequestHeader, room: Room, refusal: &Refusal) {
        debug!(?header, code = ?refusal.code, reason = refusal.text, "request failed");
        self.outbox.push(Reply::refused(header, &self.session, refusal), room);
    }
}

/// The task that reads requests and starts them.
struct Reader<'a> {
    inbox: Inbox,
    shared: Arc<Shared>,
    limits: &'a Limits,
    writer: JoinHandle<io::Result<()>>,
}

impl Reader<'_> {
    /// Ends when the client leaves; after `stopped`, also when all replies are sent.
    async fn run(&mut self, mut stopped: watch::Receiver<bool>) -> Result<(), ConnectionError> {
        let mut stopping = false;
        loop {
            // Yields now and then, so that a device that is always ready does not keep the thread.
            coop::consume_budget().await;
            let header = tokio::select! {
                biased;
                header = self.inbox.header() => header?,
                _ = stopped.wait_for(|stop| *stop), if !stopping => {
                    stopping = true;
                    continue;
                }
                () = self.limits.drained(), if stopping => return Ok(()),
                // The writer ends early only when the socket is broken; `serve` gets its error.
                () = self.shared.outbox.broken() => return Ok(()),
            };
            let Some(header) = header else { return Ok(()) };
            let header = RequestHeader::parse(&header)?;
            trace!(?header, "request");
            if self.handle(header, stopping).await? == Next::Disconnect {
                return Ok(());
            }
        }
    }

    async fn handle(
        &mut self,
        header: RequestHeader,
        stopping: bool,
    ) -> Result<Next, ConnectionError> {
        let payload_len = payload_len(&header);
        if payload_len > PAYLOAD_LEN_MAX {
            return Err(ConnectionError::PayloadTooLong(payload_len));
        }
        let Some(room) = self.limits.room(memory_len(&header)).await else {
            return Ok(Next::Disconnect);
        };
        // Also read for requests that will be refused: the next header is behind it.
        let mut payload = Buf::new(payload_len as usize);
        self.inbox.payload(&mut payload).await?;
        let shared = &self.shared;
        let admitted = admit(&header, &shared.session, &shared.export.device.info());
        match admitted {
            Ok(Action::Disconnect) => return Ok(Next::Disconnect),
            _ if stopping => shared.refuse(&header, room, &Refusal::shutdown()),
            Ok(action) => self.start(action, header, payload.freeze(), room),
            Err(refusal) => shared.refuse(&header, room, &refusal),
        }
        Ok(Next::Request)
    }

    fn start(&self, action: Action, header: RequestHeader, payload: Bytes, room: Room) {
        let shared = &self.shared;
        let device = &shared.export.device;
        let (offset, len) = (header.offset, u64::from(header.length));
        let done = move |_: &Session, ()| Reply::done(&header);
        match action {
            Action::Read => {
                let io = device.read(offset, header.length as usize);
                shared.answer(header, room, io, move |session, data| {
                    Reply::data(&header, session, data)
                });
            }
            Action::Write { fua } => {
                shared.answer(header, room, device.write(offset, payload, fua), done);
            }
            Action::Flush => shared.answer(header, room, device.flush(), done),
            Action::Trim { fua } => {
                shared.answer(header, room, device.trim(offset, len, fua), done);
            }
            Action::Zero { fua, may_trim } => {
                shared.answer(header, room, device.zero(offset, len, fua, may_trim), done);
            }
            Action::Cache => {
                // A read whose data nobody wants: a cache below keeps it.
                let io = device.read(offset, cache_len(&header) as usize);
                shared.answer(header, room, io, move |_, _| Reply::done(&header));
            }
            Action::BlockStatus { one } => {
                let io = device.extents(offset, len);
                shared.answer(header, room, io, move |_, mut extents: Vec<Extent>| {
                    if extents.is_empty() {
                        // The reply needs at least one; "data" is always a safe answer.
                        extents.push(Extent { offset, len, hole: false });
                    }
                    Reply::block_status(&header, &extents, one)
                });
            }
            Action::Disconnect => {}
        }
    }
}

/// What the reader does after a request.
#[derive(PartialEq, Eq)]
enum Next {
    Request,
    Disconnect,
}

/// Buffered reading: headers from a small buffer, payload past it.
struct Inbox {
    stream: Arc<Stream>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    fn new(stream: Arc<Stream>) -> Self {
        Self { stream, buffer: vec![0; INBOX_LEN], start: 0, end: 0 }
    }

    /// Takes what the handshake received too much.
    fn put_back(&mut self, bytes: &[u8]) {
        self.buffer = bytes.to_vec();
        self.buffer.resize(bytes.len().max(INBOX_LEN), 0);
        (self.start, self.end) = (0, bytes.len());
    }

    /// The next header; `None` at the end of the stream. Cancelling loses nothing.
    async fn header(&mut self) -> Result<Option<[u8; REQUEST_HEADER_LEN]>, ConnectionError> {
        loop {
            let held = &self.buffer[self.start..self.end];
            if let Some(header) = held.first_chunk() {
                self.start += REQUEST_HEADER_LEN;
                return Ok(Some(*header));
            }
            let held = held.len();
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, held);
            let mut slices = [IoSliceMut::new(&mut self.buffer[held..])];
            match self.stream.read(&mut slices).await? {
                0 if held == 0 => return Ok(None),
                0 => return Err(ConnectionError::Truncated),
                count => self.end += count,
            }
        }
    }

    /// Fills `payload`; one system call also takes the headers behind it.
    async fn payload(&mut self, payload: &mut [u8]) -> Result<(), ConnectionError> {
        let held = (self.end - self.start).min(payload.len());
        payload[..held].copy_from_slice(&self.buffer[self.start..self.start + held]);
        self.start += held;
        let mut missing = &mut payload[held..];
        while !missing.is_empty() {
            // Nothing is held any more, so the whole buffer is free.
            let mut slices = [IoSliceMut::new(missing), IoSliceMut::new(&mut self.buffer)];
            let count = self.stream.read(&mut slices).await?;
            if count == 0 {
                return Err(ConnectionError::Truncated);
            }
            let filled = count.min(missing.len());
            missing = &mut missing[filled..];
            (self.start, self.end) = (0, count - filled);
        }
        Ok(())
    }
}

/// Replies on their way to the socket.
#[derive(Default)]
struct Outbox {
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
enum Closing {
    /// Those that are there are sent.
    Send,
    /// They and all later ones are dropped.
    Discard,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn push(&self, reply: Reply, room: Room) {
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

    fn close(&self, closing: Closing) {
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

    async fn broken(&self) {
        self.broken.notified().await;
    }
}

/// The task that sends replies, many with one system call.
async fn send_replies(stream: Arc<Stream>, shared: Arc<Shared>) -> io::Result<()> {
    let outbox = &shared.outbox;
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
