//! The services on their Unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use daemon::socket;
use futures_util::stream;
use tokio::net::UnixListener;
use tonic::transport::Server;

use crate::identity::Plugin;
use crate::v1::controller_server::ControllerServer;
use crate::v1::identity_server::IdentityServer;
use crate::v1::node_server::NodeServer;
use crate::{Controller, Node};

/// Requests of one connection that are worked on at once; the sidecars have tens.
const REQUESTS_MAX: usize = 256;

/// Longest message taken, in bytes: what Kubernetes says of a volume is some kilobytes.
const MESSAGE_LEN_MAX: usize = 1 << 20;

/// Pause after a connection could not be taken.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Why a plugin does not begin, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// What it was told is wrong.
    #[error("{0}")]
    Argument(String),
    /// A folder cannot be used.
    #[error("{folder}: {1}", folder = .0.display())]
    Folder(PathBuf, #[source] io::Error),
    /// The socket cannot be opened.
    #[error("the endpoint {path}: {1}", path = .0.display())]
    Endpoint(PathBuf, #[source] io::Error),
    /// gRPC has ended badly.
    #[error("gRPC: {0}")]
    Grpc(#[from] tonic::transport::Error),
}

/// What a plugin offers: identity always, and one of these or both.
#[derive(Clone, Debug, Default)]
pub struct Services {
    /// Beside the storage.
    pub controller: Option<Controller>,
    /// Beside workloads.
    pub node: Option<Node>,
}

/// Serves until `stop`; requests that are under way are answered then. The socket is for this user
/// alone, and goes.
///
/// # Errors
/// The socket cannot be had, or gRPC fails.
pub async fn serve(
    endpoint: &Path,
    services: Services,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> Result<(), StartError> {
    let opened = socket::listen(endpoint, socket::OWNER);
    let listener = opened.map_err(|error| StartError::Endpoint(endpoint.to_owned(), error))?;
    let _removed = Removed(endpoint);
    let identity = IdentityServer::new(Plugin(services.controller.clone()));
    let controller = services
        .controller
        .map(|service| ControllerServer::new(service).max_decoding_message_size(MESSAGE_LEN_MAX));
    let node = services
        .node
        .map(|service| NodeServer::new(service).max_decoding_message_size(MESSAGE_LEN_MAX));
    let router = Server::builder()
        .concurrency_limit_per_connection(REQUESTS_MAX)
        .add_service(identity)
        .add_optional_service(controller)
        .add_optional_service(node);
    ready();
    let accept = |listener: UnixListener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        if accepted.is_err() {
            // No descriptor is left, say: asking again at once would not help.
            tokio::time::sleep(ACCEPT_AGAIN).await;
        }
        Some((accepted, listener))
    };
    let incoming = stream::unfold(listener, accept);
    Ok(router.serve_with_incoming_shutdown(incoming, stop).await?)
}

/// A socket that goes with its server.
struct Removed<'a>(&'a Path);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _gone_already = std::fs::remove_file(self.0);
    }
}
