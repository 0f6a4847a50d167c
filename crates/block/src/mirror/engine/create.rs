//! Makes a mirror of devices that are none yet. The metadata is written last: before that, nothing
//! on the local side has changed.

use std::sync::Arc;

use super::super::LEGS_MAX;
use super::super::bitmap::BitmapId;
use super::super::config::Config;
use super::super::error::MirrorError;
use super::super::generation::{GenerationId, Lineage};
use super::super::host::Host;
use super::super::layout::{LegLayout, LocalLayout, image_bytes};
use super::super::leg::LegEvent;
use super::super::link::{LegSource, OpenLeg};
use super::super::status::LegState;
use super::super::stopped::Stopped;
use super::super::store::{self, InitialBits, StoreError};
use super::super::superblock::{
    BlockFault, Consistency, LegId, LegRecord, LocalSuperblock, MirrorId, RemoteSuperblock, Role,
    Verified,
};
use super::guard;
use super::handshake::Refused;
use super::session::{Session, SessionDevice};
use super::signal::{Either, either};
use super::{CreateOptions, Parts, tail};
use crate::BlockError;

/// A leg that is about to become one.
struct NewLeg {
    name: String,
    session: Arc<Session>,
}

/// Formats metadata and legs.
pub(super) async fn create(
    parts: &Parts,
    config: &Config,
    options: CreateOptions,
) -> Result<(), MirrorError> {
    if parts.legs.is_empty() || parts.legs.len() > LEGS_MAX {
        let hint = "a mirror has 1 to 3";
        return Err(MirrorError::Legs { found: parts.legs.len(), expected: 1, hint });
    }
    check_metadata(parts, options).await?;
    let mut legs = Vec::new();
    for source in &parts.legs {
        legs.push(reach(&**source, parts, config).await?);
    }
    let superblock = plan(parts, config, &legs, options)?;
    for (leg, record) in legs.iter().zip(superblock.legs.iter().flatten()) {
        check_leg(leg, options).await?;
        leg.session.watched(reserve(leg, record, &superblock, options)).await?;
    }
    for (leg, record) in legs.iter().zip(superblock.legs.iter().flatten()) {
        let formatted = format_leg(leg, record, &superblock, options, &*parts.host);
        let formatted = leg.session.watched(formatted).await;
        formatted.map_err(|source| MirrorError::device(&leg.name, source))?;
    }
    let bits =
        if options.skip_initial_copy { InitialBits::NoneDiffers } else { InitialBits::AllDiffer };
    let formatted = store::format(&parts.metadata, &superblock, bits).await;
    formatted.map_err(|error| MirrorError::store("the mirror's metadata", error))
}

/// What is on the metadata device already.
async fn check_metadata(parts: &Parts, options: CreateOptions) -> Result<(), MirrorError> {
    let place = "the metadata device".to_owned();
    let found = match store::read_superblock(&parts.metadata).await {
        Ok(superblock) => Ok(superblock.uuid),
        Err(StoreError::Fault(fault)) => Err(fault),
        Err(error) => return Err(MirrorError::store(place, error)),
    };
    may_overwrite(place, found, options)
}

fn may_overwrite(
    place: String,
    found: Result<MirrorId, BlockFault>,
    options: CreateOptions,
) -> Result<(), MirrorError> {
    let found = match found {
        _ if options.force => return Ok(()),
        Err(fault) if fault.is_blank() => return Ok(()),
        Err(fault) => fault.to_string(),
        Ok(uuid) => format!("mirror {uuid}"),
    };
    Err(MirrorError::Exists { place, found })
}

async fn reach(
    source: &dyn LegSource,
    parts: &Parts,
    config: &Config,
) -> Result<NewLeg, MirrorError> {
    let name = source.name();
    let late = parts.host.sleep(config.remote_timeout);
    let open: OpenLeg = match either(source.connect(), late).await {
        Either::Left(open) => open.map_err(|source| MirrorError::device(&name, source))?,
        Either::Right(()) => {
            let why = format!("not reached within {:.1} s", config.remote_timeout.as_secs_f64());
            return Err(MirrorError::device(name, BlockError::Unreachable(why)));
        }
    };
    let session = Session::new(open, parts.host.clone(), config.remote_timeout);
    let local = parts.local.info().block_size;
    let found = session.info().block_size;
    if found > local {
        let found =
            format!("its blocks of {found} bytes are larger than the local ones of {local}");
        return Err(MirrorError::Metadata { what: name, found });
    }
    Ok(NewLeg { name, session })
}

/// What the metadata will say.
fn plan(
    parts: &Parts,
    config: &Config,
    legs: &[NewLeg],
    options: CreateOptions,
) -> Result<LocalSuperblock, MirrorError> {
    let sizes: Vec<u64> = legs.iter().map(|leg| leg.session.info().size).collect();
    let what = |error| MirrorError::metadata("the devices", &error);
    let size = image_bytes(parts.local.info().size, &sizes, 0).map_err(what)?;
    LocalLayout::new(size)
        .and_then(|layout| layout.check(parts.metadata.info().size))
        .map_err(what)?;
    let host = &*parts.host;
    let generation = GenerationId(host.random());
    let mut records = [const { None }; LEGS_MAX];
    for (record, leg) in records.iter_mut().zip(legs) {
        let state = if options.skip_initial_copy { LegState::InSync } else { LegState::Copying };
        let redo_bytes = config.redo_bytes_on(leg.session.info().size, size);
        *record = Some(LegRecord { redo_bytes, ..new_record(leg, state, generation, host) });
    }
    Ok(LocalSuperblock {
        uuid: MirrorId(host.random()),
        sequence: 2,
        size,
        role: Role::Primary,
        clean: true,
        ring_from: 0,
        epoch_max: 0,
        lineage: Lineage::new(generation),
        legs: records,
    })
}

/// What is known of a leg that is about to become one.
fn new_record(
    leg: &NewLeg,
    state: LegState,
    generation: GenerationId,
    host: &dyn Host,
) -> LegRecord {
    LegRecord {
        id: LegId(host.random()),
        identity: leg.session.leg().identity.clone(),
        name: leg.name.clone(),
        state,
        base: generation,
        acked_epoch: 0,
        superblock_sequence: 0,
        bitmap: BitmapId(host.random()),
        leg_bytes: leg.session.info().size,
        redo_bytes: 0,
        verified: Verified::default(),
    }
}

/// Makes a device a leg of a mirror that does not run: its first copy comes when that does.
pub(super) async fn add_leg(
    parts: &Parts,
    config: &Config,
    source: &dyn LegSource,
    options: CreateOptions,
) -> Result<(), MirrorError> {
    let (local, metadata) = (parts.local.clone(), parts.metadata.clone());
    let stopped = Stopped { local, metadata, host: parts.host.clone() };
    let mut books = stopped.open().await?;
    let Some(place) = books.superblock.legs.iter().position(Option::is_none) else {
        let hint = "a mirror has 1 to 3";
        return Err(MirrorError::Legs { found: LEGS_MAX + 1, expected: LEGS_MAX, hint });
    };
    let leg = reach(source, parts, config).await?;
    let (size, found) = (books.superblock.size, leg.session.info().size);
    let fits = layout_of(&leg)?.check(size, found);
    fits.map_err(|error| MirrorError::metadata(&leg.name, &error))?;
    let generation = books.superblock.lineage.current();
    let record = LegRecord {
        redo_bytes: config.redo_bytes_on(found, size),
        ..new_record(&leg, LegState::Copying, generation, &*parts.host)
    };
    check_leg(&leg, options).await?;
    leg.session.watched(reserve(&leg, &record, &books.superblock, options)).await?;
    let formatted =
        format_leg(&leg, &record, &books.superblock, CreateOptions::default(), &*parts.host);
    let formatted = leg.session.watched(formatted).await;
    formatted.map_err(|source| MirrorError::device(&leg.name, source))?;
    // Its pages have a name that was never used: everything differs.
    books.commit(|superblock| superblock.legs[place] = Some(record)).await
}

async fn check_leg(leg: &NewLeg, options: CreateOptions) -> Result<(), MirrorError> {
    let layout = layout_of(leg)?;
    let device = SessionDevice(leg.session.clone());
    let found = leg.session.watched(tail::read(&device, &layout)).await;
    let found = found.map_err(|source| MirrorError::device(&leg.name, source))?;
    may_overwrite(leg.name.clone(), found.map(|superblock| superblock.uuid), options)
}

/// Before anything is written to it.
async fn reserve(
    leg: &NewLeg,
    record: &LegRecord,
    superblock: &LocalSuperblock,
    options: CreateOptions,
) -> Result<(), MirrorError> {
    if options.force {
        let taken = guard::take(&leg.session, superblock.uuid, record.id).await;
        return taken.map_err(|source| MirrorError::device(&leg.name, source));
    }
    match guard::hold(&leg.session, superblock.uuid, record.id).await {
        Ok(_) => Ok(()),
        Err(Refused { event: LegEvent::TakenOver, .. }) => {
            Err(MirrorError::Reserved { name: leg.name.clone() })
        }
        Err(Refused { message, .. }) => {
            Err(MirrorError::Metadata { what: leg.name.clone(), found: message })
        }
    }
}

fn layout_of(leg: &NewLeg) -> Result<LegLayout, MirrorError> {
    LegLayout::new(leg.session.info().size, 0)
        .map_err(|error| MirrorError::metadata(&leg.name, &error))
}

async fn format_leg(
    leg: &NewLeg,
    record: &LegRecord,
    superblock: &LocalSuperblock,
    options: CreateOptions,
    host: &dyn Host,
) -> crate::Result<()> {
    let layout = LegLayout::new(record.leg_bytes, record.redo_bytes);
    let layout = layout.map_err(|error| BlockError::Medium(std::io::Error::other(error)))?;
    let consistency = if options.skip_initial_copy {
        Consistency::Consistent
    } else {
        Consistency::InconsistentSince(0)
    };
    let device = SessionDevice(leg.session.clone());
    tail::erase(&device, &layout).await?;
    let remote = RemoteSuperblock {
        uuid: superblock.uuid,
        sequence: 1,
        leg: record.id,
        lineage: superblock.lineage.clone(),
        data_bytes: superblock.size,
        redo_bytes: record.redo_bytes,
        consistency,
        writer: String::new(),
        lease: host.wall_clock().into(),
    };
    tail::write(&device, &layout, &remote).await
}
