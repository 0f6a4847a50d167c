//! File systems on a device: found, made where there is nothing at all, checked, mounted, grown.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use tonic::Status;
use tracing::info;

use super::programs::{LONG, QUICK, run, said, succeed};
use crate::capability::USUAL_FILE_SYSTEM;

/// How much of a device has to be zero before a file system is made on it, beside that blkid knows
/// nothing there: an encrypted volume looks like noise to blkid, and like nothing else.
const BLANK_LEN: u64 = 1 << 20;

/// The names of what blkid prints, and its exit code where it finds nothing (blkid(8)).
const TYPE: &str = "TYPE=";
const FOUND_NOTHING: i32 = 2;

/// Makes sure that there is a file system, and says which: the one that is wanted, or where none is
/// named, what is there.
///
/// # Errors
/// There is something else, or it cannot be read, made or checked. Nothing is written over what
/// may be somebody's.
pub(super) async fn prepare(
    device: &Path,
    wanted: Option<&str>,
    read_only: bool,
) -> Result<String, Status> {
    match found(device).await? {
        Some(there) => {
            if let Some(wanted) = wanted.filter(|wanted| *wanted != there) {
                return Err(Status::failed_precondition(format!(
                    "{} has {there} on it, not {wanted}",
                    device.display()
                )));
            }
            if !read_only {
                check(device, &there).await?;
            }
            Ok(there)
        }
        None if read_only => {
            let what = "is blank, and nothing can be made on what is only read";
            Err(Status::failed_precondition(format!("{} {what}", device.display())))
        }
        None => {
            let kind = wanted.unwrap_or(USUAL_FILE_SYSTEM);
            check_blank(device).await?;
            make(device, kind).await?;
            Ok(kind.to_owned())
        }
    }
}

/// The file system on a device; none where blkid knows nothing.
async fn found(device: &Path) -> Result<Option<String>, Status> {
    // -p: what is on the device now, not what blkid remembers.
    let arguments = ["-p", "-o", "export"].map(AsRef::as_ref);
    let output = run("blkid", &[&arguments[..], &[device.as_os_str()]].concat(), QUICK).await?;
    let shown = device.display();
    match output.status.code() {
        Some(0) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let kind = text.lines().find_map(|line| line.strip_prefix(TYPE));
            let kind = kind.ok_or_else(|| {
                let what = text.lines().find(|line| !line.starts_with("DEVNAME")).unwrap_or("");
                Status::failed_precondition(format!(
                    "{shown} has something on it that is no file system ({what})"
                ))
            })?;
            Ok(Some(kind.to_owned()))
        }
        Some(FOUND_NOTHING) => Ok(None),
        // 8: more than one thing, 4: an error in reading it.
        _ => Err(Status::failed_precondition(said("blkid", &output))),
    }
}

/// There is nothing but zeros where every file system has something.
async fn check_blank(device: &Path) -> Result<(), Status> {
    let path = device.to_owned();
    let read = move || {
        let mut begin = Vec::new();
        File::open(path)?.take(BLANK_LEN).read_to_end(&mut begin)?;
        Ok::<_, io::Error>(begin)
    };
    let begin = tokio::task::spawn_blocking(read).await.map_err(io::Error::other);
    let shown = device.display();
    let begin = begin.and_then(|read| read);
    let begin = begin.map_err(|error| Status::internal(format!("{shown}: {error}")))?;
    match begin.iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(at) => Err(Status::failed_precondition(format!(
            "{shown} has something on it that blkid does not know, at byte {at}: no file system is \
             made there"
        ))),
    }
}

/// A blank volume has nothing to discard, which would take long over a long network.
async fn make(device: &Path, kind: &str) -> Result<(), Status> {
    let options: &[&str] = match kind {
        "xfs" => &["-q", "-K"],
        _ => &["-q", "-E", "nodiscard", "-m", "0"],
    };
    let program = format!("mkfs.{kind}");
    let options: Vec<_> = options.iter().map(AsRef::as_ref).chain([device.as_os_str()]).collect();
    succeed(&program, &options, LONG).await?;
    info!(device = %device.display(), kind, "file system made");
    Ok(())
}

/// What was not unmounted is put in order. XFS does that when it is mounted.
async fn check(device: &Path, kind: &str) -> Result<(), Status> {
    if !matches!(kind, "ext2" | "ext3" | "ext4") {
        return Ok(());
    }
    let program = format!("fsck.{kind}");
    let output = run(&program, &["-p".as_ref(), device.as_os_str()], LONG).await?;
    match output.status.code() {
        // In order, or mended (fsck(8)).
        Some(0 | 1) => Ok(()),
        _ => Err(Status::failed_precondition(format!(
            "{}: the file system wants a person: {}",
            device.display(),
            said(&program, &output)
        ))),
    }
}

/// Mounts a file system.
pub(super) async fn mount(
    device: &Path,
    place: &Path,
    kind: &str,
    flags: &[String],
    read_only: bool,
) -> Result<(), Status> {
    let mut flags = flags.to_vec();
    if read_only {
        flags.push("ro".to_owned());
    }
    if kind == "xfs" {
        // A copy has the UUID of its original, which may be mounted here, too.
        flags.push("nouuid".to_owned());
    }
    let flags = flags.join(",");
    let mut arguments: Vec<&OsStr> = vec!["-t".as_ref(), kind.as_ref()];
    if !flags.is_empty() {
        arguments.push("-o".as_ref());
        arguments.push(flags.as_ref());
    }
    arguments.extend([device.as_os_str(), place.as_os_str()]);
    succeed("mount", &arguments, QUICK).await.map(drop)
}

/// Lets a mounted file system have all of its device.
pub(super) async fn grow(device: &Path, place: &Path, kind: &str) -> Result<(), Status> {
    let (program, what) = match kind {
        "ext2" | "ext3" | "ext4" => ("resize2fs", device),
        "xfs" => ("xfs_growfs", place),
        _ => return Err(Status::failed_precondition(format!("{kind} is not grown here"))),
    };
    succeed(program, &[what], LONG).await.map(drop)
}
