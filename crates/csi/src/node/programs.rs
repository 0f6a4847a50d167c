//! Programs of this machine (mount, blkid, mkfs, losetup, …), with a limit of time.

use std::ffi::OsStr;
use std::io;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;
use tonic::Status;

/// What looks, mounts or sets up.
pub(super) const QUICK: Duration = Duration::from_secs(120);

/// What goes over a whole file system (mkfs, fsck, resize2fs) by way of a long network.
pub(super) const LONG: Duration = Duration::from_secs(3600);

/// The package that a program is in, where that is not its name.
const PACKAGES: &[(&str, &str)] = &[
    ("mount", "mount"),
    ("umount", "mount"),
    ("losetup", "mount"),
    ("blkid", "util-linux"),
    ("setsid", "util-linux"),
    ("mkfs.ext4", "e2fsprogs"),
    ("fsck.ext4", "e2fsprogs"),
    ("resize2fs", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_growfs", "xfsprogs"),
];

/// Runs a program to its end, however it ends.
///
/// # Errors
/// It could not be run, or had not ended in time.
pub(super) async fn run(
    program: &str,
    arguments: &[impl AsRef<OsStr>],
    limit: Duration,
) -> Result<Output, Status> {
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(limit, command.output()).await {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(error)) => Err(unavailable(program, &error)),
        Err(_) => Err(Status::deadline_exceeded(format!("{program} has not ended in {limit:?}"))),
    }
}

/// Runs a program that has to end well, and returns what it printed.
///
/// # Errors
/// As for [`run`], and what it said when it failed.
pub(super) async fn succeed(
    program: &str,
    arguments: &[impl AsRef<OsStr>],
    limit: Duration,
) -> Result<String, Status> {
    let output = run(program, arguments, limit).await?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(Status::internal(said(program, &output))),
    }
}

/// How a program ended, and its last word.
pub(super) fn said(program: &str, output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    format!("{program}: {} ({})", last.trim(), output.status)
}

pub(super) fn unavailable(program: &str, error: &io::Error) -> Status {
    if error.kind() != io::ErrorKind::NotFound {
        return Status::internal(format!("{program}: {error}"));
    }
    let package = PACKAGES.iter().find(|(name, _)| *name == program);
    let package = package.map_or(program, |(_, package)| package);
    Status::failed_precondition(format!("{program} is not installed (package {package})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_program_said_is_told() {
        let script = ["-c", "echo out; echo first >&2; echo last >&2; exit 3"];
        let failed = succeed("sh", &script, QUICK).await.unwrap_err();
        assert_eq!(failed.message(), "sh: last (exit status: 3)");
        assert_eq!(succeed("sh", &["-c", "echo out"], QUICK).await.unwrap(), "out");
        let missing = run("mkfs.ext4-of-nobody", &[""; 0], QUICK).await.unwrap_err();
        assert!(missing.message().contains("not installed"), "{missing}");
        let slow = run("sleep", &["60"], Duration::from_millis(10)).await.unwrap_err();
        assert_eq!(slow.code(), tonic::Code::DeadlineExceeded);
    }
}
