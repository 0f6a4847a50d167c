//! The scratch area: saved before a check that writes, written back after it.

use bytes::Bytes;

use crate::context::{Context, Writes};
use crate::offer::Offer;
use crate::session::Session;
use crate::verdict::{Stop, during, ensure};

/// Units read or written by one command.
const STEP: u32 = 8;

/// What the area holds, unless nobody needs it.
pub(crate) fn save(context: &Context) -> Result<Option<Vec<Bytes>>, Stop> {
    if context.config.writes != Writes::Restoring {
        return Ok(None);
    }
    during("saving the scratch area", read(context)).map(Some)
}

fn read(context: &Context) -> Result<Vec<Bytes>, Stop> {
    let mut session = Session::open(context, Offer::leading())?;
    let mut content = Vec::new();
    for index in (0..context.scratch_units()).step_by(STEP as usize) {
        content.push(session.read_all(0, context.scratch(index), STEP * context.unit_blocks())?);
    }
    session.close()?;
    Ok(content)
}

/// Writes it back.
pub(crate) fn restore(context: &Context, saved: Option<Vec<Bytes>>) -> Result<(), Stop> {
    match saved {
        Some(saved) => during("RESTORING THE SCRATCH AREA", write(context, &saved)),
        None => Ok(()),
    }
}

fn write(context: &Context, saved: &[Bytes]) -> Result<(), Stop> {
    let mut session = Session::open(context, Offer::leading().with("ImmediateData", "No"))?;
    for (index, data) in (0..context.scratch_units()).step_by(STEP as usize).zip(saved) {
        let itt = session.write(0, context.scratch(index), data.len() as u32)?;
        let done = session.finish_write(0, itt, data)?;
        ensure(done.status == 0, || done.describe())?;
    }
    session.close()
}
