//! Nodes that may use a volume, and no other: each is an initiator that its target admits.

use std::collections::HashMap;
use std::sync::Arc;

use iscsi_proto::names::check_name;
use tonic::Status;
use tracing::info;

use super::Inner;
use super::target::{LUN, Published};
use crate::v1::{ControllerPublishVolumeResponse, ControllerUnpublishVolumeResponse};

/// What a node is told of a volume: the keys.
pub(crate) const PORTAL: &str = "portal";
pub(crate) const TARGET: &str = "target";
pub(crate) const UNIT: &str = "lun";
pub(crate) const READ_ONLY: &str = "readOnly";

/// Who wants to use one.
pub(super) struct Wanted {
    /// A node's id is its iSCSI name.
    pub(super) node: String,
    pub(super) read_only: bool,
    /// Beside others that only read.
    pub(super) several: bool,
}

pub(super) async fn publish(
    inner: Arc<Inner>,
    id: String,
    wanted: Wanted,
) -> Result<ControllerPublishVolumeResponse, Status> {
    let volume = inner.target.volume(&id).await?;
    let initiator = check_name(&wanted.node).map_err(|error| {
        let node = &wanted.node;
        Status::not_found(format!("there is no node {node:?}: ids are iSCSI names ({error})"))
    })?;
    let there = inner.target.published(&volume).await?;
    let (own, others): (Vec<Published>, Vec<Published>) =
        there.into_iter().partition(|who| who.initiator == initiator);
    match own.first() {
        Some(own) if own.read_only == wanted.read_only => {}
        Some(_) => {
            let how = if wanted.read_only { "to read and write" } else { "to read only" };
            let what = format!("{id} is published to {initiator} already, {how}");
            return Err(Status::already_exists(what));
        }
        None => {
            let beside = wanted.several && others.iter().all(|other| other.read_only);
            if let Some(other) = others.first().filter(|_| !beside) {
                let other = &other.initiator;
                let what = format!("{id} is published to another node: {other}");
                return Err(Status::failed_precondition(what));
            }
            let who = Published { initiator: initiator.clone(), read_only: wanted.read_only };
            inner.target.allow(&volume, who, inner.chap.as_ref()).await?;
            info!(id, initiator, read_only = wanted.read_only, "published");
        }
    }
    let publish_context = HashMap::from([
        (PORTAL.to_owned(), inner.portal.clone()),
        (TARGET.to_owned(), volume.target),
        (UNIT.to_owned(), LUN.to_string()),
        (READ_ONLY.to_owned(), wanted.read_only.to_string()),
    ]);
    Ok(ControllerPublishVolumeResponse { publish_context })
}

/// Takes that back from a node, or from all of them.
pub(super) async fn unpublish(
    inner: Arc<Inner>,
    id: String,
    node: String,
) -> Result<ControllerUnpublishVolumeResponse, Status> {
    if let Some(volume) = inner.target.find(&id).await? {
        // Names of nodes are compared as iSCSI does.
        let node = check_name(&node).unwrap_or(node);
        let mut meant = inner.target.published(&volume).await?;
        meant.retain(|who| node.is_empty() || who.initiator == node);
        for who in meant {
            info!(id, initiator = who.initiator, "unpublished");
            inner.target.deny(&volume, who.initiator).await?;
        }
    }
    Ok(ControllerUnpublishVolumeResponse {})
}
