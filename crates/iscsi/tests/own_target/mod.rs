//! Our own target in this process, with one unit, and waits for it that end.

#![allow(clippy::unwrap_used, unreachable_pub, dead_code)] // in a test a panic is the result

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use block::Device;
use block::mirror::{LegSource, OpenLeg};
use iscsi::initiator::RemoteLeg;
use iscsi::target::{Server, ServerConfig};
use scsi::{LunOptions, Target, TargetConfig};

const PATIENCE: Duration = Duration::from_secs(30);

/// Serves the device as unit 0 of the target with this name.
pub fn serve(iqn: &str, device: Device) -> SocketAddr {
    let target = Target::new(TargetConfig::new(iqn));
    target.add_lun(0, device, LunOptions::default()).unwrap();
    let config = ServerConfig::new(iqn).unwrap();
    let server = Server::bind(config, target, &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = server.local_addrs()[0];
    tokio::spawn(server.run(std::future::pending()));
    address
}

/// What an operation returns, which is not to hang.
pub async fn soon<T>(what: &str, operation: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(PATIENCE, operation).await;
    ended.unwrap_or_else(|_| panic!("{what} hangs"))
}

/// The leg, connected.
pub async fn open(leg: &RemoteLeg) -> OpenLeg {
    soon("connecting", leg.connect()).await.unwrap()
}
