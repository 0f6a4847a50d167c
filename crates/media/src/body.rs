//! [`FileBody`]: parts of a file as the body of a response.

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

/// Most bytes that one response has asked for and not sent: 640 Mbit/s at a round trip of 100 ms.
/// With as many responses as the server allows, it is its memory.
const BYTES_MAX: u64 = 8 << 20;

/// Who lends a file, as long as it is sent.
pub trait Holder: Send {
    /// It could not be read.
    fn failed(&self, error: &Error);

    /// `bytes` more of the body were handed to the connection.
    fn sent(&self, bytes: u64);

    /// Why it is not sent any more, as soon as there is a reason; wakes the task then.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<String>;
}

/// Bytes of a file, read while the client takes them. hyper drops it when the client is gone, and
/// with it everything that was on its way.
pub struct FileBody {
    file: FileReader,
    segments: VecDeque<Segment>,
    reading: Option<Reading>,
    left: u64,
    holder: Option<Box<dyn Holder>>,
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
        let config =
            ReadConfig { bytes_first: BYTES_FIRST, bytes_max: BYTES_MAX, ..ReadConfig::default() };
        let segments: VecDeque<Segment> = segments.into_iter().collect();
        let left = segments.iter().map(Segment::len).sum();
        let file = file.clone().with_config(config);
        Self { file, segments, reading: None, left, holder: None }
    }

    /// Tells this one of a failure, and keeps it until the body is sent or dropped.
    #[must_use]
    pub fn with_holder(mut self, holder: Box<dyn Holder>) -> Self {
        self.holder = Some(holder);
        self
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
            tracing::info!(why, "a stream ends");
            self.segments.clear();
            self.reading = None;
            self.holder = None;
            let (what, source) = ("content of a file", BlockError::Unreachable(why));
            return Poll::Ready(Some(Err(Error::Device { what, offset: 0, source })));
        }
        loop {
            if let Some(reading) = &mut self.reading {
                match ready!(reading.poll_next(context)) {
                    Some(Ok(bytes)) => return Poll::Ready(Some(Ok(self.sent(bytes)))),
                    Some(Err(error)) => {
                        // The client only sees that the connection ends too early.
                        tracing::warn!(%error, "a file cannot be sent to its end");
                        if let Some(holder) = &self.holder {
                            holder.failed(&error);
                        }
                        self.segments.clear();
                        self.reading = None;
                        return Poll::Ready(Some(Err(error)));
                    }
                    None => self.reading = None,
                }
            }
            match self.segments.pop_front() {
                Some(Segment::Text(text)) => return Poll::Ready(Some(Ok(self.sent(text)))),
                Some(Segment::Part(part)) => self.reading = Some(self.file.read(part)),
                None => return Poll::Ready(None),
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
