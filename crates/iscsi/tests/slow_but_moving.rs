//! A link that carries little and goes on carrying it: what waits in a socket is acknowledged bit
//! by bit, for longer than a ping may take. Neither end may take that for silence; a link that
//! stops is noticed all the same. Between the ends is a pipe of a few kilobytes a second.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use block::backend::MemoryDevice;
use block::{BlockDevice, Buf, Bytes, WriteFlags};
use iscsi::initiator::{Config, RemoteDisk, Url};
use iscsi::target::{Server, ServerConfig};
use scsi::{LunOptions, Target, TargetConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;

const IQN: &str = "iqn.2026-11.org.example:slow";
/// What the pipe carries: so many bytes, and a pause in milliseconds.
const STEP_BYTES: usize = 600;
const SLOW: u64 = 50;
const FAST: u64 = 0;
const BLOCKED: u64 = u64::MAX;
/// A socket of the pipe holds little, so that the sender's is where the rest waits.
const PIPE_BUFFER_BYTES: u32 = 8 << 10;
/// An operation takes ten seconds in the pipe at least, which is twice as long as a ping may. A
/// socket of the pipe takes something in every second, so that a machine may be five times slower
/// than that.
const LEN: usize = 112 << 10;
const PING_AFTER: Duration = Duration::from_millis(200);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of every wait: whatever takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A slow pipe to a target.
struct Pipe {
    address: SocketAddr,
    /// Milliseconds between two steps.
    pause: Arc<AtomicU64>,
}

async fn pipe(target: SocketAddr) -> Pipe {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(PIPE_BUFFER_BYTES).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener: TcpListener = socket.listen(16).unwrap();
    let address = listener.local_addr().unwrap();
    let pause = Arc::new(AtomicU64::new(SLOW));
    let between = pause.clone();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(PIPE_BUFFER_BYTES).unwrap();
            let Ok(far) = socket.connect(target).await else { return };
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::spawn(dribble(near_in, far_out, between.clone()));
            tokio::spawn(dribble(far_in, near_out, between.clone()));
        }
    });
    Pipe { address, pause }
}

async fn dribble(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, pause: Arc<AtomicU64>) {
    let mut bytes = [0; STEP_BYTES];
    loop {
        match pause.load(Ordering::Relaxed) {
            FAST => {}
            BLOCKED => {
                tokio::time::sleep(Duration::from_millis(SLOW)).await;
                continue;
            }
            pause_ms => tokio::time::sleep(Duration::from_millis(pause_ms)).await,
        }
        match from.read(&mut bytes).await {
            Ok(count) if count > 0 && to.write_all(&bytes[..count]).await.is_ok() => {}
            _ => return,
        }
    }
}

/// A target behind a pipe, and a disk on it. Who has the short patience is what a test chooses.
async fn connect(impatient_target: bool) -> (RemoteDisk, Pipe, oneshot::Sender<()>) {
    let mut server = ServerConfig::new(IQN).unwrap();
    let mut config = Config::default();
    if impatient_target {
        (server.session.ping_after, server.session.ping_timeout) = (PING_AFTER, PING_TIMEOUT);
    } else {
        (config.keepalive_interval, config.ping_timeout) = (PING_AFTER, PING_TIMEOUT);
    }
    connect_with(server, config).await
}

async fn connect_with(
    mut server: ServerConfig,
    config: Config,
) -> (RemoteDisk, Pipe, oneshot::Sender<()>) {
    let target = Target::new(TargetConfig::new(IQN));
    let device = Arc::new(MemoryDevice::new(1 << 20, 512).unwrap());
    target.add_lun(0, device, LunOptions::default()).unwrap();
    server.offer.session.default_time2wait = 0;
    let config = config.connections(1);
    let server = Server::bind(server, target, &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let pipe = pipe(server.local_addrs()[0]).await;
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(server.run(async { drop(stopped.await) }));
    let url: Url = format!("iscsi://{}/{IQN}/0", pipe.address).parse().unwrap();
    (RemoteDisk::connect(url, config).await.unwrap(), pipe, stop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_trickles_is_no_silence_and_one_that_stops_is() {
    let (disk, pipe, _stop) = connect(false).await;
    let data = Bytes::from(vec![7; LEN]);
    let write = disk.write(0, data.clone(), WriteFlags::NONE);
    tokio::time::timeout(PATIENCE, write).await.unwrap().unwrap();
    assert_eq!(disk.incarnations(), 1, "a session that moved data was ended");
    // Whatever moved before is no sign of life now.
    pipe.pause.store(BLOCKED, Ordering::Relaxed);
    let writing = disk.clone();
    let write = tokio::spawn(async move { writing.write(0, data, WriteFlags::NONE).await });
    let gone = async {
        while disk.connections_open() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("a dead link is noticed");
    pipe.pause.store(FAST, Ordering::Relaxed);
    tokio::time::timeout(PATIENCE, write).await.unwrap().unwrap().unwrap();
    assert_eq!(disk.incarnations(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_whose_reader_takes_its_time_does_not_hang_up() {
    let (disk, _pipe, _stop) = connect(true).await;
    let read = disk.read(0, Buf::new(LEN));
    tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    // An end of the connection would come behind the data.
    let read = disk.read(0, Buf::new(512));
    tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    assert_eq!(disk.incarnations(), 1, "the target ended a session that moved data");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_whose_data_trickles_have_not_been_lost() {
    let mut patience = Config::default();
    patience.command_timeout = Duration::from_secs(4);
    let (disk, _pipe, _stop) = connect_with(ServerConfig::new(IQN).unwrap(), patience).await;
    // Ten seconds each, one behind the other on the same connection.
    let reads = [0, 1].map(|_| disk.read(0, Buf::new(LEN)));
    for read in reads {
        tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    }
    assert_eq!(disk.incarnations(), 1, "a session that moved data was ended");
}
