//! Command numbering (RFC 7143 §4.2.2.1): order of delivery, duplicates, the window. On one
//! connection and over several.

use iscsi_proto::ids::Itt;
use iscsi_proto::pdu::{ScsiCommand, TaskAttribute};
use iscsi_proto::serial::CmdSn;

use super::{Check, check, session_of, writing};
use crate::context::Context;
use crate::io::{GOOD, ILLEGAL_REQUEST, pattern};
use crate::offer::Offer;
use crate::session::{Event, Session};
use crate::verdict::{Stop, Verdict, during, ensure, failed, require, skipped};

pub(super) const CHECKS: &[Check] = &[
    check("order.gap-holds-back", "4.2.2.1", gap_holds_back),
    check("order.gap-over-two-connections", "4.2.2.1", gap_over_two_connections),
    writing("order.write-before-read", "4.2.2.1", write_before_read),
    check("order.duplicate-ignored", "4.2.2.1", duplicate_ignored),
    check("order.below-window-ignored", "4.2.2.1", below_window_ignored),
    check("order.beyond-window-ignored", "4.2.2.1", beyond_window_ignored),
    check("order.whole-window", "4.2.2.1", whole_window),
    check("order.window-never-shrinks", "4.2.2.1", window_never_shrinks),
    check("order.immediate-overtakes", "4.2.2.1", immediate_overtakes),
    check("order.statsn-consecutive", "4.2.2.2", statsn_consecutive),
    writing("order.flush-waits-for-data", "SAM-5 8.6", flush_waits_for_data),
    writing("order.flush-waits-over-two-connections", "SAM-5 8.6", flush_waits_over_two),
];

/// TEST UNIT READY with this CmdSN.
fn numbered(session: &mut Session<'_>, link: usize, cmd_sn: CmdSn) -> Result<Itt, Stop> {
    let kept = session.cmd_sn;
    let command = ScsiCommand { cmd_sn, ..session.command(link, [0; 16], 0) };
    session.cmd_sn = kept;
    let itt = command.itt;
    session.send(link, command, &[])?;
    Ok(itt)
}

fn gap_holds_back(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let first = session.cmd_sn;
    let second = numbered(&mut session, 0, first.next())?;
    session.ensure_silent(0, second, "the command before it has not been sent")?;
    ensure(session.exp_cmd_sn == first, || {
        format!("ExpCmdSN is {}, but CmdSN {first} has not been sent", session.exp_cmd_sn)
    })?;
    let one = numbered(&mut session, 0, first)?;
    session.finish(0, one)?.good()?;
    session.finish(0, second)?.good()?;
    session.cmd_sn = first.plus(2);
    session.close()?;
    Ok("held back until the gap was filled".into())
}

fn gap_over_two_connections(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, Offer::leading())?;
    let first = session.cmd_sn;
    let second = numbered(&mut session, 1, first.next())?;
    session.ensure_silent(1, second, "the command before it has not been sent on connection 0")?;
    let one = numbered(&mut session, 0, first)?;
    session.finish(0, one)?.good()?;
    session.finish(1, second)?.good()?;
    session.cmd_sn = first.plus(2);
    session.close()?;
    Ok("one order over both connections".into())
}

/// An ORDERED read overtakes an ORDERED write on the wire, and must see what it wrote.
fn write_before_read(context: &Context) -> Verdict {
    let mut session = session_of(context, 2, Offer::leading())?;
    let data = pattern(20, context.unit());
    require(session.agreed.immediate_data && session.links[0].send_max >= context.unit(), || {
        "no immediate data of one unit".into()
    })?;
    let mut write = session.write_command(0, context.scratch(0), context.unit());
    let mut read = session.read_command(1, context.scratch(0), context.unit_blocks());
    (write.attribute, read.attribute) = (TaskAttribute::ORDERED, TaskAttribute::ORDERED);
    let (written, seen) = (write.itt, read.itt);
    session.send(1, read, &[])?;
    session.ensure_silent(1, seen, "the write before it has not been sent")?;
    session.send(0, write, &data)?;
    session.finish_write(0, written, &data)?.good()?;
    let found = session.finish(1, seen)?.good()?.payload();
    ensure(found == data, || "the read did not see the write before it".into())?;
    session.close()?;
    Ok("the read saw the write".into())
}

/// A CmdSN that waits in the window already, under another tag.
fn duplicate_ignored(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let first = session.cmd_sn;
    let second = numbered(&mut session, 0, first.next())?;
    let twin = numbered(&mut session, 0, first.next())?;
    let one = numbered(&mut session, 0, first)?;
    session.finish(0, one)?.good()?;
    session.finish(0, second)?.good()?;
    session.ensure_silent(0, twin, "its CmdSN had been used, it must be ignored silently")?;
    session.cmd_sn = first.plus(2);
    session.close()?;
    Ok("ignored".into())
}

fn below_window_ignored(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    session.test_unit_ready(0)?.good()?;
    let below = CmdSn(session.exp_cmd_sn.0.wrapping_sub(1));
    let old = numbered(&mut session, 0, below)?;
    session.ensure_silent(0, old, "its CmdSN is below ExpCmdSN, it must be ignored silently")?;
    session.close()?;
    Ok("ignored".into())
}

fn beyond_window_ignored(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let outside = session.max_cmd_sn.plus(5000);
    let beyond = numbered(&mut session, 0, outside)?;
    session.ensure_silent(
        0,
        beyond,
        "its CmdSN is beyond MaxCmdSN, it must be ignored silently",
    )?;
    session.test_unit_ready(0)?.good()?;
    session.close()?;
    Ok("ignored".into())
}

/// Every CmdSN of the window is taken: all but the first are sent, then the first.
fn whole_window(context: &Context) -> Verdict {
    // Enough to be seen, not so many that a slow target takes minutes.
    const COMMANDS_MAX: i32 = 128;
    let mut session = Session::open(context, Offer::leading())?;
    let first = session.cmd_sn;
    let window = session.max_cmd_sn.since(first).min(COMMANDS_MAX - 1);
    ensure(window >= 0, || format!("MaxCmdSN {} leaves no room", session.max_cmd_sn))?;
    let mut tags = Vec::new();
    for step in 1..=window {
        tags.push(numbered(&mut session, 0, first.plus(step as u32))?);
    }
    tags.insert(0, numbered(&mut session, 0, first)?);
    let count = tags.len();
    for itt in tags {
        session.finish(0, itt)?.good()?;
    }
    session.cmd_sn = first.plus(count as u32);
    session.close()?;
    Ok(format!("{count} commands"))
}

fn window_never_shrinks(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let mut highest = session.max_cmd_sn;
    for _ in 0..16 {
        let itt = session.read(0, context.scratch(0), context.unit_blocks())?;
        session.finish(0, itt)?.good()?;
        let answer = session.barrier(0)?;
        ensure(!answer.max_cmd_sn.is_before(highest), || {
            format!("MaxCmdSN went from {highest} back to {}", answer.max_cmd_sn)
        })?;
        ensure(answer.max_cmd_sn.since(answer.exp_cmd_sn) >= -1, || {
            format!("MaxCmdSN {} is below ExpCmdSN {} - 1", answer.max_cmd_sn, answer.exp_cmd_sn)
        })?;
        highest = answer.max_cmd_sn;
    }
    session.close()?;
    Ok("never".into())
}

/// An immediate command is delivered at once, past a gap.
fn immediate_overtakes(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    let first = session.cmd_sn;
    let waiting = numbered(&mut session, 0, first.next())?;
    let kept = session.cmd_sn;
    let command = ScsiCommand { immediate: true, ..session.command(0, [0; 16], 0) };
    session.cmd_sn = kept;
    let itt = command.itt;
    session.send(0, command, &[])?;
    session.finish(0, itt)?.good()?;
    ensure(session.exp_cmd_sn == first, || {
        format!("ExpCmdSN went to {} by an immediate command", session.exp_cmd_sn)
    })?;
    let one = numbered(&mut session, 0, first)?;
    session.finish(0, one)?.good()?;
    session.finish(0, waiting)?.good()?;
    session.cmd_sn = first.plus(2);
    session.close()?;
    Ok("delivered past the gap".into())
}

fn statsn_consecutive(context: &Context) -> Verdict {
    let mut session = Session::open(context, Offer::leading())?;
    for _ in 0..8 {
        // Every kind of answer counts; the session compares each StatSN with the one before.
        session.test_unit_ready(0)?.good()?;
        session.barrier(0)?;
        session.read_all(0, context.scratch(0), context.unit_blocks())?;
    }
    session.close()?;
    Ok("one for each answer".into())
}

fn flush_waits_for_data(context: &Context) -> Verdict {
    flush_waits(context, Session::open(context, Offer::leading())?, 0)
}

fn flush_waits_over_two(context: &Context) -> Verdict {
    flush_waits(context, session_of(context, 2, Offer::leading())?, 1)
}

/// An ORDERED SYNCHRONIZE CACHE behind a write whose R2T is open: what it says of the write would
/// be a lie as long as the data are not there. It is answered when the write has ended, not before.
fn flush_waits(context: &Context, mut session: Session<'_>, link: usize) -> Verdict {
    let probe = session.flush_command(0);
    let itt = probe.itt;
    session.send(0, probe, &[])?;
    let done = session.finish(0, itt)?;
    if done.sense_codes().0 == ILLEGAL_REQUEST {
        return skipped(format!("SYNCHRONIZE CACHE: {}", done.describe()));
    }
    done.good()?;
    let data = pattern(21, context.unit());
    let written = session.write(0, context.scratch(0), context.unit())?;
    let r2t = session.next_r2t(0, written)?;
    let flush = session.flush_command(link);
    let flushed = flush.itt;
    let flush = ScsiCommand { attribute: TaskAttribute::ORDERED, ..flush };
    session.send(link, flush, &[])?;
    let early = "an ORDERED SYNCHRONIZE CACHE was answered before the older write had its data";
    during(
        early,
        session.ensure_silent(link, flushed, "the data of the write have not been sent"),
    )?;
    // A slow answer would be as wrong as a quick one.
    let patience = context.timeout().min(std::time::Duration::from_millis(300));
    if let Event::Pdu(arrived) = session.event_within(link, patience)? {
        return failed(format!("{early}: {}", Event::Pdu(arrived)));
    }
    session.answer_r2t(0, &r2t, &data)?;
    let first = session.next(0)?;
    ensure(first.header.itt() == written, || {
        format!("{} of another command came before the write had ended", first.header.opcode())
    })?;
    let status = match &first.pdu {
        iscsi_proto::pdu::Pdu::ScsiResponse(response) => response.status,
        _ => return failed(format!("{} ended the write", first.header.opcode())),
    };
    ensure(status == GOOD, || format!("the write ended with status {status:#04x}"))?;
    session.finish(link, flushed)?.good()?;
    session.close()?;
    Ok("answered after the write".into())
}
