//! What a test's process has logged, kept to be looked through, and the wait for what something
//! else brings about.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::io::{self, Write};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Limit of every wait: whatever takes longer hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// From now on everything that is logged is kept.
pub fn keep_log() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log);
        log.with_max_level(tracing_subscriber::filter::LevelFilter::INFO).init();
    });
}

/// Lines in the log with all of these words.
pub fn lines(words: &[&str]) -> usize {
    let log = LOG.lock().unwrap();
    let log = String::from_utf8_lossy(&log);
    log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

/// Waits for a line in the log with all of these words.
pub async fn logged(words: &[&str]) {
    until(&format!("a line in the log with {words:?}"), || lines(words) > 0).await;
}

/// Waits for a condition that something else brings about.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let limit = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < limit, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
