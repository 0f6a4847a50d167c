//! Takes a mirror up again from its metadata. Nothing is asked of the legs here, so that the local
//! content can be used at once.

use std::sync::{Arc, Weak};

use super::super::config::{Config, Mode};
use super::super::error::MirrorError;
use super::super::status::LegState;
use super::super::store::{self, Image};
use super::super::superblock::{LocalSuperblock, Role};
use super::Parts;
use super::books::Books;
use super::legs::Legs;
use super::local::Local;
use super::shared::Shared;
use super::tracking::Tracking;

const WHAT: &str = "the mirror's metadata";

/// Epochs that a mirror may begin between two times that it is opened, so that no number is ever
/// used twice: 55 years of 10,000 flushes a second, a million times.
const EPOCHS_PER_OPEN: u64 = 1 << 44;

/// Reads the metadata, and puts the parts together.
pub(super) async fn open(parts: Parts, config: Config) -> Result<Arc<Shared>, MirrorError> {
    let what = |error| MirrorError::store(WHAT, error);
    let superblock = store::read_superblock(&parts.metadata).await.map_err(what)?;
    check(&parts, &superblock)?;
    let opened = store::open(parts.metadata.clone(), parts.host.clone(), &superblock).await;
    let opened = opened.map_err(what)?;
    if let Some(doubt) = &opened.doubt {
        tracing::warn!(%doubt, "the activity log cannot be believed: everything is copied");
    }
    let records = superblock.legs.iter().zip(opened.bitmaps);
    let records = records.filter_map(|(record, bitmap)| Some((record.as_ref()?, bitmap?)));
    let legs = records.map(|(record, bitmap)| {
        // A leg that was in sync may be what somebody promotes: nothing completes without it until
        // it is noted that it may miss something.
        let excluded = record.state != LegState::InSync;
        (record.name.clone(), Tracking::new(bitmap), excluded)
    });
    let legs = Legs::new(parts.host.clone(), config, superblock.epoch_max + 1, legs.collect());
    let size = superblock.size;
    let books = Books::new(opened.store, superblock);
    let epochs = if config.mode == Mode::Async { EPOCHS_PER_OPEN } else { 0 };
    books.opened(epochs).await.map_err(|source| MirrorError::device(WHAT, source))?;
    if config.mode == Mode::Async {
        for leg in 0..legs.count() {
            let stamp = books.leg(leg).map_or(0, |record| record.acked_epoch);
            legs.follow_at_once(leg, stamp);
        }
    }
    let local = Local::new(parts.local);
    let shared = Shared::new(parts.host, config, local, parts.legs, legs, books, size);
    let image: Weak<dyn Image> = Arc::downgrade(&(shared.clone() as Arc<dyn Image>));
    shared.books().store().serve(image);
    Ok(shared)
}

fn check(parts: &Parts, superblock: &LocalSuperblock) -> Result<(), MirrorError> {
    let expected = superblock.legs.iter().flatten().count();
    if parts.legs.len() != expected {
        let hint = "`enkaku mirror create --force` makes a mirror of others";
        return Err(MirrorError::Legs { found: parts.legs.len(), expected, hint });
    }
    let local = |found: String| MirrorError::Metadata { what: "the local device".into(), found };
    if superblock.role == Role::Secondary {
        return Err(local(
            "it failed while the mirror was in use, and the legs went on without it; `enkaku \
             mirror promote` makes one of them the image"
                .to_owned(),
        ));
    }
    if superblock.role == Role::HandedBack {
        return Err(local(
            "it was given back to the side that was promoted (`enkaku mirror failback`), which writes \
             to it now; when that has been stopped, `enkaku mirror create --from-leg` makes it \
             the primary again"
                .to_owned(),
        ));
    }
    if superblock.role == Role::Restoring {
        return Err(local(
            "it is being given the image of a leg, and is no image of one moment until that is done: \
             `enkaku mirror resolve --discard local` goes on with it"
                .to_owned(),
        ));
    }
    let found = parts.local.info().size;
    if found < superblock.size {
        return Err(local(format!(
            "it has {found} bytes, and the image of mirror {} has {}",
            superblock.uuid, superblock.size
        )));
    }
    Ok(())
}
