//! Buffered reading of messages: headers from a small buffer, payload past it.

use std::io::{self, IoSliceMut};
use std::sync::Arc;

use crate::stream::Stream;

/// Bytes read ahead of the message being handled: some hundred headers, or several small writes.
/// Payload beyond it goes from the socket straight into its buffer.
const INBOX_LEN: usize = 16 << 10;

/// The receiving end of a connection.
pub struct Inbox {
    stream: Arc<Stream>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// Reads from this stream.
    pub fn new(stream: Arc<Stream>) -> Self {
        Self { stream, buffer: vec![0; INBOX_LEN], start: 0, end: 0 }
    }

    /// Takes what the handshake received too much.
    pub fn put_back(&mut self, bytes: &[u8]) {
        self.buffer = bytes.to_vec();
        self.buffer.resize(bytes.len().max(INBOX_LEN), 0);
        (self.start, self.end) = (0, bytes.len());
    }

    /// The next header of `N` bytes; `None` at the end of the stream. Cancelling loses nothing.
    ///
    /// # Errors
    /// Of the kind `UnexpectedEof` if the stream ends within it.
    pub async fn header<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        loop {
            let held = &self.buffer[self.start..self.end];
            if let Some(header) = held.first_chunk() {
                self.start += N;
                return Ok(Some(*header));
            }
            let held = held.len();
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, held);
            let mut slices = [IoSliceMut::new(&mut self.buffer[held..])];
            match self.stream.read(&mut slices).await? {
                0 if held == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.end += count,
            }
        }
    }

    /// Fills `payload`; one system call also takes the headers behind it.
    ///
    /// # Errors
    /// Of the kind `UnexpectedEof` if the stream ends within it.
    pub async fn payload(&mut self, payload: &mut [u8]) -> io::Result<()> {
        let held = (self.end - self.start).min(payload.len());
        payload[..held].copy_from_slice(&self.buffer[self.start..self.start + held]);
        self.start += held;
        let mut missing = &mut payload[held..];
        while !missing.is_empty() {
            // Nothing is held any more, so the whole buffer is free.
            let mut slices = [IoSliceMut::new(missing), IoSliceMut::new(&mut self.buffer)];
            let count = self.stream.read(&mut slices).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let filled = count.min(missing.len());
            missing = &mut missing[filled..];
            (self.start, self.end) = (0, count - filled);
        }
        Ok(())
    }
}
