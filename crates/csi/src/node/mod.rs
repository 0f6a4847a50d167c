//! The Node service: volumes as block devices and file systems of this machine.
//!
//! It wants root. It keeps nothing in memory: what is attached and mounted is looked up where it
//! is (`device`, `mounts`).

mod device;
mod filesystem;
mod mounts;
mod programs;
mod publish;
mod stage;

use std::fs;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tonic::{Request, Response, Status};

use self::device::Devices;
use crate::StartError;
use crate::ids::{VOLUME, is_id};
use crate::operation::{Busy, required};
use crate::v1::node_server::Node as Service;
use crate::v1::node_service_capability::rpc::Type as Capability;
use crate::v1::node_service_capability::{Rpc, Type};
use crate::v1::volume_usage::Unit;
use crate::v1::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
    NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, VolumeUsage,
};

/// The run directory is root's alone: passwords pass through it.
const FOLDER_MODE: u32 = 0o700;

/// What a node has to know.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its iSCSI name, which is its id as well.
    pub initiator: String,
    /// Folder for what is attached, gone after a restart of the machine.
    pub run_folder: PathBuf,
    /// `enkaku`.
    pub program: PathBuf,
    /// More options of `enkaku attach`.
    pub attach_options: Vec<String>,
}

/// The service.
#[derive(Clone, Debug)]
pub struct Node(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    devices: Devices,
    busy: Busy,
}

impl Node {
    /// Makes its folder.
    ///
    /// # Errors
    /// There can be no such folder.
    pub fn new(config: NodeConfig) -> Result<Self, StartError> {
        let folder = config.run_folder;
        let made = fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&folder);
        // Mounts are compared by their places, which have no links in them.
        let folder = made
            .and_then(|()| folder.canonicalize())
            .map_err(|error| StartError::Folder(folder, error))?;
        let devices = Devices {
            folder,
            program: config.program,
            initiator: config.initiator,
            options: config.attach_options,
        };
        Ok(Self(Arc::new(Inner { devices, busy: Busy::default() })))
    }
}

#[tonic::async_trait]
impl Service for Node {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let wanted = stage::Wanted::read(request.into_inner())?;
        self.0
            .busy
            .carry_out(&self.0, &wanted.id.clone(), |inner| stage::stage(inner, wanted))
            .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = required("volume_id", request.volume_id)?;
        let staging = absolute("staging_target_path", request.staging_target_path)?;
        let id = known(id)?;
        self.0
            .busy
            .carry_out(&self.0, &id.clone(), |inner| stage::unstage(inner, id, staging))
            .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let wanted = publish::Wanted::read(request.into_inner())?;
        self.0
            .busy
            .carry_out(&self.0, &wanted.id.clone(), |inner| publish::publish(inner, wanted))
            .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = required("volume_id", request.volume_id)?;
        let place = absolute("target_path", request.target_path)?;
        let id = known(id)?;
        self.0.busy.carry_out(&self.0, &id, |_| publish::unpublish(place)).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let id = required("volume_id", request.volume_id)?;
        let place = PathBuf::from(required("volume_path", request.volume_path)?);
        let looking = || {
            let none = || Status::not_found(format!("{id} is not at {}", place.display()));
            let device = self.0.devices.find(&id)?.ok_or_else(none)?;
            let mount = mounts::mount_at(&place)?.filter(|mount| mount.is_of(&device));
            mount.ok_or_else(none).map(|_| (device, place.clone()))
        };
        let (device, place) = known(id.clone()).map_err(not_found).and_then(|_| looking())?;
        let read = tokio::task::spawn_blocking(move || usage_of(&device, &place)).await;
        let usage = read.map_err(|error| Status::internal(error.to_string()))??;
        Ok(Response::new(NodeGetVolumeStatsResponse { usage, volume_condition: None }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = required("volume_id", request.volume_id.clone())?;
        required("volume_path", request.volume_path.clone())?;
        let id = known(id).map_err(not_found)?;
        self.0.busy.carry_out(&self.0, &id.clone(), |inner| stage::expand(inner, id, request)).await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let all = [
            Capability::StageUnstageVolume,
            Capability::GetVolumeStats,
            Capability::ExpandVolume,
            Capability::SingleNodeMultiWriter,
        ];
        let capability = |one: Capability| NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: one.into() })),
        };
        let capabilities = all.map(capability).to_vec();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let node_id = self.0.devices.initiator.clone();
        Ok(Response::new(NodeGetInfoResponse { node_id, ..NodeGetInfoResponse::default() }))
    }
}

/// An id of ours: others are no names of folders either.
fn known(id: String) -> Result<String, Status> {
    match is_id(VOLUME, &id) {
        true => Ok(id),
        false => Err(Status::invalid_argument(format!("{id:?} is no id of a volume of ours"))),
    }
}

fn not_found(error: Status) -> Status {
    Status::not_found(error.message())
}

/// A path that has to be there, and whole.
fn absolute(what: &str, path: String) -> Result<PathBuf, Status> {
    let path = PathBuf::from(required(what, path)?);
    match path.is_absolute() {
        true => Ok(path),
        false => Err(Status::invalid_argument(format!("{what} does not begin with /"))),
    }
}

/// What is used of a file system, or how large a device is.
fn usage_of(device: &Path, place: &Path) -> Result<Vec<VolumeUsage>, Status> {
    let failed =
        |error: &dyn std::fmt::Display| Status::internal(format!("{}: {error}", place.display()));
    let usage = |unit: Unit, total: u64, free: u64, available: u64| {
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        VolumeUsage {
            available: signed(available),
            total: signed(total),
            used: signed(total.saturating_sub(free)),
            unit: unit.into(),
        }
    };
    let found = fs::metadata(place).map_err(|error| failed(&error))?;
    if found.file_type().is_block_device() {
        return Ok(vec![VolumeUsage {
            total: usage(Unit::Bytes, device::size(device)?, 0, 0).total,
            unit: Unit::Bytes.into(),
            ..VolumeUsage::default()
        }]);
    }
    let fs = rustix::fs::statvfs(place).map_err(|error| failed(&error))?;
    let bytes = |blocks: u64| blocks.saturating_mul(fs.f_frsize);
    Ok(vec![
        usage(Unit::Bytes, bytes(fs.f_blocks), bytes(fs.f_bfree), bytes(fs.f_bavail)),
        usage(Unit::Inodes, fs.f_files, fs.f_ffree, fs.f_favail),
    ])
}
