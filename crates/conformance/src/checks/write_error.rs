//! Errors of writes that were acknowledged (SBC-3 §4.16, SPC-4 §4.5.1): a flush must not say that
//! all is well when the data it is about are gone.

use super::{Check, writing};
use crate::context::Context;
use crate::io::{GOOD, ILLEGAL_REQUEST, pattern};
use crate::offer::Offer;
use crate::session::Session;
use crate::verdict::{Verdict, ensure, skipped};

pub(super) const CHECKS: &[Check] = &[writing("errors.flush-is-true", "SBC-3 4.16", flush_is_true)];

/// Bit of byte 1: stable before it is answered.
const FUA: u8 = 0x08;

/// Plain writes that are acknowledged, then one with FUA. If that fails, for want of space say, the
/// plain ones before it may be lost with it: either the flush says so, or the data are there.
fn flush_is_true(context: &Context) -> Verdict {
    const PLAIN: u32 = 16;
    let mut session = Session::open(context, Offer::leading())?;
    let mut failure = None;
    for index in 0..=PLAIN {
        let data = pattern(u64::from(index) + 40, context.unit());
        let mut write = session.write_command(0, context.scratch(index), context.unit());
        if index == PLAIN {
            write.cdb[1] |= FUA;
        }
        let itt = write.itt;
        session.send(0, write, &[])?;
        let done = session.finish_write(0, itt, &data)?;
        if index == PLAIN && done.sense_codes().0 == ILLEGAL_REQUEST {
            return skipped(format!("the target takes no write with FUA: {}", done.describe()));
        }
        if done.status != GOOD {
            failure = Some((index, done.describe()));
            break;
        }
    }
    let Some((failed_at, what)) = failure else {
        session.close()?;
        return skipped("every write succeeds: a volume whose storage is full would show it");
    };
    let flush = session.flush_command(0);
    let itt = flush.itt;
    session.send(0, flush, &[])?;
    let flushed = session.finish(0, itt)?;
    if flushed.status != GOOD {
        return Ok(format!("{what}, and the flush says so: {}", flushed.describe()));
    }
    for index in 0..failed_at {
        let found = session.read_all(0, context.scratch(index), context.unit_blocks())?;
        ensure(found == pattern(u64::from(index) + 40, context.unit()), || {
            format!("{what}; then a flush was answered GOOD, and write {index} is not there")
        })?;
    }
    session.close()?;
    Ok(format!("{what}; what was acknowledged before is there"))
}
