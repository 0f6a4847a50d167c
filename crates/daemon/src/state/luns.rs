//! The units of a target in a reload: those that go, come and grow, and storage that stays open
//! through it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use block::BlockDevice;
use tracing::warn;

use super::{Changes, RunningTarget};
use crate::config::{Backing, LunSection, Problem};
use crate::lun::{RunningLun, Storage, opens_alike};
use crate::pair::kept_at;

/// What is said of a unit that is configured and not served.
pub(super) fn not_served(target_name: &str, number: u16, why: &dyn std::fmt::Display) -> String {
    format!("{target_name} LUN {number}: not served: {why}")
}

/// Removes, adds and grows the LUNs of a target that is being served. Those that could not be added
/// after all are taken out of `now`, so that the next reload tries them again, and told.
pub(super) fn change_luns(
    name: &str,
    before: &BTreeMap<u16, RunningLun>,
    now: &mut RunningTarget,
    state_directory: Option<&Path>,
    changes: &mut Changes,
) -> Vec<String> {
    let same = |number: &u16, lun: &RunningLun| {
        now.luns.get(number).is_some_and(|running| Arc::ptr_eq(&running.stats, &lun.stats))
    };
    let mut removed = Vec::new();
    for (number, lun) in before {
        if same(number, lun) {
            if lun.grow() {
                let _ = now.scsi.capacity_changed(*number); // it is there
                let size = lun.stats.info().size;
                changes.note(format!("{name} LUN {number}: grown to {size} bytes"));
            }
            continue;
        }
        removed.push(*number);
        let what = if now.luns.contains_key(number) { "replaced" } else { "removed" };
        changes.note(format!("{name} LUN {number}: {what}"));
    }
    let is_new = |number: &u16, lun: &RunningLun| {
        before.get(number).is_none_or(|before| !Arc::ptr_eq(&before.stats, &lun.stats))
    };
    let new: Vec<_> = now.luns.iter().filter(|(number, lun)| is_new(number, lun)).collect();
    let added = new.iter().map(|(number, lun)| {
        lun.grow();
        let kept_at = kept_at(state_directory, now.pair.as_deref(), name, **number);
        (**number, lun.device(), lun.options(kept_at))
    });
    let refused = now.scsi.change_luns(&removed, added.collect());
    let is_refused = |number: &u16| refused.iter().any(|(refused, _)| refused == number);
    let gone = removed.iter().filter_map(|number| before.get(number).map(|lun| (number, lun)));
    gone.for_each(|(number, lun)| flush_later(name, *number, lun));
    for (number, lun) in new {
        if is_refused(number) {
            continue;
        }
        if let Some(mirror) = lun.mirror() {
            mirror.serve_as(name, now.scsi.clone(), *number);
        }
        if let Some(volume) = lun.volume() {
            volume.serve_as(now.scsi.clone(), *number);
        }
        if !before.contains_key(number) {
            changes.note(format!("{name} LUN {number}: added"));
        }
    }
    now.luns.retain(|number, _| !is_refused(number));
    // The trial went well, so what they keep their reservations in failed in between.
    refused.iter().map(|(number, why)| not_served(name, *number, why)).collect()
}

/// Makes stable what initiators cannot flush any more.
pub(super) fn flush_later(target_name: &str, number: u16, lun: &RunningLun) {
    if lun.mirror().is_some() || lun.volume().is_some() {
        return; // It is closed in order when nobody has it any more.
    }
    let (device, target_name) = (lun.device(), target_name.to_owned());
    tokio::spawn(async move {
        if let Err(error) = device.flush().await {
            warn!(target_name, lun = number, %error, "the LUN that was removed is not flushed");
        }
    });
}

/// Storage for a LUN, if it is open already.
pub(super) fn open_already(
    section: &LunSection,
    before: Option<&RunningLun>,
    opened: &[(LunSection, Storage)],
) -> Result<Option<Storage>, Problem> {
    if let Backing::Path(_) | Backing::Mirror(_) | Backing::Volume(_) = section.backing
        && let Some((known, storage)) = opened.iter().find(|(k, _)| k.backing == section.backing)
    {
        if !opens_alike(known, section) {
            return Err(section.place.problem(
                "read_only, block_size and direct cannot change while the file is open: \
                 remove the LUN, reload, and add it again",
            ));
        }
        return Ok(Some(storage.clone()));
    }
    if let (Backing::Memory(_), Some(before)) = (&section.backing, before)
        && matches!(before.section.backing, Backing::Memory(_))
    {
        if !opens_alike(&before.section, section) {
            return Err(section.place.problem(
                "memory cannot be opened in another way without losing what is in it: \
                 remove the LUN, reload, and add it again",
            ));
        }
        return Ok(Some(before.storage.clone()));
    }
    Ok(None)
}
