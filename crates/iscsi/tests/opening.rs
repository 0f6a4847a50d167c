//! How soon the first command of the user goes: the unit is asked what it is while the other
//! connections of the session log in, nobody waits for one of those that takes long, and a unit
//! that is ready is asked once.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod own_target;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use block::backend::MemoryDevice;
use block::{BlockDevice, Buf, WriteFlags};
use iscsi::initiator::{Config, RemoteDisk, Url};
use own_target::{serve, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const IQN: &str = "iqn.2026-11.org.example:opening";
const CONNECTIONS: u16 = 4;
const SIZE: usize = 1 << 20;

/// A way to the target on which all connections but the first stand still until it is opened.
struct Way {
    address: SocketAddr,
    opened: watch::Sender<bool>,
}

impl Way {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (opened, heard) = watch::channel(false);
        tokio::spawn(async move {
            let mut is_first = true;
            while let Ok((mut near, _)) = listener.accept().await {
                let mut far = TcpStream::connect(target).await.unwrap();
                let (waits, mut heard) = (!std::mem::take(&mut is_first), heard.clone());
                tokio::spawn(async move {
                    if waits {
                        let _ = heard.wait_for(|opened| *opened).await;
                    }
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        Self { address, opened }
    }
}

#[tokio::test]
async fn commands_go_before_the_other_connections_are_there_and_those_come_later() {
    let memory = MemoryDevice::new(SIZE as u64, 512).unwrap();
    let content: Vec<u8> = (0..SIZE).map(|i| (i / 7 % 251) as u8).collect();
    memory.write(0, content.clone().into(), WriteFlags::NONE).await.unwrap();
    let way = Way::to(serve(IQN, Arc::new(memory))).await;
    let url: Url = format!("iscsi://{}/{IQN}/0", way.address).parse().unwrap();
    let config = Config::default().connections(CONNECTIONS);
    let disk = soon("opening", RemoteDisk::connect(url, config)).await.unwrap();
    assert_eq!(disk.connections_open(), 1);
    let pieces = content.chunks(SIZE / 16).enumerate();
    let reads = pieces.map(|(index, piece)| {
        let read = disk.read((index * piece.len()) as u64, Buf::new(piece.len()));
        async move { assert!(read.await.unwrap()[..] == *piece, "piece {index}") }
    });
    soon("reading", futures_util::future::join_all(reads)).await;
    assert_eq!(disk.connections_open(), 1);
    way.opened.send_replace(true);
    soon("the others", disk.gathered()).await;
    assert_eq!(disk.connections_open(), usize::from(CONNECTIONS));
    disk.close().await.unwrap();
}

/// A way on which everything takes so long that what one end says at a time comes at once; counts
/// how often the initiator had to be answered.
async fn slow_way_to(target: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    const QUIET: Duration = Duration::from_millis(250);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answers = Arc::new(AtomicUsize::new(0));
    let counted = answers.clone();
    tokio::spawn(async move {
        let (near, _) = listener.accept().await.unwrap();
        let far = TcpStream::connect(target).await.unwrap();
        let (mut from_near, mut to_near) = near.into_split();
        let (mut from_far, mut to_far) = far.into_split();
        let mut asks =
            tokio::spawn(async move { tokio::io::copy(&mut from_near, &mut to_far).await });
        let (mut held, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            tokio::select! {
                _ = &mut asks => return,
                read = from_far.read(&mut chunk) => match read {
                    Ok(count @ 1..) => held.extend_from_slice(&chunk[..count]),
                    _ => return,
                },
                () = tokio::time::sleep(QUIET), if !held.is_empty() => {
                    counted.fetch_add(1, Ordering::Relaxed);
                    to_near.write_all(&std::mem::take(&mut held)).await.unwrap();
                }
            }
        }
    });
    (address, answers)
}

#[tokio::test]
async fn a_unit_that_is_ready_is_known_a_round_trip_after_the_login() {
    let memory = MemoryDevice::new(SIZE as u64, 512).unwrap();
    let (address, answers) = slow_way_to(serve(IQN, Arc::new(memory))).await;
    let url: Url = format!("iscsi://{address}/{IQN}/0").parse().unwrap();
    let config = Config::default().connections(1);
    let disk = soon("opening", RemoteDisk::connect(url, config)).await.unwrap();
    // The two stages of the login, and all that is asked of the unit at once.
    assert_eq!(answers.load(Ordering::Relaxed), 3);
    disk.close().await.unwrap();
}
