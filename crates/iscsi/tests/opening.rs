//! How soon the first command of the user goes: the unit is asked what it is while the other
//! connections of the session log in, and nobody waits for one of those that takes long.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod own_target;

use std::net::SocketAddr;
use std::sync::Arc;

use block::backend::MemoryDevice;
use block::{BlockDevice, Buf, WriteFlags};
use iscsi::initiator::{Config, RemoteDisk, Url};
use own_target::{serve, soon};
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
