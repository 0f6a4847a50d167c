//! [`FileBody`]: parts of a file as the body of a response. What was read waits until whoever lends
//! the file has confirmed that it is still that file's: while one lot waits, the next is read.

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use block::BlockError;
use bytes::Bytes;
use files::{Error, FileReader, ReadConfig, Reading};
use hyper::body::{Body, Frame, SizeHint};

/// Asked for at the start: half a second of video, and what a player that looks only at the index
/// takes.
const BYTES_FIRST: u64 = 1 << 20;

/// In reads of so many bytes, each over a connection of its own where there are so many: windows
/// that are small yet, as those of a line that was idle, bring it in two or three round trips.
const PIECE_FIRST: u64 = 64 << 10;

/// Most bytes that one response has asked for and not sent: 640 Mbit/s at a round trip of 100 ms.
/// With as many responses as the server allows, it is its memory.
const BYTES_MAX: u64 = 8 << 20;

/// Most bytes of it that have come and wait to be confirmed: a round trip's at 320 Mbit/s and
/// 100 ms.
const HELD_MAX: u64 = 4 << 20;

/// Whether what was read is the file's, and if not, why nothing more is sent.
pub type Confirming = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Who lends a file, as long as it is sent.
pub trait Holder: Send {
    /// It could not be read.
    fn failed(&self, error: &Error);

    /// `bytes` more of the body were handed to the connection.
    fn sent(&self, bytes: u64);

    /// Why it is not sent any more, as soon as there is a reason; wakes the task then.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<String>;

    /// Confirms what was read before this is called.
    fn confirm(&self) -> Confirming;
}

/// Bytes of a file, read while the client takes them. hyper drops it when the client is gone, and
/// with it everything that was on its way.
pub struct FileBody {
    file: FileReader,
    segments: VecDeque<Segment>,
    reading: Option<Reading>,
    held: Held,
    left: u64,
    holder: Option<Box<dyn Holder>>,
}

/// What was read, in order.
#[derive(Default)]
struct Held {
    pieces: VecDeque<Bytes>,
    /// How many of them, from the front, are confirmed.
    confirmed: usize,
    bytes: u64,
    /// What is being confirmed, and how many pieces that is about.
    confirming: Option<(Confirming, usize)>,
    /// The whole body has been read, or all that can be.
    end: Option<Result<(), Error>>,
}

/// What a body is made of.
pub(crate) enum Segment {
    /// Words between two parts.
    Text(Bytes),
    /// A part of the file.
    Part(Range<u64>),
}

impl FileBody {
    /// These segments, one after the other; a part is within the file.
    pub(crate) fn new(file: &FileReader, segments: impl IntoIterator<Item = Segment>) -> Self {
        let config = ReadConfig {
            piece_first: PIECE_FIRST,
            bytes_first: BYTES_FIRST,
            bytes_max: BYTES_MAX,
            ..ReadConfig::default()
        };
        let segments: VecDeque<Segment> = segments.into_iter().collect();
        let left = segments.iter().map(Segment::len).sum();
        let file = file.clone().with_config(config);
        Self { file, segments, reading: None, held: Held::default(), left, holder: None }
    }

    /// Tells this one of a failure, and keeps it until the body is sent or dropped.
    #[must_use]
    pub fn with_holder(mut self, holder: Box<dyn Holder>) -> Self {
        self.holder = Some(holder);
        self
    }

    /// Waits until the first of it is confirmed, and so are size and version of its file. False: it
    /// is not, or cannot be read, or there is nothing.
    pub(crate) async fn begin(&mut self) -> bool {
        std::future::poll_fn(|context| {
            self.take(context);
            let confirmed = ready!(self.poll_confirmed(context));
            let is_there = self.held.confirmed > 0;
            if confirmed.is_ok() && !is_there && self.held.end.is_none() {
                return Poll::Pending;
            }
            Poll::Ready(confirmed.is_ok() && is_there)
        })
        .await
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    fn sent(&mut self, bytes: Bytes) -> Frame<Bytes> {
        self.left = self.left.saturating_sub(bytes.len() as u64);
        if let Some(holder) = &self.holder {
            holder.sent(bytes.len() as u64);
        }
        Frame::data(bytes)
    }

    /// Nothing more is sent.
    fn give_up(&mut self) {
        self.segments.clear();
        self.reading = None;
        self.held = Held { end: Some(Ok(())), ..Held::default() };
        self.holder = None;
    }

    fn ended(&mut self, why: String) -> Error {
        tracing::info!(why, "a stream ends");
        self.give_up();
        let (what, source) = ("content of a file", BlockError::Unreachable(why));
        Error::Device { what, offset: 0, source }
    }

    /// Takes what has come, as far as there is room. The task is woken for what is still to come.
    fn take(&mut self, context: &mut Context<'_>) {
        while self.held.end.is_none() && self.held.bytes < HELD_MAX {
            if let Some(reading) = &mut self.reading {
                match reading.poll_next(context) {
                    Poll::Pending => return,
                    Poll::Ready(Some(Ok(bytes))) => self.held.push(bytes),
                    Poll::Ready(Some(Err(error))) => self.held.end = Some(Err(error)),
                    Poll::Ready(None) => self.reading = None,
                }
                continue;
            }
            match self.segments.pop_front() {
                Some(Segment::Text(text)) => self.held.push(text),
                Some(Segment::Part(part)) => self.reading = Some(self.file.read(part)),
                None => self.held.end = Some(Ok(())),
            }
        }
    }

    /// Has what was taken confirmed. Ready: some of it is, or there is nothing to wait for.
    fn poll_confirmed(&mut self, context: &mut Context<'_>) -> Poll<Result<(), String>> {
        while self.held.confirmed == 0 && !self.held.pieces.is_empty() {
            let (confirming, pieces) = match &mut self.held.confirming {
                Some(confirming) => confirming,
                nothing => match self.holder.as_ref().map(|holder| holder.confirm()) {
                    Some(confirming) => nothing.insert((confirming, self.held.pieces.len())),
                    None => {
                        self.held.confirmed = self.held.pieces.len();
                        break;
                    }
                },
            };
            let outcome = ready!(confirming.as_mut().poll(context));
            self.held.confirmed = *pieces;
            self.held.confirming = None;
            outcome?;
        }
        Poll::Ready(Ok(()))
    }
}

impl Held {
    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len() as u64;
        self.pieces.push_back(piece);
    }

    fn pop(&mut self) -> Option<Bytes> {
        self.confirmed = self.confirmed.checked_sub(1)?;
        let piece = self.pieces.pop_front()?;
        self.bytes -= piece.len() as u64;
        Some(piece)
    }
}

impl Segment {
    fn len(&self) -> u64 {
        match self {
            Self::Text(text) => text.len() as u64,
            Self::Part(part) => part.end.saturating_sub(part.start),
        }
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Some(holder) = &mut self.holder
            && let Poll::Ready(why) = holder.poll_end(context)
        {
            return Poll::Ready(Some(Err(self.ended(why))));
        }
        self.take(context);
        match self.poll_confirmed(context) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(why)) => return Poll::Ready(Some(Err(self.ended(why)))),
            Poll::Pending => return Poll::Pending,
        }
        if let Some(piece) = self.held.pop() {
            return Poll::Ready(Some(Ok(self.sent(piece))));
        }
        match self.held.end.take() {
            None => Poll::Pending,
            Some(Ok(())) => {
                self.held.end = Some(Ok(()));
                Poll::Ready(None)
            }
            Some(Err(error)) => {
                // The client only sees that the connection ends too early.
                tracing::warn!(%error, "a file cannot be sent to its end");
                if let Some(holder) = &self.holder {
                    holder.failed(&error);
                }
                self.give_up();
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use block::backend::MemoryDevice;
    use block::{BlockDevice, Device, WriteFlags};
    use files::FileExtent;
    use tokio::sync::oneshot;

    use super::*;

    const SIZE: u64 = 12 << 20;

    /// Who waits for an answer.
    type Question = oneshot::Sender<Result<(), String>>;

    /// Confirms when it is told to.
    #[derive(Clone, Default)]
    struct Lender {
        asked: Arc<Mutex<VecDeque<Question>>>,
    }

    impl Lender {
        fn asked(&self) -> usize {
            self.asked.lock().unwrap().len()
        }

        fn say(&self, answer: Result<(), String>) {
            self.asked.lock().unwrap().pop_front().expect("a question").send(answer).unwrap();
        }
    }

    impl Holder for Lender {
        fn failed(&self, _: &Error) {}

        fn sent(&self, _: u64) {}

        fn poll_end(&mut self, _: &mut Context<'_>) -> Poll<String> {
            Poll::Pending
        }

        fn confirm(&self) -> Confirming {
            let (sender, answer) = oneshot::channel();
            self.asked.lock().unwrap().push_back(sender);
            Box::pin(async move { answer.await.unwrap_or(Err("gone".into())) })
        }
    }

    async fn lent() -> (FileBody, Lender) {
        let device = MemoryDevice::new(SIZE, 512).unwrap();
        device.write(0, vec![7; SIZE as usize].into(), WriteFlags::NONE).await.unwrap();
        let device: Device = Arc::new(device);
        let file = FileReader::new(device, vec![FileExtent { offset: 0, len: SIZE, at: Some(0) }]);
        let lender = Lender::default();
        let body = FileBody::new(&file, [Segment::Part(0..SIZE)]);
        (body.with_holder(Box::new(lender.clone())), lender)
    }

    type Polled = Poll<Option<Result<Frame<Bytes>, Error>>>;

    fn poll(body: &mut FileBody) -> Polled {
        Pin::new(body).poll_frame(&mut Context::from_waker(std::task::Waker::noop()))
    }

    /// Bytes that can be had now.
    fn had(body: &mut FileBody) -> u64 {
        let mut bytes = 0;
        while let Poll::Ready(Some(Ok(frame))) = poll(body) {
            bytes += frame.into_data().unwrap().len() as u64;
        }
        bytes
    }

    #[tokio::test]
    async fn nothing_is_handed_on_before_it_is_confirmed_and_no_more_waits_than_may() {
        let (mut body, lender) = lent().await;
        assert_eq!((had(&mut body), lender.asked()), (0, 1), "one question at a time");
        assert!(body.held.bytes >= HELD_MAX && body.held.bytes < HELD_MAX + (1 << 20));
        let mut all = 0;
        while all < SIZE {
            assert!(poll(&mut body).is_pending());
            lender.say(Ok(()));
            let some = had(&mut body);
            assert!(some > 0 && some <= HELD_MAX + (1 << 20), "{some}");
            all += some;
        }
        assert!(matches!(poll(&mut body), Poll::Ready(None)));
        assert_eq!((all, body.left()), (SIZE, 0));
    }

    #[tokio::test]
    async fn what_is_not_confirmed_is_never_handed_on() {
        let (mut body, lender) = lent().await;
        assert!(poll(&mut body).is_pending());
        lender.say(Ok(()));
        assert!(had(&mut body) > 0);
        lender.say(Err("its owner is editing it".into()));
        let Poll::Ready(Some(Err(error))) = poll(&mut body) else { panic!("no end") };
        assert!(error.to_string().contains("its owner is editing it"), "{error}");
        assert!(matches!(poll(&mut body), Poll::Ready(None)), "and no byte more");
    }
}
