//! Programs of the demo: this one, in another role, at one end of the line. What they say is kept
//! in a log each, and the last of it is told when one ends that should not.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use wanlab::{End, Lab};

/// How long one may take to be there, or to do its work.
const TIME_MAX: Duration = Duration::from_secs(60);

/// What is to be run.
pub(super) struct Program {
    name: &'static str,
    words: Vec<OsString>,
}

/// One that runs until it is dropped.
pub(super) struct Running {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

/// All of them.
#[derive(Default)]
pub(super) struct Programs(Vec<Running>);

impl Program {
    pub(super) fn new(name: &'static str, words: &[&str]) -> Self {
        Self { name, words: words.iter().map(OsString::from).collect() }
    }

    /// With one more argument.
    pub(super) fn with(mut self, path: &Path) -> Self {
        self.words.push(path.into());
        self
    }

    fn command(&self, lab: &Lab, end: End, log: &Path) -> anyhow::Result<Command> {
        let mut command = lab.command(end, std::env::current_exe()?);
        let errors = File::options().create(true).append(true).open(log)?;
        command.args(&self.words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        let mut command = Command::from(command);
        command.kill_on_drop(true);
        Ok(command)
    }

    fn log(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.log", self.name.replace(' ', "-")))
    }

    /// Runs it to its end; what it says.
    pub(super) async fn run(&self, lab: &Lab, end: End, folder: &Path) -> anyhow::Result<String> {
        let log = self.log(folder);
        let run = self.command(lab, end, &log)?.output();
        let output = tokio::time::timeout(TIME_MAX, run).await;
        let output = output.map_err(|_| anyhow!("{}: not done in {TIME_MAX:?}", self.name))??;
        if !output.status.success() {
            bail!("{}: {}{}", self.name, output.status, last_words(&log));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts it, and waits until it has said this.
    pub(super) async fn start(
        &self,
        lab: &Lab,
        end: End,
        folder: &Path,
        ready: &str,
    ) -> anyhow::Result<Running> {
        let log = self.log(folder);
        let mut child = self.command(lab, end, &log)?.spawn().context(self.name)?;
        let said = child.stdout.take().context("a program without output")?;
        let mut lines = BufReader::new(said).lines();
        let heard = async {
            while let Some(line) = lines.next_line().await? {
                if line.contains(ready) {
                    return anyhow::Ok(true);
                }
            }
            Ok(false)
        };
        let heard = tokio::time::timeout(TIME_MAX, heard).await;
        if !heard.map_err(|_| anyhow!("{}: not ready in {TIME_MAX:?}", self.name))?? {
            bail!("{} ended{}", self.name, last_words(&log));
        }
        // Nobody reads on, and nobody must wait for that.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Running { name: self.name, child, log })
    }
}

impl Programs {
    pub(super) fn add(&mut self, running: Running) {
        self.0.push(running);
    }

    /// Waits until one of them ends, which none should; why.
    pub(super) async fn ended(&mut self) -> anyhow::Error {
        let ends = self.0.iter_mut().map(|one| {
            let Running { name, child, log } = one;
            Box::pin(async move {
                let how = child.wait().await.map_or_else(|e| e.to_string(), |s| s.to_string());
                anyhow!("the {name} has ended: {how}{}", last_words(log))
            })
        });
        futures_util::future::select_all(ends).await.0
    }
}

/// The last line of a log, for the end of a sentence.
fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(String::new, |line| format!(": {}", line.trim()))
}
