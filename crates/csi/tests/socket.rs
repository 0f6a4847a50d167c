//! The plugin on its socket, with a client of gRPC: who may open it, what is said without a daemon,
//! and what is no request.

#![allow(clippy::unwrap_used)] // helpers of tests panic as tests do

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use csi::v1::controller_client::ControllerClient;
use csi::v1::identity_client::IdentityClient;
use csi::v1::node_client::NodeClient;
use csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use csi::v1::{
    CreateVolumeRequest, GetPluginInfoRequest, NodeGetInfoRequest, ProbeRequest, VolumeCapability,
};
use csi::{Controller, ControllerConfig, Services, StartError, serve};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

/// A plugin whose daemon is not there.
struct Plugin {
    stop: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), StartError>>,
    channel: Channel,
}

fn controller(folder: &Path, target_base: &str) -> Result<Controller, StartError> {
    Controller::new(ControllerConfig {
        admin: folder.join("nobody.sock"),
        portal: "192.0.2.1:3260".to_owned(),
        folder: folder.to_owned(),
        target_base: target_base.to_owned(),
        chap: None,
    })
}

async fn start(folder: &Path) -> Plugin {
    let controller = Some(controller(folder, "iqn.2026-11.org.example:csi").unwrap());
    let services = Services { controller, node: None };
    let (stop, stopped) = oneshot::channel::<()>();
    let (ready, is_ready) = oneshot::channel();
    let socket = folder.join("csi.sock");
    let uri = format!("unix://{}", socket.display());
    let ended = tokio::spawn(async move {
        let stopped = async { drop(stopped.await) };
        let tell = || assert!(ready.send(()).is_ok());
        serve(&socket, services, tell, stopped).await
    });
    is_ready.await.unwrap();
    let channel = Endpoint::try_from(uri).unwrap().connect().await.unwrap();
    Plugin { stop, ended, channel }
}

fn wanted(name: &str) -> CreateVolumeRequest {
    let mount = AccessType::Mount(MountVolume::default());
    let access_mode = Some(AccessMode { mode: Mode::SingleNodeWriter.into() });
    CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![VolumeCapability { access_type: Some(mount), access_mode }],
        ..CreateVolumeRequest::default()
    }
}

#[tokio::test]
async fn a_socket_is_for_its_owner_and_goes_with_the_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("csi.sock");
    let plugin = start(folder.path()).await;
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let mut identity = IdentityClient::new(plugin.channel.clone());
    let info = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.name, csi::DRIVER);
    // Another one does not take the place of one that lives.
    let second = serve(&socket, Services::default(), || (), std::future::pending()).await;
    assert!(matches!(second, Err(StartError::Endpoint(..))), "{second:?}");
    drop((identity, plugin.channel));
    plugin.stop.send(()).unwrap();
    plugin.ended.await.unwrap().unwrap();
    assert!(!socket.exists());
}

#[tokio::test]
async fn without_a_daemon_it_says_so_and_makes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = start(folder.path()).await;
    let mut identity = IdentityClient::new(plugin.channel.clone());
    let unready = identity.probe(ProbeRequest {}).await.unwrap_err();
    assert_eq!(unready.code(), Code::FailedPrecondition);
    assert!(unready.message().contains("nobody.sock"), "{unready}");
    let mut controller = ControllerClient::new(plugin.channel.clone());
    let failed = controller.create_volume(wanted("a")).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    let names = std::fs::read_dir(folder.path()).unwrap().map(|one| one.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["csi.sock"]);
}

#[tokio::test]
async fn what_is_no_request_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = start(folder.path()).await;
    let mut controller = ControllerClient::new(plugin.channel.clone());
    for name in [String::new(), "x".repeat(5000)] {
        let refused = controller.create_volume(wanted(&name)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains("name"), "{refused}");
    }
    // A message that is longer than any could be.
    let refused = controller.create_volume(wanted(&"x".repeat(2 << 20))).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    // It is no node.
    let mut node = NodeClient::new(plugin.channel.clone());
    let none = node.node_get_info(NodeGetInfoRequest {}).await.unwrap_err();
    assert_eq!(none.code(), Code::Unimplemented);
    for base in ["csi", "", &format!("iqn.2026-11.a:{}", "x".repeat(150))] {
        assert!(matches!(self::controller(folder.path(), base), Err(StartError::Argument(_))));
    }
    let missing = self::controller(&folder.path().join("none"), "iqn.2026-11.a:b");
    assert!(matches!(missing, Err(StartError::Folder(..))));
}
