//! `enkaku mirror run`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use block::mirror::Mirror;
use daemon::mirror::running::{MetricsListener, Running};
use daemon::mirror::{control, parts};
use export::fuse::FuseConfig;
use tokio::task::JoinSet;

use super::Which;
use crate::cmd::front::{self, IscsiFront};
use crate::cmd::{ChapArgs, Usage, say};

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
    let (files, config) = args.which.load()?;
    let name = files.name();
    let socket = control::listen(files.socket()).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Usage::error(format!("the mirror {name} runs already")),
        _ => Usage::error(format!("the control socket {}: {error}", files.socket().display())),
    })?;
    let _removed_at_the_end = Removed(files.socket().to_owned());
    let metrics = match args.metrics {
        Some(address) => {
            let bound = MetricsListener::bind(address).await;
            Some(bound.map_err(|error| Usage::error(format!("--metrics {address}: {error}")))?)
        }
        None => None,
    };
    let mirror = Mirror::open(parts::open(&config)?, config.behaviour).await?;
    let running = Running::new(name, mirror);
    let mut helpers = JoinSet::new();
    helpers.spawn(Arc::clone(&running).serve(socket));
    if let Some(metrics) = metrics {
        say(format_args!("metrics on http://{}/metrics", metrics.address()))?;
        helpers.spawn(Arc::clone(&running).serve_metrics(metrics));
    }
    let ready = |front: &str| running.set_front(front);
    let device = running.device();
    let offered = match (args.fuse, args.nbd, args.iscsi) {
        (Some(dir), ..) => {
            front::fuse(device, &dir, FuseConfig::default().file_name("volume"), ready).await
        }
        (_, Some(socket), _) => front::nbd(device, &socket, ready).await,
        (.., Some(listen)) => {
            let iqn = args.iqn.unwrap_or_else(|| default_iqn(name));
            front::iscsi(device, IscsiFront { listen, iqn, chap }, ready).await
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
