//! Volumes that are created, deleted, expanded, listed.

use std::collections::HashMap;
use std::sync::Arc;

use tonic::Status;
use tracing::info;

use super::pool::Snapshot;
use super::size::Wanted;
use super::target::Volume;
use super::{Inner, refuse_parameters};
use crate::capability::usage;
use crate::ids::{self, SNAPSHOT, VOLUME, is_id};
use crate::operation::required;
use crate::page::page;
use crate::v1::list_volumes_response::{Entry, VolumeStatus};
use crate::v1::validate_volume_capabilities_response::Confirmed;
use crate::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use crate::v1::{
    self, ControllerExpandVolumeResponse, CreateVolumeRequest, CreateVolumeResponse,
    DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse, ListVolumesRequest,
    ListVolumesResponse, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
    VolumeContentSource,
};

/// A volume that is asked for.
pub(super) struct New {
    pub(super) id: String,
    size: Wanted,
    /// What it is to be made of.
    source: Option<String>,
}

impl New {
    pub(super) fn read(request: CreateVolumeRequest) -> Result<Self, Status> {
        let name = required("name", request.name)?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities is missing"));
        }
        request.volume_capabilities.into_iter().try_for_each(|one| usage(Some(one)).map(drop))?;
        refuse_parameters(&request.parameters)?;
        refuse_parameters(&request.mutable_parameters)?;
        let source = match request.volume_content_source {
            None => None,
            Some(source) => match source.r#type {
                Some(Type::Snapshot(of)) => Some(required("snapshot_id", of.snapshot_id)?),
                Some(Type::Volume(of)) => Some(required("volume_id", of.volume_id)?),
                None => return Err(Status::invalid_argument("volume_content_source is empty")),
            },
        };
        let size = Wanted::new(request.capacity_range)?;
        Ok(Self { id: ids::id(VOLUME, &name), size, source })
    }
}

pub(super) async fn create(inner: Arc<Inner>, new: New) -> Result<CreateVolumeResponse, Status> {
    if let Some(there) = inner.target.find(&new.id).await? {
        if !new.size.allows(there.size) {
            let what = format!("{} is there already, and has {} bytes", new.id, there.size);
            return Err(Status::already_exists(what));
        }
        if there.source != new.source {
            let of = |source: &Option<String>| source.clone().unwrap_or("nothing".to_owned());
            let (is, wanted) = (of(&there.source), of(&new.source));
            return Err(Status::already_exists(format!(
                "{} is there already, and was made of {is}, not of {wanted}",
                new.id
            )));
        }
        return Ok(CreateVolumeResponse { volume: Some(told(&there)) });
    }
    let file = inner.pool.volume(&new.id, new.source.as_deref());
    let (id, wanted) = (new.id.clone(), file.clone());
    let way = inner.files(move |pool| Ok(pool.make_way(&id, &wanted).map_err(|e| e.to_string())));
    way.await?.map_err(Status::failed_precondition)?;
    let volume = match new.source {
        None => inner.target.add(&new.id, file, Some(new.size.size(0)?)).await?,
        Some(source) => {
            copy(&inner, &new.id, new.size, &source, &file).await?;
            inner.target.add(&new.id, file, None).await?
        }
    };
    info!(id = volume.id, size = volume.size, "created");
    Ok(CreateVolumeResponse { volume: Some(told(&volume)) })
}

/// Makes the file of a volume of what another one holds, or held.
async fn copy(
    inner: &Inner,
    id: &str,
    wanted: Wanted,
    source: &str,
    file: &str,
) -> Result<(), Status> {
    let none = || Status::not_found(format!("there is no {source:?} to make a volume of"));
    if !inner.pool.has_reflinks {
        return Err(Status::invalid_argument(
            "volumes are made of others where the file system has reflinks (XFS, Btrfs) only",
        ));
    }
    let snapshot = match is_id(SNAPSHOT, source) {
        true => Some(find_snapshot(inner, source).await?.ok_or_else(none)?),
        false => None,
    };
    let size = match &snapshot {
        Some(snapshot) => snapshot.size,
        None => inner.target.find(source).await?.ok_or_else(none)?.size,
    };
    let size = wanted.size(size)?;
    let name = id.to_owned();
    let unfinished = inner.files(move |pool| pool.unfinished(&name)).await?;
    match snapshot {
        None => inner.target.keep(source, unfinished.clone()).await?,
        Some(snapshot) => {
            let to = unfinished.clone();
            inner.files(move |pool| pool.copy(&snapshot.file, &to)).await?;
        }
    }
    let file = file.to_owned();
    let finish = inner.files(move |pool| {
        pool.grow(&unfinished, size)?;
        pool.finish(&unfinished, &file)
    });
    finish.await
}

async fn find_snapshot(inner: &Inner, id: &str) -> Result<Option<Snapshot>, Status> {
    let all = inner.files(|pool| pool.snapshots()).await?;
    Ok(all.into_iter().find(|one| one.id == id))
}

pub(super) async fn delete(inner: Arc<Inner>, id: String) -> Result<DeleteVolumeResponse, Status> {
    if !is_id(VOLUME, &id) {
        return Ok(DeleteVolumeResponse {}); // it was never ours
    }
    if let Some(volume) = inner.target.find(&id).await? {
        let published = inner.target.published(&volume).await?;
        if !published.is_empty() || volume.sessions > 0 {
            let nodes: Vec<String> = published.into_iter().map(|who| who.initiator).collect();
            return Err(Status::failed_precondition(format!(
                "{id} is in use: published to {}, {} sessions",
                nodes.join(", "),
                volume.sessions
            )));
        }
        inner.target.remove(&id).await?;
    } else if inner.target.is_there(&id).await? {
        let what = format!("{id} is a unit of the target daemon that no controller made");
        return Err(Status::failed_precondition(what));
    }
    let name = id.clone();
    inner.files(move |pool| pool.remove_volume(&name)).await?;
    info!(id, "deleted");
    Ok(DeleteVolumeResponse {})
}

pub(super) async fn expand(
    inner: Arc<Inner>,
    id: String,
    wanted: Wanted,
) -> Result<ControllerExpandVolumeResponse, Status> {
    let volume = inner.target.volume(&id).await?;
    let size = wanted.size(volume.size)?;
    if size > volume.size {
        inner.target.resize(&id, size).await?;
        info!(id, size, "expanded");
    }
    // The loop device or the file system there has to grow with it.
    Ok(ControllerExpandVolumeResponse {
        capacity_bytes: signed(size),
        node_expansion_required: true,
    })
}

pub(super) async fn list(
    inner: &Inner,
    request: ListVolumesRequest,
) -> Result<ListVolumesResponse, Status> {
    let all = inner.target.volumes().await?;
    let mut nodes: HashMap<String, Vec<String>> = HashMap::new();
    for (target, who) in inner.target.all_published().await? {
        nodes.entry(target).or_default().push(who.initiator);
    }
    let id = |volume: &Volume| volume.id.clone();
    let is_token = |token: &str| is_id(VOLUME, token);
    let (volumes, next_token) =
        page(all, id, &request.starting_token, is_token, request.max_entries)?;
    let entry = |volume: Volume| {
        let published_node_ids = nodes.remove(&volume.target).unwrap_or_default();
        let status = Some(VolumeStatus { published_node_ids, volume_condition: None });
        Entry { volume: Some(told(&volume)), status }
    };
    Ok(ListVolumesResponse { entries: volumes.into_iter().map(entry).collect(), next_token })
}

pub(super) async fn capacity(
    inner: &Inner,
    request: GetCapacityRequest,
) -> Result<GetCapacityResponse, Status> {
    let mut asked = request.volume_capabilities.into_iter();
    // What there cannot be, there is no room for.
    let is_possible = asked.all(|one| usage(Some(one)).is_ok())
        && refuse_parameters(&request.parameters).is_ok()
        && request.accessible_topology.is_none();
    let available = match is_possible {
        true => inner.files(|pool| pool.available()).await?,
        false => 0,
    };
    Ok(GetCapacityResponse { available_capacity: signed(available), ..Default::default() })
}

pub(super) async fn validate(
    inner: &Inner,
    request: ValidateVolumeCapabilitiesRequest,
) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
    let id = required("volume_id", request.volume_id)?;
    let asked = request.volume_capabilities;
    if asked.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities is missing"));
    }
    inner.target.volume(&id).await?;
    let refused = asked
        .iter()
        .try_for_each(|one| usage(Some(one.clone())).map(drop))
        .and_then(|()| refuse_parameters(&request.parameters))
        .and_then(|()| refuse_parameters(&request.mutable_parameters));
    Ok(match refused {
        Err(why) => {
            let message = why.message().to_owned();
            ValidateVolumeCapabilitiesResponse { confirmed: None, message }
        }
        Ok(()) => {
            let confirmed = Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: asked,
                parameters: request.parameters,
                mutable_parameters: request.mutable_parameters,
            };
            ValidateVolumeCapabilitiesResponse {
                confirmed: Some(confirmed),
                message: String::new(),
            }
        }
    })
}

fn told(volume: &Volume) -> v1::Volume {
    let source = |id: &String| {
        let r#type = match is_id(SNAPSHOT, id) {
            true => Type::Snapshot(SnapshotSource { snapshot_id: id.clone() }),
            false => Type::Volume(VolumeSource { volume_id: id.clone() }),
        };
        VolumeContentSource { r#type: Some(r#type) }
    };
    v1::Volume {
        capacity_bytes: signed(volume.size),
        volume_id: volume.id.clone(),
        content_source: volume.source.as_ref().map(source),
        ..v1::Volume::default()
    }
}

/// The specification's numbers are signed.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
