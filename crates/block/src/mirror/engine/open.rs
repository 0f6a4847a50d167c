//! Takes a mirror up again from its metadata. Nothing is asked of the legs here, so that the local
//! content can be used at once.

use std::sync::Arc;

use super::super::config::{Config, Mode};
use super::super::error::MirrorError;
use super::super::layout::LocalLayout;
use super::super::status::LegState;
use super::super::superblock::LocalSuperblock;
use super::Parts;
use super::books::Books;
use super::legs::Legs;
use super::local::Local;
use super::plain_store::Store;
use super::shared::Shared;
use super::tracking::Tracking;

const WHAT: &str = "the mirror's metadata";

/// Reads the metadata, and puts the parts together.
pub(super) async fn open(parts: Parts, config: Config) -> Result<Arc<Shared>, MirrorError> {
    if config.mode == Mode::Async {
        return Err(MirrorError::Unsupported("the asynchronous mode"));
    }
    let device = |source| MirrorError::device(WHAT, source);
    let read = Store::read_superblock(&parts.metadata).await.map_err(device)?;
    let superblock = read.map_err(|fault| MirrorError::metadata(WHAT, &fault))?;
    let layout = check(&parts, &superblock)?;
    let opened = Store::open(parts.metadata.clone(), &superblock).await;
    let (store, bitmaps) = opened.map_err(device)?;
    let records = superblock.legs.iter().flatten();
    let legs = records.zip(bitmaps).map(|(record, bitmap)| {
        // A leg that was in sync may be what somebody promotes: nothing completes without it until
        // it is noted that it may miss something.
        let excluded = record.state != LegState::InSync;
        (record.name.clone(), Tracking::new(bitmap), excluded)
    });
    let legs = Legs::new(parts.host.clone(), legs.collect());
    let size = superblock.size;
    let books = Books::new(store, layout, superblock);
    books.opened().await.map_err(device)?;
    let local = Local::new(parts.local);
    Ok(Shared::new(parts.host, config, local, parts.legs, legs, books, size))
}

fn check(parts: &Parts, superblock: &LocalSuperblock) -> Result<LocalLayout, MirrorError> {
    let expected = superblock.legs.iter().flatten().count();
    if parts.legs.len() != expected {
        let hint = "`enkaku mirror add-leg` and `remove-leg` change them";
        return Err(MirrorError::Legs { found: parts.legs.len(), expected, hint });
    }
    let found = parts.local.info().size;
    if found < superblock.size {
        return Err(MirrorError::Metadata {
            what: "the local device".to_owned(),
            found: format!(
                "it has {found} bytes, and the image of mirror {} has {}",
                superblock.uuid, superblock.size
            ),
        });
    }
    let layout = LocalLayout::new(superblock.size);
    let layout =
        layout.and_then(|layout| layout.check(parts.metadata.info().size).map(|()| layout));
    layout.map_err(|error| MirrorError::metadata(WHAT, &error))
}
