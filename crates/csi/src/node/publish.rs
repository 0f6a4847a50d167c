//! Volumes of this node, given to a workload: its file system by a bind mount, or the device as a
//! file.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tonic::Status;

use super::device::is_read_only;
use super::mounts::{mount_at, mounts, unmount};
use super::programs::{QUICK, succeed};
use super::{Inner, absolute, known};
use crate::capability::{Kind, Usage, usage};
use crate::operation::required;
use crate::v1::volume_capability::access_mode::Mode;
use crate::v1::{NodePublishVolumeRequest, NodePublishVolumeResponse, NodeUnpublishVolumeResponse};

/// Who wants it where.
pub(super) struct Wanted {
    pub(super) id: String,
    staging: PathBuf,
    place: PathBuf,
    usage: Usage,
    read_only: bool,
}

impl Wanted {
    pub(super) fn read(request: NodePublishVolumeRequest) -> Result<Self, Status> {
        let id = required("volume_id", request.volume_id)?;
        let place = absolute("target_path", request.target_path)?;
        let usage = usage(request.volume_capability)?;
        let id = known(id)?;
        if request.staging_target_path.is_empty() {
            let what = "staging_target_path is missing: a volume is staged before it is published";
            return Err(Status::failed_precondition(what));
        }
        let staging = absolute("staging_target_path", request.staging_target_path)?;
        let read_only = request.readonly || usage.is_read_only();
        Ok(Self { id, staging, place, usage, read_only })
    }
}

pub(super) async fn publish(
    inner: Arc<Inner>,
    wanted: Wanted,
) -> Result<NodePublishVolumeResponse, Status> {
    let Wanted { id, staging, place, usage, read_only } = wanted;
    let unstaged = || Status::failed_precondition(format!("{id} is not staged"));
    let device = inner.devices.find(&id)?.ok_or_else(unstaged)?;
    let is_block = usage.kind == Kind::Block;
    if let Some(there) = mount_at(&place)? {
        let same = there.is_of(&device) && there.is_node() == is_block;
        let as_wanted = is_block || there.read_only == read_only;
        return match same && as_wanted {
            true => Ok(NodePublishVolumeResponse {}),
            false => {
                let what = "something else is mounted there, or otherwise";
                Err(Status::already_exists(format!("{}: {what}", place.display())))
            }
        };
    }
    if usage.mode == Mode::SingleNodeSingleWriter {
        let staged = mount_at(&staging)?.map(|mount| mount.place);
        let is_used = |place: &PathBuf| Some(place) != staged.as_ref();
        let mut places = mounts()?.into_iter().filter(|mount| mount.is_of(&device));
        if let Some(other) = places.find(|mount| is_used(&mount.place)) {
            let other = other.place.display();
            let what = format!("{id} is for one workload, and published at {other} already");
            return Err(Status::failed_precondition(what));
        }
    }
    if is_block {
        if read_only && !is_read_only(&device)? {
            let what = "can be written to: a device is published read-only where the volume is \
                        read-only for its node";
            return Err(Status::failed_precondition(format!("{id} {what}")));
        }
        bind(&device, &place, false, new_file).await?;
    } else {
        if !mount_at(&staging)?.is_some_and(|mount| mount.is_of(&device)) {
            return Err(unstaged());
        }
        bind(&staging, &place, read_only, new_folder).await?;
    }
    Ok(NodePublishVolumeResponse {})
}

/// Has something seen at another place, too.
async fn bind(
    what: &Path,
    place: &Path,
    read_only: bool,
    make: impl Fn(&Path) -> io::Result<()>,
) -> Result<(), Status> {
    let made = make(place);
    made.map_err(|error| Status::internal(format!("{}: {error}", place.display())))?;
    let mut bound =
        succeed("mount", &["--bind".as_ref(), what.as_os_str(), place.as_os_str()], QUICK).await;
    if bound.is_ok() && read_only {
        let arguments = ["-o".as_ref(), "remount,bind,ro".as_ref(), place.as_os_str()];
        bound = succeed("mount", &arguments, QUICK).await;
    }
    if bound.is_err() {
        let _first_error_counts = unmount(place).await;
        let _first_error_counts = remove(place);
    }
    bound.map(drop)
}

fn new_folder(place: &Path) -> io::Result<()> {
    match fs::create_dir(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(place),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && place.is_dir() => Ok(()),
        made => made,
    }
}

fn new_file(place: &Path) -> io::Result<()> {
    if let Some(folder) = place.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(place)
        .map(drop)
}

pub(super) async fn unpublish(place: PathBuf) -> Result<NodeUnpublishVolumeResponse, Status> {
    unmount(&place).await?;
    let shown = place.display();
    remove(&place).map_err(|error| Status::internal(format!("{shown}: {error}")))?;
    Ok(NodeUnpublishVolumeResponse {})
}

/// Removes what was made to mount something on. A file or a folder that holds something is not
/// ours.
fn remove(place: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(place) {
        Ok(found) if found.is_dir() => fs::remove_dir(place),
        Ok(found) if found.is_file() && found.len() == 0 => fs::remove_file(place),
        Ok(_) => Err(io::Error::other("is neither a folder nor an empty file")),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_something_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, inside) = (folder.path().join("deep/file"), folder.path().join("a/b"));
        new_file(&file).unwrap();
        new_file(&file).unwrap();
        new_folder(&inside).unwrap();
        new_folder(&inside).unwrap();
        remove(&file).unwrap();
        remove(&file).unwrap();
        remove(&inside).unwrap();
        fs::write(&file, "precious").unwrap();
        assert!(remove(&file).is_err() && remove(file.parent().unwrap()).is_err());
        assert!(new_folder(&file).is_err());
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }
}
