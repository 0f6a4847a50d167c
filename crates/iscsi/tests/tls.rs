//! Sessions inside TLS, over connections that the disk does not dial itself: bytes, several
//! connections, their loss, and peers that speak no TLS or damage it.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use block::backend::MemoryDevice;
use block::{BlockDevice, Buf, WriteFlags};
use iscsi::initiator::{Config, Dial, Dialling, Portal, RemoteDisk, Url};
use iscsi::target::{Server, ServerConfig};
use iscsi::transport::Stream;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};
use scsi::{LunOptions, Target, TargetConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const IQN: &str = "iqn.2026-11.org.example:inside";
const NAME: &str = "home.example";

/// What both ends of a connection begin with.
#[derive(Clone, Debug)]
struct Keys {
    near: Arc<ClientConfig>,
    far: Arc<rustls::ServerConfig>,
}

impl Keys {
    fn new() -> Self {
        let pair = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        let certificate = CertificateDer::from(params.self_signed(&pair).unwrap());
        let key = PrivateKeyDer::try_from(pair.serialize_der()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let near = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut far = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        // A socket that closes with something unread, as with a ticket, resets its connection.
        far.send_tls13_tickets = 0;
        Self { near: Arc::new(near), far: Arc::new(far) }
    }

    async fn near(&self, socket: TcpStream) -> io::Result<Stream> {
        let name = ServerName::try_from(NAME).unwrap();
        let connection = ClientConnection::new(Arc::clone(&self.near), name).unwrap();
        Stream::secure(socket, connection.into()).await
    }

    async fn far(&self, socket: TcpStream) -> io::Result<Stream> {
        let connection = ServerConnection::new(Arc::clone(&self.far)).unwrap();
        Stream::secure(socket, connection.into()).await
    }
}

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

async fn pair(keys: &Keys) -> (Stream, Stream) {
    let (near, far) = sockets().await;
    let (near, far) = tokio::join!(keys.near(near), keys.far(far));
    (near.unwrap(), far.unwrap())
}

fn pattern(len: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[tokio::test]
async fn bytes_go_both_ways_whatever_they_are_cut_into() {
    let (mut near, mut far) = pair(&Keys::new()).await;
    let sent = pattern(3_000_001);
    let expected = sent.clone();
    let echo = tokio::spawn(async move {
        let mut buf = vec![0; 7919];
        loop {
            let n = far.read(&mut buf).await.unwrap();
            if n == 0 {
                return far.shutdown().await.unwrap();
            }
            far.write_all(&buf[..n]).await.unwrap();
            far.flush().await.unwrap();
        }
    });
    let mut got = Vec::new();
    for (at, chunk) in sent.chunks(100_003).enumerate() {
        near.write_all(chunk).await.unwrap();
        near.flush().await.unwrap();
        let mut back = vec![0; chunk.len()];
        let (first, rest) = back.split_at_mut((at * 31 + 1).min(chunk.len()));
        near.read_exact(first).await.unwrap();
        near.read_exact(rest).await.unwrap();
        got.extend(back);
    }
    assert!(got == expected, "what came back is something else");
    near.shutdown().await.unwrap();
    assert_eq!(near.read(&mut [0; 16]).await.unwrap(), 0, "the other end has said that it ends");
    echo.await.unwrap();
}

#[tokio::test]
async fn a_peer_that_speaks_something_else_or_damages_it_is_an_error() {
    let keys = Keys::new();
    let (mut near, far) = sockets().await;
    near.write_all(b"GET / HTTP/1.1\r\nHost: home.example\r\n\r\n").await.unwrap();
    let error = keys.far(far).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");

    let (near, far) = sockets().await;
    drop(near);
    let error = keys.far(far).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");

    // A record that was changed on its way.
    let (near, mut far) = pair(&keys).await;
    let socket = Arc::clone(near.socket());
    drop(near);
    let mut near_socket = Arc::into_inner(socket).unwrap();
    near_socket.write_all(&[23, 3, 3, 0, 32]).await.unwrap();
    near_socket.write_all(&[7; 32]).await.unwrap();
    let error = far.read(&mut [0; 16]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
}

#[tokio::test]
async fn an_end_without_a_word_is_an_end() {
    let (near, mut far) = pair(&Keys::new()).await;
    drop(near);
    assert_eq!(far.read(&mut [0; 16]).await.unwrap(), 0);
}

/// A target in this process, reached through TLS only: it listens nowhere.
struct Inside {
    server: Server,
    keys: Keys,
    dialled: AtomicUsize,
}

impl std::fmt::Debug for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inside")
    }
}

impl Inside {
    fn new() -> Arc<Self> {
        let target = Target::new(TargetConfig::new(IQN));
        let device = Arc::new(MemoryDevice::new(32 << 20, 512).unwrap());
        target.add_lun(0, device, LunOptions::default()).unwrap();
        let server = Server::bind(ServerConfig::new(IQN).unwrap(), target, &[]).unwrap();
        Arc::new(Self { server, keys: Keys::new(), dialled: AtomicUsize::new(0) })
    }

    fn config(self: &Arc<Self>, connections: u16) -> Config {
        let mut config = Config::default().connections(connections);
        config.dialer = Some(Arc::clone(self) as Arc<dyn Dial>);
        config
    }
}

impl Dial for Inside {
    fn dial<'a>(&'a self, _: &'a Portal) -> Dialling<'a> {
        Box::pin(async {
            let (near, far) = sockets().await;
            let peer = far.peer_addr()?;
            let (near, far) = tokio::try_join!(self.keys.near(near), self.keys.far(far))?;
            self.server.serve("inside", far, peer);
            self.dialled.fetch_add(1, Ordering::Relaxed);
            Ok(near)
        })
    }
}

async fn write_and_read(disk: &RemoteDisk, offset: u64, len: usize) {
    let data = pattern(len);
    let mut buf = Buf::new(len);
    buf.copy_from_slice(&data);
    disk.write(offset, buf.freeze(), WriteFlags::NONE).await.unwrap();
    let buf = disk.read(offset, Buf::new(len)).await.unwrap();
    assert!(buf[..] == data[..], "{len} bytes at {offset} are others");
}

#[tokio::test]
async fn a_session_of_several_connections_runs_inside_tls_and_outlives_their_loss() {
    let inside = Inside::new();
    // A name that nobody can resolve: the disk must not dial it.
    let url: Url = format!("iscsi://nowhere.invalid/{IQN}/0").parse().unwrap();
    let disk = RemoteDisk::connect(url, inside.config(4)).await.unwrap();
    disk.gathered().await;
    assert_eq!(inside.dialled.load(Ordering::Relaxed), 4);
    for (offset, len) in [(0, 512), (1 << 20, 4096), (4 << 20, 1 << 20), (8 << 20, 8 << 20)] {
        write_and_read(&disk, offset, len).await;
    }
    let views = inside.server.sessions();
    assert_eq!(views.iter().map(|view| view.connections.len()).sum::<usize>(), 4);
    // Who asks the socket is told what is on the wire, TLS included.
    let all = views.iter().flat_map(|view| &view.connections);
    let received: u64 = all.filter_map(|one| one.tcp.as_ref()?.received_bytes).sum();
    assert!(received > 9 << 20, "{received} bytes");
    assert!(inside.server.drop_session(views[0].id));
    tokio::time::timeout(Duration::from_secs(30), write_and_read(&disk, 0, 1 << 20)).await.unwrap();
    assert!(inside.dialled.load(Ordering::Relaxed) >= 5, "it was dialled again");
    disk.close().await.unwrap();
    inside.server.stop().await;
}
