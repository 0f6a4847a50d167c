//! The file in which paths are remembered between processes. What is worth keeping and what may be
//! believed is decided elsewhere (`path::Paths`, `path::Remembered`); here it is read once,
//! when a disk is opened, and written every minute in which something was carried, and at the end.
//!
//! Several processes share the file. Each writes it anew with its own peer changed, beside it and
//! by renaming, so that a reader always finds a whole one; of two that write at the same moment one
//! is lost. Nothing depends on it: whatever goes wrong is said once, and the path is a new one.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use iscsi_proto::time::Instant;
use path::paths::TEXT_BYTES_MAX;
use path::{Paths, PolicyConfig, Remembered};

use crate::initiator::Config;

/// Time between two versions of the file, while something is carried.
const INTERVAL: Duration = Duration::from_secs(60);

/// Tells the files of one process apart while they are written.
static WRITTEN: AtomicU32 = AtomicU32::new(0);

/// What one disk knows of its path, and the file; does nothing where there is none.
pub(in crate::initiator) struct Keeper {
    file: Option<PathBuf>,
    known: Mutex<Known>,
    complained: AtomicBool,
}

#[derive(Default)]
struct Known {
    paths: Paths,
    /// The peer, and what is to be written of the path to it.
    learnt: Option<(IpAddr, Remembered)>,
    /// When it was written last, and what had been carried by then.
    written_at: Duration,
    written_bytes: f64,
    carried_bytes: f64,
}

impl Keeper {
    /// Reads nothing yet. Only `adaptive` makes use of a memory.
    pub(in crate::initiator) fn new(config: &Config) -> Arc<Self> {
        let uses = matches!(config.policy, Some(PolicyConfig::Adaptive(_)));
        let file = config.path_memory.clone().filter(|_| uses);
        let (known, complained) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { file, known, complained })
    }

    /// Reads the file.
    pub(in crate::initiator) async fn load(self: &Arc<Self>) {
        if self.file.is_some() {
            let me = self.clone();
            let read = tokio::task::spawn_blocking(move || me.read());
            self.lock().paths = read.await.unwrap_or_default();
        }
    }

    /// What is remembered of the path to a peer.
    pub(super) fn of(&self, peer: IpAddr) -> Option<Remembered> {
        self.lock().paths.of(peer, unix_s())
    }

    /// The path to this peer is like this now, and so much was carried in all. Writes it when it is
    /// time to.
    pub(super) fn note(
        self: &Arc<Self>,
        peer: Option<IpAddr>,
        path: Option<Remembered>,
        carried_bytes: f64,
        now: Instant,
    ) {
        if self.file.is_none() {
            return;
        }
        let is_due = {
            let mut known = self.lock();
            known.learnt = peer.zip(path).or(known.learnt);
            known.carried_bytes = carried_bytes;
            let is_due = known.is_new() && now.0.saturating_sub(known.written_at) >= INTERVAL;
            if is_due {
                (known.written_at, known.written_bytes) = (now.0, carried_bytes);
            }
            is_due
        };
        if is_due {
            let me = self.clone();
            drop(tokio::task::spawn_blocking(move || me.write()));
        }
    }

    /// Writes what was learnt since it was written last: the disk is closed.
    pub(in crate::initiator) async fn save(self: &Arc<Self>) {
        if self.file.is_some() && self.lock().is_new() {
            let me = self.clone();
            // Nothing is lost by a write that fails.
            let _ = tokio::task::spawn_blocking(move || me.write()).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table in the file; an empty one where there is none that can be read.
    fn read(&self) -> Paths {
        let Some(file) = &self.file else { return Paths::default() };
        match read(file) {
            Ok(paths) => paths,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Paths::default(),
            Err(error) => {
                self.complain(file, &error, "no path is remembered");
                Paths::default()
            }
        }
    }

    /// Changes the file; others may have changed it meanwhile.
    fn write(&self) {
        let (Some(file), Some((peer, path))) = (&self.file, self.lock().learnt) else { return };
        let mut paths = self.read();
        paths.note(peer, path, unix_s());
        let written = write(file, &paths.to_text());
        self.lock().paths = paths;
        if let Err(error) = written {
            self.complain(file, &error, "what the path carries is not kept");
        }
    }

    /// Says once that the file cannot be used.
    fn complain(&self, file: &Path, error: &io::Error, what: &str) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            tracing::warn!(file = %file.display(), %error, "path memory: {what}");
        }
    }
}

impl Known {
    /// Something was carried that the file does not know of.
    fn is_new(&self) -> bool {
        self.learnt.is_some() && self.carried_bytes > self.written_bytes
    }
}

/// Seconds since 1970.
fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn read(file: &Path) -> io::Result<Paths> {
    let mut text = String::new();
    let most = TEXT_BYTES_MAX as u64 + 1;
    // A pipe or a terminal would keep us waiting.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file)?;
    opened.take(most).read_to_string(&mut text)?;
    let damaged = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    if text.len() as u64 >= most {
        return Err(damaged(format!("it is longer than {TEXT_BYTES_MAX} bytes")));
    }
    Paths::parse(&text).map_err(|error| damaged(error.to_string()))
}

/// Not on disk when this returns: a power cut may lose the file, and nothing with it.
fn write(file: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{}-{number}", std::process::id()));
    let beside = PathBuf::from(name);
    let written = create(&beside)
        .and_then(|mut out| out.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&beside, file));
    if written.is_err() {
        // It may never have been there.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

fn create(file: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));

    fn config(file: &Path, policy: &str) -> Config {
        let config = Config::default().policy(policy.parse().unwrap());
        Config { path_memory: Some(file.to_owned()), ..config }
    }

    fn path(bandwidth: f64) -> Remembered {
        let (measured, rtt_s, loss, connections, age_s) = (true, 0.05, 0.0, 4, 0.0);
        Remembered { bandwidth, measured, rtt_s, loss, connections, age_s }
    }

    fn at(seconds: u64) -> Instant {
        Instant(Duration::from_secs(seconds))
    }

    fn known(keeper: &Keeper, peer: IpAddr) -> Option<f64> {
        keeper.of(peer).map(|path| path.bandwidth)
    }

    async fn loaded(file: &Path) -> Arc<Keeper> {
        let keeper = Keeper::new(&config(file, "adaptive"));
        keeper.load().await;
        keeper
    }

    #[tokio::test]
    async fn what_one_disk_learns_the_next_one_knows_and_others_peers_stay() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/folder/paths");
        let (one, two) = (loaded(&file).await, loaded(&file).await);
        one.save().await;
        assert!(!file.exists(), "nothing was learnt");
        one.note(Some(PEER), Some(path(1e8)), 5.0, at(1));
        one.save().await;
        let other = IpAddr::from([192, 0, 2, 8]);
        two.note(Some(other), Some(path(2e8)), 5.0, at(1));
        two.save().await;
        let three = loaded(&file).await;
        assert_eq!((known(&three, PEER), known(&three, other)), (Some(1e8), Some(2e8)));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let folder = file.parent().unwrap();
        assert_eq!(std::fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "nothing is left beside it");
    }

    #[tokio::test]
    async fn it_is_written_once_a_minute_and_only_if_something_was_carried() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("paths");
        let keeper = loaded(&file).await;
        let is_due = |carried, seconds| {
            let before = keeper.lock().written_at;
            keeper.note(Some(PEER), Some(path(1e8)), carried, at(seconds));
            keeper.lock().written_at != before
        };
        assert!(!is_due(1.0, 59));
        assert!(is_due(2.0, 60));
        assert!(!is_due(3.0, 100) && is_due(4.0, 120));
        assert!(!is_due(4.0, 500), "nothing was carried");
        assert!(is_due(5.0, 501));
        // What ends without a session has no peer, and is kept for the one before.
        keeper.note(None, None, 6.0, at(502));
        keeper.save().await;
        assert_eq!(known(&*loaded(&file).await, PEER), Some(1e8));
    }

    #[tokio::test]
    async fn a_damaged_file_is_none_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("paths");
        let long = "enkaku paths 1\n".repeat(TEXT_BYTES_MAX / 10);
        for text in ["", "{\"paths\": []}", "enkaku paths 1\nx\n", "\u{fffd}", &long] {
            std::fs::write(&file, text).unwrap();
            let keeper = loaded(&file).await;
            assert!(keeper.complained.load(Ordering::Relaxed), "{}", text.len());
            assert_eq!(known(&keeper, PEER), None);
            keeper.note(Some(PEER), Some(path(1e8)), 1.0, at(1));
            keeper.save().await;
            assert_eq!(known(&*loaded(&file).await, PEER), Some(1e8));
        }
        // A place that no file can be in: the disk does without.
        let keeper = loaded(&file.join("below/a/file")).await;
        keeper.note(Some(PEER), Some(path(1e8)), 1.0, at(1));
        keeper.save().await;
        assert!(keeper.complained.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn other_policies_touch_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("paths");
        std::fs::write(&file, "mine").unwrap();
        for policy in ["golden", "fixed:4"] {
            let keeper = Keeper::new(&config(&file, policy));
            keeper.load().await;
            keeper.note(Some(PEER), Some(path(1e8)), 1.0, at(100));
            keeper.save().await;
            assert!(!keeper.complained.load(Ordering::Relaxed));
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    }
}
