//! Videos of a volume that its owner writes to meanwhile: our own target in this process, the owner
//! as an initiator of it, and the page.

#![allow(clippy::unwrap_used)] // helpers of tests fail as tests do

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::mirror::Fence;
use block::{BlockDevice, Device, WriteFlags};
use iscsi::initiator::{Config as IscsiConfig, RemoteDisk};
use iscsi::target::{Server as TargetServer, ServerConfig};
use scsi::{LunOptions, Target};
use support::{IQN, LEN, Served, disk, serve_catalogue, text, unit, until};

const OTHER: &str = "iqn.2026-11.org.example:somebody";
/// A sector that is nobody's: behind all that mke2fs has used.
const FREE: u64 = 2000;

/// The disk of the corpus behind a target; with the target, so that it can be changed.
async fn target() -> (Target, Device, SocketAddr) {
    let (target, device) = unit().await;
    let config = ServerConfig::new(IQN).unwrap();
    let anywhere = ["127.0.0.1:0".parse().unwrap()];
    let server = TargetServer::bind(config, target.clone(), &anywhere).unwrap();
    let address = server.local_addrs()[0];
    tokio::spawn(server.run(std::future::pending()));
    (target, device, address)
}

async fn log_in(address: SocketAddr, name: &str) -> RemoteDisk {
    let url = format!("iscsi://{address}/{IQN}/0").parse().unwrap();
    RemoteDisk::connect(url, IscsiConfig::new(name).unwrap()).await.unwrap()
}

/// A page of the film on the volume.
async fn page(address: SocketAddr) -> Served {
    let volume = format!("iscsi://{address}/{IQN}/0");
    let text = text("The Film").replace("disk.img", &volume);
    serve_catalogue(tempfile::tempdir().unwrap(), &text, |_| ()).await
}

async fn sent(served: &Served, src: &str) -> (u16, Vec<u8>) {
    let (status, _, body) = served.ask(src, "").await;
    (status, body)
}

/// Sectors of the disk that have the film's content.
fn sectors_of_the_film() -> Vec<u64> {
    let is_film = |sector: &[u8]| sector.starts_with(&[b'x'; 150]);
    let content = disk();
    let sectors = content.chunks(512).enumerate();
    sectors.filter(|(_, sector)| is_film(sector)).map(|(number, _)| number as u64).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_tells_of_every_write_and_of_a_unit_that_begins_anew() {
    let (target, device, address) = target().await;
    let (reader, owner) = (log_in(address, OTHER).await, log_in(address, IQN).await);
    let mark = async || reader.write_mark().await.unwrap();
    let first = mark().await;
    assert!(first.is_counted() && first.is_untouched() && !first.is_reserved());
    reader.read(0, block::Buf::new(4096)).await.unwrap();
    assert_eq!(mark().await, first, "who reads moves nothing");
    owner.write(FREE * 512, vec![1; 512].into(), WriteFlags::NONE).await.unwrap();
    let second = mark().await;
    assert!(second != first && !second.is_untouched());
    assert_eq!(mark().await, second);
    owner.trim(FREE * 512, 512).await.unwrap();
    let third = mark().await;
    assert_ne!(third, second, "what is trimmed is changed");

    let fence = owner.fence().await.unwrap().unwrap();
    let key = owner.reservation_key();
    assert_ne!(key, reader.reservation_key());
    fence.hold(key).await.unwrap();
    assert!(mark().await.is_reserved());
    let refused = reader.write(FREE * 512, vec![2; 512].into(), WriteFlags::NONE).await;
    assert!(matches!(refused, Err(block::BlockError::Fenced)), "{refused:?}");
    let other = reader.fence().await.unwrap().unwrap();
    let taken = other.hold(reader.reservation_key()).await;
    assert!(matches!(taken, Err(block::BlockError::Fenced)), "{taken:?}");
    owner.write(FREE * 512, vec![3; 512].into(), WriteFlags::NONE).await.unwrap();
    fence.release(key).await.unwrap();
    assert!(!mark().await.is_reserved());

    // The same counts of another unit are not the same state.
    let before = mark().await;
    target.remove_lun(0).unwrap();
    target.add_lun(0, device, LunOptions::default()).unwrap();
    let anew = mark().await;
    assert!(anew != before && anew.is_untouched());
    reader.close().await.unwrap();
    owner.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_behind_reads_says_how_the_unit_was_after_them() {
    let (_target, _, address) = target().await;
    let (reader, owner) = (log_in(address, OTHER).await, log_in(address, IQN).await);
    assert!(reader.write_mark_behind().is_none(), "it is not known whether an order is kept");
    let first = reader.write_mark().await.unwrap();
    let mut behind = 0;
    for number in 0..40_u64 {
        let read = reader.read(number * 4096, block::Buf::new(4096));
        let asked = reader.write_mark_behind().unwrap();
        let (read, asked) = tokio::join!(read, asked);
        let (mark, place) = asked.unwrap();
        read.unwrap();
        assert_eq!(mark, first);
        behind += u32::from(reader.reads_ended().unwrap() < place);
        // What is read later is not covered by it.
        reader.read(0, block::Buf::new(512)).await.unwrap();
        assert!(reader.reads_ended().unwrap() > place);
    }
    assert!(behind > 30, "{behind} of 40 were numbered as they were asked for");
    owner.write(FREE * 512, vec![1; 512].into(), WriteFlags::NONE).await.unwrap();
    let (mark, _) = reader.write_mark_behind().unwrap().await.unwrap();
    assert_ne!(mark, first);
    reader.close().await.unwrap();
    owner.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_owner_changes_is_seen_and_while_he_has_the_disk_nothing_is_sent() {
    let (_target, _, address) = target().await;
    let served = page(address).await;
    let src = served.src().await;
    assert_eq!(sent(&served, &src).await, (200, vec![b'x'; LEN]));

    // Something else is written: the film is as it was, a moment later.
    let owner = log_in(address, OTHER).await;
    owner.write(FREE * 512, vec![1; 512].into(), WriteFlags::NONE).await.unwrap();
    let begin = Instant::now();
    assert_eq!(sent(&served, &src).await, (200, vec![b'x'; LEN]));
    assert!(begin.elapsed() >= Duration::from_millis(900), "as soon as it is quiet, not before");

    // An owner who says so has it to himself.
    let fence: Arc<dyn Fence> = owner.fence().await.unwrap().unwrap();
    fence.hold(owner.reservation_key()).await.unwrap();
    let (status, said) = sent(&served, &src).await;
    let said = String::from_utf8(said).unwrap();
    assert_eq!(status, 503, "{said}");
    assert!(said.starts_with("the storage \"attic\" is being edited, since 20"), "{said}");
    assert_eq!(served.state().await, "edited");
    let sectors = sectors_of_the_film();
    assert!(!sectors.is_empty());
    for sector in sectors {
        owner.write(sector * 512, vec![b'y'; 512].into(), WriteFlags::NONE).await.unwrap();
    }
    fence.release(owner.reservation_key()).await.unwrap();
    until("sent again", || async { sent(&served, &src).await.0 == 200 }).await;
    let (_, body) = sent(&served, &src).await;
    assert!(body.starts_with(&[b'y'; 100]), "what is there now, and nothing that was kept");
    assert_eq!(served.state().await, "on");
    owner.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_somebody_writes_without_a_pause_nothing_is_believed() {
    let (_target, _, address) = target().await;
    let served = page(address).await;
    let src = served.src().await;
    assert_eq!(sent(&served, &src).await.0, 200);
    let owner = log_in(address, OTHER).await;
    let busy = {
        let owner = owner.clone();
        tokio::spawn(async move {
            loop {
                owner.write(FREE * 512, vec![1; 512].into(), WriteFlags::NONE).await.unwrap();
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        })
    };
    until("refused", || async { sent(&served, &src).await.0 == 503 }).await;
    assert_eq!(served.state().await, "edited");
    busy.abort();
    until("sent again", || async { sent(&served, &src).await.0 == 200 }).await;
    owner.close().await.unwrap();
}
