//! What a leg says of itself, and what it is told. Nothing is written to one before its superblock
//! is understood, and found to be that of this mirror and of a generation that we followed.

mod told;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use self::told::write;
pub(crate) use self::told::{
    beat, check, count_up, forget_stamp, say, say_inconsistent, take_leave, tell,
};
use super::super::config::Mode;
use super::super::failback;
use super::super::generation::{GenerationId, Relation, WallMs, compare, was_put_back};
use super::super::layout::LegLayout;
use super::super::leg::LegEvent;
use super::super::redo::replay;
use super::super::status::LegState;
use super::super::superblock::{Consistency, LegId, LegRecord, RemoteSuperblock, Stamp};
use super::guard;
use super::home;
use super::session::{Session, SessionDevice};
use super::shared::Shared;
use super::signs;
use super::tail;
use crate::BlockError;

const PROMOTED: &str = "it was promoted and holds all that was written here; `enkaku mirror resolve \
     --discard` takes it back, and gives up what was written there since";

const PROMOTED_BEHIND: &str = "it was promoted, without what was on its way there in the end; `enkaku \
     mirror resolve --discard` takes it back, and gives up what was written there since";

/// Who decides where a leg holds something else.
const COPIES: &str = "nothing was written to it; `enkaku mirror create --force` gives it the image \
     of this mirror, and where there are other legs, `remove-leg --force` and `add-leg --force` do";

/// What a leg was found to be.
pub(crate) struct Found {
    layout: LegLayout,
    superblock: RemoteSuperblock,
    /// The last epoch that is stable there, as it says itself; 0 for none.
    stamp: u64,
    /// Everything has to be copied.
    pub(crate) whole: bool,
    /// It has no image yet.
    pub(crate) first: bool,
    /// Bytes of its redo log from the next superblock on.
    redo_bytes: u64,
    /// When its superblock was last read.
    looked_at: Duration,
}

impl Found {
    /// Its name.
    pub(crate) fn leg(&self) -> LegId {
        self.superblock.leg
    }

    /// The generation that its superblock names.
    pub(crate) fn generation(&self) -> GenerationId {
        self.superblock.lineage.current()
    }

    /// Where its metadata are.
    pub(crate) fn layout(&self) -> LegLayout {
        self.layout
    }

    /// The last epoch that is stable there, as it said itself.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// It says that its image is a legal one.
    pub(crate) fn is_consistent(&self) -> bool {
        self.superblock.consistency == Consistency::Consistent
    }

    /// When its superblock was last read.
    pub(crate) fn looked_at(&self) -> Duration {
        self.looked_at
    }

    /// Bytes of its redo log.
    pub(crate) fn redo_bytes(&self) -> u64 {
        self.redo_bytes
    }

    /// Its redo log, in bytes of the leg.
    pub(crate) fn redo_log(&self) -> Range<u64> {
        self.layout.with_redo(self.redo_bytes).redo_log()
    }

    /// The batch that its superblock names.
    pub(crate) fn batch(&self) -> Option<replay::Batch> {
        let Consistency::Applying(committed) = self.superblock.consistency else { return None };
        let superblock = &self.superblock;
        let layout = self.layout.with_redo(superblock.redo_bytes);
        let (mirror, image_bytes) = (superblock.uuid, superblock.data_bytes);
        Some(replay::Batch { mirror, layout, image_bytes, committed })
    }

    /// The stamp that is right when that is home.
    pub(crate) fn stamp_of_batch(&self) -> Option<Stamp> {
        self.batch().and_then(|batch| replay::stamp_of(&self.superblock, &batch.committed))
    }

    /// A stamp was written.
    pub(crate) fn note_stamp(&mut self, epoch: u64) {
        self.stamp = epoch;
    }
}

/// Why a leg cannot be used.
pub(crate) struct Refused {
    pub(crate) event: LegEvent,
    pub(crate) message: String,
}

impl Refused {
    pub(crate) fn new(event: LegEvent, message: impl Into<String>) -> Self {
        Self { event, message: message.into() }
    }
}

impl From<BlockError> for Refused {
    fn from(error: BlockError) -> Self {
        let event = match error {
            BlockError::Fenced => LegEvent::TakenOver,
            _ => LegEvent::Lost,
        };
        Self { event, message: error.to_string() }
    }
}

pub(crate) type Looked<T> = std::result::Result<T, Refused>;

/// Looks at a leg that was just opened.
pub(crate) async fn look(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
) -> Looked<Found> {
    let Some(record) = shared.books().leg(leg) else {
        return Err(Refused::new(LegEvent::Foreign, "the mirror knows nothing of this leg"));
    };
    let layout = check_shape(shared, session, &record)?;
    check_identity(&session.leg().identity, &record)?;
    let looked_at = shared.host().now();
    let superblock = read(session, &layout).await?;
    check_owner(shared, &superblock, &record)?;
    let related = relate(shared, &superblock, &record)?;
    if record.is_awaited() {
        meet(shared, leg, session, &superblock, related).await?;
    }
    let device = SessionDevice(session.clone());
    let stamp = tail::read_stamp(&device, &layout, superblock.uuid).await?;
    // A batch that is committed counts as if it were home: it is in a moment.
    let stamp = match superblock.consistency {
        Consistency::Applying(committed) => replay::stamp_of(&superblock, &committed).or(stamp),
        _ => stamp,
    };
    // With a stamp the image is that of the stamp's time, and else of the last sign of life.
    let image = stamp.as_ref().map_or(superblock.lease, |stamp| stamp.closed);
    let stamp = stamp.map_or(0, |stamp| stamp.epoch);
    let put_back = was_put_back(
        (record.superblock_sequence, record.acked_epoch),
        (superblock.sequence, stamp),
    );
    if record.identity.is_empty() && !session.leg().identity.is_empty() {
        shared.books().identified(leg, &session.leg().identity).await?;
    }
    let first = record.state == LegState::Copying;
    let inconsistent = matches!(superblock.consistency, Consistency::InconsistentSince(_));
    let consistent = !inconsistent && !first;
    shared.legs().note_image(leg, consistent, Some(image.into()));
    let whole = related == Relation::WholeCopy || put_back;
    if put_back {
        tracing::warn!(
            leg = %record.name,
            "it is older than it was: its superblock has number {} and its stamp epoch {stamp}, and \
             number {} and epoch {} had been reached there (was a snapshot put back?); all of it is \
             compared, and what differs is copied",
            superblock.sequence,
            record.superblock_sequence,
            record.acked_epoch
        );
    }
    if whole {
        shared.legs().compare(leg);
    }
    let redo_bytes = redo_bytes(shared, session);
    if record.redo_bytes != redo_bytes {
        shared.books().redo_log(leg, redo_bytes).await?;
    }
    Ok(Found { layout, superblock, stamp, whole, first, redo_bytes, looked_at })
}

/// Bytes of a leg's redo log from now on.
fn redo_bytes(shared: &Shared, session: &Session) -> u64 {
    shared.config().redo_bytes_on(session.info().size, shared.size())
}

/// A batch that was committed and not released gets to its place, before anything else is written
/// to a leg. Where it cannot be read any more, everything is copied.
pub(crate) async fn settle(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    found: &mut Found,
) -> Looked<()> {
    shared.legs().note_redo(leg, found.redo_bytes);
    shared.legs().note_home(leg, home::way(session));
    let Consistency::Applying(committed) = found.superblock.consistency else {
        if found.superblock.redo_bytes > 0 || found.stamp > 0 {
            // What names no batch may be in a cache, over one that does: what is written next must
            // not be there when a power cut has a batch named again. Nor was the stamp forced,
            // perhaps, on which more is built. Not before the reservation is held: some targets
            // refuse a flush of whoever is not registered.
            session.flush().await?;
        }
        return Ok(());
    };
    let device = SessionDevice(session.clone());
    let (layout, before) = (found.layout, found.superblock.clone());
    let home = replay::bring_home(&device, &layout, &before, committed);
    match signs::beside(shared, leg, session, found, home).await {
        Ok(()) => found.superblock = replay::release(&device, &layout, &found.superblock).await?,
        Err(BlockError::Medium(why)) => {
            tracing::warn!(leg, %why, "a batch in a redo log cannot be used: everything is copied");
            found.whole = true;
            return Ok(());
        }
        Err(other) => return Err(other.into()),
    }
    tracing::info!(leg, bytes = committed.bytes, "a batch in a redo log was copied home");
    let acked = Some(found.stamp).filter(|stamp| *stamp > 0);
    shared.books().told(leg, found.superblock.sequence, acked, None).await?;
    Ok(())
}

/// What differs at a disk that was given back, and is met for the first time. Durable before it is
/// told anything, since it tells it then no more.
async fn meet(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
    superblock: &RemoteSuperblock,
    related: Relation,
) -> Looked<()> {
    let device = SessionDevice(session.clone());
    let set = match related {
        Relation::Behind => failback::differences(&device, superblock).await?,
        _ => None,
    };
    // It knows our image as newer than that which was promoted: that was put back before.
    let promoted = failback::promoted_sequence(shared.local()).await;
    let set = set.filter(|set| promoted.is_some_and(|promoted| promoted >= set.leg_sequence));
    shared.legs().compare(leg);
    match set {
        Some(set) => {
            for blocks in set.runs() {
                shared.legs().differ(Some(leg), blocks);
            }
            shared.books().write_bits(leg).await?;
        }
        None => {
            tracing::info!(leg, "nothing is known of what differs there: all of it is compared");
            shared.legs().all_differ(leg);
            shared.books().all_differ(leg, &**shared.host()).await?;
        }
    }
    shared.books().met(leg, session.info().size).await?;
    Ok(())
}

fn check_shape(shared: &Shared, session: &Session, record: &LegRecord) -> Looked<LegLayout> {
    let info = session.info();
    let failed = |message: String| Refused::new(LegEvent::Failed, message);
    if info.read_only {
        return Err(failed("it is read-only".to_owned()));
    }
    let block_size = shared.local().info().block_size;
    if info.block_size > block_size {
        return Err(failed(format!(
            "its blocks of {} bytes are larger than the mirror's of {block_size}",
            info.block_size
        )));
    }
    if info.size != record.leg_bytes && !record.is_awaited() {
        // What stands at its end is found by its size.
        return Err(failed(format!(
            "it has {} bytes, and had {} when it became a leg; where all sides have grown, `enkaku \
             mirror grow` goes on with it, `create --force` begins anew",
            info.size, record.leg_bytes
        )));
    }
    // What is in front of its tail besides the image, its superblock tells.
    let layout = LegLayout::new(info.size, 0);
    let layout = layout.and_then(|layout| layout.check(shared.size(), info.size).map(|()| layout));
    layout.map_err(|error| failed(error.to_string()))
}

fn check_identity(found: &str, record: &LegRecord) -> Looked<()> {
    if found.is_empty() || record.identity.is_empty() || found == record.identity {
        return Ok(());
    }
    let message = format!(
        "another unit is at its place: {found:?} instead of {:?}; `enkaku mirror create --force` \
         makes it one of this mirror",
        record.identity
    );
    Err(Refused::new(LegEvent::Foreign, message))
}

async fn read(session: &Arc<Session>, layout: &LegLayout) -> Looked<RemoteSuperblock> {
    match tail::read(&SessionDevice(session.clone()), layout).await? {
        Ok(superblock) => Ok(superblock),
        Err(fault) => {
            let message = format!("no superblock of a leg was found at its end: {fault}; {COPIES}");
            Err(Refused::new(LegEvent::Foreign, message))
        }
    }
}

fn check_owner(shared: &Shared, found: &RemoteSuperblock, record: &LegRecord) -> Looked<()> {
    let own = shared.books().uuid();
    if found.uuid != own {
        let message = format!(
            "it is a leg of mirror {}, and this is mirror {own}; `enkaku mirror inspect` shows it, {COPIES}",
            found.uuid
        );
        return Err(Refused::new(LegEvent::Foreign, message));
    }
    if found.leg != record.id {
        let message = "it is another leg of this mirror: two of them have changed places in the \
                       configuration, which decides, or at their target";
        return Err(Refused::new(LegEvent::Foreign, message));
    }
    if found.data_bytes != shared.size() {
        let decides = if found.data_bytes > shared.size() {
            "a growth was cut off: `enkaku mirror grow` goes on with it"
        } else {
            COPIES
        };
        let (there, here) = (found.data_bytes, shared.size());
        let message = format!("its image has {there} bytes, and the mirror {here}; {decides}");
        return Err(Refused::new(LegEvent::Foreign, message));
    }
    Ok(())
}

fn relate(shared: &Shared, found: &RemoteSuperblock, record: &LegRecord) -> Looked<Relation> {
    let relation = compare(&shared.books().lineage(), record.base, &found.lineage);
    match relation {
        Relation::Same | Relation::Behind | Relation::WholeCopy => Ok(relation),
        Relation::Promoted => Err(Refused::new(
            LegEvent::TakenOver,
            match shared.config().mode {
                Mode::Sync => PROMOTED,
                Mode::Async => PROMOTED_BEHIND,
            },
        )),
        Relation::SplitBrain { left_here, left_there, .. } => {
            let time = |left: Option<WallMs>| left.map_or("not yet".to_owned(), utc);
            let message = format!(
                "both sides have written since they parted (here since {}, there since {}); `enkaku mirror \
                 resolve --discard` decides",
                time(left_here),
                time(left_there)
            );
            Err(Refused::new(LegEvent::Parted, message))
        }
        Relation::Unrelated => {
            let message = format!(
                "its image (generation {}) has no history in common with this one ({}); {COPIES}",
                found.lineage.current(),
                shared.books().generation()
            );
            Err(Refused::new(LegEvent::Foreign, message))
        }
    }
}

/// Takes back a leg of this mirror that somebody else has written to: it is no legal image, and of
/// our generation, and everything may differ. The error says what was found instead.
pub(crate) async fn take_back(
    shared: &Arc<Shared>,
    leg: usize,
    session: &Arc<Session>,
) -> std::result::Result<(), String> {
    let taken = try_take_back(shared, leg, session).await;
    taken.map_err(|refused| refused.message)
}

async fn try_take_back(shared: &Arc<Shared>, leg: usize, session: &Arc<Session>) -> Looked<()> {
    let Some(record) = shared.books().leg(leg) else {
        return Err(Refused::new(LegEvent::Foreign, "the mirror knows nothing of this leg"));
    };
    let layout = check_shape(shared, session, &record)?;
    check_identity(&session.leg().identity, &record)?;
    let superblock = read(session, &layout).await?;
    check_owner(shared, &superblock, &record)?;
    if superblock.consistency == Consistency::Consistent {
        let why = "what was written there is given up";
        if let Some(asked) = shared.source(leg).before_overwrite(why) {
            asked.await.map_err(|why| Refused::new(LegEvent::Failed, why))?;
        }
    }
    guard::take(session, superblock.uuid, superblock.leg).await?;
    // Here first: until the leg is told, it is refused again after a power cut.
    shared.legs().all_differ(leg);
    let known = superblock.sequence;
    shared.books().taken_back(leg, known, &**shared.host()).await?;
    let redo_bytes = redo_bytes(shared, session);
    let stamp = 0;
    let (whole, first, looked_at) = (true, true, shared.host().now());
    let mut found = Found {
        layout,
        superblock: superblock.clone(),
        stamp,
        whole,
        first,
        redo_bytes,
        looked_at,
    };
    let lineage = shared.books().lineage();
    let consistency = Consistency::InconsistentSince(0);
    let superblock = RemoteSuperblock { lineage, consistency, ..superblock };
    write(shared, session, &mut found, superblock).await?;
    Ok(())
}

/// A time of day for people.
fn utc(time: WallMs) -> String {
    let (days, second) = (time.0 / 86_400_000, time.0 / 1000 % 86_400);
    let (year, month, day) = crate::civil(days as i64);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_people_read_them() {
        assert_eq!(utc(WallMs(0)), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(WallMs(951_827_696_789)), "2000-02-29 12:34:56 UTC");
        assert_eq!(utc(WallMs(1_795_579_199_000)), "2026-11-25 03:59:59 UTC");
    }
}
