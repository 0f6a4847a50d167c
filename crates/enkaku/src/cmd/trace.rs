//! `bench --trace FILE`: what happened when, as lines of JSON: how the number of connections and
//! the throughput went, and every operation. The `kind` of a line is `run` (the first), `sample`,
//! `read` or `write`, and `end` (the last one: a file without it is of a run that was ended).

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use block::load::Ended;
use iscsi::initiator::{PathReport, RemoteDisk};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Usage;

/// How often a new sample is looked for: the path controller takes one every 100 to 250 ms.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Operations that may wait to be written before the load is held back.
const WAITING_MAX: usize = 4096;

/// A file that is being written.
pub(crate) struct Trace {
    writing: JoinHandle<io::Result<()>>,
    name: String,
}

impl Trace {
    /// Begins; what is sent to the channel are operations of a kind (`read`, `randwrite`, …), and
    /// its closing is the end.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn start(
        file: &Path,
        disk: &RemoteDisk,
        kind: &'static str,
    ) -> anyhow::Result<(Self, mpsc::Sender<Ended>)> {
        let name = file.display().to_string();
        let out = File::create(file)
            .with_context(|| Usage(format!("--trace {name}: cannot be written")))?;
        let (each, ended) = mpsc::channel(WAITING_MAX);
        let disk = disk.clone();
        let lines = Lines {
            out: BufWriter::new(out),
            kind: kind.trim_start_matches("rand"),
            begin: Instant::now(),
            operations: 0,
            before: disk.path(),
        };
        let writing = tokio::spawn(lines.write_all(disk, ended));
        Ok((Self { writing, name }, each))
    }

    /// Waits until all is in the file.
    ///
    /// # Errors
    /// It could not be written to its end.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        self.writing.await?.with_context(|| format!("--trace {}", self.name))
    }
}

struct Lines {
    out: BufWriter<File>,
    kind: &'static str,
    begin: Instant,
    operations: u64,
    /// The path at the sample before.
    before: PathReport,
}

impl Lines {
    async fn write_all(
        mut self,
        disk: RemoteDisk,
        mut ended: mpsc::Receiver<Ended>,
    ) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let policy = self.before.policy;
        self.line(&json!({ "kind": "run", "time_s": now.as_secs_f64(), "policy": policy }))?;
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                ended = ended.recv() => match ended {
                    Some(ended) => self.operation(ended)?,
                    None => break,
                },
                _ = looks.tick() => self.look(disk.path())?,
            }
        }
        let (t_s, operations) = (self.begin.elapsed().as_secs_f64(), self.operations);
        self.line(&json!({ "kind": "end", "t_s": t_s, "operations": operations }))?;
        self.out.flush()
    }

    fn line(&mut self, line: &Value) -> io::Result<()> {
        writeln!(self.out, "{line}")
    }

    fn operation(&mut self, ended: Ended) -> io::Result<()> {
        self.operations += 1;
        self.line(&json!({
            "kind": self.kind,
            "t_s": ended.at.saturating_duration_since(self.begin).as_secs_f64(),
            "seconds": ended.latency.as_secs_f64(),
            "n": self.before.connections_wanted,
        }))
    }

    /// A line for a sample that was not there before.
    fn look(&mut self, path: PathReport) -> io::Result<()> {
        let interval = path.sampled_at.saturating_sub(self.before.sampled_at);
        if interval.is_zero() {
            return Ok(());
        }
        let bytes = path.carried_bytes - self.before.carried_bytes;
        let sample = json!({
            "kind": "sample",
            "t_s": self.begin.elapsed().as_secs_f64(),
            "open": path.connections_open,
            "n": path.connections_wanted,
            "phase": path.phase,
            "why": path.why,
            "bytes_per_s": bytes / interval.as_secs_f64(),
            "operations": self.operations,
        });
        self.before = path;
        self.line(&sample)
    }
}
