//! [`Tls`]: a connection's TLS state beside its socket. Only moves bytes between the two: records,
//! keys and certificates are rustls' business, and its configuration is the caller's.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::Connection;
use rustls::pki_types::CertificateDer;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Enciphered bytes that are taken from the socket with one system call: four records. Each
/// connection has so much, also one that has proved nothing yet.
const INCOMING_LEN: usize = 64 << 10;

/// Bytes that are enciphered ahead of the socket: as with what waits in a socket, a command among
/// them cannot go another way any more.
const OUTGOING_LEN_MAX: usize = 64 << 10;

/// A connection through TLS.
pub struct Tls {
    socket: Arc<TcpStream>,
    connection: Connection,
    /// Taken from the socket and not given to `connection` yet: `incoming[start..end]`.
    incoming: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes that `connection` has deciphered and nobody has taken.
    deciphered: usize,
    /// The peer's half is over.
    is_over: bool,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Tls {
    pub(super) fn new(socket: Arc<TcpStream>, mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(OUTGOING_LEN_MAX));
        let incoming = vec![0; INCOMING_LEN].into_boxed_slice();
        Self { socket, connection, incoming, start: 0, end: 0, deciphered: 0, is_over: false }
    }

    pub(super) fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }

    pub(super) fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.connection.peer_certificates()?.first()
    }

    /// Both ends have proved what they have to prove, as far as this end can know.
    pub(super) fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let flushed = self.poll_flush(context)?;
            if !self.connection.is_handshaking() {
                return flushed.map(Ok);
            }
            ready!(self.socket.poll_read_ready(context))?;
            match self.fill() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => {
                    while self.start < self.end && self.connection.is_handshaking() {
                        self.decipher()?;
                    }
                }
            }
        }
    }

    pub(super) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.deciphered > 0 || self.start < self.end || self.is_over {
            return Poll::Ready(Ok(()));
        }
        self.socket.poll_read_ready(context)
    }

    /// Fills the slices with what has come; asks the socket once, if nothing has.
    pub(super) fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut total = 0;
        for slice in slices {
            let mut filled = 0;
            while filled < slice.len() {
                if self.deciphered > 0 {
                    let n = self.connection.reader().read(&mut slice[filled..])?;
                    self.deciphered = self.deciphered.saturating_sub(n);
                    (filled, total) = (filled + n, total + n);
                } else if self.start < self.end && !self.is_over {
                    self.decipher()?;
                } else if total > 0 || self.is_over {
                    return Ok(total);
                } else if self.fill()? == 0 {
                    self.is_over = true;
                }
            }
        }
        Ok(total)
    }

    /// Takes what the socket has; 0 bytes are its end.
    fn fill(&mut self) -> io::Result<usize> {
        (self.start, self.end) = (0, 0);
        self.end = receive(&self.socket, &mut [IoSliceMut::new(&mut self.incoming)])?;
        Ok(self.end)
    }

    /// Gives the connection more of what has come.
    fn decipher(&mut self) -> io::Result<()> {
        let mut rest = &self.incoming[self.start..self.end];
        let taken = self.connection.read_tls(&mut rest)?;
        self.start += taken;
        match self.connection.process_new_packets() {
            Ok(state) => {
                self.deciphered = state.plaintext_bytes_to_read();
                // After the peer's last word, no more is taken.
                self.is_over |= state.peer_has_closed() || taken == 0;
                Ok(())
            }
            Err(error) => {
                let _ = self.send(); // why it ends, for the peer; the error is what counts here
                Err(io::Error::new(io::ErrorKind::InvalidData, error))
            }
        }
    }

    pub(super) fn is_flushed(&self) -> bool {
        !self.connection.wants_write()
    }

    pub(super) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.connection.wants_write() {
            ready!(self.socket.poll_write_ready(context))?;
            match self.send() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => result?,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Enciphers some of these bytes, and sends what the socket takes.
    pub(super) fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let n = self.connection.writer().write_vectored(slices)?;
        match self.send() {
            // What is left goes out before more is taken.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(n),
            result => result.map(|()| n),
        }
    }

    /// Writes enciphered bytes until there are no more or the socket is full.
    fn send(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            if self.connection.write_tls(&mut Socket(&self.socket))? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    pub(super) fn say_end(&mut self) {
        self.connection.send_close_notify();
        // A peer that hears nothing of it sees the socket end.
        let _ = self.send();
    }
}

/// A socket that writes what it has room for.
struct Socket<'a>(&'a TcpStream);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads once. What fills less than there is room for was all there is: the socket need not be
/// asked again, a second system call for each batch, to know that it has nothing more.
pub(super) fn receive(socket: &TcpStream, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let room: usize = slices.iter().map(|slice| slice.len()).sum();
    let mut n = 0;
    let result = socket.try_io(Interest::READABLE, || {
        n = (&*SockRef::from(socket)).read_vectored(slices)?;
        // For tokio: not readable any more. It knows what has come since it was asked, so that
        // nothing which comes meanwhile is missed.
        if n > 0 && n < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    match result {
        Err(error) if n == 0 || error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(n),
    }
}
