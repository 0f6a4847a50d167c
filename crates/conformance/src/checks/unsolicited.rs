//! Immediate and unsolicited data (RFC 7143 §4.2.5.2, §13.10, §13.11, §13.14).

use iscsi_proto::ids::Ttt;
use iscsi_proto::pdu::Pdu;

use super::data_out::read_back;
use super::{Check, writing};
use crate::context::Context;
use crate::io::pattern;
use crate::offer::Offer;
use crate::session::{Event, Session};
use crate::verdict::{Stop, Verdict, ensure, failed, require};

pub(super) const CHECKS: &[Check] = &[
    writing("unsolicited.immediate", "13.11", immediate),
    writing("unsolicited.immediate-then-r2t", "13.11", immediate_then_r2t),
    writing("unsolicited.data-out", "13.10", data_out),
    writing("unsolicited.immediate-and-data-out", "13.10", immediate_and_data_out),
    writing("unsolicited.short-of-first-burst", "13.14", short_of_first_burst),
    writing("unsolicited.first-burst-exceeded", "13.14", first_burst_exceeded),
    writing("unsolicited.immediate-not-agreed", "13.11", immediate_not_agreed),
    writing("unsolicited.data-out-not-agreed", "13.10", data_out_not_agreed),
];

/// First and other bursts of two units.
fn offer(context: &Context, initial_r2t: &str, immediate: &str) -> Offer {
    Offer::leading()
        .with("InitialR2T", initial_r2t)
        .with("ImmediateData", immediate)
        .with("FirstBurstLength", 2 * context.unit())
        .with("MaxBurstLength", 2 * context.unit())
}

/// A session in which unsolicited data are allowed as asked.
fn open<'a>(context: &'a Context, initial_r2t: bool, immediate: bool) -> Result<Session<'a>, Stop> {
    let word = |yes: bool| if yes { "Yes" } else { "No" };
    let session = Session::open(context, offer(context, word(initial_r2t), word(immediate)))?;
    let agreed = &session.agreed;
    require(initial_r2t || !agreed.initial_r2t, || "InitialR2T=No was not granted".into())?;
    require(!immediate || agreed.immediate_data, || "ImmediateData=Yes was not granted".into())?;
    require(agreed.first_burst >= 2 * context.unit(), || {
        format!("FirstBurstLength is {}", agreed.first_burst)
    })?;
    Ok(session)
}

/// Writes `units` with so many bytes in the command and behind it, the rest by R2T.
fn write(
    session: &mut Session<'_>,
    units: u32,
    immediate: u32,
    unsolicited: u32,
) -> Result<String, Stop> {
    let context = session.context;
    let data = pattern(u64::from(units + immediate + unsolicited), units * context.unit());
    let sent = (immediate + unsolicited) as usize;
    require(session.links[0].send_max >= immediate, || {
        format!("MaxRecvDataSegmentLength of the target is {}", session.links[0].send_max)
    })?;
    let mut command = session.write_command(0, context.scratch(0), data.len() as u32);
    command.is_final = unsolicited == 0;
    let itt = command.itt;
    session.send(0, command, &data[..immediate as usize])?;
    if unsolicited > 0 {
        let piece = &data[immediate as usize..sent];
        session.data_out(0, itt, Ttt::NONE, immediate, piece)?;
    }
    let done = session.finish_write(0, itt, &data)?.good()?;
    let first = done.r2ts.first().map(|r2t| r2t.buffer_offset as usize);
    let expected = (sent < data.len()).then_some(sent);
    ensure(first == expected, || {
        format!("{sent} of {} bytes were sent; the first R2T wants {first:?}", data.len())
    })?;
    read_back(session, 0, &data)?;
    Ok(format!("{sent} bytes unasked, {} R2Ts", done.r2ts.len()))
}

fn immediate(context: &Context) -> Verdict {
    let mut session = open(context, true, true)?;
    let said = write(&mut session, 1, context.unit(), 0)?;
    session.close()?;
    Ok(said)
}

fn immediate_then_r2t(context: &Context) -> Verdict {
    let mut session = open(context, true, true)?;
    let said = write(&mut session, 5, context.unit(), 0)?;
    session.close()?;
    Ok(said)
}

fn data_out(context: &Context) -> Verdict {
    let mut session = open(context, false, false)?;
    let said = write(&mut session, 6, 0, 2 * context.unit())?;
    session.close()?;
    Ok(said)
}

fn immediate_and_data_out(context: &Context) -> Verdict {
    let mut session = open(context, false, true)?;
    let said = write(&mut session, 6, context.unit(), context.unit())?;
    session.close()?;
    Ok(said)
}

/// Less than allowed, with F: the rest is for R2Ts. (Where InitialR2T is No the RFC wants all of
/// the first burst; immediate data alone may always be less.)
fn short_of_first_burst(context: &Context) -> Verdict {
    let mut session = open(context, true, true)?;
    let said = write(&mut session, 4, 512.min(context.unit()), 0)?;
    session.close()?;
    Ok(said)
}

/// Anything but GOOD, and nothing but an end to it.
fn must_not_be_good(session: &mut Session<'_>, what: &str) -> Verdict {
    let event = session.event(0)?;
    match &event {
        Event::Pdu(arrived) => match &arrived.pdu {
            Pdu::ScsiResponse(response) if response.status == 0 && response.response.0 == 0 => {
                failed(format!("{what}, and the command ended with GOOD"))
            }
            Pdu::ScsiResponse(_) | Pdu::Reject(_) => Ok(event.to_string()),
            _ => failed(format!("{what}, and the target goes on with {event}")),
        },
        Event::Closed => Ok("the connection was closed".into()),
        Event::Nothing => failed(format!("{what}, and nothing comes of it")),
    }
}

fn first_burst_exceeded(context: &Context) -> Verdict {
    let mut session = open(context, false, false)?;
    let limit = session.agreed.first_burst;
    let length = limit.next_multiple_of(context.unit()) + 2 * context.unit();
    let data = pattern(9, length);
    let mut command = session.write_command(0, context.scratch(0), length);
    command.is_final = false;
    let itt = command.itt;
    session.send(0, command, &[])?;
    session.data_out(0, itt, Ttt::NONE, 0, &data)?;
    must_not_be_good(
        &mut session,
        &format!("{length} bytes unsolicited, FirstBurstLength is {limit}"),
    )
}

fn immediate_not_agreed(context: &Context) -> Verdict {
    let mut session = Session::open(context, offer(context, "Yes", "No"))?;
    let data = pattern(10, context.unit());
    let command = session.write_command(0, context.scratch(0), data.len() as u32);
    session.send(0, command, &data)?;
    must_not_be_good(&mut session, "immediate data with ImmediateData=No")
}

fn data_out_not_agreed(context: &Context) -> Verdict {
    let mut session = Session::open(context, offer(context, "Yes", "No"))?;
    let data = pattern(11, context.unit());
    let mut command = session.write_command(0, context.scratch(0), data.len() as u32);
    command.is_final = false;
    let itt = command.itt;
    session.send(0, command, &[])?;
    session.data_out(0, itt, Ttt::NONE, 0, &data)?;
    must_not_be_good(&mut session, "unsolicited Data-Out with InitialR2T=Yes")
}
