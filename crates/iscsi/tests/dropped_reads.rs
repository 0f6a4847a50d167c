//! Reads whose callers go away: with `Config::aborts_reads` their data does not come, by what
//! crosses the wire, and others are served as before.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod own_target;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use block::backend::MemoryDevice;
use block::layer::{ReadOnlyLayer, Reads};
use block::{BlockDevice, BlockError, Buf, DeviceInfo, Extent, Io};
use iscsi::initiator::{Config, RemoteDisk, Url};
use own_target::{serve, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const IQN: &str = "iqn.2026-11.org.example:dropped";
const SIZE: u64 = 64 << 20;
const PIECE: usize = 256 << 10;
const READS: usize = 32;

/// A disk whose large reads wait until they are let go.
struct Gate {
    memory: Arc<MemoryDevice>,
    is_open: watch::Receiver<bool>,
    asked: Arc<AtomicUsize>,
}

impl Reads for Gate {
    fn info(&self) -> DeviceInfo {
        self.memory.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> Io<Buf> {
        if buf.len() < PIECE {
            return self.memory.read(offset, buf);
        }
        self.asked.fetch_add(1, Ordering::AcqRel);
        let (memory, mut is_open) = (Arc::clone(&self.memory), self.is_open.clone());
        Io::later(async move {
            let open = is_open.wait_for(|is_open| *is_open).await;
            drop(open.map_err(|_| BlockError::Unreachable("gone".into()))?);
            memory.read(offset, buf).await
        })
    }

    fn extents(&self, offset: u64, len: u64) -> Io<Vec<Extent>> {
        self.memory.extents(offset, len)
    }
}

/// A way to the target that counts what comes from there.
async fn counted(target: SocketAddr) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let counting = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let (mut near_read, mut near_write) = near.into_split();
            let (mut read, mut write) = TcpStream::connect(target).await.unwrap().into_split();
            tokio::spawn(async move { tokio::io::copy(&mut near_read, &mut write).await });
            let counting = Arc::clone(&counting);
            tokio::spawn(async move {
                let mut bytes = vec![0; 65536];
                while let Ok(len @ 1..) = read.read(&mut bytes).await {
                    counting.fetch_add(len as u64, Ordering::AcqRel);
                    if near_write.write_all(&bytes[..len]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (address, count)
}

/// Bytes that have come when reads are dropped while the target has them, and small ones that
/// somebody waits for are done.
async fn bytes_after_dropping(aborts_reads: bool) -> u64 {
    let (open, is_open) = watch::channel(false);
    let asked = Arc::new(AtomicUsize::new(0));
    let memory = Arc::new(MemoryDevice::new(SIZE, 512).unwrap());
    let address = serve(
        IQN,
        Arc::new(ReadOnlyLayer::new(Gate { memory, is_open, asked: Arc::clone(&asked) })),
    );
    let (address, count) = counted(address).await;
    let mut config = Config::default();
    config.aborts_reads = aborts_reads;
    let url: Url = format!("iscsi://{address}/{IQN}/0").parse().unwrap();
    let disk = soon("connecting", RemoteDisk::connect(url, config)).await.unwrap();
    let reads: Vec<Io<Buf>> =
        (0..READS).map(|i| disk.read((i * PIECE) as u64, Buf::new(PIECE))).collect();
    let wait = async {
        while asked.load(Ordering::Acquire) < READS / 2 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon("asking", wait).await;
    drop(reads);
    // The abort of each went out before this read did, on the one connection there is.
    soon("a small read", disk.read(0, Buf::new(4096))).await.unwrap();
    let before = count.load(Ordering::Acquire);
    open.send(true).unwrap();
    let one = disk.read(SIZE - PIECE as u64, Buf::new(PIECE));
    assert_eq!(soon("a read after them", one).await.unwrap().len(), PIECE);
    soon("closing", disk.close()).await.unwrap();
    count.load(Ordering::Acquire) - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_waits_for_does_not_come() {
    let aborted = bytes_after_dropping(true).await;
    assert!(aborted < 2 * PIECE as u64, "{aborted} bytes");
    let left = bytes_after_dropping(false).await;
    assert!(left >= (READS * PIECE) as u64 / 2, "{left} bytes: then there is nothing to abort");
}
