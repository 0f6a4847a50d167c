//! Sending: many PDUs with one vectored write, header and payload never joined.

use std::collections::VecDeque;
use std::io;
use std::io::IoSlice;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use iscsi_proto::frame::{Framing, HeaderBytes, Trailer};
use tokio::net::TcpStream;

use crate::driver::{CloseReason, Role};

/// Bytes taken from the core ahead of the socket. More would only age in the queue (sequence
/// numbers and windows are stamped when a PDU leaves the core); less would cost system calls.
const QUEUED_BYTES_MAX: usize = 512 << 10;

/// Slices per write. The kernel's IOV_MAX is 1024; three slices a PDU, so 85 PDUs.
const SLICES_MAX: usize = 256;

pub(crate) struct Sender {
    framing: Framing,
    queue: VecDeque<Outgoing>,
    queued_bytes: usize,
    /// Bytes of the first PDU that are written already.
    written: usize,
}

struct Outgoing {
    header: HeaderBytes,
    payload: Bytes,
    trailer: Trailer,
}

impl Outgoing {
    fn parts(&self) -> [&[u8]; 3] {
        [&self.header, &self.payload, &self.trailer]
    }

    fn len(&self) -> usize {
        self.parts().iter().map(|part| part.len()).sum()
    }
}

impl Sender {
    pub(crate) fn new(framing: Framing) -> Self {
        Self { framing, queue: VecDeque::new(), queued_bytes: 0, written: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes PDUs from the core and writes them until there are no more or the socket is full.
    /// True: something was written.
    pub(crate) fn poll_send<R: Role>(
        &mut self,
        context: &mut Context<'_>,
        stream: &TcpStream,
        role: &mut R,
    ) -> Result<bool, CloseReason> {
        let mut any = false;
        loop {
            self.fill(role);
            if self.queue.is_empty() {
                return Ok(any);
            }
            match self.poll_write(context, stream) {
                Poll::Pending => return Ok(any),
                Poll::Ready(result) => self.advance(result?),
            }
            any = true;
        }
    }

    fn fill<R: Role>(&mut self, role: &mut R) {
        while self.queued_bytes < QUEUED_BYTES_MAX {
            let Some(pdu) = role.poll_transmit() else { return };
            let trailer = self.framing.trailer([&*pdu.payload]);
            let header = self.framing.header_bytes(&pdu.header);
            let outgoing = Outgoing { header, payload: pdu.payload, trailer };
            self.queued_bytes += outgoing.len();
            self.queue.push_back(outgoing);
        }
    }

    fn poll_write(&self, context: &mut Context<'_>, stream: &TcpStream) -> Poll<io::Result<usize>> {
        loop {
            ready!(stream.poll_write_ready(context))?;
            match self.write(stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn write(&self, stream: &TcpStream) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        let mut skip = self.written;
        for part in self.queue.iter().flat_map(Outgoing::parts) {
            if skip >= part.len() {
                skip -= part.len();
                continue;
            }
            slices[count] = IoSlice::new(&part[skip..]);
            skip = 0;
            count += 1;
            if count == SLICES_MAX {
                break;
            }
        }
        stream.try_write_vectored(&slices[..count])
    }

    /// Drops what has been written.
    fn advance(&mut self, n: usize) {
        self.written += n;
        while let Some(first) = self.queue.front() {
            let len = first.len();
            if self.written < len {
                return;
            }
            self.written -= len;
            self.queued_bytes -= len;
            self.queue.pop_front();
        }
    }
}
