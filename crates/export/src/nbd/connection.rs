//! One client of the NBD server: a task that reads and starts requests, and one that sends replies.
//!
//! Requests run concurrently and are answered as they finish. Back-pressure: a request is read only
//! when there is room for it, and its room is freed when its reply is on the socket; so a client
//! that does not read its replies stops being read, too.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

use block::{BlockError, Buf, Bytes, Extent, Io};
use nbd::inbox::Inbox;
use nbd::stream::Stream;
use nbd::wire::{BadMagic, RequestHeader};
use tokio::sync::watch;
use tokio::task::{JoinSet, coop};
use tokio::time::timeout;
use tracing::{debug, trace};

use super::Export;
use super::handshake::{Handshake, HandshakeError, Outcome, Session};
use super::outbox::{Closing, Limits, Outbox, Room, send_replies};
use super::transmission::{
    Action, PAYLOAD_LEN_MAX, Refusal, Reply, admit, cache_len, memory_len, payload_len,
};

/// Time a client has for the handshake. It takes a few round trips; who needs longer than this
/// holds a connection for nothing.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(15);

/// Time a client has to take its last replies once the connection is ending.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

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
    Io(io::Error),
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ => Self::Io(error),
        }
    }
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
    transmit(stream, inbox, export, session, stopped).await.map(drop)
}

/// Answers the requests of a client with whom all is agreed. Ends when what was begun is done: true
/// if the client had said that it leaves.
pub(super) async fn transmit(
    stream: Arc<Stream>,
    inbox: Inbox,
    export: Arc<Export>,
    session: Session,
    stopped: watch::Receiver<bool>,
) -> Result<bool, ConnectionError> {
    let shared = Arc::new(Shared { export, session, outbox: Outbox::default() });
    let limits = Limits::default();
    // A set, so that the writer ends with this task, however that ends.
    let mut writer = JoinSet::new();
    writer.spawn({
        let shared = Arc::clone(&shared);
        async move { send_replies(&stream, &shared.outbox).await }
    });
    let mut reader = Reader { inbox, shared: Arc::clone(&shared), limits: &limits };
    let mut patience_after_stop = stopped.clone();
    let result = tokio::select! {
        result = reader.run(stopped) => result,
        // For a client that stops in the middle of a request.
        () = async {
            // An error means that the server is gone: the same.
            let _ = patience_after_stop.wait_for(|stop| *stop).await;
            tokio::time::sleep(DRAIN_TIME_MAX).await;
        } => Ok(false),
    };
    if timeout(DRAIN_TIME_MAX, limits.drained()).await.is_err() {
        debug!("client does not take its replies");
        writer.abort_all();
        shared.outbox.close(Closing::Discard);
        // What the device has begun is finished: a write is not abandoned half done.
        limits.drained().await;
    }
    shared.outbox.close(Closing::Send);
    match writer.join_next().await {
        // Who has left takes no replies.
        Some(Ok(Err(error))) if matches!(result, Ok(false)) => Err(ConnectionError::Io(error)),
        _aborted => result,
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
}

impl Reader<'_> {
    /// Ends when the client leaves, true if it says so; after `stopped`, also when all replies are
    /// sent.
    async fn run(&mut self, mut stopped: watch::Receiver<bool>) -> Result<bool, ConnectionError> {
        let mut stopping = false;
        loop {
            // Yields now and then, so that a device that is always ready does not keep the thread.
            coop::consume_budget().await;
            // Not only in the select: there a client that always has requests would hide it.
            stopping |= *stopped.borrow();
            let header = tokio::select! {
                biased;
                header = self.inbox.header() => header?,
                _ = stopped.wait_for(|stop| *stop), if !stopping => {
                    stopping = true;
                    continue;
                }
                () = self.limits.drained(), if stopping => return Ok(false),
                // The writer ends early only when the socket is broken; `serve` gets its error.
                () = self.shared.outbox.broken() => return Ok(false),
            };
            let Some(header) = header else { return Ok(false) };
            let header = RequestHeader::parse(&header)?;
            trace!(?header, "request");
            if self.handle(header, stopping).await? == Next::Disconnect {
                return Ok(true);
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
