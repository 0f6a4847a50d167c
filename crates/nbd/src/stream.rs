//! A connected socket, Unix or TCP, behind one type. Knows no message.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;

use tokio::net::{TcpStream, UnixStream};

/// A connection. All methods take `&self`: one task reads while another writes.
pub struct Stream {
    socket: StreamSocket,
    peer: String,
}

enum StreamSocket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Over a Unix socket.
    pub fn unix(stream: UnixStream) -> Self {
        Self { socket: StreamSocket::Unix(stream), peer: "unix".into() }
    }

    /// Over TCP.
    pub fn tcp(stream: TcpStream, peer: SocketAddr) -> Self {
        Self { socket: StreamSocket::Tcp(stream), peer: peer.to_string() }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Reads what is there, or waits until something is; 0 is the end. Cancelling loses nothing.
    ///
    /// # Errors
    /// What the system says.
    pub async fn read(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        loop {
            let result = match &self.socket {
                StreamSocket::Unix(socket) => socket.try_read_vectored(slices),
                StreamSocket::Tcp(socket) => socket.try_read_vectored(slices),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match &self.socket {
                    StreamSocket::Unix(socket) => socket.readable().await?,
                    StreamSocket::Tcp(socket) => socket.readable().await?,
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Writes all slices.
    ///
    /// # Errors
    /// What the system says.
    pub async fn write_all(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        // Drops empty slices at the front, so that "nothing written" always means "closed".
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let result = match &self.socket {
                StreamSocket::Unix(socket) => socket.try_write_vectored(slices),
                StreamSocket::Tcp(socket) => socket.try_write_vectored(slices),
            };
            match result {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut slices, written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match &self.socket {
                    StreamSocket::Unix(socket) => socket.writable().await?,
                    StreamSocket::Tcp(socket) => socket.writable().await?,
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
