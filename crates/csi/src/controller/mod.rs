//! The Controller service: volumes and snapshots that come, grow and go at one target daemon, and
//! which nodes may use them.
//!
//! It keeps nothing of its own. A volume is a unit of the daemon (a drop-in beside its
//! configuration), a node that may use it is a rule for an initiator (another drop-in), a snapshot
//! is a file. Whatever is killed in the middle, asking again ends it.

mod pool;
mod publish;
mod size;
mod snapshots;
mod target;
mod volumes;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use iscsi_proto::names::check_name;
use tonic::{Request, Response, Status};

use self::pool::Pool;
pub(crate) use self::publish::{PORTAL, READ_ONLY, TARGET, UNIT};
use self::target::Target;
use crate::StartError;
use crate::capability::usage;
use crate::operation::{Busy, required};
use crate::v1::controller_server::Controller as Service;
use crate::v1::controller_service_capability::rpc::Type as Capability;
use crate::v1::controller_service_capability::{Rpc, Type};
use crate::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerServiceCapability,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse, CreateSnapshotRequest,
    CreateSnapshotResponse, CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest,
    DeleteSnapshotResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest,
    GetCapacityResponse, ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest,
    ListVolumesResponse, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
};

/// Longest name of a target that follows from a volume, beside the volume's own part.
const BASE_LEN_MAX: usize = 150;

/// What a controller has to know.
#[derive(Clone, Debug)]
pub struct ControllerConfig {
    /// The admin socket of the target daemon.
    pub admin: PathBuf,
    /// ADDRESS:PORT at which nodes reach it.
    pub portal: String,
    /// Folder for the files of volumes, the same for the daemon and for the controller.
    pub folder: PathBuf,
    /// How the names of the targets of volumes begin.
    pub target_base: String,
    /// What nodes have to prove: the name of a table `[chap.NAME]` of the daemon's configuration.
    pub chap: Option<String>,
}

/// The service.
#[derive(Clone, Debug)]
pub struct Controller(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    target: Target,
    pool: Arc<Pool>,
    portal: String,
    chap: Option<String>,
    busy: Busy,
}

impl Controller {
    /// Looks at the folder. Whether the daemon answers is seen when something is asked of it.
    ///
    /// # Errors
    /// The folder cannot be used, or a name is none.
    pub fn new(config: ControllerConfig) -> Result<Self, StartError> {
        let base = check_name(&config.target_base).ok();
        let base = base.filter(|base| base.len() <= BASE_LEN_MAX).ok_or_else(|| {
            StartError::Argument(format!(
                "{:?} is no beginning of names of targets (allowed: an iSCSI name of at most \
                 {BASE_LEN_MAX} bytes, as in iqn.2026-11.org.example:csi)",
                config.target_base
            ))
        })?;
        let folder = |error: io::Error| StartError::Folder(config.folder.clone(), error);
        let pool = Pool::open(&config.folder).map_err(folder)?;
        let target = Target { socket: config.admin, base };
        let (pool, busy) = (Arc::new(pool), Busy::default());
        let (portal, chap) = (config.portal, config.chap);
        Ok(Self(Arc::new(Inner { target, pool, portal, chap, busy })))
    }

    /// The daemon answers.
    pub(crate) async fn probe(&self) -> Result<(), Status> {
        let unready = |error: Status| Status::failed_precondition(error.message());
        self.0.target.status().await.map_err(unready)
    }

    fn capabilities(&self) -> Vec<Capability> {
        let mut all = vec![
            Capability::CreateDeleteVolume,
            Capability::PublishUnpublishVolume,
            Capability::ListVolumes,
            Capability::ListVolumesPublishedNodes,
            Capability::GetCapacity,
            Capability::PublishReadonly,
            Capability::ExpandVolume,
            Capability::SingleNodeMultiWriter,
        ];
        if self.0.pool.has_reflinks {
            all.extend([
                Capability::CreateDeleteSnapshot,
                Capability::ListSnapshots,
                Capability::CloneVolume,
            ]);
        }
        all
    }
}

impl Inner {
    /// Does something with files, where it may take its time.
    async fn files<T: Send + 'static>(
        &self,
        action: impl FnOnce(&Pool) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        let pool = Arc::clone(&self.pool);
        let done = tokio::task::spawn_blocking(move || action(&pool)).await;
        let done = done.map_err(|error| Status::internal(error.to_string()))?;
        done.map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Status::resource_exhausted(error.to_string())
            }
            _ => Status::internal(error.to_string()),
        })
    }
}

#[tonic::async_trait]
impl Service for Controller {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let wanted = volumes::New::read(request.into_inner())?;
        let id = wanted.id.clone();
        self.0.busy.carry_out(&self.0, &id, |inner| volumes::create(inner, wanted)).await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let id = required("volume_id", request.into_inner().volume_id)?;
        self.0.busy.carry_out(&self.0, &id.clone(), |inner| volumes::delete(inner, id)).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = required("volume_id", request.volume_id)?;
        let missing = || Status::invalid_argument("capacity_range is missing");
        let wanted = size::Wanted::new(Some(request.capacity_range.ok_or_else(missing)?))?;
        self.0
            .busy
            .carry_out(&self.0, &id.clone(), |inner| volumes::expand(inner, id, wanted))
            .await
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        volumes::list(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        volumes::capacity(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        volumes::validate(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = required("volume_id", request.volume_id)?;
        let node = required("node_id", request.node_id)?;
        let usage = usage(request.volume_capability)?;
        let read_only = request.readonly || usage.is_read_only();
        let wanted = publish::Wanted { node, read_only, several: usage.is_for_several_nodes() };
        self.0
            .busy
            .carry_out(&self.0, &id.clone(), |inner| publish::publish(inner, id, wanted))
            .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = required("volume_id", request.volume_id)?;
        let node = request.node_id;
        self.0
            .busy
            .carry_out(&self.0, &id.clone(), |inner| publish::unpublish(inner, id, node))
            .await
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        let request = request.into_inner();
        let name = required("name", request.name)?;
        let source = required("source_volume_id", request.source_volume_id)?;
        refuse_parameters(&request.parameters)?;
        let id = snapshots::id_of(&name);
        self.0
            .busy
            .carry_out(&self.0, &id.clone(), |inner| snapshots::create(inner, id, source))
            .await
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        let id = required("snapshot_id", request.into_inner().snapshot_id)?;
        self.0.busy.carry_out(&self.0, &id.clone(), |inner| snapshots::delete(inner, id)).await
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        snapshots::list(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capability = |one: Capability| ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: one.into() })),
        };
        let capabilities = self.capabilities().into_iter().map(capability).collect();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }
}

/// A class of volumes or snapshots has no parameters; what the sidecars say of themselves is
/// theirs.
fn refuse_parameters(parameters: &HashMap<String, String>) -> Result<(), Status> {
    match parameters.keys().find(|key| !key.starts_with("csi.storage.k8s.io/")) {
        None => Ok(()),
        Some(key) => Err(Status::invalid_argument(format!(
            "parameter {key:?} is not known (there are none beside csi.storage.k8s.io/…)"
        ))),
    }
}
