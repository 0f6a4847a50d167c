//! The one driver loop: moves bytes between a socket and one connection's view of a session core.
//!
//! It knows neither role. It never holds a core's lock: the role locks for header handling only,
//! and reading, writing, copying and digests happen here, outside.

use std::future::poll_fn;
use std::task::{Context, Poll};

use block::Buf;
use bytes::Bytes;
use iscsi_proto::connection::Transmit;
use iscsi_proto::frame::{FrameError, Framing, Limits};
use iscsi_proto::pdu::Header;

use crate::transport::{Receiver, Sender, Stream};

/// Rounds of read-handle-write before other tasks of this thread get their turn.
const ROUNDS_PER_TURN: usize = 32;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer closed its side.
    #[error("closed by peer")]
    ClosedByPeer,
    /// The socket failed.
    #[error("socket: {0}")]
    Io(#[from] std::io::Error),
    /// The byte stream holds no valid PDU: framing is lost.
    #[error("framing: {0}")]
    Frame(#[from] FrameError),
    /// The peer broke the protocol.
    #[error("protocol error by peer: {0}")]
    Protocol(String),
    /// Logged out in good order.
    #[error("logged out")]
    LoggedOut,
    /// We closed it.
    #[error("closed here: {0}")]
    Local(String),
    /// The peer stayed silent for too long.
    #[error("timed out: {0}")]
    TimedOut(&'static str),
}

/// Where the data segment that follows a header is to be put.
#[derive(Debug)]
pub enum Dest {
    /// No data segment.
    None,
    /// Into `buf` from `offset` on. The receiver owns the buffer meanwhile and hands it back.
    Buffer {
        /// The task's buffer.
        buf: Buf,
        /// First byte to fill; `offset` + segment length ≤ `buf.len()`, checked by the core.
        offset: usize,
    },
    /// Into memory of its own.
    Scratch,
    /// Nowhere.
    Discard,
}

/// The data segment, as asked for with [`Dest`].
#[derive(Debug)]
pub enum Filled {
    /// No data segment.
    None,
    /// The buffer, filled.
    Buffer(Buf),
    /// A small segment.
    Scratch(Bytes),
    /// Read and forgotten.
    Discarded,
}

/// One connection's view of its session core.
pub trait Role: Send {
    /// What has left the core has its number and cannot go elsewhere, and other connections wait
    /// for it: then little is taken ahead of a socket that is full. It costs larger writes.
    const IS_AWAITED: bool = false;

    /// A header arrived. Answers where its data segment goes.
    ///
    /// # Errors
    /// The connection must be closed.
    fn handle_header(&mut self, header: &Header) -> Result<Dest, CloseReason>;

    /// The data segment of the last header is complete (called once per header, also without
    /// data). `digest_ok` is false when a data digest was agreed and does not match.
    ///
    /// # Errors
    /// The connection must be closed.
    fn handle_data(&mut self, filled: Filled, digest_ok: bool) -> Result<(), CloseReason>;

    /// Advances whatever is not the socket (timers, finished commands, requests of other tasks)
    /// and registers `context` for the next time there is any.
    ///
    /// # Errors
    /// The connection must be closed.
    fn poll_work(&mut self, context: &mut Context<'_>) -> Result<(), CloseReason>;

    /// The next PDU to send, if there is one now.
    fn poll_transmit(&mut self) -> Option<Transmit>;

    /// All that has come was handed over, or as much of it as goes before answers are sent: what
    /// was kept until then, to be done for many PDUs at once, is done now.
    ///
    /// # Errors
    /// The connection must be closed.
    fn note_received(&mut self) -> Result<(), CloseReason> {
        Ok(())
    }

    /// Commands that were answered with data at once, since it was asked last.
    fn take_answered(&mut self) -> usize {
        0
    }

    /// The connection has ended in the middle of a data segment: the buffer that was being filled,
    /// with what came so far.
    fn take_back(&mut self, buf: Buf);

    /// Bytes have moved, though perhaps no whole PDU: the peer is alive.
    fn note_progress(&mut self);

    /// May more be read? False pushes back on a peer that asks faster than it takes answers.
    fn wants_input(&self) -> bool {
        true
    }

    /// Everything has been said: close once what was handed out is written.
    fn is_finished(&self) -> Option<CloseReason> {
        None
    }
}

/// Runs a connection in its full-feature phase until it ends, and says why it did.
pub async fn drive<R: Role>(
    stream: &mut Stream,
    framing: Framing,
    limits: Limits,
    role: &mut R,
) -> CloseReason {
    let mut receiver = Receiver::new(framing, limits);
    let mut sender = Sender::new(framing);
    let turns =
        poll_fn(|context| match poll_turn(context, stream, &mut receiver, &mut sender, role) {
            Ok(poll) => poll,
            Err(reason) => Poll::Ready(reason),
        });
    let reason = turns.await;
    stream.say_end();
    if let Some(buf) = receiver.into_buffer() {
        role.take_back(buf);
    }
    reason
}

/// One turn of the loop: ends in waiting (every source of work has our waker) or in closing.
fn poll_turn<R: Role>(
    context: &mut Context<'_>,
    stream: &mut Stream,
    receiver: &mut Receiver,
    sender: &mut Sender,
    role: &mut R,
) -> Result<Poll<CloseReason>, CloseReason> {
    for _ in 0..ROUNDS_PER_TURN {
        role.poll_work(context)?;
        let received = match role.wants_input() {
            true => receiver.poll_receive(context, stream, role),
            false => Ok(false),
        };
        // What came before the stream broke counts.
        if !matches!(received, Ok(false)) {
            role.note_received()?;
        }
        let received = received?;
        let sent = sender.poll_send(context, stream, role)?;
        if sender.is_empty()
            && stream.is_flushed()
            && let Some(reason) = role.is_finished()
        {
            return Ok(Poll::Ready(reason));
        }
        if !received && !sent {
            return Ok(Poll::Pending);
        }
        role.note_progress();
    }
    context.waker().wake_by_ref();
    Ok(Poll::Pending)
}
