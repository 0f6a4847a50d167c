//! A TCP connection as PDUs, with a limit on every wait. It knows nothing of sessions, checks
//! nothing but framing, and sends whatever bytes it is given.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use iscsi_proto::frame::{Framer, Framing, Limits};
use iscsi_proto::pdu::{Header, Opcode};

use crate::verdict::{Stop, failed};

/// What came, or did not, within the time.
#[derive(Debug)]
pub(crate) enum Received {
    /// A PDU.
    Pdu(Header, Bytes),
    /// The target closed the connection, in order or by reset.
    Closed,
    /// Nothing.
    Nothing,
}

/// One connection.
pub(crate) struct Wire {
    stream: TcpStream,
    framer: Framer,
    /// Digests of what is sent.
    pub(crate) framing: Framing,
    /// What was sent last.
    last_sent: Option<Opcode>,
}

impl Wire {
    /// Connects to the first address that answers.
    pub(crate) fn connect(addresses: &[SocketAddr], timeout: Duration) -> Result<Self, Stop> {
        let mut why = "no address".to_owned();
        for address in addresses {
            match TcpStream::connect_timeout(address, timeout) {
                Ok(stream) => {
                    // Small PDUs one after the other: Nagle would hold each for a round trip.
                    let set = stream
                        .set_nodelay(true)
                        .and_then(|()| stream.set_write_timeout(Some(timeout)));
                    if let Err(error) = set {
                        return failed(format!("socket of {address}: {error}"));
                    }
                    let framing = Framing::default();
                    let framer = Framer::new(framing, Limits::LOGIN);
                    return Ok(Self { stream, framer, framing, last_sent: None });
                }
                Err(error) => why = format!("{address}: {error}"),
            }
        }
        failed(format!("cannot connect to {why}"))
    }

    /// What holds from the next PDU on: login is over.
    pub(crate) fn full_feature(&mut self, framing: Framing, data_segment_length_max: u32) {
        self.framing = framing;
        self.framer.set(framing, Limits::full_feature(data_segment_length_max));
    }

    /// Sends a PDU with the digests it should have. A target that has closed the connection is
    /// noticed when its answer is awaited.
    pub(crate) fn send(&mut self, header: &Header, data: &[u8]) -> Result<(), Stop> {
        self.send_bytes(&self.framing.pdu_bytes(header, data))
    }

    /// What was sent last, for people.
    pub(crate) fn last_sent(&self) -> String {
        let nothing = || "nothing had been sent on it".to_owned();
        self.last_sent.map_or_else(nothing, |opcode| format!("{opcode} had been sent last"))
    }

    /// Sends bytes as they are.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        // The lower six bits of the first byte (§11.2.1.2).
        self.last_sent = bytes.first().map(|first| Opcode(first & 0x3f)).or(self.last_sent);
        match self.stream.write_all(bytes) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                failed(format!("the target reads nothing any more: {error}"))
            }
            _ => Ok(()),
        }
    }

    /// The next PDU within `timeout`.
    ///
    /// # Errors
    /// Fails if what comes is no PDU, or its digest is wrong.
    pub(crate) fn receive(&mut self, timeout: Duration) -> Result<Received, Stop> {
        let deadline = Instant::now() + timeout;
        let mut buffer = [0; 16 << 10];
        loop {
            match self.framer.next_pdu() {
                Ok(Some((header, data))) => return Ok(Received::Pdu(header, data)),
                Ok(None) => {}
                Err(error) => return failed(format!("a PDU of the target: {error}")),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Received::Nothing);
            }
            if let Err(error) = self.stream.set_read_timeout(Some(left)) {
                return failed(format!("socket: {error}"));
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(Received::Closed),
                Ok(length) => self.framer.push(&buffer[..length]),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(Received::Nothing),
                    _ => return Ok(Received::Closed),
                },
            }
        }
    }
}
