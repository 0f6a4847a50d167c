//! Receiving: headers go through a staging buffer, payload straight into its destination.
//!
//! One vectored read fills the rest of the current payload and, behind it, the staging buffer with
//! the digest and the next headers. Small PDUs are copied out of staging, because a copy of 4 KiB
//! costs less than a system call.

use std::io::{self, IoSliceMut};
use std::task::{Context, Poll, ready};

use block::Buf;
use bytes::Bytes;
use iscsi_proto::frame::{DataDigest, Frame, Framing, Limits, parse_header};

use super::Stream;
use crate::driver::{CloseReason, Dest, Filled, Role};
use crate::poll::note_received;

/// Staging size: some 15 Data-In PDUs of 4 KiB with one read.
const STAGING_LEN: usize = 64 << 10;

/// How much of staging may follow a large payload in one read: enough for the trailer and a few
/// headers, little enough that the next payload is not copied out of staging.
const STAGING_BEHIND_PAYLOAD: usize = 4 << 10;

/// A payload with more than this left to read counts as large.
const LARGE_PAYLOAD: usize = 16 << 10;

/// Reads that are answered before more of what has come is handled. Where all requests of a socket
/// were handled before the first answer went out, one end slept while the other worked (33 commands
/// a write at depth 32). 4 KiB reads a second, in thousands, by this number (none, 4, 8, 16): depth
/// 32: 207, 257, 327, 335; depth 128: 247, 261, 359, 355. Writes need no data in their answers and
/// run through; large reads are fewer than this at a time (with 32 KiB of answers at most, 256 KiB
/// reads lost 9 %).
pub(crate) const ANSWERS: usize = 16;

pub(crate) struct Receiver {
    framing: Framing,
    limits: Limits,
    staging: Box<[u8]>,
    /// Unconsumed bytes are `staging[start..end]`.
    start: usize,
    end: usize,
    payload: Option<Payload>,
    /// Staging has more to handle, which let answers go first.
    gave_way: bool,
}

/// A data segment under way.
struct Payload {
    place: Place,
    /// Bytes of data still to come.
    data_left: usize,
    /// Padding and digest bytes that follow.
    pad_len: usize,
    digest_len: usize,
    digest: Option<DataDigest>,
}

enum Place {
    None,
    Buffer { buf: Buf, next: usize },
    Scratch { bytes: Vec<u8> },
    Discard,
}

impl Receiver {
    pub(crate) fn new(framing: Framing, limits: Limits) -> Self {
        let staging = vec![0; STAGING_LEN].into_boxed_slice();
        Self { framing, limits, staging, start: 0, end: 0, payload: None, gave_way: false }
    }

    /// The buffer that is being filled.
    pub(crate) fn into_buffer(self) -> Option<Buf> {
        match self.payload?.place {
            Place::Buffer { buf, .. } => Some(buf),
            _ => None,
        }
    }

    /// Reads once and handles what came, or goes on with what came before. True: there may be more;
    /// false: waiting for the socket.
    pub(crate) fn poll_receive<R: Role>(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut Stream,
        role: &mut R,
    ) -> Result<bool, CloseReason> {
        if self.gave_way {
            return self.consume(role).map(|()| true);
        }
        match self.poll_read(context, stream) {
            Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => Err(error.into()),
            Poll::Ready(Ok(0)) => Err(CloseReason::ClosedByPeer),
            Poll::Ready(Ok(_)) => {
                note_received();
                self.consume(role).map(|()| true)
            }
        }
    }

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut Stream,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(stream.poll_read_ready(context))?;
            match self.read(stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    /// One vectored read: the rest of the payload, then staging.
    fn read(&mut self, stream: &mut Stream) -> io::Result<usize> {
        self.make_room();
        let free = &mut self.staging[self.end..];
        let n = match &mut self.payload {
            Some(Payload { place: Place::Buffer { buf, next }, data_left, digest, .. })
                if *data_left > 0 =>
            {
                let staging_len = if *data_left > LARGE_PAYLOAD {
                    free.len().min(STAGING_BEHIND_PAYLOAD)
                } else {
                    free.len()
                };
                let rest = &mut buf[*next..*next + *data_left];
                let mut slices = [IoSliceMut::new(rest), IoSliceMut::new(&mut free[..staging_len])];
                let n = stream.read_vectored(&mut slices)?;
                let placed = n.min(*data_left);
                if let Some(digest) = digest {
                    digest.update(&buf[*next..*next + placed]);
                }
                *next += placed;
                *data_left -= placed;
                self.end += n - placed;
                n
            }
            _ => {
                let n = stream.read_vectored(&mut [IoSliceMut::new(free)])?;
                self.end += n;
                n
            }
        };
        Ok(n)
    }

    /// Moves unconsumed bytes to the front: at most one partial header or trailer, never payload.
    fn make_room(&mut self) {
        if self.start > 0 {
            self.staging.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Handles what is complete in staging, until [`ANSWERS`] are to be sent first.
    fn consume<R: Role>(&mut self, role: &mut R) -> Result<(), CloseReason> {
        self.gave_way = false;
        let mut answered = 0;
        loop {
            // Small segments are nearly always complete: they are not kept and taken back.
            let mut payload = match self.payload.take() {
                Some(payload) => payload,
                None => {
                    let staged = &self.staging[self.start..self.end];
                    let Some(frame) = parse_header(staged, self.framing, self.limits)? else {
                        return Ok(());
                    };
                    self.start += frame.header_len;
                    let dest = role.handle_header(&frame.header)?;
                    Payload::new(&frame, dest)?
                }
            };
            self.start += payload.absorb(&self.staging[self.start..self.end]);
            let staged = &self.staging[self.start..self.end];
            let trailer_len = payload.trailer_len();
            if payload.data_left > 0 || staged.len() < trailer_len {
                self.payload = Some(payload);
                return Ok(());
            }
            let digest_ok = payload.check_trailer(staged);
            self.start += trailer_len;
            role.handle_data(payload.place.into_filled(), digest_ok)?;
            answered += role.take_answered();
            if answered >= ANSWERS {
                self.gave_way = true;
                return Ok(());
            }
        }
    }
}

impl Payload {
    fn new(frame: &Frame, dest: Dest) -> Result<Self, CloseReason> {
        let place = match dest {
            Dest::None => Place::None,
            Dest::Buffer { buf, offset } => {
                if offset.checked_add(frame.data_len).is_none_or(|end| end > buf.len()) {
                    return Err(CloseReason::Local(format!(
                        "data segment {offset}+{} outside a buffer of {} bytes",
                        frame.data_len,
                        buf.len()
                    )));
                }
                Place::Buffer { buf, next: offset }
            }
            Dest::Scratch => Place::Scratch { bytes: Vec::with_capacity(frame.data_len) },
            Dest::Discard => Place::Discard,
        };
        let digest = frame.data_digest.then(DataDigest::new);
        let digest_len = frame.trailer_len() - frame.pad_len;
        Ok(Self { place, data_left: frame.data_len, pad_len: frame.pad_len, digest_len, digest })
    }

    fn trailer_len(&self) -> usize {
        self.pad_len + self.digest_len
    }

    /// Takes what belongs to the data segment from `staged`; returns how much it took.
    fn absorb(&mut self, staged: &[u8]) -> usize {
        let n = staged.len().min(self.data_left);
        if n == 0 {
            return 0;
        }
        let data = &staged[..n];
        if let Some(digest) = &mut self.digest {
            digest.update(data);
        }
        match &mut self.place {
            Place::Buffer { buf, next } => {
                buf[*next..*next + n].copy_from_slice(data);
                *next += n;
            }
            Place::Scratch { bytes } => bytes.extend_from_slice(data),
            Place::None | Place::Discard => {}
        }
        self.data_left -= n;
        n
    }

    fn check_trailer(&mut self, staged: &[u8]) -> bool {
        let Some(mut digest) = self.digest.take() else { return true };
        let (pad, rest) = staged.split_at(self.pad_len);
        digest.update(pad);
        rest.first_chunk().is_some_and(|received| digest.verify(*received).is_ok())
    }
}

impl Place {
    fn into_filled(self) -> Filled {
        match self {
            Self::None => Filled::None,
            Self::Buffer { buf, .. } => Filled::Buffer(buf),
            Self::Scratch { bytes } => Filled::Scratch(Bytes::from(bytes)),
            Self::Discard => Filled::Discarded,
        }
    }
}
