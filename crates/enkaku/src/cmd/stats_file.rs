//! `attach --stats FILE`: a JSON object that is written anew every second, for a monitoring agent
//! or `watch cat`. Written beside the file and renamed, so that a reader always finds a whole
//! object; removed when the volume is detached.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use backends::{Location, Volume};
use block::layer::{CacheLayer, CacheStats};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Usage, path_report};

/// Time between two versions of the file.
const INTERVAL: Duration = Duration::from_secs(1);

/// The file, as long as it is written.
pub(crate) struct StatsFile {
    file: PathBuf,
    writing: JoinHandle<()>,
}

impl StatsFile {
    /// Writes the first version, and goes on writing.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn start(
        file: &Path,
        url: &Location,
        volume: &Volume,
        cache: &Arc<CacheLayer>,
    ) -> anyhow::Result<Self> {
        let (url, volume, cache) = (url.to_string(), volume.clone(), cache.clone());
        let object = move || object(&url, &volume, &cache.stats());
        let refused = || Usage(format!("--stats {}: cannot be written", file.display()));
        write(file, &object()).with_context(refused)?;
        let path = file.to_owned();
        let writing = tokio::spawn(async move {
            let mut failed = false;
            loop {
                tokio::time::sleep(INTERVAL).await;
                match write(&path, &object()) {
                    Ok(()) => failed = false,
                    // Said once until it works again: a full disk stays full for a while.
                    Err(error) if !failed => {
                        failed = true;
                        tracing::warn!(file = %path.display(), %error, "statistics not written");
                    }
                    Err(_) => {}
                }
            }
        });
        Ok(Self { file: file.to_owned(), writing })
    }
}

impl Drop for StatsFile {
    fn drop(&mut self) {
        self.writing.abort();
        // Gone already, or never to be removed: the volume is detached either way.
        let _ = std::fs::remove_file(&self.file);
    }
}

fn write(file: &Path, object: &Value) -> io::Result<()> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    std::fs::write(&beside, format!("{object}\n"))?;
    std::fs::rename(&beside, file).inspect_err(|_| drop(std::fs::remove_file(&beside)))
}

fn object(url: &str, volume: &Volume, cache: &CacheStats) -> Value {
    let disk = volume.iscsi();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "time_s": now.as_secs_f64(),
        "pid": std::process::id(),
        "url": url,
        "connected": volume.connection_count() > 0,
        "session_starts": disk.map(|disk| disk.incarnations()),
        "path": disk.map(|disk| path_report::Path::of(&disk.path())),
        "cache": {
            "hits": cache.hits,
            "misses": cache.misses,
            "read_ahead_bytes": cache.read_ahead_bytes,
            "read_ahead_used_bytes": cache.read_ahead_used_bytes,
            "read_ahead_wasted_bytes": cache.read_ahead_wasted_bytes,
            "writes_in": cache.writes_in,
            "writes_out": cache.writes_out,
            "deferred_errors": cache.deferred_errors,
            "failed_bytes": cache.failed_bytes,
            "dirty_bytes": cache.dirty_bytes,
            "flushes": cache.flushes,
            "flush_wait_us": cache.flush_wait_us,
        },
    })
}
