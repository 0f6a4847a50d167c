//! What a leg is told by its superblock, and what is noted here of that.

use std::sync::Arc;

use super::super::super::config::Mode;
use super::super::super::generation::GenerationId;
use super::super::super::leg::LegEvent;
use super::super::super::superblock::{Consistency, RemoteSuperblock};
use super::super::session::{Session, SessionDevice};
use super::super::shared::Shared;
use super::super::tail;
use super::{Found, Looked, Refused, read};
use crate::Result;

/// Looks whether a leg in use is still ours.
pub(crate) async fn check(
    shared: &Shared,
    session: &Arc<Session>,
    found: &mut Found,
) -> Looked<()> {
    found.looked_at = shared.host().now();
    let superblock = read(session, &found.layout).await?;
    if superblock == found.superblock {
        return Ok(());
    }
    Err(Refused::new(
        LegEvent::TakenOver,
        "somebody else has written its superblock: it was promoted, or two mirrors use it",
    ))
}

/// Counts the superblock of a leg up, as a sign of life, and so that a leg that is put back to a
/// state from before is known by it.
pub(crate) async fn beat(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<()> {
    say(shared, leg, session, found, |_| {}).await
}

/// Counts the superblock of a leg up as a sign of life alone: the image there is of the time that
/// it was of before.
pub(crate) async fn count_up(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<()> {
    let writer = shared.host().name();
    let superblock = RemoteSuperblock { writer, ..found.superblock.clone() };
    write_next(session, found, superblock).await?;
    note_told(shared, leg, found, None).await
}

/// Writes down here what the leg was told, and which epoch is known to be stable there.
async fn note_told(
    shared: &Arc<Shared>,
    leg: usize,
    found: &Found,
    base: Option<GenerationId>,
) -> Result<()> {
    shared.legs().note_told(leg);
    let acked = shared.legs().stamp(leg);
    shared.books().told(leg, found.superblock.sequence, acked, base).await
}

/// Tells a leg that nobody writes to it any more.
pub(crate) async fn take_leave(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<()> {
    let superblock = found.superblock.clone();
    write_as(shared, session, found, superblock, String::new()).await?;
    note_told(shared, leg, found, None).await
}

/// Tells a leg that its image is no legal one, before anything is copied to it.
pub(crate) async fn say_inconsistent(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<()> {
    shared.legs().note_image(leg, false, Some(found.superblock.lease.into()));
    say(shared, leg, session, found, |superblock| {
        if !matches!(superblock.consistency, Consistency::InconsistentSince(_)) {
            superblock.consistency = Consistency::InconsistentSince(0);
        }
    })
    .await
}

/// Tells a leg that its image is the one of the present generation.
pub(crate) async fn tell(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<()> {
    if shared.config().mode == Mode::Sync {
        forget_stamp(shared, leg, session, found).await?;
    }
    let mut superblock = found.superblock.clone();
    superblock.lineage = shared.books().lineage();
    superblock.consistency = Consistency::Consistent;
    write(shared, session, found, superblock).await?;
    note_told(shared, leg, found, Some(found.generation())).await?;
    shared.legs().wake();
    Ok(())
}

/// The leg has no stamp any more: it tells the time of an image that is older than the one there
/// will be.
pub(crate) async fn forget_stamp(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Result<()> {
    if found.stamp > 0 {
        shared.books().told(leg, found.superblock.sequence, Some(0), None).await?;
        tail::erase_stamp(&SessionDevice(session.clone()), &found.layout).await?;
        found.stamp = 0;
    }
    Ok(())
}

/// Tells a leg something else, of the generation that it has.
pub(crate) async fn say(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
    what: impl FnOnce(&mut RemoteSuperblock),
) -> Result<()> {
    let mut superblock = found.superblock.clone();
    what(&mut superblock);
    write(shared, session, found, superblock).await?;
    note_told(shared, leg, found, None).await
}

pub(super) async fn write(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    found: &mut Found,
    superblock: RemoteSuperblock,
) -> Result<()> {
    let writer = shared.host().name();
    write_as(shared, session, found, superblock, writer).await
}

async fn write_as(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    found: &mut Found,
    mut superblock: RemoteSuperblock,
    writer: String,
) -> Result<()> {
    superblock.writer = writer;
    superblock.lease = shared.host().wall_clock().into();
    write_next(session, found, superblock).await
}

async fn write_next(
    session: &Arc<Session>,
    found: &mut Found,
    mut superblock: RemoteSuperblock,
) -> Result<()> {
    // What a device that was given back tells of is told once.
    superblock.redo_bytes = found.redo_bytes;
    superblock.sequence += 1;
    tail::write(&SessionDevice(session.clone()), &found.layout, &superblock).await?;
    found.superblock = superblock;
    Ok(())
}
