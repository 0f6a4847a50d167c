//! A volume as a block device of this machine: `enkaku attach` as a process of its own, and where
//! the kernel is no client of NBD, a loop device on its FUSE file.
//!
//! What is attached is known by looking: at the kernel's list of loop devices, its mounts, and what
//! `attach --list` says. Nothing is kept here, so that a plugin that is started again knows all of
//! it. The process does not end with the plugin: what is mounted is used on.
//!
//! A process that serves FUSE must not end before the loop device on its file is gone, and that not
//! before the file system on it is unmounted: the kernel would wait for it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};
use tonic::Status;
use tracing::{info, warn};
use zeroize::Zeroizing;

use super::mounts::{mount_at, unmount};
use super::programs::{LONG, QUICK, run, said, succeed, unavailable};

/// Folders and files of a volume in the run directory.
const FOLDER_OF_FILE: &str = "fuse";
const FILE: &str = "volume";
const LOG: &str = "attach.log";
const PASSWORD: &str = "password";
/// A link to the device, where the kernel has it by NBD.
const LINK: &str = "device";

/// How long a volume may take to be there: a login over a long network, and what is tried again.
const ATTACH_PATIENCE: Duration = Duration::from_secs(60);

/// How long a device may take to be as large as its volume.
const GROW_PATIENCE: Duration = Duration::from_secs(30);

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The length of a sector in sysfs, whatever the device has.
const SECTOR: u64 = 512;

/// What a volume is attached by.
#[derive(Debug)]
pub(super) struct Devices {
    /// The run directory.
    pub(super) folder: PathBuf,
    /// `enkaku`.
    pub(super) program: PathBuf,
    /// The name of this node.
    pub(super) initiator: String,
    /// More options of `enkaku attach`.
    pub(super) options: Vec<String>,
}

/// Where a volume is, as the controller says.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) portal: String,
    pub(super) target: String,
    pub(super) lun: u16,
    pub(super) read_only: bool,
}

/// What proves who we are.
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: Zeroizing<String>,
}

impl Address {
    fn url(&self, user: Option<&str>) -> String {
        let user = user.map_or(String::new(), |user| format!("{user}@"));
        format!("iscsi://{user}{}/{}/{}", self.portal, self.target, self.lun)
    }

    /// The lasting name that `attach --nbd-device` gives it.
    fn link(&self) -> PathBuf {
        Path::new("/dev/enkaku").join(&self.target).join(self.lun.to_string())
    }
}

impl Devices {
    fn of(&self, id: &str) -> PathBuf {
        self.folder.join(id)
    }

    fn file(&self, id: &str) -> PathBuf {
        self.of(id).join(FOLDER_OF_FILE).join(FILE)
    }

    /// The device of a volume, if it has one.
    pub(super) fn find(&self, id: &str) -> Result<Option<PathBuf>, Status> {
        let linked = self.of(id).join(LINK).canonicalize().ok();
        let is_device =
            |path: &PathBuf| fs::metadata(path).is_ok_and(|of| of.file_type().is_block_device());
        match linked.filter(is_device) {
            Some(device) => Ok(Some(device)),
            None => Ok(loops_of(&self.file(id))?.into_iter().next()),
        }
    }

    /// Attaches a volume, if it is not.
    ///
    /// # Errors
    /// Why it could not be; nothing is left of it then.
    pub(super) async fn attach(
        &self,
        id: &str,
        address: &Address,
        credentials: Option<&Credentials>,
    ) -> Result<PathBuf, Status> {
        let left = self.find(id)?;
        if let Some(device) = &left {
            if self.is_served(id).await {
                return Ok(device.clone());
            }
            warn!(id, "the process that served it is gone; it is attached anew");
        }
        // A device of the kernel waits for a successor, mounted as it is; nothing else does.
        let is_waiting = left.is_some() && self.of(id).join(LINK).symlink_metadata().is_ok();
        if !is_waiting {
            self.detach(id).await?;
        }
        let attached = self.attach_anew(id, address, credentials).await;
        if attached.is_err()
            && !is_waiting
            && let Err(error) = self.detach(id).await
        {
            warn!(id, %error, "what was attached in part stays");
        }
        attached
    }

    async fn attach_anew(
        &self,
        id: &str,
        address: &Address,
        credentials: Option<&Credentials>,
    ) -> Result<PathBuf, Status> {
        let folder = self.of(id);
        let failed = |error: io::Error| Status::internal(format!("{}: {error}", folder.display()));
        fs::create_dir_all(folder.join(FOLDER_OF_FILE)).map_err(failed)?;
        let by_nbd = Path::new("/sys/module/nbd").exists();
        if by_nbd {
            let link = folder.join(LINK);
            let _not_there = fs::remove_file(&link);
            std::os::unix::fs::symlink(address.link(), link).map_err(failed)?;
        }
        let password = folder.join(PASSWORD);
        if let Some(credentials) = credentials {
            write_secret(&password, &credentials.password).map_err(failed)?;
        }
        let begun = self.begin(id, address, credentials, by_nbd);
        let ready = match begun {
            Ok(child) => self.wait(id, child).await,
            Err(error) => Err(error),
        };
        // It was read; nothing of it stays.
        let _not_there = fs::remove_file(&password);
        ready?;
        info!(id, by_nbd, "attached");
        if by_nbd {
            return self.find(id)?.ok_or_else(|| Status::internal(format!("{id}: no device")));
        }
        let file = self.file(id);
        let mut arguments = vec!["--find", "--show", "--direct-io=on"];
        if address.read_only {
            arguments.push("--read-only");
        }
        let mut arguments: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
        arguments.push(file.as_os_str());
        succeed("losetup", &arguments, QUICK).await.map(PathBuf::from)
    }

    /// Starts the process, in a session of its own: signals to the plugin's group do not reach it.
    fn begin(
        &self,
        id: &str,
        address: &Address,
        credentials: Option<&Credentials>,
        by_nbd: bool,
    ) -> Result<Child, Status> {
        let folder = self.of(id);
        let log = folder.join(LOG);
        let failed = |error: io::Error| Status::internal(format!("{}: {error}", log.display()));
        let mut options = OpenOptions::new();
        let out = options.write(true).create(true).truncate(true).mode(0o600).open(&log);
        let out = out.map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        let mut command = Command::new("setsid");
        command.arg(&self.program).arg("attach");
        command.arg(address.url(credentials.map(|who| who.user.as_str())));
        command.arg("--initiator-name").arg(&self.initiator);
        match by_nbd {
            true => command.arg("--nbd-device"),
            false => command.arg("--fuse").arg(folder.join(FOLDER_OF_FILE)),
        };
        if address.read_only {
            command.arg("--read-only");
        }
        if credentials.is_some() {
            command.arg("--chap-password-file").arg(folder.join(PASSWORD));
        }
        command.args(&self.options).current_dir("/");
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        // What it tells systemd would be taken for the plugin's.
        command.env_remove("NOTIFY_SOCKET");
        command.spawn().map_err(|error| unavailable("setsid", &error))
    }

    /// Until the volume is there, or its process has given up.
    async fn wait(&self, id: &str, mut child: Child) -> Result<(), Status> {
        let begin = Instant::now();
        while !self.is_served(id).await {
            if let Ok(Some(status)) = child.try_wait() {
                let why = last_line(&self.of(id).join(LOG));
                let what = format!("{id} could not be attached: {why} ({status})");
                return Err(Status::unavailable(what));
            }
            if begin.elapsed() > ATTACH_PATIENCE {
                let _ended = child.kill().await; // nothing is mounted of it yet
                let why = last_line(&self.of(id).join(LOG));
                let what = format!("{id} is not attached within {ATTACH_PATIENCE:?}: {why}");
                return Err(Status::unavailable(what));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        // Somebody has to take note of its end, as long as the plugin lives.
        let id = id.to_owned();
        tokio::spawn(async move {
            if let Ok(status) = child.wait().await {
                info!(id, %status, "the process that attached it has ended");
            }
        });
        Ok(())
    }

    /// A process answers for it.
    async fn is_served(&self, id: &str) -> bool {
        let (link, file) = (self.of(id).join(LINK), self.file(id));
        if fs::symlink_metadata(&link).is_ok() {
            return self.find(id).is_ok_and(|found| found.is_some())
                && self.is_listed(&link).await.unwrap_or(false);
        }
        let Some(folder) = file.parent().map(Path::to_owned) else { return false };
        // What the process has mounted; a folder of ours is on no file system of FUSE.
        if !mount_at(&folder).is_ok_and(|mount| mount.is_some()) {
            return false;
        }
        // Opened, since what the kernel remembers of a file outlives its server.
        let looking = tokio::task::spawn_blocking(move || File::open(file));
        let looked = tokio::time::timeout(QUICK, looking).await;
        matches!(looked, Ok(Ok(Ok(_))))
    }

    /// `attach --list` has a process for a device.
    async fn is_listed(&self, link: &Path) -> Option<bool> {
        #[derive(serde::Deserialize)]
        struct Entry {
            pid: Option<u32>,
            places: Vec<PathBuf>,
        }
        let device = link.canonicalize().ok()?;
        let program = self.program.to_str()?;
        let text = succeed(program, &["attach", "--list", "--json"], QUICK).await.ok()?;
        let entries: Vec<Entry> = serde_json::from_str(&text).ok()?;
        let its = |entry: &Entry| entry.pid.is_some() && entry.places.contains(&device);
        Some(entries.iter().any(its))
    }

    /// Detaches a volume, if it is attached; what was written is at the target then. Nothing of it
    /// may be mounted.
    pub(super) async fn detach(&self, id: &str) -> Result<(), Status> {
        let (folder, file) = (self.of(id), self.file(id));
        for device in loops_of(&file)? {
            succeed("losetup", &["--detach".as_ref(), device.as_os_str()], QUICK).await?;
        }
        let link = folder.join(LINK);
        let mounted = folder.join(FOLDER_OF_FILE);
        let attached = match fs::symlink_metadata(&link) {
            Ok(_) => link.canonicalize().ok(),
            Err(_) => mount_at(&mounted)?.map(|_| file),
        };
        if let Some(what) = attached {
            self.end(&what).await?;
        }
        // A dead process leaves its mount; `umount` of a living one's would have failed above.
        unmount(&mounted).await?;
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Status::internal(format!("{}: {error}", folder.display())))
            }
            _ => Ok(()),
        }
    }

    /// Has the process end, if there is one.
    async fn end(&self, what: &Path) -> Result<(), Status> {
        let program = self.program.to_str().unwrap_or("enkaku");
        let output = run(program, &["detach".as_ref(), what.as_os_str()], LONG).await?;
        match output.status.code() {
            // 2: nothing is attached there, its process is gone.
            Some(0 | 2) => Ok(()),
            _ => Err(Status::internal(said("enkaku detach", &output))),
        }
    }

    /// Lets the device be as large as its volume, and says how large that is.
    pub(super) async fn grow(&self, id: &str, required: u64) -> Result<u64, Status> {
        let missing = || Status::not_found(format!("{id} is not attached here"));
        let device = self.find(id)?.ok_or_else(missing)?;
        let is_loop = self.of(id).join(LINK).symlink_metadata().is_err();
        let begin = Instant::now();
        loop {
            if is_loop {
                self.look_at_file(id).await?;
                let argument = ["--set-capacity".as_ref(), device.as_os_str()];
                succeed("losetup", &argument, QUICK).await?;
            }
            let size = size(&device)?;
            if size >= required {
                return Ok(size);
            }
            if begin.elapsed() > GROW_PATIENCE {
                let what = format!("{id} has {size} bytes here, {required} are expected");
                return Err(Status::unavailable(what));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Has the kernel ask how large the FUSE file is now. An initiator learns that from what its
    /// target answers, so that something has to be asked: a flush.
    async fn look_at_file(&self, id: &str) -> Result<(), Status> {
        let file = self.file(id);
        let look = move || {
            let file = File::open(&file)?;
            file.sync_all()?;
            file.metadata().map(drop)
        };
        let looked = tokio::task::spawn_blocking(look).await.map_err(io::Error::other);
        let looked = looked.and_then(|looked| looked);
        looked.map_err(|error| Status::internal(format!("{id}: {error}")))
    }
}

/// For this user alone, from the beginning.
fn write_secret(path: &Path, secret: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(secret.as_bytes())
}

/// Why a process has ended, as it said.
fn last_line(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.unwrap_or("it said nothing").trim_start_matches("enkaku: ").to_owned()
}

/// Loop devices on a file (the kernel's sysfs-block-loop).
fn loops_of(file: &Path) -> Result<Vec<PathBuf>, Status> {
    let failed = |error: io::Error| Status::internal(format!("/sys/block: {error}"));
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let backing = fs::read_to_string(entry.path().join("loop/backing_file"));
        if backing.is_ok_and(|backing| Path::new(backing.trim_end_matches('\n')) == file) {
            found.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    Ok(found)
}

/// An attribute of a device in sysfs.
fn attribute(device: &Path, name: &str) -> Result<u64, Status> {
    let node = device.file_name().unwrap_or_default();
    let path = Path::new("/sys/block").join(node).join(name);
    let failed =
        |what: &dyn std::fmt::Display| Status::internal(format!("{}: {what}", path.display()));
    let text = fs::read_to_string(&path).map_err(|error| failed(&error))?;
    text.trim().parse().map_err(|error| failed(&error))
}

/// Bytes of a device.
pub(super) fn size(device: &Path) -> Result<u64, Status> {
    attribute(device, "size").map(|sectors| sectors.saturating_mul(SECTOR))
}

/// Nobody can write to it.
pub(super) fn is_read_only(device: &Path) -> Result<bool, Status> {
    attribute(device, "ro").map(|value| value != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_for_its_owner() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        write_secret(&path, "secret of twelve").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(write_secret(&path, "x").is_err(), "one that is there is somebody's");
    }

    #[test]
    fn the_last_word_of_a_process_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        assert_eq!(last_line(&log), "it said nothing");
        fs::write(&log, "attached\nenkaku: no route\n\n").unwrap();
        assert_eq!(last_line(&log), "no route");
    }

    #[test]
    fn a_url_has_the_user_and_never_the_password() {
        let target = "iqn.2026-11.org.example:csi:csi-a".to_owned();
        let address = Address { portal: "[::1]:3260".to_owned(), target, lun: 0, read_only: false };
        let url = address.url(Some("op"));
        assert_eq!(url, "iscsi://op@[::1]:3260/iqn.2026-11.org.example:csi:csi-a/0");
        let link = address.link();
        assert_eq!(link, Path::new("/dev/enkaku/iqn.2026-11.org.example:csi:csi-a/0"));
    }
}
