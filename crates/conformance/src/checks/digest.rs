//! Digests (RFC 7143 §7.8, §11.2.3, §13.1): agreed, kept, and damaged.

use iscsi_proto::ids::{Lun, Ttt};
use iscsi_proto::pdu::{NopOut, Pdu, RejectReason};

use super::{Check, check, growing, writing};
use crate::context::Context;
use crate::io::pattern;
use crate::offer::Offer;
use crate::session::{Event, Session};
use crate::verdict::{Stop, Verdict, ensure, failed, require};

pub(super) const CHECKS: &[Check] = &[
    check("digest.header", "13.1", header),
    check("digest.data", "13.1", data),
    writing("digest.both", "13.1", both),
    check("digest.per-connection", "13.1", per_connection),
    check("digest.header-error", "7.8", header_error),
    check("digest.data-error-on-ping", "7.8", data_error_on_ping),
    writing("digest.data-error-on-immediate-data", "7.8", data_error_on_immediate_data),
    writing("digest.data-error-at-level-0", "7.8", data_error_at_level_0),
];

/// A session with these digests, or a reason to skip.
pub(super) fn with_digests<'a>(
    context: &'a Context,
    header: bool,
    data: bool,
    offer: Offer,
) -> Result<Session<'a>, Stop> {
    let kind = |on: bool| if on { "CRC32C" } else { "None" };
    let offer = offer.with("HeaderDigest", kind(header)).with("DataDigest", kind(data));
    let session = Session::open(context, offer)?;
    let framing = session.agreed.framing;
    require(framing.header_digest == header && framing.data_digest == data, || {
        "CRC32C was not granted".into()
    })?;
    Ok(session)
}

/// The framer checks every digest of the target's.
fn exchange(mut session: Session<'_>) -> Verdict {
    let context = session.context;
    session.read_all(0, context.scratch(0), 4 * context.unit_blocks())?;
    session.barrier(0)?;
    session.close()?;
    Ok("every PDU fits its digest".into())
}

fn header(context: &Context) -> Verdict {
    exchange(with_digests(context, true, false, Offer::leading())?)
}

fn data(context: &Context) -> Verdict {
    exchange(with_digests(context, false, true, Offer::leading())?)
}

/// Padding counts: a ping of odd length, and a write.
fn both(context: &Context) -> Verdict {
    let mut session = with_digests(context, true, true, super::data_out::solicited(context))?;
    let request = ping(&mut session);
    let odd = pattern(50, 13);
    session.send(0, request, &odd)?;
    let answer = session.next(0)?;
    ensure(answer.data == odd, || "a ping of 13 bytes came back changed".into())?;
    let data = pattern(51, 4 * context.unit());
    let itt = session.write(0, context.scratch(0), data.len() as u32)?;
    session.finish_write(0, itt, &data)?.good()?;
    super::data_out::read_back(&mut session, 0, &data)?;
    session.close()?;
    Ok("reads, writes, padding".into())
}

/// Digests are a connection's, not the session's.
fn per_connection(context: &Context) -> Verdict {
    let mut session = growing(context, Offer::leading())?;
    let offer = Offer::later().with("HeaderDigest", "CRC32C");
    let cid = iscsi_proto::ids::Cid(1);
    let logged_in = session.join(cid, &offer)?.established()?;
    require(logged_in.agreed.framing.header_digest, || "CRC32C was not granted".into())?;
    session.attach(cid, logged_in);
    for link in [0, 1] {
        session.read_all(link, context.scratch(0), context.unit_blocks())?;
    }
    session.close()?;
    Ok("None on one, CRC32C on the other".into())
}

fn ping(session: &mut Session<'_>) -> NopOut {
    NopOut {
        immediate: true,
        lun: Lun(0),
        itt: session.new_itt(),
        ttt: Ttt::NONE,
        cmd_sn: session.cmd_sn,
        exp_stat_sn: session.links[0].exp_stat_sn,
    }
}

/// Sends a PDU with one bit of its data wrong; the digest is that of the right data.
pub(super) fn send_damaged(
    session: &mut Session<'_>,
    link: usize,
    pdu: impl Into<Pdu>,
    data: &[u8],
) -> Result<(), Stop> {
    let wire = &mut session.links[link].wire;
    let header = pdu.into().encode(data.len() as u32);
    let mut bytes = wire.framing.pdu_bytes(&header, data);
    let at = wire.framing.header_bytes(&header).len();
    bytes[at] ^= 0x10;
    wire.send_bytes(&bytes)
}

/// Its header is not to be believed: no answer, at most the end of the connection.
fn header_error(context: &Context) -> Verdict {
    let mut session = with_digests(context, true, false, Offer::leading())?;
    let request = ping(&mut session);
    let wire = &mut session.links[0].wire;
    let mut bytes = wire.framing.pdu_bytes(&request.encode(0), &[]);
    bytes[19] ^= 1; // the tag's last byte: the ping of another task
    wire.send_bytes(&bytes)?;
    match session.event(0)? {
        Event::Closed => Ok("the connection was closed".into()),
        Event::Nothing => Ok("the PDU was discarded".into()),
        event => failed(format!("a PDU with a wrong header digest got {event}")),
    }
}

fn data_error_on_ping(context: &Context) -> Verdict {
    let mut session = with_digests(context, false, true, Offer::leading())?;
    let request = ping(&mut session);
    let quoted = request.encode(16);
    send_damaged(&mut session, 0, request, &[7; 16])?;
    rejected(&mut session, &quoted.bhs)
}

/// Reject with reason 0x02 and the header.
fn rejected(session: &mut Session<'_>, header: &[u8]) -> Verdict {
    let event = session.event(0)?;
    if let Event::Pdu(arrived) = &event
        && let Pdu::Reject(reject) = &arrived.pdu
    {
        ensure(reject.reason == RejectReason::DATA_DIGEST_ERROR, || {
            format!("Reject with reason {:#04x}, not 0x02", reject.reason.0)
        })?;
        ensure(arrived.data.starts_with(header), || "the Reject lacks the header".into())?;
        return Ok("Reject with reason 0x02".into());
    }
    failed(format!("a wrong data digest got {event}, not a Reject with reason 0x02"))
}

fn data_error_on_immediate_data(context: &Context) -> Verdict {
    let offer = Offer::leading().with("ImmediateData", "Yes");
    let mut session = with_digests(context, false, true, offer)?;
    require(session.agreed.immediate_data && session.links[0].send_max >= context.unit(), || {
        "no immediate data of one unit".into()
    })?;
    let data = pattern(52, context.unit());
    let command = session.write_command(0, context.scratch(0), data.len() as u32);
    let quoted = command.encode(data.len() as u32);
    send_damaged(&mut session, 0, command, &data)?;
    rejected(&mut session, &quoted.bhs)
}

/// Damaged data never reach the medium: Reject, and the command does not end with GOOD.
fn data_error_at_level_0(context: &Context) -> Verdict {
    let offer = super::data_out::solicited(context);
    let mut session = with_digests(context, false, true, offer)?;
    let data = pattern(53, context.unit());
    let itt = session.write(0, context.scratch(0), data.len() as u32)?;
    let r2t = session.next_r2t(0, itt)?;
    let pdu = super::level1::data_pdu(&session, &r2t, 0, 0, true);
    let quoted = pdu.encode(data.len() as u32);
    send_damaged(&mut session, 0, pdu, &data)?;
    let said = rejected(&mut session, &quoted.bhs)?;
    match session.event(0)? {
        Event::Pdu(arrived) => match &arrived.pdu {
            Pdu::ScsiResponse(r) if r.status == 0 && r.response.0 == 0 => {
                failed(format!("{said}, but the command ended with GOOD"))
            }
            _ => Ok(format!("{said}, then {}", Event::Pdu(arrived))),
        },
        Event::Closed => Ok(format!("{said}, then the connection was closed")),
        Event::Nothing => failed(format!("{said}, but the command never ends")),
    }
}
