//! [`Stream`]: the bytes of a connection, in the clear or through TLS (RFC 8446).
//!
//! TLS is driven here, by whoever moves the connection's bytes: no task and no second socket stand
//! between, so that what is asked of [`Stream::socket`] is what the network does. In the clear,
//! nothing is between the driver and the socket. Whom a key belongs to is not decided here.

use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::Connection;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::tls::Tls;
use super::tls::receive;

/// A connection's bytes. The socket is shared with those who look at it and set its options, who
/// never read or write.
#[derive(Debug)]
pub enum Stream {
    /// As they are.
    Plain(Arc<TcpStream>),
    /// Through TLS, whose handshake is over.
    Tls(Box<Tls>),
}

impl From<TcpStream> for Stream {
    fn from(socket: TcpStream) -> Self {
        Self::Plain(Arc::new(socket))
    }
}

impl Stream {
    /// Shakes hands over a socket, as the end that this state is of.
    ///
    /// # Errors
    /// The socket's, or `InvalidData` with what is wrong with the peer.
    pub async fn secure(socket: TcpStream, connection: Connection) -> io::Result<Self> {
        let mut tls = Box::new(Tls::new(Arc::new(socket), connection));
        std::future::poll_fn(|context| tls.poll_handshake(context)).await?;
        Ok(Self::Tls(tls))
    }

    /// The socket, to be looked at.
    pub fn socket(&self) -> &Arc<TcpStream> {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => tls.socket(),
        }
    }

    /// The certificate that the peer has shown in TLS.
    pub fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(tls) => tls.peer_certificate(),
        }
    }

    /// Something may be there to be read.
    pub(crate) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.poll_read_ready(context),
            Self::Tls(tls) => tls.poll_read_ready(context),
        }
    }

    /// Reads once, or says `WouldBlock`. 0 bytes are the end, whether TLS was told of it or not:
    /// what is spoken inside says itself where it ends.
    pub(crate) fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => receive(socket, slices),
            Self::Tls(tls) => tls.read_vectored(slices),
        }
    }

    /// More may be written: what TLS has enciphered before has gone to the socket.
    pub(crate) fn poll_write_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(socket) => socket.poll_write_ready(context),
            Self::Tls(tls) => tls.poll_flush(context),
        }
    }

    /// Takes some of these bytes, or says `WouldBlock`. What TLS has taken goes out as the socket
    /// has room: [`poll_flushed`](Self::poll_flushed).
    pub(crate) fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.try_write_vectored(slices),
            Self::Tls(tls) => tls.write_vectored(slices),
        }
    }

    /// All that was taken is in the socket.
    pub(crate) fn poll_flushed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(tls) => tls.poll_flush(context),
        }
    }

    /// Is it?
    pub(crate) fn is_flushed(&self) -> bool {
        match self {
            Self::Plain(_) => true,
            Self::Tls(tls) => tls.is_flushed(),
        }
    }

    /// Tells a peer that speaks TLS that nothing follows, if the socket takes it.
    pub(crate) fn say_end(&mut self) {
        if let Self::Tls(tls) = self {
            tls.say_end();
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            ready!(this.poll_read_ready(context))?;
            let mut slices = [IoSliceMut::new(buf.initialize_unfilled())];
            match this.read_vectored(&mut slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result.map(|n| buf.advance(n))),
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        loop {
            ready!(this.poll_write_ready(context))?;
            match this.write_vectored(&[IoSlice::new(bytes)]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flushed(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.say_end();
        ready!(this.poll_flushed(context))?;
        Poll::Ready(socket2::SockRef::from(&**this.socket()).shutdown(std::net::Shutdown::Write))
    }
}
