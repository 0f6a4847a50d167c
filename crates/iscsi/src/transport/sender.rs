//! Sending: many PDUs with one vectored write, header and payload never joined.

use std::collections::VecDeque;
use std::io;
use std::io::IoSlice;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use iscsi_proto::frame::{Framing, HeaderBytes, Trailer};

use super::Stream;
use crate::driver::{CloseReason, Role};

/// Bytes taken from the core ahead of the socket. More would only age in the queue (sequence
/// numbers and windows are stamped when a PDU leaves the core); less would cost system calls.
const QUEUED_BYTES_MAX: usize = 512 << 10;

/// The same while the socket is full, where what is taken holds up other connections.
const QUEUED_BYTES_FULL: usize = 128 << 10;

/// Slices per write. The kernel's IOV_MAX is 1024; three slices a PDU, so 85 PDUs.
const SLICES_MAX: usize = 256;

pub(crate) struct Sender {
    framing: Framing,
    queue: VecDeque<Outgoing>,
    queued_bytes: usize,
    /// Bytes of the first PDU that are written already.
    written: usize,
    /// The socket took less than it was given.
    full: bool,
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
        Self { framing, queue: VecDeque::new(), queued_bytes: 0, written: 0, full: false }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes PDUs from the core and writes them until there are no more or the socket is full.
    /// True: something was written.
    pub(crate) fn poll_send<R: Role>(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut Stream,
        role: &mut R,
    ) -> Result<bool, CloseReason> {
        let mut any = false;
        loop {
            self.fill(role);
            if self.queue.is_empty() {
                self.full = false;
                // Who waits is woken when the socket takes the rest.
                return match stream.poll_flushed(context) {
                    Poll::Ready(Err(error)) => Err(error.into()),
                    _ => Ok(any),
                };
            }
            match self.poll_write(context, stream) {
                Poll::Pending => {
                    self.full = true;
                    return Ok(any);
                }
                Poll::Ready(result) => self.advance(result?),
            }
            any = true;
        }
    }

    fn fill<R: Role>(&mut self, role: &mut R) {
        let most = if self.full && R::IS_AWAITED { QUEUED_BYTES_FULL } else { QUEUED_BYTES_MAX };
        while self.queued_bytes < most {
            let Some(pdu) = role.poll_transmit() else { return };
            let trailer = self.framing.trailer([&*pdu.payload]);
            let header = self.framing.header_bytes(&pdu.header);
            let outgoing = Outgoing { header, payload: pdu.payload, trailer };
            self.queued_bytes += outgoing.len();
            self.queue.push_back(outgoing);
        }
    }

    fn poll_write(
        &self,
        context: &mut Context<'_>,
        stream: &mut Stream,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(stream.poll_write_ready(context))?;
            match self.write(stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn write(&self, stream: &mut Stream) -> io::Result<usize> {
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
        stream.write_vectored(&slices[..count])
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

#[cfg(test)]
mod tests {
    use std::io::Read;

    use block::Buf;
    use iscsi_proto::connection::Transmit;
    use iscsi_proto::ids::{Itt, Lun, Ttt};
    use iscsi_proto::pdu::{Header, NopOut};
    use iscsi_proto::serial::{CmdSn, StatSn};
    use tokio::net::TcpStream;

    use super::*;
    use crate::driver::{Dest, Filled};

    const PDU_BYTES: usize = 64 << 10;

    /// Always has something to send.
    #[derive(Default)]
    struct Endless {
        taken: usize,
    }

    impl Role for Endless {
        const IS_AWAITED: bool = true;

        fn handle_header(&mut self, _: &Header) -> Result<Dest, CloseReason> {
            Ok(Dest::None)
        }

        fn handle_data(&mut self, _: Filled, _: bool) -> Result<(), CloseReason> {
            Ok(())
        }

        fn poll_work(&mut self, _: &mut Context<'_>) -> Result<(), CloseReason> {
            Ok(())
        }

        fn poll_transmit(&mut self) -> Option<Transmit> {
            self.taken += 1;
            let nop = NopOut {
                immediate: true,
                lun: Lun(0),
                itt: Itt::NONE,
                ttt: Ttt::NONE,
                cmd_sn: CmdSn(1),
                exp_stat_sn: StatSn(1),
            };
            let header = nop.encode(PDU_BYTES as u32);
            Some(Transmit { header, payload: Bytes::from(vec![0; PDU_BYTES]) })
        }

        fn take_back(&mut self, _: Buf) {}

        fn note_progress(&mut self) {}
    }

    #[tokio::test]
    async fn a_full_socket_takes_little_ahead_of_what_it_can_send() -> io::Result<()> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let mut stream = Stream::from(TcpStream::connect(listener.local_addr()?).await?);
        let (mut peer, _) = listener.accept()?;
        let mut sender = Sender::new(Framing::default());
        let mut role = Endless::default();
        let mut read = vec![0; 32 * PDU_BYTES];
        for round in 0..17 {
            std::future::poll_fn(|context| {
                Poll::Ready(sender.poll_send(context, &mut stream, &mut role))
            })
            .await
            .unwrap();
            // What was taken before the socket was full goes first.
            if round < 16 {
                peer.read_exact(&mut read)?;
                stream.socket().writable().await?;
            }
        }
        let (left, taken) = (sender.queued_bytes, role.taken);
        assert!(taken > 16 * 32, "it goes on: {taken} PDUs");
        assert!(left < QUEUED_BYTES_FULL + PDU_BYTES + 1024, "{left} bytes wait");
        Ok(())
    }
}
