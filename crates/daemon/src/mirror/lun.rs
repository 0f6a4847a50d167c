//! [`MirrorLun`]: a mirror that runs inside the target daemon, behind a logical unit, with its
//! control socket: `enkaku mirror` finds it as it finds one that runs by itself.
//!
//! It is closed in order when nobody has it any more. Not here: what a LUN is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::Device;
use block::DeviceInfo;
use block::backend::{FileDevice, FileOptions};
use block::mirror::MirrorError;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tracing::{error, warn};

use super::config::MirrorConfig;
use super::control;
use super::files::Files;
use super::report::Report;
use super::running::Running;
use super::shape::{Shape, said};

/// When a user sees that the mirror has grown.
const SEES_GROWTH: &str = "initiators are told (CAPACITY DATA HAS CHANGED)";

/// A mirror of this daemon.
pub(crate) struct MirrorLun {
    running: Arc<Running>,
    /// Its control socket is served.
    tasks: JoinSet<()>,
    socket: PathBuf,
}

impl MirrorLun {
    /// Opens it, which may wait for disks. Must be called on a thread that may block, within a
    /// runtime of several.
    ///
    /// # Errors
    /// Why it does not run, for people.
    pub(crate) fn open(files: &Files) -> Result<Arc<Self>, String> {
        tokio::task::block_in_place(|| Handle::current().block_on(Self::opened(files)))
    }

    async fn opened(files: &Files) -> Result<Arc<Self>, String> {
        MirrorConfig::load(files.config()).map_err(|error| said(error.into()))?;
        let socket = control::listen(files.socket()).map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                "runs already (another process has its control socket), or is still being closed"
                    .to_owned()
            }
            _ => format!("the control socket {}: {error}", files.socket().display()),
        })?;
        let opened = async {
            let mut shape = Shape::open(files.clone()).await.map_err(said)?;
            shape.finish_growth().await;
            Running::open(shape).await.map_err(|error| error.to_string())
        };
        let running = opened.await.inspect_err(|_| remove(files.socket()))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&running).serve(socket));
        Ok(Arc::new(Self { running, tasks, socket: files.socket().to_owned() }))
    }

    /// What would be served, without opening it for good; what somebody has open goes to `in_use`.
    ///
    /// # Errors
    /// Why it would not run.
    pub(crate) fn trial(files: &Files, in_use: &mut bool) -> Result<DeviceInfo, String> {
        let config = MirrorConfig::load(files.config()).map_err(|error| said(error.into()))?;
        let options = FileOptions::default();
        let tried = |path: &Path, what: &str| {
            let trial = FileDevice::trial(path, &options);
            trial.map_err(|error| format!("{what}: {error}"))
        };
        let local = tried(&config.local, "the local device")?;
        let metadata = tried(&config.metadata, "the mirror's metadata")?;
        *in_use |= local.in_use || metadata.in_use;
        super::parts::sources(&config).map_err(|error| error.to_string())?;
        let mut info = local.info;
        // An image has whole blocks of the mirror's.
        info.size = info.size / block::mirror::BLOCK_BYTES * block::mirror::BLOCK_BYTES;
        Ok(info)
    }

    /// What initiators read and write.
    pub(crate) fn device(&self) -> Device {
        self.running.device()
    }

    /// Initiators see it as this LUN, and are told when it has grown.
    pub(crate) fn serve_as(&self, target_name: &str, target: scsi::Target, number: u16) {
        self.running.set_front(format!("LUN {number} of {target_name}"), SEES_GROWTH);
        let mut growth = self.running.growth();
        tokio::spawn(async move {
            // Until the mirror is gone, or the LUN.
            while growth.changed().await.is_ok() && target.capacity_changed(number).is_ok() {}
        });
    }

    /// How it stands; `None` while it is being closed.
    pub(crate) fn report(&self) -> Option<Report> {
        self.running.report_now()
    }

    /// What an operator has to look at.
    pub(crate) fn troubles(&self) -> Vec<String> {
        self.running.troubles()
    }

    /// Ends it in order.
    ///
    /// # Errors
    /// What the devices say.
    pub(crate) async fn close(&self) -> Result<(), MirrorError> {
        let closed = self.running.close().await;
        remove(&self.socket);
        closed
    }
}

impl Drop for MirrorLun {
    fn drop(&mut self) {
        let (running, socket) = (Arc::clone(&self.running), std::mem::take(&mut self.socket));
        let tasks = std::mem::take(&mut self.tasks);
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            if let Err(error) = running.close().await {
                error!("closing a mirror: {error}");
            }
            drop(tasks);
            remove(&socket);
        });
    }
}

fn remove(socket: &Path) {
    if let Err(error) = std::fs::remove_file(socket)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        warn!(%error, "{}", socket.display());
    }
}
