//! `enkaku mirror run`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use daemon::mirror::config::MirrorConfig;
use daemon::mirror::control;
use daemon::mirror::running::Running;
use daemon::mirror::shape::{Shape, ShapeError};
use export::fuse::FuseConfig;
use scsi::LunOptions;
use tokio::task::JoinSet;

use super::Which;
use crate::cmd::front::{self, IscsiFront};
use crate::cmd::{ChapArgs, Usage, say};

/// When a user sees that the mirror has grown.
const BY_FILE: &str = "the file is as large within a second";
const BY_NBD: &str = "NBD clients see it when they connect anew";
const BY_ISCSI: &str = "initiators are told (CAPACITY DATA HAS CHANGED)";

/// Runs a mirror in the foreground until interrupted, and offers it here.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("front").required(true).args(["fuse", "nbd", "iscsi"]))]
pub(super) struct Args {
    #[command(flatten)]
    which: Which,
    /// Mount it in this empty directory, as the file `volume`.
    #[arg(long, value_name = "DIR")]
    fuse: Option<PathBuf>,
    /// Serve it by NBD on a Unix socket (a path) or on TCP (ADDR:PORT).
    #[arg(long, value_name = "SOCKET|ADDR:PORT")]
    nbd: Option<String>,
    /// Serve it by iSCSI, as LUN 0 of a target.
    #[arg(long, value_name = "ADDR:PORT")]
    iscsi: Option<SocketAddr>,
    /// Name of that target [default: iqn.2026-11.io.enkaku:mirror-NAME].
    #[arg(long, requires = "iscsi")]
    iqn: Option<String>,
    /// Serve metrics (OpenMetrics) and health over HTTP.
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    chap: ChapArgs,
}

pub(super) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let chap = args.chap.chap()?;
    let files = args.which.files()?;
    MirrorConfig::load(files.config())?;
    let name = files.name();
    let socket = control::listen(files.socket()).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Usage::error(format!("the mirror {name} runs already")),
        _ => Usage::error(format!("the control socket {}: {error}", files.socket().display())),
    })?;
    let _removed_at_the_end = Removed(files.socket().to_owned());
    let metrics = front::metrics(args.metrics).await?;
    let mut shape = Shape::open(files.clone()).await.map_err(unshaped)?;
    shape.finish_growth().await;
    let running = Running::open(shape).await?;
    let mut helpers = JoinSet::new();
    helpers.spawn(Arc::clone(&running).serve(socket));
    if let Some(metrics) = metrics {
        say(format_args!("metrics on http://{}/metrics", metrics.address()))?;
        helpers.spawn(Arc::clone(&running).serve_metrics(metrics));
    }
    let ready = |seen| {
        let running = Arc::clone(&running);
        move |front: &str| running.set_front(front, seen)
    };
    let device = running.device();
    let offered = match (args.fuse, args.nbd, args.iscsi) {
        (Some(dir), ..) => {
            front::fuse(device, &dir, FuseConfig::default().file_name("volume"), ready(BY_FILE))
                .await
        }
        (_, Some(socket), _) => front::nbd(device, &socket, ready(BY_NBD)).await,
        (.., Some(listen)) => {
            let iqn = args.iqn.unwrap_or_else(|| default_iqn(name));
            let front = IscsiFront {
                listen,
                iqn,
                chap,
                growth: running.growth(),
                options: LunOptions::default(),
            };
            front::iscsi(device, front, ready(BY_ISCSI)).await
        }
        _ => Ok(()),
    };
    let closed = running.close().await;
    drop(helpers);
    offered?;
    closed.context("closing the mirror")?;
    let failures = running.failures();
    match failures.first {
        None => Ok(ExitCode::SUCCESS),
        Some(first) => anyhow::bail!(
            "{name}: I/O failed while it ran; failed operations: {}; the first: {first}",
            failures.count
        ),
    }
}

/// A configuration's mistakes are told a line each.
fn unshaped(error: ShapeError) -> anyhow::Error {
    match error {
        ShapeError::Config(config) => config.into(),
        other => other.into(),
    }
}

/// Names of mirrors may have letters that an iSCSI name must not.
fn default_iqn(name: &str) -> String {
    format!("iqn.2026-11.io.enkaku:mirror-{}", name.to_lowercase().replace('_', "-"))
}

/// The control socket, removed in the end.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // Gone already: nobody can ask any more either way.
        let _ = std::fs::remove_file(&self.0);
    }
}
