//! How many round trips pass before the first command of the user: the unit is asked what it is
//! while the other connections of the session log in.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

mod own_target;

use std::net::SocketAddr;
use std::sync::Arc;

use block::BlockDevice;
use block::backend::MemoryDevice;
use iscsi::initiator::{Config, RemoteDisk, Url};
use own_target::{serve, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const IQN: &str = "iqn.2026-11.org.example:opening";
const CONNECTIONS: u16 = 4;
/// Opcode of a SCSI Command, and the bits of the first byte that hold one (RFC 7143 §11.2.1.2).
const SCSI_COMMAND: u8 = 0x01;
const OPCODE: u8 = 0x3f;

/// Passes PDUs on, and says when the first SCSI command was among them.
async fn pass_pdus(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    asked: watch::Sender<bool>,
) -> std::io::Result<()> {
    loop {
        let mut header = [0; 48];
        from.read_exact(&mut header).await?;
        let data = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut rest = vec![0; usize::from(header[4]) * 4 + data.next_multiple_of(4)];
        from.read_exact(&mut rest).await?;
        if header[0] & OPCODE == SCSI_COMMAND {
            asked.send_replace(true);
        }
        to.write_all(&header).await?;
        to.write_all(&rest).await?;
    }
}

/// A way to the target on which all connections but the first stand still until a SCSI command has
/// been sent over that.
async fn relay(target: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, mut heard) = watch::channel(false);
    tokio::spawn(async move {
        let mut is_first = true;
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(target).await.unwrap();
            let ((near_in, mut near_out), (mut far_in, far_out)) =
                (near.into_split(), far.into_split());
            if !std::mem::take(&mut is_first) {
                heard.wait_for(|asked| *asked).await.unwrap();
            }
            tokio::spawn(pass_pdus(near_in, far_out, asked.clone()));
            tokio::spawn(async move { tokio::io::copy(&mut far_in, &mut near_out).await });
        }
    });
    address
}

#[tokio::test]
async fn the_unit_is_asked_while_the_other_connections_log_in() {
    let target = serve(IQN, Arc::new(MemoryDevice::new(1 << 20, 512).unwrap()));
    let way = relay(target).await;
    let url: Url = format!("iscsi://{way}/{IQN}/0").parse().unwrap();
    let config = Config::default().connections(CONNECTIONS);
    let disk = soon("opening", RemoteDisk::connect(url, config)).await.unwrap();
    assert_eq!(disk.connections_open(), usize::from(CONNECTIONS), "all of them are there");
    assert_eq!(disk.info().size, 1 << 20);
    disk.close().await.unwrap();
}
