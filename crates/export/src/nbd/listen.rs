//! Sockets of the NBD server: Unix and TCP behind one type, and the life of the socket file.

use std::fmt;
use std::fs::{File, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nbd::stream::Stream;
use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, UnixListener};
use tracing::warn;

use super::{BindError, Listen};

/// Connections the kernel holds until they are accepted.
const BACKLOG: i32 = 128;

/// Idle time after which a TCP client is probed, so that a vanished one does not stay for ever.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalAddr {
    /// Path of a Unix socket.
    Unix(PathBuf),
    /// TCP address with the actual port.
    Tcp(SocketAddr),
}

impl LocalAddr {
    /// The NBD URI of the default export, as qemu and libnbd take it.
    pub fn uri(&self) -> String {
        match self {
            Self::Unix(path) => {
                let path = path.as_os_str().as_encoded_bytes();
                format!("nbd+unix:///?socket={}", percent_encoded(path))
            }
            Self::Tcp(address) => format!("nbd://{address}"),
        }
    }
}

/// RFC 3986 §2.1, with the slash left as it is.
fn percent_encoded(bytes: &[u8]) -> String {
    let encode = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
            char::from(*byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    bytes.iter().map(encode).collect()
}

impl fmt::Display for LocalAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// A listening socket. Removes its socket file when dropped.
pub(super) struct Listener {
    socket: ListenSocket,
    local_addr: LocalAddr,
    _file: Option<SocketFile>,
}

enum ListenSocket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    pub(super) async fn bind(listen: Listen) -> Result<Self, BindError> {
        match listen {
            Listen::Unix(path) => bind_unix(path),
            Listen::Tcp(address) => {
                let refused = |source| BindError::Io { address: address.to_string(), source };
                if !address.ip().is_loopback() {
                    warn!(%address, "NBD has no passwords: whoever reaches this port has the data");
                }
                let listener = TcpListener::bind(address).await.map_err(refused)?;
                let local_addr = LocalAddr::Tcp(listener.local_addr().map_err(refused)?);
                Ok(Self { socket: ListenSocket::Tcp(listener), local_addr, _file: None })
            }
        }
    }

    pub(super) fn local_addr(&self) -> &LocalAddr {
        &self.local_addr
    }

    pub(super) async fn accept(&mut self) -> io::Result<Stream> {
        match &self.socket {
            ListenSocket::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok(Stream::unix(stream))
            }
            ListenSocket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // Replies are batched here already; what is written should leave at once.
                stream.set_nodelay(true)?;
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                Ok(Stream::tcp(stream, peer))
            }
        }
    }
}

fn bind_unix(path: PathBuf) -> Result<Listener, BindError> {
    let refused = |source| BindError::Io { address: path.display().to_string(), source };
    let listener = match listen_unix(&path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(&path)?;
            listen_unix(&path).map_err(refused)?
        }
        other => other.map_err(refused)?,
    };
    let file = SocketFile::new(&path).map_err(refused)?;
    let listener = UnixListener::from_std(listener).map_err(refused)?;
    Ok(Listener {
        socket: ListenSocket::Unix(listener),
        local_addr: LocalAddr::Unix(path),
        _file: Some(file),
    })
}

fn listen_unix(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Linux gives the file the mode of the socket's own inode. Set before bind, so that there is
    // no moment at which others could connect (umask is no help: it belongs to all threads).
    let inode = File::from(OwnedFd::from(socket.try_clone()?));
    inode.set_permissions(Permissions::from_mode(0o600))?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(OwnedFd::from(socket).into())
}

/// Removes the socket file of a process that is gone.
fn remove_stale(path: &Path) -> Result<(), BindError> {
    let refused = |source| BindError::Io { address: path.display().to_string(), source };
    let metadata = std::fs::symlink_metadata(path).map_err(refused)?;
    if !metadata.file_type().is_socket() {
        return Err(BindError::NotASocket(path.to_path_buf()));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        Ok(_) => return Err(BindError::InUse(path.to_path_buf())),
        // For instance a full backlog (EAGAIN): somebody is alive there.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(BindError::InUse(path.to_path_buf()));
        }
        Err(error) => return Err(refused(error)),
    }
    warn!(path = %path.display(), "replacing the socket of a process that is gone");
    std::fs::remove_file(path).map_err(refused)
}

/// The socket file, as long as it is ours.
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_path_buf(), device: metadata.dev(), inode: metadata.ino() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have put another file there: that one is not ours to remove.
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|m| (m.dev(), m.ino()) == (self.device, self.inode));
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            warn!(%error, path = %self.path.display(), "cannot remove the socket file");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_survive_odd_paths() {
        let uri = LocalAddr::Unix("/tmp/a b?&%é/s".into()).uri();
        assert_eq!(uri, "nbd+unix:///?socket=/tmp/a%20b%3F%26%25%C3%A9/s");
        let uri = LocalAddr::Tcp("[::1]:10809".parse().unwrap()).uri();
        assert_eq!(uri, "nbd://[::1]:10809");
    }
}
