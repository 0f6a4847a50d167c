//! Snapshots: files that share their blocks with the volume's, as it was. There are some where the
//! file system has reflinks.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use prost_types::Timestamp;
use tonic::Status;
use tracing::info;

use super::Inner;
use super::pool::Snapshot;
use super::volumes::signed;
use crate::ids::{self, SNAPSHOT, is_id};
use crate::page::page;
use crate::v1::list_snapshots_response::Entry;
use crate::v1::{
    self, CreateSnapshotResponse, DeleteSnapshotResponse, ListSnapshotsRequest,
    ListSnapshotsResponse,
};

pub(super) fn id_of(name: &str) -> String {
    ids::id(SNAPSHOT, name)
}

/// Keeps what a volume holds now.
pub(super) async fn create(
    inner: Arc<Inner>,
    id: String,
    source: String,
) -> Result<CreateSnapshotResponse, Status> {
    check_possible(&inner)?;
    if let Some(there) = all(&inner).await?.into_iter().find(|one| one.id == id) {
        if there.source != source {
            let what = format!("{id} is there already, of {}", there.source);
            return Err(Status::already_exists(what));
        }
        return Ok(CreateSnapshotResponse { snapshot: Some(told(there)) });
    }
    let volume = inner.target.volume(&source).await?;
    let name = id.clone();
    let unfinished = inner.files(move |pool| pool.unfinished(&name)).await?;
    inner.target.keep(&volume.id, unfinished.clone()).await?;
    let file = inner.pool.snapshot(&id, &volume.id);
    inner.files(move |pool| pool.finish(&unfinished, &file)).await?;
    let made = all(&inner).await?.into_iter().find(|one| one.id == id);
    let made = made.ok_or_else(|| Status::internal(format!("{id} was made, and is gone")))?;
    info!(id, source = volume.id, "snapshot made");
    Ok(CreateSnapshotResponse { snapshot: Some(told(made)) })
}

pub(super) async fn delete(
    inner: Arc<Inner>,
    id: String,
) -> Result<DeleteSnapshotResponse, Status> {
    check_possible(&inner)?;
    if is_id(SNAPSHOT, &id) {
        inner.files(move |pool| pool.remove_snapshot(&id)).await?;
    }
    Ok(DeleteSnapshotResponse {})
}

pub(super) async fn list(
    inner: &Inner,
    request: ListSnapshotsRequest,
) -> Result<ListSnapshotsResponse, Status> {
    check_possible(inner)?;
    let mut found = all(inner).await?;
    let (id, source) = (request.snapshot_id, request.source_volume_id);
    found.retain(|one| {
        (id.is_empty() || one.id == id) && (source.is_empty() || one.source == source)
    });
    let is_token = |token: &str| is_id(SNAPSHOT, token);
    let key = |one: &Snapshot| one.id.clone();
    let (found, next_token) =
        page(found, key, &request.starting_token, is_token, request.max_entries)?;
    let entries = found.into_iter().map(|one| Entry { snapshot: Some(told(one)) }).collect();
    Ok(ListSnapshotsResponse { entries, next_token })
}

fn check_possible(inner: &Inner) -> Result<(), Status> {
    match inner.pool.has_reflinks {
        true => Ok(()),
        false => Err(Status::unimplemented(
            "there are snapshots where the file system has reflinks (XFS, Btrfs) only",
        )),
    }
}

async fn all(inner: &Inner) -> Result<Vec<Snapshot>, Status> {
    inner.files(|pool| pool.snapshots()).await
}

fn told(snapshot: Snapshot) -> v1::Snapshot {
    let made = snapshot.made.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(made.as_secs()).unwrap_or(i64::MAX);
    let nanos = i32::try_from(made.subsec_nanos()).unwrap_or(0);
    v1::Snapshot {
        size_bytes: signed(snapshot.size),
        snapshot_id: snapshot.id,
        source_volume_id: snapshot.source,
        creation_time: Some(Timestamp { seconds, nanos }),
        ready_to_use: true,
        ..v1::Snapshot::default()
    }
}
