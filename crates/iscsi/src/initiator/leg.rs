//! [`RemoteLeg`]: a logical unit as a leg of a mirror ([`block::mirror`]). It hands out one disk
//! after the other, each of which dies with its sessions (`state::mortal`) and ends what the one
//! before, or an earlier process, may have left at the target.
//!
//! Not here: when a leg is connected anew, and what is sent again then. That is the mirror's.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use block::BlockError;
use block::mirror::{CopyInside, Fence, LegSource, OpenLeg, OrderedWrites};
use tokio::sync::oneshot;

use super::config::{AfterLoss, Config};
use super::disk::{Inner, RemoteDisk};
use super::fence::Reservation;
use super::inside::Inside;
use super::isid::ChosenIsid;
use super::ordered::{self, Abilities, Ordered};
use super::url::Url;

/// How long the sockets of the disk before may take to close. The target ends its commands in any
/// case; that its connections end first spares it to find that out.
const OVER_TIMEOUT: Duration = Duration::from_secs(2);

/// The way to a logical unit that is the leg of a mirror.
///
/// Its sessions have a name of their own that outlives the process ([`IsidChoice::Stable`], or
/// [`Named`](super::IsidChoice::Named) if the configuration has it), so that each login ends what
/// an earlier one has left (RFC 7143 §6.3.5). A leg that another process of this host has under
/// that name cannot be connected.
///
/// [`IsidChoice::Stable`]: super::IsidChoice::Stable
#[derive(Clone)]
pub struct RemoteLeg(Arc<Leg>);

struct Leg {
    url: Url,
    config: Config,
    /// The name, once it was had. It is kept from one disk to the next.
    isid: Mutex<Option<Arc<ChosenIsid>>>,
    /// The disk that was connected last.
    last: Mutex<Weak<Inner>>,
    /// Hears when its sockets have been closed. Locked while the next one is set up.
    over: tokio::sync::Mutex<Option<oneshot::Receiver<()>>>,
}

impl std::fmt::Debug for RemoteLeg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteLeg({})", self.0.url)
    }
}

impl RemoteLeg {
    /// A leg at this URL. Connects to nothing yet. Of the settings, those of unflushed data and
    /// of the replacement timeout have no meaning: nothing is kept, and nothing replaced.
    pub fn new(url: Url, mut config: Config) -> Self {
        config.after_loss = AfterLoss::Die;
        let (isid, last) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Leg { url, config, isid, last, over: tokio::sync::Mutex::default() }))
    }

    /// The disk that was connected last, as long as somebody has it: what its path does. Not to be
    /// kept: its connections live as long as anybody has it.
    pub fn disk(&self) -> Option<RemoteDisk> {
        self.0.last().upgrade().map(RemoteDisk::from)
    }
}

impl LegSource for RemoteLeg {
    fn name(&self) -> String {
        self.0.url.to_string()
    }

    /// Must run inside a tokio runtime, as [`RemoteDisk::connect`].
    fn connect(&self) -> Pin<Box<dyn Future<Output = block::Result<OpenLeg>> + Send>> {
        let leg = self.0.clone();
        Box::pin(async move { leg.connect().await })
    }
}

impl Leg {
    async fn connect(&self) -> block::Result<OpenLeg> {
        let mut over = self.over.lock().await;
        let last = std::mem::take(&mut *self.last());
        if let Some(disk) = last.upgrade().map(RemoteDisk::from) {
            disk.abandon("the leg is connected anew");
        }
        if let Some(over) = over.take() {
            let _ = tokio::time::timeout(OVER_TIMEOUT, over).await;
        }
        let isid = self.isid().map_err(|error| BlockError::Unreachable(error.to_string()))?;
        let connecting = RemoteDisk::connect_as(self.url.clone(), self.config.clone(), isid);
        let connected = connecting.await;
        let (disk, closed) =
            connected.map_err(|error| BlockError::Unreachable(error.to_string()))?;
        (*self.last(), *over) = (disk.downgrade(), Some(closed));
        let identity = disk.identity();
        let identity = if identity.name.is_empty() { identity.serial } else { identity.name };
        let (fence, unit, inside) =
            tokio::try_join!(Reservation::of(&disk), Abilities::of(&disk), Inside::of(&disk))?;
        if unit.orders {
            ordered::await_older(&disk).await?;
        }
        let fence = fence.map(|fence| Arc::new(fence) as Arc<dyn Fence>);
        let ordered = Ordered::of(&disk, unit);
        let ordered = ordered.map(|ordered| Arc::new(ordered) as Arc<dyn OrderedWrites>);
        let inside = inside.map(|inside| Arc::new(inside) as Arc<dyn CopyInside>);
        Ok(OpenLeg { device: Arc::new(disk), identity, ordered, fence, inside })
    }

    fn last(&self) -> MutexGuard<'_, Weak<Inner>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of this leg. Had once, it is kept until the leg is gone.
    fn isid(&self) -> std::io::Result<Arc<ChosenIsid>> {
        let mut held = self.isid.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(isid) = &*held {
            return Ok(isid.clone());
        }
        let isid = ChosenIsid::of_leg(&self.url, &self.config).map_err(|error| {
            let text = "in use by another process of this host, or by an earlier leg of this one";
            match error.kind() {
                std::io::ErrorKind::WouldBlock => std::io::Error::new(error.kind(), text),
                _ => error,
            }
        })?;
        let isid = Arc::new(isid);
        *held = Some(isid.clone());
        Ok(isid)
    }
}
