//! Our initiator against our own target, in one process: several connections in one session,
//! digests, and a target that goes away and comes back.

#![allow(clippy::unwrap_used)] // in a test a panic is the result

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use block::backend::MemoryDevice;
use block::{BlockDevice, BlockError, Buf, Bytes, Device, WriteFlags, ZeroFlags};
use iscsi::initiator::{Config, RemoteDisk, Url, discover};
use iscsi::target::{Server, ServerConfig};
use iscsi_proto::keys::DigestPreference;
use iscsi_proto::login::chap::{ChapCredentials, Secret};
use scsi::{LunOptions, Target, TargetConfig};
use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const IQN: &str = "iqn.2026-11.org.example:own";
const SIZE: u64 = 32 << 20;

struct Serving {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

fn serve(device: Device, address: &str) -> Serving {
    serve_with(device, address, |_| {})
}

fn serve_with(device: Device, address: &str, set: impl FnOnce(&mut ServerConfig)) -> Serving {
    let target = Target::new(TargetConfig::new(IQN));
    target.add_lun(0, device, LunOptions::default()).unwrap();
    let mut config = ServerConfig::new(IQN).unwrap();
    config.offer.session.default_time2wait = 0;
    set(&mut config);
    let server = Server::bind(config, target, &[address.parse().unwrap()]).unwrap();
    let address = server.local_addrs()[0];
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(server.run(async { drop(stopped.await) }));
    Serving { address, stop, task }
}

impl Serving {
    fn url(&self) -> Url {
        format!("iscsi://{}/{IQN}/0", self.address).parse().unwrap()
    }

    async fn end(self) -> SocketAddr {
        drop(self.stop);
        self.task.await.unwrap();
        self.address
    }
}

fn memory() -> Device {
    Arc::new(MemoryDevice::new(SIZE, 512).unwrap())
}

fn pattern(offset: u64, len: usize, generation: u64) -> Bytes {
    let words = (0..len as u64 / 8).map(|i| (offset + i * 8) ^ (generation << 48));
    words.flat_map(u64::to_le_bytes).collect::<Vec<_>>().into()
}

async fn write_and_read(disk: &RemoteDisk) {
    let chunks: Vec<(u64, usize)> = (0..24).map(|n| (n * (1 << 20), 512 << (n % 12))).collect();
    let writes =
        chunks.iter().map(|(at, len)| disk.write(*at, pattern(*at, *len, 7), WriteFlags::FUA));
    for result in futures_util::future::join_all(writes).await {
        result.unwrap();
    }
    for (at, len) in chunks {
        let buf = disk.read(at, Buf::new(len)).await.unwrap();
        assert!(buf[..] == pattern(at, len, 7), "at {at}");
    }
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-4.2.1
//= type=test
//# iSCSI targets and initiators MUST support at least one TCP connection and MAY support several
//# connections in a session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_one_session_share_the_work() {
    let serving = serve(memory(), "127.0.0.1:0");
    for (connections, digest) in
        [(1, DigestPreference::Never), (4, DigestPreference::Never), (3, DigestPreference::Require)]
    {
        let config = Config::default().connections(connections).digests(digest, digest);
        let disk = RemoteDisk::connect(serving.url(), config).await.unwrap();
        disk.gathered().await;
        let sessions = disk.sessions();
        assert_eq!(sessions.len(), 1, "one session of {connections} connections");
        assert_eq!(sessions[0].connections.len(), usize::from(connections));
        drop(sessions);
        write_and_read(&disk).await;
        disk.close().await.unwrap();
        let late = disk.read(0, Buf::new(512)).await;
        assert!(matches!(late, Err(BlockError::Unreachable(_))));
    }
    serving.end().await;
}

/// The target takes one login at a time, and somebody who says nothing has the place: it is taken
/// from them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_takes_the_place_of_one_that_says_nothing() {
    let serving = serve_with(memory(), "127.0.0.1:0", |config| {
        config.limits.logins_per_peer_max = 1;
        config.login_timeout = Duration::from_secs(60);
    });
    // Which of the two gets the place is the scheduler's choice; the other one is closed at once.
    let mut one = tokio::net::TcpStream::connect(serving.address).await.unwrap();
    let mut other = tokio::net::TcpStream::connect(serving.address).await.unwrap();
    let silent = tokio::select! {
        ended = one.read_u8() => { assert!(ended.is_err()); &mut other }
        ended = other.read_u8() => { assert!(ended.is_err()); &mut one }
    };
    let held = tokio::time::timeout(Duration::from_millis(1), silent.read_u8()).await;
    assert!(held.is_err(), "nobody has the place");
    let disk = RemoteDisk::connect(serving.url(), Config::default()).await;
    write_and_read(&disk.unwrap()).await;
    serving.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zero_trim_and_extents() {
    let serving = serve(memory(), "127.0.0.1:0");
    let disk = RemoteDisk::connect(serving.url(), Config::default()).await.unwrap();
    let len = 4 << 20;
    disk.write(0, pattern(0, len, 1), WriteFlags::NONE).await.unwrap();
    disk.zero(1 << 20, 1 << 20, ZeroFlags::new(true, true)).await.unwrap();
    disk.trim(3 << 20, 1 << 20).await.unwrap();
    let buf = disk.read(0, Buf::new(len)).await.unwrap();
    assert!(buf[..1 << 20] == pattern(0, len, 1)[..1 << 20]);
    assert!(buf[1 << 20..2 << 20].iter().all(|byte| *byte == 0));
    assert!(buf[2 << 20..3 << 20] == pattern(0, len, 1)[2 << 20..3 << 20]);
    let extents = disk.extents(0, SIZE).await.unwrap();
    assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), SIZE);
    if disk.info().can_extents {
        assert!(extents.iter().any(|extent| extent.hole), "{extents:?}");
    }
    serving.end().await;
}

//= https://www.rfc-editor.org/rfc/rfc7143#section-11.12
//= type=test
//# After establishing a TCP connection between an initiator and a target, the initiator MUST start
//# a Login Phase to gain further access to the target's resources.
//= https://www.rfc-editor.org/rfc/rfc7143#section-13.8
//= type=test
//# If the TargetAddress is returned within a SendTargets response, the portal-group-tag MUST be
//# included.
//= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
//= type=test
//# The SendTargets command MUST only be sent during the Full Feature Phase of a Normal or Discovery
//# session.
//= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
//= type=test
//# A system that contains targets MUST support Discovery sessions on each of its iSCSI IP
//# address-port pairs and MUST support the SendTargets command on the Discovery session.
//= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
//= type=test
//# In a Discovery session, a target MUST return all path information (IP address-port pairs and
//# Target Portal Group Tags) for the targets on the target Network Entity that the requesting
//# initiator is authorized to access.
//= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
//= type=test
//# The text key MUST be SendTargets.
//= https://www.rfc-editor.org/rfc/rfc7143#appendix-C
//= type=test
//# This value MUST be supported on a Discovery session and MUST NOT be supported on an operational
//# session.
#[tokio::test]
async fn discovery_names_the_target_and_its_portal() {
    let serving = serve(memory(), "127.0.0.1:0");
    let portal = serving.url().portal;
    let found = discover(&portal, &Config::default()).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].name, IQN);
    assert_eq!(found[0].portals[0].port, serving.address.port());
    serving.end().await;
}

/// Credentials for targets do not keep an initiator from a portal that shows them to everybody.
#[tokio::test]
async fn open_discovery_is_open_to_whoever_has_credentials() {
    let serving = serve(memory(), "127.0.0.1:0");
    let secret = Secret::new("correct horse battery");
    let mut config = Config::default();
    config.chap = Some(ChapCredentials { user: "alice".to_owned(), secret });
    let found = discover(&serving.url().portal, &config).await.unwrap();
    assert_eq!(found[0].name, IQN);
    serving.end().await;
}

/// An orderly restart: the target logs its initiators out, or drops them, and is back soon.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.1.5
//= type=test
//# Implementations MUST support error recovery level "0", while the rest are OPTIONAL to implement.
//= https://www.rfc-editor.org/rfc/rfc7143#section-7.15
//= type=test
//# If the same I_T nexus is intended to be reestablished, the initiator MUST employ session
//# reinstatement (see Section 6.3.5).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn io_goes_on_when_the_target_is_restarted() {
    let device = memory();
    // An address that nothing connects from: the port is free when the target comes back to it.
    let mut serving = serve(device.clone(), "127.0.0.2:0");
    let config = Config::default().connections(3);
    let disk = RemoteDisk::connect(serving.url(), config).await.unwrap();
    for round in 1..=3u64 {
        let (stop, mut stopped) = oneshot::channel::<()>();
        let writer = {
            let disk = disk.clone();
            tokio::spawn(async move {
                let mut n = 0;
                while n < 8 || stopped.try_recv().is_err() {
                    let at = n % 32 * 65_536;
                    let data = pattern(at, 65_536, n);
                    disk.write(at, data.clone(), WriteFlags::NONE).await.unwrap();
                    assert!(disk.read(at, Buf::new(65_536)).await.unwrap()[..] == data);
                    n += 1;
                }
            })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        let address = serving.end().await;
        serving = serve(device.clone(), &address.to_string());
        let begun = std::time::Instant::now();
        while disk.connection_count() < 3 || disk.incarnations() <= round {
            assert!(begun.elapsed() < Duration::from_secs(20), "does not come back");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.send(()).unwrap();
        writer.await.unwrap();
    }
    serving.end().await;
}
