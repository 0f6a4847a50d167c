//! `--owner` of `enkaku attach`: the volume is reserved as long as it is attached, so that nobody
//! else writes to it, and whoever only reads it knows that what he reads may be half of an edit.
//!
//! The reservation is "write exclusive, registrants only": all sessions of the disk are registered
//! under one key. It outlives this process and a loss of power, where the target can keep it; the
//! same host has it again with the next `attach --owner`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use backends::Location;
use block::BlockError;
use block::mirror::Fence;
use tokio::task::JoinHandle;

use super::super::remote::Volume;
use super::super::{Usage, complain};

/// How often it is looked at whether the reservation is still there: a target that keeps none for
/// its next start has lost it then.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long the target may take to end the reservation.
const GIVE_BACK_TIME_MAX: Duration = Duration::from_secs(10);

/// What to do with others who have the volume reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Owner {
    /// Leave it to them, and do not attach it.
    Hold,
    /// Take it from them.
    Take,
}

/// The reservation of a volume.
pub(crate) struct Ownership {
    fence: Arc<dyn Fence>,
    key: u64,
    keeping: JoinHandle<()>,
}

impl Owner {
    /// Whether a volume can have one at all.
    ///
    /// # Errors
    /// It is no unit of an iSCSI target.
    pub(crate) fn check(url: &Location) -> anyhow::Result<()> {
        if matches!(url, Location::Iscsi(_)) { Ok(()) } else { Err(no_unit(url)) }
    }
}

fn no_unit(url: &Location) -> anyhow::Error {
    Usage::error(format!(
        "--owner: {url} is no iscsi:// URL, and only an iSCSI target keeps others from writing"
    ))
}

impl Ownership {
    /// Reserves the volume.
    ///
    /// # Errors
    /// It cannot be reserved, or somebody else has it.
    pub(crate) async fn begin(
        url: &Location,
        volume: &Volume,
        owner: Owner,
    ) -> anyhow::Result<Self> {
        let disk = volume.disk().ok_or_else(|| no_unit(url))?;
        let fence = disk.fence().await?.with_context(|| {
            format!(
                "{url}: its target knows no persistent reservations; without --owner, who reads it \
                 goes by the target's count of writes, if there is one"
            )
        })?;
        let key = disk.reservation_key();
        let reserved = match owner {
            Owner::Hold => fence.hold(key).await,
            Owner::Take => fence.take(key).await,
        };
        match reserved {
            Ok(()) => {}
            Err(BlockError::Fenced) => {
                let holder = fence.holder().await.ok().flatten();
                let holder = holder.map_or_else(String::new, |key| format!(" (key {key:#018x})"));
                anyhow::bail!(
                    "{url}: somebody else has it reserved{holder}: detach it there, or take it \
                     from a host that is gone with --owner=take"
                );
            }
            Err(error) => return Err(error).with_context(|| format!("reserving {url}")),
        }
        let keeping = tokio::spawn(keep(url.to_string(), Arc::clone(&fence), key));
        Ok(Self { fence, key, keeping })
    }

    /// Gives it back.
    ///
    /// # Errors
    /// The target does not do it: the reservation stays until the volume is attached again.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        self.keeping.abort();
        let given_back = tokio::time::timeout(GIVE_BACK_TIME_MAX, self.fence.release(self.key));
        let told = "giving the reservation back: it stays until attach --owner ends again here";
        match given_back.await {
            Ok(given_back) => given_back.context(told),
            Err(_) => anyhow::bail!("{told}: no answer within {GIVE_BACK_TIME_MAX:?}"),
        }
    }
}

/// Reserves the volume again where its target has forgotten it, and says once when somebody else
/// has taken it: writes are refused from then on.
async fn keep(url: String, fence: Arc<dyn Fence>, key: u64) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let kept = match fence.holder().await {
            Ok(Some(holder)) if holder == key => continue,
            Ok(Some(_)) => Err(BlockError::Fenced),
            Ok(None) => fence.hold(key).await,
            Err(error) => Err(error),
        };
        match kept {
            Ok(()) => tracing::info!("{url}: its target had forgotten the reservation"),
            Err(BlockError::Fenced) => {
                complain(&format!("{url}: somebody else has taken it: nothing can be written"));
                return;
            }
            Err(error) => tracing::debug!(%error, "{url}: the reservation cannot be looked at"),
        }
    }
}
