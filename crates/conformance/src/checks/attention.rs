//! Unit attentions over connections that are lost (SAM-5 §5.14, §6.3; RFC 7143 §6.3.5.1). An
//! initiator that hears of a power-on writes again what was not flushed; one that does not has lost
//! it. So the power-on has to reach it, however often the way there breaks.

use super::{Check, check};
use crate::context::Context;
use crate::io::{GOOD, UNIT_ATTENTION};
use crate::offer::Offer;
use crate::session::Session;
use crate::verdict::{Stop, Verdict, ensure, failed, require};

pub(super) const CHECKS: &[Check] = &[
    check("attention.power-on-not-replaced", "SAM-5 5.14", power_on_not_replaced),
    check("attention.told-until-acknowledged", "SAM-5 5.14", told_until_acknowledged),
];

/// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED.
const POWER_ON: u16 = 0x2900;

/// The unit attention that the next command on the unit is told, if there is one. The answer is not
/// acknowledged: nothing is sent after it.
fn attention(session: &mut Session<'_>) -> Result<Option<u16>, Stop> {
    let done = session.test_unit_ready(0)?;
    match done.sense_codes() {
        (UNIT_ATTENTION, code) => Ok(Some(code)),
        _ if done.status == GOOD => Ok(None),
        _ => failed(format!("TEST UNIT READY: {}", done.describe())),
    }
}

/// Skips where a port that is new is not told of the power-on at all: that is when there is
/// something to lose.
fn require_power_on(context: &Context) -> Result<(), Stop> {
    let mut session = Session::log_in(context, context.new_isid(), &Offer::leading())?;
    let told = attention(&mut session)?;
    session.close()?;
    require(told == Some(POWER_ON), || {
        let what = told.map_or("nothing".into(), |code| format!("{code:#06x}"));
        format!("a new initiator port is told {what}, not 0x2900 (power on)")
    })
}

/// A connection breaks before the port was told anything. The loss of the nexus must not take the
/// place of the power-on.
fn power_on_not_replaced(context: &Context) -> Verdict {
    require_power_on(context)?;
    let isid = context.new_isid();
    drop(Session::log_in(context, isid, &Offer::leading())?);
    expect_power_on(context, isid, "after a connection that broke before its first command")
}

/// A connection breaks with the answer that tells of the power-on: nobody knows whether it arrived.
fn told_until_acknowledged(context: &Context) -> Verdict {
    require_power_on(context)?;
    let isid = context.new_isid();
    for _ in 0..2 {
        let mut session = Session::log_in(context, isid, &Offer::leading())?;
        let told = attention(&mut session)?;
        ensure(told == Some(POWER_ON), || {
            wrong(told, "after an answer that was not acknowledged")
        })?;
    }
    expect_power_on(context, isid, "after two answers that were not acknowledged")
}

fn expect_power_on(context: &Context, isid: iscsi_proto::ids::Isid, when: &str) -> Verdict {
    let mut session = Session::log_in(context, isid, &Offer::leading())?;
    let told = attention(&mut session)?;
    ensure(told == Some(POWER_ON), || wrong(told, when))?;
    session.until_ready()?;
    session.close()?;
    Ok(format!("told {when}"))
}

fn wrong(told: Option<u16>, when: &str) -> String {
    let what = told.map_or("nothing".into(), |code| format!("{code:#06x}"));
    format!("{when} the port is told {what}, not 0x2900 (power on)")
}
