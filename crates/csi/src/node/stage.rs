//! Volumes that come to this node and leave it: attached, with a file system that is made where
//! there is nothing, checked and mounted; and grown.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use iscsi_proto::names::check_name;
use tonic::Status;
use tracing::warn;
use zeroize::Zeroizing;

use super::device::{Address, Credentials};
use super::mounts::{mount_at, mounts, unmount};
use super::{Inner, absolute, filesystem, known};
use crate::capability::{Kind, Usage, usage};
use crate::controller::{PORTAL, READ_ONLY, TARGET, UNIT};
use crate::operation::required;
use crate::v1::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnstageVolumeResponse,
};

/// Keys of secrets.
const USER: &str = "username";
const PASSWORD: &str = "password";

/// A volume that is to come.
pub(super) struct Wanted {
    pub(super) id: String,
    staging: PathBuf,
    usage: Usage,
    address: Address,
    credentials: Option<Credentials>,
}

impl Wanted {
    pub(super) fn read(request: NodeStageVolumeRequest) -> Result<Self, Status> {
        let id = required("volume_id", request.volume_id)?;
        let staging = absolute("staging_target_path", request.staging_target_path)?;
        let usage = usage(request.volume_capability)?;
        let id = known(id)?;
        let mut address = address(&request.publish_context)?;
        address.read_only |= usage.is_read_only();
        let credentials = credentials(request.secrets)?;
        Ok(Self { id, staging, usage, address, credentials })
    }
}

/// Where the volume is, as ControllerPublishVolume said.
fn address(context: &HashMap<String, String>) -> Result<Address, Status> {
    let wrong =
        |key: &str, what: &str| Status::invalid_argument(format!("publish_context.{key}: {what}"));
    let get = |key: &str| context.get(key).ok_or_else(|| wrong(key, "is missing"));
    let portal = get(PORTAL)?.clone();
    // It becomes part of a URL; what it is, that of `attach` says.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]%".contains(c);
    if portal.is_empty() || !portal.chars().all(is_plain) {
        return Err(wrong(PORTAL, "is no ADDRESS:PORT"));
    }
    let target = check_name(get(TARGET)?).map_err(|error| wrong(TARGET, &error.to_string()))?;
    let lun = get(UNIT)?.parse().map_err(|_| wrong(UNIT, "is no number of a unit"))?;
    let read_only = match context.get(READ_ONLY).map(String::as_str) {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(wrong(READ_ONLY, "is neither true nor false")),
    };
    Ok(Address { portal, target, lun, read_only })
}

fn credentials(secrets: HashMap<String, String>) -> Result<Option<Credentials>, Status> {
    let mut secrets: HashMap<String, Zeroizing<String>> =
        secrets.into_iter().map(|(key, value)| (key, Zeroizing::new(value))).collect();
    let (user, password) = (secrets.remove(USER), secrets.remove(PASSWORD));
    if let Some(key) = secrets.keys().next() {
        let what = format!("secrets: {key:?} is not known (allowed: {USER} and {PASSWORD})");
        return Err(Status::invalid_argument(what));
    }
    match (user, password) {
        (None, None) => Ok(None),
        (Some(user), Some(password)) => {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            if user.is_empty() || !user.chars().all(is_plain) {
                let what = "secrets: username: letters, digits, '-', '.' and '_' are allowed";
                return Err(Status::invalid_argument(what));
            }
            if password.is_empty() || password.contains(['\n', '\r', '\0']) {
                let what = "secrets: password: is empty, or more than one line";
                return Err(Status::invalid_argument(what));
            }
            Ok(Some(Credentials { user: user.to_string(), password }))
        }
        _ => Err(Status::invalid_argument(format!("secrets: {USER} goes with {PASSWORD}"))),
    }
}

pub(super) async fn stage(
    inner: Arc<Inner>,
    wanted: Wanted,
) -> Result<NodeStageVolumeResponse, Status> {
    let Wanted { id, staging, usage, address, credentials } = wanted;
    let was_attached = inner.devices.find(&id)?.is_some();
    let device = inner.devices.attach(&id, &address, credentials.as_ref()).await?;
    let staged = match &usage.kind {
        Kind::Block => Ok(()),
        Kind::FileSystem { name, flags } => {
            let how = How { name: name.as_deref(), flags, read_only: address.read_only };
            mount(&device, &staging, how).await
        }
    };
    if staged.is_err()
        && !was_attached
        && let Err(error) = leave(&inner, &id, &staging, &device).await
    {
        warn!(id, %error, "what was staged in part stays");
    }
    staged.map(|()| NodeStageVolumeResponse {})
}

/// How a file system is wanted.
#[derive(Clone, Copy)]
struct How<'a> {
    name: Option<&'a str>,
    flags: &'a [String],
    read_only: bool,
}

async fn mount(device: &Path, staging: &Path, how: How<'_>) -> Result<(), Status> {
    let shown = staging.display();
    if let Some(there) = mount_at(staging)? {
        return match there.is_of(device) && there.read_only == how.read_only {
            true => Ok(()),
            false => {
                let what = format!("{shown}: something else is mounted there, or otherwise");
                Err(Status::already_exists(what))
            }
        };
    }
    let failed = |error| Status::internal(format!("{shown}: {error}"));
    fs::create_dir_all(staging).map_err(failed)?;
    let kind = filesystem::prepare(device, how.name, how.read_only).await?;
    filesystem::mount(device, staging, &kind, how.flags, how.read_only).await?;
    if how.read_only {
        return Ok(());
    }
    // A volume made of a smaller one, or expanded while it was nowhere.
    match filesystem::grow(device, staging, &kind).await {
        // It can be used as it is; some other file system is not ours to grow.
        Err(error) if error.code() == tonic::Code::FailedPrecondition => Ok(()),
        grown => grown,
    }
}

pub(super) async fn unstage(
    inner: Arc<Inner>,
    id: String,
    staging: PathBuf,
) -> Result<NodeUnstageVolumeResponse, Status> {
    match inner.devices.find(&id)? {
        Some(device) => leave(&inner, &id, &staging, &device).await?,
        None => {
            unmount(&staging).await?;
            inner.devices.detach(&id).await?;
        }
    }
    Ok(NodeUnstageVolumeResponse {})
}

/// Unmounts and detaches, in this order.
async fn leave(inner: &Inner, id: &str, staging: &Path, device: &Path) -> Result<(), Status> {
    let staged = mount_at(staging)?.is_some_and(|mount| mount.is_of(device));
    let is_other =
        |place: &Path| place != staging && Some(place) != staging.canonicalize().ok().as_deref();
    let others: Vec<String> = mounts()?
        .into_iter()
        .filter(|mount| mount.is_of(device) && is_other(&mount.place))
        .map(|mount| mount.place.display().to_string())
        .collect();
    if !others.is_empty() {
        let what = format!("{id} is published still: {}", others.join(", "));
        return Err(Status::failed_precondition(what));
    }
    if staged {
        unmount(staging).await?;
    }
    inner.devices.detach(id).await
}

pub(super) async fn expand(
    inner: Arc<Inner>,
    id: String,
    request: NodeExpandVolumeRequest,
) -> Result<NodeExpandVolumeResponse, Status> {
    let range = request.capacity_range.unwrap_or_default();
    let required = u64::try_from(range.required_bytes).unwrap_or(0);
    let size = inner.devices.grow(&id, required).await?;
    let device = inner.devices.find(&id)?;
    let device = device.ok_or_else(|| Status::not_found(format!("{id} is not attached here")))?;
    let its = |mount: &super::mounts::Mount| mount.is_of(&device) && !mount.is_node();
    if let Some(mount) = mounts()?.into_iter().find(|mount| its(mount) && !mount.read_only) {
        filesystem::grow(&device, &mount.place, &mount.kind).await?;
    }
    let capacity_bytes = i64::try_from(size).unwrap_or(i64::MAX);
    Ok(NodeExpandVolumeResponse { capacity_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn an_address_is_read_strictly() {
        let good = [(PORTAL, "192.0.2.1:3260"), (TARGET, "iqn.2026-11.a:b"), (UNIT, "0")];
        let read = address(&map(&good)).unwrap();
        assert_eq!((read.lun, read.read_only), (0, false));
        for (key, value) in [
            (PORTAL, "h/--fuse"),
            (PORTAL, ""),
            (PORTAL, "user:secret@h"),
            (TARGET, "../x"),
            (UNIT, "-1"),
            (READ_ONLY, "perhaps"),
        ] {
            let mut one = map(&good);
            one.insert(key.to_owned(), value.to_owned());
            let refused = address(&one).unwrap_err();
            assert!(refused.message().contains(key), "{refused}");
        }
        assert!(address(&map(&good[1..])).unwrap_err().message().contains(PORTAL));
    }

    #[test]
    fn secrets_are_whole_or_none_and_never_told() {
        assert!(credentials(HashMap::new()).unwrap().is_none());
        let read = credentials(map(&[(USER, "op"), (PASSWORD, "twelve chars")])).unwrap().unwrap();
        assert_eq!((read.user.as_str(), read.password.as_str()), ("op", "twelve chars"));
        for wrong in [
            map(&[(USER, "op")]),
            map(&[(PASSWORD, "hidden-word")]),
            map(&[(USER, "a/b"), (PASSWORD, "hidden-word")]),
            map(&[(USER, "a"), (PASSWORD, "hidden-word\nx")]),
            map(&[(USER, "a"), (PASSWORD, "hidden-word"), ("pass", "hidden-word")]),
        ] {
            let refused = credentials(wrong).err().unwrap();
            assert!(!refused.message().contains("hidden-word"), "{refused}");
        }
    }
}
