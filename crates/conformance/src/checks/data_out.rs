//! Solicited writes (RFC 7143 §11.7, §11.8): R2Ts, bursts, residuals, tags that nobody gave.

use iscsi_proto::ids::Ttt;
use iscsi_proto::pdu::{Pdu, Residual};

use super::{Check, writing};
use crate::context::Context;
use crate::io::{Done, pattern};
use crate::offer::Offer;
use crate::session::{Event, Session};
use crate::verdict::{Stop, Verdict, ensure, require};

pub(super) const CHECKS: &[Check] = &[
    writing("data-out.r2t-sequence", "11.8", r2t_sequence),
    writing("data-out.r2t-max-burst", "11.8.4", r2t_max_burst),
    writing("data-out.outstanding-r2ts", "13.17", outstanding_r2ts),
    writing("data-out.offset-outside-r2t", "11.7.5", offset_outside_r2t),
    writing("data-out.unknown-tag", "11.7.4", unknown_tag),
    writing("data-out.residual-underflow", "11.4.5.1", residual_underflow),
    writing("data-out.awaits-all-data", "11.8", awaits_all_data),
];

/// All data by R2T, in bursts of two units.
pub(super) fn solicited(context: &Context) -> Offer {
    Offer::leading()
        .with("ImmediateData", "No")
        .with("InitialR2T", "Yes")
        .with("MaxBurstLength", 2 * context.unit())
        .with("FirstBurstLength", 2 * context.unit())
}

/// What was written is there.
pub(super) fn read_back(session: &mut Session<'_>, unit: u32, data: &[u8]) -> Result<(), Stop> {
    let context = session.context;
    let blocks = data.len() as u32 / context.block;
    let found = session.read_all(0, context.scratch(unit), blocks)?;
    ensure(found == data, || {
        let at = found.iter().zip(data).position(|(one, other)| one != other).unwrap_or(0);
        format!("what was written is not what is read, from byte {at} on")
    })
}

/// Writes eight units at the start of the area and reads them back.
fn write(session: &mut Session<'_>, seed: u64) -> Result<Done, Stop> {
    let context = session.context;
    let data = pattern(seed, 8 * context.unit());
    let itt = session.write(0, context.scratch(0), data.len() as u32)?;
    let done = session.finish_write(0, itt, &data)?.good()?;
    read_back(session, 0, &data)?;
    Ok(done)
}

fn r2t_sequence(context: &Context) -> Verdict {
    let mut session = Session::open(context, solicited(context))?;
    let done = write(&mut session, 1)?;
    let mut offset = 0;
    for (number, r2t) in done.r2ts.iter().enumerate() {
        ensure(r2t.r2t_sn.0 == number as u32, || format!("R2T {number} has R2TSN {}", r2t.r2t_sn))?;
        ensure(r2t.ttt != Ttt::NONE, || format!("R2T {number} has the reserved tag"))?;
        ensure(r2t.buffer_offset == offset, || {
            format!("R2T {number} wants {}, the one before ended at {offset}", r2t.buffer_offset)
        })?;
        offset += r2t.desired_data_transfer_length;
    }
    ensure(offset == 8 * context.unit(), || format!("R2Ts asked for {offset} bytes in all"))?;
    session.close()?;
    Ok(format!("{} R2Ts in order", done.r2ts.len()))
}

fn r2t_max_burst(context: &Context) -> Verdict {
    let mut session = Session::open(context, solicited(context))?;
    let limit = session.agreed.max_burst;
    let done = write(&mut session, 2)?;
    for r2t in &done.r2ts {
        let length = r2t.desired_data_transfer_length;
        ensure((1..=limit).contains(&length), || {
            format!("an R2T for {length} bytes, MaxBurstLength is {limit}")
        })?;
    }
    session.close()?;
    Ok(format!("at most {limit} bytes each"))
}

/// R2Ts that may be there before any is answered.
fn outstanding_r2ts(context: &Context) -> Verdict {
    for asked in [1, 3] {
        let offer = solicited(context).with("MaxOutstandingR2T", asked);
        let mut session = Session::open(context, offer)?;
        let limit = session.agreed.max_outstanding_r2t as usize;
        let data = pattern(3, 8 * context.unit());
        let itt = session.write(0, context.scratch(0), data.len() as u32)?;
        let first = session.next(0)?;
        session.barrier(0)?;
        let is_r2t = |pdu: &Pdu| matches!(pdu, Pdu::R2t(_));
        let stash = &mut session.links[0].stash;
        let count = 1 + stash.iter().filter(|arrived| is_r2t(&arrived.pdu)).count();
        stash.push_front(Box::new(first));
        ensure(count <= limit, || {
            format!("{count} R2Ts are outstanding, MaxOutstandingR2T is {limit}")
        })?;
        session.finish_write(0, itt, &data)?.good()?;
        session.close()?;
    }
    Ok("never more than agreed".into())
}

/// The task must not be done as if nothing had been wrong.
fn must_fail(session: &mut Session<'_>, what: &str) -> Verdict {
    loop {
        let event = session.event(0)?;
        return match event {
            Event::Pdu(ref arrived) => match &arrived.pdu {
                Pdu::R2t(_) => continue,
                Pdu::ScsiResponse(response) => {
                    ensure(response.status != 0 || response.response.0 != 0, || {
                        format!("{what}, and the command ended with GOOD")
                    })?;
                    Ok(event.to_string())
                }
                Pdu::Reject(_) => Ok(event.to_string()),
                _ => crate::verdict::failed(format!("{what}: {event}")),
            },
            Event::Closed => Ok("the connection was closed".into()),
            Event::Nothing => Ok("the data were dropped".into()),
        };
    }
}

fn offset_outside_r2t(context: &Context) -> Verdict {
    let mut session = Session::open(context, solicited(context))?;
    let data = pattern(4, 8 * context.unit());
    let itt = session.write(0, context.scratch(0), data.len() as u32)?;
    let r2t = session.next_r2t(0, itt)?;
    let length = r2t.desired_data_transfer_length as usize;
    // As many bytes as wanted, but beyond what was asked for.
    let offset = r2t.buffer_offset + r2t.desired_data_transfer_length;
    session.data_out(0, itt, r2t.ttt, offset, &data[..length])?;
    must_fail(&mut session, "data behind what the R2T wants")
}

/// Data for a transfer that nobody asked for must not end the command or reach the medium.
fn unknown_tag(context: &Context) -> Verdict {
    let mut session = Session::open(context, solicited(context))?;
    let (data, wrong) = (pattern(5, 2 * context.unit()), pattern(6, 2 * context.unit()));
    let itt = session.write(0, context.scratch(0), data.len() as u32)?;
    let r2t = session.next_r2t(0, itt)?;
    session.data_out(0, itt, Ttt(r2t.ttt.0 ^ 0x5555), 0, &wrong)?;
    let event = match session.event_within(0, context.timeout() / 4)? {
        Event::Pdu(arrived) if matches!(arrived.pdu, Pdu::ScsiResponse(ref r) if r.status == 0) => {
            return crate::verdict::failed("data with an unknown tag completed the command");
        }
        Event::Closed => return Ok("the connection was closed".into()),
        Event::Pdu(arrived) if matches!(arrived.pdu, Pdu::ScsiResponse(_)) => {
            return Ok(Event::Pdu(arrived).to_string());
        }
        event => event,
    };
    session.answer_r2t(0, &r2t, &data)?;
    session.finish_write(0, itt, &data)?.good()?;
    read_back(&mut session, 0, &data)?;
    session.close()?;
    Ok(format!("{event}; the right data count"))
}

/// A CDB for one unit with an expected length of two.
fn residual_underflow(context: &Context) -> Verdict {
    let mut session = Session::open(context, solicited(context))?;
    let data = pattern(7, 2 * context.unit());
    let mut command = session.write_command(0, context.scratch(0), context.unit());
    command.expected_data_transfer_length = 2 * context.unit();
    let itt = command.itt;
    session.send(0, command, &[])?;
    let done = session.finish_write(0, itt, &data)?;
    let expected = Residual::Underflow(context.unit());
    require(done.status == 0, || {
        format!("the target refuses such a command: {}", done.describe())
    })?;
    ensure(done.residual == expected, || {
        format!("residual {:?}, not {expected:?}", done.residual)
    })?;
    session.close()?;
    Ok(format!("{expected:?}"))
}

fn awaits_all_data(context: &Context) -> Verdict {
    let mut session = Session::open(context, solicited(context))?;
    let data = pattern(8, 2 * context.unit());
    let itt = session.write(0, context.scratch(0), data.len() as u32)?;
    let r2t = session.next_r2t(0, itt)?;
    session.ensure_silent(0, itt, "no data have been sent for the R2T")?;
    session.answer_r2t(0, &r2t, &data)?;
    session.finish_write(0, itt, &data)?.good()?;
    read_back(&mut session, 0, &data)?;
    session.close()?;
    Ok("the status comes after the data".into())
}
